//! SUBSCRIBE and SUBACK.

use crate::harness::{Kind, Publish, Version, acknowledge, hex, property, subscribe, subscribe_with};
use crate::{QUIET, Shared, expect_disconnect, expect_kinds};

static SHARED: Shared = Shared::new("");

/// 5.0: [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT-2.2.1-6]
/// 5.0: [MQTT-3.8.3-2] [MQTT-3.2.2-10] [MQTT-2.2.2-1]
/// 3.1.1: [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-4] [MQTT-3.8.4-5] [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT-2.3.1-7] [MQTT-3.8.3-3]
#[test]
fn suback_has_the_id_and_a_code_for_each_filter_in_order() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "codes");
        let filters = [("s/a", 2), ("s/b", 0), ("s/#/c", 1), ("s/d", 1), ("s/a", 0)];
        client.send(&subscribe(version, 0xFFFE, &filters));
        match version {
            Version::V5 => client.expect(b"\x90\x08\xFF\xFE\x00\x02\x00\x8F\x01\x00"),
            _ => client.expect(b"\x90\x07\xFF\xFE\x02\x00\x80\x01\x00"),
        }
        // As if they had come one by one: the last of two equal filters counts.
        for (topic, qos) in [("s/d", 1), ("s/a", 0)] {
            client.send(&Publish::new(topic, "x").qos(1).id(9).encode(version));
            let [publish, puback] = expect_kinds(&mut client, [Kind::Publish, Kind::Puback]);
            let publish = publish.publish(version);
            assert_eq!((publish.topic.as_str(), publish.qos, puback.id()), (topic, qos, 9));
        }
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.8.4-3]
/// 3.1.1: [MQTT-3.8.4-3]
#[test]
fn subscribing_again_replaces_the_subscription_and_its_options() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "replace-publisher");
        let mut client = broker.client(version, "replace");
        for (granted, expected) in [(2, 2), (0, 0), (1, 1)] {
            assert_eq!(client.subscribe(&[("s/replace", granted)]), [granted]);
            publisher.publish("s/replace", "x", 2);
            let publish = client.expect_publish();
            assert_eq!(publish.qos, expected);
            match publish.qos {
                1 => client.send(&acknowledge(Kind::Puback, publish.id)),
                2 => {
                    client.send(&acknowledge(Kind::Pubrec, publish.id));
                    client.expect_kind(Kind::Pubrel);
                    client.send(&acknowledge(Kind::Pubcomp, publish.id));
                }
                _ => {}
            }
            client.expect_nothing(QUIET);
        }
    }
}

/// 5.0: [MQTT-3.8.4-3] [MQTT-3.3.4-3]
#[test]
fn subscribing_again_replaces_the_subscription_identifier() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "identifier");
    for (id, identifier, expected) in [(1, Some(5), &b"\x0B\x05"[..]), (2, Some(200), b"\x0B\xC8\x01"), (3, None, b"")] {
        let properties = identifier.map(|value| property::variable(property::SUBSCRIPTION_IDENTIFIER, value)).unwrap_or_default();
        client.send(&subscribe_with(Version::V5, id, &properties, &[("s/identifier", 0)]));
        client.expect_kind(Kind::Suback);
        client.send(&Publish::new("s/identifier", "x").encode(Version::V5));
        assert_eq!(client.expect_publish().properties, expected);
    }
}

/// 5.0: [MQTT-3.8.3-3]
#[test]
fn no_local_keeps_a_clients_own_messages_from_it() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "no-local");
    let mut other = broker.client(Version::V5, "no-local-other");
    client.subscribe(&[("s/no-local/x", 0x06), ("s/local/x", 0x02)]);
    other.subscribe(&[("s/no-local/x", 0x04)]);
    client.publish("s/no-local/x", "mine", 1);
    client.send(&Publish::new("s/local/x", "mine").encode(Version::V5));
    assert_eq!(client.expect_publish().topic, "s/local/x");
    assert_eq!(other.expect_publish().payload, b"mine");
    other.send(&Publish::new("s/no-local/x", "other's").encode(Version::V5));
    assert_eq!(client.expect_publish().payload, b"other's");
    // The option is the subscription's: another one that matches still brings the message.
    client.subscribe(&[("s/no-local/+", 0x00)]);
    client.send(&Publish::new("s/no-local/x", "twice").encode(Version::V5));
    assert_eq!(client.expect_publish().payload, b"twice");
    client.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.8.3-4]
#[test]
fn no_local_on_a_shared_subscription_is_a_protocol_error() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "no-local-shared");
    client.send(&subscribe(Version::V5, 1, &[("$share/g/s/x", 0x05)]));
    expect_disconnect(&mut client, 0x82);
}

/// 5.0: [MQTT-3.3.1-12] [MQTT-3.3.1-13]
/// 3.1.1: [MQTT-3.3.1-9]
#[test]
fn the_retain_flag_of_a_live_message_is_kept_only_by_retain_as_published() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "rap-publisher");
    let mut plain = broker.client(Version::V311, "rap-plain");
    let mut kept = broker.client(Version::V5, "rap-kept");
    plain.subscribe(&[("s/rap", 0)]);
    kept.subscribe(&[("s/rap", 0x08)]);
    publisher.send(&Publish::new("s/rap", "1").retain().encode(Version::V5));
    publisher.send(&Publish::new("s/rap", "2").encode(Version::V5));
    publisher.send(&Publish::new("s/rap", "").retain().encode(Version::V5));
    plain.expect(&hex("30 08 0005 732f726170 31"));
    plain.expect(&hex("30 08 0005 732f726170 32"));
    plain.expect(&hex("30 07 0005 732f726170"));
    kept.expect(&hex("31 09 0005 732f726170 00 31"));
    kept.expect(&hex("30 09 0005 732f726170 00 32"));
    kept.expect(&hex("31 08 0005 732f726170 00"));
}

/// 5.0: [MQTT-3.8.3-5]
/// 3.1.1: [MQTT-3-8.3-4] [MQTT-3.8.3-3]
#[test]
fn reserved_option_bits_and_an_empty_list_end_the_connection() {
    let broker = SHARED.broker();
    for (version, bytes, reason) in [
        (Version::V5, subscribe(Version::V5, 1, &[("a", 0x40)]), 0x81),
        (Version::V5, subscribe(Version::V5, 1, &[("a", 0x80)]), 0x81),
        (Version::V5, subscribe(Version::V5, 1, &[("a", 0x03)]), 0x82),
        (Version::V5, subscribe(Version::V5, 1, &[("a", 0x30)]), 0x82),
        (Version::V5, subscribe(Version::V5, 1, &[]), 0x82),
        (Version::V311, subscribe(Version::V311, 1, &[("a", 0x03)]), 0),
        (Version::V311, subscribe(Version::V311, 1, &[("a", 0x04)]), 0),
        (Version::V311, subscribe(Version::V311, 1, &[]), 0),
    ] {
        let mut client = broker.client(version, "reserved-bits");
        client.send(&bytes);
        expect_disconnect(&mut client, reason);
    }
}

/// A message published after the SUBACK, on whatever core, is delivered.
///
/// 5.0: [MQTT-4.5.0-1]
/// 3.1.1: [MQTT-4.5.0-1]
#[test]
fn nothing_published_after_the_suback_is_missed() {
    let broker = SHARED.broker();
    let mut publishers: Vec<_> = (0..4).map(|index| broker.client(Version::V311, &format!("after-{index}"))).collect();
    for round in 0..50 {
        let mut client = broker.client(Version::V5, &format!("after-subscriber-{round}"));
        let topic = format!("s/after/{round}");
        client.subscribe(&[([topic.as_str(), "s/after/+"][round % 2], 0)]);
        for publisher in &mut publishers {
            publisher.send(&Publish::new(&topic, "x").encode(Version::V311));
        }
        for _ in 0..publishers.len() {
            assert_eq!(client.expect_publish().topic, topic);
        }
    }
}
