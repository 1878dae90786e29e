//! The loop of one shard: inputs → core → effects → performed, over and over, asleep when there is nothing to do.
//!
//! A turn, in order: sends owed by the turn before and receives of what is ready (one system call for both), the rings from other
//! cores and the sink core, the bytes received, new connections, the core's own work, its effects. Rings are read after the sockets, so that whatever
//! caused the bytes has been seen. A shard that has nothing else to do sends what it owes, then sleeps: a message that wakes it
//! costs three system calls, `epoll_wait`, receive and send; a busy shard needs two for up to 64 messages.
//!
//! `exchange` moves bytes, `connections` begins and ends connections, `sleep` says when there is nothing to do.
//!
//! Every queue here holds a connection at most once, each turn takes a bounded part of each, and what stands in one for a connection
//! that is no more is recognised by its generation and skipped.
//!
//! A turn's time is wall clock, from when the shard woke (or the turn before ended) until its effects are performed; the thread's
//! CPU time would cost a system call to read.

mod connections;
mod exchange;
mod sleep;

use super::board::{Board, ProcessPhase, ShardBoard, Stage};
use super::clock::Clock;
use super::closing::Closing;
use super::core::Core;
use super::event_log::EventLog;
use super::listener::Listener;
use super::mesh::{Mesh, RingProgress};
use super::ring::{Plane, RECEIVES_MAX, Ready, SENDS_MAX, system};
use super::sink_link::{RECORDS_MAX, Reply, ShardEnd, SinkCore};
use super::sockets::{PAUSED, READY, Sockets, Token};
use super::turn_times::TurnCounts;
use crate::ids::{ConnectionId, CoreId};
use crate::shard::events::Event;
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
/// What the sink core says, taken in one turn: as much as a turn may ask of it, so that it does not pile up there.
const REPLIES_MAX: usize = RECORDS_MAX as usize;
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
            if let Event::RuleFailed { rule, what, .. } = &event {
                self.board.note_rule_error(*rule, what);
            }
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
