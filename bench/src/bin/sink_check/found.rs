//! What was found in a sink. It remembers every number of every publisher, so a duplicate is one however late it comes; order is that
//! of the first appearances, which is what a reader that skips what it has seen gets.

use corelane_bench::load::control::histogram;
use corelane_bench::load::stamp::Stamp;
use hdrhistogram::Histogram;
use std::fmt;

/// A stamp beyond these was never written: the payload is something else.
const PUBLISHERS_MAX: u32 = 10_000_000;
const SEQUENCE_MAX: u32 = 100_000_000;

#[derive(Default)]
struct Publisher {
    /// Bit n of the whole: number n was found.
    seen: Vec<u64>,
    /// One more than the highest number found.
    next: u32,
    /// Where its first message was: partition.
    place: Option<i32>,
}

impl Publisher {
    fn has(&self, sequence: u32) -> bool {
        self.seen.get(sequence as usize / 64).is_some_and(|word| word >> (sequence % 64) & 1 == 1)
    }

    fn missing(&self) -> u64 {
        u64::from(self.next) - self.seen.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
    }
}

pub struct Found {
    publishers: Vec<Publisher>,
    pub distinct: u64,
    pub duplicates: u64,
    /// First appearances after a later one of the same publisher.
    pub out_of_order: u64,
    /// In another partition than the publisher's messages before.
    pub elsewhere: u64,
    /// Keys that are not the ones that the check was told.
    pub wrong_keys: u64,
    /// Payloads without a stamp.
    pub unreadable: u64,
    /// From when a message was due to when the sink had it, in nanoseconds.
    pub times: Histogram<u64>,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            publishers: Vec::new(),
            distinct: 0,
            duplicates: 0,
            out_of_order: 0,
            elsewhere: 0,
            wrong_keys: 0,
            unreadable: 0,
            times: histogram(3),
        }
    }
}

impl Found {
    pub fn note_payload(&mut self, payload: &[u8], partition: i32) -> Option<Stamp> {
        let stamp = Stamp::from_payload(payload);
        match stamp {
            Some(stamp) if self.note(stamp.publisher, stamp.sequence, partition) => Some(stamp),
            Some(_) => None,
            None => {
                self.unreadable += 1;
                None
            }
        }
    }

    /// Whether it is the first of its kind.
    pub fn note(&mut self, publisher: u32, sequence: u32, place: i32) -> bool {
        if publisher >= PUBLISHERS_MAX || sequence >= SEQUENCE_MAX {
            self.unreadable += 1;
            return false;
        }
        if self.publishers.len() <= publisher as usize {
            self.publishers.resize_with(publisher as usize + 1, Publisher::default);
        }
        let publisher = &mut self.publishers[publisher as usize];
        if publisher.has(sequence) {
            self.duplicates += 1;
            return false;
        }
        let word = sequence as usize / 64;
        if publisher.seen.len() <= word {
            publisher.seen.resize(word + 1, 0);
        }
        publisher.seen[word] |= 1 << (sequence % 64);
        self.distinct += 1;
        self.out_of_order += u64::from(sequence < publisher.next);
        publisher.next = publisher.next.max(sequence + 1);
        self.elsewhere += u64::from(*publisher.place.get_or_insert(place) != place);
        true
    }

    pub fn has(&self, publisher: u32, sequence: u32) -> bool {
        self.publishers.get(publisher as usize).is_some_and(|publisher| publisher.has(sequence))
    }

    /// Numbers that are missing below the highest one of each publisher.
    pub fn gaps(&self) -> u64 {
        self.publishers.iter().map(Publisher::missing).sum()
    }

    pub fn in_order(&self) -> bool {
        self.out_of_order + self.elsewhere + self.wrong_keys == 0
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let publishers = self.publishers.iter().filter(|publisher| publisher.next > 0).count();
        write!(f, "found {} of {publishers} publishers, gaps {}, duplicates {}", self.distinct, self.gaps(), self.duplicates)?;
        write!(f, ", out of order {}, in another partition {}", self.out_of_order, self.elsewhere)?;
        write!(f, ", wrong keys {}, unreadable {}", self.wrong_keys, self.unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_duplicates_and_order_are_told_apart_however_late() {
        let mut found = Found::default();
        for (sequence, first) in [(0, true), (1, true), (3, true), (500, true), (2, true), (3, false), (0, false)] {
            assert_eq!(found.note(7, sequence, 1), first, "{sequence}");
        }
        assert_eq!((found.distinct, found.duplicates, found.out_of_order, found.gaps()), (5, 2, 1, 496));
        assert!(found.has(7, 500) && !found.has(7, 4) && !found.has(7, 501) && !found.has(6, 0) && !found.has(8, 0));
        assert!(!found.in_order());
    }

    #[test]
    fn a_publisher_stays_in_its_partition() {
        let mut found = Found::default();
        found.note(0, 0, 3);
        found.note(0, 1, 3);
        found.note(1, 0, 2);
        assert!(found.in_order());
        found.note(0, 2, 2);
        assert_eq!(found.elsewhere, 1);
    }

    #[test]
    fn what_has_no_stamp_is_counted_and_takes_no_memory() {
        let mut found = Found::default();
        assert_eq!(found.note_payload(b"hello", 0), None);
        assert_eq!(found.note_payload(&[0xFF; 16], 0), None);
        assert_eq!((found.unreadable, found.publishers.len()), (2, 0));
        let stamp = Stamp { due_ns: 1, publisher: 2, sequence: 3 };
        assert_eq!(found.note_payload(&stamp.to_bytes(), 0), Some(stamp));
        assert_eq!(found.note_payload(&stamp.to_bytes(), 0), None);
        assert_eq!(found.duplicates, 1);
    }
}
