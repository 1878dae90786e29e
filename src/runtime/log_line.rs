//! The periodic line of the log: what each shard carries, so that a hot one is seen.

use super::board::Board;
use super::turn_times::TurnCounts;
use crate::shard::sys_snapshot::Snapshot;
use crate::time::Time;
use std::fmt::Write;

#[derive(Default)]
pub struct LogLine {
    earlier: Vec<TurnCounts>,
    last: Snapshot,
    last_at: Time,
}

impl LogLine {
    /// The line about the time since the last one.
    pub fn next(&mut self, board: &Board, now: Time) -> String {
        let snapshot = board.snapshot(now, &mut self.earlier);
        self.last.shards.resize_with(snapshot.shards.len(), Default::default);
        let seconds = (now - self.last_at).as_secs_f64().max(0.001);
        let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds).round();
        let mut line = format!("up {} s", snapshot.uptime_s);
        for (index, (shard, last)) in snapshot.shards.iter().zip(&self.last.shards).enumerate() {
            let received = rate(shard.counters.publishes_received, last.counters.publishes_received);
            let sent = rate(shard.counters.publishes_sent, last.counters.publishes_sent);
            let connections = shard.load.connections;
            let (p99, max, ring) = (shard.turn_p99_us, shard.turn_max_us, shard.ring_depth_max);
            write!(
                line,
                "; shard {index}: {connections} connections, {received}/s in, {sent}/s out, turn p99 {p99} µs max {max} µs, ring {ring}"
            )
            .expect("a string grows");
        }
        self.last = snapshot;
        self.last_at = now;
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::sys_snapshot::ShellCounters;
    use crate::shard::{Counters, ShardLoad};
    use std::time::Duration;

    #[test]
    fn the_line_has_each_shards_load_and_rates_since_the_line_before() {
        let board = Board::new(1, 0);
        let publish = |received| {
            let counters = Counters { publishes_received: received, publishes_sent: received * 2, ..Counters::default() };
            let load = ShardLoad { connections: 7, ..ShardLoad::default() };
            board.shard(0).publish(&counters, load, ShellCounters::default(), 5, &[]);
        };
        publish(100);
        let mut log = LogLine::default();
        log.next(&board, Time::from_ms(10_000));
        publish(600);
        board.shard(0).times.record(Duration::from_micros(2));
        assert_eq!(
            log.next(&board, Time::from_ms(15_000)),
            "up 15 s; shard 0: 7 connections, 100/s in, 200/s out, turn p99 3 µs max 3 µs, ring 5"
        );
    }
}
