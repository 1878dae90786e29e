//! What is known of every sink, action and source: written by the sink core, read by whoever asks, at any time.
//!
//! Numbers only ever grow, except where their name says otherwise (`queue`, `in_flight`, `disk`, `latency`). Every record that comes
//! to an end is counted once: delivered, dead-lettered, or dropped for a reason.

use crate::record::ActionId;
use crate::shard::Globals;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// How a record came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Delivered,
    DeadLetter,
    /// There was no room and it was the oldest.
    DroppedOldest,
    /// It could not be read from the disk buffer any more.
    DroppedCorrupt,
}

/// A number that one thread counts and others read.
#[derive(Default, Debug)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A server's state as far as it is known, and the last thing that went wrong there.
#[derive(Default, Debug)]
pub struct Connection {
    connected: AtomicBool,
    last_error: Mutex<String>,
}

impl Connection {
    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
    }

    /// Keeps the error, which stays until another takes its place; whether it is another than the last.
    pub fn fail(&self, error: &str) -> bool {
        let mut last = lock(&self.last_error);
        let changed = *last != error;
        if changed {
            error.clone_into(&mut last);
        }
        changed
    }

    pub fn last_error(&self) -> String {
        lock(&self.last_error).clone()
    }
}

#[derive(Default, Debug)]
pub struct SinkStatus {
    pub name: String,
    pub connection: Connection,
    /// Records given to the server that it has not answered.
    pub in_flight: Count,
    pub disk_bytes: Count,
    /// Attempts that failed and were made again, in records.
    pub retried: Count,
    pub delivered: Count,
    pub dead_letters: Count,
    /// Those of them that did not get into the dead-letter file, because it is full or cannot be written.
    pub dead_letters_unwritten: Count,
    pub dropped_oldest: Count,
    pub dropped_corrupt: Count,
    /// The broker ended and they were in memory only.
    pub lost: Count,
    /// Times that the client of a Kafka cluster was made anew because it had been given as many topics as it may.
    pub renewed: Count,
}

impl SinkStatus {
    pub fn count(&self, end: End) {
        let count = match end {
            End::Delivered => &self.delivered,
            End::DeadLetter => &self.dead_letters,
            End::DroppedOldest => &self.dropped_oldest,
            End::DroppedCorrupt => &self.dropped_corrupt,
        };
        count.add(1);
    }
}

#[derive(Default, Debug)]
pub struct SourceStatus {
    pub name: String,
    pub connection: Connection,
    /// Records taken from Kafka.
    pub received: Count,
    /// Messages that shards have accepted.
    pub published: Count,
    /// Records that do not make an MQTT message.
    pub skipped: Count,
}

/// Microseconds, to two significant digits, as many as there were since somebody asked.
type Latencies = Histogram<u32>;
/// An hour; what takes longer counts as that.
const LATENCY_MAX_US: u64 = 3_600_000_000;

#[derive(Default)]
struct ActionStatus {
    label: String,
    delivered: u64,
    dead_letters: u64,
    dropped: u64,
    /// From when the message was published to the end of its record. Made when first needed: rules may be many.
    latency: Option<Box<Latencies>>,
}

/// A record that came to its end, for the status of its action.
#[derive(Clone, Copy)]
pub struct Ended {
    pub action: ActionId,
    pub end: End,
    pub latency_us: u64,
}

pub struct Status {
    pub sinks: Vec<Arc<SinkStatus>>,
    pub sources: Vec<Arc<SourceStatus>>,
    /// By the action's number.
    actions: Mutex<Vec<ActionStatus>>,
}

/// A status is numbers: whoever died while holding it left nothing half-done that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Status {
    /// `labels` of actions by their numbers; an empty one is not shown.
    pub fn new(sinks: Vec<String>, sources: Vec<String>, labels: Vec<String>) -> Self {
        let sink = |name| Arc::new(SinkStatus { name, ..SinkStatus::default() });
        let source = |name| Arc::new(SourceStatus { name, ..SourceStatus::default() });
        let action = |label| ActionStatus { label, ..ActionStatus::default() };
        Self {
            sinks: sinks.into_iter().map(sink).collect(),
            sources: sources.into_iter().map(source).collect(),
            actions: Mutex::new(labels.into_iter().map(action).collect()),
        }
    }

    /// Counts what came to its end in a pass, and leaves `ended` empty.
    pub fn count(&self, ended: &mut Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        let mut actions = lock(&self.actions);
        for Ended { action, end, latency_us } in ended.drain(..) {
            // A disk buffer may hold records of actions that the configuration no longer has.
            let Some(action) = actions.get_mut(usize::from(action.0)) else { continue };
            match end {
                End::Delivered => action.delivered += 1,
                End::DeadLetter => action.dead_letters += 1,
                End::DroppedOldest | End::DroppedCorrupt => action.dropped += 1,
            }
            let new = || Box::new(Latencies::new_with_bounds(1, LATENCY_MAX_US, 2).expect("two digits are between 0 and 5"));
            action.latency.get_or_insert_with(new).saturating_record(latency_us.max(1));
        }
    }

    /// Everything as topics below `$SYS/broker/` and values. Latencies are those since the last call.
    pub fn topics(&self, globals: &Globals) -> Vec<(String, String)> {
        let mut topics = Vec::new();
        for (sink, gate) in self.sinks.iter().zip(&globals.gates) {
            let mut put = |what: &str, value: String| topics.push((format!("sinks/{}/{what}", sink.name), value));
            put("connected", u8::from(sink.connection.is_connected()).to_string());
            put("queue/records", gate.buffered_records.get().to_string());
            put("queue/bytes", gate.buffered_bytes.get().to_string());
            put("disk/bytes", sink.disk_bytes.get().to_string());
            put("in_flight", sink.in_flight.get().to_string());
            put("delivered", sink.delivered.get().to_string());
            put("retried", sink.retried.get().to_string());
            put("dead_letters", sink.dead_letters.get().to_string());
            put("dead_letters/unwritten", sink.dead_letters_unwritten.get().to_string());
            put("dropped/full", gate.dropped_full().to_string());
            put("dropped/oldest", sink.dropped_oldest.get().to_string());
            put("dropped/corrupt", sink.dropped_corrupt.get().to_string());
            put("dropped/lost", sink.lost.get().to_string());
            put("renewed", sink.renewed.get().to_string());
            put("last_error", sink.connection.last_error());
        }
        for action in lock(&self.actions).iter_mut().filter(|action| !action.label.is_empty()) {
            let mut put = |what: &str, value: u64| topics.push((format!("actions/{}/{what}", action.label), value.to_string()));
            put("delivered", action.delivered);
            put("dead_letters", action.dead_letters);
            put("dropped", action.dropped);
            if let Some(latency) = &mut action.latency
                && !latency.is_empty()
            {
                put("latency/p50_us", latency.value_at_quantile(0.5));
                put("latency/p99_us", latency.value_at_quantile(0.99));
                put("latency/max_us", latency.max());
                latency.reset();
            }
        }
        for source in &self.sources {
            let mut put = |what: &str, value: String| topics.push((format!("sources/{}/{what}", source.name), value));
            put("connected", u8::from(source.connection.is_connected()).to_string());
            put("received", source.received.get().to_string());
            put("published", source.published.get().to_string());
            put("skipped", source.skipped.get().to_string());
            put("last_error", source.connection.last_error());
        }
        topics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Gate;
    use crate::shard::WhenFull;
    use std::collections::HashMap;

    #[test]
    fn status_says_how_many_ended_how_and_how_long_it_took_since_it_was_last_asked() {
        let status = Status::new(vec!["events".into()], vec!["commands".into()], vec!["a/1".into(), String::new()]);
        let globals = Globals { gates: [Gate::new(100, WhenFull::Hold)].into(), ..Globals::default() };
        globals.gates[0].enter(30);
        globals.gates[0].count_dropped_full();
        let ended = |action, end, latency_us| Ended { action: ActionId(action), end, latency_us };
        status.sinks[0].count(End::Delivered);
        status.sinks[0].connection.set_connected(true);
        assert!(status.sinks[0].connection.fail("refused"));
        assert!(!status.sinks[0].connection.fail("refused"));
        let mut ends = vec![
            ended(0, End::Delivered, 100),
            ended(0, End::DeadLetter, 200),
            ended(0, End::DroppedOldest, 50),
            ended(1, End::Delivered, 1),
            ended(9, End::Delivered, 1),
        ];
        status.count(&mut ends);
        assert!(ends.is_empty());
        let topics: HashMap<_, _> = status.topics(&globals).into_iter().collect();
        let of = |topic: &str| topics.get(topic).map(String::as_str);
        assert_eq!(of("sinks/events/connected"), Some("1"));
        assert_eq!(of("sinks/events/queue/records"), Some("1"));
        assert_eq!(of("sinks/events/queue/bytes"), Some("30"));
        assert_eq!(of("sinks/events/delivered"), Some("1"));
        assert_eq!(of("sinks/events/dropped/full"), Some("1"));
        assert_eq!(of("sinks/events/last_error"), Some("refused"));
        assert_eq!(of("actions/a/1/delivered"), Some("1"));
        assert_eq!(of("actions/a/1/dead_letters"), Some("1"));
        assert_eq!(of("actions/a/1/dropped"), Some("1"));
        assert_eq!(of("actions/a/1/latency/p50_us"), Some("100"));
        assert_eq!(of("actions/a/1/latency/max_us"), Some("200"));
        assert_eq!(of("sources/commands/connected"), Some("0"));
        let again: HashMap<_, _> = status.topics(&globals).into_iter().collect();
        assert_eq!(again.get("actions/a/1/latency/p50_us"), None);
        assert_eq!(again.get("actions/a/1/delivered").map(String::as_str), Some("1"));
    }
}
