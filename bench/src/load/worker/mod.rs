//! A worker: one thread with its share of every group's clients, one edge-triggered epoll set and one receive buffer. Its turn:
//! the coordinator's command, connects and messages and pings that are due, then whatever the sockets report.
//!
//! Nothing has a timer. The clients of a group take turns at an even distance, so what is due next is one number per group; a
//! message's due time follows from its number, whatever the broker does.

mod connecting;
mod publishing;
mod receiving;

use super::buffers::{Buffers, Slot};
use super::control::{Command, Control, Times, histogram};
use super::counts::Count;
use super::plan::Plan;
use super::scenario::SIZE_MAX;
use super::socket::{self, EdgeSet, now_ns};
use super::stamp::Track;
use crate::epoll;
use hdrhistogram::Histogram;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Sockets reported per wait.
const EVENTS: usize = 512;
/// Each has room for the longest packet beside what is left of the one before it.
const RECEIVE_BYTES: usize = 4 * SIZE_MAX;
/// Longest sleep, so that commands are seen.
const SLEEP: Duration = Duration::from_millis(5);
const INTERVAL_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    Connecting,
    /// CONNECT is sent.
    Greeting,
    /// SUBSCRIBE is sent.
    Subscribing,
    Up,
}

/// A client. There may be a million, so each field is as small as it can be.
struct Client {
    socket: Option<OwnedFd>,
    /// Of the client in its group.
    index: u32,
    /// When its connect was due, in microseconds of the monotonic clock; wraps.
    began_us: u32,
    /// When it last sent anything, in milliseconds; wraps.
    sent_ms: u32,
    /// Messages published.
    sequence: u32,
    /// Copies of them that have been received, for a closed loop.
    copies: u32,
    /// Messages acknowledged to the end.
    acknowledged: u32,
    /// The publisher that it hears; of a second one the track is in the worker's map.
    hears: u32,
    track: Track,
    /// The topic on which it last heard that publisher, as a hash: what comes on it again needs no closer look.
    topic_hash: u32,
    /// The beginning of a packet that has not come to its end.
    partial: Slot,
    /// What the socket did not take.
    outbox: Slot,
    packet_id: u16,
    receive_maximum: u16,
    /// Messages that were due and wait for room.
    owed: u16,
    generation: u8,
    group: u8,
    state: State,
    /// It is in the list of clients whose window may have opened.
    credited: bool,
}

const NOBODY: u32 = u32::MAX;
const _: () = assert!(size_of::<Client>() <= 80);

/// A group's clients in this worker.
#[derive(Default)]
struct Share {
    /// Where they begin among the worker's clients, and how many they are.
    base: u32,
    count: u32,
    publishers: u32,
    /// Of a closed loop: publishers that have sent all their messages.
    finished: u32,
    up: u64,
    connects: Rota,
    messages: Rota,
    pings: Rota,
}

/// Whose turn it is, at even distances.
#[derive(Default)]
struct Rota {
    active: bool,
    from_ns: u64,
    gap_ns: f64,
    taken: u64,
}

impl Rota {
    fn start(from_ns: u64, gap_ns: f64) -> Self {
        Self { active: true, from_ns, gap_ns, taken: 0 }
    }

    fn due_ns(&self, turn: u64) -> u64 {
        self.from_ns + (turn as f64 * self.gap_ns) as u64
    }

    /// When the next turn is; `None` if there is none.
    fn next_ns(&self) -> Option<u64> {
        self.active.then(|| self.due_ns(self.taken))
    }

    /// The next turn and when it was due, if that is now or past.
    fn take(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let due_ns = self.next_ns().filter(|&due_ns| due_ns <= now_ns)?;
        self.taken += 1;
        Some((self.taken - 1, due_ns))
    }
}

/// Between `from_ns` and `until_ns` what falls due is measured.
struct Window {
    from_ns: u64,
    until_ns: u64,
}

impl Window {
    fn holds(&self, due_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&due_ns)
    }
}

pub struct Worker<'a> {
    plan: &'a Plan,
    control: &'a Control,
    number: u32,
    set: EdgeSet,
    clients: Vec<Client>,
    shares: Vec<Share>,
    buffers: Buffers,
    receive: Box<[u8]>,
    /// Packets that are being written, a topic, and several filters with their lengths.
    out: Vec<u8>,
    text: Vec<u8>,
    filters: Vec<(usize, u8)>,
    /// What the client being read owes in answer.
    answers: Vec<u8>,
    /// Clients to connect again, and when.
    retries: VecDeque<(u64, u32)>,
    /// Publishers of a closed loop whose window may have opened.
    credits: Vec<u32>,
    /// The list that the worker goes through while it writes the next.
    refilling: Vec<u32>,
    /// Clients between their connect and CONNACK.
    greeting: u32,
    /// Tracks of (receiver, publisher) beyond the one in the client.
    tracks: HashMap<(u32, u32), Track>,
    /// When the unacknowledged message of a client and packet id was due.
    unanswered: HashMap<(u32, u16), u64>,
    window: Window,
    times: Times,
    interval: Histogram<u64>,
    interval_until_ns: u64,
    now_ns: u64,
}

impl<'a> Worker<'a> {
    pub fn new(plan: &'a Plan, control: &'a Control, number: u32) -> io::Result<Self> {
        let mut clients = Vec::new();
        let mut shares = Vec::new();
        for (number_of_group, group) in plan.groups.iter().enumerate() {
            let count = plan.share_of(number, group.count);
            let publishers = group.publish.as_ref().map_or(0, |publish| plan.share_of(number, publish.publishers));
            shares.push(Share { base: clients.len() as u32, count, publishers, ..Share::default() });
            clients.reserve_exact(count as usize);
            clients.extend((0..count).map(|rank| Client {
                socket: None,
                index: rank * plan.workers + number,
                began_us: 0,
                sent_ms: 0,
                sequence: 0,
                copies: 0,
                acknowledged: 0,
                hears: NOBODY,
                track: Track::default(),
                topic_hash: 0,
                partial: Slot::NONE,
                outbox: Slot::NONE,
                packet_id: 0,
                receive_maximum: u16::MAX,
                owed: 0,
                generation: 0,
                group: number_of_group as u8,
                state: State::Closed,
                credited: false,
            }));
        }
        Ok(Self {
            plan,
            control,
            number,
            set: EdgeSet::new(EVENTS)?,
            clients,
            shares,
            buffers: Buffers::default(),
            receive: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            out: Vec::with_capacity(SIZE_MAX),
            text: Vec::new(),
            filters: Vec::new(),
            answers: Vec::new(),
            retries: VecDeque::new(),
            credits: Vec::new(),
            refilling: Vec::new(),
            greeting: 0,
            tracks: HashMap::new(),
            unanswered: HashMap::new(),
            window: Window { from_ns: 0, until_ns: 0 },
            times: Times::new(),
            interval: histogram(2),
            interval_until_ns: 0,
            now_ns: now_ns(),
        })
    }

    /// Until the coordinator says quit.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.now_ns = now_ns();
            if let Some((epoch, command)) = self.control.news(self.number as usize) {
                if command.quit {
                    self.goodbye()?;
                    self.control.take_up(self.number as usize, epoch);
                    return Ok(());
                }
                self.obey(command);
                self.control.take_up(self.number as usize, epoch);
            }
            let mut more = self.connect_due();
            more |= self.publish_due();
            more |= self.ping_due();
            self.refill_windows();
            self.hand_over_interval();
            let sleep = if more || self.plan.spin || !self.credits.is_empty() { Duration::ZERO } else { self.sleep() };
            let count = self.set.wait(sleep)?;
            self.now_ns = now_ns();
            for index in 0..count {
                self.attend(self.set.event(index));
            }
        }
    }

    fn count(&self, count: Count, by: u64) {
        self.control.counts[self.number as usize].add(count, by);
    }

    fn obey(&mut self, command: Command) {
        for group in 0..self.shares.len() {
            let bit = 1 << group;
            if command.reset & bit != 0 {
                self.reset(group);
            }
            if command.connect & bit != 0 {
                self.start_connects(group, command.at_ns);
            }
            if command.publish & bit == 0 {
                self.stop_messages(group);
            } else if !self.shares[group].messages.active {
                let rate = if command.searched & bit != 0 { command.rate } else { 1.0 };
                self.start_messages(group, command.at_ns, rate);
            }
        }
        if command.measure {
            if self.window.until_ns != u64::MAX {
                self.times.reset();
                self.window = Window { from_ns: command.at_ns, until_ns: u64::MAX };
            }
        } else if self.window.until_ns == u64::MAX {
            self.window.until_ns = command.at_ns;
        }
        if command.collect {
            let mut collected = self.control.collected.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            collected.add(&self.times);
            self.times.reset();
        }
    }

    fn now_ms(&self) -> u32 {
        (self.now_ns / 1_000_000) as u32
    }

    /// Until something is due.
    fn sleep(&self) -> Duration {
        let connects =
            self.shares.iter().map(|share| share.connects.next_ns()).chain([self.retries.front().map(|retry| retry.0)]);
        let connects = connects.flatten().filter(|_| self.greeting < self.plan.greeting_max);
        let others = self.shares.iter().flat_map(|share| [share.messages.next_ns(), share.pings.next_ns()]).flatten();
        let next_ns = connects.chain(others).min();
        next_ns.map_or(SLEEP, |next_ns| Duration::from_nanos(next_ns.saturating_sub(now_ns())).min(SLEEP))
    }

    fn attend(&mut self, event: socket::Event) {
        let number = event.token as u32;
        let client = &self.clients[number as usize];
        if client.generation != (event.token >> 32) as u8 || client.socket.is_none() {
            return;
        }
        if client.state == State::Connecting {
            if event.writable {
                self.greet(number);
            }
            return;
        }
        if event.writable && client.outbox != Slot::NONE {
            self.flush(number);
            self.pay(number);
        }
        if event.readable {
            self.read(number, event.closed);
        }
    }

    /// Sends `out`, behind what the client already owes; what the socket does not take waits for it.
    fn send_out(&mut self, number: u32) {
        let now_ms = self.now_ms();
        let client = &mut self.clients[number as usize];
        let Some(socket) = &client.socket else { return };
        client.sent_ms = now_ms;
        let mut sent = 0;
        if client.outbox == Slot::NONE {
            match epoll::send(socket, &self.out) {
                Ok(count) => sent = count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return self.lose(number, &error),
            }
        }
        if sent < self.out.len() {
            self.buffers.append(&mut client.outbox, &self.out[sent..]);
        }
    }

    fn flush(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        let Some(socket) = &client.socket else { return };
        while client.outbox != Slot::NONE {
            match epoll::send(socket, self.buffers.get(client.outbox)) {
                Ok(sent) => self.buffers.consume(&mut client.outbox, sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.lose(number, &error),
            }
        }
    }

    fn hand_over_interval(&mut self) {
        if self.now_ns < self.interval_until_ns {
            return;
        }
        self.interval_until_ns = self.now_ns + INTERVAL_NS;
        if !self.interval.is_empty() {
            let mut interval = self.control.interval.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            interval.add(&self.interval).expect("both have the same bounds");
            drop(interval);
            self.interval.reset();
        }
    }
}

/// Packet ids go round without 0. No client has so many messages in flight that one comes back too early.
fn next_id(last: &mut u16) -> u16 {
    *last = last.checked_add(1).unwrap_or(1);
    *last
}
