//! The table of functions: each with its name, arity, what it does, an example and that example's result. The documentation is written
//! from it and the examples are run as tests. Functions see NULL only where they say so: with any other NULL argument the result is
//! NULL. An argument of the wrong type is a failure; nothing is converted unasked.

mod collection;
mod convert;
mod date;
mod encode;
mod math;
mod regular;
mod text;
mod topic;

use super::eval::with_article;
use super::value::{Map, Value};
use super::work::Work;
use regex::Regex;
use std::borrow::Cow;

/// What a function may make at most, in bytes or elements: a rule must not be able to fill a core's memory.
const RESULT_MAX: usize = 1 << 20;

pub type Returned<'a> = Result<Value<'a>, String>;

/// One line of the table.
#[derive(Debug)]
pub struct Function {
    pub name: &'static str,
    /// The names of the arguments; those in brackets may be left out, and `…` stands for any number.
    pub signature: &'static str,
    /// The fewest and the most arguments.
    pub arity: (usize, usize),
    pub doc: &'static str,
    /// An expression.
    pub example: &'static str,
    /// The example's value as JSON.
    pub result: &'static str,
    kind: Kind,
    pub call: for<'v, 'a> fn(Arguments<'v, 'a>) -> Returned<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The same arguments give the same result; NULL gives NULL.
    Plain,
    /// As plain, but it is called with NULL too.
    SeesNull,
    /// The result depends on when it is called.
    Now,
    /// The second argument is a regular expression, a constant that is compiled when the rule is planned.
    Regex,
}

impl Function {
    pub fn sees_null(&self) -> bool {
        self.kind == Kind::SeesNull
    }

    pub fn has_regex(&self) -> bool {
        self.kind == Kind::Regex
    }

    /// Whether constant arguments make a constant result.
    pub fn is_foldable(&self) -> bool {
        matches!(self.kind, Kind::Plain | Kind::SeesNull)
    }

    /// How many arguments it takes, in words.
    pub fn arity_text(&self) -> String {
        match self.arity {
            (0, 0) => "no argument".into(),
            (1, 1) => "1 argument".into(),
            (fewest, most) if fewest == most => format!("{fewest} arguments"),
            (fewest, MANY) => format!("{fewest} or more arguments"),
            (fewest, most) => format!("{fewest} to {most} arguments"),
        }
    }

    const fn arity(mut self, fewest: usize, most: usize) -> Self {
        self.arity = (fewest, most);
        self
    }

    const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }
}

const MANY: usize = usize::MAX;

/// A line of the table, of a plain function of one argument.
const fn line(
    name: &'static str,
    signature: &'static str,
    doc: &'static str,
    example: &'static str,
    result: &'static str,
    call: for<'v, 'a> fn(Arguments<'v, 'a>) -> Returned<'a>,
) -> Function {
    Function { name, signature, arity: (1, 1), doc, example, result, kind: Kind::Plain, call }
}

/// The table, in the groups of the documentation.
pub static GROUPS: [(&str, &[Function]); 9] = [
    ("Text", text::FUNCTIONS),
    ("Regular expressions", regular::FUNCTIONS),
    ("Numbers", math::FUNCTIONS),
    ("Arrays", collection::ARRAYS),
    ("Maps and JSON", collection::MAPS),
    ("Types", convert::FUNCTIONS),
    ("Hashes and encodings", encode::FUNCTIONS),
    ("Dates and times", date::FUNCTIONS),
    ("Topics", topic::FUNCTIONS),
];

pub fn all() -> impl Iterator<Item = &'static Function> {
    GROUPS.iter().flat_map(|(_, functions)| functions.iter())
}

pub fn find(name: &str) -> Option<&'static Function> {
    all().find(|function| function.name.eq_ignore_ascii_case(name))
}

/// What a function is called with: as many values as its arity allows.
pub struct Arguments<'v, 'a> {
    pub values: &'v mut [Value<'a>],
    pub now_ms: i64,
    pub regex: Option<&'v Regex>,
    /// Arguments and result are paid for by the caller; what takes longer than in proportion to them pays for itself.
    pub work: &'v Work,
}

impl<'a> Arguments<'_, 'a> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn has(&self, index: usize) -> bool {
        index < self.len()
    }

    fn take(&mut self, index: usize) -> Value<'a> {
        std::mem::replace(&mut self.values[index], Value::Null)
    }

    fn wrong<T>(&self, index: usize, needed: &str) -> Result<T, String> {
        Err(format!("argument {} must be {needed} and is {}", index + 1, with_article(&self.values[index])))
    }

    fn text(&mut self, index: usize) -> Result<Cow<'a, str>, String> {
        match self.take(index) {
            Value::Text(text) => Ok(text),
            other => {
                self.values[index] = other;
                self.wrong(index, "a text")
            }
        }
    }

    /// Bytes, or the bytes of a text.
    fn bytes(&mut self, index: usize) -> Result<Cow<'a, [u8]>, String> {
        match self.take(index) {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Text(Cow::Borrowed(text)) => Ok(Cow::Borrowed(text.as_bytes())),
            Value::Text(Cow::Owned(text)) => Ok(Cow::Owned(text.into_bytes())),
            other => {
                self.values[index] = other;
                self.wrong(index, "a text or bytes")
            }
        }
    }

    fn int(&self, index: usize) -> Result<i64, String> {
        match self.values[index] {
            Value::Int(number) => Ok(number),
            _ => self.wrong(index, "an int"),
        }
    }

    /// An int that is a length or a count.
    fn size(&self, index: usize) -> Result<usize, String> {
        match usize::try_from(self.int(index)?) {
            Ok(size) if size <= RESULT_MAX => Ok(size),
            _ => Err(format!("argument {} must be from 0 to {RESULT_MAX}", index + 1)),
        }
    }

    fn number(&self, index: usize) -> Result<f64, String> {
        match self.values[index] {
            Value::Int(number) => Ok(number as f64),
            Value::Float(number) => Ok(number),
            _ => self.wrong(index, "a number"),
        }
    }

    fn array(&mut self, index: usize) -> Result<Vec<Value<'a>>, String> {
        match self.take(index) {
            Value::Array(values) => Ok(values),
            other => {
                self.values[index] = other;
                self.wrong(index, "an array")
            }
        }
    }

    fn map(&mut self, index: usize) -> Result<Map<'a>, String> {
        match self.take(index) {
            Value::Map(map) => Ok(map),
            other => {
                self.values[index] = other;
                self.wrong(index, "a map")
            }
        }
    }
}

fn too_large<T>() -> Result<T, String> {
    Err(format!("the result is larger than {RESULT_MAX}"))
}

fn count(len: usize) -> Value<'static> {
    Value::Int(len as i64)
}
