//! The properties of MQTT 5.0, section 2.2.2: one table says their identifiers, names and types, and one pass over the bytes
//! checks them. A [`Properties`] is the bytes themselves: what a packet carried, in its order, ready to be sent on.

use super::packet::WireError;
use super::reader::Reader;
use super::reason::ReasonCode;
use super::varint;
use std::fmt;

/// Where properties and reason codes stand: the packets that have them, and the will in a CONNECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    Connect,
    Will,
    Connack,
    Publish,
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
    Subscribe,
    Suback,
    Unsubscribe,
    Unsuback,
    Disconnect,
    Auth,
}

/// Writers of the data types, under the names of [`Reader`]'s methods.
mod writer {
    pub use super::varint::write as varint;

    pub fn byte(value: u8, out: &mut Vec<u8>) {
        out.push(value);
    }

    pub fn two_bytes(value: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.to_be_bytes());
    }

    pub fn four_bytes(value: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&value.to_be_bytes());
    }

    /// Longer than 65,535 bytes is a bug of the caller; it is cut, so that what follows on the connection stays readable.
    pub fn binary(value: &[u8], out: &mut Vec<u8>) {
        debug_assert!(value.len() <= usize::from(u16::MAX), "{} bytes do not fit a field", value.len());
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        two_bytes(length, out);
        out.extend_from_slice(&value[..usize::from(length)]);
    }

    pub fn string(value: &str, out: &mut Vec<u8>) {
        binary(value.as_bytes(), out);
    }

    pub fn string_pair((name, value): (&str, &str), out: &mut Vec<u8>) {
        string(name, out);
        string(value, out);
    }
}
pub(super) use writer::{binary as write_binary, string as write_string};

macro_rules! properties {
    ($($id:literal $name:ident: $codec:ident -> $type:ty,)*) => {
        /// One property and its value. Intervals are in seconds, sizes in bytes, flags 0 or 1.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Property<'a> {
            $($name($type),)*
        }

        impl<'a> Property<'a> {
            /// The property's identifier (table 2-4).
            pub const fn id(&self) -> u8 {
                match self {
                    $(Self::$name(_) => $id,)*
                }
            }

            /// Appends identifier and value.
            pub fn encode(&self, out: &mut Vec<u8>) {
                out.push(self.id());
                match *self {
                    $(Self::$name(value) => writer::$codec(value, out),)*
                }
            }

            #[inline]
            fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, WireError> {
                Ok(match id {
                    $($id => Self::$name(reader.$codec()?),)*
                    _ => return Err(NOT_HERE),
                })
            }
        }
    };
}

properties! {
    0x01 PayloadFormatIndicator: byte -> u8,
    0x02 MessageExpiryInterval: four_bytes -> u32,
    0x03 ContentType: string -> &'a str,
    0x08 ResponseTopic: string -> &'a str,
    0x09 CorrelationData: binary -> &'a [u8],
    0x0B SubscriptionIdentifier: varint -> u32,
    0x11 SessionExpiryInterval: four_bytes -> u32,
    0x12 AssignedClientIdentifier: string -> &'a str,
    0x13 ServerKeepAlive: two_bytes -> u16,
    0x15 AuthenticationMethod: string -> &'a str,
    0x16 AuthenticationData: binary -> &'a [u8],
    0x17 RequestProblemInformation: byte -> u8,
    0x18 WillDelayInterval: four_bytes -> u32,
    0x19 RequestResponseInformation: byte -> u8,
    0x1A ResponseInformation: string -> &'a str,
    0x1C ServerReference: string -> &'a str,
    0x1F ReasonString: string -> &'a str,
    0x21 ReceiveMaximum: two_bytes -> u16,
    0x22 TopicAliasMaximum: two_bytes -> u16,
    0x23 TopicAlias: two_bytes -> u16,
    0x24 MaximumQoS: byte -> u8,
    0x25 RetainAvailable: byte -> u8,
    0x26 UserProperty: string_pair -> (&'a str, &'a str),
    0x27 MaximumPacketSize: four_bytes -> u32,
    0x28 WildcardSubscriptionAvailable: byte -> u8,
    0x29 SubscriptionIdentifierAvailable: byte -> u8,
    0x2A SharedSubscriptionAvailable: byte -> u8,
}

const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
const USER_PROPERTY: u8 = 0x26;

const NOT_HERE: WireError = WireError::malformed("property is unknown or not allowed in this packet");
/// Properties of one packet; see `FILTERS_MAX` in `decode`.
const PROPERTIES_MAX: usize = 8_192;
const TOO_MANY: WireError = WireError { reason: ReasonCode::QUOTA_EXCEEDED, what: "more properties than one packet may carry" };
const TWICE: WireError = WireError::protocol_error("property is included more than once");
const PAST_LENGTH: WireError = WireError::malformed("property length is beyond the packet");
const ZERO_ALIAS: WireError = WireError { reason: ReasonCode::TOPIC_ALIAS_INVALID, what: "topic alias is 0" };

/// A set of identifiers; all are below 64.
#[derive(Clone, Copy)]
pub(super) struct Ids(u64);

impl Ids {
    const fn of(ids: &[u8]) -> Self {
        let mut set = 0;
        let mut index = 0;
        while index < ids.len() {
            set |= 1 << ids[index];
            index += 1;
        }
        Self(set)
    }

    #[inline]
    pub const fn contains(self, id: u8) -> bool {
        id < 64 && self.0 & (1 << id) != 0
    }

    /// Identifiers from 64 on do not exist; such a byte is not remembered.
    #[inline]
    fn insert(&mut self, id: u8) {
        self.0 |= 1u64.checked_shl(u32::from(id)).unwrap_or(0);
    }

    #[inline]
    const fn all_in(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The properties that a packet of `kind` may carry (table 2-4).
    const fn allowed_in(kind: PacketKind) -> Self {
        const CONNECT: Ids = Ids::of(&[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27]);
        const WILL: Ids = Ids::of(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]);
        const CONNACK: Ids =
            Ids::of(&[0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A]);
        const PUBLISH: Ids = Ids::of(&[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26]);
        const ACKNOWLEDGEMENT: Ids = Ids::of(&[0x1F, 0x26]);
        const SUBSCRIBE: Ids = Ids::of(&[0x0B, 0x26]);
        const UNSUBSCRIBE: Ids = Ids::of(&[0x26]);
        const DISCONNECT: Ids = Ids::of(&[0x11, 0x1C, 0x1F, 0x26]);
        const AUTH: Ids = Ids::of(&[0x15, 0x16, 0x1F, 0x26]);
        match kind {
            PacketKind::Connect => CONNECT,
            PacketKind::Will => WILL,
            PacketKind::Connack => CONNACK,
            PacketKind::Publish => PUBLISH,
            PacketKind::Puback
            | PacketKind::Pubrec
            | PacketKind::Pubrel
            | PacketKind::Pubcomp
            | PacketKind::Suback
            | PacketKind::Unsuback => ACKNOWLEDGEMENT,
            PacketKind::Subscribe => SUBSCRIBE,
            PacketKind::Unsubscribe => UNSUBSCRIBE,
            PacketKind::Disconnect => DISCONNECT,
            PacketKind::Auth => AUTH,
        }
    }
}

/// What a server passes on unaltered: payload format indicator, content type, response topic, correlation data, user properties
/// `[MQTT-3.3.2-4]` `[MQTT-3.3.2-15]` `[MQTT-3.3.2-16]` `[MQTT-3.3.2-17]` `[MQTT-3.3.2-20]`.
const FORWARDED: Ids = Ids::of(&[0x01, 0x03, 0x08, 0x09, 0x26]);

/// Properties that may stand more than once: user properties anywhere, subscription identifiers in a PUBLISH (section 3.3.2.3.8).
const REPEATABLE: Ids = Ids::of(&[USER_PROPERTY]);
const REPEATABLE_IN_PUBLISH: Ids = Ids::of(&[USER_PROPERTY, SUBSCRIPTION_IDENTIFIER]);

impl Property<'_> {
    /// Whether the value is one that the standard allows.
    #[inline]
    fn check(&self) -> Result<(), WireError> {
        match *self {
            Self::PayloadFormatIndicator(2..)
            | Self::RequestProblemInformation(2..)
            | Self::RequestResponseInformation(2..)
            | Self::MaximumQoS(2..)
            | Self::RetainAvailable(2..)
            | Self::WildcardSubscriptionAvailable(2..)
            | Self::SubscriptionIdentifierAvailable(2..)
            | Self::SharedSubscriptionAvailable(2..) => Err(WireError::protocol_error("property is neither 0 nor 1")),
            Self::ReceiveMaximum(0) => Err(WireError::protocol_error("receive maximum is 0")),
            Self::MaximumPacketSize(0) => Err(WireError::protocol_error("maximum packet size is 0")),
            Self::SubscriptionIdentifier(0) => Err(WireError::protocol_error("subscription identifier is 0")),
            Self::TopicAlias(0) => Err(ZERO_ALIAS),
            // [MQTT-3.3.2-14] [MQTT-4.7.3-1]
            Self::ResponseTopic(topic) if topic.is_empty() || topic.contains(['+', '#']) => {
                Err(WireError::protocol_error("response topic is not a topic name"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads past one property of checked bytes without looking at its value; its identifier, `None` at the end.
#[inline]
fn skip(reader: &mut Reader<'_>) -> Option<u8> {
    let id = reader.byte().ok()?;
    match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A => reader.take(1).ok()?,
        0x13 | 0x21..=0x23 => reader.take(2).ok()?,
        0x02 | 0x11 | 0x18 | 0x27 => reader.take(4).ok()?,
        SUBSCRIPTION_IDENTIFIER => {
            reader.varint().ok()?;
            &[]
        }
        USER_PROPERTY => {
            reader.binary().ok()?;
            reader.binary().ok()?
        }
        _ => reader.binary().ok()?,
    };
    Some(id)
}

/// The properties of one packet as they are on the wire, without the length before them. They have been checked, so reading them
/// cannot fail.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    pub const EMPTY: Self = Self(&[]);

    /// Wraps bytes that [`Properties::parse`] has accepted before or that [`Property::encode`] wrote. Other bytes do no harm, but
    /// reading stops at the first that are no property.
    pub const fn from_validated(raw: &'a [u8]) -> Self {
        Self(raw)
    }

    /// Writes `list` into `scratch`, which is cleared first.
    pub fn new(list: &[Property<'_>], scratch: &'a mut Vec<u8>) -> Self {
        scratch.clear();
        list.iter().for_each(|property| property.encode(scratch));
        Self(scratch)
    }

    /// Checks `raw`, the properties (without their length) of a packet of `kind`.
    ///
    /// Errors: 0x81 for what cannot be read or may not stand in that packet, 0x82 for what stands twice or has a value that is not
    /// allowed, 0x94 for a topic alias of 0.
    pub fn parse(raw: &'a [u8], kind: PacketKind) -> Result<Self, WireError> {
        Self::visit(raw, kind, |_| ())
    }

    /// Reads the length and the properties of a packet of `kind`, checks them, and hands each to `take`, all in one pass.
    #[inline]
    pub(super) fn read(
        reader: &mut Reader<'a>,
        kind: PacketKind,
        take: impl FnMut(Property<'a>),
    ) -> Result<Properties<'a>, WireError> {
        let length = reader.varint()?;
        if length == 0 {
            return Ok(Self::EMPTY);
        }
        let raw = reader.take(length as usize).map_err(|_| PAST_LENGTH)?;
        Self::visit(raw, kind, take)
    }

    #[inline]
    fn visit(raw: &'a [u8], kind: PacketKind, mut take: impl FnMut(Property<'a>)) -> Result<Self, WireError> {
        let allowed = Ids::allowed_in(kind);
        let repeatable = if kind == PacketKind::Publish { REPEATABLE_IN_PUBLISH } else { REPEATABLE };
        let mut seen = Ids(0);
        let mut reader = Reader::new(raw);
        let mut count = 0;
        while !reader.is_empty() {
            count += 1;
            if count > PROPERTIES_MAX {
                return Err(TOO_MANY);
            }
            let id = reader.byte()?;
            if !allowed.contains(id) {
                return Err(NOT_HERE);
            }
            let property = Property::read(id, &mut reader)?;
            if seen.contains(id) && !repeatable.contains(id) {
                return Err(TWICE);
            }
            seen.insert(id);
            property.check()?;
            take(property);
        }
        Ok(Self(raw))
    }

    #[inline]
    pub const fn raw(self) -> &'a [u8] {
        self.0
    }

    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(self) -> impl Iterator<Item = Property<'a>> {
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || {
            let id = reader.byte().ok()?;
            Property::read(id, &mut reader).ok()
        })
    }

    /// As they are on the wire, without the length before them.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn user_properties(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.iter().filter_map(|property| match property {
            Property::UserProperty(pair) => Some(pair),
            _ => None,
        })
    }

    /// What a server must pass on unaltered of a PUBLISH's or will's properties, in their order: payload format indicator, content
    /// type, response topic, correlation data, user properties. Left out are topic alias, message expiry interval, subscription
    /// identifiers and will delay interval. When there is nothing to leave out, these are the packet's own bytes and `scratch`
    /// stays as it is.
    #[inline]
    pub fn forwarded<'b>(self, scratch: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if self.ids().all_in(FORWARDED) {
            return self.0;
        }
        scratch.clear();
        let mut reader = Reader::new(self.0);
        loop {
            let before = reader.rest();
            let Some(id) = skip(&mut reader) else { return scratch };
            if FORWARDED.contains(id) {
                scratch.extend_from_slice(&before[..before.len() - reader.rest().len()]);
            }
        }
    }

    /// The identifiers of the properties in it.
    #[inline]
    pub(super) fn ids(self) -> Ids {
        let mut ids = Ids(0);
        let mut reader = Reader::new(self.0);
        while let Some(id) = skip(&mut reader) {
            ids.insert(id);
        }
        ids
    }

    #[inline]
    pub(super) fn has_subscription_identifier(self) -> bool {
        self.ids().contains(SUBSCRIPTION_IDENTIFIER)
    }
}

impl fmt::Debug for Properties<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each, in the order of table 2-4, with its bytes.
    fn one_of_each() -> Vec<(Property<'static>, &'static [u8])> {
        vec![
            (Property::PayloadFormatIndicator(1), b"\x01\x01"),
            (Property::MessageExpiryInterval(0x01020304), b"\x02\x01\x02\x03\x04"),
            (Property::ContentType("ct"), b"\x03\0\x02ct"),
            (Property::ResponseTopic("r/t"), b"\x08\0\x03r/t"),
            (Property::CorrelationData(b"\0\xFF"), b"\x09\0\x02\0\xFF"),
            (Property::SubscriptionIdentifier(321), b"\x0B\xC1\x02"),
            (Property::SessionExpiryInterval(u32::MAX), b"\x11\xFF\xFF\xFF\xFF"),
            (Property::AssignedClientIdentifier("id"), b"\x12\0\x02id"),
            (Property::ServerKeepAlive(0x1234), b"\x13\x12\x34"),
            (Property::AuthenticationMethod("m"), b"\x15\0\x01m"),
            (Property::AuthenticationData(b"d"), b"\x16\0\x01d"),
            (Property::RequestProblemInformation(0), b"\x17\0"),
            (Property::WillDelayInterval(5), b"\x18\0\0\0\x05"),
            (Property::RequestResponseInformation(1), b"\x19\x01"),
            (Property::ResponseInformation("ri"), b"\x1A\0\x02ri"),
            (Property::ServerReference("sr"), b"\x1C\0\x02sr"),
            (Property::ReasonString("rs"), b"\x1F\0\x02rs"),
            (Property::ReceiveMaximum(1), b"\x21\0\x01"),
            (Property::TopicAliasMaximum(0), b"\x22\0\0"),
            (Property::TopicAlias(7), b"\x23\0\x07"),
            (Property::MaximumQoS(1), b"\x24\x01"),
            (Property::RetainAvailable(0), b"\x25\0"),
            (Property::UserProperty(("k", "v")), b"\x26\0\x01k\0\x01v"),
            (Property::MaximumPacketSize(1), b"\x27\0\0\0\x01"),
            (Property::WildcardSubscriptionAvailable(1), b"\x28\x01"),
            (Property::SubscriptionIdentifierAvailable(0), b"\x29\0"),
            (Property::SharedSubscriptionAvailable(1), b"\x2A\x01"),
        ]
    }

    const KINDS: [PacketKind; 14] = [
        PacketKind::Connect,
        PacketKind::Will,
        PacketKind::Connack,
        PacketKind::Publish,
        PacketKind::Puback,
        PacketKind::Pubrec,
        PacketKind::Pubrel,
        PacketKind::Pubcomp,
        PacketKind::Subscribe,
        PacketKind::Suback,
        PacketKind::Unsubscribe,
        PacketKind::Unsuback,
        PacketKind::Disconnect,
        PacketKind::Auth,
    ];

    #[test]
    fn each_property_writes_its_bytes_and_reads_back_from_them() {
        let mut all = Vec::new();
        for (property, bytes) in one_of_each() {
            let mut written = Vec::new();
            property.encode(&mut written);
            assert_eq!(written, bytes, "{property:?}");
            all.extend(written);
        }
        let expected: Vec<_> = one_of_each().into_iter().map(|(property, _)| property).collect();
        assert_eq!(Properties::from_validated(&all).iter().collect::<Vec<_>>(), expected);
        assert!(expected.iter().all(|property| Properties::from_validated(&all).ids().contains(property.id())));
    }

    /// The rows of table 2-4, read column-wise: how many packets each property may stand in, and which.
    #[test]
    fn each_property_is_accepted_in_its_packets_and_malformed_in_all_others() {
        use PacketKind::*;
        for (property, bytes) in one_of_each() {
            let allowed: &[PacketKind] = match property.id() {
                0x01 | 0x02 | 0x03 | 0x08 | 0x09 => &[Publish, Will],
                0x0B => &[Publish, Subscribe],
                0x11 => &[Connect, Connack, Disconnect],
                0x15 | 0x16 => &[Connect, Connack, Auth],
                0x17 | 0x19 => &[Connect],
                0x18 => &[Will],
                0x1C => &[Connack, Disconnect],
                0x1F => &[Connack, Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback, Disconnect, Auth],
                0x21 | 0x22 | 0x27 => &[Connect, Connack],
                0x23 => &[Publish],
                0x26 => &KINDS,
                _ => &[Connack],
            };
            for kind in KINDS {
                let parsed = Properties::parse(bytes, kind);
                if allowed.contains(&kind) {
                    assert_eq!(parsed.map(Properties::raw), Ok(bytes), "{property:?} in {kind:?}");
                    let twice = Properties::parse(&bytes.repeat(2), kind).map(|_| ()).map_err(|error| error.reason);
                    let repeatable = property.id() == 0x26 || property.id() == 0x0B && kind == Publish;
                    assert_eq!(
                        twice,
                        if repeatable { Ok(()) } else { Err(ReasonCode::PROTOCOL_ERROR) },
                        "{property:?} in {kind:?}"
                    );
                    for end in 1..bytes.len() {
                        let cut = Properties::parse(&bytes[..end], kind).unwrap_err().reason;
                        assert_eq!(cut, ReasonCode::MALFORMED_PACKET, "{property:?} cut at {end}");
                    }
                } else {
                    assert_eq!(parsed.unwrap_err().reason, ReasonCode::MALFORMED_PACKET, "{property:?} in {kind:?}");
                }
            }
        }
        for id in (0..=0xFF).filter(|id| one_of_each().iter().all(|(property, _)| property.id() != *id)) {
            for kind in KINDS {
                assert_eq!(Properties::parse(&[id, 0, 0, 0, 0], kind).unwrap_err().reason, ReasonCode::MALFORMED_PACKET);
            }
        }
    }

    #[test]
    fn values_that_the_standard_forbids_are_refused() {
        use PacketKind::*;
        let cases: [(&[u8], PacketKind, ReasonCode); 17] = [
            (b"\x01\x02", Publish, ReasonCode::PROTOCOL_ERROR),
            (b"\x17\x02", Connect, ReasonCode::PROTOCOL_ERROR),
            (b"\x19\xFF", Connect, ReasonCode::PROTOCOL_ERROR),
            (b"\x24\x02", Connack, ReasonCode::PROTOCOL_ERROR),
            (b"\x25\x02", Connack, ReasonCode::PROTOCOL_ERROR),
            (b"\x28\x02", Connack, ReasonCode::PROTOCOL_ERROR),
            (b"\x29\x02", Connack, ReasonCode::PROTOCOL_ERROR),
            (b"\x2A\x02", Connack, ReasonCode::PROTOCOL_ERROR),
            (b"\x21\0\0", Connect, ReasonCode::PROTOCOL_ERROR),
            (b"\x27\0\0\0\0", Connack, ReasonCode::PROTOCOL_ERROR),
            (b"\x0B\0", Subscribe, ReasonCode::PROTOCOL_ERROR),
            (b"\x23\0\0", Publish, ReasonCode::TOPIC_ALIAS_INVALID),
            (b"\x08\0\x01#", Publish, ReasonCode::PROTOCOL_ERROR),
            (b"\x08\0\x03a/+", Will, ReasonCode::PROTOCOL_ERROR),
            (b"\x08\0\0", Publish, ReasonCode::PROTOCOL_ERROR),
            (b"\x03\0\x01\xFF", Publish, ReasonCode::MALFORMED_PACKET),
            (b"\x26\0\x01k\0\x01\0", Publish, ReasonCode::MALFORMED_PACKET),
        ];
        for (bytes, kind, reason) in cases {
            assert_eq!(Properties::parse(bytes, kind).unwrap_err().reason, reason, "{bytes:x?} in {kind:?}");
        }
    }

    #[test]
    fn what_is_passed_on_borrows_when_nothing_is_left_out_and_keeps_its_order_when_something_is() {
        let whole = b"\x26\0\x01a\0\x011\x01\x01\x26\0\x01b\0\x012\x03\0\x02ct\x08\0\x01r\x09\0\x01c";
        let properties = Properties::parse(whole, PacketKind::Publish).unwrap();
        let mut scratch = vec![9];
        assert_eq!(properties.forwarded(&mut scratch).as_ptr(), whole.as_ptr());
        assert_eq!(scratch, [9], "nothing was copied");

        let mixed = b"\x26\0\x01a\0\x011\x23\0\x01\x01\x01\x02\0\0\0\x09\x26\0\x01b\0\x012\x0B\x80\x01";
        let properties = Properties::parse(mixed, PacketKind::Publish).unwrap();
        assert_eq!(properties.forwarded(&mut scratch), b"\x26\0\x01a\0\x011\x01\x01\x26\0\x01b\0\x012");
        assert!(properties.has_subscription_identifier());
        assert_eq!(properties.user_properties().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);

        let will = Properties::parse(b"\x18\0\0\0\x01", PacketKind::Will).unwrap();
        assert_eq!(will.forwarded(&mut scratch), b"");
        assert!(!will.has_subscription_identifier());
    }

    #[test]
    fn properties_written_from_a_list_are_that_list() {
        let list = [Property::TopicAlias(3), Property::UserProperty(("k", "v"))];
        let mut scratch = vec![1, 2, 3];
        assert_eq!(Properties::new(&list, &mut scratch).iter().collect::<Vec<_>>(), list);
    }
}
