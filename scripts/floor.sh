#!/usr/bin/env bash
# The broker's CPU per message and latency against an epoll echo server, alternating in one run; the server on core 0 with one shard,
# the generator on core 1.
#   (a) 1,000 clients, one QoS 0 message of 64 bytes in flight each: CPU per message at most 1.4 times the floor's.
#   (b) 50 clients, 5,000 messages per second in all: CPU per message and median latency at most 1.2 times the floor's.
# Prints medians, smallest and largest of all rounds; fails if a bound does not hold.
# Usage: floor.sh [--broker COMMAND] [--rounds 7] [--seconds 3]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
rounds=7
seconds=3
while [ $# -gt 0 ]; do
    case $1 in
        --broker) broker=$(text "$@"); shift 2 ;;
        --rounds) rounds=$(number "$@"); shift 2 ;;
        --seconds) seconds=$(number "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done
# Of the cores that this process may use, the first two.
mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (core = $1; core <= ($2 == "" ? $1 : $2); core++) print core }')
[ "${#cores[@]}" -ge 2 ] || { echo "two cores are needed" >&2; exit 2; }

build_broker
build_bench
start_broker 1 taskset -c "${cores[0]}"
floor_port=$(free_port)
start "$work/floor.log" taskset -c "${cores[0]}" "$bench/epoll_floor" --listen "127.0.0.1:$floor_port"
floor_pid=$started

# load NAME raw|mqtt PORT PID OPTIONS...: one run; appends its CPU and latency to files of that name.
load() {
    local name=$1 protocol=$2 to=$3 pid=$4 line
    shift 4
    attend taskset -c "${cores[1]}" "$bench/echo_load" --address "127.0.0.1:$to" --protocol "$protocol" --pid "$pid" \
        --payload 64 --seconds "$seconds" "$@" >"$work/line"
    line=$(<"$work/line")
    printf '  %-16s %s\n' "$name" "$line"
    grep -o 'cpu_us=[^ ]*' <<<"$line" | cut -d= -f2 >>"$work/$name.cpu"
    grep -o 'p50_us=[^ ]*' <<<"$line" | cut -d= -f2 >>"$work/$name.p50"
    grep -o 'waited_percent=.*' <<<"$line" | cut -d= -f2 >>"$work/waited"
}

for round in $(seq "$rounds"); do
    echo "round $round of $rounds"
    load closed-floor raw "$floor_port" "$floor_pid" --connections 1000
    load closed-broker mqtt "$port" "$broker_pid" --connections 1000
    load open-floor raw "$floor_port" "$floor_pid" --connections 50 --rate 5000
    load open-broker mqtt "$port" "$broker_pid" --connections 50 --rate 5000
done

# median FILE: prints median, smallest and largest.
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; print m, v[1], v[NR] }'; }

result=0
# compare WHAT NAME QUANTITY BOUND
compare() {
    local floor_numbers broker_numbers
    floor_numbers=$(median "$work/$2-floor.$3")
    broker_numbers=$(median "$work/$2-broker.$3")
    awk -v what="$1" -v bound="$4" -v f="$floor_numbers" -v b="$broker_numbers" 'BEGIN {
        split(f, floor, " "); split(b, broker, " "); ratio = broker[1] / floor[1]; holds = ratio <= bound
        printf "%s: floor %.2f us (%.2f to %.2f), broker %.2f us (%.2f to %.2f), ratio %.2f, at most %.1f: %s\n",
            what, floor[1], floor[2], floor[3], broker[1], broker[2], broker[3], ratio, bound, holds ? "PASS" : "FAIL"
        exit !holds
    }' || result=1
}
echo "medians of $rounds rounds, smallest and largest in parentheses"
compare "(a) CPU per message, 1,000 clients, closed loop" closed cpu 1.4
compare "(b) CPU per message, 50 clients, 5,000 messages/s" open cpu 1.2
compare "(b) median latency, 50 clients, 5,000 messages/s" open p50 1.2
# Alone on their cores, server and generator hardly wait for them.
waited=$(median "$work/waited")
echo "server and generator waited for a core that others had for ${waited%% *} % of the time (median)"
if awk -v waited="${waited%% *}" 'BEGIN { exit !(waited > 3) }'; then
    echo "the machine was busy with something else: these numbers are not worth much"
fi
exit "$result"
