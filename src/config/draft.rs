//! The configuration as the file has it: what each table says, and where it says so, for faults that only show once all is known.

use super::error::Place;
use super::knobs::LISTENER;
use super::list::{AnyList, List};
use super::rule_knobs::{ACTION_TABLES, ActionDraft, RULE, RuleDraft};
use super::sink_knobs::{FILE, HTTP, KAFKA, KAFKA_SOURCE, MONGODB, Sink};
use super::spot::Spot;
use super::{Config, Listener};
use crate::sinks::options::{FileOptions, HttpOptions, KafkaOptions, MongodbOptions, SourceOptions};
use std::collections::HashMap;

/// Where settings of one table were written, by their keys.
pub type Spots = HashMap<&'static str, Spot>;

/// Where a thing of a list was written.
#[derive(Clone)]
pub struct Origin {
    /// The heading of its table, or the flag.
    pub whole: Place,
    pub spots: Spots,
}

impl Origin {
    /// Where a setting was written, if it was.
    pub fn written(&self, key: &str) -> Option<&Place> {
        self.spots.get(key).map(|spot| &spot.place)
    }

    /// Where a setting was written, or where it is missing.
    pub fn at(&self, key: &str) -> Place {
        self.written(key).unwrap_or(&self.whole).clone()
    }
}

/// A thing of a list.
#[derive(Clone)]
pub struct Listed<T> {
    pub value: T,
    pub origin: Origin,
}

impl<T> Listed<T> {
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Listed<U> {
        Listed { value: f(self.value), origin: self.origin }
    }
}

/// All of the file. What could be read is in it even if there are errors.
pub struct Draft {
    /// Only what stands in tables of its own, not in lists.
    pub config: Config,
    /// Where that was written, by table.
    pub settings: HashMap<&'static str, Spots>,
    /// The place of what nobody wrote.
    pub otherwise: Place,
    pub listeners: Vec<Listed<Listener>>,
    pub kafka: Vec<Listed<Sink<KafkaOptions>>>,
    pub mongodb: Vec<Listed<Sink<MongodbOptions>>>,
    pub http: Vec<Listed<Sink<HttpOptions>>>,
    pub file: Vec<Listed<Sink<FileOptions>>>,
    pub sources: Vec<Listed<SourceOptions>>,
    pub rules: Vec<Listed<RuleDraft>>,
}

/// The lists at the top of the file.
pub static LISTS: [&dyn AnyList<Draft>; 7] = [
    &List { tables: &[&LISTENER], inner: &[], needed: false, things: |draft: &mut Draft| &mut draft.listeners },
    &List { tables: &[&KAFKA], inner: &[], needed: false, things: |draft: &mut Draft| &mut draft.kafka },
    &List { tables: &[&MONGODB], inner: &[], needed: false, things: |draft: &mut Draft| &mut draft.mongodb },
    &List { tables: &[&HTTP], inner: &[], needed: false, things: |draft: &mut Draft| &mut draft.http },
    &List { tables: &[&FILE], inner: &[], needed: false, things: |draft: &mut Draft| &mut draft.file },
    &List { tables: &[&RULE], inner: &RULE_LISTS, needed: false, things: |draft: &mut Draft| &mut draft.rules },
    &List { tables: &[&KAFKA_SOURCE], inner: &[], needed: false, things: |draft: &mut Draft| &mut draft.sources },
];

/// The lists inside a rule.
static RULE_LISTS: [&dyn AnyList<RuleDraft>; 1] =
    [&List::<RuleDraft, ActionDraft> { tables: &ACTION_TABLES, inner: &[], needed: true, things: |rule| &mut rule.actions }];

impl Draft {
    /// A file that says nothing.
    pub fn empty(otherwise: Place) -> Self {
        Self {
            config: Config::default(),
            settings: HashMap::new(),
            otherwise,
            listeners: Vec::new(),
            kafka: Vec::new(),
            mongodb: Vec::new(),
            http: Vec::new(),
            file: Vec::new(),
            sources: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Where a setting of a table of its own (`limits.packet_bytes_max`) was written, if it was.
    pub fn written(&self, name: &str) -> Option<&Place> {
        let (table, key) = name.split_once('.')?;
        self.settings.get(table)?.get(key).map(|spot| &spot.place)
    }

    /// A setting comes from a flag.
    pub fn set_by_flag(&mut self, table: &'static str, key: &'static str, flag: &str) {
        self.settings.entry(table).or_default().insert(key, Spot::of_flag(flag));
    }
}
