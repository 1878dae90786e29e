//! UNSUBSCRIBE and UNSUBACK.

use crate::harness::{Kind, Publish, Version, acknowledge, packet, unsubscribe};
use crate::{QUIET, Shared, expect_disconnect};

static SHARED: Shared = Shared::new("");

/// 5.0: [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2] [MQTT-2.2.1-6]
/// 3.1.1: [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-2.3.1-7]
#[test]
fn unsuback_has_the_id_and_in_mqtt_5_a_code_for_each_filter_in_order() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "codes");
        client.subscribe(&[("u/a", 0), ("u/b", 0), ("u/c", 0)]);
        client.send(&unsubscribe(version, 0x0102, &["u/b", "u/none", "u/#/x", "u/a", "u/a"]));
        match version {
            Version::V5 => client.expect(b"\xB0\x08\x01\x02\x00\x00\x11\x8F\x00\x11"),
            _ => client.expect(b"\xB0\x02\x01\x02"),
        }
        client.send(&unsubscribe(version, 3, &["u/none"]));
        match version {
            Version::V5 => client.expect(b"\xB0\x04\x00\x03\x00\x11"),
            _ => client.expect(b"\xB0\x02\x00\x03"),
        }
        for topic in ["u/a", "u/b", "u/c"] {
            client.send(&Publish::new(topic, "x").encode(version));
        }
        assert_eq!(client.expect_publish().topic, "u/c");
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.10.4-1] [MQTT-3.10.4-2]
/// 3.1.1: [MQTT-3.10.4-1] [MQTT-3.10.4-2]
#[test]
fn filters_are_compared_character_by_character() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "compare-publisher");
        let mut client = broker.client(version, "compare");
        client.subscribe(&[("u/compare/+", 0), ("u/compare/#", 0), ("u/compare/x", 0)]);
        let mut remove = |client: &mut crate::harness::Client, filter: &str| {
            let id = client.id();
            client.send(&unsubscribe(version, id, &[filter]));
            client.expect_kind(Kind::Unsuback);
            publisher.publish("u/compare/x", filter, 1);
        };
        for filter in ["u/#", "U/compare/x", "u/compare/x/", "u/compare/x", "u/compare/#"] {
            remove(&mut client, filter);
            assert_eq!(client.expect_publish().payload, filter.as_bytes());
        }
        remove(&mut client, "u/compare/+");
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.10.4-3]
/// 3.1.1: [MQTT-3.10.4-3]
#[test]
fn a_delivery_that_was_begun_is_completed() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "begun-publisher");
        let mut client = broker.client(version, "begun");
        client.subscribe(&[("u/begun", 2)]);
        publisher.publish("u/begun", "x", 2);
        let publish = client.expect_publish();
        client.send(&unsubscribe(version, 9, &["u/begun"]));
        client.expect_kind(Kind::Unsuback);
        client.send(&acknowledge(Kind::Pubrec, publish.id));
        client.expect(&acknowledge(Kind::Pubrel, publish.id));
        client.send(&acknowledge(Kind::Pubcomp, publish.id));
        client.ping();
    }
}

/// One packet holds the shard for a bounded time only; what it cannot do it does not call done.
///
/// 5.0: [MQTT-3.11.3-2] [MQTT-3.10.4-6]
/// 3.1.1: [MQTT-3.10.4-1]
#[test]
fn more_filters_than_one_packet_may_carry_are_done_or_not_called_done() {
    let broker = SHARED.broker();
    let filters: Vec<String> = (0..5000).map(|index| format!("u/many/{index}")).collect();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    for version in [Version::V311, Version::V5] {
        let mut client = broker.client(version, "many");
        client.subscribe(&[(filters[0], 0), (filters[4999], 0)]);
        client.send(&unsubscribe(version, 1, &filters));
        let Some(unsuback) = client.packet() else {
            assert_eq!(version, Version::V311, "an MQTT 5 client is told");
            continue;
        };
        assert_eq!((unsuback.kind(), unsuback.id()), (Kind::Unsuback, 1));
        let mut last_is_done = true;
        if version == Version::V5 {
            let reasons = &unsuback.body()[3..];
            assert_eq!((reasons.len(), reasons[0], reasons[1]), (5000, 0x00, 0x11));
            let allowed = [0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91];
            assert!(reasons.iter().all(|reason| allowed.contains(reason)), "{:#x}", reasons[4999]);
            last_is_done = reasons[4999] == 0x00;
        }
        client.send(&Publish::new(filters[0], "x").encode(version));
        client.send(&Publish::new(filters[4999], "x").encode(version));
        if !last_is_done {
            assert_eq!(client.expect_publish().topic, filters[4999]);
        }
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-3.10.3-2] [MQTT-3.10.1-1]
/// 3.1.1: [MQTT-3.10.3-2] [MQTT-3.10.1-1]
#[test]
fn an_empty_list_or_wrong_flags_end_the_connection() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let mut client = broker.client(version, "empty-list");
        client.send(&unsubscribe(version, 1, &[]));
        expect_disconnect(&mut client, 0x82);
        let mut client = broker.client(version, "empty-list");
        let whole = unsubscribe(version, 1, &["a"]);
        client.send(&packet(0xA0, &whole[2..]));
        expect_disconnect(&mut client, 0x81);
    }
}
