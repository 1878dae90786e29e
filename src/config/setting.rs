//! How a value of each type is read from TOML, checked against its knob's domain, and written back. A value that is refused leaves
//! the setting as it was.

use crate::wire::QoS;
use std::net::SocketAddr;
use toml_edit::Value;

/// The values that a knob takes, beyond what its type says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    Number {
        unit: Unit,
        min: u64,
        max: u64,
        /// What 0 means where it lies outside `min..=max` or means something of its own.
        zero: Option<&'static str>,
    },
    /// Text of at most so many bytes, without control characters.
    Text { bytes_max: usize },
    /// The same, with line breaks and tabs.
    Lines { bytes_max: usize },
    /// What something is called in logs, topics and file names, never empty.
    Name,
    /// Every value of the type.
    Any,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Count,
    /// Written as a number of bytes or as text such as `"64 KiB"`.
    Bytes,
    Seconds,
    Milliseconds,
}

impl Domain {
    pub const fn or_zero(self, meaning: &'static str) -> Self {
        match self {
            Domain::Number { unit, min, max, .. } => Domain::Number { unit, min, max, zero: Some(meaning) },
            other => other,
        }
    }
}

/// A field of the configuration that a knob sets.
pub trait Setting {
    /// Takes `value`, or says what is wrong with it.
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String>;

    /// The value as TOML; `None` if it is unset.
    fn to_toml(&self, domain: Domain) -> Option<String>;

    /// What may be written, to follow "expected".
    fn expects(&self, domain: Domain) -> String;
}

fn wrong_type(value: &Value) -> String {
    let name = match value {
        Value::String(_) => "text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date or time",
        Value::Array(_) => "a list",
        Value::InlineTable(_) => "a table",
    };
    format!("this is {name}")
}

fn read_number(value: &Value, domain: Domain) -> Result<u64, String> {
    let Domain::Number { unit, min, max, zero } = domain else { return Err(wrong_type(value)) };
    let number = match value {
        Value::Integer(integer) => {
            u64::try_from(*integer.value()).map_err(|_| format!("{} is out of bounds", integer.value()))?
        }
        Value::String(text) if unit == Unit::Bytes => parse_size(text.value())?,
        other => return Err(wrong_type(other)),
    };
    if (min..=max).contains(&number) || (number == 0 && zero.is_some()) {
        Ok(number)
    } else {
        Err(format!("{} is out of bounds", show_number(number, unit)))
    }
}

fn number_expects(domain: Domain) -> String {
    let Domain::Number { unit, min, max, zero } = domain else { return "a whole number".into() };
    let (min, max) = (show_number(min, unit), show_number(max, unit));
    let mut text = match unit {
        Unit::Count => format!("a whole number from {min} to {max}"),
        Unit::Bytes => format!("a size from {min} to {max}, as a number of bytes or as text such as \"64 KiB\""),
        Unit::Seconds => format!("a whole number of seconds from {min} to {max}"),
        Unit::Milliseconds => format!("a whole number of milliseconds from {min} to {max}"),
    };
    if let Some(meaning) = zero {
        text.push_str(&format!("; 0 means {meaning}"));
    }
    text
}

macro_rules! number_settings {
    ($($number:ty),*) => {$(
        impl Setting for $number {
            fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
                let number = read_number(value, domain)?;
                *self = number.try_into().map_err(|_| format!("{number} is out of bounds"))?;
                Ok(())
            }

            fn to_toml(&self, domain: Domain) -> Option<String> {
                Some(match domain {
                    Domain::Number { unit: Unit::Bytes, .. } => size_to_toml(u64::from(*self)),
                    _ => group_digits(u64::from(*self), '_'),
                })
            }

            fn expects(&self, domain: Domain) -> String {
                number_expects(domain)
            }
        }
    )*};
}
number_settings!(u8, u16, u32, u64);

impl Setting for bool {
    fn set(&mut self, value: &Value, _: Domain) -> Result<(), String> {
        *self = value.as_bool().ok_or_else(|| wrong_type(value))?;
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        Some(self.to_string())
    }

    fn expects(&self, _: Domain) -> String {
        "true or false".into()
    }
}

impl Setting for Option<bool> {
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
        let mut flag = false;
        flag.set(value, domain)?;
        *self = Some(flag);
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        self.map(|flag| flag.to_string())
    }

    fn expects(&self, domain: Domain) -> String {
        false.expects(domain)
    }
}

/// Bytes of a [`Domain::Name`].
const NAME_BYTES_MAX: usize = 64;

fn check_text(text: &str, domain: Domain) -> Result<(), String> {
    let (bytes_max, lines) = match domain {
        Domain::Text { bytes_max } => (bytes_max, false),
        Domain::Lines { bytes_max } => (bytes_max, true),
        Domain::Name => return check_name(text),
        _ => (usize::MAX, false),
    };
    if text.len() > bytes_max {
        return Err(format!("this is {} bytes long", text.len()));
    }
    if text.chars().any(|c| c.is_control() && !(lines && matches!(c, '\n' | '\r' | '\t'))) {
        return Err("this has a control character in it".into());
    }
    Ok(())
}

fn check_name(text: &str) -> Result<(), String> {
    let bad = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    match text.chars().find(bad) {
        _ if text.is_empty() => Err("this is empty".into()),
        _ if text.len() > NAME_BYTES_MAX => Err(format!("this is {} bytes long", text.len())),
        _ if text.starts_with('.') => Err("this begins with a dot".into()),
        Some(c) => Err(format!("this has {c:?} in it")),
        None => Ok(()),
    }
}

impl Setting for String {
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
        let text = value.as_str().ok_or_else(|| wrong_type(value))?;
        check_text(text, domain)?;
        text.clone_into(self);
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        Some(Value::from(self.as_str()).to_string())
    }

    fn expects(&self, domain: Domain) -> String {
        let at_most = |bytes_max: usize| format!("text of at most {} bytes", group_digits(bytes_max as u64, ','));
        match domain {
            Domain::Text { bytes_max } => at_most(bytes_max) + " without control characters",
            Domain::Lines { bytes_max } => at_most(bytes_max) + ", in one line or more",
            Domain::Name => format!("a name of 1 to {NAME_BYTES_MAX} letters, digits, \"_\", \"-\" and \".\""),
            _ => "text".into(),
        }
    }
}

/// A number, or `None` for one that the broker chooses.
impl Setting for Option<u16> {
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
        if value.as_str() == Some("auto") {
            *self = None;
            return Ok(());
        }
        let mut number = 0_u16;
        number.set(value, domain)?;
        *self = Some(number);
        Ok(())
    }

    fn to_toml(&self, domain: Domain) -> Option<String> {
        match self {
            Some(number) => number.to_toml(domain),
            None => Some("\"auto\"".into()),
        }
    }

    fn expects(&self, domain: Domain) -> String {
        format!("\"auto\" or {}", 0_u16.expects(domain))
    }
}

/// A QoS, or `None` for that of the message at hand.
impl Setting for Option<QoS> {
    fn set(&mut self, value: &Value, domain: Domain) -> Result<(), String> {
        if value.as_str() == Some("message") {
            *self = None;
            return Ok(());
        }
        let mut number = 0_u8;
        number.set(value, domain)?;
        *self = Some(QoS::try_from(number).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        Some(self.map_or("\"message\"".into(), |qos| (qos as u8).to_string()))
    }

    fn expects(&self, domain: Domain) -> String {
        format!("\"message\" or {}", 0_u8.expects(domain))
    }
}

/// What an address to listen on looks like, to follow "expected".
pub const ADDRESS_EXPECTS: &str = "an IP address and port such as \"127.0.0.1:1883\", \"0.0.0.0:1883\" or \"[::]:1883\"";

/// Reads an address to listen on. `localhost` stands for 127.0.0.1; other names are not looked up, so that a broker starts alike with and
/// without DNS.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| format!("{text:?} is no address"))
}

impl Setting for SocketAddr {
    fn set(&mut self, value: &Value, _: Domain) -> Result<(), String> {
        *self = parse_address(value.as_str().ok_or_else(|| wrong_type(value))?)?;
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        Some(format!("\"{self}\""))
    }

    fn expects(&self, _: Domain) -> String {
        ADDRESS_EXPECTS.into()
    }
}

/// A setting that is one of a few words.
pub trait Choice: Copy + PartialEq + 'static {
    const CHOICES: &'static [(&'static str, Self)];

    fn parse_choice(text: &str) -> Result<Self, String> {
        let found = Self::CHOICES.iter().find(|(word, _)| *word == text);
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let nearest = crate::nearest::nearest(text, Self::CHOICES.iter().map(|(word, _)| *word));
            match nearest {
                Some(word) => format!("{text:?} is unknown, did you mean {word:?}"),
                None => format!("{text:?} is unknown"),
            }
        })
    }

    fn word(self) -> &'static str {
        Self::CHOICES.iter().find(|(_, choice)| *choice == self).map_or("", |(word, _)| *word)
    }

    fn choice_expects() -> String {
        let words: Vec<String> = Self::CHOICES.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        }
    }
}

impl<T: Choice> Setting for T {
    fn set(&mut self, value: &Value, _: Domain) -> Result<(), String> {
        *self = T::parse_choice(value.as_str().ok_or_else(|| wrong_type(value))?)?;
        Ok(())
    }

    fn to_toml(&self, _: Domain) -> Option<String> {
        Some(format!("\"{}\"", self.word()))
    }

    fn expects(&self, _: Domain) -> String {
        T::choice_expects()
    }
}

/// The units that a size may be written in, compared without regard to case. `K`, `M` and `G` alone are refused because half the world's
/// tools take them for thousands.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a size such as `64 KiB`, `1GiB`, `500 MB` or `4096`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').len();
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim_start();
    let number: u64 = number.replace('_', "").parse().map_err(|_| format!("{text:?} is no size"))?;
    let factor = match SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(format!("{text:?} has an unknown unit (known: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is out of bounds"))
}

/// A size in the largest binary unit that holds it exactly, or else in bytes.
pub fn show_size(bytes: u64) -> String {
    match SIZE_UNITS[..4].iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{} {unit}", group_digits(bytes / factor, ',')),
        None => format!("{} B", group_digits(bytes, ',')),
    }
}

fn size_to_toml(bytes: u64) -> String {
    match SIZE_UNITS[..4].iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("\"{} {unit}\"", bytes / factor),
        None => group_digits(bytes, '_'),
    }
}

fn show_number(number: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => show_size(number),
        _ => group_digits(number, ','),
    }
}

/// The number with its digits in groups of three.
pub fn group_digits(number: u64, separator: char) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1_000", 1000),
            ("64 KiB", 65_536),
            ("64KiB", 65_536),
            (" 64 kib ", 65_536),
            ("1 GiB", 1 << 30),
            ("2 TiB", 2 << 40),
            ("500 MB", 500_000_000),
            ("3 kB", 3000),
            ("7 B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_that_could_be_misread_are_refused() {
        for text in ["", "KiB", "64K", "1G", "1.5 GiB", "-1", "1 GiB 2", "99999999999999999999", "20000000000 GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_so_that_they_read_back() {
        for bytes in [0, 1, 1000, 1024, 1 << 20, (1 << 20) + 1, 64 << 20, 1 << 30, 3 << 40, u64::MAX] {
            assert_eq!(parse_size(&show_size(bytes).replace(',', "")), Ok(bytes), "{bytes}");
        }
        assert_eq!(show_size(1536), "1,536 B");
        assert_eq!(show_size(1 << 20), "1 MiB");
    }

    #[test]
    fn addresses_are_numeric_or_localhost() {
        assert_eq!(parse_address("localhost:1883"), Ok("127.0.0.1:1883".parse().unwrap()));
        assert_eq!(parse_address("[::1]:1883"), Ok("[::1]:1883".parse().unwrap()));
        for text in ["1883", "127.0.0.1", "::1:1883x", "broker.example:1883", "localhost:", "127.0.0.1:70000"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_have_no_character_that_a_topic_or_a_path_would_stumble_over() {
        for name in ["a", "fleet-2_b.c", &"x".repeat(64)] {
            assert_eq!(check_text(name, Domain::Name), Ok(()), "{name}");
        }
        for name in ["", ".a", "a/b", "a b", "+", "#", "é", "a\n", &"x".repeat(65)] {
            assert!(check_text(name, Domain::Name).is_err(), "{name}");
        }
        assert!(check_text("a\nb\tc", Domain::Lines { bytes_max: 5 }).is_ok());
        assert!(check_text("a\nb\tc", Domain::Text { bytes_max: 5 }).is_err());
        assert!(check_text("a\nb\tcd", Domain::Lines { bytes_max: 5 }).is_err());
        assert!(check_text("a\u{7}", Domain::Lines { bytes_max: 5 }).is_err());
    }

    #[test]
    fn a_word_stands_for_a_number_that_is_found_elsewhere() {
        let qos = Domain::Number { unit: Unit::Count, min: 0, max: 2, zero: None };
        let mut published = Some(QoS::AtMostOnce);
        published.set(&Value::from("message"), qos).unwrap();
        assert_eq!((published, published.to_toml(qos).as_deref()), (None, Some("\"message\"")));
        published.set(&Value::from(2), qos).unwrap();
        assert_eq!((published, published.to_toml(qos).as_deref()), (Some(QoS::ExactlyOnce), Some("2")));
        assert!(published.set(&Value::from(3), qos).is_err() && published.set(&Value::from("auto"), qos).is_err());
        let mut core = Some(3_u16);
        core.set(&Value::from("auto"), qos).unwrap();
        assert_eq!((core, core.to_toml(qos).as_deref()), (None, Some("\"auto\"")));
        core.set(&Value::from(0), qos).unwrap();
        assert_eq!((core, core.to_toml(qos).as_deref()), (Some(0), Some("0")));
    }

    #[test]
    fn a_refused_value_leaves_the_setting_as_it_was() {
        let domain = Domain::Number { unit: Unit::Count, min: 5, max: 70_000, zero: None };
        let mut number = 9_u16;
        for value in
            [Value::from(4), Value::from(70_001), Value::from(65_536), Value::from(-1), Value::from("9"), Value::from(9.0)]
        {
            assert!(number.set(&value, domain).is_err(), "{value}");
            assert_eq!(number, 9);
        }
        assert!(number.set(&Value::from(0), domain.or_zero("off")).is_ok());
        assert_eq!(number, 0);
    }
}
