//! A file of the disk buffer: records one behind another, each with a head by which it is found again where what lies before it has been
//! damaged.
//!
//! The head, little-endian: the length of the record (four bytes), its CRC-32 (four), its place in the segment, which is its number less
//! that of the first (four), and the CRC-32 of these twelve bytes. So a wrong length is told from the end of a write that was cut short, and what
//! is missing can be counted.

use crate::record::Record;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Before each record.
pub const HEAD_BYTES: usize = 16;
/// Read at once, or one record if it is longer.
pub const READ_BYTES: usize = 256 << 10;

/// Appends a record as it stands in a file.
pub fn encode(record: &Record, place: u32, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    record.write(out);
    let (head, body) = out[begin..].split_at_mut(HEAD_BYTES);
    let len = u32::try_from(body.len()).expect("a record is less than 4 GiB");
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4..8].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    head[8..12].copy_from_slice(&place.to_le_bytes());
    let crc = crc32fast::hash(&head[..12]);
    head[12..].copy_from_slice(&crc.to_le_bytes());
}

struct Head {
    len: usize,
    crc: u32,
    place: u32,
}

impl Head {
    /// `None`: no head begins here.
    fn read(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (len, crc, place) = (word(0)?, word(4)?, word(8)?);
        (crc32fast::hash(&bytes[..12]) == word(12)?).then_some(Self { len: len as usize, crc, place })
    }
}

#[derive(Debug)]
pub enum Decoded {
    /// A record, its place, and the bytes that it takes.
    Record(Record, u32, usize),
    /// What is here begins as a record does, and there may be more of it.
    Incomplete,
    Corrupt,
}

pub fn decode(bytes: &[u8]) -> Decoded {
    if bytes.len() < HEAD_BYTES {
        return Decoded::Incomplete;
    }
    let Some(Head { len, crc, place }) = Head::read(bytes) else { return Decoded::Corrupt };
    let Some(body) = bytes.get(HEAD_BYTES..HEAD_BYTES + len) else { return Decoded::Incomplete };
    match Record::read(body) {
        Some(record) if crc32fast::hash(body) == crc => Decoded::Record(record, place, HEAD_BYTES + len),
        _ => Decoded::Corrupt,
    }
}

/// Reads a chunk at the begin of a range, long enough for the first record in it if that is whole.
pub fn fill(file: &File, range: Range<u64>, chunk: &mut Vec<u8>) -> io::Result<()> {
    let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    read_at(file, range.start, left.min(READ_BYTES), chunk)?;
    if let Some(head) = Head::read(chunk) {
        let needed = HEAD_BYTES + head.len;
        if needed > chunk.len() && needed <= left {
            read_at(file, range.start, needed, chunk)?;
        }
    }
    Ok(())
}

/// Where the next record begins that is whole and has at least this place. Every byte is tried: nothing says how long what is damaged is.
pub fn find(file: &File, range: Range<u64>, place: u32) -> io::Result<Option<(u64, u32)>> {
    let (mut window, mut record) = (Vec::new(), Vec::new());
    let mut at = range.start;
    while at + HEAD_BYTES as u64 <= range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        read_at(file, at, left.min(READ_BYTES), &mut window)?;
        if window.len() < HEAD_BYTES {
            return Ok(None);
        }
        for (begin, bytes) in (at..).zip(window.windows(HEAD_BYTES)) {
            if Head::read(bytes).is_some_and(|head| head.place >= place) {
                fill(file, begin..range.end, &mut record)?;
                if let Decoded::Record(_, place, _) = decode(&record) {
                    return Ok(Some((begin, place)));
                }
            }
        }
        at += (window.len() - HEAD_BYTES + 1) as u64;
    }
    Ok(None)
}

/// How many whole records a range has and their [`Record::bytes`].
pub fn survey(file: &File, mut range: Range<u64>, mut place: u32, chunk: &mut Vec<u8>) -> io::Result<(u64, u64)> {
    let (mut records, mut bytes) = (0, 0);
    while range.start < range.end {
        fill(file, range.clone(), chunk)?;
        let mut at = 0;
        loop {
            match decode(&chunk[at..]) {
                Decoded::Record(record, found, len) if found >= place => {
                    records += 1;
                    bytes += record.bytes();
                    place = found + 1;
                    at += len;
                }
                Decoded::Incomplete if at > 0 => break,
                _ => match find(file, range.start + at as u64 + 1..range.end, place)? {
                    Some((next, _)) => {
                        at = (next - range.start) as usize;
                        break;
                    }
                    None => return Ok((records, bytes)),
                },
            }
        }
        range.start += at as u64;
    }
    Ok((records, bytes))
}

/// Reads `len` bytes, fewer only where the file ends.
pub fn read_at(file: &File, at: u64, len: usize, chunk: &mut Vec<u8>) -> io::Result<()> {
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
