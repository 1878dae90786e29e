//! What the file consists of: tables of knobs. A table stands once, or once per thing in a list; the same kind of table has another
//! shape where its settings depend on what it is about.

use super::setting::{Domain, Setting, Unit};

/// One knob of `T`: of the whole configuration, or of one thing in a list.
pub struct Knob<T: 'static> {
    /// The name inside its table.
    pub key: &'static str,
    pub description: &'static str,
    pub domain: Domain,
    /// Whether a running broker has to be restarted to take up a change.
    pub needs_restart: bool,
    /// Of a setting that has no default and has to be written: what the reference shows, as TOML.
    pub example: Option<&'static str>,
    /// The field it sets.
    pub field: fn(&mut T) -> &mut dyn Setting,
}

impl<T> Knob<T> {
    /// The same knob, which has to be written.
    pub const fn required(self, example: &'static str) -> Self {
        let Self { key, description, domain, needs_restart, field, .. } = self;
        Self { key, description, domain, needs_restart, example: Some(example), field }
    }
}

/// A table of the file.
pub struct Table<T: 'static> {
    /// The name in the file: `limits`, or `rule.action` for one inside another.
    pub name: &'static str,
    /// What its heading in the reference says.
    pub description: &'static str,
    /// Whether it is written once per thing, in double brackets.
    pub list: bool,
    pub knobs: &'static [&'static [Knob<T>]],
}

impl<T> Table<T> {
    pub fn knobs(&self) -> impl Iterator<Item = &'static Knob<T>> + use<T> {
        self.knobs.iter().flat_map(|knobs| knobs.iter())
    }

    pub fn knob(&self, key: &str) -> Option<&'static Knob<T>> {
        self.knobs().find(|knob| knob.key == key)
    }

    /// The name as it is referred to elsewhere: `[limits]`, `[[listener]]`.
    pub fn heading(&self) -> String {
        if self.list { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) }
    }
}

/// A knob as the reference shows it.
pub struct Entry {
    pub key: &'static str,
    pub description: &'static str,
    pub expects: String,
    pub needs_restart: bool,
    /// The default as TOML; `None` if it is unset.
    pub default: Option<String>,
    pub example: Option<&'static str>,
}

/// A table, whatever it sets.
pub trait AnyTable: Sync {
    fn name(&self) -> &'static str;
    fn description(&self) -> &'static str;
    fn heading(&self) -> String;
    fn keys(&self) -> Vec<&'static str>;
    fn entries(&self) -> Vec<Entry>;
}

impl<T: Default> AnyTable for Table<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn heading(&self) -> String {
        Table::heading(self)
    }

    fn keys(&self) -> Vec<&'static str> {
        self.knobs().map(|knob| knob.key).collect()
    }

    fn entries(&self) -> Vec<Entry> {
        let mut owner = T::default();
        let mut entry = |knob: &Knob<T>| {
            let field = (knob.field)(&mut owner);
            Entry {
                key: knob.key,
                description: knob.description,
                expects: field.expects(knob.domain),
                needs_restart: knob.needs_restart,
                default: field.to_toml(knob.domain),
                example: knob.example,
            }
        };
        self.knobs().map(&mut entry).collect()
    }
}

/// The file is read at start only, so that every knob needs a restart; a release that reloads it marks those that do not.
pub const RESTART: bool = true;

pub const fn knob<T>(
    key: &'static str,
    needs_restart: bool,
    domain: Domain,
    description: &'static str,
    field: fn(&mut T) -> &mut dyn Setting,
) -> Knob<T> {
    Knob { key, description, domain, needs_restart, example: None, field }
}

pub const fn count(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Count, min, max, zero: None }
}

pub const fn bytes(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Bytes, min, max, zero: None }
}

pub const fn seconds(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Seconds, min, max, zero: None }
}

pub const fn milliseconds(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Milliseconds, min, max, zero: None }
}

pub const fn text(bytes_max: usize) -> Domain {
    Domain::Text { bytes_max }
}

pub const fn lines(bytes_max: usize) -> Domain {
    Domain::Lines { bytes_max }
}

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const TIB: u64 = 1 << 40;
pub const DAY_S: u64 = 86_400;
