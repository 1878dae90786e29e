//! What is wrong with a configuration: one line per fault, with where it stands, what is wrong and how to put it right.

use std::fmt;
use std::path::PathBuf;

/// Where a setting was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Line and column count from 1, the column in characters.
    File { path: PathBuf, line: usize, column: usize },
    /// The file as a whole: it cannot be read, or something is missing from it.
    WholeFile { path: PathBuf },
    /// A flag as it was written.
    Flag(String),
    /// Nobody wrote it: a built-in default.
    Defaults,
}

impl Place {
    /// The order in which faults are reported: flags first, then the file from top to bottom.
    pub fn order(&self) -> (u8, usize, usize) {
        match self {
            Place::Flag(_) => (0, 0, 0),
            Place::WholeFile { .. } => (1, 0, 0),
            Place::File { line, column, .. } => (2, *line, *column),
            Place::Defaults => (3, 0, 0),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Place::WholeFile { path } => write!(f, "{}", path.display()),
            Place::Flag(flag) => f.write_str(flag),
            Place::Defaults => f.write_str("built-in defaults"),
        }
    }
}

/// One fault. Its display is one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    pub place: Place,
    /// What is wrong, and why where that is not plain.
    pub what: String,
    /// What to write instead.
    pub fix: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: error: {}; {}", self.place, self.what, self.fix)
    }
}

impl std::error::Error for ConfigError {}

/// Every fault of a configuration, never none. Its display is one line per fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
