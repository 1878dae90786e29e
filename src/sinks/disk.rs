//! The disk buffer of one sink: a log of records in files of some 16 MiB, so that what has been acknowledged to a publisher outlives
//! the process, and an outage of the server may be longer than memory is large.
//!
//! What always holds:
//!
//! - Records have consecutive numbers in the order in which they were appended. A segment's name is the number of its first record;
//!   how it holds them is in [`segment`].
//! - An append is one write(2) of all its records, all or nothing, without fsync: it survives the death of the process (kill -9), not
//!   that of the kernel or a loss of power.
//! - The checkpoint is a number below which every record has come to its end. A restart replays what lies above: at least
//!   once. It is written now and then, so the last moments before a kill are delivered again.
//! - A segment goes as soon as all its records have ended and those before it are gone, so the numbers of a directory have no gap. A new
//!   one is begun at every start, so nothing is appended behind a torn tail.
//! - What is damaged costs the records that it held and no others. How many these were is counted where their neighbours tell, and the
//!   segment stays as a file of the same name that ends in `.corrupt`, [`KEPT_MAX`] of them at most.
//! - The directory belongs to one process, which holds the lock on its file `lock`, and to one kind of sink, which its file `format` names.
//!   If somebody removes it, appends fail until it has been made anew.

use super::segment::{self, Decoded, decode, encode, fill, read_at};
use crate::record::Record;
use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The size of a segment, and the part of a disk buffer that it is at most: so much more than its records a buffer may take.
const SEGMENT_BYTES: u64 = 16 << 20;
const SEGMENTS_MIN: u64 = 8;
const EXTENSION: &str = "segment";
/// Damaged segments that are kept for whoever wants to look at them.
const KEPT_MAX: usize = 8;
/// What a directory is, before the kind of its sink.
const FORMAT: &str = "corelane disk buffer 2, of a sink of kind ";

pub struct Disk {
    directory: PathBuf,
    kind: String,
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
    lock: File,
}

#[derive(Debug, Default)]
struct Segment {
    /// The number of its first record, and its name.
    first: u64,
    /// The number behind its last record.
    end: u64,
    len: u64,
    /// Records in it that have not come to their end.
    pending: u64,
    /// Where the first record lies that is not in memory and has to be read, its number, how many there are, and their [`Record::bytes`].
    unread_at: u64,
    unread_number: u64,
    unread: u64,
    unread_bytes: u64,
}

impl Segment {
    fn new(first: u64) -> Self {
        Self { first, end: first, unread_number: first, ..Self::default() }
    }

    /// The place of a number in it.
    fn place(&self, number: u64) -> u32 {
        u32::try_from(number - self.first).unwrap_or(u32::MAX)
    }
}

/// What a start found.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Found {
    /// Records to be delivered, and their [`Record::bytes`].
    pub records: u64,
    pub bytes: u64,
    /// Places with something that is no record, one line each.
    pub corrupt: Vec<String>,
    /// Records that were there, as far as what is around them tells.
    pub lost: u64,
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
    /// Opens a disk buffer, or makes one, for records of a kind of sink, `bytes_max` bytes of them.
    ///
    /// # Errors
    /// The directory cannot be used, another process uses it, or it holds what this sink cannot read.
    pub fn open(directory: &Path, kind: &str, bytes_max: u64) -> io::Result<(Self, Found)> {
        Self::open_with(directory, kind, SEGMENT_BYTES.min(bytes_max / SEGMENTS_MIN))
    }

    fn open_with(directory: &Path, kind: &str, segment_bytes: u64) -> io::Result<(Self, Found)> {
        let (lock, checkpoint) = prepare(directory)?;
        let firsts = firsts(directory)?;
        let is_ours = check_format(directory, kind, !firsts.is_empty())?;
        let mut disk = Self {
            directory: directory.to_owned(),
            kind: kind.to_owned(),
            segment_bytes,
            segments: VecDeque::new(),
            writing: None,
            reading: None,
            next: checkpoint.number,
            bytes: 0,
            checkpoint,
            encoded: Vec::new(),
            chunk: Vec::new(),
            lock,
        };
        let found = disk.scan(&firsts)?;
        if let Err(other) = is_ours {
            if found.records > 0 {
                return Err(io::Error::other(format!(
                    "it holds {} records of a sink of kind {other}, and this one is of kind {kind}: configure that sink until they are \
                     delivered, or name another disk_path",
                    found.records
                )));
            }
            disk.write_format()?;
        }
        Ok((disk, found))
    }

    fn write_format(&self) -> io::Result<()> {
        fs::write(self.directory.join("format"), format!("{FORMAT}{}\n", self.kind))
    }

    /// Appends records, in order; returns the number of the first. `in_memory`: the caller keeps them too and will not read them.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn append<'a>(&mut self, records: impl Iterator<Item = &'a Record> + Clone, in_memory: bool) -> io::Result<u64> {
        self.check_presence()?;
        match self.try_append(records.clone(), in_memory) {
            // A full disk may be full of what has been delivered.
            Err(_) if self.drop_delivered() => self.try_append(records, in_memory),
            result => result,
        }
    }

    /// Whoever removes a file that is open does not disturb who writes to it; and what is written to it then is nowhere.
    fn check_presence(&mut self) -> io::Result<()> {
        if let Some(file) = &self.writing
            && file.metadata()?.nlink() == 0
        {
            self.writing = None;
            let segment = self.segments.back().expect("a segment is written");
            return Err(io::Error::other(format!(
                "{} was removed while it was in use: what is in memory is still delivered, and records come to a new file from now on",
                path(&self.directory, segment.first).display()
            )));
        }
        // With the directory went the segment, so it is enough to look where a new one is begun.
        if self.writing.is_none() && self.lock.metadata()?.nlink() == 0 {
            let number = self.checkpoint.number;
            (self.lock, self.checkpoint) = prepare(&self.directory)?;
            self.checkpoint.write(number)?;
            self.write_format()?;
        }
        Ok(())
    }

    /// Removes the segment that is written, if it is the only one and nothing in it is needed any more.
    fn drop_delivered(&mut self) -> bool {
        let is_delivered = self.segments.len() == 1 && self.segments[0].pending == 0 && self.segments[0].len > 0;
        if is_delivered {
            self.writing = None;
            self.remove_first();
        }
        is_delivered
    }

    fn try_append<'a>(&mut self, records: impl Iterator<Item = &'a Record>, in_memory: bool) -> io::Result<u64> {
        if self.writing.is_none() || self.segments.back().is_none_or(|segment| segment.len >= self.segment_bytes) {
            self.begin_segment()?;
        }
        let file = self.writing.as_ref().expect("a segment was begun");
        let segment = self.segments.back_mut().expect("a segment was begun");
        self.encoded.clear();
        let (first, mut bytes) = (self.next, 0);
        let mut next = first;
        for record in records {
            encode(record, segment.place(next), &mut self.encoded);
            next += 1;
            bytes += record.bytes();
        }
        if let Err(error) = file.write_all_at(&self.encoded, segment.len) {
            // What was written of it is overwritten by the next try; where it stays, a start takes it for a torn tail.
            file.set_len(segment.len).ok();
            return Err(error);
        }
        let count = next - first;
        self.next = next;
        self.bytes += self.encoded.len() as u64;
        segment.end = next;
        segment.pending += count;
        segment.len += self.encoded.len() as u64;
        if in_memory {
            debug_assert_eq!(segment.unread, 0, "what comes later is read later");
            (segment.unread_at, segment.unread_number) = (segment.len, next);
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

    /// Reads the next records with their numbers, at least one, and not much more than `bytes_max` bytes of them; the end of a segment,
    /// and what is damaged, ends it.
    ///
    /// # Errors
    /// Reading failed and may be tried again.
    pub fn read(&mut self, bytes_max: u64, out: &mut Vec<(u64, Record)>) -> io::Result<Read> {
        let Some(index) = self.segments.iter().position(|segment| segment.unread > 0) else { return Ok(Read::Records) };
        let segment = &mut self.segments[index];
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
        let mut taken = 0;
        while segment.unread > 0 && taken < bytes_max {
            match fill(file, segment.unread_at..segment.len, &mut self.chunk) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    return Ok(Read::Unreadable(self.give_up(index, error.to_string())));
                }
                Err(error) => return Err(error),
            }
            let mut at = 0;
            while segment.unread > 0 && taken < bytes_max {
                match decode(&self.chunk[at..]) {
                    Decoded::Record(record, place, len) if place == segment.place(segment.unread_number) => {
                        let bytes = record.bytes();
                        out.push((segment.unread_number, record));
                        at += len;
                        taken += bytes;
                        segment.unread -= 1;
                        segment.unread_bytes = segment.unread_bytes.saturating_sub(bytes);
                        segment.unread_at += len as u64;
                        segment.unread_number += 1;
                    }
                    // The rest of the record is in the next chunk.
                    Decoded::Incomplete if at > 0 => break,
                    _ => match self.skip(index)? {
                        Some(lost) => return Ok(Read::Unreadable(lost)),
                        // Of which the start has told.
                        None => return Ok(Read::Records),
                    },
                }
            }
        }
        Ok(Read::Records)
    }

    /// Goes on behind what is no record, at the next that is one. `None`: nothing is missed that has not been counted.
    fn skip(&mut self, index: usize) -> io::Result<Option<Unreadable>> {
        let segment = &mut self.segments[index];
        let Some((_, file)) = &self.reading else { return Ok(None) };
        let place = segment.place(segment.unread_number);
        let Some((next_at, next_place)) = segment::find(file, segment.unread_at..segment.len, place)? else {
            return Ok(Some(self.give_up(index, "not a record".to_owned())));
        };
        let (readable, readable_bytes) = segment::survey(file, next_at..segment.len, next_place, &mut self.chunk)?;
        let next = segment.first + u64::from(next_place);
        let missing = (next - segment.unread_number).min(segment.unread - readable.min(segment.unread));
        let lost = Unreadable {
            first: segment.unread_number,
            records: missing,
            bytes: if missing == 0 { 0 } else { segment.unread_bytes.saturating_sub(readable_bytes) },
            what: format!(
                "{} at byte {}: {} bytes are no record{}",
                path(&self.directory, segment.first).display(),
                segment.unread_at,
                next_at - segment.unread_at,
                keep(&self.directory, segment.first)
            ),
        };
        segment.pending -= missing;
        segment.unread -= missing;
        segment.unread_bytes -= lost.bytes;
        (segment.unread_at, segment.unread_number) = (next_at, next);
        Ok((missing > 0).then_some(lost))
    }

    /// Nothing more is read of a segment.
    fn give_up(&mut self, index: usize, what: String) -> Unreadable {
        let segment = &mut self.segments[index];
        let (directory, first) = (&self.directory, segment.first);
        let at = segment.unread_at;
        let lost = Unreadable {
            first: segment.unread_number,
            records: segment.unread,
            bytes: segment.unread_bytes,
            what: format!("{} at byte {at}: {what}{}", path(directory, first).display(), keep(directory, first)),
        };
        segment.pending -= segment.unread;
        (segment.unread, segment.unread_bytes, segment.unread_at, segment.unread_number) = (0, 0, segment.len, segment.end);
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
        unread.map_or(self.next, |segment| segment.unread_number)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        // A file of that name is one that a failed attempt left empty, or that has nothing but what is damaged and may be kept under another.
        let path = path(&self.directory, self.next);
        fs::remove_file(&path).or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        self.writing = Some(File::options().write(true).create_new(true).open(&path)?);
        self.segments.push_back(Segment::new(self.next));
        self.remove_ended();
        Ok(())
    }

    /// Removes the oldest segments as long as their records have all ended, except the one that is written.
    fn remove_ended(&mut self) {
        while self.segments.len() > 1 && self.segments[0].pending == 0 {
            self.remove_first();
        }
    }

    fn remove_first(&mut self) {
        let Some(segment) = self.segments.pop_front() else { return };
        self.bytes -= segment.len;
        let path = path(&self.directory, segment.first);
        if let Err(error) = fs::remove_file(&path) {
            // It is found and removed at the next start.
            tracing::debug!("{}: {error}", path.display());
        }
    }

    /// Finds out what is in the directory, from the checkpoint on.
    fn scan(&mut self, firsts: &[u64]) -> io::Result<Found> {
        let mut found = Found::default();
        let checkpoint = self.checkpoint.number;
        for (index, first) in firsts.iter().copied().enumerate() {
            let path = path(&self.directory, first);
            let next = firsts.get(index + 1).copied();
            // Those before the checkpoint were left by a kill between the two.
            if next.is_some_and(|next| next <= checkpoint) {
                fs::remove_file(&path)?;
                continue;
            }
            let segment = self.scan_segment(first, next, &mut found)?;
            self.next = self.next.max(segment.end);
            if segment.pending == 0 && self.segments.is_empty() {
                // Empty, or delivered up to its last record.
                fs::remove_file(&path)?;
            } else {
                found.records += segment.unread;
                found.bytes += segment.unread_bytes;
                self.bytes += segment.len;
                self.segments.push_back(segment);
            }
        }
        // Its name will be that of the next.
        if self.segments.back().is_some_and(|segment| segment.first == self.next) {
            self.segments.pop_back();
        }
        Ok(found)
    }

    /// `next`: the number of the first record of the segment behind it.
    fn scan_segment(&mut self, first: u64, next: Option<u64>, found: &mut Found) -> io::Result<Segment> {
        let path = path(&self.directory, first);
        let file = File::open(&path)?;
        let file_len = file.metadata()?.len();
        let checkpoint = self.checkpoint.number;
        let mut segment = Segment::new(first);
        // Records between two numbers are missing, of which those below the checkpoint had ended.
        let mut lose = |from: u64, to: u64, at: u64, what: &str| {
            let lost = to.saturating_sub(from.max(checkpoint));
            if lost > 0 {
                let kept = keep(&self.directory, first);
                found.corrupt.push(format!("{} at byte {at}: {what}; records missing: {lost}{kept}", path.display()));
                found.lost += lost;
            }
        };
        'segment: while segment.len < file_len {
            fill(&file, segment.len..file_len, &mut self.chunk)?;
            let mut at = 0;
            while at < self.chunk.len() {
                let decoded = decode(&self.chunk[at..]);
                match decoded {
                    Decoded::Record(record, place, len) if place == segment.place(segment.end) => {
                        at += len;
                        segment.len += len as u64;
                        segment.end += 1;
                        if segment.end <= checkpoint {
                            (segment.unread_at, segment.unread_number) = (segment.len, segment.end);
                        } else {
                            segment.unread += 1;
                            segment.unread_bytes += record.bytes();
                        }
                    }
                    Decoded::Incomplete if at > 0 => break,
                    _ => match segment::find(&file, segment.len..file_len, segment.place(segment.end))? {
                        Some((next_at, place)) => {
                            let number = first + u64::from(place);
                            let skipped = next_at - segment.len;
                            lose(segment.end, number, segment.len, &format!("{skipped} bytes are no record"));
                            (segment.len, segment.end) = (next_at, number);
                            continue 'segment;
                        }
                        None => {
                            let left = file_len - segment.len;
                            match (next, decoded) {
                                (Some(next), _) => {
                                    lose(segment.end, next, segment.len, &format!("{left} bytes are no record"));
                                    segment.end = next;
                                }
                                // A write that did not come to its end, and so has not been acknowledged.
                                (None, Decoded::Incomplete) => {
                                    tracing::warn!(
                                        "{}: ends with {left} bytes of a record that was being written",
                                        path.display()
                                    );
                                }
                                // How many there were is not known.
                                (None, _) => {
                                    let what = format!("{left} bytes are no record, and nothing tells how many they were");
                                    lose(segment.end, segment.end.max(checkpoint) + 1, segment.len, &what);
                                }
                            }
                            break 'segment;
                        }
                    },
                }
            }
        }
        if segment.len == file_len
            && let Some(next) = next
        {
            lose(segment.end, next, segment.len, "it ends too early");
            segment.end = next;
        }
        segment.pending = segment.unread;
        Ok(segment)
    }
}

fn path(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:020}.{EXTENSION}"))
}

/// Lets a damaged segment outlive its records; the end of the line that tells of it.
fn keep(directory: &Path, first: u64) -> String {
    let segment = path(directory, first);
    let kept = segment.with_extension("corrupt");
    let is_kept = |entry: &io::Result<fs::DirEntry>| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "corrupt"))
    };
    let count = fs::read_dir(directory).map_or(KEPT_MAX, |entries| entries.filter(is_kept).count());
    if kept.exists() || (count < KEPT_MAX && fs::hard_link(&segment, &kept).is_ok()) {
        format!("; the file is kept as {}", kept.display())
    } else {
        String::new()
    }
}

/// Makes the directory where it is not there, takes its lock, and opens its checkpoint.
fn prepare(directory: &Path) -> io::Result<(File, Checkpoint)> {
    fs::create_dir_all(directory)?;
    let lock = File::options().write(true).create(true).truncate(false).open(directory.join("lock"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(io::Error::other("another broker uses it")),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    Ok((lock, Checkpoint::open(&directory.join("checkpoint"))?))
}

/// The segments of a directory, by the numbers of their first records, in order.
fn firsts(directory: &Path) -> io::Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == EXTENSION) {
            let first = file.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).filter(|first| *first <= u64::MAX / 2);
            match first {
                Some(first) if path(directory, first) == file => firsts.push(first),
                _ => return Err(io::Error::other(format!("{} is no file of a disk buffer: move it away", file.display()))),
            }
        }
    }
    firsts.sort_unstable();
    Ok(firsts)
}

/// Whether a directory is for sinks of this kind; if not, which kind it is for.
///
/// # Errors
/// It is none that this version can read.
fn check_format(directory: &Path, kind: &str, has_segments: bool) -> io::Result<Result<(), String>> {
    let found = match fs::read_to_string(directory.join("format")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_segments => return Ok(Err(String::new())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        result => result?,
    };
    match found.strip_prefix(FORMAT).map(str::trim_end) {
        Some(found) if found == kind => Ok(Ok(())),
        Some(found) => Ok(Err(found.to_owned())),
        None => Err(io::Error::other(
            "it holds records in a format of another version: let that version deliver them, or name another disk_path",
        )),
    }
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
        let mut checkpoint = Self { file, number: first.max(second).unwrap_or(0), place: u64::from(first > second) };
        if bytes.len() < 2 * PLACE_BYTES {
            // A disk that gets full has room for what is already there.
            checkpoint.write(checkpoint.number)?;
            checkpoint.write(checkpoint.number)?;
        }
        Ok(checkpoint)
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
