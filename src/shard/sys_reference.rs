//! The page about `$SYS/broker/…`: what counters mean is written from their table, everything else is held against what is published.

use super::publish::Pending;
use super::sys_snapshot::{ShardSample, Snapshot};
use super::{Counters, Shard, ShardOptions};
use crate::ids::CoreId;
use crate::limits::Limits;
use crate::rules::{PlannedRule, Rule, RuleCounts};
use crate::time::Time;
use crate::topic::Hasher;
use std::fmt::Write;

const HEAD: &str = "\
# Counters: what is below `$SYS/broker/`

Retained messages, published anew every `broker.sys_interval_s` (10 s; 0 turns them off) as far as they have changed. Counters grow from
the start of the broker and are the sum of all shards. `mosquitto_sub -v -t '$SYS/#' -W 15` shows all of them.

The table of counters is written from `src/shard/counters.rs`; a test fails when it is stale, or when anything is published that this page
leaves out. `CORELANE_WRITE_DOCS=1 cargo test --lib sys_reference` writes it anew.

## As mosquitto has them

| topic | |
|---|---|
| `version`, `uptime` | of the broker; seconds since the start |
| `clients/total` | sessions, whether their client is connected or not |
| `clients/connected`, `clients/active` | of these, those whose client is connected |
| `clients/disconnected`, `clients/inactive` | and those whose client is not |
| `clients/maximum`, `clients/expired` | the most that were connected at one time; sessions whose expiry interval passed |
| `messages/received`, `messages/sent` | packets of any kind |
| `publish/messages/received`, `publish/messages/sent` | PUBLISH packets |
| `publish/messages/dropped` | all counters `dropped_…` below but those of retained messages and sinks |
| `publish/bytes/received`, `publish/bytes/sent` | payload bytes of PUBLISH packets |
| `bytes/received`, `bytes/sent` | bytes of any kind |
| `messages/stored`, `store/messages/count`, `retained messages/count` | retained messages |
| `store/messages/bytes` | bytes of retained messages |
| `subscriptions/count`, `shared_subscriptions/count` | subscriptions; the shared ones |
| `heap/current` | bytes that count towards `memory_max_bytes` |
| `load/messages/received/1min`, `load/messages/sent/1min`, `load/publish/received/1min`, `load/publish/sent/1min`, `load/bytes/received/1min`, `load/bytes/sent/1min` | the same per minute, as a mean that fades over 1 minute; also over 5 (`…/5min`) and 15 (`…/15min`) |
| `load/sockets/1min`, `load/connections/1min` | connections, and CONNECTs accepted, per minute |

## Shards

| topic | |
|---|---|
| `shards/N/connections`, `shards/N/clients/connected`, `shards/N/sessions`, `shards/N/subscriptions` | there now |
| `shards/N/messages/received`, `shards/N/messages/sent` | PUBLISH packets |
| `shards/N/parked` | connections that wait now (`parked_…` below say for what) |
| `shards/N/fanouts/waiting` | fan-outs that wait for a later turn |
| `shards/N/turn/p99_us`, `shards/N/turn/max_us` | how long turns took since the last update, wall clock |
| `shards/N/ring/depth_max` | messages in the fullest ring to another core, in about the last second |

## Rules

`matched` is the sum of `passed`, `no_result` and `failed`. Sinks, actions and sources have topics of their own: [sinks.md](sinks.md#status).

| topic | |
|---|---|
| `rules/NAME/matched` | messages and events that FROM matched |
| `rules/NAME/passed` | of these, those that made rows |
| `rules/NAME/no_result` | those for which WHERE was not true, or FOREACH found nothing |
| `rules/NAME/failed` | those for which an expression of the rule failed, or that would have made too much |
| `rules/NAME/actions` | actions taken for rows |
| `rules/NAME/dropped` | actions not taken: for want of room, because an expression in their template failed or made no topic to publish to, or because messages republished each other too often |
| `rules/NAME/last_error` | why the rule, or an action of it, failed last |

## Every counter

Below `$SYS/broker/counters/`.

| counter | |
|---|---|
";

fn reference() -> String {
    let mut page = HEAD.to_owned();
    for (name, doc) in Counters::NAMES {
        writeln!(page, "| `{name}` | {} |", doc.trim()).expect("a String takes what is written");
    }
    page
}

/// The topics below `$SYS/broker/` of a broker with one shard and one rule.
fn published() -> Vec<String> {
    let rule = PlannedRule { name: "NAME".into(), rule: Rule::parse("SELECT * FROM \"t\"").unwrap(), actions: Vec::new() };
    let mut shard = Shard::new(ShardOptions {
        core: CoreId(0),
        cores: 1,
        limits: Limits::default().into(),
        hasher: Hasher::from_seed(1),
        globals: Default::default(),
        delays: None,
        rules: [rule].into(),
        node: "".into(),
        epoch_us: 0,
        now: Time::from_ms(0),
    });
    let snapshot = Snapshot {
        shards: vec![ShardSample::default()],
        rules: vec![RuleCounts::default()],
        rule_errors: vec!["why".to_owned()],
        ..Snapshot::default()
    };
    // Loads are rates: they are there from the second time on.
    for time_ms in [0, 10_000] {
        shard.publish_sys(&snapshot, Time::from_ms(time_ms));
    }
    let topic = |pending: &Pending| match pending {
        Pending::Publish { message, .. } => message.topic().strip_prefix("$SYS/broker/").unwrap().to_owned(),
        _ => panic!("only messages are published"),
    };
    shard.pending.iter().map(topic).collect()
}

#[test]
fn the_page_has_everything_that_is_published() {
    let page = reference();
    let topics = published();
    assert!(topics.len() > Counters::COUNT);
    // The means over 5 and 15 minutes stand beside the one over 1.
    for topic in topics.iter().filter(|topic| !topic.ends_with("5min")) {
        let shown = topic.replace("shards/0/", "shards/N/");
        let shown = shown.strip_prefix("counters/").unwrap_or(&shown);
        assert!(page.contains(&format!("`{shown}`")), "{topic}");
    }
}

#[test]
fn the_page_is_what_the_table_of_counters_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/counters.md");
    if std::env::var_os("CORELANE_WRITE_DOCS").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == reference(), "docs/counters.md is stale; CORELANE_WRITE_DOCS=1 cargo test --lib sys_reference writes it");
}
