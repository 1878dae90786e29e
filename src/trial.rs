//! `corelane rules test`: what a rule makes of one message, without a broker.

use crate::rules::{Input, Rule, Source, SqlError, Value, Verdict, View};
use crate::topic::matches;
use crate::wire::{Properties, Property};

/// A message, or with a topic such as `$events/client_connected` an event.
#[derive(Clone, PartialEq, Eq, Debug, clap::Args)]
pub struct Trial {
    /// The rule
    #[arg(long)]
    pub sql: String,
    /// The topic that is published to, or an event such as `$events/client_connected`
    #[arg(long)]
    pub topic: String,
    #[arg(long, default_value = "")]
    pub payload: String,
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    #[arg(long)]
    pub retain: bool,
    /// The client that publishes
    #[arg(long, default_value = "test", alias = "client-id")]
    pub clientid: String,
    #[arg(long)]
    pub username: Option<String>,
    /// A user property, any number of times
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = property)]
    pub properties: Vec<(String, String)>,
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
        let event = self.topic.strip_prefix("$events/");
        let source = match event {
            None => Some(Source::Message),
            Some(name) => Source::EVENTS.into_iter().find(|source| source.name() == name),
        };
        let is_message = source == Some(Source::Message);
        let input = Input {
            client_id: Some(&self.clientid),
            username: self.username.as_deref(),
            topic: is_message.then_some(&self.topic),
            payload: Some(self.payload.as_bytes()),
            qos: Some(self.qos),
            retain: Some(self.retain),
            properties: Some(Properties::new(&pairs, &mut scratch)),
            timestamp_ms,
            node: "corelane",
            ..Input::default()
        };
        let found = match source {
            Some(Source::Message) => rule.filters().any(|filter| matches(filter, &self.topic)),
            Some(event) => rule.events().contains(&event),
            None => false,
        };
        if !found {
            return Ok("no: the topic matches nothing in FROM\n".into());
        }
        let view = View::new(source.unwrap_or(Source::Message), input);
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

    fn trial(sql: &str, topic: &str) -> Trial {
        Trial {
            sql: sql.into(),
            topic: topic.into(),
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
            ("SELECT event FROM \"$events/client_connected\"", "$events/none", "no: the topic matches nothing in FROM\n"),
        ] {
            assert_eq!(trial(sql, topic).run(0).as_deref(), Ok(expected), "{sql}");
        }
        assert_eq!(trial("SELECT", "a").run(0).unwrap_err().to_string(), "1:7: error: expected an expression, found the end");
    }
}
