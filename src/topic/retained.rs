//! Retained messages by topic, in an order in which everything below a topic is contiguous and directly follows it: `/` sorts below
//! every other byte. A filter with wildcards then walks only the parts that can match, seeking past the others, a bounded number of
//! steps at a time.

use super::name::{is_reserved, levels};
use crate::message::Message;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

/// `/` below everything, all other bytes in their order.
fn rank(byte: u8) -> u8 {
    match byte {
        b'/' => 0,
        0..b'/' => byte + 1,
        _ => byte,
    }
}

fn compare(one: &[u8], two: &[u8]) -> Ordering {
    match one.iter().zip(two).find(|(one, two)| one != two) {
        Some((one, two)) => rank(*one).cmp(&rank(*two)),
        None => one.len().cmp(&two.len()),
    }
}

/// Something that has a place in the order: a message, or just a topic to look for. It is compared as bytes, because a look-up compares
/// some twenty topics.
trait Placed {
    fn place(&self) -> &[u8];
}

impl Placed for &str {
    fn place(&self) -> &[u8] {
        self.as_bytes()
    }
}

struct Retained(Message);

impl Placed for Retained {
    fn place(&self) -> &[u8] {
        self.0.topic_bytes()
    }
}

impl<'a> Borrow<dyn Placed + 'a> for Retained {
    fn borrow(&self) -> &(dyn Placed + 'a) {
        self
    }
}

impl PartialEq for dyn Placed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Placed + '_ {}

impl PartialOrd for dyn Placed + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Placed + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.place(), other.place())
    }
}

impl PartialEq for Retained {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Retained {}

impl PartialOrd for Retained {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Retained {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.place(), other.place())
    }
}

/// How far [`RetainedTree::page`] came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Page {
    /// There is nothing more that matches.
    Done,
    /// To be resumed after this topic, which may be empty (from the beginning) and need not exist.
    More(Box<str>),
}

#[derive(Default)]
pub struct RetainedTree {
    messages: BTreeSet<Retained>,
    bytes: usize,
}

impl RetainedTree {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// [`Message::bytes`] of all messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a message, and returns the one of the same topic that it replaces.
    pub fn insert(&mut self, message: Message) -> Option<Message> {
        self.bytes += message.bytes();
        let replaced = self.messages.replace(Retained(message))?.0;
        self.bytes -= replaced.bytes();
        Some(replaced)
    }

    pub fn remove(&mut self, topic: &str) -> Option<Message> {
        let removed = self.messages.take(&topic as &dyn Placed)?.0;
        self.bytes -= removed.bytes();
        Some(removed)
    }

    pub fn get(&self, topic: &str) -> Option<&Message> {
        self.messages.get(&topic as &dyn Placed).map(|retained| &retained.0)
    }

    /// The message that follows a topic (which need not exist), or the first one.
    pub fn next_after(&self, topic: Option<&str>) -> Option<&Message> {
        self.from(topic.map_or(Bound::Unbounded, Bound::Excluded)).next()
    }

    fn from<'a>(&'a self, start: Bound<&str>) -> impl Iterator<Item = &'a Message> + use<'a> {
        let messages = match &start {
            Bound::Included(topic) => {
                self.messages.range::<dyn Placed, _>((Bound::Included(topic as &dyn Placed), Bound::Unbounded))
            }
            Bound::Excluded(topic) => {
                self.messages.range::<dyn Placed, _>((Bound::Excluded(topic as &dyn Placed), Bound::Unbounded))
            }
            Bound::Unbounded => self.messages.range::<dyn Placed, _>((Bound::Unbounded::<&dyn Placed>, Bound::Unbounded)),
        };
        messages.map(|retained| &retained.0)
    }

    /// Calls `f` with the messages that match a filter, in order, from after the topic `after` on; `f` says false to have the same
    /// message again on the next page. A step looks at one message, whether it matches or not; what cannot match is mostly passed
    /// over without a look. `steps_max` is taken to be at least 2.
    ///
    /// Messages may come and go between pages: what is there throughout is seen exactly once.
    pub fn page(&self, filter: &str, after: Option<&str>, steps_max: usize, mut f: impl FnMut(&Message) -> bool) -> Page {
        let literal = &filter[..filter.find(['+', '#']).unwrap_or(filter.len())];
        // Of "a/#" it is "a", because the parent level matches as well.
        let first = if filter[literal.len()..].starts_with('#') { literal.strip_suffix('/').unwrap_or(literal) } else { literal };
        let mut last = after.unwrap_or_default();
        let mut messages = match compare(last.as_bytes(), first.as_bytes()) {
            Ordering::Less => self.from(Bound::Included(first)),
            _ => self.from(Bound::Excluded(last)),
        };
        for _ in 0..steps_max.max(2) {
            let Some(message) = messages.next() else { return Page::Done };
            let topic = message.topic();
            match look(filter, topic) {
                Look::Match => {
                    if !f(message) {
                        return Page::More(last.into());
                    }
                }
                Look::Seek(target) => messages = self.from(Bound::Included(&target)),
                Look::Done => return Page::Done,
            }
            last = topic;
        }
        Page::More(last.into())
    }
}

/// What to do about a topic on the walk along a filter.
enum Look {
    Match,
    /// Nothing matches before this place, which is behind the topic.
    Seek(String),
    /// Nothing matches from here on.
    Done,
}

fn look(filter: &str, topic: &str) -> Look {
    if is_reserved(topic) && filter.starts_with(['+', '#']) {
        return Look::Seek("%".to_owned()); // [MQTT-4.7.2-1]; '%' follows '$'
    }
    // How much of the topic the filter's levels so far have matched (with the separator after it), and the end of the last level that
    // a '+' has matched.
    let mut matched = 0;
    let mut plus_end = None;
    let mut rest = filter;
    loop {
        let (level, following) = match rest.split_once('/') {
            Some((level, following)) => (level, Some(following)),
            None => (rest, None),
        };
        if level == "#" {
            return Look::Match;
        }
        let Some(remaining) = topic.get(matched..) else {
            // The topic has ended: what can match is below it.
            return Look::Seek(format!("{topic}/{}", literal_start(rest)));
        };
        let own = levels(remaining).next().unwrap_or_default();
        if level == "+" {
            plus_end = Some(matched + own.len());
        } else {
            match compare(own.as_bytes(), level.as_bytes()) {
                Ordering::Equal => {}
                Ordering::Less => return Look::Seek(format!("{}{}", &topic[..matched], literal_start(rest))),
                Ordering::Greater => return past(topic, plus_end),
            }
        }
        matched += own.len() + 1;
        let ended = matched > topic.len();
        match following {
            Some(following) => rest = following,
            None if ended => return Look::Match,
            None => return past(topic, plus_end),
        }
    }
}

/// Past everything below the level that a `+` stands for: the next one may match again. NUL, which no topic contains, is what
/// follows `/` in the order.
fn past(topic: &str, plus_end: Option<usize>) -> Look {
    plus_end.map_or(Look::Done, |end| Look::Seek(format!("{}\0", &topic[..end])))
}

/// The beginning of a filter up to its first wildcard; without the separator if that is `#`, which includes the parent level.
fn literal_start(filter: &str) -> &str {
    match filter.find(['+', '#']) {
        Some(at) if filter[at..].starts_with('#') => filter[..at].strip_suffix('/').unwrap_or(&filter[..at]),
        Some(at) => &filter[..at],
        None => filter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageRef;
    use crate::time::Time;
    use crate::topic::filter::matches;
    use crate::topic::random::Random;
    use crate::wire::QoS;
    use std::collections::{BTreeMap, HashSet};

    fn message(topic: &str, payload: &str) -> Message {
        let (properties, payload) = (&[][..], payload.as_bytes());
        Message::from(MessageRef { topic, properties, payload, qos: QoS::AtMostOnce, retain: true, expires_at: Time::NEVER })
    }

    fn tree<'a>(topics: impl IntoIterator<Item = &'a str>) -> RetainedTree {
        let mut tree = RetainedTree::new();
        for topic in topics {
            tree.insert(message(topic, "x"));
        }
        tree
    }

    /// All that matches, page by page.
    fn walk(tree: &RetainedTree, filter: &str, steps_max: usize) -> Vec<String> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = tree.page(filter, after.as_deref(), steps_max, |message| {
                found.push(message.topic().to_owned());
                true
            });
            match page {
                Page::Done => return found,
                Page::More(topic) => after = Some(topic),
            }
        }
    }

    #[test]
    fn everything_below_a_topic_directly_follows_it() {
        let tree = tree(["a!", "a", "ab", "a/b", "a/", "a//", "a/!", "b", "a/b/c", "/", "$a", "a\u{1}"]);
        let mut order = Vec::new();
        while let Some(message) = tree.next_after(order.last().copied()) {
            order.push(message.topic());
        }
        assert_eq!(order, ["/", "$a", "a", "a/", "a//", "a/!", "a/b", "a/b/c", "a\u{1}", "a!", "ab", "b"]);
    }

    #[test]
    fn messages_are_replaced_removed_and_accounted_by_topic() {
        let mut tree = RetainedTree::new();
        assert!(tree.insert(message("a", "1")).is_none());
        assert!(tree.insert(message("a/b", "22")).is_none());
        assert_eq!(tree.insert(message("a", "333")).unwrap().payload(), b"1");
        assert_eq!(tree.get("a").unwrap().payload(), b"333");
        assert_eq!((tree.len(), tree.bytes()), (2, message("a", "333").bytes() + message("a/b", "22").bytes()));
        assert_eq!(tree.remove("a").unwrap().payload(), b"333");
        assert!(tree.remove("a").is_none() && tree.get("a").is_none());
        assert_eq!(tree.bytes(), message("a/b", "22").bytes());
        tree.remove("a/b");
        assert!(tree.is_empty() && tree.bytes() == 0);
    }

    #[test]
    fn pages_of_any_size_agree_with_the_naive_matcher() {
        let mut random = Random(5);
        for round in 0..400 {
            let levels_max = 2 + random.below(4);
            let topics: HashSet<String> = (0..random.below(150)).map(|_| random.topic(levels_max)).collect();
            let tree = tree(topics.iter().map(String::as_str));
            for _ in 0..20 {
                let filter = random.filter(levels_max);
                let mut expected: Vec<&String> = topics.iter().filter(|topic| matches(&filter, topic)).collect();
                expected.sort_unstable_by(|one, two| compare(one.as_bytes(), two.as_bytes()));
                for steps_max in [1, 2, 3, 7, 1_000] {
                    let found = walk(&tree, &filter, steps_max);
                    assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{filter}, {steps_max} steps, round {round}");
                }
            }
        }
    }

    #[test]
    fn what_stays_is_seen_once_whatever_comes_and_goes_between_pages() {
        let mut random = Random(6);
        for _ in 0..500 {
            let filter = random.filter(4);
            let staying: HashSet<String> = (0..40).map(|_| random.topic(4)).collect();
            let mut tree = tree(staying.iter().map(String::as_str));
            let mut seen: BTreeMap<String, usize> = BTreeMap::new();
            let mut after: Option<Box<str>> = None;
            loop {
                let mut room = random.below(3);
                let page = tree.page(&filter, after.as_deref(), 1 + random.below(5) as usize, |message| {
                    if room == 0 {
                        return false;
                    }
                    room -= 1;
                    *seen.entry(message.topic().to_owned()).or_default() += 1;
                    true
                });
                match page {
                    Page::Done => break,
                    Page::More(topic) => after = Some(topic),
                }
                for _ in 0..random.below(4) {
                    let topic = random.topic(4);
                    if staying.contains(&topic) {
                        tree.insert(message(&topic, "replaced"));
                    } else if tree.remove(&topic).is_none() {
                        tree.insert(message(&topic, "new"));
                    }
                }
            }
            assert!(seen.keys().all(|topic| matches(&filter, topic)));
            for topic in &staying {
                assert_eq!(seen.get(topic).copied().unwrap_or(0), usize::from(matches(&filter, topic)), "{filter} {topic}");
            }
        }
    }

    #[test]
    fn a_refused_message_is_the_first_of_the_next_page() {
        let tree = tree(["a/1", "a/2", "a/3"]);
        let mut offered = Vec::new();
        let page = tree.page("a/+", None, 100, |message| {
            offered.push(message.topic().to_owned());
            offered.len() < 2
        });
        assert_eq!((offered, &page), (vec!["a/1".to_owned(), "a/2".to_owned()], &Page::More("a/1".into())));
        let page = tree.page("a/+", None, 100, |_| false);
        let Page::More(after) = page else { panic!("{page:?}") };
        let mut first = None;
        tree.page("a/+", Some(&after), 100, |message| {
            first = Some(message.topic().to_owned());
            false
        });
        assert_eq!(first.as_deref(), Some("a/1"));
    }

    #[test]
    fn parts_that_cannot_match_are_passed_over() {
        let topics: Vec<String> =
            (0..100).flat_map(|device| (0..100).map(move |value| format!("d/{device}/v/{value}"))).collect();
        let tree = tree(topics.iter().map(String::as_str).chain(["$SYS/a/b", "$SYS/c", "z"]));
        for (filter, matches, steps_max) in [
            ("d/+/v/7", 100, 310),
            ("d/7/v/+", 100, 110),
            ("d/+/w", 0, 310),
            ("d/+", 0, 110),
            ("d/7/#", 100, 110),
            ("+", 1, 10),
            ("d/50/v/50", 1, 5),
            ("nothing/#", 0, 5),
            ("#", 10_001, 10_010),
        ] {
            let mut found = 0;
            let page = tree.page(filter, None, steps_max, |_| {
                found += 1;
                true
            });
            assert_eq!((found, page), (matches, Page::Done), "{filter}");
        }
    }
}
