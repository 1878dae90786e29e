//! Functions of numbers. Those of ints give ints and fail on overflow; the others give floats.

use super::super::eval::Arithmetic;
use super::super::value::Value;
use super::{Arguments, Function, Kind, MANY, Returned, line};
use std::cmp::Ordering;

const OVERFLOW: &str = "the result does not fit 64 bits";

/// A function from one number to a float.
const fn of_float(
    name: &'static str,
    doc: &'static str,
    example: &'static str,
    result: &'static str,
    call: for<'v, 'a> fn(Arguments<'v, 'a>) -> Returned<'a>,
) -> Function {
    line(name, "number", doc, example, result, call)
}

pub const FUNCTIONS: &[Function] = &[
    line("abs", "number", "Without its sign.", "abs(-3)", "3", |a| match a.values[0] {
        Value::Int(number) => number.checked_abs().map(Value::Int).ok_or_else(|| OVERFLOW.into()),
        _ => Ok(Value::Float(a.number(0)?.abs())),
    }),
    line("sign", "number", "-1, 0 or 1.", "sign(-2.5)", "-1", |a| {
        let number = a.number(0)?;
        Ok(Value::Int(i64::from(number > 0.0) - i64::from(number < 0.0)))
    }),
    line("ceil", "number", "The next int that is not less.", "ceil(1.2)", "2", |a| whole(a, f64::ceil)),
    line("floor", "number", "The next int that is not greater.", "floor(-1.2)", "-2", |a| whole(a, f64::floor)),
    line("trunc", "number", "The int without the decimals.", "trunc(-1.9)", "-1", |a| whole(a, f64::trunc)),
    line(
        "round",
        "number, [decimals]",
        "The nearest int, or float with so many decimals (0 to 15); halves go away from 0.",
        "round(2.345, 1)",
        "2.3",
        |a| {
            if !a.has(1) {
                return whole(a, f64::round);
            }
            let (number, decimals) = (a.number(0)?, a.int(1)?);
            if !(0..=15).contains(&decimals) {
                return Err("argument 2 must be from 0 to 15".into());
            }
            let scale = 10f64.powi(decimals as i32);
            let scaled = number * scale;
            // A float so large has no decimals.
            Value::finite(if scaled.abs() < 9e15 { scaled.round() / scale } else { number })
        },
    )
    .arity(1, 2),
    line("sqrt", "number", "Square root.", "sqrt(9)", "3.0", |a| Value::finite(a.number(0)?.sqrt())),
    line("power", "base, exponent", "The power, a float.", "power(2, 10)", "1024.0", |a| {
        Value::finite(a.number(0)?.powf(a.number(1)?))
    })
    .arity(2, 2),
    of_float("exp", "The power of e.", "exp(0)", "1.0", |a| Value::finite(a.number(0)?.exp())),
    of_float("ln", "Natural logarithm.", "ln(1)", "0.0", |a| Value::finite(a.number(0)?.ln())),
    of_float("log10", "Logarithm to base 10.", "log10(1000)", "3.0", |a| Value::finite(a.number(0)?.log10())),
    of_float("log2", "Logarithm to base 2.", "log2(8)", "3.0", |a| Value::finite(a.number(0)?.log2())),
    of_float("sin", "Sine of an angle in radians.", "sin(0)", "0.0", |a| Value::finite(a.number(0)?.sin())),
    of_float("cos", "Cosine of an angle in radians.", "cos(0)", "1.0", |a| Value::finite(a.number(0)?.cos())),
    of_float("tan", "Tangent of an angle in radians.", "tan(0)", "0.0", |a| Value::finite(a.number(0)?.tan())),
    of_float("asin", "The angle with that sine.", "asin(0)", "0.0", |a| Value::finite(a.number(0)?.asin())),
    of_float("acos", "The angle with that cosine.", "acos(1)", "0.0", |a| Value::finite(a.number(0)?.acos())),
    of_float("atan", "The angle with that tangent.", "atan(0)", "0.0", |a| Value::finite(a.number(0)?.atan())),
    line("atan2", "y, x", "The angle of a point.", "round(degrees(atan2(1, 1)))", "45", |a| {
        Value::finite(a.number(0)?.atan2(a.number(1)?))
    })
    .arity(2, 2),
    of_float("degrees", "Radians in degrees.", "round(degrees(pi()))", "180", |a| Value::finite(a.number(0)?.to_degrees())),
    of_float("radians", "Degrees in radians.", "radians(180) = pi()", "true", |a| Value::finite(a.number(0)?.to_radians())),
    line("pi", "", "The number.", "round(pi(), 5)", "3.14159", |_| Ok(Value::Float(std::f64::consts::PI))).arity(0, 0),
    line("mod", "number, by", "The remainder, as `%`.", "mod(7, 3)", "1", |a| {
        Arithmetic::Modulo.apply(&a.values[0], &a.values[1])
    })
    .arity(2, 2),
    line("least", "value, …", "The smallest of the values, NULL left out.", "least(3, NULL, 1.5)", "1.5", |a| {
        extreme(a, Ordering::Less)
    })
    .arity(1, MANY)
    .kind(Kind::SeesNull),
    line("greatest", "value, …", "The greatest of the values, NULL left out.", "greatest(3, NULL, 1.5)", "3", |a| {
        extreme(a, Ordering::Greater)
    })
    .arity(1, MANY)
    .kind(Kind::SeesNull),
    line("bitand", "int, int", "Bits that are in both.", "bitand(12, 10)", "8", |a| Ok(Value::Int(a.int(0)? & a.int(1)?)))
        .arity(2, 2),
    line("bitor", "int, int", "Bits that are in one or both.", "bitor(12, 10)", "14", |a| Ok(Value::Int(a.int(0)? | a.int(1)?)))
        .arity(2, 2),
    line("bitxor", "int, int", "Bits that are in one only.", "bitxor(12, 10)", "6", |a| Ok(Value::Int(a.int(0)? ^ a.int(1)?)))
        .arity(2, 2),
    line("bitnot", "int", "All bits turned over.", "bitnot(0)", "-1", |a| Ok(Value::Int(!a.int(0)?))),
    line("bitsl", "int, places", "Bits moved to the left.", "bitsl(1, 4)", "16", |a| {
        Ok(Value::Int(a.int(0)?.checked_shl(places(&a)?).unwrap_or(0)))
    })
    .arity(2, 2),
    line("bitsr", "int, places", "Bits moved to the right, with zeros from the left.", "bitsr(16, 4)", "1", |a| {
        let bits = a.int(0)? as u64;
        Ok(Value::Int(bits.checked_shr(places(&a)?).unwrap_or(0) as i64))
    })
    .arity(2, 2),
    line(
        "subbits",
        "bytes, from, length",
        "So many bits (1 to 63) from the bit with that number, counted from 1, as an int.",
        "subbits(hex_decode('F00F'), 5, 8)",
        "0",
        subbits,
    )
    .arity(3, 3),
];

fn places(a: &Arguments<'_, '_>) -> Result<u32, String> {
    u32::try_from(a.int(1)?).map_err(|_| "argument 2 must not be negative".into())
}

fn whole<'a>(a: Arguments<'_, 'a>, round: fn(f64) -> f64) -> Returned<'a> {
    match a.values[0] {
        Value::Int(number) => Ok(Value::Int(number)),
        _ => super::convert::int_of_float(round(a.number(0)?)),
    }
}

fn extreme<'a>(mut a: Arguments<'_, 'a>, wanted: Ordering) -> Returned<'a> {
    let mut chosen = 0;
    for index in 1..a.len() {
        if a.values[index].is_null() {
            continue;
        }
        let order = a.values[index].order(&a.values[chosen]);
        if a.values[chosen].is_null() || order == Some(wanted) {
            chosen = index;
        } else if order.is_none() {
            return Err(format!("arguments {} and {} have no order", chosen + 1, index + 1));
        }
    }
    Ok(a.take(chosen))
}

fn subbits<'a>(mut a: Arguments<'_, 'a>) -> Returned<'a> {
    let (bytes, from, length) = (a.bytes(0)?, a.int(1)?, a.int(2)?);
    if from < 1 || !(1..=63).contains(&length) {
        return Err("the first bit is 1 and the length from 1 to 63".into());
    }
    let (from, length) = (from as u64 - 1, length as u64);
    if from.saturating_add(length) > bytes.len() as u64 * 8 {
        return Ok(Value::Null);
    }
    let bit = |number: u64| i64::from(bytes[(number / 8) as usize] >> (7 - number % 8) & 1);
    Ok(Value::Int((from..from + length).fold(0, |number, place| number << 1 | bit(place))))
}
