//! Writing packets. Strings and binary data are at most 65,535 bytes and a packet at most 256 MB, as in every packet that was read;
//! whoever makes up longer ones checks before.
//!
//! `encode` writes any packet. `encode_publish` is for the broker's deliveries: it writes once what many subscribers get, and says
//! where the packet identifier stands so that each copy can have its own.

use super::frame::*;
use super::packet::*;
use super::property::{Properties, Property, write_binary, write_string};
use super::varint;

/// Appends `packet` as `version` writes it (a CONNECT as its own `version` does).
///
/// Acknowledgements, DISCONNECT and AUTH take their shortest legal form. What `properties` holds is written as it is, followed by
/// each field that it does not hold; so a packet that was read is written as it was, and one that is made up needs only its fields.
/// In MQTT 3.x reasons become what that version has for them (see [`ReasonCode::connack_return_code`]; any error in a SUBACK is
/// 0x80, which MQTT 3.1 does not have but its clients see from other brokers too), and an AUTH, which it does not have, is nothing.
///
/// [`ReasonCode::connack_return_code`]: super::ReasonCode::connack_return_code
pub fn encode(packet: &Packet<'_>, version: Version, out: &mut Vec<u8>) {
    match packet {
        Packet::Connect(connect) => encode_connect(connect, out),
        Packet::Connack(connack) => encode_connack(connack, version, out),
        Packet::Publish(publish) => encode_whole_publish(publish, version, out),
        Packet::Puback(ack) => encode_ack(PUBACK << 4, ack, version, out),
        Packet::Pubrec(ack) => encode_ack(PUBREC << 4, ack, version, out),
        Packet::Pubrel(ack) => encode_ack(PUBREL << 4 | 0b0010, ack, version, out),
        Packet::Pubcomp(ack) => encode_ack(PUBCOMP << 4, ack, version, out),
        Packet::Subscribe(subscribe) => with_header(SUBSCRIBE << 4 | 0b0010, out, |out| {
            out.extend_from_slice(&subscribe.packet_id.to_be_bytes());
            if version == Version::V5 {
                let fields = [subscribe.subscription_identifier.map(Property::SubscriptionIdentifier)];
                write_properties(subscribe.properties, &fields, out);
            }
            out.extend_from_slice(subscribe.filters.0);
        }),
        Packet::Suback(suback) => with_header(SUBACK << 4, out, |out| match version {
            Version::V5 => write_sub_ack(suback, out),
            _ => {
                out.extend_from_slice(&suback.packet_id.to_be_bytes());
                out.extend(suback.reasons.iter().map(|code| if *code < 0x80 { *code } else { 0x80 }));
            }
        }),
        Packet::Unsubscribe(unsubscribe) => with_header(UNSUBSCRIBE << 4 | 0b0010, out, |out| {
            out.extend_from_slice(&unsubscribe.packet_id.to_be_bytes());
            if version == Version::V5 {
                write_properties(unsubscribe.properties, &[], out);
            }
            out.extend_from_slice(unsubscribe.filters.0);
        }),
        Packet::Unsuback(unsuback) => with_header(UNSUBACK << 4, out, |out| match version {
            Version::V5 => write_sub_ack(unsuback, out),
            _ => out.extend_from_slice(&unsuback.packet_id.to_be_bytes()),
        }),
        Packet::Pingreq => out.extend_from_slice(&[PINGREQ << 4, 0]),
        Packet::Pingresp => out.extend_from_slice(&[PINGRESP << 4, 0]),
        Packet::Disconnect(disconnect) => with_header(DISCONNECT << 4, out, |out| {
            if version == Version::V5 {
                let fields = [
                    disconnect.session_expiry_interval_s.map(Property::SessionExpiryInterval),
                    disconnect.server_reference.map(Property::ServerReference),
                    disconnect.reason_string.map(Property::ReasonString),
                ];
                write_reason(disconnect.reason.0, disconnect.properties, &fields, out);
            }
        }),
        Packet::Auth(_) if version != Version::V5 => {}
        Packet::Auth(auth) => with_header(AUTH << 4, out, |out| {
            let fields = [
                auth.authentication_method.map(Property::AuthenticationMethod),
                auth.authentication_data.map(Property::AuthenticationData),
                auth.reason_string.map(Property::ReasonString),
            ];
            if auth.reason.0 != 0 || !auth.properties.is_empty() || fields.iter().any(Option::is_some) {
                out.push(auth.reason.0);
                write_properties(auth.properties, &fields, out);
            }
        }),
    }
}

/// A PUBLISH to a subscriber.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutgoingPublish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty when only the alias is sent.
    pub topic: &'a str,
    /// Not on the wire at QoS 0.
    pub packet_id: u16,
    /// This and the next three are on the wire in MQTT 5.0 only.
    pub topic_alias: Option<u16>,
    pub message_expiry_interval_s: Option<u32>,
    pub subscription_identifiers: &'a [u32],
    /// What [`Properties::forwarded`] gave.
    pub forwarded: &'a [u8],
    pub payload: &'a [u8],
}

/// Where the parts of a PUBLISH stand that [`encode_publish`] has written; all are offsets from the start of the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishSpan {
    pub start: usize,
    /// The two bytes of the packet identifier; none at QoS 0.
    pub packet_id_at: Option<usize>,
    /// Where the payload starts, or would start if it has not been written.
    pub payload_at: usize,
}

impl OutgoingPublish<'_> {
    #[inline]
    fn properties_len(&self) -> usize {
        let identifiers: usize = self.subscription_identifiers.iter().map(|identifier| 1 + varint::len(*identifier)).sum();
        let alias = if self.topic_alias.is_some() { 3 } else { 0 };
        let expiry = if self.message_expiry_interval_s.is_some() { 5 } else { 0 };
        alias + expiry + identifiers + self.forwarded.len()
    }

    /// The remaining length, of which the properties take the second number.
    #[inline]
    fn lengths(&self, version: Version) -> (usize, usize) {
        let packet_id_len = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let without_properties = 2 + self.topic.len() + packet_id_len + self.payload.len();
        if version != Version::V5 {
            return (without_properties, 0);
        }
        let properties_len = self.properties_len();
        (without_properties + varint::len(properties_len as u32) + properties_len, properties_len)
    }
}

/// Bytes of the whole packet that [`encode_publish`] would write, payload included.
#[inline]
pub fn publish_len(publish: &OutgoingPublish<'_>, version: Version) -> usize {
    let (remaining, _) = publish.lengths(version);
    1 + varint::len(remaining as u32) + remaining
}

/// Appends `publish`; without its payload's bytes if not `with_payload`, the lengths counting them nevertheless.
#[inline]
pub fn encode_publish(publish: &OutgoingPublish<'_>, version: Version, with_payload: bool, out: &mut Vec<u8>) -> PublishSpan {
    let (remaining, properties_len) = publish.lengths(version);
    let start = out.len();
    out.reserve(5 + remaining - if with_payload { 0 } else { publish.payload.len() });
    out.push(publish_flags(publish.dup, publish.qos, publish.retain));
    varint::write(remaining as u32, out);
    write_string(publish.topic, out);
    let packet_id_at = (publish.qos != QoS::AtMostOnce).then(|| {
        let at = out.len();
        out.extend_from_slice(&publish.packet_id.to_be_bytes());
        at
    });
    if version == Version::V5 {
        varint::write(properties_len as u32, out);
        if let Some(alias) = publish.topic_alias {
            Property::TopicAlias(alias).encode(out);
        }
        if let Some(interval_s) = publish.message_expiry_interval_s {
            Property::MessageExpiryInterval(interval_s).encode(out);
        }
        for identifier in publish.subscription_identifiers {
            Property::SubscriptionIdentifier(*identifier).encode(out);
        }
        out.extend_from_slice(publish.forwarded);
    }
    let payload_at = out.len();
    if with_payload {
        out.extend_from_slice(publish.payload);
    }
    PublishSpan { start, packet_id_at, payload_at }
}

const fn publish_flags(dup: bool, qos: QoS, retain: bool) -> u8 {
    PUBLISH << 4 | (dup as u8) << 3 | (qos as u8) << 1 | retain as u8
}

/// Writes a fixed header and what `body` appends.
fn with_header(first: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(first);
    with_length(out, body);
}

/// Writes what `body` appends with its length before it, for which one byte is set aside: usually that is enough.
fn with_length(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.push(0);
    body(out);
    let length = (out.len() - at - 1) as u32;
    match u8::try_from(length) {
        Ok(byte @ ..128) => out[at] = byte,
        _ => {
            let mut bytes = Vec::with_capacity(4);
            varint::write(length, &mut bytes);
            out.splice(at..=at, bytes);
        }
    }
}

/// Writes the property length, `properties`, and the `fields` that are not among them.
fn write_properties(properties: Properties<'_>, fields: &[Option<Property<'_>>], out: &mut Vec<u8>) {
    let held = properties.ids();
    with_length(out, |out| {
        out.extend_from_slice(properties.raw());
        for field in fields.iter().flatten().filter(|field| !held.contains(field.id())) {
            field.encode(out);
        }
    });
}

/// Writes a reason and properties, leaving out what may be: the properties if there are none, then the reason if it is success.
fn write_reason(reason: u8, properties: Properties<'_>, fields: &[Option<Property<'_>>], out: &mut Vec<u8>) {
    if !properties.is_empty() || fields.iter().any(Option::is_some) {
        out.push(reason);
        write_properties(properties, fields, out);
    } else if reason != 0 {
        out.push(reason);
    }
}

fn encode_ack(first: u8, ack: &Ack<'_>, version: Version, out: &mut Vec<u8>) {
    with_header(first, out, |out| {
        out.extend_from_slice(&ack.packet_id.to_be_bytes());
        if version == Version::V5 {
            write_reason(ack.reason.0, ack.properties, &[ack.reason_string.map(Property::ReasonString)], out);
        }
    });
}

fn write_sub_ack(ack: &SubAck<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&ack.packet_id.to_be_bytes());
    write_properties(Properties::EMPTY, &[ack.reason_string.map(Property::ReasonString)], out);
    out.extend_from_slice(ack.reasons);
}

fn encode_connect(connect: &Connect<'_>, out: &mut Vec<u8>) {
    with_header(CONNECT << 4, out, |out| {
        write_string(if connect.version == Version::V3_1 { "MQIsdp" } else { "MQTT" }, out);
        out.push(connect.version as u8 | (connect.bridge as u8) << 7);
        let will_flags = connect.will.as_ref().map_or(0, |will| 0x04 | (will.qos as u8) << 3 | (will.retain as u8) << 5);
        let user_flags = (connect.username.is_some() as u8) << 7 | (connect.password.is_some() as u8) << 6;
        out.push((connect.clean_start as u8) << 1 | will_flags | user_flags);
        out.extend_from_slice(&connect.keep_alive_s.to_be_bytes());
        if connect.version == Version::V5 {
            let fields = [
                connect.session_expiry_interval_s.map(Property::SessionExpiryInterval),
                connect.receive_maximum.map(Property::ReceiveMaximum),
                connect.maximum_packet_size.map(Property::MaximumPacketSize),
                (connect.topic_alias_maximum != 0).then_some(Property::TopicAliasMaximum(connect.topic_alias_maximum)),
                connect.request_response_information.then_some(Property::RequestResponseInformation(1)),
                (!connect.request_problem_information).then_some(Property::RequestProblemInformation(0)),
                connect.authentication_method.map(Property::AuthenticationMethod),
                connect.authentication_data.map(Property::AuthenticationData),
            ];
            write_properties(connect.properties, &fields, out);
        }
        write_string(connect.client_id, out);
        if let Some(will) = &connect.will {
            if connect.version == Version::V5 {
                let fields = [
                    (will.delay_interval_s != 0).then_some(Property::WillDelayInterval(will.delay_interval_s)),
                    will.payload_is_utf8.then_some(Property::PayloadFormatIndicator(1)),
                    will.message_expiry_interval_s.map(Property::MessageExpiryInterval),
                ];
                write_properties(will.properties, &fields, out);
            }
            write_string(will.topic, out);
            write_binary(will.payload, out);
        }
        if let Some(username) = connect.username {
            write_string(username, out);
        }
        if let Some(password) = connect.password {
            write_binary(password, out);
        }
    });
}

fn encode_connack(connack: &Connack<'_>, version: Version, out: &mut Vec<u8>) {
    with_header(CONNACK << 4, out, |out| match version {
        // MQTT 3.1 reserves the byte in which later versions say whether the session is present.
        Version::V3_1 => out.extend_from_slice(&[0, connack.reason.connack_return_code()]),
        Version::V3_1_1 => out.extend_from_slice(&[connack.session_present.into(), connack.reason.connack_return_code()]),
        Version::V5 => {
            out.extend_from_slice(&[connack.session_present.into(), connack.reason.0]);
            let fields = [
                connack.session_expiry_interval_s.map(Property::SessionExpiryInterval),
                connack.receive_maximum.map(Property::ReceiveMaximum),
                // A maximum of 2 is said by leaving the property out.
                connack
                    .maximum_qos
                    .filter(|maximum| *maximum < QoS::ExactlyOnce)
                    .map(|maximum| Property::MaximumQoS(maximum as u8)),
                connack.retain_available.map(|available| Property::RetainAvailable(available.into())),
                connack.maximum_packet_size.map(Property::MaximumPacketSize),
                connack.assigned_client_id.map(Property::AssignedClientIdentifier),
                connack.topic_alias_maximum.map(Property::TopicAliasMaximum),
                connack.reason_string.map(Property::ReasonString),
                connack
                    .wildcard_subscription_available
                    .map(|available| Property::WildcardSubscriptionAvailable(available.into())),
                connack
                    .subscription_identifiers_available
                    .map(|available| Property::SubscriptionIdentifierAvailable(available.into())),
                connack.shared_subscription_available.map(|available| Property::SharedSubscriptionAvailable(available.into())),
                connack.server_keep_alive_s.map(Property::ServerKeepAlive),
                connack.response_information.map(Property::ResponseInformation),
                connack.server_reference.map(Property::ServerReference),
                connack.authentication_method.map(Property::AuthenticationMethod),
                connack.authentication_data.map(Property::AuthenticationData),
            ];
            write_properties(Properties::EMPTY, &fields, out);
        }
    });
}

fn encode_whole_publish(publish: &Publish<'_>, version: Version, out: &mut Vec<u8>) {
    with_header(publish_flags(publish.dup, publish.qos, publish.retain), out, |out| {
        write_string(publish.topic, out);
        if publish.qos != QoS::AtMostOnce {
            out.extend_from_slice(&publish.packet_id.to_be_bytes());
        }
        if version == Version::V5 {
            let fields = [
                publish.payload_is_utf8.then_some(Property::PayloadFormatIndicator(1)),
                publish.message_expiry_interval_s.map(Property::MessageExpiryInterval),
                publish.response_topic.map(Property::ResponseTopic),
                publish.topic_alias.map(Property::TopicAlias),
            ];
            write_properties(publish.properties, &fields, out);
        }
        out.extend_from_slice(publish.payload);
    });
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;
    use super::super::property::PacketKind;
    use super::super::reason::ReasonCode;
    use super::*;

    fn encoded(packet: &Packet<'_>, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        encode(packet, version, &mut out);
        out
    }

    #[test]
    fn outgoing_publish_is_byte_for_byte_what_its_fields_say_and_says_where_its_parts_are() {
        let publish = OutgoingPublish {
            dup: true,
            qos: QoS::ExactlyOnce,
            retain: true,
            topic: "a/b",
            packet_id: 0x1234,
            topic_alias: Some(3),
            message_expiry_interval_s: Some(9),
            subscription_identifiers: &[1, 321],
            forwarded: b"\x26\0\x01k\0\x01v",
            payload: b"hi",
        };
        let mut out = b"before".to_vec();
        let span = encode_publish(&publish, Version::V5, true, &mut out);
        assert_eq!(&out[6..], b"\x3D\x1E\0\x03a/b\x12\x34\x14\x23\0\x03\x02\0\0\0\x09\x0B\x01\x0B\xC1\x02\x26\0\x01k\0\x01vhi");
        assert_eq!(span, PublishSpan { start: 6, packet_id_at: Some(13), payload_at: 36 });
        assert_eq!(publish_len(&publish, Version::V5), out.len() - 6);

        out.clear();
        let span = encode_publish(&publish, Version::V3_1_1, true, &mut out);
        assert_eq!(out, b"\x3D\x09\0\x03a/b\x12\x34hi");
        assert_eq!(span, PublishSpan { start: 0, packet_id_at: Some(7), payload_at: 9 });
        assert_eq!(publish_len(&publish, Version::V3_1_1), out.len());

        out.clear();
        let at_most_once = OutgoingPublish { dup: false, qos: QoS::AtMostOnce, retain: false, ..publish };
        let span = encode_publish(&at_most_once, Version::V3_1, true, &mut out);
        assert_eq!(out, b"\x30\x07\0\x03a/bhi");
        assert_eq!(span.packet_id_at, None);
    }

    #[test]
    fn publish_without_its_payload_counts_it_and_its_length_is_right_at_every_boundary() {
        let forwarded = [0; 130];
        for payload_len in [0, 1, 116, 117, 118, 119, 120, 127, 128, 16_370, 16_384, 2_097_152] {
            let payload = vec![b'x'; payload_len];
            for (version, forwarded) in [(Version::V3_1_1, &[][..]), (Version::V5, &[][..]), (Version::V5, &forwarded[..])] {
                let publish = OutgoingPublish {
                    qos: QoS::AtLeastOnce,
                    packet_id: 7,
                    topic: "t",
                    forwarded,
                    payload: &payload,
                    ..Default::default()
                };
                let (mut whole, mut head) = (Vec::new(), Vec::new());
                let span = encode_publish(&publish, version, true, &mut whole);
                assert_eq!(encode_publish(&publish, version, false, &mut head), span);
                assert_eq!(span.payload_at, head.len());
                assert_eq!((&whole[..head.len()], &whole[head.len()..]), (&head[..], &payload[..]));
                assert_eq!(publish_len(&publish, version), whole.len());
                assert_eq!(frame(&whole, u32::MAX).unwrap().unwrap().len, whole.len());
            }
        }
    }

    #[test]
    fn packets_made_up_from_fields_alone_read_back_with_them() {
        let mut scratch = Vec::new();
        let user_property = Properties::new(&[Property::UserProperty(("k", "v"))], &mut scratch);
        let connect = Connect {
            client_id: "id",
            receive_maximum: Some(5),
            topic_alias_maximum: 9,
            request_problem_information: false,
            properties: user_property,
            will: Some(Will { topic: "w", payload_is_utf8: true, delay_interval_s: 4, ..Will::default() }),
            ..Connect::default()
        };
        let bytes = encoded(&Packet::Connect(connect.clone()), Version::V5);
        let Ok(Some(Packet::Connect(read))) = Case::read(&bytes, None) else { panic!("no CONNECT") };
        assert_eq!(read.properties.user_properties().collect::<Vec<_>>(), [("k", "v")]);
        let will = read.will.as_ref().unwrap();
        assert_eq!((will.payload_is_utf8, will.delay_interval_s), (true, 4));
        let will = Some(Will { properties: Properties::EMPTY, ..will.clone() });
        assert_eq!(Connect { properties: connect.properties, will, ..read }, connect);

        let publish =
            Publish { topic_alias: Some(2), response_topic: Some("r"), properties: user_property, ..Publish::default() };
        let bytes = encoded(&Packet::Publish(publish.clone()), Version::V5);
        assert_eq!(bytes, b"\x30\x11\0\0\x0E\x26\0\x01k\0\x01v\x08\0\x01r\x23\0\x02");

        let auth = Auth { authentication_method: Some("m"), ..Auth::default() };
        assert_eq!(encoded(&Packet::Auth(auth), Version::V5), b"\xF0\x06\0\x04\x15\0\x01m");
        let ack = Ack { packet_id: 1, reason_string: Some("s"), ..Ack::default() };
        assert_eq!(encoded(&Packet::Puback(ack), Version::V5), b"\x40\x08\0\x01\0\x04\x1F\0\x01s");
        let disconnect = Disconnect { session_expiry_interval_s: Some(1), ..Disconnect::default() };
        assert_eq!(encoded(&Packet::Disconnect(disconnect), Version::V5), b"\xE0\x07\0\x05\x11\0\0\0\x01");
    }

    #[test]
    fn property_lengths_of_two_bytes_make_room_for_themselves() {
        let long = "x".repeat(300);
        let ack = Ack { packet_id: 1, reason: ReasonCode::QUOTA_EXCEEDED, reason_string: Some(&long), ..Ack::default() };
        let bytes = encoded(&Packet::Puback(ack), Version::V5);
        assert_eq!(bytes[..11], *b"\x40\xB4\x02\0\x01\x97\xAF\x02\x1F\x01\x2C");
        let Ok(Some(Packet::Puback(read))) = Case::read(&bytes, Some(Version::V5)) else { panic!("no PUBACK") };
        assert_eq!(read.reason_string, Some(&long[..]));
        assert!(Properties::parse(read.properties.raw(), PacketKind::Puback).is_ok());
    }

    #[test]
    fn older_versions_get_the_codes_they_know_and_no_properties() {
        let refused = Packet::Connack(Connack {
            session_present: true,
            reason: ReasonCode::SERVER_BUSY,
            reason_string: Some("later"),
            ..Connack::default()
        });
        assert_eq!(encoded(&refused, Version::V3_1_1), [0x20, 2, 1, 3]);
        assert_eq!(encoded(&refused, Version::V3_1), [0x20, 2, 0, 3]);
        let suback = Packet::Suback(SubAck { packet_id: 1, reason_string: Some("no"), reasons: &[1, 0x87, 0xA2] });
        assert_eq!(encoded(&suback, Version::V3_1_1), [0x90, 5, 0, 1, 1, 0x80, 0x80]);
        assert_eq!(encoded(&suback, Version::V3_1), [0x90, 5, 0, 1, 1, 0x80, 0x80]);
        let unsuback = Packet::Unsuback(SubAck { packet_id: 1, reason_string: None, reasons: &[0x11] });
        assert_eq!(encoded(&unsuback, Version::V3_1_1), [0xB0, 2, 0, 1]);
        let ack = Ack { packet_id: 1, reason: ReasonCode::NOT_AUTHORIZED, reason_string: Some("no"), ..Ack::default() };
        assert_eq!(encoded(&Packet::Pubrec(ack), Version::V3_1_1), [0x50, 2, 0, 1]);
        let disconnect = Disconnect { reason: ReasonCode::SERVER_SHUTTING_DOWN, ..Disconnect::default() };
        assert_eq!(encoded(&Packet::Disconnect(disconnect.clone()), Version::V3_1_1), [0xE0, 0]);
        assert_eq!(encoded(&Packet::Disconnect(disconnect), Version::V5), [0xE0, 1, 0x8B]);
        assert!(encoded(&Packet::Auth(Auth::default()), Version::V3_1_1).is_empty());
    }
}
