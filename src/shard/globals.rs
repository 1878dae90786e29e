//! The few numbers that belong to the whole process because limits are global (design: not limit ÷ shards). Each is one relaxed
//! counter, checked at admission: a limit may be overshot by what other cores admit in the same instant, never by more.

use super::gate::Gate;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

#[derive(Default, Debug)]
pub struct Globals {
    pub connections: Gauge,
    pub retained_messages: Gauge,
    pub retained_bytes: Gauge,
    /// Bytes charged by all shards: messages, outboxes, queues, partial packets.
    pub memory_bytes: Gauge,
    /// One for each sink.
    pub gates: Box<[Gate]>,
}

/// A shared number that goes up and down.
#[derive(Default, Debug)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub fn add(&self, delta: i64) {
        if delta != 0 {
            self.0.fetch_add(delta, Relaxed);
        }
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed).max(0) as u64
    }
}
