//! The way to the sinks as a shard sees it.

/// Records on the ring to the sink core.
pub const RECORDS_MAX: u32 = 16_384;
/// Records whose outcome a shard waits to hear, at most.
pub const TICKETED_MAX: u32 = 65_536;
/// Messages that the sink core may give a shard before it has accepted them.
pub const INBOUND_MAX: u32 = 256;
