//! The codec's table of packet cases, sent to the broker.

use crate::harness::{Broker, Client, Connect, Kind, Version};
use crate::{QUIET, Shared, assert_reason, expect_kinds};
use corelane::wire::cases::{Case, Expect, cases};
use corelane::wire::{self, Packet, ReasonCode};

/// The table's own limit is the default.
static SHARED: Shared = Shared::new("");

fn version_of(version: wire::Version) -> Version {
    match version {
        wire::Version::V3_1 => Version::V31,
        wire::Version::V3_1_1 => Version::V311,
        wire::Version::V5 => Version::V5,
    }
}

/// What the broker owes a client for these bytes: packets, then the end.
fn answer_to_refusal(case: &Case, reason: ReasonCode) -> Vec<u8> {
    match case.version {
        Some(wire::Version::V5) => vec![0xE0, 0x01, reason.0],
        Some(_) => vec![],
        None if case.bytes[0] != 0x10 => vec![],
        None if reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => vec![0x20, 0x02, 0x00, 0x01],
        None => match named_version(case) {
            Some(wire::Version::V5) => vec![0x20, 0x03, 0x00, reason.0, 0x00],
            _ => vec![],
        },
    }
}

fn named_version(case: &Case) -> Option<wire::Version> {
    let frame = wire::frame(&case.bytes, u32::MAX).ok()??;
    wire::connect_version(&frame)
}

/// The reason for which a broker refuses a packet that can be read, because of who sends it or of what it rests on.
fn refusal_by_role(packet: &Packet<'_>) -> Option<ReasonCode> {
    match packet {
        Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp | Packet::Auth(_) => {
            Some(ReasonCode::PROTOCOL_ERROR)
        }
        Packet::Publish(publish) if publish.has_subscription_identifier() => Some(ReasonCode::PROTOCOL_ERROR),
        Packet::Publish(publish) if publish.topic.is_empty() => Some(ReasonCode::PROTOCOL_ERROR),
        Packet::Disconnect(disconnect) if disconnect.session_expiry_interval_s.is_some() => Some(ReasonCode::PROTOCOL_ERROR),
        _ => None,
    }
}

fn open(broker: &Broker, case: &Case, id: &str) -> Client {
    match case.version {
        Some(version) => broker.client(version_of(version), id),
        None => broker.socket(),
    }
}

/// Everything until the end, Reason Strings left out.
fn rest(client: &mut Client) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(packet) = client.packet() {
        match packet.kind() {
            Kind::Disconnect => {
                assert_reason(&packet, packet.reason());
                bytes.extend([0xE0, 0x01, packet.reason()]);
            }
            Kind::Connack if packet.body().len() > 2 => {
                assert_reason(&packet, packet.reason());
                bytes.extend([0x20, 0x03, packet.body()[0], packet.reason(), 0x00]);
            }
            _ => bytes.extend(packet.0),
        }
    }
    bytes
}

/// Each packet that the table calls wrong is answered with the reason code that the table names, in the way of its version, and the
/// connection is closed; the broker lives on.
///
/// 5.0: [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.5-1] [MQTT-1.5.7-1] [MQTT-2.1.3-1] [MQTT-2.2.1-3] [MQTT-2.2.2-1] [MQTT-3.1.2-1]
/// 5.0: [MQTT-3.1.2-2] [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-12] [MQTT-3.1.2-13] [MQTT-3.1.2-16] [MQTT-3.1.2-17]
/// 5.0: [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.3-3] [MQTT-3.1.3-4] [MQTT-3.1.3-11] [MQTT-3.1.3-12] [MQTT-3.1.4-1] [MQTT-3.2.2-15]
/// 5.0: [MQTT-3.3.1-2] [MQTT-3.3.1-4] [MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT-3.3.2-8] [MQTT-3.3.2-13] [MQTT-3.3.2-14] [MQTT-3.3.2-19]
/// 5.0: [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.8.3-1] [MQTT-3.8.3-2] [MQTT-3.8.3-4] [MQTT-3.8.3-5] [MQTT-3.10.1-1] [MQTT-3.10.3-1]
/// 5.0: [MQTT-3.10.3-2] [MQTT-3.14.1-1] [MQTT-3.14.2-1] [MQTT-3.15.1-1] [MQTT-3.15.2-1] [MQTT-4.7.0-1] [MQTT-4.7.3-1] [MQTT-4.7.3-2]
/// 5.0: [MQTT-4.13.1-1] [MQTT-4.13.2-1]
/// 3.1.1: [MQTT-1.5.3-1] [MQTT-1.5.3-2] [MQTT-2.2.2-2] [MQTT-2.3.1-1] [MQTT-3.1.2-3] [MQTT-3.1.2-9] [MQTT-3.1.2-11] [MQTT-3.1.2-13]
/// 3.1.1: [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT-3.1.2-20] [MQTT-3.1.2-21] [MQTT-3.1.2-22]
/// 3.1.1: [MQTT-3.1.3-3] [MQTT-3.1.3-4] [MQTT-3.1.3-10] [MQTT-3.1.3-11] [MQTT-3.1.4-1] [MQTT-3.3.1-2] [MQTT-3.3.1-4] [MQTT-3.3.2-1]
/// 3.1.1: [MQTT-3.3.2-2] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.8.3-1] [MQTT-3.8.3-3] [MQTT-3-8.3-4] [MQTT-3.10.1-1] [MQTT-3.10.3-1]
/// 3.1.1: [MQTT-3.10.3-2] [MQTT-4.7.1-1] [MQTT-4.7.3-1] [MQTT-4.7.3-2] [MQTT-4.8.0-1]
#[test]
fn each_wrong_packet_of_the_table_ends_its_connection_with_the_reason_named() {
    let broker = SHARED.broker();
    let mut witness = broker.client(Version::V5, "malformed-witness");
    for case in cases() {
        let Expect::Error(reason) = case.expect else { continue };
        let mut client = open(&broker, &case, "malformed-wrong");
        client.send(&case.bytes);
        assert_eq!(rest(&mut client), answer_to_refusal(&case, reason), "{}", case.name);
    }
    witness.ping();
}

/// Each packet that can be read is either served, and the connection goes on, or is refused for what it is in a client's mouth.
///
/// 5.0: [MQTT-4.13.1-1]
/// 3.1.1: [MQTT-4.8.0-1]
#[test]
fn each_readable_packet_of_the_table_is_served_or_refused_by_its_role() {
    let broker = SHARED.broker();
    for case in cases() {
        let Expect::Packet(packet) = &case.expect else { continue };
        let mut client = open(&broker, &case, "malformed-readable");
        client.send(&case.bytes);
        if let Packet::Connect(connect) = &**packet {
            let connack = client.expect_kind(Kind::Connack);
            let refused = connect.authentication_method.is_some();
            assert_eq!(connack.body()[1] != 0, refused, "{}: {connack:?}", case.name);
            continue;
        }
        if let Some(reason) = refusal_by_role(packet) {
            assert_eq!(rest(&mut client), answer_to_refusal(&case, reason), "{}", case.name);
            continue;
        }
        if matches!(**packet, Packet::Disconnect(_)) {
            assert!(rest(&mut client).is_empty(), "{}", case.name);
            continue;
        }
        client.send(b"\xC0\x00");
        // An acknowledgement may come first, and so may what the packet brought about.
        while client.expect_packet().kind() != Kind::Pingresp {}
        drop(client);
    }
    // What the table retained is removed again.
    let mut client = broker.client(Version::V311, "malformed-cleaner");
    client.publish_with(crate::harness::Publish::new("a/b", "").retain());
    client.ping();
}

/// A packet that has not come whole has no effect, however its connection ends.
#[test]
fn each_incomplete_packet_of_the_table_waits_for_its_rest() {
    let broker = SHARED.broker();
    for case in cases() {
        let Expect::Incomplete = case.expect else { continue };
        let mut client = open(&broker, &case, "malformed-incomplete");
        client.send(&case.bytes);
        client.expect_nothing(QUIET / 3);
        client.stream().shutdown(std::net::Shutdown::Write).expect("the write side ends");
        client.expect_closed();
    }
}

/// No case is harmed by arriving byte by byte.
#[test]
fn each_wrong_packet_of_the_table_is_found_byte_by_byte_too() {
    let broker = SHARED.broker();
    for case in cases().into_iter().filter(|case| case.bytes.len() < 40) {
        let Expect::Error(reason) = case.expect else { continue };
        let mut client = open(&broker, &case, "malformed-byte-by-byte");
        for byte in &case.bytes {
            // What lies behind the mistake may not be taken any more.
            if client.try_send(&[*byte]).is_err() {
                break;
            }
        }
        assert_eq!(rest(&mut client), answer_to_refusal(&case, reason), "{}", case.name);
    }
}

/// Noise from a few sockets at once: the broker serves its other clients all the while.
#[test]
fn noise_hurts_nobody() {
    let broker = SHARED.broker();
    let mut witness = broker.client(Version::V311, "noise-witness");
    witness.subscribe(&[("noise/witness", 1)]);
    let seeds: Vec<Vec<u8>> =
        cases().into_iter().map(|case| case.bytes).filter(|bytes| !bytes.is_empty() && bytes.len() < 200).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    for round in 0..200 {
        let version = Version::ALL[round % 3];
        let mut client = broker.socket();
        let connect = Connect::new(version, &format!("noise-{}", round % 7)).encode();
        let mut bytes = if round % 4 == 0 { Vec::new() } else { connect };
        for _ in 0..20 {
            let mut seed = seeds[next(seeds.len())].clone();
            for _ in 0..next(3) {
                let at = next(seed.len());
                seed[at] = next(256) as u8;
            }
            bytes.extend(seed);
        }
        let _ = client.try_send(&bytes);
        if round % 20 == 0 {
            witness.send(b"\x32\x12\x00\x0Dnoise/witness\x00\x01x");
            let [publish, puback] = expect_kinds(&mut witness, [Kind::Publish, Kind::Puback]);
            witness.send(&crate::harness::acknowledge(Kind::Puback, publish.publish(Version::V311).id));
            assert_eq!(puback.0, b"\x40\x02\x00\x01");
        }
    }
    witness.ping();
}
