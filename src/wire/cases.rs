//! The table of packet cases: bytes, and the packet they are or the reason code they deserve. The codec's tests read it, so do the
//! broker's and the fuzzers' seeds; a case that any of them misses is added here.

use super::*;

/// The maximum packet size that the cases are read with.
pub const PACKET_BYTES_MAX: u32 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    /// What the connection has negotiated; `None` before its CONNECT.
    pub version: Option<Version>,
    pub bytes: Vec<u8>,
    pub expect: Expect,
    /// Whether the packet is written with these very bytes again. Not so for a legal packet that is longer than it needs to be, or
    /// whose properties are in another order than the encoder's (CONNACK, SUBACK, UNSUBACK).
    pub canonical: bool,
    /// The statements of the standard of that version that the case is about.
    pub statements: &'static [&'static str],
}

#[derive(Clone, PartialEq, Debug)]
pub enum Expect {
    Packet(Box<Packet<'static>>),
    Error(ReasonCode),
    Incomplete,
}

impl Case {
    /// What the codec makes of `bytes`: `Ok(None)` is an incomplete packet.
    pub fn read(bytes: &[u8], version: Option<Version>) -> Result<Option<Packet<'_>>, WireError> {
        frame(bytes, PACKET_BYTES_MAX)?.map(|frame| decode(frame, version)).transpose()
    }
}

const V3_1: Option<Version> = Some(Version::V3_1);
const V3_1_1: Option<Version> = Some(Version::V3_1_1);
const V5: Option<Version> = Some(Version::V5);
/// Before CONNECT.
const FIRST: Option<Version> = None;

const MALFORMED: ReasonCode = ReasonCode::MALFORMED_PACKET;
const PROTOCOL: ReasonCode = ReasonCode::PROTOCOL_ERROR;

type Statements = &'static [&'static str];
/// A body that must be refused: name, version, body, reason, statements; and the same with the first byte before the body.
type Refused = (&'static str, Option<Version>, &'static [u8], ReasonCode, Statements);
type RefusedPacket = (&'static str, Option<Version>, u8, &'static [u8], ReasonCode, Statements);

/// A packet of the first byte and the body, its length put between them.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    varint::write(body.len() as u32, &mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn properties(raw: &'static [u8]) -> Properties<'static> {
    Properties::from_validated(raw)
}

/// Collects cases in the order they are written.
#[derive(Default)]
struct Table(Vec<Case>);

impl Table {
    fn push(&mut self, name: &'static str, version: Option<Version>, bytes: Vec<u8>, expect: Expect, statements: Statements) {
        self.0.push(Case { name, version, bytes, expect, canonical: true, statements });
    }

    fn reads(&mut self, name: &'static str, version: Option<Version>, first: u8, body: &[u8], value: Packet<'static>) {
        self.push(name, version, packet(first, body), Expect::Packet(Box::new(value)), &[]);
    }

    /// As `reads`, but the packet is written in another way.
    fn reads_only(&mut self, name: &'static str, version: Option<Version>, bytes: Vec<u8>, value: Packet<'static>) {
        self.push(name, version, bytes, Expect::Packet(Box::new(value)), &[]);
        if let Some(case) = self.0.last_mut() {
            case.canonical = false;
        }
    }

    fn fails(
        &mut self,
        name: &'static str,
        version: Option<Version>,
        first: u8,
        body: &[u8],
        reason: ReasonCode,
        statements: Statements,
    ) {
        self.push(name, version, packet(first, body), Expect::Error(reason), statements);
    }
}

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut table = Table::default();
    fixed_header(&mut table);
    connect(&mut table);
    connect_errors(&mut table);
    connack(&mut table);
    publish(&mut table);
    publish_errors(&mut table);
    acknowledgements(&mut table);
    subscribe(&mut table);
    unsubscribe(&mut table);
    suback_and_unsuback(&mut table);
    ping_disconnect_and_auth(&mut table);
    table.0
}

fn fixed_header(table: &mut Table) {
    let incomplete: [(&str, &[u8]); 6] = [
        ("no byte", b""),
        ("type only", b"\x30"),
        ("remaining length cut", b"\x30\x80"),
        ("remaining length cut after three bytes", b"\x30\xFF\xFF\xFF"),
        ("body missing", b"\x30\xFF\xFF\x3E"),
        ("body cut", b"\x30\x05\0\x03a/"),
    ];
    for (name, bytes) in incomplete {
        table.push(name, V3_1_1, bytes.to_vec(), Expect::Incomplete, &[]);
    }
    let errors: [(&str, &[u8], ReasonCode, Statements); 4] = [
        ("remaining length of five bytes", b"\x30\xFF\xFF\xFF\xFF\x01", MALFORMED, &["MQTT-1.5.5-1"]),
        ("packet over the maximum packet size", b"\x30\x80\x80\x80\x01", ReasonCode::PACKET_TOO_LARGE, &["MQTT-3.2.2-15"]),
        ("padded remaining length in 5.0", b"\xC0\x80\x00", MALFORMED, &["MQTT-1.5.5-1"]),
        ("padded remaining length of a PUBLISH in 5.0", b"\x30\x84\x00\0\x01a\0", MALFORMED, &["MQTT-1.5.5-1"]),
    ];
    for (name, bytes, reason, statements) in errors {
        table.push(name, V5, bytes.to_vec(), Expect::Error(reason), statements);
    }
    table.reads_only("padded remaining length in 3.1.1", V3_1_1, b"\xC0\x80\x00".to_vec(), Packet::Pingreq);
    table.fails("packet type 0", V5, 0x00, b"", MALFORMED, &["MQTT-2.1.3-1"]);
    table.fails("packet type 0 in 3.1.1", V3_1_1, 0x00, b"", MALFORMED, &[]);
    table.fails("AUTH does not exist in 3.1.1", V3_1_1, 0xF0, b"", MALFORMED, &[]);
    table.fails("AUTH does not exist in 3.1", V3_1, 0xF0, b"", MALFORMED, &[]);
    table.fails("packet before CONNECT", FIRST, 0xC0, b"", PROTOCOL, &["MQTT-3.1.0-1"]);
    table.fails("PUBLISH before CONNECT", FIRST, 0x30, b"\0\x01a", PROTOCOL, &["MQTT-3.1.0-1"]);
    let second = b"\0\x04MQTT\x05\x02\0\x3C\0\0\x01a";
    table.fails("second CONNECT", V5, 0x10, second, PROTOCOL, &["MQTT-3.1.0-2"]);
    let flags: [(&str, u8, &[u8], Statements); 15] = [
        ("flags of CONNACK", 0x21, b"\0\0\0", &["MQTT-2.1.3-1"]),
        ("flags of PUBACK", 0x42, b"\0\x01", &["MQTT-2.1.3-1"]),
        ("flags of PUBREC", 0x51, b"\0\x01", &["MQTT-2.1.3-1"]),
        ("flags of PUBREL", 0x60, b"\0\x01", &["MQTT-3.6.1-1"]),
        ("DUP in PUBREL", 0x6A, b"\0\x01", &["MQTT-3.6.1-1"]),
        ("flags of PUBCOMP", 0x72, b"\0\x01", &["MQTT-2.1.3-1"]),
        ("flags of SUBSCRIBE", 0x80, b"\0\x01\0\0\x01a\0", &["MQTT-3.8.1-1"]),
        ("DUP in SUBSCRIBE", 0x8A, b"\0\x01\0\0\x01a\0", &["MQTT-3.8.1-1"]),
        ("flags of SUBACK", 0x92, b"\0\x01\0\0", &["MQTT-2.1.3-1"]),
        ("flags of UNSUBSCRIBE", 0xA0, b"\0\x01\0\0\x01a", &["MQTT-3.10.1-1"]),
        ("flags of UNSUBACK", 0xB8, b"\0\x01\0\0", &["MQTT-2.1.3-1"]),
        ("flags of PINGREQ", 0xC1, b"", &["MQTT-2.1.3-1"]),
        ("flags of PINGRESP", 0xD2, b"", &["MQTT-2.1.3-1"]),
        ("flags of DISCONNECT", 0xE1, b"", &["MQTT-3.14.1-1"]),
        ("flags of AUTH", 0xF4, b"", &["MQTT-3.15.1-1"]),
    ];
    for (name, first, body, statements) in flags {
        table.fails(name, V5, first, body, MALFORMED, statements);
    }
    table.fails("flags of SUBSCRIBE in 3.1.1", V3_1_1, 0x80, b"\0\x01\0\x01a\0", MALFORMED, &["MQTT-3.8.1-1"]);
    table.fails("flags of PUBREL in 3.1.1", V3_1_1, 0x60, b"\0\x01", MALFORMED, &["MQTT-3.6.1-1"]);
    table.fails("flags of CONNECT", FIRST, 0x11, second, MALFORMED, &["MQTT-2.1.3-1"]);
}

fn connect(table: &mut Table) {
    let minimal = Connect { version: Version::V3_1_1, client_id: "a", keep_alive_s: 60, ..Connect::default() };
    table.reads("CONNECT 3.1.1", FIRST, 0x10, b"\0\x04MQTT\x04\x02\0\x3C\0\x01a", Packet::Connect(minimal.clone()));
    table.reads(
        "CONNECT 3.1",
        FIRST,
        0x10,
        b"\0\x06MQIsdp\x03\x02\0\x3C\0\x01a",
        Packet::Connect(Connect { version: Version::V3_1, ..minimal.clone() }),
    );
    table.reads(
        "CONNECT 5.0",
        FIRST,
        0x10,
        b"\0\x04MQTT\x05\x02\0\x3C\0\0\x01a",
        Packet::Connect(Connect { version: Version::V5, ..minimal.clone() }),
    );
    table.reads(
        "CONNECT 3.1 with a client id of 30 characters",
        FIRST,
        0x10,
        b"\0\x06MQIsdp\x03\x00\xFF\xFF\0\x1E123456789012345678901234567890",
        Packet::Connect(Connect {
            version: Version::V3_1,
            clean_start: false,
            keep_alive_s: 65_535,
            client_id: "123456789012345678901234567890",
            ..Connect::default()
        }),
    );
    table.reads(
        "CONNECT 3.1.1 with everything",
        FIRST,
        0x10,
        b"\0\x04MQTT\x04\xEC\0\0\0\x02id\0\x03w/t\0\x02\0\xFF\0\x02us\0\x02\xFFp",
        Packet::Connect(Connect {
            version: Version::V3_1_1,
            clean_start: false,
            client_id: "id",
            will: Some(Will { qos: QoS::AtLeastOnce, retain: true, topic: "w/t", payload: b"\0\xFF", ..Will::default() }),
            username: Some("us"),
            password: Some(b"\xFFp"),
            ..Connect::default()
        }),
    );
    table.reads(
        "CONNECT 3.1 with will, user name and password",
        FIRST,
        0x10,
        b"\0\x06MQIsdp\x03\xD6\0\x0A\0\x02id\0\x01w\0\0\0\x01u\0\x01p",
        Packet::Connect(Connect {
            version: Version::V3_1,
            keep_alive_s: 10,
            client_id: "id",
            will: Some(Will { qos: QoS::ExactlyOnce, topic: "w", ..Will::default() }),
            username: Some("u"),
            password: Some(b"p"),
            ..Connect::default()
        }),
    );
    table.reads(
        "CONNECT 3.1.1 of a bridge with an empty client id",
        FIRST,
        0x10,
        b"\0\x04MQTT\x84\x02\0\x3C\0\0",
        Packet::Connect(Connect { bridge: true, client_id: "", ..minimal.clone() }),
    );
    table.reads(
        "CONNECT 5.0 with all properties",
        FIRST,
        0x10,
        b"\0\x04MQTT\x05\x00\0\x0A\x28\x11\0\0\0\x0A\x21\0\x14\x27\0\0\x10\0\x22\0\x05\x19\x01\x17\0\x15\0\x05SCRAM\x16\0\x02\0\xFF\
          \x26\0\x01k\0\x01v\0\x01c",
        Packet::Connect(Connect {
            clean_start: false,
            keep_alive_s: 10,
            session_expiry_interval_s: Some(10),
            receive_maximum: Some(20),
            maximum_packet_size: Some(4096),
            topic_alias_maximum: 5,
            request_response_information: true,
            request_problem_information: false,
            authentication_method: Some("SCRAM"),
            authentication_data: Some(b"\0\xFF"),
            properties: properties(
                b"\x11\0\0\0\x0A\x21\0\x14\x27\0\0\x10\0\x22\0\x05\x19\x01\x17\0\x15\0\x05SCRAM\x16\0\x02\0\xFF\x26\0\x01k\0\x01v",
            ),
            client_id: "c",
            ..Connect::default()
        }),
    );
    table.reads(
        "CONNECT 5.0 with a will and all its properties",
        FIRST,
        0x10,
        b"\0\x04MQTT\x05\x36\0\x3C\0\0\x01c\x21\x18\0\0\0\x1E\x01\x01\x02\0\0\0\x0A\x03\0\x02ct\x08\0\x01r\x09\0\x02id\x26\0\x01k\0\x01v\
          \0\x03w/t\0\x03bye",
        Packet::Connect(Connect {
            keep_alive_s: 60,
            client_id: "c",
            will: Some(Will {
                qos: QoS::ExactlyOnce,
                retain: true,
                topic: "w/t",
                payload: b"bye",
                delay_interval_s: 30,
                message_expiry_interval_s: Some(10),
                payload_is_utf8: true,
                properties: properties(
                    b"\x18\0\0\0\x1E\x01\x01\x02\0\0\0\x0A\x03\0\x02ct\x08\0\x01r\x09\0\x02id\x26\0\x01k\0\x01v",
                ),
            }),
            ..Connect::default()
        }),
    );
    table.reads(
        "CONNECT 5.0 with a password and no user name",
        FIRST,
        0x10,
        b"\0\x04MQTT\x05\x42\0\0\0\0\x01c\0\x05token",
        Packet::Connect(Connect { client_id: "c", password: Some(b"token"), ..Connect::default() }),
    );
    table.reads(
        "CONNECT 5.0 with a session that never expires",
        FIRST,
        0x10,
        b"\0\x04MQTT\x05\x02\0\0\x05\x11\xFF\xFF\xFF\xFF\0\x01c",
        Packet::Connect(Connect {
            session_expiry_interval_s: Some(u32::MAX),
            properties: properties(b"\x11\xFF\xFF\xFF\xFF"),
            client_id: "c",
            ..Connect::default()
        }),
    );
    table.reads(
        "CONNECT with a client id outside ASCII and a byte order mark",
        FIRST,
        0x10,
        b"\0\x04MQTT\x05\x02\0\0\0\0\x08\xEF\xBB\xBFA\xF0\xAA\x9B\x94",
        Packet::Connect(Connect { client_id: "\u{FEFF}A\u{2A6D4}", ..Connect::default() }),
    );
    let lone = Connect { version: Version::V3_1, client_id: "a", keep_alive_s: 60, ..Connect::default() };
    table.reads_only(
        "CONNECT 3.1 whose user name flag is set without a user name",
        FIRST,
        packet(0x10, b"\0\x06MQIsdp\x03\x82\0\x3C\0\x01a"),
        Packet::Connect(lone.clone()),
    );
    table.reads_only(
        "CONNECT 3.1 whose password flag is set without a password",
        FIRST,
        packet(0x10, b"\0\x06MQIsdp\x03\xC2\0\x3C\0\x01a\0\x01u"),
        Packet::Connect(Connect { username: Some("u"), ..lone.clone() }),
    );
    table.reads_only(
        "CONNECT 3.1 with flags that it does not use",
        FIRST,
        packet(0x10, b"\0\x06MQIsdp\x03\x3B\0\x3C\0\x01a"),
        Packet::Connect(lone),
    );
    table.reads_only(
        "CONNECT 3.1.1 with a padded remaining length",
        FIRST,
        b"\x10\x8D\x80\x00\0\x04MQTT\x04\x02\0\x3C\0\x01a".to_vec(),
        Packet::Connect(minimal),
    );
}

fn connect_errors(table: &mut Table) {
    let unsupported = ReasonCode::UNSUPPORTED_PROTOCOL_VERSION;
    let topic = ReasonCode::TOPIC_NAME_INVALID;
    let cases: [(&'static str, &[u8], ReasonCode, Statements); 48] = [
        ("CONNECT that is empty", b"", MALFORMED, &[]),
        ("CONNECT cut in the protocol name", b"\0\x04MQ", MALFORMED, &[]),
        ("CONNECT with another protocol name", b"\0\x04HTTP\x04\x02\0\0\0\x01a", unsupported, &["MQTT-3.1.2-1"]),
        ("CONNECT with a protocol name in lower case", b"\0\x04mqtt\x04\x02\0\0\0\x01a", unsupported, &["MQTT-3.1.2-1"]),
        ("CONNECT with level 6", b"\0\x04MQTT\x06\x02\0\0\0\x01a", unsupported, &["MQTT-3.1.2-2"]),
        ("CONNECT with level 3 under the newer name", b"\0\x04MQTT\x03\x02\0\0\0\x01a", unsupported, &["MQTT-3.1.2-2"]),
        ("CONNECT with level 4 under the older name", b"\0\x06MQIsdp\x04\x02\0\0\0\x01a", unsupported, &["MQTT-3.1.2-2"]),
        ("CONNECT with level 0", b"\0\x04MQTT\x00\x02\0\0\0\x01a", unsupported, &["MQTT-3.1.2-2"]),
        ("CONNECT 5.0 with the reserved flag", b"\0\x04MQTT\x05\x03\0\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-3"]),
        ("CONNECT 3.1.1 with the reserved flag", b"\0\x04MQTT\x04\x03\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-3"]),
        ("CONNECT 5.0 with will QoS 3", b"\0\x04MQTT\x05\x1E\0\0\0\0\x01a\0\0\x01w\0\0", MALFORMED, &["MQTT-3.1.2-12"]),
        ("CONNECT 3.1.1 with will QoS 3", b"\0\x04MQTT\x04\x1E\0\0\0\x01a\0\x01w\0\0", MALFORMED, &["MQTT-3.1.2-14"]),
        ("CONNECT 3.1 with will QoS 3", b"\0\x06MQIsdp\x03\x1E\0\0\0\x01a\0\x01w\0\0", MALFORMED, &[]),
        ("CONNECT 5.0 with will QoS and no will", b"\0\x04MQTT\x05\x0A\0\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-11"]),
        ("CONNECT 3.1.1 with will QoS and no will", b"\0\x04MQTT\x04\x12\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-13"]),
        ("CONNECT 5.0 with will retain and no will", b"\0\x04MQTT\x05\x22\0\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-13"]),
        ("CONNECT 3.1.1 with will retain and no will", b"\0\x04MQTT\x04\x22\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-15"]),
        (
            "CONNECT 3.1.1 with a password and no user name",
            b"\0\x04MQTT\x04\x42\0\0\0\x01a\0\x01p",
            MALFORMED,
            &["MQTT-3.1.2-22"],
        ),
        ("CONNECT 3.1 with a password and no user name", b"\0\x06MQIsdp\x03\x42\0\0\0\x01a\0\x01p", MALFORMED, &[]),
        ("CONNECT 3.1.1 without a client id", b"\0\x04MQTT\x04\x02\0\0", MALFORMED, &["MQTT-3.1.3-3"]),
        ("CONNECT 5.0 without a client id", b"\0\x04MQTT\x05\x02\0\0\0", MALFORMED, &["MQTT-3.1.3-3"]),
        ("CONNECT 5.0 without a property length", b"\0\x04MQTT\x05\x02\0\0", MALFORMED, &["MQTT-2.2.2-1"]),
        ("CONNECT 3.1.1 cut in the keep alive", b"\0\x04MQTT\x04\x02\0", MALFORMED, &[]),
        ("CONNECT whose client id is not UTF-8", b"\0\x04MQTT\x04\x02\0\0\0\x02\xC3\x28", MALFORMED, &["MQTT-3.1.3-4"]),
        (
            "CONNECT whose client id holds a surrogate",
            b"\0\x04MQTT\x05\x02\0\0\0\0\x03\xED\xA0\x80",
            MALFORMED,
            &["MQTT-1.5.4-1"],
        ),
        ("CONNECT whose client id holds U+0000", b"\0\x04MQTT\x05\x02\0\0\0\0\x03a\0b", MALFORMED, &["MQTT-1.5.4-2"]),
        ("CONNECT whose user name is not UTF-8", b"\0\x04MQTT\x05\x82\0\0\0\0\x01a\0\x01\xFF", MALFORMED, &["MQTT-3.1.3-12"]),
        (
            "CONNECT whose will topic is not UTF-8",
            b"\0\x04MQTT\x05\x06\0\0\0\0\x01a\0\0\x01\xFF\0\0",
            MALFORMED,
            &["MQTT-3.1.3-11"],
        ),
        (
            "CONNECT with a wildcard in the will topic",
            b"\0\x04MQTT\x05\x06\0\0\0\0\x01a\0\0\x03w/#\0\0",
            topic,
            &["MQTT-4.7.0-1"],
        ),
        (
            "CONNECT 3.1.1 with a wildcard in the will topic",
            b"\0\x04MQTT\x04\x06\0\0\0\x01a\0\x01+\0\0",
            topic,
            &["MQTT-4.7.1-1"],
        ),
        ("CONNECT with an empty will topic", b"\0\x04MQTT\x05\x06\0\0\0\0\x01a\0\0\0\0\0", topic, &["MQTT-4.7.3-1"]),
        ("CONNECT without the will it announces", b"\0\x04MQTT\x05\x06\0\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-9"]),
        ("CONNECT without the will payload", b"\0\x04MQTT\x04\x06\0\0\0\x01a\0\x01w", MALFORMED, &["MQTT-3.1.2-9"]),
        (
            "CONNECT whose will is not the UTF-8 it says",
            b"\0\x04MQTT\x05\x06\0\0\0\0\x01a\x02\x01\x01\0\x01w\0\x01\xFF",
            ReasonCode::PAYLOAD_FORMAT_INVALID,
            &[],
        ),
        ("CONNECT 3.1.1 without the user name it announces", b"\0\x04MQTT\x04\x82\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-19"]),
        ("CONNECT 5.0 without the user name it announces", b"\0\x04MQTT\x05\x82\0\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-17"]),
        ("CONNECT 5.0 without the password it announces", b"\0\x04MQTT\x05\x42\0\0\0\0\x01a", MALFORMED, &["MQTT-3.1.2-19"]),
        (
            "CONNECT with a user name it does not announce",
            b"\0\x04MQTT\x05\x02\0\0\0\0\x01a\0\x01u",
            MALFORMED,
            &["MQTT-3.1.2-16"],
        ),
        ("CONNECT 3.1.1 with bytes left over", b"\0\x04MQTT\x04\x02\0\0\0\x01a\0", MALFORMED, &[]),
        ("CONNECT 3.1 with bytes left over", b"\0\x06MQIsdp\x03\x02\0\0\0\x01a\0", MALFORMED, &[]),
        ("CONNECT with receive maximum 0", b"\0\x04MQTT\x05\x02\0\0\x03\x21\0\0\0\x01a", PROTOCOL, &[]),
        ("CONNECT with maximum packet size 0", b"\0\x04MQTT\x05\x02\0\0\x05\x27\0\0\0\0\0\x01a", PROTOCOL, &[]),
        ("CONNECT with request problem information 2", b"\0\x04MQTT\x05\x02\0\0\x02\x17\x02\0\x01a", PROTOCOL, &[]),
        ("CONNECT with request response information 2", b"\0\x04MQTT\x05\x02\0\0\x02\x19\x02\0\x01a", PROTOCOL, &[]),
        (
            "CONNECT with two session expiry intervals",
            b"\0\x04MQTT\x05\x02\0\0\x0A\x11\0\0\0\x01\x11\0\0\0\x01\0\x01a",
            PROTOCOL,
            &[],
        ),
        ("CONNECT with a property of PUBLISH", b"\0\x04MQTT\x05\x02\0\0\x03\x23\0\x01\0\x01a", MALFORMED, &[]),
        ("CONNECT with authentication data and no method", b"\0\x04MQTT\x05\x02\0\0\x04\x16\0\x01d\0\x01a", PROTOCOL, &[]),
        ("CONNECT with will delay outside the will", b"\0\x04MQTT\x05\x02\0\0\x05\x18\0\0\0\x01\0\x01a", MALFORMED, &[]),
    ];
    for (name, body, reason, statements) in cases {
        table.fails(name, FIRST, 0x10, body, reason, statements);
    }
    table.push(
        "CONNECT 5.0 with a padded remaining length",
        FIRST,
        b"\x10\x8E\x00\0\x04MQTT\x05\x02\0\x3C\0\0\x01a".to_vec(),
        Expect::Error(MALFORMED),
        &["MQTT-1.5.5-1"],
    );
}

fn connack(table: &mut Table) {
    let accepted = Connack::default();
    table.reads("CONNACK 3.1.1", V3_1_1, 0x20, b"\0\0", Packet::Connack(accepted.clone()));
    table.reads("CONNACK 3.1", V3_1, 0x20, b"\0\0", Packet::Connack(accepted.clone()));
    table.reads("CONNACK 5.0", V5, 0x20, b"\0\0\0", Packet::Connack(accepted.clone()));
    let present = Connack { session_present: true, ..accepted.clone() };
    table.reads("CONNACK 3.1.1 with the session present", V3_1_1, 0x20, b"\x01\0", Packet::Connack(present.clone()));
    table.reads("CONNACK 5.0 with the session present", V5, 0x20, b"\x01\0\0", Packet::Connack(present));
    let refusals: [(&'static str, &[u8], ReasonCode); 5] = [
        ("CONNACK 3.1.1 unacceptable protocol version", b"\0\x01", ReasonCode::UNSUPPORTED_PROTOCOL_VERSION),
        ("CONNACK 3.1.1 identifier rejected", b"\0\x02", ReasonCode::CLIENT_IDENTIFIER_NOT_VALID),
        ("CONNACK 3.1.1 server unavailable", b"\0\x03", ReasonCode::SERVER_UNAVAILABLE),
        ("CONNACK 3.1.1 bad user name or password", b"\0\x04", ReasonCode::BAD_USER_NAME_OR_PASSWORD),
        ("CONNACK 3.1.1 not authorized", b"\0\x05", ReasonCode::NOT_AUTHORIZED),
    ];
    for (name, body, reason) in refusals {
        table.reads(name, V3_1_1, 0x20, body, Packet::Connack(Connack { reason, ..accepted.clone() }));
    }
    table.reads(
        "CONNACK 5.0 with all properties",
        V5,
        0x20,
        b"\x01\0\x3D\x11\0\0\0\x0A\x21\0\x14\x24\x01\x25\x01\x27\0\0\x10\0\x12\0\x02id\x22\0\x05\x1F\0\x02ok\x28\x01\x29\x01\x2A\0\x13\0\x3C\
          \x1A\0\x02ri\x1C\0\x05a:123\x15\0\x01m\x16\0\x02\0\xFF",
        Packet::Connack(Connack {
            session_present: true,
            reason: ReasonCode::SUCCESS,
            session_expiry_interval_s: Some(10),
            receive_maximum: Some(20),
            maximum_qos: Some(QoS::AtLeastOnce),
            retain_available: Some(true),
            maximum_packet_size: Some(4096),
            assigned_client_id: Some("id"),
            topic_alias_maximum: Some(5),
            reason_string: Some("ok"),
            wildcard_subscription_available: Some(true),
            subscription_identifiers_available: Some(true),
            shared_subscription_available: Some(false),
            server_keep_alive_s: Some(60),
            response_information: Some("ri"),
            server_reference: Some("a:123"),
            authentication_method: Some("m"),
            authentication_data: Some(b"\0\xFF"),
        }),
    );
    table.reads(
        "CONNACK 5.0 that refuses with a reason string",
        V5,
        0x20,
        b"\0\x87\x05\x1F\0\x02no",
        Packet::Connack(Connack { reason: ReasonCode::NOT_AUTHORIZED, reason_string: Some("no"), ..accepted.clone() }),
    );
    table.reads_only(
        "CONNACK 5.0 with a user property",
        V5,
        packet(0x20, b"\0\0\x07\x26\0\x01k\0\x01v"),
        Packet::Connack(accepted),
    );
    let errors: [Refused; 11] = [
        ("CONNACK with reserved flags", V5, b"\x02\0\0", MALFORMED, &["MQTT-3.2.2-1"]),
        ("CONNACK 5.0 without properties", V5, b"\0\0", MALFORMED, &["MQTT-2.2.2-1"]),
        ("CONNACK 3.1.1 with bytes left over", V3_1_1, b"\0\0\0", MALFORMED, &[]),
        ("CONNACK 3.1.1 with a reserved return code", V3_1_1, b"\0\x06", PROTOCOL, &[]),
        ("CONNACK 5.0 with the reason of another packet", V5, b"\0\x8E\0", PROTOCOL, &["MQTT-3.2.2-8"]),
        ("CONNACK 5.0 refusal with the session present", V5, b"\x01\x87\0", PROTOCOL, &["MQTT-3.2.2-6"]),
        ("CONNACK 3.1.1 refusal with the session present", V3_1_1, b"\x01\x05", PROTOCOL, &["MQTT-3.2.2-4"]),
        ("CONNACK with receive maximum 0", V5, b"\0\0\x03\x21\0\0", PROTOCOL, &[]),
        ("CONNACK with maximum QoS 2", V5, b"\0\0\x02\x24\x02", PROTOCOL, &[]),
        ("CONNACK with retain available 2", V5, b"\0\0\x02\x25\x02", PROTOCOL, &[]),
        ("CONNACK with two server keep alives", V5, b"\0\0\x06\x13\0\x01\x13\0\x01", PROTOCOL, &[]),
    ];
    for (name, version, body, reason, statements) in errors {
        table.fails(name, version, 0x20, body, reason, statements);
    }
}

fn publish(table: &mut Table) {
    let simple = Publish { topic: "a/b", payload: b"hi", ..Publish::default() };
    table.reads("PUBLISH 3.1.1 QoS 0", V3_1_1, 0x30, b"\0\x03a/bhi", Packet::Publish(simple.clone()));
    table.reads("PUBLISH 3.1 QoS 0", V3_1, 0x30, b"\0\x03a/bhi", Packet::Publish(simple.clone()));
    table.reads("PUBLISH 5.0 QoS 0", V5, 0x30, b"\0\x03a/b\0hi", Packet::Publish(simple.clone()));
    let once = Publish { qos: QoS::AtLeastOnce, packet_id: 10, ..simple.clone() };
    table.reads("PUBLISH 3.1.1 QoS 1", V3_1_1, 0x32, b"\0\x03a/b\0\x0Ahi", Packet::Publish(once.clone()));
    table.reads("PUBLISH 3.1 QoS 1", V3_1, 0x32, b"\0\x03a/b\0\x0Ahi", Packet::Publish(once.clone()));
    table.reads("PUBLISH 5.0 QoS 1", V5, 0x32, b"\0\x03a/b\0\x0A\0hi", Packet::Publish(once));
    let exactly = Publish { qos: QoS::ExactlyOnce, packet_id: 65_535, dup: true, retain: true, ..simple.clone() };
    table.reads("PUBLISH 3.1.1 QoS 2, DUP, retained", V3_1_1, 0x3D, b"\0\x03a/b\xFF\xFFhi", Packet::Publish(exactly.clone()));
    table.reads("PUBLISH 5.0 QoS 2, DUP, retained", V5, 0x3D, b"\0\x03a/b\xFF\xFF\0hi", Packet::Publish(exactly));
    let empty = Publish { payload: b"", retain: true, ..simple.clone() };
    table.reads("PUBLISH 3.1.1 with an empty payload", V3_1_1, 0x31, b"\0\x03a/b", Packet::Publish(empty.clone()));
    table.reads("PUBLISH 5.0 with an empty payload", V5, 0x31, b"\0\x03a/b\0", Packet::Publish(empty));
    table.reads(
        "PUBLISH 3.1.1 whose payload is no text",
        V3_1_1,
        0x30,
        b"\0\x01t\xFF\0\xFE",
        Packet::Publish(Publish { topic: "t", payload: b"\xFF\0\xFE", ..Publish::default() }),
    );
    table.reads(
        "PUBLISH to a topic of slashes and spaces outside ASCII",
        V3_1_1,
        0x30,
        b"\0\x07/ \xC3\xA9/ /x",
        Packet::Publish(Publish { topic: "/ é/ /", payload: b"x", ..Publish::default() }),
    );
    table.reads(
        "PUBLISH 5.0 with all properties",
        V5,
        0x32,
        b"\0\x01t\0\x01\x28\x01\x01\x02\0\0\0\x3C\x23\0\x05\x08\0\x03r/t\x09\0\x02\0\xFF\x26\0\x01k\0\x01v\x26\0\x01k\0\x01w\x03\0\x02ct\
          h\xC3\xA9",
        Packet::Publish(Publish {
            qos: QoS::AtLeastOnce,
            topic: "t",
            packet_id: 1,
            topic_alias: Some(5),
            message_expiry_interval_s: Some(60),
            payload_is_utf8: true,
            response_topic: Some("r/t"),
            properties: properties(
                b"\x01\x01\x02\0\0\0\x3C\x23\0\x05\x08\0\x03r/t\x09\0\x02\0\xFF\x26\0\x01k\0\x01v\x26\0\x01k\0\x01w\x03\0\x02ct",
            ),
            payload: "hé".as_bytes(),
            ..Publish::default()
        }),
    );
    table.reads(
        "PUBLISH 5.0 with a topic alias instead of a topic",
        V5,
        0x30,
        b"\0\0\x03\x23\0\x01x",
        Packet::Publish(Publish {
            topic_alias: Some(1),
            properties: properties(b"\x23\0\x01"),
            payload: b"x",
            ..Publish::default()
        }),
    );
    table.reads(
        "PUBLISH 5.0 for two subscription identifiers",
        V5,
        0x30,
        b"\0\x01t\x07\x0B\x01\x0B\xFF\xFF\xFF\x7F",
        Packet::Publish(Publish { topic: "t", properties: properties(b"\x0B\x01\x0B\xFF\xFF\xFF\x7F"), ..Publish::default() }),
    );
    table.reads(
        "PUBLISH 5.0 that says its payload is bytes",
        V5,
        0x30,
        b"\0\x01t\x02\x01\0\xFF",
        Packet::Publish(Publish { topic: "t", properties: properties(b"\x01\0"), payload: b"\xFF", ..Publish::default() }),
    );
    table.reads(
        "PUBLISH 5.0 whose UTF-8 payload holds U+0000",
        V5,
        0x30,
        b"\0\x01t\x02\x01\x01a\0b",
        Packet::Publish(Publish {
            topic: "t",
            payload_is_utf8: true,
            properties: properties(b"\x01\x01"),
            payload: b"a\0b",
            ..Publish::default()
        }),
    );
    let long: &'static [u8] = &[b'x'; 200];
    let mut bytes = b"\x30\xCB\x01\0\x01t".to_vec();
    bytes.extend_from_slice(long);
    let packet = Packet::Publish(Publish { topic: "t", payload: long, ..Publish::default() });
    table.push("PUBLISH with a remaining length of two bytes", V3_1_1, bytes, Expect::Packet(Box::new(packet)), &[]);
    let large: &'static [u8] = &[b'y'; 16_384];
    let mut bytes = b"\x30\x84\x80\x01\0\x01t\0".to_vec();
    bytes.extend_from_slice(large);
    let packet = Packet::Publish(Publish { topic: "t", payload: large, ..Publish::default() });
    table.push("PUBLISH with a remaining length of three bytes", V5, bytes, Expect::Packet(Box::new(packet)), &[]);
}

fn publish_errors(table: &mut Table) {
    let topic = ReasonCode::TOPIC_NAME_INVALID;
    let cases: [RefusedPacket; 39] = [
        ("PUBLISH with QoS 3", V5, 0x36, b"\0\x01t\0\x01\0", MALFORMED, &["MQTT-3.3.1-4"]),
        ("PUBLISH 3.1.1 with QoS 3", V3_1_1, 0x36, b"\0\x01t\0\x01", MALFORMED, &["MQTT-3.3.1-4"]),
        ("PUBLISH 3.1 with QoS 3", V3_1, 0x36, b"\0\x01t\0\x01", MALFORMED, &[]),
        ("PUBLISH with DUP at QoS 0", V5, 0x38, b"\0\x01t\0", MALFORMED, &["MQTT-3.3.1-2"]),
        ("PUBLISH 3.1.1 with DUP at QoS 0", V3_1_1, 0x38, b"\0\x01t", MALFORMED, &["MQTT-3.3.1-2"]),
        ("PUBLISH QoS 1 with packet id 0", V5, 0x32, b"\0\x01t\0\0\0", PROTOCOL, &["MQTT-2.2.1-3"]),
        ("PUBLISH 3.1.1 QoS 2 with packet id 0", V3_1_1, 0x34, b"\0\x01t\0\0", PROTOCOL, &["MQTT-2.3.1-1"]),
        ("PUBLISH that is empty", V3_1_1, 0x30, b"", MALFORMED, &["MQTT-3.3.2-1"]),
        ("PUBLISH whose topic runs past its end", V3_1_1, 0x30, b"\0\x05a/b", MALFORMED, &[]),
        ("PUBLISH QoS 1 without a packet id", V3_1_1, 0x32, b"\0\x01t", MALFORMED, &[]),
        ("PUBLISH QoS 1 with half a packet id", V3_1_1, 0x32, b"\0\x01t\x01", MALFORMED, &[]),
        ("PUBLISH 5.0 without a property length", V5, 0x30, b"\0\x01t", MALFORMED, &["MQTT-2.2.2-1"]),
        ("PUBLISH 5.0 whose properties run past its end", V5, 0x30, b"\0\x01t\x03\x01\x01", MALFORMED, &[]),
        ("PUBLISH 5.0 with a property cut by the property length", V5, 0x30, b"\0\x01t\x02\x23\0\x01", MALFORMED, &[]),
        ("PUBLISH 5.0 with a padded property length", V5, 0x30, b"\0\x01t\x80\0", MALFORMED, &["MQTT-1.5.5-1"]),
        ("PUBLISH 5.0 with a property length of five bytes", V5, 0x30, b"\0\x01t\x80\x80\x80\x80\x01", MALFORMED, &[]),
        ("PUBLISH to #", V5, 0x30, b"\0\x01#\0", topic, &["MQTT-3.3.2-2"]),
        ("PUBLISH to a topic with +", V5, 0x30, b"\0\x05a/+/b\0", topic, &["MQTT-3.3.2-2"]),
        ("PUBLISH 3.1.1 to a topic with #", V3_1_1, 0x30, b"\0\x03a/#", topic, &["MQTT-3.3.2-2"]),
        ("PUBLISH to a topic with + within a level", V3_1, 0x30, b"\0\x03a+b", topic, &[]),
        ("PUBLISH to no topic", V5, 0x30, b"\0\0\0x", PROTOCOL, &["MQTT-4.7.3-1"]),
        ("PUBLISH 3.1.1 to no topic", V3_1_1, 0x30, b"\0\0x", PROTOCOL, &["MQTT-4.7.3-1"]),
        ("PUBLISH to a topic with U+0000", V5, 0x30, b"\0\x03a\0b\0", MALFORMED, &["MQTT-4.7.3-2"]),
        ("PUBLISH to a topic with U+0000 and a wildcard", V3_1_1, 0x30, b"\0\x03+\0b", MALFORMED, &["MQTT-1.5.3-2"]),
        ("PUBLISH to a topic that is not UTF-8", V3_1_1, 0x30, b"\0\x02\xC0\x80", MALFORMED, &["MQTT-1.5.3-1"]),
        ("PUBLISH to a topic with a surrogate", V5, 0x30, b"\0\x03\xED\xBF\xBF\0", MALFORMED, &["MQTT-1.5.4-1"]),
        ("PUBLISH to a topic with a character cut", V5, 0x30, b"\0\x02a\xC3\0", MALFORMED, &["MQTT-1.5.4-1"]),
        ("PUBLISH with topic alias 0", V5, 0x30, b"\0\x01t\x03\x23\0\0", ReasonCode::TOPIC_ALIAS_INVALID, &["MQTT-3.3.2-8"]),
        ("PUBLISH with two topic aliases", V5, 0x30, b"\0\x01t\x06\x23\0\x01\x23\0\x01", PROTOCOL, &[]),
        ("PUBLISH with two payload format indicators", V5, 0x30, b"\0\x01t\x04\x01\0\x01\0", PROTOCOL, &[]),
        ("PUBLISH with payload format indicator 2", V5, 0x30, b"\0\x01t\x02\x01\x02", PROTOCOL, &[]),
        (
            "PUBLISH whose payload is not the UTF-8 it says",
            V5,
            0x30,
            b"\0\x01t\x02\x01\x01\xFF",
            ReasonCode::PAYLOAD_FORMAT_INVALID,
            &[],
        ),
        ("PUBLISH with a wildcard in the response topic", V5, 0x30, b"\0\x01t\x04\x08\0\x01#", PROTOCOL, &["MQTT-3.3.2-14"]),
        (
            "PUBLISH with a response topic that is not UTF-8",
            V5,
            0x30,
            b"\0\x01t\x04\x08\0\x01\xFF",
            MALFORMED,
            &["MQTT-3.3.2-13"],
        ),
        ("PUBLISH with a content type that is not UTF-8", V5, 0x30, b"\0\x01t\x04\x03\0\x01\xFF", MALFORMED, &["MQTT-3.3.2-19"]),
        ("PUBLISH with subscription identifier 0", V5, 0x30, b"\0\x01t\x02\x0B\0", PROTOCOL, &[]),
        ("PUBLISH with a padded subscription identifier", V5, 0x30, b"\0\x01t\x03\x0B\x81\0", MALFORMED, &["MQTT-1.5.5-1"]),
        ("PUBLISH with a property of CONNECT", V5, 0x30, b"\0\x01t\x05\x11\0\0\0\x01", MALFORMED, &[]),
        ("PUBLISH with an unknown property", V5, 0x30, b"\0\x01t\x02\x7F\0", MALFORMED, &[]),
    ];
    for (name, version, first, body, reason, statements) in cases {
        table.fails(name, version, first, body, reason, statements);
    }
}

fn acknowledgements(table: &mut Table) {
    type Make = fn(Ack<'static>) -> Packet<'static>;
    let kinds: [(u8, Make, [&'static str; 14], ReasonCode); 4] = [
        (
            0x40,
            Packet::Puback,
            [
                "PUBACK 3.1",
                "PUBACK 3.1.1",
                "PUBACK 5.0",
                "PUBACK with a reason",
                "PUBACK with properties",
                "PUBACK with success spelled out",
                "PUBACK with empty properties",
                "PUBACK that is empty",
                "PUBACK with packet id 0",
                "PUBACK 3.1.1 with bytes left over",
                "PUBACK with an unknown reason",
                "PUBACK with bytes left over",
                "PUBACK with two reason strings",
                "PUBACK with a property of PUBLISH",
            ],
            ReasonCode::QUOTA_EXCEEDED,
        ),
        (
            0x50,
            Packet::Pubrec,
            [
                "PUBREC 3.1",
                "PUBREC 3.1.1",
                "PUBREC 5.0",
                "PUBREC with a reason",
                "PUBREC with properties",
                "PUBREC with success spelled out",
                "PUBREC with empty properties",
                "PUBREC that is empty",
                "PUBREC with packet id 0",
                "PUBREC 3.1.1 with bytes left over",
                "PUBREC with an unknown reason",
                "PUBREC with bytes left over",
                "PUBREC with two reason strings",
                "PUBREC with a property of PUBLISH",
            ],
            ReasonCode::NO_MATCHING_SUBSCRIBERS,
        ),
        (
            0x62,
            Packet::Pubrel,
            [
                "PUBREL 3.1",
                "PUBREL 3.1.1",
                "PUBREL 5.0",
                "PUBREL with a reason",
                "PUBREL with properties",
                "PUBREL with success spelled out",
                "PUBREL with empty properties",
                "PUBREL that is empty",
                "PUBREL with packet id 0",
                "PUBREL 3.1.1 with bytes left over",
                "PUBREL with an unknown reason",
                "PUBREL with bytes left over",
                "PUBREL with two reason strings",
                "PUBREL with a property of PUBLISH",
            ],
            ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
        ),
        (
            0x70,
            Packet::Pubcomp,
            [
                "PUBCOMP 3.1",
                "PUBCOMP 3.1.1",
                "PUBCOMP 5.0",
                "PUBCOMP with a reason",
                "PUBCOMP with properties",
                "PUBCOMP with success spelled out",
                "PUBCOMP with empty properties",
                "PUBCOMP that is empty",
                "PUBCOMP with packet id 0",
                "PUBCOMP 3.1.1 with bytes left over",
                "PUBCOMP with an unknown reason",
                "PUBCOMP with bytes left over",
                "PUBCOMP with two reason strings",
                "PUBCOMP with a property of PUBLISH",
            ],
            ReasonCode::PACKET_IDENTIFIER_NOT_FOUND,
        ),
    ];
    for (first, make, names, reason) in kinds {
        let ack = Ack { packet_id: 0x1234, ..Ack::default() };
        table.reads(names[0], V3_1, first, b"\x12\x34", make(ack.clone()));
        table.reads(names[1], V3_1_1, first, b"\x12\x34", make(ack.clone()));
        table.reads(names[2], V5, first, b"\x12\x34", make(ack.clone()));
        table.reads(names[3], V5, first, &[0x12, 0x34, reason.0], make(Ack { reason, ..ack.clone() }));
        let mut body = vec![0x12, 0x34, reason.0];
        body.extend_from_slice(b"\x0C\x1F\0\x02no\x26\0\x01k\0\x01v");
        let with_properties =
            Ack { reason, reason_string: Some("no"), properties: properties(b"\x1F\0\x02no\x26\0\x01k\0\x01v"), ..ack.clone() };
        table.reads(names[4], V5, first, &body, make(with_properties));
        table.reads_only(names[5], V5, packet(first, b"\x12\x34\0"), make(ack.clone()));
        table.reads_only(names[6], V5, packet(first, b"\x12\x34\0\0"), make(ack));
        table.fails(names[7], V5, first, b"", MALFORMED, &[]);
        table.fails(names[8], V5, first, b"\0\0", PROTOCOL, &["MQTT-2.2.1-5"]);
        table.fails(names[9], V3_1_1, first, b"\x12\x34\0", MALFORMED, &[]);
        table.fails(names[10], V5, first, b"\x12\x34\x8B", PROTOCOL, &[]);
        table.fails(names[11], V5, first, b"\x12\x34\0\0\0", MALFORMED, &[]);
        table.fails(names[12], V5, first, b"\x12\x34\0\x08\x1F\0\x01a\x1F\0\x01b", PROTOCOL, &[]);
        table.fails(names[13], V5, first, b"\x12\x34\0\x03\x23\0\x01", MALFORMED, &[]);
    }
    let released = Packet::Pubrel(Ack { packet_id: 1, ..Ack::default() });
    table.reads_only("PUBREL 3.1 resent with DUP", V3_1, packet(0x6A, b"\0\x01"), released);
}

fn subscribe(table: &mut Table) {
    let simple =
        Subscribe { packet_id: 10, subscription_identifier: None, properties: Properties::EMPTY, filters: SubscribeFilters(b"") };
    let two = SubscribeFilters(b"\0\x03a/b\x01\0\x03c/d\x02");
    let subscribe = |filters| Packet::Subscribe(Subscribe { filters, ..simple.clone() });
    table.reads("SUBSCRIBE 3.1.1", V3_1_1, 0x82, b"\0\x0A\0\x03a/b\x01\0\x03c/d\x02", subscribe(two));
    table.reads("SUBSCRIBE 3.1", V3_1, 0x82, b"\0\x0A\0\x03a/b\x01\0\x03c/d\x02", subscribe(two));
    table.reads("SUBSCRIBE 5.0", V5, 0x82, b"\0\x0A\0\0\x03a/b\x01\0\x03c/d\x02", subscribe(two));
    table.reads(
        "SUBSCRIBE 5.0 with every option",
        V5,
        0x82,
        b"\0\x0A\0\0\x01a\x2E\0\x01b\x1D\0\x10$share/group/+/#\x19",
        subscribe(SubscribeFilters(b"\0\x01a\x2E\0\x01b\x1D\0\x10$share/group/+/#\x19")),
    );
    table.reads(
        "SUBSCRIBE 5.0 with a subscription identifier and a user property",
        V5,
        0x82,
        b"\0\x0A\x0C\x0B\xFF\xFF\xFF\x7F\x26\0\x01k\0\x01v\0\x01#\0",
        Packet::Subscribe(Subscribe {
            packet_id: 10,
            subscription_identifier: Some(268_435_455),
            properties: properties(b"\x0B\xFF\xFF\xFF\x7F\x26\0\x01k\0\x01v"),
            filters: SubscribeFilters(b"\0\x01#\0"),
        }),
    );
    let resent = subscribe(SubscribeFilters(b"\0\x01a\0"));
    table.reads_only("SUBSCRIBE 3.1 resent with DUP", V3_1, packet(0x8A, b"\0\x0A\0\x01a\0"), resent);
    let errors: [Refused; 22] = [
        ("SUBSCRIBE without a filter", V5, b"\0\x01\0", PROTOCOL, &["MQTT-3.8.3-2"]),
        ("SUBSCRIBE 3.1.1 without a filter", V3_1_1, b"\0\x01", PROTOCOL, &["MQTT-3.8.3-3"]),
        ("SUBSCRIBE with packet id 0", V5, b"\0\0\0\0\x01a\0", PROTOCOL, &["MQTT-2.2.1-3"]),
        ("SUBSCRIBE 3.1.1 with packet id 0", V3_1_1, b"\0\0\0\x01a\0", PROTOCOL, &["MQTT-2.3.1-1"]),
        ("SUBSCRIBE that is empty", V5, b"", MALFORMED, &[]),
        ("SUBSCRIBE 5.0 without a property length", V5, b"\0\x01", MALFORMED, &["MQTT-2.2.2-1"]),
        ("SUBSCRIBE without the options", V5, b"\0\x01\0\0\x01a", MALFORMED, &[]),
        ("SUBSCRIBE 3.1.1 without the QoS of its second filter", V3_1_1, b"\0\x01\0\x01a\0\0\x01b", MALFORMED, &[]),
        ("SUBSCRIBE whose filter runs past its end", V5, b"\0\x01\0\0\x05a\0", MALFORMED, &[]),
        ("SUBSCRIBE with QoS 3", V5, b"\0\x01\0\0\x01a\x03", PROTOCOL, &[]),
        ("SUBSCRIBE 3.1.1 with QoS 3", V3_1_1, b"\0\x01\0\x01a\x03", MALFORMED, &["MQTT-3-8.3-4"]),
        ("SUBSCRIBE 3.1.1 with reserved bits", V3_1_1, b"\0\x01\0\x01a\x04", MALFORMED, &["MQTT-3-8.3-4"]),
        ("SUBSCRIBE 3.1 with reserved bits", V3_1, b"\0\x01\0\x01a\x81", MALFORMED, &[]),
        ("SUBSCRIBE with the first reserved bit", V5, b"\0\x01\0\0\x01a\x40", MALFORMED, &["MQTT-3.8.3-5"]),
        ("SUBSCRIBE with the second reserved bit", V5, b"\0\x01\0\0\x01a\x80", MALFORMED, &["MQTT-3.8.3-5"]),
        ("SUBSCRIBE with retain handling 3", V5, b"\0\x01\0\0\x01a\x30", PROTOCOL, &[]),
        ("SUBSCRIBE with no local on a shared subscription", V5, b"\0\x01\0\0\x0A$share/g/a\x04", PROTOCOL, &["MQTT-3.8.3-4"]),
        ("SUBSCRIBE whose filter is not UTF-8", V5, b"\0\x01\0\0\x01\xFF\0", MALFORMED, &["MQTT-3.8.3-1"]),
        ("SUBSCRIBE whose filter holds U+0000", V3_1_1, b"\0\x01\0\x03a\0b\0", MALFORMED, &["MQTT-1.5.3-2"]),
        ("SUBSCRIBE with subscription identifier 0", V5, b"\0\x01\x02\x0B\0\0\x01a\0", PROTOCOL, &[]),
        ("SUBSCRIBE with two subscription identifiers", V5, b"\0\x01\x04\x0B\x01\x0B\x02\0\x01a\0", PROTOCOL, &[]),
        ("SUBSCRIBE with a reason string", V5, b"\0\x01\x04\x1F\0\x01a\0\x01a\0", MALFORMED, &[]),
    ];
    for (name, version, body, reason, statements) in errors {
        table.fails(name, version, 0x82, body, reason, statements);
    }
}

fn unsubscribe(table: &mut Table) {
    let unsubscribe = |properties, filters| Packet::Unsubscribe(Unsubscribe { packet_id: 10, properties, filters });
    let two = UnsubscribeFilters(b"\0\x03a/b\0\x03c/d");
    let none = Properties::EMPTY;
    table.reads("UNSUBSCRIBE 3.1.1", V3_1_1, 0xA2, b"\0\x0A\0\x03a/b\0\x03c/d", unsubscribe(none, two));
    table.reads("UNSUBSCRIBE 3.1", V3_1, 0xA2, b"\0\x0A\0\x03a/b\0\x03c/d", unsubscribe(none, two));
    table.reads("UNSUBSCRIBE 5.0", V5, 0xA2, b"\0\x0A\0\0\x03a/b\0\x03c/d", unsubscribe(none, two));
    table.reads(
        "UNSUBSCRIBE 5.0 with a user property",
        V5,
        0xA2,
        b"\0\x0A\x07\x26\0\x01k\0\x01v\0\x0A$share/g/#",
        unsubscribe(properties(b"\x26\0\x01k\0\x01v"), UnsubscribeFilters(b"\0\x0A$share/g/#")),
    );
    let resent = unsubscribe(none, UnsubscribeFilters(b"\0\x01a"));
    table.reads_only("UNSUBSCRIBE 3.1 resent with DUP", V3_1, packet(0xAA, b"\0\x0A\0\x01a"), resent);
    let errors: [Refused; 9] = [
        ("UNSUBSCRIBE without a filter", V5, b"\0\x01\0", PROTOCOL, &["MQTT-3.10.3-2"]),
        ("UNSUBSCRIBE 3.1.1 without a filter", V3_1_1, b"\0\x01", PROTOCOL, &["MQTT-3.10.3-2"]),
        ("UNSUBSCRIBE with packet id 0", V5, b"\0\0\0\0\x01a", PROTOCOL, &["MQTT-2.2.1-3"]),
        ("UNSUBSCRIBE 5.0 without a property length", V5, b"\0\x01", MALFORMED, &["MQTT-2.2.2-1"]),
        ("UNSUBSCRIBE whose second filter is cut", V5, b"\0\x01\0\0\x01a\0", MALFORMED, &[]),
        ("UNSUBSCRIBE 3.1.1 whose filter runs past its end", V3_1_1, b"\0\x01\0\x02a", MALFORMED, &[]),
        ("UNSUBSCRIBE whose filter is not UTF-8", V5, b"\0\x01\0\0\x02\xC3(", MALFORMED, &["MQTT-3.10.3-1"]),
        ("UNSUBSCRIBE whose filter holds U+0000", V5, b"\0\x01\0\0\x01\0", MALFORMED, &["MQTT-1.5.4-2"]),
        ("UNSUBSCRIBE with a subscription identifier", V5, b"\0\x01\x02\x0B\x01\0\x01a", MALFORMED, &[]),
    ];
    for (name, version, body, reason, statements) in errors {
        table.fails(name, version, 0xA2, body, reason, statements);
    }
}

fn suback_and_unsuback(table: &mut Table) {
    let ack = |reasons| SubAck { packet_id: 10, reason_string: None, reasons };
    table.reads("SUBACK 3.1.1", V3_1_1, 0x90, b"\0\x0A\0\x01\x02\x80", Packet::Suback(ack(b"\0\x01\x02\x80")));
    table.reads("SUBACK 3.1", V3_1, 0x90, b"\0\x0A\x02\x80", Packet::Suback(ack(b"\x02\x80")));
    table.reads("SUBACK 5.0", V5, 0x90, b"\0\x0A\0\0\x01\x02\x87\xA2", Packet::Suback(ack(b"\0\x01\x02\x87\xA2")));
    let with_string = |reasons| SubAck { reason_string: Some("no"), ..ack(reasons) };
    table.reads("SUBACK 5.0 with a reason string", V5, 0x90, b"\0\x0A\x05\x1F\0\x02no\x8F", Packet::Suback(with_string(b"\x8F")));
    table.reads_only(
        "SUBACK 5.0 with a user property",
        V5,
        packet(0x90, b"\0\x0A\x07\x26\0\x01k\0\x01v\0"),
        Packet::Suback(ack(b"\0")),
    );
    table.reads("UNSUBACK 3.1.1", V3_1_1, 0xB0, b"\0\x0A", Packet::Unsuback(ack(b"")));
    table.reads("UNSUBACK 3.1", V3_1, 0xB0, b"\0\x0A", Packet::Unsuback(ack(b"")));
    table.reads("UNSUBACK 5.0", V5, 0xB0, b"\0\x0A\0\0\x11", Packet::Unsuback(ack(b"\0\x11")));
    table.reads(
        "UNSUBACK 5.0 with a reason string",
        V5,
        0xB0,
        b"\0\x0A\x05\x1F\0\x02no\x87",
        Packet::Unsuback(with_string(b"\x87")),
    );
    let errors: [RefusedPacket; 12] = [
        ("SUBACK without a reason", V5, 0x90, b"\0\x01\0", PROTOCOL, &["MQTT-3.9.3-2"]),
        ("SUBACK 3.1.1 without a return code", V3_1_1, 0x90, b"\0\x01", PROTOCOL, &["MQTT-3.9.3-1"]),
        ("SUBACK with the reason of another packet", V5, 0x90, b"\0\x01\0\x11", PROTOCOL, &["MQTT-3.9.3-2"]),
        ("SUBACK 3.1.1 with a reason of 5.0", V3_1_1, 0x90, b"\0\x01\x87", PROTOCOL, &["MQTT-3.9.3-2"]),
        ("SUBACK with packet id 0", V5, 0x90, b"\0\0\0\0", PROTOCOL, &["MQTT-2.2.1-6"]),
        ("SUBACK 5.0 without a property length", V5, 0x90, b"\0\x01", MALFORMED, &["MQTT-2.2.2-1"]),
        ("UNSUBACK without a reason", V5, 0xB0, b"\0\x01\0", PROTOCOL, &["MQTT-3.11.3-2"]),
        ("UNSUBACK with the reason of another packet", V5, 0xB0, b"\0\x01\0\x01", PROTOCOL, &["MQTT-3.11.3-2"]),
        ("UNSUBACK 3.1.1 with bytes left over", V3_1_1, 0xB0, b"\0\x01\0", MALFORMED, &[]),
        ("UNSUBACK with packet id 0", V3_1_1, 0xB0, b"\0\0", PROTOCOL, &["MQTT-2.3.1-7"]),
        ("UNSUBACK with half a packet id", V5, 0xB0, b"\0", MALFORMED, &[]),
        ("UNSUBACK with two reason strings", V5, 0xB0, b"\0\x01\x08\x1F\0\x01a\x1F\0\x01b\0", PROTOCOL, &[]),
    ];
    for (name, version, first, body, reason, statements) in errors {
        table.fails(name, version, first, body, reason, statements);
    }
}

fn ping_disconnect_and_auth(table: &mut Table) {
    for (name, version) in [("PINGREQ 3.1", V3_1), ("PINGREQ 3.1.1", V3_1_1), ("PINGREQ 5.0", V5)] {
        table.reads(name, version, 0xC0, b"", Packet::Pingreq);
    }
    for (name, version) in [("PINGRESP 3.1", V3_1), ("PINGRESP 3.1.1", V3_1_1), ("PINGRESP 5.0", V5)] {
        table.reads(name, version, 0xD0, b"", Packet::Pingresp);
    }
    table.fails("PINGREQ with a body", V5, 0xC0, b"\0", MALFORMED, &[]);
    table.fails("PINGREQ 3.1.1 with a body", V3_1_1, 0xC0, b"\0", MALFORMED, &[]);
    table.fails("PINGRESP with a body", V5, 0xD0, b"\0", MALFORMED, &[]);

    let normal = Disconnect::default();
    for (name, version) in [("DISCONNECT 3.1", V3_1), ("DISCONNECT 3.1.1", V3_1_1), ("DISCONNECT 5.0", V5)] {
        table.reads(name, version, 0xE0, b"", Packet::Disconnect(normal.clone()));
    }
    let with_will = Disconnect { reason: ReasonCode::DISCONNECT_WITH_WILL_MESSAGE, ..normal.clone() };
    table.reads("DISCONNECT with the will", V5, 0xE0, b"\x04", Packet::Disconnect(with_will));
    table.reads(
        "DISCONNECT with all properties",
        V5,
        0xE0,
        b"\x9D\x19\x11\0\0\0\x0A\x1F\0\x03why\x1C\0\x04a b:\x26\0\x01k\0\x01v",
        Packet::Disconnect(Disconnect {
            reason: ReasonCode::SERVER_MOVED,
            session_expiry_interval_s: Some(10),
            reason_string: Some("why"),
            server_reference: Some("a b:"),
            properties: properties(b"\x11\0\0\0\x0A\x1F\0\x03why\x1C\0\x04a b:\x26\0\x01k\0\x01v"),
        }),
    );
    table.reads_only("DISCONNECT with the reason spelled out", V5, packet(0xE0, b"\0"), Packet::Disconnect(normal.clone()));
    table.reads_only("DISCONNECT with empty properties", V5, packet(0xE0, b"\0\0"), Packet::Disconnect(normal));
    let errors: [Refused; 8] = [
        ("DISCONNECT 3.1.1 with a body", V3_1_1, b"\0", MALFORMED, &[]),
        ("DISCONNECT 3.1 with a body", V3_1, b"\0", MALFORMED, &[]),
        ("DISCONNECT with an unknown reason", V5, b"\x03", PROTOCOL, &["MQTT-3.14.2-1"]),
        ("DISCONNECT with the reason of another packet", V5, b"\x92", PROTOCOL, &["MQTT-3.14.2-1"]),
        ("DISCONNECT with bytes left over", V5, b"\0\0\0", MALFORMED, &[]),
        ("DISCONNECT with two session expiry intervals", V5, b"\0\x0A\x11\0\0\0\x01\x11\0\0\0\x01", PROTOCOL, &[]),
        ("DISCONNECT with a property of CONNECT", V5, b"\0\x03\x21\0\x01", MALFORMED, &[]),
        ("DISCONNECT whose properties run past its end", V5, b"\0\x05\x11\0", MALFORMED, &[]),
    ];
    for (name, version, body, reason, statements) in errors {
        table.fails(name, version, 0xE0, body, reason, statements);
    }

    table.reads("AUTH that is empty", V5, 0xF0, b"", Packet::Auth(Auth::default()));
    table.reads(
        "AUTH with all properties",
        V5,
        0xF0,
        b"\x18\x19\x15\0\x05SCRAM\x16\0\x01d\x1F\0\x03why\x26\0\x01k\0\x01v",
        Packet::Auth(Auth {
            reason: ReasonCode::CONTINUE_AUTHENTICATION,
            authentication_method: Some("SCRAM"),
            authentication_data: Some(b"d"),
            reason_string: Some("why"),
            properties: properties(b"\x15\0\x05SCRAM\x16\0\x01d\x1F\0\x03why\x26\0\x01k\0\x01v"),
        }),
    );
    table.reads(
        "AUTH that asks for another authentication",
        V5,
        0xF0,
        b"\x19\x04\x15\0\x01m",
        Packet::Auth(Auth {
            reason: ReasonCode::RE_AUTHENTICATE,
            authentication_method: Some("m"),
            properties: properties(b"\x15\0\x01m"),
            ..Auth::default()
        }),
    );
    let errors: [(&'static str, &[u8], ReasonCode, Statements); 8] = [
        ("AUTH with an unknown reason", b"\x01\x04\x15\0\x01m", PROTOCOL, &["MQTT-3.15.2-1"]),
        ("AUTH with an error", b"\x87\x04\x15\0\x01m", PROTOCOL, &["MQTT-3.15.2-1"]),
        ("AUTH without a method", b"\x18\x04\x16\0\x01d", PROTOCOL, &["MQTT-4.12.0-5"]),
        ("AUTH without properties", b"\x18\0", PROTOCOL, &["MQTT-4.12.0-5"]),
        ("AUTH without a property length", b"\x18", MALFORMED, &["MQTT-2.2.2-1"]),
        ("AUTH with two methods", b"\x18\x08\x15\0\x01m\x15\0\x01m", PROTOCOL, &[]),
        ("AUTH with bytes left over", b"\x18\x04\x15\0\x01m\0", MALFORMED, &[]),
        ("AUTH with a property of CONNECT", b"\x18\x07\x15\0\x01m\x21\0\x01", MALFORMED, &[]),
    ];
    for (name, body, reason, statements) in errors {
        table.fails(name, V5, 0xF0, body, reason, statements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_case_is_read_as_it_says() {
        let mut wrong = Vec::new();
        for case in cases() {
            let read = match Case::read(&case.bytes, case.version) {
                Ok(Some(packet)) => format!("{:?}", Ok::<_, ReasonCode>(Some(packet))),
                Ok(None) => format!("{:?}", Ok::<Option<Packet<'_>>, ReasonCode>(None)),
                Err(error) => format!("{:?}", Err::<Option<Packet<'_>>, _>(error.reason)),
            };
            let expected: Result<Option<Packet<'_>>, _> = match &case.expect {
                Expect::Packet(packet) => Ok(Some((**packet).clone())),
                Expect::Incomplete => Ok(None),
                Expect::Error(reason) => Err(*reason),
            };
            if Case::read(&case.bytes, case.version).map_err(|error| error.reason) != expected {
                wrong.push(format!("{}:\n  is        {read}\n  should be {expected:?}", case.name));
            }
        }
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }

    #[test]
    fn each_canonical_packet_is_written_as_it_was_read_and_each_other_one_reads_back() {
        for case in cases() {
            let Expect::Packet(packet) = &case.expect else { continue };
            let version = case.version.unwrap_or(Version::V5);
            let mut written = vec![0xAA];
            encode(packet, version, &mut written);
            assert_eq!(written.remove(0), 0xAA, "{}: what was there stays", case.name);
            if case.canonical {
                assert_eq!(written, case.bytes, "{}", case.name);
            } else {
                assert_ne!(written, case.bytes, "{} is canonical", case.name);
                assert_eq!(Case::read(&written, case.version), Ok(Some((**packet).clone())), "{}", case.name);
            }
        }
    }

    #[test]
    fn each_prefix_of_a_packet_is_incomplete() {
        for case in cases() {
            if let Expect::Packet(_) = case.expect {
                for end in 0..case.bytes.len() {
                    assert_eq!(Case::read(&case.bytes[..end], case.version), Ok(None), "{} cut at {end}", case.name);
                }
            }
        }
    }

    #[test]
    fn each_packet_whose_body_is_cut_is_an_error_or_another_valid_packet() {
        for case in cases() {
            let (Expect::Packet(_), Ok(Some(whole))) = (&case.expect, frame(&case.bytes, PACKET_BYTES_MAX)) else { continue };
            for end in 0..whole.body.len().min(300) {
                let cut = packet(whole.first, &whole.body[..end]);
                if let Some(packet) = Case::read(&cut, case.version).unwrap_or_default() {
                    let mut written = Vec::new();
                    encode(&packet, case.version.unwrap_or(Version::V5), &mut written);
                    assert_eq!(Case::read(&written, case.version), Ok(Some(packet)), "{} cut at {end}", case.name);
                }
            }
        }
    }

    #[test]
    fn the_table_has_every_packet_in_every_version_and_no_name_twice() {
        let cases = cases();
        assert!(cases.len() >= 150, "{} cases", cases.len());
        let mut names = HashSet::new();
        for case in &cases {
            assert!(names.insert(case.name), "{} stands twice", case.name);
        }
        for packet_type in CONNECT..=AUTH {
            for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
                if packet_type == AUTH && version != Version::V5 {
                    continue;
                }
                let found = cases.iter().any(|case| match &case.expect {
                    Expect::Packet(packet) => match &**packet {
                        Packet::Connect(connect) => packet_type == CONNECT && connect.version == version,
                        _ => self::packet_type(case.bytes[0]) == packet_type && case.version == Some(version),
                    },
                    _ => false,
                });
                assert!(found, "no packet of type {packet_type} in {version:?}");
            }
        }
    }

    /// Marsaglia's xorshift64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, bound: usize) -> usize {
            (self.next() % bound.max(1) as u64) as usize
        }
    }

    /// Reads `bytes` in every version; whatever is a packet must be written so that it reads back the same.
    fn survives(bytes: &[u8]) {
        for version in [FIRST, V3_1, V3_1_1, V5] {
            let Ok(Some(packet)) = Case::read(bytes, version) else { continue };
            match &packet {
                Packet::Subscribe(subscribe) => {
                    let mut scratch = Vec::new();
                    let list: Vec<_> = subscribe.filters.iter().collect();
                    assert_eq!(SubscribeFilters::new(&list, &mut scratch), subscribe.filters);
                }
                Packet::Unsubscribe(unsubscribe) => {
                    let mut scratch = Vec::new();
                    let list: Vec<_> = unsubscribe.filters.iter().collect();
                    assert_eq!(UnsubscribeFilters::new(&list, &mut scratch), unsubscribe.filters);
                }
                Packet::Publish(publish) => {
                    let (mut scratch, mut rewritten) = (Vec::new(), Vec::new());
                    let list: Vec<_> = publish.properties.iter().collect();
                    assert_eq!(Properties::new(&list, &mut rewritten), publish.properties);
                    let forwarded = publish.properties.forwarded(&mut scratch);
                    assert!(Properties::parse(forwarded, PacketKind::Will).is_ok());
                }
                _ => {}
            }
            let mut written = Vec::new();
            encode(&packet, version.unwrap_or(Version::V5), &mut written);
            // In MQTT 3.1 a CONNACK does not say whether the session is present.
            if !(version == V3_1 && matches!(packet, Packet::Connack(_))) {
                assert_eq!(Case::read(&written, version), Ok(Some(packet)), "{bytes:x?} written as {written:x?}");
            }
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        for _ in 0..100_000 {
            let length = random.below(40);
            let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            survives(&bytes);
            if let Some(byte) = bytes.get_mut(1) {
                *byte = length.saturating_sub(2) as u8;
            }
            survives(&bytes);
        }
    }

    #[test]
    fn mutated_cases_never_panic() {
        let mut random = Random(0x2545_F491_4F6C_DD1D);
        let seeds: Vec<_> = cases().into_iter().map(|case| case.bytes).filter(|bytes| bytes.len() < 400).collect();
        for _ in 0..200_000 {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
                    1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
                    2 => bytes.insert(at, random.next() as u8),
                    _ if !bytes.is_empty() => {
                        bytes.remove(at);
                    }
                    _ => {}
                }
            }
            survives(&bytes);
            let length = bytes.len();
            if (2..130).contains(&length) {
                bytes[1] = length as u8 - 2;
                survives(&bytes);
            }
        }
    }
}
