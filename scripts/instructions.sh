#!/usr/bin/env bash
# Instructions that a message costs in the pure core, no I/O: decoded, routed to one local subscriber, encoded, and at QoS 1 and 2
# acknowledged on both sides (the clients' encoding and decoding, which callgrind counts too, are the same in every version). Then those
# of the rules alone (no rule, and the cases of core_rules), and those of a message and a rule that makes a record of it for a sink.
# Counted by valgrind's callgrind over 10,000 messages, as the difference between two runs. Compared with bench/instructions.txt:
# more than 3 % above it fails, where the compiler is the one that the file names. A change that is worth its instructions says so
# with `scripts/instructions.sh --update`.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=options.sh
. "$(dirname "$0")/options.sh"
cd "$(dirname "$0")/.."
reference=bench/instructions.txt
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
command -v valgrind >/dev/null || { [ "$(id -u)" -eq 0 ] && apt-get update -qq && apt-get install -y -qq valgrind >/dev/null; }
cargo build --locked --release --quiet -p corelane-bench --bin core_publish --bin core_rules --bin core_records

collected() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$target/release/$1" "${@:2}" 2>&1 |
        awk '/Collected/ { print $NF }'
}

compiler=$(rustc --version)
measured=$(mktemp)
trap 'rm -f "$measured"' EXIT
echo "compiler $compiler" >"$measured"
for qos in 0 1 2; do
    for batch in 1 50; do
        less=$(collected core_publish "$qos" 1000 "$batch")
        more=$(collected core_publish "$qos" 11000 "$batch")
        echo "qos$qos batch$batch $(((more - less) / 10000))" >>"$measured"
    done
done
for case in none topic qos json json-select one thousand; do
    less=$(collected core_rules "$case" 1000)
    more=$(collected core_rules "$case" 11000)
    echo "rules $case $(((more - less) / 10000))" >>"$measured"
done
for case in none topic json one thousand; do
    less=$(collected core_records "$case" 1000)
    more=$(collected core_records "$case" 11000)
    echo "records $case $(((more - less) / 10000))" >>"$measured"
done

if [ "${1:-}" = --update ]; then
    cp "$measured" "$reference"
    cat "$reference"
    exit
fi
awk -v same="$(grep -qxF "compiler $compiler" "$reference" && echo 1 || echo 0)" '
    FNR == NR { known[$1 " " $2] = $3; next }
    /^qos|^rules|^records/ {
        was = known[$1 " " $2]; over = was && $3 > was * 1.03
        printf "%s, %s: %d instructions per message (%d recorded)%s\n", $1, $2, $3, was, over ? ": MORE" : ""
        if (over && same) { failed++ } else { passed++ }
    }
    END {
        if (!same) print "another compiler than the recorded one: shown, not judged"
        printf "%d passed, %d failed\n", passed, failed
        exit failed > 0
    }' "$reference" "$measured"
