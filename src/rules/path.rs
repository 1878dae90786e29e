//! The way into nested values, planned once: `payload.a.b[1]` is the path `a`, `b`, 1.

/// One step into a map or an array.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    Key(Box<str>),
    /// Counted from 1, or with a negative number from the end.
    Index(i64),
}
