//! The reference of all knobs, which is at once a file to start from: every setting stands there commented out with its default, or with
//! an example where it has none. As a whole it is a configuration without a fault.

use super::knobs;
use super::table::{AnyTable, Entry};
use std::fmt::Write;

const WIDTH: usize = 110;

const HEAD: &str = "\
# Configuration of Corelane (TOML), as printed by `corelane config-reference`.
#
# Each setting is shown with its default (where that is unset, with an example), commented out: remove the # in front of its name,
# and of its [table], to change it.
# Tables in [[double brackets]] are written once per thing, any number of times; what has to be written in them is shown as an
# example.
# Sizes are numbers of bytes or text such as \"64 KiB\"; times are whole numbers in the unit that ends their name.
# `corelane check-config FILE` reports everything that is wrong with a file.
";

/// The whole reference as TOML.
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for table in knobs::all() {
        section(&mut text, table);
    }
    text
}

fn section(text: &mut String, table: &dyn AnyTable) {
    text.push('\n');
    comment(text, table.description());
    let _ = writeln!(text, "#{}", table.heading());
    for entry in table.entries() {
        setting(text, &entry);
    }
}

fn setting(text: &mut String, entry: &Entry) {
    let Entry { key, description, expects, needs_restart, default, example } = entry;
    text.push('\n');
    comment(text, description);
    let usual = match (example, default) {
        (Some(_), _) => "; has to be written",
        (None, None) => "; unset by default",
        (None, Some(_)) => "",
    };
    let restart = if *needs_restart { "a change needs a restart" } else { "a change needs no restart" };
    comment(text, &format!("Takes {expects}{usual}; {restart}."));
    // What is unset by default is a permission: whoever uncomments it without a thought refuses it.
    let _ = writeln!(text, "#{key} = {}", example.or(default.as_deref()).unwrap_or("false"));
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
    use super::super::{Config, Flags, resolve_text};
    use super::*;
    use crate::sinks::options::{FileOptions, HttpOptions, KafkaOptions, MongodbOptions, SinkKind, SourceOptions};
    use std::path::Path;

    fn resolve(text: &str) -> Config {
        resolve_text(Some((Path::new("corelane.toml.example"), text)), &Flags::default())
            .unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The reference with every setting uncommented but for those that are unset by default, as a reader would who removes each `#`.
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
    fn the_reference_as_it_stands_gives_the_defaults() {
        let defaults = format!("{:?}", resolve_text(None, &Flags::default()).unwrap());
        assert_eq!(format!("{:?}", resolve(&reference())), defaults);
    }

    #[test]
    fn the_reference_uncommented_gives_the_defaults_and_one_of_each_kind() {
        let mut config = resolve(&uncommented());
        let sinks: Vec<_> = std::mem::take(&mut config.sinks).into_iter().map(|sink| (sink.name, sink.kind)).collect();
        let http = HttpOptions { url: "http://127.0.0.1:8080/ingest".into(), ..HttpOptions::default() };
        assert_eq!(
            sinks,
            [
                ("kafka".into(), SinkKind::Kafka(KafkaOptions::default())),
                ("mongodb".into(), SinkKind::Mongodb(MongodbOptions::default())),
                ("http".into(), SinkKind::Http(http)),
                ("file".into(), SinkKind::File(FileOptions::default())),
            ]
        );
        let name = || "commands".to_owned();
        let source = SourceOptions { name: name(), topics: name(), ..SourceOptions::default() };
        assert_eq!(std::mem::take(&mut config.sources), [source]);
        let rules = std::mem::take(&mut config.rules);
        assert_eq!((rules.len(), &*rules[0].name, rules[0].actions.len()), (1, "telemetry", 5));
        assert_eq!(std::mem::take(&mut config.actions).len(), 4);
        assert_eq!(format!("{config:?}"), format!("{:?}", resolve_text(None, &Flags::default()).unwrap()));
    }

    #[test]
    fn the_reference_names_every_knob_of_every_table_with_its_bounds_and_restart() {
        let text = reference();
        let settings = text.lines().filter(|line| line.starts_with('#') && !line.starts_with("# ") && line.contains(" = "));
        let shown: Vec<&str> = settings.map(|line| line[1..].split(' ').next().unwrap_or_default()).collect();
        assert_eq!(shown, knobs::all().flat_map(|table| table.keys()).collect::<Vec<_>>());
        assert!(
            text.contains(
                "# Takes a whole number from 1 to 100,000,000; a change needs a restart.\n#connections_max = 1_000_000\n"
            )
        );
        assert!(text.contains("; has to be written; a change needs a restart.\n#url = \"http://127.0.0.1:8080/ingest\"\n"));
        assert!(text.lines().all(|line| line.chars().count() <= 130));
    }
}
