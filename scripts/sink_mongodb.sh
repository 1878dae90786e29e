#!/usr/bin/env bash
# 15,000 clients that connect at 4,000 a second publish 100 bytes each with QoS 1 through a rule into MongoDB, ack = "delivered". First the
# rate that the server alone sustains is found, with the plain driver; then the clients publish at that rate for a while, and for a
# minute at half as much again. Prints the rates, the mean time from publish to PUBACK and CPU; all that was acknowledged has to be there.
# Usage: sink_mongodb.sh [--clients 15000] [--connect-rate 4000] [--seconds 60] [--broker COMMAND]
# Server, broker and clients share this machine's cores, so the server has less of them with clients than alone.
# Environment: that of mongo.sh. Ends with 3 where it cannot run (see there).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR source=sink_common.sh
. "$(dirname "$0")/sink_common.sh"
clients=15000
connect_rate=4000
seconds=60
while [ $# -gt 0 ]; do
    case $1 in
        --clients) clients=$(number "$@"); shift 2 ;;
        --connect-rate) connect_rate=$(number "$@"); shift 2 ;;
        --seconds) seconds=$(number "$@"); shift 2 ;;
        --broker) broker=$(text "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done
ulimit -n "$(ulimit -Hn)"

build_broker
build_bench
start_server mongo
uri=mongodb://127.0.0.1:$mongo_port

best=0
for shape in "100 1" "1000 1" "1000 4" "5000 4"; do
    read -r batch parallel <<<"$shape"
    attend "$bench/sink_check" insert --into mongodb --server "$uri" --name "corelane.alone_${batch}_$parallel" --batch "$batch" --parallel "$parallel" --seconds 8 >"$work/line"
    line=$(<"$work/line")
    echo "alone, $parallel insertMany of $batch at a time: $line"
    found=$(grep -o '[0-9]* documents/s' <<<"$line" | cut -d' ' -f1)
    [ "$found" -le "$best" ] || best=$found
done
echo "the server alone sustains $best documents/s"

# load NAME RATE SECONDS: one run of all clients into a collection of its own.
load() {
    local name=$1 rate=$2 seconds=$3 before after status=0
    echo
    echo "== $name: $rate messages/s for $seconds s"
    start_configured 1 "$(free_port)" < <(mongo_rule "$name" delivered)
    before=$(threads_cpu "$broker_pid")
    attend "$bench/sink_check" publish --address "127.0.0.1:$port" --clients "$clients" --connect-rate "$connect_rate" --rate "$rate" --json \
        --keep-alive-s 300 --window 4 --seconds "$seconds" --drain-s 120 --acknowledged "$work/$name" --quiet >"$work/$name.log" 2>&1 || status=$?
    after=$(threads_cpu "$broker_pid")
    cat "$work/$name.log"
    verdict "every message was acknowledged and every client stayed" [ "$status" -eq 0 ]
    verdict "no connection was lost" grep -q 'lost connections 0,' "$work/$name.log"
    awk -v messages="$(grep -o ' acknowledged [0-9]*' "$work/$name.log" | grep -o '[0-9]*')" '
        NR == FNR { before[$1] = $2; next }
        { printf "CPU of the broker: %s %.2f µs per message\n", $1, ($2 - before[$1]) / 1e3 / messages }' <(echo "$before") <(echo "$after")
    stop "$broker_pid"
    status=0
    attend "$bench/sink_check" check --into mongodb --server "$uri" --name "corelane.$name" --acknowledged "$work/$name" || status=$?
    verdict "all acknowledged documents are there" [ "$status" -eq 0 ]
}
load at_its_rate "$best" $((seconds / 2))
load beyond_it $((best * 3 / 2)) "$seconds"
ended
