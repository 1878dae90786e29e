//! The rings between the shards: one single-producer single-consumer ring per ordered pair of cores, in the memory of the process.
//!
//! What is pushed was admitted by the core against the ring's limits, so a push always finds a slot. The consumer publishes how far
//! it has *processed* each ring (not how far it has read), cumulatively; the producer's core takes that as confirmation. Whoever
//! pushes wakes the consumer if it sleeps; whoever confirms wakes a producer that went to sleep waiting for it.

use super::doorbell::Doorbell;
use rtrb::{Consumer, Producer, RingBuffer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};

/// Keeps what one core writes off the cache lines of another; two lines, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// What both ends of a ring see beside its messages.
#[derive(Default)]
struct Link {
    /// Written by the consumer.
    processed: Padded<Processed>,
    /// Written by the producer before it sleeps, taken by the consumer that wakes it.
    awaited: Padded<AtomicBool>,
}

#[derive(Default)]
struct Processed {
    messages: AtomicU64,
    bytes: AtomicU64,
}

struct Inbound<M> {
    ring: Consumer<M>,
    link: Arc<Link>,
    taken_messages: u64,
    processed_messages: u64,
    processed_bytes: u64,
    /// Processed, and not yet published.
    unconfirmed: bool,
}

struct Outbound<M> {
    ring: Producer<M>,
    link: Arc<Link>,
    pushed_messages: u64,
    /// What the core was last told.
    seen_processed: u64,
}

/// One core's ends of its rings.
pub struct Mesh<M> {
    core: usize,
    inbound: Vec<Option<Inbound<M>>>,
    outbound: Vec<Option<Outbound<M>>>,
    bells: Arc<[Doorbell]>,
    /// Deepest outbound ring since it was last asked for, in messages.
    deepest: u64,
}

/// The rings of all cores; `capacity` messages each. Cheap until used: the memory of a ring is touched as it fills.
pub fn connect<M>(cores: usize, capacity: usize) -> io::Result<Vec<Mesh<M>>> {
    let bells: Arc<[Doorbell]> = (0..cores).map(|_| Doorbell::new()).collect::<io::Result<Vec<_>>>()?.into();
    let mut meshes: Vec<Mesh<M>> = (0..cores)
        .map(|core| Mesh {
            core,
            inbound: (0..cores).map(|_| None).collect(),
            outbound: (0..cores).map(|_| None).collect(),
            bells: Arc::clone(&bells),
            deepest: 0,
        })
        .collect();
    for from in 0..cores {
        for to in (0..cores).filter(|&to| to != from) {
            let (producer, consumer) = RingBuffer::new(capacity);
            let link = Arc::new(Link::default());
            meshes[to].inbound[from] = Some(Inbound {
                ring: consumer,
                link: Arc::clone(&link),
                taken_messages: 0,
                processed_messages: 0,
                processed_bytes: 0,
                unconfirmed: false,
            });
            meshes[from].outbound[to] = Some(Outbound { ring: producer, link, pushed_messages: 0, seen_processed: 0 });
        }
    }
    Ok(meshes)
}

/// Cumulative counts of the pair of rings between a core and a peer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RingProgress {
    /// Of what this core pushed: processed by the peer.
    pub processed_messages: u64,
    pub processed_bytes: u64,
    /// Pushed by the peer and visible here.
    pub arrived_messages: u64,
}

impl<M> Mesh<M> {
    pub fn cores(&self) -> usize {
        self.inbound.len()
    }

    pub fn doorbell(&self) -> &Doorbell {
        &self.bells[self.core]
    }

    pub fn doorbells(&self) -> &Arc<[Doorbell]> {
        &self.bells
    }

    /// The other cores.
    pub fn peers(&self) -> impl Iterator<Item = usize> + use<M> {
        let core = self.core;
        (0..self.cores()).filter(move |&peer| peer != core)
    }

    pub fn progress(&mut self, peer: usize) -> RingProgress {
        let mut progress = RingProgress::default();
        if let Some(outbound) = &mut self.outbound[peer] {
            // Messages first: the bytes read next are at least those of these messages.
            progress.processed_messages = outbound.link.processed.0.messages.load(Acquire);
            progress.processed_bytes = outbound.link.processed.0.bytes.load(Relaxed);
            outbound.seen_processed = progress.processed_messages;
        }
        if let Some(inbound) = &self.inbound[peer] {
            progress.arrived_messages = inbound.taken_messages + inbound.ring.slots() as u64;
        }
        progress
    }

    /// Takes the next message from a peer. It counts as processed only after [`Mesh::processed`].
    pub fn take(&mut self, peer: usize) -> Option<M> {
        let inbound = self.inbound[peer].as_mut()?;
        let message = inbound.ring.pop().ok()?;
        inbound.taken_messages += 1;
        Some(message)
    }

    /// The message taken last from a peer has had its effect; `bytes` is what its producer counted it as.
    pub fn processed(&mut self, peer: usize, bytes: u64) {
        if let Some(inbound) = &mut self.inbound[peer] {
            inbound.processed_messages += 1;
            inbound.processed_bytes += bytes;
            inbound.unconfirmed = true;
        }
    }

    /// Publishes what was processed since the last time and wakes the producers that wait for it.
    pub fn confirm(&mut self) {
        for (peer, inbound) in self.inbound.iter_mut().enumerate() {
            let Some(inbound) = inbound.as_mut().filter(|inbound| inbound.unconfirmed) else { continue };
            inbound.unconfirmed = false;
            let processed = &inbound.link.processed.0;
            processed.bytes.store(inbound.processed_bytes, Relaxed);
            processed.messages.store(inbound.processed_messages, Release);
            // The producer's side of this is in `await_progress` and `Doorbell::announce_sleep`.
            fence(SeqCst);
            let awaited = &inbound.link.awaited.0;
            if awaited.load(Relaxed) && awaited.swap(false, Relaxed) {
                self.bells[peer].ring();
            }
        }
    }

    /// Pushes messages to a peer, in order, and wakes it if it sleeps.
    ///
    /// Panics if the ring is full: the core admitted more than the ring holds, and going on would lose a message.
    pub fn push(&mut self, peer: usize, messages: &mut Vec<M>) {
        let Some(outbound) = self.outbound[peer].as_mut().filter(|_| !messages.is_empty()) else {
            assert!(messages.is_empty(), "a core has no ring to itself");
            return;
        };
        outbound.pushed_messages += messages.len() as u64;
        for message in messages.drain(..) {
            assert!(outbound.ring.push(message).is_ok(), "a message was admitted to a full ring");
        }
        self.deepest = self.deepest.max(outbound.pushed_messages - outbound.link.processed.0.messages.load(Relaxed));
        self.bells[peer].ring();
    }

    /// Whether the peer has not yet processed all that this core pushed.
    pub fn is_outstanding(&self, peer: usize) -> bool {
        self.outbound[peer].as_ref().is_some_and(|outbound| outbound.pushed_messages > outbound.seen_processed)
    }

    /// Says, or no longer says, that this core waits for a peer to process what it pushed. Before [`Doorbell::announce_sleep`].
    pub fn await_progress(&self, peer: usize, awaited: bool) {
        if let Some(outbound) = &self.outbound[peer] {
            outbound.link.awaited.0.store(awaited, Relaxed);
        }
    }

    /// Whether there is a message to take, or progress that [`Mesh::progress`] has not told yet.
    pub fn has_news(&self) -> bool {
        self.has_messages()
            || self.outbound.iter().flatten().any(|outbound| {
                outbound.pushed_messages > outbound.seen_processed
                    && outbound.link.processed.0.messages.load(Acquire) > outbound.seen_processed
            })
    }

    pub fn has_messages(&self) -> bool {
        self.inbound.iter().flatten().any(|inbound| !inbound.ring.is_empty())
    }

    /// The deepest an outbound ring was since the last call, in messages.
    pub fn take_deepest(&mut self) -> u64 {
        std::mem::take(&mut self.deepest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::system;
    use super::*;
    use std::thread;
    use std::time::{Duration, Instant};

    fn pair(capacity: usize) -> (Mesh<u64>, Mesh<u64>) {
        let mut meshes = connect(2, capacity).unwrap();
        let second = meshes.pop().unwrap();
        (meshes.pop().unwrap(), second)
    }

    #[test]
    fn a_message_is_confirmed_when_it_was_processed_not_when_it_was_taken() {
        let (mut first, mut second) = pair(4);
        first.push(1, &mut vec![7, 8]);
        assert_eq!(second.progress(0).arrived_messages, 2);
        assert_eq!(second.take(0), Some(7));
        second.confirm();
        assert_eq!(first.progress(1), RingProgress::default());
        assert!(first.is_outstanding(1) && !first.has_news());
        second.processed(0, 100);
        assert_eq!(first.progress(1).processed_messages, 0);
        second.confirm();
        assert!(first.has_news());
        let expected = RingProgress { processed_messages: 1, processed_bytes: 100, arrived_messages: 0 };
        assert_eq!(first.progress(1), expected);
        assert!(first.is_outstanding(1) && !first.has_news());
        assert_eq!((second.take(0), second.take(0)), (Some(8), None));
        assert_eq!(second.progress(0).arrived_messages, 2);
        assert_eq!((first.take_deepest(), first.take_deepest()), (2, 0));
    }

    #[test]
    fn a_producer_is_woken_by_progress_only_if_it_sleeps_waiting_for_it() {
        let (mut first, mut second) = pair(4);
        let mut process = |first: &mut Mesh<u64>| {
            first.push(1, &mut vec![1]);
            second.take(0).unwrap();
            second.processed(0, 1);
            second.confirm();
        };
        first.doorbell().announce_sleep();
        process(&mut first);
        assert!(first.doorbell().ring(), "it did not wait, so nobody rang");
        first.await_progress(1, true);
        first.doorbell().announce_sleep();
        process(&mut first);
        assert!(!first.doorbell().ring(), "it had been rung");
    }

    #[test]
    #[should_panic(expected = "full ring")]
    fn a_push_past_the_capacity_is_not_lost_silently() {
        let (mut first, _second) = pair(2);
        first.push(1, &mut vec![1, 2, 3]);
    }

    /// Two threads hand one message back and forth, each asleep (in a read of its eventfd) whenever the other has it. A lost wake-up
    /// leaves both asleep.
    #[test]
    fn two_threads_that_sleep_between_messages_wake_each_other_every_time() {
        fn play(mut mesh: Mesh<u64>, peer: usize, mut expected: u64, rounds: u64) {
            while expected < rounds {
                if let Some(message) = mesh.take(peer) {
                    assert_eq!(message, expected);
                    expected += 2;
                    mesh.processed(peer, 1);
                    mesh.confirm();
                    mesh.push(peer, &mut vec![message + 1]);
                    continue;
                }
                mesh.progress(peer);
                mesh.await_progress(peer, mesh.is_outstanding(peer));
                mesh.doorbell().announce_sleep();
                if !mesh.has_news() {
                    system::eventfd_wait(mesh.doorbell().descriptor());
                }
                mesh.doorbell().end_sleep();
                mesh.await_progress(peer, false);
            }
        }
        let (first, mut second) = pair(4);
        const ROUNDS: u64 = 20_000;
        second.push(0, &mut vec![1]);
        let threads = [thread::spawn(move || play(first, 1, 1, ROUNDS)), thread::spawn(move || play(second, 0, 2, ROUNDS))];
        let deadline = Instant::now() + Duration::from_secs(60);
        while threads.iter().any(|thread| !thread.is_finished()) {
            assert!(Instant::now() < deadline, "both sides sleep: a wake-up was lost");
            thread::sleep(Duration::from_millis(10));
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
