//! The replays of retained messages that a session has open, and what came live meanwhile. No call walks all of them: a session may
//! have one for each of 100,000 subscriptions.

use crate::ids::FilterId;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Topics remembered as overtaken, at most; past that the earliest is forgotten. What matters is what comes between asking for a page
/// and its arrival, so this is far more than a session needs.
const OVERTAKEN_MAX: usize = 4096;

/// At most one open replay for each subscription. Replays are numbered in the order in which they are opened.
#[derive(Default)]
pub struct Replays {
    open: BTreeMap<FilterId, u64>,
    /// Those that go on when the session has sent what it has queued.
    paced: BTreeSet<u64>,
    /// Topics, by hash, whose retained message has come live while replays were open, with the last replay that was open then: what
    /// it and those before it bring of the topic is older.
    overtaken: HashMap<u64, u64>,
    /// The same in order.
    order: VecDeque<u64>,
}

impl Replays {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens a subscription's replay; returns the one that it takes the place of.
    pub fn open(&mut self, filter: FilterId, replay: u64) -> Option<u64> {
        let replaced = self.open.insert(filter, replay)?;
        self.paced.remove(&replaced);
        Some(replaced)
    }

    /// The subscription's replay is done, or the subscription is no more.
    pub fn close(&mut self, filter: FilterId) -> Option<u64> {
        let replay = self.open.remove(&filter)?;
        self.paced.remove(&replay);
        Some(replay)
    }

    /// Closes any one of them.
    pub fn close_one(&mut self) -> Option<u64> {
        let (_, replay) = self.open.pop_last()?;
        self.paced.remove(&replay);
        Some(replay)
    }

    /// A replay waits until the session has sent what it has queued.
    pub fn pace(&mut self, replay: u64) {
        self.paced.insert(replay);
    }

    /// The earliest of those that wait goes on.
    pub fn take_paced(&mut self) -> Option<u64> {
        self.paced.pop_first()
    }

    /// A retained message of the topic has come live; `last` is the last replay opened so far.
    pub fn overtake(&mut self, topic: u64, last: u64) {
        if self.overtaken.insert(topic, last).is_none() {
            self.order.push_back(topic);
            if self.order.len() > OVERTAKEN_MAX
                && let Some(earliest) = self.order.pop_front()
            {
                self.overtaken.remove(&earliest);
            }
        }
    }

    /// Whether what the replay brings of the topic is older than what has been sent.
    pub fn is_overtaken(&self, topic: u64, replay: u64) -> bool {
        !self.overtaken.is_empty() && self.overtaken.get(&topic).is_some_and(|last| replay <= *last)
    }

    /// Whether topics have been overtaken at all: else nobody need hash one.
    pub fn any_overtaken(&self) -> bool {
        !self.overtaken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_live_is_remembered_up_to_a_bound_and_not_held_against_later_replays() {
        let mut replays = Replays::default();
        assert!(!replays.is_overtaken(0, 1));
        for topic in 0..OVERTAKEN_MAX as u64 + 1 {
            replays.overtake(topic, 1);
            replays.overtake(topic, 2);
        }
        assert!(!replays.is_overtaken(0, 2) && replays.is_overtaken(1, 2) && replays.is_overtaken(OVERTAKEN_MAX as u64, 1));
        assert!(!replays.is_overtaken(1, 3));
    }

    #[test]
    fn a_subscription_has_one_replay_and_a_closed_one_does_not_go_on() {
        let mut replays = Replays::default();
        assert_eq!(
            (replays.open(FilterId(5), 1), replays.open(FilterId(6), 2), replays.open(FilterId(7), 3)),
            (None, None, None)
        );
        (1..=3).for_each(|replay| replays.pace(replay));
        assert_eq!(replays.open(FilterId(5), 4), Some(1));
        assert_eq!((replays.close(FilterId(6)), replays.close(FilterId(6))), (Some(2), None));
        assert_eq!((replays.take_paced(), replays.take_paced()), (Some(3), None));
        assert_eq!((replays.close_one(), replays.close_one(), replays.close_one()), (Some(3), Some(4), None));
        assert!(replays.is_empty());
    }
}
