//! Functions with regular expressions, in the syntax of the crate `regex`: no look-around, no back-references, and therefore one search
//! takes time in proportion to the text. The expression is a constant, compiled once.
//!
//! Where all occurrences are looked for, each search may go to the end of the text before it knows where its occurrence ends
//! (`a(.*b)?` in a text of `a`s), and so each is paid for as if it did.

use super::super::value::Value;
use super::super::work::Work;
use super::{Arguments, Function, Kind, RESULT_MAX, Returned, count, line, too_large};
use regex::Regex;
use std::borrow::Cow;

/// A search is fast.
const BYTES_PER_STEP: u64 = 2;

pub const FUNCTIONS: &[Function] = &[
    line("regex_match", "text, regex", "Whether it is found in the text.", "regex_match('abc', '^a.c$')", "true", |a| {
        with(a, |regex, text, _| Ok(Value::Bool(regex.is_match(&text))))
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
            with(a, |regex, text, work| {
                let mut replaced = String::new();
                let mut end = 0;
                for captures in regex.captures_iter(&text) {
                    let found = captures.get_match();
                    pay(work, &text[end..])?;
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
            with(a, |regex, text, _| {
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
            with(a, |regex, text, work| {
                let all = regex.captures_iter(&text).map(|captures| {
                    pay(work, &text[captures.get_match().start()..])?;
                    let found = captures.get(usize::from(captures.len() > 1));
                    Ok(found.map_or(Value::Null, |found| Value::text(found.as_str().to_owned())))
                });
                Ok(Value::Array(all.collect::<Result<_, String>>()?))
            })
        },
    )
    .arity(2, 2)
    .kind(Kind::Regex),
    line("regex_count", "text, regex", "How often it is found.", "regex_count('a1b22', '[0-9]')", "3", |a| {
        with(a, |regex, text, work| {
            let found = regex.find_iter(&text).map(|found| pay(work, &text[found.start()..]));
            Ok(count(found.collect::<Result<Vec<()>, String>>()?.len()))
        })
    })
    .arity(2, 2)
    .kind(Kind::Regex),
];

fn with<'a>(mut a: Arguments<'_, 'a>, f: impl FnOnce(&Regex, Cow<'a, str>, &Work) -> Returned<'a>) -> Returned<'a> {
    let text = a.text(0)?;
    let regex = a.regex.expect("a rule is planned with the regular expressions of its functions");
    f(regex, text, a.work)
}

/// For a search through the rest of a text.
fn pay(work: &Work, rest: &str) -> Result<(), String> {
    work.spend(1 + rest.len() as u64 / BYTES_PER_STEP)
}
