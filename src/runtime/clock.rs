//! The one clock of the process: monotonic, the same on every core. The shell reads it and passes the time down.

use crate::time::Time;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts at zero; made once, when the process starts, and copied.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// Microseconds since 1970-01-01 UTC when this clock showed zero, by the wall clock of now: that one is adjusted, this one is not.
    pub fn epoch_us(&self) -> i64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        unix.as_micros() as i64 - (self.now().0 / 1_000) as i64
    }

    pub fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
