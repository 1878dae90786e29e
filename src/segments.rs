//! Containers that grow without ever copying everything: no single call touches more than one segment of about 1,000 entries
//! (and, rarely, the directory, 4 bytes per segment), so that a turn keeps its bar whatever the number of clients.
//!
//! [`SegmentedSlab`] hands out stable indices, [`SegmentedTable`] is a hash table, [`Directory`] is what tables made of segments
//! have in common: extendible hashing.

use hashbrown::HashTable;
use std::ops::{Index, IndexMut};

/// Entries in one chunk of a slab.
const CHUNK: usize = 1024;

enum Slot<T> {
    /// Names the next free slot of the chunk, [`NO_SLOT`] after the last one.
    Free(u32),
    Used(T),
}

const NO_SLOT: u32 = u32::MAX;

struct Chunk<T> {
    /// At most [`CHUNK`] slots.
    slots: Vec<Slot<T>>,
    free: u32,
    used: u32,
    /// Whether the chunk stands in [`SegmentedSlab::roomy`].
    listed: bool,
}

/// Values under stable indices, in chunks of 1,024. An index is used again after its value was removed.
///
/// A call costs O(1): at worst it allocates or frees one chunk. Only the first chunk grows by doubling, so that a slab of few values
/// is small. Memory of a chunk is given back when its last value is removed.
pub struct SegmentedSlab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks that may have room; every chunk that has room is in it.
    roomy: Vec<u32>,
    len: usize,
}

impl<T> SegmentedSlab<T> {
    pub fn new() -> Self {
        Self { chunks: Vec::new(), roomy: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the highest index in use can be: the bound of a cursor.
    pub fn end(&self) -> u32 {
        match self.chunks.last() {
            Some(last) => ((self.chunks.len() - 1) * CHUNK + last.slots.len()) as u32,
            None => 0,
        }
    }

    /// # Panics
    /// When 2^32 − 1 values are in it.
    pub fn insert(&mut self, value: T) -> u32 {
        let number = self.roomy_chunk();
        let chunk = &mut self.chunks[number];
        let at = if chunk.free == NO_SLOT {
            if chunk.slots.capacity() == 0 && number > 0 {
                chunk.slots.reserve_exact(CHUNK);
            }
            chunk.slots.push(Slot::Used(value));
            chunk.slots.len() - 1
        } else {
            let at = chunk.free as usize;
            let Slot::Free(next) = std::mem::replace(&mut chunk.slots[at], Slot::Used(value)) else {
                unreachable!("the free list holds free slots")
            };
            chunk.free = next;
            at
        };
        chunk.used += 1;
        self.len += 1;
        u32::try_from(number * CHUNK + at).ok().filter(|index| *index != NO_SLOT).expect("a slab holds fewer than 2^32 values")
    }

    fn roomy_chunk(&mut self) -> usize {
        while let Some(&number) = self.roomy.last() {
            match self.chunks.get_mut(number as usize) {
                Some(chunk) if (chunk.used as usize) < CHUNK => return number as usize,
                Some(chunk) => chunk.listed = false,
                None => {}
            }
            self.roomy.pop();
        }
        self.roomy.push(self.chunks.len() as u32);
        self.chunks.push(Chunk { slots: Vec::new(), free: NO_SLOT, used: 0, listed: true });
        self.chunks.len() - 1
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let number = index as usize / CHUNK;
        let chunk = self.chunks.get_mut(number)?;
        let slot = chunk.slots.get_mut(index as usize % CHUNK)?;
        if let Slot::Free(_) = slot {
            return None;
        }
        let Slot::Used(value) = std::mem::replace(slot, Slot::Free(chunk.free)) else { unreachable!("looked at above") };
        chunk.free = (index as usize % CHUNK) as u32;
        chunk.used -= 1;
        self.len -= 1;
        if !chunk.listed {
            chunk.listed = true;
            self.roomy.push(number as u32);
        }
        if chunk.used == 0 {
            chunk.slots = Vec::new();
            chunk.free = NO_SLOT;
            while self.chunks.pop_if(|last| last.used == 0).is_some() {}
        }
        Some(value)
    }

    pub fn get(&self, index: u32) -> Option<&T> {
        match self.chunks.get(index as usize / CHUNK)?.slots.get(index as usize % CHUNK)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.chunks.get_mut(index as usize / CHUNK)?.slots.get_mut(index as usize % CHUNK)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// All values with their indices, in order of index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            chunk.slots.iter().enumerate().filter_map(move |(at, slot)| match slot {
                Slot::Used(value) => Some(((number * CHUNK + at) as u32, value)),
                Slot::Free(_) => None,
            })
        })
    }

    /// Bytes allocated, without what the values themselves own. Walks the chunks.
    pub fn memory(&self) -> usize {
        let slots: usize = self.chunks.iter().map(|chunk| chunk.slots.capacity()).sum();
        slots * size_of::<Slot<T>>() + self.chunks.capacity() * size_of::<Chunk<T>>() + self.roomy.capacity() * size_of::<u32>()
    }
}

impl<T> Default for SegmentedSlab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<u32> for SegmentedSlab<T> {
    type Output = T;

    /// # Panics
    /// When there is no value under the index.
    fn index(&self, index: u32) -> &T {
        self.get(index).expect("the slab has a value under this index")
    }
}

impl<T> IndexMut<u32> for SegmentedSlab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("the slab has a value under this index")
    }
}

/// Extendible hashing: segments found by the leading bits of a 64-bit prefix. A segment covers all prefixes that begin with its bits;
/// it splits in two by one bit more, or merges with its neighbour by one bit less, and no other segment is touched.
///
/// The directory itself (4 bytes for each combination of as many bits as the deepest segment has) is copied when it doubles or
/// halves: 16 kB at a million entries.
pub struct Directory<S> {
    /// The segment for each value of the leading `bits` bits.
    slots: Vec<u32>,
    bits: u32,
    segments: Vec<Segment<S>>,
    free: Vec<u32>,
    /// How many segments have as many bits as the directory: with none it can halve.
    deepest: usize,
}

struct Segment<S> {
    bits: u32,
    content: S,
}

/// The bits of a segment that is not in use.
const UNUSED: u32 = u32::MAX;

impl<S: Default> Directory<S> {
    pub fn new() -> Self {
        let first = Segment { bits: 0, content: S::default() };
        Self { slots: vec![0], bits: 0, segments: vec![first], free: Vec::new(), deepest: 1 }
    }

    fn slot(&self, prefix: u64) -> usize {
        // Two shifts, because a shift by 64 is none.
        (prefix >> 1 >> (63 - self.bits)) as usize
    }

    pub fn get(&self, prefix: u64) -> &S {
        &self.segments[self.slots[self.slot(prefix)] as usize].content
    }

    pub fn get_mut(&mut self, prefix: u64) -> &mut S {
        let slot = self.slot(prefix);
        &mut self.segments[self.slots[slot] as usize].content
    }

    /// All segments, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.segments.iter().filter(|segment| segment.bits != UNUSED).map(|segment| &segment.content)
    }

    /// Splits the segment of `prefix`. `divide` gets it and the number of the bit, counted from the top, that decides into which of
    /// its two results an entry belongs.
    ///
    /// Returns false, having done nothing, when the directory would grow out of proportion to `entries`, the number of entries in
    /// all segments: then hashes are badly spread and splitting does not help.
    pub fn split(&mut self, prefix: u64, entries: usize, divide: impl FnOnce(S, u32) -> (S, S)) -> bool {
        let id = self.slots[self.slot(prefix)];
        let bits = self.segments[id as usize].bits;
        if bits == self.bits {
            if self.slots.len() * 2 > entries / 64 + 16 {
                return false;
            }
            self.slots = self.slots.iter().flat_map(|id| [*id, *id]).collect();
            self.bits += 1;
            self.deepest = 0;
        }
        let (zero, one) = divide(std::mem::take(&mut self.segments[id as usize].content), bits);
        self.segments[id as usize] = Segment { bits: bits + 1, content: zero };
        let one = Segment { bits: bits + 1, content: one };
        let other = match self.free.pop() {
            Some(other) => {
                self.segments[other as usize] = one;
                other
            }
            None => {
                self.segments.push(one);
                (self.segments.len() - 1) as u32
            }
        };
        if bits + 1 == self.bits {
            self.deepest += 2;
        }
        let (start, span) = self.span(prefix, bits);
        self.slots[start + span / 2..start + span].fill(other);
        true
    }

    /// The slots of everything that has the first `bits` bits in common with `prefix`: start and number.
    fn span(&self, prefix: u64, bits: u32) -> (usize, usize) {
        let span = 1 << (self.bits - bits);
        (self.slot(prefix) & !(span - 1), span)
    }

    /// Merges the segment of `prefix` with its neighbour if that has as many bits and `may` agrees. `join` gets first the one whose
    /// prefixes are lower.
    pub fn merge(&mut self, prefix: u64, may: impl FnOnce(&S, &S) -> bool, join: impl FnOnce(S, S) -> S) -> bool {
        let id = self.slots[self.slot(prefix)];
        let bits = self.segments[id as usize].bits;
        if bits == 0 {
            return false;
        }
        let bit = 1 << (64 - bits);
        let neighbour = self.slots[self.slot(prefix ^ bit)];
        let (zero, one) = if prefix & bit == 0 { (id, neighbour) } else { (neighbour, id) };
        if self.segments[neighbour as usize].bits != bits
            || !may(&self.segments[zero as usize].content, &self.segments[one as usize].content)
        {
            return false;
        }
        let low = std::mem::take(&mut self.segments[zero as usize].content);
        let high = std::mem::replace(&mut self.segments[one as usize], Segment { bits: UNUSED, content: S::default() }).content;
        self.segments[zero as usize] = Segment { bits: bits - 1, content: join(low, high) };
        self.free.push(one);
        let (start, span) = self.span(prefix, bits - 1);
        self.slots[start..start + span].fill(zero);
        if bits == self.bits {
            self.deepest -= 2;
        }
        while self.deepest == 0 && self.bits > 0 {
            self.slots = self.slots.iter().copied().step_by(2).collect();
            self.bits -= 1;
            self.deepest = self.segments.iter().filter(|segment| segment.bits == self.bits).count();
        }
        true
    }

    /// Bytes allocated for the directory and the segments' heads.
    pub fn memory(&self) -> usize {
        (self.slots.capacity() + self.free.capacity()) * size_of::<u32>() + self.segments.capacity() * size_of::<Segment<S>>()
    }
}

impl<S: Default> Default for Directory<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// Entries at which a segment of a table splits: what hashbrown holds in 1,024 buckets.
const SEGMENT_MAX: usize = 896;

/// A hash table in segments of at most 896 entries (more only when hashes collide in bulk).
///
/// Finding costs one directory look-up more than a flat table. Inserting is O(1) amortised; at worst it splits one segment: 896
/// entries hashed again, tens of microseconds whatever the size of the table. Removing never moves entries: the memory of a segment
/// goes when its last entry does, that of a sparse segment when something is next inserted into it.
pub struct SegmentedTable<T> {
    directory: Directory<HashTable<T>>,
    len: usize,
}

/// hashbrown takes the position in a segment from a hash's low bits and its tag from the top 7, so the directory takes the bits in
/// between, from the top down.
fn prefix(hash: u64) -> u64 {
    hash << 7
}

impl<T> SegmentedTable<T> {
    pub fn new() -> Self {
        Self { directory: Directory::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn find(&self, hash: u64, eq: impl FnMut(&T) -> bool) -> Option<&T> {
        self.directory.get(prefix(hash)).find(hash, eq)
    }

    /// The caller must not change what the entry's hash is made from.
    pub fn find_mut(&mut self, hash: u64, eq: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.directory.get_mut(prefix(hash)).find_mut(hash, eq)
    }

    /// Inserts a value without looking for an equal one. `rehash` computes the hash of any entry.
    pub fn insert_unique(&mut self, hash: u64, value: T, rehash: impl Fn(&T) -> u64) {
        let prefix = prefix(hash);
        if self.directory.get(prefix).len() >= SEGMENT_MAX {
            self.directory.split(prefix, self.len, |mut full, bit| {
                let [mut zero, mut one] = [(); 2].map(|()| HashTable::with_capacity(SEGMENT_MAX / 2));
                for entry in full.drain() {
                    let hash = rehash(&entry);
                    let half = if self::prefix(hash) << bit >> 63 == 0 { &mut zero } else { &mut one };
                    half.insert_unique(hash, entry, &rehash);
                }
                (zero, one)
            });
        }
        let segment = self.directory.get_mut(prefix);
        if segment.capacity() > 64 && segment.capacity() / 8 > segment.len() {
            segment.shrink_to(segment.len() * 2, &rehash);
        }
        segment.insert_unique(hash, value, &rehash);
        self.len += 1;
    }

    pub fn remove(&mut self, hash: u64, eq: impl FnMut(&T) -> bool) -> Option<T> {
        let segment = self.directory.get_mut(prefix(hash));
        let (value, _) = segment.find_entry(hash, eq).ok()?.remove();
        self.len -= 1;
        if segment.is_empty() {
            *segment = HashTable::new();
            // Only an empty segment can merge: its neighbour's entries stay where they are.
            while self.directory.merge(
                prefix(hash),
                |zero, one| zero.is_empty() || one.is_empty(),
                |zero, one| if zero.is_empty() { one } else { zero },
            ) {}
        }
        Some(value)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.directory.iter().flat_map(|segment| segment.iter())
    }

    /// Bytes allocated, without what the entries themselves own. Walks the segments.
    pub fn memory(&self) -> usize {
        self.directory.memory() + self.directory.iter().map(|segment| segment.allocation_size()).sum::<usize>()
    }
}

impl<T> Default for SegmentedTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::random::Random;
    use std::collections::HashMap;

    fn spread(key: u32) -> u64 {
        Random(u64::from(key)).next()
    }

    #[test]
    fn slab_agrees_with_a_map_through_growth_and_removal() {
        let mut random = Random(1);
        let mut slab = SegmentedSlab::new();
        let mut model = HashMap::new();
        for round in 0..6 {
            for step in 0..20_000_u32 {
                if random.below(10) < if round % 2 == 0 { 7 } else { 2 } {
                    let index = slab.insert(step);
                    assert!(model.insert(index, step).is_none(), "index {index} was in use");
                    assert!(index < slab.end());
                } else {
                    let index = random.below(u64::from(slab.end()) + 2) as u32;
                    assert_eq!(slab.remove(index), model.remove(&index));
                }
                assert_eq!(slab.len(), model.len());
            }
            assert_eq!(slab.iter().map(|(index, value)| (index, *value)).collect::<HashMap<_, _>>(), model);
            for index in 0..slab.end() + 5 {
                assert_eq!(slab.get(index), model.get(&index));
            }
        }
        for index in model.into_keys().collect::<Vec<_>>() {
            slab[index] += 1;
            assert!(slab.remove(index).is_some());
        }
        assert_eq!((slab.len(), slab.end(), slab.is_empty()), (0, 0, true));
        assert!(slab.memory() < 4096, "an emptied slab gives its memory back: {}", slab.memory());
    }

    #[test]
    fn slab_uses_a_freed_index_before_it_grows() {
        let mut slab = SegmentedSlab::new();
        for value in 0..3 * CHUNK {
            slab.insert(value);
        }
        assert_eq!(slab.end(), 3 * CHUNK as u32);
        for index in [5, 2000, 2999] {
            assert_eq!(slab.remove(index), Some(index as usize));
        }
        let mut again: Vec<u32> = (0..3).map(|value| slab.insert(value)).collect();
        again.sort_unstable();
        assert_eq!(again, [5, 2000, 2999]);
        assert_eq!(slab.end(), 3 * CHUNK as u32);
    }

    #[test]
    fn slab_of_few_values_is_small() {
        let mut slab = SegmentedSlab::new();
        slab.insert(0_u64);
        assert!(slab.memory() < 256, "{}", slab.memory());
    }

    #[test]
    fn table_agrees_with_a_map_through_growth_and_removal() {
        let mut random = Random(2);
        let mut table: SegmentedTable<(u32, u32)> = SegmentedTable::new();
        let mut model = HashMap::new();
        let rehash = |entry: &(u32, u32)| spread(entry.0);
        for round in 0..6 {
            for step in 0..40_000_u32 {
                let key = random.below(30_000) as u32;
                let hash = spread(key);
                assert_eq!(table.find(hash, |entry| entry.0 == key).map(|entry| entry.1), model.get(&key).copied());
                if random.below(10) < if round % 2 == 0 { 7 } else { 3 } {
                    match table.find_mut(hash, |entry| entry.0 == key) {
                        Some(entry) => entry.1 = step,
                        None => table.insert_unique(hash, (key, step), rehash),
                    }
                    model.insert(key, step);
                } else {
                    assert_eq!(table.remove(hash, |entry| entry.0 == key).map(|entry| entry.1), model.remove(&key));
                }
                assert_eq!(table.len(), model.len());
            }
            assert_eq!(table.iter().copied().collect::<HashMap<_, _>>(), model);
        }
        for key in model.into_keys() {
            assert!(table.remove(spread(key), |entry| entry.0 == key).is_some());
        }
        assert!(table.is_empty());
        assert_eq!(table.directory.bits, 0, "an emptied table has one segment");
        assert!(table.memory() < 8192, "an emptied table gives its memory back: {}", table.memory());
    }

    #[test]
    fn table_segments_stay_small_at_a_million_entries() {
        let mut table = SegmentedTable::new();
        for key in 0..1_000_000 {
            table.insert_unique(spread(key), key, |key| spread(*key));
        }
        assert!(table.directory.iter().all(|segment| segment.len() <= SEGMENT_MAX));
        assert!(table.directory.slots.len() <= 8192, "{}", table.directory.slots.len());
        assert!((0..1_000_000).all(|key| table.find(spread(key), |entry| *entry == key).is_some()));
        println!("table of u32: {} bytes per entry at 1,000,000", table.memory() / 1_000_000);
        for key in 0..1_000_000 {
            assert_eq!(table.remove(spread(key), |entry| *entry == key), Some(key));
        }
        assert_eq!(table.directory.slots.len(), 1);
    }

    #[test]
    fn table_survives_thousands_of_equal_hashes() {
        let mut table = SegmentedTable::new();
        for key in 0..5_000 {
            table.insert_unique(7, key, |_| 7);
        }
        assert!(table.directory.slots.len() <= 128);
        for key in 0..5_000 {
            assert_eq!(table.remove(7, |entry| *entry == key), Some(key));
        }
        assert!(table.is_empty());
    }
}
