//! The subscriptions of one core's sessions: every distinct filter once, with the sessions that subscribed to it. Shared
//! subscriptions are kept elsewhere; nothing here knows their groups or any subscription's options.
//!
//! The subscribers of a filter have positions, so that a cursor can serve a long list over several turns: a session stays at its
//! position for as long as it stays subscribed, so it is neither skipped nor served twice, whoever comes and goes meanwhile.

use super::filter::{is_wildcard, matches};
use super::hash::{Hasher, TopicKey, mix};
use super::index::FilterIndex;
use super::interest::InterestKey;
use crate::ids::{FilterId, SessionId};
use crate::segments::{SegmentedSlab, SegmentedTable};
use smallvec::SmallVec;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribed {
    pub id: FilterId,
    /// No other filter here has the same interest: it has to be announced to the peers.
    pub first: bool,
    /// The session was not subscribed to the filter before.
    pub new: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsubscribed {
    /// No filter here has this interest any more: it has to be retracted, as `key`.
    pub last: bool,
    /// Present when `last`.
    pub key: Option<InterestKey>,
}

struct Entry {
    text: Box<str>,
    subscribers: Subscribers,
}

pub struct Subscriptions {
    filters: SegmentedSlab<Entry>,
    index: FilterIndex<FilterId>,
    subscriptions: usize,
    removals: u64,
}

impl Subscriptions {
    pub fn new() -> Self {
        Self { filters: SegmentedSlab::new(), index: FilterIndex::new(), subscriptions: 0, removals: 0 }
    }

    /// How many filters have gone so far. While it stays the same, every id stands for the filter that it stood for.
    pub fn removals(&self) -> u64 {
        self.removals
    }

    /// Distinct filters.
    pub fn len(&self) -> usize {
        self.filters.len()
    }

    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// Subscriptions of all sessions.
    pub fn subscriptions(&self) -> usize {
        self.subscriptions
    }

    /// Subscribes a session to a valid filter (without a share name).
    pub fn subscribe(&mut self, hasher: &Hasher, filter: &str, session: SessionId) -> Subscribed {
        if let Some(id) = self.find(hasher, filter) {
            let new = self.filters[id.0].subscribers.insert(session);
            self.subscriptions += usize::from(new);
            return Subscribed { id, first: false, new };
        }
        let first = !self.has_interest_of(hasher, filter);
        let id = FilterId(self.filters.insert(Entry { text: filter.into(), subscribers: Subscribers::One(session) }));
        self.index.insert(hasher, filter, id);
        self.subscriptions += 1;
        Subscribed { id, first, new: true }
    }

    /// Ends a session's subscription, if there is one. With its last subscriber the filter goes, and its id may be used again.
    pub fn unsubscribe(&mut self, hasher: &Hasher, id: FilterId, session: SessionId) -> Unsubscribed {
        const NOT_LAST: Unsubscribed = Unsubscribed { last: false, key: None };
        let Some(entry) = self.filters.get_mut(id.0) else { return NOT_LAST };
        if entry.subscribers.len() > 1 {
            self.subscriptions -= usize::from(entry.subscribers.remove(session));
            return NOT_LAST;
        }
        if entry.subscribers.position(session).is_none() {
            return NOT_LAST;
        }
        let Some(Entry { text, .. }) = self.filters.remove(id.0) else { return NOT_LAST };
        self.subscriptions -= 1;
        self.removals += 1;
        self.index.remove(hasher, &text, |other| other == id);
        if self.has_interest_of(hasher, &text) {
            return NOT_LAST;
        }
        let key = if is_wildcard(&text) { InterestKey::Wildcard(text) } else { self.interest_key(hasher, &text) };
        Unsubscribed { last: true, key: Some(key) }
    }

    /// Whether some filter here is announced under the same key: filters without wildcards share one when their hashes collide.
    fn has_interest_of(&self, hasher: &Hasher, filter: &str) -> bool {
        let exact = |id: FilterId| self.text(id).is_some_and(|text| !is_wildcard(text));
        !is_wildcard(filter) && self.index.find(hasher, filter, exact).is_some()
    }

    pub fn interest_key(&self, hasher: &Hasher, filter: &str) -> InterestKey {
        if is_wildcard(filter) { InterestKey::Wildcard(filter.into()) } else { InterestKey::Exact(hasher.exact(filter)) }
    }

    pub fn find(&self, hasher: &Hasher, filter: &str) -> Option<FilterId> {
        self.index.find(hasher, filter, |id| self.text(id) == Some(filter))
    }

    /// The text of the filter that now has this id: after a turn, it may be gone or be another filter's.
    pub fn text(&self, id: FilterId) -> Option<&str> {
        self.filters.get(id.0).map(|entry| &*entry.text)
    }

    /// Puts all filters that match the topic into `out`, each once, and nothing else.
    pub fn matching(&self, hasher: &Hasher, key: &TopicKey<'_>, out: &mut SmallVec<[FilterId; 8]>) {
        out.clear();
        self.index.for_each_match(hasher, key, |id| {
            // Equality first: it is the quicker way to know the usual case.
            let topic = key.topic();
            if self.text(id).is_some_and(|text| text == topic || matches(text, topic)) {
                out.push(id);
            }
        });
        if out.len() > 1 {
            // Only colliding hashes report a filter twice.
            out.sort_unstable();
            out.dedup();
        }
    }

    /// Positions of the filter's subscribers are below this; it is the bound of a cursor. 0 if the id is not in use.
    pub fn slots(&self, id: FilterId) -> u32 {
        self.filters.get(id.0).map_or(0, |entry| entry.subscribers.slots())
    }

    /// The session at a position; None if the position is free.
    pub fn subscriber_at(&self, id: FilterId, position: u32) -> Option<SessionId> {
        self.filters.get(id.0)?.subscribers.at(position)
    }

    /// How many sessions are subscribed to the filter.
    pub fn len_of(&self, id: FilterId) -> usize {
        self.filters.get(id.0).map_or(0, |entry| entry.subscribers.len())
    }

    /// Bytes allocated, in part estimated. Walks the filters: for tests and measurements.
    pub fn memory(&self) -> usize {
        let entries: usize = self.filters.iter().map(|(_, entry)| entry.text.len() + entry.subscribers.memory()).sum();
        self.filters.memory() + self.index.memory() + entries
    }
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self::new()
    }
}

/// The most subscribers that are searched one by one.
const FEW_MAX: usize = 32;

/// Who is subscribed to one filter, by position; never nobody. It grows from one form into the next, each session staying at its
/// position, and does not go back: a list that shrinks gives back the memory of its chunks.
enum Subscribers {
    One(SessionId),
    // Boxed although a Vec has a heap part of its own: nearly all filters have one subscriber, and this keeps theirs at 16 bytes.
    #[allow(clippy::box_collection)]
    Few(Box<Vec<Option<SessionId>>>),
    Many(Box<Many>),
}

#[derive(Default)]
struct Many {
    sessions: SegmentedSlab<SessionId>,
    positions: SegmentedTable<u32>,
}

/// Session ids are the broker's own numbers: spreading them needs no key.
fn spread(session: SessionId) -> u64 {
    mix(u64::from(session.0))
}

impl Many {
    fn insert(&mut self, session: SessionId) {
        let position = self.sessions.insert(session);
        self.positions.insert_unique(spread(session), position, |position| spread(self.sessions[*position]));
    }

    fn remove(&mut self, session: SessionId) -> bool {
        let Some(position) = self.positions.remove(spread(session), |position| self.sessions[*position] == session) else {
            return false;
        };
        self.sessions.remove(position).is_some()
    }
}

impl Subscribers {
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(few) => few.iter().flatten().count(),
            Self::Many(many) => many.sessions.len(),
        }
    }

    fn slots(&self) -> u32 {
        match self {
            Self::One(_) => 1,
            Self::Few(few) => few.len() as u32,
            Self::Many(many) => many.sessions.end(),
        }
    }

    fn at(&self, position: u32) -> Option<SessionId> {
        match self {
            Self::One(session) => (position == 0).then_some(*session),
            Self::Few(few) => *few.get(position as usize)?,
            Self::Many(many) => many.sessions.get(position).copied(),
        }
    }

    fn position(&self, session: SessionId) -> Option<u32> {
        match self {
            Self::One(only) => (*only == session).then_some(0),
            Self::Few(few) => few.iter().position(|other| *other == Some(session)).map(|position| position as u32),
            Self::Many(many) => many.positions.find(spread(session), |position| many.sessions[*position] == session).copied(),
        }
    }

    /// False if the session was there already.
    fn insert(&mut self, session: SessionId) -> bool {
        if self.position(session).is_some() {
            return false;
        }
        match self {
            Self::One(only) => *self = Self::Few(Box::new(vec![Some(*only), Some(session)])),
            Self::Few(few) => {
                if let Some(free) = few.iter_mut().find(|slot| slot.is_none()) {
                    *free = Some(session);
                } else if few.len() < FEW_MAX {
                    few.push(Some(session));
                } else {
                    // No slot is free, so in the new form everyone gets the same position.
                    let mut many = Box::<Many>::default();
                    few.iter().flatten().for_each(|session| many.insert(*session));
                    many.insert(session);
                    *self = Self::Many(many);
                }
            }
            Self::Many(many) => many.insert(session),
        }
        true
    }

    /// Removes one of several.
    fn remove(&mut self, session: SessionId) -> bool {
        match self {
            Self::One(_) => false,
            Self::Few(few) => {
                let Some(slot) = few.iter_mut().find(|slot| **slot == Some(session)) else { return false };
                *slot = None;
                while few.pop_if(|last| last.is_none()).is_some() {}
                true
            }
            Self::Many(many) => many.remove(session),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Few(few) => size_of_val(&**few) + few.capacity() * size_of::<Option<SessionId>>(),
            Self::Many(many) => size_of::<Many>() + many.sessions.memory() + many.positions.memory(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::random::Random;
    use std::collections::{BTreeMap, BTreeSet, HashSet};

    fn matching(subscriptions: &Subscriptions, hasher: &Hasher, topic: &str) -> SmallVec<[FilterId; 8]> {
        let mut out = SmallVec::new();
        subscriptions.matching(hasher, &TopicKey::new(topic, hasher), &mut out);
        out
    }

    fn sessions(subscriptions: &Subscriptions, id: FilterId) -> Vec<u32> {
        (0..subscriptions.slots(id))
            .filter_map(|position| subscriptions.subscriber_at(id, position))
            .map(|session| session.0)
            .collect()
    }

    fn agree_with_a_model(seed: u64, hasher: &Hasher, levels_max: u64) {
        let mut random = Random(seed);
        let mut subscriptions = Subscriptions::new();
        let mut model: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for step in 0..3_000 {
            let session = random.below(6) as u32;
            if random.below(150) >= model.len() as u64 {
                let filter = random.filter(levels_max);
                let known = model.contains_key(&filter);
                let subscribed = subscriptions.subscribe(hasher, &filter, SessionId(session));
                assert!(!(known && subscribed.first));
                assert_eq!(subscribed.new, model.entry(filter.clone()).or_default().insert(session));
                assert_eq!(subscriptions.text(subscribed.id), Some(&*filter));
            } else {
                let filter = model.keys().nth(random.below(model.len() as u64) as usize).unwrap().clone();
                let id = subscriptions.find(hasher, &filter).unwrap();
                let unsubscribed = subscriptions.unsubscribe(hasher, id, SessionId(session));
                let left = model.get_mut(&filter).unwrap();
                let gone = left.remove(&session) && left.is_empty();
                assert!(gone || !unsubscribed.last);
                if gone {
                    model.remove(&filter);
                    assert_eq!((subscriptions.find(hasher, &filter), subscriptions.len_of(id)), (None, 0));
                }
            }
            assert_eq!(subscriptions.len(), model.len());
            assert_eq!(subscriptions.subscriptions(), model.values().map(BTreeSet::len).sum::<usize>());
            let topic = random.topic(levels_max);
            let found = matching(&subscriptions, hasher, &topic);
            let mut texts: Vec<&str> = found.iter().filter_map(|id| subscriptions.text(*id)).collect();
            texts.sort_unstable();
            let expected: Vec<&str> = model.keys().map(String::as_str).filter(|filter| matches(filter, &topic)).collect();
            assert_eq!(texts, expected, "{topic} at step {step}");
            for id in found {
                let found: BTreeSet<u32> = sessions(&subscriptions, id).into_iter().collect();
                assert_eq!((subscriptions.len_of(id), &found), (found.len(), &model[subscriptions.text(id).unwrap()]));
            }
        }
    }

    #[test]
    fn subscriptions_agree_with_the_naive_matcher() {
        for seed in 0..4 {
            agree_with_a_model(seed, &Hasher::from_seed(seed), 3);
            agree_with_a_model(seed, &Hasher::from_seed(seed), 8);
        }
    }

    #[test]
    fn colliding_hashes_change_nothing_that_is_delivered() {
        for seed in 0..4 {
            agree_with_a_model(seed, &Hasher::weak(seed, 3), 6);
            agree_with_a_model(seed, &Hasher::weak(seed, 50), 6);
        }
    }

    #[test]
    fn interest_of_colliding_exact_filters_is_announced_once_and_retracted_once() {
        let hasher = Hasher::weak(1, 1);
        let mut subscriptions = Subscriptions::new();
        let wildcard = subscriptions.subscribe(&hasher, "+/+", SessionId(1));
        let one = subscriptions.subscribe(&hasher, "a", SessionId(1));
        let two = subscriptions.subscribe(&hasher, "b", SessionId(1));
        let other = subscriptions.subscribe(&hasher, "a/+", SessionId(1));
        assert_eq!([wildcard.first, one.first, two.first, other.first], [true, true, false, true]);
        assert!(!subscriptions.unsubscribe(&hasher, one.id, SessionId(1)).last);
        let last = subscriptions.unsubscribe(&hasher, two.id, SessionId(1));
        assert_eq!(last, Unsubscribed { last: true, key: Some(InterestKey::Exact(hasher.exact("a"))) });
        let last = subscriptions.unsubscribe(&hasher, wildcard.id, SessionId(1));
        assert_eq!(last.key, Some(InterestKey::Wildcard("+/+".into())));
    }

    #[test]
    fn a_stranger_cannot_end_a_subscription_and_an_unused_id_is_harmless() {
        let hasher = Hasher::from_seed(1);
        let mut subscriptions = Subscriptions::new();
        let id = subscriptions.subscribe(&hasher, "a", SessionId(1)).id;
        assert!(!subscriptions.unsubscribe(&hasher, id, SessionId(2)).last);
        assert_eq!(subscriptions.subscriptions(), 1);
        let unused = FilterId(77);
        assert!(!subscriptions.unsubscribe(&hasher, unused, SessionId(1)).last);
        assert_eq!((subscriptions.text(unused), subscriptions.slots(unused)), (None, 0));
        assert_eq!((subscriptions.subscriber_at(unused, 0), subscriptions.len_of(unused)), (None, 0));
    }

    #[test]
    fn a_cursor_serves_everyone_who_stays_exactly_once() {
        for (seed, initial) in [(1, 1), (2, 2), (3, 20), (4, 31), (5, 33), (6, 1_500), (7, 5_000)] {
            let hasher = Hasher::from_seed(seed);
            let mut random = Random(seed);
            let mut subscriptions = Subscriptions::new();
            let id = subscriptions.subscribe(&hasher, "a", SessionId(0)).id;
            let mut present: HashSet<u32> = (0..initial).collect();
            for session in 1..initial {
                subscriptions.subscribe(&hasher, "a", SessionId(session));
            }
            // Session 0 and every third stay; the others come and go between the turns.
            let stays = |session: u32| session.is_multiple_of(3) && session < initial;
            let mut served: Vec<u32> = Vec::new();
            let mut position = 0;
            while position < subscriptions.slots(id) {
                served.extend(subscriptions.subscriber_at(id, position).map(|session| session.0));
                position += 1;
                for _ in 0..random.below(4) {
                    let session = random.below(u64::from(initial) * 2) as u32;
                    if stays(session) {
                        continue;
                    }
                    if present.remove(&session) {
                        assert!(!subscriptions.unsubscribe(&hasher, id, SessionId(session)).last);
                    } else {
                        present.insert(session);
                        assert!(subscriptions.subscribe(&hasher, "a", SessionId(session)).new);
                    }
                    assert_eq!(subscriptions.len_of(id), present.len());
                }
            }
            let mut served: Vec<u32> = served.into_iter().filter(|session| stays(*session)).collect();
            served.sort_unstable();
            assert_eq!(served, (0..initial).filter(|session| stays(*session)).collect::<Vec<_>>());
            assert_eq!(sessions(&subscriptions, id).into_iter().collect::<HashSet<_>>(), present);
        }
    }

    #[test]
    fn a_filter_of_half_a_million_subscribers_comes_and_goes() {
        let hasher = Hasher::from_seed(1);
        let mut subscriptions = Subscriptions::new();
        let mut id = FilterId(0);
        for session in 0..500_000 {
            id = subscriptions.subscribe(&hasher, "a", SessionId(session)).id;
        }
        assert_eq!(subscriptions.len_of(id), 500_000);
        println!("one filter: {} bytes per subscriber at 500,000", subscriptions.memory() / 500_000);
        for session in 0..500_000 {
            let unsubscribed = subscriptions.unsubscribe(&hasher, id, SessionId(session));
            assert_eq!(unsubscribed.last, session == 499_999);
        }
        assert!(subscriptions.is_empty() && subscriptions.subscriptions() == 0);
    }

    #[test]
    fn an_entry_for_one_subscriber_is_32_bytes() {
        assert_eq!((size_of::<Subscribers>(), size_of::<Entry>()), (16, 32));
    }
}
