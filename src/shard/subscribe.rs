//! SUBSCRIBE and UNSUBSCRIBE (sections 3.8 and 3.10).

use super::Shard;
use super::connection::{Verdict, Wait};
use super::peer::Cargo;
use super::receive::Flow;
use crate::ids::{ConnectionId, SessionId};
use crate::limits::Limits;
use crate::session::Subscription;
use crate::time::Time;
use crate::topic::{Filter, InterestKey};
use crate::wire::{Packet, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, SubscriptionOptions, Unsubscribe, WireError};
use smallvec::SmallVec;

/// Filters of one SUBSCRIBE or UNSUBSCRIBE that are acted on; the rest is refused (0x97, Quota exceeded; in an UNSUBACK, which does not
/// have it, 0x83).
pub const FILTERS_PER_PACKET_MAX: usize = 4096;
/// A packet of so few filters is acted on at once, whatever the turn has done before.
const AT_ONCE: usize = 8;

/// What a filter's announcement counts against the rings at most, beyond its text.
const ANNOUNCEMENT_BYTES: u64 = 64;

/// Filters that one turn acts on, in packets of more than [`AT_ONCE`]: such a packet waits at the front of its connection and goes on in
/// the next turn, so that it never holds the shard for long.
pub(super) fn filters_per_turn(limits: &Limits) -> usize {
    (limits.turn_budget as usize / 8).max(1)
}

/// A SUBSCRIBE or UNSUBSCRIBE that is acted on over several turns: how far it has come.
pub(super) struct Partial {
    verdict: Verdict,
    /// Filters it has come past.
    done: usize,
    reasons: SmallVec<[u8; 8]>,
    replays: SmallVec<[u64; 1]>,
}

impl Partial {
    fn new(verdict: Verdict) -> Self {
        Self { verdict, done: 0, reasons: SmallVec::new(), replays: SmallVec::new() }
    }
}

impl Shard {
    /// How many filters of a packet are acted on now.
    fn filters_now(&mut self, partial: &Partial, filters: usize) -> usize {
        if filters <= AT_ONCE {
            return filters;
        }
        let now = self.filters_left.min(filters - partial.done);
        self.filters_left -= now;
        now
    }

    /// The packet waits; how far it has come is kept.
    fn park_partial(&mut self, id: ConnectionId, partial: Partial, wait: Wait) -> Flow {
        self.parking.partial.insert(id, partial);
        Flow::Park(wait)
    }

    /// The connection has ended: what it began is not finished.
    pub(super) fn drop_partial(&mut self, id: ConnectionId) {
        let Some(partial) = self.parking.partial.remove(&id) else { return };
        for replay in partial.replays {
            self.abandon_replay(replay);
        }
    }

    pub(super) fn on_subscribe(&mut self, id: ConnectionId, subscribe: &Subscribe<'_>, now: Time) -> Flow {
        let Some(session) = self.connections[id.slot].session else { return Flow::Gone };
        if subscribe.filters.iter().any(|(text, options)| options.no_local && text.starts_with("$share/")) {
            // [MQTT-3.8.3-4]
            let what = "no local on a shared subscription";
            self.refuse(id, WireError { reason: ReasonCode::PROTOCOL_ERROR, what }, now);
            return Flow::Gone;
        }
        let mut partial = match self.parking.partial.remove(&id) {
            Some(partial) => partial,
            None => match self.ask(id, now) {
                None => return Flow::Park(Wait::Decision),
                Some(verdict) => Partial::new(verdict),
            },
        };
        let filters = subscribe.filters.iter().count();
        let count = self.filters_now(&partial, filters);
        let these = || subscribe.filters.iter().enumerate().skip(partial.done).take(count);
        if let Err(wait) = self.room_to_announce(these().map(|(_, (text, _))| text)) {
            return self.park_partial(id, partial, wait);
        }
        let mut changes = Vec::new();
        let identifier = subscribe.subscription_identifier.unwrap_or(0);
        for (position, (text, options)) in these() {
            let reason = match partial.verdict {
                Err(reason) => reason,
                Ok(()) if position >= FILTERS_PER_PACKET_MAX => self.refuse_quota(),
                Ok(()) => self.subscribe(session, text, identifier, options, &mut changes, &mut partial.replays),
            };
            partial.reasons.push(reason.0);
            if !reason.is_error() {
                self.raise_subscribed(session, text, reason.0, now);
            }
        }
        partial.done += count;
        self.announce(changes);
        self.announce_groups();
        if partial.done < filters {
            return self.park_partial(id, partial, Wait::Nothing);
        }
        self.confirm_then(id, subscribe.packet_id, partial.reasons, partial.replays, now);
        Flow::Next
    }

    /// Room on every ring for whatever these filters' announcements may need.
    fn room_to_announce<'a>(&self, filters: impl Iterator<Item = &'a str>) -> Result<(), Wait> {
        if self.cores == 1 {
            return Ok(());
        }
        let (mut messages, mut bytes) = (1, 0);
        for text in filters {
            messages += u64::from(text.starts_with("$share/"));
            bytes += text.len() as u64 + ANNOUNCEMENT_BYTES;
        }
        // More groups than the ring has slots are announced when there is room; their SUBACK waits for that.
        let messages = messages.min(u64::from(self.limits.mesh_messages_max) / 2);
        let bytes = bytes.min(self.limits.mesh_bytes_max / 2);
        self.may_push_to_all(Cargo::Control, messages, bytes).map_err(|core| Wait::Mesh(core, Cargo::Control))
    }

    fn refuse_quota(&mut self) -> ReasonCode {
        self.counters.refused_subscriptions_quota += 1;
        ReasonCode::QUOTA_EXCEEDED
    }

    fn subscribe(
        &mut self,
        session: SessionId,
        text: &str,
        identifier: u32,
        options: SubscriptionOptions,
        changes: &mut Vec<(InterestKey, bool)>,
        replays: &mut SmallVec<[u64; 1]>,
    ) -> ReasonCode {
        let Ok(filter) = Filter::parse(text, self.limits.topic_levels_max, self.limits.topic_bytes_max) else {
            self.counters.refused_subscriptions_filter += 1;
            return ReasonCode::TOPIC_FILTER_INVALID;
        };
        let shared = filter.share.is_some();
        let known = self.find_subscription(session, &filter);
        if known.is_none() && self.sessions[session.0].subscriptions.len() >= self.limits.subscriptions_per_client_max as usize {
            return self.refuse_quota();
        }
        let hasher = self.hasher;
        let id = if shared {
            let online = self.sessions[session.0].is_online();
            self.groups.join(&hasher, &filter, session, online)
        } else {
            let subscribed = self.subscriptions.subscribe(&hasher, filter.filter, session);
            if subscribed.first {
                changes.push((self.subscriptions.interest_key(&hasher, filter.filter), true));
            }
            subscribed.id
        };
        let new = self.sessions[session.0].subscribe(Subscription::new(id, shared, identifier, options)).is_none();
        if new {
            self.counters.subscribes += 1;
            self.charge += (size_of::<Subscription>() + text.len()) as i64;
        }
        let replay = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => new,
            RetainHandling::DoNotSend => false,
        };
        // Retained messages are not sent for shared subscriptions (section 3.3.1.3).
        if replay
            && !shared
            && let Some(replay) = self.open_replay(session, (id, filter.filter), (options.qos, identifier))
        {
            replays.push(replay);
        }
        match options.qos {
            QoS::AtMostOnce => ReasonCode::SUCCESS,
            QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
            QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
        }
    }

    fn find_subscription(&self, session: SessionId, filter: &Filter<'_>) -> Option<Subscription> {
        let id = match filter.share {
            Some(_) => self.groups.find(filter.text)?,
            None => self.subscriptions.find(&self.hasher, filter.filter)?,
        };
        self.sessions[session.0].subscription(filter.share.is_some(), id)
    }

    pub(super) fn on_unsubscribe(&mut self, id: ConnectionId, unsubscribe: &Unsubscribe<'_>, now: Time) -> Flow {
        let Some(session) = self.connections[id.slot].session else { return Flow::Gone };
        if !self.connections[id.slot].is_v5() && unsubscribe.filters.iter().nth(FILTERS_PER_PACKET_MAX).is_some() {
            // An MQTT 3 UNSUBACK cannot say that some of it was not done.
            let what = "more filters than one UNSUBSCRIBE may carry";
            self.refuse(id, WireError { reason: ReasonCode::QUOTA_EXCEEDED, what }, now);
            return Flow::Gone;
        }
        let mut partial = self.parking.partial.remove(&id).unwrap_or_else(|| Partial::new(Ok(())));
        let filters = unsubscribe.filters.iter().count();
        let count = self.filters_now(&partial, filters);
        let these = || unsubscribe.filters.iter().enumerate().skip(partial.done).take(count);
        if let Err(wait) = self.room_to_announce(these().map(|(_, text)| text)) {
            return self.park_partial(id, partial, wait);
        }
        let mut changes = Vec::new();
        for (position, text) in these() {
            let reason = if position >= FILTERS_PER_PACKET_MAX {
                // Quota exceeded is no reason of an UNSUBACK [MQTT-3.11.3-2].
                ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR
            } else {
                match Filter::parse(text, u16::MAX, u16::MAX) {
                    Err(_) => ReasonCode::TOPIC_FILTER_INVALID,
                    Ok(filter) => match self.find_subscription(session, &filter) {
                        None => ReasonCode::NO_SUBSCRIPTION_EXISTED,
                        Some(subscription) => {
                            self.sessions[session.0].unsubscribe(subscription.shared, subscription.filter);
                            if !subscription.shared {
                                self.close_replay(session, subscription.filter);
                            }
                            changes.extend(self.drop_subscription(session, subscription));
                            ReasonCode::SUCCESS
                        }
                    },
                }
            };
            partial.reasons.push(reason.0);
        }
        partial.done += count;
        self.announce(changes);
        if partial.done < filters {
            return self.park_partial(id, partial, Wait::Nothing);
        }
        let reasons = partial.reasons;
        let unsuback = SubAck { packet_id: unsubscribe.packet_id, reasons: &reasons, ..SubAck::default() };
        if !self.send_if_it_fits(id.slot, &Packet::Unsuback(unsuback)) {
            let what = "its UNSUBACK is larger than the client's Maximum Packet Size";
            self.close(id, Some(ReasonCode::PACKET_TOO_LARGE), what, now);
            return Flow::Gone;
        }
        Flow::Next
    }

    /// Takes a subscription that its session no longer has out of the shard's tables; what is to be announced of it.
    fn drop_subscription(&mut self, session: SessionId, subscription: Subscription) -> Option<(InterestKey, bool)> {
        self.counters.unsubscribes += 1;
        let hasher = self.hasher;
        if subscription.shared {
            self.charge -= (size_of::<Subscription>() + self.groups.text_len(subscription.filter)) as i64;
            self.groups.leave(&hasher, subscription.filter, session);
            return None;
        }
        let text_len = self.subscriptions.text(subscription.filter).map_or(0, str::len);
        self.charge -= (size_of::<Subscription>() + text_len) as i64;
        let unsubscribed = self.subscriptions.unsubscribe(&hasher, subscription.filter, session);
        unsubscribed.key.filter(|_| unsubscribed.last).map(|key| (key, false))
    }

    /// The same, announced at once. Only with room on all rings.
    pub(super) fn remove_subscription(&mut self, session: SessionId, subscription: Subscription) {
        if let Some(change) = self.drop_subscription(session, subscription) {
            self.announce(vec![change]);
        }
    }
}
