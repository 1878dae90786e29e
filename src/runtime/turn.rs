//! The loop of one shard: inputs → core → effects → performed, over and over, asleep when there is nothing to do.
//!
//! A turn, in order: sends owed by the turn before and receives of what is ready (one system call for both), the rings from other
//! cores and the sink core, the bytes received, new connections, the core's own work, its effects. Rings are read after the sockets, so that whatever
//! caused the bytes has been seen. A shard that has nothing else to do sends what it owes, then sleeps: a message that wakes it
//! costs three system calls, `epoll_wait`, receive and send; a busy shard needs two for up to 64 messages.
//!
//! Every queue here holds a connection at most once, each turn takes a bounded part of each, and what stands in one for a connection
//! that is no more is recognised by its generation and skipped.
//!
//! A turn's time is wall clock, from when the shard woke (or the turn before ended) until its effects are performed; the thread's
//! CPU time would cost a system call to read.

use super::board::{Board, ProcessPhase, ShardBoard, Stage};
use super::clock::Clock;
use super::closing::Closing;
use super::core::Core;
use super::event_log::EventLog;
use super::listener::{ACCEPTS_MAX, Accepted, Listener};
use super::mesh::{Mesh, RingProgress};
use super::ring::{Plane, RECEIVE_BYTES, RECEIVES_MAX, Ready, SENDS_MAX, system};
use super::sink_link::{Reply, ShardEnd, SinkCore};
use super::sockets::{BROKEN, CLOSING, ENDED, ENDING, FULL, OWED, PAUSED, READY, Sockets, Token};
use super::turn_times::TurnCounts;
use crate::ids::{ConnectionId, CoreId};
use crate::shard::peer::{MeshMessage, Progress};
use crate::shard::sys_snapshot::ShellCounters;
use crate::shard::{Effects, Phase};
use crate::time::Time;
use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often a shard that has something new puts it on the board.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// While the process shuts down a shard looks around at least so often.
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(10);
/// A turn is meant to take no longer.
const TURN_MAX: Duration = Duration::from_millis(1);
/// What the sink core says, taken in one turn.
const REPLIES_MAX: usize = 4096;
/// Performing effects may cause some; after so many rounds in one turn the rest waits for the next.
const EFFECT_ROUNDS_MAX: usize = 8;

/// What a shard's loop is made of.
pub struct TurnOptions {
    pub index: usize,
    pub mesh: Mesh<MeshMessage>,
    /// The way to the sink core, if there is one.
    pub sinks: Option<ShardEnd>,
    /// Who knows the status of sinks, once the sink core has started.
    pub status: Arc<OnceLock<Arc<dyn SinkCore>>>,
    pub listeners: Vec<TcpListener>,
    pub board: Arc<Board>,
    pub clock: Clock,
    /// Between two snapshots for `$SYS`, on core 0; zero: none.
    pub sys_interval: Duration,
}

pub struct Turn<C> {
    core: C,
    plane: Plane,
    sockets: Sockets,
    listeners: Vec<Listener>,
    closing: Closing,
    mesh: Mesh<MeshMessage>,
    sinks: Option<ShardEnd>,
    status: Arc<OnceLock<Arc<dyn SinkCore>>>,
    /// What the core was last told of each peer.
    told: Vec<RingProgress>,

    /// Connections that may have something to receive, in order.
    ready: VecDeque<ConnectionId>,
    /// Connections that have something to send, in order.
    owed: VecDeque<ConnectionId>,
    /// The core has more to do now.
    more: bool,
    /// How many sockets a turn receives from, at most.
    batch: usize,

    now: Time,
    clock: Clock,
    index: usize,
    board: Arc<Board>,
    phase: ProcessPhase,
    shell: ShellCounters,
    log: EventLog,
    /// Something happened since the board was last written.
    news: bool,
    publish_at: Time,
    sys_interval: Duration,
    sys_at: Time,
    sys_earlier: Vec<TurnCounts>,

    /// The connections of the last round, in its order, with the bytes offered.
    sending: Vec<(ConnectionId, usize)>,
    receiving: Vec<ConnectionId>,
    /// Empty between uses; kept for their memory.
    events: Vec<Ready>,
    flush: Vec<ConnectionId>,
    effects: Effects,
}

impl<C: Core> Turn<C> {
    /// Made on the shard's own thread.
    ///
    /// # Errors
    /// The kernel refuses the ring, the epoll fd or a listener's place in it.
    pub fn new(core: C, options: TurnOptions) -> io::Result<Self> {
        let TurnOptions { index, mesh, sinks, status, listeners, board, clock, sys_interval } = options;
        let plane = Plane::new(mesh.doorbell().descriptor())?;
        let listeners: Vec<Listener> = listeners.into_iter().map(Listener::new).collect();
        for (index, listener) in listeners.iter().enumerate() {
            plane.watch(listener.descriptor(), Token::Listener(index).to_bits())?;
        }
        let now = clock.now();
        let mut effects = Effects::default();
        effects.mesh.resize_with(mesh.cores(), Vec::new);
        Ok(Self {
            core,
            plane,
            sockets: Sockets::default(),
            listeners,
            closing: Closing::default(),
            told: vec![RingProgress::default(); mesh.cores()],
            mesh,
            sinks,
            status,
            ready: VecDeque::new(),
            owed: VecDeque::new(),
            more: true,
            batch: RECEIVES_MAX,
            now,
            clock,
            index,
            board,
            phase: ProcessPhase::Running,
            shell: ShellCounters::default(),
            log: EventLog::new(index),
            news: true,
            publish_at: now + PUBLISH_INTERVAL,
            sys_interval,
            // The first at once: who looks right after the start is to see something.
            sys_at: if index == 0 && !sys_interval.is_zero() { now } else { Time::NEVER },
            sys_earlier: Vec::new(),
            sending: Vec::with_capacity(SENDS_MAX),
            receiving: Vec::with_capacity(RECEIVES_MAX),
            events: Vec::new(),
            flush: Vec::new(),
            effects,
        })
    }

    /// Turns until the process is told to exit.
    ///
    /// # Errors
    /// The ring failed; the shard cannot go on.
    pub fn run(mut self) -> io::Result<()> {
        self.here().turn.begin(self.now);
        while self.follow_phase() {
            if self.may_sleep()? {
                self.sleep();
            }
            self.take_readiness();
            self.exchange(self.reads_are_on())?;
            self.take_mesh();
            self.take_replies();
            self.take_received();
            self.accept();
            self.here().turn.enter(Stage::Run);
            self.end_overdue();
            self.publish();
            self.more = self.core.run(self.now);
            self.perform();
            if let Some(sinks) = &self.sinks {
                sinks.accept(self.core.source_messages_accepted());
            }
            self.finish_phase();
            self.shell.turns += 1;
            let end = self.clock.now();
            self.here().times.record(end - self.now);
            self.adapt_batch(end - self.now);
            self.now = end;
            self.here().turn.begin(end);
        }
        Ok(())
    }

    /// What a receive costs depends on what is in it: a batch that took too long is halved for the next turn, and grows back while
    /// turns are short. So a turn stays near its millisecond, whatever clients send.
    fn adapt_batch(&mut self, took: Duration) {
        if took > TURN_MAX {
            self.batch = (self.batch / 2).max(1);
        } else if took < TURN_MAX / 2 {
            self.batch = (self.batch + self.batch / 4 + 1).min(RECEIVES_MAX);
        }
    }

    fn here(&self) -> &ShardBoard {
        self.board.shard(self.index)
    }

    // Sleeping

    /// Whether there is something to do, but for sends that leave nothing behind.
    fn is_busy(&self) -> bool {
        self.more
            || self.plane.may_be_ready()
            || (self.reads_are_on() && !self.ready.is_empty())
            || self.listeners.iter().any(|listener| listener.is_hot(self.now))
            || self.owed.len() > SENDS_MAX
            || self.owed.iter().any(|&id| self.sockets.has(id, CLOSING) || !self.core.is_last_piece(id))
    }

    /// Whether there is nothing to do until something happens. If so, what was owed has been sent and the shard has announced that
    /// it sleeps.
    fn may_sleep(&mut self) -> io::Result<bool> {
        if self.is_busy() {
            return Ok(false);
        }
        // A send that failed or was cut short is the core's business.
        if !self.owed.is_empty() && !self.exchange(false)? {
            return Ok(false);
        }
        for peer in self.mesh.peers() {
            let awaited = self.mesh.is_outstanding(peer) && self.core.awaits_progress(CoreId(peer as u8));
            self.mesh.await_progress(peer, awaited);
        }
        if let Some(sinks) = &self.sinks {
            sinks.await_room(self.core.awaits_sinks());
        }
        self.mesh.doorbell().announce_sleep();
        let has_news = self.mesh.has_news()
            || self.board.phase() != self.phase
            || self.sinks.as_ref().is_some_and(|sinks| sinks.has_news() || self.core.sinks_may_go_on());
        if has_news {
            self.wake_up();
        }
        Ok(!has_news)
    }

    fn wake_up(&mut self) {
        self.mesh.doorbell().end_sleep();
        for peer in self.mesh.peers() {
            self.mesh.await_progress(peer, false);
        }
        if let Some(sinks) = &self.sinks {
            sinks.await_room(false);
        }
    }

    fn sleep(&mut self) {
        let mut deadline = self.core.next_deadline().min(self.closing.next_deadline()).min(self.sys_at);
        for listener in &self.listeners {
            deadline = deadline.min(listener.next_deadline());
        }
        if self.news {
            deadline = deadline.min(self.publish_at);
        }
        if self.phase != ProcessPhase::Running {
            deadline = deadline.min(self.now + SHUTDOWN_INTERVAL);
        }
        self.here().turn.enter(Stage::Asleep);
        self.plane.sleep(self.now, deadline);
        self.wake_up();
        self.now = self.clock.now();
        self.here().turn.begin(self.now);
        self.shell.wakes += 1;
    }

    // Sockets

    /// Sends what is owed and, if asked to, receives what is ready. Whether each send went out whole.
    fn exchange(&mut self, receive: bool) -> io::Result<bool> {
        self.here().turn.enter(Stage::Exchange);
        self.sending.clear();
        self.receiving.clear();
        let mut round = self.plane.round();
        while self.sending.len() < SENDS_MAX
            && let Some(id) = self.owed.pop_front()
        {
            match (self.core.socket(id), self.core.outbox(id)) {
                (Some(socket), Some(bytes)) => {
                    round.send(socket, bytes);
                    self.sending.push((id, bytes.len()));
                }
                (Some(_), None) => self.sockets.clear(id, OWED),
                (None, _) => {}
            }
        }
        while receive
            && self.receiving.len() < self.batch
            && let Some(id) = self.ready.pop_front()
        {
            let Some(socket) = self.core.socket(id) else { continue };
            self.sockets.clear(id, READY);
            // A paused connection is made ready again when it goes on.
            if !self.sockets.has(id, PAUSED | CLOSING | ENDED) {
                round.receive(socket);
                self.receiving.push(id);
            }
        }
        round.exchange()?;
        let turn = &self.board.shard(self.index).turn;
        turn.sends.store(self.sending.len() as u32, Relaxed);
        turn.receives.store(self.receiving.len() as u32, Relaxed);
        self.news |= !self.sending.is_empty() || !self.receiving.is_empty();
        Ok(self.settle_sends())
    }

    /// Tells the core what the sends of the last round came to. Whether each went out whole.
    fn settle_sends(&mut self) -> bool {
        let mut whole = true;
        for position in 0..self.sending.len() {
            let (id, offered) = self.sending[position];
            if self.core.socket(id).is_none() {
                continue;
            }
            self.sockets.clear(id, OWED);
            let result = self.plane.sent(position);
            whole &= result == Ok(offered);
            match result {
                Ok(sent) => {
                    self.core.on_sent(id, sent, self.now);
                    if sent < offered {
                        self.shell.sends_cut_short += 1;
                        self.sockets.set(id, FULL);
                    } else if self.core.outbox(id).is_some() {
                        self.owe(id);
                    } else if self.sockets.has(id, CLOSING) {
                        self.finish_close(id);
                    }
                }
                Err(libc::EAGAIN) => {
                    self.shell.sends_cut_short += 1;
                    self.sockets.set(id, FULL);
                }
                Err(libc::EINTR | libc::ENOMEM) => self.owe(id),
                Err(_) => self.on_send_failed(id),
            }
        }
        self.sending.clear();
        whole
    }

    fn on_send_failed(&mut self, id: ConnectionId) {
        self.sockets.set(id, BROKEN);
        if self.sockets.has(id, CLOSING) {
            self.finish_close(id);
        } else if self.sockets.has(id, PAUSED | ENDED) || !self.reads_are_on() {
            self.on_end(id);
        } else {
            // What the peer sent before it went is still there and counts.
            self.make_ready(id);
        }
    }

    /// Takes a batch of readiness events.
    fn take_readiness(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.plane.ready(&mut events);
        for event in events.drain(..) {
            match Token::from_bits(event.token) {
                Token::Connection(id) => self.on_ready(id, event),
                Token::Listener(index) => {
                    if let Some(listener) = self.listeners.get_mut(index) {
                        listener.on_ready();
                    }
                }
                Token::Lingering { index, generation } => self.closing.on_ready(index, generation),
            }
        }
        self.events = events;
    }

    fn on_ready(&mut self, id: ConnectionId, event: Ready) {
        if self.core.socket(id).is_none() {
            return;
        }
        if event.writable() && self.sockets.has(id, FULL) {
            self.sockets.clear(id, FULL);
            self.owe(id);
        }
        if !event.readable() {
            return;
        }
        if event.ending() {
            self.sockets.set(id, ENDING);
        }
        if event.broken() {
            self.sockets.set(id, BROKEN);
        }
        if self.sockets.has(id, CLOSING) {
            // Bytes are thrown away when everything is sent.
            if event.broken() {
                self.finish_close(id);
            }
        } else if self.sockets.has(id, PAUSED) {
            self.core.on_unread(id);
            if event.broken() {
                self.on_end(id);
            }
        } else {
            self.make_ready(id);
        }
    }

    fn make_ready(&mut self, id: ConnectionId) {
        if self.sockets.set(id, READY) {
            self.ready.push_back(id);
        }
    }

    fn owe(&mut self, id: ConnectionId) {
        if self.core.socket(id).is_some() && !self.sockets.has(id, BROKEN | FULL) && self.sockets.set(id, OWED) {
            self.owed.push_back(id);
        }
    }

    /// Hands what was received to the core.
    fn take_received(&mut self) {
        self.here().turn.enter(Stage::Received);
        for position in 0..self.receiving.len() {
            let id = self.receiving[position];
            // It may have been closed since, by what came from another core.
            if self.core.socket(id).is_none() || self.sockets.has(id, CLOSING) {
                continue;
            }
            match self.plane.received(position) {
                Ok([]) => self.on_end(id),
                Ok(bytes) => {
                    let filled = bytes.len() == RECEIVE_BYTES;
                    self.core.on_received(id, bytes, self.now);
                    // A connection that has left for another core is looked at there.
                    if (filled || self.sockets.has(id, ENDING)) && self.core.socket(id).is_some() {
                        self.make_ready(id);
                    }
                }
                Err(libc::EAGAIN) => {}
                Err(libc::EINTR | libc::ENOMEM) => self.make_ready(id),
                Err(_) => {
                    self.sockets.set(id, BROKEN);
                    self.on_end(id);
                }
            }
        }
        self.receiving.clear();
    }

    /// The peer has sent its last byte, or the connection broke.
    fn on_end(&mut self, id: ConnectionId) {
        if self.sockets.set(id, ENDED) {
            self.core.on_receive_end(id, self.sockets.has(id, BROKEN), self.now);
        }
    }

    fn accept(&mut self) {
        if self.listeners.is_empty() {
            return;
        }
        self.here().turn.enter(Stage::Accept);
        let mut left = ACCEPTS_MAX;
        // Each turn begins with another listener, so that a busy one leaves room for the rest.
        let first = self.shell.turns as usize;
        for offset in 0..self.listeners.len() {
            let index = (first + offset) % self.listeners.len();
            while left > 0 && self.listeners[index].is_hot(self.now) {
                left -= 1;
                match self.listeners[index].accept(self.now, system::accept) {
                    Accepted::Socket(socket) => self.on_accepted(socket, index),
                    Accepted::Nobody => {}
                    Accepted::Failed => {
                        self.shell.accepts_failed += 1;
                        self.log.accept_failed(self.now);
                    }
                    Accepted::Suspended(errno) => {
                        self.shell.accepts_suspended += 1;
                        self.log.accept_suspended(errno, self.now);
                    }
                }
            }
        }
    }

    fn on_accepted(&mut self, socket: i32, listener: usize) {
        self.news = true;
        match self.core.on_accepted(socket, listener as u16, self.now) {
            Some(id) => {
                if self.core.wants_peer_address()
                    && let Some(address) = system::peer_address(socket)
                {
                    self.core.on_peer_address(id, address);
                }
                self.watch(id, socket);
            }
            None => system::close(socket),
        }
    }

    /// A connection begins on this core.
    fn watch(&mut self, id: ConnectionId, socket: i32) {
        self.sockets.begin(id);
        if self.plane.watch(socket, Token::Connection(id).to_bits()).is_err() {
            self.sockets.set(id, BROKEN);
            self.on_end(id);
        }
    }

    // Closing

    fn begin_close(&mut self, id: ConnectionId) {
        if self.core.socket(id).is_none() || !self.sockets.set(id, CLOSING) {
            return;
        }
        if self.sockets.has(id, BROKEN) || self.core.outbox(id).is_none() {
            self.finish_close(id);
        } else {
            self.closing.begin(id, self.now);
            self.owe(id);
        }
    }

    /// Everything is sent, or nothing can be.
    fn finish_close(&mut self, id: ConnectionId) {
        let Some(socket) = self.core.socket(id) else { return };
        self.core.on_closed(id, self.now);
        if self.sockets.has(id, BROKEN) {
            system::close(socket);
        } else {
            self.closing.linger(&self.plane, socket, self.sockets.has(id, ENDED), self.now);
        }
    }

    fn end_overdue(&mut self) {
        while let Some(id) = self.closing.overdue(self.now) {
            if let Some(socket) = self.core.socket(id) {
                self.core.on_closed(id, self.now);
                self.shell.closed_hard += 1;
                system::close_with_reset(socket);
            }
        }
        self.closing.expire(self.now);
    }

    // Other cores

    fn take_mesh(&mut self) {
        self.here().turn.enter(Stage::Mesh);
        for peer in self.mesh.peers() {
            let progress = self.mesh.progress(peer);
            if progress != self.told[peer] {
                self.told[peer] = progress;
                let RingProgress { processed_messages, processed_bytes, arrived_messages } = progress;
                let progress =
                    Progress { consumed_messages: processed_messages, consumed_bytes: processed_bytes, arrived_messages };
                self.core.on_progress(CoreId(peer as u8), progress, self.now);
            }
        }
        let (mut taken, mut left) = (0, self.core.mesh_budget());
        let mut found = true;
        while found && left > 0 {
            found = false;
            // One of each ring in turn; `left` is what each may still give.
            left -= 1;
            for peer in self.mesh.peers() {
                if self.core.mesh_budget() == 0 {
                    break;
                }
                let Some(mut message) = self.mesh.take(peer) else { continue };
                found = true;
                taken += 1;
                self.here().turn.mesh_messages.store(taken, Relaxed);
                let bytes = message.bytes();
                if let MeshMessage::Parcel(parcel) = &mut message {
                    parcel.peer_gone = system::peer_gone(parcel.socket);
                }
                self.core.on_mesh(CoreId(peer as u8), message, self.now);
                self.mesh.processed(peer, bytes);
            }
        }
        if taken > 0 {
            self.news = true;
            self.mesh.confirm();
        }
    }

    /// What the sink core has to say. Answers and messages of sources are bounded by what this core has asked for or accepted.
    fn take_replies(&mut self) {
        let Some(sinks) = &mut self.sinks else { return };
        self.core.on_records_taken(sinks.taken());
        for _ in 0..REPLIES_MAX {
            let Some(reply) = sinks.reply() else { break };
            self.news = true;
            match reply {
                Reply::Answer { ticket, outcome } => self.core.on_answer(ticket, outcome),
                Reply::Publish(message) => self.core.on_source_message(message),
            }
        }
    }

    // Effects

    fn perform(&mut self) {
        self.here().turn.enter(Stage::Effects);
        for _ in 0..EFFECT_ROUNDS_MAX {
            let mut flush = std::mem::take(&mut self.flush);
            self.core.take_flush(&mut flush);
            // Mostly there is nothing but bytes to send.
            let (nothing_to_send, nothing_else) = (flush.is_empty(), is_empty(self.core.effects()));
            if nothing_else {
                flush.drain(..).for_each(|id| self.owe(id));
            } else {
                let mut effects = std::mem::take(&mut self.effects);
                std::mem::swap(&mut effects, self.core.effects());
                self.perform_once(&mut flush, &mut effects);
                self.effects = effects;
            }
            self.flush = flush;
            if nothing_to_send && nothing_else {
                return;
            }
            self.news = true;
        }
        self.more = true;
    }

    /// Performs effects and empties them.
    fn perform_once(&mut self, flush: &mut Vec<ConnectionId>, effects: &mut Effects) {
        for socket in effects.departures.drain(..) {
            // It fails only for a socket whose watching failed.
            self.plane.unwatch(socket).ok();
        }
        for id in effects.arrivals.drain(..) {
            if let Some(socket) = self.core.socket(id) {
                self.watch(id, socket);
            }
        }
        for id in effects.pauses.drain(..) {
            if self.core.socket(id).is_some() && self.sockets.set(id, PAUSED) && self.sockets.has(id, READY) {
                self.core.on_unread(id);
            }
        }
        for id in effects.resumes.drain(..) {
            if self.core.socket(id).is_some() {
                self.sockets.clear(id, PAUSED);
                self.make_ready(id);
            }
        }
        for socket in effects.quick_acks.drain(..) {
            system::acknowledge_at_once(socket);
        }
        for (peer, messages) in effects.mesh.iter_mut().enumerate() {
            if !messages.is_empty() {
                self.mesh.push(peer, messages);
            }
        }
        if let Some(sinks) = &mut self.sinks {
            sinks.push(&mut effects.records);
        }
        for id in flush.drain(..) {
            self.owe(id);
        }
        for id in effects.closes.drain(..) {
            self.begin_close(id);
        }
        for event in effects.events.drain(..) {
            self.log.event(&event, self.now);
        }
    }

    // The process

    /// Puts what is new on the board, and on core 0 gives the core what `$SYS` is made of.
    fn publish(&mut self) {
        let for_sys = self.now >= self.sys_at;
        if (self.news && self.now >= self.publish_at) || for_sys {
            self.news = false;
            self.publish_at = self.now + PUBLISH_INTERVAL;
            let deepest = self.mesh.take_deepest();
            self.core.set_epoch(self.clock.epoch_us());
            self.here().publish(self.core.counters(), self.core.load(), self.shell, deepest, self.core.rule_counts());
            self.log.flush(self.now);
        }
        if for_sys {
            self.sys_at = self.now + self.sys_interval;
            let mut snapshot = self.board.snapshot(self.now, &mut self.sys_earlier);
            if let Some(sinks) = self.status.get() {
                snapshot.sinks = sinks.status();
            }
            self.core.publish_sys(&snapshot, self.now);
        }
    }

    fn reads_are_on(&self) -> bool {
        self.phase < ProcessPhase::ReadsOff
    }

    /// Begins the phases that the process has come to. False: the shard ends.
    fn follow_phase(&mut self) -> bool {
        let wanted = self.board.phase();
        for phase in ProcessPhase::ALL {
            if phase <= self.phase || phase > wanted {
                continue;
            }
            self.phase = phase;
            self.more = true;
            match phase {
                ProcessPhase::Running => {}
                ProcessPhase::AcceptsOff => self.listeners.clear(),
                ProcessPhase::ReadsOff => self.core.set_phase(Phase::ReadsOff, self.now),
                ProcessPhase::Draining => self.core.set_phase(Phase::Draining, self.now),
                ProcessPhase::Disconnecting => self.core.set_phase(Phase::Disconnecting, self.now),
                ProcessPhase::Exit => return false,
            }
        }
        true
    }

    fn finish_phase(&mut self) {
        let is_finished = match self.phase {
            ProcessPhase::Running => return,
            ProcessPhase::Draining => {
                self.core.is_drained() && !self.mesh.has_messages() && self.sinks.as_ref().is_none_or(ShardEnd::is_idle)
            }
            ProcessPhase::Disconnecting => self.core.connections() == 0 && self.closing.is_empty(),
            _ => true,
        };
        // A drained shard may get work from one that is not drained yet, so this can also be taken back.
        let before = ProcessPhase::ALL[self.phase as usize - 1];
        self.here().set_finished(if is_finished { self.phase } else { before });
    }
}

fn is_empty(effects: &Effects) -> bool {
    let Effects { arrivals, departures, pauses, resumes, closes, mesh, records, events, quick_acks, .. } = effects;
    [arrivals, pauses, resumes, closes].iter().all(|list| list.is_empty())
        && departures.is_empty()
        && quick_acks.is_empty()
        && events.is_empty()
        && records.is_empty()
        && mesh.iter().all(Vec::is_empty)
}
