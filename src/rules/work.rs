//! How much the rules of one message may do in all. What a message contains must not decide how long a core's turn is, or how much memory
//! it takes: everything whose cost grows with it (values that are copied, texts that are searched, rows that are made) is paid for in
//! steps, of some nanoseconds or a byte each, and when they are used up the rule fails.

use std::cell::Cell;

/// Steps for one message, all its rules together.
pub const STEPS_MAX: u64 = 16 << 20;

pub struct Work {
    left: Cell<u64>,
}

impl Work {
    pub fn new() -> Self {
        Self { left: Cell::new(STEPS_MAX) }
    }

    /// Takes steps off what is left.
    ///
    /// # Errors
    /// There are not so many; then there are none any more, for this rule and those behind it.
    #[inline]
    pub fn spend(&self, steps: u64) -> Result<(), String> {
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => self.fail(),
        }
    }

    #[cold]
    fn fail(&self) -> Result<(), String> {
        self.left.set(0);
        Err(format!("the rules of one message may take {STEPS_MAX} steps, and this one wants more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_stays_used_up() {
        let work = Work::new();
        assert_eq!(work.spend(STEPS_MAX), Ok(()));
        assert_eq!(work.spend(0), Ok(()));
        assert!(work.spend(1).unwrap_err().contains("steps"));
        let work = Work::new();
        assert!(work.spend(STEPS_MAX + 1).is_err());
        assert!(work.spend(1).is_err(), "a rule that asked for too much leaves nothing for the next");
    }
}
