//! Rules, records and tickets on one shard, with the test in the place of the shell and the sink core: what is admitted, what waits,
//! who is acknowledged when.

use corelane::ids::{ConnectionId, CoreId, TicketId};
use corelane::limits::Limits;
use corelane::message::{Message, MessageRef};
use corelane::record::{ActionId, Outcome, Record};
use corelane::rules::{Action, Part, PlannedRule, RecordAction, Republish, Rule, Template};
use corelane::shard::events::Event;
use corelane::shard::sinks::RECORDS_MAX;
use corelane::shard::{Gate, Globals, Shard, ShardOptions, WhenFull};
use corelane::time::Time;
use corelane::topic::Hasher;
use corelane::wire::{QoS, ReasonCode};
use std::sync::Arc;

const GATE_BYTES: u64 = 1_000;

struct Bench {
    shard: Shard,
    globals: Arc<Globals>,
    now: Time,
    taken: u64,
}

/// A rule whose rows go to sink 0.
fn to_sink(sql: &str, parts: &[&str], ticketed: bool) -> PlannedRule {
    let rule = Rule::parse(sql).unwrap();
    let parts = parts.iter().map(|text| Part::Text(Template::parse(text, &rule).unwrap())).collect();
    let action = RecordAction { id: ActionId(3), sink: 0, parts, ticketed };
    PlannedRule { name: "rule".into(), rule, actions: vec![Action::Record(action)] }
}

fn republish(sql: &str, topic: &str) -> PlannedRule {
    let rule = Rule::parse(sql).unwrap();
    let topic = Template::parse(topic, &rule).unwrap();
    let payload = Template::parse("${.}", &rule).unwrap();
    let action = Republish { topic, payload, qos: Some(QoS::AtMostOnce), retain: false, properties: false };
    PlannedRule { name: "again".into(), rule, actions: vec![Action::Republish(action)] }
}

impl Bench {
    fn new(rules: Vec<PlannedRule>, when_full: WhenFull) -> Self {
        Self::with_limits(rules, when_full, Limits::default())
    }

    fn with_limits(rules: Vec<PlannedRule>, when_full: WhenFull, limits: Limits) -> Self {
        let globals =
            Arc::new(Globals { gates: [(); 2].map(|()| Gate::new(GATE_BYTES, when_full)).into(), ..Globals::default() });
        let now = Time::from_ms(5_000);
        let shard = Shard::new(ShardOptions {
            core: CoreId(0),
            cores: 1,
            limits: Arc::new(limits),
            hasher: Hasher::from_seed(1),
            globals: globals.clone(),
            delays: None,
            rules: rules.into(),
            node: "here".into(),
            epoch_us: 1_000_000_000_000_000,
            now,
        });
        Self { shard, globals, now, taken: 0 }
    }

    fn connect(&mut self, id: &str, version: u8) -> ConnectionId {
        let connection = self.shard.on_accepted(1, 0, self.now).unwrap();
        self.shard.on_peer_address(connection, "127.0.0.9:4000".parse().unwrap());
        let mut body = [&[0, 4][..], b"MQTT", &[version, 0b1000_0000, 0, 60]].concat();
        if version == 5 {
            // Session expiry: for an hour.
            body.extend([5, 0x11, 0, 0, 0x0E, 0x10]);
        }
        for text in [id, "owner"] {
            body.extend([0, text.len() as u8]);
            body.extend(text.as_bytes());
        }
        self.receive(connection, 0x10, &body);
        assert_eq!(self.sent(connection)[0].0, 0x20);
        connection
    }

    fn receive(&mut self, id: ConnectionId, first: u8, body: &[u8]) {
        let mut packet = vec![first, body.len() as u8];
        packet.extend(body);
        self.shard.on_received(id, &packet, self.now);
        self.run();
    }

    fn publish(&mut self, id: ConnectionId, qos: u8, packet_id: u8, topic: &str, payload: &str, v5: bool) {
        let mut body = vec![0, topic.len() as u8];
        body.extend(topic.as_bytes());
        if qos > 0 {
            body.extend([0, packet_id]);
        }
        if v5 {
            body.push(0);
        }
        body.extend(payload.as_bytes());
        self.receive(id, 0x30 | qos << 1, &body);
    }

    fn run(&mut self) {
        for _ in 0..100 {
            if !self.shard.run(self.now) {
                return;
            }
        }
        panic!("the shard does not come to rest");
    }

    /// The packets sent to a connection: type byte and body.
    fn sent(&mut self, id: ConnectionId) -> Vec<(u8, Vec<u8>)> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.shard.outbox(id).map(<[u8]>::to_vec) {
            self.shard.on_sent(id, piece.len(), self.now);
            bytes.extend(piece);
        }
        let mut flush = Vec::new();
        self.shard.take_flush(&mut flush);
        let mut packets = Vec::new();
        let mut rest = &bytes[..];
        while let [first, len, behind @ ..] = rest {
            let (body, after) = behind.split_at(usize::from(*len));
            packets.push((*first, body.to_vec()));
            rest = after;
        }
        packets
    }

    /// Takes the records, as the sink core does.
    fn records(&mut self) -> Vec<Record> {
        let records = std::mem::take(&mut self.shard.effects.records);
        self.taken += records.len() as u64;
        self.shard.on_records_taken(self.taken);
        records
    }

    fn end(&mut self, record: &Record) {
        self.globals.gates[0].leave(1, record.bytes());
        self.run();
    }

    /// What has been told of rules that failed.
    fn failures(&mut self) -> Vec<String> {
        let events = self.shard.effects.events.drain(..);
        events.filter_map(|event| if let Event::RuleFailed { what, .. } = event { Some(what) } else { None }).collect()
    }

    fn answer(&mut self, ticket: Option<TicketId>, outcome: Outcome) {
        self.shard.on_answer(ticket.expect("a ticket"), outcome);
        self.run();
    }
}

fn part(record: &Record, number: usize) -> &str {
    str::from_utf8(record.part(number)).unwrap()
}

const ALL: &str = "SELECT payload FROM \"t/#\"";

#[test]
fn a_row_becomes_a_record_with_its_parts_and_what_the_rule_may_know() {
    let sql = "SELECT clientid, username, peer_address, topic, timestamp, node FROM \"t/+\" WHERE payload.v > 1";
    let mut bench = Bench::new(vec![to_sink(sql, &["${topic}", "${clientid}", "${.}"], false)], WhenFull::Hold);
    let client = bench.connect("car", 4);
    bench.publish(client, 0, 0, "t/a", "{\"v\":1}", false);
    bench.publish(client, 0, 0, "t/a", "no JSON", false);
    assert_eq!(bench.records(), []);
    bench.publish(client, 0, 0, "t/a", "{\"v\":2}", false);
    let records = bench.records();
    assert_eq!((records.len(), records[0].action, records[0].qos0, records[0].ticket), (1, ActionId(3), true, None));
    assert_eq!((part(&records[0], 0), part(&records[0], 1)), ("t/a", "car"));
    assert_eq!(
        part(&records[0], 2),
        r#"{"clientid":"car","username":"owner","peer_address":"127.0.0.9:4000","topic":"t/a","timestamp":1000000005000,"node":"here"}"#
    );
    assert_eq!(records[0].published_at_us, 1_000_000_005_000_000);
    let counts = bench.shard.rule_counts()[0];
    assert_eq!(counts.values(), [3, 1, 1, 1, 1, 0]);
    assert_eq!(bench.globals.gates[0].buffered_bytes.get(), records[0].bytes());
}

#[test]
fn every_record_that_wants_one_has_an_identifier_of_its_own() {
    let mut rule = to_sink("FOREACH payload.list FROM \"t\"", &["${item}"], false);
    let Action::Record(action) = &mut rule.actions[0] else { panic!("it leads to a sink") };
    action.parts.push(Part::Id);
    let mut bench = Bench::new(vec![rule], WhenFull::Hold);
    let client = bench.connect("car", 4);
    bench.publish(client, 0, 0, "t", "{\"list\":[1,2]}", false);
    let records = bench.records();
    let [first, second] = [0, 1].map(|number| records[number].part(1));
    // Seconds since 1970, then what tells them apart.
    assert_eq!((first.len(), &first[..4]), (12, &1_000_000_005_u32.to_be_bytes()[..]));
    assert_eq!(first[..9], second[..9], "one shard");
    assert_ne!(first, second);
}

#[test]
fn an_action_without_a_ticket_is_acknowledged_at_once() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], false)], WhenFull::Hold);
    let client = bench.connect("car", 5);
    bench.publish(client, 1, 7, "t", "x", true);
    assert_eq!(bench.sent(client), [(0x40, vec![0, 7])]);
    bench.publish(client, 1, 8, "other", "x", true);
    assert_eq!(
        bench.sent(client),
        [(0x40, vec![0, 8, ReasonCode::NO_MATCHING_SUBSCRIBERS.0])],
        "the rule is nobody's subscription"
    );
}

#[test]
fn pubacks_wait_for_the_sink_and_leave_in_the_order_of_the_publishes() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], true)], WhenFull::Hold);
    let client = bench.connect("car", 4);
    for packet_id in 1..=3 {
        bench.publish(client, 1, packet_id, "t", "x", false);
    }
    // What no rule wants is ready at once and waits for those before it.
    bench.publish(client, 1, 4, "other", "x", false);
    let tickets: Vec<_> = bench.records().iter().map(|record| record.ticket).collect();
    assert_eq!(bench.sent(client), []);
    bench.receive(client, 0xC0, &[]);
    assert_eq!(bench.sent(client), [(0xD0, vec![])], "PINGREQ is answered meanwhile");
    bench.answer(tickets[1], Outcome::Accepted);
    assert_eq!(bench.sent(client), []);
    bench.answer(tickets[0], Outcome::Accepted);
    assert_eq!(bench.sent(client), [(0x40, vec![0, 1]), (0x40, vec![0, 2])]);
    bench.answer(tickets[2], Outcome::Accepted);
    assert_eq!(bench.sent(client), [(0x40, vec![0, 3]), (0x40, vec![0, 4])]);
    bench.publish(client, 1, 5, "other", "x", false);
    assert_eq!(bench.sent(client), [(0x40, vec![0, 5])]);
}

#[test]
fn a_message_of_many_rows_is_acknowledged_with_the_last_answer_and_failed_if_one_failed() {
    let rule = to_sink("FOREACH payload.list FROM \"t\"", &["${item}"], true);
    let mut bench = Bench::new(vec![rule], WhenFull::Hold);
    let client = bench.connect("car", 5);
    bench.publish(client, 1, 9, "t", "{\"list\":[1,2,3]}", true);
    let records = bench.records();
    assert_eq!(records.iter().map(|record| part(record, 0)).collect::<Vec<_>>(), ["1", "2", "3"]);
    for outcome in [Outcome::Accepted, Outcome::Failed] {
        bench.answer(records[0].ticket, outcome);
        assert_eq!(bench.sent(client), []);
    }
    bench.answer(records[2].ticket, Outcome::Accepted);
    let sent = bench.sent(client);
    assert_eq!((sent.len(), sent[0].0, &sent[0].1[..3]), (1, 0x40, &[0, 9, ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR.0][..]));
}

#[test]
fn a_qos_2_ticket_outlives_its_connection_and_its_message_is_not_made_twice() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], true)], WhenFull::Hold);
    let client = bench.connect("car", 5);
    bench.publish(client, 2, 1, "t", "x", true);
    bench.publish(client, 2, 2, "t", "y", true);
    let records = bench.records();
    assert_eq!((records.len(), bench.sent(client)), (2, vec![]));
    bench.shard.on_receive_end(client, true, bench.now);
    bench.shard.on_closed(client, bench.now);
    let client = bench.connect_again("car");
    bench.publish(client, 2 | 4, 1, "t", "x", true);
    bench.publish(client, 2 | 4, 2, "t", "y", true);
    assert_eq!((bench.records(), bench.sent(client)), (vec![], vec![]));
    bench.answer(records[1].ticket, Outcome::Accepted);
    assert_eq!(bench.sent(client), []);
    bench.answer(records[0].ticket, Outcome::Accepted);
    assert_eq!(bench.sent(client), [(0x50, vec![0, 1]), (0x50, vec![0, 2])]);
    bench.publish(client, 2 | 4, 2, "t", "y", true);
    assert_eq!((bench.records(), bench.sent(client)), (vec![], vec![(0x50, vec![0, 2])]));
}

#[test]
fn a_qos_1_ticket_of_a_connection_that_is_no_more_is_forgotten() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], true)], WhenFull::Hold);
    let client = bench.connect("car", 5);
    bench.publish(client, 1, 1, "t", "x", true);
    let records = bench.records();
    bench.shard.on_receive_end(client, true, bench.now);
    bench.shard.on_closed(client, bench.now);
    let client = bench.connect_again("car");
    bench.answer(records[0].ticket, Outcome::Accepted);
    assert_eq!(bench.sent(client), []);
}

impl Bench {
    /// A client resumes its session.
    fn connect_again(&mut self, id: &str) -> ConnectionId {
        let client = self.connect(id, 5);
        assert_eq!(self.shard.counters.sessions_resumed, 1);
        client
    }
}

#[test]
fn a_full_gate_holds_publishers_and_drops_what_nobody_waits_for() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], false)], WhenFull::Hold);
    let client = bench.connect("car", 4);
    let other = bench.connect("other", 4);
    let payload = "x".repeat(100);
    let mut acknowledged = 0;
    for packet_id in 1..=20 {
        bench.publish(client, 1, packet_id, "t", &payload, false);
        acknowledged += bench.sent(client).len();
    }
    let records = bench.records();
    assert_eq!((acknowledged, records.len()), (records.len(), records.len()));
    assert!((5..10).contains(&records.len()), "{}", records.len());
    assert_eq!(bench.shard.load().parked, 1);
    // Another publisher queues behind it; QoS 0 is dropped and counted; what no rule wants passes.
    bench.publish(other, 0, 0, "t", &payload, false);
    assert_eq!((bench.shard.counters.dropped_sink_full, bench.globals.gates[0].dropped_full()), (1, 1));
    bench.publish(other, 1, 1, "other", "x", false);
    assert_eq!(bench.sent(other), [(0x40, vec![0, 1])]);
    bench.publish(other, 1, 2, "t", &payload, false);
    assert_eq!((bench.shard.load().parked, bench.records()), (2, vec![]));
    bench.receive(client, 0xC0, &[]);
    assert_eq!(bench.sent(client), [(0xD0, vec![])], "who waits is served");
    // Room for one.
    bench.end(&records[0]);
    let mut more = bench.records();
    assert_eq!((more.len(), bench.sent(client).len()), (1, 1));
    more.extend_from_slice(&records[1..]);
    while !more.is_empty() {
        for record in std::mem::take(&mut more) {
            bench.end(&record);
        }
        more = bench.records();
    }
    assert_eq!((bench.shard.load().parked, bench.globals.gates[0].buffered_bytes.get()), (0, 0));
    let counts = bench.shard.rule_counts()[0];
    assert_eq!((counts.matched, counts.actions, counts.dropped), (22, 21, 1), "a wait is not counted twice");
}

#[test]
fn a_gate_that_drops_the_oldest_holds_nobody() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], false)], WhenFull::DropOldest);
    let client = bench.connect("car", 4);
    for packet_id in 1..=50 {
        bench.publish(client, 1, packet_id, "t", &"x".repeat(100), false);
    }
    assert_eq!((bench.records().len(), bench.sent(client).len()), (50, 50));
}

#[test]
fn a_full_ring_to_the_sink_core_holds_publishers_until_it_takes() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], false)], WhenFull::DropOldest);
    let client = bench.connect("car", 4);
    let mut acknowledged = 0;
    for number in 0..RECORDS_MAX + 10 {
        bench.publish(client, 1, (number % 100) as u8 + 1, "t", "", false);
        acknowledged += bench.sent(client).len();
    }
    assert_eq!(acknowledged, RECORDS_MAX as usize);
    assert_eq!((bench.records().len(), bench.shard.load().parked), (RECORDS_MAX as usize, 1));
    bench.run();
    assert_eq!((bench.records().len(), bench.sent(client).len()), (10, 10));
}

#[test]
fn however_many_wait_for_one_sink_those_who_write_to_another_go_on() {
    let limits = Limits { inflight_in_max: u16::MAX, ..Limits::default() };
    let mut to_other = to_sink("SELECT payload FROM \"other\"", &[""], true);
    let Action::Record(action) = &mut to_other.actions[0] else { panic!("it leads to a sink") };
    action.sink = 1;
    let mut bench = Bench::with_limits(vec![to_sink(ALL, &[""], true), to_other], WhenFull::DropOldest, limits);
    let clients = [bench.connect("one", 4), bench.connect("two", 4)];
    let mut records = Vec::new();
    for number in 0..70_000 {
        bench.publish(clients[number % 2], 1, (number % 100) as u8 + 1, "t", "", false);
        records.extend(bench.records());
    }
    let other = bench.connect("other", 4);
    bench.publish(other, 1, 7, "other", "", false);
    let of_other = bench.records();
    assert_eq!((records.len(), of_other.len(), bench.shard.load().parked), (70_000, 1, 0));
    bench.answer(of_other[0].ticket, Outcome::Accepted);
    assert_eq!(bench.sent(other), [(0x40, vec![0, 7])]);
    let charged = bench.globals.memory_bytes.get();
    bench.answer(records[1].ticket, Outcome::Accepted);
    assert!(bench.globals.memory_bytes.get() < charged, "a ticket is memory until it is answered");
}

#[test]
fn a_client_owed_its_receive_maximum_is_held_or_refused() {
    let limits = Limits { inflight_in_max: 2, ..Limits::default() };
    let mut bench = Bench::with_limits(vec![to_sink(ALL, &["${payload}"], true)], WhenFull::Hold, limits);
    let old = bench.connect("old", 4);
    for packet_id in 1..=3 {
        bench.publish(old, 1, packet_id, "t", "x", false);
    }
    let records = bench.records();
    assert_eq!((records.len(), bench.shard.counters.parked_acknowledgements), (2, 1));
    bench.answer(records[0].ticket, Outcome::Accepted);
    assert_eq!((bench.sent(old).len(), bench.records().len()), (1, 1));
    let new = bench.connect("new", 5);
    for packet_id in 1..=3 {
        bench.publish(new, 1, packet_id, "t", "x", true);
    }
    assert_eq!((bench.records().len(), bench.shard.counters.closed_receive_maximum), (2, 1));
}

#[test]
fn republished_messages_run_through_rules_again_until_they_go_round() {
    let rules = vec![
        republish("SELECT clientid, topic FROM \"a\"", "b/${clientid}"),
        to_sink("SELECT * FROM \"b/#\"", &["${payload}"], false),
    ];
    let mut bench = Bench::new(rules, WhenFull::Hold);
    let client = bench.connect("car", 4);
    bench.publish(client, 1, 1, "a", "x", false);
    assert_eq!(bench.sent(client), [(0x40, vec![0, 1])]);
    let records = bench.records();
    assert_eq!(records.iter().map(|record| part(record, 0)).collect::<Vec<_>>(), [r#"{"clientid":"car","topic":"a"}"#]);

    let mut bench = Bench::new(vec![republish("SELECT topic FROM \"#\"", "x/${topic}")], WhenFull::Hold);
    let client = bench.connect("car", 4);
    bench.publish(client, 0, 0, "a", "x", false);
    let counts = bench.shard.rule_counts()[0];
    assert_eq!((counts.matched, counts.actions, counts.dropped, bench.shard.counters.dropped_republish_loop), (9, 8, 1, 1));
}

#[test]
fn what_a_rule_makes_of_one_message_is_bounded() {
    let rule = to_sink("FOREACH payload.list DO item FROM \"t\"", &["${payload}"], false);
    let mut bench = Bench::new(vec![rule], WhenFull::DropOldest);
    let client = bench.connect("car", 4);
    let payload = format!("{{\"list\":[{}1]}}", "1,".repeat(8_000));
    let mut packet = vec![0x30];
    let mut left = payload.len() + 3;
    while left > 0 {
        packet.push((left % 128) as u8 | if left >= 128 { 0x80 } else { 0 });
        left /= 128;
    }
    packet.extend([0, 1, b't']);
    packet.extend(payload.as_bytes());
    bench.shard.on_received(client, &packet, bench.now);
    bench.run();
    let counts = bench.shard.rule_counts()[0];
    assert_eq!((counts.failed, bench.records().len()), (1, 0), "8,001 copies of 16 kB are too much");
    assert_eq!(bench.failures(), ["it made more than 16777216 bytes of one message"]);
}

#[test]
fn an_action_that_cannot_is_dropped_alone_and_told_once_a_second() {
    let mut rule = to_sink("SELECT payload.vin AS vin, clientid FROM \"t\"", &["${vin}"], true);
    let publish = republish("SELECT payload.vin AS vin, clientid FROM \"t\"", "alarms/${vin}").actions.remove(0);
    rule.actions.insert(0, publish);
    let limits = Limits { topic_levels_max: 3, topic_bytes_max: 20, ..Limits::default() };
    let mut bench = Bench::with_limits(vec![rule], WhenFull::Hold, limits);
    let client = bench.connect("car", 4);
    let mut told = Vec::new();
    for (number, vin) in ["a+b", "a\\u0000b", "a/b/c", "0123456789abcdef", "7"].into_iter().enumerate() {
        bench.publish(client, 1, number as u8 + 1, "t", &format!("{{\"vin\":\"{vin}\"}}"), false);
        let records = bench.records();
        assert_eq!(records.len(), 1, "{vin}: the record is made all the same");
        bench.answer(records[0].ticket, Outcome::Accepted);
        bench.end(&records[0]);
        assert_eq!(bench.sent(client), [(0x40, vec![0, number as u8 + 1])]);
        told.push(bench.failures());
        if number != 1 {
            bench.now = bench.now + std::time::Duration::from_millis(1_001);
        }
    }
    let counts = bench.shard.rule_counts()[0];
    assert_eq!((counts.passed, counts.failed, counts.actions, counts.dropped), (5, 0, 6, 4));
    assert_eq!(
        told,
        [
            vec!["it cannot publish to \"alarms/a+b\": topic name contains a wildcard"],
            vec!["it cannot publish to \"alarms/a\\0b\": topic name contains the null character"],
            vec![],
            vec!["it cannot publish to \"alarms/0123456789abcdef\": topic is longer than 20 bytes"],
            vec![],
        ]
    );
}

#[test]
fn events_make_records() {
    let sql = "SELECT event, clientid, username, peer_address, reason, resumed, topic, qos FROM \"$events/client_connected\", \
               \"$events/client_disconnected\", \"$events/session_subscribed\", \"$events/message_dropped\", \"$events/message_delivered\"";
    let mut bench = Bench::new(
        vec![to_sink(sql, &["${event} ${clientid} ${username} ${reason} ${topic} ${qos}"], true)],
        WhenFull::DropOldest,
    );
    let client = bench.connect("car", 5);
    // SUBSCRIBE a/#, QoS 1.
    bench.receive(client, 0x82, &[0, 1, 0, 0, 3, b'a', b'/', b'#', 1]);
    bench.sent(client);
    bench.publish(client, 1, 1, "a/b", "x", true);
    bench.publish(client, 0, 0, "a/c", "x", true);
    bench.receive(client, 0x40, &[0, 1]);
    bench.receive(client, 0xE0, &[]);
    bench.shard.on_closed(client, bench.now);
    let other = bench.connect("other", 4);
    bench.publish(other, 0, 0, "a/d", "x", false);
    let records = bench.records();
    let lines: Vec<&str> = records.iter().map(|record| part(record, 0)).collect();
    assert_eq!(
        lines,
        [
            "client_connected car owner   ",
            "session_subscribed car owner  a/# 1",
            "message_delivered car owner  a/c 0",
            "message_delivered car owner  a/b 1",
            "client_disconnected car owner DISCONNECT by the client  ",
            "client_connected other owner   ",
            "message_dropped car  QoS 0 while the client was away a/d 0",
        ]
    );
    assert!(records.iter().all(|record| record.ticket.is_none() && record.qos0 != part(record, 0).ends_with('1')));
}

fn of_source(payload: &str, qos: QoS) -> Message {
    let (topic, retain, expires_at) = ("t", false, Time::NEVER);
    Message::from(MessageRef { topic, properties: &[], payload: payload.as_bytes(), qos, retain, expires_at })
}

#[test]
fn a_source_message_is_published_through_the_rules_and_accepted_once_its_sinks_have_it() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload} ${clientid}"], true)], WhenFull::Hold);
    for (payload, qos) in [("one", QoS::AtLeastOnce), ("two", QoS::AtLeastOnce), ("three", QoS::AtMostOnce)] {
        bench.shard.on_source_message(of_source(payload, qos));
    }
    bench.run();
    let records = bench.records();
    assert_eq!(records.iter().map(|record| part(record, 0)).collect::<Vec<_>>(), ["one ", "two ", "three "]);
    assert_eq!((records[2].ticket, bench.shard.source_messages_accepted()), (None, 0));
    bench.answer(records[1].ticket, Outcome::Accepted);
    assert_eq!(bench.shard.source_messages_accepted(), 0);
    bench.answer(records[0].ticket, Outcome::Failed);
    assert_eq!((bench.shard.source_messages_accepted(), bench.shard.counters.source_messages), (3, 3));
}

#[test]
fn a_source_is_held_while_a_sink_has_no_room_and_what_does_not_go_there_passes() {
    let rules = vec![to_sink(ALL, &["${payload}"], true), republish("SELECT qos FROM \"a\"", "b")];
    let mut bench = Bench::new(rules, WhenFull::Hold);
    for number in 10..30 {
        bench.shard.on_source_message(of_source(&format!("{number}{}", "x".repeat(100)), QoS::AtLeastOnce));
    }
    bench.run();
    let mut all = bench.records();
    assert!((5..10).contains(&all.len()), "{}", all.len());
    assert_eq!((bench.shard.counters.source_messages_held, bench.shard.source_messages_accepted()), (1, 0));
    assert!(bench.shard.awaits_sinks() && !bench.shard.sinks_may_go_on());
    let client = bench.connect("car", 4);
    bench.publish(client, 0, 0, "a", "x", false);
    assert_eq!(bench.shard.counters.publishes_unmatched, 1, "the republished message is nobody's");
    let mut ended = 0;
    while ended < all.len() {
        bench.end(&all[ended].clone());
        bench.answer(all[ended].ticket, Outcome::Accepted);
        ended += 1;
        all.extend(bench.records());
    }
    let numbers: Vec<&str> = all.iter().map(|record| &part(record, 0)[..2]).collect();
    assert_eq!(numbers, (10..30).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!((bench.shard.source_messages_accepted(), bench.shard.counters.dropped_sink_full), (20, 0));
    assert!(!bench.shard.awaits_sinks());
}

#[test]
fn a_source_of_qos_0_waits_for_no_sink() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], true)], WhenFull::Hold);
    for _ in 0..20 {
        bench.shard.on_source_message(of_source(&"x".repeat(100), QoS::AtMostOnce));
    }
    bench.run();
    let sent = bench.records().len() as u64;
    assert_eq!((bench.shard.source_messages_accepted(), bench.shard.counters.dropped_sink_full), (20, 20 - sent));
}

#[test]
fn a_shard_is_drained_when_every_ticket_is_answered() {
    let mut bench = Bench::new(vec![to_sink(ALL, &["${payload}"], true)], WhenFull::Hold);
    let client = bench.connect("car", 4);
    assert!(bench.shard.is_drained());
    bench.publish(client, 1, 1, "t", "x", false);
    assert!(!bench.shard.is_drained());
    let records = bench.records();
    assert!(!bench.shard.is_drained());
    bench.answer(records[0].ticket, Outcome::Accepted);
    assert!(bench.shard.is_drained());
}
