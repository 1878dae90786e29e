//! Functions of types: what a value is, and values of one type from another.

use super::super::eval::as_text;
use super::super::value::Value;
use super::{Arguments, Function, Kind, MANY, Returned, line};
use std::borrow::Cow;

/// A question about one value, which may be NULL.
const fn is(
    name: &'static str,
    doc: &'static str,
    example: &'static str,
    call: for<'v, 'a> fn(Arguments<'v, 'a>) -> Returned<'a>,
) -> Function {
    line(name, "value", doc, example, "true", call).kind(Kind::SeesNull)
}

pub const FUNCTIONS: &[Function] = &[
    line(
        "typeof",
        "value",
        "`null`, `bool`, `int`, `float`, `text`, `bytes`, `array` or `map`.",
        "typeof(1.0)",
        r#""float""#,
        |a| Ok(Value::text(a.values[0].type_name())),
    )
    .kind(Kind::SeesNull),
    is("is_null", "Whether it is NULL.", "is_null(NULL)", |a| Ok(Value::Bool(a.values[0].is_null()))),
    is("is_not_null", "Whether it is not NULL.", "is_not_null(0)", |a| Ok(Value::Bool(!a.values[0].is_null()))),
    is("is_bool", "Whether it is a boolean.", "is_bool(false)", |a| Ok(Value::Bool(matches!(a.values[0], Value::Bool(_))))),
    is("is_int", "Whether it is an int.", "is_int(1)", |a| Ok(Value::Bool(matches!(a.values[0], Value::Int(_))))),
    is("is_float", "Whether it is a float.", "is_float(1.5)", |a| Ok(Value::Bool(matches!(a.values[0], Value::Float(_))))),
    is("is_number", "Whether it is an int or a float.", "is_number(1)", |a| {
        Ok(Value::Bool(matches!(a.values[0], Value::Int(_) | Value::Float(_))))
    }),
    is("is_text", "Whether it is a text.", "is_text('1')", |a| Ok(Value::Bool(matches!(a.values[0], Value::Text(_))))),
    is("is_bytes", "Whether it is bytes.", "is_bytes(hex_decode('FF'))", |a| {
        Ok(Value::Bool(matches!(a.values[0], Value::Bytes(_))))
    }),
    is("is_array", "Whether it is an array.", "is_array([])", |a| Ok(Value::Bool(matches!(a.values[0], Value::Array(_))))),
    is("is_map", "Whether it is a map.", "is_map(map_of())", |a| Ok(Value::Bool(matches!(a.values[0], Value::Map(_))))),
    line("int", "value", "An int from a number (without decimals), a text or a boolean.", "int('-12')", "-12", |a| {
        match &a.values[0] {
            Value::Int(number) => Ok(Value::Int(*number)),
            Value::Float(number) => int_of_float(number.trunc()),
            Value::Bool(truth) => Ok(Value::Int(i64::from(*truth))),
            Value::Text(text) => match text.trim().parse::<i64>() {
                Ok(number) => Ok(Value::Int(number)),
                Err(_) => match text.trim().parse::<f64>() {
                    Ok(number) if number.is_finite() => int_of_float(number.trunc()),
                    _ => Err(format!("{:?} is no number", shown(text))),
                },
            },
            _ => a.wrong(0, "a number, a text or a boolean"),
        }
    }),
    line("float", "value", "A float from a number or a text.", "float('1.5')", "1.5", |a| match &a.values[0] {
        Value::Text(text) => match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err(format!("{:?} is no number", shown(text))),
        },
        _ => Ok(Value::Float(a.number(0)?)),
    }),
    line("bool", "value", "A boolean from `true`, `false`, `1` or `0`, as a text or a number.", "bool('true')", "true", |a| {
        match &a.values[0] {
            Value::Bool(truth) => Ok(Value::Bool(*truth)),
            Value::Int(number @ (0 | 1)) => Ok(Value::Bool(*number == 1)),
            Value::Text(text) => match text.trim() {
                "true" | "1" => Ok(Value::Bool(true)),
                "false" | "0" => Ok(Value::Bool(false)),
                other => Err(format!("{:?} is no boolean", shown(other))),
            },
            _ => a.wrong(0, "true, false, 1 or 0"),
        }
    }),
    line(
        "str",
        "value",
        "A text: of bytes that are UTF-8 as they are, of arrays and maps their JSON.",
        "str(1.5)",
        r#""1.5""#,
        |mut a| match a.take(0) {
            Value::Bytes(bytes) => match bytes {
                Cow::Borrowed(bytes) => str::from_utf8(bytes).map(Value::text).map_err(|_| NOT_UTF_8.into()),
                Cow::Owned(bytes) => String::from_utf8(bytes).map(Value::text).map_err(|_| NOT_UTF_8.into()),
            },
            Value::Text(text) => Ok(Value::Text(text)),
            other => Ok(Value::text(as_text(&other).map_or_else(|| other.to_json(), Cow::into_owned))),
        },
    ),
    line("bytes", "text", "The bytes of a text.", "hex_encode(bytes('é'))", r#""c3a9""#, |mut a| Ok(Value::Bytes(a.bytes(0)?))),
    line("coalesce", "value, …", "The first value that is not NULL.", "coalesce(NULL, 2, 3)", "2", |mut a| {
        let found = (0..a.len()).find(|index| !a.values[*index].is_null());
        Ok(found.map_or(Value::Null, |index| a.take(index)))
    })
    .arity(1, MANY)
    .kind(Kind::SeesNull),
    line("nullif", "value, other", "NULL if both are equal, otherwise the first.", "nullif(0, 0)", "null", |mut a| {
        Ok(if a.values[0].equals(&a.values[1]) { Value::Null } else { a.take(0) })
    })
    .arity(2, 2)
    .kind(Kind::SeesNull),
    line(
        "iif",
        "condition, value, otherwise",
        "The one if the condition is true, otherwise the other.",
        "iif(2 > 1, 'yes', 'no')",
        r#""yes""#,
        |mut a| match a.values[0] {
            Value::Bool(true) => Ok(a.take(1)),
            Value::Bool(false) | Value::Null => Ok(a.take(2)),
            _ => a.wrong(0, "a condition"),
        },
    )
    .arity(3, 3)
    .kind(Kind::SeesNull),
];

const NOT_UTF_8: &str = "the bytes are not UTF-8";

/// An int of a float that is whole.
pub fn int_of_float(number: f64) -> Result<Value<'static>, String> {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number) {
        Ok(Value::Int(number as i64))
    } else {
        Err("the result does not fit 64 bits".into())
    }
}

/// The beginning of a text, for a failure.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}
