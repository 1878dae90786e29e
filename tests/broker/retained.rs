//! Retained messages (section 3.3.1.3).

use crate::harness::{Broker, Client, Connect, Kind, Publish, Version, acknowledge, property, subscribe_with};
use crate::{QUIET, Shared};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

static SHARED: Shared = Shared::new("");

/// Publishes and waits until the message is stored, wherever.
fn retain(client: &mut Client, topic: &str, payload: &str, qos: u8) {
    client.publish_with(Publish::new(topic, payload).qos(qos).retain());
    // The store may be on another core, to which a subscription asks behind this message.
    client.ping();
}

/// A new subscriber to the filter gets these messages and no others: topic, payload, QoS and retain flag.
#[track_caller]
fn expect_stored(broker: &Broker, filter: &str, expected: BTreeSet<(String, Vec<u8>, u8, bool)>) {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let mut client = broker.client(Version::V5, &format!("stored-{}", SERIAL.fetch_add(1, Ordering::Relaxed)));
    client.subscribe(&[(filter, 2)]);
    let mut found = BTreeSet::new();
    while found.len() < expected.len() {
        let publish = client.expect_publish();
        match publish.qos {
            0 => {}
            1 => client.send(&acknowledge(Kind::Puback, publish.id)),
            _ => {
                client.send(&acknowledge(Kind::Pubrec, publish.id));
                client.expect_kind(Kind::Pubrel);
                client.send(&acknowledge(Kind::Pubcomp, publish.id));
            }
        }
        found.insert((publish.topic, publish.payload, publish.qos, publish.retain));
    }
    assert_eq!(found, expected);
    client.expect_nothing(QUIET);
}

fn entry(topic: &str, payload: &str, qos: u8) -> (String, Vec<u8>, u8, bool) {
    (topic.into(), payload.into(), qos, true)
}

/// 5.0: [MQTT-3.3.1-5] [MQTT-3.3.1-9]
/// 3.1.1: [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-8] [MQTT-3.3.1-7]
#[test]
fn the_last_retained_message_of_a_topic_is_sent_to_new_subscriptions_with_its_qos_and_the_flag_set() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "last-publisher");
        for qos in 0..=2 {
            for round in 0..2 {
                let payload = format!("{version:?}{qos}{round}");
                retain(&mut publisher, "r/last", &payload, qos);
                expect_stored(&broker, "r/last", [entry("r/last", &payload, qos)].into());
            }
        }
        let mut subscriber = broker.client(version, "last-subscriber");
        subscriber.subscribe(&[("r/last", 0)]);
        let publish = subscriber.expect_publish();
        assert_eq!((publish.qos, publish.retain, publish.dup), (0, true, false), "the lower QoS is the subscription's");
    }
    retain(&mut broker.client(Version::V5, "last-cleaner"), "r/last", "", 1);
}

/// 5.0: [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8]
/// 3.1.1: [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.3.1-12] [MQTT-3.3.1-9]
#[test]
fn an_empty_payload_removes_and_a_message_without_the_flag_changes_nothing() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "empty-publisher");
        let mut live = broker.client(version, "empty-live");
        live.subscribe(&[("r/empty", 0)]);
        retain(&mut publisher, "r/empty", "kept", 1);
        publisher.publish("r/empty", "passing", 1);
        publisher.publish("r/empty", "", 1);
        expect_stored(&broker, "r/empty", [entry("r/empty", "kept", 1)].into());
        retain(&mut publisher, "r/empty", "", 1);
        expect_stored(&broker, "r/empty", BTreeSet::new());
        for payload in ["kept", "passing", "", ""] {
            let publish = live.expect_publish();
            assert_eq!((publish.payload, publish.retain), (payload.into(), false));
        }
    }
}

/// 5.0: [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-4]
/// 3.1.1: [MQTT-3.8.4-3]
#[test]
fn retain_handling_decides_whether_a_subscription_made_again_gets_them_again() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "handling-publisher");
    retain(&mut publisher, "r/handling", "x", 1);
    let mut client = broker.client(Version::V5, "handling");
    for (options, sent) in [(0x20, false), (0x10, false), (0x00, true), (0x00, true), (0x10, false), (0x20, false)] {
        client.subscribe(&[("r/handling", options)]);
        if sent {
            assert!(client.expect_publish().retain);
        }
        client.expect_nothing(QUIET);
    }
    let mut client = broker.client(Version::V5, "handling-new");
    client.subscribe(&[("r/handling", 0x10)]);
    assert!(client.expect_publish().retain, "1 sends them if the subscription is new");
    let mut client = broker.client(Version::V311, "handling-old");
    for _ in 0..2 {
        client.subscribe(&[("r/handling", 0)]);
        assert!(client.expect_publish().retain, "MQTT 3 sends them each time");
    }
    retain(&mut publisher, "r/handling", "", 1);
}

/// 5.0: [MQTT-3.3.1-9]
/// 3.1.1: [MQTT-3.3.1-6]
#[test]
fn wildcards_find_the_retained_messages_of_both_cores() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V311, "wild-publisher");
    let topics: Vec<String> = (0..300).map(|index| format!("r-wild/{}/{index}", index % 3)).collect();
    for topic in &topics {
        publisher.send(&Publish::new(topic, "x").retain().encode(Version::V311));
    }
    retain(&mut publisher, "r-wild", "top", 0);
    let all =
        |of: &str| topics.iter().filter(|topic| topic.starts_with(of)).map(|topic| entry(topic, "x", 0)).collect::<BTreeSet<_>>();
    let mut everything = all("r-wild/");
    expect_stored(&broker, "r-wild/+/+", everything.clone());
    expect_stored(&broker, "r-wild/1/+", all("r-wild/1/"));
    expect_stored(&broker, "+/2/#", all("r-wild/2/"));
    everything.insert(entry("r-wild", "top", 0));
    expect_stored(&broker, "r-wild/#", everything);
    for topic in topics.iter().map(String::as_str).chain(["r-wild"]) {
        publisher.send(&Publish::new(topic, "").retain().encode(Version::V311));
    }
    publisher.ping();
    expect_stored(&broker, "r-wild/#", BTreeSet::new());
}

/// A replay is paced by the receiver's window, and no limit of the queue cuts it short.
///
/// 5.0: [MQTT-3.3.4-9]
#[test]
fn a_replay_longer_than_window_and_queue_arrives_whole() {
    let broker = Broker::start_with_config("[limits]\nqueued_messages_max = 5\ninflight_out_max = 10\n");
    let mut publisher = broker.client(Version::V311, "replay-publisher");
    for index in 0..1000 {
        publisher.send(&Publish::new(&format!("replay/{index}"), "x").qos(1).id(index + 1).retain().encode(Version::V311));
    }
    (0..1000).for_each(|index| assert_eq!(publisher.expect_kind(Kind::Puback).id(), index + 1));
    let (mut client, _) =
        broker.connect(&Connect::new(Version::V5, "replay").property(property::u16(property::RECEIVE_MAXIMUM, 3)));
    client.subscribe(&[("replay/#", 1)]);
    let mut topics = BTreeSet::new();
    while topics.len() < 1000 {
        let window: Vec<Publish> = (0..3.min(1000 - topics.len())).map(|_| client.expect_publish()).collect();
        if topics.len() % 300 == 0 {
            client.expect_nothing(QUIET);
        }
        for publish in window {
            client.send(&acknowledge(Kind::Puback, publish.id));
            assert!(topics.insert(publish.topic));
        }
    }
}

/// 3.1.1: [MQTT-3.1.2.7]
#[test]
fn retained_messages_outlive_the_session_that_published_them() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let mut publisher = broker.client(version, "outlive");
        retain(&mut publisher, "r/outlive", "x", 1);
        publisher.disconnect();
        // The same id, a clean session: the old one has certainly ended.
        let mut publisher = broker.client(version, "outlive");
        expect_stored(&broker, "r/outlive", [entry("r/outlive", "x", 1)].into());
        retain(&mut publisher, "r/outlive", "", 1);
    }
}

/// 5.0: [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20] [MQTT-3.3.4-3]
#[test]
fn a_retained_message_keeps_its_properties_and_carries_the_subscriptions_identifier() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "r-properties-publisher");
    let properties = [
        property::string(property::RESPONSE_TOPIC, "r/response"),
        property::binary(property::CORRELATION_DATA, b"id"),
        property::pair(property::USER_PROPERTY, "b", "1"),
        property::pair(property::USER_PROPERTY, "a", "2"),
        property::string(property::CONTENT_TYPE, "x"),
    ];
    let publish = properties.iter().cloned().fold(Publish::new("r/properties", "x"), Publish::property);
    publisher.publish_with(publish.qos(1).retain());
    let mut client = broker.client(Version::V5, "r-properties");
    let identifier = property::variable(property::SUBSCRIPTION_IDENTIFIER, 9);
    client.send(&subscribe_with(Version::V5, 1, &identifier, &[("r/properties", 0)]));
    client.expect_kind(Kind::Suback);
    let received = client.expect_publish();
    for property in properties.iter().chain([&identifier]) {
        assert!(received.properties.windows(property.len()).any(|window| window == property.as_slice()), "{property:02x?}");
    }
    assert_eq!(received.properties.len(), properties.concat().len() + identifier.len());
    retain(&mut publisher, "r/properties", "", 1);
}
