//! PUBLISH and its acknowledgements, in both directions.

use crate::harness::{Client, Connect, Kind, Publish, Version, acknowledge, acknowledge_with, packet, property};
use crate::{QUIET, Shared, expect_ack, expect_disconnect, expect_kinds};

static SHARED: Shared = Shared::new("");

fn qos_of(publish: &Publish) -> (u8, u16, bool) {
    (publish.qos, publish.id, publish.dup)
}

/// 5.0: [MQTT-4.3.1-1] [MQTT-2.2.1-2] [MQTT-3.3.1-2] [MQTT-3.3.2-1] [MQTT-3.3.4-1] [MQTT-2.2.2-1]
/// 3.1.1: [MQTT-4.3.1-1] [MQTT-2.3.1-5] [MQTT-3.3.1-2] [MQTT-3.3.2-1] [MQTT-3.3.4-1]
#[test]
fn qos_0_is_one_publish_without_id_dup_or_answer() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "q0");
        client.subscribe(&[("p/q0", 2)]);
        let bytes: &[u8] = if version == Version::V5 { b"\x30\x09\x00\x04p/q0\x00hi" } else { b"\x30\x08\x00\x04p/q0hi" };
        client.send(bytes);
        client.expect(bytes);
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.2-4] [MQTT-2.2.1-4] [MQTT-2.2.1-5] [MQTT-3.3.4-1] [MQTT-3.4.2-1]
/// 3.1.1: [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-2.3.1-4] [MQTT-2.3.1-6] [MQTT-3.3.4-1]
#[test]
fn qos_1_is_answered_with_puback_and_sent_on_with_an_id_of_the_brokers_own() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut subscriber = broker.client(version, "q1-subscriber");
        subscriber.subscribe(&[("p/q1", 1)]);
        let mut publisher = broker.client(version, "q1-publisher");
        for round in 1..=3u8 {
            match version {
                Version::V5 => publisher.send(b"\x32\x0A\x00\x04p/q1\x12\x34\x00x"),
                _ => publisher.send(b"\x32\x09\x00\x04p/q1\x12\x34x"),
            }
            publisher.expect(b"\x40\x02\x12\x34");
            match version {
                Version::V5 => subscriber.expect(&[b"\x32\x0A\x00\x04p/q1\x00", &[round][..], b"\x00x"].concat()),
                _ => subscriber.expect(&[b"\x32\x09\x00\x04p/q1\x00", &[round][..], b"x"].concat()),
            }
            subscriber.send(&[0x40, 0x02, 0x00, round]);
        }
    }
}

/// 5.0: [MQTT-4.3.3-1] [MQTT-4.3.3-2] [MQTT-4.3.3-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-2.2.1-5] [MQTT-3.5.2-1] [MQTT-3.6.2-1]
/// 5.0: [MQTT-3.7.2-1] [MQTT-3.6.1-1]
/// 3.1.1: [MQTT-4.3.3-1] [MQTT-4.3.3-2] [MQTT-2.3.1-6] [MQTT-3.6.1-1]
#[test]
fn qos_2_goes_through_four_packets_in_each_direction() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut subscriber = broker.client(version, "q2-subscriber");
        subscriber.subscribe(&[("p/q2", 2)]);
        let mut publisher = broker.client(version, "q2-publisher");
        match version {
            Version::V5 => publisher.send(b"\x34\x0A\x00\x04p/q2\xFF\xFF\x00x"),
            _ => publisher.send(b"\x34\x09\x00\x04p/q2\xFF\xFFx"),
        }
        publisher.expect(b"\x50\x02\xFF\xFF");
        publisher.send(b"\x62\x02\xFF\xFF");
        publisher.expect(b"\x70\x02\xFF\xFF");
        match version {
            Version::V5 => subscriber.expect(b"\x34\x0A\x00\x04p/q2\x00\x01\x00x"),
            _ => subscriber.expect(b"\x34\x09\x00\x04p/q2\x00\x01x"),
        }
        subscriber.send(b"\x50\x02\x00\x01");
        subscriber.expect(b"\x62\x02\x00\x01");
        subscriber.send(b"\x70\x02\x00\x01");
        subscriber.ping();
        publisher.ping();
    }
}

/// 5.0: [MQTT-4.3.3-10]
/// 3.1.1: [MQTT-4.3.3-2]
#[test]
fn a_qos_2_message_repeated_before_pubrel_is_acknowledged_and_not_delivered_again() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut subscriber = broker.client(version, "repeat-subscriber");
        subscriber.subscribe(&[("p/repeat", 0)]);
        let mut publisher = broker.client(version, "repeat-publisher");
        let publish = Publish::new("p/repeat", "first").qos(2).id(7);
        publisher.send(&publish.encode(version));
        publisher.expect(b"\x50\x02\x00\x07");
        for repeated in [publish.clone().dup(), publish] {
            publisher.send(&repeated.encode(version));
            publisher.expect(b"\x50\x02\x00\x07");
        }
        publisher.send(b"\x62\x02\x00\x07");
        publisher.expect(b"\x70\x02\x00\x07");
        publisher.send(&Publish::new("p/repeat", "last").encode(version));
        assert_eq!(subscriber.expect_publish().payload, b"first");
        assert_eq!(subscriber.expect_publish().payload, b"last");
    }
}

/// 5.0: [MQTT-4.3.2-5] [MQTT-4.3.3-12] [MQTT-3.3.1-3]
/// 3.1.1: [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-3.3.1-3]
#[test]
fn an_id_used_again_after_its_acknowledgement_is_a_new_message_whatever_its_dup_and_dup_is_not_passed_on() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut subscriber = broker.client(version, "again-subscriber");
        subscriber.subscribe(&[("p/again", 2)]);
        let mut publisher = broker.client(version, "again-publisher");
        for (round, qos) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
            let publish = Publish::new("p/again", [round as u8]).qos(qos).id(9).dup();
            publisher.send(&publish.encode(version));
            match qos {
                1 => publisher.expect(b"\x40\x02\x00\x09"),
                _ => {
                    publisher.expect(b"\x50\x02\x00\x09");
                    publisher.send(b"\x62\x02\x00\x09");
                    publisher.expect(b"\x70\x02\x00\x09");
                }
            }
            let received = subscriber.expect_publish();
            assert_eq!((qos_of(&received), received.payload), ((qos, round, false), vec![round as u8]));
        }
    }
}

/// 5.0: [MQTT-3.8.4-8] [MQTT-4.5.0-1]
/// 3.1.1: [MQTT-3.8.4-6] [MQTT-4.5.0-1]
#[test]
fn a_message_is_delivered_at_the_lower_of_its_qos_and_the_one_granted() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "min-publisher");
        for granted in 0..=2 {
            let mut subscriber = broker.client(version, &format!("min-{granted}"));
            assert_eq!(subscriber.subscribe(&[("p/min", granted)]), [granted]);
            for published in 0..=2 {
                publisher.publish("p/min", [published], published);
                let publish = subscriber.expect_publish();
                assert_eq!((publish.qos, publish.payload), (granted.min(published), vec![published]));
            }
        }
    }
}

/// 5.0: [MQTT-2.2.1-4] [MQTT-4.3.2-3] [MQTT-4.3.3-3]
/// 3.1.1: [MQTT-2.3.1-4]
#[test]
fn ids_of_messages_in_flight_are_not_given_out_again() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let mut subscriber = broker.client(version, "ids-subscriber");
        subscriber.subscribe(&[("p/ids", 2)]);
        let mut publisher = broker.client(version, "ids-publisher");
        let mut in_flight = std::collections::HashSet::new();
        for index in 0..100 {
            publisher.publish("p/ids", "x", 1 + index % 2);
            let publish = subscriber.expect_publish();
            assert!(publish.id != 0 && in_flight.insert(publish.id), "{publish:?}");
            if index % 10 == 0 && publish.qos == 1 {
                in_flight.remove(&publish.id);
                subscriber.send(&acknowledge(Kind::Puback, publish.id));
            }
        }
        // Nothing is sent again while the connection stands.
        subscriber.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT-4.3.3-11]
/// 3.1.1: [MQTT-4.3.3-2]
#[test]
fn acknowledgements_of_unknown_ids_are_answered_so_that_the_sender_can_go_on() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "unknown");
        client.send(&acknowledge(Kind::Pubrel, 77));
        expect_ack(&mut client, Kind::Pubcomp, 77, 0x92);
        client.send(&acknowledge(Kind::Pubrec, 78));
        expect_ack(&mut client, Kind::Pubrel, 78, 0x92);
        client.send(&acknowledge(Kind::Puback, 79));
        client.send(&acknowledge(Kind::Pubcomp, 80));
        client.ping();
    }
}

/// 5.0: [MQTT-4.4.0-2]
#[test]
fn a_message_that_the_client_refused_is_done_and_not_sent_again() {
    let broker = SHARED.broker();
    let (mut client, _) = broker.connect(&Connect::new(Version::V5, "refuser").persistent());
    client.subscribe(&[("p/refused", 2)]);
    let mut publisher = broker.client(Version::V5, "refused-publisher");
    publisher.publish("p/refused", "1", 1);
    publisher.publish("p/refused", "2", 2);
    let (first, second) = (client.expect_publish(), client.expect_publish());
    client.send(&acknowledge_with(Kind::Puback, first.id, 0x97));
    client.send(&acknowledge_with(Kind::Pubrec, second.id, 0x80));
    // A refused PUBREC asks for no PUBREL.
    client.ping();
    drop(client);
    let (mut client, connack) = broker.connect(&Connect::new(Version::V5, "refuser").persistent());
    assert!(connack.session_present());
    client.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.4.2-1] [MQTT-3.5.2-1]
#[test]
fn a_message_that_nobody_wants_is_acknowledged_with_0x10() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "nobody");
    client.send(&Publish::new("p/nobody", "").qos(1).id(1).encode(Version::V5));
    expect_ack(&mut client, Kind::Puback, 1, 0x10);
    client.send(&Publish::new("p/nobody", "").qos(2).id(2).encode(Version::V5));
    expect_ack(&mut client, Kind::Pubrec, 2, 0x10);
    client.send(&acknowledge(Kind::Pubrel, 2));
    client.expect(b"\x70\x02\x00\x02");
}

/// 5.0: [MQTT-4.3.3-9]
#[test]
fn an_id_whose_pubrec_was_an_error_is_free_at_once() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "pubrec-error");
    client.subscribe(&[("p/pubrec-error", 0)]);
    client.send(&Publish::new("$SYS/broker/mine", "x").qos(2).id(5).encode(Version::V5));
    expect_ack(&mut client, Kind::Pubrec, 5, 0x87);
    client.send(&Publish::new("p/pubrec-error", "new").qos(2).id(5).encode(Version::V5));
    let [publish, pubrec] = expect_kinds(&mut client, [Kind::Publish, Kind::Pubrec]);
    assert_eq!(publish.publish(Version::V5).payload, b"new");
    assert_eq!(pubrec.0, b"\x50\x02\x00\x05");
}

/// 3.1.1: [MQTT-3.3.5-2]
/// 5.0: [MQTT-3.4.2-1]
#[test]
fn a_publish_that_is_not_allowed_is_acknowledged_and_has_no_effect() {
    let broker = SHARED.broker();
    let mut subscriber = broker.client(Version::V311, "forbidden-subscriber");
    subscriber.subscribe(&[("$SYS/forbidden", 0)]);
    for version in Version::ALL {
        let mut client = broker.client(version, "forbidden");
        client.send(&Publish::new("$SYS/forbidden", "x").qos(1).id(1).encode(version));
        expect_ack(&mut client, Kind::Puback, 1, 0x87);
        client.send(&Publish::new("$SYS/forbidden", "x").encode(version));
        client.ping();
    }
    subscriber.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20] [MQTT-1.5.7-1]
/// 5.0: [MQTT-3.3.2-13] [MQTT-3.3.2-19]
#[test]
fn properties_reach_every_mqtt_5_subscriber_unaltered_and_in_order() {
    let broker = SHARED.broker();
    let properties = [
        property::u8(property::PAYLOAD_FORMAT_INDICATOR, 1),
        property::string(property::RESPONSE_TOPIC, "p/response"),
        property::binary(property::CORRELATION_DATA, b"\x00\xFF"),
        property::pair(property::USER_PROPERTY, "z", "1"),
        property::pair(property::USER_PROPERTY, "a", "2"),
        property::pair(property::USER_PROPERTY, "z", ""),
        property::string(property::CONTENT_TYPE, "text/plain; charset=utf-8"),
    ];
    let publish = properties.iter().cloned().fold(Publish::new("properties/one/x", "h\u{e9}"), Publish::property);
    let mut publisher = broker.client(Version::V5, "properties-publisher");
    let mut subscribers: Vec<Client> = (0..6)
        .map(|index| {
            let mut subscriber = broker.client(Version::V5, &format!("properties-{index}"));
            subscriber.subscribe(&[(["properties/one/x", "properties/#", "+/one/x"][index % 3], (index % 3) as u8)]);
            subscriber
        })
        .collect();
    let mut old = broker.client(Version::V311, "properties-old");
    old.subscribe(&[("properties/one/x", 0)]);
    publisher.publish_with(publish.qos(1));
    for subscriber in &mut subscribers {
        let received = subscriber.expect_publish();
        assert_eq!(received.payload, "h\u{e9}".as_bytes());
        let mut wanted = properties.concat();
        let mut got = received.properties.clone();
        // The order of different properties is free, that of user properties is not.
        let users = [&properties[3][..], &properties[4], &properties[5]].concat();
        assert!(got.windows(users.len()).any(|window| window == users), "{got:02x?}");
        wanted.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, wanted);
        for property in [&properties[0], &properties[1], &properties[2], &properties[6]] {
            assert_eq!(received.property_value(property[0]).as_deref(), Some(&property[1..]));
        }
    }
    old.expect(&packet(0x30, "\u{0}\u{10}properties/one/xh\u{e9}".as_bytes()));
}

/// 5.0: [MQTT-3.3.2-14]
#[test]
fn a_wildcard_in_the_response_topic_is_a_protocol_error() {
    let broker = SHARED.broker();
    for topic in ["#", "a/+/b"] {
        let mut client = broker.client(Version::V5, "response-wildcard");
        let publish = Publish::new("p/x", "").property(property::string(property::RESPONSE_TOPIC, topic));
        client.send(&publish.encode(Version::V5));
        expect_disconnect(&mut client, 0x82);
    }
}

/// Acknowledgements keep the order of what they acknowledge as well.
///
/// 5.0: [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4] [MQTT-4.6.0-5] [MQTT-4.6.0-6]
/// 3.1.1: [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4] [MQTT-4.6.0-5] [MQTT-4.6.0-6]
#[test]
fn messages_of_one_publisher_arrive_in_their_order_at_every_qos() {
    let broker = SHARED.broker();
    let mut subscribers: Vec<Client> = (0..4)
        .map(|index| {
            let mut subscriber = broker.client(Version::V311, &format!("order-{index}"));
            subscriber.subscribe(&[(["p/order/x", "p/order/#", "+/order/x", "p/order/+"][index], 2)]);
            subscriber
        })
        .collect();
    let mut publisher = broker.client(Version::V5, "order-publisher");
    for qos in 0..=2 {
        let messages: Vec<u8> = (0..100u16)
            .flat_map(|index| {
                let publish = Publish::new("p/order/x", index.to_be_bytes()).qos(qos);
                publish.id(if qos == 0 { 0 } else { index + 1 }).encode(Version::V5)
            })
            .collect();
        publisher.send(&messages);
        if qos > 0 {
            let kind = if qos == 1 { Kind::Puback } else { Kind::Pubrec };
            for index in 0..100 {
                assert_eq!(publisher.expect_kind(kind).id(), index + 1);
            }
        }
        if qos == 2 {
            (0..100).for_each(|index| publisher.send(&acknowledge(Kind::Pubrel, index + 1)));
            (0..100).for_each(|index| assert_eq!(publisher.expect_kind(Kind::Pubcomp).id(), index + 1));
        }
        for subscriber in &mut subscribers {
            let mut next = 0u16;
            let mut received = std::collections::VecDeque::new();
            while next < 100 || !received.is_empty() {
                let packet = subscriber.expect_packet();
                match packet.kind() {
                    Kind::Publish => {
                        let publish = packet.publish(Version::V311);
                        assert_eq!((publish.payload, publish.qos), (next.to_be_bytes().to_vec(), qos));
                        next += 1;
                        match qos {
                            0 => {}
                            1 => subscriber.send(&acknowledge(Kind::Puback, publish.id)),
                            _ => {
                                subscriber.send(&acknowledge(Kind::Pubrec, publish.id));
                                received.push_back(publish.id);
                            }
                        }
                    }
                    Kind::Pubrel => {
                        assert_eq!(received.pop_front(), Some(packet.id()));
                        subscriber.send(&acknowledge(Kind::Pubcomp, packet.id()));
                    }
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    }
}

/// 5.0: [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]
/// 3.1.1: [MQTT-3.3.5-1]
#[test]
fn overlapping_subscriptions_give_one_message_with_the_highest_qos_and_all_identifiers() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V311, "overlap-publisher");
    let mut old = broker.client(Version::V311, "overlap-old");
    old.subscribe(&[("p/overlap", 0), ("p/overlap/#", 2), ("+/overlap", 1), ("p/other", 2)]);
    let mut new = broker.client(Version::V5, "overlap-new");
    for (id, filter, qos, identifier) in [
        (1, "p/overlap", 0, Some(7)),
        (2, "p/overlap/#", 1, None),
        (3, "+/overlap", 2, Some(268_435_455)),
        (4, "p/other", 2, Some(1)),
    ] {
        let properties = identifier.map(|value| property::variable(property::SUBSCRIPTION_IDENTIFIER, value)).unwrap_or_default();
        new.send(&crate::harness::subscribe_with(Version::V5, id, &properties, &[(filter, qos)]));
        new.expect_kind(Kind::Suback);
    }
    publisher.publish("p/overlap", "x", 2);
    for client in [&mut old, &mut new] {
        let publish = client.expect_publish();
        assert_eq!((publish.qos, publish.payload.as_slice()), (2, &b"x"[..]));
        if client.version == Version::V5 {
            let (first, second) = (&b"\x0B\x07"[..], &b"\x0B\xFF\xFF\xFF\x7F"[..]);
            let either_order = [[first, second].concat(), [second, first].concat()];
            assert!(either_order.contains(&publish.properties), "{:02x?}", publish.properties);
        }
        client.send(&acknowledge(Kind::Pubrec, publish.id));
        client.expect(&acknowledge(Kind::Pubrel, publish.id));
        client.send(&acknowledge(Kind::Pubcomp, publish.id));
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.3.4-6]
#[test]
fn a_subscription_identifier_from_a_client_is_a_protocol_error() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "identifier");
    client.send(b"\x30\x08\x00\x03p/i\x02\x0B\x01");
    expect_disconnect(&mut client, 0x82);
}

/// A payload of nothing and one of nearly a megabyte go through whole, to subscribers on both cores.
#[test]
fn payloads_of_every_size_arrive_whole() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "sizes-publisher");
    let mut subscribers: Vec<Client> = (0..6)
        .map(|index| {
            let mut subscriber = broker.client(Version::ALL[index % 3], &format!("sizes-{index}"));
            subscriber.subscribe(&[("p/sizes", (index % 2) as u8)]);
            subscriber
        })
        .collect();
    for length in [0, 1, 127, 128, 16_383, 16_384, 65_536, 1_000_000] {
        let payload: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
        publisher.publish("p/sizes", &payload, 1);
        for subscriber in &mut subscribers {
            let publish = subscriber.expect_publish();
            assert!(publish.payload == payload, "{} of {length} bytes", publish.payload.len());
            if publish.qos == 1 {
                subscriber.send(&acknowledge(Kind::Puback, publish.id));
            }
        }
    }
}

/// 5.0: [MQTT-4.13.1-1]
/// 3.1.1: [MQTT-4.8.0-1]
#[test]
fn packets_that_only_a_server_sends_are_a_protocol_error() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let suback: &[u8] = if version == Version::V5 { b"\x90\x04\x00\x01\x00\x00" } else { b"\x90\x03\x00\x01\x00" };
        let connack: &[u8] = if version == Version::V5 { b"\x20\x03\x00\x00\x00" } else { b"\x20\x02\x00\x00" };
        let unsuback: &[u8] = if version == Version::V5 { b"\xB0\x04\x00\x01\x00\x00" } else { b"\xB0\x02\x00\x01" };
        for bytes in [suback, connack, unsuback, b"\xD0\x00"] {
            let mut client = broker.client(version, "server-packets");
            client.send(bytes);
            expect_disconnect(&mut client, 0x82);
        }
    }
}
