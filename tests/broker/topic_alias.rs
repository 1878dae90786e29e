//! Topic aliases in both directions (section 3.3.2.3.4).

use crate::harness::{Broker, Connect, Publish, Version, property};
use crate::{QUIET, Shared, expect_disconnect};

static SHARED: Shared = Shared::new("");

fn alias(value: u16) -> Vec<u8> {
    property::u16(property::TOPIC_ALIAS, value)
}

/// 5.0: [MQTT-3.3.2-12]
#[test]
fn every_alias_up_to_the_maximum_stands_for_its_topic_until_it_is_set_anew() {
    let broker = SHARED.broker();
    let mut subscriber = broker.client(Version::V311, "in-subscriber");
    subscriber.subscribe(&[("alias/in/#", 0)]);
    let mut client = broker.client(Version::V5, "in");
    for value in [1, 64, 33] {
        client.send(&Publish::new(&format!("alias/in/{value}"), "set").property(alias(value)).encode(Version::V5));
    }
    for value in [33, 1, 64, 1] {
        client.send(&Publish::new("", [value as u8]).property(alias(value)).encode(Version::V5));
    }
    client.send(&Publish::new("alias/in/anew", "set").property(alias(1)).encode(Version::V5));
    client.publish_with(Publish::new("", "after").qos(2).property(alias(1)));
    for (topic, payload) in [
        ("alias/in/1", "set"),
        ("alias/in/64", "set"),
        ("alias/in/33", "set"),
        ("alias/in/33", "\u{21}"),
        ("alias/in/1", "\u{1}"),
        ("alias/in/64", "\u{40}"),
        ("alias/in/1", "\u{1}"),
        ("alias/in/anew", "set"),
        ("alias/in/anew", "after"),
    ] {
        let publish = subscriber.expect_publish();
        assert_eq!((publish.topic.as_str(), publish.payload.as_slice()), (topic, payload.as_bytes()));
    }
}

/// 5.0: [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.2.2-17] [MQTT-4.13.1-1]
#[test]
fn an_alias_of_0_or_over_the_maximum_or_of_no_topic_ends_the_connection() {
    let broker = SHARED.broker();
    for (topic, value, reason) in
        [("alias/x", 0, 0x94), ("alias/x", 65, 0x94), ("", 65, 0x94), ("alias/x", 0xFFFF, 0x94), ("", 7, 0x82)]
    {
        let mut client = broker.client(Version::V5, "invalid");
        client.send(&Publish::new(topic, "x").property(alias(value)).encode(Version::V5));
        expect_disconnect(&mut client, reason);
    }
}

/// 5.0: [MQTT-3.3.2-7]
#[test]
fn an_alias_ends_with_its_connection() {
    let broker = SHARED.broker();
    let connect = Connect::new(Version::V5, "ends").persistent().property(property::u16(property::TOPIC_ALIAS_MAXIMUM, 5));
    let (mut client, _) = broker.connect(&connect);
    client.subscribe(&[("alias/ends", 0)]);
    for expected in [&b"\x30\x10\x00\x0Aalias/ends\x03\x23\x00\x01"[..], b"\x30\x06\x00\x00\x03\x23\x00\x01"] {
        client.send(&Publish::new("alias/ends", "").property(alias(1)).encode(Version::V5));
        client.expect(expected);
    }
    let (mut client, connack) = broker.connect(&connect);
    assert!(connack.session_present());
    // The broker's begin anew, with the topic.
    client.send(&Publish::new("alias/ends", "").encode(Version::V5));
    client.expect(b"\x30\x10\x00\x0Aalias/ends\x03\x23\x00\x01");
    // And the client's are gone.
    client.send(&Publish::new("", "").property(alias(1)).encode(Version::V5));
    expect_disconnect(&mut client, 0x82);
}

/// 5.0: [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11]
#[test]
fn the_broker_uses_no_alias_over_the_clients_maximum_and_none_without_one() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "out-publisher");
    for (maximum, aliased) in [(None, 0), (Some(0), 0), (Some(1), 1), (Some(3), 3), (Some(0xFFFF), 16)] {
        let connect = maximum.into_iter().fold(Connect::new(Version::V5, "out"), |c, maximum| {
            c.property(property::u16(property::TOPIC_ALIAS_MAXIMUM, maximum))
        });
        let (mut client, _) = broker.connect(&connect);
        client.subscribe(&[("alias/out/#", 0)]);
        let topics: Vec<String> = (0..20).map(|index| format!("alias/out/{index}")).collect();
        let mut known = std::collections::HashMap::new();
        for round in 0..2 {
            for topic in &topics {
                publisher.publish(topic, "x", 1);
            }
            for topic in &topics {
                let publish = client.expect_publish();
                let Some(value) = publish.property_value(property::TOPIC_ALIAS) else {
                    assert_eq!(publish.topic, *topic);
                    continue;
                };
                let value = u16::from_be_bytes([value[0], value[1]]);
                assert!(value > 0 && value <= maximum.unwrap_or(0), "{value}");
                if publish.topic.is_empty() {
                    assert_eq!(known.get(&value), Some(topic));
                } else {
                    assert_eq!(publish.topic, *topic);
                    known.insert(value, topic.clone());
                }
                assert!(round == 0 || publish.topic.is_empty() || known.len() <= aliased);
            }
        }
        assert_eq!(known.len(), aliased, "the broker uses what its own limit of 16 and the client's allow");
        client.disconnect();
    }
}

/// 5.0: [MQTT-3.3.2-12] [MQTT-4.3.3-10]
#[test]
fn a_repeated_qos_2_message_sets_its_alias_all_the_same() {
    let broker = SHARED.broker();
    let connect = Connect::new(Version::V5, "repeated").persistent();
    let publish = Publish::new("alias/repeated", "1").qos(2).id(1);
    let mut subscriber = broker.client(Version::V311, "repeated-subscriber");
    subscriber.subscribe(&[("alias/repeated", 0)]);
    let (mut client, _) = broker.connect(&connect);
    client.send(&publish.encode(Version::V5));
    client.expect(b"\x50\x02\x00\x01");
    let (mut client, _) = broker.connect(&connect);
    client.send(&publish.dup().property(alias(2)).encode(Version::V5));
    client.expect(b"\x50\x02\x00\x01");
    client.send(&Publish::new("", "2").property(alias(2)).encode(Version::V5));
    client.ping();
    for payload in ["1", "2"] {
        assert_eq!(subscriber.expect_publish().payload, payload.as_bytes());
    }
    subscriber.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.2.2-18]
#[test]
fn a_broker_that_takes_no_aliases_says_so_by_silence_and_refuses_them() {
    let broker = Broker::start_with_config("[limits]\ntopic_alias_in_max = 0\n");
    let (mut client, connack) = broker.connect(&Connect::new(Version::V5, "none"));
    assert_eq!(connack.property(property::TOPIC_ALIAS_MAXIMUM), None);
    client.send(&Publish::new("alias/none", "x").property(alias(1)).encode(Version::V5));
    expect_disconnect(&mut client, 0x94);
}
