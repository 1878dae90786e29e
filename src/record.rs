//! A record: what an action made of a row, on its way from a shard to a sink. The parts that a sink of some kind is given (topic, key,
//! payload; or collection, document) lie in one allocation, in the layout in which the disk buffer keeps them.

use crate::ids::TicketId;

/// An action, counted over all rules of the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ActionId(pub u16);

/// What became of a record, for the message that it was made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The sink has it as its action wants it: buffered on disk, or confirmed by the server.
    Accepted,
    /// It never will be: it went to the dead-letter file, or was dropped, and was counted.
    Failed,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub action: ActionId,
    /// When its message was published, in microseconds since 1970-01-01 UTC.
    pub published_at_us: u64,
    /// Its message was published with QoS 0: nobody waits for it and it may be dropped where there is no room.
    pub qos0: bool,
    /// Whom to tell what became of it.
    pub ticket: Option<TicketId>,
    parts: Box<[u8]>,
}

/// Parts being written, one after the other; the memory is used again for the next record.
#[derive(Default)]
pub struct Parts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Parts {
    /// Where the part at hand is written to.
    pub fn part(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The part at hand is complete.
    pub fn end(&mut self) {
        self.ends.push(u32::try_from(self.bytes.len()).expect("a record is made of packets, of less than 4 GiB"));
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The parts in their layout: how many there are, where each ends, their bytes.
    fn take(&mut self) -> Box<[u8]> {
        let mut laid = Vec::with_capacity(1 + 4 * self.ends.len() + self.bytes.len());
        laid.push(u8::try_from(self.ends.len()).expect("an action has a few parts"));
        for end in &self.ends {
            laid.extend_from_slice(&end.to_le_bytes());
        }
        laid.extend_from_slice(&self.bytes);
        self.clear();
        laid.into_boxed_slice()
    }
}

/// Makes identifiers of records that no other record has, on whichever shard and after whichever restart: for a database, that it knows
/// a record which comes a second time. They are ObjectIds of MongoDB: seconds, a number of the process and shard, a count.
#[derive(Clone, Debug)]
pub struct RecordIds {
    origin: [u8; 5],
    count: u32,
}

impl RecordIds {
    /// `random` must be another one on every shard, and after every restart.
    pub fn new(random: u64) -> Self {
        let [a, b, c, d, e, rest @ ..] = random.to_le_bytes();
        Self { origin: [a, b, c, d, e], count: u32::from_le_bytes([rest[0], rest[1], rest[2], 0]) }
    }

    pub fn next(&mut self, unix_time_s: u32) -> [u8; 12] {
        self.count = self.count.wrapping_add(1);
        let [a, b, c, d] = unix_time_s.to_be_bytes();
        let [e, f, g, h, i] = self.origin;
        let [_, j, k, l] = self.count.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }
}

/// What is fixed before the parts in [`Record::write`]: action, flags, time.
const HEAD_BYTES: usize = 2 + 1 + 8;

impl Record {
    /// Takes the parts and leaves them empty.
    pub fn new(action: ActionId, published_at_us: u64, qos0: bool, parts: &mut Parts) -> Self {
        Self { action, published_at_us, qos0, ticket: None, parts: parts.take() }
    }

    /// A part by its number; empty if there are not so many.
    pub fn part(&self, number: usize) -> &[u8] {
        let count = usize::from(self.parts[0]);
        if number >= count {
            return &[];
        }
        let end = |number: usize| {
            let at = 1 + 4 * number;
            u32::from_le_bytes(self.parts[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let start = if number == 0 { 0 } else { end(number - 1) };
        &self.parts[1 + 4 * count..][start..end(number)]
    }

    /// All parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        (0..usize::from(self.parts[0])).map(|number| self.part(number))
    }

    /// What it is charged against buffers: its memory.
    pub fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.parts.len()) as u64
    }

    /// Appends all of it but the ticket, which means nothing after a restart.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.action.0.to_le_bytes());
        out.push(u8::from(self.qos0));
        out.extend_from_slice(&self.published_at_us.to_le_bytes());
        out.extend_from_slice(&self.parts);
    }

    /// Reads what [`Record::write`] wrote, all of `bytes`; `None` if it is nothing of the kind.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (head, parts) = bytes.split_at_checked(HEAD_BYTES)?;
        let action = ActionId(u16::from_le_bytes(head[..2].try_into().ok()?));
        let published_at_us = u64::from_le_bytes(head[3..].try_into().ok()?);
        let count = usize::from(*parts.first()?);
        let (ends, rest) = parts[1..].split_at_checked(4 * count)?;
        let mut before = 0;
        for end in ends.chunks_exact(4) {
            let end = u32::from_le_bytes(end.try_into().ok()?);
            if end < before {
                return None;
            }
            before = end;
        }
        (rest.len() == before as usize).then(|| Self {
            action,
            published_at_us,
            qos0: head[2] != 0,
            ticket: None,
            parts: parts.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(parts: &[&[u8]]) -> Record {
        let mut writer = Parts::default();
        for part in parts {
            writer.part().extend_from_slice(part);
            writer.end();
        }
        Record::new(ActionId(7), 123, true, &mut writer)
    }

    #[test]
    fn parts_are_found_by_number_and_missing_ones_are_empty() {
        let record = record(&[b"topic", b"", b"payload"]);
        assert_eq!([0, 1, 2, 3].map(|number| record.part(number)), [&b"topic"[..], b"", b"payload", b""]);
        assert_eq!(record.parts().collect::<Vec<_>>(), [&b"topic"[..], b"", b"payload"]);
        assert_eq!(self::record(&[]).part(0), b"");
    }

    #[test]
    fn identifiers_differ_by_time_by_origin_and_by_count() {
        let mut ids = RecordIds::new(0x0003_0201_0504_0302);
        assert_eq!(ids.next(0x6543_2100), [0x65, 0x43, 0x21, 0, 2, 3, 4, 5, 1, 0, 3, 3]);
        assert_eq!(ids.next(0x6543_2101), [0x65, 0x43, 0x21, 1, 2, 3, 4, 5, 1, 0, 3, 4]);
        let mut last = RecordIds::new(u64::MAX);
        let seen: std::collections::BTreeSet<_> = (0..1000).map(|_| last.next(7)).collect();
        assert_eq!(seen.len(), 1000);
        assert_ne!(RecordIds::new(1).next(0), RecordIds::new(2).next(0));
    }

    #[test]
    fn a_record_reads_back_as_it_was_written_and_nothing_else_does() {
        let record = record(&[b"t", b"key", b"value"]);
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        assert_eq!(Record::read(&bytes), Some(record));
        for len in 0..bytes.len() {
            assert_eq!(Record::read(&bytes[..len]), None, "{len}");
        }
        bytes.push(0);
        assert_eq!(Record::read(&bytes), None);
    }
}
