#!/usr/bin/env bash
# Five minutes of random bytes and mutated packets from 64 sockets against a broker with two shards, while an honest pair exchanges
# a QoS 1 message every 100 ms. Fails if one of those is late, if the broker dies, or if its log speaks of a panic.
# Usage: chaos.sh [--broker COMMAND] [options of the `chaos` generator, e.g. --minutes 5 --seed N]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if [ "${1:-}" = --broker ]; then broker=$(text "$@"); shift 2; fi

build_broker
build_bench
start_broker 2
result=0
attend "$bench/chaos" --address "127.0.0.1:$port" "$@" || result=$?
if kill -0 "$broker_pid" 2>/dev/null; then
    echo "the broker is alive: PASS"
else
    echo "the broker died: FAIL"
    tail -40 "$broker_log"
    result=1
fi
if grep -qi 'panic' "$broker_log"; then
    echo "its log speaks of a panic: FAIL"
    grep -i -A 20 'panic' "$broker_log" | head -60
    result=1
else
    echo "its log speaks of no panic ($(wc -l <"$broker_log") lines): PASS"
fi
exit "$result"
