//! Rules at work: what they make of a message or an event, before anything has happened, and how it then happens. Records go to the
//! sink core, if there is room; messages of rules that republish stand in line with the other messages of the broker's own making.

use super::Shard;
use super::connection::{Ruled, Wait};
use super::events::Event;
use super::publish::{Pending, Publisher};
use crate::fault::Fault;
use crate::ids::{ConnectionId, SessionId, TicketId};
use crate::limits::Limits;
use crate::message::{Message, MessageRef};
use crate::record::{Parts, Record, RecordIds};
use crate::rules::{Action, EACH_MAX, Failure, Input, Part, PlannedRule, Row, RuleCounts, RuleSet, Source, Tally, Verdict, View};
use crate::session::drops::DropReason;
use crate::time::Time;
use crate::topic::{self, Hasher, TopicKey};
use crate::wire::{Connect, Properties, QoS};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of records and messages made of one message, at most: FOREACH over many elements may repeat a large payload for each.
const MADE_BYTES_MAX: u64 = 16 << 20;
/// Records made of one message, at most: they must fit the ring to the sink core beside others.
const MADE_RECORDS_MAX: usize = super::sinks::RECORDS_MAX as usize / 2;
const _: () = assert!(EACH_MAX <= MADE_RECORDS_MAX, "`rules test` must not promise what is then refused");
/// A message made of a message made of a message …: rules that republish each other end here.
pub(super) const DEPTH_MAX: u8 = 8;
/// Characters of a topic that a failure shows.
const SHOWN_MAX: usize = 80;
/// A rule's failures are told so often.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Messages of rules that wait to be published, at most.
const REPUBLISHED_MAX: usize = 65_536;

/// The rules of a shard.
pub(super) struct Rules {
    set: RuleSet,
    planned: Arc<[PlannedRule]>,
    pub(super) counts: Vec<RuleCounts>,
    node: Box<str>,
    /// Microseconds since 1970-01-01 UTC when the shard's clock showed zero.
    pub(super) epoch_us: i64,
    parts: Parts,
    ids: RecordIds,
    /// When the next failure of each rule is told.
    tell_at: Vec<Time>,
    limits: Arc<Limits>,
    pub(super) made: Made,
}

/// What rules have made of one message or event. Nothing of it has happened yet.
#[derive(Default)]
pub(super) struct Made {
    pub(super) records: Vec<MadeRecord>,
    messages: Vec<(u32, Message)>,
    tallies: Vec<(u32, Tally)>,
    /// By rule: actions that could not be made.
    dropped: Vec<u32>,
    /// By rule: why it failed, or an action of it, where that is to be told.
    failures: Vec<(u32, String)>,
    bytes: u64,
}

pub(super) struct MadeRecord {
    pub rule: u32,
    pub sink: u8,
    pub ticketed: bool,
    pub record: Record,
}

impl Made {
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.messages.clear();
        self.tallies.clear();
        self.dropped.clear();
        self.failures.clear();
        self.bytes = 0;
    }
}

impl Rules {
    pub(super) fn new(
        planned: Arc<[PlannedRule]>,
        node: Box<str>,
        epoch_us: i64,
        hasher: Hasher,
        ids: RecordIds,
        limits: Arc<Limits>,
    ) -> Self {
        let set = RuleSet::new(planned.iter().map(|planned| planned.rule.clone()).collect(), hasher);
        let counts = vec![RuleCounts::default(); planned.len()];
        let tell_at = vec![Time::default(); planned.len()];
        Self { set, planned, counts, node, epoch_us, parts: Parts::default(), ids, tell_at, limits, made: Made::default() }
    }

    /// Microseconds since 1970-01-01 UTC.
    fn unix_us(&self, now: Time) -> u64 {
        self.epoch_us.saturating_add_unsigned(now.0 / 1_000).max(0) as u64
    }

    /// Runs the rules of a topic, or of an event, over an input; what they make is in `made` afterwards.
    fn make(&mut self, key: Option<&TopicKey<'_>>, source: Source, input: Input<'_>, now: Time) {
        self.made.clear();
        let published_at_us = self.unix_us(now);
        let Self { set, planned, node, parts, ids, tell_at, limits, made, .. } = self;
        let input = Input { timestamp_ms: (published_at_us / 1_000) as i64, node, ..input };
        let take = |rule: usize, view: &View<'_>, verdict: Result<Verdict<'_>, Box<Failure>>| {
            let number = rule as u32;
            let tells = now >= tell_at[rule];
            let tally = match verdict {
                Ok(Verdict::Passed(rows)) => {
                    let mut making =
                        Making { rule: number, input: &input, view, published_at_us, parts, ids, limits, tells, made };
                    if making.all(&planned[rule].actions, &rows) { Tally::Passed } else { Tally::Failed }
                }
                Ok(Verdict::Filtered | Verdict::Nothing) => Tally::NoResult,
                Err(failure) => {
                    if tells {
                        made.failures.push((number, failure.to_string()));
                    }
                    Tally::Failed
                }
            };
            made.tallies.push((number, tally));
        };
        match key {
            Some(key) => set.publish(key, input, take),
            None => set.event(source, input, take),
        }
    }
}

/// One rule making records and messages of its rows.
struct Making<'a, 'm, 'v> {
    rule: u32,
    input: &'a Input<'m>,
    view: &'a View<'v>,
    published_at_us: u64,
    parts: &'a mut Parts,
    ids: &'a mut RecordIds,
    limits: &'a Limits,
    /// Whether a failure is to be told.
    tells: bool,
    made: &'a mut Made,
}

/// Why an action makes nothing of a row.
enum Unmade {
    /// It cannot; the others can.
    Alone(String),
    /// It would be too much, with the rest.
    TooMuch(String),
}

impl From<Box<Failure>> for Unmade {
    fn from(failure: Box<Failure>) -> Self {
        Unmade::Alone(failure.to_string())
    }
}

impl Making<'_, '_, '_> {
    /// What all actions make of all rows, without the actions that cannot; or nothing of this rule, and `false`, if it is too much.
    fn all(&mut self, actions: &[Action], rows: &[Row<'_>]) -> bool {
        let (records, messages, bytes, dropped) =
            (self.made.records.len(), self.made.messages.len(), self.made.bytes, self.made.dropped.len());
        for row in rows {
            for action in actions {
                match self.one(action, row) {
                    Ok(()) => {}
                    Err(Unmade::Alone(why)) => {
                        self.parts.clear();
                        self.made.dropped.push(self.rule);
                        self.tell(why);
                    }
                    Err(Unmade::TooMuch(why)) => {
                        self.parts.clear();
                        self.made.records.truncate(records);
                        self.made.messages.truncate(messages);
                        self.made.dropped.truncate(dropped);
                        self.made.bytes = bytes;
                        self.tell(why);
                        return false;
                    }
                }
            }
        }
        true
    }

    fn tell(&mut self, why: String) {
        if std::mem::take(&mut self.tells) {
            self.made.failures.push((self.rule, why));
        }
    }

    fn one(&mut self, action: &Action, row: &Row<'_>) -> Result<(), Unmade> {
        let bytes = match action {
            Action::Record(action) => {
                for part in &action.parts {
                    match part {
                        Part::Text(template) => template.render(row, self.view, self.parts.part())?,
                        Part::Properties => {
                            self.parts.part().extend_from_slice(self.input.properties.map_or(&[][..], Properties::as_bytes));
                        }
                        Part::Id => {
                            let unix_time_s = (self.published_at_us / 1_000_000) as u32;
                            self.parts.part().extend_from_slice(&self.ids.next(unix_time_s));
                        }
                    }
                    self.parts.end();
                }
                let qos0 = self.input.qos.is_none_or(|qos| qos == 0);
                let record = Record::new(action.id, self.published_at_us, qos0, self.parts);
                let bytes = record.bytes();
                let made = MadeRecord { rule: self.rule, sink: action.sink, ticketed: action.ticketed, record };
                self.made.records.push(made);
                bytes
            }
            Action::Republish(republish) => {
                let (mut topic, mut payload) = (Vec::new(), Vec::new());
                republish.topic.render(row, self.view, &mut topic)?;
                republish.payload.render(row, self.view, &mut payload)?;
                let topic = self.topic(topic)?;
                let properties = self.input.properties.filter(|_| republish.properties);
                let message = Message::from(MessageRef {
                    topic: &topic,
                    properties: properties.map_or(&[][..], Properties::as_bytes),
                    payload: &payload,
                    qos: republish.qos.unwrap_or_else(|| qos(self.input.qos)),
                    retain: republish.retain,
                    expires_at: Time::NEVER,
                });
                let bytes = message.bytes() as u64;
                self.made.messages.push((self.rule, message));
                bytes
            }
        };
        self.made.bytes += bytes;
        if self.made.bytes > MADE_BYTES_MAX || self.made.records.len() > MADE_RECORDS_MAX {
            return Err(self.too_much());
        }
        Ok(())
    }

    #[cold]
    fn too_much(&self) -> Unmade {
        Unmade::TooMuch(if self.made.bytes > MADE_BYTES_MAX {
            format!("it made more than {MADE_BYTES_MAX} bytes of one message")
        } else {
            format!("it made more than {MADE_RECORDS_MAX} records of one message")
        })
    }

    /// What a template has made, if it can be published to.
    fn topic(&self, made: Vec<u8>) -> Result<String, Unmade> {
        let topic = String::from_utf8(made).map_err(|_| Unmade::Alone("the topic to publish to is not UTF-8".to_owned()))?;
        match topic::check_made_name(&topic, self.limits.topic_levels_max, self.limits.topic_bytes_max) {
            Ok(()) => Ok(topic),
            Err(error) => {
                let shown: String = topic.chars().take(SHOWN_MAX).collect();
                Err(Unmade::Alone(format!("it cannot publish to {shown:?}: {error}")))
            }
        }
    }
}

/// What a message has for a rule to read.
fn input_of<'a>(message: &MessageRef<'a>) -> Input<'a> {
    Input {
        topic: Some(message.topic),
        payload: Some(message.payload),
        qos: Some(message.qos as u8),
        retain: Some(message.retain),
        properties: Some(Properties::from_validated(message.properties)),
        ..Input::default()
    }
}

fn qos(qos: Option<u8>) -> QoS {
    match qos {
        Some(2) => QoS::ExactlyOnce,
        Some(1) => QoS::AtLeastOnce,
        _ => QoS::AtMostOnce,
    }
}

impl Shard {
    /// What was made happens: it is counted, records go on their way, messages stand in line. Room has been found; `ticket`: the
    /// publisher's acknowledgement waits for the records that want it.
    pub(super) fn act(&mut self, rules: &mut Rules, publisher: Publisher<'_>, now: Time) -> Option<TicketId> {
        let Rules { made, counts, planned, tell_at, .. } = rules;
        for (rule, tally) in made.tallies.drain(..) {
            counts[rule as usize].count(tally);
        }
        for rule in made.dropped.drain(..) {
            counts[rule as usize].dropped += 1;
        }
        for (rule, what) in made.failures.drain(..) {
            tell_at[rule as usize] = now + TELL_EVERY;
            let name = planned[rule as usize].name.clone();
            self.effects.events.push(Event::RuleFailed { rule, name, what });
        }
        self.work += made.records.len() + made.messages.len();
        let client_id = (!made.messages.is_empty()).then(|| self.client_id_of_publisher(publisher)).flatten();
        for (rule, message) in made.messages.drain(..) {
            let counts = &mut counts[rule as usize];
            if publisher.depth >= DEPTH_MAX {
                self.counters.dropped_republish_loop += 1;
                counts.dropped += 1;
            } else if self.pending.len() >= REPUBLISHED_MAX {
                self.counters.dropped_republish_full += 1;
                counts.dropped += 1;
            } else {
                counts.actions += 1;
                self.counters.messages_republished += 1;
                let (client_id, depth) = (client_id.clone(), publisher.depth + 1);
                self.pending.push_back(Pending::Publish { message, publisher: None, client_id, depth });
            }
        }
        let waits_for = made.records.iter().filter(|made| made.ticketed).count() as u32;
        let waits = publisher.waits && !Fault::AcknowledgeBeforeSink.is_planted();
        let ticket = (waits && waits_for > 0).then(|| self.issue_ticket(waits_for));
        for MadeRecord { rule, sink, ticketed, mut record } in made.records.drain(..) {
            counts[rule as usize].actions += 1;
            record.ticket = ticket.filter(|_| ticketed);
            self.push_record(sink, record);
        }
        made.clear();
        ticket
    }

    fn client_id_of_publisher(&self, publisher: Publisher<'_>) -> Option<Box<str>> {
        let of_client = || Some(&*self.sessions[publisher.session?.0].client_id);
        publisher.client_id.or_else(of_client).map(Into::into)
    }

    /// What rules make of a message is made, admitted and done: whether there was any action, and what the publisher's acknowledgement
    /// waits for. Err: there is no room yet and nothing has happened.
    pub(super) fn apply_rules(
        &mut self,
        rules: &mut Rules,
        key: &TopicKey<'_>,
        message: &MessageRef<'_>,
        publisher: Publisher<'_>,
        now: Time,
    ) -> Result<(bool, Option<TicketId>), Wait> {
        // A will's session may have ended, and its place be another's.
        let client = publisher.session.filter(|_| publisher.client_id.is_none());
        let ruled = client.and_then(|session| self.ruled_of(session));
        let of_client = client.map(|session| &*self.sessions[session.0].client_id);
        let input = Input {
            client_id: publisher.client_id.or(of_client),
            username: ruled.and_then(|ruled| ruled.username.as_deref()),
            peer_address: ruled.and_then(|ruled| ruled.peer_address),
            ..input_of(message)
        };
        rules.make(Some(key), Source::Message, input, now);
        if rules.made.tallies.is_empty() {
            return Ok((false, None));
        }
        if publisher.waits {
            self.admit_records(rules)?;
        } else {
            self.drop_without_room(rules);
        }
        let acts = !rules.made.records.is_empty() || !rules.made.messages.is_empty();
        Ok((acts, self.act(rules, publisher, now)))
    }

    /// Who a session's client is, while it is connected and if there are rules.
    fn ruled_of(&self, session: SessionId) -> Option<&Ruled> {
        let slot = self.sessions[session.0].connection?;
        self.connections[slot].ruled.as_deref()
    }

    /// Where a client is, told by the shell right after the accept if there are rules.
    pub fn on_peer_address(&mut self, id: ConnectionId, address: SocketAddr) {
        if self.rules.is_some()
            && let Some(connection) = self.connection_mut(id)
        {
            connection.ruled.get_or_insert_default().peer_address = Some(address);
        }
    }

    /// Whether [`Shard::on_peer_address`] is of use.
    pub fn wants_peer_address(&self) -> bool {
        self.rules.is_some()
    }

    pub(super) fn raise_connected(&mut self, session: SessionId, connect: &Connect<'_>, resumed: bool, now: Time) {
        let input = Input {
            protocol_version: Some(connect.version as u8),
            keep_alive_s: Some(connect.keep_alive_s),
            clean_start: Some(connect.clean_start),
            session_expiry_s: connect.session_expiry_interval_s,
            resumed: Some(resumed),
            ..Input::default()
        };
        self.raise(Source::ClientConnected, session, input, now);
    }

    pub(super) fn raise_disconnected(&mut self, session: SessionId, why: &'static str, now: Time) {
        self.raise(Source::ClientDisconnected, session, Input { reason: Some(why), ..Input::default() }, now);
    }

    pub(super) fn raise_subscribed(&mut self, session: SessionId, filter: &str, qos: u8, now: Time) {
        let input = Input { topic: Some(filter), qos: Some(qos), ..Input::default() };
        self.raise(Source::SessionSubscribed, session, input, now);
    }

    pub(super) fn raise_dropped(&mut self, session: SessionId, message: &MessageRef<'_>, reason: DropReason, now: Time) {
        self.raise(Source::MessageDropped, session, Input { reason: Some(reason.text()), ..input_of(message) }, now);
    }

    pub(super) fn raise_delivered(&mut self, session: SessionId, message: &MessageRef<'_>, now: Time) {
        self.raise(Source::MessageDelivered, session, input_of(message), now);
    }

    /// Whether anyone wants to hear of deliveries, which are many.
    pub(super) fn tells_of_deliveries(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.set.wants(Source::MessageDelivered))
    }

    /// Runs the rules of an event about a session's client. Events never wait: what finds no room is dropped and counted.
    fn raise(&mut self, event: Source, session: SessionId, of_event: Input<'_>, now: Time) {
        let Some(mut rules) = self.rules.take_if(|rules| rules.set.wants(event)) else { return };
        let ruled = self.ruled_of(session);
        let input = Input {
            client_id: Some(&self.sessions[session.0].client_id),
            username: ruled.and_then(|ruled| ruled.username.as_deref()),
            peer_address: ruled.and_then(|ruled| ruled.peer_address),
            ..of_event
        };
        rules.make(None, event, input, now);
        self.drop_without_room(&mut rules);
        let client_id = self.sessions[session.0].client_id.clone();
        self.act(&mut rules, Publisher { client_id: Some(&client_id), ..Publisher::default() }, now);
        self.rules = Some(rules);
    }

    /// The rules' names, in the order of [`Shard::rule_counts`].
    pub(super) fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().flat_map(|rules| rules.planned.iter().map(|planned| &*planned.name))
    }

    /// What each rule has done so far.
    pub fn rule_counts(&self) -> &[RuleCounts] {
        self.rules.as_ref().map_or(&[], |rules| &rules.counts)
    }

    /// Sets the wall clock: microseconds since 1970-01-01 UTC when the shard's clock showed zero.
    pub fn set_epoch(&mut self, epoch_us: i64) {
        if let Some(rules) = &mut self.rules {
            rules.epoch_us = epoch_us;
        }
    }
}
