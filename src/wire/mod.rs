//! The MQTT codec: packets of MQTT 3.1, 3.1.1 and 5.0 in one set of types, the version as an argument. It decodes in place (packets
//! borrow from the bytes they were read from), never allocates for what it reads, and never trusts a length.
//!
//! `frame` finds where a packet ends, `decode` reads one, `encode` writes one. Reading is strict about what the standards call
//! malformed; what depends on state (packet ids in use, aliases known) or on the direction (a client must not send a subscription
//! identifier in a PUBLISH) is the session's to judge.
//!
//! Which reason code: bytes that cannot be read, and flags that are not allowed, are 0x81 (Malformed Packet); a value that can be
//! read but is not allowed there is 0x82 (Protocol Error); where the standard has a code for the very case, it is that one.

#[doc(hidden)]
pub mod cases;
mod decode;
mod encode;
mod frame;
mod packet;
mod property;
mod reader;
mod reason;
pub mod varint;

pub use decode::{connect_version, decode};
pub use encode::{OutgoingPublish, PublishSpan, encode, encode_publish, publish_len};
pub use frame::{
    AUTH, CONNACK, CONNECT, DISCONNECT, Frame, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, SUBSCRIBE,
    UNSUBACK, UNSUBSCRIBE, beginning, frame, packet_type,
};
pub use packet::*;
pub use property::{PacketKind, Properties, Property};
pub use reason::ReasonCode;
