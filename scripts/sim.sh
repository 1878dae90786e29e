#!/usr/bin/env bash
# The simulation of the core: shards, rings, sockets and clients in one thread, all chance from a seed, checked by an oracle.
# Usage: sim.sh [--seed S | --minutes M | --survey N]
#   (nothing)    the fixed seeds, those that once failed, a few fresh ones, and the table of deliberate faults
#   --seed S     one seed, with all that happens in it and, if it fails, the smallest script found that fails in the same way
#   --minutes M  fresh seeds for M minutes
#   --survey N   N seeds from CORELANE_SIM_FROM (1) on: which fail and how, and what the core counted in all of them
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "$0")/options.sh"
[ $# -eq 0 ] || [ $# -eq 2 ] || usage
case ${1:-} in
    "") ;;
    --seed) export CORELANE_SIM_SEED=$2 ;;
    --minutes) export CORELANE_SIM_MINUTES=$2 ;;
    --survey) export CORELANE_SIM_SURVEY=$2 ;;
    *) usage ;;
esac
cd "$(dirname "$0")/.."
# Where one kind of run is asked for, the faults are left out.
only=()
[ $# -eq 0 ] || only=(every_seed)
exec cargo test --locked --test sim -- --nocapture "${only[@]}"
