//! What is known to be wrong about a template before it has seen a row: the texts between its values stay as they are.

use crate::limits::Limits;
use crate::sinks::kafka_config::{check_topic, may_be_in_topic};
use crate::sinks::{http, mongodb};
use crate::topic::{TopicError, check_name, is_of_broker};

/// The texts before, between and behind the values of a template, some of them empty, each with the character (from 1) at which it begins.
pub struct Constants<'a>(Vec<(usize, &'a str)>);

/// What is wrong, at which character of the template.
#[derive(PartialEq, Eq, Debug)]
pub struct Fault {
    pub at: usize,
    pub what: String,
    pub fix: &'static str,
}

/// Finds what is wrong with a template whatever its values are.
pub type Check = fn(&Constants<'_>, &Limits) -> Result<(), Fault>;

impl<'a> Constants<'a> {
    pub fn of(template: &'a str) -> Self {
        let (mut texts, mut rest, mut at) = (Vec::new(), template, 1);
        while let Some((before, behind)) = rest.split_once("${")
            && let Some((name, after)) = behind.split_once('}')
        {
            texts.push((at, before));
            at += before.chars().count() + name.chars().count() + 3;
            rest = after;
        }
        texts.push((at, rest));
        Self(texts)
    }

    fn has_values(&self) -> bool {
        self.0.len() > 1
    }

    fn head(&self) -> &'a str {
        self.0[0].1
    }

    /// The text with something in the place of each value.
    fn with(&self, value: &str) -> String {
        self.0.iter().map(|(_, text)| *text).collect::<Vec<_>>().join(value)
    }

    /// Where the first character is that is such a one.
    fn find(&self, is_it: impl Fn(char) -> bool) -> Option<usize> {
        self.0.iter().find_map(|(at, text)| Some(at + text.chars().position(&is_it)?))
    }
}

fn fault<T>(at: usize, what: impl Into<String>, fix: &'static str) -> Result<T, Fault> {
    Err(Fault { at, what: what.into(), fix })
}

pub fn anything(_: &Constants<'_>, _: &Limits) -> Result<(), Fault> {
    Ok(())
}

/// A topic that a rule or a source publishes to.
pub fn mqtt_topic(text: &Constants<'_>, limits: &Limits) -> Result<(), Fault> {
    const FIX: &str = "write a topic that clients can subscribe to";
    if is_of_broker(text.head()) && (text.head() != "$SYS" || !text.has_values()) {
        return fault(1, TopicError::OfBroker.to_string(), FIX);
    }
    if let Some(at) = text.find(|c| c == '\0') {
        return fault(at, "topic contains the null character", FIX);
    }
    let topic = text.with("");
    if topic.is_empty() && text.has_values() {
        return Ok(());
    }
    match check_name(&topic, limits.topic_levels_max, limits.topic_bytes_max) {
        Err(error) => fault(text.find(|c| matches!(c, '+' | '#')).unwrap_or(1), error.to_string(), FIX),
        Ok(()) => Ok(()),
    }
}

pub fn kafka_topic(text: &Constants<'_>, _: &Limits) -> Result<(), Fault> {
    let topic = text.with("");
    if text.has_values() && matches!(topic.as_str(), "" | "." | "..") {
        return Ok(());
    }
    match check_topic(&topic) {
        Err(what) => fault(text.find(|c| !may_be_in_topic(c)).unwrap_or(1), what, "write a name of a Kafka topic"),
        Ok(()) => Ok(()),
    }
}

pub fn collection(text: &Constants<'_>, _: &Limits) -> Result<(), Fault> {
    let name = text.with("");
    let at = text.find(|c| matches!(c, '$' | '\0'));
    if at.is_some() || name.starts_with("system.") || (name.is_empty() && !text.has_values()) {
        return fault(
            at.unwrap_or(1),
            format!("{name:?} is no name of a collection"),
            "write letters, digits, \"_\", \"-\" and \".\"",
        );
    }
    Ok(())
}

/// A document of MongoDB.
pub fn document(text: &Constants<'_>, _: &Limits) -> Result<(), Fault> {
    const FIX: &str = "write a JSON object, such as {\"_id\": \"${clientid}\"}";
    if !text.has_values() {
        return mongodb::document(text.head().as_bytes(), "template").map_or_else(|what| fault(1, what, FIX), |_| Ok(()));
    }
    let head = text.head().trim_start();
    if !head.is_empty() && !head.starts_with('{') {
        return fault(1, "a JSON object begins with {", FIX);
    }
    let (at, last) = text.0[text.0.len() - 1];
    let tail = last.trim_end();
    if !tail.is_empty() && !tail.ends_with('}') {
        return fault(at + tail.chars().count() - 1, "a JSON object ends with }", FIX);
    }
    Ok(())
}

/// A document that may be left out.
pub fn filter(text: &Constants<'_>, limits: &Limits) -> Result<(), Fault> {
    if text.has_values() || !text.head().is_empty() { document(text, limits) } else { Ok(()) }
}

/// An element of a JSON array.
pub fn json(text: &Constants<'_>, _: &Limits) -> Result<(), Fault> {
    if !text.has_values() && !http::is_json(text.head().as_bytes()) {
        return fault(1, "it is no JSON, and the sink has body = \"json_array\"", "write JSON, or give the sink another body");
    }
    Ok(())
}

/// What is appended to a URL.
pub fn path(text: &Constants<'_>, _: &Limits) -> Result<(), Fault> {
    http::check_path(&text.with("…")).or_else(|what| fault(1, what, "write a path such as /vehicles/${clientid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At which character something is wrong.
    fn at(check: Check, template: &str) -> Option<usize> {
        let limits = Limits { topic_levels_max: 4, topic_bytes_max: 20, ..Limits::default() };
        check(&Constants::of(template), &limits).err().map(|fault| fault.at)
    }

    #[test]
    fn what_no_value_can_put_right_is_found_where_it_stands() {
        let cases: &[(Check, &str, Option<usize>)] = &[
            (mqtt_topic, "a/${b}/c", None),
            (mqtt_topic, "${a}", None),
            (mqtt_topic, "", Some(1)),
            (mqtt_topic, "a/${é}/#", Some(8)),
            (mqtt_topic, "${a}\0", Some(5)),
            (mqtt_topic, "$SYS/${a}", Some(1)),
            (mqtt_topic, "$SYS${a}", None),
            (mqtt_topic, "$x/${a}", None),
            (mqtt_topic, "/${a}/${b}/", None),
            (mqtt_topic, "/${a}/${b}//", Some(1)),
            (mqtt_topic, "12345678901234567890${a}", None),
            (mqtt_topic, "12345678901234567890${a}1", Some(1)),
            (kafka_topic, "a-${b}", None),
            (kafka_topic, ".${b}", None),
            (kafka_topic, "..", Some(1)),
            (kafka_topic, "${b}/c", Some(5)),
            (collection, "c_${a}", None),
            (collection, "system.${a}", Some(1)),
            (collection, "${a}$", Some(5)),
            (document, "${.}", None),
            (document, " {\"a\": ${a}} ", None),
            (document, "{\"a\": 1}", None),
            (document, "{x", Some(1)),
            (document, "[1]", Some(1)),
            (document, "", Some(1)),
            (document, "x${a}", Some(1)),
            (document, "{\"a\": ${a}] ", Some(11)),
            (filter, "", None),
            (filter, "{\"a\":", Some(1)),
            (json, "[1]", None),
            (json, "not json", Some(1)),
            (json, "not ${a}", None),
            (path, "/in/${a}?q=${b}", None),
            (path, "${a}", None),
            (path, "../${a}", Some(1)),
            (path, "a/${a}/%2e%2e", Some(1)),
            (path, "a\n", Some(1)),
        ];
        for (check, template, expected) in cases {
            assert_eq!(at(*check, template), *expected, "{template:?}");
        }
    }
}
