//! What MQTT's rules say about a run, told naively: no cores, no rings, no queues. It hears what clients send and receive, in the order
//! of virtual time, and says when something arrives that must not, or does not that must.
//!
//! It reasons from what a client can know. A message is *certain* once its acknowledgement is received: it was routed between sending
//! and that. So it is owed to those whose SUBACK came before it was sent and who had not begun to leave when it was certain.

use crate::client::message_of;
use crate::script::{ConnectSpec, Script};
use crate::sink;
use corelane::time::Time;
use corelane::topic;
use corelane::wire::{QoS, RetainHandling, SubscriptionOptions};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

pub type MessageId = usize;

#[derive(Debug, Clone)]
pub struct Failure {
    pub property: &'static str,
    pub detail: String,
    /// Words whose lines in the trace tell the story: client names, topics, messages.
    pub subjects: Vec<String>,
}

#[derive(Debug)]
pub struct Message {
    pub publisher: usize,
    pub topic: &'static str,
    /// Counts per publisher and topic.
    pub sequence: u32,
    pub qos: QoS,
    pub retain: bool,
    /// It has no payload and so removes what is retained.
    pub clear: bool,
    pub expiry_s: Option<u32>,
    pub payload_len: usize,
    pub sent_at: Time,
    /// How often the publisher has sent it.
    pub sends: u32,
    /// QoS 2 was sent again in a session that may be another one, which may route it again.
    pub in_doubt: bool,
    pub certain_at: Option<Time>,
    /// Nothing of it is on its way any more.
    pub settled_at: Option<Time>,
    pub refused: bool,
    pub will: Option<WillState>,
    /// Of a will whose connection has broken.
    pub due: Option<Due>,
    /// It must not arrive before then.
    pub not_before: Time,
}

/// A will that is to be published, unless its session goes on before its delay has passed.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// When its connection ended, at the earliest.
    from: Time,
    delay: Duration,
    socket: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WillState {
    /// Its connection lives, as far as its client knows.
    Held,
    /// It may have been published, or not.
    Open,
    /// See [`Due`].
    Due,
    Discarded,
}

/// Options of a subscription while they may hold.
struct Terms {
    token: u64,
    options: SubscriptionOptions,
    identifier: Option<u32>,
    from: Time,
    until: Option<Time>,
}

struct Subscription {
    filter: &'static str,
    terms: Vec<Terms>,
    confirmed_at: Option<Time>,
    leaving: bool,
    gone_at: Option<Time>,
}

struct Replay {
    token: u64,
    filter: &'static str,
    from: Time,
    /// SUBACK has come: it has begun.
    confirmed_at: Option<Time>,
    topics: HashSet<&'static str>,
}

struct Session {
    /// It exists for certain; otherwise a CONNECT or its end got lost on the way.
    certain: bool,
    expiry_s: u32,
    connected: bool,
    /// When the CONNECT was sent that has begun or resumed it last.
    connect_sent_at: Time,
    connected_since: Time,
    lost_at: Time,
    /// When the broker closed its connection, if it did before the client.
    closed_at: Option<Time>,
    /// Its expiry interval has passed, for its client; the broker may be a little later.
    expired: bool,
    /// It must have expired by then, unless a CONNECT resumes it.
    gone_by: Option<Time>,
    subscriptions: Vec<Subscription>,
    replays: Vec<Replay>,
    /// Live deliveries by message.
    received: HashMap<MessageId, u32>,
    received_at: HashMap<MessageId, (Time, QoS)>,
    replayed: HashSet<MessageId>,
    last: HashMap<(usize, &'static str, QoS), u32>,
    owed: BTreeSet<MessageId>,
    /// QoS 0: owed while the connection lasts.
    owed_now: BTreeSet<MessageId>,
}

/// A message to shared groups. Which of several groups a delivery was for cannot be seen, so they are counted together.
#[derive(Default)]
struct Shared {
    /// Groups, by full filter, that had a member all the time it was on its way.
    owing: BTreeSet<&'static str>,
    deliveries: u32,
    /// It may have gone to another member too, because the session of the first one ended: at QoS 1, unacknowledged.
    may_repeat: bool,
    at_least_once: bool,
    /// It may be lost: a member went away with it.
    may_be_lost: bool,
}

pub struct Oracle {
    pub failure: Option<Failure>,
    pub messages: Vec<Message>,
    names: Vec<String>,
    sequences: HashMap<(usize, &'static str), u32>,
    sessions: Vec<Option<Session>>,
    shared: BTreeMap<MessageId, Shared>,
    /// All shared filters that were ever subscribed to.
    shared_filters: BTreeSet<&'static str>,
    next_token: u64,
    /// There is a sink. What its core has taken, the last of each publisher and topic, and what it has for good.
    sink: bool,
    taken: HashSet<MessageId>,
    last_taken: HashMap<(usize, &'static str), u32>,
    at_sink: HashSet<MessageId>,
    /// Sessions whose expiry interval is no longer may end at any time: with cores that sleep, the time by which theirs counts is old.
    short_expiry_s: u32,
    /// Cores' clocks are no further behind.
    behind: Duration,
    /// What has fallen due is done by then.
    late: Duration,
    /// Messages that were owed and had not come when all was quiet.
    pub missing: u64,
    pub checked: u64,
}

/// A PUBLISH as a client received it.
#[derive(Debug)]
pub struct Delivered<'a> {
    pub message: Option<MessageId>,
    pub topic: &'a str,
    pub qos: QoS,
    pub retain: bool,
    /// The QoS 1 redelivery of a packet that the client has seen before.
    pub again: bool,
    pub dup: bool,
    pub identifiers: Vec<u32>,
    /// The message expiry interval, if the client's version has one.
    pub expiry_s: Option<Option<u32>>,
    pub payload_len: usize,
}

/// The part of a filter that topics are matched with.
fn plain(filter: &str) -> &str {
    filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')).map_or(filter, |(_, plain)| plain)
}

fn matches(filter: &str, name: &str) -> bool {
    topic::matches(plain(filter), name)
}

fn is_shared(filter: &str) -> bool {
    filter.starts_with("$share/")
}

impl Subscription {
    /// The options that may have held at some time in `from ..= until`.
    fn options_between(&self, from: Time, until: Time) -> impl Iterator<Item = SubscriptionOptions> {
        self.terms
            .iter()
            .filter(move |terms| terms.from <= until && terms.until.is_none_or(|end| end >= from))
            .map(|terms| terms.options)
    }

    /// A message may have been routed by it.
    fn may_match(&self, message: &Message, now: Time) -> bool {
        matches(self.filter, message.topic)
            && self.terms.first().is_some_and(|terms| terms.from <= message.settled_at.unwrap_or(now))
            && self.gone_at.is_none_or(|gone| message.sent_at <= gone)
    }
}

impl Oracle {
    pub fn new(script: &Script) -> Self {
        Self {
            failure: None,
            messages: Vec::new(),
            names: script.clients.iter().map(|client| client.id.clone()).collect(),
            sequences: HashMap::new(),
            sessions: script.clients.iter().map(|_| None).collect(),
            shared: BTreeMap::new(),
            shared_filters: BTreeSet::new(),
            next_token: 1,
            short_expiry_s: if script.rough { 10 } else { 0 },
            // A core that sleeps in the midst of a turn goes on by the time at which that began; it may sleep for seconds a few times.
            behind: Duration::from_millis(if script.rough { 30_000 } else { 200 }),
            late: Duration::from_secs(if script.rough { 60 } else { 3 }),
            sink: script.sink,
            taken: HashSet::new(),
            last_taken: HashMap::new(),
            at_sink: HashSet::new(),
            missing: 0,
            checked: 0,
        }
    }

    pub fn fail(&mut self, property: &'static str, detail: String, subjects: Vec<String>) {
        if self.failure.is_none() {
            self.failure = Some(Failure { property, detail, subjects });
        }
    }

    fn fail_about(&mut self, property: &'static str, client: usize, message: MessageId, what: &str) {
        let m = &self.messages[message];
        let detail = format!("{what}: client {:?}, message m{message} {m:?}", self.names[client]);
        let subjects = vec![format!("m{message} "), self.names[client].clone()];
        self.fail(property, detail, subjects);
    }

    // Publishers.

    /// What [`Oracle::new_message`] will return next.
    pub fn next_message(&self) -> MessageId {
        self.messages.len()
    }

    #[expect(clippy::too_many_arguments, reason = "a message's facts")]
    pub fn new_message(
        &mut self,
        publisher: usize,
        topic: &'static str,
        qos: QoS,
        retain: bool,
        clear: bool,
        expiry_s: Option<u32>,
        payload_len: usize,
        will: bool,
        now: Time,
    ) -> MessageId {
        let sequence = self.sequences.entry((publisher, topic)).or_default();
        *sequence += 1;
        self.messages.push(Message {
            publisher,
            topic,
            sequence: *sequence,
            qos,
            retain,
            clear,
            expiry_s,
            payload_len,
            sent_at: now,
            sends: 1,
            in_doubt: false,
            certain_at: None,
            settled_at: None,
            refused: false,
            will: will.then_some(WillState::Held),
            due: None,
            not_before: Time(0),
        });
        self.messages.len() - 1
    }

    /// `in_doubt`: the session may not be the one in which it was sent before.
    pub fn on_sent_again(&mut self, message: MessageId, in_doubt: bool) {
        self.messages[message].sends += 1;
        self.messages[message].in_doubt |= in_doubt;
        self.messages[message].settled_at = None;
    }

    pub fn on_refused(&mut self, message: MessageId) {
        self.messages[message].refused = true;
    }

    /// The sink core has taken a record: those of one publisher and topic come in order, repetitions aside.
    pub fn on_taken(&mut self, payload: &[u8]) {
        let Some(id) = message_of(payload).filter(|id| self.taken.insert(*id)) else { return };
        let message = &self.messages[id];
        if message.will.is_some() {
            return;
        }
        let (publisher, topic, sequence) = (message.publisher, message.topic, message.sequence);
        let last = self.last_taken.entry((publisher, topic)).or_insert(sequence);
        if sequence < *last {
            let detail = format!("m{id} to {topic} comes to the sink after a later one");
            return self.fail("order", detail, vec![format!("m{id} ")]);
        }
        *last = sequence;
    }

    /// The sink has a message for good.
    pub fn on_record(&mut self, payload: &[u8]) {
        self.at_sink.extend(message_of(payload));
    }

    /// A QoS 1 or 2 message is acknowledged: if it was to go to the sink it is there.
    pub fn on_acknowledged(&mut self, id: MessageId) {
        let message = &self.messages[id];
        if self.sink && !message.clear && topic::matches(sink::FILTER, message.topic) && !self.at_sink.contains(&id) {
            let detail = format!("m{id} to {} is acknowledged and the sink does not have it", message.topic);
            self.fail("delivered", detail, vec![format!("m{id} ")]);
        }
    }

    /// The broker has taken a message for certain: from here on it is owed.
    pub fn on_certain(&mut self, id: MessageId, now: Time) {
        let message = &mut self.messages[id];
        if message.certain_at.is_some() || message.refused {
            return;
        }
        message.certain_at = Some(now);
        let message = &self.messages[id];
        // Who was there all the time from then on is owed it.
        let since = message.due.map_or(message.sent_at, |due| due.from + due.delay.saturating_sub(self.behind));
        if message.expiry_s.is_some() || message.clear {
            // It may expire on its way; it carries no payload to be known by.
            return;
        }
        for (client, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session.as_mut().filter(|session| session.certain) else { continue };
            if session.received.contains_key(&id) || session.replayed.contains(&id) {
                continue;
            }
            let qos =
                session.subscriptions.iter().filter(|subscription| !is_shared(subscription.filter)).filter_map(|subscription| {
                    let holds = matches(subscription.filter, message.topic)
                        && subscription.confirmed_at.is_some_and(|at| at < since)
                        && !subscription.leaving
                        && subscription.gone_at.is_none();
                    if !holds {
                        return None;
                    }
                    let options = || subscription.options_between(since, now);
                    if message.publisher == client && options().any(|options| options.no_local) {
                        return None;
                    }
                    options().map(|options| options.qos).min()
                });
            match qos.max().map(|qos| qos.min(message.qos)) {
                None => {}
                Some(QoS::AtMostOnce) if !session.connected || session.connected_since >= since => {}
                Some(QoS::AtMostOnce) => {
                    session.owed_now.insert(id);
                }
                Some(_) => {
                    session.owed.insert(id);
                }
            }
        }
        // A group owes it if a member was there all the time.
        if !message.topic.starts_with("s/") {
            return;
        }
        let shared = self.shared.entry(id).or_default();
        for session in self.sessions.iter().flatten().filter(|session| session.certain) {
            for subscription in &session.subscriptions {
                let holds = is_shared(subscription.filter)
                    && matches(subscription.filter, message.topic)
                    && subscription.confirmed_at.is_some_and(|at| at < since)
                    && !subscription.leaving
                    && subscription.gone_at.is_none();
                if holds {
                    shared.owing.insert(subscription.filter);
                }
            }
        }
        // At QoS 0 it is lost with any member that is not there.
        shared.owing.retain(|filter| {
            self.sessions.iter().flatten().all(|session| {
                session.connected && session.connected_since < since
                    || session
                        .subscriptions
                        .iter()
                        .filter(|s| s.filter == *filter)
                        .flat_map(|s| s.options_between(since, now))
                        .all(|options| options.qos.min(message.qos) > QoS::AtMostOnce)
            })
        });
    }

    // Sessions.

    pub fn on_connect_sent(&mut self, client: usize, clean: bool, now: Time) {
        self.on_disconnected(client, now);
        // A delayed will is published or not, whether the session goes on in time or ends.
        for message in self.messages.iter_mut().filter(|message| message.publisher == client) {
            if message.due.is_some_and(|due| !due.delay.is_zero()) && message.certain_at.is_none() {
                message.will = Some(WillState::Open);
            }
        }
        if clean {
            self.session_may_have_ended(client);
        }
    }

    // Wills.

    /// A connection with a will has broken: the will is published when its delay has passed or its session ends, whichever is first
    /// [MQTT-3.1.2-8], unless the session goes on before [MQTT-3.1.3-9].
    pub fn on_will_due(&mut self, will: MessageId, socket: usize, delay_s: u32, now: Time) {
        let delay = Duration::from_secs(delay_s.into());
        let message = &mut self.messages[will];
        message.will = Some(WillState::Due);
        message.due = Some(Due { from: now, delay, socket });
        message.not_before = now + delay.saturating_sub(self.behind);
    }

    /// The session goes on: wills whose delay has not passed will never be published.
    fn cancel_wills(&mut self, client: usize, now: Time) {
        for message in self.messages.iter_mut().filter(|message| message.publisher == client && message.certain_at.is_none()) {
            let Some(due) = message.due.take_if(|due| !due.delay.is_zero()) else { continue };
            let cancelled = now < due.from + due.delay.saturating_sub(self.behind);
            message.will = Some(if cancelled { WillState::Discarded } else { WillState::Open });
        }
    }

    /// All is quiet: wills that were due have been published, if their connections are gone for the broker too.
    pub fn settle_wills(&mut self, is_closed: impl Fn(usize) -> bool, now: Time) {
        for id in 0..self.messages.len() {
            let Some(due) = self.messages[id].due.filter(|_| self.messages[id].will == Some(WillState::Due)) else { continue };
            let late = if due.delay.is_zero() { Duration::ZERO } else { self.late };
            if is_closed(due.socket) && now >= due.from + due.delay + late {
                self.on_certain(id, now);
            }
        }
    }

    /// CONNACK: the session is this connection's.
    pub fn on_connected(&mut self, client: usize, connect: &ConnectSpec, present: bool, sent_at: Time, now: Time) {
        let name = self.names[client].clone();
        if present {
            if connect.clean {
                self.fail("session", format!("{name}: session present after a clean start"), vec![name]);
                return;
            }
            let Some(session) = self.sessions[client].as_mut().filter(|session| session.certain) else {
                self.fail("session", format!("{name}: session present where none was left"), vec![name]);
                return;
            };
            if let Some(by) = session.gone_by.take()
                && sent_at > by + self.late
            {
                self.fail("session", format!("{name}: session present that must have expired by {by:?}"), vec![name]);
                return;
            }
            session.connected = true;
            session.connect_sent_at = sent_at;
            session.connected_since = now;
            session.expired = false;
            session.closed_at = None;
            session.expiry_s = connect.expiry_s;
            self.cancel_wills(client, now);
            return;
        }
        if let Some(session) = &self.sessions[client]
            && session.certain
            && !connect.clean
            && session.expiry_s > self.short_expiry_s
            && (session.expiry_s == u32::MAX || now.saturating_since(session.lost_at).as_secs() < u64::from(session.expiry_s))
        {
            let detail =
                format!("{name}: session lost {:?} after its connection; expiry {} s", now - session.lost_at, session.expiry_s);
            self.fail("session", detail, vec![name]);
            return;
        }
        self.end_session(client);
        self.sessions[client] = Some(Session {
            certain: true,
            expiry_s: connect.expiry_s,
            connected: true,
            connect_sent_at: sent_at,
            connected_since: now,
            lost_at: now,
            closed_at: None,
            expired: false,
            gone_by: None,
            subscriptions: Vec::new(),
            replays: Vec::new(),
            received: HashMap::new(),
            received_at: HashMap::new(),
            replayed: HashSet::new(),
            last: HashMap::new(),
            owed: BTreeSet::new(),
            owed_now: BTreeSet::new(),
        });
    }

    /// A client's connection is over, as it sees it.
    pub fn on_disconnected(&mut self, client: usize, now: Time) {
        let Some(session) = &mut self.sessions[client] else { return };
        if !session.connected {
            return;
        }
        session.connected = false;
        session.lost_at = session.closed_at.take().unwrap_or(now);
        session.gone_by = (session.expiry_s < u32::MAX).then(|| now + Duration::from_secs(session.expiry_s.into()));
        session.owed_now.clear();
        let ends = session.expiry_s == 0;
        self.loosen_groups_of(client, false);
        if ends {
            self.session_may_have_ended(client);
        }
    }

    /// The broker closes a client's connection, which the client does not know yet.
    pub fn on_closed_by_broker(&mut self, client: usize, now: Time) {
        if let Some(session) = &mut self.sessions[client] {
            session.closed_at.get_or_insert(now);
        }
        let ended = self.sessions[client].as_ref().is_some_and(|session| session.expiry_s == 0);
        self.loosen_groups_of(client, ended);
    }

    /// A shared message that was on its way to this client may be lost (QoS 0, and QoS 2 if the session ends) or go to another member.
    fn loosen_groups_of(&mut self, client: usize, ended: bool) {
        let Some(session) = &self.sessions[client] else { return };
        let filters: Vec<_> = session.subscriptions.iter().map(|s| s.filter).filter(|filter| is_shared(filter)).collect();
        let may_be_at_qos_0 = |message: &Message| {
            let shared = session.subscriptions.iter().filter(|s| is_shared(s.filter) && matches(s.filter, message.topic));
            shared.flat_map(|s| &s.terms).any(|terms| terms.options.qos == QoS::AtMostOnce)
        };
        for (id, message) in self.messages.iter().enumerate().filter(|(_, message)| message.topic.starts_with("s/")) {
            if filters.iter().any(|filter| matches(filter, message.topic)) {
                let shared = self.shared.entry(id).or_default();
                shared.may_repeat |= ended;
                // At QoS 1 it is given to another member.
                shared.may_be_lost |= message.qos != QoS::AtLeastOnce || may_be_at_qos_0(message);
            }
        }
    }

    /// Sessions expire.
    fn expire(&mut self, now: Time) {
        for client in 0..self.sessions.len() {
            let Some(session) = self.sessions[client].as_mut().filter(|session| !session.connected && !session.expired) else {
                continue;
            };
            if now - session.lost_at >= Duration::from_secs(session.expiry_s.into()) {
                session.expired = true;
                session.owed.clear();
                self.loosen_groups_of(client, true);
            }
        }
    }

    /// Something was sent that ends the session when it gets there: nothing is owed to it any more.
    pub fn session_may_have_ended(&mut self, client: usize) {
        self.loosen_groups_of(client, true);
        // With the session its wills are published, however long their delay.
        for message in self.messages.iter_mut().filter(|message| message.publisher == client) {
            message.not_before = Time(0);
            if message.certain_at.is_none() && message.due.take_if(|due| !due.delay.is_zero()).is_some() {
                message.will = Some(WillState::Open);
            }
        }
        if let Some(session) = &mut self.sessions[client] {
            session.certain = false;
            session.owed.clear();
            session.owed_now.clear();
        }
    }

    /// All is quiet and the broker has no connection of this client: its session has ended for certain if it was to end with its
    /// connection, or its time is over.
    pub fn on_gone(&mut self, client: usize, now: Time) {
        let Some(session) = self.sessions[client].as_ref().filter(|session| !session.connected) else { return };
        if session.gone_by.is_some_and(|by| session.expiry_s == 0 || now > by + self.late) {
            self.end_session(client);
        }
    }

    /// It has ended for certain.
    pub fn end_session(&mut self, client: usize) {
        self.session_may_have_ended(client);
        self.sessions[client] = None;
    }

    /// A CONNECT that would resume the session was sent, and its connection lost.
    pub fn on_connect_lost(&mut self, client: usize, expiry_s: u32) {
        if let Some(session) = &mut self.sessions[client] {
            // If it was read, the time counts anew from there; if not, from before.
            session.expiry_s = session.expiry_s.min(expiry_s);
            // If it was not, the connection that it would have taken over may still be there.
            session.gone_by = None;
        }
    }

    /// Whether a client's session is there for certain.
    pub fn has_session(&self, client: usize, now: Time) -> bool {
        self.sessions[client].as_ref().is_some_and(|session| {
            let expires = Duration::from_secs(session.expiry_s.into());
            session.certain && (session.connected || session.expiry_s == u32::MAX || now - session.lost_at < expires)
        })
    }

    // Subscribers.

    /// Returns what [`Oracle::on_subscribed`] is to be told.
    pub fn on_subscribe_sent(
        &mut self,
        client: usize,
        filter: &'static str,
        options: SubscriptionOptions,
        identifier: Option<u32>,
        now: Time,
    ) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        if is_shared(filter) {
            self.shared_filters.insert(filter);
        }
        let Some(session) = &mut self.sessions[client] else { return token };
        // It holds at once for what is being given out just now.
        let messages = &self.messages;
        let excluded =
            |id: &MessageId| options.no_local && messages[*id].publisher == client && matches(filter, messages[*id].topic);
        session.owed.retain(|id| !excluded(id));
        session.owed_now.retain(|id| !excluded(id));
        if options.qos == QoS::AtMostOnce {
            let (lowered, kept) =
                std::mem::take(&mut session.owed).into_iter().partition(|id| matches(filter, messages[*id].topic));
            session.owed = kept;
            let lowered: BTreeSet<MessageId> = lowered;
            session.owed_now.extend(lowered.into_iter().filter(|_| session.connected));
        }
        let terms = Terms { token, options, identifier, from: now, until: None };
        let current = session.subscriptions.iter_mut().find(|s| s.filter == filter && !s.leaving && s.gone_at.is_none());
        match current {
            Some(subscription) => subscription.terms.push(terms),
            None => session.subscriptions.push(Subscription {
                filter,
                terms: vec![terms],
                confirmed_at: None,
                leaving: false,
                gone_at: None,
            }),
        }
        if options.retain_handling != RetainHandling::DoNotSend && !is_shared(filter) {
            session.replays.push(Replay { token, filter, from: now, confirmed_at: None, topics: HashSet::new() });
        }
        token
    }

    pub fn on_subscribed(&mut self, client: usize, token: u64, now: Time) {
        let Some(session) = &mut self.sessions[client] else { return };
        session.replays.iter_mut().filter(|replay| replay.token == token).for_each(|replay| replay.confirmed_at = Some(now));
        for subscription in &mut session.subscriptions {
            let Some(position) = subscription.terms.iter().position(|terms| terms.token == token) else { continue };
            subscription.terms[..position].iter_mut().for_each(|terms| terms.until = terms.until.or(Some(now)));
            if !subscription.leaving {
                subscription.confirmed_at.get_or_insert(now);
            }
        }
    }

    pub fn on_unsubscribe_sent(&mut self, client: usize, filter: &'static str) {
        let Some(session) = &mut self.sessions[client] else { return };
        session.subscriptions.iter_mut().filter(|s| s.filter == filter).for_each(|s| s.leaving = true);
        // What is on its way between cores may come too late for it, unless another subscription wants it.
        let messages = &self.messages;
        let stays = |id: &MessageId| {
            let confirmed = |s: &Subscription| s.confirmed_at.is_some_and(|at| at < messages[*id].sent_at);
            let holds = |s: &&Subscription| !s.leaving && s.gone_at.is_none() && !is_shared(s.filter) && confirmed(s);
            session.subscriptions.iter().filter(holds).any(|s| matches(s.filter, messages[*id].topic))
        };
        session.owed.retain(stays);
        session.owed_now.retain(stays);
    }

    pub fn on_unsubscribed(&mut self, client: usize, filter: &'static str, sent_at: Time, now: Time) {
        let Some(session) = &mut self.sessions[client] else { return };
        let left = session.subscriptions.iter_mut().filter(|s| s.filter == filter && s.leaving && s.terms[0].from <= sent_at);
        left.for_each(|s| {
            s.gone_at.get_or_insert(now);
        });
    }

    /// A PUBLISH came, other than one that repeats a QoS 2 exchange going on.
    pub fn on_delivered(&mut self, client: usize, delivered: &Delivered<'_>, now: Time) {
        self.checked += 1;
        self.expire(now);
        let name = self.names[client].clone();
        let Some(id) = delivered.message.filter(|id| self.messages.get(*id).is_some_and(|m| m.topic == delivered.topic)) else {
            self.fail("content", format!("{name} received what nobody sent: {delivered:?}"), vec![name]);
            return;
        };
        let m = &self.messages[id];
        if m.refused {
            return self.fail_about("no match", client, id, "a refused message was delivered");
        }
        if m.will == Some(WillState::Discarded) || m.will == Some(WillState::Held) {
            return self.fail_about("will", client, id, "a will was published that was not due");
        }
        if now < m.not_before {
            return self.fail_about("will", client, id, "a will was published before its delay had passed");
        }
        if delivered.payload_len != m.payload_len {
            return self.fail_about("content", client, id, "delivered with another payload than published");
        }
        let Some(session) = &mut self.sessions[client] else {
            return self.fail_about("no match", client, id, "a message without a session");
        };
        if let Some(expiry_s) = delivered.expiry_s {
            // It has waited at least from its acknowledgement to the subscriber's CONNECT, and at most from its sending to now.
            let waited = m.certain_at.map_or(Duration::ZERO, |at| session.connect_sent_at.saturating_since(at));
            let most_s = m.expiry_s.map(|s| u64::from(s).checked_sub(waited.saturating_sub(self.behind).as_secs()));
            let least_s = m.expiry_s.map_or(0, |s| u64::from(s).saturating_sub((now - m.sent_at + self.behind).as_secs() + 1));
            let right = match (expiry_s.map(u64::from), most_s) {
                (None, None) => true,
                (Some(left_s), Some(Some(most_s))) => (least_s..=most_s.max(1)).contains(&left_s),
                // What was begun before it expired may be finished.
                (Some(_), Some(None)) => delivered.dup,
                _ => false,
            };
            if !right {
                let what = format!("message expiry interval {expiry_s:?}, may be {least_s} to {most_s:?}");
                return self.fail_about("message expiry", client, id, &what);
            }
        }
        if delivered.qos > m.qos {
            return self.fail_about("qos", client, id, "delivered at a higher QoS than published");
        }
        if delivered.again {
            return;
        }
        let has_identifier = |identifier: &u32| {
            let matching = session.subscriptions.iter().filter(|s| matches(s.filter, m.topic));
            matching.flat_map(|s| &s.terms).any(|terms| terms.identifier == Some(*identifier))
        };
        if !delivered.identifiers.iter().all(has_identifier) {
            return self.fail_about("subscription identifier", client, id, "an identifier of no matching subscription");
        }
        // Subscriptions that it was routed by for certain, each with the terms that it has always had.
        let certain_matches = session.subscriptions.iter().filter(|s| {
            let held =
                s.confirmed_at.is_some_and(|at| at < m.sent_at) && !s.leaving && s.gone_at.is_none() && !is_shared(s.filter);
            let local = m.publisher == client && s.terms[0].options.no_local;
            held && matches(s.filter, m.topic) && s.terms.len() == 1 && !local
        });
        for terms in certain_matches.map(|s| &s.terms[0]).filter(|_| !delivered.retain) {
            if delivered.qos < terms.options.qos.min(m.qos) {
                return self.fail_about("qos", client, id, "delivered at a lower QoS than granted");
            }
            if terms.identifier.is_some_and(|identifier| !delivered.identifiers.contains(&identifier))
                && delivered.expiry_s.is_some()
            {
                return self.fail_about(
                    "subscription identifier",
                    client,
                    id,
                    "an identifier of a matching subscription is missing",
                );
            }
        }
        let live_matches =
            |shared: bool| session.subscriptions.iter().filter(move |s| is_shared(s.filter) == shared && s.may_match(m, now));
        let published_until = m.settled_at.unwrap_or(now);
        let is_for_groups = m.topic.starts_with("s/");
        let mut groups = 0;
        if is_for_groups {
            groups = live_matches(true).map(|s| s.filter).collect::<HashSet<_>>().len();
            let may_come_late = self.shared.get(&id).is_some_and(|shared| shared.may_repeat);
            if may_come_late {
                let any =
                    session.subscriptions.iter().map(|s| s.filter).filter(|filter| is_shared(filter) && matches(filter, m.topic));
                groups = any.collect::<HashSet<_>>().len();
            }
            if groups == 0 {
                return self.fail_about("no match", client, id, "delivered without a matching shared subscription");
            }
        } else {
            let as_published = live_matches(false)
                .flat_map(|s| s.options_between(m.sent_at, published_until))
                .any(|options| options.retain_as_published);
            let may_be_live = live_matches(false).any(|s| {
                m.publisher != client || s.options_between(m.sent_at, published_until).any(|o| !o.no_local) || m.will.is_some()
            });
            let replay = session
                .replays
                .iter_mut()
                .find(|replay| m.retain && matches(replay.filter, m.topic) && !replay.topics.contains(m.topic));
            if delivered.retain && !(as_published && m.retain && may_be_live) {
                let Some(replay) = replay else {
                    return self.fail_about("retained", client, id, "retained message outside of a replay");
                };
                replay.topics.insert(m.topic);
                let (from, confirmed_at) = (replay.from, replay.confirmed_at);
                session.replayed.insert(id);
                session.owed.remove(&id);
                return self.check_replayed(client, id, from, confirmed_at, delivered.qos);
            }
            if delivered.retain && replay.is_some() {
                // Of the replay or live: either is right.
                session.replayed.insert(id);
                session.owed.remove(&id);
                session.owed_now.remove(&id);
                return;
            }
            if !may_be_live {
                return self.fail_about("no match", client, id, "delivered without a matching subscription");
            }
        }
        session.owed.remove(&id);
        session.owed_now.remove(&id);
        session.received_at.insert(id, (now, delivered.qos));
        let count = session.received.entry(id).or_default();
        *count += 1;
        let routed = if m.qos == QoS::AtLeastOnce || m.in_doubt { m.sends } else { 1 };
        let last = session.last.entry((m.publisher, m.topic, delivered.qos)).or_default();
        let behind = m.sequence <= *last && m.sends == 1 && m.will.is_none() && *count == 1;
        if m.will.is_none() {
            *last = m.sequence.max(*last);
        }
        if is_for_groups {
            let here = *count;
            let all = self.shared_filters.iter().filter(|filter| matches(filter, m.topic)).count();
            let shared = self.shared.entry(id).or_default();
            shared.deliveries += 1;
            shared.at_least_once |= delivered.qos == QoS::AtLeastOnce;
            let may_repeat = shared.may_repeat && shared.at_least_once;
            if (here > groups as u32 * routed || shared.deliveries > all as u32 * routed) && !may_repeat {
                self.fail_about("shared", client, id, "a shared message went to more than one member");
            }
            // No order across members.
            return;
        }
        if *count > routed {
            return self.fail_about("exactly once", client, id, "delivered more than once");
        }
        if behind {
            self.fail_about("order", client, id, "a message overtook an earlier one of the same publisher and topic");
        }
    }

    /// The message was retained when the replay began, or later; and nothing newer of its topic, sent since, came live. (What is sent
    /// around the SUBSCRIBE may be given to its subscribers before it is stored, by a core that falls asleep between; what comes at QoS 0
    /// may overtake what waits at QoS 1 or 2.)
    fn check_replayed(&mut self, client: usize, id: MessageId, from: Time, confirmed_at: Option<Time>, qos: QoS) {
        let m = &self.messages[id];
        if self.is_superseded(id, from) {
            return self.fail_about("retained", client, id, "a replay had a message that had been replaced before");
        }
        let Some(session) = &self.sessions[client] else { return };
        let newer = |other: &MessageId| {
            let o = &self.messages[*other];
            o.retain
                && o.topic == m.topic
                && self.is_over(m, o)
                && confirmed_at.is_some_and(|at| o.sent_at > at)
                && session.received_at.get(other).is_some_and(|(_, live)| *live >= qos)
        };
        if session.received.keys().any(newer) {
            self.fail_about("retained", client, id, "a stale retained message after a newer live one");
        }
    }

    /// A retained message was routed after another for certain. What the first one's publisher has had acknowledged may still be on its
    /// way between cores when another publisher's is stored; so across publishers all must have been quiet between.
    fn is_over(&self, earlier: &Message, later: &Message) -> bool {
        let same = earlier.publisher == later.publisher && earlier.will.is_none();
        let over = if same { earlier.certain_at.or(earlier.settled_at) } else { earlier.settled_at };
        over.is_some_and(|over| later.sent_at > over)
    }

    /// Another retained message of the topic was routed after this one for certain, before `by`.
    fn is_superseded(&self, id: MessageId, by: Time) -> bool {
        let m = &self.messages[id];
        self.messages.iter().any(|other| {
            other.retain && other.topic == m.topic && self.is_over(m, other) && other.certain_at.is_some_and(|at| at < by)
        })
    }

    /// What may be retained of a topic when all is quiet; `None` in the set: nothing.
    pub fn may_be_retained(&self, topic: &str, now: Time) -> HashSet<Option<MessageId>> {
        let mut allowed = HashSet::new();
        let mut anything_certain = false;
        for (id, m) in self.messages.iter().enumerate() {
            if !m.retain || m.topic != topic || m.refused || matches!(m.will, Some(WillState::Held | WillState::Discarded)) {
                continue;
            }
            if self.is_superseded(id, now) {
                continue;
            }
            anything_certain |= m.certain_at.is_some();
            allowed.insert((!m.clear).then_some(id));
            if m.expiry_s.is_some() {
                allowed.insert(None);
            }
        }
        if !anything_certain {
            allowed.insert(None);
        }
        allowed
    }

    /// All is quiet: what is owed to those who are there has come, or was dropped and counted.
    pub fn on_quiet(&mut self, dropped: u64, now: Time) {
        self.expire(now);
        for client in 0..self.sessions.len() {
            let Some(session) = &mut self.sessions[client] else { continue };
            if !session.connected {
                continue;
            }
            let mut missing: Vec<MessageId> = std::mem::take(&mut session.owed).into_iter().collect();
            missing.extend(std::mem::take(&mut session.owed_now));
            self.missing += missing.len() as u64;
            if self.missing > dropped
                && let Some(&id) = missing.first()
            {
                let what = format!("never arrived ({} missing, {dropped} dropped and counted)", self.missing);
                return self.fail_about("nothing lost", client, id, &what);
            }
        }
        let all_there = self
            .sessions
            .iter()
            .flatten()
            .all(|s| s.connected && s.certain || s.subscriptions.iter().all(|s| !is_shared(s.filter)));
        for (&id, shared) in &mut self.shared {
            let mut owing = std::mem::take(&mut shared.owing);
            // With all members that were there it may be gone; there must be one that it could have been given to.
            let sent_at = self.messages[id].sent_at;
            let has_stayed =
                |s: &Subscription| !s.leaving && s.gone_at.is_none() && s.confirmed_at.is_some_and(|at| at < sent_at);
            owing.retain(|filter| {
                let members = self.sessions.iter().flatten().flat_map(|session| &session.subscriptions);
                members.filter(|s| s.filter == *filter).any(has_stayed)
            });
            if all_there && !shared.may_be_lost && shared.deliveries < owing.len() as u32 {
                self.missing += u64::from(owing.len() as u32 - shared.deliveries);
                if self.missing > dropped {
                    let detail = format!(
                        "m{id} was delivered {} times to the groups {owing:?}: {:?}",
                        shared.deliveries, self.messages[id]
                    );
                    return self.fail("shared", detail, owing.iter().map(|s| s.to_string()).chain([format!("m{id} ")]).collect());
                }
            }
        }
    }

    /// All is quiet: messages that no connection carries any more have arrived or never will.
    pub fn settle(&mut self, in_flight: &HashSet<MessageId>, now: Time) {
        for (id, message) in self.messages.iter_mut().enumerate() {
            if message.settled_at.is_none()
                && !in_flight.contains(&id)
                && (message.certain_at.is_some()
                    || !matches!(message.will, Some(WillState::Held | WillState::Open | WillState::Due)))
            {
                message.settled_at = Some(now);
            }
        }
    }
}
