//! Message Expiry Interval (section 3.3.2.3.3).

use crate::harness::{Connect, Kind, Publish, Version, acknowledge, property};
use crate::{QUIET, Shared, leave_session};
use std::time::Duration;

static SHARED: Shared = Shared::new("");

fn expiring(topic: &str, payload: &str, interval_s: u32) -> Publish {
    Publish::new(topic, payload).property(property::u32(property::MESSAGE_EXPIRY_INTERVAL, interval_s))
}

fn interval_s(publish: &Publish) -> Option<u32> {
    let value = publish.property_value(property::MESSAGE_EXPIRY_INTERVAL)?;
    Some(u32::from_be_bytes(value.try_into().expect("four bytes")))
}

/// 5.0: [MQTT-3.3.2-5] [MQTT-3.3.2-6]
#[test]
fn a_queued_message_is_dropped_when_its_interval_has_passed_and_otherwise_says_what_is_left() {
    let broker = SHARED.broker();
    leave_session(&broker, Version::V5, "queued", &[("expiry/queued", 1)]);
    leave_session(&broker, Version::V311, "queued-old", &[("expiry/queued", 1)]);
    let mut publisher = broker.client(Version::V5, "queued-publisher");
    for (payload, interval) in [("short", 1), ("long", 100), ("short", 1), ("longest", u32::MAX)] {
        publisher.publish_with(expiring("expiry/queued", payload, interval).qos(1));
    }
    publisher.publish("expiry/queued", "for ever", 1);
    std::thread::sleep(Duration::from_millis(2100));
    for (version, id) in [(Version::V5, "queued"), (Version::V311, "queued-old")] {
        let (mut client, _) = broker.connect(&Connect::new(version, id).persistent());
        for payload in ["long", "longest", "for ever"] {
            let publish = client.expect_publish();
            assert_eq!(publish.payload, payload.as_bytes());
            client.send(&acknowledge(Kind::Puback, publish.id));
            if version == Version::V5 {
                match (payload, interval_s(&publish)) {
                    ("long", Some(left)) => assert!((80..=98).contains(&left), "{left}"),
                    ("longest", Some(left)) => assert!(left > u32::MAX - 20 && left < u32::MAX, "{left}"),
                    ("for ever", None) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.3.2-6]
#[test]
fn a_message_that_does_not_wait_keeps_its_interval() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "live");
    client.subscribe(&[("expiry/live", 0)]);
    client.send(&expiring("expiry/live", "x", 10).encode(Version::V5));
    assert_eq!(interval_s(&client.expect_publish()), Some(10));
}

/// 5.0: [MQTT-3.3.2-5] [MQTT-3.3.2-6]
#[test]
fn a_retained_message_expires_too() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "r-publisher");
    publisher.publish_with(expiring("expiry/retained/short", "x", 1).qos(1).retain());
    publisher.publish_with(expiring("expiry/retained/long", "x", 50).qos(1).retain());
    std::thread::sleep(Duration::from_millis(2100));
    let mut client = broker.client(Version::V5, "r-subscriber");
    client.subscribe(&[("expiry/retained/+", 0)]);
    let publish = client.expect_publish();
    assert_eq!(publish.topic, "expiry/retained/long");
    let left = interval_s(&publish).expect("it has one");
    assert!((30..=48).contains(&left), "{left}");
    client.expect_nothing(QUIET);
}

/// 5.0: [MQTT-4.3.3-7] [MQTT-4.3.3-13]
#[test]
fn a_delivery_that_was_begun_goes_on_although_its_interval_passes() {
    let broker = SHARED.broker();
    let connect = Connect::new(Version::V5, "begun").persistent();
    let (mut client, _) = broker.connect(&connect);
    client.subscribe(&[("expiry/begun", 2)]);
    let mut publisher = broker.client(Version::V5, "begun-publisher");
    publisher.publish_with(expiring("expiry/begun", "x", 1).qos(2));
    let first = client.expect_publish();
    drop(client);
    std::thread::sleep(Duration::from_millis(2100));
    let (mut client, _) = broker.connect(&connect);
    let again = client.expect_publish();
    assert_eq!((again.id, again.payload.as_slice(), again.dup), (first.id, &b"x"[..], true));
    client.send(&acknowledge(Kind::Pubrec, again.id));
    client.expect(&acknowledge(Kind::Pubrel, again.id));
    client.send(&acknowledge(Kind::Pubcomp, again.id));
    client.ping();
}
