//! The tables of rules and their actions. What an action may say depends on where its records go: each kind of sink has a shape of the
//! table of its own, and so has publishing.

use super::draft::Listed;
use super::setting::{Choice, Domain};
use super::table::*;
use crate::sinks::options::{Confirm, SinkKind};
use crate::wire::QoS;

/// A rule as the file has it.
#[derive(Default)]
pub struct RuleDraft {
    pub name: String,
    pub sql: String,
    pub actions: Vec<Listed<ActionDraft>>,
}

/// An action as the file has it: the settings of all kinds.
#[derive(Clone)]
pub struct ActionDraft {
    /// One of these two is written.
    pub sink: String,
    pub publish: String,
    pub ack: Confirm,
    pub topic: String,
    pub key: String,
    pub payload: String,
    pub headers: Headers,
    pub collection: String,
    pub document: String,
    pub filter: String,
    pub path: String,
    pub body: String,
    pub line: String,
    pub qos: Option<QoS>,
    pub retain: bool,
    pub user_properties: bool,
}

/// The whole row as JSON.
const ROW: &str = "${.}";

impl Default for ActionDraft {
    fn default() -> Self {
        Self {
            sink: String::new(),
            publish: String::new(),
            ack: Confirm::Queued,
            topic: String::new(),
            key: "${clientid}".into(),
            payload: ROW.into(),
            headers: Headers::UserProperties,
            collection: String::new(),
            document: ROW.into(),
            filter: String::new(),
            path: String::new(),
            body: ROW.into(),
            line: ROW.into(),
            qos: None,
            retain: false,
            user_properties: true,
        }
    }
}

/// What becomes headers of a Kafka record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headers {
    UserProperties,
    None,
}

impl Choice for Headers {
    const CHOICES: &'static [(&'static str, Self)] = &[("user_properties", Self::UserProperties), ("none", Self::None)];
}

impl Choice for Confirm {
    const CHOICES: &'static [(&'static str, Self)] = &[("queued", Self::Queued), ("delivered", Self::Delivered)];
}

/// Where an action leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActionKind {
    Kafka,
    Mongodb,
    Http,
    File,
    Publish,
}

impl ActionKind {
    pub fn of(kind: &SinkKind) -> Self {
        match kind {
            SinkKind::Kafka(_) => Self::Kafka,
            SinkKind::Mongodb(_) => Self::Mongodb,
            SinkKind::Http(_) => Self::Http,
            SinkKind::File(_) => Self::File,
        }
    }
}

/// A shape of the table of actions.
pub struct ActionTable {
    pub kind: ActionKind,
    /// Which actions those are, to follow "actions".
    pub whose: &'static str,
    pub table: &'static Table<ActionDraft>,
}

pub static RULE: Table<RuleDraft> = Table {
    name: "rule",
    description: "A rule: which messages or events, and what is made of them; each row goes through the rule's actions, in their order.",
    list: true,
    knobs: &[&[
        knob("name", RESTART, Domain::Name, "Its name in logs and below $SYS/broker/rules/.", |r: &mut RuleDraft| &mut r.name)
            .required("\"telemetry\""),
        knob(
            "sql",
            RESTART,
            lines(65_535),
            "SELECT … FROM \"topic/filter\" WHERE …, or FOREACH … (docs/rules.md); single quotes or ''' around it spare the escapes.",
            |r: &mut RuleDraft| &mut r.sql,
        )
        .required("'SELECT * FROM \"vehicle/+/telemetry\"'"),
    ]],
};

const TEMPLATE_BYTES_MAX: usize = 65_535;

const fn template(
    key: &'static str,
    description: &'static str,
    field: fn(&mut ActionDraft) -> &mut dyn super::setting::Setting,
) -> Knob<ActionDraft> {
    knob(key, RESTART, lines(TEMPLATE_BYTES_MAX), description, field)
}

/// What every action that leads to a sink has; `example` is the sink's name in the reference.
const fn to_sink(example: &'static str) -> [Knob<ActionDraft>; 2] {
    [
        knob("sink", RESTART, Domain::Name, "The sink, by its name.", |a: &mut ActionDraft| &mut a.sink).required(example),
        knob(
            "ack",
            RESTART,
            Domain::Any,
            "When a publisher's QoS 1 or 2 is acknowledged: once the record is in the sink's buffer (on disk, if it has a disk buffer), or once the server has confirmed it.",
            |a| &mut a.ack,
        ),
    ]
}

const PAYLOAD: Knob<ActionDraft> = template("payload", "The value, as a template; ${.} is the row as JSON.", |a| &mut a.payload);

pub static ACTIONS: [ActionTable; 5] = [
    ActionTable { kind: ActionKind::Kafka, whose: "to a kafka sink", table: &TO_KAFKA },
    ActionTable { kind: ActionKind::Mongodb, whose: "to a mongodb sink", table: &TO_MONGODB },
    ActionTable { kind: ActionKind::Http, whose: "to an http sink", table: &TO_HTTP },
    ActionTable { kind: ActionKind::File, whose: "to a file sink", table: &TO_FILE },
    ActionTable { kind: ActionKind::Publish, whose: "that publish", table: &PUBLISH },
];

/// The tables of [`ACTIONS`], for reading an action before it is known where it leads.
pub static ACTION_TABLES: [&Table<ActionDraft>; 5] = [&TO_KAFKA, &TO_MONGODB, &TO_HTTP, &TO_FILE, &PUBLISH];

static TO_KAFKA: Table<ActionDraft> = Table {
    name: "rule.action",
    description: "An action of the rule above it: a Kafka record for each row. Templates are texts with ${names} of columns and fields.",
    list: true,
    knobs: &[
        &to_sink("\"kafka\""),
        &[
            template("topic", "The Kafka topic, as a template.", |a| &mut a.topic).required("\"telemetry\""),
            template(
                "key",
                "The key, as a template; records with the same key keep their order. One that comes out empty means no key.",
                |a| &mut a.key,
            ),
            PAYLOAD,
            knob("headers", RESTART, Domain::Any, "Whether the message's user properties become headers.", |a| &mut a.headers),
        ],
    ],
};

static TO_MONGODB: Table<ActionDraft> = Table {
    name: "rule.action",
    description: "Or a document in MongoDB for each row.",
    list: true,
    knobs: &[
        &to_sink("\"mongodb\""),
        &[
            template("collection", "The collection, as a template.", |a| &mut a.collection).required("\"telemetry\""),
            template(
                "document",
                "The document, as a template for JSON, extended JSON such as {\"$date\": …} included; ${.} is the row.",
                |a| &mut a.document,
            ),
            template(
                "filter",
                "A template for JSON, such as {\"_id\": \"${clientid}\"}: the document replaces the one that matches, or is inserted. Empty means that every document is inserted.",
                |a| &mut a.filter,
            ),
        ],
    ],
};

static TO_HTTP: Table<ActionDraft> = Table {
    name: "rule.action",
    description: "Or a part of an HTTP request for each row.",
    list: true,
    knobs: &[
        &to_sink("\"http\""),
        &[
            template("path", "What is appended to the sink's url, as a template; a request's records have one.", |a| &mut a.path),
            template("body", "The record, as a template; ${.} is the row as JSON.", |a| &mut a.body),
        ],
    ],
};

static TO_FILE: Table<ActionDraft> = Table {
    name: "rule.action",
    description: "Or a line in a file for each row.",
    list: true,
    knobs: &[&to_sink("\"file\""), &[template("line", "The line, as a template; ${.} is the row as JSON.", |a| &mut a.line)]],
};

static PUBLISH: Table<ActionDraft> = Table {
    name: "rule.action",
    description: "Or a message to clients for each row.",
    list: true,
    knobs: &[&[
        template("publish", "The topic, as a template.", |a| &mut a.publish).required("\"seen/${clientid}\""),
        PAYLOAD,
        knob(
            "qos",
            RESTART,
            count(0, 2),
            "QoS of the message published; \"message\" is that of the message at hand, or 0 for events that are about none.",
            |a| &mut a.qos,
        ),
        knob("retain", RESTART, Domain::Any, "Whether the message published is retained.", |a| &mut a.retain),
        knob("user_properties", RESTART, Domain::Any, "Whether the message's user properties go along.", |a| {
            &mut a.user_properties
        }),
    ]],
};
