#!/usr/bin/env bash
# Ten minutes of clients that come and go against a broker with two shards; its resident memory each 10 s. Fails if memory at the
# end differs by more than 5 % from memory after the first minute, if a client was not served, or if the broker died.
# Usage: churn.sh [--broker COMMAND] [options of the `churn` generator, e.g. --minutes 10 --rate 2000 --seed N]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if [ "${1:-}" = --broker ]; then broker=$(text "$@"); shift 2; fi

build_broker
build_bench
start_broker 2
result=0
attend "$bench/churn" --address "127.0.0.1:$port" --pid "$broker_pid" "$@" || result=$?
if ! kill -0 "$broker_pid" 2>/dev/null; then
    echo "the broker died: FAIL"
    tail -40 "$broker_log"
    result=1
fi
exit "$result"
