//! Which cores want a topic: every core's replica of the filters that its peers have subscriptions for, kept as fingerprints, 16 bytes
//! at most per filter and peer.
//!
//! A core announces a filter with its first subscription and retracts it with its last one; every announcement is followed by at most
//! one retraction with the same key. Because announcements are kept one by one, filters with the same fingerprint do not cancel each
//! other. A core may, very rarely, get a message that it does not want; it is never left without one that it wants.

use super::hash::{Hasher, TopicKey};
use super::index::FilterIndex;
use crate::ids::CoreId;

/// What a core says about a filter that it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterestKey {
    /// [`Hasher::exact`] of a filter without wildcards.
    Exact(u64),
    Wildcard(Box<str>),
}

impl InterestKey {
    /// What it occupies, itself included.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Exact(_) => 0,
                Self::Wildcard(filter) => filter.len(),
            }
    }
}

pub struct Interest {
    index: FilterIndex<CoreId>,
}

impl Interest {
    pub fn new() -> Self {
        Self { index: FilterIndex::new() }
    }

    pub fn announce(&mut self, hasher: &Hasher, core: CoreId, key: &InterestKey) {
        match key {
            InterestKey::Exact(fingerprint) => self.index.insert_exact(*fingerprint, core),
            InterestKey::Wildcard(filter) => self.index.insert(hasher, filter, core),
        }
    }

    /// Takes back one announcement; false if there was none.
    pub fn retract(&mut self, hasher: &Hasher, core: CoreId, key: &InterestKey) -> bool {
        match key {
            InterestKey::Exact(fingerprint) => self.index.remove_exact(*fingerprint, |other| other == core),
            InterestKey::Wildcard(filter) => self.index.remove(hasher, filter, |other| other == core),
        }
    }

    /// A bit for each core that wants the topic, and how many announcements say so: what the answer costs.
    pub fn cores(&self, hasher: &Hasher, key: &TopicKey<'_>) -> (u64, usize) {
        let (mut cores, mut announcements) = (0, 0);
        self.index.for_each_match(hasher, key, |core| {
            cores |= 1 << (core.0 & 63);
            announcements += 1;
        });
        (cores, announcements)
    }

    /// Announcements in force.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes allocated. Walks the segments.
    pub fn memory(&self) -> usize {
        self.index.memory()
    }
}

impl Default for Interest {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;
    use crate::topic::filter::matches;
    use crate::topic::random::Random;
    use crate::topic::subscriptions::Subscriptions;

    /// A core's subscriptions announced to a peer, as the shard does it, against the naive matcher.
    fn follows_subscriptions(seed: u64, hasher: &Hasher, levels_max: u64, exact: bool) {
        let mut random = Random(seed);
        let mut cores: Vec<Subscriptions> = (0..3).map(|_| Subscriptions::new()).collect();
        let mut model: Vec<(usize, String, SessionId)> = Vec::new();
        let mut interest = Interest::new();
        for step in 0..4_000 {
            if random.below(300) >= model.len() as u64 {
                let (core, filter) = (random.below(3) as usize, random.filter(levels_max));
                let session = SessionId(random.below(3) as u32);
                let subscribed = cores[core].subscribe(hasher, &filter, session);
                if subscribed.first {
                    interest.announce(hasher, CoreId(core as u8), &cores[core].interest_key(hasher, &filter));
                }
                assert_eq!(subscribed.new, !model.contains(&(core, filter.clone(), session)));
                if subscribed.new {
                    model.push((core, filter, session));
                }
            } else {
                let (core, filter, session) = model.swap_remove(random.below(model.len() as u64) as usize);
                let id = cores[core].find(hasher, &filter).unwrap();
                let unsubscribed = cores[core].unsubscribe(hasher, id, session);
                assert_eq!(unsubscribed.last, unsubscribed.key.is_some());
                if let Some(key) = unsubscribed.key {
                    assert!(interest.retract(hasher, CoreId(core as u8), &key));
                }
            }
            let topic = random.topic(levels_max);
            let mut expected = 0;
            for (core, ..) in model.iter().filter(|(_, filter, _)| matches(filter, &topic)) {
                expected |= 1_u64 << core;
            }
            let found = interest.cores(hasher, &TopicKey::new(&topic, hasher)).0;
            assert_eq!(found & expected, expected, "a core was left without {topic} at step {step}");
            assert!(!exact || found == expected, "{topic} at step {step}");
        }
        for (core, filter, session) in model {
            let id = cores[core].find(hasher, &filter).unwrap();
            if let Some(key) = cores[core].unsubscribe(hasher, id, session).key {
                assert!(interest.retract(hasher, CoreId(core as u8), &key));
            }
        }
        assert!(interest.is_empty());
    }

    #[test]
    fn interest_is_what_the_subscriptions_of_all_cores_want() {
        for seed in 0..4 {
            follows_subscriptions(seed, &Hasher::from_seed(seed), 3, true);
            follows_subscriptions(seed, &Hasher::from_seed(seed), 8, true);
        }
    }

    #[test]
    fn colliding_filters_do_not_deafen_each_other() {
        for seed in 0..4 {
            for values in [1, 10, 200] {
                follows_subscriptions(seed, &Hasher::weak(seed, values), 6, false);
            }
        }
    }

    #[test]
    fn interest_of_64_cores_in_many_filters_is_kept_apart() {
        let hasher = Hasher::from_seed(1);
        let mut interest = Interest::new();
        let keys: Vec<String> = (0..300).map(|number| format!("t/{number}")).collect();
        for core in 0..64 {
            for key in &keys {
                interest.announce(&hasher, CoreId(core), &InterestKey::Exact(hasher.exact(key)));
            }
        }
        assert!(keys.iter().all(|key| interest.cores(&hasher, &TopicKey::new(key, &hasher)).0 == u64::MAX));
        assert!(interest.retract(&hasher, CoreId(63), &InterestKey::Exact(hasher.exact(&keys[7]))));
        assert!(!interest.retract(&hasher, CoreId(63), &InterestKey::Exact(hasher.exact(&keys[7]))));
        assert_eq!(interest.cores(&hasher, &TopicKey::new(&keys[7], &hasher)).0, u64::MAX >> 1);
    }

    #[test]
    fn a_million_filters_of_one_peer_take_at_most_16_bytes_each() {
        let hasher = Hasher::from_seed(1);
        let mut interest = Interest::new();
        for number in 0..500_000 {
            interest.announce(&hasher, CoreId(3), &InterestKey::Exact(hasher.exact(&format!("meter/{number}/command"))));
            interest.announce(&hasher, CoreId(3), &InterestKey::Wildcard(format!("meter/{number}/#").into()));
        }
        let bytes = interest.memory() as f64 / interest.len() as f64;
        println!("interest: {bytes:.1} bytes per filter at {}", interest.len());
        assert!(bytes <= 16.0, "{bytes}");
        assert_eq!(interest.cores(&hasher, &TopicKey::new("meter/499999/command", &hasher)).0, 8);
        assert_eq!(interest.cores(&hasher, &TopicKey::new("meter/500000/command", &hasher)).0, 0);
    }
}
