#!/bin/sh
# Makes the kernel ready for N connections, says whether it is, or puts back what was there before.
# Usage: apply.sh --connections N           applies; as root. A value that is high enough already stays as it is
#        apply.sh --connections N --check   prints need, have and verdict of each knob; exit 1 when one is short
#        apply.sh --connections N --print sysctl|limits|systemd   prints the file for sysctl.d, limits.d or a systemd unit
#        apply.sh --revert                  puts back every value and file as it was before the first apply; as root
# What was there before is kept in /var/lib/corelane-tuning (CORELANE_TUNING_STATE names another folder).
# Plain sh with coreutils or busybox: it runs without systemd, in a container or an initramfs too.
set -eu

state=${CORELANE_TUNING_STATE:-/var/lib/corelane-tuning}
etc=${CORELANE_TUNING_ETC:-/etc}
sys=${CORELANE_TUNING_SYS:-/proc/sys}

usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

connections=
action=apply
while [ $# -gt 0 ]; do
    case $1 in
    --connections)
        [ $# -gt 1 ] || usage
        connections=$2
        shift
        ;;
    --check) action=check ;;
    --print)
        [ $# -gt 1 ] || usage
        action=print
        printed=$2
        shift
        ;;
    --revert) action=revert ;;
    *) usage ;;
    esac
    shift
done
[ "$action" = revert ] || case $connections in
'' | *[!0-9]* | ?????????*) usage ;;
esac

# Open files of one process: its connections, and room for whatever else it opens.
files=$((${connections:-0} + ${connections:-0} / 10 + 4096))

# knobs: each knob and what it has to be at least; where there are several numbers, each of them. README.md says why.
knobs() {
    # Two files for each connection: the clients of a load test may be on the same host.
    host_files=$((2 * files + 65536))
    cat <<KNOBS
fs.nr_open $files
fs.file-max $host_files
net.core.somaxconn 65535
net.core.netdev_max_backlog $(higher 16384 "$connections")
net.ipv4.tcp_max_syn_backlog 65535
net.ipv4.tcp_max_orphans $((connections + 4096))
net.ipv4.tcp_mem $connections $((2 * connections)) $((4 * connections))
net.netfilter.nf_conntrack_max $((2 * connections + 65536))
KNOBS
}

# file_of KNOB: where the kernel shows it.
file_of() {
    echo "$sys/$(echo "$1" | tr . /)"
}

# have KNOB: its numbers, with one space between them; nothing where this kernel does not have it.
have() {
    [ -e "$(file_of "$1")" ] || return 0
    # shellcheck disable=SC2046 # The tabs between the numbers become spaces.
    set -- $(cat "$(file_of "$1")")
    echo "$*"
}

# higher A B: the higher of two numbers. They may have 19 digits (fs.file-max), which not every shell counts with.
higher() {
    if [ ${#1} -gt 18 ] || { [ ${#2} -le 18 ] && [ "$1" -ge "$2" ]; }; then echo "$1"; else echo "$2"; fi
}

# raised HAVE NEED...: HAVE with each number raised to the one in its place.
raised() {
    all=
    old=$1
    shift
    for number in $old; do
        all="$all $(higher "$number" "${1:-0}")"
        [ $# -eq 0 ] || shift
    done
    echo "${all# }"
}

check() {
    short=0
    printf '%-32s %-26s %-26s %s\n' knob need have verdict
    while read -r knob need; do
        old=$(have "$knob")
        # shellcheck disable=SC2086 # Its numbers are words.
        if [ -z "$old" ]; then
            verdict='ok (not in this kernel)'
        elif [ "$(raised "$old" $need)" = "$old" ]; then
            verdict=ok
        else
            verdict=short
            short=1
        fi
        printf '%-32s %-26s %-26s %s\n' "$knob" "$need" "${old:--}" "$verdict"
    done <<KNOBS
$(knobs)
KNOBS
    return $short
}

# set_knob KNOB VALUE
set_knob() {
    echo "$2" >"$(file_of "$1")" || { echo "apply.sh: $1 cannot be set to $2" >&2; return 1; }
    [ "$(have "$1")" = "$2" ] || { echo "apply.sh: $1 is $(have "$1") after it was set to $2" >&2; return 1; }
}

must_be_root() {
    [ -w "$sys/fs/nr_open" ] || { echo "apply.sh: /proc/sys cannot be written: run it as root, on the host if this is a container" >&2; exit 1; }
}

# The files below /etc: what each is, its name, and the folder without which the system has no use for it.
file_list() {
    cat <<FILES
sysctl sysctl.d/90-corelane.conf sysctl.d
limits security/limits.d/90-corelane.conf security/limits.d
systemd systemd/system/corelane.service.d/limits.conf systemd/system
FILES
}

# print_file sysctl|limits|systemd
print_file() {
    case $1 in
    sysctl)
        echo "# For $connections connections, by tuning/apply.sh; its README says what each is for. A value that a host already exceeds is best left out."
        knobs | while read -r knob need; do
            # Without the module the knob does not exist, and sysctl would complain.
            case $knob in net.netfilter.*) printf '%s' - ;; esac
            echo "$knob = $need"
        done
        ;;
    limits)
        echo "# For $connections connections, by tuning/apply.sh: the limits of an account that starts the broker from a login."
        echo "*    hard nofile  $files"
        echo "*    hard memlock unlimited"
        echo "root hard nofile  $files"
        echo "root hard memlock unlimited"
        ;;
    systemd)
        echo "# For $connections connections, by tuning/apply.sh: the limits of the service."
        echo "[Service]"
        echo "LimitNOFILE=$files"
        echo "LimitMEMLOCK=infinity"
        ;;
    *) usage ;;
    esac
}

# The sysctl file of this host: as print_file has it, but with what is higher already.
print_own_sysctl() {
    print_file sysctl | while read -r knob equals need; do
        old=$(have "${knob#-}")
        # shellcheck disable=SC2086 # Its numbers are words.
        case $equals in
        =) [ -z "$old" ] || need=$(raised "$old" $need) ;;
        esac
        echo "$knob $equals $need"
    done
}

# install_file sysctl|limits|systemd NAME
install_file() {
    if [ "$1" = sysctl ]; then print_own_sysctl; else print_file "$1"; fi >"$state/new"
    shift
    if cmp -s "$state/new" "$etc/$1"; then
        rm "$state/new"
        return
    fi
    # The first apply remembers; a later one finds only what an earlier one wrote.
    if ! [ -e "$state/files/$1.before" ] && ! [ -e "$state/files/$1.absent" ]; then
        mkdir -p "$state/files/$(dirname "$1")"
        if [ -e "$etc/$1" ]; then cp -p "$etc/$1" "$state/files/$1.before"; else : >"$state/files/$1.absent"; fi
    fi
    mkdir -p "$etc/$(dirname "$1")"
    cat "$state/new" >"$etc/$1"
    rm "$state/new"
    echo "wrote $etc/$1"
}

reload_systemd() {
    if [ -d /run/systemd/system ] && [ "$etc" = /etc ]; then systemctl daemon-reload; fi
}

apply() {
    must_be_root
    mkdir -p "$state"
    touch "$state/sysctls"
    while read -r knob need; do
        old=$(have "$knob")
        [ -n "$old" ] || continue
        # shellcheck disable=SC2086 # Its numbers are words.
        new=$(raised "$old" $need)
        [ "$new" != "$old" ] || continue
        grep -q "^$knob " "$state/sysctls" || echo "$knob $old" >>"$state/sysctls"
        set_knob "$knob" "$new"
        echo "$knob: $old -> $new"
    done <<KNOBS
$(knobs)
KNOBS
    while read -r what file folder; do
        [ ! -d "$etc/$folder" ] || install_file "$what" "$file"
    done <<FILES
$(file_list)
FILES
    reload_systemd
}

revert() {
    [ -d "$state" ] || { echo "nothing to revert: $state is not there"; return; }
    must_be_root
    while read -r knob old; do
        echo "$knob: $(have "$knob") -> $old"
        set_knob "$knob" "$old"
    done <"$state/sysctls"
    while read -r _ file folder; do
        if [ -e "$state/files/$file.before" ]; then
            cp -p "$state/files/$file.before" "$etc/$file"
            echo "put back $etc/$file"
        elif [ -e "$state/files/$file.absent" ]; then
            rm -f "$etc/$file"
            # Its folder was made with it, unless something else is in it now.
            [ "$folder" = "$(dirname "$file")" ] || rmdir "$etc/$(dirname "$file")" 2>/dev/null || :
            echo "removed $etc/$file"
        fi
    done <<FILES
$(file_list)
FILES
    rm -r "$state"
    reload_systemd
}

case $action in
apply) apply ;;
check) check ;;
print) print_file "$printed" ;;
revert) revert ;;
esac
