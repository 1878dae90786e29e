//! A simulated client: its script, its connection, and the half of its session that MQTT has a client keep. It follows the rules (but
//! for bytes that its script says are garbage) and checks that the broker keeps to those that a client alone can see.

use crate::net::Net;
use crate::oracle::{Delivered, MessageId, Oracle, WillState};
use crate::script::{Action, ClientSpec, ConnectSpec, Step, TOPICS};
use crate::socket::{End, Owner};
use corelane::limits::Limits;
use corelane::time::Time;
use corelane::topic;
use corelane::wire::{self, Ack, Connect, Disconnect, Packet, Properties, Property, Publish, QoS, ReasonCode, Subscribe};
use corelane::wire::{SubscribeFilters, SubscriptionOptions, Unsubscribe, UnsubscribeFilters, Version, Will};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

/// A QoS 1 or 2 message on its way to the broker.
struct Outgoing {
    packet_id: u16,
    message: MessageId,
    topic: &'static str,
    qos: QoS,
    retain: bool,
    expiry_s: Option<u32>,
    payload: Vec<u8>,
    /// PUBREC has come.
    released: bool,
}

/// How a client loses its connection.
enum Ending {
    /// By a DISCONNECT that discards the will.
    Disconnected,
    /// Without one: the will is due.
    Broken,
    /// By a DISCONNECT that may come too late.
    Unsure,
}

enum Request {
    Subscribe(Vec<(u64, &'static str)>),
    Unsubscribe(Vec<&'static str>, Time),
}

/// The connection a client works with.
pub struct Link {
    pub socket: usize,
    pub up: bool,
    connect: ConnectSpec,
    will: Option<MessageId>,
    read: Vec<u8>,
    /// Messages that the broker lets be in flight.
    window: usize,
    aliases_max: u16,
    aliases_out: Vec<&'static str>,
    aliases_in: HashMap<u16, String>,
    /// Acknowledgements to be sent, when.
    acks: VecDeque<(Time, u8, u16)>,
    /// Packet ids of messages to this client that are in use on this connection.
    unacknowledged: HashSet<u16>,
    requests: BTreeMap<u16, (u64, Request)>,
    /// What was sent in order, so that an answer tells what was handled before it.
    order: u64,
    qos0: VecDeque<(u64, MessageId)>,
    last_written: Time,
    pings: usize,
    resumed: bool,
    /// When CONNECT was sent.
    sent_at: Time,
    /// A session was there for certain when CONNECT was sent.
    session_was_there: bool,
    /// It has won among several: the session that it finds may have been begun by one of the others, after this client's had expired.
    of_storm: bool,
}

pub struct Client {
    pub index: usize,
    pub spec: ClientSpec,
    /// The broker closes the connections of slow clients.
    pub may_be_cut: bool,
    steps: VecDeque<Step>,
    next_at: Time,
    waiting_for: Option<Time>,
    pub link: Option<Link>,
    /// Connections of a storm, of which one will be adopted when all is quiet.
    storm: Vec<(usize, Option<MessageId>)>,
    /// What its CONNECTs said, and when they were sent.
    storm_connect: Option<(ConnectSpec, Time)>,
    /// The will that the last DISCONNECT has discarded, unless a newer CONNECT is read before it.
    discarded: Option<(usize, MessageId)>,
    /// A CONNECT was lost that may have begun a new session, so that it is not known which one is there.
    must_start_clean: bool,
    /// A connection that was dropped before it was answered. Read late, its CONNECT would be the newest; so the client waits.
    fled: Option<usize>,
    next_packet_id: u16,
    outbound: Vec<(u64, Outgoing)>,
    inbound: HashSet<u16>,
    /// What each packet id was last used for at QoS 1.
    at_least_once: HashMap<u16, Option<MessageId>>,
    /// Retained messages received, for a client that only looks.
    pub seen: Vec<(String, Option<MessageId>, bool)>,
    /// Why the broker closed the last connection that it closed with a DISCONNECT.
    pub told: Option<ReasonCode>,
}

fn will_payload(message: MessageId) -> Vec<u8> {
    format!("m{message} will").into_bytes()
}

pub fn message_of(payload: &[u8]) -> Option<MessageId> {
    let text = payload.split(|byte| *byte == b' ').next()?;
    str::from_utf8(text).ok()?.strip_prefix('m')?.parse().ok()
}

impl Client {
    pub fn new(index: usize, spec: ClientSpec, may_be_cut: bool, steps: VecDeque<Step>, now: Time) -> Self {
        Self {
            index,
            spec,
            may_be_cut,
            steps,
            next_at: now,
            waiting_for: None,
            link: None,
            storm: Vec::new(),
            storm_connect: None,
            discarded: None,
            must_start_clean: false,
            fled: None,
            next_packet_id: 0,
            outbound: Vec::new(),
            inbound: HashSet::new(),
            at_least_once: HashMap::new(),
            seen: Vec::new(),
            told: None,
        }
    }

    fn v5(&self) -> bool {
        self.spec.version == Version::V5
    }

    pub fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.up)
    }

    pub fn push_step(&mut self, step: Step) {
        self.steps.push_back(step);
    }

    /// Whether the client has something left to do in this round, or waits for an answer. Says what.
    pub fn busy(&self, round: usize) -> Option<String> {
        if self.steps.front().is_some_and(|step| step.round <= round) && self.storm.is_empty() {
            return Some(format!("{} has steps left: {:?}", self.spec.id, self.steps[0].action));
        }
        let link = self.link.as_ref()?;
        if !link.up {
            return Some(format!("{} waits for CONNACK", self.spec.id));
        }
        if let Some((_, outgoing)) = self.outbound.first() {
            return Some(format!(
                "{} waits for the acknowledgement of m{} id {}",
                self.spec.id, outgoing.message, outgoing.packet_id
            ));
        }
        if let Some(id) = link.requests.keys().next() {
            return Some(format!("{} waits for the answer to request {id}", self.spec.id));
        }
        if link.pings > 0 {
            return Some(format!("{} waits for PINGRESP", self.spec.id));
        }
        if !link.acks.is_empty() {
            return Some(format!("{} has acknowledgements to send", self.spec.id));
        }
        if !self.inbound.is_empty() {
            return Some(format!("{} waits for PUBREL of {:?}", self.spec.id, self.inbound));
        }
        None
    }

    /// Messages that may still be routed later, because they will be sent again or are on their way.
    pub fn in_flight(&self) -> impl Iterator<Item = MessageId> {
        self.outbound.iter().map(|(_, outgoing)| outgoing.message)
    }

    /// When it will do something on its own.
    pub fn next_time(&self, round: usize, net: &Net) -> Option<Time> {
        if self.fled.is_some_and(|socket| net.sockets[socket].owner != Owner::Closed) {
            return None;
        }
        let mut next: Option<Time> = None;
        let mut at = |time: Time| next = Some(next.map_or(time, |next| next.min(time)));
        if self.steps.front().is_some_and(|step| step.round <= round) && self.storm.is_empty() && !self.is_connecting() {
            at(self.next_at);
        }
        if let Some(link) = &self.link {
            let socket = &net.sockets[link.socket];
            if let Some((due, ..)) = link.acks.front() {
                at(*due);
            }
            if let Some(arrives) = socket.to_client.next_arrival() {
                at(arrives.max(socket.stalled_until));
            } else if socket.is_closed_by_broker() {
                at(Time(0));
            }
            if link.up && link.connect.keep_alive_s > 0 {
                at(link.last_written + Duration::from_secs(u64::from(link.connect.keep_alive_s) / 2));
            }
        }
        next
    }

    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    fn is_connecting(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.up)
    }

    /// Reads, answers, goes on with its script. Returns whether it did anything.
    pub fn poll(&mut self, round: usize, net: &mut Net, oracle: &mut Oracle, now: Time) -> bool {
        if self.fled.is_some_and(|socket| net.sockets[socket].owner != Owner::Closed) {
            return false;
        }
        let mut did = self.read(net, oracle, now);
        did |= self.send_acks(net, now);
        did |= self.keep_alive(net, now);
        did |= self.publish_to_fresh_topic(net, oracle, now);
        did |= self.go_on(round, net, oracle, now);
        did
    }

    fn write(&mut self, packet: &Packet<'_>, net: &mut Net, now: Time) {
        let Some(link) = &mut self.link else { return };
        let mut bytes = Vec::new();
        wire::encode(packet, self.spec.version, &mut bytes);
        link.last_written = now;
        let name = &self.spec.id;
        net.trace.say(now, || format!("{name} (socket {}) sends {}", link.socket, brief(packet)));
        net.write(link.socket, &bytes, now);
    }

    fn read(&mut self, net: &mut Net, oracle: &mut Oracle, now: Time) -> bool {
        let Some(link) = &mut self.link else { return false };
        let socket = &mut net.sockets[link.socket];
        if socket.stalled_until > now {
            return false;
        }
        let bytes = socket.to_client.take(usize::MAX, now);
        if bytes.is_empty() {
            if socket.is_closed_by_broker() {
                let name = &self.spec.id;
                net.trace.say(now, || format!("{name} (socket {}) sees its connection closed", link.socket));
                self.lose(oracle, Ending::Broken, now);
                return true;
            }
            return false;
        }
        link.read.extend_from_slice(&bytes);
        self.take_packets(net, oracle, now);
        true
    }

    fn take_packets(&mut self, net: &mut Net, oracle: &mut Oracle, now: Time) {
        let Some(link) = &mut self.link else { return };
        let read = std::mem::take(&mut link.read);
        let maximum = self.spec.maximum_packet_size;
        let mut at = 0;
        loop {
            let frame = match wire::frame(&read[at..], u32::MAX) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    let name = self.spec.id.clone();
                    return oracle.fail(
                        "legal packets",
                        format!("{name} received bytes that are no packet: {error}"),
                        vec![name],
                    );
                }
            };
            if maximum.is_some_and(|maximum| frame.len > maximum as usize) {
                let name = self.spec.id.clone();
                return oracle.fail("maximum packet size", format!("{name} received {} bytes", frame.len), vec![name]);
            }
            at += frame.len;
            match wire::decode(frame, Some(self.spec.version)) {
                Ok(packet) => {
                    let name = &self.spec.id;
                    net.trace.say(now, || format!("{name} receives {}", brief(&packet)));
                    self.on_packet(&packet, net, oracle, now);
                }
                Err(error) => {
                    let name = self.spec.id.clone();
                    return oracle.fail(
                        "legal packets",
                        format!("{name} received a packet that cannot be read: {error}"),
                        vec![name],
                    );
                }
            }
            if self.link.is_none() {
                return;
            }
        }
        if let Some(link) = &mut self.link {
            link.read = read[at..].to_vec();
        }
    }

    fn fail(&self, property: &'static str, what: String, oracle: &mut Oracle) {
        oracle.fail(property, format!("{}: {what}", self.spec.id), vec![self.spec.id.clone()]);
    }

    fn on_packet(&mut self, packet: &Packet<'_>, net: &mut Net, oracle: &mut Oracle, now: Time) {
        let up = self.is_up();
        match packet {
            Packet::Connack(connack) if !up => self.on_connack(connack, net, oracle, now),
            Packet::Disconnect(disconnect) if self.v5() && up => self.told = Some(disconnect.reason),
            _ if !up => self.fail("legal packets", format!("{packet:?} before CONNACK"), oracle),
            Packet::Publish(publish) => self.on_publish(publish, net, oracle, now),
            Packet::Pubrel(pubrel) => {
                self.inbound.remove(&pubrel.packet_id);
                self.acknowledge(wire::PUBCOMP, pubrel.packet_id, net, now);
            }
            Packet::Puback(ack) => self.on_outgoing_acknowledged(ack, QoS::AtLeastOnce, net, oracle, now),
            Packet::Pubrec(ack) => self.on_outgoing_acknowledged(ack, QoS::ExactlyOnce, net, oracle, now),
            Packet::Pubcomp(ack) => {
                let position = self.outbound.iter().position(|(_, o)| o.packet_id == ack.packet_id && o.released);
                match position {
                    Some(position) => drop(self.outbound.remove(position)),
                    None => self.fail("legal packets", format!("PUBCOMP for {} that is not released", ack.packet_id), oracle),
                }
            }
            Packet::Suback(ack) => match self.take_request(ack.packet_id, oracle, now) {
                Some(Request::Subscribe(tokens)) if tokens.len() == ack.reasons.len() => {
                    for ((token, filter), reason) in tokens.iter().zip(ack.reasons) {
                        if *reason > 2 {
                            self.fail("legal packets", format!("subscription refused with {reason}"), oracle);
                        }
                        oracle.on_subscribed(self.index, *token, now);
                        if self.spec.id != PROBE {
                            let is_topic = !topic::is_wildcard(filter) && !filter.starts_with('$');
                            let matching = TOPICS.iter().find(|topic| topic::matches(filter, topic));
                            let topic = if is_topic { Some(filter) } else { matching };
                            net.fresh_topics.extend(topic.map(|topic| (self.index, *topic)));
                        }
                    }
                }
                _ => self.fail("legal packets", format!("SUBACK {} for nothing like it", ack.packet_id), oracle),
            },
            Packet::Unsuback(ack) => match self.take_request(ack.packet_id, oracle, now) {
                Some(Request::Unsubscribe(filters, sent_at)) => {
                    filters.iter().for_each(|filter| oracle.on_unsubscribed(self.index, filter, sent_at, now));
                }
                _ => self.fail("legal packets", format!("UNSUBACK {} for nothing like it", ack.packet_id), oracle),
            },
            Packet::Pingresp => match self.link.as_mut().map(|link| &mut link.pings) {
                Some(pings) if *pings > 0 => *pings -= 1,
                _ => self.fail("legal packets", "PINGRESP without PINGREQ".into(), oracle),
            },
            other => self.fail("legal packets", format!("{other:?} from a server"), oracle),
        }
    }

    fn on_connack(&mut self, connack: &wire::Connack<'_>, net: &mut Net, oracle: &mut Oracle, now: Time) {
        if connack.reason != ReasonCode::SUCCESS {
            return self.fail("legal client refused", format!("CONNACK {:?}", connack.reason), oracle);
        }
        let v5 = self.v5();
        let Some(link) = &mut self.link else { return };
        link.up = true;
        self.must_start_clean = false;
        link.resumed = connack.session_present;
        link.window = if v5 { usize::from(connack.receive_maximum.unwrap_or(u16::MAX)).min(12) } else { 8 };
        link.aliases_max = connack.topic_alias_maximum.unwrap_or(0);
        // MQTT 3.1 does not say; whether the session is there shows in what comes.
        let present = match self.spec.version {
            Version::V3_1 => link.session_was_there && !link.connect.clean,
            _ => connack.session_present,
        };
        link.resumed = present;
        let connect = link.connect.clone();
        let sent_at = link.sent_at;
        oracle.on_connected(self.index, &connect, present, sent_at, now);
        if !present {
            self.outbound.clear();
            self.inbound.clear();
            return;
        }
        // What is not acknowledged is sent again, in order.
        for position in 0..self.outbound.len() {
            let Some(link) = &mut self.link else { return };
            link.order += 1;
            let order = link.order;
            let (at, outgoing) = &mut self.outbound[position];
            *at = order;
            let packet_id = outgoing.packet_id;
            if outgoing.released {
                self.write(&Packet::Pubrel(Ack { packet_id, ..Ack::default() }), net, now);
                continue;
            }
            oracle.on_sent_again(outgoing.message, link.of_storm);
            let mut scratch = Vec::new();
            let mut list = Vec::new();
            list.extend(outgoing.expiry_s.map(Property::MessageExpiryInterval));
            let payload = outgoing.payload.clone();
            let publish = Publish {
                dup: true,
                qos: outgoing.qos,
                retain: outgoing.retain,
                topic: outgoing.topic,
                packet_id,
                properties: Properties::new(&list, &mut scratch),
                payload: &payload,
                ..Publish::default()
            };
            self.write(&Packet::Publish(publish), net, now);
        }
    }

    fn on_publish(&mut self, publish: &Publish<'_>, net: &mut Net, oracle: &mut Oracle, now: Time) {
        let Some(link) = &mut self.link else { return };
        let mut topic = publish.topic.to_string();
        if let Some(alias) = publish.topic_alias {
            if alias > link.connect.topic_alias_maximum {
                return self.fail("topic alias", format!("alias {alias} is over the maximum"), oracle);
            }
            if topic.is_empty() {
                match link.aliases_in.get(&alias) {
                    Some(known) => topic = known.clone(),
                    None => return self.fail("topic alias", format!("alias {alias} stands for nothing"), oracle),
                }
            } else {
                link.aliases_in.insert(alias, topic.clone());
            }
        }
        let id = publish.packet_id;
        if publish.qos != QoS::AtMostOnce {
            if !link.unacknowledged.insert(id) {
                return self.fail("packet id", format!("packet id {id} is in use"), oracle);
            }
            let receive_maximum = usize::from(link.connect.receive_maximum.unwrap_or(u16::MAX));
            if link.unacknowledged.len() > receive_maximum {
                return self.fail("receive maximum", format!("more than {receive_maximum} in flight"), oracle);
            }
            if publish.dup && !link.resumed {
                return self.fail("dup", format!("packet id {id} repeated in a new session"), oracle);
            }
        }
        let repeated = publish.qos == QoS::ExactlyOnce && !self.inbound.insert(id);
        if repeated && !publish.dup {
            return self.fail("packet id", format!("QoS 2 packet id {id} used again before PUBREL"), oracle);
        }
        // A message that clears a topic has no payload and so cannot say which one it is.
        let message = message_of(publish.payload);
        let before = (publish.qos == QoS::AtLeastOnce).then(|| self.at_least_once.insert(id, message)).flatten();
        let again = publish.dup && before == Some(message);
        if !repeated {
            let delivered = Delivered {
                message,
                topic: &topic,
                qos: publish.qos,
                retain: publish.retain,
                again,
                dup: publish.dup,
                identifiers: publish.subscription_identifiers().collect(),
                expiry_s: (self.spec.version == Version::V5).then_some(publish.message_expiry_interval_s),
                payload_len: publish.payload.len(),
            };
            if self.spec.id == PROBE {
                self.seen.push((topic.clone(), message, publish.retain));
            } else if !publish.payload.is_empty() {
                oracle.on_delivered(self.index, &delivered, now);
            }
        }
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.acknowledge(wire::PUBACK, id, net, now),
            QoS::ExactlyOnce => self.acknowledge(wire::PUBREC, id, net, now),
        }
    }

    fn acknowledge(&mut self, kind: u8, packet_id: u16, net: &mut Net, now: Time) {
        let Some(link) = &mut self.link else { return };
        let us = match net.random.below(10) {
            0 => net.random.between(0, 400_000),
            1..=4 => net.random.between(0, 3_000),
            _ => 0,
        };
        // In order: PUBACKs and PUBRECs must leave as their PUBLISHes came.
        let due = (now + Duration::from_micros(us)).max(link.acks.back().map_or(now, |(due, ..)| *due));
        link.acks.push_back((due, kind, packet_id));
    }

    fn send_acks(&mut self, net: &mut Net, now: Time) -> bool {
        let mut did = false;
        while let Some(link) = &mut self.link
            && let Some(&(due, kind, packet_id)) = link.acks.front()
            && due <= now
        {
            link.acks.pop_front();
            let ack = Ack { packet_id, ..Ack::default() };
            let packet = match kind {
                wire::PUBACK => Packet::Puback(ack),
                wire::PUBREC => Packet::Pubrec(ack),
                _ => Packet::Pubcomp(ack),
            };
            if kind != wire::PUBREC {
                link.unacknowledged.remove(&packet_id);
            }
            self.write(&packet, net, now);
            did = true;
        }
        did
    }

    fn keep_alive(&mut self, net: &mut Net, now: Time) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| link.up && link.connect.keep_alive_s > 0) else { return false };
        if now < link.last_written + Duration::from_secs(u64::from(link.connect.keep_alive_s) / 2) {
            return false;
        }
        link.pings += 1;
        self.write(&Packet::Pingreq, net, now);
        true
    }

    fn take_request(&mut self, packet_id: u16, oracle: &mut Oracle, now: Time) -> Option<Request> {
        let (order, request) = self.link.as_mut()?.requests.remove(&packet_id)?;
        self.handled_until(order, oracle, now);
        Some(request)
    }

    /// An answer to what was sent as number `order` has come: all QoS 0 messages before it have been routed.
    fn handled_until(&mut self, order: u64, oracle: &mut Oracle, now: Time) {
        let Some(link) = &mut self.link else { return };
        while let Some((at, message)) = link.qos0.front()
            && *at < order
        {
            oracle.on_certain(*message, now);
            link.qos0.pop_front();
        }
    }

    /// All is quiet: if the connection is up, everything it has sent has been routed. `gone`: the broker has no connection of it.
    pub fn on_quiet(&mut self, gone: bool, oracle: &mut Oracle, now: Time) {
        if self.is_up() {
            self.handled_until(u64::MAX, oracle, now);
        } else if gone && !self.must_start_clean {
            oracle.on_gone(self.index, now);
        }
    }

    fn on_outgoing_acknowledged(&mut self, ack: &Ack<'_>, qos: QoS, net: &mut Net, oracle: &mut Oracle, now: Time) {
        let position = self.outbound.iter().position(|(_, o)| o.packet_id == ack.packet_id && o.qos == qos);
        let Some(position) = position else {
            return self.fail("legal packets", format!("acknowledgement of {} that is not in flight", ack.packet_id), oracle);
        };
        let (order, outgoing) = &mut self.outbound[position];
        let (order, message) = (*order, outgoing.message);
        let refused = ack.reason.is_error();
        let released = std::mem::replace(&mut outgoing.released, true);
        if refused {
            oracle.on_refused(message);
        } else {
            oracle.on_acknowledged(message);
            oracle.on_certain(message, now);
        }
        self.handled_until(order, oracle, now);
        if qos == QoS::AtLeastOnce || refused {
            self.outbound.remove(position);
        } else if !released {
            self.write(&Packet::Pubrel(Ack { packet_id: ack.packet_id, ..Ack::default() }), net, now);
        }
    }

    fn packet_id(&mut self) -> u16 {
        loop {
            self.next_packet_id = self.next_packet_id % 50 + 1;
            let id = self.next_packet_id;
            let in_use = self.outbound.iter().any(|(_, o)| o.packet_id == id)
                || self.link.as_ref().is_some_and(|link| link.requests.contains_key(&id));
            if !in_use {
                return id;
            }
        }
    }

    // The script.

    fn go_on(&mut self, round: usize, net: &mut Net, oracle: &mut Oracle, now: Time) -> bool {
        let mut did = false;
        while self.storm.is_empty()
            && self.fled.is_none_or(|socket| net.sockets[socket].owner == Owner::Closed)
            && !self.is_connecting()
            && let Some(step) = self.steps.front().filter(|step| step.round <= round)
        {
            let after = Duration::from_micros(step.after_us);
            let begins = *self.waiting_for.get_or_insert(now + after);
            self.next_at = begins;
            if begins > now {
                return did;
            }
            let up = self.is_up();
            if let (true, Action::Publish { qos, .. }) = (up, &step.action)
                && *qos != QoS::AtMostOnce
                && self.link.as_ref().is_some_and(|link| self.outbound.len() >= link.window)
            {
                // Its window is full: when an acknowledgement comes it goes on.
                self.next_at = now + Duration::from_millis(5);
                return did;
            }
            self.waiting_for = None;
            did = true;
            if let Some(step) = self.steps.pop_front() {
                self.act(step.action, net, oracle, now);
            }
        }
        did
    }

    fn act(&mut self, action: Action, net: &mut Net, oracle: &mut Oracle, now: Time) {
        match action {
            Action::Connect(connect) => self.connect(connect, net, oracle, now),
            Action::Flee { connect, reset } => {
                self.connect(connect, net, oracle, now);
                if let Some(link) = &self.link {
                    let (name, socket) = (&self.spec.id, link.socket);
                    net.trace.say(now, || format!("{name} (socket {socket}) flees, reset: {reset}"));
                    net.end(link.socket, if reset { End::Reset } else { End::Finished }, now);
                }
                self.fled = self.link.as_ref().map(|link| link.socket);
                self.lose(oracle, Ending::Broken, now);
            }
            Action::Storm { sockets, connect } => self.begin_storm(sockets, connect, net, oracle, now),
            Action::Wait { ms } => {
                self.waiting_for = Some(now + Duration::from_millis(ms));
            }
            _ if !self.is_up() => {}
            Action::Subscribe { filters, identifier } => self.subscribe(&filters, identifier, net, oracle, now),
            Action::Unsubscribe { filters } => {
                let packet_id = self.packet_id();
                filters.iter().for_each(|filter| oracle.on_unsubscribe_sent(self.index, filter));
                let mut scratch = Vec::new();
                let filters_written = UnsubscribeFilters::new(&filters, &mut scratch);
                let packet = Unsubscribe { packet_id, properties: Properties::EMPTY, filters: filters_written };
                self.write(&Packet::Unsubscribe(packet), net, now);
                self.await_answer(packet_id, Request::Unsubscribe(filters, now));
            }
            Action::Publish { topic, qos, retain, clear, expiry_s, bytes, alias } => {
                let message = oracle.next_message();
                let mut payload = if clear { Vec::new() } else { format!("m{message} ").into_bytes() };
                if !clear && bytes > payload.len() {
                    payload.resize(bytes, b'.');
                }
                oracle.new_message(self.index, topic, qos, retain, clear, expiry_s, payload.len(), false, now);
                self.publish(message, topic, qos, retain, expiry_s, payload, alias, net, now);
            }
            Action::Disconnect { with_will } => {
                let reason = if with_will { ReasonCode::DISCONNECT_WITH_WILL_MESSAGE } else { ReasonCode::SUCCESS };
                self.write(&Packet::Disconnect(Disconnect { reason, ..Disconnect::default() }), net, now);
                if let Some(link) = &self.link {
                    net.sockets[link.socket].may_close = true;
                    net.end(link.socket, End::Finished, now);
                }
                // A core that sleeps past the keep-alive never reads the DISCONNECT.
                let may_time_out = net.rough && self.link.as_ref().is_some_and(|link| link.connect.keep_alive_s > 0);
                let ending = match with_will {
                    true => Ending::Broken,
                    false if may_time_out || self.may_be_cut => Ending::Unsure,
                    false => Ending::Disconnected,
                };
                self.lose(oracle, ending, now);
            }
            Action::Drop { reset } => {
                if let Some(link) = &self.link {
                    let (name, socket) = (&self.spec.id, link.socket);
                    net.trace.say(now, || format!("{name} (socket {socket}) drops its connection, reset: {reset}"));
                    net.end(link.socket, if reset { End::Reset } else { End::Finished }, now);
                }
                self.lose(oracle, Ending::Broken, now);
            }
            Action::StopReading { ms } => {
                if let Some(link) = &self.link {
                    net.sockets[link.socket].stalled_until = now + Duration::from_millis(ms);
                }
            }
            Action::Garbage { bytes } => {
                if let Some(link) = &self.link {
                    let name = &self.spec.id;
                    net.trace.say(now, || format!("{name} sends garbage {bytes:?}"));
                    net.sockets[link.socket].may_close = true;
                    let socket = link.socket;
                    net.write(socket, &bytes, now);
                    net.end(socket, End::Finished, now);
                }
                self.lose(oracle, Ending::Broken, now);
            }
        }
    }

    /// Somebody has just been confirmed a subscription: what is published from now on must reach it, wherever its publisher is.
    fn publish_to_fresh_topic(&mut self, net: &mut Net, oracle: &mut Oracle, now: Time) -> bool {
        let may = self.spec.id != PROBE && self.link.as_ref().is_some_and(|link| link.up && self.outbound.len() < link.window);
        let Some(&(subscriber, topic)) = net.fresh_topics.last().filter(|_| may) else { return false };
        if subscriber == self.index {
            return false;
        }
        net.fresh_topics.clear();
        if net.random.one_in(2) {
            let qos = QoS::AtLeastOnce;
            let payload = format!("m{} ", oracle.next_message()).into_bytes();
            let message = oracle.new_message(self.index, topic, qos, false, false, None, payload.len(), false, now);
            self.publish(message, topic, qos, false, None, payload, false, net, now);
        }
        true
    }

    fn await_answer(&mut self, packet_id: u16, request: Request) {
        if let Some(link) = &mut self.link {
            link.order += 1;
            link.requests.insert(packet_id, (link.order, request));
        }
    }

    fn subscribe(
        &mut self,
        filters: &[(&'static str, SubscriptionOptions)],
        identifier: Option<u32>,
        net: &mut Net,
        oracle: &mut Oracle,
        now: Time,
    ) {
        let packet_id = self.packet_id();
        let tokens = filters
            .iter()
            .map(|(filter, options)| (oracle.on_subscribe_sent(self.index, filter, *options, identifier, now), *filter))
            .collect();
        let (mut filters_scratch, mut properties_scratch) = (Vec::new(), Vec::new());
        let identifier = identifier.map(Property::SubscriptionIdentifier);
        let packet = Subscribe {
            packet_id,
            subscription_identifier: None,
            properties: Properties::new(identifier.as_slice(), &mut properties_scratch),
            filters: SubscribeFilters::new(filters, &mut filters_scratch),
        };
        self.write(&Packet::Subscribe(packet), net, now);
        self.await_answer(packet_id, Request::Subscribe(tokens));
    }

    #[expect(clippy::too_many_arguments, reason = "a message's facts")]
    fn publish(
        &mut self,
        message: MessageId,
        topic: &'static str,
        qos: QoS,
        retain: bool,
        expiry_s: Option<u32>,
        payload: Vec<u8>,
        alias: bool,
        net: &mut Net,
        now: Time,
    ) {
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { self.packet_id() };
        let Some(link) = &mut self.link else { return };
        let mut list = Vec::new();
        list.extend(expiry_s.map(Property::MessageExpiryInterval));
        let mut sent_topic = topic;
        if alias {
            if let Some(position) = link.aliases_out.iter().position(|known| *known == topic) {
                list.push(Property::TopicAlias(position as u16 + 1));
                sent_topic = "";
            } else if link.aliases_out.len() < usize::from(link.aliases_max) {
                link.aliases_out.push(topic);
                list.push(Property::TopicAlias(link.aliases_out.len() as u16));
            }
        }
        let mut scratch = Vec::new();
        let publish = Publish {
            qos,
            retain,
            topic: sent_topic,
            packet_id,
            properties: Properties::new(&list, &mut scratch),
            payload: &payload,
            ..Publish::default()
        };
        link.order += 1;
        let order = link.order;
        if qos == QoS::AtMostOnce {
            link.qos0.push_back((order, message));
        }
        let name = &self.spec.id;
        net.trace.say(now, || format!("{name} publishes m{message} to {topic}"));
        self.write(&Packet::Publish(publish), net, now);
        if qos != QoS::AtMostOnce {
            let outgoing = Outgoing { packet_id, message, topic, qos, retain, expiry_s, payload, released: false };
            self.outbound.push((order, outgoing));
        }
    }

    fn send_connect(
        &mut self,
        connect: &ConnectSpec,
        net: &mut Net,
        oracle: &mut Oracle,
        now: Time,
    ) -> (usize, Option<MessageId>) {
        if let Some((socket, will)) = self.discarded.take()
            && net.sockets[socket].owner != Owner::Closed
        {
            oracle.messages[will].will = Some(WillState::Open);
        }
        let socket = net.open(self.index);
        let will_message = connect.will.as_ref().map(|will| {
            let payload_len = will_payload(oracle.next_message()).len();
            oracle.new_message(self.index, will.topic, will.qos, will.retain, false, None, payload_len, true, now)
        });
        let v5 = self.v5();
        let mut list = Vec::new();
        if v5 {
            list.push(Property::SessionExpiryInterval(connect.expiry_s));
            list.extend(connect.receive_maximum.map(Property::ReceiveMaximum));
            list.extend(self.spec.maximum_packet_size.map(Property::MaximumPacketSize));
            list.push(Property::TopicAliasMaximum(connect.topic_alias_maximum));
        }
        let payload = will_message.map(will_payload).unwrap_or_default();
        let (mut scratch, mut will_scratch) = (Vec::new(), Vec::new());
        let will_list: Vec<_> =
            connect.will.iter().filter(|_| v5).map(|will| Property::WillDelayInterval(will.delay_s)).collect();
        let will_properties = Properties::new(&will_list, &mut will_scratch);
        let will = connect.will.as_ref().map(|will| Will {
            qos: will.qos,
            retain: will.retain,
            topic: will.topic,
            payload: &payload,
            delay_interval_s: will.delay_s,
            properties: will_properties,
            ..Will::default()
        });
        let packet = Connect {
            version: self.spec.version,
            clean_start: connect.clean,
            keep_alive_s: connect.keep_alive_s,
            properties: Properties::new(&list, &mut scratch),
            client_id: &self.spec.id,
            will,
            ..Connect::default()
        };
        let mut bytes = Vec::new();
        wire::encode(&Packet::Connect(packet), self.spec.version, &mut bytes);
        net.sockets[socket].connect_unread = bytes.len();
        net.sockets[socket].keep_alive_s = connect.keep_alive_s;
        let name = &self.spec.id;
        net.trace.say(now, || format!("{name} connects on socket {socket}: {connect:?}, will {will_message:?}"));
        net.write(socket, &bytes, now);
        (socket, will_message)
    }

    fn link(&self, socket: usize, will: Option<MessageId>, connect: ConnectSpec, now: Time) -> Link {
        Link {
            socket,
            up: false,
            connect,
            will,
            read: Vec::new(),
            window: 1,
            aliases_max: 0,
            aliases_out: Vec::new(),
            aliases_in: HashMap::new(),
            acks: VecDeque::new(),
            unacknowledged: HashSet::new(),
            requests: BTreeMap::new(),
            order: 0,
            qos0: VecDeque::new(),
            last_written: now,
            pings: 0,
            resumed: false,
            sent_at: now,
            session_was_there: false,
            of_storm: false,
        }
    }

    fn connect(&mut self, mut connect: ConnectSpec, net: &mut Net, oracle: &mut Oracle, now: Time) {
        // The old connection, if it is still there, is taken over; the client reads no more of it.
        self.lose(oracle, Ending::Broken, now);
        if self.must_start_clean {
            self.start_clean(&mut connect);
        }
        oracle.on_connect_sent(self.index, connect.clean, now);
        let session_was_there = oracle.has_session(self.index, now);
        let (socket, will) = self.send_connect(&connect, net, oracle, now);
        self.link = Some(Link { session_was_there, ..self.link(socket, will, connect, now) });
    }

    /// The broker closes a connection.
    pub fn on_closing(&self, socket: usize, oracle: &mut Oracle, now: Time) {
        let Some(link) = self.link.as_ref().filter(|link| link.socket == socket) else { return };
        oracle.on_closed_by_broker(self.index, now);
        self.will_falls_due(link, oracle, now);
    }

    /// A connection with a will has ended, and not by a DISCONNECT that discards it.
    fn will_falls_due(&self, link: &Link, oracle: &mut Oracle, now: Time) {
        let (Some(message), Some(will)) = (link.will, &link.connect.will) else { return };
        if link.up {
            oracle.on_will_due(message, link.socket, will.delay_s.min(link.connect.expiry_s), now);
        } else {
            // Its CONNECT may not have been read.
            oracle.messages[message].will = Some(WillState::Open);
        }
    }

    fn start_clean(&self, connect: &mut ConnectSpec) {
        connect.clean = true;
        if !self.v5() {
            connect.expiry_s = 0;
        }
    }

    fn begin_storm(&mut self, sockets: usize, mut connect: ConnectSpec, net: &mut Net, oracle: &mut Oracle, now: Time) {
        self.lose(oracle, Ending::Broken, now);
        // Nobody would send PINGREQ.
        connect.keep_alive_s = 0;
        // The first of them may find the session gone and the others the first one's, which nobody would know.
        if self.must_start_clean
            || connect.expiry_s == 0
            || !oracle.has_session(self.index, now)
            || self.spec.version == Version::V3_1
        {
            self.start_clean(&mut connect);
        }
        oracle.on_connect_sent(self.index, connect.clean, now);
        for _ in 0..sockets {
            let (socket, will) = self.send_connect(&connect, net, oracle, now);
            if let Some(will) = will {
                // All but one of the connections are taken over, which publishes their wills unless they are delayed.
                oracle.messages[will].will = Some(WillState::Open);
            }
            self.storm.push((socket, will));
        }
        self.storm_connect = Some((connect, now));
    }

    /// All is quiet: the connection of the storm that has won becomes the client's. Returns whether there was one.
    pub fn adopt(&mut self, net: &mut Net, oracle: &mut Oracle, now: Time) -> bool {
        let storm = std::mem::take(&mut self.storm);
        let Some((connect, sent_at)) = self.storm_connect.take() else { return false };
        let winner = storm.iter().find(|(socket, _)| net.sockets[*socket].is_open());
        let Some(&(socket, will)) = winner else {
            // A jump of the clock may come between the connection and its CONNECT.
            let deadline = Duration::from_secs(Limits::default().connect_deadline_s.into());
            if self.may_be_cut || (net.rough && now - sent_at >= deadline) {
                self.must_start_clean = true;
                oracle.session_may_have_ended(self.index);
                return true;
            }
            let accounts = storm.iter().map(|(socket, _)| format!("socket {socket}")).collect();
            oracle.fail("one owner", format!("{}: a takeover storm has locked the client out", self.spec.id), accounts);
            return true;
        };
        let name = &self.spec.id;
        net.trace.say(now, || format!("{name} goes on with socket {socket}, which has won"));
        if let Some(will) = will {
            oracle.messages[will].will = Some(WillState::Open);
        }
        self.link = Some(Link { sent_at, of_storm: true, ..self.link(socket, will, connect, now) });
        self.read(net, oracle, now);
        true
    }

    /// The connection is no more, for this client.
    fn lose(&mut self, oracle: &mut Oracle, ending: Ending, now: Time) {
        let Some(link) = self.link.take() else { return };
        if let Some(will) = link.will
            && oracle.messages[will].will == Some(WillState::Held)
        {
            match ending {
                Ending::Broken => self.will_falls_due(&link, oracle, now),
                Ending::Unsure => oracle.messages[will].will = Some(WillState::Open),
                Ending::Disconnected => {
                    oracle.messages[will].will = Some(WillState::Discarded);
                    self.discarded = Some((link.socket, will));
                }
            }
        }
        if link.up {
            oracle.on_disconnected(self.index, now);
            if link.connect.expiry_s == 0 {
                self.outbound.clear();
                self.inbound.clear();
            }
        } else {
            // Whether the CONNECT was read cannot be known.
            let same = !link.connect.clean && link.connect.expiry_s > 0 && link.session_was_there;
            if !same || self.spec.version == Version::V3_1 {
                self.must_start_clean = true;
                oracle.session_may_have_ended(self.index);
            } else {
                oracle.on_connect_lost(self.index, link.connect.expiry_s);
            }
        }
    }
}

/// The client that only looks at what is retained.
pub const PROBE: &str = "probe";

/// A packet in few words.
pub fn brief(packet: &Packet<'_>) -> String {
    match packet {
        Packet::Publish(publish) => format!(
            "PUBLISH id {} {:?} topic {:?} alias {:?} dup {} retain {} payload {:?} ({} bytes)",
            publish.packet_id,
            publish.qos,
            publish.topic,
            publish.topic_alias,
            publish.dup,
            publish.retain,
            String::from_utf8_lossy(&publish.payload[..publish.payload.len().min(12)]),
            publish.payload.len()
        ),
        Packet::Subscribe(subscribe) => {
            let filters: Vec<_> = subscribe
                .filters
                .iter()
                .map(|(filter, o)| {
                    format!(
                        "{filter} q{} nl{} rap{} rh{}",
                        o.qos as u8, o.no_local, o.retain_as_published, o.retain_handling as u8
                    )
                })
                .collect();
            format!("SUBSCRIBE id {} {filters:?}", subscribe.packet_id)
        }
        Packet::Unsubscribe(unsubscribe) => {
            format!("UNSUBSCRIBE id {} {:?}", unsubscribe.packet_id, unsubscribe.filters.iter().collect::<Vec<_>>())
        }
        Packet::Puback(ack) => format!("PUBACK {} {:?}", ack.packet_id, ack.reason),
        Packet::Pubrec(ack) => format!("PUBREC {} {:?}", ack.packet_id, ack.reason),
        Packet::Pubrel(ack) => format!("PUBREL {} {:?}", ack.packet_id, ack.reason),
        Packet::Pubcomp(ack) => format!("PUBCOMP {} {:?}", ack.packet_id, ack.reason),
        Packet::Connack(connack) => format!("CONNACK {:?} session present {}", connack.reason, connack.session_present),
        Packet::Suback(ack) => format!("SUBACK {} {:?}", ack.packet_id, ack.reasons),
        Packet::Unsuback(ack) => format!("UNSUBACK {} {:?}", ack.packet_id, ack.reasons),
        Packet::Disconnect(disconnect) => format!("DISCONNECT {:?}", disconnect.reason),
        other => format!("{other:?}"),
    }
}
