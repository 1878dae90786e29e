//! The page about fields, events and functions, written from their tables.

use super::functions::GROUPS;
use super::input::{FIELDS, FieldEntry, Source};
use std::fmt::Write;

const HEAD: &str = "\
# Rules: fields, events and functions

Written from the tables in `src/rules`; a test fails when this page is not what they say, and runs every example.
`CORELANE_WRITE_DOCS=1 cargo test --lib rules` writes it anew. What can be written with them is in [rules.md](rules.md).

## Fields

| Field | What | Sources |
|---|---|---|
";

const FUNCTIONS: &str = "
## Functions

Unless it says otherwise, a function gives NULL when an argument is NULL, and fails when one has the wrong type: the rule's `failed` is
counted and the message has no row. Elements, characters and topic levels are counted from 1, and with a negative number from the end.
Arguments in brackets may be left out. The result is given as JSON. The examples run at 2023-11-14T22:13:20.123Z.
";

const EVENTS: &str = "
## Events

In FROM as `\"$events/NAME\"`. All have the fields whose sources are \"all\".

| Event | When | And its fields |
|---|---|---|
";

/// The page, in Markdown.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for entry in FIELDS {
        let sources = if is_in_all(&entry) {
            "all".to_owned()
        } else {
            let own = Source::ALL.iter().filter(|source| entry.is_in(**source));
            own.map(|source| format!("`{}`", source.name())).collect::<Vec<_>>().join(", ")
        };
        writeln!(page, "| `{}` | {} | {sources} |", entry.name, entry.doc).expect("a String takes what is written");
    }
    page.push_str(EVENTS);
    for event in Source::EVENTS {
        let own = FIELDS.iter().filter(|entry| entry.is_in(event) && !is_in_all(entry));
        let own = own.map(|entry| format!("`{}`", entry.name)).collect::<Vec<_>>().join(", ");
        writeln!(page, "| `$events/{}` | {} | {own} |", event.name(), event.doc()).expect("a String takes what is written");
    }
    page.push_str(FUNCTIONS);
    for (group, functions) in &GROUPS {
        write!(page, "\n### {group}\n\n| Function | What it gives | Example | Result |\n|---|---|---|---|\n")
            .expect("a String takes what is written");
        for function in *functions {
            let cells = [&format!("{}({})", function.name, function.signature), function.example, function.result]
                .map(|cell| cell.replace('|', "\\|"));
            writeln!(page, "| `{}` | {} | `{}` | `{}` |", cells[0], function.doc, cells[1], cells[2])
                .expect("a String takes what is written");
        }
    }
    page
}

fn is_in_all(entry: &FieldEntry) -> bool {
    Source::ALL.iter().all(|source| entry.is_in(*source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::functions::all;
    use crate::rules::{Input, Rule, Verdict, View};

    /// The value of an expression as JSON.
    fn value_of(expression: &str) -> String {
        let rule =
            Rule::parse(&format!("SELECT {expression} AS x FROM \"t\"")).unwrap_or_else(|error| panic!("{expression}: {error}"));
        let view = View::new(Source::Message, Input { timestamp_ms: 1_700_000_000_123, ..Input::default() });
        match rule.run(&view) {
            Ok(Verdict::Passed(rows)) => rows[0].get("x").unwrap().to_json(),
            other => panic!("{expression}: {other:?}"),
        }
    }

    #[test]
    fn every_example_gives_the_result_that_the_table_says() {
        let wrong: Vec<String> = all()
            .map(|function| (function.example, function.result, value_of(function.example)))
            .filter(|(_, result, found)| result != found)
            .map(|(example, result, found)| format!("{example} is {found}, not {result}"))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn every_function_has_one_line_and_its_example_calls_it() {
        let mut names: Vec<&str> = all().map(|function| function.name).collect();
        assert!(names.len() >= 60, "{}", names.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        for function in all() {
            assert!(function.example.contains(&format!("{}(", function.name)), "{}", function.name);
            assert!(function.arity.0 <= function.arity.1 && !function.doc.is_empty(), "{}", function.name);
            let named = function.signature.split(", ").filter(|name| !name.is_empty() && *name != "…");
            let most = if function.signature.contains('…') { usize::MAX } else { named.clone().count() };
            let fewest = named.filter(|name| !name.starts_with('[')).count();
            assert!(function.arity.1 == most && function.arity.0 <= fewest, "{}", function.name);
        }
    }

    #[test]
    fn every_example_can_be_an_argument() {
        for function in all() {
            assert_eq!(value_of(&format!("json_encode(coalesce({}, NULL))", function.example)), format!("{:?}", function.result));
        }
    }

    #[test]
    fn functions_take_as_many_arguments_as_the_table_says() {
        for function in all().filter(|function| !function.has_regex()) {
            let (fewest, most) = function.arity;
            let call = |arguments: usize| format!("SELECT {}({}) FROM \"t\"", function.name, vec!["NULL"; arguments].join(", "));
            let too_many = (most < usize::MAX).then(|| most + 1);
            for arguments in fewest.checked_sub(1).into_iter().chain(too_many) {
                // CEIL and the like are grammar, and take what the grammar takes.
                if let Ok(rule) = Rule::parse(&call(arguments)) {
                    panic!("{} is planned", rule.sql());
                }
            }
            Rule::parse(&call(fewest)).unwrap_or_else(|error| panic!("{}: {error}", function.name));
        }
    }

    #[test]
    fn the_page_is_what_the_tables_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rules-functions.md");
        if std::env::var_os("CORELANE_WRITE_DOCS").is_some() {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/docs")).unwrap();
            std::fs::write(path, reference()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == reference(),
            "docs/rules-functions.md is stale; CORELANE_WRITE_DOCS=1 cargo test --lib rules writes it"
        );
    }
}
