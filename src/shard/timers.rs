//! One timing wheel for all that happens later on this shard: keep-alives, CONNECT deadlines, will delays, session expiries.
//!
//! Entries are lazy: an entry says *look at this then*, and who looks decides whether the time has come or it must be looked at
//! again. So traffic on a connection touches no timer, and a timer is never cancelled. The wheel has one level; what lies beyond it
//! waits in its last slot and is put back once a round. Slots are lists of chunks, so that adding never copies.

use crate::time::Time;
use std::time::Duration;

/// What to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TimerKind {
    /// A connection that has until then to send its CONNECT.
    ConnectDeadline = 0,
    /// A connection that has until then to send anything.
    KeepAlive = 1,
    /// A session: will delay or expiry.
    Session = 2,
    /// A connection whose decision comes late (the delay hook of tests).
    Decision = 3,
}

/// An entry: eight bytes for each connection that has a keep-alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timer {
    pub slot: u32,
    kind_and_generation: u32,
}

const GENERATION_MASK: u32 = (1 << 30) - 1;

impl Timer {
    pub fn new(kind: TimerKind, slot: u32, generation: u32) -> Self {
        Self { slot, kind_and_generation: (kind as u32) << 30 | generation & GENERATION_MASK }
    }

    pub fn kind(self) -> TimerKind {
        match self.kind_and_generation >> 30 {
            0 => TimerKind::ConnectDeadline,
            1 => TimerKind::KeepAlive,
            2 => TimerKind::Session,
            _ => TimerKind::Decision,
        }
    }

    /// Whether the entry was made for this generation of its slot.
    pub fn is_for(self, generation: u32) -> bool {
        self.kind_and_generation & GENERATION_MASK == generation & GENERATION_MASK
    }
}

const TICK: Duration = Duration::from_millis(64);
const SLOTS: usize = 4096;
const CHUNK: usize = 256;

pub struct Wheel {
    slots: Vec<Slot>,
    occupied: [u64; SLOTS / 64],
    /// The tick up to which slots have been emptied.
    tick: u64,
    len: usize,
}

/// The entries of one tick: full chunks, and the one that is being filled, which grows from small.
#[derive(Clone, Default)]
struct Slot {
    open: Vec<Timer>,
    full: Vec<Vec<Timer>>,
}

impl Wheel {
    pub fn new(now: Time) -> Self {
        Self { slots: vec![Slot::default(); SLOTS], occupied: [0; SLOTS / 64], tick: Self::tick_of(now), len: 0 }
    }

    fn tick_of(time: Time) -> u64 {
        time.0 / TICK.as_nanos() as u64
    }

    /// `timer` comes out of [`Wheel::pop`] at the first tick after `deadline`, or earlier (then add it again).
    pub fn add(&mut self, timer: Timer, deadline: Time) {
        let tick = (Self::tick_of(deadline) + 1).clamp(self.tick + 1, self.tick + SLOTS as u64 - 1);
        let slot = tick as usize % SLOTS;
        let Slot { open, full } = &mut self.slots[slot];
        if open.len() == CHUNK {
            full.push(std::mem::replace(open, Vec::with_capacity(CHUNK)));
        }
        open.push(timer);
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.len += 1;
    }

    /// The next entry that is due. The caller bounds how many it takes in a turn.
    pub fn pop(&mut self, now: Time) -> Option<Timer> {
        let target = Self::tick_of(now);
        while self.tick < target {
            let slot = (self.tick + 1) as usize % SLOTS;
            let Slot { open, full } = &mut self.slots[slot];
            if let Some(timer) = open.pop() {
                self.len -= 1;
                if open.is_empty() {
                    *open = full.pop().unwrap_or_default();
                    if open.is_empty() {
                        *full = Vec::new();
                        self.occupied[slot / 64] &= !(1 << (slot % 64));
                    }
                }
                return Some(timer);
            }
            self.tick = self.next_occupied_before(target);
        }
        None
    }

    /// Skips empty slots: the tick just before the next occupied one, at most `target`.
    fn next_occupied_before(&self, target: u64) -> u64 {
        let from = self.tick + 1;
        match self.distance_to_occupied(from + 1) {
            Some(distance) => (from + distance).min(target),
            None => target,
        }
    }

    /// How many ticks after `from` the next occupied slot lies.
    fn distance_to_occupied(&self, from: u64) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let start = from as usize % SLOTS;
        let mut distance = 0;
        while distance < SLOTS + 64 {
            let at = (start + distance) % SLOTS;
            let word = self.occupied[at / 64] >> (at % 64);
            if word != 0 {
                return Some((distance + word.trailing_zeros() as usize) as u64);
            }
            distance += 64 - at % 64;
        }
        None
    }

    /// When [`Wheel::pop`] will have something; [`Time::NEVER`] when it is empty.
    pub fn next_deadline(&self) -> Time {
        match self.distance_to_occupied(self.tick + 1) {
            Some(distance) => Time((self.tick + 1 + distance) * TICK.as_nanos() as u64),
            None => Time::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timer(slot: u32) -> Timer {
        Timer::new(TimerKind::KeepAlive, slot, 5)
    }

    #[test]
    fn an_entry_comes_out_after_its_deadline_and_not_before() {
        let mut wheel = Wheel::new(Time::from_ms(1_000));
        wheel.add(timer(1), Time::from_ms(2_000));
        assert_eq!(wheel.pop(Time::from_ms(2_000)), None);
        let due = wheel.next_deadline();
        assert!(due > Time::from_ms(2_000) && due <= Time::from_ms(2_130), "{due:?}");
        assert_eq!(wheel.pop(due), Some(timer(1)));
        assert_eq!((wheel.pop(Time::from_ms(9_000)), wheel.next_deadline()), (None, Time::NEVER));
    }

    #[test]
    fn every_entry_comes_out_once_in_the_order_of_ticks_whatever_the_steps_of_the_clock() {
        let mut wheel = Wheel::new(Time(0));
        let deadlines: Vec<u64> = (0..5_000u64).map(|i| i * 7_919 % 200_000).collect();
        for (i, &ms) in deadlines.iter().enumerate() {
            wheel.add(timer(i as u32), Time::from_ms(ms));
        }
        let (mut now, mut seen) = (0, vec![false; deadlines.len()]);
        while wheel.next_deadline() != Time::NEVER {
            now += 1 + now % 1_013;
            while let Some(entry) = wheel.pop(Time::from_ms(now)) {
                let i = entry.slot as usize;
                assert!(!seen[i] && deadlines[i] <= now, "{} at {now}", deadlines[i]);
                seen[i] = true;
            }
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn what_lies_beyond_the_wheel_is_looked_at_again() {
        let mut wheel = Wheel::new(Time(0));
        let deadline = Time::from_ms(1_000_000);
        wheel.add(timer(1), deadline);
        let mut looks = 0;
        loop {
            let now = wheel.next_deadline();
            let entry = wheel.pop(now).unwrap();
            looks += 1;
            if now > deadline {
                break;
            }
            wheel.add(entry, deadline);
        }
        assert_eq!(looks, 4);
    }

    #[test]
    fn kinds_and_generations_survive_packing() {
        for kind in [TimerKind::ConnectDeadline, TimerKind::KeepAlive, TimerKind::Session, TimerKind::Decision] {
            let entry = Timer::new(kind, 9, u32::MAX);
            assert_eq!(entry.kind(), kind);
            assert!(entry.is_for(u32::MAX) && !entry.is_for(u32::MAX - 1));
        }
    }
}
