//! Makes a failing script smaller while it fails in the same way: fewer clients, fewer steps, fewer shards, a kinder world.

use crate::oracle::Failure;
use crate::script::Script;
use crate::world::{self, Report};
use corelane::shard::Counters;
use corelane::time::Time;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Panics of the core are failures like others: remembered, not printed.
pub fn quiet_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.to_string();
        if info.location().is_some_and(|location| location.file().ends_with("sim/main.rs")) {
            default(info);
        } else if let Ok(mut last) = LAST_PANIC.lock() {
            *last = text;
        }
    }));
}

pub fn run_caught(script: &Script, trace: bool) -> Report {
    catch_unwind(AssertUnwindSafe(|| world::run(script, trace))).unwrap_or_else(|_| {
        let detail = LAST_PANIC.lock().map(|last| last.clone()).unwrap_or_default();
        let failure = Failure { property: "panic", detail, subjects: Vec::new() };
        Report {
            steps: 0,
            checked: 0,
            failure: Some(failure),
            counters: Counters::default(),
            now: Time(0),
            trace: crate::net::lost_trace(),
        }
    })
}

/// The smallest script found that fails with the same property.
pub fn shrink(script: &Script) -> Script {
    let fails = |script: &Script| run_caught(script, false).failure.map(|failure| failure.property);
    let property = fails(script);
    let mut best = script.clone();
    let mut runs = 0;
    let mut attempt = |best: &mut Script, candidate: Script| {
        runs += 1;
        let same = runs < 3_000 && fails(&candidate) == property;
        if same {
            *best = candidate;
        }
        same
    };
    for client in 0..best.clients.len() {
        let mut candidate = best.clone();
        candidate.steps.retain(|step| step.client != client);
        attempt(&mut best, candidate);
    }
    for simpler in [
        |s: &mut Script| s.rough = false,
        |s: &mut Script| s.delay_one_in = 0,
        |s: &mut Script| s.shards = 2,
        |s: &mut Script| s.shards = 1,
        |s: &mut Script| s.shutdown = false,
    ] {
        let mut candidate = best.clone();
        simpler(&mut candidate);
        attempt(&mut best, candidate);
    }
    let mut chunk = best.steps.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shrunk = false;
        while at < best.steps.len() {
            let mut candidate = best.clone();
            candidate.steps.drain(at..(at + chunk).min(candidate.steps.len()));
            if attempt(&mut best, candidate) {
                shrunk = true;
            } else {
                at += chunk;
            }
        }
        if chunk == 1 && !shrunk {
            return best;
        }
        chunk = (chunk / 2).max(1);
    }
}
