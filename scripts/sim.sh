#!/usr/bin/env bash
# The simulation of the core: shards, rings, sockets and clients in one thread, all chance from a seed, checked by an oracle.
# Usage: sim.sh [--seed S | --minutes M | --survey N]
#   (nothing)    the fixed seeds, those that once failed, and a few fresh ones
#   --seed S     one seed, with all that happens in it and, if it fails, the smallest script found that fails in the same way
#   --minutes M  fresh seeds for M minutes
#   --survey N   the first N seeds: which fail and how, and what the core counted in all of them
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

[ $# -eq 0 ] || [ $# -eq 2 ] || usage
case ${1:-} in
    "") ;;
    --seed) export CORELANE_SIM_SEED=$2 ;;
    --minutes) export CORELANE_SIM_MINUTES=$2 ;;
    --survey) export CORELANE_SIM_SURVEY=$2 ;;
    *) usage ;;
esac
# Optimised a little: ten times the seeds in the same time, overflow checks and debug assertions still on.
export CARGO_PROFILE_TEST_OPT_LEVEL=${CARGO_PROFILE_TEST_OPT_LEVEL:-1}
exec cargo test --test sim -- --nocapture
