//! The handles by which parts of the broker name each other. All are plain numbers: a handle is only meaningful on the core that
//! issued it, except [`CoreId`].

/// The most shards one process runs: interest in a filter is one bit per core in a `u64`.
pub const CORES_MAX: usize = 64;

/// A shard core, 0 to [`CORES_MAX`] − 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CoreId(pub u8);

impl CoreId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A connection on this shard. The generation changes each time the slot is used again, so that a late event for an earlier
/// connection is recognised and ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId {
    pub slot: u32,
    pub generation: u32,
}

impl ConnectionId {
    /// One number for `epoll_event.data` and `user_data`.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A session on its home core: an index that stays the same for the session's life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId(pub u32);

/// A distinct topic filter with at least one local subscription.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FilterId(pub u32);

/// What an acknowledgement waits for (a sink's confirmation), on the shard that issued it. The generation tells a late answer from
/// one that is meant for the slot's next use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TicketId {
    pub slot: u32,
    pub generation: u32,
}
