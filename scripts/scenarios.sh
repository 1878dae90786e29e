#!/usr/bin/env bash
# Every scenario of bench/scenarios at a scale that fits this machine, each against a broker of its own; a report as a page and as JSON
# for each. Broker and generator share the machine's cores, so the figures say what is in order, not what the broker can do.
# The messages of iov-background go through a rule to a real Kafka, where all are looked for, in order per vehicle; where Kafka cannot be
# had (see kafka.sh), to a file, where they are counted.
# Usage: scenarios.sh [--only LIST] [--connections N] [--seconds 10] [--reports target/reports] [--broker COMMAND]
#   --connections N  at most so many clients per scenario; by default what the limit of open files allows
#   --seconds N      measured phases of a fixed length last so long
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR source=sink_common.sh
. "$(dirname "$0")/sink_common.sh"
only=
connections=
seconds=10
reports=
while [ $# -gt 0 ]; do
    case $1 in
        --only) only=$(text "$@"); shift 2 ;;
        --connections) connections=$(number "$@"); shift 2 ;;
        --seconds) seconds=$(number "$@"); shift 2 ;;
        --reports) reports=$(text "$@"); reports=$(realpath -m "$reports"); shift 2 ;;
        --broker) broker=$(text "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done
reports=${reports:-$target/reports}
if [ -z "$connections" ]; then
    files=$(ulimit -Hn)
    [ "$files" != unlimited ] || files=1000000000
    connections=$((files - 1500))
    [ "$connections" -gt 0 ] || {
        echo "scenarios.sh: the hard limit of open files is $files, and the broker and the generator keep 1500 for what is no client: raise it" \
            "(ulimit -Hn as root, docker run --ulimit nofile=N:N), or say --connections N" >&2
        exit 1
    }
fi
mkdir -p "$reports"
ulimit -n "$(ulimit -Hn)"
build_broker
build_bench
# NAME CLIENTS of each scenario that comes with the program.
scenarios=$("$bench/corelane-bench" list | awk '/^scenarios/ { on = 1; next } /^cases/ { on = 0 } on { gsub(",", "", $2); print $1, $2 }')
# shellcheck disable=SC2046 # A name is a word.
[ -z "$only" ] || names --only "$only" $(cut -d' ' -f1 <<<"$scenarios")

# start_with_rule: starts the broker with a rule for the vehicles' messages, to Kafka or else to a file.
start_with_rule() {
    local status=0 sql='SELECT payload FROM "vehicles/+/telemetry"'
    start_server kafka || status=$?
    case $status in
        0)
            "$bench/sink_check" create --into kafka --server "127.0.0.1:$kafka_port" --name telemetry
            start_configured auto "$(free_port)" < <(kafka_rule "$sql" telemetry) ;;
        3) start_configured auto "$(free_port)" < <(file_rule "$sql" "$work/telemetry.jsonl") ;;
        *) exit 1 ;;
    esac
}

# all_found SENT: whether what was sent is where the rule wrote it, once the broker has ended.
all_found() {
    if [ -n "$kafka_port" ]; then
        "$bench/sink_check" verify --into kafka --server "127.0.0.1:$kafka_port" --name telemetry --expect "$1" --key 'vehicle-{i}'
    else
        local found
        found=$(wc -l <"$work/telemetry.jsonl")
        echo "$found of $1 messages in the file"
        [ "$found" -eq "$1" ]
    fi
}

failed=0
while read -r name clients; do
    [ -z "$only" ] || [[ ",$only," == *",$name,"* ]] || continue
    scale=$(awk -v room="$connections" -v clients="$clients" 'BEGIN { printf "%.6g", (clients > room ? room / clients : 1) }')
    echo "== $name, scale $scale"
    if [ "$name" = iov-background ]; then start_with_rule; else start_broker auto; fi
    status=0
    attend timeout -k 5 600 "$bench/corelane-bench" run "$name" --scale "$scale" --duration-s "$seconds" --address "127.0.0.1:$port" \
        --broker-pid "$broker_pid" --html "$reports/$name.html" --json "$reports/$name.json" --progress-s 5 || status=$?
    stop "$broker_pid"
    if [ "$name" = iov-background ] && [ "$status" -eq 0 ]; then
        all_found "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["sent"])' "$reports/$name.json")" || status=$?
    fi
    echo "== $name: $([ "$status" -eq 0 ] && echo passed || echo "FAILED ($status)")"
    [ "$status" -eq 0 ] || failed=$((failed + 1))
done <<<"$scenarios"
echo "reports: $reports"
[ "$failed" -eq 0 ] || { echo "$failed scenarios failed" >&2; exit 1; }
