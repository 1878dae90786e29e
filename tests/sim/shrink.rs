//! Makes a failing script smaller while it fails in the same way: fewer clients, fewer steps, fewer shards, a kinder world.

use crate::oracle::Failure;
use crate::script::Script;
use crate::world::{self, Report};
use corelane::shard::Counters;
use corelane::time::Time;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics of the core are failures like others: remembered, not printed.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(set_hook);
}

fn set_hook() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if IN_RUN.get() {
            LAST_PANIC.set(info.to_string());
        } else {
            default(info);
        }
    }));
}

pub fn run_caught(script: &Script, trace: bool) -> Report {
    IN_RUN.set(true);
    let report = catch_unwind(AssertUnwindSafe(|| world::run(script, trace)));
    IN_RUN.set(false);
    report.unwrap_or_else(|_| {
        let failure = Failure { property: "panic", detail: LAST_PANIC.take(), subjects: Vec::new() };
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
        |s: &mut Script| s.sink = false,
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
