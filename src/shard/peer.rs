//! Another core as this one sees it: the ring towards it (how much room is left, what it has confirmed) and what travels there.
//!
//! Rings are bounded in messages and bytes, and FIFO. Whatever is pushed was admitted first, so a push never fails. What the other
//! core has consumed is its confirmation: one cumulative counter a pair, no messages. A page of retained messages, the only reply,
//! has slots of its own ([`REPLY_SLOTS`]), taken when it is asked for; so a core that drains its rings never needs room to do it.

use crate::ids::{ConnectionId, CoreId};
use crate::message::Message;
use crate::time::Time;
use crate::topic::InterestKey;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// Ring slots beyond `mesh_messages_max` that are kept for replies.
pub const REPLY_SLOTS: u32 = 64;

/// What travels on a ring, by whose room it takes. Messages may fill a quarter of a ring and no more: a flood of them must neither take
/// the room of connections and subscriptions nor let these wait behind a whole ring of deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cargo {
    /// MQTT messages.
    Message,
    /// Connections, interest, groups, asks.
    Control,
    /// Pages, which have slots of their own.
    Reply,
}

pub enum MeshMessage {
    /// A connection on its way to its home core.
    Parcel(Box<Parcel>),
    /// A message for this core's subscribers (`deliver`), its retained store (`store`), the shared groups named, or all of them.
    Publish { message: Message, deliver: bool, store: bool, groups: Groups },
    /// This core has its first subscription (`wanted`) with that fingerprint, or no longer any.
    Interest { key: InterestKey, wanted: bool },
    /// The same for all filters of one SUBSCRIBE or UNSUBSCRIBE, in order.
    Interests(Arc<[(InterestKey, bool)]>),
    /// How many members of a shared group this core has, by its full filter.
    Group { filter: Arc<str>, online: u32, offline: u32 },
    /// Asks for the next retained messages that match a filter.
    RetainedAsk(Box<RetainedAsk>),
    /// Answers it.
    RetainedPage(Box<RetainedPage>),
}

/// The shared groups, by full filter, of which the receiving core picks a member each. Almost always none.
pub type Groups = Option<Box<[Arc<str>]>>;

/// A connection between two cores: everything about it as plain data.
#[derive(Debug)]
pub struct Parcel {
    pub socket: i32,
    pub listener: u16,
    /// When its CONNECT was read: an older one never takes over a newer connection.
    pub connect_read_at: Time,
    /// What was read so far: the CONNECT, complete, and whatever followed it.
    pub bytes: Vec<u8>,
    /// Where the client is, if rules may ask.
    pub peer_address: Option<SocketAddr>,
    /// Set by the shell of the receiving core: nobody is there any more.
    pub peer_gone: bool,
}

#[derive(Debug, PartialEq)]
pub struct RetainedAsk {
    pub replay: u64,
    pub filter: Box<str>,
    /// The topic that the last page ended with.
    pub after: Option<Box<str>>,
}

#[derive(Debug)]
pub struct RetainedPage {
    pub replay: u64,
    pub messages: Vec<Message>,
    /// Where to go on; `None`: this core has no more.
    pub more_after: Option<Box<str>>,
}

impl MeshMessage {
    /// What the message counts against the ring's byte limit.
    pub fn bytes(&self) -> u64 {
        let beyond = match self {
            MeshMessage::Parcel(parcel) => parcel.bytes.len(),
            MeshMessage::Publish { message, .. } => message.bytes(),
            MeshMessage::Interest { key, .. } => key.bytes(),
            MeshMessage::Interests(changes) => {
                changes.iter().map(|(key, _)| size_of::<(InterestKey, bool)>() + key.bytes()).sum()
            }
            MeshMessage::Group { filter, .. } => filter.len(),
            MeshMessage::RetainedAsk(ask) => ask.filter.len() + ask.after.as_ref().map_or(0, |after| after.len()),
            // Replies have room of their own.
            MeshMessage::RetainedPage(_) => 0,
        };
        (size_of::<MeshMessage>() + beyond) as u64
    }

    fn cargo(&self) -> Cargo {
        match self {
            MeshMessage::Publish { .. } => Cargo::Message,
            MeshMessage::RetainedPage(_) => Cargo::Reply,
            _ => Cargo::Control,
        }
    }
}

/// What the shell reads from the rings between this core and one other at the start of a turn. All are cumulative.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Of the messages this core pushed: processed by the other.
    pub consumed_messages: u64,
    pub consumed_bytes: u64,
    /// Messages the other core has pushed that can be seen here.
    pub arrived_messages: u64,
}

/// The pair of rings between this core and one other.
pub struct Peer {
    pub core: CoreId,
    messages_max: u64,
    bytes_max: u64,
    pushed_messages: u64,
    pushed_bytes: u64,
    progress: Progress,
    /// What stands on the ring: how many of a kind one after the other, and how many of each.
    runs: VecDeque<(Cargo, u64)>,
    on_ring: [u64; 3],
    /// Messages taken from the ring of the other core.
    taken_messages: u64,
    /// Asks that the other core has not answered.
    asks_outstanding: u32,
    /// Connections that wait for room on the ring to this peer, by what they have to push, first come first served.
    waiting: [VecDeque<ConnectionId>; 2],
}

impl Peer {
    pub fn new(core: CoreId, messages_max: u32, bytes_max: u64) -> Self {
        Self {
            core,
            messages_max: u64::from(messages_max),
            bytes_max,
            pushed_messages: 0,
            pushed_bytes: 0,
            progress: Progress::default(),
            runs: VecDeque::new(),
            on_ring: [0; 3],
            taken_messages: 0,
            asks_outstanding: 0,
            waiting: Default::default(),
        }
    }

    pub fn on_progress(&mut self, progress: Progress) {
        debug_assert!(progress.consumed_messages <= self.pushed_messages);
        let mut consumed = progress.consumed_messages - self.progress.consumed_messages;
        self.progress = progress;
        while consumed > 0
            && let Some((cargo, count)) = self.runs.front_mut()
        {
            let some = consumed.min(*count);
            self.on_ring[*cargo as usize] -= some;
            consumed -= some;
            *count -= some;
            if *count == 0 {
                self.runs.pop_front();
            }
        }
    }

    pub fn on_taken(&mut self, message: &MeshMessage) {
        self.taken_messages += 1;
        if message.cargo() == Cargo::Reply {
            self.asks_outstanding -= 1;
        }
    }

    /// Whether `messages` of `bytes` in all may be pushed now. A ring that is empty takes any one message, however large.
    pub fn has_room(&self, cargo: Cargo, messages: u64, bytes: u64) -> bool {
        let quarter = (self.messages_max / 4).max(1);
        let (messages_max, bytes_max) = match cargo {
            Cargo::Message => (quarter, self.bytes_max / 4 * 3),
            Cargo::Control | Cargo::Reply => (self.messages_max - quarter, self.bytes_max),
        };
        let waiting_bytes = self.pushed_bytes.saturating_sub(self.progress.consumed_bytes);
        self.on_ring[cargo as usize] + messages <= messages_max && (self.is_idle() || waiting_bytes + bytes <= bytes_max)
    }

    pub fn on_pushed(&mut self, message: &MeshMessage) {
        self.pushed_messages += 1;
        self.pushed_bytes += message.bytes();
        let cargo = message.cargo();
        self.on_ring[cargo as usize] += 1;
        match self.runs.back_mut() {
            Some((last, count)) if *last == cargo => *count += 1,
            _ => self.runs.push_back((cargo, 1)),
        }
    }

    /// Connections that wait for room for such a push.
    pub fn waiting(&mut self, cargo: Cargo) -> &mut VecDeque<ConnectionId> {
        &mut self.waiting[usize::from(cargo != Cargo::Message)]
    }

    pub fn someone_waits(&self, cargo: Cargo) -> bool {
        !self.waiting[usize::from(cargo != Cargo::Message)].is_empty()
    }

    pub fn is_awaited(&self) -> bool {
        self.someone_waits(Cargo::Message) || self.someone_waits(Cargo::Control)
    }

    pub fn may_ask(&self) -> bool {
        self.asks_outstanding < REPLY_SLOTS
    }

    pub fn on_asked(&mut self) {
        self.asks_outstanding += 1;
    }

    /// The position up to which everything pushed so far reaches; compare it with [`Peer::has_confirmed`] later.
    pub fn position(&self) -> u64 {
        self.pushed_messages
    }

    pub fn has_confirmed(&self, position: u64) -> bool {
        self.progress.consumed_messages >= position
    }

    pub fn is_idle(&self) -> bool {
        self.has_confirmed(self.pushed_messages)
    }

    /// The tail of the other core's ring as seen now.
    pub fn arrived(&self) -> u64 {
        self.progress.arrived_messages.max(self.taken_messages)
    }

    pub fn has_taken(&self, position: u64) -> bool {
        self.taken_messages >= position
    }

    /// Messages pushed and not yet consumed by the other core.
    pub fn depth(&self) -> u64 {
        self.pushed_messages - self.progress.consumed_messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageRef;
    use crate::wire::QoS;

    fn interest() -> MeshMessage {
        MeshMessage::Interest { key: InterestKey::Exact(1), wanted: true }
    }

    fn publish() -> MeshMessage {
        let (topic, qos, retain, expires_at) = ("t", QoS::AtMostOnce, false, Time::NEVER);
        let message = Message::from(MessageRef { topic, properties: &[], payload: &[], qos, retain, expires_at });
        MeshMessage::Publish { message, deliver: true, store: false, groups: None }
    }

    #[test]
    fn room_is_bounded_in_messages_and_bytes_and_an_empty_ring_takes_any_one() {
        let control = Cargo::Control;
        let mut peer = Peer::new(CoreId(1), 3, 200);
        assert!(peer.has_room(control, 1, 1_000_000));
        peer.on_pushed(&interest());
        assert!(peer.has_room(control, 1, 10) && !peer.has_room(control, 1, 1_000));
        peer.on_pushed(&interest());
        assert!(!peer.has_room(control, 1, 0));
        let consumed = peer.pushed_bytes;
        peer.on_progress(Progress { consumed_messages: 2, consumed_bytes: consumed, arrived_messages: 0 });
        assert!(peer.has_room(control, 2, 100) && peer.is_idle());
    }

    #[test]
    fn messages_fill_a_quarter_of_a_ring_and_leave_the_rest_to_connections_and_subscriptions() {
        let mut peer = Peer::new(CoreId(1), 16, 1 << 20);
        for _ in 0..4 {
            assert!(peer.has_room(Cargo::Message, 1, 0));
            peer.on_pushed(&publish());
        }
        assert!(!peer.has_room(Cargo::Message, 1, 0) && peer.has_room(Cargo::Control, 12, 0));
        peer.on_pushed(&interest());
        peer.on_pushed(&publish());
        assert!(!peer.has_room(Cargo::Control, 12, 0));
        // One after the other is consumed, and gives back what it took.
        for (consumed, message, control) in [(4, 3, 11), (5, 3, 12), (6, 4, 12)] {
            peer.on_progress(Progress { consumed_messages: consumed, ..Progress::default() });
            assert!(peer.has_room(Cargo::Message, message, 0) && !peer.has_room(Cargo::Message, message + 1, 0));
            assert!(peer.has_room(Cargo::Control, control, 0) && !peer.has_room(Cargo::Control, control + 1, 0));
        }
    }

    #[test]
    fn a_position_is_confirmed_when_the_other_core_has_consumed_that_far() {
        let mut peer = Peer::new(CoreId(1), 10, 1_000);
        peer.on_pushed(&interest());
        let position = peer.position();
        assert!(!peer.has_confirmed(position));
        peer.on_progress(Progress { consumed_messages: 1, ..Progress::default() });
        assert!(peer.has_confirmed(position));
    }
}
