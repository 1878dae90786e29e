//! DISCONNECT, and the end of connections.

use crate::harness::{Connect, Publish, Version, hex, packet, property};
use crate::{QUIET, Shared, expect_disconnect, expect_refused};
use std::time::Duration;

static SHARED: Shared = Shared::new("");

/// 5.0: [MQTT-3.14.4-2]
/// 3.1.1: [MQTT-3.14.4-1]
#[test]
fn the_broker_closes_after_a_disconnect_and_reads_nothing_behind_it() {
    let broker = SHARED.broker();
    let mut subscriber = broker.client(Version::V311, "behind-subscriber");
    subscriber.subscribe(&[("disconnect/behind", 0)]);
    for version in Version::ALL {
        let mut client = broker.client(version, "behind");
        client.send(&[b"\xE0\x00".to_vec(), Publish::new("disconnect/behind", "x").encode(version)].concat());
        client.expect_closed();
    }
    subscriber.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.14.1-1] [MQTT-3.14.2-1]
/// 3.1.1: [MQTT-3.14.1-1]
#[test]
fn a_disconnect_with_reserved_bits_is_malformed() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        for first in [0xE1, 0xE2, 0xE8] {
            let mut client = broker.client(version, "reserved");
            client.send(&[first, 0x00]);
            expect_disconnect(&mut client, 0x81);
        }
    }
}

/// 5.0: [MQTT-3.1.2-23]
#[test]
fn a_session_that_was_to_end_with_its_connection_cannot_be_kept_by_disconnect() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "kept");
    client.send(&hex("E0 07 00 05 11 0000003C"));
    expect_disconnect(&mut client, 0x82);
    let mut client = broker.client(Version::V5, "kept");
    client.send(&hex("E0 07 00 05 11 00000000"));
    client.expect_closed();
}

/// A client that asked for an expiry and was granted none has made no mistake when it says one again.
#[test]
fn where_no_session_is_kept_a_session_expiry_in_disconnect_does_no_harm() {
    let broker = crate::harness::Broker::start_with_config("[limits]\nsession_expiry_max_s = 0\nsession_expiry_v3_s = 0\n");
    let connect = Connect::new(Version::V5, "granted-none").property(property::u32(property::SESSION_EXPIRY_INTERVAL, 100));
    let (mut client, _) = broker.connect(&connect);
    client.send(&hex("E0 07 00 05 11 0000003C"));
    client.expect_closed();
    let (_, connack) = broker.connect(&connect.resume());
    assert!(!connack.session_present());
}

/// 5.0: [MQTT-3.14.2-2]
#[test]
fn the_brokers_disconnect_says_its_reason_and_nothing_else() {
    let broker = SHARED.broker();
    let connect = Connect::new(Version::V5, "reason-only").property(property::u32(property::SESSION_EXPIRY_INTERVAL, 100));
    let (mut client, _) = broker.connect(&connect);
    client.send(b"\xF3\x00");
    // With a text for humans at most.
    expect_disconnect(&mut client, 0x81);
}

/// A connection closed with unread bytes is reset by the kernel, and a reset takes our last words with it. So the broker reads on.
///
/// 5.0: [MQTT-4.13.1-1]
#[test]
fn the_last_words_arrive_although_the_client_sent_more() {
    let broker = SHARED.broker();
    for round in 0..20 {
        // Behind the mistake come up to 57 kB that nobody will read.
        let more = vec![0x00; round * 2000];
        let mut client = broker.client(Version::V5, &format!("words-{round}"));
        client.send(&[vec![0x00, 0x00], more.clone()].concat());
        expect_disconnect(&mut client, 0x81);
        // The same for a CONNACK that refuses, and for bytes that come later.
        let mut client = broker.socket();
        client.version = Version::V5;
        client.send(&[Connect::new(Version::V5, &"x".repeat(1025)).encode(), more.clone()].concat());
        let _ = client.try_send(&more[more.len() / 2..]);
        expect_refused(&mut client, 0, 0x85);
    }
}

/// A peer that neither reads nor closes does not keep its connection for ever.
#[test]
fn a_connection_that_is_being_closed_is_gone_after_a_moment_whatever_its_peer_does() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "stubborn");
    client.send(b"\x00\x00");
    expect_disconnect(&mut client, 0x81);
    // The broker has ended its side; ours stays open, and after its patience writing fails.
    let deadline = std::time::Instant::now() + crate::PATIENCE;
    while client.try_send(b"\xC0\x00").is_ok() {
        assert!(std::time::Instant::now() < deadline, "the broker still listens");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// 3.1.1: [MQTT-4.8.0-1]
/// 5.0: [MQTT-4.13.1-1]
#[test]
fn a_client_that_breaks_the_protocol_disturbs_no_other() {
    let broker = SHARED.broker();
    let mut subscriber = broker.client(Version::V311, "undisturbed-subscriber");
    subscriber.subscribe(&[("disconnect/undisturbed", 0)]);
    let mut publisher = broker.client(Version::V5, "undisturbed-publisher");
    for index in 0..100u32 {
        let version = Version::ALL[index as usize % 3];
        let mut client = broker.client(version, &format!("breaks-{}", index % 10));
        // A whole message, then rubbish in the same segment.
        let good = Publish::new("disconnect/undisturbed", format!("good-{index}")).encode(version);
        client.send(&[good, packet(0x36, b"\x00\x01x\x00\x01\x00")].concat());
        publisher.send(&Publish::new("disconnect/undisturbed", format!("other-{index}")).encode(Version::V5));
        expect_disconnect(&mut client, 0x81);
        let mut payloads = [subscriber.expect_publish().payload, subscriber.expect_publish().payload];
        payloads.sort();
        assert_eq!(payloads, [format!("good-{index}").into_bytes(), format!("other-{index}").into_bytes()]);
    }
    publisher.ping();
    subscriber.ping();
}
