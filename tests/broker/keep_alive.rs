//! Keep Alive and PINGREQ.

use crate::harness::{Broker, Connect, Publish, Version, property};
use crate::{Shared, expect_disconnect};
use std::time::{Duration, Instant};

static SHARED: Shared = Shared::new("");

/// 5.0: [MQTT-3.12.4-1]
/// 3.1.1: [MQTT-3.12.4-1]
#[test]
fn each_pingreq_is_answered() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "ping");
        client.send(b"\xC0\x00\xC0\x00\xC0\x00");
        for _ in 0..3 {
            client.expect(b"\xD0\x00");
        }
    }
}

/// 5.0: [MQTT-3.1.2-22] [MQTT-3.2.2-22]
/// 3.1.1: [MQTT-3.1.2-24]
#[test]
fn a_silent_client_is_closed_after_one_and_a_half_times_its_keep_alive_and_not_before() {
    let broker = SHARED.broker();
    let mut clients: Vec<_> = Version::ALL
        .map(|version| {
            let begun = Instant::now();
            let (client, connack) = broker.connect(&Connect::new(version, &format!("silent-{version:?}")).keep_alive_s(2));
            if version == Version::V5 {
                assert_eq!(connack.property(property::SERVER_KEEP_ALIVE), None);
            }
            (client, begun)
        })
        .into();
    for (client, begun) in &mut clients {
        expect_disconnect(client, 0x8D);
        // The clock of the wheel ticks every 64 ms.
        assert!(begun.elapsed() >= Duration::from_millis(2900), "{:?}", begun.elapsed());
    }
}

/// 5.0: [MQTT-3.1.2-22]
/// 3.1.1: [MQTT-3.1.2-24]
#[test]
fn any_packet_keeps_a_client_alive_and_without_a_keep_alive_none_is_needed() {
    let broker = SHARED.broker();
    let (mut publishing, _) = broker.connect(&Connect::new(Version::V311, "alive-publishing").keep_alive_s(2));
    let (mut pinging, _) = broker.connect(&Connect::new(Version::V5, "alive-pinging").keep_alive_s(2));
    let (mut silent, _) = broker.connect(&Connect::new(Version::V5, "alive-silent").keep_alive_s(0));
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(500));
        publishing.send(&Publish::new("alive", "x").encode(Version::V311));
        pinging.ping();
    }
    publishing.ping();
    silent.ping();
}

/// A client to which much is sent and which sends nothing is silent all the same.
///
/// 5.0: [MQTT-3.1.2-22]
/// 3.1.1: [MQTT-3.1.2-24]
#[test]
fn what_the_broker_sends_keeps_nobody_alive() {
    let broker = SHARED.broker();
    let (mut client, _) = broker.connect(&Connect::new(Version::V311, "listening").keep_alive_s(1));
    client.subscribe(&[("alive/listening", 0)]);
    let mut publisher = broker.client(Version::V311, "listening-publisher");
    let begun = Instant::now();
    while !client.is_closed() {
        assert!(begun.elapsed() < Duration::from_secs(10), "still open");
        publisher.publish("alive/listening", "x", 0);
        let _ = client.packet_within(Duration::from_millis(50));
    }
}

/// 5.0: [MQTT-3.2.2-21] [MQTT-3.1.2-22] [MQTT-3.1.2-21]
#[test]
fn a_keep_alive_over_the_maximum_is_replaced_and_the_client_told() {
    let broker = Broker::start_with_config("[limits]\nkeep_alive_max_s = 5\n");
    for asked in [0, 6, 65_535] {
        let (_, connack) = broker.connect(&Connect::new(Version::V5, "maximum").keep_alive_s(asked));
        assert_eq!(connack.property(property::SERVER_KEEP_ALIVE), Some(b"\x00\x05".to_vec()));
    }
    let begun = Instant::now();
    let (mut client, _) = broker.connect(&Connect::new(Version::V5, "maximum").keep_alive_s(0));
    expect_disconnect(&mut client, 0x8D);
    assert!(begun.elapsed() >= Duration::from_millis(7400), "{:?}", begun.elapsed());
    for asked in [5, 1] {
        let (_, connack) = broker.connect(&Connect::new(Version::V5, "maximum").keep_alive_s(asked));
        assert_eq!(connack.property(property::SERVER_KEEP_ALIVE), None);
    }
}
