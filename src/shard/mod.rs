//! A shard: the whole state of one core, as a plain struct driven by synchronous calls. No I/O, clock, lock or thread below this
//! line: the shell passes in bytes and the time, and performs what stands in [`Effects`] at the end of the turn.
//!
//! Where to find what: `connection` and `outbox` (a socket's side), `receive` (bytes → packets), `connect`, `publish`,
//! `subscribe`, `acknowledge` (one packet kind each), `clients` (client id → session, takeover, when a will is published or
//! delayed, session end), `fanout` (a message to its local subscribers), `deliver` (a message to one session), `groups` (shared
//! subscriptions), `retained` (store and replay), `parking` (what must wait), `rules` (what they make of messages), `sinks` and
//! `tickets` (records on their way, and the PUBACK or PUBREC that waits for them), `gate` (the room before a sink), `peer` and
//! `mesh` (the other cores), `timers` (the clock of keep-alives, will delays and expiries), `counters`, `events`, `sys` ($SYS
//! topics), `shutdown`.

mod acknowledge;
mod clients;
mod connect;
mod connection;
pub mod counters;
mod deliver;
pub mod effects;
pub mod events;
mod fanout;
mod gate;
mod globals;
mod groups;
mod mesh;
mod outbox;
mod parking;
pub mod peer;
mod publish;
mod receive;
mod retained;
mod rules;
mod shutdown;
pub mod sinks;
mod subscribe;
pub mod sys;
#[cfg(test)]
mod sys_reference;
pub mod sys_snapshot;
mod tickets;
mod timers;

pub use connection::Verdict;
pub use counters::Counters;
pub use effects::Effects;
pub use gate::{Gate, WhenFull};
pub use globals::{Gauge, Globals};
pub use parking::TestDelays;
pub use shutdown::Phase;

use crate::fault::Fault;
use crate::ids::{ConnectionId, CoreId, SessionId};
use crate::limits::Limits;
use crate::message;
use crate::record::RecordIds;
use crate::rules::PlannedRule;
use crate::segments::{SegmentedSlab, SegmentedTable};
use crate::session::Session;
use crate::time::Time;
use crate::topic::{Hasher, Interest, Subscriptions};
use crate::wire::{self, Packet};
use connection::{Connection, State};
use fanout::Fanouts;
use groups::SharedGroups;
use mesh::Unconfirmed;
use outbox::{Outbox, OutboxPool};
use peer::Peer;
use publish::Pending;
use retained::Retained;
use rules::Rules;
use sinks::Sinks;
use std::collections::VecDeque;
use std::sync::Arc;
use timers::{Timer, TimerKind, Wheel};

/// Work on received packets in one turn, for each delivery of its budget.
const WORK_PER_BUDGET: usize = 8;

/// What a shard is made of; everything but `core` is the same on all cores of a process.
pub struct ShardOptions {
    pub core: CoreId,
    pub cores: usize,
    pub limits: Arc<Limits>,
    pub hasher: Hasher,
    pub globals: Arc<Globals>,
    /// Delays decisions at random, for tests of parking.
    pub delays: Option<TestDelays>,
    pub rules: Arc<[PlannedRule]>,
    /// What rules see as `node`.
    pub node: Box<str>,
    /// Microseconds since 1970-01-01 UTC when the clock showed zero.
    pub epoch_us: i64,
    pub now: Time,
}

pub struct Shard {
    pub effects: Effects,
    pub counters: Counters,
    core: CoreId,
    cores: usize,
    limits: Arc<Limits>,
    hasher: Hasher,
    globals: Arc<Globals>,
    phase: Phase,

    connections: SegmentedSlab<Connection>,
    next_generation: u32,
    pool: OutboxPool,

    sessions: SegmentedSlab<Session>,
    next_incarnation: u32,
    /// Numbers entries of sessions in the timing wheel.
    next_timer: u32,
    /// Client id → session, for sessions that are alive.
    clients: SegmentedTable<SessionId>,
    online: usize,
    /// Sessions that have ended and whose subscriptions and messages are being removed.
    ending: VecDeque<SessionId>,

    subscriptions: Subscriptions,
    interest: Interest,
    groups: SharedGroups,
    retained: Retained,
    fanouts: Fanouts,
    /// `None`: there are none, or they are at work.
    rules: Option<Box<Rules>>,
    sinks: Sinks,

    /// Indexed by core; `None` at this one.
    peers: Vec<Option<Peer>>,
    /// SUBACKs that wait until every core has confirmed the interest they rest on.
    unconfirmed: VecDeque<Unconfirmed>,
    /// Ring position of the last announcement to each core.
    announced: Vec<u64>,
    /// Messages of the broker's own making: wills, $SYS, redispatch.
    pending: VecDeque<Pending>,

    wheel: Wheel,
    parking: parking::Parking,
    /// Deliveries that this turn may still make.
    budget: usize,
    /// What this turn has done for received packets, and how much of that makes it go on to the next: so a turn is bounded by what
    /// packets cause, not by how many come.
    work: usize,
    work_max: usize,
    /// Filters of large SUBSCRIBE and UNSUBSCRIBE packets that this turn may still act on.
    filters_left: usize,
    /// What has been taken from rings in this turn, by what it costs.
    taken: usize,
    /// Bytes charged since the account was last brought up to date.
    charge: i64,
    memory_bytes: i64,
    random: u64,
    shutdown_cursor: u32,
    /// An acknowledgement was among the packets received last.
    acknowledged: bool,
    sys: sys::Sys,
    /// Scratch space, empty between calls.
    scratch: Option<Box<deliver::Frames>>,
}

/// What a shard holds just now, for metrics.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ShardLoad {
    pub connections: u64,
    pub clients_connected: u64,
    pub sessions: u64,
    pub subscriptions: u64,
    pub shared_subscriptions: u64,
    pub parked: u64,
    pub fanouts_waiting: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
    /// Below 0 where this core frees what others made: a message is charged where it is made. Only the sum of all cores means much.
    pub memory_bytes: i64,
    /// Messages that the slowest peer has not yet consumed.
    pub ring_depth: u64,
}

impl Shard {
    pub fn new(options: ShardOptions) -> Self {
        let ShardOptions { core, cores, limits, hasher, globals, delays, rules, node, epoch_us, now } = options;
        let peer = |index: usize| {
            let other = CoreId(index as u8);
            (other != core).then(|| Peer::new(other, limits.mesh_messages_max, limits.mesh_bytes_max))
        };
        let gates = globals.gates.len();
        let ids = RecordIds::new(hasher.exact("record ids") ^ u64::from(core.0));
        Self {
            effects: Effects { mesh: (0..cores).map(|_| Vec::new()).collect(), ..Effects::default() },
            counters: Counters::default(),
            core,
            cores,
            hasher,
            globals,
            phase: Phase::Running,
            connections: SegmentedSlab::new(),
            next_generation: 1,
            pool: OutboxPool::default(),
            sessions: SegmentedSlab::new(),
            next_incarnation: 1,
            next_timer: 1,
            clients: SegmentedTable::new(),
            online: 0,
            ending: VecDeque::new(),
            subscriptions: Subscriptions::new(),
            interest: Interest::new(),
            groups: SharedGroups::default(),
            retained: Retained::new(),
            fanouts: Fanouts::default(),
            rules: (!rules.is_empty()).then(|| Box::new(Rules::new(rules, node, epoch_us, hasher, ids, limits.clone()))),
            sinks: Sinks::new(gates),
            peers: (0..cores).map(peer).collect(),
            unconfirmed: VecDeque::new(),
            announced: vec![0; cores],
            pending: VecDeque::new(),
            wheel: Wheel::new(now),
            parking: parking::Parking::new(delays),
            budget: limits.turn_budget as usize,
            work: 0,
            work_max: limits.turn_budget as usize * WORK_PER_BUDGET,
            filters_left: subscribe::filters_per_turn(&limits),
            taken: 0,
            charge: 0,
            memory_bytes: 0,
            random: hasher.exact("random") ^ u64::from(core.0) << 32 | 1,
            shutdown_cursor: 0,
            acknowledged: false,
            sys: sys::Sys::default(),
            scratch: None,
            limits,
        }
    }

    pub fn core(&self) -> CoreId {
        self.core
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    pub fn load(&self) -> ShardLoad {
        ShardLoad {
            connections: self.connections.len() as u64,
            clients_connected: self.online as u64,
            sessions: self.clients.len() as u64,
            subscriptions: self.subscriptions.subscriptions() as u64,
            shared_subscriptions: self.groups.members() as u64,
            parked: self.parking.parked as u64,
            fanouts_waiting: self.fanouts.len() as u64,
            retained_messages: self.retained.len() as u64,
            retained_bytes: self.retained.bytes() as u64,
            memory_bytes: self.memory_bytes,
            ring_depth: self.peers.iter().flatten().map(Peer::depth).max().unwrap_or(0),
        }
    }

    /// The socket of a connection; `None` for a connection that is no more.
    pub fn socket(&self, id: ConnectionId) -> Option<i32> {
        self.connection(id).map(|connection| connection.socket)
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(id.slot).filter(|connection| connection.generation == id.generation)
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.slot).filter(|connection| connection.generation == id.generation)
    }

    fn id_of(&self, slot: u32) -> ConnectionId {
        ConnectionId { slot, generation: self.connections[slot].generation }
    }

    fn add_connection(&mut self, socket: i32, listener: u16, now: Time) -> ConnectionId {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let slot = self.connections.insert(Connection::new(socket, listener, generation, now));
        self.charge += size_of::<Connection>() as i64;
        let deadline = now + self.connect_deadline();
        self.wheel.add(Timer::new(TimerKind::ConnectDeadline, slot, generation), deadline);
        ConnectionId { slot, generation }
    }

    /// Frees a connection's slot and all that belongs to it.
    fn remove_connection(&mut self, slot: u32) -> Option<Connection> {
        let mut connection = self.connections.remove(slot)?;
        self.charge -= (size_of::<Connection>() + connection.read.capacity()) as i64;
        if let Some(outbox) = connection.outbox.take() {
            self.charge -= outbox.copied() as i64;
            self.pool.put(outbox);
        }
        Some(connection)
    }

    /// The next bytes to send for a connection, as one piece; `None` when there are none.
    pub fn outbox(&self, id: ConnectionId) -> Option<&[u8]> {
        self.connection(id)?.outbox.as_ref()?.front()
    }

    /// Whether a connection is owed nothing more once what [`Shard::outbox`] shows has gone out: no further piece, no queue that
    /// waits for room in the outbox.
    pub fn is_last_piece(&self, id: ConnectionId) -> bool {
        let Some(connection) = self.connection(id) else { return true };
        let last = |outbox: &Outbox| outbox.front().is_none_or(|piece| piece.len() == outbox.len());
        !connection.congested && connection.outbox.as_deref().is_none_or(last)
    }

    /// `n` bytes of what [`Shard::outbox`] showed went out.
    pub fn on_sent(&mut self, id: ConnectionId, n: usize, now: Time) {
        self.counters.bytes_sent += n as u64;
        let Some(connection) = self.connections.get_mut(id.slot).filter(|connection| connection.generation == id.generation)
        else {
            return;
        };
        let Some(outbox) = connection.outbox.as_mut() else { return };
        let before = outbox.copied();
        outbox.on_sent(n);
        self.charge -= (before - outbox.copied()) as i64;
        let left = outbox.len();
        if left == 0
            && let Some(outbox) = connection.outbox.take()
        {
            self.pool.put(outbox);
        }
        if connection.congested && left <= self.limits.outbox_bytes_max as usize / 2 {
            connection.congested = false;
            if let Some(session) = connection.session {
                self.pump(session, now);
            }
        }
    }

    /// Gives the bytes that `f` writes to a connection, to be sent at the end of the turn.
    fn write(&mut self, slot: u32, f: impl FnOnce(&mut Outbox)) {
        let connection = &mut self.connections[slot];
        let outbox = connection.outbox.get_or_insert_with(|| self.pool.take());
        let before = outbox.copied();
        f(outbox);
        self.charge += (outbox.copied() - before) as i64;
        if !connection.flushing {
            connection.flushing = true;
            self.effects.flush.push(ConnectionId { slot, generation: connection.generation });
        }
    }

    /// Appends the connections whose outbox has bytes to send to `flush`. From here on they may stand in the next list.
    pub fn take_flush(&mut self, flush: &mut Vec<ConnectionId>) {
        for id in &self.effects.flush {
            if let Some(connection) =
                self.connections.get_mut(id.slot).filter(|connection| connection.generation == id.generation)
            {
                connection.flushing = false;
                flush.push(*id);
            }
        }
        self.effects.flush.clear();
    }

    /// Whether a client wants reason strings and one fits its Maximum Packet Size with room to spare [MQTT-3.1.2-29].
    fn may_say_why(&self, slot: u32) -> bool {
        let connection = &self.connections[slot];
        connection.problem_information && connection.maximum_packet_size >= 256
    }

    fn send(&mut self, slot: u32, packet: &Packet<'_>) {
        let connection = &self.connections[slot];
        let Some(version) = connection.version.filter(|_| is_open(connection)) else { return };
        self.counters.packets_sent += 1;
        self.write(slot, |outbox| outbox.write(|out| wire::encode(packet, version, out)));
    }

    /// Sends a packet that may be larger than the client's Maximum Packet Size; `false`: it is, and nothing was sent
    /// [MQTT-3.1.2-24]. What goes through [`Shard::send`] is never larger than the smallest maximum that makes sense.
    fn send_if_it_fits(&mut self, slot: u32, packet: &Packet<'_>) -> bool {
        let fits = self.fits(slot, packet);
        if fits {
            self.send(slot, packet);
        }
        fits
    }

    /// Whether a packet is within a client's Maximum Packet Size.
    fn fits(&self, slot: u32, packet: &Packet<'_>) -> bool {
        let connection = &self.connections[slot];
        let Some(version) = connection.version.filter(|_| connection.maximum_packet_size != u32::MAX) else { return true };
        let mut bytes = Vec::new();
        wire::encode(packet, version, &mut bytes);
        bytes.len() <= connection.maximum_packet_size as usize
    }

    /// Timers, cursors, wait lists, connections that go on: at most a turn's budget of each. `true`: there is more to do now.
    pub fn run(&mut self, now: Time) -> bool {
        let budget = self.limits.turn_budget as usize;
        // What a timer ends costs some four deliveries, and a socket to close.
        self.fire_timers(now, (budget / 4).max(1));
        self.confirm_subscriptions(now);
        // Before those who wait for the same room: how many there may be at once is bounded.
        self.publish_source_messages(now, budget);
        self.wake_waiting_for_sinks();
        self.resume_parked(now, budget);
        self.publish_pending(now, budget);
        self.remove_ended((budget / 2).max(1), now);
        self.move_members((budget / 4).max(1));
        self.announce_groups();
        self.replay_retained(now, budget);
        self.sweep_retained(now);
        self.run_fanouts(now);
        self.shut_down(now, budget);
        self.settle_memory();
        self.budget = budget;
        self.filters_left = subscribe::filters_per_turn(&self.limits);
        self.taken = 0;
        self.work = 0;
        self.has_work(now) && !Fault::ForgetMore.is_planted()
    }

    fn has_work(&self, now: Time) -> bool {
        self.wheel.next_deadline() <= now
            || self.parking.has_ready()
            || self.sinks_may_go_on()
            || self.source_messages_may_go_on()
            || !self.fanouts.is_empty()
            || self.pending_may_go_on()
            || self.ending_may_go_on()
            || self.groups.has_moves()
            || self.retained.has_work()
            || self.shutting_down_has_work()
    }

    /// When [`Shard::run`] must be called next, at the latest.
    pub fn next_deadline(&self) -> Time {
        self.wheel.next_deadline().min(self.retained.next_sweep())
    }

    fn fire_timers(&mut self, now: Time, budget: usize) {
        for _ in 0..budget {
            let Some(timer) = self.wheel.pop(now) else { return };
            match timer.kind() {
                TimerKind::ConnectDeadline => self.on_connect_deadline(timer, now),
                TimerKind::KeepAlive => self.on_keep_alive(timer, now),
                TimerKind::Session => self.on_session_timer(timer, now),
                TimerKind::Decision => self.on_delayed_decision(timer),
            }
        }
    }

    /// Brings the process's memory account up to date with this turn's changes.
    fn settle_memory(&mut self) {
        let delta = self.charge + message::take_charge();
        self.charge = 0;
        self.memory_bytes += delta;
        self.globals.memory_bytes.add(delta);
    }

    /// Whether memory is over `percent` of `memory_max`.
    fn memory_over(&self, percent: u64) -> bool {
        let limit = self.limits.memory_max_bytes;
        limit != 0 && self.globals.memory_bytes.get() >= limit / 100 * percent
    }

    /// A number that spreads evenly (xorshift64*): to pick group members and the like, not for secrets.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Whether a connection takes part: it is there and not on its way out.
fn is_open(connection: &Connection) -> bool {
    connection.state != State::Closing
}
