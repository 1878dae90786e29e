//! The rings between the shards and the sink core: records one way, answers and messages the other, one pair per shard.
//!
//! The way to the sink core is bounded in records, and whoever pushes was admitted, so a push always finds a slot. The way back needs
//! no waiting: a shard has at most [`TICKETED_MAX`] records whose outcome it wants to hear, and the sink core gives a shard at most
//! [`INBOUND_MAX`] messages that the shard has not accepted.

use super::doorbell::Doorbell;
use super::mesh::Padded;
use crate::ids::TicketId;
use crate::message::Message;
use crate::record::{Outcome, Record};
use rtrb::{Consumer, Producer, RingBuffer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use std::time::Duration;

pub use crate::shard::sinks::{INBOUND_MAX, RECORDS_MAX, TICKETED_MAX};

/// What the sink core says to a shard.
pub enum Reply {
    /// What became of a record that carried this ticket.
    Answer { ticket: TicketId, outcome: Outcome },
    /// A message to be published, from a source such as Kafka.
    Publish(Message),
}

/// What both ends see beside the rings.
#[derive(Default)]
struct Link {
    /// Records taken, cumulative; written by the sink core.
    taken: Padded<AtomicU64>,
    /// Messages of [`Reply::Publish`] accepted, cumulative; written by the shard.
    accepted: Padded<AtomicU64>,
    /// Written by the shard before it sleeps with someone waiting for room, taken by the sink core that makes some.
    awaited: Padded<AtomicBool>,
}

/// A shard's end.
pub struct ShardEnd {
    records: Producer<Record>,
    replies: Consumer<Reply>,
    link: Arc<Link>,
    sink_bell: Arc<Doorbell>,
    pushed: u64,
    seen_taken: u64,
}

/// The sink core's end of all of them.
pub struct SinkEnd {
    shards: Vec<FromShard>,
    bell: Arc<Doorbell>,
    bells: Arc<[Doorbell]>,
}

struct FromShard {
    records: Consumer<Record>,
    replies: Producer<Reply>,
    link: Arc<Link>,
    taken: u64,
    sent: u64,
    /// Replies pushed since its bell was last rung.
    unrung: bool,
}

/// Makes the rings; `bells` are the shards' own.
pub fn connect(bells: &Arc<[Doorbell]>) -> io::Result<(Vec<ShardEnd>, SinkEnd)> {
    let bell = Arc::new(Doorbell::new()?);
    let (mut ends, mut shards) = (Vec::new(), Vec::new());
    for _ in 0..bells.len() {
        let (records, from_shard) = RingBuffer::new(RECORDS_MAX as usize);
        let (to_shard, replies) = RingBuffer::new(TICKETED_MAX as usize + INBOUND_MAX as usize);
        let link = Arc::new(Link::default());
        let sink_bell = Arc::clone(&bell);
        ends.push(ShardEnd { records, replies, link: Arc::clone(&link), sink_bell, pushed: 0, seen_taken: 0 });
        shards.push(FromShard { records: from_shard, replies: to_shard, link, taken: 0, sent: 0, unrung: false });
    }
    Ok((ends, SinkEnd { shards, bell, bells: Arc::clone(bells) }))
}

impl ShardEnd {
    /// Records that the sink core has taken, cumulative.
    pub fn taken(&mut self) -> u64 {
        self.seen_taken = self.link.taken.0.load(Acquire);
        self.seen_taken
    }

    pub fn reply(&mut self) -> Option<Reply> {
        self.replies.pop().ok()
    }

    /// Pushes records in order and wakes the sink core if it sleeps.
    ///
    /// Panics if the ring is full: the shard admitted more than it holds, and going on would lose a record.
    pub fn push(&mut self, records: &mut Vec<Record>) {
        if records.is_empty() {
            return;
        }
        self.pushed += records.len() as u64;
        for record in records.drain(..) {
            assert!(self.records.push(record).is_ok(), "a record was admitted to a full ring");
        }
        self.sink_bell.ring();
    }

    /// How many messages have been accepted, cumulative.
    pub fn accept(&self, accepted: u64) {
        if self.link.accepted.0.load(Relaxed) != accepted {
            self.link.accepted.0.store(accepted, Release);
            self.sink_bell.ring();
        }
    }

    /// Says whether someone here waits for room. Before [`Doorbell::announce_sleep`].
    pub fn await_room(&self, awaited: bool) {
        self.link.awaited.0.store(awaited, Relaxed);
    }

    /// Whether something has come that the shard has not been told.
    pub fn has_news(&self) -> bool {
        !self.replies.is_empty() || self.link.taken.0.load(Acquire) != self.seen_taken
    }

    /// Whether the sink core has taken all that was pushed.
    pub fn is_idle(&self) -> bool {
        self.link.taken.0.load(Acquire) == self.pushed
    }
}

impl SinkEnd {
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// What wakes the sink core.
    pub fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }

    pub fn has_records(&self) -> bool {
        self.shards.iter().any(|shard| !shard.records.is_empty())
    }

    pub fn take(&mut self, shard: usize) -> Option<Record> {
        let shard = &mut self.shards[shard];
        let record = shard.records.pop().ok()?;
        shard.taken += 1;
        Some(record)
    }

    /// Answers a shard; never waits.
    pub fn answer(&mut self, shard: usize, ticket: TicketId, outcome: Outcome) {
        self.push(shard, Reply::Answer { ticket, outcome });
    }

    /// Whether a shard takes a message now.
    pub fn may_publish(&self, shard: usize) -> bool {
        let shard = &self.shards[shard];
        shard.sent - shard.link.accepted.0.load(Acquire) < u64::from(INBOUND_MAX)
    }

    /// Gives a shard a message; returns its number, which [`SinkEnd::accepted`] reaches once it has been published.
    pub fn publish(&mut self, shard: usize, message: Message) -> u64 {
        self.push(shard, Reply::Publish(message));
        self.shards[shard].sent += 1;
        self.shards[shard].sent
    }

    /// Messages that a shard has published, cumulative.
    pub fn accepted(&self, shard: usize) -> u64 {
        self.shards[shard].link.accepted.0.load(Acquire)
    }

    fn push(&mut self, shard: usize, reply: Reply) {
        let shard = &mut self.shards[shard];
        shard.unrung = true;
        assert!(shard.replies.push(reply).is_ok(), "more answers than tickets");
    }

    /// Publishes what was taken, and wakes the shards that have replies or wait for room. Call it after taking, answering, and after
    /// gates were left.
    pub fn settle(&mut self) {
        for (shard, bell) in self.shards.iter_mut().zip(self.bells.iter()) {
            shard.link.taken.0.store(shard.taken, Release);
            // The shard's side of this is in `await_room` and `Doorbell::announce_sleep`.
            fence(SeqCst);
            let awaited = &shard.link.awaited.0;
            let waits = awaited.load(Relaxed) && awaited.swap(false, Relaxed);
            if std::mem::take(&mut shard.unrung) || waits {
                bell.ring();
            }
        }
    }
}

/// What the runtime asks of the sink core, which runs on a thread of its own.
pub trait SinkCore: Send + Sync {
    /// Sends what is buffered without waiting for more, for at most so long; whether everything came to its end. What is left in a disk
    /// buffer stays there; what is left in memory is counted and logged as lost.
    fn flush(&self, at_most: Duration) -> bool;
    /// Ends the thread.
    fn stop(&self);
    /// The status of every sink, action and source as `$SYS/broker/` topics (below `sinks/`, `actions/`, `sources/`) and values.
    fn status(&self) -> Vec<(String, String)>;
}
