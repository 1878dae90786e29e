#!/usr/bin/env bash
# Every scenario of bench/scenarios at a scale that fits this machine, each against a broker of its own; a report as a page and as JSON
# for each. Broker and generator share the machine's cores, so the figures say what is in order, not what the broker can do.
# Usage: scenarios.sh [--only LIST] [--connections N] [--seconds 10] [--reports target/reports] [--broker COMMAND]
#   --connections N  at most so many clients per scenario; by default what the limit of open files allows
#   --seconds N      measured phases of a fixed length last so long
set -euo pipefail
only=
connections=$(($(ulimit -Hn) - 1500))
seconds=10
reports=
while [ $# -gt 0 ]; do
    case $1 in
        --only) only=$2; shift 2 ;;
        --connections) connections=$2; shift 2 ;;
        --seconds) seconds=$2; shift 2 ;;
        --reports) reports=$(realpath -m "$2"); shift 2 ;;
        --broker) export CORELANE_BROKER=$2; shift 2 ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2; exit 2 ;;
    esac
done
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
reports=${reports:-$target/reports}
mkdir -p "$reports"
ulimit -n "$(ulimit -Hn)"
build_broker
build_bench

failed=0
# NAME CLIENTS of each scenario that comes with the program.
while read -r name clients; do
    [ -z "$only" ] || [[ ",$only," == *",$name,"* ]] || continue
    scale=$(awk -v room="$connections" -v clients="$clients" 'BEGIN { printf "%.6g", (clients > room ? room / clients : 1) }')
    start_broker auto
    echo "== $name, scale $scale"
    status=0
    timeout -k 5 600 "$bench/corelane-bench" run "$name" --scale "$scale" --duration-s "$seconds" --address "127.0.0.1:$port" \
        --broker-pid "$broker_pid" --html "$reports/$name.html" --json "$reports/$name.json" --progress-s 5 || status=$?
    echo "== $name: $([ "$status" -eq 0 ] && echo passed || echo "FAILED ($status)")"
    [ "$status" -eq 0 ] || failed=$((failed + 1))
    stop "$broker_pid"
done < <("$bench/corelane-bench" list | awk '/^scenarios/ { on = 1; next } /^cases/ { on = 0 } on { gsub(",", "", $2); print $1, $2 }')
echo "reports: $reports"
[ "$failed" -eq 0 ] || { echo "$failed scenarios failed" >&2; exit 1; }
