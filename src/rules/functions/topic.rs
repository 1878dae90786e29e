//! Functions of topics.

use super::super::input::level;
use super::super::value::Value;
use super::{Function, count, line};
use crate::topic::{Filter, levels, matches};

pub const FUNCTIONS: &[Function] = &[
    line(
        "topic_matches",
        "topic, filter",
        "Whether a topic filter matches a topic.",
        "topic_matches('vehicle/7/speed', 'vehicle/+/#')",
        "true",
        |mut a| {
            let (topic, filter) = (a.text(0)?, a.text(1)?);
            match Filter::parse(&filter, u16::MAX, u16::MAX) {
                Ok(parsed) => Ok(Value::Bool(matches(parsed.filter, &topic))),
                Err(error) => Err(error.to_string()),
            }
        },
    )
    .arity(2, 2),
    line("topic_level", "topic, number", "One level, or NULL.", "topic_level('vehicle/7/speed', 2)", r#""7""#, |mut a| {
        let (topic, number) = (a.text(0)?, a.int(1)?);
        Ok(level(&topic, number).map_or(Value::Null, |level| Value::text(level.to_owned())))
    })
    .arity(2, 2),
    line("topic_levels", "topic", "All levels.", "topic_levels('a//b')", r#"["a","","b"]"#, |mut a| {
        let topic = a.text(0)?;
        Ok(Value::Array(levels(&topic).map(|level| Value::text(level.to_owned())).collect()))
    }),
    line("topic_depth", "topic", "How many levels it has.", "topic_depth('a/b/c')", "3", |mut a| {
        Ok(count(levels(&a.text(0)?).count()))
    }),
];
