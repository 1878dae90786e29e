//! What expressions compute with and rows hold. Texts and bytes borrow from the message or the plan as long as nothing changes them.
//! A float is always finite: what would make another is a run-time failure.

use super::path::Step;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

/// What an element of an array or a map costs to copy, in steps of [`Work`](super::work::Work).
pub const ELEMENT_STEPS: u64 = 32;

#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    /// A payload that is not text, or what a function makes; in JSON its base64.
    Bytes(Cow<'a, [u8]>),
    Array(Vec<Value<'a>>),
    Map(Map<'a>),
}

impl<'a> Value<'a> {
    pub fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Value::Text(text.into())
    }

    /// The float, which must be finite.
    pub fn finite(number: f64) -> Result<Self, String> {
        if number.is_finite() { Ok(Value::Float(number)) } else { Err("the result is not a finite number".into()) }
    }

    /// The name of its type, as `typeof` gives it and failures say it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "text",
            Value::Bytes(_) => "bytes",
            Value::Array(_) => "array",
            Value::Map(_) => "map",
        }
    }

    /// What it costs to go through it, or to make a copy: steps of [`Work`](super::work::Work), no fewer than it has bytes.
    pub fn steps(&self) -> u64 {
        match self {
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 1,
            Value::Text(text) => 1 + text.len() as u64,
            Value::Bytes(bytes) => 1 + bytes.len() as u64,
            Value::Array(values) => 1 + values.iter().map(|value| ELEMENT_STEPS + value.steps()).sum::<u64>(),
            Value::Map(map) => 1 + map.0.iter().map(|(key, value)| ELEMENT_STEPS + key.len() as u64 + value.steps()).sum::<u64>(),
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Whether two values are the same: an int equals a float of the same number; values of other types that differ are not equal.
    pub fn equals(&self, other: &Value<'_>) -> bool {
        match (self, other) {
            (Value::Array(left), Value::Array(right)) => {
                left.len() == right.len() && left.iter().zip(right).all(|(left, right)| left.equals(right))
            }
            (Value::Map(left), Value::Map(right)) => {
                let (left, right) = (left.sorted(), right.sorted());
                left.len() == right.len()
                    && left.iter().zip(right).all(|(left, right)| left.0 == right.0 && left.1.equals(&right.1))
            }
            (Value::Null, Value::Null) => true,
            _ => self.order(other) == Some(Ordering::Equal),
        }
    }

    /// The order of two numbers, texts, bytes or booleans; None for anything else.
    pub fn order(&self, other: &Value<'_>) -> Option<Ordering> {
        Some(match (self, other) {
            (Value::Int(left), Value::Int(right)) => left.cmp(right),
            (Value::Float(left), Value::Float(right)) => left.partial_cmp(right)?,
            (Value::Int(left), Value::Float(right)) => int_with_float(*left, *right),
            (Value::Float(left), Value::Int(right)) => int_with_float(*right, *left).reverse(),
            (Value::Text(left), Value::Text(right)) => left.cmp(right),
            (Value::Bytes(left), Value::Bytes(right)) => left.cmp(right),
            (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
            _ => return None,
        })
    }

    /// What a path leads to; None if it leads nowhere.
    pub fn at(&self, path: &[Step]) -> Option<&Value<'a>> {
        path.iter().try_fold(self, |value, step| match (value, step) {
            (Value::Map(map), Step::Key(key)) => map.get(key),
            (Value::Array(values), Step::Index(index)) => element(*index, values.len()).map(|index| &values[index]),
            _ => None,
        })
    }

    /// As a template writes it: texts and bytes as they are, NULL as nothing, everything else as JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Null => {}
            Value::Text(text) => out.extend_from_slice(text.as_bytes()),
            Value::Bytes(bytes) => out.extend_from_slice(bytes),
            _ => self.write_json(out),
        }
    }

    pub fn write_json(&self, out: &mut Vec<u8>) {
        write_json(self, out);
    }

    pub fn to_json(&self) -> String {
        let mut out = Vec::new();
        self.write_json(&mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    /// The same without what it borrows.
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(truth) => Value::Bool(truth),
            Value::Int(number) => Value::Int(number),
            Value::Float(number) => Value::Float(number),
            Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Value::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
            Value::Array(values) => Value::Array(values.into_iter().map(Value::into_owned).collect()),
            Value::Map(map) => Value::Map(Map(map
                .0
                .into_iter()
                .map(|(key, value)| (Cow::Owned(key.into_owned()), value.into_owned()))
                .collect())),
        }
    }
}

/// Appends a value, or a map, as JSON.
pub fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a value has a JSON form and memory does not fail");
}

/// An exact comparison: a float cannot hold every int.
fn int_with_float(int: i64, float: f64) -> Ordering {
    // 2^63 is a float, and the first that is greater than every int.
    if float >= 9_223_372_036_854_775_808.0 {
        return Ordering::Less;
    }
    if float < -9_223_372_036_854_775_808.0 {
        return Ordering::Greater;
    }
    let whole = float.trunc();
    int.cmp(&(whole as i64)).then(whole.partial_cmp(&float).unwrap_or(Ordering::Equal))
}

/// Where the element with a number is, of so many: counted from 1, or with a negative number from the end.
pub fn element(number: i64, len: usize) -> Option<usize> {
    let index = match number {
        1.. => usize::try_from(number - 1).ok()?,
        0 => return None,
        _ => len.checked_sub(usize::try_from(number.unsigned_abs()).ok()?)?,
    };
    (index < len).then_some(index)
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(truth) => serializer.serialize_bool(*truth),
            Value::Int(number) => serializer.serialize_i64(*number),
            Value::Float(number) => serializer.serialize_f64(*number),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Bytes(bytes) => serializer.serialize_str(&BASE64.encode(bytes)),
            Value::Array(values) => serializer.collect_seq(values),
            Value::Map(map) => map.serialize(serializer),
        }
    }
}

impl Serialize for Map<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut writer = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self.iter() {
            writer.serialize_entry(key, value)?;
        }
        writer.end()
    }
}

/// So many entries are compared each with each when a map is made.
const FEW: usize = 16;

/// Values by name, in the order in which they were put in. Mostly few enough that looking through them beats hashing.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Map<'a>(Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Map<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with_capacity(entries: usize) -> Self {
        Self(Vec::with_capacity(entries))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value<'a>> {
        self.0.iter_mut().find(|(other, _)| other == key).map(|(_, value)| value)
    }

    /// The entry at a place in the order.
    pub fn nth_mut(&mut self, place: usize) -> Option<&mut Value<'a>> {
        self.0.get_mut(place).map(|(_, value)| value)
    }

    pub fn nth(&self, place: usize) -> Option<&Value<'a>> {
        self.0.get(place).map(|(_, value)| value)
    }

    /// Puts a value in the place of the one of that name, or behind all others.
    pub fn insert(&mut self, key: impl Into<Cow<'a, str>>, value: Value<'a>) {
        let key = key.into();
        match self.get_mut(&key) {
            Some(old) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Puts a value behind all others; the name must not be there.
    pub fn push(&mut self, key: impl Into<Cow<'a, str>>, value: Value<'a>) {
        self.0.push((key.into(), value));
    }

    pub fn remove(&mut self, key: &str) -> Option<Value<'a>> {
        let place = self.0.iter().position(|(other, _)| other == key)?;
        Some(self.0.remove(place).1)
    }

    fn sorted(&self) -> Vec<&(Cow<'a, str>, Value<'a>)> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        entries
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }
}

impl<'a> IntoIterator for Map<'a> {
    type Item = (Cow<'a, str>, Value<'a>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Of a name that occurs twice the last value counts, in the place of the first. In time of the entries, however many a message brings.
impl<'a> FromIterator<(Cow<'a, str>, Value<'a>)> for Map<'a> {
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, Value<'a>)>>(entries: I) -> Self {
        let mut map = Map::new();
        let mut entries = entries.into_iter();
        entries.by_ref().take(FEW).for_each(|(key, value)| map.insert(key, value));
        let Some((key, value)) = entries.next() else { return map };
        let mut places: HashMap<Cow<'a, str>, usize> =
            map.0.iter().enumerate().map(|(place, (key, _))| (key.clone(), place)).collect();
        for (key, value) in std::iter::once((key, value)).chain(entries) {
            match places.get(&key) {
                Some(place) => map.0[*place].1 = value,
                None => {
                    places.insert(key.clone(), map.len());
                    map.push(key, value);
                }
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ints_and_floats_compare_exactly() {
        let max = i64::MAX;
        for (int, float, expected) in [
            (1, 1.0, Ordering::Equal),
            (1, 1.5, Ordering::Less),
            (-1, -1.5, Ordering::Greater),
            (max, 9_223_372_036_854_775_808.0, Ordering::Less),
            (i64::MIN, -9_223_372_036_854_775_808.0, Ordering::Equal),
            (i64::MIN, -1e300, Ordering::Greater),
            (9_007_199_254_740_993, 9_007_199_254_740_992.0, Ordering::Greater),
        ] {
            assert_eq!(Value::Int(int).order(&Value::Float(float)), Some(expected), "{int} {float}");
            assert_eq!(Value::Float(float).order(&Value::Int(int)), Some(expected.reverse()), "{float} {int}");
        }
    }

    #[test]
    fn types_that_have_no_order_are_unequal() {
        assert_eq!(Value::Int(1).order(&Value::text("1")), None);
        assert!(!Value::Int(1).equals(&Value::text("1")) && !Value::Bool(true).equals(&Value::Int(1)));
        assert!(Value::Array(vec![Value::Int(1)]).equals(&Value::Array(vec![Value::Float(1.0)])));
        let map = |entries: &[(&'static str, i64)]| {
            Value::Map(entries.iter().map(|(key, number)| (Cow::Borrowed(*key), Value::Int(*number))).collect())
        };
        assert!(map(&[("a", 1), ("b", 2)]).equals(&map(&[("b", 2), ("a", 1)])));
        assert!(!map(&[("a", 1)]).equals(&map(&[("a", 2)])) && !map(&[("a", 1)]).equals(&map(&[("b", 1)])));
    }

    #[test]
    fn a_map_of_many_entries_is_made_and_compared_in_their_time() {
        let entries = |count: u32| {
            (0..count).chain(0..count).map(move |number| (Cow::Owned(number.to_string()), Value::Int(i64::from(number))))
        };
        for count in [1, 15, 16, 17, 200_000] {
            let map: Map<'_> = entries(count).collect();
            assert_eq!(map.len(), count as usize);
            assert!(map.iter().zip(0..).all(|((key, value), number)| key == number.to_string() && *value == Value::Int(number)));
            let mut reversed: Vec<_> = map.clone().into_iter().collect();
            reversed.reverse();
            assert!(Value::Map(map).equals(&Value::Map(reversed.into_iter().collect())));
        }
        let map: Map<'_> = entries(20).chain([(Cow::Borrowed("3"), Value::Null)]).collect();
        assert_eq!((map.nth(3), map.len()), (Some(&Value::Null), 20));
    }

    #[test]
    fn elements_are_counted_from_1_and_from_the_end() {
        let found: Vec<_> = [1, 3, 4, 0, -1, -3, -4, i64::MIN, i64::MAX].map(|number| element(number, 3)).into();
        assert_eq!(found, [Some(0), Some(2), None, None, Some(2), Some(0), None, None, None]);
    }

    #[test]
    fn json_keeps_order_and_has_bytes_in_base64() {
        let mut map = Map::new();
        map.insert("z", Value::Float(1.0));
        map.insert("a", Value::Bytes(Cow::Borrowed(&[0xFF, 0])));
        map.insert("z", Value::Array(vec![Value::Null, Value::Bool(true), Value::text("\"\n")]));
        assert_eq!(Value::Map(map).to_json(), r#"{"z":[null,true,"\"\n"],"a":"/wA="}"#);
    }
}
