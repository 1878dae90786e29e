#!/usr/bin/env bash
# Subscriptions, retained messages and interest from a thousand entries to a million: ns per match and bytes per entry, as Markdown.
# `scripts/trees.sh --turns [SCENARIO…]` measures the core's turns under its largest loads instead. Either needs about 4 GB of memory.
# Usage: trees.sh [--turns] [options of the `trees` or `turns` program]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

program=trees
[ "${1:-}" = --turns ] && { program=turns; shift; }
build_bench
attend "$bench/$program" "$@"
