#!/usr/bin/env bash
# Rules and sinks of a release broker, end to end: against real Kafka and a server that speaks MongoDB's protocol, both started here, an
# HTTP server and files; one outage of the servers included. Prints a line per case and `N passed, N failed`; fails if a case did.
# Without Java the Kafka cases run on librdkafka's mock cluster, without Go those of MongoDB are left out; both are said.
# What else is missing is installed: Debian packages by apt-get, the client libraries below target/clients.
# Usage: run.sh [--broker COMMAND] [--mock-kafka] [CASE-PART...], where a part of a case's sentence chooses it
set -euo pipefail
mock=
while [ $# -gt 0 ]; do
    case $1 in
        --broker) export CORELANE_BROKER=$2; shift 2 ;;
        --mock-kafka) mock=1; shift ;;
        *) break ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../../scripts/common.sh
. "$here/../../scripts/common.sh"
export PYTHONDONTWRITEBYTECODE=1

kafka_port=
mongo_port=
end_servers() {
    [ -z "$kafka_port" ] || "$root/scripts/kafka.sh" reset --port "$kafka_port" || true
    [ -z "$mongo_port" ] || "$root/scripts/mongo.sh" reset --port "$mongo_port" || true
    stop_all
}
trap end_servers EXIT

build_broker
python=$("$here/../clients/venv.sh" sinks confluent-kafka==2.12.1 pymongo==4.15.4)
arguments=()
status=0
if [ -z "$mock" ]; then
    kafka_port=$(free_port)
    "$root/scripts/kafka.sh" start --secure --port "$kafka_port" >"$work/kafka.out" || status=$?
    case $status in
        0)
            "$root/scripts/install.sh" kcat kcat
            "$root/scripts/install.sh" mosquitto_pub mosquitto-clients
            arguments+=(--kafka "$root/scripts/kafka.sh" "$kafka_port") ;;
        3) mock=1 ;;
        *) exit 1 ;;
    esac
fi
if [ -n "$mock" ]; then
    kafka_port=
    build_bench
    echo "Kafka: librdkafka's mock cluster"
    arguments+=(--mock-kafka "$bench/sink_check")
fi
status=0
mongo_port=$(free_port)
"$root/scripts/mongo.sh" start --port "$mongo_port" >"$work/mongo.out" || status=$?
case $status in
    0) arguments+=(--mongo "$root/scripts/mongo.sh" "$mongo_port") ;;
    3)
        mongo_port=
        echo "MongoDB: left out" ;;
    *) exit 1 ;;
esac

status=0
"$python" "$here/sink_cases.py" --broker "$broker" --directory "$work/cases" "${arguments[@]}" "$@" 2>"$work/errors" | tee "$work/out" || status=$?
passed=$(grep -c '^ok ' "$work/out" || true)
failed=$(grep -c '^FAIL ' "$work/out" || true)
# A failed case says so itself; any other end is one more failure.
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    failed=1
    echo "FAIL sinks: the run ended with status $status: $(tail -3 "$work/errors" | tr '\n' ' ')"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
