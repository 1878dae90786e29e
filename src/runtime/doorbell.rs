//! Wakes a shard that sleeps, and only one that sleeps: ringing costs a system call, looking costs none.
//!
//! A lost wake-up is the classic bug here. Whoever has work for a shard writes the work, then looks whether the shard sleeps; the
//! shard says that it will sleep, then looks for work. Both put a sequentially consistent fence between their store and their
//! look, so at least one of them sees the other. The protocol, [`Sleep`], is generic over the atomics so that the tests can run
//! it through every interleaving with loom's.

use super::ring::system;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{self, AtomicBool, Ordering};

/// The atomic operations that [`Sleep`] needs.
pub trait Flag {
    fn awake() -> Self;
    fn store(&self, value: bool);
    fn load(&self) -> bool;
    fn swap(&self, value: bool) -> bool;
    fn fence();
}

impl Flag for AtomicBool {
    fn awake() -> Self {
        AtomicBool::new(false)
    }

    fn store(&self, value: bool) {
        self.store(value, Ordering::Relaxed);
    }

    fn load(&self) -> bool {
        self.load(Ordering::Relaxed)
    }

    fn swap(&self, value: bool) -> bool {
        self.swap(value, Ordering::Relaxed)
    }

    fn fence() {
        atomic::fence(Ordering::SeqCst);
    }
}

/// Whether a thread sleeps, or is about to.
pub struct Sleep<F>(F);

impl<F: Flag> Default for Sleep<F> {
    fn default() -> Self {
        Self(F::awake())
    }
}

impl<F: Flag> Sleep<F> {
    /// The sleeper: from here on it is woken. It must now look for work once more, and may sleep if there is none.
    pub fn announce(&self) {
        self.0.store(true);
        F::fence();
    }

    /// The sleeper: it looks for work by itself again.
    pub fn end(&self) {
        self.0.store(false);
    }

    /// The one with work, after writing it: whether the sleeper has to be woken. Says so to one of several only.
    pub fn must_wake(&self) -> bool {
        F::fence();
        self.0.load() && self.0.swap(false)
    }
}

/// The doorbell of one shard.
pub struct Doorbell {
    sleep: Sleep<AtomicBool>,
    eventfd: OwnedFd,
}

impl Doorbell {
    pub fn new() -> io::Result<Self> {
        Ok(Self { sleep: Sleep::default(), eventfd: system::eventfd()? })
    }

    /// For the shard's plane, which watches it.
    pub fn descriptor(&self) -> i32 {
        self.eventfd.as_raw_fd()
    }

    /// See [`Sleep::announce`].
    pub fn announce_sleep(&self) {
        self.sleep.announce();
    }

    /// See [`Sleep::end`].
    pub fn end_sleep(&self) {
        self.sleep.end();
    }

    /// There is work for this shard; it was written before this call. True: the shard slept and was woken.
    pub fn ring(&self) -> bool {
        let must_wake = self.sleep.must_wake();
        if must_wake {
            system::eventfd_ring(&self.eventfd);
        }
        must_wake
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool as LoomBool, AtomicUsize, Ordering::*, fence};

    impl Flag for LoomBool {
        fn awake() -> Self {
            LoomBool::new(false)
        }

        fn store(&self, value: bool) {
            self.store(value, Relaxed);
        }

        fn load(&self) -> bool {
            self.load(Relaxed)
        }

        fn swap(&self, value: bool) -> bool {
            self.swap(value, Relaxed)
        }

        fn fence() {
            fence(SeqCst);
        }
    }

    /// A shard that sleeps, and ringers with one piece of work each; `work` stands for the tail of a ring.
    struct World {
        sleep: Sleep<LoomBool>,
        work: AtomicUsize,
        eventfd: AtomicUsize,
    }

    fn run(ringers: usize) {
        loom::model(move || {
            let world = Arc::new(World { sleep: Sleep::default(), work: AtomicUsize::new(0), eventfd: AtomicUsize::new(0) });
            let ringers: Vec<_> = (0..ringers)
                .map(|_| {
                    let world = Arc::clone(&world);
                    loom::thread::spawn(move || {
                        world.work.fetch_add(1, Release);
                        if world.sleep.must_wake() {
                            world.eventfd.fetch_add(1, Relaxed);
                        }
                    })
                })
                .collect();
            world.sleep.announce();
            let seen = world.work.load(Acquire);
            let expected = ringers.len();
            for ringer in ringers {
                ringer.join().unwrap();
            }
            // What the sleeper did not see before it slept must have rung, or it would sleep on it.
            let rung = world.eventfd.load(Relaxed);
            assert!(seen == expected || rung > 0, "work was left behind: saw {seen} of {expected}, rung {rung} times");
            assert!(rung <= 1, "one sleep needs one ring");
        });
    }

    #[test]
    fn no_interleaving_of_one_ringer_and_a_shard_going_to_sleep_loses_the_wake_up() {
        run(1);
    }

    #[test]
    fn no_interleaving_of_two_ringers_and_a_shard_going_to_sleep_loses_the_wake_up() {
        run(2);
    }

    #[test]
    fn only_a_shard_that_sleeps_is_rung() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!doorbell.ring());
        doorbell.announce_sleep();
        assert!(doorbell.ring());
        assert!(!doorbell.ring());
        doorbell.announce_sleep();
        doorbell.end_sleep();
        assert!(!doorbell.ring());
    }
}
