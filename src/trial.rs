//! `corelane rules test`: what a rule makes of one message, without a broker.

use crate::rules::{Input, Rule, Source, SqlError, Value, Verdict, View, event_of};
use crate::topic::{check_name, matches};
use crate::wire::{Properties, Property};

/// A message, or with a topic such as `$events/client_connected` an event.
#[derive(Clone, PartialEq, Eq, Debug, clap::Args)]
pub struct Trial {
    /// The rule
    #[arg(long)]
    pub sql: String,
    /// The topic that is published to, or an event such as `$events/client_connected`
    #[arg(long = "topic", value_name = "TOPIC", value_parser = subject)]
    pub subject: Subject,
    /// The payload, such as a text of JSON
    #[arg(long, default_value = "")]
    pub payload: String,
    /// The message's QoS, or the one that was granted to a subscription
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    /// Publish it retained
    #[arg(long)]
    pub retain: bool,
    /// The client that publishes
    #[arg(long, default_value = "test", alias = "client-id")]
    pub clientid: String,
    /// The client's user name; NULL without it
    #[arg(long)]
    pub username: Option<String>,
    /// A user property, any number of times
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = property)]
    pub properties: Vec<(String, String)>,
}

/// What the rule is tried with: a message to a topic, or an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    Message { topic: String },
    Event(Source),
}

fn subject(text: &str) -> Result<Subject, String> {
    match event_of(text) {
        Some(event) => event.map(Subject::Event),
        None => match check_name(text, u16::MAX, u16::MAX) {
            Ok(()) => Ok(Subject::Message { topic: text.into() }),
            Err(error) => Err(error.to_string()),
        },
    }
}

fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let fits = |part: &str| part.len() <= usize::from(u16::MAX) && !part.contains('\0');
    if !fits(name) || !fits(value) {
        return Err("a user property has at most 65,535 bytes and no null character".into());
    }
    Ok((name.into(), value.into()))
}

impl Trial {
    /// One row of JSON per line, or why there is none. An error if the text is no rule.
    pub fn run(&self, timestamp_ms: i64) -> Result<String, SqlError> {
        let rule = Rule::parse(&self.sql)?;
        let pairs: Vec<Property<'_>> =
            self.properties.iter().map(|(name, value)| Property::UserProperty((name, value))).collect();
        let mut scratch = Vec::new();
        let (source, topic, found) = match &self.subject {
            Subject::Message { topic } => {
                (Source::Message, Some(topic.as_str()), rule.filters().any(|filter| matches(filter, topic)))
            }
            Subject::Event(event) => (*event, None, rule.events().contains(event)),
        };
        if !found {
            return Ok("no: the topic matches nothing in FROM\n".into());
        }
        let input = Input {
            client_id: Some(&self.clientid),
            username: self.username.as_deref(),
            topic,
            payload: Some(self.payload.as_bytes()),
            qos: Some(self.qos),
            retain: Some(self.retain),
            properties: Some(Properties::new(&pairs, &mut scratch)),
            timestamp_ms,
            node: "corelane",
            ..Input::default()
        };
        let view = View::new(source, input);
        Ok(match rule.run(&view) {
            Ok(Verdict::Passed(rows)) => rows.into_iter().map(|row| Value::Map(row).to_json() + "\n").collect(),
            Ok(Verdict::Filtered) => "no: WHERE is false\n".into(),
            Ok(Verdict::Nothing) => "no: FOREACH finds nothing\n".into(),
            Err(failure) => format!("failed: {failure}\n"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::process::Command;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        trial: Trial,
    }

    /// A command as docs/rules.md has it: the words are what a shell makes of them.
    fn run_as_written(command: &str) -> String {
        let script = format!("corelane() {{ printf '%s\\0' \"$@\"; }}\n{command}");
        let words = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        let words = String::from_utf8(words).unwrap();
        let arguments = words.split_terminator('\0').skip("rules test".split(' ').count());
        let line =
            CommandLine::try_parse_from(["corelane"].into_iter().chain(arguments)).unwrap_or_else(|error| panic!("{error}"));
        line.trial.run(0).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    #[test]
    fn every_command_of_the_page_prints_what_it_shows() {
        let page = include_str!("../docs/rules.md");
        let mut commands = 0;
        for example in page.split("```sh\n").skip(1) {
            let (command, rest) = example.split_once("\n```\n").unwrap();
            let expected = rest.trim_start().strip_prefix("```\n").unwrap().split("```").next().unwrap();
            assert_eq!(run_as_written(command), expected, "{command}");
            commands += 1;
        }
        assert!(commands >= 7);
    }

    #[test]
    fn every_expression_of_the_page_gives_what_its_row_says() {
        let payload = r#"{"n":2,"name":"ab","list":[10,{"c":true}],"x y":5}"#;
        let page = include_str!("../docs/rules.md");
        assert!(page.contains(payload));
        let mut rows = 0;
        for row in page.lines().filter(|line| line.starts_with('|')) {
            let row = row.replace("\\|", "\0");
            let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('\0', "|")).collect();
            let code = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
            let (Some(expression), Some(expected)) = (code(&cells[2]), code(&cells[3])) else { continue };
            let trial =
                Trial { payload: payload.into(), ..trial(&format!("SELECT {expression} AS x FROM '#'"), "vehicle/7/telemetry") };
            let found = trial.run(0).unwrap_or_else(|error| panic!("{expression}: {error}"));
            if expected.starts_with("failed: ") {
                assert!(found.starts_with(&format!("{expected} in ")), "{expression}: {found}");
            } else {
                assert_eq!(found, format!("{{\"x\":{expected}}}\n"), "{expression}");
            }
            rows += 1;
        }
        assert!(rows >= 30);
    }

    fn trial(sql: &str, topic: &str) -> Trial {
        Trial {
            sql: sql.into(),
            subject: subject(topic).unwrap(),
            payload: r#"{"v":1,"list":[1,2]}"#.into(),
            qos: 1,
            retain: false,
            clientid: "c".into(),
            username: None,
            properties: vec![("k".into(), "x".into())],
        }
    }

    #[test]
    fn rows_are_lines_of_json_and_no_row_has_a_reason() {
        for (sql, topic, expected) in [
            (
                "SELECT payload.v, qos, user_properties.k FROM \"a/+\"",
                "a/b",
                "{\"payload\":{\"v\":1},\"qos\":1,\"user_properties\":{\"k\":\"x\"}}\n",
            ),
            ("FOREACH payload.list FROM \"a/+\"", "a/b", "{\"item\":1}\n{\"item\":2}\n"),
            ("FOREACH payload.none FROM \"a/+\"", "a/b", "no: FOREACH finds nothing\n"),
            ("SELECT * FROM \"a/+\" WHERE qos = 2", "a/b", "no: WHERE is false\n"),
            ("SELECT * FROM \"a/+\"", "b", "no: the topic matches nothing in FROM\n"),
            ("SELECT payload.v / 0 FROM \"a/+\"", "a/b", "failed: division by zero in payload.v / 0 at 1:8\n"),
            (
                "SELECT event, clientid FROM \"$events/client_connected\"",
                "$events/client_connected",
                "{\"event\":\"client_connected\",\"clientid\":\"c\"}\n",
            ),
            (
                "SELECT event FROM \"$events/client_connected\"",
                "$events/client_disconnected",
                "no: the topic matches nothing in FROM\n",
            ),
        ] {
            assert_eq!(trial(sql, topic).run(0).as_deref(), Ok(expected), "{sql}");
        }
        assert_eq!(trial("SELECT", "a").run(0).unwrap_err().to_string(), "1:7: error: expected an expression, found the end");
    }
}
