//! Receive Maximum in both directions (section 4.9).

use crate::harness::{Broker, Client, Connect, Kind, Publish, Version, acknowledge, acknowledge_with, property};
use crate::{QUIET, Shared, Sys, expect_ack, expect_disconnect};

static SHARED: Shared = Shared::new("");

fn with_window(broker: &Broker, id: &str, receive_maximum: u16) -> Client {
    let connect = Connect::new(Version::V5, id).persistent().property(property::u16(property::RECEIVE_MAXIMUM, receive_maximum));
    broker.connect(&connect).0
}

/// 5.0: [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]
#[test]
fn no_more_messages_are_in_flight_than_the_client_takes_and_each_acknowledgement_makes_room_for_one() {
    let broker = SHARED.broker();
    let mut client = with_window(&broker, "window", 2);
    client.subscribe(&[("flow/window", 2)]);
    let mut publisher = broker.client(Version::V5, "window-publisher");
    for (payload, qos) in [("1", 1), ("2", 2), ("3", 2), ("4", 1), ("5", 1), ("6", 1)] {
        publisher.publish("flow/window", payload, qos);
    }
    let expect = |client: &mut Client, payload: &str| {
        let publish = client.expect_publish();
        assert_eq!(publish.payload, payload.as_bytes());
        publish.id
    };
    let (first, second) = (expect(&mut client, "1"), expect(&mut client, "2"));
    client.expect_nothing(QUIET);
    // PUBACK makes room.
    client.send(&acknowledge(Kind::Puback, first));
    let third = expect(&mut client, "3");
    // PUBREC does not, PUBCOMP does.
    client.send(&acknowledge(Kind::Pubrec, second));
    client.expect(&acknowledge(Kind::Pubrel, second));
    client.expect_nothing(QUIET);
    client.send(&acknowledge(Kind::Pubcomp, second));
    let fourth = expect(&mut client, "4");
    client.expect_nothing(QUIET);
    // A PUBREC with an error does, and so does a PUBACK with one.
    client.send(&acknowledge_with(Kind::Pubrec, third, 0x80));
    expect(&mut client, "5");
    client.send(&acknowledge_with(Kind::Puback, fourth, 0x80));
    expect(&mut client, "6");
    // One acknowledgement too many is not credit.
    client.send(&acknowledge(Kind::Puback, fourth));
    publisher.publish("flow/window", "7", 1);
    client.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.3.4-10] [MQTT-4.9.0-3]
#[test]
fn a_full_window_holds_up_nothing_but_qos_1_and_2() {
    let broker = SHARED.broker();
    let mut client = with_window(&broker, "full", 1);
    client.subscribe(&[("flow/full", 2)]);
    let mut publisher = broker.client(Version::V5, "full-publisher");
    publisher.publish("flow/full", "1", 1);
    publisher.publish("flow/full", "2", 1);
    let first = client.expect_publish();
    client.ping();
    assert_eq!(client.subscribe(&[("flow/other", 0)]), [0]);
    client.publish("flow/nobody", "", 2);
    publisher.publish("flow/other", "0", 0);
    assert_eq!(client.expect_publish().payload, b"0");
    client.expect_nothing(QUIET);
    client.send(&acknowledge(Kind::Puback, first.id));
    assert_eq!(client.expect_publish().payload, b"2");
}

/// 5.0: [MQTT-4.9.0-1] [MQTT-4.4.0-1]
#[test]
fn a_new_connection_begins_with_its_own_window() {
    let broker = SHARED.broker();
    let mut client = with_window(&broker, "anew", 3);
    client.subscribe(&[("flow/anew", 1)]);
    let mut publisher = broker.client(Version::V5, "anew-publisher");
    for payload in ["1", "2", "3", "4"] {
        publisher.publish("flow/anew", payload, 1);
    }
    for _ in 0..3 {
        client.expect_publish();
    }
    let mut client = with_window(&broker, "anew", 1);
    for (payload, dup) in [("1", true), ("2", true), ("3", true), ("4", false)] {
        let publish = client.expect_publish();
        assert_eq!((publish.payload.as_slice(), publish.dup), (payload.as_bytes(), dup));
        if payload == "1" {
            client.expect_nothing(QUIET);
        }
        client.send(&acknowledge(Kind::Puback, publish.id));
    }
}

/// 5.0: [MQTT-3.3.4-7] [MQTT-4.13.1-1]
#[test]
fn a_client_that_exceeds_the_brokers_receive_maximum_is_disconnected() {
    let broker = Broker::start_with_config("[limits]\ninflight_in_max = 3\n");
    let (mut client, connack) = broker.connect(&Connect::new(Version::V5, "exceeds"));
    assert_eq!(connack.property(property::RECEIVE_MAXIMUM), Some(b"\x00\x03".to_vec()));
    let publish = |id| Publish::new("flow/exceeds", "x").qos(2).id(id).encode(Version::V5);
    // An error in PUBREC and a PUBCOMP give credit back.
    client.send(&Publish::new("$SYS/x", "x").qos(2).id(9).encode(Version::V5));
    expect_ack(&mut client, Kind::Pubrec, 9, 0x87);
    for id in 1..=3 {
        client.send(&publish(id));
        client.expect_kind(Kind::Pubrec);
    }
    client.send(&acknowledge(Kind::Pubrel, 2));
    client.expect_kind(Kind::Pubcomp);
    client.send(&publish(4));
    client.expect_kind(Kind::Pubrec);
    // QoS 1 is acknowledged at once, so any number of them is none in flight.
    for id in 10..30 {
        client.publish_with(Publish::new("flow/exceeds", "x").qos(1).id(id));
    }
    client.send(&publish(5));
    expect_disconnect(&mut client, 0x93);
}

/// MQTT 3 clients do not know the limit, so it is not held against them.
#[test]
fn an_mqtt_3_client_may_have_any_number_in_flight() {
    let broker = Broker::start_with_config("[limits]\ninflight_in_max = 3\n");
    let mut client = broker.client(Version::V311, "unaware");
    for id in 1..=100 {
        client.send(&Publish::new("flow/unaware", "x").qos(2).id(id).encode(Version::V311));
    }
    for id in 1..=100 {
        assert_eq!(client.expect_kind(Kind::Pubrec).id(), id);
    }
    client.ping();
}

/// Without a Receive Maximum of the client's the broker keeps to its own bound.
#[test]
fn the_brokers_own_bound_holds_where_the_client_names_none() {
    let broker = Broker::start_with_config("[limits]\ninflight_out_max = 2\n");
    for version in [Version::V311, Version::V5] {
        let mut client = broker.client(version, "own-bound");
        client.subscribe(&[("flow/own", 1)]);
        let mut publisher = broker.client(version, "own-publisher");
        for _ in 0..5 {
            publisher.publish("flow/own", "x", 1);
        }
        let first = client.expect_publish();
        client.expect_publish();
        client.expect_nothing(QUIET);
        client.send(&acknowledge(Kind::Puback, first.id));
        client.expect_publish();
        client.expect_nothing(QUIET);
    }
}

/// A turn does its share of what clients have sent and leaves the rest, in order, to the next.
#[test]
fn what_a_turn_leaves_goes_on_in_the_next_in_order() {
    let broker = Broker::start_with_config("[broker]\nsys_interval_s = 1\n[limits]\nturn_budget = 1\n");
    let mut sys = Sys::watch(&broker);
    let mut subscriber = broker.client(Version::V5, "share-subscriber");
    subscriber.subscribe(&[("share/#", 0)]);
    let mut publisher = broker.client(Version::V5, "share-publisher");
    let burst: Vec<u8> = (0..100u8).flat_map(|n| Publish::new("share/x", [n]).encode(Version::V5)).collect();
    publisher.send(&burst);
    for n in 0..100 {
        assert_eq!(subscriber.expect_publish().payload, [n]);
    }
    sys.counter("parked_turn", 10);
}
