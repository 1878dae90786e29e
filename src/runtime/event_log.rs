//! Writes what happened to the log, at most so many lines of a kind per second: a storm of equal events is one line with a number.

use crate::shard::events::{Event, Level};
use crate::time::Time;
use std::fmt::Display;
use std::time::Duration;

/// Lines of one kind per second and shard.
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// The shell's own kinds, after those of the core.
const KINDS: usize = Event::KINDS + 2;
const ACCEPT_SUSPENDED: usize = Event::KINDS;
const ACCEPT_FAILED: usize = Event::KINDS + 1;

#[derive(Clone, Copy, Default)]
struct Window {
    ends_at: Time,
    written: u32,
    left_out: u64,
}

pub struct EventLog {
    shard: usize,
    windows: [Window; KINDS],
}

impl EventLog {
    pub fn new(shard: usize) -> Self {
        Self { shard, windows: [Window::default(); KINDS] }
    }

    pub fn event(&mut self, event: &Event, now: Time) {
        self.line(event.kind(), event.level(), now, event);
    }

    pub fn accept_suspended(&mut self, errno: i32, now: Time) {
        let error = std::io::Error::from_raw_os_error(errno);
        let line = format!("accepting is suspended, clients wait: {error}; raise LimitNOFILE or lower connections_max");
        self.line(ACCEPT_SUSPENDED, Level::Warn, now, &line);
    }

    pub fn accept_failed(&mut self, now: Time) {
        self.line(ACCEPT_FAILED, Level::Debug, now, &"a connection failed while it was being accepted");
    }

    /// Writes how many lines were left out in windows that are over; called about once a second.
    pub fn flush(&mut self, now: Time) {
        for window in &mut self.windows {
            if window.ends_at <= now {
                report(self.shard, window);
            }
        }
    }

    fn line(&mut self, kind: usize, level: Level, now: Time, line: &dyn Display) {
        if !enabled(level) {
            return;
        }
        let window = &mut self.windows[kind];
        if window.ends_at <= now {
            report(self.shard, window);
            *window = Window { ends_at: now + WINDOW, ..Window::default() };
        }
        if window.written < LINES_MAX {
            window.written += 1;
            write(self.shard, level, line);
        } else {
            window.left_out += 1;
        }
    }
}

fn report(shard: usize, window: &mut Window) {
    if window.left_out > 0 {
        write(shard, Level::Warn, &format_args!("{} more lines of one kind were left out in that second", window.left_out));
        window.left_out = 0;
    }
}

fn enabled(level: Level) -> bool {
    match level {
        Level::Error => tracing::enabled!(tracing::Level::ERROR),
        Level::Warn => tracing::enabled!(tracing::Level::WARN),
        Level::Info => tracing::enabled!(tracing::Level::INFO),
        Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
    }
}

fn write(shard: usize, level: Level, line: &dyn Display) {
    match level {
        Level::Error => tracing::error!(shard, "{line}"),
        Level::Warn => tracing::warn!(shard, "{line}"),
        Level::Info => tracing::info!(shard, "{line}"),
        Level::Debug => tracing::debug!(shard, "{line}"),
    }
}
