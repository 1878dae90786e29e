//! QoS 1 and 2 towards the client: the window of messages in flight and the queue behind it (MQTT 5.0 sections 4.3, 4.4, 4.9).
//!
//! Packet ids are given out in sequence, so the window is a list in which an id's place is its distance from the first one; what is
//! acknowledged out of order stays as a hole until all before it is done. That makes every acknowledgement one step, and an id in use
//! can never be given out again.
//!
//! A new connection sends the whole window again, in order, before anything new; `resend` is how far it has come, and the client's
//! Receive Maximum bounds what is outstanding on this connection, not what the window holds from an earlier one.

use crate::fault::Fault;
use crate::message::Message;
use crate::wire::QoS;
use std::collections::VecDeque;
use std::sync::Arc;

/// Packet ids run from 1 to this.
const IDS: u16 = u16::MAX;

/// A message on its way to one client.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub message: Message,
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: Identifiers,
    /// It came through a shared subscription: its whole filter, so that another member can be given it.
    pub group: Option<Arc<str>>,
}

/// Subscription identifiers of a delivery; nearly always none or one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identifiers {
    #[default]
    None,
    One(u32),
    Many(Box<[u32]>),
}

impl Identifiers {
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Identifiers::None => &[],
            Identifiers::One(identifier) => std::slice::from_ref(identifier),
            Identifiers::Many(identifiers) => identifiers,
        }
    }

    pub fn from_slice(identifiers: &[u32]) -> Self {
        match identifiers {
            [] => Identifiers::None,
            [one] => Identifiers::One(*one),
            many => Identifiers::Many(many.into()),
        }
    }
}

#[derive(Debug)]
enum InFlight {
    Publish(Delivery),
    /// PUBREC has come, PUBREL was sent, PUBCOMP is awaited. The message is no longer needed.
    Released,
    /// Acknowledged before what was sent ahead of it.
    Done,
}

/// What to send next.
#[derive(Debug)]
pub enum Send<'a> {
    Publish { packet_id: u16, dup: bool, delivery: &'a Delivery },
    Pubrel { packet_id: u16 },
}

/// How an acknowledgement was understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acknowledged {
    /// It moved its message on.
    Yes,
    /// Its packet id is not in use, or not for this kind of acknowledgement.
    Unknown,
}

/// Why a message found no place in the queue.
#[derive(Debug)]
pub struct QueueFull(pub Delivery);

pub struct Outbound {
    window: VecDeque<InFlight>,
    /// The packet id of the front of the window; with an empty window, the next one to give out.
    first_id: u16,
    /// Position in the window up to which this connection has sent.
    resend: usize,
    /// Sent on this connection and not yet through.
    outstanding: usize,
    queue: VecDeque<Delivery>,
    queued_bytes: u64,
}

impl Default for Outbound {
    fn default() -> Self {
        Self { window: VecDeque::new(), first_id: 1, resend: 0, outstanding: 0, queue: VecDeque::new(), queued_bytes: 0 }
    }
}

fn id_after(id: u16, distance: usize) -> u16 {
    ((usize::from(id) - 1 + distance) % usize::from(IDS)) as u16 + 1
}

impl Outbound {
    /// Nothing in flight and nothing queued.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty() && self.queue.is_empty()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Messages in flight that have not been acknowledged to the end.
    pub fn in_flight(&self) -> usize {
        self.window.iter().filter(|slot| !matches!(slot, InFlight::Done)).count()
    }

    /// Messages in flight that only await PUBCOMP. [`Outbound::take_undelivered`] passes them over.
    pub fn released(&self) -> usize {
        self.window.iter().filter(|slot| matches!(slot, InFlight::Released)).count()
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn may_send(&self, quota: u16) -> bool {
        self.outstanding < usize::from(quota) && self.window.len() < usize::from(IDS)
    }

    /// Whether a message may be sent at once, ahead of nothing that waits.
    pub fn may_send_now(&self, quota: u16) -> bool {
        self.queue.is_empty() && self.resend == self.window.len() && self.may_send(quota)
    }

    /// Puts a message in flight that the caller sends at once; gives it its packet id. Only after [`Outbound::may_send_now`].
    pub fn send_now(&mut self, delivery: Delivery) -> u16 {
        let distance = if Fault::UsePacketIdTwice.is_planted() { 0 } else { self.window.len() };
        let packet_id = id_after(self.first_id, distance);
        self.window.push_back(InFlight::Publish(delivery));
        self.resend += 1;
        self.outstanding += 1;
        packet_id
    }

    /// Queues a message behind what waits. Err: the queue has its fill; the caller applies the drop policy.
    pub fn enqueue(&mut self, delivery: Delivery, messages_max: u32, bytes_max: u64) -> Result<(), QueueFull> {
        let bytes = delivery.message.bytes() as u64;
        let full = self.queue.len() >= messages_max as usize || (self.queued_bytes + bytes > bytes_max && !self.queue.is_empty());
        if full {
            return Err(QueueFull(delivery));
        }
        self.queued_bytes += bytes;
        self.queue.push_back(delivery);
        Ok(())
    }

    /// Takes the message out that has waited longest.
    pub fn drop_oldest(&mut self) -> Option<Delivery> {
        let delivery = self.queue.pop_front()?;
        self.queued_bytes -= delivery.message.bytes() as u64;
        Some(delivery)
    }

    /// Passes what is done already where the window is sent again. After it, `resend` is never at a hole.
    fn pass_holes(&mut self) {
        while let Some(InFlight::Done) = self.window.get(self.resend) {
            self.resend += 1;
        }
    }

    /// A new connection: what is in flight will be sent again, in order.
    pub fn on_connected(&mut self) {
        self.resend = 0;
        self.outstanding = 0;
    }

    /// The next packet that `quota` (the client's Receive Maximum, or the broker's own bound) lets through; it counts as sent.
    /// First the window's own, again; then the queue's front, which gets its packet id now.
    pub fn next_to_send(&mut self, quota: u16) -> Option<Send<'_>> {
        if self.outstanding >= usize::from(quota) {
            return None;
        }
        let dup = self.resend < self.window.len();
        if !dup {
            if !self.may_send(quota) {
                return None;
            }
            let delivery = self.drop_oldest()?;
            self.window.push_back(InFlight::Publish(delivery));
        }
        let position = self.resend;
        let packet_id = id_after(self.first_id, position);
        self.resend += 1;
        self.outstanding += 1;
        self.pass_holes();
        match &self.window[position] {
            InFlight::Publish(delivery) => Some(Send::Publish { packet_id, dup, delivery }),
            InFlight::Released => Some(Send::Pubrel { packet_id }),
            InFlight::Done => unreachable!("holes have been passed"),
        }
    }

    /// Gives up what [`Outbound::next_to_send`] just gave: it was too large for this client, or too old.
    pub fn abandon(&mut self, packet_id: u16) {
        if let Some(position) = self.position(packet_id) {
            self.finish(position);
        }
    }

    fn position(&self, packet_id: u16) -> Option<usize> {
        if packet_id == 0 {
            return None;
        }
        let distance = (usize::from(packet_id) + usize::from(IDS) - usize::from(self.first_id)) % usize::from(IDS);
        (distance < self.window.len()).then_some(distance)
    }

    fn finish(&mut self, position: usize) {
        self.window[position] = InFlight::Done;
        if position < self.resend {
            self.outstanding -= 1;
        }
        while let Some(InFlight::Done) = self.window.front() {
            self.window.pop_front();
            self.first_id = id_after(self.first_id, 1);
            self.resend = self.resend.saturating_sub(1);
        }
        self.pass_holes();
        if self.window.is_empty() && self.queue.is_empty() {
            self.window.shrink_to(8);
            self.queue.shrink_to(8);
        }
    }

    /// The message that a packet id stands for, until the client has acknowledged it.
    pub fn message_in_flight(&self, packet_id: u16) -> Option<&Message> {
        match &self.window[self.position(packet_id)?] {
            InFlight::Publish(delivery) => Some(&delivery.message),
            _ => None,
        }
    }

    pub fn on_puback(&mut self, packet_id: u16) -> Acknowledged {
        match self.position(packet_id).map(|position| (position, &self.window[position])) {
            Some((position, InFlight::Publish(delivery))) if delivery.qos == QoS::AtLeastOnce => {
                self.finish(position);
                Acknowledged::Yes
            }
            _ => Acknowledged::Unknown,
        }
    }

    /// PUBREC: `refused` when its reason is an error, which ends the exchange [MQTT-4.3.3-4]. `Yes` without `refused` asks for PUBREL.
    pub fn on_pubrec(&mut self, packet_id: u16, refused: bool) -> Acknowledged {
        let Some(position) = self.position(packet_id) else { return Acknowledged::Unknown };
        match &self.window[position] {
            InFlight::Publish(delivery) if delivery.qos == QoS::ExactlyOnce => {}
            InFlight::Released if !refused => {}
            _ => return Acknowledged::Unknown,
        }
        if refused || Fault::FreePacketIdOnPubrec.is_planted() {
            self.finish(position);
        } else {
            self.window[position] = InFlight::Released;
        }
        Acknowledged::Yes
    }

    pub fn on_pubcomp(&mut self, packet_id: u16) -> Acknowledged {
        match self.position(packet_id).map(|position| (position, &self.window[position])) {
            Some((position, InFlight::Released)) => {
                self.finish(position);
                Acknowledged::Yes
            }
            _ => Acknowledged::Unknown,
        }
    }

    /// Takes out the next message that was not delivered, for a session that ends: the window's, then the queue's. `true`: it may
    /// have reached the client.
    pub fn take_undelivered(&mut self) -> Option<(Delivery, bool)> {
        while let Some(slot) = self.window.pop_front() {
            if let InFlight::Publish(delivery) = slot {
                return Some((delivery, true));
            }
        }
        self.drop_oldest().map(|delivery| (delivery, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageRef;
    use crate::time::Time;

    fn delivery(text: &str, qos: QoS) -> Delivery {
        let message = Message::from(MessageRef {
            topic: text,
            properties: &[],
            payload: b"p",
            qos,
            retain: false,
            expires_at: Time::NEVER,
        });
        Delivery { message, qos, retain: false, identifiers: Identifiers::None, group: None }
    }

    fn next(outbound: &mut Outbound, quota: u16) -> Option<(u16, bool, String)> {
        outbound.next_to_send(quota).map(|send| match send {
            Send::Publish { packet_id, dup, delivery } => (packet_id, dup, delivery.message.topic().to_string()),
            Send::Pubrel { packet_id } => (packet_id, false, "PUBREL".to_string()),
        })
    }

    fn queue(outbound: &mut Outbound, text: &str, qos: QoS) {
        outbound.enqueue(delivery(text, qos), 100, 1 << 20).unwrap();
    }

    #[test]
    fn the_quota_bounds_what_is_outstanding_and_acknowledgements_free_it() {
        let mut outbound = Outbound::default();
        for text in ["a", "b", "c"] {
            queue(&mut outbound, text, QoS::AtLeastOnce);
        }
        assert_eq!(next(&mut outbound, 2), Some((1, false, "a".into())));
        assert_eq!(next(&mut outbound, 2), Some((2, false, "b".into())));
        assert_eq!(next(&mut outbound, 2), None);
        assert_eq!(outbound.on_puback(2), Acknowledged::Yes);
        assert_eq!(next(&mut outbound, 2), Some((3, false, "c".into())));
        assert_eq!(outbound.on_puback(2), Acknowledged::Unknown);
        assert_eq!((outbound.on_puback(1), outbound.on_puback(3)), (Acknowledged::Yes, Acknowledged::Yes));
        assert!(outbound.is_empty());
        assert_eq!(outbound.send_now(delivery("d", QoS::AtLeastOnce)), 4);
    }

    #[test]
    fn a_new_connection_sends_the_window_again_in_order_within_its_own_quota() {
        let mut outbound = Outbound::default();
        assert_eq!(outbound.send_now(delivery("a", QoS::AtLeastOnce)), 1);
        assert_eq!(outbound.send_now(delivery("b", QoS::ExactlyOnce)), 2);
        assert_eq!(outbound.send_now(delivery("c", QoS::AtLeastOnce)), 3);
        queue(&mut outbound, "d", QoS::AtLeastOnce);
        assert_eq!(outbound.on_pubrec(2, false), Acknowledged::Yes);
        outbound.on_connected();
        assert!(!outbound.may_send_now(10));
        assert_eq!(next(&mut outbound, 1), Some((1, true, "a".into())));
        assert_eq!(next(&mut outbound, 1), None);
        assert_eq!(outbound.on_puback(1), Acknowledged::Yes);
        assert_eq!(next(&mut outbound, 1), Some((2, false, "PUBREL".into())));
        assert_eq!(outbound.on_pubcomp(2), Acknowledged::Yes);
        assert_eq!(next(&mut outbound, 2), Some((3, true, "c".into())));
        assert_eq!(next(&mut outbound, 2), Some((4, false, "d".into())));
    }

    #[test]
    fn an_acknowledgement_that_overtakes_its_resend_is_taken_and_nothing_is_sent_for_it() {
        let mut outbound = Outbound::default();
        outbound.send_now(delivery("a", QoS::AtLeastOnce));
        outbound.send_now(delivery("b", QoS::AtLeastOnce));
        outbound.on_connected();
        assert_eq!(outbound.on_puback(2), Acknowledged::Yes);
        assert_eq!(next(&mut outbound, 5), Some((1, true, "a".into())));
        assert_eq!(next(&mut outbound, 5), None);
        assert_eq!((outbound.on_puback(1), outbound.outstanding()), (Acknowledged::Yes, 0));
        assert!(outbound.is_empty());
    }

    #[test]
    fn a_message_does_not_wait_behind_what_is_done_already() {
        let mut outbound = Outbound::default();
        outbound.send_now(delivery("a", QoS::AtLeastOnce));
        outbound.send_now(delivery("b", QoS::AtLeastOnce));
        outbound.on_connected();
        assert_eq!(outbound.on_puback(2), Acknowledged::Yes);
        assert_eq!(next(&mut outbound, 5), Some((1, true, "a".into())));
        assert!(outbound.may_send_now(5));
    }

    #[test]
    fn qos_2_goes_publish_pubrec_pubrel_pubcomp_and_nothing_else() {
        let mut outbound = Outbound::default();
        outbound.send_now(delivery("a", QoS::ExactlyOnce));
        assert_eq!(outbound.on_puback(1), Acknowledged::Unknown);
        assert_eq!(outbound.on_pubcomp(1), Acknowledged::Unknown);
        assert_eq!(outbound.on_pubrec(1, false), Acknowledged::Yes);
        assert_eq!(outbound.on_pubrec(1, false), Acknowledged::Yes);
        assert_eq!(outbound.on_pubcomp(1), Acknowledged::Yes);
        assert!(outbound.is_empty());
        outbound.send_now(delivery("b", QoS::ExactlyOnce));
        assert_eq!(outbound.on_pubrec(2, true), Acknowledged::Yes);
        assert!(outbound.is_empty());
    }

    #[test]
    fn packet_ids_wrap_and_none_is_given_out_while_in_use() {
        let mut outbound = Outbound::default();
        let first = outbound.send_now(delivery("stuck", QoS::AtLeastOnce));
        let mut given = 1;
        while outbound.may_send_now(u16::MAX) {
            let id = outbound.send_now(delivery("x", QoS::AtLeastOnce));
            assert_ne!(id, first);
            given += 1;
            assert_eq!(outbound.on_puback(id), Acknowledged::Yes);
        }
        assert_eq!(given, 65_535);
        assert_eq!(outbound.on_puback(first), Acknowledged::Yes);
        assert!(outbound.is_empty() && outbound.may_send_now(1));
        assert_eq!(outbound.send_now(delivery("y", QoS::AtLeastOnce)), 1);
    }

    #[test]
    fn the_queue_has_its_fill_in_messages_and_bytes() {
        let mut outbound = Outbound::default();
        let bytes = delivery("a", QoS::AtLeastOnce).message.bytes() as u64;
        assert!(outbound.enqueue(delivery("a", QoS::AtLeastOnce), 5, bytes).is_ok());
        assert!(outbound.enqueue(delivery("b", QoS::AtLeastOnce), 5, bytes).is_err());
        assert!(outbound.enqueue(delivery("b", QoS::AtLeastOnce), 1, 10 * bytes).is_err());
        assert_eq!(outbound.drop_oldest().map(|d| d.message.topic().to_string()), Some("a".into()));
        assert_eq!((outbound.queued(), outbound.queued_bytes()), (0, 0));
    }
}
