//! Rules: SQL over messages and events. A rule's text is parsed and planned once, by the configuration; on the publisher's core
//! it is then only computed, with no I/O, clock or lock, and nothing that a message contains can make it panic.
//!
//! The way of a message: [`RuleSet`] finds the rules of its topic, one [`View`] of it is shared by all of them (its JSON is
//! parsed once, when the first of them looks inside), each [`Rule`] makes rows of it or does not, and a [`Template`] makes
//! topics, keys and payloads for actions of a row.
//!
//! Where to find what: `parse` (text to statement) · `plan` (statement to [`Rule`]: names, constants, patterns) · `rule` (FROM,
//! WHERE, FOREACH, SELECT) · `eval` (operators, NULL) · `functions` (a file for each group) · `input` (messages, events and their
//! fields), `document` (a payload's JSON), `path`, `value` · `set` (the rules of a topic, and what they count) · `template`,
//! `action` (what becomes of rows) · `error` · `reference` (docs/rules-functions.md).

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
mod work;

pub use action::{Action, Part, PlannedRule, RecordAction, Republish};
pub use error::{Failure, Origin, Position, SqlError};
pub use input::{FIELDS, Field, FieldEntry, Input, Source, View};
pub use plan::event_of;
pub use rule::{EACH_MAX, Row, Rows, Rule, Verdict};
pub use set::{RuleCounts, RuleSet, Tally};
pub use template::{Template, TemplateError};
pub use value::{Map, Value};
pub use work::STEPS_MAX;
