# shellcheck shell=bash disable=SC2034
# Sourced by the scripts beside it: builds what they run, starts a broker on a free port, and stops it when the script ends.

# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "${BASH_SOURCE[0]}")/options.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Absolute, because what is below it is also run from other directories. The realpath of the virtual machine has no -m.
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
# Where the load generators are; set it to use ones that are built already.
bench=${CORELANE_BENCH_BIN:-$target/release}
# The broker's command; it is given --listen and --shards.
broker=${CORELANE_BROKER:-}
work=$(mktemp -d)
pids=()

stop_all() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# build_broker: builds Corelane unless another broker was named.
build_broker() {
    [ -n "$broker" ] && return
    (cd "$root" && cargo build --release --quiet)
    broker=$target/release/corelane
}

# build_bench: builds the load generators unless they were named.
build_bench() {
    [ -n "${CORELANE_BENCH_BIN:-}" ] || (cd "$root" && cargo build --release --quiet -p corelane-bench)
}

# free_port: prints a port nobody listens on, below those that the kernel gives to outgoing connections.
free_port() {
    local port
    while :; do
        port=$((12000 + RANDOM % 20000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# start LOG COMMAND...: starts a server in the background, waits until its log says that it listens, sets $started to its pid.
start() {
    local log=$1 _
    shift
    : >"$log"
    "$@" >"$log" 2>&1 &
    started=$!
    pids+=("$started")
    for _ in $(seq 200); do
        grep -q 'listening on' "$log" && return
        kill -0 "$started" 2>/dev/null || break
        sleep 0.05
    done
    echo "it did not start: $*" >&2
    cat "$log" >&2
    exit 1
}

# start_broker SHARDS [PREFIX...]: starts the broker; sets $port, $broker_pid and $broker_log. PREFIX is put before the command.
start_broker() {
    local shards=$1
    shift
    port=$(free_port)
    broker_log=$work/broker-$port.log
    # $broker may be a command with arguments of its own.
    # shellcheck disable=SC2086
    start "$broker_log" "$@" $broker --listen "127.0.0.1:$port" --shards "$shards"
    broker_pid=$started
}

# attend COMMAND...: runs a command to its end, with its status. It is in the background, since the shell acts on a signal only once what
# is in the foreground has ended; so a signal ends the script at once, and the command with it.
attend() {
    local status=0
    "$@" &
    pids+=("$!")
    wait "$!" || status=$?
    unset 'pids[-1]'
    return "$status"
}

# stop PID: stops one of the servers.
stop() {
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}
