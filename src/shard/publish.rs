//! PUBLISH (section 3.3) and every other source of messages: admission before effect, then the message goes where it is wanted.
//!
//! A message first reserves room on every ring it will cross. Without room nothing has happened: a client's packet parks, a message
//! of the broker's own making stays at the front of its queue.

use super::Shard;
use super::acknowledge::ack;
use super::connection::{Aliases, Wait};
use super::deliver::{Routed, Terms};
use super::fanout::{FILTER_WORK, Local, Source};
use super::peer::{Cargo, Groups, MeshMessage};
use super::receive::Flow;
use super::tickets::Owner;
use crate::fault::Fault;
use crate::ids::{ConnectionId, CoreId, SessionId, TicketId};
use crate::message::{Message, MessageRef};
use crate::session::owed::Acknowledgement;
use crate::time::Time;
use crate::topic::{self, TopicKey};
use crate::wire::{Ack, Packet, Publish, QoS, ReasonCode, WireError};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A message of the broker's own making, waiting for admission.
pub(super) enum Pending {
    /// A will, a $SYS value, a rule's message: published like any other message, by the session that the will is of.
    Publish {
        message: Message,
        publisher: Option<SessionId>,
        /// Whom rules take for the publisher.
        client_id: Option<Box<str>>,
        /// How many rules have republished what led to it.
        depth: u8,
    },
    /// A message of a shared group that is given to another member.
    Redispatch { message: Message, filter: Arc<str> },
}

/// Who publishes a message.
#[derive(Clone, Copy, Default)]
pub(super) struct Publisher<'a> {
    pub session: Option<SessionId>,
    /// Whom rules take for the publisher, if not the session's client.
    pub client_id: Option<&'a str>,
    pub depth: u8,
    /// It is a client, or a source, that waits for the message to be acknowledged.
    pub waits: bool,
}

/// What publishing a message came to.
pub(super) struct Published {
    /// A subscriber, or a rule's action, has it.
    pub wanted: bool,
    /// Its acknowledgement waits for this.
    pub ticket: Option<TicketId>,
}

/// Where a message goes.
pub(super) struct Route {
    /// Cores with subscribers, this one left out.
    cores: u64,
    /// The core of its topic, if it is retained.
    store: Option<CoreId>,
    /// A core picked for each shared group that matches.
    groups: SmallVec<[(CoreId, Arc<str>); 2]>,
    local: Local,
}

impl Shard {
    pub(super) fn on_publish(&mut self, id: ConnectionId, publish: &Publish<'_>, now: Time) -> Flow {
        let Some(session) = self.connections[id.slot].session else { return Flow::Gone };
        let topic = match self.resolve_topic(id, publish) {
            Ok(topic) => topic,
            Err(error) => {
                self.refuse(id, error, now);
                return Flow::Gone;
            }
        };
        let topic = topic.as_str(publish.topic);
        if publish.qos == QoS::ExactlyOnce {
            let inbound = self.sessions[session.0].inbound.get_or_insert_default();
            if Fault::RouteRepeatedQos2.is_planted() {
                inbound.release(publish.packet_id);
            }
            if inbound.contains(publish.packet_id) {
                // Routed already: only its acknowledgement was lost [MQTT-4.3.3-10], or it has not been sent yet.
                self.counters.publishes_repeated += 1;
                let owed = inbound.owed.ask_again(publish.packet_id);
                self.remember_alias(id, publish);
                if owed {
                    return Flow::Next;
                }
                self.send(id.slot, &Packet::Pubrec(ack(publish.packet_id, ReasonCode::SUCCESS)));
                return Flow::Next;
            }
            if inbound.len() >= usize::from(self.limits.inflight_in_max) && self.connections[id.slot].is_v5() {
                let what = "more QoS 2 messages in flight than the Receive Maximum granted";
                self.refuse(id, WireError { reason: ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, what }, now);
                return Flow::Gone;
            }
        }
        if publish.qos != QoS::AtMostOnce
            && self.rules.is_some()
            && let Some(flow) = self.check_owed(id, session, now)
        {
            return flow;
        }
        let verdict = match self.ask(id, now) {
            None => return Flow::Park(Wait::Decision),
            Some(verdict) => verdict,
        };
        let verdict = verdict.map_err(|reason| (reason, "not authorized"));
        let mut why = None;
        let mut ticket = None;
        let reason = match verdict.and_then(|()| self.check_publish(topic, publish)) {
            Err((reason, what)) => {
                why = Some(what).filter(|_| self.may_say_why(id.slot));
                reason
            }
            Ok(()) => {
                let message = MessageRef {
                    topic,
                    properties: &[],
                    payload: publish.payload,
                    qos: publish.qos,
                    retain: publish.retain,
                    expires_at: publish.message_expiry_interval_s.map_or(Time::NEVER, |s| now + Duration::from_secs(s.into())),
                };
                let mut scratch = Vec::new();
                let message = MessageRef { properties: publish.properties.forwarded(&mut scratch), ..message };
                let waits = publish.qos != QoS::AtMostOnce;
                match self.publish(message, None, Publisher { session: Some(session), waits, ..Publisher::default() }, now) {
                    Err(wait) => return Flow::Park(wait),
                    Ok(published) => {
                        ticket = published.ticket;
                        if published.wanted { ReasonCode::SUCCESS } else { ReasonCode::NO_MATCHING_SUBSCRIBERS }
                    }
                }
            }
        };
        self.counters.publishes_received += 1;
        self.counters.publish_bytes_received += publish.payload.len() as u64;
        self.remember_alias(id, publish);
        if reason == ReasonCode::QUOTA_EXCEEDED && publish.qos != QoS::AtMostOnce && !self.connections[id.slot].is_v5() {
            // An MQTT 3 client cannot be refused one message: closed, it keeps it and sends it again.
            self.counters.closed_memory += 1;
            self.close(id, None, "memory is at memory_max", now);
            return Flow::Gone;
        }
        self.connections[id.slot].publishes |= publish.qos != QoS::AtMostOnce;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => {
                let acknowledgement = Acknowledgement { reason, why };
                match &mut self.connections[id.slot].ruled {
                    Some(ruled) if ticket.is_some() || !ruled.owed.is_empty() => {
                        let number = ruled.owed.push(publish.packet_id, ticket.is_none().then_some(acknowledgement));
                        if let Some(ticket) = ticket {
                            self.sinks.tickets.give(ticket, Owner::Connection(id), number);
                        }
                    }
                    _ => {
                        let puback = self.acknowledgement(id.slot, publish.packet_id, acknowledgement);
                        self.send(id.slot, &Packet::Puback(puback));
                    }
                }
            }
            QoS::ExactlyOnce => {
                let acknowledgement = Acknowledgement { reason, why };
                let state = &mut self.sessions[session.0];
                let incarnation = state.incarnation;
                let mut inbound = state.inbound.as_mut();
                if let Some(inbound) = &mut inbound
                    && !reason.is_error()
                {
                    inbound.on_publish(publish.packet_id);
                }
                match inbound {
                    Some(inbound) if ticket.is_some() || !inbound.owed.is_empty() => {
                        let number = inbound.owed.push(publish.packet_id, ticket.is_none().then_some(acknowledgement));
                        if let Some(ticket) = ticket {
                            self.sinks.tickets.give(ticket, Owner::Session(session, incarnation), number);
                        }
                    }
                    _ => {
                        let pubrec = self.acknowledgement(id.slot, publish.packet_id, acknowledgement);
                        self.send(id.slot, &Packet::Pubrec(pubrec));
                    }
                }
            }
        }
        Flow::Next
    }

    /// A PUBACK or PUBREC, with the reason in words for a client that wants it.
    pub(super) fn acknowledgement(&self, slot: u32, packet_id: u16, acknowledgement: Acknowledgement) -> Ack<'static> {
        let Acknowledgement { reason, why } = acknowledgement;
        Ack { reason_string: why.filter(|_| self.may_say_why(slot)), ..ack(packet_id, reason) }
    }

    /// Whether a client is owed as many acknowledgements as it may have messages in flight: an MQTT 5 client knows the limit and has
    /// broken it, others wait.
    fn check_owed(&mut self, id: ConnectionId, session: SessionId, now: Time) -> Option<Flow> {
        let connection = &self.connections[id.slot];
        let inbound = self.sessions[session.0].inbound.as_ref();
        let pubacks = connection.ruled.as_ref().map_or(0, |ruled| ruled.owed.len());
        let owed = pubacks + inbound.map_or(0, |inbound| inbound.owed.len());
        if owed < usize::from(self.limits.inflight_in_max) {
            return None;
        }
        if connection.is_v5() {
            let what = "more QoS 1 and 2 messages in flight than the Receive Maximum granted";
            self.refuse(id, WireError { reason: ReasonCode::RECEIVE_MAXIMUM_EXCEEDED, what }, now);
            return Some(Flow::Gone);
        }
        Some(Flow::Park(Wait::Acknowledgements))
    }

    /// The topic of a PUBLISH that may carry an alias instead (section 3.3.2.3.4).
    fn resolve_topic(&self, id: ConnectionId, publish: &Publish<'_>) -> Result<Topic, WireError> {
        if publish.has_subscription_identifier() {
            // Only a server sends it [MQTT-3.3.4-6].
            let what = "subscription identifier in a client's PUBLISH";
            return Err(WireError { reason: ReasonCode::PROTOCOL_ERROR, what });
        }
        let Some(alias) = publish.topic_alias else { return Ok(Topic::Given) };
        if alias > self.limits.topic_alias_in_max {
            let what = "topic alias above the Topic Alias Maximum granted";
            return Err(WireError { reason: ReasonCode::TOPIC_ALIAS_INVALID, what });
        }
        if !publish.topic.is_empty() {
            return Ok(Topic::Given);
        }
        let known =
            self.connections[id.slot].aliases.as_ref().and_then(|aliases| aliases.inbound.get(usize::from(alias) - 1)?.clone());
        known
            .map(Topic::Aliased)
            .ok_or(WireError { reason: ReasonCode::PROTOCOL_ERROR, what: "topic alias that stands for no topic" })
    }

    /// A PUBLISH that has gone through and carries a topic with an alias sets it.
    fn remember_alias(&mut self, id: ConnectionId, publish: &Publish<'_>) {
        let (Some(alias), false) = (publish.topic_alias, publish.topic.is_empty()) else { return };
        let Some(connection) = self.connection_mut(id) else { return };
        let inbound = &mut connection.aliases.get_or_insert_with(|| Box::new(Aliases::default())).inbound;
        let position = usize::from(alias) - 1;
        if inbound.len() <= position {
            inbound.resize(position + 1, None);
        }
        inbound[position] = Some(publish.topic.into());
    }

    fn check_publish(&mut self, topic: &str, publish: &Publish<'_>) -> Result<(), (ReasonCode, &'static str)> {
        // Its characters were checked when it was decoded.
        if topic::check_size(topic, self.limits.topic_levels_max, self.limits.topic_bytes_max).is_err() {
            self.counters.refused_publishes += 1;
            return Err((ReasonCode::TOPIC_NAME_INVALID, "topic has too many levels or bytes"));
        }
        if topic::is_of_broker(topic) {
            self.counters.refused_topic += 1;
            return Err((ReasonCode::NOT_AUTHORIZED, "topic is reserved for the broker"));
        }
        if publish.qos == QoS::AtMostOnce {
            if self.memory_over(90) {
                self.counters.dropped_memory_qos0 += 1;
                return Err((ReasonCode::QUOTA_EXCEEDED, "the broker is short of memory"));
            }
        } else if self.memory_over(100) {
            self.counters.refused_memory += 1;
            return Err((ReasonCode::QUOTA_EXCEEDED, "the broker is short of memory"));
        }
        Ok(())
    }

    /// Admits a message, routes it, and does what rules say. Err: there is no room yet and nothing has happened.
    pub(super) fn publish(
        &mut self,
        message: MessageRef<'_>,
        owned: Option<Message>,
        publisher: Publisher<'_>,
        now: Time,
    ) -> Result<Published, Wait> {
        let hasher = self.hasher;
        let key = TopicKey::new(message.topic, &hasher);
        let route = self.route(&key, message.retain);
        match self.admit(&route, &message) {
            Err(Wait::Mesh(..)) if Fault::DropOnFullRing.is_planted() => return Ok(Published { wanted: true, ticket: None }),
            admitted => admitted?,
        }
        let (acted, ticket) = match self.rules.take() {
            None => (false, None),
            Some(mut rules) => {
                let done = self.apply_rules(&mut rules, &key, &message, publisher, now);
                self.rules = Some(rules);
                done?
            }
        };
        let mut routed = Routed::new(message, owned, self.take_frames());
        let wanted = self.dispatch(&mut routed, &key, route, publisher.session, now) | acted;
        self.scratch = Some(routed.into_frames());
        if !wanted {
            self.counters.publishes_unmatched += 1;
        }
        Ok(Published { wanted, ticket })
    }

    fn route(&mut self, key: &TopicKey<'_>, retain: bool) -> Route {
        let own = 1u64 << self.core.0;
        let (cores, announcements) = if self.cores > 1 { self.interest.cores(&self.hasher, key) } else { (0, 0) };
        let store = retain.then(|| self.core_of_topic(key));
        let groups = self.pick_groups(key);
        // Whether or not it is admitted now, looking has been done.
        self.work += (announcements.saturating_sub(1) + groups.len()) * FILTER_WORK;
        Route { cores: cores & !own, store, groups, local: self.local(key) }
    }

    pub(super) fn core_of_topic(&self, key: &TopicKey<'_>) -> CoreId {
        CoreId((key.exact() % self.cores as u64) as u8)
    }

    /// Whether there is room for a message everywhere it goes.
    fn admit(&self, route: &Route, message: &MessageRef<'_>) -> Result<(), Wait> {
        let queues = self.parking.queueing && self.parking.someone_waits_for_fanouts();
        if route.local.may_take_turns() && (queues || self.room_for_fanouts(Source::Here) == 0) {
            return Err(Wait::Fanout);
        }
        let targets = self.targets(route);
        if targets != 0 {
            let bytes = (size_of::<MeshMessage>() + Message::OVERHEAD_BYTES) as u64
                + (message.topic.len() + message.properties.len() + message.payload.len()) as u64;
            for core in cores_in(targets) {
                if !self.may_push(core, Cargo::Message, 1, bytes) {
                    return Err(Wait::Mesh(core, Cargo::Message));
                }
            }
        }
        Ok(())
    }

    /// The other cores a route touches.
    fn targets(&self, route: &Route) -> u64 {
        let mut targets = route.cores;
        if let Some(core) = route.store {
            targets |= 1 << core.0;
        }
        for (core, _) in &route.groups {
            targets |= 1 << core.0;
        }
        targets & !(1u64 << self.core.0)
    }

    fn dispatch(
        &mut self,
        routed: &mut Routed<'_>,
        key: &TopicKey<'_>,
        route: Route,
        publisher: Option<SessionId>,
        now: Time,
    ) -> bool {
        let mut wanted = route.cores != 0 || !route.groups.is_empty();
        if route.store == Some(self.core) {
            self.store_retained(routed);
        }
        let targets = self.targets(&route);
        for core in cores_in(targets) {
            let of_core = |(picked, filter): &(CoreId, Arc<str>)| (*picked == core).then(|| filter.clone());
            let groups: Groups =
                route.groups.iter().any(|(picked, _)| *picked == core).then(|| route.groups.iter().filter_map(of_core).collect());
            let deliver = route.cores & 1 << core.0 != 0;
            let message = MeshMessage::Publish { message: routed.owned(), deliver, store: route.store == Some(core), groups };
            self.counters.mesh_messages_sent += 1;
            self.push(core, message);
        }
        for (core, filter) in &route.groups {
            if *core == self.core {
                self.deliver_to_group(routed, filter, true, now);
            }
        }
        wanted |= !route.local.is_empty();
        self.fan_out(routed, key, route.local, Source::Here, publisher, now);
        wanted
    }

    /// A message from another core: local deliveries and the local store only.
    pub(super) fn on_mesh_publish(&mut self, message: Message, deliver: bool, store: bool, groups: Groups, now: Time) {
        self.counters.mesh_messages_received += 1;
        let owned = message.clone();
        let mut routed = Routed::new(message.as_ref(), Some(owned), self.take_frames());
        if store {
            self.store_retained(&mut routed);
        }
        for filter in groups.iter().flatten() {
            self.deliver_to_group(&mut routed, filter, false, now);
        }
        if deliver {
            let hasher = self.hasher;
            let key = TopicKey::new(message.topic(), &hasher);
            let local = self.local(&key);
            self.fan_out(&mut routed, &key, local, Source::Ring, None, now);
        }
        self.scratch = Some(routed.into_frames());
    }

    pub(super) fn pending_may_go_on(&self) -> bool {
        !self.pending.is_empty() && self.broker_may_publish()
    }

    /// Whether there is room for a message that is no client's. What waits for room goes on with the next progress of the ring, which
    /// wakes the shard.
    pub(super) fn broker_may_publish(&self) -> bool {
        self.may_push_to_all(Cargo::Message, 1, 0).is_ok() && self.room_for_fanouts(Source::Here) > 0
    }

    pub(super) fn publish_pending(&mut self, now: Time, budget: usize) {
        for _ in 0..budget {
            let Some(pending) = self.pending.pop_front() else { return };
            let blocked = match &pending {
                Pending::Publish { message, publisher, client_id, depth } => {
                    let publisher =
                        Publisher { session: *publisher, client_id: client_id.as_deref(), depth: *depth, waits: false };
                    self.publish(message.as_ref(), Some(message.clone()), publisher, now).is_err()
                }
                Pending::Redispatch { message, filter } => !self.redispatch_to_group(message, filter, now),
            };
            if blocked {
                self.pending.push_front(pending);
                return;
            }
        }
    }

    /// Gives a message of a shared group to a member, here or on another core; `false`: there is no room yet.
    fn redispatch_to_group(&mut self, message: &Message, filter: &Arc<str>, now: Time) -> bool {
        let Some(core) = self.pick_core_of_group(filter) else {
            self.counters.dropped_group_empty += 1;
            return true;
        };
        let mut groups = SmallVec::new();
        groups.push((core, filter.clone()));
        let route = Route { cores: 0, store: None, groups, local: Local::default() };
        if self.admit(&route, &message.as_ref()).is_err() {
            return false;
        }
        if core == self.core {
            let mut routed = Routed::new(message.as_ref(), Some(message.clone()), self.take_frames());
            self.deliver_to_group(&mut routed, filter, true, now);
            self.scratch = Some(routed.into_frames());
        } else {
            let groups = Some([filter.clone()].into());
            self.push(core, MeshMessage::Publish { message: message.clone(), deliver: false, store: false, groups });
        }
        true
    }

    /// Picks a local member of a group and delivers to it. With none here: to another core's member, if `first` is false (the message
    /// has come to a core that has just lost its last one), as a redispatch that waits for its own room.
    fn deliver_to_group(&mut self, routed: &mut Routed<'_>, filter: &Arc<str>, first: bool, now: Time) {
        let Some((member, id)) = self.next_member(filter) else {
            if first || self.pick_core_of_group(filter).is_none() {
                self.counters.dropped_group_empty += 1;
            } else {
                self.pending.push_back(Pending::Redispatch { message: routed.owned(), filter: filter.clone() });
            }
            return;
        };
        let Some(subscription) = self.sessions[member.0].subscription(true, id) else { return };
        let options = subscription.options();
        let qos = options.qos.min(routed.message.qos);
        let retain = options.retain_as_published && routed.message.retain;
        let identifier = [subscription.identifier];
        let identifiers = if subscription.identifier == 0 { &[][..] } else { &identifier[..] };
        let terms = Terms { qos, retain, identifiers, group: Some(filter) };
        self.deliver(routed, member, terms, now);
        if Fault::GiveToTwoMembers.is_planted()
            && let Some((other, _)) = self.next_member(filter)
        {
            self.deliver(routed, other, terms, now);
        }
    }
}

enum Topic {
    Given,
    Aliased(Box<str>),
}

impl Topic {
    fn as_str<'a>(&'a self, given: &'a str) -> &'a str {
        match self {
            Topic::Given => given,
            Topic::Aliased(topic) => topic,
        }
    }
}

/// The cores whose bits are set.
pub(super) fn cores_in(mut mask: u64) -> impl Iterator<Item = CoreId> {
    std::iter::from_fn(move || {
        let core = mask.trailing_zeros();
        if core == 64 {
            return None;
        }
        mask &= mask - 1;
        Some(CoreId(core as u8))
    })
}
