//! A multimap from 64-bit fingerprints to small values, packed: 8 bytes and the value, at 67 to 85 % load.
//!
//! The fingerprints are keyed hashes, so they are spread evenly: a segment is an array sorted by fingerprint with gaps in it, each
//! entry at the place its fingerprint predicts or a little after it. Segments split by leading bits as in
//! [`SegmentedTable`](crate::segments::SegmentedTable), and merge as well; no call moves more than one segment (about 1,000
//! entries, a few microseconds) unless fingerprints collide in bulk.

use crate::segments::Directory;

/// Entries at which a segment splits.
const SEGMENT_MAX: usize = 1024;
/// Empty slots that a new segment has behind the last predicted place.
const TAIL: usize = 8;

/// The fingerprint of an empty slot. A real fingerprint of 0 is kept as 1.
const EMPTY: u64 = 0;

#[derive(Clone, Copy)]
#[repr(Rust, packed)]
struct Entry<V: Copy> {
    fingerprint: u64,
    value: V,
}

/// Entries stand sorted by fingerprint, none before its predicted place, and without a gap between an entry and that place.
struct Segment<V: Copy> {
    slots: Vec<Entry<V>>,
    /// Predicted places; slots beyond them take what was pushed off the end.
    places: u32,
    len: u32,
    /// Leading bits that all fingerprints of the segment share: they say nothing about the place.
    bits: u32,
}

impl<V: Copy> Default for Segment<V> {
    fn default() -> Self {
        Self { slots: Vec::new(), places: 0, len: 0, bits: 0 }
    }
}

impl<V: Copy> Segment<V> {
    /// From `len` entries in order of fingerprint.
    fn build(bits: u32, len: usize, entries: impl Iterator<Item = Entry<V>>) -> Self {
        let places = len + len / 2;
        let mut segment = Self { slots: Vec::with_capacity(places + TAIL), places: places as u32, len: len as u32, bits };
        let mut filler = None;
        for entry in entries {
            let place = segment.place(entry.fingerprint);
            let gap = Entry { fingerprint: EMPTY, ..entry };
            filler = Some(gap);
            if segment.slots.len() < place {
                segment.slots.resize(place, gap);
            }
            segment.slots.push(entry);
        }
        if let Some(gap) = filler
            && segment.slots.len() < places + TAIL
        {
            segment.slots.resize(places + TAIL, gap);
        }
        segment
    }

    fn rebuilt(&self, with_room_for: usize) -> Self {
        let mut segment = Self::build(self.bits, self.len.max(with_room_for as u32) as usize, self.entries());
        segment.len = self.len;
        segment
    }

    fn entries(&self) -> impl Iterator<Item = Entry<V>> {
        self.slots.iter().copied().filter(|entry| entry.fingerprint != EMPTY)
    }

    fn place(&self, fingerprint: u64) -> usize {
        let rest = fingerprint << self.bits;
        ((u128::from(rest) * u128::from(self.places)) >> 64) as usize
    }

    /// The position of the first entry with the fingerprint, or where one would be inserted (and whether it is there).
    fn position(&self, fingerprint: u64) -> (usize, bool) {
        let mut at = self.place(fingerprint);
        while let Some(entry) = self.slots.get(at) {
            if entry.fingerprint == EMPTY || entry.fingerprint > fingerprint {
                return (at, false);
            }
            if entry.fingerprint == fingerprint {
                return (at, true);
            }
            at += 1;
        }
        (at, false)
    }

    fn insert(&mut self, entry: Entry<V>) {
        if (self.len as usize + 1) * 20 > self.places as usize * 17 {
            // 85 % of the places are taken: build() leaves every third of them free.
            *self = if self.slots.is_empty() { self.first(entry) } else { self.rebuilt(self.len as usize + 1) };
        }
        let (at, _) = self.position(entry.fingerprint);
        let end = (at..self.slots.len()).find(|at| self.slots[*at].fingerprint == EMPTY).unwrap_or_else(|| {
            self.slots.reserve_exact(TAIL);
            self.slots.push(entry);
            self.slots.len() - 1
        });
        self.slots.copy_within(at..end, at + 1);
        self.slots[at] = entry;
        self.len += 1;
    }

    /// An empty segment that has room; `entry` only fills the gaps.
    fn first(&self, entry: Entry<V>) -> Self {
        const PLACES: usize = 4;
        Self { slots: vec![Entry { fingerprint: EMPTY, ..entry }; PLACES], places: PLACES as u32, len: 0, bits: self.bits }
    }

    fn remove(&mut self, at: usize) {
        let end = (at + 1..self.slots.len()).find(|next| {
            let fingerprint = self.slots[*next].fingerprint;
            fingerprint == EMPTY || self.place(fingerprint) == *next
        });
        let end = end.unwrap_or(self.slots.len());
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1].fingerprint = EMPTY;
        self.len -= 1;
        if self.len == 0 {
            *self = Self { bits: self.bits, ..Self::default() };
        } else if self.places > 16 && self.len < self.places / 4 {
            *self = self.rebuilt(0);
        }
    }
}

pub struct FingerprintMap<V: Copy> {
    directory: Directory<Segment<V>>,
    len: usize,
}

impl<V: Copy> FingerprintMap<V> {
    pub fn new() -> Self {
        Self { directory: Directory::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a value, whether or not the fingerprint has others.
    pub fn insert(&mut self, fingerprint: u64, value: V) {
        let fingerprint = fingerprint.max(1);
        if self.directory.get(fingerprint).len as usize >= SEGMENT_MAX {
            self.directory.split(fingerprint, self.len, |full, bit| {
                let is_one = |entry: &Entry<V>| entry.fingerprint << bit >> 63 == 1;
                let zeros = full.entries().take_while(|entry| !is_one(entry)).count();
                let zero = Segment::build(bit + 1, zeros, full.entries().take(zeros));
                let one = Segment::build(bit + 1, full.len as usize - zeros, full.entries().skip(zeros));
                (zero, one)
            });
        }
        self.directory.get_mut(fingerprint).insert(Entry { fingerprint, value });
        self.len += 1;
    }

    /// Removes one value of the fingerprint that `eq` agrees to.
    pub fn remove(&mut self, fingerprint: u64, mut eq: impl FnMut(V) -> bool) -> Option<V> {
        let fingerprint = fingerprint.max(1);
        let segment = self.directory.get_mut(fingerprint);
        let (mut at, _) = segment.position(fingerprint);
        let value = loop {
            let entry = segment.slots.get(at).copied().filter(|entry| entry.fingerprint == fingerprint)?;
            if eq(entry.value) {
                break entry.value;
            }
            at += 1;
        };
        segment.remove(at);
        self.len -= 1;
        if (segment.len as usize) < SEGMENT_MAX / 8 {
            self.directory.merge(
                fingerprint,
                |zero, one| zero.len as usize + (one.len as usize) < SEGMENT_MAX / 2,
                |zero, one| {
                    let entries = zero.entries().chain(one.entries());
                    Segment::build(zero.bits - 1, (zero.len + one.len) as usize, entries)
                },
            );
        }
        Some(value)
    }

    /// The first value of the fingerprint that `eq` agrees to.
    pub fn find(&self, fingerprint: u64, mut eq: impl FnMut(V) -> bool) -> Option<V> {
        let fingerprint = fingerprint.max(1);
        let segment = self.directory.get(fingerprint);
        let (start, found) = segment.position(fingerprint);
        if !found {
            return None;
        }
        let run = segment.slots[start..].iter().take_while(|entry| entry.fingerprint == fingerprint);
        run.map(|entry| entry.value).find(|value| eq(*value))
    }

    pub fn for_each(&self, fingerprint: u64, mut f: impl FnMut(V)) {
        self.find(fingerprint, |value| {
            f(value);
            false
        });
    }

    /// Bytes allocated. Walks the segments.
    pub fn memory(&self) -> usize {
        let slots: usize = self.directory.iter().map(|segment| segment.slots.capacity()).sum();
        self.directory.memory() + slots * size_of::<Entry<V>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::random::Random;
    use std::collections::HashMap;

    fn check(map: &FingerprintMap<u16>) {
        let mut total = 0;
        for segment in map.directory.iter() {
            let mut last = 0;
            let mut gap_at = None;
            for (at, entry) in segment.slots.iter().enumerate() {
                let fingerprint = entry.fingerprint;
                if fingerprint == EMPTY {
                    gap_at = Some(at);
                    continue;
                }
                let place = segment.place(fingerprint);
                assert!(place <= at && gap_at.is_none_or(|gap| gap < place) && last <= fingerprint);
                last = fingerprint;
                total += 1;
            }
            assert_eq!(segment.entries().count(), segment.len as usize);
        }
        assert_eq!(total, map.len());
    }

    #[test]
    fn map_agrees_with_a_std_map_through_growth_and_removal() {
        let mut random = Random(3);
        let mut map = FingerprintMap::new();
        let mut model: HashMap<u64, Vec<u16>> = HashMap::new();
        let mut keys: Vec<u64> = (0..20_000).map(|_| random.next()).collect();
        keys.extend([0, 1, 2, u64::MAX, u64::MAX - 1]);
        for round in 0..6 {
            for _ in 0..30_000 {
                let key = keys[random.below(keys.len() as u64) as usize].max(1);
                let value = random.below(3) as u16;
                let values = model.entry(key).or_default();
                if random.below(10) < if round % 2 == 0 { 7 } else { 2 } {
                    map.insert(key, value);
                    values.push(value);
                } else {
                    let at = values.iter().position(|other| *other == value);
                    assert_eq!(map.remove(key, |other| other == value).is_some(), at.is_some());
                    at.map(|at| values.swap_remove(at));
                }
                let mut found = Vec::new();
                map.for_each(key, |value| found.push(value));
                found.sort_unstable();
                values.sort_unstable();
                assert_eq!(&found, values);
            }
            check(&map);
        }
        for (key, values) in model {
            for value in values {
                assert_eq!(map.remove(key, |other| other == value), Some(value));
            }
        }
        check(&map);
        assert!(map.len() == 0 && map.memory() < 16_384, "{}", map.memory());
    }

    #[test]
    fn map_survives_thousands_of_equal_fingerprints() {
        for fingerprint in [0, 7, 1 << 63, u64::MAX] {
            let mut map = FingerprintMap::new();
            for value in 0..4_000 {
                map.insert(fingerprint, value);
            }
            check(&map);
            for value in 0..4_000 {
                assert_eq!(map.find(fingerprint, |other| other == value), Some(value));
                assert_eq!(map.remove(fingerprint, |other| other == value), Some(value));
            }
            check(&map);
        }
    }

    #[test]
    fn memory_is_at_most_16_bytes_per_small_value_at_any_size() {
        let mut random = Random(4);
        let mut map = FingerprintMap::new();
        for len in 1..=1_000_000_usize {
            map.insert(random.next(), 0_u8);
            if len >= 4_096 && len % 50_000 == 0 || [4_096, 8_000, 16_384, 33_000].contains(&len) {
                let bytes = map.memory() as f64 / len as f64;
                assert!(bytes < 16.0, "{bytes} bytes per entry at {len}");
            }
        }
    }
}
