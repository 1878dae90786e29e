//! The fuzzed functions on stable Rust, for seconds: inputs from a seed, grown out of the packet cases and the configuration reference
//! by mutation. `CORELANE_FUZZ_SEED` repeats a run, `CORELANE_FUZZ_S` sets its seconds; `cargo test --test fuzz -- --ignored` writes the
//! inputs it starts from below `fuzz/corpus`, where `cargo fuzz` looks for them.

mod functions;

use corelane::wire::cases::cases;
use functions::{FUNCTIONS, Function, VERSIONS};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Seconds of a run, all functions together.
const RUN_S: f64 = 15.0;
/// Mutated inputs are not grown past this.
const INPUT_BYTES_MAX: usize = 4_096;

/// Inputs that a function once failed on.
const FOUND: &[(&str, &[u8])] = &[
    // The session-present byte of a CONNACK means nothing in MQTT 3.1.
    ("round_trip", &[1, 0x20, 2, 1, 0]),
    // Two sent, a new connection, the second acknowledged, the first sent again: a third may be sent at once.
    ("session", &[0, 0, 0, 0, 8, 3, 4, 1, 2, 0, 0]),
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// What a function's inputs grow out of.
fn seeds(function: &str) -> Vec<Vec<u8>> {
    match function {
        "decode" | "round_trip" => {
            let with_version = |(version, bytes): (usize, &[u8])| [&[version as u8], bytes].concat();
            let mut inputs = Vec::new();
            for case in cases() {
                let own = VERSIONS.iter().position(|version| *version == case.version).unwrap_or_default();
                inputs.push(with_version((own, &case.bytes)));
            }
            inputs
        }
        "config" => {
            let reference = corelane::config::reference();
            let mut inputs: Vec<Vec<u8>> = vec![reference.clone().into_bytes()];
            // Each setting alone, no longer commented out, in its table.
            let mut table = "";
            for line in reference.lines() {
                if line.trim_start_matches(['#', ' ']).starts_with('[') {
                    table = line.trim_start_matches(['#', ' ']);
                } else if let Some(setting) = line.strip_prefix('#').map(str::trim_start).filter(|line| line.contains(" = ")) {
                    inputs.push(format!("{table}\n{setting}\n").into_bytes());
                }
            }
            inputs
        }
        "rules" => rule_seeds(),
        // Steps of a model: any bytes are some.
        _ => {
            let mut random = Random(1);
            (0..64).map(|number| (0..8 << (number % 8)).map(|_| random.next() as u8).collect()).collect()
        }
    }
}

/// Rules put together from pieces, with a topic, a template and a payload each.
fn rule_seeds() -> Vec<Vec<u8>> {
    const PAYLOADS: [&str; 6] = [
        r#"{"a":{"b":[1,2.5,"x",null,true]},"n":9223372036854775807,"list":[{"v":1},{"v":"é"},3]}"#,
        r#"{"n":-9223372036854775808,"a":"text","list":[]}"#,
        r#"[1,[2,[3]],{"k":{}}]"#,
        "no JSON",
        "",
        "1e308",
    ];
    const NAMES: [&str; 14] = [
        "payload",
        "payload.n",
        "payload.a",
        "payload.a.b[2]",
        "payload.list[-1].v",
        "payload['a']",
        "topic",
        "topic[2]",
        "user_properties.k",
        "clientid",
        "qos",
        "item",
        "NULL",
        "payload.list[payload.n]",
    ];
    const LITERALS: [&str; 12] =
        ["0", "1", "-1", "2.5", "9223372036854775807", "1e308", "''", "'é%_'", "true", "[1, 'a', NULL]", "'s'", "map_of('k', 1)"];
    const OPERATORS: [&str; 15] = ["+", "-", "*", "/", "%", "||", "=", "<>", "<", ">=", "AND", "OR", "LIKE", "ILIKE", "IN"];
    const TEMPLATES: [&str; 4] = ["", "${.}/${clientid}", "${payload.a.b[1]}", "${item}${x.y}"];
    fn expression(random: &mut Random, depth: usize) -> String {
        let mut inner = || expression(random, depth + 1);
        if depth > 3 {
            return NAMES[random.below(NAMES.len())].into();
        }
        let (one, two, three) = match depth {
            0..=2 => (inner(), inner(), inner()),
            _ => (inner(), "1".into(), "'a'".into()),
        };
        match random.below(10) {
            0 | 1 => NAMES[random.below(NAMES.len())].into(),
            2 => LITERALS[random.below(LITERALS.len())].into(),
            3 => match OPERATORS[random.below(OPERATORS.len())] {
                "IN" => format!("{one} IN ({two}, {three})"),
                operator => format!("({one} {operator} {two})"),
            },
            4 => format!("CASE WHEN {one} THEN {two} ELSE {three} END"),
            5 => format!("{one} BETWEEN {two} AND {three}"),
            6 => format!("NOT ({one}) IS NULL"),
            _ => {
                let functions: Vec<_> = corelane::rules::functions::all().collect();
                let function = functions[random.below(functions.len())];
                if random.below(3) == 0 || function.has_regex() {
                    return function.example.into();
                }
                let arguments = [one, two, three, "2".into()];
                let count = function.arity.0.max(random.below(4)).min(function.arity.1);
                format!("{}({})", function.name, arguments[..count.min(4)].join(", "))
            }
        }
    }
    let mut random = Random(1);
    let mut inputs = Vec::new();
    for number in 0..600 {
        let [one, two, three] = [(); 3].map(|()| expression(&mut random, 0));
        let sql = match number % 4 {
            0 => format!("SELECT {one} AS x.y, {two} AS z FROM \"a/+\" WHERE {three}"),
            1 => format!("FOREACH {one} AS s DO {two} AS x, s.v AS v INCASE {three} FROM \"#\", \"a/b\""),
            2 => format!("SELECT *, {one} AS x FROM \"$events/message_dropped\", \"a/#\""),
            _ => format!("FOREACH payload.list DO {one} AS x, {two} AS x.y FROM \"t\""),
        };
        let payload = PAYLOADS[random.below(PAYLOADS.len())];
        let template = TEMPLATES[random.below(TEMPLATES.len())];
        inputs.push([&sql, "a/b", template, payload].join("\0").into_bytes());
    }
    for function in corelane::rules::functions::all() {
        inputs.push(format!("SELECT {} AS x FROM \"t\"\0t\0\0", function.example).into_bytes());
    }
    inputs
}

/// Changes an input a little, a few times.
fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    const TELLING: [u8; 14] = [0, 1, 2, 3, 0x10, 0x30, 0x7F, 0x80, 0x82, 0xFF, b'/', b'#', b'"', b'\n'];
    for _ in 0..random.below(5) {
        let at = random.below(input.len());
        let end = (at + 1 + random.below(16)).min(input.len());
        match random.below(8) {
            0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            1 if !input.is_empty() => input[at] = TELLING[random.below(TELLING.len())],
            2 if !input.is_empty() => input[at] = input[at].wrapping_add(random.below(5) as u8).wrapping_sub(2),
            3 => drop(input.drain(at..end.max(at))),
            4 => input.insert(at, TELLING[random.below(TELLING.len())]),
            5 if input.len() < INPUT_BYTES_MAX => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            6 if input.len() < INPUT_BYTES_MAX => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len());
                let to = (from + random.below(64)).min(other.len());
                input.splice(at..end.max(at), other[from..to].iter().copied());
            }
            7 => input.truncate(at),
            _ => {}
        }
    }
}

/// Calls a function; where it panics, says with what.
fn call(name: &str, function: Function, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| function(input))) {
        say(&format!("fuzz: {name} failed on {input:?}\nas text: {:?}", String::from_utf8_lossy(input)));
        resume_unwind(panic);
    }
}

/// Past the capture of tests' output: how much was done is always shown.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").ok();
}

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_input_makes_a_fuzzed_function_fail() {
    let seed = from_environment("CORELANE_FUZZ_SEED").unwrap_or(20);
    let share = Duration::from_secs_f64(from_environment("CORELANE_FUZZ_S").unwrap_or(RUN_S) / FUNCTIONS.len() as f64);
    let mut executions = 0u64;
    for (name, function) in FUNCTIONS {
        let (seeds, start) = (seeds(name), Instant::now());
        let found = FOUND.iter().filter(|(of, _)| *of == name).map(|(_, input)| *input);
        for input in found.chain(seeds.iter().map(Vec::as_slice)) {
            executions += 1;
            call(name, function, input);
        }
        let mut random = Random(seed);
        while start.elapsed() < share {
            for _ in 0..32 {
                let mut input = seeds[random.below(seeds.len())].clone();
                mutate(&mut input, &seeds, &mut random);
                executions += 1;
                call(name, function, &input);
            }
        }
    }
    say(&format!("fuzz: {executions} executions of {} functions (seed {seed})", FUNCTIONS.len()));
    assert!(executions > 1_000);
}

#[test]
#[ignore = "writes files"]
fn the_seeds_are_written_for_cargo_fuzz() {
    for (name, _) in FUNCTIONS {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        std::fs::create_dir_all(&folder).expect("a folder for the corpus");
        for (number, input) in seeds(name).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:04}")), input).expect("a seed is written");
        }
    }
}
