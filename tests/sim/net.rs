//! The network between clients and shards: all sockets, how long bytes are on their way, and the trace of what happened.

use crate::random::Random;
use crate::socket::{End, Owner, Socket};
use corelane::time::Time;
use std::cell::RefCell;
use std::time::Duration;

pub struct Net {
    pub sockets: Vec<Socket>,
    /// Those that the broker has not closed.
    pub open: Vec<usize>,
    pub random: Random,
    pub trace: Trace,
    /// Topics that somebody has just been confirmed a subscription to: now is the moment to publish there.
    pub fresh_topics: Vec<(usize, &'static str)>,
    pub shards: usize,
    pub rough: bool,
}

impl Net {
    fn latency(&mut self) -> Duration {
        let us = match self.random.below(if self.rough { 30 } else { 100 }) {
            0 => self.random.between(1_000, 300_000),
            1..=10 => self.random.between(0, 5_000),
            _ => self.random.between(0, 100),
        };
        Duration::from_micros(us)
    }

    /// A client connects; some shard will accept it.
    pub fn open(&mut self, client: usize) -> usize {
        let window = if self.random.one_in(4) { self.random.between(50, 5_000) as usize } else { 256 << 10 };
        let shard = self.random.below(self.shards);
        self.sockets.push(Socket::new(client, shard, window));
        self.open.push(self.sockets.len() - 1);
        self.sockets.len() - 1
    }

    /// The broker closes it.
    pub fn close(&mut self, socket: usize) {
        self.sockets[socket].owner = Owner::Closed;
        self.sockets[socket].closing = None;
        self.open.retain(|open| *open != socket);
    }

    /// The client writes; the bytes arrive in pieces.
    pub fn write(&mut self, socket: usize, bytes: &[u8], now: Time) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = if self.random.one_in(4) { 1 + self.random.below(rest.len()) } else { rest.len() };
            let arrives = now + self.latency();
            self.sockets[socket].to_broker.push(&rest[..n], arrives);
            rest = &rest[n..];
        }
    }

    /// The broker's bytes leave for the client.
    pub fn send(&mut self, socket: usize, bytes: &[u8], now: Time) {
        let arrives = now + self.latency();
        let socket = &mut self.sockets[socket];
        if socket.client_end.is_none() {
            socket.to_client.push(bytes, arrives);
        }
    }

    pub fn end(&mut self, socket: usize, end: End, now: Time) {
        let arrives = now + self.latency();
        let lose = end == End::Reset && self.random.one_in(2);
        let socket = &mut self.sockets[socket];
        socket.end(end, arrives);
        if lose {
            socket.to_broker.clear();
        }
    }
}

/// What happened, line by line; kept only when a run is repeated to be understood.
pub struct Trace {
    pub on: bool,
    pub lines: Vec<(Time, String)>,
}

impl Trace {
    pub fn say(&mut self, now: Time, line: impl FnOnce() -> String) {
        if self.on {
            self.lines.push((now, line()));
        }
    }
}

thread_local! {
    static LOST: RefCell<Vec<(Time, String)>> = const { RefCell::new(Vec::new()) };
}

/// The trace of the run that has just panicked.
pub fn lost_trace() -> Vec<(Time, String)> {
    LOST.take()
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            LOST.set(std::mem::take(&mut self.lines));
        }
    }
}
