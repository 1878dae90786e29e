//! Functions with regular expressions, in the syntax of the crate `regex`: no look-around, no back-references, and therefore time in
//! proportion to the text. The expression is a constant, compiled once.

use super::super::value::Value;
use super::{Arguments, Function, Kind, RESULT_MAX, Returned, count, line, too_large};
use regex::Regex;
use std::borrow::Cow;

pub const FUNCTIONS: &[Function] = &[
    line("regex_match", "text, regex", "Whether it is found in the text.", "regex_match('abc', '^a.c$')", "true", |a| {
        with(a, |regex, text| Ok(Value::Bool(regex.is_match(&text))))
    })
    .arity(2, 2)
    .kind(Kind::Regex),
    line(
        "regex_replace",
        "text, regex, with",
        "With another text wherever it is found; `$1` stands for its first group.",
        "regex_replace('v12', '([0-9]+)', '<$1>')",
        r#""v<12>""#,
        |mut a| {
            let replacement = a.text(2)?;
            with(a, |regex, text| {
                let mut replaced = String::new();
                let mut end = 0;
                for captures in regex.captures_iter(&text) {
                    let found = captures.get_match();
                    replaced.push_str(&text[end..found.start()]);
                    captures.expand(&replacement, &mut replaced);
                    end = found.end();
                    if replaced.len() > RESULT_MAX {
                        return too_large();
                    }
                }
                replaced.push_str(&text[end..]);
                Ok(Value::text(replaced))
            })
        },
    )
    .arity(3, 3)
    .kind(Kind::Regex),
    line(
        "regex_extract",
        "text, regex",
        "What it finds first: its first group, or all of it if it has none; NULL if nothing.",
        "regex_extract('id=42;', 'id=([0-9]+)')",
        r#""42""#,
        |a| {
            with(a, |regex, text| {
                let captures = regex.captures(&text);
                let found = captures.as_ref().and_then(|captures| captures.get(usize::from(captures.len() > 1)));
                Ok(found.map_or(Value::Null, |found| Value::text(found.as_str().to_owned())))
            })
        },
    )
    .arity(2, 2)
    .kind(Kind::Regex),
    line(
        "regex_extract_all",
        "text, regex",
        "All that it finds, as `regex_extract`.",
        "regex_extract_all('a1b22', '[0-9]+')",
        r#"["1","22"]"#,
        |a| {
            with(a, |regex, text| {
                let all = regex.captures_iter(&text).map(|captures| {
                    let found = captures.get(usize::from(captures.len() > 1));
                    found.map_or(Value::Null, |found| Value::text(found.as_str().to_owned()))
                });
                Ok(Value::Array(all.collect()))
            })
        },
    )
    .arity(2, 2)
    .kind(Kind::Regex),
    line("regex_count", "text, regex", "How often it is found.", "regex_count('a1b22', '[0-9]')", "3", |a| {
        with(a, |regex, text| Ok(count(regex.find_iter(&text).count())))
    })
    .arity(2, 2)
    .kind(Kind::Regex),
];

fn with<'a>(mut a: Arguments<'_, 'a>, f: impl FnOnce(&Regex, Cow<'a, str>) -> Returned<'a>) -> Returned<'a> {
    let text = a.text(0)?;
    let regex = a.regex.expect("a rule is planned with the regular expressions of its functions");
    f(regex, text)
}
