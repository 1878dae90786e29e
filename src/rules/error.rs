//! What can go wrong with a rule: its SQL, before it runs, or an expression of it, with a message.

use std::fmt;
use std::sync::Arc;

/// A place in a rule's SQL; line and column count from 1, the column in characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    pub line: u64,
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// SQL that is no rule. Its display is one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{position}: error: {}", one_line(what))]
pub struct SqlError {
    pub position: Position,
    /// What is wrong, and what to write instead where that can be guessed.
    pub what: String,
}

/// An expression of a rule, as failures name it.
#[derive(PartialEq, Eq, Debug)]
pub struct Origin {
    pub position: Position,
    /// The expression, in the usual notation; the beginning of a long one.
    pub text: Box<str>,
}

/// An expression that could not be computed for a message. Its display is one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} in {} at {}", one_line(what), one_line(&origin.text), origin.position)]
pub struct Failure {
    pub origin: Arc<Origin>,
    pub what: String,
}

/// What is quoted from SQL or a payload may have any characters in it.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
