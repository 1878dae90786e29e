//! A message to one session: at once into its outbox where the window and the outbox allow, into its queue otherwise, dropped and
//! counted by its policy when that is full. A subscriber never slows a publisher.

use super::Shard;
use super::connection::{Aliases, Connection};
use super::events::Event;
use super::outbox::{Outbox, SHARED_PAYLOAD_MIN};
use crate::fault::Fault;
use crate::ids::SessionId;
use crate::limits::DropPolicy;
use crate::message::{Message, MessageRef};
use crate::session::drops::DropReason;
use crate::session::outbound::{Delivery, Identifiers, QueueFull, Send};
use crate::time::Time;
use crate::wire::{self, OutgoingPublish, Packet, PublishSpan, QoS, ReasonCode, Version};
use std::sync::Arc;

/// What a delivery in a window or queue is charged beyond its message.
pub(super) const DELIVERY_BYTES: i64 = size_of::<Delivery>() as i64;

/// A message on its way through this core: borrowed until something has to keep it, encoded at most once per form it takes.
pub(super) struct Routed<'a> {
    pub message: MessageRef<'a>,
    owned: Option<Message>,
    frames: Box<Frames>,
}

/// The forms a message has been encoded in: version (5 or older) × QoS × retain flag. Copies get their packet id patched in.
#[derive(Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// A bit for each of `frames` that is made.
    made: u16,
    frames: [EncodedFrame; 12],
}

#[derive(Clone, Copy, Default)]
struct EncodedFrame {
    start: usize,
    end: usize,
    packet_id_at: usize,
}

impl<'a> Routed<'a> {
    pub fn new(message: MessageRef<'a>, owned: Option<Message>, mut frames: Box<Frames>) -> Self {
        frames.bytes.clear();
        frames.made = 0;
        Self { message, owned, frames }
    }

    pub fn into_frames(self) -> Box<Frames> {
        self.frames
    }

    pub fn owned(&mut self) -> Message {
        self.owned.get_or_insert_with(|| Message::from(self.message)).clone()
    }

    fn frame(&mut self, version: Version, qos: QoS, retain: bool, now: Time) -> EncodedFrame {
        let index = usize::from(version == Version::V5) * 6 + qos as usize * 2 + usize::from(retain);
        if self.frames.made & 1 << index != 0 {
            return self.frames.frames[index];
        }
        let terms = Terms { qos, retain, identifiers: &[], group: None };
        let outgoing = outgoing(&self.message, terms, false, 1, now);
        let with_payload = self.message.payload.len() < SHARED_PAYLOAD_MIN;
        let span = wire::encode_publish(&outgoing, version, with_payload, &mut self.frames.bytes);
        let PublishSpan { start, packet_id_at, .. } = span;
        let frame = EncodedFrame { start, end: self.frames.bytes.len(), packet_id_at: packet_id_at.unwrap_or(start) - start };
        self.frames.frames[index] = frame;
        self.frames.made |= 1 << index;
        frame
    }
}

/// What is left of a message expiry interval, in whole seconds, never less than one while it lives.
fn remaining_s(expires_at: Time, now: Time) -> Option<u32> {
    if expires_at == Time::NEVER {
        return None;
    }
    let left = expires_at.saturating_since(now);
    Some(u32::try_from(left.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX).max(1))
}

/// How a message goes to a session: the subscription's QoS and flags applied.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: &'a [u32],
    pub group: Option<&'a Arc<str>>,
}

impl Shard {
    pub(super) fn take_frames(&mut self) -> Box<Frames> {
        self.scratch.take().unwrap_or_default()
    }

    pub(super) fn deliver(&mut self, routed: &mut Routed<'_>, session: SessionId, terms: Terms<'_>, now: Time) {
        if routed.message.expires_at < now {
            // It has waited elsewhere: on a ring, in a fan-out of many turns, for a member of its group that never came back [MQTT-3.3.2-5].
            self.count_drop(&routed.message, session, DropReason::Expired, now);
            return;
        }
        let state = &mut self.sessions[session.0];
        let Some(slot) = state.connection else {
            if terms.qos == QoS::AtMostOnce {
                self.count_drop(&routed.message, session, DropReason::OfflineQos0, now);
                return;
            }
            let delivery = delivery(routed, terms);
            self.enqueue(session, delivery, now);
            return;
        };
        let connection = &self.connections[slot];
        let has_room = connection.outbox_len() < self.limits.outbox_bytes_max as usize;
        if terms.qos == QoS::AtMostOnce {
            if !has_room {
                self.count_drop(&routed.message, session, DropReason::OutboxFull, now);
                return;
            }
            if self.too_large(routed, slot, terms, now) {
                self.count_drop(&routed.message, session, DropReason::PacketTooLarge, now);
                return;
            }
            self.write_routed(routed, slot, terms, 0, now);
            if self.tells_of_deliveries() {
                self.raise_delivered(session, &routed.message, now);
            }
            return;
        }
        let quota = connection.quota(&self.limits);
        if !(has_room && state.outbound().may_send_now(quota)) {
            if !has_room {
                self.connections[slot].congested = true;
            }
            let delivery = delivery(routed, terms);
            self.enqueue(session, delivery, now);
            return;
        }
        if self.too_large(routed, slot, terms, now) {
            self.count_drop(&routed.message, session, DropReason::PacketTooLarge, now);
            return;
        }
        let delivery = delivery(routed, terms);
        self.charge += DELIVERY_BYTES;
        let packet_id = self.sessions[session.0].outbound().send_now(delivery);
        self.write_routed(routed, slot, terms, packet_id, now);
    }

    /// The same for a retained message of a replay: it is paced by pages, so neither queue nor outbox limits cut it short.
    pub(super) fn deliver_replayed(&mut self, routed: &mut Routed<'_>, session: SessionId, terms: Terms<'_>, now: Time) {
        let state = &mut self.sessions[session.0];
        let Some(slot) = state.connection else { return };
        let quota = self.connections[slot].quota(&self.limits);
        let at_once = terms.qos == QoS::AtMostOnce || state.outbound().may_send_now(quota);
        if at_once && self.too_large(routed, slot, terms, now) {
            self.count_drop(&routed.message, session, DropReason::PacketTooLarge, now);
            return;
        }
        let mut packet_id = 0;
        if terms.qos != QoS::AtMostOnce {
            let delivery = delivery(routed, terms);
            self.charge += DELIVERY_BYTES;
            let outbound = self.sessions[session.0].outbound();
            if !at_once {
                // Never full without limits.
                let _ = outbound.enqueue(delivery, u32::MAX, u64::MAX);
                return;
            }
            packet_id = outbound.send_now(delivery);
        }
        self.write_routed(routed, slot, terms, packet_id, now);
    }

    fn too_large(&self, routed: &Routed<'_>, slot: u32, terms: Terms<'_>, now: Time) -> bool {
        let connection = &self.connections[slot];
        let maximum = connection.maximum_packet_size;
        if maximum == u32::MAX || Fault::IgnoreMaximumPacketSize.is_planted() {
            return false;
        }
        // An alias is left out where there is no room for it.
        let outgoing = outgoing(&routed.message, terms, false, 1, now);
        wire::publish_len(&outgoing, Version::V5) > maximum as usize
    }

    /// Writes a PUBLISH for the first time: from the frame that all receivers of its form share, unless this one's differs.
    fn write_routed(&mut self, routed: &mut Routed<'_>, slot: u32, terms: Terms<'_>, packet_id: u16, now: Time) {
        let connection = &self.connections[slot];
        let Some(version) = connection.version else { return };
        self.counters.packets_sent += 1;
        self.counters.publishes_sent += 1;
        self.counters.publish_bytes_sent += routed.message.payload.len() as u64;
        let v5 = version == Version::V5;
        let shared_payload = (routed.message.payload.len() >= SHARED_PAYLOAD_MIN).then(|| routed.owned());
        if v5 && (connection.topic_alias_maximum > 0 || !terms.identifiers.is_empty()) {
            let sending = Sending { dup: false, packet_id, terms, message: routed.message, shared_payload, now };
            self.write_publish(slot, version, sending);
            return;
        }
        let frame = routed.frame(version, terms.qos, terms.retain, now);
        let bytes = &routed.frames.bytes[frame.start..frame.end];
        self.write(slot, |outbox| {
            outbox.write(|out| {
                let start = out.len();
                out.extend_from_slice(bytes);
                if terms.qos != QoS::AtMostOnce {
                    out[start + frame.packet_id_at..][..2].copy_from_slice(&packet_id.to_be_bytes());
                }
            });
            if let Some(message) = shared_payload {
                outbox.push_payload(message);
            }
        });
    }

    /// Writes a PUBLISH that is this connection's own: with an alias, subscription identifiers, or from its queue.
    fn write_publish(&mut self, slot: u32, version: Version, sending: Sending<'_>) {
        let Sending { dup, packet_id, terms, message, shared_payload, now } = sending;
        let connection = &mut self.connections[slot];
        let mut outgoing = outgoing(&message, terms, dup, packet_id, now);
        if version == Version::V5 {
            (outgoing.topic, outgoing.topic_alias) = alias(connection, &outgoing);
        }
        self.write(slot, |outbox: &mut Outbox| {
            outbox.write(|out| {
                wire::encode_publish(&outgoing, version, shared_payload.is_none(), out);
            });
            if let Some(message) = shared_payload {
                outbox.push_payload(message);
            }
        });
    }

    /// Puts a message behind what waits for a session; when that has its fill, by the drop policy.
    fn enqueue(&mut self, session: SessionId, delivery: Delivery, now: Time) {
        let (messages_max, bytes_max) = (self.limits.queued_messages_max, self.limits.queued_bytes_max);
        let policy = self.limits.drop_policy;
        let state = &mut self.sessions[session.0];
        let QueueFull(delivery) = match state.outbound().enqueue(delivery, messages_max, bytes_max) {
            Ok(()) => {
                self.charge += DELIVERY_BYTES;
                return;
            }
            Err(full) => full,
        };
        match policy {
            DropPolicy::Oldest => {
                let mut delivery = delivery;
                loop {
                    let outbound = self.sessions[session.0].outbound();
                    let Some(oldest) = outbound.drop_oldest() else { break };
                    let again = outbound.enqueue(delivery, messages_max, bytes_max);
                    self.count_drop(&oldest.message.as_ref(), session, DropReason::QueueOldest, now);
                    self.charge -= DELIVERY_BYTES;
                    match again {
                        Ok(()) => {
                            self.charge += DELIVERY_BYTES;
                            return;
                        }
                        Err(QueueFull(back)) => delivery = back,
                    }
                }
                // A queue of size zero.
                self.count_drop(&delivery.message.as_ref(), session, DropReason::QueueNewest, now);
            }
            DropPolicy::Newest => {
                self.count_drop(&delivery.message.as_ref(), session, DropReason::QueueNewest, now);
            }
            DropPolicy::Disconnect => {
                self.count_drop(&delivery.message.as_ref(), session, DropReason::QueueNewest, now);
                if let Some(slot) = self.sessions[session.0].connection {
                    self.counters.closed_queue_full += 1;
                    let id = self.id_of(slot);
                    self.close(id, Some(ReasonCode::QUOTA_EXCEEDED), "queue full", now);
                }
            }
        }
    }

    /// Sends what a session has waiting, as far as its window and outbox allow; then its replays go on.
    pub(super) fn pump(&mut self, session: SessionId, now: Time) {
        loop {
            let state = &mut self.sessions[session.0];
            let Some(slot) = state.connection else { return };
            if state.outbound.is_none() {
                break;
            }
            let connection = &mut self.connections[slot];
            if connection.outbox_len() >= self.limits.outbox_bytes_max as usize {
                connection.congested = true;
                return;
            }
            let Some(version) = connection.version else { return };
            let quota = connection.quota(&self.limits);
            let maximum_packet_size = connection.maximum_packet_size;
            let (packet_id, dup, delivery) = match state.outbound().next_to_send(quota) {
                None => break,
                Some(Send::Pubrel { .. }) if Fault::ForgetPubrelOnResume.is_planted() => continue,
                Some(Send::Pubrel { packet_id }) => {
                    self.send(slot, &Packet::Pubrel(super::acknowledge::ack(packet_id, ReasonCode::SUCCESS)));
                    continue;
                }
                Some(Send::Publish { packet_id, dup, delivery }) => (packet_id, dup, delivery.clone()),
            };
            let message = delivery.message.as_ref();
            let terms = Terms {
                qos: delivery.qos,
                retain: delivery.retain,
                identifiers: delivery.identifiers.as_slice(),
                group: delivery.group.as_ref(),
            };
            // What was begun is finished; what has not begun when its time is over is not begun [MQTT-3.3.2-5].
            let expired = !dup && message.expires_at <= now && !Fault::SendExpired.is_planted();
            let outgoing = outgoing(&message, terms, dup, packet_id, now);
            let too_large =
                maximum_packet_size != u32::MAX && wire::publish_len(&outgoing, version) > maximum_packet_size as usize;
            if expired || too_large {
                // As if it had been sent and acknowledged [MQTT-3.1.2-25].
                let message = delivery.message.clone();
                self.sessions[session.0].outbound().abandon(packet_id);
                self.charge -= DELIVERY_BYTES;
                let reason = if expired { DropReason::Expired } else { DropReason::PacketTooLarge };
                self.count_drop(&message.as_ref(), session, reason, now);
                continue;
            }
            self.counters.packets_sent += 1;
            self.counters.publishes_sent += 1;
            self.counters.publish_bytes_sent += message.payload.len() as u64;
            let shared_payload = (message.payload.len() >= SHARED_PAYLOAD_MIN).then(|| delivery.message.clone());
            self.write_publish(slot, version, Sending { dup, packet_id, terms, message, shared_payload, now });
        }
        self.continue_replays(session);
    }

    /// Counts a drop, for the client and in all.
    fn count_drop(&mut self, message: &MessageRef<'_>, session: SessionId, reason: DropReason, now: Time) {
        if Fault::DropUncounted.is_planted() {
            return;
        }
        *match reason {
            DropReason::OutboxFull => &mut self.counters.dropped_outbox_full,
            DropReason::QueueNewest => &mut self.counters.dropped_queue_newest,
            DropReason::QueueOldest => &mut self.counters.dropped_queue_oldest,
            DropReason::PacketTooLarge => &mut self.counters.dropped_packet_too_large,
            DropReason::Expired => &mut self.counters.dropped_expired,
            DropReason::OfflineQos0 => &mut self.counters.dropped_offline_qos0,
        } += 1;
        self.raise_dropped(session, message, reason, now);
        let state = &mut self.sessions[session.0];
        let in_all = state.drops.get_or_insert_default().count(reason);
        // A flood of drops is said at 1, 2, 4, 8 …: the counters have them all.
        if in_all.is_power_of_two() && reason != DropReason::OfflineQos0 {
            self.effects.events.push(Event::MessageDropped { client_id: state.client_id.clone(), reason, in_all });
        }
    }
}

struct Sending<'a> {
    dup: bool,
    packet_id: u16,
    terms: Terms<'a>,
    message: MessageRef<'a>,
    shared_payload: Option<Message>,
    now: Time,
}

fn delivery(routed: &mut Routed<'_>, terms: Terms<'_>) -> Delivery {
    Delivery {
        message: routed.owned(),
        qos: terms.qos,
        retain: terms.retain,
        identifiers: Identifiers::from_slice(terms.identifiers),
        group: terms.group.cloned(),
    }
}

/// Topic and alias to send: an alias where the client takes one and the packet that sets it fits its Maximum Packet Size.
fn alias<'a>(connection: &mut Connection, outgoing: &OutgoingPublish<'a>) -> (&'a str, Option<u16>) {
    /// The property's identifier and value.
    const ALIAS_BYTES: usize = 3;
    let (maximum, size_maximum) = (connection.topic_alias_maximum, connection.maximum_packet_size);
    let fits = || wire::publish_len(outgoing, Version::V5) + ALIAS_BYTES <= size_maximum as usize;
    if maximum == 0 || (size_maximum != u32::MAX && !fits()) {
        return (outgoing.topic, None);
    }
    connection.aliases.get_or_insert_with(|| Box::new(Aliases::default())).outbound(outgoing.topic, maximum)
}

/// The packet that a message becomes under these terms, with its whole topic and no alias.
fn outgoing<'a>(message: &MessageRef<'a>, terms: Terms<'a>, dup: bool, packet_id: u16, now: Time) -> OutgoingPublish<'a> {
    OutgoingPublish {
        dup,
        qos: terms.qos,
        retain: terms.retain,
        topic: message.topic,
        packet_id,
        topic_alias: None,
        message_expiry_interval_s: remaining_s(message.expires_at, now),
        subscription_identifiers: terms.identifiers,
        forwarded: message.properties,
        payload: message.payload,
    }
}
