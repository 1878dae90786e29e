//! Which filters match a topic, for any kind of value attached to them, by hashes alone.
//!
//! A filter without wildcards is found by the hash of the whole topic. A wildcard filter has a *shape* (how many levels, which of them
//! are `+`, whether `#` follows) and a fingerprint folded over its literal levels; the shapes in use are counted, and a topic is
//! looked up once for each of them that fits its number of levels. Filters whose shape is not among the first 64 in use, or that have
//! more than 60 levels, are in a tree, which is walked only while it has filters.
//!
//! Texts are not kept: a match may, very rarely, be a collision, or be reported twice, and is never missed. Who cannot live with that
//! compares texts. All filters of one shape are in one place, so that what is removed is what was inserted.

use super::filter::is_wildcard;
use super::fingerprints::FingerprintMap;
use super::hash::{Hasher, TopicKey};
use super::name::{is_reserved, levels};
use crate::segments::SegmentedTable;
use smallvec::SmallVec;
use std::collections::HashMap;

const SHAPES_MAX: usize = 64;
const LEVELS_MAX: usize = 60;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    /// A bit for each level that is `+`.
    plus: u64,
    /// Levels without the `#`.
    levels: u8,
    /// Whether `#` follows.
    multi: bool,
}

impl Shape {
    /// The shape of a filter; None if it has too many levels.
    fn of(filter: &str) -> Option<Self> {
        let mut shape = Self { plus: 0, levels: 0, multi: false };
        for level in levels(filter) {
            if level == "#" {
                shape.multi = true;
                break;
            }
            if usize::from(shape.levels) == LEVELS_MAX {
                return None;
            }
            shape.plus |= u64::from(level == "+") << shape.levels;
            shape.levels += 1;
        }
        Some(shape)
    }

    fn starts_with_wildcard(self) -> bool {
        self.levels == 0 || self.plus & 1 == 1
    }

    fn fits(self, levels: usize) -> bool {
        let own = usize::from(self.levels);
        own == levels || self.multi && own < levels
    }

    /// What the fingerprints of this shape begin with.
    fn seed(self, hasher: &Hasher) -> u64 {
        hasher.fold(hasher.fold(SHAPE, self.plus), u64::from(self.levels) << 1 | u64::from(self.multi))
    }
}

// What fingerprints begin with, and what stands in them for other things than the hash of a level.
const SHAPE: u64 = 0x243F_6A88_85A3_08D3;
const ROOT: u64 = 0x1319_8A2E_0370_7344;
const PLUS: u64 = 0xA409_3822_299F_31D0;
const MULTI: u64 = 0x082E_FA98_EC4E_6C89;
const END: u64 = 0x4528_21E6_38D0_1377;

struct ShapeInUse {
    shape: Shape,
    seed: u64,
    filters: usize,
}

impl ShapeInUse {
    fn fingerprint_of_topic(&self, hasher: &Hasher, levels: &[u64]) -> u64 {
        let mut literal = !self.shape.plus & ((1 << self.shape.levels) - 1);
        let mut fingerprint = self.seed;
        while literal != 0 {
            fingerprint = hasher.fold(fingerprint, levels[literal.trailing_zeros() as usize]);
            literal &= literal - 1;
        }
        fingerprint
    }

    fn fingerprint_of_filter(&self, hasher: &Hasher, filter: &str) -> u64 {
        let literal = levels(filter).filter(|level| !matches!(*level, "+" | "#"));
        literal.fold(self.seed, |fingerprint, level| hasher.fold(fingerprint, hasher.level(level)))
    }
}

/// See the module. A filter may have several values, and the same value several times.
pub struct FilterIndex<T: Copy> {
    /// Filters without wildcards, and those of the shapes in use.
    entries: FingerprintMap<T>,
    /// At most [`SHAPES_MAX`], some of them no longer in use.
    shapes: Vec<ShapeInUse>,
    /// A bit for each shape in use.
    in_use: u64,
    /// For a topic of so many levels (those with more than [`LEVELS_MAX`] are alike), a bit for each shape that fits it.
    fitting: [u64; LEVELS_MAX + 2],
    /// A bit for each shape that does not match topics which begin with `$`.
    starting_with_wildcard: u64,
    tree: Tree<T>,
}

impl<T: Copy> FilterIndex<T> {
    pub fn new() -> Self {
        Self {
            entries: FingerprintMap::new(),
            shapes: Vec::new(),
            in_use: 0,
            fitting: [0; LEVELS_MAX + 2],
            starting_with_wildcard: 0,
            tree: Tree::new(),
        }
    }

    /// Values in it.
    pub fn len(&self) -> usize {
        self.entries.len() + self.tree.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn insert(&mut self, hasher: &Hasher, filter: &str, value: T) {
        if !is_wildcard(filter) {
            return self.insert_exact(hasher.exact(filter), value);
        }
        let shape = Shape::of(filter);
        match shape.and_then(|shape| self.slot(shape).or_else(|| self.start_shape(hasher, shape))) {
            Some(slot) => {
                let in_use = &mut self.shapes[slot];
                in_use.filters += 1;
                self.entries.insert(in_use.fingerprint_of_filter(hasher, filter), value);
            }
            None => self.tree.insert(hasher, filter, shape, value),
        }
    }

    /// Inserts a filter without wildcards by its [`Hasher::exact`].
    pub fn insert_exact(&mut self, fingerprint: u64, value: T) {
        self.entries.insert(fingerprint, value);
    }

    /// Removes one value of the filter that `eq` agrees to; false if there is none.
    pub fn remove(&mut self, hasher: &Hasher, filter: &str, eq: impl Fn(T) -> bool) -> bool {
        if !is_wildcard(filter) {
            return self.remove_exact(hasher.exact(filter), eq);
        }
        let shape = Shape::of(filter);
        let Some(slot) = shape.and_then(|shape| self.slot(shape)) else {
            return self.tree.remove(hasher, filter, shape, eq);
        };
        let in_use = &mut self.shapes[slot];
        if self.entries.remove(in_use.fingerprint_of_filter(hasher, filter), eq).is_none() {
            return false;
        }
        in_use.filters -= 1;
        if in_use.filters == 0 {
            self.mark(slot, false);
        }
        true
    }

    pub fn remove_exact(&mut self, fingerprint: u64, eq: impl Fn(T) -> bool) -> bool {
        self.entries.remove(fingerprint, eq).is_some()
    }

    /// The first value of the filter (or of one that collides with it) that `eq` agrees to.
    pub fn find(&self, hasher: &Hasher, filter: &str, eq: impl FnMut(T) -> bool) -> Option<T> {
        if !is_wildcard(filter) {
            return self.entries.find(hasher.exact(filter), eq);
        }
        match Shape::of(filter).and_then(|shape| self.slot(shape)) {
            Some(slot) => self.entries.find(self.shapes[slot].fingerprint_of_filter(hasher, filter), eq),
            None => self.tree.ends.find(Path::of(hasher, filter).end, eq),
        }
    }

    /// Calls `f` with the values of all filters that match, in no particular order.
    pub fn for_each_match(&self, hasher: &Hasher, key: &TopicKey<'_>, mut f: impl FnMut(T)) {
        self.entries.for_each(key.exact(), &mut f);
        if self.in_use == 0 && self.tree.is_empty() {
            return;
        }
        let levels = key.levels(hasher);
        let internal = is_reserved(key.topic());
        let mut shapes = self.fitting[levels.len().min(LEVELS_MAX + 1)];
        if internal {
            shapes &= !self.starting_with_wildcard; // [MQTT-4.7.2-1]
        }
        while shapes != 0 {
            let in_use = &self.shapes[shapes.trailing_zeros() as usize];
            self.entries.for_each(in_use.fingerprint_of_topic(hasher, levels), &mut f);
            shapes &= shapes - 1;
        }
        if !self.tree.is_empty() {
            self.tree.for_each_match(hasher, levels, internal, &mut f);
        }
    }

    /// Bytes allocated. Walks the segments.
    pub fn memory(&self) -> usize {
        self.entries.memory() + self.tree.ends.memory() + self.tree.passing.memory()
    }

    fn slot(&self, shape: Shape) -> Option<usize> {
        self.shapes.iter().position(|in_use| in_use.shape == shape && in_use.filters > 0)
    }

    /// A slot for a shape that is not in use; None if it belongs into the tree.
    fn start_shape(&mut self, hasher: &Hasher, shape: Shape) -> Option<usize> {
        let slot = (!self.in_use).trailing_zeros() as usize;
        if slot == SHAPES_MAX || self.tree.shapes.contains_key(&shape) {
            return None;
        }
        let started = ShapeInUse { shape, seed: shape.seed(hasher), filters: 0 };
        match self.shapes.get_mut(slot) {
            Some(ended) => *ended = started,
            None => self.shapes.push(started),
        }
        self.mark(slot, true);
        Some(slot)
    }

    fn mark(&mut self, slot: usize, used: bool) {
        let shape = self.shapes[slot].shape;
        let set = |mask: &mut u64, condition: bool| *mask = *mask & !(1 << slot) | u64::from(condition && used) << slot;
        set(&mut self.in_use, true);
        set(&mut self.starting_with_wildcard, shape.starts_with_wildcard());
        for (levels, fitting) in self.fitting.iter_mut().enumerate() {
            set(fitting, shape.fits(levels));
        }
    }
}

impl<T: Copy> Default for FilterIndex<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Filters by the fingerprints of their paths: how many pass through each node, and the values where they end.
struct Tree<T: Copy> {
    ends: FingerprintMap<T>,
    passing: SegmentedTable<(u64, u32)>,
    /// How many filters of each shape are here. A shape that is here stays here until its last filter has gone.
    shapes: HashMap<Shape, usize>,
}

/// The fingerprints along a filter.
struct Path {
    nodes: SmallVec<[u64; 16]>,
    end: u64,
}

impl Path {
    fn of(hasher: &Hasher, filter: &str) -> Self {
        let mut nodes = SmallVec::new();
        let mut fingerprint = ROOT;
        for level in levels(filter) {
            if level == "#" {
                return Self { nodes, end: hasher.fold(fingerprint, MULTI) };
            }
            fingerprint = hasher.fold(fingerprint, if level == "+" { PLUS } else { hasher.level(level) });
            nodes.push(fingerprint);
        }
        Self { nodes, end: hasher.fold(fingerprint, END) }
    }
}

impl<T: Copy> Tree<T> {
    fn new() -> Self {
        Self { ends: FingerprintMap::new(), passing: SegmentedTable::new(), shapes: HashMap::new() }
    }

    fn is_empty(&self) -> bool {
        self.ends.len() == 0
    }

    fn insert(&mut self, hasher: &Hasher, filter: &str, shape: Option<Shape>, value: T) {
        let path = Path::of(hasher, filter);
        for node in path.nodes {
            match self.passing.find_mut(node, |other| other.0 == node) {
                Some((_, filters)) => *filters += 1,
                None => self.passing.insert_unique(node, (node, 1), |(node, _)| *node),
            }
        }
        self.ends.insert(path.end, value);
        if let Some(shape) = shape {
            *self.shapes.entry(shape).or_default() += 1;
        }
    }

    fn remove(&mut self, hasher: &Hasher, filter: &str, shape: Option<Shape>, eq: impl Fn(T) -> bool) -> bool {
        let path = Path::of(hasher, filter);
        if self.ends.remove(path.end, eq).is_none() {
            return false;
        }
        for node in path.nodes {
            match self.passing.find_mut(node, |other| other.0 == node) {
                Some((_, filters)) if *filters > 1 => *filters -= 1,
                _ => drop(self.passing.remove(node, |other| other.0 == node)),
            }
        }
        if let Some(filters) = shape.and_then(|shape| self.shapes.get_mut(&shape)) {
            *filters -= 1;
            if *filters == 0 {
                self.shapes.retain(|_, filters| *filters > 0);
            }
        }
        true
    }

    /// Depth first over the literal and the `+` child of each node, wherever filters pass.
    fn for_each_match(&self, hasher: &Hasher, levels: &[u64], internal: bool, f: &mut impl FnMut(T)) {
        let mut stack: SmallVec<[(usize, u64); 64]> = SmallVec::new();
        stack.push((0, ROOT));
        while let Some((depth, node)) = stack.pop() {
            let wildcard = depth > 0 || !internal; // [MQTT-4.7.2-1]
            if wildcard {
                self.ends.for_each(hasher.fold(node, MULTI), &mut *f);
            }
            let Some(level) = levels.get(depth) else {
                self.ends.for_each(hasher.fold(node, END), &mut *f);
                continue;
            };
            let children = [Some(hasher.fold(node, *level)), wildcard.then(|| hasher.fold(node, PLUS))];
            for child in children.into_iter().flatten() {
                if self.passing.find(child, |other| other.0 == child).is_some() {
                    stack.push((depth + 1, child));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::filter::matches;
    use crate::topic::random::Random;

    fn found(index: &FilterIndex<u32>, hasher: &Hasher, topic: &str) -> Vec<u32> {
        let mut found = Vec::new();
        index.for_each_match(hasher, &TopicKey::new(topic, hasher), |value| found.push(value));
        found.sort_unstable();
        found
    }

    /// Random inserts, removals and look-ups against the naive matcher. With a weak hasher, what is found is verified by text first.
    fn agrees_with_the_naive_matcher(
        seed: u64,
        hasher: &Hasher,
        levels_max: u64,
        filters_max: u64,
        exact: bool,
    ) -> (usize, usize) {
        let mut random = Random(seed);
        let mut index = FilterIndex::new();
        let mut model: Vec<(u32, String)> = Vec::new();
        let (mut tree_max, mut matched) = (0, 0);
        for step in 0..4_000 {
            if random.below(filters_max) >= model.len() as u64 / 2 {
                let filter = random.filter(levels_max);
                index.insert(hasher, &filter, step);
                model.push((step, filter));
            } else {
                let (value, filter) = model.swap_remove(random.below(model.len() as u64) as usize);
                assert!(index.remove(hasher, &filter, |other| other == value), "{filter}");
                assert!(!index.remove(hasher, &filter, |other| other == value), "{filter}");
            }
            tree_max = tree_max.max(index.tree.ends.len());
            assert_eq!(index.len(), model.len());
            let topic = random.topic(levels_max);
            let mut found = found(&index, hasher, &topic);
            if !exact {
                found.retain(|value| model.iter().any(|(other, filter)| value == other && matches(filter, &topic)));
                found.dedup();
            }
            let mut expected: Vec<u32> =
                model.iter().filter(|(_, filter)| matches(filter, &topic)).map(|(value, _)| *value).collect();
            expected.sort_unstable();
            assert_eq!(found, expected, "topic {topic} at step {step}");
            matched += expected.len();
        }
        for (value, filter) in model {
            assert_eq!(index.find(hasher, &filter, |other| other == value), Some(value));
            assert!(index.remove(hasher, &filter, |other| other == value));
        }
        assert!(index.is_empty() && index.tree.passing.is_empty() && index.tree.shapes.is_empty());
        assert!(index.in_use == 0 && index.fitting == [0; LEVELS_MAX + 2]);
        (tree_max, matched)
    }

    #[test]
    fn few_shapes_agree_with_the_naive_matcher() {
        for seed in 0..4 {
            let (tree, matched) = agrees_with_the_naive_matcher(seed, &Hasher::from_seed(seed), 3, 100, true);
            assert!(tree == 0 && matched > 10_000, "{tree} {matched}");
        }
    }

    #[test]
    fn more_than_64_shapes_agree_with_the_naive_matcher() {
        for seed in 0..4 {
            let (tree, matched) = agrees_with_the_naive_matcher(seed, &Hasher::from_seed(seed), 8, 400, true);
            assert!(tree > 100 && matched > 1_000, "{tree} {matched}");
        }
    }

    #[test]
    fn colliding_hashes_never_hide_a_filter() {
        for seed in 0..4 {
            for values in [1, 5, 100] {
                agrees_with_the_naive_matcher(seed, &Hasher::weak(seed, values), 7, 150, false);
            }
        }
    }

    #[test]
    fn filters_and_topics_of_many_levels_are_found() {
        let hasher = Hasher::from_seed(1);
        let deep = vec!["a"; 59].join("/");
        let filters = [
            format!("{deep}/+"),
            format!("{deep}/b/+"),
            format!("{deep}/+/#"),
            format!("{deep}/+/+/#"),
            "#".to_owned(),
            "a/#".to_owned(),
            format!("+/{}", vec!["+"; 999].join("/")),
            format!("{}#", "+/".repeat(999)),
        ];
        let mut index = FilterIndex::new();
        for (value, filter) in filters.iter().enumerate() {
            index.insert(&hasher, filter, value as u32);
        }
        let long = vec!["a"; 1000].join("/");
        for topic in [format!("{deep}/b"), format!("{deep}/b/c"), format!("{deep}/b/c/d"), deep.clone(), long, "/".repeat(65_535)]
        {
            let expected: Vec<u32> = (0..8).filter(|value| matches(&filters[*value as usize], &topic)).collect();
            assert!(!expected.is_empty());
            assert_eq!(found(&index, &hasher, &topic), expected, "{} levels", levels(&topic).count());
        }
    }

    #[test]
    fn a_topic_is_hashed_by_level_only_when_a_wildcard_filter_is_in_use() {
        let hasher = Hasher::from_seed(1);
        let mut index = FilterIndex::new();
        index.insert(&hasher, "a/b", 1);
        // A key that was made with other keys for its levels would be found out by its levels only.
        let key = TopicKey::new("a/b", &hasher);
        let mut count = 0;
        index.for_each_match(&hasher, &key, |_| count += 1);
        assert_eq!((count, key.levels(&Hasher::from_seed(2))[0]), (1, Hasher::from_seed(2).level("a")));
    }
}
