//! The disk buffer of one sink: a log of records in files of some 16 MiB, so that what has been acknowledged to a publisher outlives
//! the process, and an outage of the server may be longer than memory is large.
//!
//! What always holds:
//!
//! - Records have consecutive numbers in the order in which they were appended. A segment's name is the number of its first record;
//!   each record in it is its length and CRC-32 (four bytes each, little-endian) and [`Record::write`].
//! - An append is one write(2) of all its records, all or nothing, without fsync: it survives the death of the process (kill -9), not
//!   that of the kernel or a loss of power.
//! - The checkpoint is a number below which every record has come to its end. A restart replays what lies above: at least
//!   once. It is written now and then, so the last moments before a kill are delivered again.
//! - A segment goes as soon as all its records have ended. A new one is begun at every start, so nothing is appended behind a torn tail.
//! - The directory belongs to one process, which holds the lock on its file `lock`.

use crate::record::Record;
use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SEGMENT_BYTES: u64 = 16 << 20;
/// Before each record: length and CRC-32.
const HEAD_BYTES: usize = 8;
/// Read at once, or one record if it is longer.
const READ_BYTES: usize = 256 << 10;
const EXTENSION: &str = "segment";

pub struct Disk {
    directory: PathBuf,
    segment_bytes: u64,
    /// Oldest first; the last may be the one that is written.
    segments: VecDeque<Segment>,
    /// The last segment's file, once something was appended.
    writing: Option<File>,
    reading: Option<(u64, File)>,
    /// The number of the next record.
    next: u64,
    bytes: u64,
    checkpoint: Checkpoint,
    encoded: Vec<u8>,
    chunk: Vec<u8>,
    _lock: File,
}

#[derive(Debug)]
struct Segment {
    /// The number of its first record, and its name.
    first: u64,
    records: u64,
    len: u64,
    /// Records in it that have not come to their end.
    pending: u64,
    /// Where the first record lies that is not in memory and has to be read, how many there are, and their [`Record::bytes`].
    unread_at: u64,
    unread: u64,
    unread_bytes: u64,
}

/// What a start found.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Found {
    /// Records to be delivered, and their [`Record::bytes`].
    pub records: u64,
    pub bytes: u64,
    /// Places where reading stopped at something that is no record, one line each.
    pub corrupt: Vec<String>,
}

/// Records that can no longer be read.
#[derive(PartialEq, Eq, Debug)]
pub struct Unreadable {
    pub first: u64,
    pub records: u64,
    /// Their [`Record::bytes`].
    pub bytes: u64,
    pub what: String,
}

/// What [`Disk::read`] came upon.
#[derive(PartialEq, Eq, Debug)]
pub enum Read {
    Records,
    Unreadable(Unreadable),
}

impl Disk {
    /// Opens a disk buffer, or makes one.
    ///
    /// # Errors
    /// The directory cannot be used, or another process uses it.
    pub fn open(directory: &Path) -> io::Result<(Self, Found)> {
        Self::open_with(directory, SEGMENT_BYTES)
    }

    fn open_with(directory: &Path, segment_bytes: u64) -> io::Result<(Self, Found)> {
        fs::create_dir_all(directory)?;
        let lock = File::options().write(true).create(true).truncate(false).open(directory.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another broker uses it")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let checkpoint = Checkpoint::open(&directory.join("checkpoint"))?;
        let mut disk = Self {
            directory: directory.to_owned(),
            segment_bytes,
            segments: VecDeque::new(),
            writing: None,
            reading: None,
            next: checkpoint.number,
            bytes: 0,
            checkpoint,
            encoded: Vec::new(),
            chunk: Vec::new(),
            _lock: lock,
        };
        let found = disk.scan()?;
        Ok((disk, found))
    }

    /// Appends records, in order; returns the number of the first. `in_memory`: the caller keeps them too and will not read them.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn append<'a>(&mut self, records: impl Iterator<Item = &'a Record>, in_memory: bool) -> io::Result<u64> {
        self.encoded.clear();
        let (mut count, mut bytes) = (0, 0);
        for record in records {
            encode(record, &mut self.encoded);
            count += 1;
            bytes += record.bytes();
        }
        if self.writing.is_none() || self.segments.back().is_none_or(|segment| segment.len >= self.segment_bytes) {
            self.begin_segment()?;
        }
        let file = self.writing.as_ref().expect("a segment was begun");
        let segment = self.segments.back_mut().expect("a segment was begun");
        if let Err(error) = file.write_all_at(&self.encoded, segment.len) {
            // What was written of it is overwritten by the next try; where it stays, a start cuts it off.
            file.set_len(segment.len).ok();
            return Err(error);
        }
        let first = self.next;
        self.next += count;
        self.bytes += self.encoded.len() as u64;
        segment.records += count;
        segment.pending += count;
        segment.len += self.encoded.len() as u64;
        if in_memory {
            debug_assert_eq!(segment.unread, 0, "what comes later is read later");
            segment.unread_at = segment.len;
        } else {
            segment.unread += count;
            segment.unread_bytes += bytes;
        }
        Ok(first)
    }

    /// Whether there are records that are not in memory.
    pub fn has_unread(&self) -> bool {
        // Reading goes on where it stopped, so if there are any, the last segment has some.
        self.segments.back().is_some_and(|segment| segment.unread > 0) || self.segments.iter().any(|segment| segment.unread > 0)
    }

    /// Reads the next records with their numbers, at least one, and not much more than `bytes_max` bytes of them; the end of a segment ends it.
    ///
    /// # Errors
    /// Reading failed and may be tried again.
    pub fn read(&mut self, bytes_max: u64, out: &mut Vec<(u64, Record)>) -> io::Result<Read> {
        let Some(index) = self.segments.iter().position(|segment| segment.unread > 0) else { return Ok(Read::Records) };
        let segment = &mut self.segments[index];
        let mut what = None;
        let mut taken = 0;
        let file = match &self.reading {
            Some((first, file)) if *first == segment.first => file,
            _ => match File::open(path(&self.directory, segment.first)) {
                Ok(file) => &self.reading.insert((segment.first, file)).1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Read::Unreadable(self.give_up(index, error.to_string())));
                }
                Err(error) => return Err(error),
            },
        };
        while segment.unread > 0 && taken < bytes_max && what.is_none() {
            match fill(file, segment.unread_at, segment.len, &mut self.chunk) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    what = Some(error.to_string());
                    break;
                }
                Err(error) => return Err(error),
            }
            let mut at = 0;
            while segment.unread > 0 && taken < bytes_max {
                match decode(&self.chunk[at..]) {
                    Decoded::Record(record, len) => {
                        let bytes = record.bytes();
                        out.push((segment.first + segment.records - segment.unread, record));
                        at += len;
                        taken += bytes;
                        segment.unread -= 1;
                        segment.unread_bytes = segment.unread_bytes.saturating_sub(bytes);
                        segment.unread_at += len as u64;
                    }
                    // The rest of the record is in the next chunk.
                    Decoded::Incomplete if at > 0 => break,
                    Decoded::Incomplete | Decoded::Corrupt => {
                        what = Some("not a record".to_owned());
                        break;
                    }
                }
            }
        }
        Ok(match what {
            Some(what) => Read::Unreadable(self.give_up(index, what)),
            None => Read::Records,
        })
    }

    /// Nothing more is read of a segment.
    fn give_up(&mut self, index: usize, what: String) -> Unreadable {
        let segment = &mut self.segments[index];
        let lost = Unreadable {
            first: segment.first + segment.records - segment.unread,
            records: segment.unread,
            bytes: segment.unread_bytes,
            what: format!("{} at byte {}: {what}", path(&self.directory, segment.first).display(), segment.unread_at),
        };
        segment.pending -= segment.unread;
        (segment.unread, segment.unread_bytes, segment.unread_at) = (0, 0, segment.len);
        self.remove_ended();
        lost
    }

    /// A record has come to its end.
    pub fn end(&mut self, number: u64) {
        let after = self.segments.partition_point(|segment| segment.first <= number);
        let segment = &mut self.segments[after - 1];
        segment.pending -= 1;
        if segment.pending == 0 && after < self.segments.len() {
            self.remove_ended();
        }
    }

    /// Writes that every record below `number` has come to its end.
    pub fn set_checkpoint(&mut self, number: u64) -> io::Result<()> {
        self.checkpoint.write(number)
    }

    pub fn checkpoint(&self) -> u64 {
        self.checkpoint.number
    }

    /// The number of the first record that is not in memory; that of the next record if there is none.
    pub fn first_unread(&self) -> u64 {
        let unread = self.segments.iter().find(|segment| segment.unread > 0);
        unread.map_or(self.next, |segment| segment.first + segment.records - segment.unread)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        // A file of that name can only be one that a failed attempt left empty.
        let file = File::options().write(true).create(true).truncate(true).open(path(&self.directory, self.next))?;
        self.writing = Some(file);
        let first = self.next;
        self.segments.push_back(Segment { first, records: 0, len: 0, pending: 0, unread_at: 0, unread: 0, unread_bytes: 0 });
        self.remove_ended();
        Ok(())
    }

    /// Removes segments whose records have all ended, except the one that is written.
    fn remove_ended(&mut self) {
        let last = self.segments.len() - 1;
        let mut index = 0;
        let (directory, bytes) = (&self.directory, &mut self.bytes);
        self.segments.retain(|segment| {
            let keep = index == last || segment.pending > 0;
            index += 1;
            if !keep {
                *bytes -= segment.len;
                if let Err(error) = fs::remove_file(path(directory, segment.first)) {
                    // It is found and removed at the next start.
                    tracing::debug!("{}: {error}", path(directory, segment.first).display());
                }
            }
            keep
        });
    }

    /// Finds out what is in the directory, from the checkpoint on.
    fn scan(&mut self) -> io::Result<Found> {
        let mut firsts = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION)
                && let Some(first) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
            {
                firsts.push(first);
            }
        }
        firsts.sort_unstable();
        let mut found = Found::default();
        let checkpoint = self.checkpoint.number;
        for (index, first) in firsts.iter().copied().enumerate() {
            let path = path(&self.directory, first);
            let is_last = index + 1 == firsts.len();
            // Those before the checkpoint were left by a kill between the two.
            if firsts.get(index + 1).is_some_and(|next| *next <= checkpoint) {
                fs::remove_file(&path)?;
                continue;
            }
            let segment = self.scan_segment(first, is_last, &mut found)?;
            self.next = self.next.max(segment.first + segment.records);
            if segment.pending == 0 {
                // Empty, or delivered up to its last record.
                fs::remove_file(&path)?;
            } else {
                found.records += segment.unread;
                found.bytes += segment.unread_bytes;
                self.bytes += segment.len;
                self.segments.push_back(segment);
            }
        }
        Ok(found)
    }

    fn scan_segment(&mut self, first: u64, is_last: bool, found: &mut Found) -> io::Result<Segment> {
        let path = path(&self.directory, first);
        let file = File::options().read(true).write(true).open(&path)?;
        let file_len = file.metadata()?.len();
        let mut segment = Segment { first, records: 0, len: 0, pending: 0, unread_at: 0, unread: 0, unread_bytes: 0 };
        'segment: while segment.len < file_len {
            fill(&file, segment.len, file_len, &mut self.chunk)?;
            let mut at = 0;
            while at < self.chunk.len() {
                match decode(&self.chunk[at..]) {
                    Decoded::Record(record, len) => {
                        at += len;
                        segment.len += len as u64;
                        if first + segment.records < self.checkpoint.number {
                            segment.unread_at = segment.len;
                        } else {
                            segment.unread += 1;
                            segment.unread_bytes += record.bytes();
                        }
                        segment.records += 1;
                    }
                    Decoded::Incomplete if at > 0 => break,
                    Decoded::Incomplete if is_last => {
                        let torn = file_len - segment.len;
                        tracing::warn!("{}: cut off {torn} bytes of a record that was being written", path.display());
                        file.set_len(segment.len)?;
                        break 'segment;
                    }
                    Decoded::Incomplete | Decoded::Corrupt => {
                        let left = file_len - segment.len;
                        found.corrupt.push(format!(
                            "{} at byte {}: not a record; {left} bytes are skipped",
                            path.display(),
                            segment.len
                        ));
                        break 'segment;
                    }
                }
            }
        }
        segment.pending = segment.unread;
        Ok(segment)
    }
}

fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:020}.{EXTENSION}"))
}

fn encode(record: &Record, out: &mut Vec<u8>) {
    let head = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    record.write(out);
    let body = &out[head + HEAD_BYTES..];
    let (len, crc) = (u32::try_from(body.len()).expect("a record is less than 4 GiB"), crc32fast::hash(body));
    out[head..head + 4].copy_from_slice(&len.to_le_bytes());
    out[head + 4..head + HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
}

enum Decoded {
    /// A record, and the bytes that it takes.
    Record(Record, usize),
    /// There may be more of it.
    Incomplete,
    Corrupt,
}

fn decode(bytes: &[u8]) -> Decoded {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Decoded::Incomplete };
    let (len, crc) = words(head);
    let Some(body) = rest.get(..len as usize) else { return Decoded::Incomplete };
    match Record::read(body) {
        Some(record) if crc32fast::hash(body) == crc => Decoded::Record(record, HEAD_BYTES + body.len()),
        _ => Decoded::Corrupt,
    }
}

fn words(head: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    (word(0), word(4))
}

/// Reads a chunk at `at`, not past `end`, long enough for the first record in it.
fn fill(file: &File, at: u64, end: u64, chunk: &mut Vec<u8>) -> io::Result<()> {
    let left = usize::try_from(end - at).unwrap_or(usize::MAX);
    read_at(file, at, left.min(READ_BYTES), chunk)?;
    if chunk.len() >= HEAD_BYTES {
        let needed = HEAD_BYTES + words(chunk).0 as usize;
        if needed > chunk.len() && needed <= left {
            read_at(file, at, needed, chunk)?;
        }
    }
    Ok(())
}

/// Reads `len` bytes, fewer only where the file ends.
fn read_at(file: &File, at: u64, len: usize, chunk: &mut Vec<u8>) -> io::Result<()> {
    chunk.resize(len, 0);
    let mut read = 0;
    while read < len {
        match file.read_at(&mut chunk[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    chunk.truncate(read);
    Ok(())
}

/// A number on disk, in two places that are written in turn, each with its CRC-32: one of them is always whole.
struct Checkpoint {
    file: File,
    number: u64,
    place: u64,
}

const PLACE_BYTES: usize = 12;

impl Checkpoint {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        read_at(&file, 0, 2 * PLACE_BYTES, &mut bytes)?;
        let number = |place: &[u8]| {
            let (number, crc) = place.split_at_checked(8)?;
            (crc.len() == 4 && crc32fast::hash(number).to_le_bytes() == crc)
                .then(|| u64::from_le_bytes(number.try_into().ok()?).into())
        };
        let mut numbers = bytes.chunks(PLACE_BYTES).map(|place| number(place).flatten());
        let (first, second): (Option<u64>, Option<u64>) = (numbers.next().flatten(), numbers.next().flatten());
        // The place of the lower one is written next.
        Ok(Self { file, number: first.max(second).unwrap_or(0), place: u64::from(first > second) })
    }

    fn write(&mut self, number: u64) -> io::Result<()> {
        let mut bytes = [0; PLACE_BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&crc32fast::hash(&number.to_le_bytes()).to_le_bytes());
        self.file.write_all_at(&bytes, self.place * PLACE_BYTES as u64)?;
        self.number = number;
        self.place = 1 - self.place;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Directory, record};
    use super::*;

    fn numbered(number: u64) -> Record {
        record(0, &[format!("record {number}").as_bytes()])
    }

    fn append(disk: &mut Disk, numbers: std::ops::Range<u64>) {
        let records: Vec<Record> = numbers.clone().map(numbered).collect();
        assert_eq!(disk.append(records.iter(), false).unwrap(), numbers.start);
    }

    /// Reads everything; the numbers read and what could not be.
    fn read_all(disk: &mut Disk) -> (Vec<u64>, Vec<Unreadable>) {
        let (mut numbers, mut unreadable) = (Vec::new(), Vec::new());
        while disk.has_unread() {
            let mut out = Vec::new();
            if let Read::Unreadable(lost) = disk.read(100, &mut out).unwrap() {
                unreadable.push(lost);
            }
            for (number, record) in out {
                assert_eq!(record, numbered(number));
                numbers.push(number);
            }
        }
        (numbers, unreadable)
    }

    fn segments(directory: &Directory) -> Vec<u64> {
        let names = fs::read_dir(directory.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut firsts: Vec<u64> = names.filter_map(|name| name.strip_suffix(".segment")?.parse().ok()).collect();
        firsts.sort_unstable();
        firsts
    }

    #[test]
    fn a_restart_replays_in_order_what_lies_above_the_checkpoint() {
        let directory = Directory::new();
        let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
        assert_eq!(found, Found::default());
        append(&mut disk, 0..10);
        append(&mut disk, 10..20);
        (0..13).for_each(|number| disk.end(number));
        disk.set_checkpoint(13).unwrap();
        drop(disk);
        let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
        let bytes = (13..20).map(|number| numbered(number).bytes()).sum();
        assert_eq!(found, Found { records: 7, bytes, corrupt: vec![] });
        assert_eq!((disk.first_unread(), disk.next), (13, 20));
        append(&mut disk, 20..22);
        assert_eq!(read_all(&mut disk), ((13..22).collect(), vec![]));
        assert_eq!(disk.first_unread(), 22);
        (13..22).for_each(|number| disk.end(number));
        disk.set_checkpoint(22).unwrap();
        drop(disk);
        let (disk, found) = Disk::open(&directory.path("")).unwrap();
        assert_eq!((found, disk.next, disk.bytes()), (Found::default(), 22, 0));
        assert!(segments(&directory).is_empty());
    }

    #[test]
    fn segments_go_when_their_last_record_has_ended_wherever_they_are() {
        let directory = Directory::new();
        let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
        for number in 0..4 {
            append(&mut disk, 3 * number..3 * number + 3);
        }
        assert_eq!(segments(&directory), [0, 3, 6, 9]);
        read_all(&mut disk);
        [4, 3, 5].into_iter().for_each(|number| disk.end(number));
        assert_eq!(segments(&directory), [0, 6, 9]);
        (9..12).for_each(|number| disk.end(number));
        assert_eq!(segments(&directory), [0, 6, 9]);
        append(&mut disk, 12..13);
        assert_eq!(segments(&directory), [0, 6, 12]);
        drop(disk);
        let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
        assert_eq!((found.records, found.corrupt), (7, vec![]));
        let len = |first| fs::metadata(path(&directory.path(""), first)).unwrap().len();
        assert_eq!(disk.bytes(), len(0) + len(6) + len(12));
        assert_eq!(read_all(&mut disk).0, [0, 1, 2, 6, 7, 8, 12]);
    }

    #[test]
    fn a_tail_torn_at_any_byte_costs_nothing_before_it_and_numbers_go_on() {
        let whole = Directory::new();
        let (mut disk, _) = Disk::open(&whole.path("")).unwrap();
        append(&mut disk, 0..3);
        drop(disk);
        let bytes = fs::read(path(&whole.path(""), 0)).unwrap();
        let mut ends = vec![0];
        for number in 0..3 {
            let mut encoded = Vec::new();
            encode(&numbered(number), &mut encoded);
            ends.push(ends[number as usize] + encoded.len());
        }
        assert_eq!(ends[3], bytes.len());
        for len in 0..=bytes.len() {
            let directory = Directory::new();
            fs::write(path(&directory.path(""), 0), &bytes[..len]).unwrap();
            let (mut disk, found) = Disk::open(&directory.path("")).unwrap();
            let records = ends[1..].iter().filter(|end| **end <= len).count() as u64;
            assert_eq!((found.records, found.corrupt.len()), (records, 0), "{len}");
            append(&mut disk, records..records + 1);
            assert_eq!(read_all(&mut disk), ((0..=records).collect(), vec![]), "{len}");
        }
    }

    #[test]
    fn a_corrupt_record_costs_the_rest_of_its_segment_and_is_said() {
        for at in [0, 5, 9, 12] {
            let directory = Directory::new();
            let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
            append(&mut disk, 0..3);
            append(&mut disk, 3..6);
            append(&mut disk, 6..9);
            drop(disk);
            let second = path(&directory.path(""), 3);
            let mut bytes = fs::read(&second).unwrap();
            let mut record = Vec::new();
            encode(&numbered(3), &mut record);
            bytes[record.len() + at] ^= 0x55;
            fs::write(&second, &bytes).unwrap();
            let (mut disk, found) = Disk::open_with(&directory.path(""), 1).unwrap();
            assert_eq!((found.records, found.corrupt.len()), (7, 1), "{at}");
            assert!(found.corrupt[0].contains(&format!("3.segment at byte {}", record.len())), "{found:?}");
            append(&mut disk, 9..10);
            assert_eq!(read_all(&mut disk), (vec![0, 1, 2, 3, 6, 7, 8, 9], vec![]), "{at}");
        }
    }

    #[test]
    fn corruption_in_the_last_segment_is_said_and_numbers_are_not_used_twice() {
        let directory = Directory::new();
        let (mut disk, _) = Disk::open(&directory.path("")).unwrap();
        append(&mut disk, 0..3);
        drop(disk);
        let only = path(&directory.path(""), 0);
        let mut bytes = fs::read(&only).unwrap();
        bytes[12] ^= 0x55;
        fs::write(&only, &bytes).unwrap();
        let (disk, found) = Disk::open(&directory.path("")).unwrap();
        assert_eq!((found.records, found.corrupt.len(), disk.next), (0, 1, 0));
    }

    #[test]
    fn what_becomes_unreadable_while_the_broker_runs_is_given_up_with_its_numbers() {
        let directory = Directory::new();
        let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
        append(&mut disk, 0..3);
        append(&mut disk, 3..6);
        let first = path(&directory.path(""), 0);
        let mut bytes = fs::read(&first).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 0x55;
        fs::write(&first, &bytes).unwrap();
        let (numbers, unreadable) = read_all(&mut disk);
        assert_eq!(numbers, [0, 1, 3, 4, 5]);
        let lost: Vec<_> = unreadable.iter().map(|lost| (lost.first, lost.records, lost.bytes)).collect();
        assert_eq!(lost, [(2, 1, numbered(2).bytes())]);
        disk.end(0);
        disk.end(1);
        assert_eq!(segments(&directory), [3]);
        fs::remove_file(path(&directory.path(""), 3)).unwrap();
    }

    #[test]
    fn a_segment_that_somebody_removed_is_given_up() {
        let directory = Directory::new();
        let (mut disk, _) = Disk::open_with(&directory.path(""), 1).unwrap();
        append(&mut disk, 0..3);
        append(&mut disk, 3..4);
        fs::remove_file(path(&directory.path(""), 0)).unwrap();
        let (numbers, unreadable) = read_all(&mut disk);
        assert_eq!((numbers, unreadable.len(), unreadable[0].records), (vec![3], 1, 3));
    }

    #[test]
    fn two_brokers_never_share_a_directory() {
        let directory = Directory::new();
        let (disk, _) = Disk::open(&directory.path("")).unwrap();
        let error = Disk::open(&directory.path("")).err().unwrap();
        assert_eq!(error.to_string(), "another broker uses it");
        drop(disk);
        assert!(Disk::open(&directory.path("")).is_ok());
    }

    #[test]
    fn one_place_of_the_checkpoint_may_be_torn() {
        let directory = Directory::new();
        let file = directory.path("checkpoint");
        let mut checkpoint = Checkpoint::open(&file).unwrap();
        assert_eq!(checkpoint.number, 0);
        for number in 1..6 {
            checkpoint.write(number).unwrap();
            assert_eq!(Checkpoint::open(&file).unwrap().number, number);
        }
        let bytes = fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            fs::write(&file, &torn).unwrap();
            let number = Checkpoint::open(&file).unwrap().number;
            // The fifth was written to the first place, the fourth to the second.
            assert_eq!(number, if at < PLACE_BYTES { 4 } else { 5 }, "{at}");
            let mut checkpoint = Checkpoint::open(&file).unwrap();
            checkpoint.write(6).unwrap();
            assert_eq!(Checkpoint::open(&file).unwrap().number, 6, "{at}");
        }
    }

    #[test]
    fn records_longer_than_a_chunk_are_read_whole() {
        let directory = Directory::new();
        let (mut disk, _) = Disk::open(&directory.path("")).unwrap();
        let long = [record(0, &[&vec![7; READ_BYTES + 1]]), record(0, &[b"short"]), record(0, &[&vec![8; 2 * READ_BYTES]])];
        disk.append(long.iter(), false).unwrap();
        let mut out = Vec::new();
        assert_eq!(disk.read(u64::MAX, &mut out).unwrap(), Read::Records);
        assert_eq!(out.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), long);
        drop(disk);
        assert_eq!(Disk::open(&directory.path("")).unwrap().1.records, 3);
    }
}
