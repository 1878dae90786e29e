//! Messages dropped for one client, counted by reason. Made by the first drop: nearly every session has none.

use std::fmt;

/// Why a message for a client was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DropReason {
    /// QoS 0 while the outbox was full.
    OutboxFull,
    /// The queue was full and the newest message went.
    QueueNewest,
    /// The queue was full and the oldest message went.
    QueueOldest,
    /// Larger than the client's Maximum Packet Size.
    PacketTooLarge,
    /// Its message expiry interval passed while it waited.
    Expired,
    /// QoS 0 while the client was away.
    OfflineQos0,
}

impl DropReason {
    pub const ALL: [DropReason; 6] = [
        DropReason::OutboxFull,
        DropReason::QueueNewest,
        DropReason::QueueOldest,
        DropReason::PacketTooLarge,
        DropReason::Expired,
        DropReason::OfflineQos0,
    ];
}

impl DropReason {
    pub fn text(self) -> &'static str {
        match self {
            DropReason::OutboxFull => "outbox full",
            DropReason::QueueNewest => "queue full, newest dropped",
            DropReason::QueueOldest => "queue full, oldest dropped",
            DropReason::PacketTooLarge => "larger than the client's Maximum Packet Size",
            DropReason::Expired => "message expiry interval passed",
            DropReason::OfflineQos0 => "QoS 0 while the client was away",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// How many, by reason.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Drops([u32; DropReason::ALL.len()]);

impl Drops {
    /// Counts one; returns how many there are now for that reason.
    pub fn count(&mut self, reason: DropReason) -> u32 {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_add(1);
        *count
    }

    pub fn of(&self, reason: DropReason) -> u32 {
        self.0[reason as usize]
    }
}

impl fmt::Display for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = DropReason::ALL.into_iter().filter(|reason| self.of(*reason) > 0);
        for (position, reason) in counted.enumerate() {
            let comma = if position > 0 { "; " } else { "" };
            write!(f, "{comma}{reason}: {}", self.of(reason))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_and_shown_by_reason() {
        let mut drops = Drops::default();
        drops.count(DropReason::Expired);
        drops.count(DropReason::QueueOldest);
        assert_eq!(drops.count(DropReason::Expired), 2);
        assert_eq!(drops.to_string(), "queue full, oldest dropped: 1; message expiry interval passed: 2");
    }
}
