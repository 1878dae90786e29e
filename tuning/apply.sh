#!/bin/sh
# Makes the kernel ready for N connections, says whether it is, or puts back what was there before.
# Usage: apply.sh --connections N           applies; as root. A value that is high enough already stays as it is
#        apply.sh --connections N --check   prints need, have and verdict of each knob as `corelane doctor` does; exit 1 when one is short
#        apply.sh --connections N --print sysctl|limits|systemd   prints the file for sysctl.d, limits.d or a systemd unit
#        apply.sh --revert                  puts back every value and file as it was before the first apply; as root
# What was there before is kept in /var/lib/corelane-tuning (CORELANE_TUNING_STATE names another folder).
# Plain sh with coreutils or busybox: it runs without systemd, in a container or an initramfs too.
set -eu

state=${CORELANE_TUNING_STATE:-/var/lib/corelane-tuning}
etc=${CORELANE_TUNING_ETC:-/etc}
sys=${CORELANE_TUNING_SYS:-/proc/sys}

# manual: prints the comment above.
manual() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"; }

# usage WHAT IS WRONG
usage() {
    printf 'apply.sh: %s\n' "$1" >&2
    manual >&2
    exit 2
}

# needs_value OPTION [VALUE]...
needs_value() {
    [ $# -gt 1 ] || usage "$1 needs a value"
}

connections=
action=apply
while [ $# -gt 0 ]; do
    case $1 in
    --connections)
        needs_value "$@"
        connections=$2
        shift
        ;;
    --check) action=check ;;
    --print)
        needs_value "$@"
        action=print
        printed=$2
        shift
        ;;
    --revert) action=revert ;;
    --help | -h)
        manual
        exit
        ;;
    *) usage "unknown option $1" ;;
    esac
    shift
done
if [ "$action" != revert ]; then
    asked=$connections
    # Without leading zeros, with which the shell would take it for an octal number.
    case $asked in *[!0-9]*) connections= ;; *) connections=${asked#"${asked%%[!0]*}"} ;; esac
    if [ -z "$connections" ] || [ ${#connections} -gt 9 ] || [ "$connections" -gt 100000000 ]; then
        usage "--connections needs a whole number from 1 to 100000000${asked:+, not \"$asked\"}"
    fi
fi

# Open files of one process: its connections, and room for whatever else it opens.
files=$((${connections:-0} + ${connections:-0} / 10 + 4096))

# knobs: a line for each, KNOB|WHEN LESS|NEED|VALUE. It is judged by NEED, which is the doctor's (src/doctor/rows.rs), and raised to VALUE,
# which has room; where there are several numbers, each of them. README.md says why.
knobs() {
    # What the broker opens beside its connections, with a shard on each core.
    need_files=$((connections + 32 + 32 * $(nproc 2>/dev/null || echo 1)))
    need_host_files=$((need_files + $(first "$sys/fs/file-nr")))
    need_backlog=$(lower 65535 "$connections")
    # Two files for each connection: the clients of a load test may be on the same host.
    host_files=$((2 * files + 65536))
    cat <<KNOBS
fs.nr_open|short|$need_files|$files
fs.file-max|short|$need_host_files|$host_files
net.core.somaxconn|short|$need_backlog|65535
net.core.netdev_max_backlog|hint|$connections|$(higher 16384 "$connections")
net.ipv4.tcp_max_syn_backlog|short|$need_backlog|65535
net.ipv4.tcp_max_orphans|hint|$connections|$((connections + 4096))
net.ipv4.tcp_mem|short|0 $connections 0|$connections $((2 * connections)) $((4 * connections))
net.netfilter.nf_conntrack_max|short|$connections|$((2 * connections + 65536))
KNOBS
}

# first FILE: the first number in it; 0 where it cannot be read.
first() {
    # shellcheck disable=SC2046 # It is the first word.
    set -- $(cat "$1" 2>/dev/null) 0
    echo "$1"
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

# lower A B: the lower of two numbers.
lower() {
    if [ "$(higher "$1" "$2")" = "$1" ]; then echo "$2"; else echo "$1"; fi
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
    while IFS='|' read -r knob lack need _; do
        old=$(have "$knob")
        # shellcheck disable=SC2086 # Its numbers are words.
        if [ -z "$old" ]; then
            case $knob in
            # Without the module nothing is tracked, and where there is the module every namespace shows the knob.
            net.netfilter.*) verdict='ok (not in this kernel)' ;;
            *) verdict='unknown (not shown here: a network namespace hides it)' ;;
            esac
        elif [ "$(raised "$old" $need)" = "$old" ]; then
            verdict=ok
        else
            verdict=$lack
            [ "$lack" = hint ] || short=1
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
        knobs | while IFS='|' read -r knob _ _ value; do
            # Without the module the knob does not exist, and sysctl would complain.
            case $knob in net.netfilter.*) printf '%s' - ;; esac
            echo "$knob = $value"
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
    *) usage "--print needs sysctl, limits or systemd, not \"$1\"" ;;
    esac
}

# The sysctl file of this host: as print_file has it, but with what is higher already.
print_own_sysctl() {
    print_file sysctl | while read -r knob equals value; do
        old=$(have "${knob#-}")
        # shellcheck disable=SC2086 # Its numbers are words.
        case $equals in
        =) [ -z "$old" ] || value=$(raised "$old" $value) ;;
        esac
        echo "$knob $equals $value"
    done
}

# own_files: the open files that this host's files are to allow. What it gives already is not lowered: the limit of this process, and what
# files for limits and units say, since ours come after most of them. Above fs.nr_open a limit cannot be set, and logins would fail.
own_files() {
    most=$(higher "$files" "$(ulimit -Hn | sed 's/[^0-9]*//')")
    for limit in $(
        cat "$etc"/security/limits.conf "$etc"/security/limits.d/*.conf 2>/dev/null |
            sed -nE 's/^[[:space:]]*(\*|root)[[:space:]]+(hard|-)[[:space:]]+nofile[[:space:]]+([0-9]+|unlimited|infinity|-1).*/\3/p'
        cat "$etc"/systemd/system/corelane.service "$etc"/systemd/system/corelane.service.d/*.conf 2>/dev/null |
            sed -nE 's/^LimitNOFILE=([0-9]+:)?([0-9]+|infinity).*/\2/p'
    ); do
        case $limit in *[!0-9]*) limit=$(first "$sys/fs/nr_open") ;; esac
        most=$(higher "$most" "$limit")
    done
    lower "$most" "$(higher "$files" "$(first "$sys/fs/nr_open")")"
}

# install_file sysctl|limits|systemd NAME
install_file() {
    case $1 in
    sysctl) print_own_sysctl ;;
    *) (files=$(own_files) && print_file "$1") ;;
    esac >"$state/new"
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

# lock: waits for another apply or revert. It is on the folder that the state lies in, so that it leaves no file behind; without flock
# there is none.
lock() {
    mkdir -p "$(dirname "$state")"
    exec 9<"$(dirname "$state")"
    ! command -v flock >/dev/null || flock 9
}

apply() {
    must_be_root
    lock
    mkdir -p "$state"
    touch "$state/sysctls"
    while IFS='|' read -r knob _ need value; do
        old=$(have "$knob")
        [ -n "$old" ] || continue
        # shellcheck disable=SC2086 # Its numbers are words.
        new=$(raised "$(raised "$old" $need)" $value)
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
    lock
    # Another revert may have come first.
    [ -d "$state" ] || { echo "nothing to revert: $state is not there"; return; }
    left=0
    while read -r knob old; do
        if [ -z "$(have "$knob")" ]; then
            echo "apply.sh: $knob is left out: it is gone since it was raised (it was $old; a module was unloaded)" >&2
            continue
        fi
        echo "$knob: $(have "$knob") -> $old"
        set_knob "$knob" "$old" || left=1
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
    # Also when a knob could not be put back: it has been said which, and the next time it would not be otherwise.
    rm -r "$state"
    reload_systemd
    return $left
}

case $action in
apply) apply ;;
check) check ;;
print) print_file "$printed" ;;
revert) revert ;;
esac
