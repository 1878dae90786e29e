//! What the whole process looks like at one moment, gathered by the shell from all cores: for the `$SYS` topics, the log line and,
//! later, metrics. Plain numbers; counters and times are totals since the start unless a name says otherwise.

use super::ShardLoad;
use super::counters::Counters;
use crate::rules::RuleCounts;

/// What the shell of a shard counts by itself.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ShellCounters {
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that began with the shard asleep.
    pub wakes: u64,
    /// Sends that filled their socket and went on later.
    pub sends_cut_short: u64,
    /// Times accepting was suspended for lack of file descriptors or memory.
    pub accepts_suspended: u64,
    /// Connections that failed while they were being accepted.
    pub accepts_failed: u64,
    /// Connections closed with a reset: they did not take their last bytes within the linger time.
    pub closed_hard: u64,
}

impl ShellCounters {
    pub const COUNT: usize = 6;

    pub fn values(&self) -> [u64; Self::COUNT] {
        [self.turns, self.wakes, self.sends_cut_short, self.accepts_suspended, self.accepts_failed, self.closed_hard]
    }

    pub fn from_values(values: [u64; Self::COUNT]) -> Self {
        let [turns, wakes, sends_cut_short, accepts_suspended, accepts_failed, closed_hard] = values;
        Self { turns, wakes, sends_cut_short, accepts_suspended, accepts_failed, closed_hard }
    }
}

/// One shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardSample {
    pub counters: Counters,
    pub load: ShardLoad,
    pub shell: ShellCounters,
    /// 99 % of the turns since the previous snapshot took at most so long, wall clock, in µs.
    pub turn_p99_us: u64,
    /// The longest turn since the previous snapshot, in µs.
    pub turn_max_us: u64,
    /// The deepest ring towards another core in about the last second, in messages.
    pub ring_depth_max: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub uptime_s: u64,
    /// The sum over all shards.
    pub counters: Counters,
    /// Indexed by core.
    pub shards: Vec<ShardSample>,
    /// What each rule has done on all shards, in the order of the configuration.
    pub rules: Vec<RuleCounts>,
    /// Why each failed last; empty: it has not.
    pub rule_errors: Vec<String>,
    /// Topics below `$SYS/broker/` and values that say how the sinks are.
    pub sinks: Vec<(String, String)>,
}
