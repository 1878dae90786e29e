#!/usr/bin/env bash
# What a network plane can be made of (bench/src/bin/planes): echo servers on core 0, each right after the epoll floor and under the same load from
# core 1: 50 and 1,000 clients with one message of 64 bytes in flight each, and 50 clients with 5,000 messages a second in all. Prints CPU
# per message and, for the last, median latency as multiples of the floor's: median, least and greatest of all rounds; and what it costs
# to cancel one of many armed requests.
# Usage: planes.sh [--planes NAME,NAME…] [--rounds 3] [--seconds 1]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
rounds=3
seconds=1
list=
while [ $# -gt 0 ]; do
    case $1 in
        --planes) list=$(text "$@"); shift 2 ;;
        --rounds) rounds=$(number "$@"); shift 2 ;;
        --seconds) seconds=$(number "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done
# Of the cores that this process may use, the first two.
mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (core = $1; core <= ($2 == "" ? $1 : $2); core++) print core }')
[ "${#cores[@]}" -ge 2 ] || { echo "two cores are needed" >&2; exit 2; }

build_bench
mapfile -t known < <("$bench/planes" --list)
[ -n "$list" ] && names --planes "$list" "${known[@]}"
IFS=, read -ra planes <<<"${list:-$(IFS=,; echo "${known[*]}")}"

# serve NAME COMMAND...: starts a server; its port and pid are in ${ports[NAME]} and ${servers[NAME]}.
declare -A ports servers
serve() {
    local name=$1
    shift
    ports[$name]=$(free_port)
    start "$work/$name.log" taskset -c "${cores[0]}" "$@" --listen "127.0.0.1:${ports[$name]}"
    servers[$name]=$started
}

# load FILE NAME OPTIONS...: one run; appends its CPU per message and median latency to a file.
load() {
    local file=$1 name=$2 line
    shift 2
    attend taskset -c "${cores[1]}" "$bench/echo_load" --address "127.0.0.1:${ports[$name]}" --protocol raw --pid "${servers[$name]}" \
        --payload 64 --warm-up 0.3 --seconds "$seconds" "$@" >"$work/line"
    line=$(<"$work/line")
    sed -E 's/.*cpu_us=([^ ]*) p50_us=([^ ]*).*waited_percent=(.*)/\1 \2 \3/' <<<"$line" >>"$work/$file"
}

serve floor "$bench/epoll_floor"
measured=()
for plane in "${planes[@]}"; do
    # One that the kernel does not have says so and ends.
    status=0
    timeout 0.3 "$bench/planes" --plane "$plane" >/dev/null 2>"$work/why" || status=$?
    if [ "$status" -eq 3 ]; then
        echo "$plane: $(<"$work/why")"
    else
        serve "$plane" "$bench/planes" --plane "$plane"
        measured+=("$plane")
    fi
done

for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    for plane in "${measured[@]}"; do
        for case in "closed-50 --connections 50" "closed-1000 --connections 1000" "open --connections 50 --rate 5000"; do
            read -ra options <<<"$case"
            load "floor.${options[0]}.$plane" floor "${options[@]:1}"
            load "plane.${options[0]}.$plane" "$plane" "${options[@]:1}"
        done
    done
done

# ratio CASE PLANE FIELD: median, least and greatest of plane ÷ floor, run by run.
ratio() {
    paste -d' ' "$work/floor.$1.$2" "$work/plane.$1.$2" | awk -v field="$3" '{ print $(3 + field) / $field }' | sort -n |
        awk '{ v[NR] = $1 } END { m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; printf "%.2f (%.2f–%.2f)", m, v[1], v[NR] }'
}
printf '\nmedians of %d rounds, least and greatest in parentheses; × is times the floor right before it\n' "$rounds"
printf '%-20s %-20s %-20s %-20s %-20s\n' plane "50: CPU ×" "1,000: CPU ×" "5,000/s: CPU ×" "5,000/s: p50 ×"
for plane in "${measured[@]}"; do
    printf '%-20s %-22s %-22s %-22s %-22s\n' "$plane" "$(ratio closed-50 "$plane" 1)" "$(ratio closed-1000 "$plane" 1)" \
        "$(ratio open "$plane" 1)" "$(ratio open "$plane" 2)"
done
floor() { cat "$work"/floor."$1".* | awk -v field="$2" '{ print $field }' | sort -n | awk '{ v[NR] = $1 } END { printf "%.2f", v[int((NR + 1) / 2)] }'; }
printf 'the floor: %s, %s, %s us CPU per message, p50 %s us\n' "$(floor closed-50 1)" "$(floor closed-1000 1)" "$(floor open 1)" "$(floor open 2)"
cat "$work"/*.*.* | awk '{ if ($3 > 3) n++ } END { printf "in %d of %d runs server and generator waited more than 3 %% of the time for a core that others had\n", n, NR }'
echo
for armed in 1000 100000 500000; do "$bench/planes" --cancel "$armed" || true; done
