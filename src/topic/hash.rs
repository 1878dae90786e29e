//! Keyed hashes of topics and client ids. All cores of a process use the same [`Hasher`], so a hash may travel between them; without
//! the key, nobody can choose names that collide.

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use smallvec::SmallVec;
use std::cell::OnceCell;
use std::hash::{BuildHasher, Hasher as _, RandomState};

/// The keys, one for each purpose, so that what is known of one kind of hash says nothing of another.
#[derive(Clone, Copy)]
pub struct Hasher {
    shared: &'static SharedSeed,
    client_id: u64,
    exact: u64,
    level: u64,
    fold: u64,
    /// Hashes are reduced to so many values, to see what collisions do.
    #[cfg(test)]
    values: Option<u64>,
}

impl Hasher {
    /// Keys from the operating system's entropy. Called once per process.
    pub fn random() -> Self {
        let entropy = RandomState::new();
        Self::new(SharedSeed::global_random(), |purpose| entropy.hash_one(purpose))
    }

    /// The same keys for the same seed, in every process: for tests and simulation.
    pub fn from_seed(seed: u64) -> Self {
        Self::new(SharedSeed::global_fixed(), |purpose| mix(seed.wrapping_add(mix(purpose))))
    }

    fn new(shared: &'static SharedSeed, key: impl Fn(u64) -> u64) -> Self {
        Self {
            shared,
            client_id: key(0),
            exact: key(1),
            level: key(2),
            // Odd, so that multiplying by it loses nothing.
            fold: key(3) | 1,
            #[cfg(test)]
            values: None,
        }
    }

    #[cfg(test)]
    pub fn weak(seed: u64, values: u64) -> Self {
        Self { values: Some(values), ..Self::from_seed(seed) }
    }

    /// The home of a client among so many cores. It looks at bits that the client table does not, so that a core's share of ids is
    /// spread evenly in that.
    pub fn home(&self, client_id: &str, cores: usize) -> usize {
        (self.client_id(client_id) >> 20) as u32 as usize % cores
    }

    /// Of a client id.
    pub fn client_id(&self, id: &str) -> u64 {
        self.hash(self.client_id, id.as_bytes())
    }

    /// Of a whole topic name, or of a whole filter without wildcards.
    pub fn exact(&self, topic: &str) -> u64 {
        self.hash(self.exact, topic.as_bytes())
    }

    /// Of one topic level.
    pub fn level(&self, level: &str) -> u64 {
        self.hash(self.level, level.as_bytes())
    }

    fn hash(&self, key: u64, text: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(key, self.shared);
        hasher.write(text);
        self.reduced(hasher.finish())
    }

    /// Folds the next value (such as a level's hash) into a fingerprint; order matters.
    pub(super) fn fold(&self, fingerprint: u64, value: u64) -> u64 {
        let product = u128::from(fingerprint.rotate_left(23) ^ value) * u128::from(self.fold);
        self.reduced(product as u64 ^ (product >> 64) as u64)
    }

    #[cfg(not(test))]
    fn reduced(&self, hash: u64) -> u64 {
        hash
    }

    #[cfg(test)]
    fn reduced(&self, hash: u64) -> u64 {
        self.values.map_or(hash, |values| (hash % values).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// Spreads the bits of a number (the finish of SplitMix64): a hash for numbers that the broker itself chose.
pub(crate) fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// A topic name on its way through the look-ups: hashed as a whole at once, and level by level only when somebody uses wildcards.
pub struct TopicKey<'a> {
    topic: &'a str,
    exact: u64,
    levels: OnceCell<SmallVec<[u64; 16]>>,
}

impl<'a> TopicKey<'a> {
    pub fn new(topic: &'a str, hasher: &Hasher) -> Self {
        Self { topic, exact: hasher.exact(topic), levels: OnceCell::new() }
    }

    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// [`Hasher::exact`] of the topic.
    pub fn exact(&self) -> u64 {
        self.exact
    }

    /// The hash of each level, computed when first asked for. The hasher must be the one that the key was made with.
    pub fn levels(&self, hasher: &Hasher) -> &[u64] {
        self.levels.get_or_init(|| {
            // By bytes: splitting a str costs more than hashing the short pieces does.
            let levels = self.topic.as_bytes().split(|byte| *byte == b'/');
            levels.map(|level| hasher.hash(hasher.level, level)).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_seed_purpose_and_text_and_on_nothing_else() {
        let hasher = Hasher::from_seed(1);
        assert_eq!(hasher.exact("a/b"), Hasher::from_seed(1).exact("a/b"));
        assert_ne!(hasher.exact("a/b"), Hasher::from_seed(2).exact("a/b"));
        assert_ne!(hasher.exact("a/b"), hasher.exact("a/c"));
        let purposes = [hasher.exact("a"), hasher.level("a"), hasher.client_id("a")];
        assert!(purposes[0] != purposes[1] && purposes[1] != purposes[2] && purposes[0] != purposes[2]);
        let copy = hasher;
        assert_eq!(copy.level(""), hasher.level(""));
    }

    #[test]
    fn texts_that_differ_in_length_only_have_different_hashes_under_every_seed() {
        for seed in 0..200 {
            let hasher = Hasher::from_seed(seed);
            let mut hashes: Vec<u64> = (0..400).flat_map(|len| ["a", "/"].map(|text| hasher.exact(&text.repeat(len)))).collect();
            hashes.extend((1..400).map(|len| hasher.level(&"a".repeat(len))));
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 400 * 2 - 1 + 399, "seed {seed}");
        }
    }

    #[test]
    fn random_keys_differ_between_hashers_and_are_stable_within_one() {
        let (one, two) = (Hasher::random(), Hasher::random());
        assert_ne!(one.exact("a"), two.exact("a"));
        assert_eq!(one.exact("a"), { one }.exact("a"));
    }

    #[test]
    fn folding_depends_on_order() {
        let hasher = Hasher::from_seed(1);
        let fold = |values: &[u64]| values.iter().fold(7, |fingerprint, value| hasher.fold(fingerprint, *value));
        assert_ne!(fold(&[1, 2]), fold(&[2, 1]));
        assert_ne!(fold(&[1]), fold(&[1, 0]));
    }

    #[test]
    fn client_ids_spread_over_two_cores() {
        let hasher = Hasher::random();
        let on_first = (0..10_000).filter(|number| hasher.home(&format!("meter-{number}"), 2) == 0).count();
        assert!((4_700..5_300).contains(&on_first), "{on_first}");
    }
}
