#!/usr/bin/env bash
# A million connections on one node: applies the tuning, starts the broker, connects, holds the connections by keep-alives of 600 s,
# sends one message to all of them, pushes background traffic, lets them leave, and puts the tuning back. Prints what came of it, every
# ten seconds a line with connections, resident memory, the kernel's slab by cache and CPU, and PASS or FAIL for each thing that has
# to hold. Ends with 0 if all of it does.
# Usage: million.sh [--connections 1000000] [--hold SECONDS] [--shards N] [--vm]
# --hold is 600 for a million connections and more, else 60. The broker has one shard on each core of the first half of this host's cores,
# the clients have the other half; with --shards that many, sharing all cores with the clients. Broker and clients share this host, which has to allow a process as many
# open files as there are connections; as root the script raises the limit itself. Where the host or its container does not let it,
# --vm runs the same script in a virtual machine with 2 CPUs and 12 GB (scripts/vm.sh).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

connections=1000000
hold_s=
shards=
in_vm=
while [ $# -gt 0 ]; do
    case $1 in
    --connections) connections=$(number "$@"); shift ;;
    --hold) hold_s=$(number "$@"); shift ;;
    --shards) shards=$(number "$@"); shift ;;
    --vm) in_vm=1 ;;
    *) usage "unknown option $1" ;;
    esac
    shift
done
: "${hold_s:=$((connections >= 1000000 ? 600 : 60))}"
commit=${CORELANE_COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)}

if [ -n "$in_vm" ]; then
    # An emulated machine connects between one and two thousand clients a second.
    timeout_s=$((hold_s + 1200 + connections / 250))
    result=0
    attend "$root/scripts/vm.sh" --timeout-s "$timeout_s" env CORELANE_COMMIT="$commit" \
        scripts/million.sh --connections "$connections" --hold "$hold_s" ${shards:+--shards "$shards"} || result=$?
    exit "$result"
fi

failures=0
# verdict TEXT COMMAND...: PASS or FAIL for the text, by whether the command succeeds.
verdict() {
    local text=$1
    shift
    if "$@"; then echo "PASS  $text"; else echo "FAIL  $text"; failures=$((failures + 1)); fi
}
say() { printf '\n== %s\n' "$*"; }
sysctls() { (cd /proc/sys && grep -s '' fs/nr_open fs/file-max net/core/* net/ipv4/tcp_* net/netfilter/nf_conntrack_max) || true; }
sockets() { awk '$1 == "TCP:" { print $3 }' /proc/net/sockstat; }
# counters: the kernel's counts of what it dropped, refused or sent again, as NAME=NUMBER.
counters() {
    awk '{ for (i = 2; i <= NF; i++) if (NR % 2) name[i] = $i; else print name[i] "=" $i }' /proc/net/netstat |
        grep -E '^(Listen|TCPReqQ|TCPBacklogDrop|TCPRcvQDrop|TCPAbortOn|TCPMemoryPressures=|TCPTimeouts|TCPLossProbes|PFMemallocDrop)'
    awk '$1 == "Tcp:" { for (i = 2; i <= NF; i++) if (seen) print "Tcp" name[i] "=" $i; else name[i] = $i; seen = 1 }' /proc/net/snmp |
        grep -E '^Tcp(RetransSegs|AttemptFails|EstabResets|OutRsts)='
    # The second number of each core: packets that found its queue full.
    while read -r _ dropped _; do echo "$((16#$dropped))"; done </proc/net/softnet_stat | awk '{ sum += $1 } END { print "SoftnetDropped=" sum }'
}
resident_mb() { awk '$1 == "VmRSS:" { print int($2 / 1024) }' "/proc/$broker_pid/status"; }

# What the script raises it puts back, however it ends.
raised=
revert() {
    if [ -n "$raised" ]; then
        raised=
        sh "$root/tuning/apply.sh" --revert
    fi
}
trap 'revert >&2 || true; stop_all' EXIT
# Two at once would take each other's values for those of the host. A folder can be locked, and nothing is left behind.
if [ -w /proc/sys/fs/nr_open ] && command -v flock >/dev/null; then
    exec 9</proc/sys
    flock -n 9 || {
        echo "million.sh: another one runs on this host, and will put its values back when it ends: wait for that" >&2
        exit 1
    }
fi

build_broker
build_bench
say "million.sh --connections $connections --hold $hold_s${shards:+ --shards $shards}"
echo "commit $commit, Linux $(uname -r), $(nproc) CPUs, $(awk '$1 == "MemTotal:" { print int($2 / 1024) }' /proc/meminfo) MiB, $(date -u +%Y-%m-%dT%H:%M:%SZ)"

say "before tuning: corelane doctor --connections $connections"
# shellcheck disable=SC2086 # $broker may be a command with arguments.
$broker doctor --connections "$connections" || true
say "tuning/apply.sh --check"
sh "$root/tuning/apply.sh" --connections "$connections" --check || true
before=$(sysctls)
if [ -w /proc/sys/fs/nr_open ]; then
    say "tuning/apply.sh"
    raised=1
    sh "$root/tuning/apply.sh" --connections "$connections"
fi
# A few more than there are connections: listeners, rings, doorbells, and the few clients beside the devices.
files=$((connections + 4096))
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge "$files" ] || ulimit -Hn "$files" 2>/dev/null || {
    echo "million.sh: this host allows $(ulimit -Hn) open files and refuses $files: a container, or not root. Run it with --vm" >&2
    exit 1
}
ulimit -Sn "$(ulimit -Hn)"
say "after tuning"
verdict "tuning/apply.sh --check" sh "$root/tuning/apply.sh" --connections "$connections" --check
# shellcheck disable=SC2086
verdict "corelane doctor --connections $connections" $broker doctor --connections "$connections"

say "run"
cat >"$work/broker.toml" <<TOML
[limits]
connections_max = $((connections + 1000))
TOML
broker="$broker --config $work/broker.toml"
idle_sockets=$(sockets)
counters >"$work/counters"
cores=$(nproc)
half=$((cores / 2))
# Masks, which taskset takes in hexadecimal everywhere; lists of cores it does not.
first_half=$(printf '%x' $(((1 << half) - 1)))
second_half=$(printf '%x' $((((1 << cores) - 1) ^ ((1 << half) - 1))))
apart=()
if [ -z "$shards" ] && taskset "$first_half" true 2>/dev/null && taskset "$second_half" true 2>/dev/null; then
    apart=(taskset "$second_half")
    start_broker auto taskset "$first_half"
else
    start_broker "${shards:-auto}"
fi
cat "$broker_log"
run_began=$SECONDS
# What the broker takes once, whoever comes (buffers, code that is first run), is not the cost of a connection, but would be counted as that.
scenario=million
if [ "$connections" -lt 10000 ]; then
    scenario=$work/million.toml
    grep -v '^resident_bytes' "$root/bench/scenarios/million.toml" >"$scenario"
    echo "resident bytes per connection are shown and not judged: with fewer than 10000 connections they are mostly what the broker takes once"
fi
verdict "every check of the load generator" attend "${apart[@]}" "$bench/corelane-bench" run "$scenario" --address "127.0.0.1:$port" --broker-pid "$broker_pid" \
    --scale "$(awk -v n="$connections" 'BEGIN { printf "%.9f", n / 1000000 }')" --phase-s "hold=$hold_s" --progress-s 10 --slab \
    --greeting 1024 --note "$commit"
run_s=$((SECONDS - run_began))
# The generator has said DISCONNECT for all of them and is gone; what is left of the sockets is the broker's.
leave_began=$SECONDS
while [ "$(sockets)" -gt $((idle_sockets + 16)) ] && [ $((SECONDS - leave_began)) -lt 120 ]; do sleep 0.2; done
echo "the run took $run_s s; every connection was gone $((SECONDS - leave_began)) s after it; the broker then held $(resident_mb) MB"
echo "kernel counters that grew: $(counters | awk -F= 'NR == FNR { was[$1] = $2; next } $2 > was[$1] { printf "%s %d  ", $1, $2 - was[$1] }' "$work/counters" -)"
verdict "no connection is left" [ "$(sockets)" -le $((idle_sockets + 16)) ]
verdict "the broker is alive" kill -0 "$broker_pid"
kill "$broker_pid"
result=0
wait "$broker_pid" || result=$?
verdict "the broker ends with 0 on SIGTERM" [ "$result" -eq 0 ]
echo "its log:"
tail -n 20 "$broker_log"

say "tuning/apply.sh --revert"
revert
after=$(sysctls)
verdict "every sysctl is what it was before" [ "$before" = "$after" ]
diff <(echo "$before") <(echo "$after") || true

say "$([ "$failures" -eq 0 ] && echo PASS || echo "FAIL: $failures")"
exit $((failures > 0))
