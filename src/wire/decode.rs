//! Reading a packet, sections 3.1 to 3.15. What comes out borrows from the frame, and every byte of the frame has been accounted
//! for: a packet with bytes left over is malformed.

use super::frame::*;
use super::packet::*;
use super::property::{PacketKind, Properties, Property};
use super::reader::Reader;
use super::reason::ReasonCode;
use super::varint;

/// The packet that `frame` holds. `version` is what the connection negotiated; before that it is `None`, and only a CONNECT, which
/// says its own version, is accepted; afterwards anything but a CONNECT is `[MQTT-3.1.0-1]` `[MQTT-3.1.0-2]`.
///
/// Errors carry the reason code of section 4.13: 0x81 for bytes that cannot be read, 0x82 for what can be read but is not allowed,
/// and where the standard has one a code for the very case: 0x84, 0x90, 0x94, 0x99.
#[inline]
pub fn decode<'a>(frame: Frame<'a>, version: Option<Version>) -> Result<Packet<'a>, WireError> {
    match version {
        Some(version) if packet_type(frame.first) == PUBLISH => publish(&frame, version).map(Packet::Publish),
        Some(version) => other(&frame, version),
        None if packet_type(frame.first) == CONNECT => connect(&frame).map(Packet::Connect),
        None => Err(WireError::protocol_error("first packet is not a CONNECT")),
    }
}

/// Every packet but CONNECT and PUBLISH.
fn other<'a>(frame: &Frame<'a>, version: Version) -> Result<Packet<'a>, WireError> {
    check_length(frame, version)?;
    let packet_type = packet_type(frame.first);
    let flags = frame.first & 0x0F;
    // In MQTT 3.1 these three have a DUP and a QoS flag like PUBLISH, and its clients do resend them with DUP set.
    let flags_are_free = version == Version::V3_1 && matches!(packet_type, PUBREL | SUBSCRIBE | UNSUBSCRIBE);
    let reserved = if matches!(packet_type, PUBREL | SUBSCRIBE | UNSUBSCRIBE) { 0b0010 } else { 0 };
    if flags != reserved && !flags_are_free {
        return Err(BAD_FLAGS);
    }
    let mut reader = Reader::new(frame.body);
    let packet = match packet_type {
        CONNECT => return Err(WireError::protocol_error("second CONNECT")),
        CONNACK => Packet::Connack(connack(&mut reader, version)?),
        PUBACK => Packet::Puback(ack(&mut reader, version, PacketKind::Puback)?),
        PUBREC => Packet::Pubrec(ack(&mut reader, version, PacketKind::Pubrec)?),
        PUBREL => Packet::Pubrel(ack(&mut reader, version, PacketKind::Pubrel)?),
        PUBCOMP => Packet::Pubcomp(ack(&mut reader, version, PacketKind::Pubcomp)?),
        SUBSCRIBE => Packet::Subscribe(subscribe(&mut reader, version)?),
        SUBACK => Packet::Suback(suback(&mut reader, version)?),
        UNSUBSCRIBE => Packet::Unsubscribe(unsubscribe(&mut reader, version)?),
        UNSUBACK => Packet::Unsuback(unsuback(&mut reader, version)?),
        PINGREQ => Packet::Pingreq,
        PINGRESP => Packet::Pingresp,
        DISCONNECT => Packet::Disconnect(disconnect(&mut reader, version)?),
        AUTH if version == Version::V5 => Packet::Auth(auth(&mut reader)?),
        _ => return Err(WireError::malformed("packet type is reserved")),
    };
    end(&reader)?;
    Ok(packet)
}

const BAD_FLAGS: WireError = WireError::malformed("flags of the fixed header are not those of the packet type");
/// Filters that one SUBSCRIBE or UNSUBSCRIBE is read with, at most, and properties that one packet is: in a packet of 1 MiB there is room
/// for so many that reading them would hold a shard for milliseconds.
const FILTERS_MAX: usize = 16_384;
const TOO_MANY_FILTERS: WireError =
    WireError { reason: ReasonCode::QUOTA_EXCEEDED, what: "more topic filters than one packet may carry" };
const BAD_REASON: WireError = WireError::protocol_error("reason code is not one of this packet's");

/// MQTT 5.0 demands the shortest form of the remaining length `[MQTT-1.5.5-1]`; the older versions do not.
#[inline]
fn check_length(frame: &Frame<'_>, version: Version) -> Result<(), WireError> {
    let padded = frame.len - frame.body.len() != 1 + varint::len(frame.body.len() as u32);
    if padded && version == Version::V5 {
        return Err(WireError::malformed("remaining length is longer than its value needs"));
    }
    Ok(())
}

#[inline]
fn end(reader: &Reader<'_>) -> Result<(), WireError> {
    if reader.is_empty() { Ok(()) } else { Err(WireError::malformed("bytes are left over at the end of the packet")) }
}

/// A packet identifier, which is never 0 `[MQTT-2.2.1-3]` `[MQTT-2.2.1-4]`.
#[inline]
fn packet_id(reader: &mut Reader<'_>) -> Result<u16, WireError> {
    match reader.two_bytes()? {
        0 => Err(WireError::protocol_error("packet identifier is 0")),
        packet_id => Ok(packet_id),
    }
}

fn reason(reader: &mut Reader<'_>, kind: PacketKind) -> Result<ReasonCode, WireError> {
    let reason = ReasonCode(reader.byte()?);
    if reason.may_stand_in(kind) { Ok(reason) } else { Err(BAD_REASON) }
}

/// Section 3.3.
#[inline]
fn publish<'a>(frame: &Frame<'a>, version: Version) -> Result<Publish<'a>, WireError> {
    check_length(frame, version)?;
    let dup = frame.first & 0b1000 != 0;
    let Some(qos) = QoS::from_bits(frame.first >> 1) else {
        return Err(WireError::malformed("PUBLISH has QoS 3")); // [MQTT-3.3.1-4]
    };
    if dup && qos == QoS::AtMostOnce {
        return Err(WireError::malformed("PUBLISH has DUP at QoS 0")); // [MQTT-3.3.1-2]
    }
    let mut reader = Reader::new(frame.body);
    let topic = reader.topic_name()?;
    let packet_id = if qos == QoS::AtMostOnce { 0 } else { packet_id(&mut reader)? };
    let mut publish = Publish { dup, qos, retain: frame.first & 1 != 0, topic, packet_id, ..Publish::default() };
    if version == Version::V5 {
        publish.properties = Properties::read(&mut reader, PacketKind::Publish, |property| match property {
            Property::PayloadFormatIndicator(indicator) => publish.payload_is_utf8 = indicator == 1,
            Property::MessageExpiryInterval(interval_s) => publish.message_expiry_interval_s = Some(interval_s),
            Property::ResponseTopic(topic) => publish.response_topic = Some(topic),
            Property::TopicAlias(alias) => publish.topic_alias = Some(alias),
            _ => {}
        })?;
    }
    if topic.is_empty() && publish.topic_alias.is_none() {
        return Err(WireError::protocol_error("PUBLISH has neither a topic name nor a topic alias"));
    }
    publish.payload = reader.take_rest();
    if publish.payload_is_utf8 && str::from_utf8(publish.payload).is_err() {
        return Err(WireError { reason: ReasonCode::PAYLOAD_FORMAT_INVALID, what: "payload is not UTF-8 as its indicator says" });
    }
    Ok(publish)
}

/// The version that protocol name and level name, and whether the level has the bit by which bridges of the mosquitto family say
/// what they are.
fn protocol(reader: &mut Reader<'_>) -> Result<(Version, bool), WireError> {
    let name = reader.binary()?;
    let level = reader.byte()?;
    let version = match (name, level & 0x7F) {
        (b"MQIsdp", 3) => Version::V3_1,
        (b"MQTT", 4) => Version::V3_1_1,
        (b"MQTT", 5) => Version::V5,
        _ => {
            let what = "protocol name and level are of no supported version"; // [MQTT-3.1.2-1] [MQTT-3.1.2-2]
            return Err(WireError { reason: ReasonCode::UNSUPPORTED_PROTOCOL_VERSION, what });
        }
    };
    Ok((version, level & 0x80 != 0))
}

/// The version that a CONNECT names, even if the rest of it cannot be read: how to answer one that `decode` has refused. `None` when
/// it names none that is supported.
pub fn connect_version(frame: &Frame<'_>) -> Option<Version> {
    protocol(&mut Reader::new(frame.body)).ok().map(|(version, _)| version)
}

/// Section 3.1. Client identifiers may be of any length, in MQTT 3.1 too, whose limit of 23 characters its clients do not keep.
fn connect<'a>(frame: &Frame<'a>) -> Result<Connect<'a>, WireError> {
    if frame.first & 0x0F != 0 {
        return Err(BAD_FLAGS);
    }
    let mut reader = Reader::new(frame.body);
    let (version, bridge) = protocol(&mut reader)?;
    check_length(frame, version)?;
    let flags = ConnectFlags::read(&mut reader, version)?;
    let mut connect =
        Connect { version, bridge, clean_start: flags.clean_start, keep_alive_s: reader.two_bytes()?, ..Connect::default() };
    if version == Version::V5 {
        connect.properties = Properties::read(&mut reader, PacketKind::Connect, |property| match property {
            Property::SessionExpiryInterval(interval_s) => connect.session_expiry_interval_s = Some(interval_s),
            Property::ReceiveMaximum(maximum) => connect.receive_maximum = Some(maximum),
            Property::MaximumPacketSize(maximum) => connect.maximum_packet_size = Some(maximum),
            Property::TopicAliasMaximum(maximum) => connect.topic_alias_maximum = maximum,
            Property::RequestResponseInformation(wanted) => connect.request_response_information = wanted == 1,
            Property::RequestProblemInformation(wanted) => connect.request_problem_information = wanted == 1,
            Property::AuthenticationMethod(method) => connect.authentication_method = Some(method),
            Property::AuthenticationData(data) => connect.authentication_data = Some(data),
            _ => {}
        })?;
        if connect.authentication_data.is_some() && connect.authentication_method.is_none() {
            return Err(WireError::protocol_error("authentication data without an authentication method"));
        }
    }
    connect.client_id = reader.string()?;
    if let Some((qos, retain)) = flags.will {
        connect.will = Some(will(&mut reader, version, qos, retain)?);
    }
    // MQTT 3.1 lets a client set these flags and end the packet without the field: the remaining length takes precedence.
    let field_follows = |reader: &Reader<'_>| version != Version::V3_1 || !reader.is_empty();
    if flags.username && field_follows(&reader) {
        connect.username = Some(reader.string()?);
    }
    if flags.password && field_follows(&reader) {
        connect.password = Some(reader.binary()?);
    }
    end(&reader)?;
    Ok(connect)
}

/// The connect flags, section 3.1.2.3. They say how the payload is to be read, so a combination that the standard forbids is a
/// malformed packet.
struct ConnectFlags {
    clean_start: bool,
    will: Option<(QoS, bool)>,
    password: bool,
    username: bool,
}

impl ConnectFlags {
    fn read(reader: &mut Reader<'_>, version: Version) -> Result<Self, WireError> {
        let bits = reader.byte()?;
        // MQTT 3.1 does not use this bit, nor the will's QoS and retain without a will, and says nothing about their values.
        let strict = version != Version::V3_1;
        if strict && bits & 0x01 != 0 {
            return Err(WireError::malformed("reserved connect flag is set")); // [MQTT-3.1.2-3]
        }
        let will = if bits & 0x04 != 0 {
            let Some(qos) = QoS::from_bits(bits >> 3) else {
                return Err(WireError::malformed("will has QoS 3")); // [MQTT-3.1.2-12]
            };
            Some((qos, bits & 0x20 != 0))
        } else if strict && bits & 0x38 != 0 {
            return Err(WireError::malformed("will QoS or will retain without a will")); // [MQTT-3.1.2-11] [MQTT-3.1.2-13]
        } else {
            None
        };
        let (username, password) = (bits & 0x80 != 0, bits & 0x40 != 0);
        if password && !username && version != Version::V5 {
            return Err(WireError::malformed("password without a user name")); // [MQTT-3.1.2-22] of MQTT 3.1.1
        }
        Ok(Self { clean_start: bits & 0x02 != 0, will, password, username })
    }
}

/// Sections 3.1.3.2 to 3.1.3.4.
fn will<'a>(reader: &mut Reader<'a>, version: Version, qos: QoS, retain: bool) -> Result<Will<'a>, WireError> {
    let mut will = Will { qos, retain, ..Will::default() };
    if version == Version::V5 {
        will.properties = Properties::read(reader, PacketKind::Will, |property| match property {
            Property::WillDelayInterval(interval_s) => will.delay_interval_s = interval_s,
            Property::MessageExpiryInterval(interval_s) => will.message_expiry_interval_s = Some(interval_s),
            Property::PayloadFormatIndicator(indicator) => will.payload_is_utf8 = indicator == 1,
            _ => {}
        })?;
    }
    will.topic = reader.topic_name()?;
    if will.topic.is_empty() {
        // [MQTT-4.7.3-1]
        return Err(WireError { reason: ReasonCode::TOPIC_NAME_INVALID, what: "will topic is empty" });
    }
    will.payload = reader.binary()?;
    if will.payload_is_utf8 && str::from_utf8(will.payload).is_err() {
        return Err(WireError { reason: ReasonCode::PAYLOAD_FORMAT_INVALID, what: "will is not UTF-8 as its indicator says" });
    }
    Ok(will)
}

/// Section 3.2.
fn connack<'a>(reader: &mut Reader<'a>, version: Version) -> Result<Connack<'a>, WireError> {
    let flags = reader.byte()?;
    if flags > 1 {
        return Err(WireError::malformed("reserved connect acknowledge flags are set")); // [MQTT-3.2.2-1]
    }
    let reason = match version {
        Version::V5 => reason(reader, PacketKind::Connack)?,
        _ => ReasonCode::from_connack_return_code(reader.byte()?).ok_or(BAD_REASON)?,
    };
    // In 3.1 the byte says nothing.
    let session_present = flags == 1 && version != Version::V3_1;
    if session_present && reason != ReasonCode::SUCCESS {
        return Err(WireError::protocol_error("session present in a refusal")); // [MQTT-3.2.2-6]
    }
    let mut connack = Connack { session_present, reason, ..Connack::default() };
    if version == Version::V5 {
        Properties::read(reader, PacketKind::Connack, |property| match property {
            Property::SessionExpiryInterval(interval_s) => connack.session_expiry_interval_s = Some(interval_s),
            Property::ReceiveMaximum(maximum) => connack.receive_maximum = Some(maximum),
            Property::MaximumQoS(maximum) => connack.maximum_qos = QoS::from_bits(maximum),
            Property::RetainAvailable(available) => connack.retain_available = Some(available == 1),
            Property::MaximumPacketSize(maximum) => connack.maximum_packet_size = Some(maximum),
            Property::AssignedClientIdentifier(id) => connack.assigned_client_id = Some(id),
            Property::TopicAliasMaximum(maximum) => connack.topic_alias_maximum = Some(maximum),
            Property::ReasonString(string) => connack.reason_string = Some(string),
            Property::WildcardSubscriptionAvailable(available) => connack.wildcard_subscription_available = Some(available == 1),
            Property::SubscriptionIdentifierAvailable(available) => {
                connack.subscription_identifiers_available = Some(available == 1)
            }
            Property::SharedSubscriptionAvailable(available) => connack.shared_subscription_available = Some(available == 1),
            Property::ServerKeepAlive(keep_alive_s) => connack.server_keep_alive_s = Some(keep_alive_s),
            Property::ResponseInformation(information) => connack.response_information = Some(information),
            Property::ServerReference(reference) => connack.server_reference = Some(reference),
            Property::AuthenticationMethod(method) => connack.authentication_method = Some(method),
            Property::AuthenticationData(data) => connack.authentication_data = Some(data),
            _ => {}
        })?;
    }
    Ok(connack)
}

/// Sections 3.4 to 3.7. In MQTT 5.0 the reason, or only the properties, may be left out.
fn ack<'a>(reader: &mut Reader<'a>, version: Version, kind: PacketKind) -> Result<Ack<'a>, WireError> {
    let mut ack = Ack { packet_id: packet_id(reader)?, ..Ack::default() };
    if version == Version::V5 && !reader.is_empty() {
        ack.reason = reason(reader, kind)?;
        if !reader.is_empty() {
            ack.properties = Properties::read(reader, kind, |property| {
                if let Property::ReasonString(string) = property {
                    ack.reason_string = Some(string);
                }
            })?;
        }
    }
    Ok(ack)
}

/// Section 3.8.
fn subscribe<'a>(reader: &mut Reader<'a>, version: Version) -> Result<Subscribe<'a>, WireError> {
    let packet_id = packet_id(reader)?;
    let mut subscription_identifier = None;
    let properties = match version {
        Version::V5 => Properties::read(reader, PacketKind::Subscribe, |property| {
            if let Property::SubscriptionIdentifier(identifier) = property {
                subscription_identifier = Some(identifier);
            }
        })?,
        _ => Properties::EMPTY,
    };
    if reader.is_empty() {
        return Err(WireError::protocol_error("SUBSCRIBE has no topic filter")); // [MQTT-3.8.3-2]
    }
    let filters = SubscribeFilters(reader.rest());
    let mut count = 0;
    while !reader.is_empty() {
        count += 1;
        if count > FILTERS_MAX {
            return Err(TOO_MANY_FILTERS);
        }
        let filter = reader.string()?;
        let options = SubscriptionOptions::from_byte(reader.byte()?, version)?;
        if options.no_local && filter.starts_with("$share/") {
            return Err(WireError::protocol_error("no local on a shared subscription")); // [MQTT-3.8.3-4]
        }
    }
    Ok(Subscribe { packet_id, subscription_identifier, properties, filters })
}

/// Section 3.10.
fn unsubscribe<'a>(reader: &mut Reader<'a>, version: Version) -> Result<Unsubscribe<'a>, WireError> {
    let packet_id = packet_id(reader)?;
    let properties = match version {
        Version::V5 => Properties::read(reader, PacketKind::Unsubscribe, |_| ())?,
        _ => Properties::EMPTY,
    };
    if reader.is_empty() {
        return Err(WireError::protocol_error("UNSUBSCRIBE has no topic filter")); // [MQTT-3.10.3-2]
    }
    let filters = UnsubscribeFilters(reader.rest());
    let mut count = 0;
    while !reader.is_empty() {
        count += 1;
        if count > FILTERS_MAX {
            return Err(TOO_MANY_FILTERS);
        }
        reader.string()?;
    }
    Ok(Unsubscribe { packet_id, properties, filters })
}

/// Section 3.9.
fn suback<'a>(reader: &mut Reader<'a>, version: Version) -> Result<SubAck<'a>, WireError> {
    let allowed = |code: ReasonCode| match version {
        Version::V5 => code.may_stand_in(PacketKind::Suback),
        // MQTT 3.1 has no 0x80, but servers send it there for want of anything else.
        _ => matches!(code.0, 0..=2 | 0x80),
    };
    sub_ack(reader, version, PacketKind::Suback, allowed)
}

/// Section 3.11.
fn unsuback<'a>(reader: &mut Reader<'a>, version: Version) -> Result<SubAck<'a>, WireError> {
    match version {
        Version::V5 => sub_ack(reader, version, PacketKind::Unsuback, |code| code.may_stand_in(PacketKind::Unsuback)),
        _ => Ok(SubAck { packet_id: packet_id(reader)?, ..SubAck::default() }),
    }
}

fn sub_ack<'a>(
    reader: &mut Reader<'a>,
    version: Version,
    kind: PacketKind,
    allowed: impl Fn(ReasonCode) -> bool,
) -> Result<SubAck<'a>, WireError> {
    let packet_id = packet_id(reader)?;
    let mut reason_string = None;
    if version == Version::V5 {
        Properties::read(reader, kind, |property| {
            if let Property::ReasonString(string) = property {
                reason_string = Some(string);
            }
        })?;
    }
    let reasons = reader.take_rest();
    if reasons.is_empty() {
        return Err(WireError::protocol_error("acknowledgement has no reason code"));
    }
    if !reasons.iter().all(|code| allowed(ReasonCode(*code))) {
        return Err(BAD_REASON);
    }
    Ok(SubAck { packet_id, reason_string, reasons })
}

/// Section 3.14. In MQTT 5.0 the reason, or only the properties, may be left out.
fn disconnect<'a>(reader: &mut Reader<'a>, version: Version) -> Result<Disconnect<'a>, WireError> {
    let mut disconnect = Disconnect::default();
    if version == Version::V5 && !reader.is_empty() {
        disconnect.reason = reason(reader, PacketKind::Disconnect)?;
        if !reader.is_empty() {
            disconnect.properties = Properties::read(reader, PacketKind::Disconnect, |property| match property {
                Property::SessionExpiryInterval(interval_s) => disconnect.session_expiry_interval_s = Some(interval_s),
                Property::ReasonString(string) => disconnect.reason_string = Some(string),
                Property::ServerReference(reference) => disconnect.server_reference = Some(reference),
                _ => {}
            })?;
        }
    }
    Ok(disconnect)
}

/// Section 3.15. The whole variable header may be left out, which means success; only then may the method be missing.
fn auth<'a>(reader: &mut Reader<'a>) -> Result<Auth<'a>, WireError> {
    let mut auth = Auth::default();
    if reader.is_empty() {
        return Ok(auth);
    }
    auth.reason = reason(reader, PacketKind::Auth)?;
    auth.properties = Properties::read(reader, PacketKind::Auth, |property| match property {
        Property::AuthenticationMethod(method) => auth.authentication_method = Some(method),
        Property::AuthenticationData(data) => auth.authentication_data = Some(data),
        Property::ReasonString(string) => auth.reason_string = Some(string),
        _ => {}
    })?;
    if auth.authentication_method.is_none() {
        return Err(WireError::protocol_error("AUTH has no authentication method"));
    }
    Ok(auth)
}

#[cfg(test)]
mod tests {
    use super::*;

    // What each packet reads as, and each error, stands in `cases`.

    #[test]
    fn refused_connect_still_tells_which_version_to_answer_in() {
        let version = |body| connect_version(&Frame { first: 0x10, body, len: 2 + body.len() });
        assert_eq!(version(b"\0\x04MQTT\x05\x03\0\0"), Some(Version::V5));
        assert_eq!(version(b"\0\x04MQTT\x84"), Some(Version::V3_1_1));
        assert_eq!(version(b"\0\x06MQIsdp\x03"), Some(Version::V3_1));
        assert_eq!(version(b"\0\x04MQTT\x06\x02"), None);
        assert_eq!(version(b"\0\x04MQTT"), None);
    }

    #[test]
    fn publish_tells_which_subscriptions_it_is_for() {
        let identifiers = |body: &'static [u8]| {
            let frame = Frame { first: 0x30, body, len: 2 + body.len() };
            let Ok(Packet::Publish(publish)) = decode(frame, Some(Version::V5)) else { panic!("no PUBLISH") };
            let identifiers = publish.subscription_identifiers().collect::<Vec<_>>();
            assert_eq!(publish.has_subscription_identifier(), !identifiers.is_empty());
            identifiers
        };
        assert!(identifiers(b"\0\x01t\x07\x26\0\x01k\0\x01v").is_empty());
        assert!(identifiers(b"\0\x01t\0\x0B\x01").is_empty());
        assert_eq!(identifiers(b"\0\x01t\x07\x0B\x01\x01\0\x0B\xC1\x02"), [1, 321]);
    }
}
