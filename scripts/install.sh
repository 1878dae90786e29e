#!/usr/bin/env bash
# Installs Debian packages, and says so, unless a command is there already.
# Usage: install.sh COMMAND PACKAGE..., with an empty COMMAND to install in any case
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "$0")/options.sh"
[ $# -gt 1 ] || usage
command=$1
shift
PATH=$PATH:/usr/sbin
command -v "$command" >/dev/null && exit
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "$command is missing; as root, install: $* (Debian's names)" >&2
    exit 1
fi
echo "installing $*" >&2
{
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
} >/dev/null
