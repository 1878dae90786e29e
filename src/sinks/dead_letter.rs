//! The file for records that a sink will never take: JSON lines `{"time", "action", "reason", "parts"}`, so that nothing acknowledged to a
//! publisher is gone without a trace. A part is a string, or `{"base64": …}` where it is not UTF-8.
//!
//! Letters of one pass are written together, before their publishers are told. The file is opened when the first is written; past
//! [`BYTES_MAX`], and when it cannot be written, letters are counted only.

use super::log_limit::LogLimit;
use super::options::SinkOptions;
use super::status::SinkStatus;
use crate::record::Record;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The size of one dead-letter file. Move it away to make room.
pub const BYTES_MAX: u64 = 256 << 20;

pub struct DeadLetters {
    path: PathBuf,
    bytes_max: u64,
    /// Lines to be written, and how many.
    lines: Vec<u8>,
    letters: u64,
    /// The reason of the latest, for the log.
    reason: String,
    written_log: LogLimit,
    unwritten_log: LogLimit,
}

impl DeadLetters {
    pub fn new(options: &SinkOptions) -> Self {
        let path = match options.buffer.dead_letter_path.as_str() {
            "" => PathBuf::from(format!("{}.dead-letters.jsonl", options.name)),
            path => PathBuf::from(path),
        };
        Self::at(path, BYTES_MAX)
    }

    fn at(path: PathBuf, bytes_max: u64) -> Self {
        let (written_log, unwritten_log) = (LogLimit::default(), LogLimit::default());
        Self { path, bytes_max, lines: Vec::new(), letters: 0, reason: String::new(), written_log, unwritten_log }
    }

    /// Adds a letter, which [`DeadLetters::write`] writes.
    pub fn add(&mut self, action: &str, record: &Record, reason: &str) {
        let part = |part: &[u8]| match str::from_utf8(part) {
            Ok(text) => Value::from(text),
            Err(_) => json!({ "base64": STANDARD.encode(part) }),
        };
        let parts: Vec<Value> = record.parts().map(part).collect();
        let time = jiff::Timestamp::now().to_string();
        let letter = json!({ "time": time, "action": action, "reason": reason, "parts": parts });
        serde_json::to_writer(&mut self.lines, &letter).expect("a vector takes everything");
        self.lines.push(b'\n');
        self.letters += 1;
        reason.clone_into(&mut self.reason);
    }

    /// Writes what was added.
    pub fn write(&mut self, status: &SinkStatus, now: Instant) {
        if self.letters == 0 {
            return;
        }
        let (sink, path, reason) = (&status.name, self.path.display(), &self.reason);
        match append(&self.path, &self.lines, self.bytes_max) {
            Ok(()) => {
                if let Some(letters) = self.written_log.count(self.letters, now) {
                    tracing::warn!(sink, "{letters} records were refused and written to {path}; the last: {reason}");
                }
            }
            Err(error) => {
                status.dead_letters_unwritten.add(self.letters);
                if let Some(letters) = self.unwritten_log.count(self.letters, now) {
                    tracing::error!(
                        sink,
                        "{letters} records were refused and not written to {path}: {error}; the last: {reason}"
                    );
                }
            }
        }
        self.lines.clear();
        self.letters = 0;
    }
}

fn append(path: &Path, lines: &[u8], bytes_max: u64) -> io::Result<()> {
    // A pipe must not hold up all sinks until somebody reads it.
    let mut file = File::options().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.len() + lines.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has reached {bytes_max} bytes")));
    }
    file.write_all(lines).inspect_err(|_| {
        // Half a line would spoil the next.
        file.set_len(metadata.len()).ok();
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Directory, record};
    use super::*;

    #[test]
    fn a_dead_letter_says_when_what_and_why_and_keeps_bytes_that_are_no_text() {
        let directory = Directory::new();
        let path = directory.path("letters");
        let mut letters = DeadLetters::at(path.clone(), 1000);
        let status = SinkStatus::default();
        letters.write(&status, Instant::now());
        assert!(!path.exists());
        letters.add("rule/2", &record(0, &[b"a\"b", &[0xFF, 0]]), "too large");
        letters.write(&status, Instant::now());
        let lines = std::fs::read_to_string(&path).unwrap();
        let letter: Value = serde_json::from_str(&lines).unwrap();
        assert_eq!(letter["action"], "rule/2");
        assert_eq!(letter["reason"], "too large");
        assert_eq!(letter["parts"], json!(["a\"b", { "base64": "/wA=" }]));
        assert!(letter["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        assert_eq!(status.dead_letters_unwritten.get(), 0);
    }

    #[test]
    fn past_its_size_and_where_it_cannot_be_written_letters_are_only_counted() {
        let directory = Directory::new();
        let path = directory.path("letters");
        let mut letters = DeadLetters::at(path.clone(), 300);
        let status = SinkStatus::default();
        for _ in 0..5 {
            letters.add("rule/1", &record(0, &[b"part"]), "refused");
            letters.write(&status, Instant::now());
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count() as u64;
        assert!(lines > 0 && lines < 5, "{lines}");
        assert_eq!(status.dead_letters_unwritten.get(), 5 - lines);
        let mut nowhere = DeadLetters::at(directory.path("missing/letters"), 300);
        nowhere.add("rule/1", &record(0, &[b"part"]), "refused");
        nowhere.write(&status, Instant::now());
        assert_eq!(status.dead_letters_unwritten.get(), 5 - lines + 1);
    }

    #[test]
    fn a_pipe_is_not_waited_for_nor_a_device_written_to() {
        let directory = Directory::new();
        let pipe = directory.path("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut letters = DeadLetters::at(pipe, 300);
        let status = SinkStatus::default();
        letters.add("rule/1", &record(0, &[b"part"]), "refused");
        letters.write(&status, Instant::now());
        assert_eq!(status.dead_letters_unwritten.get(), 1);
        assert!(append(Path::new("/dev/full"), b"line", 300).unwrap_err().to_string().contains("regular file"));
    }
}
