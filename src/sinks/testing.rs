//! What the tests of this module share.

use crate::record::{ActionId, Parts, Record};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A directory that goes with its test.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("corelane-sinks-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub fn record(action: u16, parts: &[&[u8]]) -> Record {
    let mut writer = Parts::default();
    for part in parts {
        writer.part().extend_from_slice(part);
        writer.end();
    }
    Record::new(ActionId(action), 1_700_000_000_000_000, false, &mut writer)
}
