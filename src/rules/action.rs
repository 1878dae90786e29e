//! What is done with a rule's rows: planned once, next to the rule.

use super::rule::Rule;
use super::template::Template;
use crate::record::ActionId;
use crate::wire::QoS;

#[derive(Clone, Debug)]
pub enum Action {
    Republish(Republish),
    Record(RecordAction),
}

/// A message of the broker's own is published for each row.
#[derive(Clone, Debug)]
pub struct Republish {
    pub topic: Template,
    pub payload: Template,
    /// `None`: the QoS of the message that the row was made of.
    pub qos: Option<QoS>,
    pub retain: bool,
    /// Its user properties go along.
    pub properties: bool,
}

/// A record for a sink is made of each row.
#[derive(Clone, Debug)]
pub struct RecordAction {
    pub id: ActionId,
    /// The sink, by its number.
    pub sink: u8,
    /// In the order that the sink's kind fixes.
    pub parts: Vec<Part>,
    /// The publisher's acknowledgement waits until the sink has accepted the record.
    pub ticketed: bool,
}

#[derive(Clone, Debug)]
pub enum Part {
    Text(Template),
    /// The message's MQTT properties that travel with it, as they are on the wire.
    Properties,
    /// What [`RecordIds`](crate::record::RecordIds) gives for the record.
    Id,
}

/// A rule with what is done with its rows.
#[derive(Clone, Debug)]
pub struct PlannedRule {
    /// Distinct.
    pub name: Box<str>,
    pub rule: Rule,
    pub actions: Vec<Action>,
}
