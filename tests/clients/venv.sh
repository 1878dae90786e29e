#!/usr/bin/env bash
# Makes a Python environment under target/clients with the given packages, unless it is there, and prints its interpreter.
# Usage: venv.sh NAME REQUIREMENT...
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
name=$1
shift
directory=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")/clients/$name
if [ ! -e "$directory/complete" ]; then
    rm -rf "$directory"
    mkdir -p "$(dirname "$directory")"
    "$root/scripts/install.sh" python3 python3 python3-venv
    # Debian has ensurepip, which venv needs, in a package of its own.
    python3 -c 'import ensurepip' 2>/dev/null || "$root/scripts/install.sh" "" python3-venv
    python3 -m venv "$directory" >&2
    "$directory/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
    touch "$directory/complete"
fi
echo "$directory/bin/python"
