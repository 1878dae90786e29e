//! CONNECT and CONNACK.

use crate::harness::{Connect, Kind, Publish, Version, property, string, subscribe};
use crate::{QUIET, Shared, expect_disconnect, expect_kinds, expect_refused};

static SHARED: Shared = Shared::new("");

/// What a v5 client is told with the default configuration: Receive Maximum 1,024, Maximum Packet Size 1 MiB, Topic Alias Maximum 64.
const ACCEPTED_V5: &[u8] = b"\x20\x0E\x00\x00\x0B\x21\x04\x00\x27\x00\x10\x00\x00\x22\x00\x40";

/// 5.0: [MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.2-1] [MQTT-3.2.2-9] [MQTT-4.12.0-6] [MQTT-2.2.2-1]
/// 3.1.1: [MQTT-3.1.4-4] [MQTT-3.2.0-1] [MQTT-2.2.2-1]
#[test]
fn connect_is_answered_with_the_connack_of_its_version() {
    let broker = SHARED.broker();
    for (connect, connack) in [
        (&b"\x10\x13\x00\x06MQIsdp\x03\x02\x00\x00\x00\x05exact"[..], &b"\x20\x02\x00\x00"[..]),
        (b"\x10\x11\x00\x04MQTT\x04\x02\x00\x00\x00\x05exact", b"\x20\x02\x00\x00"),
        (b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x05exact", ACCEPTED_V5),
        // What a bridge of the mosquitto family sends.
        (b"\x10\x11\x00\x04MQTT\x84\x02\x00\x00\x00\x05exact", b"\x20\x02\x00\x00"),
    ] {
        let mut client = broker.socket();
        client.send(connect);
        client.expect(connack);
        client.ping();
        client.disconnect();
    }
}

/// 5.0: [MQTT-3.1.0-1] [MQTT-3.14.0-1] [MQTT-3.2.0-1]
/// 3.1.1: [MQTT-3.1.0-1] [MQTT-3.2.0-1]
#[test]
fn whatever_comes_first_instead_of_a_connect_is_answered_with_nothing() {
    let broker = SHARED.broker();
    for first in [
        &b"\xC0\x00"[..],
        b"\x30\x05\x00\x03a/bx",
        b"\x82\x08\x00\x01\x00\x03a/b\x00",
        b"\xE0\x00",
        b"\xF0\x00",
        b"GET / HTTP/1.1\r\nHost: localhost:1883\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03",
    ] {
        let mut client = broker.socket();
        client.send(first);
        client.expect_closed();
    }
}

/// 5.0: [MQTT-3.1.0-2] [MQTT-3.2.0-2] [MQTT-4.13.1-1]
/// 3.1.1: [MQTT-3.1.0-2] [MQTT-4.8.0-1]
#[test]
fn a_second_connect_ends_the_connection() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "twice");
        client.send(&Connect::new(version, "twice").encode());
        expect_disconnect(&mut client, 0x82);
    }
}

/// 5.0: [MQTT-3.1.2-2] [MQTT-4.13.2-1]
/// 3.1.1: [MQTT-3.1.2-2] [MQTT-3.2.2-4] [MQTT-3.2.2-5]
#[test]
fn an_unknown_protocol_level_is_answered_with_return_code_1_and_the_end() {
    let broker = SHARED.broker();
    for level in [0, 1, 2, 3, 6, 127] {
        let mut client = broker.socket();
        client.send(&[&b"\x10\x0D\x00\x04MQTT"[..], &[level], b"\x02\x00\x3C\x00\x01a"].concat());
        client.expect(b"\x20\x02\x00\x01");
        client.expect_closed();
    }
}

/// 5.0: [MQTT-3.1.2-1]
/// 3.1.1: [MQTT-3.1.2-1]
#[test]
fn another_protocol_name_ends_the_connection() {
    let broker = SHARED.broker();
    for name in ["mqtt", "MQTt", "HTTP", "MQIsdq"] {
        let mut client = broker.socket();
        let body = [&string(name)[..], b"\x04\x02\x00\x3C\x00\x01a"].concat();
        client.send(&crate::harness::packet(0x10, &body));
        client.expect(b"\x20\x02\x00\x01");
        client.expect_closed();
    }
}

/// 5.0: [MQTT-3.1.2-3] [MQTT-3.1.4-1] [MQTT-3.2.2-6] [MQTT-3.2.2-7]
/// 3.1.1: [MQTT-3.1.2-3] [MQTT-3.1.4-1] [MQTT-3.2.2-6]
#[test]
fn a_connect_that_breaks_its_format_is_closed_and_only_mqtt_5_is_told_why() {
    let broker = SHARED.broker();
    // The reserved connect flag.
    let mut client = broker.socket();
    client.send(b"\x10\x0D\x00\x04MQTT\x04\x03\x00\x3C\x00\x01a");
    client.expect_closed();
    let mut client = broker.socket();
    client.version = Version::V5;
    client.send(b"\x10\x0E\x00\x04MQTT\x05\x03\x00\x3C\x00\x00\x01a");
    expect_refused(&mut client, 0, 0x81);
    // A receive maximum of 0 can be read and is not allowed.
    let mut client = broker.socket();
    client.version = Version::V5;
    client.send(b"\x10\x11\x00\x04MQTT\x05\x02\x00\x3C\x03\x21\x00\x00\x00\x01a");
    expect_refused(&mut client, 0, 0x82);
}

/// 5.0: [MQTT-3.1.3-3] [MQTT-3.1.3-5] [MQTT-3.1.3-4]
/// 3.1.1: [MQTT-3.1.3-3] [MQTT-3.1.3-5] [MQTT-3.1.3-4]
#[test]
fn client_ids_of_1_to_23_letters_and_digits_are_accepted_and_longer_ones_too() {
    let broker = SHARED.broker();
    let alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for version in Version::ALL {
        for id in [&alphabet[..23], &alphabet[23..46], &alphabet[46..], "0", alphabet, "with space/+#é\u{FEFF}"] {
            let mut client = broker.client(version, id);
            client.ping();
        }
    }
}

/// 3.1.1: [MQTT-3.1.3-6]
#[test]
fn an_empty_client_id_with_clean_session_gets_an_id_of_its_own() {
    let broker = SHARED.broker();
    let mut first = broker.client(Version::V311, "");
    let mut second = broker.client(Version::V311, "");
    // Had they one id, the second would have taken over from the first.
    second.ping();
    first.ping();
    for client in [&mut first, &mut second] {
        client.subscribe(&[("connect/anonymous", 1)]);
    }
    first.send(b"\x30\x14\x00\x11connect/anonymous!");
    for client in [&mut first, &mut second] {
        client.expect(b"\x30\x14\x00\x11connect/anonymous!");
    }
}

/// 3.1.1: [MQTT-3.1.3-7] [MQTT-3.1.3-8] [MQTT-3.2.2-4] [MQTT-3.2.2-5]
#[test]
fn an_empty_client_id_without_clean_session_is_refused_with_return_code_2() {
    let broker = SHARED.broker();
    let mut client = broker.socket();
    client.send(b"\x10\x0C\x00\x04MQTT\x04\x00\x00\x3C\x00\x00");
    client.expect(b"\x20\x02\x00\x02");
    client.expect_closed();
    // MQTT 3.1 knows no empty id at all.
    let mut client = broker.socket();
    client.send(b"\x10\x0E\x00\x06MQIsdp\x03\x02\x00\x3C\x00\x00");
    client.expect(b"\x20\x02\x00\x02");
    client.expect_closed();
}

/// 5.0: [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]
#[test]
fn an_empty_client_id_in_mqtt_5_is_assigned_one_that_can_be_used_to_come_back() {
    let broker = SHARED.broker();
    let (mut first, connack) = broker.connect(&Connect::new(Version::V5, "").persistent());
    assert_eq!((connack.body()[0], connack.reason()), (0, 0));
    let assigned = connack.property(property::ASSIGNED_CLIENT_IDENTIFIER).expect("an id is assigned");
    let (mut second, connack) = broker.connect(&Connect::new(Version::V5, ""));
    let other = connack.property(property::ASSIGNED_CLIENT_IDENTIFIER).expect("an id is assigned");
    assert_ne!(assigned, other);
    second.ping();
    first.ping();
    first.send(b"\xE0\x00");
    first.expect_closed();
    let assigned = String::from_utf8(assigned[2..].to_vec()).expect("an id is UTF-8");
    let (_, connack) = broker.connect(&Connect::new(Version::V5, &assigned).persistent());
    assert!(connack.session_present());
    assert_eq!(connack.property(property::ASSIGNED_CLIENT_IDENTIFIER), None, "this client named its id itself");
}

/// 5.0: [MQTT-3.1.3-8] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-3.1.4-2]
/// 3.1.1: [MQTT-3.1.3-9] [MQTT-3.2.2-4] [MQTT-3.2.2-5]
#[test]
fn a_client_id_over_the_limit_is_refused() {
    let broker = SHARED.broker();
    let id = "x".repeat(1025);
    for version in Version::ALL {
        let mut client = broker.socket();
        client.version = version;
        client.send(&Connect::new(version, &id).encode());
        expect_refused(&mut client, 0x02, 0x85);
        broker.client(version, &id[1..]).ping();
    }
}

/// 5.0: [MQTT-3.1.2-17] [MQTT-3.1.2-19] [MQTT-3.1.3-1] [MQTT-3.1.2-9] [MQTT-3.1.3-12]
/// 3.1.1: [MQTT-3.1.2-19] [MQTT-3.1.2-21] [MQTT-3.1.3-1] [MQTT-3.1.2-9] [MQTT-3.1.3-11]
#[test]
fn all_fields_of_the_payload_are_read_in_their_order() {
    let broker = SHARED.broker();
    let mut client = broker.socket();
    client.send(b"\x10\x24\x00\x04MQTT\x04\xC6\x00\x3C\x00\x05order\x00\x02w/\x00\x02no\x00\x04user\x00\x03\x00\xFF\x00");
    client.expect(b"\x20\x02\x00\x00");
    client.disconnect();
    let mut client = broker.socket();
    client.send(
        b"\x10\x2B\x00\x04MQTT\x05\xC6\x00\x3C\x00\x00\x05order\x05\x18\x00\x00\x00\x00\x00\x02w/\x00\x02no\x00\x04user\x00\x03\x00\xFF\x00",
    );
    client.expect(ACCEPTED_V5);
    client.disconnect();
    // MQTT 5.0 allows a password without a user name.
    let mut client = broker.socket();
    client.send(b"\x10\x19\x00\x04MQTT\x05\x42\x00\x3C\x00\x00\x05order\x00\x05token");
    client.expect(ACCEPTED_V5);
    client.disconnect();
}

/// 5.0: [MQTT-3.1.4-6]
/// 3.1.1: [MQTT-3.1.4-5]
#[test]
fn packets_behind_a_connect_need_not_wait_and_are_dropped_if_it_is_refused() {
    let broker = SHARED.broker();
    let mut subscriber = broker.client(Version::V311, "eager-subscriber");
    subscriber.subscribe(&[("connect/eager", 0)]);
    for version in [Version::V311, Version::V5] {
        let refused = match version {
            Version::V5 => Connect::new(version, &"x".repeat(2000)),
            _ => Connect::new(version, "").resume(),
        };
        let mut client = broker.socket();
        client.send(&[refused.encode(), Publish::new("connect/eager", "refused").encode(version)].concat());
        client.expect_kind(Kind::Connack);
        client.expect_closed();
        let mut client = broker.socket();
        client.version = version;
        let connect = Connect::new(version, "eager").encode();
        client.send(&[connect, Publish::new("connect/eager", "accepted").encode(version), vec![0xC0, 0x00]].concat());
        client.expect_kind(Kind::Connack);
        client.expect(b"\xD0\x00");
        assert_eq!(subscriber.expect_publish().payload, b"accepted");
    }
}

/// 5.0: [MQTT-4.12.0-1] [MQTT-4.12.0-4] [MQTT-4.13.2-1]
#[test]
fn an_authentication_method_is_refused_because_none_is_offered() {
    let broker = SHARED.broker();
    let mut client = broker.socket();
    client.version = Version::V5;
    let method = property::string(property::AUTHENTICATION_METHOD, "SCRAM-SHA-256");
    client.send(&Connect::new(Version::V5, "auth").property(method).encode());
    expect_refused(&mut client, 0, 0x8C);
}

/// 5.0: [MQTT-4.12.0-6]
#[test]
fn an_auth_that_nobody_began_is_a_protocol_error() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "auth-alone");
    client.send(b"\xF0\x06\x19\x04\x15\x00\x01m");
    expect_disconnect(&mut client, 0x82);
}

/// Who does not want to be told the problem is told it in a CONNACK or DISCONNECT at most.
///
/// 5.0: [MQTT-3.1.2-29]
#[test]
fn without_request_problem_information_acknowledgements_carry_a_code_and_nothing_else() {
    let broker = SHARED.broker();
    let connect = Connect::new(Version::V5, "no-problems").property(property::u8(property::REQUEST_PROBLEM_INFORMATION, 0));
    let (mut client, _) = broker.connect(&connect);
    client.send(&Publish::new("$SYS/x", "x").qos(1).id(1).encode(Version::V5));
    client.expect(b"\x40\x03\x00\x01\x87");
    client.send(&Publish::new("$SYS/x", "x").qos(2).id(2).encode(Version::V5));
    client.expect(b"\x50\x03\x00\x02\x87");
    client.send(b"\x62\x02\x00\x03");
    client.expect(b"\x70\x03\x00\x03\x92");
    client.send(b"\x50\x02\x00\x04");
    client.expect(b"\x62\x03\x00\x04\x92");
    client.send(&subscribe(Version::V5, 5, &[("a/#/b", 0)]));
    client.expect(b"\x90\x04\x00\x05\x00\x8F");
    client.send(&crate::harness::unsubscribe(Version::V5, 6, &["none"]));
    client.expect(b"\xB0\x04\x00\x06\x00\x11");
}

/// 5.0: [MQTT-3.1.2-28]
#[test]
fn response_information_is_only_for_those_who_ask() {
    let broker = crate::harness::Broker::start_with_config("[limits]\nresponse_information = \"replies/here\"\n");
    let ask = |value| property::u8(property::REQUEST_RESPONSE_INFORMATION, value);
    for (connect, expected) in [
        (Connect::new(Version::V5, "c"), None),
        (Connect::new(Version::V5, "c").property(ask(0)), None),
        (Connect::new(Version::V5, "c").property(ask(1)), Some(string("replies/here"))),
    ] {
        let (_, connack) = broker.connect(&connect);
        assert_eq!(connack.property(property::RESPONSE_INFORMATION), expected);
    }
}

/// 5.0: [MQTT-4.2-1]
/// 3.1.1: [MQTT-7.1.1-1]
#[test]
fn packets_may_come_byte_by_byte_or_all_at_once() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let stream = [
            Connect::new(version, "stream").encode(),
            subscribe(version, 1, &[("connect/stream", 0)]),
            Publish::new("connect/stream", "x").encode(version),
            vec![0xC0, 0x00],
        ]
        .concat();
        for step in [1, 7, stream.len()] {
            let mut client = broker.socket();
            client.version = version;
            for bytes in stream.chunks(step) {
                client.send(bytes);
                if step == 1 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            client.expect_kind(Kind::Connack);
            // SUBACK waits for the other core, and a message may come before it.
            expect_kinds(&mut client, [Kind::Suback, Kind::Publish, Kind::Pingresp]);
            client.disconnect();
        }
    }
}

/// A client that connects, publishes and ends its side at once, as `mosquitto_pub` does, has its messages routed. The client ids
/// reach both cores.
#[test]
fn what_was_sent_before_the_end_of_the_stream_is_routed() {
    let broker = SHARED.broker();
    let mut subscriber = broker.client(Version::V5, "half-close-subscriber");
    subscriber.subscribe(&[("connect/half-close/#", 1)]);
    for index in 0..16 {
        let version = Version::ALL[index % 3];
        let mut client = broker.socket();
        client.version = version;
        let connect = Connect::new(version, &format!("half-close-{index}")).encode();
        let topic = format!("connect/half-close/{index}");
        let messages = [Publish::new(&topic, "0").encode(version), Publish::new(&topic, "1").qos(1).id(1).encode(version)];
        client.send(&[connect, messages.concat()].concat());
        client.stream().shutdown(std::net::Shutdown::Write).expect("the write side ends");
        for expected in ["0", "1"] {
            let publish = subscriber.expect_publish();
            assert_eq!((publish.topic.as_str(), publish.payload.as_slice()), (topic.as_str(), expected.as_bytes()));
            if publish.qos == 1 {
                subscriber.send(&crate::harness::acknowledge(Kind::Puback, publish.id));
            }
        }
        client.expect_kind(Kind::Connack);
        client.expect_kind(Kind::Puback);
        client.expect_closed();
    }
    subscriber.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.1.4-2]
#[test]
fn a_will_for_the_brokers_own_topics_is_refused() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.socket();
        client.version = version;
        client.send(&Connect::new(version, "sys-will").will(Publish::new("$SYS/broker/version", "mine")).encode());
        expect_refused(&mut client, 0x05, 0x87);
    }
}

/// 3.1.1: [MQTT-7.0.0-2]
#[test]
fn the_version_of_one_client_is_no_matter_for_another() {
    let broker = SHARED.broker();
    let mut clients: Vec<_> = Version::ALL.map(|version| broker.client(version, &format!("mixed-{version:?}"))).into();
    for client in &mut clients {
        client.subscribe(&[("connect/mixed", 0)]);
    }
    for publisher in 0..3 {
        let bytes = Publish::new("connect/mixed", "x").encode(clients[publisher].version);
        clients[publisher].send(&bytes);
        for client in &mut clients {
            let expected: &[u8] = match client.version {
                Version::V5 => b"\x30\x11\x00\x0Dconnect/mixed\x00x",
                _ => b"\x30\x10\x00\x0Dconnect/mixedx",
            };
            client.expect(expected);
        }
    }
}
