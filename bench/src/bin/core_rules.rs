//! Messages through the rules alone: found by topic, filtered, made into rows. For callgrind, which counts instructions:
//! `scripts/instructions.sh` runs it with two counts and divides the difference; without arguments it prints times.
//!
//! Usage: core_rules [CASE MESSAGES]; the cases are in [`CASES`].

use corelane::rules::{Input, Rule, RuleSet, Verdict};
use corelane::topic::{Hasher, TopicKey};
use corelane::wire::{Properties, Property};
use std::time::Instant;

/// 100 bytes, as a vehicle sends them.
const PAYLOAD: &[u8] = br#"{"speed":133.5,"rpm":4200,"gear":5,"fuel":0.62,"pos":{"lat":48.1374,"lon":11.5755},"vin":"WDB12345"}"#;

/// Name, how many rules, and the rule, `{}` in it being its number.
const CASES: [(&str, usize, &str); 7] = [
    ("none", 0, ""),
    ("topic", 1, r#"SELECT topic, clientid, payload FROM "vehicle/+/telemetry""#),
    ("qos", 1, r#"SELECT topic, clientid, payload FROM "vehicle/+/telemetry" WHERE qos = 1"#),
    ("json", 1, r#"SELECT clientid, payload FROM "vehicle/+/telemetry" WHERE payload.speed > 120"#),
    (
        "json-select",
        1,
        r#"SELECT payload.speed AS v, payload.pos.lat AS lat, clientid, topic, timestamp FROM "vehicle/+/telemetry"
           WHERE payload.speed > 120 AND payload.gear = 5"#,
    ),
    ("one", 1, r#"SELECT clientid, payload FROM "vehicle/{}/telemetry" WHERE payload.speed > 120"#),
    ("thousand", 1_000, r#"SELECT clientid, payload FROM "vehicle/{}/telemetry" WHERE payload.speed > 120"#),
];

struct Case {
    rules: RuleSet,
    topics: Vec<String>,
    hasher: Hasher,
}

impl Case {
    fn new(rules: usize, sql: &str) -> Self {
        let hasher = Hasher::from_seed(7);
        let planned = (0..rules).map(|number| Rule::parse(&sql.replace("{}", &number.to_string())).expect("a rule"));
        let topics = (0..rules.max(1)).map(|number| format!("vehicle/{number}/telemetry")).collect();
        Self { rules: RuleSet::new(planned.collect(), hasher), topics, hasher }
    }

    /// Rows made of so many messages, to the topics of the rules in turn.
    fn publish(&self, messages: usize) -> usize {
        let mut scratch = Vec::new();
        let properties = Properties::new(&[Property::UserProperty(("k", "v"))], &mut scratch);
        let mut rows = 0;
        for (_, topic) in (0..messages).zip(self.topics.iter().cycle()) {
            let input = Input {
                client_id: Some("vehicle-7"),
                topic: Some(topic),
                payload: Some(PAYLOAD),
                qos: Some(1),
                retain: Some(false),
                properties: Some(properties),
                timestamp_ms: 1_700_000_000_000,
                node: "corelane",
                ..Input::default()
            };
            let key = TopicKey::new(topic, &self.hasher);
            self.rules.publish(&key, input, |_, _, made| {
                if let Ok(Verdict::Passed(made)) = made {
                    rows += made.len();
                }
            });
        }
        rows
    }

    /// The best of some tries.
    fn ns_per_message(&self) -> f64 {
        const MESSAGES: usize = 20_000;
        let time = || {
            let start = Instant::now();
            self.publish(MESSAGES);
            start.elapsed().as_nanos() as f64 / MESSAGES as f64
        };
        (0..15).map(|_| time()).fold(f64::MAX, f64::min)
    }
}

fn main() {
    assert_eq!(PAYLOAD.len(), 100);
    let mut arguments = std::env::args().skip(1);
    if let (Some(name), Some(messages)) = (arguments.next(), arguments.next()) {
        let (_, rules, sql) = CASES.iter().find(|case| case.0 == name).expect("a case");
        let messages = messages.parse().expect("a number of messages");
        let rows = Case::new(*rules, sql).publish(messages);
        assert_eq!(rows, messages * (*rules).min(1));
        return;
    }
    let times = CASES.map(|(name, rules, sql)| {
        let time = Case::new(rules, sql).ns_per_message();
        println!("rules {name}: {time:.0} ns per message");
        time
    });
    println!("1,000 rules on distinct filters: {:.2} times one", times[6] / times[5]);
}
