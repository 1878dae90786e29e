//! `corelane doctor`: what so many connections need of this host, what it has, and how to get what is missing. [`facts`] reads the host,
//! [`rows`] judges what it read without looking at anything else, and a [`Diagnosis`] is what is printed.

pub mod facts;
pub mod rows;

pub use facts::Facts;

use crate::config::{Config, group_digits};
use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// So many connections will not work, or not well.
    Short,
    /// The host does not say.
    Unknown,
    /// Worth knowing; the broker works without.
    Hint,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Quantity {
    Number(u64),
    Text(String),
}

/// One thing that connections need.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub need: Quantity,
    /// `None` where the host does not say.
    pub have: Option<Quantity>,
    /// Of the numbers: `files`, `pages`, `bytes`, or nothing.
    pub unit: &'static str,
    pub verdict: Verdict,
    /// What to do, where there is something to do.
    pub fix: Option<String>,
}

/// All of it. As text it is a table, with the fix below each row that has one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Diagnosis {
    pub connections: u64,
    /// `Short` if one of the rows is, else `Ok`.
    pub verdict: Verdict,
    pub rows: Vec<Row>,
}

impl Diagnosis {
    /// `config`: of the broker that is to run here; without one, the defaults are reckoned with.
    pub fn new(connections: u64, config: Option<&Config>, facts: &Facts) -> Self {
        let rows = rows::rows(connections, config, facts);
        let short = rows.iter().any(|row| row.verdict == Verdict::Short);
        Self { connections, verdict: if short { Verdict::Short } else { Verdict::Ok }, rows }
    }

    /// One object, on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text have a JSON form")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Short => "short",
            Verdict::Unknown => "unknown",
            Verdict::Hint => "hint",
        })
    }
}

impl Quantity {
    fn show(&self, unit: &str) -> String {
        match self {
            Quantity::Text(text) => text.clone(),
            Quantity::Number(u64::MAX) => "no limit".to_owned(),
            Quantity::Number(bytes @ 1_048_576..) if unit == "bytes" => format!("{} MiB", group_digits(bytes >> 20, ',')),
            Quantity::Number(number) if unit.is_empty() => group_digits(*number, ','),
            Quantity::Number(number) => format!("{} {unit}", group_digits(*number, ',')),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28} {:<18} {:<34} verdict", "", "need", "have")?;
        for row in &self.rows {
            let have = row.have.as_ref().map_or_else(|| "?".to_owned(), |have| have.show(row.unit));
            writeln!(f, "{:<28} {:<18} {:<34} {}", row.name, row.need.show(row.unit), have, row.verdict)?;
            if let Some(fix) = &row.fix {
                writeln!(f, "    {fix}")?;
            }
        }
        let connections = group_digits(self.connections, ',');
        match self.rows.iter().filter(|row| row.verdict == Verdict::Short).count() {
            0 => writeln!(f, "{connections} connections: nothing is short"),
            short => writeln!(f, "{connections} connections: {short} short"),
        }
    }
}
