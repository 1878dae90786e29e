#!/usr/bin/env bash
# What each way to do a shard's network I/O costs: echo servers on each plane, alternating with the epoll floor in every round; the server
# on core 0, the generator on core 1. Prints, as Markdown, for 50 and 1,000 connections with a message in flight each, and for 5,000
# messages per second in all on 50, CPU per message and median latency as multiples of the floor's in the same round: the median of the
# rounds, smallest and largest in parentheses; and what an idle connection takes of the server's memory and, for root, of the
# kernel's beside its socket. `planes --list` says what the planes are; one that this kernel cannot do is left out, and named.
# `scripts/planes.sh --pitfalls` prints instead what cancelling costs, what closing under a request does, and how many rings the limit of
# locked memory allows (for root: as the user nobody).
# Usage: planes.sh [--planes NAME,…] [--rounds 3] [--seconds 1] | --pitfalls
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
chosen=
rounds=3
seconds=1
pitfalls=
while [ $# -gt 0 ]; do
    case $1 in
        --planes) chosen=$(text "$@"); shift 2 ;;
        --rounds) rounds=$(number "$@"); shift 2 ;;
        --seconds) seconds=$(number "$@"); shift 2 ;;
        --pitfalls) pitfalls=1; shift ;;
        *) usage "unknown option $1" ;;
    esac
done

build_bench
if [ -n "$pitfalls" ]; then
    for armed in 1000 100000 500000; do attend "$bench/planes" --cancel "$armed"; done
    attend "$bench/planes" --close
    [ "$(id -u)" = 0 ] || { attend "$bench/planes" --locked-memory; exit; }
    # Where nobody may read it: what is built may be in root's home.
    chmod 755 "$work"
    install -m 755 "$bench/planes" "$work/planes"
    attend setpriv --reuid nobody --clear-groups --inh-caps=-all "$work/planes" --locked-memory
    exit
fi

mapfile -t planes < <("$bench/planes" --list | awk '{ print $1 }')
if [ -n "$chosen" ]; then
    names --planes "$chosen" "${planes[@]}"
    IFS=, read -ra planes <<<"$chosen"
fi
# Of the cores that this process may use, the first two.
mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (core = $1; core <= ($2 == "" ? $1 : $2); core++) print core }')
[ "${#cores[@]}" -ge 2 ] || { echo "two cores are needed" >&2; exit 2; }

# serve NAME: starts a server; sets $port and $started. A plane that the kernel cannot do fails, with its own reason on standard error.
serve() {
    local name=$1 log status=0
    log=$work/$name.log
    port=$(free_port)
    case $name in
        floor) start "$log" taskset -c "${cores[0]}" "$bench/epoll_floor" --listen "127.0.0.1:$port" ;;
        *)
            # One that is refused ends at once.
            timeout 0.3 "$bench/planes" --plane "$name" >"$log" 2>&1 || status=$?
            [ "$status" != 71 ] || { sed "s/^planes:/$name is left out:/" "$log" >&2; return 1; }
            start "$log" taskset -c "${cores[0]}" "$bench/planes" --plane "$name" --port "$port"
            ;;
    esac
}

# load NAME PORT PID LOAD OPTIONS...: one run; appends its CPU and latency to files of that name and load.
load() {
    local name=$1 to=$2 pid=$3 kind=$4 line
    shift 4
    attend taskset -c "${cores[1]}" "$bench/echo_load" --address "127.0.0.1:$to" --protocol raw --pid "$pid" --payload 64 \
        --seconds "$seconds" --warm-up 0.2 "$@" >"$work/line"
    line=$(<"$work/line")
    grep -o 'cpu_us=[^ ]*' <<<"$line" | cut -d= -f2 >>"$work/$name.$kind.cpu"
    grep -o 'p50_us=[^ ]*' <<<"$line" | cut -d= -f2 >>"$work/$name.$kind.p50"
    grep -o 'waited_percent=.*' <<<"$line" | cut -d= -f2 >>"$work/waited"
}

# idle NAME PORT PID: what an idle connection takes.
idle() {
    # Its bounds are a broker's, and so its status says nothing here.
    attend "$bench/idle" --raw --address "127.0.0.1:$2" --pid "$3" --steps 2000,8000 --idle-s 1 >"$work/$1.idle" || true
}

serve floor
declare -A ports=([floor]=$port) servers=([floor]=$started)
able=()
for name in "${planes[@]}"; do
    serve "$name" || continue
    ports[$name]=$port servers[$name]=$started
    able+=("$name")
done
for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    for kind in 50 1000 open; do
        case $kind in
            open) options=(--connections 50 --rate 5000) ;;
            *) options=(--connections "$kind") ;;
        esac
        for name in "${able[@]}"; do
            # The floor beside every plane: what else the machine does changes within a round, too.
            load "$name" "${ports[$name]}" "${servers[$name]}" "$kind" "${options[@]}"
            load floor "${ports[floor]}" "${servers[floor]}" "$kind" "${options[@]}"
            tail -n 1 "$work/floor.$kind.cpu" >>"$work/$name.$kind.floor_cpu"
            tail -n 1 "$work/floor.$kind.p50" >>"$work/$name.$kind.floor_p50"
        done
    done
done
echo "idle connections" >&2
for name in floor "${able[@]}"; do idle "$name" "${ports[$name]}" "${servers[$name]}"; done

# spread FILE: median, smallest and largest of what is in it.
spread() {
    sort -n "$1" | awk '{ v[NR] = $1 } END {
        m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        printf "%.2f (%.2f–%.2f)", m, v[1], v[NR]
    }'
}

# ratio NAME KIND QUANTITY: a plane's multiples of the floor.
ratio() {
    paste "$work/$1.$2.$3" "$work/$1.$2.floor_$3" | awk '{ print $1 / $2 }' >"$work/ratios"
    spread "$work/ratios"
}

# memory NAME: bytes of an idle connection, the server's and the kernel's.
memory() {
    awk '/^slope/ { user = $5 } /beside the socket itself/ { kernel = $1 } END { print user " | " (kernel == "" ? "–" : kernel) }' "$work/$1.idle"
}

echo
echo "Linux $(uname -r), $rounds rounds of $seconds s; multiples of the floor"
echo
echo "| plane | CPU, 50 busy | CPU, 1,000 busy | CPU, 5,000/s | p50, 5,000/s | idle: bytes of the server | of the kernel |"
echo "|---|---|---|---|---|---:|---:|"
for name in "${able[@]}"; do
    echo "| $name | $(ratio "$name" 50 cpu) | $(ratio "$name" 1000 cpu) | $(ratio "$name" open cpu) | $(ratio "$name" open p50) | $(memory "$name") |"
done
echo "| the floor, µs | $(spread "$work/floor.50.cpu") | $(spread "$work/floor.1000.cpu") | $(spread "$work/floor.open.cpu") | $(spread "$work/floor.open.p50") | $(memory floor) |"
echo
waited=$(spread "$work/waited")
echo "server and generator waited for a core that others had for ${waited%% *} % of the time (median)"
