//! Wills (section 3.1.2.5).

use crate::harness::{Broker, Client, Connect, Publish, Version, property};
use crate::{QUIET, Shared, expect_disconnect};
use std::time::{Duration, Instant};

static SHARED: Shared = Shared::new("");

fn watcher(broker: &Broker, id: &str, filter: &str) -> Client {
    let mut watcher = broker.client(Version::V5, id);
    // Retain as published, so that the will's own flag is seen.
    watcher.subscribe(&[(filter, 0x0A)]);
    watcher
}

/// A v5 will with a delay in a session that outlives its connection.
fn delayed(id: &str, delay_s: u32, expiry_s: u32) -> Connect {
    let will =
        Publish::new(&format!("will/delayed/{id}"), "gone").property(property::u32(property::WILL_DELAY_INTERVAL, delay_s));
    Connect::new(Version::V5, id).property(property::u32(property::SESSION_EXPIRY_INTERVAL, expiry_s)).will(will)
}

/// 5.0: [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-14] [MQTT-3.1.2-12]
/// 3.1.1: [MQTT-3.1.2-8] [MQTT-3.1.2-16] [MQTT-3.1.2-14]
#[test]
fn a_will_is_published_when_the_connection_ends_without_disconnect_with_its_qos_and_not_retained() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "lost-watcher", "will/lost/#");
    for version in Version::ALL {
        for qos in 0..=2 {
            let topic = format!("will/lost/{version:?}/{qos}");
            let will = Publish::new(&topic, [0, 255, qos]).qos(qos);
            let (client, _) = broker.connect(&Connect::new(version, "lost").will(will));
            watcher.ping();
            drop(client);
            let published = watcher.expect_publish();
            assert_eq!(
                (published.topic, published.payload, published.qos, published.retain),
                (topic.clone(), vec![0, 255, qos], qos, false)
            );
            let mut late = broker.client(Version::V311, "lost-late");
            late.subscribe(&[(&topic, 0)]);
            late.expect_nothing(Duration::from_millis(100));
        }
    }
}

/// 5.0: [MQTT-3.1.2-15]
/// 3.1.1: [MQTT-3.1.2-17]
#[test]
fn a_will_with_the_retain_flag_is_retained() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "retained-watcher", "will/retained/#");
    for version in Version::ALL {
        let topic = format!("will/retained/{version:?}");
        let (client, _) = broker.connect(&Connect::new(version, "retained").will(Publish::new(&topic, "gone").qos(1).retain()));
        drop(client);
        assert!(watcher.expect_publish().retain);
        let mut late = broker.client(version, "retained-late");
        late.subscribe(&[(&topic, 0)]);
        let publish = late.expect_publish();
        assert_eq!((publish.payload.as_slice(), publish.retain), (&b"gone"[..], true));
    }
}

/// 5.0: [MQTT-3.14.4-3] [MQTT-3.1.2-10] [MQTT-3.1.2-8]
/// 3.1.1: [MQTT-3.14.4-3] [MQTT-3.1.2-10] [MQTT-3.1.2-12]
#[test]
fn disconnect_discards_the_will_unless_it_says_otherwise() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "discard-watcher", "will/discard/#");
    for (index, (version, disconnect, published)) in [
        (Version::V31, &b"\xE0\x00"[..], false),
        (Version::V311, b"\xE0\x00", false),
        (Version::V5, b"\xE0\x00", false),
        (Version::V5, b"\xE0\x01\x00", false),
        (Version::V5, b"\xE0\x02\x00\x00", false),
        (Version::V5, b"\xE0\x01\x04", true),
        (Version::V5, b"\xE0\x01\x80", true),
        (Version::V5, b"\xE0\x07\x04\x05\x1F\x00\x02ok", true),
    ]
    .into_iter()
    .enumerate()
    {
        let topic = format!("will/discard/{index}");
        let (mut client, _) = broker.connect(&Connect::new(version, "discard").will(Publish::new(&topic, "gone")));
        client.send(disconnect);
        client.expect_closed();
        if published {
            assert_eq!(watcher.expect_publish().topic, topic);
        }
    }
    watcher.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.1.2-8]
/// 3.1.1: [MQTT-3.1.2-8]
#[test]
fn a_will_is_published_when_the_broker_ends_the_connection() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "protocol-watcher", "will/protocol/#");
    for version in Version::ALL {
        let topic = format!("will/protocol/{version:?}");
        let (mut client, _) = broker.connect(&Connect::new(version, "protocol").will(Publish::new(&topic, "gone")));
        client.send(b"\x00\x00");
        expect_disconnect(&mut client, 0x81);
        assert_eq!(watcher.expect_publish().topic, topic);
    }
    // 1.5 s of silence.
    let connect = Connect::new(Version::V311, "silent").keep_alive_s(1).will(Publish::new("will/protocol/silent", "gone"));
    let (mut client, _) = broker.connect(&connect);
    client.expect_closed();
    assert_eq!(watcher.expect_publish().topic, "will/protocol/silent");
}

/// 5.0: [MQTT-3.1.2-10]
/// 3.1.1: [MQTT-3.1.2-10] [MQTT-3.1.2-12]
#[test]
fn a_will_is_published_once_and_not_by_the_next_connection_of_the_session() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "once-watcher", "will/once/#");
    for version in [Version::V311, Version::V5] {
        let (client, _) = broker.connect(&Connect::new(version, "once").persistent().will(Publish::new("will/once/x", "gone")));
        drop(client);
        watcher.expect_publish();
        let (client, connack) = broker.connect(&Connect::new(version, "once").persistent());
        assert!(connack.session_present());
        drop(client);
        watcher.expect_nothing(QUIET);
        broker.client(version, "once");
    }
}

/// 5.0: [MQTT-3.1.2-8] [MQTT-3.1.3-9]
#[test]
fn a_delayed_will_waits_for_its_delay_and_is_not_sent_if_the_client_comes_back_in_time() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "delay-watcher", "will/delayed/+");
    let (client, _) = broker.connect(&delayed("late", 1, 100));
    let lost = Instant::now();
    drop(client);
    let publish = watcher.expect_publish();
    assert_eq!(publish.topic, "will/delayed/late");
    assert!(lost.elapsed() >= Duration::from_millis(950), "{:?}", lost.elapsed());
    assert_eq!(publish.properties, b"", "the delay is for the broker");

    let (client, _) = broker.connect(&delayed("back", 2, 100));
    drop(client);
    let (mut client, connack) = broker.connect(&Connect::new(Version::V5, "back").resume());
    assert!(connack.session_present());
    watcher.expect_nothing(Duration::from_millis(2500));
    client.ping();
}

/// 5.0: [MQTT-3.1.2-8] [MQTT-3.1.3-9]
#[test]
fn a_delayed_will_is_sent_when_the_session_ends_before_its_delay_has_passed() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "ended-watcher", "will/delayed/ended/+");
    // It expires.
    let (client, _) = broker.connect(&delayed("ended/expires", 1000, 1));
    drop(client);
    assert_eq!(watcher.expect_publish().topic, "will/delayed/ended/expires");
    // It never outlived its connection.
    let (client, _) = broker.connect(&delayed("ended/at-once", 1000, 0));
    drop(client);
    assert_eq!(watcher.expect_publish().topic, "will/delayed/ended/at-once");
    // A clean start ends it.
    let (client, _) = broker.connect(&delayed("ended/clean", 1000, 1000));
    drop(client);
    watcher.expect_nothing(QUIET);
    let _client = broker.client(Version::V5, "ended/clean");
    assert_eq!(watcher.expect_publish().topic, "will/delayed/ended/clean");
    // DISCONNECT with the will and an expiry of 0 ends it too.
    let (mut client, _) = broker.connect(&delayed("ended/says", 1000, 1000));
    client.send(b"\xE0\x07\x04\x05\x11\x00\x00\x00\x00");
    assert_eq!(watcher.expect_publish().topic, "will/delayed/ended/says");
}

/// 5.0: [MQTT-3.1.3-10] [MQTT-3.3.2-4] [MQTT-3.3.2-6]
#[test]
fn a_will_keeps_its_properties_and_the_order_of_its_user_properties() {
    let broker = SHARED.broker();
    let mut watcher = watcher(&broker, "properties-watcher", "will/properties");
    let properties = [
        property::u8(property::PAYLOAD_FORMAT_INDICATOR, 1),
        property::string(property::CONTENT_TYPE, "text/plain"),
        property::string(property::RESPONSE_TOPIC, "will/response"),
        property::binary(property::CORRELATION_DATA, b"\x00\x01"),
        [property::pair(property::USER_PROPERTY, "b", "1"), property::pair(property::USER_PROPERTY, "a", "2")].concat(),
    ];
    let expiry = property::u32(property::MESSAGE_EXPIRY_INTERVAL, 60);
    let will = properties.iter().cloned().fold(Publish::new("will/properties", "gone"), Publish::property).property(expiry);
    let (client, _) = broker.connect(&Connect::new(Version::V5, "properties").will(will));
    std::thread::sleep(Duration::from_millis(1500));
    drop(client);
    let publish = watcher.expect_publish();
    for property in &properties {
        assert!(publish.properties.windows(property.len()).any(|window| window == property.as_slice()), "{property:02x?}");
    }
    // The interval begins when the will is published.
    assert_eq!(publish.property_value(property::MESSAGE_EXPIRY_INTERVAL), Some(b"\x00\x00\x00\x3C".to_vec()));
    assert_eq!(publish.properties.len(), properties.concat().len() + 5);
}

/// 5.0: [MQTT-3.8.3-3]
#[test]
fn a_will_is_its_clients_own_message_to_a_no_local_subscription() {
    let broker = SHARED.broker();
    let will = Publish::new("will/no-local", "gone");
    let connect = Connect::new(Version::V5, "will-no-local").persistent().will(will);
    let (mut old, _) = broker.connect(&connect);
    old.subscribe(&[("will/no-local", 0x05)]);
    let mut other = watcher(&broker, "no-local-watcher", "will/no-local");
    let (mut new, connack) = broker.connect(&Connect::new(Version::V5, "will-no-local").resume());
    assert!(connack.session_present());
    expect_disconnect(&mut old, 0x8E);
    other.expect_publish();
    new.expect_nothing(QUIET);
}
