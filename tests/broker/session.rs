//! Sessions: clean start, resume, expiry, and what is sent again.

use crate::harness::{Broker, Connect, Kind, Publish, Version, acknowledge, hex, packet, property};
use crate::{QUIET, Shared, leave_session};
use std::time::{Duration, Instant};

static SHARED: Shared = Shared::new("");

fn expiring(id: &str, expiry_interval_s: u32) -> Connect {
    Connect::new(Version::V5, id).resume().property(property::u32(property::SESSION_EXPIRY_INTERVAL, expiry_interval_s))
}

/// 5.0: [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-3] [MQTT-3.1.2-23] [MQTT-4.5.0-1] [MQTT-3.1.3-2]
/// 3.1.1: [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-4.1.0-1] [MQTT-4.5.0-1] [MQTT-3.1.3-2]
#[test]
fn a_session_is_resumed_with_its_subscriptions_and_what_came_meanwhile() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let id = format!("resume-{version:?}");
        let (mut client, connack) = broker.connect(&Connect::new(version, &id).persistent());
        assert_eq!(connack.body()[..2], [0, 0], "there is none yet");
        client.subscribe(&[("session/resume/#", 2)]);
        client.send(b"\xE0\x00");
        client.expect_closed();
        let mut publisher = broker.client(version, "resume-publisher");
        for qos in 0..=2 {
            publisher.publish(&format!("session/resume/{qos}"), "x", qos);
        }
        publisher.ping();
        let (mut client, connack) = broker.connect(&Connect::new(version, &id).persistent());
        assert_eq!(connack.body()[..2], [1, 0]);
        for qos in 1..=2 {
            let publish = client.expect_publish();
            assert_eq!((publish.topic, publish.qos, publish.dup), (format!("session/resume/{qos}"), qos, false));
            client.send(&acknowledge(if qos == 1 { Kind::Puback } else { Kind::Pubrec }, publish.id));
        }
        client.expect_kind(Kind::Pubrel);
        client.send(&acknowledge(Kind::Pubcomp, 2));
        // QoS 0 was not kept; the subscription still is there.
        publisher.publish("session/resume/live", "", 1);
        assert_eq!(client.expect_publish().topic, "session/resume/live");
        // Another id has nothing of it.
        let (mut other, connack) = broker.connect(&Connect::new(version, &format!("{id}-other")).persistent());
        assert!(!connack.session_present());
        other.expect_nothing(QUIET);
        broker.client(version, &id);
    }
}

/// 5.0: [MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT-3.2.2-2]
/// 3.1.1: [MQTT-3.1.2-6] [MQTT-3.1.4-3] [MQTT-3.2.2-1]
#[test]
fn clean_start_discards_what_was_there() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        leave_session(&broker, version, "clean", &[("session/clean", 1)]);
        let mut publisher = broker.client(version, "clean-publisher");
        publisher.publish("session/clean", "x", 1);
        let (mut client, connack) = broker.connect(&Connect::new(version, "clean"));
        assert_eq!(connack.body()[..2], [0, 0]);
        publisher.publish("session/clean", "y", 1);
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-4.1.0-2]
/// 3.1.1: [MQTT-3.1.2-6]
#[test]
fn a_session_without_expiry_ends_with_its_connection() {
    let broker = SHARED.broker();
    for connect in [
        Connect::new(Version::V311, "ends-311"),
        Connect::new(Version::V31, "ends-31"),
        Connect::new(Version::V5, "ends-absent").resume(),
        expiring("ends-0", 0),
    ] {
        let (mut client, connack) = broker.connect(&connect);
        assert_eq!(connack.body()[..2], [0, 0]);
        client.subscribe(&[("session/ends", 1)]);
        client.send(b"\xE0\x00");
        client.expect_closed();
        let (_, connack) = broker.connect(&Connect { clean: false, ..connect });
        assert_eq!(connack.body()[..2], [0, 0]);
    }
}

/// 5.0: [MQTT-3.1.2-23] [MQTT-4.1.0-2] [MQTT-4.1.0-1]
/// 3.1.1: [MQTT-4.1.0-2]
#[test]
fn a_session_expires_its_interval_after_the_end_of_its_connection_and_not_before() {
    let broker = SHARED.broker();
    let (mut client, _) = broker.connect(&expiring("expires", 2));
    client.subscribe(&[("session/expires", 1)]);
    // Longer than the interval: while the connection stands it does not count.
    std::thread::sleep(Duration::from_millis(2500));
    client.publish("session/expires", "x", 0);
    client.expect_kind(Kind::Publish);
    drop(client);
    let ended = Instant::now();
    let (client, connack) = broker.connect(&expiring("expires", 2));
    if ended.elapsed() < Duration::from_secs(2) {
        assert!(connack.session_present());
    }
    drop(client);
    std::thread::sleep(Duration::from_secs(3));
    let (mut client, connack) = broker.connect(&expiring("expires", 2));
    assert!(!connack.session_present());
    client.publish("session/expires", "x", 0);
    client.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.1.2-23]
#[test]
fn disconnect_may_set_another_expiry() {
    let broker = SHARED.broker();
    // 3,600 s down to 0.
    let (mut client, _) = broker.connect(&expiring("other-expiry", 3600));
    client.send(&hex("E0 07 00 05 11 00000000"));
    client.expect_closed();
    let (mut client, connack) = broker.connect(&expiring("other-expiry", 1));
    assert!(!connack.session_present());
    // 1 s up to 3,600.
    client.send(&hex("E0 07 00 05 11 00000E10"));
    client.expect_closed();
    std::thread::sleep(Duration::from_millis(2000));
    let (_, connack) = broker.connect(&expiring("other-expiry", 0));
    assert!(connack.session_present());
}

/// 5.0: [MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.6.0-1] [MQTT-4.1.0-1]
/// 3.1.1: [MQTT-4.4.0-1] [MQTT-3.3.1.-1] [MQTT-4.3.3-1] [MQTT-4.3.2-1] [MQTT-4.6.0-1]
#[test]
fn what_was_in_flight_is_sent_again_in_its_order_with_its_ids_and_dup() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let id = format!("again-{version:?}");
        let persistent = Connect::new(version, &id).persistent();
        let (mut client, _) = broker.connect(&persistent);
        client.subscribe(&[("session/again", 2)]);
        let mut publisher = broker.client(version, "again-publisher");
        for (payload, qos) in [("1", 1), ("2", 2), ("3", 2), ("4", 1), ("5", 1)] {
            publisher.publish("session/again", payload, qos);
        }
        for expected in 1..=5 {
            assert_eq!(client.expect_publish().id, expected);
        }
        // 2 is received, 4 is done.
        client.send(&acknowledge(Kind::Pubrec, 2));
        client.expect(&acknowledge(Kind::Pubrel, 2));
        client.send(&acknowledge(Kind::Puback, 4));
        client.ping();
        drop(client);
        publisher.publish("session/again", "6", 1);
        for _ in 0..2 {
            let (mut client, connack) = broker.connect(&persistent);
            assert!(connack.session_present());
            for (sent, payload, qos, dup) in
                [(1, "1", 1, true), (2, "", 0, false), (3, "3", 2, true), (5, "5", 1, true), (6, "6", 1, false)]
            {
                let packet = client.expect_packet();
                if sent == 2 {
                    assert_eq!(packet.0, acknowledge(Kind::Pubrel, 2));
                    continue;
                }
                let publish = packet.publish(version);
                // The last one was first sent on the first of the two connections.
                let dup = dup || (sent == 6 && publish.dup);
                assert_eq!((publish.id, publish.payload, publish.qos, publish.dup), (sent, payload.into(), qos, dup));
            }
            client.expect_nothing(QUIET);
        }
        let (mut client, _) = broker.connect(&persistent);
        for _ in 0..5 {
            client.expect_packet();
        }
        for (kind, sent) in [(Kind::Puback, 1), (Kind::Pubcomp, 2), (Kind::Pubrec, 3), (Kind::Puback, 5), (Kind::Puback, 6)] {
            client.send(&acknowledge(kind, sent));
        }
        client.expect(&acknowledge(Kind::Pubrel, 3));
        client.send(&acknowledge(Kind::Pubcomp, 3));
        client.ping();
        let (mut client, _) = broker.connect(&persistent);
        client.expect_nothing(QUIET);
        broker.client(version, &id);
    }
}

/// 5.0: [MQTT-4.3.3-10] [MQTT-4.3.3-13]
/// 3.1.1: [MQTT-4.3.3-2]
#[test]
fn a_qos_2_message_is_not_delivered_twice_although_its_publisher_reconnects() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let mut subscriber = broker.client(version, "once-subscriber");
        subscriber.subscribe(&[("session/once", 0)]);
        let persistent = Connect::new(version, &format!("once-{version:?}")).persistent();
        let publish = Publish::new("session/once", "x").qos(2).id(3);
        let (mut client, _) = broker.connect(&persistent);
        client.send(&publish.encode(version));
        client.expect(b"\x50\x02\x00\x03");
        drop(client);
        let (mut client, _) = broker.connect(&persistent);
        client.send(&publish.clone().dup().encode(version));
        client.expect(b"\x50\x02\x00\x03");
        drop(client);
        // PUBREL may come on a later connection.
        let (mut client, _) = broker.connect(&persistent);
        client.send(&acknowledge(Kind::Pubrel, 3));
        client.expect(b"\x70\x02\x00\x03");
        assert_eq!(subscriber.expect_publish().payload, b"x");
        subscriber.expect_nothing(QUIET);
        // A clean session knows nothing of the ids of the one before it.
        client.send(&publish.encode(version));
        client.expect(b"\x50\x02\x00\x03");
        subscriber.expect_publish();
        let mut client = broker.client(version, &format!("once-{version:?}"));
        client.send(&publish.encode(version));
        client.expect(b"\x50\x02\x00\x03");
        assert_eq!(subscriber.expect_publish().payload, b"x");
    }
}

/// 5.0: [MQTT-3.2.2-3]
#[test]
fn an_expiry_over_the_maximum_is_lowered_and_the_client_told() {
    let broker = Broker::start_with_config("[limits]\nsession_expiry_max_s = 60\nsession_expiry_v3_s = 4\n");
    let (_, connack) = broker.connect(&expiring("lowered", 61));
    assert_eq!(connack.property(property::SESSION_EXPIRY_INTERVAL), Some(hex("0000003C")));
    let (_, connack) = broker.connect(&expiring("lowered", u32::MAX));
    assert!(connack.session_present());
    assert_eq!(connack.property(property::SESSION_EXPIRY_INTERVAL), Some(hex("0000003C")));
    let (_, connack) = broker.connect(&expiring("lowered", 60));
    assert_eq!(connack.property(property::SESSION_EXPIRY_INTERVAL), None);
    // An MQTT 3 client cannot say how long; the configuration says it for it.
    leave_session(&broker, Version::V311, "old", &[("session/old", 1)]);
    let (client, connack) = broker.connect(&Connect::new(Version::V311, "old").resume());
    assert!(connack.session_present());
    drop(client);
    std::thread::sleep(Duration::from_millis(5500));
    let (_, connack) = broker.connect(&Connect::new(Version::V311, "old").resume());
    assert!(!connack.session_present());
}

/// MQTT 3.1 has no session present flag; its session is resumed all the same.
#[test]
fn an_mqtt_3_1_session_is_resumed_without_saying_so() {
    let broker = SHARED.broker();
    leave_session(&broker, Version::V31, "resume-31", &[("session/31", 1)]);
    broker.client(Version::V31, "publisher-31").publish("session/31", "x", 1);
    let (mut client, connack) = broker.connect(&Connect::new(Version::V31, "resume-31").persistent());
    assert_eq!(connack.0, packet(0x20, &[0, 0]));
    assert_eq!(client.expect_publish().payload, b"x");
}

/// A client may come back through another version.
#[test]
fn a_session_survives_a_change_of_version() {
    let broker = SHARED.broker();
    leave_session(&broker, Version::V311, "upgrade", &[("session/upgrade", 1)]);
    broker.client(Version::V5, "upgrade-publisher").publish("session/upgrade", "x", 1);
    let (mut client, connack) = broker.connect(&Connect::new(Version::V5, "upgrade").persistent());
    assert!(connack.session_present());
    client.expect(b"\x32\x15\x00\x0Fsession/upgrade\x00\x01\x00x");
    drop(client);
    let (mut client, _) = broker.connect(&Connect::new(Version::V311, "upgrade").persistent());
    client.expect(b"\x3A\x14\x00\x0Fsession/upgrade\x00\x01x");
}
