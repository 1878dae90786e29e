//! A JSON text that was parsed once: a flat list of nodes in the order of the text, each knowing where the next one beside it is. It
//! takes one allocation and about as long as skipping through the text does, and any number of paths are then followed without
//! parsing again: so a message that several rules look into, in WHERE and SELECT, is parsed once.
//!
//! Of a key that an object has twice, the last one counts. Integers beyond 64 bits signed are floats.

use super::path::Step;
use super::value::{ELEMENT_STEPS, Map, Value, element};
use super::work::Work;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// For a node that is passed on the way to another.
const PASSED_STEPS: u64 = 4;
/// Bytes of text for each node that room is made for at first.
const BYTES_PER_NODE: usize = 10;

pub struct Document<'a> {
    nodes: Vec<Node<'a>>,
}

struct Node<'a> {
    /// Its name in the object that it is in.
    key: Cow<'a, str>,
    content: Content<'a>,
    /// Where the next node is that is not inside this one.
    next: usize,
}

enum Content<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    Array,
    Object,
}

impl<'a> Document<'a> {
    /// Parses a whole text. The error is one line, with line and column.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let mut nodes = Vec::with_capacity(text.len() / BYTES_PER_NODE + 1);
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = Build { nodes: &mut nodes, key: Cow::Borrowed("") }.deserialize(&mut deserializer);
        match parsed.and_then(|()| deserializer.end()) {
            Ok(()) => Ok(Self { nodes }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What a path leads to; NULL if it leads nowhere.
    ///
    /// # Errors
    /// There is not enough work left to go there and to copy it.
    pub fn at(&self, path: &[Step], work: &Work) -> Result<Value<'_>, String> {
        // All that is passed on the way, then all that is copied.
        let mut passed = 0;
        let node = path.iter().try_fold(0, |node, step| self.step(node, step, &mut passed));
        let copied = node.map_or(0, |node| (self.nodes[node].next - node) as u64);
        work.spend(PASSED_STEPS * passed + ELEMENT_STEPS * copied)?;
        Ok(node.map_or(Value::Null, |node| self.value(node)))
    }

    fn step(&self, node: usize, step: &Step, passed: &mut u64) -> Option<usize> {
        let mut inside = self.inside(node).inspect(|_| *passed += 1);
        match (&self.nodes[node].content, step) {
            (Content::Object, Step::Key(key)) => inside.filter(|inner| *self.nodes[*inner].key == **key).last(),
            (Content::Array, Step::Index(number)) if *number > 0 => inside.nth(usize::try_from(number - 1).ok()?),
            (Content::Array, Step::Index(number)) => self.inside(node).nth(element(*number, inside.count())?),
            _ => None,
        }
    }

    /// The nodes directly inside one.
    fn inside(&self, node: usize) -> impl Iterator<Item = usize> {
        let (mut at, end) = (node + 1, self.nodes[node].next);
        std::iter::from_fn(move || {
            let inner = at;
            (inner < end).then(|| {
                at = self.nodes[inner].next;
                inner
            })
        })
    }

    fn value(&self, node: usize) -> Value<'_> {
        match &self.nodes[node].content {
            Content::Null => Value::Null,
            Content::Bool(truth) => Value::Bool(*truth),
            Content::Int(number) => Value::Int(*number),
            Content::Float(number) => Value::Float(*number),
            Content::Text(text) => Value::text(&**text),
            Content::Array => Value::Array(self.inside(node).map(|inner| self.value(inner)).collect()),
            Content::Object => {
                let entries = self.inside(node).map(|inner| (Cow::Borrowed(&*self.nodes[inner].key), self.value(inner)));
                Value::Map(entries.collect::<Map<'_>>())
            }
        }
    }
}

/// Appends the nodes of one value.
struct Build<'n, 'a> {
    nodes: &'n mut Vec<Node<'a>>,
    key: Cow<'a, str>,
}

impl<'a> Build<'_, 'a> {
    fn push(self, content: Content<'a>) {
        let next = self.nodes.len() + 1;
        self.nodes.push(Node { key: self.key, content, next });
    }
}

impl<'a> DeserializeSeed<'a> for Build<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Build<'_, 'a> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.push(Content::Null);
        Ok(())
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        self.push(Content::Bool(truth));
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.push(Content::Int(number));
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.push(i64::try_from(number).map_or(Content::Float(number as f64), Content::Int));
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.push(Content::Float(number));
        Ok(())
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<(), E> {
        self.push(Content::Text(Cow::Borrowed(text)));
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.push(Content::Text(Cow::Owned(text.to_owned())));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<(), A::Error> {
        let (nodes, own) = self.open(Content::Array);
        while elements.next_element_seed(Build { nodes, key: Cow::Borrowed("") })?.is_some() {}
        nodes[own].next = nodes.len();
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(self, mut entries: A) -> Result<(), A::Error> {
        let (nodes, own) = self.open(Content::Object);
        while let Some(key) = entries.next_key_seed(Key)? {
            entries.next_value_seed(Build { nodes, key })?;
        }
        nodes[own].next = nodes.len();
        Ok(())
    }
}

impl<'n, 'a> Build<'n, 'a> {
    /// A node that others go into.
    fn open(self, content: Content<'a>) -> (&'n mut Vec<Node<'a>>, usize) {
        let own = self.nodes.len();
        self.nodes.push(Node { key: self.key, content, next: 0 });
        (self.nodes, own)
    }
}

struct Key;

impl<'a> DeserializeSeed<'a> for Key {
    type Value = Cow<'a, str>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'a> for Key {
    type Value = Cow<'a, str>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'a str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Step {
        Step::Key(key.into())
    }

    fn at<'d>(document: &'d Document<'_>, path: &[Step]) -> Value<'d> {
        document.at(path, &Work::new()).unwrap()
    }

    #[test]
    fn what_is_large_or_far_away_is_paid_for() {
        let text = format!("[{}7]", "[],".repeat(50_000));
        let document = Document::parse(&text).unwrap();
        let times = |path: &[Step]| {
            let work = Work::new();
            (0..10_000).take_while(|_| document.at(path, &work).is_ok()).count()
        };
        assert!(
            (5..20).contains(&times(&[])) && (50..200).contains(&times(&[Step::Index(-1)])),
            "{} {}",
            times(&[]),
            times(&[Step::Index(-1)])
        );
        assert_eq!(times(&[Step::Index(1)]), 10_000);
    }

    #[test]
    fn every_kind_of_value_is_read_and_written_again() {
        for text in [
            "null",
            "true",
            "-1",
            "1.5",
            r#""a\"b\u00e9""#,
            "[]",
            "{}",
            r#"{"a":[1,[2,{"b":null}],"x"],"c":{"d":{}},"e\n":false}"#,
            "9223372036854775807",
            "0.1234567890123456",
            "2.2250738585072014e-308",
        ] {
            let expected = text.replace(r"\u00e9", "é");
            assert_eq!(at(&Document::parse(text).unwrap(), &[]).to_json(), expected);
        }
        assert_eq!(at(&Document::parse("18446744073709551615").unwrap(), &[]), Value::Float(18446744073709551615.0));
    }

    #[test]
    fn paths_lead_through_objects_and_arrays_and_past_what_is_beside_them() {
        let text = r#"{"a":{"x":[1,{"deep":[[]]},3]},"b":"text","a\u0062":7,"a":{"x":[10,{"y":"z"},30]}}"#;
        let document = Document::parse(text).unwrap();
        let x = |step| at(&document, &[key("a"), key("x"), Step::Index(step)]);
        assert_eq!([x(1), x(3), x(-1), x(-3)], [10, 30, 30, 10].map(Value::Int));
        assert_eq!([x(0), x(4), x(-4)], [const { Value::Null }; 3]);
        assert_eq!(at(&document, &[key("a"), key("x"), Step::Index(2), key("y")]), Value::text("z"));
        assert_eq!(at(&document, &[key("ab")]), Value::Int(7));
        for nowhere in [&[key("c")][..], &[key("b"), key("c")], &[Step::Index(1)], &[key("a"), Step::Index(1)]] {
            assert_eq!(at(&document, nowhere), Value::Null);
        }
    }

    #[test]
    fn what_is_not_json_is_an_error_with_its_place_and_deep_nesting_one_too() {
        let error = |text: &str| Document::parse(text).err().unwrap();
        assert_eq!(error("{\"a\":\n1,}"), "trailing comma at line 2 column 3");
        assert_eq!(error("1 2"), "trailing characters at line 1 column 3");
        assert!(error("").starts_with("EOF") && error("1e999").starts_with("number out of range"));
        assert!(error(&"[".repeat(100_000)).starts_with("recursion limit exceeded"));
    }
}
