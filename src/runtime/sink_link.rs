//! The rings between the shards and the sink core: records one way, answers and messages the other, one pair per shard.
//!
//! The way to the sink core is bounded in records, and whoever pushes was admitted, so a push always finds a slot. The way back needs
//! no waiting: what finds no slot there waits in order in the sink core, which is no more than the records whose outcome the shard wants
//! to hear, and at most [`INBOUND_MAX`] messages that it has not accepted.

use super::doorbell::Doorbell;
use super::mesh::Padded;
use crate::ids::TicketId;
use crate::message::Message;
use crate::record::{Outcome, Record};
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use std::time::Duration;

pub use crate::shard::sinks::{INBOUND_MAX, RECORDS_MAX};

/// Replies on the ring to a shard, at most.
const REPLIES_MAX: usize = 16_384;

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
    /// Those that the ring has no slot for, behind those that are on it.
    backlog: VecDeque<Reply>,
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
        let (to_shard, replies) = RingBuffer::new(REPLIES_MAX);
        let link = Arc::new(Link::default());
        let sink_bell = Arc::clone(&bell);
        ends.push(ShardEnd { records, replies, link: Arc::clone(&link), sink_bell, pushed: 0, seen_taken: 0 });
        let backlog = VecDeque::new();
        shards.push(FromShard { records: from_shard, replies: to_shard, backlog, link, taken: 0, sent: 0, unrung: false });
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
        shard.backlog.push_back(reply);
        shard.send_backlog();
    }

    /// Whether there are replies for which a ring had no slot. No bell rings when it has: look again soon.
    pub fn has_backlog(&self) -> bool {
        self.shards.iter().any(|shard| !shard.backlog.is_empty())
    }

    /// Publishes what was taken, and wakes the shards that have replies or wait for room. Call it after taking, answering, and after
    /// gates were left.
    pub fn settle(&mut self) {
        for (shard, bell) in self.shards.iter_mut().zip(self.bells.iter()) {
            shard.send_backlog();
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

impl FromShard {
    /// Puts on the ring what it has slots for.
    fn send_backlog(&mut self) {
        while !self.replies.is_full()
            && let Some(reply) = self.backlog.pop_front()
        {
            self.unrung |= self.replies.push(reply).is_ok();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_the_ring_has_no_slot_for_wait_and_keep_their_order() {
        let bells: Arc<[Doorbell]> = [Doorbell::new().unwrap()].into();
        let (mut ends, mut end) = connect(&bells).unwrap();
        let count = 2 * REPLIES_MAX as u32 + 1;
        for slot in 0..count {
            end.answer(0, TicketId { slot, generation: 0 }, Outcome::Accepted);
        }
        assert!(end.has_backlog());
        let mut seen = Vec::new();
        for _ in 0..3 {
            end.settle();
            while let Some(Reply::Answer { ticket, .. }) = ends[0].reply() {
                seen.push(ticket.slot);
            }
        }
        assert!(seen.into_iter().eq(0..count) && !end.has_backlog());
    }
}
