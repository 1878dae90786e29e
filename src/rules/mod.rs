//! Rules: SQL over messages and events. A rule's text is parsed and planned once, by the configuration; on the publisher's core it is
//! then only computed, with no I/O, clock or lock, and nothing that a message contains can make it panic.
//!
//! The way of a message: [`RuleSet`] finds the rules of its topic, one [`View`] of it is shared by all of them (its JSON is parsed once,
//! when the first of them looks inside), each [`Rule`] makes rows of it or does not, and a [`Template`] makes topics, keys and payloads
//! for actions of a row.

mod action;
mod document;
mod error;
mod eval;
pub mod functions;
mod input;
mod parse;
mod path;
mod plan;
pub mod reference;
mod rule;
mod set;
mod template;
#[cfg(test)]
mod tests;
mod value;

pub use action::{Action, Part, PlannedRule, RecordAction, Republish};
pub use error::{Failure, Origin, Position, SqlError};
pub use input::{FIELDS, Field, FieldEntry, Input, Source, View};
pub use rule::{Row, Rows, Rule, Verdict};
pub use set::{RuleCounts, RuleSet, Tally};
pub use template::{Template, TemplateError};
pub use value::{Map, Value};
