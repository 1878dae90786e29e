//! Texts with values in them, planned once: `commands/${clientid}/${payload.unit}`. A name is a column of the rule's row or else a field
//! of the message; `${.}` is the whole row as JSON. Texts and bytes are written as they are, NULL as nothing, everything else as JSON.

use super::error::Failure;
use super::eval::{Expr, Scope};
use super::input::View;
use super::path::Step;
use super::plan::plan_field;
use super::rule::{Row, Rule};
use super::value::write_json;
use crate::nearest::nearest;

#[derive(Clone, Debug)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Literal(Box<str>),
    /// A column by its place in the row, and the way into its value.
    Column(usize, Box<[Step]>),
    Field(Expr),
    Row,
}

/// Why a text is no template of a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at character {column}: {what}")]
pub struct TemplateError {
    /// Counts from 1.
    pub column: usize,
    pub what: String,
}

impl Template {
    pub fn parse(text: &str, rule: &Rule) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let at = text.len() - rest.len() + before.len();
            let wrong = |what: String| TemplateError { column: text[..at].chars().count() + 1, what };
            let (name, after) = behind.split_once('}').ok_or_else(|| wrong("`${` is not closed with `}`".into()))?;
            if !before.is_empty() {
                parts.push(Part::Literal(before.into()));
            }
            parts.push(part(name.trim(), rule).map_err(wrong)?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.into()));
        }
        Ok(Self { parts })
    }

    /// The text, if it has no values in it.
    pub fn constant(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text for a row that the rule has made of a message.
    pub fn render(&self, row: &Row<'_>, view: &View<'_>, out: &mut Vec<u8>) -> Result<(), Box<Failure>> {
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
                Part::Column(place, path) => {
                    if let Some(value) = row.nth(*place).and_then(|value| value.at(path)) {
                        value.write(out);
                    }
                }
                Part::Field(expr) => expr.eval(&Scope { view, item: None })?.write(out),
                Part::Row => write_json(row, out),
            }
        }
        Ok(())
    }
}

fn part(name: &str, rule: &Rule) -> Result<Part, String> {
    if name == "." {
        return Ok(Part::Row);
    }
    let (root, path) = path(name)?;
    if let Some(place) = rule.columns().position(|column| column == root) {
        return Ok(Part::Column(place, path.into()));
    }
    plan_field(&rule.sources(), root, path, name).map(Part::Field).map_err(|error| match nearest(root, rule.columns()) {
        Some(column) => format!("`{root}` is neither a column nor a field; did you mean `{column}`?"),
        None => error,
    })
}

/// A name as `a.b[1].c`: what it begins with and the way from there.
fn path(name: &str) -> Result<(&str, Vec<Step>), String> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (root, mut rest) = name.split_at(end);
    let mut path = Vec::new();
    while !rest.is_empty() {
        if let Some(index) = rest.strip_prefix('[') {
            let (number, behind) = index.split_once(']').ok_or("`[` is not closed")?;
            path.push(Step::Index(number.trim().parse().map_err(|_| format!("`[{number}]` is not a number"))?));
            rest = behind;
        } else {
            let key = rest.strip_prefix('.').ok_or("`]` must be followed by `.` or `[`")?;
            let end = key.find(['.', '[']).unwrap_or(key.len());
            if end == 0 {
                return Err("a name is missing after `.`".into());
            }
            path.push(Step::Key(key[..end].into()));
            rest = &key[end..];
        }
    }
    if root.is_empty() { Err("a name is missing in `${}`".into()) } else { Ok((root, path)) }
}
