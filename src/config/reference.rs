//! The reference of all knobs, which is at once a file to start from: every setting stands there commented out with its default.

use super::knobs::{KNOBS, Knob, LISTENER_KNOBS, LISTENER_SECTION, SECTIONS, Section};
use super::{Config, Listener};
use std::fmt::Write;

const WIDTH: usize = 110;

const HEAD: &str = "\
# Configuration of Corelane (TOML), as printed by `corelane config-reference`.
#
# Each setting is shown with its default, commented out: remove the # in front of its name, and of its [table], to change it.
# Sizes are numbers of bytes or text such as \"64 KiB\"; times are whole numbers in the unit that ends their name.
# `corelane check-config FILE` reports everything that is wrong with a file.
";

/// The whole reference as TOML.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for section in &SECTIONS {
        heading(&mut text, section, &format!("[{}]", section.name));
        let mut config = Config::default();
        for knob in KNOBS.iter().filter(|knob| knob.table() == section.name) {
            entry(&mut text, knob, &mut config);
        }
    }
    heading(&mut text, &LISTENER_SECTION, "[[listener]]");
    let mut listener = Listener::default();
    for knob in LISTENER_KNOBS {
        entry(&mut text, knob, &mut listener);
    }
    text
}

fn heading(text: &mut String, section: &Section, name: &str) {
    text.push('\n');
    comment(text, section.description);
    let _ = writeln!(text, "#{name}");
}

fn entry<T>(text: &mut String, knob: &Knob<T>, owner: &mut T) {
    let field = (knob.field)(owner);
    text.push('\n');
    comment(text, knob.description);
    let default = field.to_toml(knob.domain);
    let unset = if default.is_none() { "; unset by default" } else { "" };
    let restart = if knob.needs_restart { "a change needs a restart" } else { "a change needs no restart" };
    comment(text, &format!("Takes {}{unset}; {restart}.", field.expects(knob.domain)));
    // What is unset by default is a permission: whoever uncomments it without a thought refuses it.
    let _ = writeln!(text, "#{} = {}", knob.key(), default.as_deref().unwrap_or("false"));
}

/// Writes words as comment lines of at most [`WIDTH`] characters.
fn comment(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split(' ') {
        let length = word.chars().count() + 1;
        if column == 0 || column + length > WIDTH {
            text.push_str(if column == 0 { "#" } else { "\n#" });
            column = 1;
        }
        text.push(' ');
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, resolve_text};
    use super::*;
    use std::path::Path;

    fn resolve(text: &str) -> Config {
        resolve_text(Some((Path::new("corelane.toml.example"), text)), &Flags::default())
            .unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The reference with every setting that has a default uncommented, as a reader would who removes each `#`.
    fn uncommented() -> String {
        let line = |line: &str| match line.strip_prefix('#') {
            Some(setting) if !setting.is_empty() && !setting.starts_with(' ') && !setting.starts_with("allow_anonymous") => {
                setting.to_owned()
            }
            _ => line.to_owned(),
        };
        reference().lines().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_example_file_is_the_reference() {
        let example = include_str!("../../corelane.toml.example");
        assert!(example == reference(), "write it anew: corelane config-reference > corelane.toml.example");
    }

    #[test]
    fn the_reference_as_it_stands_and_uncommented_gives_the_defaults() {
        let defaults = format!("{:?}", resolve_text(None, &Flags::default()).unwrap());
        assert_eq!(format!("{:?}", resolve(&reference())), defaults);
        assert_eq!(format!("{:?}", resolve(&uncommented())), defaults);
    }

    #[test]
    fn the_reference_names_every_knob_once_with_its_bounds_and_restart() {
        let text = reference();
        for key in KNOBS.iter().map(Knob::key).chain(LISTENER_KNOBS.iter().map(Knob::key)) {
            let times = text.lines().filter(|line| line.starts_with(&format!("#{key} ="))).count();
            // "allow_anonymous" stands in two tables.
            assert_eq!(times, if key == "allow_anonymous" { 2 } else { 1 }, "{key}");
        }
        assert!(
            text.contains(
                "# Takes a whole number from 1 to 100,000,000; a change needs a restart.\n#connections_max = 1_000_000\n"
            )
        );
        assert!(text.lines().all(|line| line.chars().count() <= 130));
    }
}
