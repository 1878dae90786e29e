//! The one clock of the process: monotonic, the same on every core. The shell reads it and passes the time down.

use crate::time::Time;
use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts at zero; made once, when the process starts, and copied.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    pub fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
