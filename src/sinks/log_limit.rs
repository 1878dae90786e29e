//! Keeps a storm of equal events from becoming a storm of log lines: one line a second of each kind, which says how many it stands for.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// The lines of one kind.
#[derive(Default, Debug)]
pub struct LogLimit {
    written_at: Option<Instant>,
    /// Events since then.
    events: u64,
}

impl LogLimit {
    /// Counts events; `Some` if a line may be written now: how many events it stands for, these and those that had none.
    pub fn count(&mut self, events: u64, now: Instant) -> Option<u64> {
        self.events += events;
        if self.events == 0 || self.written_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            return None;
        }
        self.written_at = Some(now);
        Some(std::mem::take(&mut self.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_line_a_second_and_it_says_how_many_events_it_stands_for() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.count(0, start), None);
        assert_eq!(limit.count(2, start), Some(2));
        assert_eq!(limit.count(3, start + INTERVAL / 2), None);
        assert_eq!(limit.count(1, start + INTERVAL), Some(4));
        assert_eq!(limit.count(0, start + 2 * INTERVAL), None);
        assert_eq!(limit.count(1, start + 2 * INTERVAL), Some(1));
    }
}
