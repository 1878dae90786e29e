#!/usr/bin/env bash
# Debian's mosquitto behind the flags that Corelane takes, for comparisons: --listen ADDRESS:PORT; anything else is ignored.
# Installs the package when it is missing. The process becomes mosquitto, so killing it stops the broker.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "$0")/options.sh"

listen=127.0.0.1:1883
while [ $# -gt 0 ]; do
    case $1 in
        --listen) listen=$(text "$@"); shift 2 ;;
        *) shift ;;
    esac
done

PATH=$PATH:/usr/sbin
# Where there is an init system the package starts a service of its own; this script runs another instance.
"$(dirname "$0")/install.sh" mosquitto mosquitto

ulimit -n "$(ulimit -Hn)"
config=$(mktemp)
cat >"$config" <<CONFIG
listener ${listen##*:} ${listen%:*}
allow_anonymous true
CONFIG
# mosquitto reads the file at start only; it cannot be removed by a process that has become mosquitto.
(sleep 5; rm -f "$config") >/dev/null 2>&1 &
(
    while kill -0 $$ 2>/dev/null && ! (exec 3<>"/dev/tcp/${listen%:*}/${listen##*:}") 2>/dev/null; do sleep 0.05; done
    echo "listening on $listen"
) &
exec mosquitto -c "$config"
