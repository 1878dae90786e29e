//! The way to the sink core as a shard sees it: a ring bounded in records, a gate before each sink, tickets for those who wait to hear
//! what became of theirs, and messages that come back from sources.
//!
//! A record is admitted before anything of its message has happened: without room a publisher's packet parks, a source's message stays
//! at the front of its queue, and what nobody waits for (QoS 0, events, messages of the broker's own making) is dropped and counted.
//!
//! How many may wait to hear is bounded by the gates alone, each for its sink: were there one bound for all, the outage of one sink would
//! hold those who write to others.

use super::connection::Wait;
use super::parking::RESUMED_PER_TURN;
use super::publish::Publisher;
use super::rules::Rules;
use super::tickets::{Owner, TICKET_BYTES, Tickets};
use super::{Phase, Shard};
use crate::ids::{ConnectionId, SessionId, TicketId};
use crate::message::Message;
use crate::record::{Outcome, Record};
use crate::session::owed::{Acknowledgement, Owed};
use crate::time::Time;
use crate::wire::{Packet, QoS, ReasonCode};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Records on the ring to the sink core, at most.
pub const RECORDS_MAX: u32 = 16_384;
/// Messages that the sink core may give a shard before it has accepted them.
pub const INBOUND_MAX: u32 = 256;

const SUCCESS: Acknowledgement = Acknowledgement { reason: ReasonCode::SUCCESS, why: None };
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
    /// Connections that wait, with how much each needs: bytes before the gate of each sink; behind those, records on the ring.
    waiting: Vec<VecDeque<(ConnectionId, u64)>>,
    /// How many, all together: mostly none, and then nobody looks further.
    waiting_count: usize,
    /// Messages from sources that have not been published.
    inbound: VecDeque<Message>,
    /// Where among `waiting` the one in front needs room, and how much.
    held: Option<(u16, u64)>,
    /// Those that have been published and wait for what sinks make of them; a source knows no packet ids.
    owed: Owed,
    /// Messages from sources that need not come again, cumulative.
    accepted: u64,
}

impl Sinks {
    pub(super) fn new(sinks: usize) -> Self {
        Self { waiting: (0..sinks + 1).map(|_| VecDeque::new()).collect(), ..Self::default() }
    }

    fn ring_has_room(&self, records: u64) -> bool {
        self.pushed - self.taken + records <= u64::from(RECORDS_MAX)
    }

    /// The place among `waiting` of those who wait for the ring.
    fn ring(&self) -> u16 {
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
    /// Whether there is room for all records made of a message that someone waits for; Err: it waits.
    pub(super) fn admit_records(&self, rules: &Rules) -> Result<(), Wait> {
        let records = &rules.made.records;
        if records.is_empty() {
            return Ok(());
        }
        let queues = |place: u16| self.parking.queueing && !self.sinks.waiting[usize::from(place)].is_empty();
        let ring = self.sinks.ring();
        let count = records.len() as u64;
        if queues(ring) || !self.sinks.ring_has_room(count) {
            return Err(Wait::Sink(ring, count));
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

    /// A ticket for so many records; at least one.
    pub(super) fn issue_ticket(&mut self, records: u32) -> TicketId {
        self.charge += TICKET_BYTES;
        self.sinks.tickets.issue(records)
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
        self.sinks.waiting_count > 0 || self.sinks.held.is_some() || self.phase != Phase::Running
    }

    /// Whether someone who waits for a sink can go on now.
    pub fn sinks_may_go_on(&self) -> bool {
        let may_go_on = |(place, waiting): (usize, &VecDeque<(ConnectionId, u64)>)| {
            waiting.front().is_some_and(|&(_, needed)| self.has_room_for(place, needed))
        };
        self.held_source_may_go_on() || (self.sinks.waiting_count > 0 && self.sinks.waiting.iter().enumerate().any(may_go_on))
    }

    fn has_room_for(&self, place: usize, needed: u64) -> bool {
        match self.globals.gates.get(place) {
            Some(gate) => gate.has_room(needed),
            None => self.sinks.ring_has_room(needed),
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
        self.charge -= TICKET_BYTES;
        let acknowledgement = if failed { FAILED } else { SUCCESS };
        match owner {
            Owner::Nobody => {}
            Owner::Source => {
                self.sinks.owed.settle(number, acknowledgement);
                self.accept_source_messages();
            }
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

    /// A message from a source such as Kafka.
    pub fn on_source_message(&mut self, message: Message) {
        self.sinks.inbound.push_back(message);
    }

    /// Publishes messages of sources in their order, as there is room. Those of QoS 1 and 2 are held as a client's are, those of QoS 0
    /// go on without the records that find no room. At the end of the broker they are left, and come again.
    pub(super) fn publish_source_messages(&mut self, now: Time, budget: usize) {
        if self.phase != Phase::Running || (self.sinks.held.is_some() && !self.held_source_may_go_on()) {
            return;
        }
        for _ in 0..budget {
            let Some(message) = self.sinks.inbound.pop_front() else { break };
            let waits = message.as_ref().qos != QoS::AtMostOnce;
            match self.publish(message.as_ref(), Some(message.clone()), Publisher { waits, ..Publisher::default() }, now) {
                Ok(published) => {
                    self.counters.source_messages += 1;
                    let number = self.sinks.owed.push(0, published.ticket.is_none().then_some(SUCCESS));
                    if let Some(ticket) = published.ticket {
                        self.sinks.tickets.give(ticket, Owner::Source, number);
                    }
                }
                Err(wait) => {
                    self.sinks.inbound.push_front(message);
                    let before = self.sinks.held.take();
                    if let Wait::Sink(place, needed) = wait {
                        self.counters.source_messages_held += u64::from(before.is_none());
                        self.sinks.held = Some((place, needed));
                    }
                    return self.accept_source_messages();
                }
            }
            self.sinks.held = None;
        }
        self.accept_source_messages();
    }

    /// Whether room has come up for the message of a source that is held.
    fn held_source_may_go_on(&self) -> bool {
        self.phase == Phase::Running && self.sinks.held.is_some_and(|(place, needed)| self.has_room_for(place.into(), needed))
    }

    /// Whether there are messages of sources that wait for nothing that the sink core would tell.
    pub(super) fn source_messages_may_go_on(&self) -> bool {
        !self.sinks.inbound.is_empty() && self.sinks.held.is_none() && self.phase == Phase::Running && self.broker_may_publish()
    }

    /// Accepts the messages of sources that wait for nothing any more, in their order: how many is all that a source is told.
    fn accept_source_messages(&mut self) {
        while self.sinks.owed.pop().is_some() {
            self.sinks.accepted += 1;
        }
    }

    /// Messages from sources that have been published and that no sink has yet to take, cumulative.
    pub fn source_messages_accepted(&self) -> u64 {
        self.sinks.accepted
    }
}
