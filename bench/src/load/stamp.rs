//! What every payload begins with, and what a receiver learns from it: when the message was due, who sent it, and its number, from
//! which losses, duplicates and order follow. It is 16 bytes, or, for receivers that look into payloads, the beginning of a JSON object.

use super::scenario::SIZE_MAX;
use std::io::Write;

/// Bytes of a stamp; no payload is shorter.
pub const STAMP_BYTES: usize = 16;
/// Bytes of the shortest payload in JSON.
pub const JSON_BYTES_MIN: usize = 89;

/// What a payload has behind its stamp.
static FILLER: [u8; SIZE_MAX] = [b'x'; SIZE_MAX];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// When the message was to be sent, on the monotonic clock.
    pub due_ns: u64,
    /// The sender, numbered over all groups.
    pub publisher: u32,
    /// Of this publisher, from 0.
    pub sequence: u32,
}

impl Stamp {
    pub fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&self.due_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.publisher.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Appends a payload of so many bytes that begins with the stamp.
    pub fn write(self, json: bool, size: usize, into: &mut Vec<u8>) {
        if json {
            self.write_json(size, into);
        } else {
            into.extend_from_slice(&self.to_bytes());
            into.extend_from_slice(&FILLER[STAMP_BYTES..size]);
        }
    }

    /// Whether a payload with this stamp is, to its last byte, the one that was written.
    pub fn is_of(self, json: bool, payload: &[u8]) -> bool {
        if json {
            let mut written = Vec::with_capacity(payload.len());
            self.write_json(payload.len(), &mut written);
            return written == payload;
        }
        payload.get(STAMP_BYTES..).is_some_and(|rest| *rest == FILLER[STAMP_BYTES..payload.len().min(SIZE_MAX)])
    }

    /// Appends a payload of so many bytes, at least [`JSON_BYTES_MIN`]: a JSON object with the stamp and a speed of 0 to 199. Its
    /// numbers are padded with spaces, so that each has its place whatever it is.
    pub fn write_json(self, size: usize, into: &mut Vec<u8>) {
        let Self { due_ns, publisher, sequence } = self;
        let begin = into.len();
        let written = write!(
            into,
            "{{\"due\":{due_ns:18},\"publisher\":{publisher:7},\"sequence\":{sequence:10},\"speed\":{:3},\"pad\":\"",
            sequence % 200
        );
        debug_assert!(written.is_ok(), "a vector takes what it is given");
        into.resize((begin + size).max(into.len() + 2) - 2, b'x');
        into.extend_from_slice(b"\"}");
    }

    /// Either kind is known by its beginning: 16 bytes that look like the other's would be due after a hundred years.
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        if let Some(rest) = payload.strip_prefix(b"{\"due\":") {
            let number = |from: usize, to: usize| str::from_utf8(rest.get(from..to)?).ok()?.trim_start().parse().ok();
            return Some(Self {
                due_ns: number(0, 18)?,
                publisher: u32::try_from(number(31, 38)?).ok()?,
                sequence: u32::try_from(number(50, 60)?).ok()?,
            });
        }
        let bytes = payload.first_chunk::<STAMP_BYTES>()?;
        let (due, rest) = bytes.split_first_chunk::<8>()?;
        let (publisher, rest) = rest.split_first_chunk::<4>()?;
        let sequence = rest.first_chunk::<4>()?;
        Some(Self {
            due_ns: u64::from_le_bytes(*due),
            publisher: u32::from_le_bytes(*publisher),
            sequence: u32::from_le_bytes(*sequence),
        })
    }
}

/// How a message stands to those that came before it from the same publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    InOrder,
    /// So many before it are missing, or late.
    Gap(u32),
    /// After a later one.
    OutOfOrder,
    /// So long after later ones that nobody knows whether it is a duplicate.
    TooLate,
    Duplicate,
}

/// What has come from one publisher: the next number, and which of the 64 before it have come.
#[derive(Clone, Copy, Default, Debug)]
pub struct Track {
    next: u32,
    /// Bit n: number `next - 1 - n` has come.
    seen: u64,
}

impl Track {
    /// A track whose first message is this one, wherever the publisher's numbers are by then.
    pub fn from(sequence: u32) -> Self {
        Self { next: sequence, seen: 0 }
    }

    pub fn note(&mut self, sequence: u32) -> Arrival {
        if sequence >= self.next {
            let skipped = sequence - self.next;
            self.seen = match skipped {
                0..63 => self.seen << (skipped + 1) | 1,
                _ => 1,
            };
            self.next = sequence + 1;
            return if skipped == 0 { Arrival::InOrder } else { Arrival::Gap(skipped) };
        }
        let back = self.next - 1 - sequence;
        if back >= 64 {
            return Arrival::TooLate;
        }
        let bit = 1 << back;
        if self.seen & bit != 0 {
            return Arrival::Duplicate;
        }
        self.seen |= bit;
        Arrival::OutOfOrder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_survives_its_payload() {
        let stamp = Stamp { due_ns: 0x0102_0304_0506_0708, publisher: 77, sequence: u32::MAX };
        let mut payload = stamp.to_bytes().to_vec();
        payload.extend([9; 5]);
        assert_eq!(Stamp::from_payload(&payload), Some(stamp));
        assert_eq!(Stamp::from_payload(&payload[..15]), None);
    }

    #[test]
    fn a_stamp_in_json_has_the_size_asked_for_and_reads_back() {
        for (stamp, size) in [
            (Stamp { due_ns: 0, publisher: 0, sequence: 0 }, JSON_BYTES_MIN),
            (Stamp { due_ns: 123_456_789_012_345_678, publisher: 9_999_999, sequence: u32::MAX }, 100),
        ] {
            let mut payload = b"before".to_vec();
            stamp.write_json(size, &mut payload);
            let payload = &payload[6..];
            assert_eq!(payload.len(), size);
            assert_eq!(Stamp::from_payload(payload), Some(stamp));
            assert!(stamp.is_of(true, payload) && !stamp.is_of(true, &[payload, b" "].concat()));
            let value: serde_json::Value = serde_json::from_slice(payload).unwrap();
            assert_eq!(value["sequence"], stamp.sequence);
            assert_eq!(value["speed"], stamp.sequence % 200);
            assert_eq!(Stamp::from_payload(&payload[..60]), None);
        }
    }

    #[test]
    fn a_changed_payload_is_noticed() {
        let stamp = Stamp { due_ns: 1, publisher: 2, sequence: 3 };
        let mut payload = Vec::new();
        stamp.write(false, 40, &mut payload);
        assert!(payload.len() == 40 && stamp.is_of(false, &payload));
        *payload.last_mut().unwrap() = b'y';
        assert!(!stamp.is_of(false, &payload));
        assert!(!stamp.is_of(false, &payload[..15]));
    }

    #[test]
    fn gaps_late_messages_and_duplicates_are_told_apart() {
        let mut track = Track::default();
        assert_eq!(track.note(0), Arrival::InOrder);
        assert_eq!(track.note(0), Arrival::Duplicate);
        assert_eq!(track.note(3), Arrival::Gap(2));
        assert_eq!(track.note(1), Arrival::OutOfOrder);
        assert_eq!(track.note(1), Arrival::Duplicate);
        assert_eq!(track.note(4), Arrival::InOrder);
        assert_eq!(track.note(2), Arrival::OutOfOrder);
        assert_eq!(track.note(200), Arrival::Gap(195));
        assert_eq!(track.note(4), Arrival::TooLate);
        assert_eq!(track.note(199), Arrival::OutOfOrder);
        assert_eq!(track.note(199), Arrival::Duplicate);
        assert_eq!(Track::from(9).note(9), Arrival::InOrder);
    }
}
