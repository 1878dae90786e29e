//! Messages through the pure core and a rule that sends each to a sink: what the rule costs a shard beyond the message itself, from the
//! look for rules to the record that is ready for the ring to the sink core. Nobody subscribes. For callgrind, which counts
//! instructions: `scripts/instructions.sh` runs it with two counts and divides the difference; without arguments it prints times, the
//! cases in alternation.
//!
//! Usage: core_records [CASE MESSAGES]; the cases are in [`CASES`].

use corelane::ids::{ConnectionId, CoreId};
use corelane::limits::Limits;
use corelane::record::ActionId;
use corelane::rules::{Action, Part, PlannedRule, RecordAction, Rule, Template};
use corelane::shard::{Gate, Globals, Shard, ShardOptions, WhenFull};
use corelane::time::Time;
use corelane::topic::Hasher;
use corelane::wire::{self, Connect, Packet, Publish, Version};
use std::sync::Arc;
use std::time::Instant;

/// 100 bytes, as a vehicle sends them.
const PAYLOAD: &[u8] = br#"{"speed":133.5,"rpm":4200,"gear":5,"fuel":0.62,"pos":{"lat":48.1374,"lon":11.5755},"vin":"WDB12345"}"#;
const TOPIC: &str = "vehicle/000042/telemetry";
const NOW: Time = Time(1_000_000_000);
/// Messages that come in one receive.
const BATCH: usize = 50;

/// Name, how many rules, and the rule; `{}` is its number, and the topic's is 0.
const CASES: [(&str, usize, &str); 5] = [
    ("none", 0, ""),
    ("topic", 1, r#"SELECT clientid, payload FROM "vehicle/+/telemetry""#),
    ("json", 1, r#"SELECT clientid, payload FROM "vehicle/+/telemetry" WHERE payload.speed > 120"#),
    ("one", 1, r#"SELECT clientid, payload FROM "vehicle/{}/telemetry" WHERE payload.speed > 120"#),
    ("thousand", 1_000, r#"SELECT clientid, payload FROM "vehicle/{}/telemetry" WHERE payload.speed > 120"#),
];

struct Case {
    shard: Shard,
    globals: Arc<Globals>,
    publisher: ConnectionId,
    bytes: Vec<u8>,
    records: usize,
}

impl Case {
    fn new(rules: usize, sql: &str) -> Self {
        let planned = |number: usize| {
            let rule = Rule::parse(&sql.replace("{}", &format!("{:06}", number + 42))).expect("a rule");
            let part = |text: &str| Part::Text(Template::parse(text, &rule).expect("a template"));
            let parts = vec![part("telemetry"), part("${clientid}"), part("${payload}")];
            let action = RecordAction { id: ActionId(0), sink: 0, parts, ticketed: false };
            PlannedRule { name: "rule".into(), rule, actions: vec![Action::Record(action)] }
        };
        let globals = Arc::new(Globals { gates: Box::new([Gate::new(64 << 20, WhenFull::Hold)]), ..Globals::default() });
        let mut shard = Shard::new(ShardOptions {
            core: CoreId(0),
            cores: 1,
            limits: Arc::new(Limits::default()),
            hasher: Hasher::from_seed(7),
            globals: globals.clone(),
            delays: None,
            rules: (0..rules).map(planned).collect(),
            node: "bench".into(),
            epoch_us: 0,
            now: NOW,
        });
        let publisher = shard.on_accepted(1, 0, NOW).expect("below every limit");
        let connect = Connect { version: Version::V3_1_1, client_id: "vehicle-000042", clean_start: true, ..Connect::default() };
        let mut bytes = Vec::new();
        wire::encode(&Packet::Connect(connect), Version::V3_1_1, &mut bytes);
        shard.on_received(publisher, &bytes, NOW);
        shard.run(NOW);
        bytes.clear();
        for _ in 0..BATCH {
            let publish = Publish { topic: TOPIC, payload: PAYLOAD, ..Publish::default() };
            wire::encode(&Packet::Publish(publish), Version::V3_1_1, &mut bytes);
        }
        Self { shard, globals, publisher, bytes, records: 0 }
    }

    fn publish(&mut self, messages: usize) {
        for _ in 0..messages / BATCH {
            self.shard.on_received(self.publisher, &self.bytes, NOW);
            self.shard.run(NOW);
            // What the sink core would do about the shard's accounts; the records themselves are freed here too.
            let bytes = self.shard.effects.records.iter().map(|record| record.bytes()).sum();
            let records = self.shard.effects.records.len();
            self.shard.effects.records.clear();
            self.globals.gates[0].leave(records as u64, bytes);
            self.records += records;
            self.shard.on_records_taken(self.records as u64);
        }
    }
}

fn main() {
    assert_eq!(PAYLOAD.len(), 100);
    let mut arguments = std::env::args().skip(1);
    if let (Some(name), Some(messages)) = (arguments.next(), arguments.next()) {
        let (_, rules, sql) = CASES.iter().find(|case| case.0 == name).expect("a case");
        let messages = messages.parse().expect("a number of messages");
        let mut case = Case::new(*rules, sql);
        case.publish(messages);
        assert_eq!(case.records, messages / BATCH * BATCH * (*rules).min(1));
        return;
    }
    const MESSAGES: usize = 20_000;
    let mut cases = CASES.map(|(_, rules, sql)| Case::new(rules, sql));
    let mut best = [f64::MAX; CASES.len()];
    for _ in 0..20 {
        for (case, best) in cases.iter_mut().zip(&mut best) {
            let start = Instant::now();
            case.publish(MESSAGES);
            *best = best.min(start.elapsed().as_nanos() as f64 / MESSAGES as f64);
        }
    }
    for ((name, ..), time) in CASES.iter().zip(best) {
        println!("{name}: {time:.0} ns per message, the rule {:.0} ns", time - best[0]);
    }
    println!("1,000 rules on distinct filters: {:.2} times one, of the whole message", best[4] / best[3]);
}
