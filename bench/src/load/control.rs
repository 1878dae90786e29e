//! What passes between the coordinator and the workers: one command that replaces the one before, and what the workers measured.

use super::counts::Counts;
use hdrhistogram::Histogram;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// What the clients do from `at_ns` on. Groups are bits.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    pub at_ns: u64,
    /// Groups that begin to connect.
    pub connect: u64,
    /// Groups that publish; all others stop.
    pub publish: u64,
    /// Groups whose connections are reset first.
    pub reset: u64,
    /// Latencies of what falls due from now on are kept for the report.
    pub measure: bool,
    /// What has been measured is handed over.
    pub collect: bool,
    pub quit: bool,
    /// The rate of what begins to publish, as a multiple of the scenario's, for the groups of `searched`.
    pub rate: f64,
    pub searched: u64,
}

impl Default for Command {
    fn default() -> Self {
        Self { at_ns: 0, connect: 0, publish: 0, reset: 0, measure: false, collect: false, quit: false, rate: 1.0, searched: 0 }
    }
}

/// Times in nanoseconds, from when something was due.
#[derive(Clone)]
pub struct Times {
    /// A message's way from its publisher to a receiver.
    pub delivery: Histogram<u64>,
    /// A publisher's wait for the last acknowledgement of its message. Open loop, QoS 1 and 2 only.
    pub response: Histogram<u64>,
    /// From the connect to the last SUBACK, or to CONNACK where nothing is subscribed.
    pub connect: Histogram<u64>,
}

/// Times are kept to three digits up to ten minutes; longer ones count as ten minutes.
const LONGEST_NS: u64 = 600_000_000_000;

impl Times {
    pub fn new() -> Self {
        Self { delivery: histogram(3), response: histogram(3), connect: histogram(3) }
    }

    pub fn reset(&mut self) {
        self.delivery.reset();
        self.response.reset();
        self.connect.reset();
    }

    pub fn add(&mut self, other: &Times) {
        for (mine, its) in
            [(&mut self.delivery, &other.delivery), (&mut self.response, &other.response), (&mut self.connect, &other.connect)]
        {
            mine.add(its).expect("both have the same bounds");
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

pub fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(100, LONGEST_NS, digits).expect("constant bounds are right")
}

/// Records a time; longer ones than the longest count as the longest.
pub fn record(histogram: &mut Histogram<u64>, ns: u64) {
    histogram.saturating_record(ns);
}

pub struct Control {
    /// Raised with each command.
    epoch: AtomicU32,
    command: Mutex<Command>,
    /// By worker: the last command that it has taken up, and its counts.
    seen: Vec<AtomicU32>,
    pub counts: Vec<Counts>,
    /// What has been handed over and not yet taken.
    pub collected: Mutex<Times>,
    /// Delivery times since the coordinator last took them, to two digits.
    pub interval: Mutex<Histogram<u64>>,
    pub failed: AtomicBool,
    /// Why the first connection was lost that was.
    first_loss: OnceLock<String>,
}

impl Control {
    pub fn new(workers: usize, groups: usize) -> Self {
        Self {
            epoch: AtomicU32::new(0),
            command: Mutex::default(),
            seen: (0..workers).map(|_| AtomicU32::new(0)).collect(),
            counts: (0..workers).map(|_| Counts::new(groups)).collect(),
            collected: Mutex::default(),
            interval: Mutex::new(histogram(2)),
            failed: AtomicBool::new(false),
            first_loss: OnceLock::new(),
        }
    }

    /// A connect has failed, or the broker has closed a connection.
    pub fn note_loss(&self, why: &io::Error) {
        self.first_loss.get_or_init(|| why.to_string());
    }

    pub fn first_loss(&self) -> Option<&str> {
        self.first_loss.get().map(String::as_str)
    }

    pub fn give(&self, command: Command) {
        *self.command.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = command;
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Whether every worker has taken up the last command.
    pub fn taken_up(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Acquire);
        self.seen.iter().all(|seen| seen.load(Ordering::Acquire) == epoch)
    }

    /// For a worker: the command, if it is a new one.
    pub fn news(&self, worker: usize) -> Option<(u32, Command)> {
        let epoch = self.epoch.load(Ordering::Acquire);
        (self.seen[worker].load(Ordering::Relaxed) != epoch)
            .then(|| (epoch, *self.command.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }

    pub fn take_up(&self, worker: usize, epoch: u32) {
        self.seen[worker].store(epoch, Ordering::Release);
    }
}
