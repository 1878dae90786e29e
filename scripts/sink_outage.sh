#!/usr/bin/env bash
# Nothing that the broker has acknowledged is missing in Kafka (or MongoDB): 200 clients publish with QoS 1 through a rule with
# ack = "delivered"; the server is killed (kill -9) and started again three times under this load, then the broker is killed once. The
# clients, whose keep-alive is 10 s, go on as real ones do: they connect again and repeat what was not acknowledged. Prints what was
# acknowledged, found and missing, and whether an outage of the server disconnected anybody.
# Usage: sink_outage.sh kafka|mongodb [--rate 2000] [--clients 200] [--down LIST] [--broker COMMAND]
#   --rate N      messages per second of all clients together
#   --down LIST   how many seconds the server is down each time: "3 15 5"
# Environment: that of kafka.sh and mongo.sh. Ends with 3 where these cannot run (see there).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR source=sink_common.sh
. "$(dirname "$0")/sink_common.sh"
case ${1:-} in kafka | mongodb) into=$1; shift ;; *) usage ;; esac
rate=2000
clients=200
down="3 15 5"
while [ $# -gt 0 ]; do
    case $1 in
        --rate) rate=$(number "$@"); shift 2 ;;
        --clients) clients=$(number "$@"); shift 2 ;;
        --down) down=$(text "$@"); shift 2 ;;
        --broker) broker=$(text "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done

build_broker
build_bench
if [ "$into" = kafka ]; then
    start_server kafka
    server() { "$root/scripts/kafka.sh" "$1" --port "$kafka_port" >/dev/null; }
    place=(--into kafka --server "127.0.0.1:$kafka_port" --name acknowledged)
    "$bench/sink_check" create "${place[@]}"
    start_configured 2 "$(free_port)" < <(kafka_rule 'SELECT * FROM "vehicle/+/telemetry"' acknowledged delivered)
else
    start_server mongo
    server() { "$root/scripts/mongo.sh" "$1" --port "$mongo_port" >/dev/null; }
    place=(--into mongodb --server "mongodb://127.0.0.1:$mongo_port" --name corelane.acknowledged)
    start_configured 2 "$(free_port)" < <(mongo_rule acknowledged delivered)
fi

"$bench/sink_check" publish --address "127.0.0.1:$port" --clients "$clients" --rate "$rate" --json --keep-alive-s 10 --window 8 \
    --seconds 3600 --until-file "$work/stop" --drain-s 120 --acknowledged "$work/acknowledged" >"$work/clients.log" 2>&1 &
publisher=$!
pids+=("$publisher")

# number NAME: what the clients last said of it.
number() { grep -o "$1 [0-9]*" "$work/clients.log" | tail -n 1 | grep -o '[0-9]*$'; }
# acknowledged_more SECONDS: waits until more is acknowledged than now, and a little more.
acknowledged_more() {
    local before deadline=$((SECONDS + $1))
    sleep 1.2
    before=$(number ' acknowledged' || echo 0)
    until [ "$(number ' acknowledged' || echo 0)" -gt $((${before:-0} + rate / 2)) ]; do
        kill -0 "$publisher" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.2
    done
}
say() { printf '%3d s  %s\n' "$SECONDS" "$*"; }

verdict "the load is acknowledged" acknowledged_more 60
for seconds in $down; do
    sleep 3
    say "kill -9 $into for $seconds s; acknowledged so far: $(number ' acknowledged')"
    server kill
    sleep "$seconds"
    say "start $into; acknowledged so far: $(number ' acknowledged')"
    server start
    verdict "acknowledgements go on" acknowledged_more 90
done
lost=$(number 'lost connections')
verdict "clients that the outages disconnected: $lost, pings answered too late: $(number 'unanswered')" [ "$lost" -eq 0 ]
sleep 3
say "kill -9 broker; acknowledged so far: $(number ' acknowledged')"
kill -KILL "$broker_pid"
wait "$broker_pid" 2>/dev/null || true
sleep 2
start_again 2 "$port"
say "the broker is back"
verdict "acknowledgements go on" acknowledged_more 90
sleep 3
touch "$work/stop"
status=0
wait "$publisher" || status=$?
tail -n 4 "$work/clients.log"
verdict "the clients' messages were all acknowledged in the end" [ "$status" -eq 0 ]
status=0
attend "$bench/sink_check" check "${place[@]}" --acknowledged "$work/acknowledged" || status=$?
verdict "no acknowledged message is missing in $into" [ "$status" -eq 0 ]
ended
