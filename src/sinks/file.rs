//! Records as lines of a file, or of standard output: the sink that needs no server. A batch is one write, on a thread that may wait for
//! a slow disk. A file that was moved or removed (log rotation) is made anew with the next batch.

use super::options::FileOptions;
use super::target::{Pending, Report, Target, Verdict};
use crate::record::Record;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub struct FileTarget {
    /// `None`: standard output.
    path: Option<PathBuf>,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    file: Option<File>,
    /// The last write ended within a line, which the next one closes.
    torn: bool,
}

impl FileTarget {
    pub fn new(options: &FileOptions) -> Self {
        let path = (!matches!(options.path.as_str(), "" | "-")).then(|| PathBuf::from(&options.path));
        Self { path, open: Arc::default() }
    }
}

impl Target for FileTarget {
    fn probe(&self) -> Pending<'_, Result<(), String>> {
        let (path, open) = (self.path.clone(), Arc::clone(&self.open));
        Box::pin(async move {
            let Some(path) = path else { return Ok(()) };
            let probe = move || current(&mut lock(&open).file, &path).map(drop).map_err(|error| failure(&path, &error));
            tokio::task::spawn_blocking(probe).await.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn deliver<'a>(&'a self, records: &'a [Record]) -> Pending<'a, Report> {
        Box::pin(async move {
            let mut lines = Vec::new();
            let ends: Vec<usize> = records
                .iter()
                .map(|record| {
                    let begin = lines.len();
                    lines.extend_from_slice(record.part(0));
                    // A record is one line, whatever its template has put into it.
                    lines[begin..].iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
                    lines.push(b'\n');
                    lines.len()
                })
                .collect();
            let (path, open) = (self.path.clone(), Arc::clone(&self.open));
            let write = move || match &path {
                None => {
                    write_counted(&mut io::stdout().lock(), &mut lock(&open).torn, &lines).map_err(|(n, e)| (n, e.to_string()))
                }
                Some(path) => {
                    let open = &mut *lock(&open);
                    let result = current(&mut open.file, path).map_err(|error| (0, error));
                    let result = result.and_then(|mut file| write_counted(&mut file, &mut open.torn, &lines));
                    result.map_err(|(written, error)| (written, failure(path, &error)))
                }
            };
            match tokio::task::spawn_blocking(write).await {
                Ok(Ok(())) => Report::delivered(records.len()),
                Ok(Err((written, error))) => {
                    let verdict = |end: &usize| if *end <= written { Verdict::Delivered } else { Verdict::Again };
                    Report { verdicts: ends.iter().map(verdict).collect(), error: Some(error) }
                }
                Err(error) => Report::again(records.len(), error.to_string()),
            }
        })
    }
}

fn lock(open: &Mutex<Open>) -> std::sync::MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn failure(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The file that has this name now.
fn current<'a>(file: &'a mut Option<File>, path: &Path) -> io::Result<&'a File> {
    let is_current = |file: &File| {
        let (open, named) = (file.metadata().ok()?, fs::metadata(path).ok()?);
        Some((open.dev(), open.ino()) == (named.dev(), named.ino()))
    };
    if file.as_ref().and_then(is_current) != Some(true) {
        *file = None;
    }
    match file {
        Some(file) => Ok(file),
        none => Ok(none.insert(File::options().append(true).create(true).open(path)?)),
    }
}

/// Writes everything; on an error, how many bytes of `lines` were written.
fn write_counted(out: &mut dyn Write, torn: &mut bool, lines: &[u8]) -> Result<(), (usize, io::Error)> {
    if *torn {
        out.write_all(b"\n").map_err(|error| (0, error))?;
        *torn = false;
    }
    let mut written = 0;
    let failed = loop {
        if written == lines.len() {
            match out.flush() {
                Ok(()) => return Ok(()),
                Err(error) => break error,
            }
        }
        match out.write(&lines[written..]) {
            Ok(0) => break io::ErrorKind::WriteZero.into(),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break error,
        }
    };
    *torn = written > 0 && lines[written - 1] != b'\n';
    Err((written, failed))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Directory, record};
    use super::*;

    fn deliver(target: &FileTarget, lines: &[&str]) -> Report {
        let records: Vec<Record> = lines.iter().map(|line| record(0, &[line.as_bytes()])).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(target.deliver(&records))
    }

    #[test]
    fn records_are_appended_as_lines_and_a_file_that_was_moved_is_made_anew() {
        let directory = Directory::new();
        let path = directory.path("lines");
        let target = FileTarget::new(&FileOptions { path: path.to_str().unwrap().to_owned() });
        fs::write(&path, "before\n").unwrap();
        assert_eq!(deliver(&target, &["a", "b"]), Report::delivered(2));
        fs::rename(&path, directory.path("moved")).unwrap();
        assert_eq!(deliver(&target, &["c"]), Report::delivered(1));
        fs::remove_file(&path).unwrap();
        assert_eq!(deliver(&target, &["d"]), Report::delivered(1));
        assert_eq!(fs::read_to_string(directory.path("moved")).unwrap(), "before\na\nb\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "d\n");
    }

    #[test]
    fn line_breaks_within_a_record_become_spaces() {
        let directory = Directory::new();
        let path = directory.path("lines");
        let target = FileTarget::new(&FileOptions { path: path.to_str().unwrap().to_owned() });
        assert_eq!(deliver(&target, &["a\nb\r\nc", "\n"]), Report::delivered(2));
        assert_eq!(fs::read_to_string(&path).unwrap(), "a b  c\n \n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_tried_again() {
        let directory = Directory::new();
        let target = FileTarget::new(&FileOptions { path: directory.path("missing/lines").to_str().unwrap().to_owned() });
        let report = deliver(&target, &["a"]);
        assert_eq!(report.verdicts, [Verdict::Again]);
        assert!(report.error.unwrap().contains("missing/lines: "));
        fs::create_dir(directory.path("missing")).unwrap();
        assert_eq!(deliver(&target, &["a"]), Report::delivered(1));
    }

    /// Takes so many bytes, then fails.
    struct Full(Vec<u8>, usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.1 - self.0.len());
            self.0.extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn whole_lines_of_a_write_that_failed_count_and_a_torn_one_stays_a_line_of_its_own() {
        let (mut file, mut torn) = (Full(Vec::new(), 7), false);
        let (written, _) = write_counted(&mut file, &mut torn, b"one\ntwo2\n").unwrap_err();
        assert_eq!((written, torn), (7, true));
        assert_eq!(write_counted(&mut file, &mut torn, b"two2\n").unwrap_err().0, 0);
        file.1 = 100;
        write_counted(&mut file, &mut torn, b"two2\n").unwrap();
        assert_eq!((file.0, torn), (b"one\ntwo\ntwo2\n".to_vec(), false));
    }
}
