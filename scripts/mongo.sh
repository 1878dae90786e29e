#!/usr/bin/env bash
# A server that speaks MongoDB's protocol on loopback, for tests and for a first look: FerretDB with its SQLite backend, telemetry off.
# Usage: mongo.sh start|stop|kill|reset|status [--port 27017]
#   start    starts it unless it runs, waits until it answers, prints its address and what to write into the broker's configuration
#   stop     ends it in order; its data stays
#   kill     kill -9, as an outage; its data stays, and `start` goes on with it
#   reset    stops it and removes its data
#   status   prints what there is; ends with 0 if it runs, 1 if not
# Servers on different ports are different servers with data of their own.
# Needs Go 1.21 or later for the first start, which builds FerretDB from Go's module proxy. Without it it ends with 3.
# Environment: CARGO_TARGET_DIR (FerretDB and its data lie below it, by default target/), FERRETDB_VERSION (v1.24.2), and Go's own.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=daemon.sh
. "$(dirname "$0")/daemon.sh"

port=27017
version=${FERRETDB_VERSION:-v1.24.2}
command=${1:-}
shift || true
while [ $# -gt 0 ]; do
    case $1 in
        --port) port=$(number "$@"); shift 2 ;;
        *) usage "unknown option $1" ;;
    esac
done
target=$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "$0")/../target}")
name="FerretDB $version"
work=$target/servers/ferretdb-$version
binary=$work/ferretdb
state=$target/servers/mongo-$port

# build: the program, unless it is there.
build() {
    [ ! -x "$binary" ] || return 0
    command -v go >/dev/null || missing "Go, which builds FerretDB," "Install Go 1.21 or later"
    local minor
    minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    # From 1.21 on, Go fetches the version that a module asks for.
    [ "${minor:-0}" -ge 21 ] || missing "Go 1.21 or later" "This is $(go env GOVERSION)."
    echo "building FerretDB $version" >&2
    local source=$work/source module answer
    rm -rf "$work"
    mkdir -p "$work"
    answer=$(cd "$work" && go mod download -json "github.com/FerretDB/FerretDB@$version") || true
    module=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$answer")
    if [ -z "$module" ]; then
        echo "mongo.sh: FerretDB could not be fetched: $answer" >&2
        exit 1
    fi
    # Its module does not say which version it is, and the program wants to know: a copy is told.
    cp -r "$module" "$source"
    chmod -R u+w "$source"
    echo "$version" >"$source/build/version/version.txt"
    (cd "$source" && go build -trimpath -tags ferretdb_no_postgresql -o "$work/built" ./cmd/ferretdb) >&2
    rm -rf "$source"
    mv "$work/built" "$binary"
}

start_server() {
    build
    launch . 60 env DO_NOT_TRACK=1 "$binary" --telemetry=disable --handler=sqlite --sqlite-url="file:$state/data/" --listen-addr="127.0.0.1:$port" \
        --state-dir=- --debug-addr=- --log-level=info
}

tell() {
    cat <<TEXT
$name answers on mongodb://127.0.0.1:$port (pid $pid, log $state/log)
in the broker's configuration, where your own server is named in the same way (any connection string):
    [[mongodb]]
    name = "mongodb"
    uri = "mongodb://127.0.0.1:$port"
TEXT
}

dispatch "$command"
