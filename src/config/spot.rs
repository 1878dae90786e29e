//! Where a value was written, down to a character inside a text: what is wrong with SQL or a template is found after TOML's quotes and
//! escapes are gone, and reported where the author sees it.

use super::error::Place;

#[derive(Clone, Debug)]
pub struct Spot {
    pub place: Place,
    /// The value as it is written, quotes included.
    raw: Box<str>,
}

/// A character of a text, and where in the raw text it begins.
struct Step {
    character: char,
    at: usize,
}

impl Spot {
    pub fn new(place: Place, raw: &str) -> Self {
        Self { place, raw: raw.into() }
    }

    pub fn of_flag(flag: &str) -> Self {
        Self::new(Place::Flag(flag.to_owned()), "")
    }

    /// The place of a line and column (from 1, in characters) inside the text.
    pub fn inside(&self, line: u64, column: u64) -> Place {
        let (mut at_line, mut at_column) = (1, 1);
        self.find(|step| {
            let found = (at_line, at_column) >= (line, column);
            if step.character == '\n' {
                (at_line, at_column) = (at_line + 1, 1);
            } else {
                at_column += 1;
            }
            found
        })
    }

    /// The place of a character inside the text, counted from 1.
    pub fn inside_at(&self, number: usize) -> Place {
        let mut count = 0;
        self.find(|_| {
            count += 1;
            count >= number
        })
    }

    /// The place of the first character that `is_it`, or else of the end of the text.
    fn find(&self, mut is_it: impl FnMut(&Step) -> bool) -> Place {
        let Place::File { path, line, column } = &self.place else { return self.place.clone() };
        let (steps, end) = self.steps();
        let at = steps.iter().find(|step| is_it(step)).map_or(end, |step| step.at);
        let before = self.raw.get(..at).unwrap_or_default();
        let lines = before.matches('\n').count();
        let width = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let column = if lines == 0 { column + width } else { width + 1 };
        Place::File { path: path.clone(), line: line + lines, column }
    }

    /// The characters of the text, as TOML reads it, and where its end is.
    fn steps(&self) -> (Vec<Step>, usize) {
        let raw = &*self.raw;
        let quotes = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quotes| raw.starts_with(quotes)).unwrap_or_default();
        let start = quotes.len();
        let end = raw.len().saturating_sub(start).max(start).min(raw.len());
        let inner = raw.get(start..end).unwrap_or_default();
        // A line break right behind three quotes is none of the text.
        let skipped = match quotes.len() {
            3 if inner.starts_with("\r\n") => 2,
            3 if inner.starts_with('\n') => 1,
            _ => 0,
        };
        let mut steps = Vec::new();
        let mut rest = inner.get(skipped..).unwrap_or_default();
        while let Some(character) = rest.chars().next() {
            let at = end - rest.len();
            let (character, length) = match character {
                '\\' if quotes.starts_with('"') => escape(rest),
                '\r' if rest.starts_with("\r\n") => (Some('\n'), 2),
                other => (Some(other), other.len_utf8()),
            };
            steps.extend(character.map(|character| Step { character, at }));
            rest = rest.get(length..).unwrap_or_default();
        }
        (steps, end)
    }
}

/// What an escape stands for, if for anything, and its length. TOML has been read before, so that it is a valid one.
fn escape(text: &str) -> (Option<char>, usize) {
    let digits = match text.as_bytes().get(1) {
        Some(b'x') => 2,
        Some(b'u') => 4,
        Some(b'U') => 8,
        Some(b'n') => return (Some('\n'), 2),
        // At the end of a line it takes away all space up to the next character.
        Some(b' ' | b'\t' | b'\r' | b'\n') => {
            return (None, text.len() - text[1..].trim_start_matches([' ', '\t', '\r', '\n']).len());
        }
        _ => return (Some(' '), 2),
    };
    let code = text.get(2..2 + digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    (code.and_then(char::from_u32).or(Some(' ')), 2 + digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place in a file where the value's first quote is at 3:7.
    fn place(raw: &str, line: u64, column: u64) -> (usize, usize) {
        let spot = Spot::new(Place::File { path: "c.toml".into(), line: 3, column: 7 }, raw);
        let Place::File { line, column, .. } = spot.inside(line, column) else { panic!("a place in the file") };
        (line, column)
    }

    #[test]
    fn a_place_in_a_text_is_found_through_every_kind_of_quotes() {
        assert_eq!(place("'SELECT x'", 1, 8), (3, 15));
        assert_eq!(place("\"SELECT x\"", 1, 8), (3, 15));
        assert_eq!(place("'''SELECT\n  x'''", 2, 3), (4, 3));
        assert_eq!(place("'''\nSELECT\n  x'''", 2, 3), (5, 3));
        assert_eq!(place("'''\r\nSELECT\r\n  x'''", 2, 3), (5, 3));
        assert_eq!(place("\"\"\"\nSELECT\n  x\"\"\"", 1, 1), (4, 1));
        assert_eq!(place("'é x'", 1, 3), (3, 10));
    }

    #[test]
    fn escapes_are_one_character_of_the_text() {
        assert_eq!(place(r#""a\"b""#, 1, 3), (3, 11));
        assert_eq!(place(r#""a\nb""#, 2, 1), (3, 11));
        assert_eq!(place(r#""\u0041\U00000042\x43d""#, 1, 4), (3, 28));
        assert_eq!(place("\"\"\"a \\\n   b\"\"\"", 1, 3), (4, 4));
        assert_eq!(place(r#"'a\nb'"#, 1, 4), (3, 11));
    }

    #[test]
    fn what_lies_behind_the_end_is_the_closing_quote() {
        assert_eq!(place("'ab'", 1, 3), (3, 10));
        assert_eq!(place("'ab'", 9, 9), (3, 10));
        assert_eq!(place("'''\nab\n'''", 9, 9), (5, 1));
        assert_eq!(place("''", 1, 1), (3, 8));
        let spot = Spot::of_flag("--x");
        assert_eq!(spot.inside(2, 2), Place::Flag("--x".into()));
        let spot = Spot::new(Place::File { path: "c.toml".into(), line: 1, column: 1 }, "'abc'");
        assert_eq!(spot.inside_at(3), Place::File { path: "c.toml".into(), line: 1, column: 4 });
    }
}
