//! An application message: borrowed while it is being routed, owned (one allocation, shared by count, readable on every core) from
//! the moment something has to keep it: a queue, a window, a ring, the retained store.

use crate::time::Time;
use crate::wire::QoS;
use smallvec::SmallVec;
use std::cell::Cell;
use triomphe::ThinArc;

thread_local! {
    /// Bytes of messages made minus bytes of messages freed on this core since [`take_charge`]: a message is charged once, however
    /// many hold it, and may be freed on another core than the one that made it.
    static CHARGE: Cell<i64> = const { Cell::new(0) };
}

/// The change of memory in messages on this core since the last call.
pub fn take_charge() -> i64 {
    CHARGE.take()
}

/// A message as it is being routed, borrowed from wherever its bytes are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageRef<'a> {
    pub topic: &'a str,
    /// The MQTT 5.0 properties that travel with the message unaltered, as they are on the wire.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// When its message expiry interval has passed; [`Time::NEVER`] without one.
    pub expires_at: Time,
}

#[derive(Debug, PartialEq, Eq)]
struct Head {
    expires_at: Time,
    /// Topic, properties and payload.
    len: u32,
    properties_len: u32,
    topic_len: u16,
    qos: QoS,
    retain: bool,
}

impl Drop for Head {
    fn drop(&mut self) {
        CHARGE.set(CHARGE.get() - (Message::OVERHEAD_BYTES + self.len as usize) as i64);
    }
}

/// An owned, immutable message. Cloning counts a reference.
#[derive(Clone, Debug)]
pub struct Message(ThinArc<Head, u8>);

impl Message {
    /// What a message occupies beyond its topic, properties and payload.
    pub const OVERHEAD_BYTES: usize = 16 + size_of::<Head>();

    pub fn topic(&self) -> &str {
        str::from_utf8(self.topic_bytes()).expect("a message is made from a &str topic")
    }

    /// The topic as it lies in memory, for who only compares it.
    pub fn topic_bytes(&self) -> &[u8] {
        &self.0.slice[..usize::from(self.0.header.header.topic_len)]
    }

    pub fn payload(&self) -> &[u8] {
        let head = &self.0.header.header;
        &self.0.slice[usize::from(head.topic_len) + head.properties_len as usize..]
    }

    pub fn qos(&self) -> QoS {
        self.0.header.header.qos
    }

    pub fn expires_at(&self) -> Time {
        self.0.header.header.expires_at
    }

    /// Bytes of memory this message occupies, however many hold it.
    pub fn bytes(&self) -> usize {
        Self::OVERHEAD_BYTES + self.0.slice.len()
    }

    /// The address of the shared allocation: equal for two handles of one message.
    pub fn same(&self, other: &Message) -> bool {
        std::ptr::eq(self.0.slice.as_ptr(), other.0.slice.as_ptr())
    }

    /// Whether this handle is the only one.
    pub fn is_unique(&self) -> bool {
        ThinArc::strong_count(&self.0) == 1
    }

    pub fn as_ref(&self) -> MessageRef<'_> {
        let head = &self.0.header.header;
        let (topic, rest) = self.0.slice.split_at(usize::from(head.topic_len));
        let (properties, payload) = rest.split_at(head.properties_len as usize);
        MessageRef {
            topic: str::from_utf8(topic).expect("a message is made from a &str topic"),
            properties,
            payload,
            qos: head.qos,
            retain: head.retain,
            expires_at: head.expires_at,
        }
    }
}

impl From<MessageRef<'_>> for Message {
    fn from(message: MessageRef<'_>) -> Self {
        let len = message.topic.len() + message.properties.len() + message.payload.len();
        let head = Head {
            expires_at: message.expires_at,
            len: u32::try_from(len).expect("a packet is less than 4 GiB"),
            properties_len: u32::try_from(message.properties.len()).expect("properties fit a packet"),
            topic_len: u16::try_from(message.topic.len()).expect("a topic is at most 65,535 bytes"),
            qos: message.qos,
            retain: message.retain,
        };
        CHARGE.set(CHARGE.get() + (Self::OVERHEAD_BYTES + len) as i64);
        let mut bytes: SmallVec<[u8; 512]> = SmallVec::with_capacity(len);
        bytes.extend_from_slice(message.topic.as_bytes());
        bytes.extend_from_slice(message.properties);
        bytes.extend_from_slice(message.payload);
        Message(ThinArc::from_header_and_slice(head, &bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_charged_once_and_uncharged_when_its_last_holder_lets_go() {
        take_charge();
        let message = Message::from(MessageRef {
            topic: "t",
            properties: &[],
            payload: &[0; 100],
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at: Time::NEVER,
        });
        let second = message.clone();
        assert_eq!(take_charge(), message.bytes() as i64);
        drop(message);
        assert_eq!(take_charge(), 0);
        let bytes = second.bytes() as i64;
        drop(second);
        assert_eq!(take_charge(), -bytes);
    }

    #[test]
    fn owned_message_reads_back_what_was_borrowed() {
        let borrowed = MessageRef {
            topic: "a/b",
            properties: &[1, 1],
            payload: b"hello",
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at: Time(7),
        };
        let owned = Message::from(borrowed);
        assert_eq!(owned.as_ref(), borrowed);
        assert_eq!((owned.topic(), owned.payload()), ("a/b", &b"hello"[..]));
        assert!(owned.is_unique());
        let second = owned.clone();
        assert!(owned.same(&second) && !owned.is_unique());
    }
}
