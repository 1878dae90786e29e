//! The whole core simulated: shards, rings, sockets and clients in one thread, all chance from one seed, beside an oracle that knows
//! only MQTT's rules. `cargo test --test sim` runs the seeds below, those that once failed (`seeds.txt`) and a few fresh ones, and shows
//! that deliberate faults are caught (`faults`);
//! CORELANE_SIM_SEED=N runs one and prints all that happens; CORELANE_SIM_MINUTES=N runs fresh ones for so long;
//! CORELANE_SIM_SURVEY=N runs N from CORELANE_SIM_FROM or 1 on and says how each failing one fails. A failure is shrunk and told with
//! the events that concern it, or with all events if CORELANE_SIM_ALL is set.

mod client;
mod ending;
#[cfg(debug_assertions)]
mod faults;
mod net;
mod oracle;
mod random;
mod script;
mod shrink;
mod sink;
mod socket;
mod world;

use corelane::shard::Counters;
use script::Script;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use world::Report;

const FIXED_SEEDS: u64 = 300;
const FRESH_SEEDS: u64 = 100;

#[derive(Default)]
struct Sums {
    seeds: u64,
    steps: u64,
    checked: u64,
}

impl Sums {
    fn run(&mut self, seed: u64) {
        let script = Script::random(seed);
        let report = shrink::run_caught(&script, false);
        self.seeds += 1;
        self.steps += report.steps;
        self.checked += report.checked;
        if report.failure.is_some() {
            tell(&script);
            panic!("the simulation fails with seed {seed}: CORELANE_SIM_SEED={seed} cargo test --test sim");
        }
    }
}

/// Shrinks a failing script and prints what is left and what happened.
fn tell(script: &Script) {
    let small = shrink::shrink(script);
    print_failure(&small, &shrink::run_caught(&small, true));
}

fn print_failure(script: &Script, report: &Report) {
    let Some(failure) = &report.failure else { return };
    println!("seed {}, virtual time {} µs: {}", script.seed, report.now.0 / 1_000, failure.property);
    println!("  {}", failure.detail);
    let concerns = |line: &&(corelane::time::Time, String)| {
        failure.subjects.is_empty()
            || variable("CORELANE_SIM_ALL").is_some()
            || failure.subjects.iter().any(|subject| format!("{} ", line.1).contains(subject.as_str()))
    };
    let lines: Vec<_> = report.trace.iter().filter(concerns).collect();
    println!("the last events that concern {:?}:", failure.subjects);
    let shown = if variable("CORELANE_SIM_ALL").is_some() { usize::MAX } else { 60 };
    for (time, line) in &lines[lines.len().saturating_sub(shown)..] {
        println!("  {:>12} {line}", time.0 / 1_000);
    }
    println!(
        "shrunk script: {} shards, {} rounds, rough {}, delays 1 in {}",
        script.shards, script.rounds, script.rough, script.delay_one_in
    );
    println!("  {:?}", script.limits);
    for step in &script.steps {
        let spec = &script.clients[step.client];
        println!("  round {} {} ({:?}) after {} µs: {:?}", step.round, spec.id, spec.version, step.after_us, step.action);
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64) >> 8
}

#[test]
fn every_seed_keeps_order_loses_nothing_and_has_one_owner_a_client() {
    shrink::quiet_panics();
    let mut sums = Sums::default();
    if let Some(seed) = variable("CORELANE_SIM_SEED") {
        let script = Script::random(seed);
        let report = shrink::run_caught(&script, true);
        for (time, line) in &report.trace {
            println!("{:>12} {line}", time.0 / 1_000);
        }
        if report.failure.is_some() {
            print_failure(&script, &report);
            tell(&script);
            panic!("seed {seed} fails");
        }
        println!("sim: seed {seed} passes, {} steps, {} messages checked", report.steps, report.checked);
        return;
    }
    if let Some(seeds) = variable("CORELANE_SIM_SURVEY") {
        return survey(variable("CORELANE_SIM_FROM").unwrap_or(1), seeds);
    }
    if let Some(minutes) = variable("CORELANE_SIM_MINUTES") {
        let end = Instant::now() + Duration::from_secs(60 * minutes);
        let mut seed = fresh_seed();
        say(&format!("sim: fresh seeds from {seed}"));
        while Instant::now() < end {
            sums.run(seed);
            seed += 1;
        }
    } else {
        fixed_seeds().for_each(|seed| sums.run(seed));
        let fresh = fresh_seed();
        (fresh..fresh + FRESH_SEEDS).for_each(|seed| sums.run(seed));
        let last = fresh + FRESH_SEEDS - 1;
        say(&format!("sim: {FIXED_SEEDS} fixed seeds, {} once failed, fresh {fresh} to {last}", once_failed().count()));
    }
    say(&format!("sim: {} seeds, {} steps, {} messages checked", sums.seeds, sums.steps, sums.checked));
}

/// Runs the first seeds and says which fail and how, without shrinking any; then what the core counted in all of them.
fn survey(from: u64, seeds: u64) {
    let mut counters = Counters::default();
    for seed in from..from + seeds {
        let report = shrink::run_caught(&Script::random(seed), false);
        counters.add(&report.counters);
        if let Some(failure) = report.failure {
            println!("{seed}: {}: {:.200}", failure.property, failure.detail);
        }
    }
    let counted: Vec<_> =
        Counters::NAMES.iter().zip(counters.values()).map(|((name, _), value)| format!("{name} {value}")).collect();
    println!("counted: {}", counted.join(", "));
}

/// Past the capture of tests' output: what was done is always shown.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").ok();
}

/// The seeds of every run without further orders.
fn fixed_seeds() -> impl Iterator<Item = u64> {
    (1..=FIXED_SEEDS).chain(once_failed())
}

/// Seeds that found something, kept so that it stays found.
fn once_failed() -> impl Iterator<Item = u64> {
    include_str!("seeds.txt").lines().filter_map(|line| line.split('#').next()?.trim().parse().ok())
}
