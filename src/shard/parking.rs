//! Parking: the one mechanism for all that must wait. A packet that cannot go on has had no effect yet and stays at the front of its
//! connection's bytes; the connection is parked on what it waits for and others go on.
//!
//! While parked a connection is read on, up to `parked_bytes_max`: PINGREQ and acknowledgements are handled at once, the rest keeps
//! its order. Past that its socket is left unread; then it does not time out. So an outage behind the broker is not a reconnect storm
//! in front of it.

use super::Shard;
use super::connection::{Parked, State, Verdict, Wait};
use super::events::Event;
use super::peer::Cargo;
use super::receive::Flow;
use super::subscribe::Partial;
use super::timers::{Timer, TimerKind};
use crate::fault::Fault;
use crate::ids::{ConnectionId, CoreId};
use crate::time::Time;
use crate::wire;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Connections that go on in one turn, at most: each may have `parked_bytes_max` of packets waiting.
pub(super) const RESUMED_PER_TURN: usize = 32;

/// Delays decisions about CONNECT, SUBSCRIBE and PUBLISH at random, so that tests see every packet wait.
#[derive(Clone, Copy, Debug)]
pub struct TestDelays {
    /// One packet in so many is delayed.
    pub one_in: u32,
    pub delay_ms_max: u32,
}

pub(super) struct Parking {
    delays: Option<TestDelays>,
    /// Connections whose wait is over.
    ready: VecDeque<ConnectionId>,
    /// Connections that wait for room among the fan-outs.
    fanout: VecDeque<ConnectionId>,
    /// Packets at the front of parked connections that have been acted on in part.
    pub(super) partial: HashMap<ConnectionId, Partial>,
    /// Connections parked just now.
    pub(super) parked: usize,
    /// The decision about the packet that is being handled, if it has come.
    pub(super) verdict: Option<Verdict>,
    /// A parcel is being opened: the CONNECT in it was read, and so dated, on another core.
    pub(super) arrived: bool,
    /// A connection that had waited is being handled.
    pub(super) resuming: bool,
    /// A connection that has not waited is being handled: it queues behind those that wait.
    pub(super) queueing: bool,
}

impl Parking {
    pub(super) fn new(delays: Option<TestDelays>) -> Self {
        Self {
            delays,
            ready: VecDeque::new(),
            fanout: VecDeque::new(),
            partial: HashMap::new(),
            parked: 0,
            verdict: None,
            arrived: false,
            resuming: false,
            queueing: false,
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A connection's wait is over.
    pub(super) fn make_ready(&mut self, id: ConnectionId) {
        self.ready.push_back(id);
    }

    pub(super) fn someone_waits_for_fanouts(&self) -> bool {
        !self.fanout.is_empty()
    }
}

impl Shard {
    /// Whether the packet at hand may go on, or why not; `None`: the decision comes later and the packet parks.
    pub(super) fn ask(&mut self, id: ConnectionId, now: Time) -> Option<Verdict> {
        if let Some(verdict) = self.parking.verdict {
            return Some(verdict);
        }
        let Some(TestDelays { one_in, delay_ms_max }) = self.parking.delays else { return Some(Ok(())) };
        let random = self.next_random();
        if !random.is_multiple_of(u64::from(one_in.max(1))) {
            return Some(Ok(()));
        }
        let delay = Duration::from_millis((random >> 32) % (u64::from(delay_ms_max) + 1));
        self.wheel.add(Timer::new(TimerKind::Decision, id.slot, id.generation), now + delay);
        None
    }

    /// The packet at the front, `front_len` bytes, waits.
    pub(super) fn park(&mut self, id: ConnectionId, wait: Wait, front_len: usize, verdict: Option<Verdict>, _now: Time) {
        match wait {
            Wait::Mesh(core, cargo) => {
                self.counters.parked_mesh += 1;
                self.peer(core).waiting(cargo).push_back(id);
            }
            Wait::Fanout => {
                self.counters.parked_fanout += 1;
                self.parking.fanout.push_back(id);
            }
            Wait::Decision => self.counters.parked_decision += 1,
            Wait::Sink(place, needed) => {
                self.counters.parked_sink += 1;
                self.sinks.wait(place, id, needed);
            }
            Wait::Acknowledgements => self.counters.parked_acknowledgements += 1,
            Wait::Nothing => self.parking.ready.push_back(id),
        }
        self.parking.parked += 1;
        let parked = Parked { wait, scanned: front_len, paused: false, unread: false, ended: false, verdict };
        self.connections[id.slot].parked = Some(Box::new(parked));
    }

    /// Handles what never waits among the bytes of a parked connection, and stops reading past the limit.
    pub(super) fn serve_parked(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.connection_mut(id) else { return };
        let Some(parked) = &connection.parked else { return };
        let mut from = parked.scanned;
        // Before CONNECT is accepted nothing else may be handled.
        if connection.state == State::Connected {
            let version = connection.version;
            let mut read = std::mem::take(&mut connection.read);
            let mut kept = from;
            while let Ok(Some(frame)) = wire::frame(&read[from..], self.limits.packet_bytes_max) {
                let len = frame.len;
                let light = matches!(
                    wire::packet_type(frame.first),
                    wire::PINGREQ | wire::PUBACK | wire::PUBREC | wire::PUBREL | wire::PUBCOMP
                );
                // What cannot be decoded is refused in its turn.
                let handled = light
                    && wire::decode(frame, version).is_ok_and(|packet| {
                        self.counters.packets_received += 1;
                        self.on_light_packet(id, &packet, now) == Flow::Next
                    });
                if !handled {
                    read.copy_within(from..from + len, kept);
                    kept += len;
                }
                from += len;
            }
            if kept < from {
                read.copy_within(from.., kept);
                read.truncate(read.len() - (from - kept));
            }
            let Some(connection) = self.connection_mut(id) else { return };
            connection.read = read;
            if let Some(parked) = &mut connection.parked {
                parked.scanned = kept;
            }
        }
        let parked_bytes_max = self.limits.parked_bytes_max as usize;
        let connection = &mut self.connections[id.slot];
        let Some(parked) = &mut connection.parked else { return };
        if connection.read.len() > parked_bytes_max && !parked.paused {
            parked.paused = true;
            self.effects.resumes.retain(|resumed| *resumed != id);
            self.effects.pauses.push(id);
        }
    }

    /// A paused connection's socket has unread bytes: someone is there.
    pub fn on_unread(&mut self, id: ConnectionId) {
        if let Some(parked) = self.connection_mut(id).and_then(|connection| connection.parked.as_mut()) {
            parked.unread = true;
        }
    }

    pub(super) fn on_delayed_decision(&mut self, timer: Timer) {
        let Some(connection) = self.connections.get_mut(timer.slot) else { return };
        let id = ConnectionId { slot: timer.slot, generation: connection.generation };
        if let Some(parked) =
            connection.parked.as_mut().filter(|parked| parked.wait == Wait::Decision && timer.is_for(id.generation))
        {
            parked.verdict = Some(Ok(()));
            parked.wait = Wait::Nothing;
            self.parking.ready.push_back(id);
        }
    }

    /// Room has come up on the ring to a core: as many of those that wait for it go on as there is room for.
    pub(super) fn wake_waiting_for(&mut self, core: CoreId) {
        for cargo in [Cargo::Control, Cargo::Message] {
            for _ in 0..RESUMED_PER_TURN {
                let peer = self.peer(core);
                if !peer.has_room(cargo, 1, 0) {
                    break;
                }
                let Some(id) = peer.waiting(cargo).pop_front() else { break };
                self.parking.ready.push_back(id);
            }
        }
    }

    /// Fan-outs have room for so many: no more go on, or the rest would lose their places.
    pub(super) fn wake_waiting_for_fanouts(&mut self, room: usize) {
        for _ in 0..room.min(RESUMED_PER_TURN) {
            let Some(id) = self.parking.fanout.pop_front() else { return };
            self.parking.ready.push_back(id);
        }
    }

    pub(super) fn resume_parked(&mut self, now: Time, budget: usize) {
        // However much has been received in this turn: those that wait get a share.
        self.work = self.work.min(self.work_max / 2);
        for _ in 0..budget.min(RESUMED_PER_TURN) {
            if self.work >= self.work_max {
                return;
            }
            let Some(id) = self.parking.ready.pop_front() else { return };
            if self.filters_left == 0 && self.parking.partial.contains_key(&id) {
                // Reading its packet again would lead to nothing in this turn.
                self.parking.ready.push_back(id);
            } else {
                self.resume(id, now);
            }
        }
    }

    fn resume(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.connection_mut(id) else { return };
        let Some(before) = connection.parked.take() else { return };
        if Fault::OvertakeParked.is_planted()
            && let Ok(Some(front_len)) = wire::frame(&connection.read, u32::MAX).map(|frame| frame.map(|frame| frame.len))
        {
            connection.read[..before.scanned].rotate_left(front_len);
        }
        self.parking.parked -= 1;
        self.parking.resuming = true;
        self.process_kept(id, before.verdict, now);
        self.parking.resuming = false;
        let Some(connection) = self.connection_mut(id).filter(|connection| super::is_open(connection)) else { return };
        match &mut connection.parked {
            Some(parked) => {
                parked.ended = before.ended;
                parked.unread = before.unread && parked.paused;
                if before.paused && !parked.paused {
                    connection.last_received = now;
                    self.effects.resumes.push(id);
                }
            }
            None => {
                if before.paused {
                    // Its silence was ours.
                    connection.last_received = now;
                    self.effects.resumes.push(id);
                }
                if before.ended {
                    self.on_receive_end(id, false, now);
                }
            }
        }
    }

    pub(super) fn connect_deadline(&self) -> Duration {
        Duration::from_secs(self.limits.connect_deadline_s.into())
    }

    pub(super) fn on_connect_deadline(&mut self, timer: Timer, now: Time) {
        let deadline = self.connect_deadline();
        let Some(connection) = self.connections.get(timer.slot).filter(|connection| timer.is_for(connection.generation)) else {
            return;
        };
        match connection.state {
            State::New => {}
            State::Connected => return self.watch_keep_alive(timer.slot),
            State::Closing => return,
        }
        let id = ConnectionId { slot: timer.slot, generation: connection.generation };
        let waits_for_us = connection.parked.is_some();
        if waits_for_us || now < connection.since + deadline {
            // A CONNECT that waits for a decision is complete; the deadline is for its sender.
            self.wheel.add(timer, (connection.since + deadline).max(now + Duration::from_secs(1)));
            return;
        }
        self.counters.closed_connect_deadline += 1;
        self.close(id, None, "no complete CONNECT within connect_deadline_s", now);
    }

    /// The CONNECT deadline of a connection that has its CONNECT has passed: its keep-alive is watched from here on.
    fn watch_keep_alive(&mut self, slot: u32) {
        let connection = &self.connections[slot];
        if let Some(deadline) = connection.keep_alive_deadline().filter(|_| !connection.keep_alive_is_watched) {
            self.wheel.add(Timer::new(TimerKind::KeepAlive, slot, connection.generation), deadline);
        }
    }

    pub(super) fn on_keep_alive(&mut self, timer: Timer, now: Time) {
        let Some(connection) = self.connections.get(timer.slot).filter(|connection| timer.is_for(connection.generation)) else {
            return;
        };
        let Some(deadline) = connection.keep_alive_deadline().filter(|_| connection.state == State::Connected) else { return };
        let id = ConnectionId { slot: timer.slot, generation: connection.generation };
        let ours = connection.parked.as_ref().is_some_and(|parked| parked.ended || parked.paused && parked.unread);
        if ours {
            self.wheel.add(timer, now + Duration::from_secs(connection.keep_alive_s.into()));
        } else if now < deadline {
            self.wheel.add(timer, deadline);
        } else {
            self.counters.closed_keep_alive += 1;
            self.close(id, Some(wire::ReasonCode::KEEP_ALIVE_TIMEOUT), "keep-alive timeout", now);
        }
    }

    /// Refuses a CONNECT with its CONNACK and closes.
    pub(super) fn refuse_connect(
        &mut self,
        id: ConnectionId,
        client_id: &str,
        (reason, what): (wire::ReasonCode, &'static str),
        maximum_packet_size: Option<u32>,
        now: Time,
    ) -> Flow {
        self.counters.refused_connects += 1;
        self.effects.events.push(Event::ConnectRefused { client_id: client_id.into(), reason, what });
        let takes = |bytes: u32| maximum_packet_size.is_none_or(|maximum| maximum >= bytes);
        let reason_string = takes(256).then_some(what);
        let connack = wire::Connack { reason, reason_string, ..wire::Connack::default() };
        // Five bytes without the text.
        if takes(5) {
            self.send(id.slot, &wire::Packet::Connack(connack));
        }
        self.close(id, None, what, now);
        Flow::Gone
    }
}
