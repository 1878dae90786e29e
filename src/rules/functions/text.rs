//! Functions of texts. Lengths and places count characters, places from 1.

use super::super::eval::as_text;
use super::super::value::{Map, Value, element};
use super::{Arguments, Function, Kind, MANY, RESULT_MAX, Returned, count, line, too_large};
use std::borrow::Cow;
use std::fmt::Write;

pub const FUNCTIONS: &[Function] = &[
    line("lower", "text", "In lower case.", "lower('Ab')", r#""ab""#, |mut a| Ok(Value::text(a.text(0)?.to_lowercase()))),
    line("upper", "text", "In upper case.", "upper('Ab')", r#""AB""#, |mut a| Ok(Value::text(a.text(0)?.to_uppercase()))),
    line(
        "trim",
        "text, [characters]",
        "Without white space, or those characters, at both ends.",
        "trim('  a ')",
        r#""a""#,
        |a| trim(a, true, true),
    )
    .arity(1, 2),
    line("ltrim", "text, [characters]", "As `trim`, at the beginning.", "ltrim('xxa', 'x')", r#""a""#, |a| trim(a, true, false))
        .arity(1, 2),
    line("rtrim", "text, [characters]", "As `trim`, at the end.", "rtrim('a;;', ';')", r#""a""#, |a| trim(a, false, true))
        .arity(1, 2),
    line("strlen", "text", "Its length in characters.", "strlen('né')", "2", |mut a| Ok(count(a.text(0)?.chars().count()))),
    line("byte_length", "text or bytes", "Its length in bytes.", "byte_length('né')", "3", |mut a| Ok(count(a.bytes(0)?.len()))),
    line(
        "substr",
        "text, from, [length]",
        "The part that begins at a character (a negative number counts from the end).",
        "substr('telemetry', 5, 3)",
        r#""met""#,
        substr,
    )
    .arity(2, 3),
    line("left", "text, length", "The first characters.", "left('speed', 2)", r#""sp""#, |mut a| {
        let (text, length) = (a.text(0)?, a.size(1)?);
        Ok(part(text, 0, length))
    })
    .arity(2, 2),
    line("right", "text, length", "The last characters.", "right('speed', 2)", r#""ed""#, |mut a| {
        let (text, length) = (a.text(0)?, a.size(1)?);
        let skipped = text.chars().count().saturating_sub(length);
        Ok(part(text, skipped, length))
    })
    .arity(2, 2),
    line(
        "concat",
        "value, …",
        "Texts, numbers and booleans joined; NULL is left out.",
        "concat('a', 1, NULL, true)",
        r#""a1true""#,
        |a| concat("", a.values),
    )
    .arity(1, MANY)
    .kind(Kind::SeesNull),
    line(
        "concat_ws",
        "separator, value, …",
        "As `concat`, with a separator in between.",
        "concat_ws('-', 'a', 1)",
        r#""a-1""#,
        |mut a| {
            let separator = a.text(0)?;
            concat(&separator, &a.values[1..])
        },
    )
    .arity(2, MANY)
    .kind(Kind::SeesNull),
    line("repeat", "text, times", "The text so many times.", "repeat('ab', 2)", r#""abab""#, |mut a| {
        let (text, times) = (a.text(0)?, a.size(1)?);
        if text.len().saturating_mul(times) > RESULT_MAX { too_large() } else { Ok(Value::text(text.repeat(times))) }
    })
    .arity(2, 2),
    line(
        "pad_left",
        "text, length, [with]",
        "Filled up at the beginning, with spaces or another text.",
        "pad_left('7', 3, '0')",
        r#""007""#,
        |a| pad(a, true),
    )
    .arity(2, 3),
    line(
        "pad_right",
        "text, length, [with]",
        "Filled up at the end, with spaces or another text.",
        "pad_right('a', 3, '.')",
        r#""a..""#,
        |a| pad(a, false),
    )
    .arity(2, 3),
    line(
        "replace",
        "text, what, with",
        "With another text wherever the one is.",
        "replace('a-b-c', '-', '/')",
        r#""a/b/c""#,
        |mut a| {
            let (text, what, with) = (a.text(0)?, a.text(1)?, a.text(2)?);
            let times = text.matches(&*what).count();
            if text.len().saturating_add(times.saturating_mul(with.len())) > RESULT_MAX {
                return too_large();
            }
            Ok(Value::text(text.replace(&*what, &with)))
        },
    )
    .arity(3, 3),
    line(
        "index_of",
        "text, what",
        "Where a text is first found in it; 0 if it is not.",
        "index_of('abcabc', 'ca')",
        "3",
        |mut a| {
            let (text, what) = (a.text(0)?, a.text(1)?);
            Ok(text.find(&*what).map_or(Value::Int(0), |at| count(text[..at].chars().count() + 1)))
        },
    )
    .arity(2, 2),
    line("contains", "text, what", "Whether a text is in it.", "contains('abc', 'bc')", "true", |mut a| {
        let (text, what) = (a.text(0)?, a.text(1)?);
        Ok(Value::Bool(text.contains(&*what)))
    })
    .arity(2, 2),
    line("starts_with", "text, what", "Whether it begins so.", "starts_with('abc', 'ab')", "true", |mut a| {
        let (text, what) = (a.text(0)?, a.text(1)?);
        Ok(Value::Bool(text.starts_with(&*what)))
    })
    .arity(2, 2),
    line("ends_with", "text, what", "Whether it ends so.", "ends_with('abc', 'ab')", "false", |mut a| {
        let (text, what) = (a.text(0)?, a.text(1)?);
        Ok(Value::Bool(text.ends_with(&*what)))
    })
    .arity(2, 2),
    line("split", "text, separator", "The parts between separators.", "split('a,b,,c', ',')", r#"["a","b","","c"]"#, |mut a| {
        let (text, separator) = (a.text(0)?, a.text(1)?);
        if separator.is_empty() {
            return Err("the separator is empty".into());
        }
        Ok(Value::Array(match text {
            Cow::Borrowed(text) => text.split(&*separator).map(Value::text).collect(),
            Cow::Owned(text) => text.split(&*separator).map(|part| Value::text(part.to_owned())).collect(),
        }))
    })
    .arity(2, 2),
    line(
        "split_part",
        "text, separator, number",
        "One of the parts (a negative number counts from the end), or NULL.",
        "split_part('a,b,c', ',', 2)",
        r#""b""#,
        |mut a| {
            let (text, separator, number) = (a.text(0)?, a.text(1)?, a.int(2)?);
            if separator.is_empty() {
                return Err("the separator is empty".into());
            }
            let place = element(number, text.split(&*separator).count());
            let part = place.and_then(|place| text.split(&*separator).nth(place));
            Ok(part.map_or(Value::Null, |part| Value::text(part.to_owned())))
        },
    )
    .arity(3, 3),
    line(
        "format",
        "pattern, value, …",
        "The pattern with the values where it has `{}`.",
        "format('{} km/h at {}', 120, 'A1')",
        r#""120 km/h at A1""#,
        format,
    )
    .arity(1, MANY)
    .kind(Kind::SeesNull),
    line("char_code", "text", "The number of its first character in Unicode, or NULL.", "char_code('A')", "65", |mut a| {
        Ok(a.text(0)?.chars().next().map_or(Value::Null, |character| Value::Int(i64::from(u32::from(character)))))
    }),
    line("char_of", "number", "The character with that number in Unicode.", "char_of(65)", r#""A""#, |a| {
        let number = a.int(0)?;
        match u32::try_from(number).ok().and_then(char::from_u32) {
            Some(character) => Ok(Value::text(character.to_string())),
            None => Err(format!("no character has the number {number}")),
        }
    }),
    line(
        "query_params",
        "text",
        "The parameters of a query string as a map, decoded.",
        "query_params('a=1&b=x%20y')",
        r#"{"a":"1","b":"x y"}"#,
        |mut a| {
            let text = a.text(0)?;
            let decode = |text: &str| super::encode::url_decode(&text.replace('+', " "));
            let pairs = text.trim_start_matches('?').split('&').filter(|pair| !pair.is_empty());
            let entries = pairs.map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((Cow::Owned(decode(name)?), Value::text(decode(value)?)))
            });
            let map = entries.collect::<Result<Map<'_>, String>>()?;
            Ok(Value::Map(map))
        },
    ),
];

/// A part of a text; of one that is borrowed it is borrowed too.
fn slice<'a>(text: Cow<'a, str>, start: usize, end: usize) -> Value<'a> {
    match text {
        Cow::Borrowed(text) => Value::text(&text[start..end]),
        Cow::Owned(text) => Value::text(text[start..end].to_owned()),
    }
}

/// So many characters behind so many.
fn part(text: Cow<'_, str>, skipped: usize, length: usize) -> Value<'_> {
    let start = text.char_indices().nth(skipped).map_or(text.len(), |(at, _)| at);
    let end = text[start..].char_indices().nth(length).map_or(text.len(), |(at, _)| start + at);
    slice(text, start, end)
}

fn substr<'a>(mut a: Arguments<'_, 'a>) -> Returned<'a> {
    let (text, from) = (a.text(0)?, a.int(1)?);
    let length = if a.has(2) { a.size(2)? } else { usize::MAX };
    let skipped = match from {
        1.. => usize::try_from(from - 1).unwrap_or(usize::MAX),
        0 => 0,
        _ => text.chars().count().saturating_sub(usize::try_from(from.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    Ok(part(text, skipped, length))
}

fn trim<'a>(mut a: Arguments<'_, 'a>, start: bool, end: bool) -> Returned<'a> {
    let text = a.text(0)?;
    let characters = if a.has(1) { Some(a.text(1)?) } else { None };
    let off = |character: char| match &characters {
        Some(characters) => characters.contains(character),
        None => character.is_whitespace(),
    };
    let from = if start { text.len() - text.trim_start_matches(off).len() } else { 0 };
    let to = if end { from + text[from..].trim_end_matches(off).len() } else { text.len() };
    Ok(slice(text, from, to))
}

fn concat<'a>(separator: &str, values: &[Value<'_>]) -> Returned<'a> {
    let mut joined = String::new();
    for (number, value) in values.iter().filter(|value| !value.is_null()).enumerate() {
        let Some(text) = as_text(value) else {
            return Err(format!("{} cannot be joined", super::with_article(value)));
        };
        if number > 0 {
            joined.push_str(separator);
        }
        joined.push_str(&text);
    }
    if joined.len() > RESULT_MAX { too_large() } else { Ok(Value::text(joined)) }
}

fn pad<'a>(mut a: Arguments<'_, 'a>, before: bool) -> Returned<'a> {
    let (text, length) = (a.text(0)?, a.size(1)?);
    let with = if a.has(2) { a.text(2)? } else { Cow::Borrowed(" ") };
    let missing = length.saturating_sub(text.chars().count());
    if with.is_empty() && missing > 0 {
        return Err("there is nothing to fill up with".into());
    }
    let filling: String = with.chars().cycle().take(missing).collect();
    Ok(Value::text(if before { filling + &text } else { text.into_owned() + &filling }))
}

fn format<'a>(mut a: Arguments<'_, 'a>) -> Returned<'a> {
    let pattern = a.text(0)?;
    let mut values = a.values[1..].iter();
    let mut parts = pattern.split("{}");
    let mut formatted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some(value) = values.next() else { return Err("there are more {} than values".into()) };
        match as_text(value) {
            Some(text) => formatted.push_str(&text),
            None => write!(formatted, "{}", value.to_json()).expect("a String takes what is written"),
        }
        formatted.push_str(part);
        if formatted.len() > RESULT_MAX {
            return too_large();
        }
    }
    if values.next().is_some() { Err("there are more values than {}".into()) } else { Ok(Value::text(formatted)) }
}
