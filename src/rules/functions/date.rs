//! Functions of dates and times. A timestamp is an int, since 1970-01-01 UTC, in milliseconds unless a unit is named: `s`, `ms`, `us` or
//! `ns`. An offset is `Z` or as `+02:00`; zones by name would need a database that changes, and are not known.

use super::super::value::Value;
use super::{Arguments, Function, Kind, Returned, line};
use jiff::fmt::strtime;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ZonedDateTime};

pub const FUNCTIONS: &[Function] = &[
    line("now_timestamp", "[unit]", "The timestamp of now.", "now_timestamp('s')", "1700000000", |mut a| {
        let unit = Unit::of(&mut a, 0)?;
        unit.write(Timestamp::from_millisecond(a.now_ms).map_err(wrong)?)
    })
    .arity(0, 1)
    .kind(Kind::Now),
    line(
        "now_rfc3339",
        "[unit]",
        "Now as RFC 3339 has it, with the decimals of the unit.",
        "now_rfc3339()",
        r#""2023-11-14T22:13:20.123Z""#,
        |mut a| {
            let unit = Unit::of(&mut a, 0)?;
            rfc3339(Timestamp::from_millisecond(a.now_ms).map_err(wrong)?, unit, Offset::UTC)
        },
    )
    .arity(0, 1)
    .kind(Kind::Now),
    line(
        "unix_ts_to_rfc3339",
        "timestamp, [unit], [offset]",
        "A timestamp as RFC 3339 has it.",
        "unix_ts_to_rfc3339(1700000000, 's', '+01:00')",
        r#""2023-11-14T23:13:20+01:00""#,
        |mut a| {
            let unit = Unit::of(&mut a, 1)?;
            let offset = offset(&mut a, 2)?;
            rfc3339(unit.read(a.int(0)?)?, unit, offset)
        },
    )
    .arity(1, 3),
    line(
        "rfc3339_to_unix_ts",
        "text, [unit]",
        "The timestamp of a date and time of RFC 3339.",
        "rfc3339_to_unix_ts('2023-11-14T22:13:20Z')",
        "1700000000000",
        |mut a| {
            let unit = Unit::of(&mut a, 1)?;
            unit.write(a.text(0)?.parse::<Timestamp>().map_err(wrong)?)
        },
    )
    .arity(1, 2),
    line(
        "format_date",
        "unit, offset, format, timestamp",
        "A timestamp in a format of strftime.",
        "format_date('ms', 'Z', '%Y/%m/%d %H:%M', 1700000000000)",
        r#""2023/11/14 22:13""#,
        |mut a| {
            let (unit, offset, format) = (Unit::of(&mut a, 0)?, offset(&mut a, 1)?, a.text(2)?);
            let time = zoned(unit.read(a.int(3)?)?, offset);
            strtime::format(&*format, &time).map(Value::text).map_err(wrong)
        },
    )
    .arity(4, 4),
    line(
        "date_to_unix_ts",
        "unit, offset, format, text",
        "The timestamp of a text in a format of strptime; the offset counts where the text has none.",
        "date_to_unix_ts('s', '+01:00', '%Y-%m-%d %H:%M:%S', '2023-11-14 23:13:20')",
        "1700000000",
        |mut a| {
            let (unit, offset, format, text) = (Unit::of(&mut a, 0)?, offset(&mut a, 1)?, a.text(2)?, a.text(3)?);
            let parsed = strtime::parse(&*format, &*text).map_err(wrong)?;
            let time = match parsed.offset() {
                Some(_) => parsed.to_timestamp().map_err(wrong)?,
                None => {
                    let midnight = || parsed.to_date().map(|date| date.at(0, 0, 0, 0));
                    let local = parsed.to_datetime().or_else(|_| midnight()).map_err(wrong)?;
                    offset.to_timestamp(local).map_err(wrong)?
                }
            };
            unit.write(time)
        },
    )
    .arity(4, 4),
    line(
        "date_part",
        "part, timestamp, [offset]",
        "`year`, `month`, `day`, `hour`, `minute`, `second`, `millisecond`, `weekday` (1 is Monday) or `yearday` of a timestamp in \
         milliseconds.",
        "date_part('hour', 1700000000000)",
        "22",
        |mut a| {
            let (part, offset) = (a.text(0)?, offset(&mut a, 2)?);
            let time = zoned(Unit::Milliseconds.read(a.int(1)?)?, offset);
            Ok(Value::Int(match &*part {
                "year" => i64::from(time.year()),
                "month" => i64::from(time.month()),
                "day" => i64::from(time.day()),
                "hour" => i64::from(time.hour()),
                "minute" => i64::from(time.minute()),
                "second" => i64::from(time.second()),
                "millisecond" => i64::from(time.millisecond()),
                "weekday" => i64::from(time.weekday().to_monday_one_offset()),
                "yearday" => i64::from(time.day_of_year()),
                other => return Err(format!("there is no part {other:?}")),
            }))
        },
    )
    .arity(2, 3),
    line(
        "date_trunc",
        "part, timestamp",
        "The beginning, in UTC, of the `second`, `minute`, `hour` or `day` of a timestamp in milliseconds.",
        "date_trunc('minute', 1700000012345)",
        "1699999980000",
        |mut a| {
            let (part, timestamp) = (a.text(0)?, a.int(1)?);
            let length = match &*part {
                "second" => 1_000,
                "minute" => 60_000,
                "hour" => 3_600_000,
                "day" => 86_400_000,
                other => return Err(format!("there is no part {other:?}")),
            };
            timestamp.checked_sub(timestamp.rem_euclid(length)).map(Value::Int).ok_or_else(|| "the result does not fit 64 bits".into())
        },
    )
    .arity(2, 2),
];

#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl Unit {
    /// The unit that an argument names; milliseconds if there is no such argument.
    fn of(a: &mut Arguments<'_, '_>, index: usize) -> Result<Self, String> {
        if !a.has(index) {
            return Ok(Unit::Milliseconds);
        }
        match &*a.text(index)? {
            "s" | "second" => Ok(Unit::Seconds),
            "ms" | "millisecond" => Ok(Unit::Milliseconds),
            "us" | "microsecond" => Ok(Unit::Microseconds),
            "ns" | "nanosecond" => Ok(Unit::Nanoseconds),
            other => Err(format!("there is no unit {other:?}; there are s, ms, us and ns")),
        }
    }

    fn read(self, number: i64) -> Result<Timestamp, String> {
        match self {
            Unit::Seconds => Timestamp::from_second(number),
            Unit::Milliseconds => Timestamp::from_millisecond(number),
            Unit::Microseconds => Timestamp::from_microsecond(number),
            Unit::Nanoseconds => Timestamp::from_nanosecond(i128::from(number)),
        }
        .map_err(wrong)
    }

    fn write<'a>(self, time: Timestamp) -> Returned<'a> {
        Ok(Value::Int(match self {
            Unit::Seconds => time.as_second(),
            Unit::Milliseconds => time.as_millisecond(),
            Unit::Microseconds => time.as_microsecond(),
            Unit::Nanoseconds => i64::try_from(time.as_nanosecond()).map_err(|_| "the result does not fit 64 bits")?,
        }))
    }

    fn decimals(self) -> &'static str {
        match self {
            Unit::Seconds => "",
            Unit::Milliseconds => "%.3f",
            Unit::Microseconds => "%.6f",
            Unit::Nanoseconds => "%.9f",
        }
    }
}

/// The offset that an argument names; UTC if there is no such argument.
fn offset(a: &mut Arguments<'_, '_>, index: usize) -> Result<Offset, String> {
    if !a.has(index) {
        return Ok(Offset::UTC);
    }
    let text = a.text(index)?;
    let seconds = |text: &str| {
        let (sign, digits) = match text.split_at_checked(1)? {
            ("+", digits) => (1, digits),
            ("-", digits) => (-1, digits),
            _ => return None,
        };
        let (hours, minutes) = digits.split_once(':').or_else(|| digits.split_at_checked(2))?;
        if hours.len() != 2 || minutes.len() != 2 || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b':') {
            return None;
        }
        let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
        (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
    };
    match &*text {
        "Z" | "z" | "" => Ok(Offset::UTC),
        other => match seconds(other).and_then(|seconds| Offset::from_seconds(seconds).ok()) {
            Some(offset) => Ok(offset),
            None => Err(format!("{other:?} is no offset such as Z or +02:00")),
        },
    }
}

fn zoned(time: Timestamp, offset: Offset) -> ZonedDateTime {
    time.to_zoned_datetime(TimeZone::fixed(offset))
}

fn rfc3339<'a>(time: Timestamp, unit: Unit, offset: Offset) -> Returned<'a> {
    let format = ["%Y-%m-%dT%H:%M:%S", unit.decimals(), if offset.is_zero() { "Z" } else { "%:z" }].concat();
    strtime::format(format, &zoned(time, offset)).map(Value::text).map_err(wrong)
}

fn wrong(error: jiff::Error) -> String {
    error.to_string()
}
