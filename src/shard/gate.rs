//! The room before a sink, shared by all shards and the sink core: what has been admitted and has not come to an end. Like the other
//! numbers of the whole process it is a relaxed counter, checked at admission.

use super::globals::Gauge;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What happens to publishers when a sink's buffer is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// They wait; QoS 0 is dropped and counted.
    #[default]
    Hold,
    /// The sink core drops the oldest that it has, and counts it.
    DropOldest,
}

#[derive(Debug)]
pub struct Gate {
    /// Bytes of records admitted by shards and not yet at their end: confirmed, dead-lettered or dropped.
    pub buffered_bytes: Gauge,
    pub buffered_records: Gauge,
    pub bytes_max: u64,
    pub when_full: WhenFull,
    /// The sink cannot buffer more for now, however much room there is: its disk is full or fails.
    closed: AtomicBool,
    /// Records of QoS 0 messages, and of events, that found no room.
    dropped_full: AtomicU64,
}

impl Gate {
    pub fn new(bytes_max: u64, when_full: WhenFull) -> Self {
        Self {
            buffered_bytes: Gauge::default(),
            buffered_records: Gauge::default(),
            bytes_max,
            when_full,
            closed: AtomicBool::new(false),
            dropped_full: AtomicU64::new(0),
        }
    }

    /// Whether a record of so many bytes may be pushed. An empty buffer takes any one, however large.
    pub fn has_room(&self, bytes: u64) -> bool {
        let buffered = self.buffered_bytes.get();
        self.when_full == WhenFull::DropOldest
            || (!self.closed.load(Relaxed) && (buffered == 0 || buffered + bytes <= self.bytes_max))
    }

    /// The sink core: whether it can buffer nothing more for now.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Relaxed);
    }

    /// A record has been admitted.
    pub fn enter(&self, bytes: u64) {
        self.buffered_bytes.add(bytes as i64);
        self.buffered_records.add(1);
    }

    /// Records have come to their end.
    pub fn leave(&self, records: u64, bytes: u64) {
        self.buffered_bytes.add(-(bytes as i64));
        self.buffered_records.add(-(records as i64));
    }

    pub fn count_dropped_full(&self) {
        self.dropped_full.fetch_add(1, Relaxed);
    }

    pub fn dropped_full(&self) -> u64 {
        self.dropped_full.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_holds_what_it_may_or_one_record_and_nothing_while_closed() {
        let gate = Gate::new(100, WhenFull::Hold);
        assert!(gate.has_room(1000));
        gate.enter(60);
        assert!(gate.has_room(40) && !gate.has_room(41));
        gate.leave(1, 60);
        gate.set_closed(true);
        assert!(!gate.has_room(1));
        gate.set_closed(false);
        assert!(gate.has_room(1));
        let dropping = Gate::new(100, WhenFull::DropOldest);
        dropping.enter(1000);
        dropping.set_closed(true);
        assert!(dropping.has_room(1000));
    }
}
