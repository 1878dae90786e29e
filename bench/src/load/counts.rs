//! What a worker counts. Each worker writes its own numbers, with plain stores; the coordinator reads them at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Connections that came up: connected and, where the group subscribes, subscribed.
    Connected,
    /// Of those, the ones whose session the broker still had.
    SessionsPresent,
    /// Attempts that failed: refused, reset, or not answered to the end.
    Failed,
    /// Connections that the broker closed after they had come up.
    Dropped,
    /// Connections that a phase reset.
    Resets,
    /// Of those, the ones with a will.
    WillsDue,
    /// Messages without a stamp: wills.
    Wills,
    SubscriptionsRefused,
    /// Messages that were to be sent by their group's rate.
    Due,
    Sent,
    /// Messages that were due and will not be sent any more: their client was not connected, or lost its connection before it had room.
    Unsent,
    /// Copies that have to arrive of what was sent.
    Wanted,
    /// Copies that have arrived, duplicates not counted.
    Received,
    ReceivedBytes,
    Duplicates,
    OutOfOrder,
    /// So long after later ones that they may be duplicates; they do not count as received.
    TooLate,
    /// Messages that nobody has published like this to that receiver: another topic, size, payload or QoS, or from the future.
    Foreign,
    /// Messages sent with QoS 1 or 2, which are to be acknowledged.
    Acknowledgeable,
    /// Of these, acknowledged to the end.
    Acknowledged,
    /// Of those, with a reason code that says no.
    Refused,
    Pings,
    Pongs,
}

const COUNTS: usize = Count::Pongs as usize + 1;

/// One worker's counts.
#[repr(align(128))]
pub struct Counts {
    counts: [AtomicU64; COUNTS],
    /// Connections that are up now, by group.
    up: Vec<AtomicU64>,
    /// Groups, as bits, that have something left to publish.
    publishing: AtomicU64,
    /// When the last connection came up and the last message arrived, on the monotonic clock.
    pub last_connected_ns: AtomicU64,
    pub last_received_ns: AtomicU64,
}

impl Counts {
    pub fn new(groups: usize) -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; COUNTS],
            up: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            publishing: AtomicU64::new(0),
            last_connected_ns: AtomicU64::new(0),
            last_received_ns: AtomicU64::new(0),
        }
    }

    /// Only the owning worker adds, so no read-modify-write instruction is needed.
    pub fn add(&self, count: Count, by: u64) {
        let cell = &self.counts[count as usize];
        cell.store(cell.load(Relaxed) + by, Relaxed);
    }

    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    pub fn set_up(&self, group: usize, up: u64) {
        self.up[group].store(up, Relaxed);
    }

    pub fn set_publishing(&self, group: usize, publishing: bool) {
        let before = self.publishing.load(Relaxed);
        let bit = 1 << group;
        self.publishing.store(if publishing { before | bit } else { before & !bit }, Relaxed);
    }

    pub fn publishing(&self) -> u64 {
        self.publishing.load(Relaxed)
    }

    pub fn up(&self, group: usize) -> u64 {
        self.up[group].load(Relaxed)
    }
}

/// The counts of all workers at one moment.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals([u64; COUNTS]);

impl Totals {
    pub fn of<'a>(workers: impl Iterator<Item = &'a Counts>) -> Self {
        let mut totals = [0; COUNTS];
        for worker in workers {
            for (total, count) in totals.iter_mut().zip(&worker.counts) {
                *total += count.load(Relaxed);
            }
        }
        Self(totals)
    }

    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// What was counted since an earlier moment.
    pub fn since(&self, earlier: &Totals, count: Count) -> u64 {
        self.get(count) - earlier.get(count)
    }
}
