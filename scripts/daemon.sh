# shellcheck shell=bash disable=SC2154
# Sourced by kafka.sh and mongo.sh: one server in the background, known by a directory that holds its pid, its log and its data.
# The caller sets: name (for people), state (the directory), port.

# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "${BASH_SOURCE[0]}")/options.sh"

pid=

# running: whether the server is alive; sets $pid. A pid counts only with the time at which its process began, since pids come again.
running() {
    local began
    pid=
    [ -s "$state/pid" ] || return 1
    read -r pid began <"$state/pid"
    [ -n "$began" ] && [ "$began" = "$(began_of "$pid")" ]
}

# began_of PID: when the process began, in ticks since the boot; nothing if there is no such process, or only its remains.
began_of() {
    # The command's name, in parentheses, may hold anything.
    sed -n 's/^.*) //p' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'
}

# answers PORT: whether somebody listens there.
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# launch READY SECONDS COMMAND...: starts the server, and waits until a line of its log matches READY and its port answers.
launch() {
    local ready=$1 seconds=$2 deadline
    shift 2
    if answers "$port"; then
        echo "${0##*/}: somebody else listens on 127.0.0.1:$port; choose another --port" >&2
        exit 1
    fi
    [ ! -e "$state/log" ] || mv "$state/log" "$state/log.before"
    : >"$state/log"
    setsid "$@" </dev/null >"$state/log" 2>&1 &
    pid=$!
    echo "$pid $(began_of "$pid")" >"$state/pid"
    deadline=$((SECONDS + seconds))
    until grep -qE "$ready" "$state/log" && answers "$port"; do
        if ! running; then
            echo "${0##*/}: $name did not start:" >&2
            tail -n 20 "$state/log" >&2
            exit 1
        fi
        if [ "$SECONDS" -ge "$deadline" ]; then
            echo "${0##*/}: $name does not answer after $seconds s; its log is $state/log" >&2
            end KILL
            exit 1
        fi
        sleep 0.1
    done
}

# end SIGNAL: sends the signal and waits until the server is gone, at most 30 s; then it is killed.
end() {
    local deadline=$((SECONDS + 30))
    running || return 0
    kill -s "$1" "$pid" 2>/dev/null || true
    while running; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            kill -s KILL "$pid" 2>/dev/null || true
            deadline=$((SECONDS + 30))
        fi
        sleep 0.05
    done
    rm -f "$state/pid"
}

# missing WHAT INSTALL: says so and ends with 3, which callers take as "do without".
missing() {
    echo "${0##*/}: $1 is missing. $2" >&2
    exit 3
}

# dispatch COMMAND: what is the same for every server; the caller defines start_server and tell.
dispatch() {
    case $1 in
        start)
            if ! running; then
                mkdir -p "$state/data"
                start_server
            fi
            tell ;;
        stop) end TERM ;;
        kill) end KILL ;;
        reset)
            end KILL
            rm -rf "$state" ;;
        status)
            if running; then
                echo "$name on 127.0.0.1:$port: running, pid $pid, $(du -sm "$state/data" | cut -f1) MB of data, log $state/log"
            else
                echo "$name on 127.0.0.1:$port: not running"
                exit 1
            fi ;;
        *) usage ;;
    esac
}
