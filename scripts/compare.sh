#!/usr/bin/env bash
# Brokers side by side: Corelane, Debian's mosquitto, rumqttd from crates.io, and the relay floor of bench/, each pinned to one core
# with the generator on another, in alternation. Prints medians, spreads and multiples of the floor with Corelane's aims beside them;
# fails if an aim is not met. What is missing is installed: mosquitto as a package, rumqttd into target/peers.
# Usage: compare.sh [--cases qos0,qos1,…] [--servers floor,corelane,…] [--rounds 7] [--broker COMMAND] [--keep FILE]
#   --keep FILE  keeps the line of each run; `corelane-bench table FILE` makes the table again
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
cases=qos0,qos1,qos2,qos0-one,qos1-one,open-5k,fan-out-1000,fan-out-19500,connect,storm,idle
servers=floor,corelane,mosquitto,rumqttd
rounds=7
keep=
while [ $# -gt 0 ]; do
    case $1 in
        --cases) cases=$(text "$@"); shift 2 ;;
        --servers) servers=$(text "$@"); shift 2 ;;
        --rounds) rounds=$(number "$@"); shift 2 ;;
        --broker) broker=$(text "$@"); shift 2 ;;
        --keep) keep=$(text "$@"); keep=$(realpath -m "$keep"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done
names --servers "$servers" floor corelane mosquitto rumqttd
build_bench
known=$("$bench/corelane-bench" list | awk '/^cases/ { on = 1; next } on { print $1 }')
# shellcheck disable=SC2086 # A name is a word.
names --cases "$cases" $known
IFS=, read -ra cases <<<"$cases"
IFS=, read -ra servers <<<"$servers"
# Of the cores that this process may use, the first two.
mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (core = $1; core <= ($2 == "" ? $1 : $2); core++) print core }')
[ "${#cores[@]}" -ge 2 ] || { echo "two cores are needed" >&2; exit 2; }
ulimit -n "$(ulimit -Hn)"
[ "$(ulimit -n)" -ge 19600 ] || echo "warning: $(ulimit -n) open files are too few for the cases with 19,500 connections" >&2

# wants SERVER: whether it takes part.
wants() { local server; for server in "${servers[@]}"; do [ "$server" = "$1" ] && return; done; return 1; }

peers=$target/peers
if wants corelane; then build_broker; fi
if wants mosquitto; then "$(dirname "$0")/install.sh" mosquitto mosquitto; fi
if wants rumqttd && ! [ -x "$peers/bin/rumqttd" ]; then
    echo "installing rumqttd 0.20.0 from crates.io into $peers" >&2
    # Not --locked: its lock file names a `metrics` that current compilers refuse. TLS and WebSocket are left out.
    CARGO_TARGET_DIR=$peers/build cargo install --quiet rumqttd --version 0.20.0 --no-default-features --root "$peers"
    rm -rf "$peers/build"
fi
PATH=$PATH:/usr/sbin

# Neither keeps anything on disk or asks who connects; queues and windows are longer than any case needs.
mosquitto_configuration() {
    cat <<CONFIGURATION
listener $1 127.0.0.1
allow_anonymous true
persistence false
max_inflight_messages 0
max_queued_messages 0
max_connections -1
set_tcp_nodelay true
log_type error
CONFIGURATION
}
rumqttd_configuration() {
    cat <<CONFIGURATION
id = 0
[router]
id = 0
max_connections = 30000
max_outgoing_packet_count = 1000
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4-1"
listen = "127.0.0.1:$1"
next_connection_delay_ms = 0
[v4.1.connections]
connection_timeout_ms = 60000
max_payload_size = 1048576
max_inflight_count = 1000
dynamic_filters = true
CONFIGURATION
}

# start_server SERVER CASE: starts it on the first core; sets $port and $started, returns once it accepts.
start_server() {
    local command
    port=$(free_port)
    case $1 in
        # $broker may be a command with arguments of its own.
        corelane) read -ra command <<<"$broker"; command+=(--listen "127.0.0.1:$port" --shards 1) ;;
        floor)
            command=("$bench/relay_floor" --listen "127.0.0.1:$port")
            case $2 in fan-out*) command+=(--fan-out) ;; esac
            ;;
        mosquitto)
            mosquitto_configuration "$port" >"$work/mosquitto.conf"
            command=(mosquitto -c "$work/mosquitto.conf")
            ;;
        rumqttd)
            rumqttd_configuration "$port" >"$work/rumqttd.toml"
            command=("$peers/bin/rumqttd" --quiet --config "$work/rumqttd.toml")
            ;;
        *) echo "unknown server $1" >&2; exit 2 ;;
    esac
    taskset -c "${cores[0]}" "${command[@]}" >"$work/$1.log" 2>&1 &
    started=$!
    pids+=("$started")
    for _ in $(seq 200); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
        kill -0 "$started" 2>/dev/null || break
        sleep 0.05
    done
    echo "$1 did not start:" >&2
    cat "$work/$1.log" >&2
    exit 1
}

# run_case ROUND SERVER CASE: one run; its line goes to the results.
run_case() {
    local round=$1 server=$2 wanted=$3 run=$3 line status=0
    # The floor has no QoS: its shape at QoS 0 is the measure.
    if [ "$server" = floor ]; then
        case $wanted in qos1 | qos2) run=qos0 ;; qos1-one) run=qos0-one ;; esac
    fi
    start_server "$server" "$run"
    attend taskset -c "${cores[1]}" timeout -k 5 300 "$bench/corelane-bench" case "$run" --threads 1 --address "127.0.0.1:$port" \
        --broker-pid "$started" >"$work/line" 2>"$work/error" || status=$?
    line=$(<"$work/line")
    # 1 is a failed check, and there is a line; the rest are runs that could not be made.
    if [ "$status" -gt 1 ]; then
        line="case=$run status=$status"
        sed 's/^/    /' "$work/error" >&2
    fi
    line="round=$round server=$server for=$wanted $line"
    echo "$line" | tee -a "$results"
    # At once: what it owes to clients that are gone does not matter.
    kill -KILL "$started" 2>/dev/null || true
    wait "$started" 2>/dev/null || true
}

results=${keep:-$work/results}
: >"$results"
for round in $(seq "$rounds"); do
    for case in "${cases[@]}"; do
        # Each round begins with another server, so that none has always the same one before it.
        for offset in "${!servers[@]}"; do
            run_case "$round" "${servers[(offset + round - 1) % ${#servers[@]}]}" "$case"
        done
    done
done
echo
"$bench/corelane-bench" table "$results"
