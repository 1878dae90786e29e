//! A TCP connection between a simulated client and the shards: two pipes that delay and split bytes anywhere, either end of which may
//! stall, end or break. Bytes keep their order; nothing is lost but by a reset.

use corelane::ids::ConnectionId;
use corelane::time::Time;
use std::collections::VecDeque;

/// One direction.
#[derive(Default)]
pub struct Pipe {
    chunks: VecDeque<(Time, Vec<u8>)>,
    len: usize,
    last: Time,
}

impl Pipe {
    pub fn push(&mut self, bytes: &[u8], arrives: Time) {
        if bytes.is_empty() {
            return;
        }
        self.last = self.last.max(arrives);
        self.len += bytes.len();
        self.chunks.push_back((self.last, bytes.to_vec()));
    }

    /// At most `max` of the bytes that have arrived.
    pub fn take(&mut self, max: usize, now: Time) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some((arrives, chunk)) = self.chunks.front_mut()
            && *arrives <= now
        {
            let n = chunk.len().min(max - taken.len());
            taken.extend(chunk.drain(..n));
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.len -= taken.len();
        taken
    }

    pub fn arrived(&self, now: Time) -> bool {
        self.chunks.front().is_some_and(|(arrives, _)| *arrives <= now)
    }

    pub fn next_arrival(&self) -> Option<Time> {
        self.chunks.front().map(|(arrives, _)| *arrives)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }
}

/// How the client has ended its side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// FIN: what it wrote before still arrives.
    Finished,
    Reset,
}

/// Where the socket is watched for readiness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// Waits to be accepted by that shard.
    Backlog(usize),
    Shard(usize, ConnectionId),
    /// In a parcel between two shards.
    Moving,
    Closed,
}

pub struct Socket {
    pub client: usize,
    pub to_broker: Pipe,
    pub to_client: Pipe,
    pub client_end: Option<End>,
    /// When a FIN or reset is seen by the broker, once what was written before has been read.
    pub client_end_arrives: Time,
    pub end_reported: bool,
    pub owner: Owner,
    pub paused: bool,
    pub unread_reported: bool,
    /// The shell is to close it when everything is sent, at the latest then.
    pub closing: Option<Time>,
    /// Bytes the client's kernel takes before the socket is no longer writable.
    pub window: usize,
    /// The client does not read before then.
    pub stalled_until: Time,
    /// Length of the CONNECT, the first packet written, and how much of it has not been read.
    pub connect_unread: usize,
    /// When the broker had read it whole, and how many CONNECTs of any client had been read before.
    pub connect_read: Option<(Time, u64)>,
    pub accepted_at: Time,
    pub last_received: Time,
    pub keep_alive_s: u16,
    /// The client has sent DISCONNECT or something illegal, so a close by the broker needs no further reason.
    pub may_close: bool,
}

impl Socket {
    pub fn new(client: usize, shard: usize, window: usize) -> Self {
        Self {
            client,
            to_broker: Pipe::default(),
            to_client: Pipe::default(),
            client_end: None,
            client_end_arrives: Time(0),
            end_reported: false,
            owner: Owner::Backlog(shard),
            paused: false,
            unread_reported: false,
            closing: None,
            window,
            stalled_until: Time(0),
            connect_unread: 0,
            connect_read: None,
            accepted_at: Time(0),
            last_received: Time(0),
            keep_alive_s: 0,
            may_close: false,
        }
    }

    pub fn end(&mut self, end: End, arrives: Time) {
        if self.client_end.is_some() {
            return;
        }
        self.client_end = Some(end);
        self.client_end_arrives = arrives;
        if end == End::Reset {
            self.to_client.clear();
        }
    }

    pub fn is_open(&self) -> bool {
        self.client_end.is_none() && self.owner != Owner::Closed && self.closing.is_none()
    }

    /// The broker has closed it and the client has read all.
    pub fn is_closed_by_broker(&self) -> bool {
        self.owner == Owner::Closed && self.to_client.len() == 0
    }

    pub fn is_writable(&self) -> bool {
        self.client_end.is_some() || self.to_client.len() < self.window
    }
}
