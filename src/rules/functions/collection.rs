//! Functions of arrays and maps. Elements are counted from 1, or with a negative number from the end.

use super::super::document::Document;
use super::super::eval::Arithmetic;
use super::super::value::{Map, Value, element};
use super::{Function, Kind, MANY, RESULT_MAX, Returned, count, line, too_large};
use std::borrow::Cow;
use std::cmp::Ordering;

pub const ARRAYS: &[Function] = &[
    line("length", "array or map or text", "How many elements, entries or characters it has.", "length([1, 2])", "2", |mut a| {
        match a.take(0) {
            Value::Array(values) => Ok(count(values.len())),
            Value::Map(map) => Ok(count(map.len())),
            Value::Text(text) => Ok(count(text.chars().count())),
            other => {
                a.values[0] = other;
                a.wrong(0, "an array, a map or a text")
            }
        }
    }),
    line("first", "array", "The first element, or NULL.", "first([1, 2])", "1", |mut a| nth(a.array(0)?, 1)),
    line("last", "array", "The last element, or NULL.", "last([1, 2])", "2", |mut a| nth(a.array(0)?, -1)),
    line("nth", "number, array", "The element with that number, or NULL.", "nth(2, [7, 8, 9])", "8", |mut a| {
        let number = a.int(0)?;
        nth(a.array(1)?, number)
    })
    .arity(2, 2),
    line("sublist", "from, length, array", "So many elements from one on.", "sublist(2, 2, [1, 2, 3, 4])", "[2,3]", |mut a| {
        let (from, length) = (a.int(0)?, a.size(1)?);
        let values = a.array(2)?;
        let place = element(from, values.len()).unwrap_or(values.len());
        Ok(Value::Array(values.into_iter().skip(place).take(length).collect()))
    })
    .arity(3, 3),
    line("array_contains", "array, value", "Whether the value is in it.", "array_contains([1, 2], 2)", "true", |mut a| {
        let values = a.array(0)?;
        Ok(Value::Bool(values.iter().any(|value| value.equals(&a.values[1]))))
    })
    .arity(2, 2),
    line(
        "array_position",
        "array, value",
        "Where the value is first; 0 if it is not.",
        "array_position([5, 6], 6)",
        "2",
        |mut a| {
            let values = a.array(0)?;
            Ok(values.iter().position(|value| value.equals(&a.values[1])).map_or(Value::Int(0), |place| count(place + 1)))
        },
    )
    .arity(2, 2),
    line("append", "array, value", "With the value behind all others.", "append([1], NULL)", "[1,null]", |mut a| {
        let mut values = a.array(0)?;
        values.push(a.take(1));
        Ok(Value::Array(values))
    })
    .arity(2, 2)
    .kind(Kind::SeesNull),
    line("prepend", "array, value", "With the value before all others.", "prepend([1], 0)", "[0,1]", |mut a| {
        let mut values = a.array(0)?;
        values.insert(0, a.take(1));
        Ok(Value::Array(values))
    })
    .arity(2, 2)
    .kind(Kind::SeesNull),
    line("reverse", "array or text", "In the opposite order.", "reverse('abc')", r#""cba""#, |mut a| match a.take(0) {
        Value::Array(mut values) => {
            values.reverse();
            Ok(Value::Array(values))
        }
        Value::Text(text) => Ok(Value::text(text.chars().rev().collect::<String>())),
        other => {
            a.values[0] = other;
            a.wrong(0, "an array or a text")
        }
    }),
    line("sort", "array", "In order: numbers, texts or booleans.", "sort([3, 1.5, 2])", "[1.5,2,3]", |mut a| {
        let mut values = a.array(0)?;
        if let Some([left, right]) = disordered(&values) {
            return Err(format!("{left} and {right} have no order"));
        }
        values.sort_by(|left, right| left.order(right).unwrap_or(Ordering::Equal));
        Ok(Value::Array(values))
    }),
    line("array_distinct", "array", "Without what was there before.", "array_distinct([1, 2, 1.0])", "[1,2]", |mut a| {
        let mut kept: Vec<Value<'_>> = Vec::new();
        let values = a.array(0)?;
        if values.len() > DISTINCT_MAX {
            return Err(format!("the array has more than {DISTINCT_MAX} elements"));
        }
        for value in values {
            if !kept.iter().any(|other| other.equals(&value)) {
                kept.push(value);
            }
        }
        Ok(Value::Array(kept))
    }),
    line("join", "array, separator", "Its elements joined to a text.", "join(['a', 1], ', ')", r#""a, 1""#, |mut a| {
        let (values, separator) = (a.array(0)?, a.text(1)?);
        let mut joined = String::new();
        for (number, value) in values.iter().enumerate() {
            let Some(text) = super::super::eval::as_text(value) else {
                return Err(format!("{} cannot be joined", super::with_article(value)));
            };
            if number > 0 {
                joined.push_str(&separator);
            }
            joined.push_str(&text);
            if joined.len() > RESULT_MAX {
                return too_large();
            }
        }
        Ok(Value::text(joined))
    })
    .arity(2, 2),
    line("range", "first, last", "The ints from one to the other.", "range(1, 3)", "[1,2,3]", |a| {
        let (first, last) = (a.int(0)?, a.int(1)?);
        match last.checked_sub(first) {
            Some(length) if length < RANGE_MAX => Ok(Value::Array((first..=last).map(Value::Int).collect())),
            _ => Err(format!("the range has more than {RANGE_MAX} ints")),
        }
    })
    .arity(2, 2),
    line("sum", "array", "The sum of its numbers; 0 of none.", "sum([1, 2, 3.5])", "6.5", |mut a| sum(&a.array(0)?)),
    line("avg", "array", "The mean of its numbers, a float; NULL of none.", "avg([1, 2])", "1.5", |mut a| {
        let values = a.array(0)?;
        if values.is_empty() {
            return Ok(Value::Null);
        }
        Arithmetic::Divide.apply(&sum(&values)?, &Value::Float(values.len() as f64))
    }),
    line("array_min", "array", "The smallest element; NULL of none.", "array_min([3, 1, 2])", "1", |mut a| {
        extreme(a.array(0)?, Ordering::Less)
    }),
    line("array_max", "array", "The greatest element; NULL of none.", "array_max([3, 1, 2])", "3", |mut a| {
        extreme(a.array(0)?, Ordering::Greater)
    }),
    line(
        "zip",
        "array, array",
        "Pairs of the elements at the same place, as many as the shorter has.",
        "zip([1, 2], ['a', 'b'])",
        r#"[[1,"a"],[2,"b"]]"#,
        |mut a| {
            let (left, right) = (a.array(0)?, a.array(1)?);
            Ok(Value::Array(left.into_iter().zip(right).map(|(left, right)| Value::Array(vec![left, right])).collect()))
        },
    )
    .arity(2, 2),
];

pub const MAPS: &[Function] = &[
    line("json_decode", "text or bytes", "The value of a JSON text.", "json_decode('{\"a\": [1]}')", r#"{"a":[1]}"#, |mut a| {
        let bytes = a.bytes(0)?;
        let text = str::from_utf8(&bytes).map_err(|_| "the bytes are not UTF-8")?;
        Ok(Document::parse(text)?.at(&[], a.work)?.into_owned())
    }),
    line("json_encode", "value", "The value as a JSON text.", "json_encode([1, NULL])", r#""[1,null]""#, |a| {
        Ok(Value::text(a.values[0].to_json()))
    })
    .kind(Kind::SeesNull),
    line("json_valid", "text or bytes", "Whether it is a JSON text.", "json_valid('{')", "false", |mut a| {
        let bytes = a.bytes(0)?;
        Ok(Value::Bool(str::from_utf8(&bytes).is_ok_and(|text| Document::parse(text).is_ok())))
    }),
    line("map_of", "key, value, …", "A map of these entries.", "map_of('a', 1, 'b', NULL)", r#"{"a":1,"b":null}"#, |mut a| {
        if a.len() % 2 == 1 {
            return Err("the last key has no value".into());
        }
        let mut map = Map::with_capacity(a.len() / 2);
        for index in (0..a.len()).step_by(2) {
            let key = a.text(index)?;
            map.insert(key, a.take(index + 1));
        }
        Ok(Value::Map(map))
    })
    .arity(0, MANY)
    .kind(Kind::SeesNull),
    line(
        "map_get",
        "key, map, [default]",
        "The entry of that key; the default, or NULL, if there is none.",
        "map_get('b', map_of('a', 1), 0)",
        "0",
        |mut a| {
            let key = match a.take(0) {
                Value::Null => return Ok(Value::Null),
                key => key,
            };
            a.values[0] = key;
            let key = a.text(0)?;
            let found = match a.take(1) {
                Value::Null => None,
                map => {
                    a.values[1] = map;
                    a.map(1)?.remove(&key)
                }
            };
            Ok(found.unwrap_or_else(|| if a.has(2) { a.take(2) } else { Value::Null }))
        },
    )
    .arity(2, 3)
    .kind(Kind::SeesNull),
    line(
        "map_put",
        "key, value, map",
        "The map with that entry.",
        "map_put('b', 2, map_of('a', 1))",
        r#"{"a":1,"b":2}"#,
        |mut a| {
            let (key, value) = (a.text(0)?, a.take(1));
            let mut map = a.map(2)?;
            map.insert(key, value);
            Ok(Value::Map(map))
        },
    )
    .arity(3, 3)
    .kind(Kind::SeesNull),
    line(
        "map_remove",
        "key, map",
        "The map without that entry.",
        "map_remove('a', map_of('a', 1, 'b', 2))",
        r#"{"b":2}"#,
        |mut a| {
            let key = a.text(0)?;
            let mut map = a.map(1)?;
            map.remove(&key);
            Ok(Value::Map(map))
        },
    )
    .arity(2, 2),
    line("map_has", "key, map", "Whether there is such an entry.", "map_has('a', map_of('a', NULL))", "true", |mut a| {
        let key = a.text(0)?;
        Ok(Value::Bool(a.map(1)?.get(&key).is_some()))
    })
    .arity(2, 2),
    line("map_keys", "map", "Its keys.", "map_keys(map_of('a', 1))", r#"["a"]"#, |mut a| {
        Ok(Value::Array(a.map(0)?.into_iter().map(|(key, _)| Value::Text(key)).collect()))
    }),
    line("map_values", "map", "Its values.", "map_values(map_of('a', 1))", "[1]", |mut a| {
        Ok(Value::Array(a.map(0)?.into_iter().map(|(_, value)| value).collect()))
    }),
    line(
        "map_to_entries",
        "map",
        "An array of maps with `key` and `value`, for FOREACH.",
        "map_to_entries(map_of('a', 1))",
        r#"[{"key":"a","value":1}]"#,
        |mut a| {
            let entries = a.map(0)?.into_iter().map(|(key, value)| {
                Value::Map([(Cow::Borrowed("key"), Value::Text(key)), (Cow::Borrowed("value"), value)].into_iter().collect())
            });
            Ok(Value::Array(entries.collect()))
        },
    ),
    line(
        "map_merge",
        "map, map",
        "The entries of both; of a key that both have, the second's.",
        "map_merge(map_of('a', 1), map_of('a', 2, 'b', 3))",
        r#"{"a":2,"b":3}"#,
        |mut a| {
            let (map, other) = (a.map(0)?, a.map(1)?);
            Ok(Value::Map(map.into_iter().chain(other).collect()))
        },
    )
    .arity(2, 2),
];

/// Compared each with each.
const DISTINCT_MAX: usize = 1_000;
const RANGE_MAX: i64 = 65_536;

fn nth<'a>(mut values: Vec<Value<'a>>, number: i64) -> Returned<'a> {
    Ok(element(number, values.len()).map_or(Value::Null, |place| values.swap_remove(place)))
}

/// Two neighbours that have no order; numbers are ordered among each other, and so is each other type.
fn disordered(values: &[Value<'_>]) -> Option<[&'static str; 2]> {
    let pair = values.windows(2).find(|pair| pair[0].order(&pair[1]).is_none())?;
    Some([&pair[0], &pair[1]].map(super::with_article))
}

fn sum(values: &[Value<'_>]) -> Returned<'static> {
    values.iter().try_fold(Value::Int(0), |sum, value| match value {
        Value::Int(_) | Value::Float(_) => Arithmetic::Add.apply(&sum, value),
        other => Err(format!("{} cannot be summed", super::with_article(other))),
    })
}

fn extreme<'a>(values: Vec<Value<'a>>, wanted: Ordering) -> Returned<'a> {
    if let Some([left, right]) = disordered(&values) {
        return Err(format!("{left} and {right} have no order"));
    }
    let better = |best: Value<'a>, value: Value<'a>| if value.order(&best) == Some(wanted) { value } else { best };
    Ok(values.into_iter().reduce(better).unwrap_or(Value::Null))
}
