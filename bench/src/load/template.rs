//! Topics and client ids that differ from client to client: text in which `{i}` is the client's index in its group, `{i%N}` its
//! remainder and `{i/N}` its quotient.

use std::io::Write;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template(Vec<Part>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(String),
    Index,
    Remainder(u32),
    Quotient(u32),
}

impl Template {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (variable, after) = after.split_once('}').ok_or_else(|| format!("{text:?}: a {{ without its }}"))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let number = || variable[2..].parse().ok().filter(|&number| number > 0);
            parts.push(match variable.get(..2) {
                None if variable == "i" => Part::Index,
                Some("i%") => Part::Remainder(number().ok_or_else(|| format!("{text:?}: {{i%N}} needs a number above 0"))?),
                Some("i/") => Part::Quotient(number().ok_or_else(|| format!("{text:?}: {{i/N}} needs a number above 0"))?),
                _ => return Err(format!("{text:?}: {{{variable}}} is none of {{i}}, {{i%N}}, {{i/N}}")),
            });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    /// Appends the text for the client with this index.
    pub fn write(&self, index: u32, into: &mut Vec<u8>) {
        for part in &self.0 {
            let number = match part {
                Part::Text(text) => {
                    into.extend_from_slice(text.as_bytes());
                    continue;
                }
                Part::Index => index,
                Part::Remainder(by) => index % by,
                Part::Quotient(by) => index / by,
            };
            write!(into, "{number}").expect("a vector takes what is written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(template: &str, index: u32) -> String {
        let mut bytes = Vec::new();
        Template::parse(template).unwrap().write(index, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_variable_is_replaced_by_its_number() {
        assert_eq!(text("a/{i}/b", 17), "a/17/b");
        assert_eq!(text("{i%5}-{i/5}", 17), "2-3");
        assert_eq!(text("plain", 17), "plain");
    }

    #[test]
    fn what_is_no_variable_is_an_error() {
        for wrong in ["{", "{}", "{j}", "{i%0}", "{i/x}", "{i%}"] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }
}
