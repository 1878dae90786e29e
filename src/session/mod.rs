//! One client's session on its home core: what outlives a connection. Pure state with verbs; who its subscribers and connections
//! are is the shard's business.
//!
//! Where to find what: `outbound` (QoS 1 and 2 to the client: window and queue) · `inbound` (QoS 2 from it: packet ids) · `owed`
//! (PUBACK and PUBREC that wait for a sink) · `will` (what is kept of it; when it is published is `shard::clients`') ·
//! `subscriptions` · `replays` (retained messages being sent) · `drops` (what was dropped, by reason).

pub mod drops;
pub mod inbound;
pub mod outbound;
pub mod owed;
pub mod replays;
pub mod subscriptions;
pub mod will;

use crate::ids::FilterId;
use crate::time::Time;
use crate::wire::{QoS, RetainHandling, SubscriptionOptions};
use drops::Drops;
use inbound::Inbound;
use outbound::Outbound;
use replays::Replays;
use subscriptions::Subscriptions;
use will::Will;

/// A session (MQTT 5.0 section 4.1). It exists from an accepted CONNECT until it ends by clean start, expiry or its own zero expiry
/// interval; `connection` says whether the client is there.
pub struct Session {
    pub client_id: Box<str>,
    /// Slot of the connection, if the client is connected.
    pub connection: Option<u32>,
    /// Changes when the slot is used for another session, so that a late timer is recognised.
    pub incarnation: u32,
    /// The number of its entry in the timing wheel that counts; every other one is out of date.
    pub timer: u32,
    /// That entry comes out at this time or earlier; [`Time::NEVER`]: there is none.
    pub watched: Time,
    /// Seconds the session outlives its connection; `u32::MAX`: for ever.
    pub expiry_interval_s: u32,
    /// While offline: when it ends.
    pub expires_at: Time,
    pub phase: Phase,
    /// Messages dropped for this client, by reason.
    pub drops: Option<Box<Drops>>,
    pub subscriptions: Subscriptions,
    /// Made by the first QoS 1 or 2 message.
    pub outbound: Option<Box<Outbound>>,
    /// Made by the first QoS 2 message.
    pub inbound: Option<Box<Inbound>>,
    pub will: Option<Box<Will>>,
    /// Made while replays of retained messages are open.
    pub replays: Option<Box<Replays>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Alive,
    /// Ended: no client id leads here any more; its subscriptions are being removed.
    Ending,
}

/// A subscription as its session keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscription {
    pub filter: FilterId,
    /// 0: none.
    pub identifier: u32,
    /// The filter is one of the shard's shared ones; `filter` counts in that table.
    pub shared: bool,
    options: u8,
}

impl Subscription {
    pub fn new(filter: FilterId, shared: bool, identifier: u32, options: SubscriptionOptions) -> Self {
        let options = options.qos as u8
            | u8::from(options.no_local) << 2
            | u8::from(options.retain_as_published) << 3
            | (options.retain_handling as u8) << 4;
        Self { filter, identifier, shared, options }
    }

    pub fn options(self) -> SubscriptionOptions {
        SubscriptionOptions {
            qos: match self.options & 3 {
                0 => QoS::AtMostOnce,
                1 => QoS::AtLeastOnce,
                _ => QoS::ExactlyOnce,
            },
            no_local: self.options & 4 != 0,
            retain_as_published: self.options & 8 != 0,
            retain_handling: match self.options >> 4 {
                0 => RetainHandling::Send,
                1 => RetainHandling::SendIfNew,
                _ => RetainHandling::DoNotSend,
            },
        }
    }

    fn key(self) -> (bool, FilterId) {
        (self.shared, self.filter)
    }
}

impl Session {
    pub fn new(client_id: Box<str>, incarnation: u32) -> Self {
        Self {
            client_id,
            connection: None,
            incarnation,
            timer: 0,
            watched: Time::NEVER,
            expiry_interval_s: 0,
            expires_at: Time::NEVER,
            phase: Phase::Alive,
            drops: None,
            subscriptions: Subscriptions::default(),
            outbound: None,
            inbound: None,
            will: None,
            replays: None,
        }
    }

    pub fn subscription(&self, shared: bool, filter: FilterId) -> Option<Subscription> {
        self.subscriptions.get(shared, filter)
    }

    /// Adds or replaces a subscription; returns the one it replaces.
    pub fn subscribe(&mut self, subscription: Subscription) -> Option<Subscription> {
        self.subscriptions.insert(subscription)
    }

    pub fn unsubscribe(&mut self, shared: bool, filter: FilterId) -> Option<Subscription> {
        self.subscriptions.remove(shared, filter)
    }

    pub fn is_online(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the session goes on without its connection.
    pub fn outlives_connection(&self) -> bool {
        self.expiry_interval_s > 0
    }

    pub fn outbound(&mut self) -> &mut Outbound {
        self.outbound.get_or_insert_default()
    }

    /// Packets and messages that wait, for the memory account and the drop policy.
    pub fn is_waiting(&self) -> bool {
        self.outbound.as_ref().is_some_and(|outbound| !outbound.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(qos: QoS) -> SubscriptionOptions {
        SubscriptionOptions { qos, no_local: true, retain_as_published: false, retain_handling: RetainHandling::SendIfNew }
    }

    #[test]
    fn subscriptions_are_found_replaced_and_removed() {
        let mut session = Session::new("c".into(), 1);
        for i in [5u32, 1, 9, 3] {
            assert_eq!(session.subscribe(Subscription::new(FilterId(i), false, i, options(QoS::AtLeastOnce))), None);
        }
        let replaced = session.subscribe(Subscription::new(FilterId(9), false, 77, options(QoS::ExactlyOnce)));
        assert_eq!(replaced.map(|s| s.identifier), Some(9));
        let found = session.subscription(false, FilterId(9)).unwrap();
        assert_eq!((found.identifier, found.options()), (77, options(QoS::ExactlyOnce)));
        assert_eq!(session.subscription(true, FilterId(9)), None);
        assert!(session.unsubscribe(false, FilterId(1)).is_some() && session.unsubscribe(false, FilterId(1)).is_none());
        let left: Vec<u32> = std::iter::from_fn(|| session.subscriptions.pop()).map(|last| last.filter.0).collect();
        assert_eq!(left, [9, 5, 3]);
    }

    #[test]
    fn an_idle_session_stays_small() {
        assert!(size_of::<Session>() <= 136, "{}", size_of::<Session>());
    }
}
