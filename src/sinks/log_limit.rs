//! Keeps a storm of equal events from becoming a storm of log lines: one line a second of each kind, which says how many it stands for;
//! and one for the begin of what stays out of order.

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

/// The lines of something that stays out of order: one when it begins, one a minute if there is another reason by then. What comes and
/// goes is told every ten seconds.
#[derive(Default, Debug)]
pub struct Trouble {
    told: Option<(Instant, String)>,
    is_told: bool,
}

const REASON_INTERVAL: Duration = Duration::from_secs(60);
const RETURN_INTERVAL: Duration = Duration::from_secs(10);

impl Trouble {
    /// Whether a line may be written.
    pub fn tells(&mut self, what: &str, now: Instant) -> bool {
        let tells = self.told.as_ref().is_none_or(|(at, told)| {
            let since = now.saturating_duration_since(*at);
            if self.is_told { told != what && since >= REASON_INTERVAL } else { since >= RETURN_INTERVAL }
        });
        if tells {
            self.told = Some((now, what.to_owned()));
            self.is_told = true;
        }
        tells
    }

    /// It is in order; whether it was said not to be.
    pub fn ends(&mut self) -> bool {
        std::mem::take(&mut self.is_told)
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

    #[test]
    fn trouble_is_told_when_it_begins_and_then_seldom() {
        let (mut trouble, start) = (Trouble::default(), Instant::now());
        assert!(!trouble.ends());
        assert!(trouble.tells("refused", start));
        assert!(!trouble.tells("503", start + Duration::from_secs(59)));
        assert!(!trouble.tells("refused", start + Duration::from_secs(61)), "nothing new");
        assert!(trouble.tells("503", start + Duration::from_secs(61)));
        assert!(trouble.ends());
        assert!(!trouble.tells("503", start + Duration::from_secs(62)) && !trouble.ends());
        assert!(trouble.tells("503", start + Duration::from_secs(71)));
    }
}
