//! How long turns take, as a histogram that its shard writes and others read while it does.
//!
//! Buckets are an eighth of a power of two wide, from 1 µs to over a minute, so a value read is at most 12.5 % too high. Counts only
//! grow: whoever wants to know about an interval keeps what it read before and looks at the difference, so that the log line and
//! `$SYS` do not disturb each other. (An `hdrhistogram` can be neither read while it is written nor shared by several readers.)

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const SUB_BUCKETS: usize = 8;
const BUCKETS: usize = 200;

pub struct TurnTimes {
    counts: [AtomicU64; BUCKETS],
}

impl Default for TurnTimes {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl TurnTimes {
    /// Called by the shard alone, so a load and a store do.
    pub fn record(&self, time: Duration) {
        let count = &self.counts[bucket(time)];
        count.store(count.load(Relaxed) + 1, Relaxed);
    }

    /// All turns so far.
    pub fn read(&self) -> TurnCounts {
        TurnCounts(std::array::from_fn(|bucket| self.counts[bucket].load(Relaxed)))
    }
}

/// A copy of the counts, to compare a later one with.
#[derive(Clone)]
pub struct TurnCounts([u64; BUCKETS]);

impl Default for TurnCounts {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl TurnCounts {
    /// The turns since `earlier`.
    pub fn since(&self, earlier: &TurnCounts) -> TurnCounts {
        TurnCounts(std::array::from_fn(|bucket| self.0[bucket].saturating_sub(earlier.0[bucket])))
    }

    /// The time that a share of `per_mille` of the turns did not exceed, in µs; 0 without turns.
    pub fn quantile_us(&self, per_mille: u64) -> u64 {
        let all: u64 = self.0.iter().sum();
        let wanted = (all * per_mille).div_ceil(1000);
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return upper_us(bucket);
            }
        }
        0
    }

    pub fn max_us(&self) -> u64 {
        self.0.iter().rposition(|&count| count > 0).map_or(0, upper_us)
    }
}

fn bucket(time: Duration) -> usize {
    let us = time.as_micros() as usize;
    if us < SUB_BUCKETS {
        return us;
    }
    let power = us.ilog2() as usize;
    ((power - 2) * SUB_BUCKETS + (us >> (power - 3)) % SUB_BUCKETS).min(BUCKETS - 1)
}

/// The first whole µs past a bucket: no time in it is longer.
fn upper_us(bucket: usize) -> u64 {
    if bucket < SUB_BUCKETS {
        return bucket as u64 + 1;
    }
    let power = bucket / SUB_BUCKETS + 2;
    ((SUB_BUCKETS + bucket % SUB_BUCKETS + 1) as u64) << (power - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_over_its_buckets_bound_and_the_bound_is_at_most_an_eighth_over_the_time() {
        for us in (0..100_000).chain([1_000_000, 59_000_000]) {
            let bound = upper_us(bucket(Duration::from_micros(us)));
            assert!(bound > us && bound <= us + us / 8 + 1, "{us} µs: {bound}");
        }
    }

    #[test]
    fn quantiles_and_maximum_are_those_of_the_interval_asked_for() {
        let times = TurnTimes::default();
        times.record(Duration::from_millis(500));
        let before = times.read();
        assert_eq!(before.quantile_us(990), 524_288);
        for _ in 0..99 {
            times.record(Duration::from_micros(5));
        }
        times.record(Duration::from_micros(900));
        let interval = times.read().since(&before);
        assert_eq!((interval.quantile_us(990), interval.quantile_us(1000), interval.max_us()), (6, 960, 960));
        assert_eq!(TurnCounts::default().quantile_us(990), 0);
    }
}
