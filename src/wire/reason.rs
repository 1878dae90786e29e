//! The reason codes of section 2.4, the packets each may stand in, and their place in MQTT 3.x, which has fewer.

use super::property::PacketKind;
use std::fmt;

/// Why something succeeded or failed: one byte, an error from 0x80 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ReasonCode(pub u8);

macro_rules! reason_codes {
    ($($constant:ident = $value:literal $name:literal,)*) => {
        impl ReasonCode {
            $(#[doc = $name] pub const $constant: Self = Self($value);)*

            /// The name that the standard prints; of those that share a value the first.
            #[allow(unreachable_patterns, reason = "0x00 has three names")]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $name,)*
                    _ => "Unknown reason",
                }
            }

            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

reason_codes! {
    SUCCESS = 0x00 "Success",
    NORMAL_DISCONNECTION = 0x00 "Normal disconnection",
    GRANTED_QOS_0 = 0x00 "Granted QoS 0",
    GRANTED_QOS_1 = 0x01 "Granted QoS 1",
    GRANTED_QOS_2 = 0x02 "Granted QoS 2",
    DISCONNECT_WITH_WILL_MESSAGE = 0x04 "Disconnect with Will Message",
    NO_MATCHING_SUBSCRIBERS = 0x10 "No matching subscribers",
    NO_SUBSCRIPTION_EXISTED = 0x11 "No subscription existed",
    CONTINUE_AUTHENTICATION = 0x18 "Continue authentication",
    RE_AUTHENTICATE = 0x19 "Re-authenticate",
    UNSPECIFIED_ERROR = 0x80 "Unspecified error",
    MALFORMED_PACKET = 0x81 "Malformed Packet",
    PROTOCOL_ERROR = 0x82 "Protocol Error",
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83 "Implementation specific error",
    UNSUPPORTED_PROTOCOL_VERSION = 0x84 "Unsupported Protocol Version",
    CLIENT_IDENTIFIER_NOT_VALID = 0x85 "Client Identifier not valid",
    BAD_USER_NAME_OR_PASSWORD = 0x86 "Bad User Name or Password",
    NOT_AUTHORIZED = 0x87 "Not authorized",
    SERVER_UNAVAILABLE = 0x88 "Server unavailable",
    SERVER_BUSY = 0x89 "Server busy",
    BANNED = 0x8A "Banned",
    SERVER_SHUTTING_DOWN = 0x8B "Server shutting down",
    BAD_AUTHENTICATION_METHOD = 0x8C "Bad authentication method",
    KEEP_ALIVE_TIMEOUT = 0x8D "Keep Alive timeout",
    SESSION_TAKEN_OVER = 0x8E "Session taken over",
    TOPIC_FILTER_INVALID = 0x8F "Topic Filter invalid",
    TOPIC_NAME_INVALID = 0x90 "Topic Name invalid",
    PACKET_IDENTIFIER_IN_USE = 0x91 "Packet Identifier in use",
    PACKET_IDENTIFIER_NOT_FOUND = 0x92 "Packet Identifier not found",
    RECEIVE_MAXIMUM_EXCEEDED = 0x93 "Receive Maximum exceeded",
    TOPIC_ALIAS_INVALID = 0x94 "Topic Alias invalid",
    PACKET_TOO_LARGE = 0x95 "Packet too large",
    MESSAGE_RATE_TOO_HIGH = 0x96 "Message rate too high",
    QUOTA_EXCEEDED = 0x97 "Quota exceeded",
    ADMINISTRATIVE_ACTION = 0x98 "Administrative action",
    PAYLOAD_FORMAT_INVALID = 0x99 "Payload format invalid",
    RETAIN_NOT_SUPPORTED = 0x9A "Retain not supported",
    QOS_NOT_SUPPORTED = 0x9B "QoS not supported",
    USE_ANOTHER_SERVER = 0x9C "Use another server",
    SERVER_MOVED = 0x9D "Server moved",
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E "Shared Subscriptions not supported",
    CONNECTION_RATE_EXCEEDED = 0x9F "Connection rate exceeded",
    MAXIMUM_CONNECT_TIME = 0xA0 "Maximum connect time",
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1 "Subscription Identifiers not supported",
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2 "Wildcard Subscriptions not supported",
}

impl ReasonCode {
    pub const fn is_error(self) -> bool {
        self.0 >= 0x80
    }

    /// Whether MQTT 5.0 lets this code stand in a packet of `kind` (table 2-6). Who may send it is not looked at.
    pub const fn may_stand_in(self, kind: PacketKind) -> bool {
        match kind {
            PacketKind::Connack => matches!(self.0, 0 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99..=0x9D | 0x9F),
            PacketKind::Puback | PacketKind::Pubrec => {
                matches!(self.0, 0 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99)
            }
            PacketKind::Pubrel | PacketKind::Pubcomp => matches!(self.0, 0 | 0x92),
            PacketKind::Suback => {
                matches!(self.0, 0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2)
            }
            PacketKind::Unsuback => matches!(self.0, 0 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91),
            PacketKind::Disconnect => {
                matches!(self.0, 0 | 4 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B..=0x90 | 0x93..=0xA2)
            }
            PacketKind::Auth => matches!(self.0, 0 | 0x18 | 0x19),
            PacketKind::Connect | PacketKind::Will | PacketKind::Publish | PacketKind::Subscribe | PacketKind::Unsubscribe => {
                false
            }
        }
    }

    /// The CONNACK return code of MQTT 3.x that says this best (MQTT 3.1.1, table 3.1). Whatever is about the client's credentials
    /// or conduct is 5 (not authorized), so that it does not retry at once; whatever may pass is 3 (server unavailable).
    pub const fn connack_return_code(self) -> u8 {
        match self {
            Self(code) if code < 0x80 => 0,
            Self::UNSUPPORTED_PROTOCOL_VERSION => 1,
            Self::CLIENT_IDENTIFIER_NOT_VALID => 2,
            Self::BAD_USER_NAME_OR_PASSWORD => 4,
            Self::MALFORMED_PACKET
            | Self::PROTOCOL_ERROR
            | Self::NOT_AUTHORIZED
            | Self::BANNED
            | Self::BAD_AUTHENTICATION_METHOD
            | Self::TOPIC_NAME_INVALID
            | Self::PACKET_TOO_LARGE
            | Self::PAYLOAD_FORMAT_INVALID
            | Self::RETAIN_NOT_SUPPORTED
            | Self::QOS_NOT_SUPPORTED => 5,
            _ => 3,
        }
    }

    /// What a CONNACK return code of MQTT 3.x means; `None` for the reserved ones.
    pub const fn from_connack_return_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::SUCCESS,
            1 => Self::UNSUPPORTED_PROTOCOL_VERSION,
            2 => Self::CLIENT_IDENTIFIER_NOT_VALID,
            3 => Self::SERVER_UNAVAILABLE,
            4 => Self::BAD_USER_NAME_OR_PASSWORD,
            5 => Self::NOT_AUTHORIZED,
            _ => return None,
        })
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} 0x{:02X}", self.name(), self.0)
    }
}

impl fmt::Debug for ReasonCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_of_the_table_have_a_name_and_print_it_with_their_value() {
        assert_eq!(ReasonCode::ALL.len(), 45);
        assert!(ReasonCode::ALL.iter().all(|code| code.name() != "Unknown reason"));
        assert_eq!(ReasonCode::MALFORMED_PACKET.to_string(), "Malformed Packet 0x81");
        assert_eq!(ReasonCode(0x42).to_string(), "Unknown reason 0x42");
        assert!(ReasonCode::UNSPECIFIED_ERROR.is_error() && !ReasonCode::RE_AUTHENTICATE.is_error());
    }

    #[test]
    fn each_packet_takes_exactly_the_codes_that_table_2_6_gives_it() {
        let codes = |kind| (0..=0xFF).filter(|code| ReasonCode(*code).may_stand_in(kind)).collect::<Vec<u8>>();
        assert_eq!(
            codes(PacketKind::Connack),
            [
                0, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
                0x9C, 0x9D, 0x9F
            ]
        );
        assert_eq!(codes(PacketKind::Puback), [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]);
        assert_eq!(codes(PacketKind::Pubrec), codes(PacketKind::Puback));
        assert_eq!(codes(PacketKind::Pubrel), [0, 0x92]);
        assert_eq!(codes(PacketKind::Pubcomp), [0, 0x92]);
        assert_eq!(codes(PacketKind::Suback), [0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]);
        assert_eq!(codes(PacketKind::Unsuback), [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]);
        assert_eq!(
            codes(PacketKind::Disconnect),
            [
                0, 4, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
                0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2
            ]
        );
        assert_eq!(codes(PacketKind::Auth), [0, 0x18, 0x19]);
        assert!(codes(PacketKind::Publish).is_empty());
    }

    #[test]
    fn return_codes_of_3_x_survive_the_way_there_and_back() {
        for code in 0..=5 {
            assert_eq!(ReasonCode::from_connack_return_code(code).unwrap().connack_return_code(), code);
        }
        assert_eq!(ReasonCode::from_connack_return_code(6), None);
        for (reason, code) in [(0x89, 3), (0x97, 3), (0x9F, 3), (0x8A, 5), (0x80, 3), (0x9C, 3)] {
            assert_eq!(ReasonCode(reason).connack_return_code(), code, "{reason:#x}");
        }
    }
}
