#!/usr/bin/env bash
# `mosquitto_sub -v -t '#'` beside mosquitto_pub, paho-mqtt and mqtt.js, in every protocol version: it sees each of their messages.
# Usage: everyone_cases.sh HOST PORT PYTHON-WITH-PAHO-2 DIRECTORY-WITH-MQTT.JS
set -uo pipefail
host=$1
port=$2
python=$3
directory=$4
work=$(mktemp -d)
subscriber=
trap '[ -z "$subscriber" ] || kill "$subscriber" 2>/dev/null; rm -rf "$work"' EXIT
failed=0
count=100

# expected NAME: what the subscriber prints for a publisher of this name.
expected() { seq "$count" | sed "s|.*|everyone/$1/& &|"; }

for version in 3 4 5; do
    label=$(sed -n "$((version - 2))p" <<<$'mqttv31\nmqttv311\nmqttv5')
    timeout 20 stdbuf -oL mosquitto_sub -h "$host" -p "$port" -V "$label" -v -R -q 1 -t '#' -d >"$work/all" 2>&1 &
    subscriber=$!
    for _ in $(seq 200); do
        grep -q '^Subscribed' "$work/all" && break
        sleep 0.02
    done
    for number in $(seq "$count"); do
        echo "everyone/mosquitto/$number $number"
    done | while read -r topic payload; do
        # A process for each message, ten at a time.
        mosquitto_pub -h "$host" -p "$port" -V "$label" -q 1 -t "$topic" -m "$payload" &
        [ $((payload % 10)) -ne 0 ] || wait
    done
    "$python" - "$host" "$port" "$version" "$count" <<'PYTHON'
import sys

import paho.mqtt.publish as publish

host, port, version, count = sys.argv[1], *map(int, sys.argv[2:])
messages = [{"topic": f"everyone/paho/{number}", "payload": str(number), "qos": 1} for number in range(1, count + 1)]
publish.multiple(messages, hostname=host, port=port, protocol=version)
PYTHON
    (cd "$directory" && node -e '
const mqtt = require("mqtt")
const [host, port, version, count] = process.argv.slice(1)
const options = { host, port, protocolVersion: +version, protocolId: version === "3" ? "MQIsdp" : "MQTT", clientId: "everyone" }
const client = mqtt.connect(options)
client.on("connect", async () => {
  for (let number = 1; number <= count; number++) await client.publishAsync(`everyone/mqttjs/${number}`, `${number}`, { qos: 1 })
  await client.endAsync()
})' "$host" "$port" "$version" "$count")
    # What was acknowledged to a publisher is on its way to the subscriber.
    for _ in $(seq 100); do
        [ "$(grep -c '^everyone/' "$work/all")" -ge $((3 * count)) ] && break
        sleep 0.02
    done
    kill "$subscriber" && wait "$subscriber" 2>/dev/null
    subscriber=
    for name in mosquitto paho mqttjs; do
        if [ "$(grep "^everyone/$name/" "$work/all" | sort)" = "$(expected "$name" | sort)" ]; then
            echo "ok   mosquitto_sub of everything: $label, $count messages of $name"
        else
            echo "FAIL mosquitto_sub of everything: $label, $(grep -c "^everyone/$name/" "$work/all") of $count messages of $name"
            failed=1
        fi
    done
done
exit "$failed"
