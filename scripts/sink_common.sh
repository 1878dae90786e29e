# shellcheck shell=bash disable=SC2034,SC2154,SC2317
# Sourced, after common.sh, by the scripts with rules and sinks: servers of their own that end with the script, and verdicts.

failures=0
kafka_port=
mongo_port=

# verdict TEXT COMMAND...: PASS or FAIL for the text, by whether the command succeeds.
verdict() {
    local text=$1
    shift
    if "$@"; then echo "PASS  $text"; else echo "FAIL  $text"; failures=$((failures + 1)); fi
}

# at_most A B: whether A <= B, which may be fractions.
at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }

# calculate EXPRESSION: its value, to four digits.
calculate() { awk "BEGIN { printf \"%.4g\", $1 }"; }

# median: of the numbers on standard input, a line each.
median() { sort -g | awk '{ n[NR] = $1 } END { print (NR % 2 ? n[(NR + 1) / 2] : (n[NR / 2] + n[NR / 2 + 1]) / 2) }'; }

end_all() {
    [ -z "$kafka_port" ] || "$root/scripts/kafka.sh" reset --port "$kafka_port" || true
    [ -z "$mongo_port" ] || "$root/scripts/mongo.sh" reset --port "$mongo_port" || true
    stop_all
}
trap end_all EXIT

# start_server kafka|mongo: starts it on a free port, in $kafka_port or $mongo_port. Its status is 3 where the server cannot be had, and
# ends the script that does not look.
start_server() {
    local port
    port=$(free_port)
    "$root/scripts/$1.sh" start --port "$port" >"$work/$1.out" || return
    printf -v "$1_port" %s "$port"
    head -n 1 "$work/$1.out"
}

# start_configured SHARDS PORT: starts the broker on this port with the configuration on standard input; sets $broker_pid and $broker_log.
start_configured() {
    local shards=$1
    port=$2
    cat >"$work/broker-$port.toml"
    broker_log=$work/broker-$port.log
    start_again "$shards" "$port"
}

# start_again SHARDS PORT: starts it with the configuration that it had.
start_again() {
    # $broker may be a command with arguments of its own.
    # shellcheck disable=SC2086
    start "$work/broker-$2.log" $broker --config "$work/broker-$2.toml" --listen "127.0.0.1:$2" --shards "$1"
    broker_pid=$started
}

# kafka_rule SQL TOPIC [ACK]: a configuration with one rule that writes payloads as they are to Kafka.
kafka_rule() {
    cat <<TOML
[[kafka]]
name = "kafka"
brokers = "127.0.0.1:$kafka_port"
dead_letter_path = "$work/dead-letters.jsonl"
[[rule]]
name = "telemetry"
sql = '$1'
[[rule.action]]
sink = "kafka"
topic = "$2"
payload = "\${payload}"
ack = "${3:-queued}"
TOML
}

# file_rule SQL PATH: the same for a file.
file_rule() {
    cat <<TOML
[[file]]
name = "rows"
path = "$2"
[[rule]]
name = "telemetry"
sql = '$1'
[[rule.action]]
sink = "rows"
TOML
}

# mongo_rule COLLECTION ACK: the same for MongoDB; payloads are JSON.
mongo_rule() {
    cat <<TOML
[[mongodb]]
name = "mongodb"
uri = "mongodb://127.0.0.1:$mongo_port"
database = "corelane"
dead_letter_path = "$work/dead-letters.jsonl"
[[rule]]
name = "telemetry"
sql = 'SELECT payload.publisher AS publisher, payload.sequence AS sequence, payload.speed AS speed, clientid FROM "vehicle/+/telemetry"'
[[rule.action]]
sink = "mongodb"
collection = "$1"
ack = "$2"
TOML
}

# threads_cpu PID: CPU nanoseconds of its threads by kind: `shard N`, `sink N` (with librdkafka's), `other N`.
threads_cpu() {
    local task name cpu _
    for task in "/proc/$1/task"/*; do
        { read -r name <"$task/comm" && read -r cpu _ <"$task/schedstat"; } 2>/dev/null || continue
        echo "$name $cpu"
    done | awk '{ kind = /^shard/ ? "shard" : /^(sink|rdk:|kafka|tokio)/ ? "sink" : "other"; sum[kind] += $NF }
        END { for (kind in sum) printf "%s %.0f\n", kind, sum[kind] }'
}

# ended: the script's end, by its verdicts.
ended() {
    [ ! -s "$work/dead-letters.jsonl" ] || { echo "dead letters:"; cut -c1-300 "$work/dead-letters.jsonl" | head -n 5; }
    if [ "$failures" -eq 0 ]; then echo PASS; else echo "FAIL: $failures"; fi
    exit $((failures > 0))
}
