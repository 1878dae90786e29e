#!/usr/bin/env bash
# Clients that users have, against a broker on a free port with two shards: mosquitto_pub/mosquitto_sub, paho-mqtt 1.x and 2.x,
# mqtt.js, rumqttc and umqtt.simple. Prints a line per case and `N passed, N failed`; fails if a case did, or a client's run broke.
# What is missing is installed: Debian packages by apt-get, the client libraries below target/clients.
# Usage: run.sh [--broker COMMAND] [CLIENT...], where a client is mosquitto, everyone (several
# at once), paho1, paho2, mqttjs, rumqttc or umqtt; the first two have to come first.
set -euo pipefail
[ "${1:-}" = --broker ] && { export CORELANE_BROKER=$2; shift 2; }
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../../scripts/common.sh
. "$here/../../scripts/common.sh"
export PYTHONDONTWRITEBYTECODE=1
clients=${*:-mosquitto everyone paho1 paho2 mqttjs rumqttc umqtt}
installed=$target/clients
mkdir -p "$installed"

need() { "$root/scripts/install.sh" "$@"; }

# MicroPython's packages cannot be installed by pip on CPython; this one is the single file that is wanted.
fetch_umqtt() {
    local url=https://files.pythonhosted.org/packages/bd/cf/697e3418b2f44222b3e848078b1e33ee76aedca9b6c2430ca1b1aec1ce1d/micropython-umqtt.simple-1.3.4.tar.gz
    [ -e "$installed/umqtt/umqtt/simple.py" ] && return
    need curl curl
    curl -sSfL --retry 3 -o "$installed/umqtt.tar.gz" "$url"
    echo "b6a2520239e3992c63a7de9370ee9b3d9d27819a90359c521f1c0f7ccab8d12f  $installed/umqtt.tar.gz" | sha256sum --check --quiet
    mkdir -p "$installed/umqtt"
    tar -xzf "$installed/umqtt.tar.gz" -C "$installed/umqtt" --strip-components=1
}

install_mqttjs() {
    need npm nodejs npm
    [ -e "$installed/mqttjs/node_modules/mqtt" ] ||
        npm install --prefix "$installed/mqttjs" --no-audit --no-fund --silent mqtt@5.16.0
}

# command_of CLIENT: prepares it and sets $command.
command_of() {
    case $1 in
        mosquitto)
            need mosquitto_sub mosquitto-clients
            command=("$here/mosquitto_cases.sh" 127.0.0.1 "$port") ;;
        everyone)
            need mosquitto_sub mosquitto-clients
            install_mqttjs
            command=("$here/everyone_cases.sh" 127.0.0.1 "$port" "$("$here/venv.sh" paho2 paho-mqtt==2.1.0)" "$installed/mqttjs") ;;
        paho1)
            command=("$("$here/venv.sh" paho1 paho-mqtt==1.6.1)" "$here/paho_cases.py" 127.0.0.1 "$port") ;;
        paho2)
            command=("$("$here/venv.sh" paho2 paho-mqtt==2.1.0)" "$here/paho_cases.py" 127.0.0.1 "$port") ;;
        mqttjs)
            install_mqttjs
            command=(node "$here/mqttjs_cases.mjs" 127.0.0.1 "$port" "$installed/mqttjs") ;;
        rumqttc)
            command=("$bench/rumqttc_cases" --address "127.0.0.1:$port") ;;
        umqtt)
            need python3 python3
            fetch_umqtt
            command=(python3 "$here/umqtt_cases.py" 127.0.0.1 "$port" "$installed/umqtt") ;;
        *)
            echo "unknown client $1" >&2
            exit 2 ;;
    esac
}

# run CLIENT: runs its cases; its lines go to a file and, when it ends, to the screen.
run() {
    local status=0
    timeout 90 "${command[@]}" >"$work/$1.out" 2>"$work/$1.err" || status=$?
    # A failed case says so itself; any other end is one more failure.
    if [ "$status" -ne 0 ] && ! grep -q '^FAIL' "$work/$1.out"; then
        echo "FAIL $1: its run ended with status $status: $(tail -3 "$work/$1.err" | tr '\n' ' ')" >>"$work/$1.out"
    fi
    cat "$work/$1.out"
}

build_broker
case $clients in *rumqttc*) build_bench ;; esac
start_broker 2
running=()
for client in $clients; do
    command_of "$client"
    case $client in
        # These look at every topic, so nobody else may publish meanwhile.
        mosquitto | everyone) run "$client" ;;
        # The others mostly wait, so they run at once.
        *)
            run "$client" &
            running+=("$!") ;;
    esac
done
[ "${#running[@]}" -eq 0 ] || wait "${running[@]}"
if kill -0 "$broker_pid" 2>/dev/null; then
    echo "ok   broker: still running" | tee "$work/broker.out"
else
    echo "FAIL broker: it died: $(tail -3 "$broker_log" | tr '\n' ' ')" | tee "$work/broker.out"
fi
passed=$(cat "$work"/*.out | grep -c '^ok ' || true)
failed=$(cat "$work"/*.out | grep -c '^FAIL ' || true)
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
