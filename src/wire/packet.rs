//! The packets, named as the standards name them. Everything borrows from the bytes read. Fields that only MQTT 5.0 carries hold
//! their "absent" value in the older versions.

use super::property::{Properties, Property, write_string};
use super::reader::Reader;
use super::reason::ReasonCode;

/// A protocol version, as CONNECT's protocol level names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1 (`MQIsdp`, level 3).
    V3_1 = 3,
    /// MQTT 3.1.1 (`MQTT`, level 4).
    V3_1_1 = 4,
    /// MQTT 5.0 (`MQTT`, level 5).
    V5 = 5,
}

/// How often a message arrives, section 4.3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
#[repr(u8)]
pub enum QoS {
    #[default]
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl QoS {
    /// The QoS that the two low bits of `bits` name; 3 is none.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

impl TryFrom<u8> for QoS {
    type Error = WireError;

    /// Errors: 0x81 for anything but 0, 1 and 2.
    fn try_from(value: u8) -> Result<Self, WireError> {
        Self::from_bits(value).filter(|_| value < 3).ok_or(WireError::malformed("QoS is none of 0, 1 and 2"))
    }
}

/// Why bytes are not a packet. `reason` is what the standard says to answer an MQTT 5 client with, `what` is for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} ({reason})")]
pub struct WireError {
    pub reason: ReasonCode,
    pub what: &'static str,
}

impl WireError {
    /// The bytes cannot be read as a packet.
    pub(super) const fn malformed(what: &'static str) -> Self {
        Self { reason: ReasonCode::MALFORMED_PACKET, what }
    }

    /// The bytes can be read, but say what is not allowed there.
    pub(super) const fn protocol_error(what: &'static str) -> Self {
        Self { reason: ReasonCode::PROTOCOL_ERROR, what }
    }
}

/// Any packet of any version, in either direction.
#[derive(Clone, PartialEq, Debug)]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    Connack(Connack<'a>),
    Publish(Publish<'a>),
    Puback(Ack<'a>),
    Pubrec(Ack<'a>),
    Pubrel(Ack<'a>),
    Pubcomp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    Suback(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    Unsuback(SubAck<'a>),
    Pingreq,
    Pingresp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// CONNECT, section 3.1.
#[derive(Clone, PartialEq, Debug)]
pub struct Connect<'a> {
    pub version: Version,
    /// The top bit of the protocol level: a bridge of the mosquitto family says so with it.
    pub bridge: bool,
    /// Clean Start (5.0), Clean Session (3.x).
    pub clean_start: bool,
    pub keep_alive_s: u16,
    /// 5.0: absent means 0.
    pub session_expiry_interval_s: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub maximum_packet_size: Option<u32>,
    pub topic_alias_maximum: u16,
    pub request_response_information: bool,
    pub request_problem_information: bool,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
    /// All properties, user properties among them.
    pub properties: Properties<'a>,
    pub client_id: &'a str,
    pub will: Option<Will<'a>>,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

impl Default for Connect<'_> {
    /// MQTT 5.0, clean start, everything else absent.
    fn default() -> Self {
        Self {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive_s: 0,
            session_expiry_interval_s: None,
            receive_maximum: None,
            maximum_packet_size: None,
            topic_alias_maximum: 0,
            request_response_information: false,
            request_problem_information: true,
            authentication_method: None,
            authentication_data: None,
            properties: Properties::EMPTY,
            client_id: "",
            will: None,
            username: None,
            password: None,
        }
    }
}

/// The will in a CONNECT, sections 3.1.2.5 and 3.1.3.2.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Will<'a> {
    pub qos: QoS,
    pub retain: bool,
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub delay_interval_s: u32,
    pub message_expiry_interval_s: Option<u32>,
    pub payload_is_utf8: bool,
    pub properties: Properties<'a>,
}

/// CONNACK, section 3.2. In 3.x only `session_present` and the return code that `reason` stands for are on the wire
/// (3.1 has not even `session_present`). User properties are checked, then left out.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Connack<'a> {
    pub session_present: bool,
    pub reason: ReasonCode,
    pub session_expiry_interval_s: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub maximum_qos: Option<QoS>,
    pub retain_available: Option<bool>,
    pub maximum_packet_size: Option<u32>,
    pub assigned_client_id: Option<&'a str>,
    pub topic_alias_maximum: Option<u16>,
    pub reason_string: Option<&'a str>,
    pub wildcard_subscription_available: Option<bool>,
    pub subscription_identifiers_available: Option<bool>,
    pub shared_subscription_available: Option<bool>,
    pub server_keep_alive_s: Option<u16>,
    pub response_information: Option<&'a str>,
    pub server_reference: Option<&'a str>,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
}

/// PUBLISH, section 3.3, as received (or as a test client writes it; the broker's own deliveries go through `encode_publish`).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only with a topic alias.
    pub topic: &'a str,
    /// 0 at QoS 0.
    pub packet_id: u16,
    pub topic_alias: Option<u16>,
    pub message_expiry_interval_s: Option<u32>,
    pub payload_is_utf8: bool,
    pub response_topic: Option<&'a str>,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// Whether it carries a subscription identifier, which only a server may send: from a client it is a protocol error (0x82)
    /// `[MQTT-3.3.4-6]`.
    #[inline]
    pub fn has_subscription_identifier(&self) -> bool {
        !self.properties.is_empty() && self.properties.has_subscription_identifier()
    }

    /// The identifiers of the subscriptions that a server says this message is for.
    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.properties.iter().filter_map(|property| match property {
            Property::SubscriptionIdentifier(identifier) => Some(identifier),
            _ => None,
        })
    }
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP, sections 3.4 to 3.7.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ack<'a> {
    pub packet_id: u16,
    pub reason: ReasonCode,
    pub reason_string: Option<&'a str>,
    pub properties: Properties<'a>,
}

/// SUBSCRIBE, section 3.8. At least one filter; each is valid UTF-8, its syntax is for `topic::Filter` to judge.
#[derive(Clone, PartialEq, Debug)]
pub struct Subscribe<'a> {
    pub packet_id: u16,
    pub subscription_identifier: Option<u32>,
    pub properties: Properties<'a>,
    pub filters: SubscribeFilters<'a>,
}

/// The payload of a SUBSCRIBE, already checked; `iter` walks it without allocating.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SubscribeFilters<'a>(pub(super) &'a [u8]);

impl<'a> SubscribeFilters<'a> {
    /// Writes `list`, which has at least one filter, into `scratch`, which is cleared first. For MQTT 3.x the options must be a QoS
    /// and nothing else.
    pub fn new(list: &[(&str, SubscriptionOptions)], scratch: &'a mut Vec<u8>) -> Self {
        debug_assert!(!list.is_empty(), "a SUBSCRIBE has at least one filter");
        scratch.clear();
        for (filter, options) in list {
            write_string(filter, scratch);
            scratch.push(options.to_byte());
        }
        Self(scratch)
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a str, SubscriptionOptions)> {
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || {
            let filter = reader.string().ok()?;
            let options = SubscriptionOptions::from_byte(reader.byte().ok()?, Version::V5).ok()?;
            Some((filter, options))
        })
    }
}

/// A subscription's options, section 3.8.3.1. MQTT 3.x has the QoS only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

impl SubscriptionOptions {
    /// The byte that follows a filter in SUBSCRIBE.
    pub const fn to_byte(self) -> u8 {
        self.qos as u8 | (self.no_local as u8) << 2 | (self.retain_as_published as u8) << 3 | (self.retain_handling as u8) << 4
    }

    /// Errors: 0x81 for reserved bits `[MQTT-3.8.3-5]` (in MQTT 3.x all but the QoS, and QoS 3, `[MQTT-3-8.3-4]` there), 0x82 for
    /// QoS 3 or retain handling 3.
    pub const fn from_byte(byte: u8, version: Version) -> Result<Self, WireError> {
        let reserved = match version {
            Version::V3_1 | Version::V3_1_1 => byte > 2,
            Version::V5 => byte & 0xC0 != 0,
        };
        if reserved {
            return Err(WireError::malformed("reserved bits of the subscription options are set"));
        }
        let Some(qos) = QoS::from_bits(byte) else {
            return Err(WireError::protocol_error("maximum QoS of a subscription is 3"));
        };
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(WireError::protocol_error("retain handling is 3")),
        };
        Ok(Self { qos, no_local: byte & 4 != 0, retain_as_published: byte & 8 != 0, retain_handling })
    }
}

impl From<QoS> for SubscriptionOptions {
    fn from(qos: QoS) -> Self {
        Self { qos, ..Self::default() }
    }
}

/// Whether a new subscription is sent the retained messages that match it, section 3.8.3.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum RetainHandling {
    #[default]
    Send = 0,
    /// Only when the subscription did not exist before.
    SendIfNew = 1,
    DoNotSend = 2,
}

/// UNSUBSCRIBE, section 3.10.
#[derive(Clone, PartialEq, Debug)]
pub struct Unsubscribe<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub filters: UnsubscribeFilters<'a>,
}

/// The payload of an UNSUBSCRIBE, already checked; `iter` walks it without allocating.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnsubscribeFilters<'a>(pub(super) &'a [u8]);

impl<'a> UnsubscribeFilters<'a> {
    /// Writes `list`, which has at least one filter, into `scratch`, which is cleared first.
    pub fn new(list: &[&str], scratch: &'a mut Vec<u8>) -> Self {
        debug_assert!(!list.is_empty(), "an UNSUBSCRIBE has at least one filter");
        scratch.clear();
        list.iter().for_each(|filter| write_string(filter, scratch));
        Self(scratch)
    }

    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || reader.string().ok())
    }
}

/// SUBACK and UNSUBACK, sections 3.9 and 3.11. A 3.x UNSUBACK carries no reason codes. User properties are checked, then
/// left out.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SubAck<'a> {
    pub packet_id: u16,
    pub reason_string: Option<&'a str>,
    /// One byte a filter, each a [`ReasonCode`].
    pub reasons: &'a [u8],
}

/// DISCONNECT, section 3.14.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Disconnect<'a> {
    pub reason: ReasonCode,
    pub session_expiry_interval_s: Option<u32>,
    pub reason_string: Option<&'a str>,
    pub server_reference: Option<&'a str>,
    pub properties: Properties<'a>,
}

/// AUTH, section 3.15.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Auth<'a> {
    pub reason: ReasonCode,
    pub authentication_method: Option<&'a str>,
    pub authentication_data: Option<&'a [u8]>,
    pub reason_string: Option<&'a str>,
    pub properties: Properties<'a>,
}
