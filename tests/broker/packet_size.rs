//! Maximum Packet Size in both directions.

use crate::harness::{
    Broker, Client, Connect, Kind, Publish, Version, acknowledge, property, subscribe, subscribe_with, variable,
};
use crate::{QUIET, Shared, expect_disconnect};

static SHARED: Shared = Shared::new("");

fn limited(broker: &Broker, id: &str, maximum: u32) -> Client {
    broker.connect(&Connect::new(Version::V5, id).property(property::u32(property::MAXIMUM_PACKET_SIZE, maximum))).0
}

/// 5.0: [MQTT-3.1.2-24] [MQTT-3.1.2-25]
#[test]
fn a_message_one_byte_too_large_is_dropped_for_that_client_alone_as_if_it_had_been_sent() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "large-publisher");
    let mut whole = broker.client(Version::V5, "large-whole");
    whole.subscribe(&[("size/x", 0)]);
    let mut client = limited(&broker, "large", 60);
    client.subscribe(&[("size/x", 2)]);
    // Fixed header 2, topic 8, id 2, property length 1.
    for (length, qos) in [(49, 0), (50, 0), (47, 1), (48, 1), (47, 2), (48, 2), (1, 1)] {
        publisher.publish("size/x", vec![b'x'; length], qos);
        assert_eq!(whole.expect_publish().payload.len(), length);
    }
    for (length, qos) in [(49, 0), (47, 1), (47, 2), (1, 1)] {
        let packet = client.expect_packet();
        assert!(packet.0.len() <= 60, "{} bytes", packet.0.len());
        let publish = packet.publish(Version::V5);
        assert_eq!((publish.payload.len(), publish.qos), (length, qos));
    }
    client.expect_nothing(QUIET);
}

/// 5.0: [MQTT-3.1.2-24]
#[test]
fn what_the_broker_adds_to_a_message_counts_and_is_left_out_where_it_may_be() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "adds-publisher");
    // The subscription identifier must be there; it makes the packet too large.
    let mut client = limited(&broker, "adds", 40);
    let identifier = property::variable(property::SUBSCRIPTION_IDENTIFIER, 268_435_455);
    client.send(&subscribe_with(Version::V5, 1, &identifier, &[("size/adds", 0)]));
    client.expect_kind(Kind::Suback);
    // Fixed header 2, topic 11, property length 1, identifier 5.
    publisher.publish("size/adds", [b'x'; 22], 1);
    publisher.publish("size/adds", [b'x'; 21], 1);
    assert_eq!(client.expect_packet().0.len(), 40);
    client.expect_nothing(QUIET);
    // A topic alias need not be there.
    let connect = Connect::new(Version::V5, "adds-alias")
        .property(property::u32(property::MAXIMUM_PACKET_SIZE, 40))
        .property(property::u16(property::TOPIC_ALIAS_MAXIMUM, 5));
    let (mut client, _) = broker.connect(&connect);
    client.subscribe(&[("size/alias", 0)]);
    publisher.publish("size/alias", [b'x'; 25], 1);
    let packet = client.expect_packet();
    assert!(packet.0.len() <= 40);
    assert_eq!(packet.publish(Version::V5).payload.len(), 25);
}

/// Not even an acknowledgement may be larger than the client takes: a CONNACK or SUBACK that cannot be sent ends the connection.
///
/// 5.0: [MQTT-3.1.2-24] [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2] [MQTT-3.4.2-2]
/// 5.0: [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.14.2-3]
/// 5.0: [MQTT-3.14.2-4] [MQTT-3.14.0-1]
#[test]
fn no_packet_is_larger_than_the_client_takes() {
    let broker = SHARED.broker();
    for maximum in [1, 4, 5, 10] {
        let mut client = broker.socket();
        client.send(&Connect::new(Version::V5, "tiny").property(property::u32(property::MAXIMUM_PACKET_SIZE, maximum)).encode());
        // Nothing, or a CONNACK that refuses and fits.
        if let Some(packet) = client.packet() {
            assert_eq!((packet.kind(), packet.reason()), (Kind::Connack, 0x95), "{packet:?}");
            assert!(packet.0.len() <= maximum as usize, "{packet:?}");
            client.expect_closed();
        }
    }
    let mut client = limited(&broker, "small", 20);
    let filters: Vec<String> = (0..30).map(|index| format!("size/{index}")).collect();
    let filters: Vec<(&str, u8)> = filters.iter().map(|filter| (filter.as_str(), 0)).collect();
    client.send(&subscribe(Version::V5, 1, &filters[..15]));
    assert_eq!(client.expect_packet().0.len(), 20);
    client.send(&subscribe(Version::V5, 2, &filters));
    while let Some(packet) = client.packet() {
        assert!(packet.0.len() <= 20, "{packet:?}");
    }
    // Small answers fit everybody, also where they say what is wrong.
    let mut client = limited(&broker, "answers", 16);
    client.send(&Publish::new("$SYS/x", "").qos(1).id(1).encode(Version::V5));
    client.expect(b"\x40\x03\x00\x01\x87");
    client.send(&Publish::new("$SYS/x", "").qos(2).id(2).encode(Version::V5));
    client.expect(b"\x50\x03\x00\x02\x87");
    client.send(&acknowledge(Kind::Pubrel, 3));
    client.expect(b"\x70\x03\x00\x03\x92");
    client.send(&acknowledge(Kind::Pubrec, 3));
    client.expect(b"\x62\x03\x00\x03\x92");
    client.send(&crate::harness::unsubscribe(Version::V5, 4, &["none"]));
    client.expect(b"\xB0\x04\x00\x04\x00\x11");
    client.send(b"\x00\x00");
    expect_disconnect(&mut client, 0x81);
}

/// 5.0: [MQTT-3.2.2-15] [MQTT-4.13.1-1] [MQTT-3.14.2-1]
#[test]
fn a_packet_over_the_brokers_maximum_ends_the_connection_before_its_body_has_come() {
    let broker = Broker::start_with_config("[limits]\npacket_bytes_max = 1000\n");
    for version in Version::ALL {
        let (mut client, connack) = broker.connect(&Connect::new(version, "over"));
        if version == Version::V5 {
            assert_eq!(connack.property(property::MAXIMUM_PACKET_SIZE), Some(b"\x00\x00\x03\xE8".to_vec()));
        }
        client.subscribe(&[("size/over", 0)]);
        let header = if version == Version::V5 { 15 } else { 14 };
        let publish = Publish::new("size/over", vec![b'x'; 1000 - header]).encode(version);
        assert_eq!(publish.len(), 1000);
        client.send(&publish);
        client.expect(&publish);
        // One byte more is refused by its length alone.
        client.send(&[vec![0x30], variable(998)].concat());
        expect_disconnect(&mut client, 0x95);
    }
    // A CONNECT as well.
    let mut client = broker.socket();
    client.send(&[vec![0x10], variable(998)].concat());
    client.expect_closed();
}
