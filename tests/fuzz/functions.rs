//! What is fuzzed: functions that take any bytes and panic where something does not hold. They are called by the smoke run beside this
//! file, on every check, and by the `cargo fuzz` targets in `fuzz/`, for hours.

use corelane::config::{self, Flags, Place};
use corelane::ids::{CoreId, FilterId, SessionId};
use corelane::message::{Message, MessageRef};
use corelane::rules::{Input as RuleInput, Rule, Source, Template, Value, Verdict, View};
use corelane::session::inbound::Inbound;
use corelane::session::outbound::{Acknowledged, Delivery, Identifiers, Outbound, Send};
use corelane::time::Time;
use corelane::topic::{
    self, Filter, FilterIndex, Hasher, Interest, Page, RetainedTree, Subscriptions, TopicKey, check_name, is_wildcard, matches,
};
use corelane::wire::{self, OutgoingPublish, Packet, QoS, Version, WireError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

pub type Function = fn(&[u8]);

/// All of them, by name.
pub const FUNCTIONS: [(&str, Function); 6] = [
    ("decode", decode),
    ("round_trip", round_trip),
    ("session", session),
    ("filters", filters),
    ("config", configuration),
    ("rules", rules),
];

/// What a connection has negotiated, by the first byte of an input.
pub const VERSIONS: [Option<Version>; 4] = [None, Some(Version::V3_1), Some(Version::V3_1_1), Some(Version::V5)];

const PACKET_BYTES_MAX: u32 = 1 << 20;

fn version_and_bytes(data: &[u8]) -> (Option<Version>, &[u8]) {
    match data.split_first() {
        Some((first, bytes)) => (VERSIONS[usize::from(*first) % VERSIONS.len()], bytes),
        None => (None, &[]),
    }
}

fn check_error(error: WireError) {
    assert!(error.reason.is_error(), "refused with {}, which is no error", error.reason);
    assert!(!error.what.is_empty() && error.to_string().len() > error.what.len(), "an error says what is wrong");
}

/// Any bytes, in any version: a packet, the wish for more bytes, or an error with its reason; what was read can be looked at.
pub fn decode(data: &[u8]) {
    let (version, mut bytes) = version_and_bytes(data);
    loop {
        let frame = match wire::frame(bytes, PACKET_BYTES_MAX) {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => return check_error(error),
        };
        assert!(frame.len >= 2 && frame.len <= bytes.len() && frame.len <= PACKET_BYTES_MAX as usize);
        bytes = &bytes[frame.len..];
        wire::connect_version(&frame);
        match wire::decode(frame, version) {
            Ok(packet) => look_at(&packet),
            Err(error) => return check_error(error),
        }
    }
}

/// Walks whatever a packet only checks when it is read and hands out later.
fn look_at(packet: &Packet<'_>) {
    assert!(!format!("{packet:?}").is_empty());
    match packet {
        Packet::Publish(publish) => {
            assert_eq!(publish.has_subscription_identifier(), publish.subscription_identifiers().next().is_some());
            assert_eq!(publish.qos == QoS::AtMostOnce, publish.packet_id == 0, "a packet id goes with QoS 1 and 2");
            assert!(publish.properties.user_properties().count() <= publish.properties.iter().count());
            let mut scratch = Vec::new();
            publish.properties.forwarded(&mut scratch);
        }
        Packet::Subscribe(subscribe) => assert!(subscribe.packet_id != 0 && subscribe.filters.iter().next().is_some()),
        Packet::Unsubscribe(unsubscribe) => assert!(unsubscribe.packet_id != 0 && unsubscribe.filters.iter().next().is_some()),
        _ => {}
    }
}

/// A packet that can be read is written and read again as the same packet, and written again as the same bytes.
pub fn round_trip(data: &[u8]) {
    let (version, bytes) = version_and_bytes(data);
    let Ok(Some(frame)) = wire::frame(bytes, PACKET_BYTES_MAX) else { return };
    let Ok(packet) = wire::decode(frame, version) else { return };
    let written_in = match &packet {
        Packet::Connect(connect) => connect.version,
        _ => version.expect("the first packet is CONNECT"),
    };
    let mut written = Vec::new();
    wire::encode(&packet, written_in, &mut written);
    let frame = wire::frame(&written, u32::MAX).expect("a written packet has a length").expect("and all its bytes");
    assert_eq!(frame.len, written.len());
    let again = wire::decode(frame, version).expect("a written packet can be read");
    assert_eq!(again, packet);
    let mut rewritten = Vec::new();
    wire::encode(&again, written_in, &mut rewritten);
    assert_eq!(rewritten, written);
    if let Packet::Publish(publish) = &packet {
        forwarding_keeps(publish, written_in);
    }
}

/// The way a message takes through the broker: what is sent on reads back as what was published.
fn forwarding_keeps(publish: &wire::Publish<'_>, version: Version) {
    let (mut scratch, mut out) = (Vec::new(), vec![0xEE; 3]);
    let identifiers: Vec<u32> = publish.subscription_identifiers().collect();
    let outgoing = OutgoingPublish {
        dup: publish.dup,
        qos: publish.qos,
        retain: publish.retain,
        topic: publish.topic,
        packet_id: publish.packet_id,
        topic_alias: publish.topic_alias,
        message_expiry_interval_s: publish.message_expiry_interval_s,
        subscription_identifiers: &identifiers,
        forwarded: publish.properties.forwarded(&mut scratch),
        payload: publish.payload,
    };
    let span = wire::encode_publish(&outgoing, version, true, &mut out);
    assert_eq!((span.start, out.len() - span.start), (3, wire::publish_len(&outgoing, version)));
    if let Some(at) = span.packet_id_at {
        assert_eq!(out[at..at + 2], publish.packet_id.to_be_bytes());
    }
    let frame = wire::frame(&out[3..], u32::MAX).expect("a length").expect("all bytes");
    let Ok(Packet::Publish(sent)) = wire::decode(frame, Some(version)) else { panic!("a PUBLISH reads as one") };
    assert_eq!((sent.topic, sent.payload, sent.packet_id), (publish.topic, publish.payload, publish.packet_id));
    assert_eq!((sent.dup, sent.qos, sent.retain), (publish.dup, publish.qos, publish.retain));
    if version == Version::V5 {
        assert_eq!(sent.message_expiry_interval_s, publish.message_expiry_interval_s);
        assert!(sent.properties.user_properties().eq(publish.properties.user_properties()));
        assert_eq!(sent.subscription_identifiers().collect::<Vec<_>>(), identifiers);
    }
}

/// Numbers out of an input; zeros when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.byte() % from.len()]
    }
}

/// A message in flight as the model keeps it.
struct InFlight {
    packet_id: u16,
    number: usize,
    qos: QoS,
    released: bool,
    /// On this connection.
    sent: bool,
}

fn delivery(number: usize, qos: QoS) -> Delivery {
    let payload = number.to_be_bytes();
    let message = MessageRef { topic: "t", properties: &[], payload: &payload, qos, retain: false, expires_at: Time::NEVER };
    Delivery { message: Message::from(message), qos, retain: false, identifiers: Identifiers::None, group: None }
}

fn number_of(delivery: &Delivery) -> usize {
    usize::from_be_bytes(delivery.message.payload().try_into().expect("eight bytes"))
}

/// A session's two directions under any sequence of messages, acknowledgements (of ids in use and not) and reconnections, against a
/// model that knows only the rules of section 4.
pub fn session(data: &[u8]) {
    const QUEUED_MAX: usize = 6;
    let mut input = Input(data);
    let mut outbound = Outbound::default();
    let mut flight: Vec<InFlight> = Vec::new();
    let mut queue: VecDeque<(usize, QoS)> = VecDeque::new();
    let mut inbound = Inbound::default();
    let mut received: BTreeSet<u16> = BTreeSet::new();
    let (mut quota, mut messages) = (4u16, 0);
    while !input.is_empty() {
        let outstanding = flight.iter().filter(|one| one.sent).count();
        match input.byte() % 10 {
            0 | 1 => {
                let qos = input.pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce]);
                messages += 1;
                let now = queue.is_empty() && flight.iter().all(|one| one.sent) && outstanding < usize::from(quota);
                assert_eq!(outbound.may_send_now(quota), now);
                if now {
                    let packet_id = outbound.send_now(delivery(messages, qos));
                    assert!(packet_id != 0 && flight.iter().all(|one| one.packet_id != packet_id), "{packet_id} is in use");
                    flight.push(InFlight { packet_id, number: messages, qos, released: false, sent: true });
                } else {
                    let taken = outbound.enqueue(delivery(messages, qos), QUEUED_MAX as u32, u64::MAX).is_ok();
                    assert_eq!(taken, queue.len() < QUEUED_MAX);
                    if taken {
                        queue.push_back((messages, qos));
                    }
                }
            }
            2 | 3 => {
                let again = flight.iter().position(|one| !one.sent);
                let given = outbound.next_to_send(quota).map(|send| match send {
                    Send::Publish { packet_id, dup, delivery } => (packet_id, Some((dup, number_of(delivery), delivery.qos))),
                    Send::Pubrel { packet_id } => (packet_id, None),
                });
                if outstanding >= usize::from(quota) || (again.is_none() && queue.is_empty()) {
                    assert_eq!(given, None);
                } else if let Some(position) = again {
                    let one = &mut flight[position];
                    one.sent = true;
                    let expected = (!one.released).then_some((true, one.number, one.qos));
                    assert_eq!(given, Some((one.packet_id, expected)), "what is in flight is sent again in its order");
                } else if let Some((number, qos)) = queue.pop_front() {
                    let (packet_id, what) = given.expect("the front of the queue");
                    assert_eq!(what, Some((false, number, qos)));
                    assert!(packet_id != 0 && flight.iter().all(|one| one.packet_id != packet_id), "{packet_id} is in use");
                    flight.push(InFlight { packet_id, number, qos, released: false, sent: true });
                    if input.byte() % 8 == 0 {
                        outbound.abandon(packet_id);
                        flight.pop();
                    }
                }
            }
            kind @ 4..=7 => {
                // Mostly an id in use.
                let any = input.byte();
                let packet_id = match flight.get(any % (flight.len() + 1)) {
                    Some(one) => one.packet_id,
                    None => any as u16,
                };
                let position = flight.iter().position(|one| one.packet_id == packet_id);
                let known = position.map(|position| (flight[position].qos, flight[position].released));
                let (answer, ends, moves) = match kind {
                    4 => (outbound.on_puback(packet_id), true, known == Some((QoS::AtLeastOnce, false))),
                    5 => (outbound.on_pubcomp(packet_id), true, known == Some((QoS::ExactlyOnce, true))),
                    6 => (outbound.on_pubrec(packet_id, false), false, known.is_some_and(|(qos, _)| qos == QoS::ExactlyOnce)),
                    _ => (outbound.on_pubrec(packet_id, true), true, known == Some((QoS::ExactlyOnce, false))),
                };
                assert_eq!(answer, if moves { Acknowledged::Yes } else { Acknowledged::Unknown });
                match position.filter(|_| moves) {
                    Some(position) if ends => drop(flight.remove(position)),
                    Some(position) => flight[position].released = true,
                    None => {}
                }
            }
            8 => {
                outbound.on_connected();
                flight.iter_mut().for_each(|one| one.sent = false);
                quota = input.pick(&[1, 2, 4, 8]);
            }
            _ => {
                let packet_id = input.byte() as u16 % 8;
                assert_eq!(inbound.contains(packet_id), received.contains(&packet_id));
                if received.contains(&packet_id) || input.byte() % 3 == 0 {
                    assert_eq!(inbound.release(packet_id), received.remove(&packet_id));
                } else {
                    inbound.on_publish(packet_id);
                    received.insert(packet_id);
                }
                assert_eq!((inbound.len(), inbound.is_empty()), (received.len(), received.is_empty()));
            }
        }
        assert_eq!((outbound.in_flight(), outbound.queued()), (flight.len(), queue.len()));
        assert_eq!(outbound.outstanding(), flight.iter().filter(|one| one.sent).count());
        assert_eq!(outbound.is_empty(), flight.is_empty() && queue.is_empty());
    }
    let undelivered: Vec<(usize, bool)> =
        std::iter::from_fn(|| outbound.take_undelivered()).map(|(delivery, began)| (number_of(&delivery), began)).collect();
    let began = flight.iter().filter(|one| !one.released).map(|one| (one.number, true));
    let waited = queue.iter().map(|(number, _)| (*number, false));
    assert_eq!(undelivered, began.chain(waited).collect::<Vec<_>>());
    assert_eq!(outbound.queued_bytes(), 0);
}

/// A topic or filter out of few levels, so that most filters match something.
fn topic_of(input: &mut Input<'_>, alphabet: &[&str]) -> String {
    let levels = 1 + input.byte() % 5;
    let levels: Vec<&str> = (0..levels).map(|_| input.pick(alphabet)).collect();
    levels.join("/")
}

/// Every structure that finds filters or topics agrees with [`matches`], whatever was put in and taken out before.
pub fn filters(data: &[u8]) {
    const CORES: usize = 3;
    const STEPS: [usize; 4] = [2, 3, 10, 1_000];
    let text = String::from_utf8_lossy(data);
    if let Ok(filter) = Filter::parse(&text, 8, 64) {
        assert!(check_name(filter.filter, 8, 64).is_ok() != is_wildcard(filter.filter), "a filter without wildcards is a name");
    }
    let mut input = Input(data);
    let hasher = Hasher::from_seed(input.byte() as u64);
    let mut cores: Vec<Subscriptions> = (0..CORES).map(|_| Subscriptions::new()).collect();
    let mut interest = Interest::new();
    let mut index: FilterIndex<u32> = FilterIndex::new();
    let mut subscribed: Vec<(usize, String, SessionId)> = Vec::new();
    let mut indexed: Vec<String> = Vec::new();
    let mut tree = RetainedTree::new();
    let mut retained: BTreeMap<String, Message> = BTreeMap::new();
    while !input.is_empty() {
        match input.byte() % 8 {
            0..=2 => {
                let filter = topic_of(&mut input, &["a", "b", "+", "+", "", "$a", "a!", "#"]);
                if Filter::parse(&filter, 8, 64).is_err() {
                    continue;
                }
                let (core, session) = (input.byte() % CORES, SessionId(input.byte() as u32 % 3));
                let new = !subscribed.contains(&(core, filter.clone(), session));
                let was = cores[core].subscribe(&hasher, &filter, session);
                assert_eq!((was.new, cores[core].text(was.id)), (new, Some(filter.as_str())));
                if was.first {
                    interest.announce(&hasher, CoreId(core as u8), &cores[core].interest_key(&hasher, &filter));
                }
                index.insert(&hasher, &filter, indexed.len() as u32);
                indexed.push(filter.clone());
                if new {
                    subscribed.push((core, filter, session));
                }
            }
            3 if !subscribed.is_empty() => {
                let (core, filter, session) = subscribed.swap_remove(input.byte() % subscribed.len());
                let id = cores[core].find(&hasher, &filter).expect("it was subscribed");
                if let Some(key) = cores[core].unsubscribe(&hasher, id, session).key {
                    assert!(interest.retract(&hasher, CoreId(core as u8), &key), "every retraction takes an announcement back");
                }
                assert_eq!(cores[core].unsubscribe(&hasher, id, session).key, None);
            }
            4 => {
                let topic = topic_of(&mut input, &["a", "b", "", "$a", "a!"]);
                if check_name(&topic, 8, 64).is_err() {
                    continue;
                }
                if input.byte() % 4 == 0 {
                    assert_eq!(tree.remove(&topic).is_some(), retained.remove(&topic).is_some());
                } else {
                    let payload = [input.byte() as u8];
                    let message = MessageRef {
                        topic: &topic,
                        properties: &[],
                        payload: &payload,
                        qos: QoS::AtMostOnce,
                        retain: true,
                        expires_at: Time::NEVER,
                    };
                    let message = Message::from(message);
                    let replaced = tree.insert(message.clone());
                    assert_eq!(replaced.is_some(), retained.insert(topic, message).is_some());
                }
            }
            5 => {
                let filter = topic_of(&mut input, &["a", "b", "+", "+", "", "$a", "a!", "#"]);
                if Filter::parse(&filter, 8, 64).is_ok() {
                    pages_hold(&tree, &retained, &filter, input.pick(&STEPS));
                }
            }
            _ => {
                let topic = topic_of(&mut input, &["a", "b", "", "$a", "a!", "c"]);
                if check_name(&topic, 8, 64).is_err() {
                    continue;
                }
                let key = TopicKey::new(&topic, &hasher);
                let mut wanted = 0;
                for (core, subscriptions) in cores.iter().enumerate() {
                    let mut found = topic_filters(subscriptions, &hasher, &key);
                    found.sort_unstable();
                    let mut expected: Vec<&str> = subscribed
                        .iter()
                        .filter(|(of, filter, _)| *of == core && matches(filter, &topic))
                        .map(|(_, filter, _)| filter.as_str())
                        .collect();
                    expected.sort_unstable();
                    expected.dedup();
                    assert_eq!(found, expected, "core {core} on {topic}");
                    wanted |= u64::from(!expected.is_empty()) << core;
                }
                assert_eq!(interest.cores(&hasher, &key).0, wanted, "{topic}");
                let mut seen = BTreeSet::new();
                index.for_each_match(&hasher, &key, |number| {
                    seen.insert(number);
                });
                let expected = (0..indexed.len()).filter(|number| matches(&indexed[*number], &topic)).map(|number| number as u32);
                assert_eq!(seen, expected.collect::<BTreeSet<_>>(), "{topic}");
            }
        }
    }
    assert_eq!(tree.len(), retained.len());
    assert_eq!(tree.bytes(), retained.values().map(Message::bytes).sum::<usize>());
}

/// The filters that match, as texts; their subscribers are who is said to be.
fn topic_filters<'a>(subscriptions: &'a Subscriptions, hasher: &Hasher, key: &TopicKey<'_>) -> Vec<&'a str> {
    let mut found = Default::default();
    subscriptions.matching(hasher, key, &mut found);
    let text = |id: &FilterId| {
        let there = (0..subscriptions.slots(*id)).filter_map(|slot| subscriptions.subscriber_at(*id, slot)).count();
        assert_eq!(there, subscriptions.len_of(*id));
        subscriptions.text(*id).expect("a filter that matches is there")
    };
    found.iter().map(text).collect()
}

/// All pages of a filter together are what matches, each once.
fn pages_hold(tree: &RetainedTree, retained: &BTreeMap<String, Message>, filter: &str, steps_max: usize) {
    let (mut found, mut after): (Vec<String>, Option<Box<str>>) = (Vec::new(), None);
    for _ in 0..1_000 {
        let page = tree.page(filter, after.as_deref(), steps_max, |message| {
            found.push(message.topic().to_owned());
            true
        });
        match page {
            Page::Done => {
                found.sort_unstable();
                let expected: Vec<&String> = retained.keys().filter(|topic| topic::matches(filter, topic)).collect();
                return assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter}");
            }
            Page::More(place) => after = Some(place),
        }
    }
    panic!("the pages of {filter} do not end");
}

/// Any text as a configuration: settings, or errors of one line each that say where they are and what is wrong.
pub fn configuration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let path = Path::new("corelane.toml");
    let Err(errors) = config::resolve_text(Some((path, &text)), &Flags::default()) else { return };
    assert!(!errors.0.is_empty());
    let lines = text.split('\n').count();
    for error in &errors.0 {
        let Place::File { line, column, .. } = &error.place else { panic!("{error} names no line") };
        assert!((1..=lines).contains(line) && *column >= 1, "{error} is not in the file's {lines} lines");
        assert!(!error.what.is_empty() && !error.fix.is_empty(), "{error}");
        assert!(!error.to_string().contains(['\n', '\r']), "{error} is one line");
    }
}

/// Any text as a rule, any bytes as a message: an error in the text, or rows whose JSON can be read, or a failure that says where.
pub fn rules(data: &[u8]) {
    let mut parts = data.splitn(4, |byte| *byte == 0);
    let sql = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let topic = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let template = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let payload = parts.next().unwrap_or_default();
    let rule = match Rule::parse(&sql) {
        Ok(rule) => rule,
        Err(error) => {
            let line = sql.split('\n').nth(error.position.line as usize - 1).expect("an error is in the text");
            assert!((1..=line.chars().count() as u64 + 1).contains(&error.position.column), "{error} is not in {sql:?}");
            assert!(!error.what.is_empty() && !error.to_string().contains(['\n', '\r']), "{error} is one line");
            return;
        }
    };
    let template = Template::parse(&template, &rule);
    for source in rule.sources() {
        let input = RuleInput {
            client_id: Some("client"),
            topic: Some(&topic),
            payload: Some(payload),
            qos: Some(1),
            timestamp_ms: 1_700_000_000_000,
            ..RuleInput::default()
        };
        let view = View::new(source, input);
        let again = rule.run(&view);
        match rule.run(&view) {
            Ok(Verdict::Passed(rows)) => {
                assert!(!rows.is_empty() && again == Ok(Verdict::Passed(rows.clone())));
                for row in rows {
                    assert!(row.iter().map(|(name, _)| name).eq(rule.columns()));
                    if let Ok(template) = &template {
                        template.render(&row, &view, &mut Vec::new()).ok();
                    }
                    reads_back(&Value::Map(row).to_json());
                }
            }
            Ok(verdict) => assert_eq!(again, Ok(verdict)),
            Err(failure) => assert!(!failure.what.is_empty() && !failure.to_string().contains(['\n', '\r']), "{failure}"),
        }
    }
}

/// JSON that a rule has written is what it reads.
fn reads_back(json: &str) {
    let rule = Rule::parse("SELECT json_encode(json_decode(payload)) AS json FROM \"t\"").expect("a rule");
    let view = View::new(Source::Message, RuleInput { payload: Some(json.as_bytes()), ..RuleInput::default() });
    match rule.run(&view) {
        Ok(Verdict::Passed(rows)) => assert_eq!(rows[0].get("json"), Some(&Value::text(json))),
        // A payload that nests as deep as it may is deeper within a row.
        Err(failure) => assert!(failure.what.contains("recursion limit"), "{failure}: {json}"),
        Ok(verdict) => panic!("{verdict:?}"),
    }
}
