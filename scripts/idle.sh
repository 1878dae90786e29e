#!/usr/bin/env bash
# What an idle connection costs: 15,000 clients with one subscription each against a broker with two shards. Prints resident memory
# at each step, its slope and base against their bounds, the kernel's slab per connection, and the broker's CPU over 30 idle
# seconds; fails if a bound does not hold. Needs 15,100 open files (hard limit) and, for the slab caches, root.
# Usage: idle.sh [--broker COMMAND] [options of the `idle` generator, e.g. --steps 5000,10000,15000 --idle-s 30]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if [ "${1:-}" = --broker ]; then broker=$(text "$@"); shift 2; fi

build_broker
build_bench
start_broker 2
attend "$bench/idle" --address "127.0.0.1:$port" --pid "$broker_pid" --shards 2 "$@"
