//! One rule, planned: what it reads (FROM), which of it (WHERE, FOREACH, INCASE) and what it makes of it (SELECT, DO).

use super::error::{Failure, Origin, SqlError};
use super::eval::{Expr, Scope, with_article};
use super::input::{Source, View};
use super::plan;
use super::value::{Map, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// Elements that FOREACH goes through: as many as one message may make records of.
pub const EACH_MAX: usize = 8_192;

/// For each value of a row, whatever it is.
const ROW_STEPS: u64 = 64;

/// What a rule makes of one message: values by name, in the order of SELECT.
pub type Row<'a> = Map<'a>;

/// One row without FOREACH.
pub type Rows<'a> = SmallVec<[Row<'a>; 1]>;

/// What became of a message, or of an event.
#[derive(PartialEq, Debug)]
pub enum Verdict<'a> {
    /// Rows, at least one.
    Passed(Rows<'a>),
    /// WHERE is false or NULL.
    Filtered,
    /// FOREACH found no element, or INCASE none that it is true for.
    Nothing,
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) sql: Box<str>,
    pub(super) filters: Vec<Box<str>>,
    pub(super) events: Vec<Source>,
    pub(super) filter: Option<Condition>,
    pub(super) each: Option<Each>,
    pub(super) columns: Columns,
}

#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub expr: Expr,
    pub origin: Arc<Origin>,
}

/// FOREACH with its INCASE.
#[derive(Clone, Debug)]
pub(super) struct Each {
    pub array: Expr,
    pub origin: Arc<Origin>,
    pub case: Option<Condition>,
}

/// What a row consists of.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    /// The names of a row, in order.
    pub names: Vec<Box<str>>,
    /// What is computed, in order, and where it goes; each place first occurs in the order of the names.
    pub list: Vec<(Expr, Target)>,
}

/// What is the same in the rows of all elements of FOREACH, once it has been computed; by the number of its expression.
type Same<'a> = SmallVec<[Option<Value<'a>>; 8]>;

/// Where a value goes: a place in the row, or (`AS a.b`) a map inside.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub place: usize,
    pub inside: Box<[Box<str>]>,
}

impl Rule {
    /// Parses and plans. The error says where in the text, what and why.
    pub fn parse(sql: &str) -> Result<Self, SqlError> {
        plan::plan(sql)
    }

    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The topic filters in FROM.
    pub fn filters(&self) -> impl Iterator<Item = &str> {
        self.filters.iter().map(|filter| &**filter)
    }

    /// The events in FROM.
    pub fn events(&self) -> &[Source] {
        &self.events
    }

    /// All kinds of what is in FROM.
    pub fn sources(&self) -> Vec<Source> {
        let messages = if self.filters.is_empty() { &[][..] } else { &[Source::Message] };
        [messages, &self.events].concat()
    }

    /// The names in a row, in order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.names.iter().map(|name| &**name)
    }

    /// What the rule makes of what matched FROM.
    pub fn run<'a>(&'a self, view: &'a View<'_>) -> Result<Verdict<'a>, Box<Failure>> {
        let scope = Scope { view, item: None };
        if let Some(filter) = &self.filter
            && !filter.expr.is_true(&scope, &filter.origin)?
        {
            return Ok(Verdict::Filtered);
        }
        let mut rows = Rows::new();
        let Some(each) = &self.each else {
            rows.push(self.columns.row(&scope, None)?);
            return Ok(Verdict::Passed(rows));
        };
        let items = match each.array.eval(&scope)? {
            Value::Array(items) => items,
            Value::Null => return Ok(Verdict::Nothing),
            other => {
                return each.fail(format!("FOREACH needs an array and got {}", with_article(&other)));
            }
        };
        if items.len() > EACH_MAX {
            return each.fail(format!("FOREACH got an array of more than {EACH_MAX} elements"));
        }
        let mut same: Same<'_> = self.columns.list.iter().map(|_| None).collect();
        for item in &items {
            let scope = Scope { view, item: Some(item) };
            if let Some(case) = &each.case
                && !case.expr.is_true(&scope, &case.origin)?
            {
                continue;
            }
            view.work().spend(ROW_STEPS * self.columns.list.len() as u64).or_else(|what| each.fail(what))?;
            rows.push(self.columns.row(&scope, Some((each, &mut same)))?);
        }
        Ok(if rows.is_empty() { Verdict::Nothing } else { Verdict::Passed(rows) })
    }
}

impl Each {
    fn fail<T>(&self, what: String) -> Result<T, Box<Failure>> {
        Err(Box::new(Failure { origin: self.origin.clone(), what }))
    }
}

impl Columns {
    /// `same`: for rows that are made of the elements of one array.
    fn row<'a>(&'a self, scope: &Scope<'_, 'a, '_>, mut same: Option<(&Each, &mut Same<'a>)>) -> Result<Row<'a>, Box<Failure>> {
        let mut row = Row::with_capacity(self.names.len());
        for (number, (expr, target)) in self.list.iter().enumerate() {
            let value = match same.as_mut().map(|(each, same)| (each, &mut same[number])) {
                Some((each, Some(value))) => scope.copy(value).or_else(|what| each.fail(what))?,
                Some((_, place)) if expr.is_same_for_all() => place.insert(expr.eval(scope)?).clone(),
                _ => expr.eval(scope)?,
            };
            if target.place == row.len() {
                let value = if target.inside.is_empty() { value } else { nested(&target.inside, value) };
                row.push(&*self.names[target.place], value);
            } else if let Some(slot) = row.nth_mut(target.place) {
                put(slot, &target.inside, value);
            }
        }
        Ok(row)
    }
}

/// Puts a value where a path leads to; what is not a map on the way becomes one.
fn put<'a>(slot: &mut Value<'a>, path: &'a [Box<str>], value: Value<'a>) {
    let Some((first, rest)) = path.split_first() else {
        *slot = value;
        return;
    };
    match slot {
        Value::Map(map) => match map.get_mut(first) {
            Some(slot) => put(slot, rest, value),
            None => map.push(&**first, nested(rest, value)),
        },
        _ => *slot = nested(path, value),
    }
}

/// Maps around a value.
fn nested<'a>(path: &'a [Box<str>], value: Value<'a>) -> Value<'a> {
    path.iter().rev().fold(value, |value, name| {
        let mut map = Map::with_capacity(1);
        map.push(&**name, value);
        Value::Map(map)
    })
}
