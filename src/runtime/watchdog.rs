//! Ends a process whose shard no longer turns: everything on that core hangs, and a restart is better than a broker that is half
//! there. It says what the shard was doing, and aborts, so that there is a core dump to look at.

use super::board::{Board, Stage, TurnSeen};
use super::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    /// `on_stall` is called with what there is to say; it is expected to end the process.
    pub fn start(
        board: Arc<Board>,
        clock: Clock,
        stall: Duration,
        mut on_stall: impl FnMut(String) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let watch = move || {
            let mut last_turns = vec![0; board.shards().count()];
            while !stopped.load(Relaxed) {
                thread::park_timeout(stall / 4);
                let now = clock.now();
                for ((index, shard), last_turn) in board.shards().enumerate().zip(&mut last_turns) {
                    let seen = shard.turn.see();
                    let lasted = now - seen.began_at;
                    // Seen twice: when the whole machine was stopped for a while, time has passed and nobody has stalled.
                    let again = std::mem::replace(last_turn, seen.turn) == seen.turn;
                    if again && seen.stage != Stage::Asleep && lasted > stall {
                        on_stall(describe(index, seen, lasted));
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(watch)?;
        Ok(Self { stop, thread })
    }

    pub fn stop(self) {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        // It panics only if `on_stall` does.
        self.thread.join().ok();
    }
}

fn describe(shard: usize, seen: TurnSeen, lasted: Duration) -> String {
    let TurnSeen { turn, stage, sends, receives, mesh_messages, .. } = seen;
    format!(
        "shard {shard} has been in turn {turn} for {} s, at stage {stage:?}, after {sends} sends, {receives} receives and \
         {mesh_messages} messages from other cores",
        lasted.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_turn_that_does_not_end_is_reported_with_what_it_was_doing_and_a_sleeping_shard_is_not() {
        let board = Arc::new(Board::new(2, 0));
        let clock = Clock::start();
        for shard in board.shards() {
            shard.turn.begin(clock.now());
        }
        board.shard(1).turn.enter(Stage::Mesh);
        board.shard(1).turn.mesh_messages.store(17, Relaxed);
        let (sender, reports) = mpsc::channel();
        let on_stall = move |report| sender.send(report).unwrap_or(());
        let watchdog = Watchdog::start(Arc::clone(&board), clock, Duration::from_millis(40), on_stall).unwrap();
        let report = reports.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(report.starts_with("shard 1 has been in turn 1 for 0 s, at stage Mesh"), "{report}");
        assert!(report.ends_with("0 sends, 0 receives and 17 messages from other cores"), "{report}");
        board.shard(1).turn.enter(Stage::Asleep);
        watchdog.stop();
    }
}
