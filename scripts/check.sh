#!/usr/bin/env bash
# The one check: formatting, lints, every test. Prints each stage with its time, and at the end a summary and `N passed, N failed`.
#
# It needs cargo and installs what else is missing: system packages through apt (as root; otherwise it says which), and the client
# libraries of the client tests below target/. Stages go on after a failure, so that one run shows all there is to mend.
#
# Two profiles are built. `cargo test` uses the dev profile, because only there do debug assertions and overflow checks run, in the
# broker that the broker tests start as well. The client tests start the release build, because that is what users run.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "$0")/options.sh"
[ $# -eq 0 ] || usage "it takes no arguments"
cd "$(dirname "$0")/.."

# Absolute, because the tests run what is below it from directories of their own.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
logs=$target/check
mkdir -p "$logs"
passed=0
failed=0
summary=()

# The broker tests open thousands of sockets in one process.
ulimit -S -n "$(ulimit -H -n)" 2>/dev/null || true

say() { printf '\n== %s\n' "$*"; }

# install_missing COMMAND=PACKAGE…: installs the packages whose command is not there.
install_missing() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    # Debian has venv as a command of python3, but its ensurepip in a package of its own.
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    # OpenSSL, which librdkafka is built with, configures itself with modules that perl-base lacks.
    perl -MFindBin -MIPC::Cmd -e1 2>/dev/null || missing+=(perl)
    [ ${#missing[@]} -eq 0 ] && return
    if ! command -v apt-get >/dev/null; then
        echo "check.sh: missing: ${missing[*]} (Debian's names); install them with this system's package manager and run it again" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "check.sh: missing packages; as root, run: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# count LOG: adds what a log says of passed and failed tests to the totals, and fails if it says nothing.
count() {
    local p f
    # cargo writes "N passed; N failed; …" for each test binary, the client tests "N passed, N failed" once.
    read -r p f < <(awk '
        match($0, /[0-9]+ passed[;,] [0-9]+ failed/) {
            split(substr($0, RSTART, RLENGTH), word, " ")
            passed += word[1]; failed += word[3]; seen = 1
        }
        END { print seen ? passed + 0 : "none", failed + 0 }' "$1")
    [ "$p" = none ] && return 1
    passed=$((passed + p))
    failed=$((failed + f))
    stage_result="$p passed, $f failed"
}

# stage NAME tests|step COMMAND…: runs a stage. Tests are counted one by one, a step as one.
stage() {
    local name=$1 kind=$2 log="$logs/${1// /-}.log" start=$SECONDS status=0 failed_before=$failed
    shift 2
    say "$name"
    "$@" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
    stage_result=""
    if [ "$kind" = tests ]; then
        count "$log" || stage_result="no tests ran"
        # A stage that failed without a failed test (it did not build, say) counts as one failure.
        if [ "$failed" -eq "$failed_before" ] && { [ "$status" -ne 0 ] || [ "$stage_result" = "no tests ran" ]; }; then
            failed=$((failed + 1))
            stage_result+=", ended with code $status"
        fi
    elif [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        stage_result="passed"
    else
        failed=$((failed + 1))
        stage_result="FAILED"
    fi
    summary+=("$(printf '%-20s %5d s  %s' "$name" $((SECONDS - start)) "$stage_result")")
    printf '== %s: %s, %d s\n' "$name" "$stage_result" $((SECONDS - start))
}

command -v cargo >/dev/null || { echo "check.sh: no cargo; install Rust 1.89 or later (see README)" >&2; exit 1; }
install_missing cc=build-essential mosquitto_pub=mosquitto-clients python3=python3 node=nodejs npm=npm curl=curl valgrind=valgrind kcat=kcat
if command -v rustup >/dev/null; then
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
fi

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
stage "format" step cargo fmt --all --check
stage "lints" step cargo clippy --locked --workspace --all-targets -- -D warnings
stage "tests" tests cargo test --locked --workspace --no-fail-fast
stage "release build" step cargo build --locked --release --workspace
stage "instructions" tests scripts/instructions.sh
stage "client tests" tests tests/clients/run.sh --broker "$target/release/corelane"
stage "sink tests" tests tests/sinks/run.sh --broker "$target/release/corelane"

say "summary"
# What the tests say of themselves, past the capture of their output: seeds, faults, executions, statements.
grep -ohE '(sim|fuzz|statements): .*' "$logs/tests.log" || true
printf '%s\n' "${summary[@]}"
printf '%d s in all\n%d passed, %d failed\n' "$SECONDS" "$passed" "$failed"
[ "$failed" -eq 0 ]
