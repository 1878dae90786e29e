//! Sinks, sources, rules and actions in the file: what is made of them, and every fault with its place.

use super::{Config, Flags, resolve_text};
use crate::rules::{Action, Part, Republish};
use crate::sinks::options::{Compression, Confirm, KafkaOptions, Sasl, SinkKind, WhenFull};
use crate::wire::QoS;
use std::path::Path;

fn resolve(text: &str) -> Config {
    resolve_text(Some((Path::new("c.toml"), text)), &Flags::default()).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> Vec<String> {
    match resolve_text(Some((Path::new("c.toml"), text)), &Flags::default()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// The only error of `text`.
#[track_caller]
fn error(text: &str) -> String {
    let mut all = errors(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// The only error begins and goes on like this.
#[track_caller]
fn fails(text: &str, place: &str, parts: &[&str]) {
    let error = error(text);
    assert!(error.starts_with(&format!("{place}: error: ")) && parts.iter().all(|part| error.contains(part)), "{error}");
}

const SINKS: &str = r#"
[[kafka]]
name = "fleet"
brokers = "k1:9092, k2:9092"
compression = "zstd"
sasl = "scram_sha_512"
sasl_username = "u"
sasl_password_path = "/p"
[[file]]
name = "lines"
path = "x.jsonl"
[[http]]
name = "web"
url = "https://h/in"
disk_path = "d"
[[mongodb]]
name = "docs"
"#;

/// A rule below [`SINKS`], whose first line is the 18th.
fn with_rule(rule: &str) -> String {
    format!("{SINKS}{rule}")
}

/// An action, its settings from line 22 on, in a rule below [`SINKS`].
fn with_action(action: &str) -> String {
    with_rule(&format!("[[rule]]\nname = \"r\"\nsql = 'SELECT payload.v AS v FROM \"t/#\"'\n[[rule.action]]\n{action}"))
}

#[test]
fn rules_and_sinks_become_what_shards_and_the_sink_core_run_with() {
    let config = resolve(&with_rule(
        r#"
[[rule]]
name = "telemetry"
sql = '''
SELECT payload.speed AS v, clientid
FROM "vehicle/+/telemetry" WHERE payload.speed > 120'''
[[rule.action]]
sink = "fleet"
ack = "delivered"
topic = "t-${v}"
[[rule.action]]
sink = "web"
path = "/${clientid}"
[[rule.action]]
publish = "seen/${clientid}"
qos = 2
retain = true
[[rule]]
name = "events"
sql = 'SELECT * FROM "$events/client_connected"'
action = [{ sink = "lines" }, { sink = "fleet", topic = "e", headers = "none" }, { sink = "docs", collection = "c", filter = '{"_id":"${clientid}"}' }]
"#,
    ));
    let SinkKind::Kafka(kafka) = &config.sinks[0].kind else { panic!("kafka comes first") };
    assert_eq!(
        kafka,
        &KafkaOptions {
            brokers: "k1:9092, k2:9092".into(),
            compression: Compression::Zstd,
            sasl: Sasl::ScramSha512,
            sasl_username: "u".into(),
            sasl_password_path: "/p".into(),
            ..KafkaOptions::default()
        }
    );
    let names: Vec<&str> = config.sinks.iter().map(|sink| sink.name.as_str()).collect();
    assert_eq!(names, ["fleet", "docs", "web", "lines"]);
    let full: Vec<WhenFull> = config.sinks.iter().map(|sink| sink.buffer.when_full).collect();
    assert_eq!(full, [WhenFull::Hold, WhenFull::DropOldest, WhenFull::DropOldest, WhenFull::DropOldest]);
    let actions: Vec<_> =
        config.actions.iter().map(|action| (action.id.0, action.label.as_str(), action.sink, action.confirm)).collect();
    assert_eq!(
        actions,
        [
            (0, "telemetry/1", 0, Confirm::Delivered),
            (1, "telemetry/2", 2, Confirm::Queued),
            (2, "events/1", 3, Confirm::Queued),
            (3, "events/2", 0, Confirm::Queued),
            (4, "events/3", 1, Confirm::Queued),
        ]
    );
    let [telemetry, events] = &config.rules[..] else { panic!("two rules") };
    let shape = |action: &Action| match action {
        Action::Record(record) => {
            let properties = record.parts.iter().filter(|part| matches!(part, Part::Properties)).count();
            (record.id.0, record.sink, record.parts.len(), properties, record.ticketed)
        }
        Action::Republish(_) => (u16::MAX, 0, 0, 0, false),
    };
    let shapes: Vec<_> = telemetry.actions.iter().map(shape).collect();
    // Ticketed: the first waits for Kafka, the second for the disk buffer.
    assert_eq!(shapes, [(0, 0, 4, 1, true), (1, 2, 2, 0, true), (u16::MAX, 0, 0, 0, false)]);
    let shapes: Vec<_> = events.actions.iter().map(shape).collect();
    assert_eq!(shapes, [(2, 3, 1, 0, false), (3, 0, 3, 0, false), (4, 1, 4, 0, false)]);
    let batches = |number: usize| match &config.sinks[number].kind {
        SinkKind::Mongodb(options) => options.batches_max,
        _ => 0,
    };
    assert_eq!(batches(1), 1, "upserts keep their order");
    let Action::Republish(Republish { topic, qos, retain, properties, .. }) = &telemetry.actions[2] else { panic!("publishes") };
    assert_eq!((topic.constant(), *qos, *retain, *properties), (None, Some(QoS::ExactlyOnce), true, true));
}

#[test]
fn a_fault_in_sql_is_reported_where_it_stands_in_the_file() {
    let sql = |sql: &str| with_rule(&format!("[[rule]]\nname = \"r\"\nsql = {sql}\naction = [{{ sink = \"lines\" }}]\n"));
    fails(&sql("'SELECT clientld FROM \"t\"'"), "c.toml:20:15", &["in the SQL: unknown field", "`clientid`"]);
    fails(&sql("'''\nSELECT *\nFROM \"t\"\n WHERE'''"), "c.toml:23:7", &["in the SQL: expected an expression"]);
    fails(&sql(r#""SELECT qos FROM \"t\" WHERE""#), "c.toml:20:35", &["expected an expression, found the end"]);
    fails(&sql("''"), "c.toml:20:8", &["expected SELECT or FOREACH"]);
    fails(
        &with_rule("[[rule]]\nname = \"r\"\naction = [{sink=\"lines\"}]"),
        "c.toml:18:1",
        &["rule 1 has no sql", "such as sql = 'SELECT"],
    );
    fails(
        &with_rule("[[rule]]\nsql = 'SELECT * FROM \"t\"'\naction = [{sink=\"lines\"}]"),
        "c.toml:18:1",
        &["rule 1 has no name"],
    );
    fails(
        &with_rule("[[rule]]\nname = \"r\"\nsql = 'SELECT * FROM \"t\"'\n"),
        "c.toml:18:1",
        &["rule 1 has no action", "[[rule.action]]"],
    );
}

#[test]
fn a_fault_in_a_template_is_reported_where_it_stands_in_the_file() {
    fails(&with_action("sink = \"lines\"\nline = \"a ${w}\"\n"), "c.toml:23:11", &["line: ", "unknown field `w`"]);
    fails(&with_action("sink = \"lines\"\nline = '''\na\n ${clientld}'''\n"), "c.toml:25:2", &["clientid"]);
    fails(&with_action("publish = \"a/${\"\n"), "c.toml:22:14", &["not closed"]);
    fails(&with_action("publish = \"a/+\"\n"), "c.toml:22:14", &["wildcard"]);
    fails(&with_action("publish = \"$SYS/x\"\n"), "c.toml:22:12", &["broker's own"]);
    fails(&with_action("sink = \"fleet\"\ntopic = \"a/b\"\n"), "c.toml:23:11", &["\"a/b\" is no Kafka topic"]);
    fails(&with_action("sink = \"docs\"\ncollection = \"system.x\"\n"), "c.toml:23:15", &["no name of a collection"]);
    fails(&with_action("publish = \"$SYS/${v}\"\n"), "c.toml:22:12", &["broker's own"]);
    fails(&with_action(&format!("publish = \"{}${{v}}\"\n", "a/".repeat(200))), "c.toml:22:12", &["levels"]);
    fails(&with_action("sink = \"docs\"\ncollection = \"c\"\ndocument = '{x'\n"), "c.toml:24:13", &["no JSON", "such as {"]);
    fails(&with_action("sink = \"docs\"\ncollection = \"c\"\nfilter = '{\"a\":'\n"), "c.toml:24:11", &["no JSON"]);
    fails(&with_action("sink = \"web\"\nbody = 'not json'\n"), "c.toml:23:9", &["json_array"]);
    fails(&with_action("sink = \"web\"\npath = '../x'\n"), "c.toml:23:9", &["leads out of the URL"]);
}

#[test]
fn an_action_says_where_it_leads_and_nothing_that_is_of_another_kind() {
    fails(
        &with_action("sink = \"flete\"\ntopic = \"t\"\n"),
        "c.toml:22:8",
        &["there is no sink \"flete\"; did you mean \"fleet\"?"],
    );
    fails(&with_action("sink = \"xyzzy\"\n"), "c.toml:22:8", &["the sinks are fleet, docs, web, lines"]);
    fails(&with_action("ack = \"queued\"\n"), "c.toml:21:1", &["a sink or publishes, and this has neither"]);
    fails(&with_action("sink = \"lines\"\npublish = \"t\"\n"), "c.toml:21:1", &["has both"]);
    fails(
        &with_action("sink = \"lines\"\ntopic = \"t\"\n"),
        "c.toml:23:9",
        &["topic belongs to actions to a kafka sink, and this is one of those to a file sink", "have sink, ack, line"],
    );
    fails(&with_action("publish = \"t\"\nack = \"delivered\"\n"), "c.toml:23:7", &["ack belongs to actions to a kafka sink and"]);
    fails(&with_action("sink = \"fleet\"\n"), "c.toml:21:1", &["this action has no topic", "topic = \"telemetry\""]);
    fails(&with_action("sink = \"docs\"\n"), "c.toml:21:1", &["this action has no collection"]);
    fails(
        &with_action("sink = \"lines\"\nlien = \"t\"\n"),
        "c.toml:23:1",
        &["unknown setting \"lien\" in [[rule.action]]", "\"line\""],
    );
    fails(&with_action("sink = \"lines\"\n[rule.action.x]\n"), "c.toml:23:14", &["unknown setting \"x\""]);
    let none = "[[rule]]\nname = \"r\"\nsql = 'SELECT * FROM \"t\"'\naction = [{ sink = \"x\" }]\n";
    fails(none, "c.toml:4:20", &["there is no sink \"x\"; write a [[kafka]]"]);
    fails(&none.replace("[{ sink = \"x\" }]", "{ sink = \"x\" }"), "c.toml:4:1", &["write [[rule.action]]"]);
}

#[test]
fn a_rule_about_messages_to_clients_does_not_publish_more_of_them() {
    let rule = |event: &str| {
        let sql = format!("sql = 'SELECT clientid FROM \"$events/{event}\"'");
        with_rule(&format!("[[rule]]\nname = \"r\"\n{sql}\naction = [{{ publish = \"t\" }}]\n"))
    };
    for event in ["message_delivered", "message_dropped"] {
        fails(&rule(event), "c.toml:21:23", &["without end", event]);
    }
    assert_eq!(errors(&rule("client_connected")), Vec::<String>::new());
}

#[test]
fn names_of_sinks_rules_and_sources_are_distinct_whatever_their_kind() {
    fails(
        "[[http]]\nname = \"a\"\nurl = \"http://h\"\n[[kafka]]\nname = \"a\"\n",
        "c.toml:2:8",
        &["the name of another sink too (c.toml:5:8)"],
    );
    let rule = "[[rule]]\nname = \"r\"\nsql = 'SELECT * FROM \"t\"'\naction = [{ publish = \"p\" }]\n";
    fails(&format!("{rule}{rule}"), "c.toml:6:8", &["another rule"]);
    let source = "[[kafka_source]]\nname = \"s\"\ntopics = \"t\"\n";
    fails(&format!("{source}{source}"), "c.toml:5:8", &["another source"]);
    fails("[[file]]\nname = \"a/b\"\n", "c.toml:2:8", &["this has '/' in it", "letters, digits"]);
    // Without a name nothing refers to it, so that there is one fault.
    fails("[[file]]\n[[file]]\nname = \"x\"\n", "c.toml:1:1", &["file 1 has no name"]);
}

#[test]
fn settings_of_a_sink_that_cannot_stand_together_are_refused() {
    let kafka = |text: &str| format!("[[kafka]]\nname = \"k\"\n{text}\n");
    fails(&kafka("acks = \"leader\""), "c.toml:3:8", &["acks = \"leader\" and idempotence = true"]);
    assert!(errors(&kafka("acks = \"leader\"\nidempotence = false")).is_empty());
    fails(&kafka("brokers = \"a:9092,,b\""), "c.toml:3:11", &["\"\" is no HOST:PORT"]);
    fails(&kafka("brokers = \"a:x\""), "c.toml:3:11", &["\"a:x\""]);
    assert_eq!(errors(&kafka("sasl = \"plain\"")).len(), 2);
    fails(&kafka("sasl_username = \"u\""), "c.toml:3:17", &["no meaning without sasl"]);
    fails(&kafka("tls_ca_path = \"u\""), "c.toml:3:15", &["no meaning without tls = true"]);
    fails(&kafka("tls = true\ntls_key_path = \"u\""), "c.toml:4:16", &["go together"]);
    fails(&kafka("properties = \"c\""), "c.toml:3:15", &["\"c\" is not `name=value`"]);
    fails(&kafka("properties = \"linger.ms=5, bogus.prop=1\""), "c.toml:3:28", &["bogus.prop=1", "librdkafka"]);
    assert!(errors(&kafka("properties = \"debug=broker,msg\"")).is_empty());
    fails(&kafka("disk_bytes_max = \"2 MiB\""), "c.toml:3:18", &["disk_path is not"]);
    fails(&kafka("batch_bytes_max = \"65 MiB\""), "c.toml:3:19", &["(\"65 MiB\")", "(\"64 MiB\", the default)"]);
    fails(&kafka("memory_bytes_max = \"512 KiB\""), "c.toml:3:20", &["(\"1 MiB\", the default)", "(\"512 KiB\")"]);
    let two = "[[file]]\nname = \"a\"\ndisk_path = \"d/x\"\npath = \"-\"\n[[file]]\nname = \"b\"\npath = \"-\"\ndisk_path = \"./d/y/../x/\"\n";
    fails(two, "c.toml:8:13", &["the disk_path of another disk buffer too (c.toml:3:13)"]);
    fails("[[file]]\nname = \"a\"\npath = \"f\"\n[[file]]\nname = \"b\"\npath = \"f\"\n", "c.toml:6:8", &["another file"]);
    let letters = "[[file]]\nname = \"a\"\npath = \"f\"\ndead_letter_path = \"./f\"\n";
    fails(letters, "c.toml:4:20", &["a file that records go to (c.toml:3:8)"]);
}

#[test]
fn addresses_of_servers_are_read_before_the_start() {
    let http = |text: &str| format!("[[http]]\nname = \"h\"\n{text}\n");
    fails(&http("url = \"h:80/x\""), "c.toml:3:7", &["neither http nor https"]);
    fails(&http("url = \"http://\""), "c.toml:3:7", &["url: "]);
    fails(&http("url = \"http://h/?a=1\""), "c.toml:3:7", &["query"]);
    fails(&http(""), "c.toml:1:1", &["http 1 has no url"]);
    fails(&http("url = \"http://h\"\nheaders = '''\nA: b\nnone'''"), "c.toml:6:1", &["\"none\" has no colon"]);
    fails(&http("url = \"http://h\"\nheaders = \"é: b\""), "c.toml:4:12", &["no name of a header"]);
    fails("[[mongodb]]\nname = \"m\"\nuri = \"h:27017\"\n", "c.toml:3:7", &["scheme"]);
    fails("[[mongodb]]\nname = \"m\"\nuri = \"mongodb://h/?w=0\"\n", "c.toml:3:7", &["w=0 has the server confirm nothing"]);
    fails("[[mongodb]]\nname = \"m\"\ndatabase = \"a.b\"\n", "c.toml:3:12", &["no name of a database"]);
}

#[test]
fn what_is_acknowledged_once_delivered_is_never_dropped() {
    let text = |full: &str| {
        format!(
            "[[file]]\nname = \"f\"\n{full}\n[[rule]]\nname = \"r\"\nsql = 'SELECT * FROM \"t\"'\n\
             action = [{{ sink = \"f\", ack = \"delivered\" }}]\n"
        )
    };
    fails(&text("when_full = \"drop_oldest\""), "c.toml:7:31", &["cannot be kept", "(c.toml:3:13)"]);
    assert_eq!(resolve(&text("when_full = \"hold\"")).sinks[0].buffer.when_full, WhenFull::Hold);
    assert_eq!(resolve(&text("")).sinks[0].buffer.when_full, WhenFull::Hold);
    let kafka = "[[kafka]]\nname = \"k\"\nacks = \"none\"\nidempotence = false\n[[rule]]\nname = \"r\"\nsql = 'SELECT * FROM \"t\"'\n\
                 action = [{ sink = \"k\", topic = \"t\", ack = \"delivered\" }]\n";
    fails(kafka, "c.toml:8:44", &["acks = \"none\" (c.toml:3:8)", "nobody confirms"]);
    let queued = text("when_full = \"hold\"").replace("delivered", "queued");
    assert_eq!(resolve(&queued).sinks[0].buffer.when_full, WhenFull::Hold);
    assert_eq!(resolve(&queued.replace("\"hold\"", "\"auto\"")).sinks[0].buffer.when_full, WhenFull::DropOldest);
}

#[test]
fn sources_are_read_with_their_connection_beside_them() {
    let config = resolve(
        "[[kafka_source]]\nname = \"s\"\ntopics = \"a, b\"\nbrokers = \"k:1\"\nqos = 0\nmqtt_topic = \"c/${headers.x}/${key}\"\n",
    );
    let source = &config.sources[0];
    assert_eq!((source.kafka.brokers.as_str(), source.qos, source.topics.as_str()), ("k:1", 0, "a, b"));
    let source = |text: &str| format!("[[kafka_source]]\nname = \"s\"\ntopics = \"t\"\n{text}\n");
    fails(&source("mqtt_topic = \"c/${kye}\""), "c.toml:4:17", &["no \"kye\"", "${key}"]);
    fails(&source("mqtt_topic = \"c/${key\""), "c.toml:4:17", &["not closed"]);
    fails(&source("mqtt_topic = \"c/#\""), "c.toml:4:17", &["wildcard"]);
    fails(&source("mqtt_topic = \"c/#/${key}\""), "c.toml:4:17", &["wildcard"]);
    fails(&source("mqtt_topic = \"$SYS/broker/${key}\""), "c.toml:4:15", &["broker's own"]);
    fails(&source(&format!("mqtt_topic = \"{}${{key}}\"", "a/".repeat(200))), "c.toml:4:15", &["levels"]);
    fails(&source("group = \"\""), "c.toml:4:9", &["group is empty"]);
    fails(&source("acks = \"all\""), "c.toml:4:1", &["acks belongs under [[kafka]]"]);
    fails("[[kafka_source]]\nname = \"s\"\ntopics = \"a,,b\"\n", "c.toml:3:10", &["\"\" is no Kafka topic"]);
}

#[test]
fn there_are_at_most_as_many_sinks_as_a_byte_can_number() {
    let sinks = |count: usize| -> String { (0..count).map(|number| format!("[[file]]\nname = \"f{number}\"\n")).collect() };
    assert_eq!(resolve(&sinks(255)).sinks.len(), 255);
    fails(&sinks(256), "c.toml:511:1", &["there are 256 sinks, 255 at most"]);
}

#[test]
fn every_configuration_in_the_page_about_sinks_is_one() {
    let page = include_str!("../../docs/sinks.md");
    let blocks: Vec<&str> = page.split("```toml\n").skip(1).map(|behind| behind.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 6, "{}", blocks.len());
    for block in blocks {
        let config = resolve(block);
        assert!(!config.rules.is_empty() || !config.sources.is_empty(), "{block}");
    }
}
