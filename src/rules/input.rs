//! What a rule looks at: a message that was published, or an event of the broker. The fields are the same set for all; which of them
//! a source has is in [`FIELDS`]. Whatever takes work (text, JSON, user properties) is done when first asked for and at most once,
//! however many rules look.

use super::document::Document;
use super::path::Step;
use super::value::{Map, Value};
use super::work::Work;
use crate::wire::Properties;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::SocketAddr;

/// Where rows come from. Events are named in FROM as topics that begin with `$events/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A message that a client published.
    Message,
    ClientConnected,
    ClientDisconnected,
    /// A client subscribed, or subscribed anew.
    SessionSubscribed,
    /// A message for a client was dropped.
    MessageDropped,
    /// A client acknowledged a message, or with QoS 0 it was written to the client's connection.
    MessageDelivered,
}

impl Source {
    pub const EVENTS: [Source; 5] = [
        Source::ClientConnected,
        Source::ClientDisconnected,
        Source::SessionSubscribed,
        Source::MessageDropped,
        Source::MessageDelivered,
    ];
    pub const ALL: [Source; 6] = [
        Source::Message,
        Source::ClientConnected,
        Source::ClientDisconnected,
        Source::SessionSubscribed,
        Source::MessageDropped,
        Source::MessageDelivered,
    ];

    /// The name in FROM, behind `$events/`, and in the field `event`.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Message => "message_published",
            Source::ClientConnected => "client_connected",
            Source::ClientDisconnected => "client_disconnected",
            Source::SessionSubscribed => "session_subscribed",
            Source::MessageDropped => "message_dropped",
            Source::MessageDelivered => "message_delivered",
        }
    }

    /// When there is one.
    pub const fn doc(self) -> &'static str {
        match self {
            Source::Message => "A message was published.",
            Source::ClientConnected => "A client's CONNECT was accepted.",
            Source::ClientDisconnected => {
                "The connection of a client ended; `reason` says why, such as `DISCONNECT by the client`."
            }
            Source::SessionSubscribed => "A client subscribed, or subscribed anew: one for each filter that was granted.",
            Source::MessageDropped => "A message for a client was dropped: its queue or socket was full, it expired, and so on.",
            Source::MessageDelivered => {
                "A client acknowledged a message, or with QoS 0 it was written to the client's connection."
            }
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A field by its name in SQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    Event,
    ClientId,
    Username,
    PeerAddress,
    Topic,
    Payload,
    Qos,
    Retain,
    UserProperties,
    ProtocolVersion,
    KeepAliveS,
    CleanStart,
    SessionExpiryS,
    Resumed,
    Reason,
    Timestamp,
    Node,
}

/// One line of the table of fields.
pub struct FieldEntry {
    pub field: Field,
    pub name: &'static str,
    pub doc: &'static str,
    /// A bit for each source that has it.
    sources: u8,
}

impl FieldEntry {
    pub fn is_in(&self, source: Source) -> bool {
        self.sources & source.bit() != 0
    }
}

const ALL: u8 = 0b11_1111;
const CONNECTED: u8 = Source::ClientConnected.bit();
const DISCONNECTED: u8 = Source::ClientDisconnected.bit();
const DROPPED: u8 = Source::MessageDropped.bit();
const DELIVERED: u8 = Source::MessageDelivered.bit();
const MESSAGES: u8 = Source::Message.bit() | DROPPED | DELIVERED;
const TOPICS: u8 = MESSAGES | Source::SessionSubscribed.bit();

const fn field(field: Field, name: &'static str, sources: u8, doc: &'static str) -> FieldEntry {
    FieldEntry { field, name, doc, sources }
}

/// All fields, in the order in which `*` gives them.
pub const FIELDS: [FieldEntry; 17] = [
    field(Field::Event, "event", ALL, "The source: `message_published`, or the event's name"),
    field(Field::ClientId, "clientid", ALL, "The client that published, or that the event is about"),
    field(Field::Username, "username", ALL, "The client's user name, or NULL"),
    field(Field::PeerAddress, "peer_address", ALL, "The client's address and port"),
    field(Field::Topic, "topic", TOPICS, "The topic, or the filter that was subscribed; `topic[2]` is its second level"),
    field(
        Field::Payload,
        "payload",
        MESSAGES,
        "The payload: text, or bytes if it is not UTF-8; `payload.a.b[1]` looks into it as JSON",
    ),
    field(Field::Qos, "qos", TOPICS, "QoS of the message, or granted to the subscription"),
    field(Field::Retain, "retain", MESSAGES, "Whether the message is retained"),
    field(
        Field::UserProperties,
        "user_properties",
        MESSAGES,
        "User properties by name (MQTT 5.0); of a name sent twice the last one",
    ),
    field(Field::ProtocolVersion, "protocol_version", CONNECTED, "3, 4 (MQTT 3.1.1) or 5"),
    field(Field::KeepAliveS, "keep_alive_s", CONNECTED, "Keep alive in seconds"),
    field(Field::CleanStart, "clean_start", CONNECTED, "Whether the client asked for a new session"),
    field(
        Field::SessionExpiryS,
        "session_expiry_s",
        CONNECTED,
        "Session expiry interval in seconds; NULL if the client sent none",
    ),
    field(Field::Resumed, "resumed", CONNECTED, "Whether the client found its session"),
    field(Field::Reason, "reason", DISCONNECTED | DROPPED, "Why"),
    field(Field::Timestamp, "timestamp", ALL, "When, in milliseconds since 1970-01-01 UTC"),
    field(Field::Node, "node", ALL, "The broker's name"),
];

/// The parts, borrowed from wherever they are. What a source does not have stays as in the default and reads as NULL.
#[derive(Clone, Copy, Default)]
pub struct Input<'m> {
    pub client_id: Option<&'m str>,
    pub username: Option<&'m str>,
    pub peer_address: Option<SocketAddr>,
    pub topic: Option<&'m str>,
    pub payload: Option<&'m [u8]>,
    pub qos: Option<u8>,
    pub retain: Option<bool>,
    pub properties: Option<Properties<'m>>,
    pub protocol_version: Option<u8>,
    pub keep_alive_s: Option<u16>,
    pub clean_start: Option<bool>,
    pub session_expiry_s: Option<u32>,
    pub resumed: Option<bool>,
    pub reason: Option<&'m str>,
    /// Milliseconds since 1970-01-01 UTC. A rule runs in the turn that it describes, so this is `now` as well.
    pub timestamp_ms: i64,
    pub node: &'m str,
}

/// An [`Input`] with what was worked out of it.
pub struct View<'m> {
    source: Source,
    input: Input<'m>,
    text: OnceCell<Option<&'m str>>,
    document: OnceCell<Result<Document<'m>, String>>,
    /// What its rules may still do.
    work: Work,
}

impl<'m> View<'m> {
    pub fn new(source: Source, input: Input<'m>) -> Self {
        Self { source, input, text: OnceCell::new(), document: OnceCell::new(), work: Work::new() }
    }

    pub fn source(&self) -> Source {
        self.source
    }

    pub fn work(&self) -> &Work {
        &self.work
    }

    pub fn now_ms(&self) -> i64 {
        self.input.timestamp_ms
    }

    /// Whether the payload was parsed as JSON: no rule has looked into it otherwise.
    pub fn is_parsed(&self) -> bool {
        self.document.get().is_some()
    }

    pub fn field(&self, field: Field) -> Value<'_> {
        let input = &self.input;
        let text = |text: Option<&'m str>| text.map_or(Value::Null, Value::text);
        let truth = |truth: Option<bool>| truth.map_or(Value::Null, Value::Bool);
        let int = |number: Option<i64>| number.map_or(Value::Null, Value::Int);
        match field {
            Field::Event => Value::text(self.source.name()),
            Field::ClientId => text(input.client_id),
            Field::Username => text(input.username),
            Field::PeerAddress => input.peer_address.map_or(Value::Null, |address| Value::text(address.to_string())),
            Field::Topic => text(input.topic),
            Field::Payload => match (self.text(), input.payload) {
                (Some(text), _) => Value::text(text),
                (None, Some(bytes)) => Value::Bytes(Cow::Borrowed(bytes)),
                (None, None) => Value::Null,
            },
            Field::Qos => int(input.qos.map(i64::from)),
            Field::Retain => truth(input.retain),
            Field::UserProperties => {
                let pairs = input.properties.into_iter().flat_map(Properties::user_properties);
                Value::Map(pairs.map(|(name, value)| (Cow::Borrowed(name), Value::text(value))).collect::<Map<'_>>())
            }
            Field::ProtocolVersion => int(input.protocol_version.map(i64::from)),
            Field::KeepAliveS => int(input.keep_alive_s.map(i64::from)),
            Field::CleanStart => truth(input.clean_start),
            Field::SessionExpiryS => int(input.session_expiry_s.map(i64::from)),
            Field::Resumed => truth(input.resumed),
            Field::Reason => text(input.reason),
            Field::Timestamp => Value::Int(input.timestamp_ms),
            Field::Node => Value::text(input.node),
        }
    }

    /// A level of the topic, counted from 1, or with a negative number from the end.
    pub fn topic_level(&self, number: i64) -> Value<'_> {
        self.input.topic.and_then(|topic| level(topic, number)).map_or(Value::Null, Value::text)
    }

    pub fn user_property(&self, name: &str) -> Value<'_> {
        let pairs = self.input.properties.into_iter().flat_map(Properties::user_properties);
        pairs.filter(|(other, _)| *other == name).last().map_or(Value::Null, |(_, value)| Value::text(value))
    }

    /// What a path into the payload leads to. An error if there is a payload that is not JSON, or not enough work left to follow it.
    pub fn json(&self, path: &[Step]) -> Result<Value<'_>, String> {
        let Some(payload) = self.input.payload else { return Ok(Value::Null) };
        let document = self.document.get_or_init(|| match self.text() {
            Some(text) => Document::parse(text),
            None => Err(format!("it has {} bytes that are not UTF-8", payload.len())),
        });
        match document {
            Ok(document) => document.at(path, &self.work),
            Err(error) => Err(format!("the payload is not JSON: {error}")),
        }
    }

    fn text(&self) -> Option<&'m str> {
        *self.text.get_or_init(|| str::from_utf8(self.input.payload?).ok())
    }
}

/// A level of a topic, counted from 1, or with a negative number from the end.
pub fn level(topic: &str, number: i64) -> Option<&str> {
    match number {
        1.. => topic.split('/').nth(usize::try_from(number - 1).ok()?),
        0 => None,
        _ => topic.rsplit('/').nth(usize::try_from(number.unsigned_abs() - 1).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_one_line_in_the_order_of_its_number_and_a_source() {
        for (number, entry) in FIELDS.iter().enumerate() {
            assert_eq!(entry.field as usize, number, "{}", entry.name);
            assert!(Source::ALL.iter().any(|source| entry.is_in(*source)), "{}", entry.name);
        }
    }

    #[test]
    fn a_payload_is_parsed_only_when_somebody_looks_inside() {
        let view = View::new(Source::Message, Input { payload: Some(b"{\"a\":1}"), topic: Some("t/1"), ..Input::default() });
        for entry in FIELDS {
            view.field(entry.field);
        }
        assert!(!view.is_parsed());
        assert_eq!(view.json(&[Step::Key("a".into())]), Ok(Value::Int(1)));
        assert!(view.is_parsed());
    }

    #[test]
    fn levels_are_counted_from_both_ends() {
        let found = [1, 2, 3, 4, 0, -1, -3, -4, i64::MIN].map(|number| level("a//c", number));
        assert_eq!(found, [Some("a"), Some(""), Some("c"), None, None, Some("c"), Some("a"), None, None]);
    }
}
