//! PUBACK, PUBREC, PUBREL, PUBCOMP (sections 3.4 to 3.7), in both directions.

use super::Shard;
use super::deliver::DELIVERY_BYTES;
use crate::fault::Fault;
use crate::ids::{ConnectionId, SessionId};
use crate::session::outbound::Acknowledged;
use crate::time::Time;
use crate::wire::{Ack, Packet, ReasonCode};

pub(super) fn ack(packet_id: u16, reason: ReasonCode) -> Ack<'static> {
    Ack { packet_id, reason, ..Ack::default() }
}

impl Shard {
    fn session_of(&self, id: ConnectionId) -> Option<SessionId> {
        self.connection(id)?.session
    }

    /// An acknowledgement by the client, applied to its session; whether it moved a message on.
    fn acknowledge(&mut self, id: ConnectionId, f: impl FnOnce(&mut crate::session::outbound::Outbound) -> Acknowledged) -> bool {
        self.acknowledged = true;
        let Some(session) = self.session_of(id) else { return false };
        let outcome = self.sessions[session.0].outbound.as_mut().map_or(Acknowledged::Unknown, |outbound| f(outbound));
        if outcome == Acknowledged::Unknown {
            self.counters.acks_unknown += 1;
        }
        outcome == Acknowledged::Yes
    }

    pub(super) fn on_puback(&mut self, id: ConnectionId, puback: &Ack<'_>, now: Time) {
        if self.tells_of_deliveries() {
            self.tell_of_delivery(id, puback.packet_id, now);
        }
        if self.acknowledge(id, |outbound| outbound.on_puback(puback.packet_id)) {
            self.charge -= DELIVERY_BYTES;
            self.pump_connection(id, now);
        }
    }

    pub(super) fn on_pubrec(&mut self, id: ConnectionId, pubrec: &Ack<'_>, now: Time) {
        let refused = pubrec.reason.is_error();
        if !refused && self.tells_of_deliveries() {
            self.tell_of_delivery(id, pubrec.packet_id, now);
        }
        let known = self.acknowledge(id, |outbound| outbound.on_pubrec(pubrec.packet_id, refused));
        if known && (refused || Fault::FreePacketIdOnPubrec.is_planted()) {
            self.charge -= DELIVERY_BYTES;
            self.pump_connection(id, now);
        }
        if refused {
            return;
        }
        // A client that asks is answered, also for an id that is not in use: only that lets it go on.
        let reason = if known { ReasonCode::SUCCESS } else { ReasonCode::PACKET_IDENTIFIER_NOT_FOUND };
        self.send(id.slot, &Packet::Pubrel(ack(pubrec.packet_id, reason)));
    }

    pub(super) fn on_pubcomp(&mut self, id: ConnectionId, pubcomp: &Ack<'_>, now: Time) {
        if self.acknowledge(id, |outbound| outbound.on_pubcomp(pubcomp.packet_id)) {
            self.charge -= DELIVERY_BYTES;
            self.pump_connection(id, now);
        }
    }

    /// The client releases a QoS 2 packet id.
    pub(super) fn on_pubrel(&mut self, id: ConnectionId, pubrel: &Ack<'_>) {
        let Some(session) = self.session_of(id) else { return };
        let state = &mut self.sessions[session.0];
        let known = state.inbound.as_mut().is_some_and(|inbound| inbound.release(pubrel.packet_id));
        if state.inbound.as_ref().is_some_and(|inbound| inbound.is_empty()) {
            state.inbound = None;
        }
        let reason = if known { ReasonCode::SUCCESS } else { ReasonCode::PACKET_IDENTIFIER_NOT_FOUND };
        if !known {
            self.counters.acks_unknown += 1;
        }
        self.send(id.slot, &Packet::Pubcomp(ack(pubrel.packet_id, reason)));
    }

    /// A client has a message that is in flight to it, and rules may want to know.
    fn tell_of_delivery(&mut self, id: ConnectionId, packet_id: u16, now: Time) {
        let Some(session) = self.session_of(id) else { return };
        let outbound = self.sessions[session.0].outbound.as_ref();
        if let Some(message) = outbound.and_then(|outbound| outbound.message_in_flight(packet_id)).cloned() {
            self.raise_delivered(session, &message.as_ref(), now);
        }
    }

    fn pump_connection(&mut self, id: ConnectionId, now: Time) {
        if let Some(session) = self.session_of(id) {
            self.pump(session, now);
        }
    }
}
