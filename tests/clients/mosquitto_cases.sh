#!/usr/bin/env bash
# mosquitto_pub and mosquitto_sub against a broker, in every protocol version.
# Usage: mosquitto_cases.sh HOST PORT
set -uo pipefail
host=$1
port=$2
client="mosquitto_pub/sub $(mosquitto_pub --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p' | head -1)"
work=$(mktemp -d)
pids=()
failed=0
serial=0
subscribers=0
finish() {
    for pid in "${pids[@]:-}"; do [ -n "$pid" ] && kill "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap finish EXIT

# check CASE EXPECTED FOUND: prints the case's line.
check() {
    if [ "$2" = "$3" ]; then
        echo "ok   $client: $1"
    else
        echo "FAIL $client: $1: found '$(head -c 200 <<<"$3" | tr '\n' ' ')', expected '$(head -c 200 <<<"$2" | tr '\n' ' ')'"
        failed=1
    fi
}

fresh() {
    serial=$((serial + 1))
    name="$1-$$-$serial"
}

publish() { timeout 10 mosquitto_pub -h "$host" -p "$port" -V "$version" "$@"; }

# subscribe COUNT OPTIONS...: starts a subscriber that ends after so many messages; returns once it has its SUBACK. Output in $out.
subscribe() {
    local count=$1
    shift
    subscribers=$((subscribers + 1))
    out=$work/subscriber-$subscribers
    : >"$out"
    timeout 10 stdbuf -oL mosquitto_sub -h "$host" -p "$port" -V "$version" -C "$count" -d "$@" >"$out" 2>&1 &
    subscriber=$!
    pids+=("$subscriber")
    for _ in $(seq 200); do
        grep -q '^Subscribed' "$out" && return
        # A session's messages may have been enough for it before its SUBACK.
        kill -0 "$subscriber" 2>/dev/null || return
        sleep 0.02
    done
}

# printed FILE...: what subscribers printed, without their debug lines.
printed() { cat "$@" | grep -v -E '^(Client |Subscribed )'; }

# check_received CASE EXPECTED: waits for the subscriber to end and compares what it printed.
check_received() {
    wait "$subscriber" 2>/dev/null
    check "$1" "$2" "$(printed "$out")"
}

for version in mqttv31 mqttv311 mqttv5; do
    for qos in 0 1 2; do
        fresh qos
        subscribe 2 -t "$name/+" -q "$qos" -v
        publish -t "$name/a" -m one -q "$qos"
        publish -t "$name/b" -m two -q "$qos"
        check_received "$version QoS $qos" "$name/a one"$'\n'"$name/b two"
    done

    fresh retained
    publish -t "$name" -m kept -r -q 1
    subscribe 1 -t "$name" -F '%r %p'
    check_received "$version retained" "1 kept"
    publish -t "$name" -n -r -q 1
    subscribe 1 -t "$name" -F '%r %p'
    publish -t "$name" -m live -q 1
    check_received "$version retained cleared" "0 live"

    fresh will
    will=$name
    subscribe 100 -t unused/topic --will-topic "$will" --will-payload gone --will-qos 1
    victim=$subscriber
    subscribe 1 -t "$will" -q 1 -v
    # `timeout` hands no SIGKILL on, so its child is killed.
    pkill -KILL -P "$victim"
    wait "$victim" 2>/dev/null
    check_received "$version will" "$will gone"

    fresh all
    topic=$name
    subscribe 3 -t '#' -T '$SYS/#' -R -v
    publish -t "$topic/a" -m 1 -q 1
    publish -t "$topic/a/b" -m 2 -q 1
    publish -t "/$topic" -m 3 -q 1
    check_received "$version every topic" "$topic/a 1"$'\n'"$topic/a/b 2"$'\n'"/$topic 3"

    fresh persistent
    session=(-i "$name" -c)
    [ "$version" = mqttv5 ] && session+=(-x 60)
    subscribe 1 "${session[@]}" -q 1 -t "$name"
    publish -t "$name" -m live -q 1
    wait "$subscriber"
    for number in 1 2 3; do publish -t "$name" -m "$number" -q 1; done
    subscribe 3 "${session[@]}" -q 1 -t "$name"
    check_received "$version persistent session" $'1\n2\n3'

    fresh unicode
    subscribe 1 -t "$name/温度/+" -v
    publish -t "$name/温度/Straße" -m 'schön 🚗'
    check_received "$version unicode" "$name/温度/Straße schön 🚗"

    for size in 65536 900000; do
        fresh size
        head -c "$size" /dev/urandom >"$work/payload"
        for qos in 0 2; do
            timeout 10 mosquitto_sub -h "$host" -p "$port" -V "$version" -C 1 -N -q 2 -t "$name" >"$work/got" &
            subscriber=$!
            pids+=("$subscriber")
            sleep 0.2
            publish -t "$name" -f "$work/payload" -q "$qos"
            wait "$subscriber"
            check "$version $size bytes at QoS $qos" "$(sha256sum <"$work/payload")" "$(sha256sum <"$work/got")"
        done
    done

    fresh lines
    subscribe 200 -t "$name" -q 1
    seq 200 | publish -t "$name" -l -q 1
    check_received "$version 200 lines in order" "$(seq 200)"
done

version=mqttv5
fresh properties
subscribe 1 -t "$name" -F '%C|%R|%D|%E|%P|%p'
publish -t "$name" -m text -D publish user-property key value -D publish content-type text/plain \
    -D publish response-topic answer -D publish correlation-data 42 -D publish message-expiry-interval 100
check_received "$version properties" "text/plain|answer|42|100|key:value|text"

fresh shared
topic=$name
subscribe 2 -t "\$share/group/$topic" -q 1
first=$subscriber first_out=$out
subscribe 2 -t "\$share/group/$topic" -q 1
for number in 1 2 3 4; do publish -t "$topic" -m "$number" -q 1; done
wait "$first" "$subscriber"
check "$version shared subscription" "$(seq 4)" "$(printed "$first_out" "$out" | sort)"

fresh retained
subscribe 1 -t "$name" --retain-as-published -F '%r %p'
publish -t "$name" -m kept -r -q 1
check_received "$version retain as published" "1 kept"
publish -t "$name" -n -r -q 1

fresh request
subscribe 1 -t "$name/ask" -F '%R'
responder=$subscriber responder_out=$out
timeout 10 mosquitto_rr -h "$host" -p "$port" -t "$name/ask" -e "$name/answer" -m '?' >"$work/answer" &
requester=$!
pids+=("$requester")
wait "$responder"
publish -t "$(printed "$responder_out")" -m '!' -q 1
wait "$requester"
check "$version request and response" '!' "$(cat "$work/answer")"

exit "$failed"
