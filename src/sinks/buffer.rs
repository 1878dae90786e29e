//! What lies between the shards and one sink: records in their order, in memory, or on disk with the oldest of them in memory.
//!
//! A record is *incoming* until it is written to the disk buffer (if there is one), then *waiting*, then *in flight*, then it has
//! ended. In flight they may end in any order; they lie in a window that begins at the oldest that has not ended. What has no
//! place in memory is on disk only and is read when its turn comes, so order is that of arrival in all cases.

use super::disk::{Disk, Read};
use super::options::BufferOptions;
use super::status::End;
use crate::ids::TicketId;
use crate::record::{ActionId, Record};
use crate::shard::WhenFull;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// Records read from disk in one pass.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Ended records that the window may hold behind one that has not ended, as a multiple of what may be in flight.
const WINDOW_STRETCH: usize = 4;

/// The [`Gate::bytes_max`](crate::shard::gate::Gate::bytes_max) of a sink with this buffer: what shards may admit before they hold.
pub fn gate_bytes_max(options: &BufferOptions) -> u64 {
    if options.disk_path.is_empty() { options.memory_bytes_max } else { options.disk_bytes_max }
}

/// A record and where it came from.
#[derive(Debug)]
pub struct Entry {
    /// Rises in the order of arrival.
    pub number: u64,
    pub shard: u16,
    pub record: Record,
}

/// A record that has come to its end, or the trace of one that can no longer be read.
#[derive(PartialEq, Eq, Debug)]
pub struct Ending {
    pub shard: u16,
    pub action: ActionId,
    pub published_at_us: u64,
    pub ticket: Option<TicketId>,
    pub bytes: u64,
    pub end: End,
}

impl Ending {
    fn of(shard: u16, record: &Record, end: End) -> Self {
        let Record { action, published_at_us, ticket, .. } = *record;
        Self { shard, action, published_at_us, ticket, bytes: record.bytes(), end }
    }
}

/// A place in the window.
struct Slot {
    number: u64,
    shard: u16,
    action: ActionId,
    published_at_us: u64,
    ticket: Option<TicketId>,
    bytes: u64,
    /// Not there while a batch has it.
    record: Option<Record>,
    ended: bool,
}

struct Incoming {
    shard: u16,
    record: Record,
    /// Its ticket asks no more than that it is in the buffer.
    queued: bool,
}

/// Who waits for a record that is on disk only.
struct Away {
    number: u64,
    shard: u16,
    ticket: TicketId,
}

/// What became of incoming records.
#[derive(Debug)]
pub enum Commit {
    /// There are none.
    Nothing,
    /// They have their place in the buffer, and those that only wait for that may be told.
    Done,
    /// They could not be written, are still incoming, and are to be tried again.
    Failed(io::Error),
}

pub struct Buffer {
    memory_bytes_max: u64,
    bytes_max: u64,
    when_full: WhenFull,
    incoming: VecDeque<Incoming>,
    waiting: VecDeque<Entry>,
    window: VecDeque<Slot>,
    away: VecDeque<Away>,
    disk: Option<Disk>,
    read: Vec<(u64, Record)>,
    /// The number of the next record, without a disk buffer.
    next: u64,
    in_flight: usize,
    in_flight_bytes: u64,
    incoming_bytes: u64,
    waiting_bytes: u64,
    /// Of all records that have not ended.
    bytes: u64,
    /// Change of the memory that records occupy, since [`Buffer::take_memory_change`].
    memory_change: i64,
    /// Tickets that asked no more than that their records are in the buffer, and now may be answered.
    queued: Vec<(u16, TicketId)>,
}

/// What a disk buffer held when it was opened: records that enter the gate now, and what could not be read.
pub struct Replay {
    pub records: u64,
    pub bytes: u64,
    pub corrupt: Vec<String>,
    pub lost: u64,
}

impl Buffer {
    /// `kind`: what its sink is, because records of one kind are nothing for another.
    ///
    /// # Errors
    /// The disk buffer cannot be used.
    pub fn open(options: &BufferOptions, kind: &str) -> io::Result<(Self, Replay)> {
        let mut replay = Replay { records: 0, bytes: 0, corrupt: Vec::new(), lost: 0 };
        let mut disk = None;
        if !options.disk_path.is_empty() {
            let (opened, found) = Disk::open(Path::new(&options.disk_path), kind, options.disk_bytes_max)
                .map_err(|error| io::Error::new(error.kind(), format!("disk buffer {}: {error}", options.disk_path)))?;
            replay = Replay { records: found.records, bytes: found.bytes, corrupt: found.corrupt, lost: found.lost };
            disk = Some(opened);
        }
        let buffer = Self {
            memory_bytes_max: options.memory_bytes_max,
            bytes_max: gate_bytes_max(options),
            when_full: options.when_full,
            incoming: VecDeque::new(),
            waiting: VecDeque::new(),
            window: VecDeque::new(),
            away: VecDeque::new(),
            disk,
            read: Vec::new(),
            next: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            incoming_bytes: 0,
            waiting_bytes: 0,
            bytes: replay.bytes,
            memory_change: 0,
            queued: Vec::new(),
        };
        Ok((buffer, replay))
    }

    /// Takes a record from a shard. `queued`: its ticket is answered when it is in the buffer, see [`Buffer::take_queued`].
    pub fn push(&mut self, shard: u16, mut record: Record, queued: bool) {
        let bytes = record.bytes();
        self.bytes += bytes;
        if self.disk.is_some() {
            self.incoming_bytes += bytes;
            self.incoming.push_back(Incoming { shard, record, queued });
        } else {
            if queued && let Some(ticket) = record.ticket.take() {
                self.queued.push((shard, ticket));
            }
            self.waiting_bytes += bytes;
            self.waiting.push_back(Entry { number: self.next, shard, record });
            self.next += 1;
        }
    }

    /// Puts incoming records where they are safe.
    pub fn commit(&mut self) -> Commit {
        let Some(disk) = &mut self.disk else { return Commit::Done };
        if self.incoming.is_empty() {
            return Commit::Nothing;
        }
        let memory = self.waiting_bytes + self.in_flight_bytes;
        let in_memory = !disk.has_unread() && memory + self.incoming_bytes <= self.memory_bytes_max;
        let first = match disk.append(self.incoming.iter().map(|incoming| &incoming.record), in_memory) {
            Ok(first) => first,
            Err(error) => return Commit::Failed(error),
        };
        for (number, Incoming { shard, mut record, queued }) in (first..).zip(self.incoming.drain(..)) {
            if queued && let Some(ticket) = record.ticket.take() {
                self.queued.push((shard, ticket));
            }
            if in_memory {
                self.waiting.push_back(Entry { number, shard, record });
            } else {
                self.memory_change -= record.bytes() as i64;
                self.away.extend(record.ticket.map(|ticket| Away { number, shard, ticket }));
            }
        }
        if in_memory {
            self.waiting_bytes += self.incoming_bytes;
        }
        self.incoming_bytes = 0;
        Commit::Done
    }

    /// Tickets that asked no more than that their records are in the buffer, which they are.
    pub fn take_queued(&mut self) -> impl Iterator<Item = (u16, TicketId)> {
        self.queued.drain(..)
    }

    /// Reads from disk what now has room in memory. Endings: records that cannot be read; the log line says which. `Ok(true)`: there
    /// is more to be read and room for it.
    pub fn refill(&mut self, endings: &mut Vec<Ending>, lines: &mut Vec<String>) -> io::Result<bool> {
        let memory = self.waiting_bytes + self.in_flight_bytes + self.incoming_bytes;
        let is_idle = self.waiting.is_empty() && self.in_flight == 0;
        // What is dropped as soon as it is read needs no room.
        let is_for_dropping = self.must_refill();
        let Some(disk) = &mut self.disk else { return Ok(false) };
        if !disk.has_unread() || (memory > self.memory_bytes_max / 2 && !is_idle && !is_for_dropping) {
            return Ok(false);
        }
        let room = if is_for_dropping { READ_BYTES_MAX } else { self.memory_bytes_max.saturating_sub(memory) };
        let room = room.clamp(1, READ_BYTES_MAX);
        let result = disk.read(room, &mut self.read);
        for (number, mut record) in self.read.drain(..) {
            let bytes = record.bytes();
            let away = take_away(&mut self.away, number);
            record.ticket = away.as_ref().map(|away| away.ticket);
            self.memory_change += bytes as i64;
            self.waiting_bytes += bytes;
            self.waiting.push_back(Entry { number, shard: away.map_or(0, |away| away.shard), record });
        }
        if let Read::Unreadable(lost) = result? {
            self.bytes -= lost.bytes;
            let bytes_each = lost.bytes.checked_div(lost.records).unwrap_or(0);
            for number in lost.first..lost.first + lost.records {
                let away = take_away(&mut self.away, number);
                endings.push(Ending {
                    shard: away.as_ref().map_or(0, |away| away.shard),
                    action: ActionId(u16::MAX),
                    published_at_us: 0,
                    ticket: away.map(|away| away.ticket),
                    // All of them together are what they were charged.
                    bytes: bytes_each + if number == lost.first { lost.bytes - bytes_each * lost.records } else { 0 },
                    end: End::DroppedCorrupt,
                });
            }
            lines.push(format!("{} records are lost: {}", lost.records, lost.what));
        }
        Ok(disk.has_unread())
    }

    /// The next record to be sent.
    pub fn front(&self) -> Option<&Entry> {
        self.waiting.front()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Whether the window is as long as it may be for so many records in flight.
    pub fn is_window_full(&self, in_flight_max: usize) -> bool {
        self.window.len() >= in_flight_max.saturating_mul(WINDOW_STRETCH)
    }

    /// The next record is in flight and stays here.
    pub fn send(&mut self) {
        self.enter_window(true);
    }

    /// The next record is in flight and is given away.
    pub fn lend(&mut self) -> Option<(u64, Record)> {
        self.enter_window(false)
    }

    fn enter_window(&mut self, keep: bool) -> Option<(u64, Record)> {
        let Entry { number, shard, record } = self.waiting.pop_front()?;
        let bytes = record.bytes();
        let Record { action, published_at_us, ticket, .. } = record;
        let (kept, lent) = if keep { (Some(record), None) } else { (None, Some((number, record))) };
        let slot = Slot { number, shard, action, published_at_us, ticket, bytes, record: kept, ended: false };
        // One that is sent again goes to its old place.
        if self.window.back().is_none_or(|last| last.number < number) {
            self.window.push_back(slot);
        } else {
            let at = self.window.partition_point(|slot| slot.number < number);
            self.window.insert(at, slot);
        }
        self.waiting_bytes -= bytes;
        self.in_flight += 1;
        self.in_flight_bytes += bytes;
        lent
    }

    /// Where a record in flight is in the window.
    fn place(&self, number: u64) -> usize {
        let guess = (number - self.window[0].number) as usize;
        match self.window.get(guess) {
            Some(slot) if slot.number == number => guess,
            _ => self.window.partition_point(|slot| slot.number < number),
        }
    }

    /// A record in flight has ended. Its record is returned if it was not given away.
    pub fn end(&mut self, number: u64, end: End) -> (Ending, Option<Record>) {
        let place = self.place(number);
        let slot = &mut self.window[place];
        debug_assert!(slot.number == number && !slot.ended);
        slot.ended = true;
        let Slot { shard, action, published_at_us, ticket, bytes, .. } = *slot;
        let record = slot.record.take();
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
        while self.window.front().is_some_and(|slot| slot.ended) {
            self.window.pop_front();
        }
        self.forget(number, bytes);
        (Ending { shard, action, published_at_us, ticket, bytes, end }, record)
    }

    /// A record in flight waits again, at its place in the order.
    pub fn again(&mut self, number: u64) {
        let place = self.place(number);
        let Some(Slot { shard, record: Some(record), bytes, .. }) = self.window.remove(place) else { return };
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
        self.waiting_bytes += bytes;
        let at = self.waiting.partition_point(|entry| entry.number < number);
        self.waiting.insert(at, Entry { number, shard, record });
        while self.window.front().is_some_and(|slot| slot.ended) {
            self.window.pop_front();
        }
    }

    /// All records in flight wait again. Only where records stay here while they are in flight.
    pub fn all_again(&mut self) {
        for slot in std::mem::take(&mut self.window).into_iter().rev() {
            if let Slot { number, shard, record: Some(record), .. } = slot {
                self.waiting_bytes += record.bytes();
                self.waiting.push_front(Entry { number, shard, record });
            }
        }
        (self.in_flight, self.in_flight_bytes) = (0, 0);
    }

    /// The next record ends without having been sent.
    pub fn end_front(&mut self, end: End) -> Option<(Ending, Record)> {
        let Entry { number, shard, record } = self.waiting.pop_front()?;
        let ending = Ending::of(shard, &record, end);
        self.waiting_bytes -= ending.bytes;
        self.forget(number, ending.bytes);
        Some((ending, record))
    }

    fn forget(&mut self, number: u64, bytes: u64) {
        self.bytes -= bytes;
        self.memory_change -= bytes as i64;
        if let Some(disk) = &mut self.disk {
            disk.end(number);
        }
    }

    /// The oldest record that is not in flight, if the buffer holds more than it may and drops then; its end.
    pub fn drop_oldest(&mut self) -> Option<Ending> {
        if self.when_full == WhenFull::Hold {
            return None;
        }
        if self.bytes > self.bytes_max
            && let Some((ending, _)) = self.end_front(End::DroppedOldest)
        {
            return Some(ending);
        }
        // These cannot be written just now, and memory is all that they have.
        if self.incoming_bytes > self.memory_bytes_max
            && let Some(Incoming { shard, record, .. }) = self.incoming.pop_front()
        {
            let ending = Ending::of(shard, &record, End::DroppedOldest);
            self.incoming_bytes -= ending.bytes;
            self.bytes -= ending.bytes;
            self.memory_change -= ending.bytes as i64;
            return Some(ending);
        }
        None
    }

    /// Whether it holds more than it may, and what is to be dropped must be read first.
    pub fn must_refill(&self) -> bool {
        self.when_full == WhenFull::DropOldest
            && self.bytes > self.bytes_max
            && self.waiting.is_empty()
            && self.disk.as_ref().is_some_and(Disk::has_unread)
    }

    /// Writes the number below which everything has ended, if it has changed.
    pub fn checkpoint(&mut self) -> io::Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let window = self.window.front().map(|slot| slot.number);
        let waiting = self.waiting.front().map(|entry| entry.number);
        let number = window.into_iter().chain(waiting).fold(disk.first_unread(), u64::min);
        if number == disk.checkpoint() { Ok(()) } else { disk.set_checkpoint(number) }
    }

    pub fn disk_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(0, Disk::bytes)
    }

    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Whether all records have ended.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Records that are in memory and nowhere else.
    pub fn unsaved(&self) -> usize {
        if self.disk.is_some() { self.incoming.len() } else { self.waiting.len() + self.in_flight }
    }

    /// The change, in bytes, of the memory that records occupy since the last call. What shards admitted is not part of it.
    pub fn take_memory_change(&mut self) -> i64 {
        std::mem::take(&mut self.memory_change)
    }
}

/// Who waits for a record, if somebody does.
fn take_away(away: &mut VecDeque<Away>, number: u64) -> Option<Away> {
    if away.front().is_some_and(|away| away.number == number) { away.pop_front() } else { None }
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;
