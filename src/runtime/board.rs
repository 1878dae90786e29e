//! Where each shard puts what others may know of it, and where the process says which phase it is in. Every shard writes only its own
//! part, others read it relaxed, at any time: nobody waits and nothing is sent.
//!
//! A shard copies its counters and gauges here about once a second while it has something new; the rest is kept up to date in every
//! turn.

use super::mesh::Padded;
use super::turn_times::{TurnCounts, TurnTimes};
use crate::rules::RuleCounts;
use crate::shard::sys_snapshot::{ShardSample, ShellCounters, Snapshot};
use crate::shard::{Counters, ShardLoad};
use crate::time::Time;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// The phases of the whole process. A shard passes them in order, and the next begins when all shards have finished one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum ProcessPhase {
    Running,
    /// No connection is accepted any more.
    AcceptsOff,
    /// Nothing is read any more.
    ReadsOff,
    /// What was read reaches its subscribers on all cores.
    Draining,
    /// Clients are told and their connections closed.
    Disconnecting,
    /// The shards end.
    Exit,
}

impl ProcessPhase {
    pub const ALL: [ProcessPhase; 6] = {
        use ProcessPhase::*;
        [Running, AcceptsOff, ReadsOff, Draining, Disconnecting, Exit]
    };
}

/// What a shard is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    Asleep,
    Exchange,
    Mesh,
    Received,
    Accept,
    Run,
    Effects,
}

impl Stage {
    const ALL: [Stage; 7] =
        [Stage::Asleep, Stage::Exchange, Stage::Mesh, Stage::Received, Stage::Accept, Stage::Run, Stage::Effects];
}

/// A turn as the watchdog sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnSeen {
    pub turn: u64,
    pub began_at: Time,
    pub stage: Stage,
    /// Connections sent to and received from, and messages taken from rings, so far in this turn.
    pub sends: u32,
    pub receives: u32,
    pub mesh_messages: u32,
}

#[derive(Default)]
pub struct TurnNow {
    turn: AtomicU64,
    began_at: AtomicU64,
    stage: AtomicU8,
    pub sends: AtomicU32,
    pub receives: AtomicU32,
    pub mesh_messages: AtomicU32,
}

impl TurnNow {
    pub fn begin(&self, now: Time) {
        self.turn.store(self.turn.load(Relaxed) + 1, Relaxed);
        self.began_at.store(now.0, Relaxed);
        for count in [&self.sends, &self.receives, &self.mesh_messages] {
            count.store(0, Relaxed);
        }
    }

    pub fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
    }

    pub fn see(&self) -> TurnSeen {
        TurnSeen {
            turn: self.turn.load(Relaxed),
            began_at: Time(self.began_at.load(Relaxed)),
            stage: Stage::ALL[usize::from(self.stage.load(Relaxed))],
            sends: self.sends.load(Relaxed),
            receives: self.receives.load(Relaxed),
            mesh_messages: self.mesh_messages.load(Relaxed),
        }
    }
}

/// One shard's part of the board.
pub struct ShardBoard {
    pub turn: TurnNow,
    pub times: TurnTimes,
    finished_phase: AtomicU8,
    counters: [AtomicU64; Counters::COUNT],
    shell: [AtomicU64; ShellCounters::COUNT],
    load: [AtomicU64; LOADS],
    ring_depth_max: AtomicU64,
    /// By rule.
    rules: Box<[[AtomicU64; RuleCounts::COUNT]]>,
}

impl ShardBoard {
    fn new(rules: usize) -> Self {
        Self {
            turn: TurnNow::default(),
            times: TurnTimes::default(),
            finished_phase: AtomicU8::new(0),
            counters: [const { AtomicU64::new(0) }; Counters::COUNT],
            shell: [const { AtomicU64::new(0) }; ShellCounters::COUNT],
            load: [const { AtomicU64::new(0) }; LOADS],
            ring_depth_max: AtomicU64::new(0),
            rules: (0..rules).map(|_| [const { AtomicU64::new(0) }; RuleCounts::COUNT]).collect(),
        }
    }
}

impl ShardBoard {
    /// Called by the shard alone.
    pub fn publish(&self, counters: &Counters, load: ShardLoad, shell: ShellCounters, ring_depth_max: u64, rules: &[RuleCounts]) {
        for (cells, counts) in self.rules.iter().zip(rules) {
            write(cells, counts.values());
        }
        write(&self.counters, counters.values());
        write(&self.shell, shell.values());
        write(&self.load, load_values(load));
        self.ring_depth_max.store(ring_depth_max, Relaxed);
    }

    pub fn set_finished(&self, phase: ProcessPhase) {
        self.finished_phase.store(phase as u8, Release);
    }

    fn sample(&self, earlier: &mut TurnCounts) -> ShardSample {
        let counts = self.times.read();
        let interval = counts.since(earlier);
        *earlier = counts;
        ShardSample {
            counters: Counters::from_values(&read(&self.counters)),
            load: load_from(read(&self.load)),
            shell: ShellCounters::from_values(read(&self.shell)),
            turn_p99_us: interval.quantile_us(990),
            turn_max_us: interval.max_us(),
            ring_depth_max: self.ring_depth_max.load(Relaxed),
        }
    }
}

pub struct Board {
    shards: Box<[Padded<ShardBoard>]>,
    /// Why each rule failed last, on any shard.
    rule_errors: Mutex<Vec<String>>,
    phase: AtomicU8,
    stopped: AtomicBool,
}

impl Board {
    /// For so many shards, each with so many rules.
    pub fn new(shards: usize, rules: usize) -> Self {
        Self {
            shards: (0..shards).map(|_| Padded(ShardBoard::new(rules))).collect(),
            rule_errors: Mutex::new(vec![String::new(); rules]),
            phase: AtomicU8::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    pub fn shard(&self, index: usize) -> &ShardBoard {
        &self.shards[index].0
    }

    pub fn shards(&self) -> impl Iterator<Item = &ShardBoard> {
        self.shards.iter().map(|shard| &shard.0)
    }

    pub fn phase(&self) -> ProcessPhase {
        ProcessPhase::ALL[usize::from(self.phase.load(Acquire))]
    }

    /// Begins a phase; the shards that sleep have to be woken.
    pub fn set_phase(&self, phase: ProcessPhase) {
        self.phase.store(phase as u8, SeqCst);
    }

    /// A shard has ended; outside of [`ProcessPhase::Exit`] it failed.
    pub fn set_stopped(&self) {
        self.stopped.store(true, Release);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }

    /// Whether all shards have finished a phase.
    pub fn all_finished(&self, phase: ProcessPhase) -> bool {
        self.shards().all(|shard| shard.finished_phase.load(Acquire) >= phase as u8)
    }

    /// A rule has failed; told seldom enough for a lock.
    pub fn note_rule_error(&self, rule: u32, what: &str) {
        let mut errors = self.rule_errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = errors.get_mut(rule as usize) {
            what.clone_into(error);
        }
    }

    /// What each rule has done, on all shards.
    fn rule_counts(&self) -> Vec<RuleCounts> {
        let rules = self.shards[0].0.rules.len();
        (0..rules).map(|rule| RuleCounts::sum(self.shards().map(|shard| read(&shard.rules[rule])))).collect()
    }

    /// All shards as they last published themselves. `earlier` is the reader's own and makes its intervals.
    pub fn snapshot(&self, now: Time, earlier: &mut Vec<TurnCounts>) -> Snapshot {
        earlier.resize_with(self.shards.len(), TurnCounts::default);
        let shards: Vec<ShardSample> = self.shards().zip(earlier).map(|(shard, earlier)| shard.sample(earlier)).collect();
        let mut counters = Counters::default();
        for shard in &shards {
            counters.add(&shard.counters);
        }
        let rule_errors = self.rule_errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Snapshot { uptime_s: now.as_s(), counters, shards, rules: self.rule_counts(), rule_errors, sinks: Vec::new() }
    }
}

fn write<const N: usize>(cells: &[AtomicU64; N], values: [u64; N]) {
    for (cell, value) in cells.iter().zip(values) {
        cell.store(value, Relaxed);
    }
}

fn read<const N: usize>(cells: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|index| cells[index].load(Relaxed))
}

const LOADS: usize = 11;

fn load_values(load: ShardLoad) -> [u64; LOADS] {
    let ShardLoad {
        connections,
        clients_connected,
        sessions,
        subscriptions,
        shared_subscriptions,
        parked,
        fanouts_waiting,
        retained_messages,
        retained_bytes,
        memory_bytes,
        ring_depth,
    } = load;
    [
        connections,
        clients_connected,
        sessions,
        subscriptions,
        shared_subscriptions,
        parked,
        fanouts_waiting,
        retained_messages,
        retained_bytes,
        memory_bytes as u64,
        ring_depth,
    ]
}

fn load_from(values: [u64; LOADS]) -> ShardLoad {
    let [
        connections,
        clients_connected,
        sessions,
        subscriptions,
        shared_subscriptions,
        parked,
        fanouts_waiting,
        retained_messages,
        retained_bytes,
        memory_bytes,
        ring_depth,
    ] = values;
    ShardLoad {
        connections,
        clients_connected,
        sessions,
        subscriptions,
        shared_subscriptions,
        parked,
        fanouts_waiting,
        retained_messages,
        retained_bytes,
        memory_bytes: memory_bytes as i64,
        ring_depth,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_snapshot_holds_each_shard_and_the_sum_and_each_reader_has_its_own_intervals() {
        let board = Board::new(2, 1);
        for (index, accepted) in [(0, 3), (1, 4)] {
            let counters = Counters { connections_accepted: accepted, ..Counters::default() };
            let load = ShardLoad { connections: accepted, ring_depth: 9, ..ShardLoad::default() };
            board.shard(index).publish(
                &counters,
                load,
                ShellCounters { wakes: 5, ..ShellCounters::default() },
                8,
                &[RuleCounts { matched: 2, ..RuleCounts::default() }],
            );
        }
        board.shard(1).times.record(Duration::from_micros(3));
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let first = board.snapshot(Time::from_ms(2_500), &mut one);
        assert_eq!((first.uptime_s, first.counters.connections_accepted, first.rules[0].matched), (2, 7, 4));
        assert_eq!((first.shards[1].load.connections, first.shards[1].load.ring_depth), (4, 9));
        assert_eq!((first.shards[1].shell.wakes, first.shards[1].ring_depth_max, first.shards[1].turn_max_us), (5, 8, 4));
        assert_eq!(board.snapshot(Time(0), &mut one).shards[1].turn_max_us, 0);
        assert_eq!(board.snapshot(Time(0), &mut other).shards[1].turn_max_us, 4);
    }

    #[test]
    fn a_phase_is_finished_when_the_last_shard_has_finished_it() {
        let board = Board::new(2, 0);
        board.shard(0).set_finished(ProcessPhase::Draining);
        board.shard(1).set_finished(ProcessPhase::AcceptsOff);
        assert!(board.all_finished(ProcessPhase::AcceptsOff) && !board.all_finished(ProcessPhase::ReadsOff));
    }
}
