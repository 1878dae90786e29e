//! The way to the sink core as a shard sees it: a ring bounded in records, a gate before each sink, tickets for those who wait to hear
//! what became of theirs, and messages that come back from sources.
//!
//! A record is admitted before anything of its message has happened: without room a publisher's packet parks, and what nobody waits
//! for (QoS 0, events, messages of the broker's own making) is dropped and counted.

use super::Shard;
use super::connection::Wait;
use super::parking::RESUMED_PER_TURN;
use super::publish::Pending;
use super::rules::Rules;
use super::tickets::{Owner, Tickets};
use crate::ids::{ConnectionId, SessionId, TicketId};
use crate::message::Message;
use crate::record::{Outcome, Record};
use crate::session::owed::Acknowledgement;
use crate::wire::{Packet, ReasonCode};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Records on the ring to the sink core, at most.
pub const RECORDS_MAX: u32 = 16_384;
/// Records whose outcome a shard waits to hear, at most.
pub const TICKETED_MAX: u32 = 65_536;
/// Messages that the sink core may give a shard before it has accepted them.
pub const INBOUND_MAX: u32 = 256;

/// The acknowledgement of a message of which a record is lost: told to MQTT 5 clients with the reason, to others as received.
const FAILED: Acknowledgement = Acknowledgement {
    reason: ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR,
    why: Some("a sink has refused it for good; it is in the dead-letter file or counted as dropped"),
};

#[derive(Default)]
pub(super) struct Sinks {
    pushed: u64,
    taken: u64,
    pub(super) tickets: Tickets,
    /// Connections that wait, with how much each needs: bytes before the gate of each sink; behind those, records on the ring, and
    /// tickets. Whoever needs no ticket does not wait behind those who do, or one sink's outage would hold up the others.
    waiting: Vec<VecDeque<(ConnectionId, u64)>>,
    /// How many, all together: mostly none, and then nobody looks further.
    waiting_count: usize,
    /// Messages from sources that have been published, cumulative.
    accepted: u64,
}

impl Sinks {
    pub(super) fn new(sinks: usize) -> Self {
        Self { waiting: (0..sinks + 2).map(|_| VecDeque::new()).collect(), ..Self::default() }
    }

    fn ring_has_room(&self, records: u64) -> bool {
        self.pushed - self.taken + records <= u64::from(RECORDS_MAX)
    }

    fn has_tickets(&self, records: u64) -> bool {
        u64::from(self.tickets.outstanding()) + records <= u64::from(TICKETED_MAX)
    }

    /// The places among `waiting` of those who wait for the ring, and for tickets.
    fn ring(&self) -> u16 {
        self.waiting.len() as u16 - 2
    }

    fn desk(&self) -> u16 {
        self.waiting.len() as u16 - 1
    }

    pub(super) fn wait(&mut self, place: u16, id: ConnectionId, bytes: u64) {
        self.waiting[usize::from(place)].push_back((id, bytes));
        self.waiting_count += 1;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pushed == self.taken && self.tickets.outstanding() == 0
    }
}

impl Shard {
    /// Whether there is room for all records made of a publisher's message; Err: it waits.
    pub(super) fn admit_records(&self, rules: &Rules) -> Result<(), Wait> {
        let records = &rules.made.records;
        if records.is_empty() {
            return Ok(());
        }
        let queues = |place: u16| self.parking.queueing && !self.sinks.waiting[usize::from(place)].is_empty();
        let (ring, desk) = (self.sinks.ring(), self.sinks.desk());
        let count = records.len() as u64;
        if queues(ring) || !self.sinks.ring_has_room(count) {
            return Err(Wait::Sink(ring, count));
        }
        let ticketed = records.iter().filter(|made| made.ticketed).count() as u64;
        if ticketed > 0 && (queues(desk) || !self.sinks.has_tickets(ticketed)) {
            return Err(Wait::Sink(desk, ticketed));
        }
        let mut wanted: SmallVec<[(u16, u64); 4]> = SmallVec::new();
        for made in records {
            let place = u16::from(made.sink);
            match wanted.iter_mut().find(|(sink, _)| *sink == place) {
                Some((_, bytes)) => *bytes += made.record.bytes(),
                None => wanted.push((place, made.record.bytes())),
            }
        }
        match wanted.iter().find(|(sink, bytes)| queues(*sink) || !self.globals.gates[usize::from(*sink)].has_room(*bytes)) {
            Some((sink, bytes)) => Err(Wait::Sink(*sink, *bytes)),
            None => Ok(()),
        }
    }

    /// Drops, and counts, the records for which there is no room.
    pub(super) fn drop_without_room(&mut self, rules: &mut Rules) {
        let Rules { made, counts, .. } = rules;
        let mut room = u64::from(RECORDS_MAX).saturating_sub(self.sinks.pushed - self.sinks.taken);
        let gates = &self.globals.gates;
        let dropped = &mut self.counters.dropped_sink_full;
        made.records.retain(|made| {
            let gate = &gates[usize::from(made.sink)];
            let has_room = room > 0 && gate.has_room(made.record.bytes());
            if has_room {
                room -= 1;
            } else {
                gate.count_dropped_full();
                counts[made.rule as usize].dropped += 1;
                *dropped += 1;
            }
            has_room
        });
    }

    /// Sends an admitted record on its way.
    pub(super) fn push_record(&mut self, sink: u8, record: Record) {
        let bytes = record.bytes();
        self.globals.gates[usize::from(sink)].enter(bytes);
        // The sink core takes it off the process's account when it is done with it.
        self.charge += bytes as i64;
        self.sinks.pushed += 1;
        self.counters.records_sent += 1;
        self.effects.records.push(record);
    }

    /// The sink core has taken so many records, cumulative.
    pub fn on_records_taken(&mut self, taken: u64) {
        debug_assert!(taken <= self.sinks.pushed);
        self.sinks.taken = taken;
    }

    /// Whether someone waits for room before a sink or on the ring to the sink core, which then has to wake this core.
    pub fn awaits_sinks(&self) -> bool {
        self.sinks.waiting_count > 0 || self.phase != super::Phase::Running
    }

    /// Whether someone who waits for a sink can go on now.
    pub fn sinks_may_go_on(&self) -> bool {
        let may_go_on = |(place, waiting): (usize, &VecDeque<(ConnectionId, u64)>)| {
            waiting.front().is_some_and(|&(_, needed)| self.has_room_for(place, needed))
        };
        self.sinks.waiting_count > 0 && self.sinks.waiting.iter().enumerate().any(may_go_on)
    }

    fn has_room_for(&self, place: usize, needed: u64) -> bool {
        match self.globals.gates.get(place) {
            Some(gate) => gate.has_room(needed),
            None if place == usize::from(self.sinks.ring()) => self.sinks.ring_has_room(needed),
            None => self.sinks.has_tickets(needed),
        }
    }

    /// Those who wait for a sink go on, as there is room.
    pub(super) fn wake_waiting_for_sinks(&mut self) {
        if self.sinks.waiting_count == 0 {
            return;
        }
        for place in 0..self.sinks.waiting.len() {
            for _ in 0..RESUMED_PER_TURN {
                let Some(&(id, needed)) = self.sinks.waiting[place].front() else { break };
                if !self.has_room_for(place, needed) {
                    break;
                }
                self.sinks.waiting[place].pop_front();
                self.sinks.waiting_count -= 1;
                self.parking.make_ready(id);
            }
        }
    }

    /// What became of a record that carried a ticket. With the last one its publisher is acknowledged.
    pub fn on_answer(&mut self, ticket: TicketId, outcome: Outcome) {
        let Some((owner, number, failed)) = self.sinks.tickets.on_answer(ticket, outcome) else { return };
        let success = Acknowledgement { reason: ReasonCode::SUCCESS, why: None };
        let acknowledgement = if failed { FAILED } else { success };
        match owner {
            Owner::Nobody => {}
            Owner::Connection(id) => {
                let Some(ruled) = self.connection_mut(id).and_then(|connection| connection.ruled.as_mut()) else { return };
                ruled.owed.settle(number, acknowledgement);
                self.send_pubacks(id);
            }
            Owner::Session(session, incarnation) => {
                let Some(state) = self.sessions.get_mut(session.0).filter(|state| state.incarnation == incarnation) else {
                    return;
                };
                let Some(inbound) = &mut state.inbound else { return };
                inbound.owed.settle(number, acknowledgement);
                self.send_pubrecs(session);
            }
        }
    }

    /// Sends the PUBACKs that wait for nothing and nobody any more.
    fn send_pubacks(&mut self, id: ConnectionId) {
        while let Some(ruled) = self.connection_mut(id).and_then(|connection| connection.ruled.as_mut())
            && let Some((packet_id, acknowledgement, _)) = ruled.owed.pop()
        {
            let ack = self.acknowledgement(id.slot, packet_id, acknowledgement);
            self.send(id.slot, &Packet::Puback(ack));
        }
        self.go_on_when_fewer_are_owed(id);
    }

    /// The same for PUBRECs. A client that is away asks again when it is back.
    fn send_pubrecs(&mut self, session: SessionId) {
        loop {
            let state = &mut self.sessions[session.0];
            let connected = state.connection;
            let Some(inbound) = &mut state.inbound else { return };
            let Some((packet_id, acknowledgement, asked)) = inbound.owed.pop() else { break };
            if acknowledgement.reason.is_error() {
                inbound.release(packet_id);
            }
            if let Some(slot) = connected.filter(|_| asked) {
                let ack = self.acknowledgement(slot, packet_id, acknowledgement);
                self.send(slot, &Packet::Pubrec(ack));
            }
        }
        if let Some(slot) = self.sessions[session.0].connection {
            self.go_on_when_fewer_are_owed(self.id_of(slot));
        }
    }

    /// A connection that waits because it is owed too many acknowledgements goes on.
    fn go_on_when_fewer_are_owed(&mut self, id: ConnectionId) {
        if let Some(parked) = self.connection_mut(id).and_then(|connection| connection.parked.as_mut())
            && parked.wait == Wait::Acknowledgements
        {
            parked.wait = Wait::Nothing;
            self.parking.make_ready(id);
        }
    }

    /// A message from a source such as Kafka. It stands in line with the broker's own.
    pub fn on_source_message(&mut self, message: Message) {
        self.pending.push_back(Pending::Source(message));
    }

    pub(super) fn accept_source_message(&mut self) {
        self.sinks.accepted += 1;
        self.counters.source_messages += 1;
    }

    /// Messages from sources that have been published, cumulative.
    pub fn source_messages_accepted(&self) -> u64 {
        self.sinks.accepted
    }
}
