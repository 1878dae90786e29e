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
#[path = "disk_tests.rs"]
mod tests;
