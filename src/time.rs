//! Time as the pure core sees it: a number that the shell passes in. Nothing below the line reads a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Monotonic nanoseconds, the same clock on every core of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub u64);

impl Time {
    pub const NEVER: Time = Time(u64::MAX);

    pub fn from_ms(ms: u64) -> Self {
        Time(ms.saturating_mul(1_000_000))
    }

    pub fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    pub fn as_s(self) -> u64 {
        self.0 / 1_000_000_000
    }

    pub fn saturating_since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, rhs: Time) -> Duration {
        self.saturating_since(rhs)
    }
}
