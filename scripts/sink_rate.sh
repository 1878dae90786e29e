#!/usr/bin/env bash
# What a rule and a Kafka sink cost. 2,000 clients publish 100 bytes with QoS 0 through one rule to a real Kafka:
#   1. the highest rate without a backlog is searched, and sustained for 60 s: every message has to be in Kafka, in order per key;
#   2. alternating at that rate, the broker and a plain producer with the same settings that is fed from memory: the CPU per message of the
#      sink core (librdkafka's threads included) is to be at most 1.25 times that of the plain producer; and what that producer does
#      at most;
#   3. alternating at one rate, no rule, a topic-only rule, and a rule with a JSON WHERE: what each costs the shard, to be at most 0.5 and
#      2 µs per message; and the same in instructions.
# Usage: sink_rate.sh [--rate N] [--seconds 60] [--rounds 3] [--round-seconds 10] [--p99-ms 500] [--broker COMMAND]
#   --rate N      is sustained, and nothing is searched
#   --p99-ms N    a rate at which messages take longer from when they are due until Kafka has appended them has a backlog
# Kafka, broker and clients share this machine's cores. The end-to-end times are exact to a millisecond, which is how Kafka keeps them.
# Environment: that of kafka.sh. Ends with 3 where it cannot run (see there).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source-path=SCRIPTDIR source=sink_common.sh
. "$(dirname "$0")/sink_common.sh"
rate=
seconds=60
rounds=3
round_seconds=10
p99_ms=500
while [ $# -gt 0 ]; do
    case $1 in
        --rate) rate=$(number "$@"); shift 2 ;;
        --seconds) seconds=$(number "$@"); shift 2 ;;
        --rounds) rounds=$(number "$@"); shift 2 ;;
        --round-seconds) round_seconds=$(number "$@"); shift 2 ;;
        --p99-ms) p99_ms=$(number "$@"); shift 2 ;;
        --broker) broker=$(text "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done

clients=2000
build_broker
build_bench
start_server kafka
topics=0

topic_rule='SELECT clientid, payload FROM "vehicle/+/telemetry"'
json_rule='SELECT clientid, payload FROM "vehicle/+/telemetry" WHERE payload.speed >= 0'

# load RATE SECONDS: the clients' messages to the broker on $port; writes $work/load.json.
load() {
    cat >"$work/load.toml" <<TOML
description = "QoS 0 through one rule"
source = "sink_rate.sh"
[[group]]
name = "vehicles"
count = $clients
scaled = false
client_id = "vehicle-{i}"
publish = { topic = "vehicle/{i}/telemetry", size = 100, json = true, every_s = $(calculate "$clients / $1"), copies = 0 }
[[phase]]
name = "connect"
connect = ["vehicles"]
[[phase]]
name = "publish"
publish = ["vehicles"]
seconds = $2
measure = true
TOML
    attend "$bench/corelane-bench" run "$work/load.toml" --address "127.0.0.1:$port" --broker-pid "$broker_pid" --threads 1 --progress-s 0 \
        --json "$work/load.json" >"$work/load.out" 2>&1 || { cat "$work/load.out" >&2; return 1; }
}

# report EXPRESSION: a value of the last load; in it r is the report, p its phase with messages, t the CPU seconds of its threads.
report() {
    python3 - "$work/load.json" "$1" <<'PYTHON'
import json, sys
r = json.load(open(sys.argv[1]))
p = r["phases"][-1]
t = p["broker_threads_cpu_s"]
def cpu_us(*prefixes):
    return sum(s for name, s in t.items() if name.startswith(prefixes)) * 1e6 / max(p["sent"], 1)
value = eval(sys.argv[2])
print(f"{value:.4g}" if isinstance(value, float) else value)
PYTHON
}
# percent PART: a part of 1, to be read.
percent() { awk -v part="$1" 'BEGIN { printf "%.1f %%", part * 100 }'; }
shard_us() { report 'cpu_us("shard")'; }
sink_us() { report 'cpu_us("sink", "rdk:", "kafka")'; }

# run RATE SECONDS: broker and rule with a topic of their own; sets $found (0: everything is in Kafka and in order) and $p99.
run() {
    topics=$((topics + 1))
    local topic=telemetry-$topics sent
    place=(--into kafka --server "127.0.0.1:$kafka_port" --name "$topic")
    "$bench/sink_check" create "${place[@]}"
    start_configured 1 "$(free_port)" < <(kafka_rule "$topic_rule" "$topic")
    load "$1" "$2"
    sent=$(report 'r["sent"]')
    found=0
    attend "$bench/sink_check" verify "${place[@]}" --expect "$sent" --key 'vehicle-{i}' --follow-s 10 >"$work/found" || found=$?
    p99=$(sed -n 's/.*p99 \([0-9.,]*[0-9]\).*/\1/p' "$work/found" | tr -d ,)
    due=$(report 'p["sent"] / max(p["due"], 1)')
    stop "$broker_pid"
}

# holds: whether the last run had no backlog: the clients kept their rate, everything arrived, and in time.
holds() { [ "$found" -eq 0 ] && at_most 0.995 "$due" && at_most "${p99:-inf}" "$p99_ms"; }

if [ -z "$rate" ]; then
    echo "== the highest rate without a backlog"
    # Kafka's first seconds are slower than all that come after.
    run 5000 4
    low=0
    high=
    try=20000
    for _ in $(seq 12); do
        run "$try" 6
        if holds; then held=holds low=$try; else held="does not hold" high=$try; fi
        echo "$try messages/s: $held (sent $(percent "$due") of what was due, p99 ${p99:-unknown} ms, $(tail -n 1 "$work/found"))"
        if [ -z "$high" ]; then
            try=$((try * 3 / 2))
        elif [ "$low" -eq 0 ]; then
            try=$((try * 2 / 3))
        else
            [ $((high - low)) -gt $((low / 12)) ] || break
            try=$(((low + high) / 2))
        fi
    done
    [ "$low" -gt 0 ] || { echo "no rate holds" >&2; exit 1; }
    rate=$low
fi

echo
echo "== sustained for $seconds s"
for _ in 1 2 3 4; do
    run "$rate" "$seconds"
    holds && break
    echo "$rate messages/s are not sustained (sent $(percent "$due") of what was due, p99 ${p99:-unknown} ms); a tenth less"
    rate=$((rate * 9 / 10))
done
echo "$rate messages/s: sent $(report 'r["sent"]')"
cat "$work/found"
echo "CPU per message: shard $(shard_us) µs, sink core with librdkafka $(sink_us) µs (of it librdkafka $(report 'cpu_us("rdk:")') µs)"
echo "CPU seconds by thread: $(report '", ".join(f"{name} {s:.2f}" for name, s in sorted(t.items()))')"
verdict "$rate messages/s for $seconds s: every message is in Kafka, in order per key, without a backlog" holds

echo
echo "== sink core and plain producer, alternating at $rate messages/s"
for round in $(seq "$rounds"); do
    run "$rate" "$round_seconds"
    sink_us >>"$work/sink"
    topics=$((topics + 1))
    plain=(--into kafka --server "127.0.0.1:$kafka_port" --name "telemetry-$topics")
    "$bench/sink_check" create "${plain[@]}"
    attend "$bench/sink_check" produce "${plain[@]}" --json --publishers "$clients" --rate "$rate" --messages $((rate * round_seconds)) >"$work/line"
    line=$(<"$work/line")
    grep -o 'CPU [0-9.]*' <<<"$line" | cut -d' ' -f2 >>"$work/plain"
    echo "round $round: sink core $(tail -n 1 "$work/sink") µs per message; plain producer: $line"
done
topics=$((topics + 1))
plain=(--into kafka --server "127.0.0.1:$kafka_port" --name "telemetry-$topics")
"$bench/sink_check" create "${plain[@]}"
echo "the plain producer as fast as it can: $("$bench/sink_check" produce "${plain[@]}" --json --publishers "$clients" --messages 2000000)"
ratio=$(calculate "$(median <"$work/sink") / $(median <"$work/plain")")
verdict "CPU per message of the sink core: $ratio times the plain producer's, at most 1.25" at_most "$ratio" 1.25

echo
echo "== what a rule costs the shard, alternating at $rate messages/s"
for round in $(seq "$rounds"); do
    for case in none topic json; do
        topics=$((topics + 1))
        case $case in
            none) sql='SELECT * FROM "nowhere"' ;;
            topic) sql=$topic_rule ;;
            json) sql=$json_rule ;;
        esac
        start_configured 1 "$(free_port)" < <(kafka_rule "$sql" "telemetry-$topics")
        load "$rate" "$round_seconds"
        shard_us >>"$work/shard-$case"
        stop "$broker_pid"
    done
    echo "round $round: shard without a rule $(tail -n 1 "$work/shard-none") µs per message, topic-only $(tail -n 1 "$work/shard-topic"), JSON WHERE $(tail -n 1 "$work/shard-json")"
done
none=$(median <"$work/shard-none")
for case in topic:0.5 json:2; do
    cost=$(calculate "$(median <"$work/shard-${case%:*}") - $none")
    verdict "a rule (${case%:*}) costs the shard $cost µs per message, at most ${case#*:}" at_most "$cost" "${case#*:}"
done
"$root/scripts/instructions.sh" | grep '^rules' || true
ended
