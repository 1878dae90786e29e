//! The `$SYS` topics.

use crate::harness::{Kind, Publish, Version};
use crate::{QUIET, Shared, Sys, expect_ack};

static SHARED: Shared = Shared::new("[broker]\nsys_interval_s = 1\n");

/// The names that dashboards made for mosquitto read, and those of this broker's own.
#[test]
fn the_topics_have_the_names_that_dashboards_read() {
    let broker = SHARED.broker();
    let mut sys = Sys::watch(&broker);
    for name in [
        "version",
        "uptime",
        "clients/total",
        "clients/connected",
        "clients/active",
        "clients/disconnected",
        "clients/inactive",
        "clients/maximum",
        "clients/expired",
        "messages/received",
        "messages/sent",
        "messages/stored",
        "store/messages/count",
        "store/messages/bytes",
        "retained messages/count",
        "publish/messages/received",
        "publish/messages/sent",
        "publish/messages/dropped",
        "publish/bytes/received",
        "publish/bytes/sent",
        "bytes/received",
        "bytes/sent",
        "subscriptions/count",
        "shared_subscriptions/count",
        "heap/current",
        "load/messages/received/1min",
        "load/messages/received/5min",
        "load/messages/received/15min",
        "load/messages/sent/1min",
        "load/publish/received/1min",
        "load/publish/sent/1min",
        "load/bytes/received/1min",
        "load/bytes/sent/1min",
        "load/sockets/1min",
        "load/connections/1min",
        "shards/0/connections",
        "shards/1/connections",
        "shards/0/turn/p99_us",
        "shards/1/turn/max_us",
        "shards/1/ring/depth_max",
        "counters/connections_accepted",
    ] {
        sys.wait_for(name, |value| !value.is_empty());
    }
    assert_eq!(sys.wait_for("version", |_| true), format!("corelane version {}", env!("CARGO_PKG_VERSION")));
    sys.wait_for("uptime", |value| value.strip_suffix(" seconds").is_some_and(|number| number.parse::<u64>().is_ok()));
    for (name, _) in corelane::shard::Counters::NAMES {
        sys.counter_now(name);
    }
}

/// What is counted is what happened.
#[test]
fn the_values_follow_what_happens() {
    let broker = crate::harness::Broker::start_with_config("[broker]\nsys_interval_s = 1\n");
    let mut sys = Sys::watch(&broker);
    let mut clients: Vec<_> = (0..9).map(|index| broker.client(Version::V5, &format!("values-{index}"))).collect();
    for client in &mut clients {
        client.subscribe(&[("values/x", 0), ("$share/g/values/y", 0)]);
    }
    let mut publisher = broker.client(Version::V5, "values-publisher");
    publisher.publish_with(Publish::new("values/x", "12345").qos(1).retain());
    for client in &mut clients {
        client.expect_publish();
    }
    sys.wait_for("clients/connected", |value| value == "11");
    sys.wait_for("clients/maximum", |value| value == "11");
    // And the watcher's own.
    sys.wait_for("subscriptions/count", |value| value == "10");
    sys.wait_for("shared_subscriptions/count", |value| value == "9");
    sys.wait_for("publish/messages/received", |value| value == "1");
    sys.counter("publish_bytes_received", 5);
    sys.counter("publishes_sent", 9);
    assert_eq!(sys.sum_once(&["shards/0/connections", "shards/1/connections"], 11), 11);
    drop((clients, publisher));
    sys.wait_for("clients/connected", |value| value == "1");
    sys.wait_for("clients/maximum", |value| value == "11");
    sys.wait_for("subscriptions/count", |value| value == "1");
}

/// 5.0: [MQTT-4.7.2-1]
/// 3.1.1: [MQTT-4.7.2-1]
#[test]
fn a_subscription_to_everything_brings_nothing_of_them() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V311, "everything");
    client.subscribe(&[("#", 0), ("+/broker/#", 0)]);
    client.expect_nothing(QUIET * 5);
}

/// A client may read them and not write them.
///
/// 5.0: [MQTT-3.4.2-1]
#[test]
fn a_client_cannot_publish_them() {
    let broker = SHARED.broker();
    let mut sys = Sys::watch(&broker);
    let refused = sys.counter_now("refused_topic");
    let mut client = broker.client(Version::V5, "writer");
    client.send(&Publish::new("$SYS/broker/version", "mine").qos(1).id(1).retain().encode(Version::V5));
    expect_ack(&mut client, Kind::Puback, 1, 0x87);
    client.send(&Publish::new("$SYS/broker/version", "mine").retain().encode(Version::V5));
    sys.counter("refused_topic", refused + 2);
    assert!(Sys::watch(&broker).wait_for("version", |_| true).starts_with("corelane"));
}

/// With an interval of 0 there are none.
#[test]
fn they_can_be_switched_off() {
    let broker = crate::harness::Broker::start_with_config("[broker]\nsys_interval_s = 0\n");
    let mut client = broker.client(Version::V311, "off");
    client.subscribe(&[("$SYS/#", 0)]);
    client.expect_nothing(QUIET * 5);
}
