//! A small core for tests and measurements of the shell: it echoes, and does the other things that a core asks of its shell when a
//! client's bytes tell it to. The first byte of what is received is the command:
//!
//! `C` say "bye" and close · `B` send [`BLOB_BYTES`] in pieces · `M` send three pieces of [`PIECE_BYTES`] · `P` pause reading for [`PAUSE_MS`] · `H` hand the connection to the next
//! core, which says "moved" · `A` ask the next core, which answers through its ring, and say "answered" · `S` never end the turn ·
//! anything else: echo.

use super::core::Core;
use crate::ids::{ConnectionId, CoreId};
use crate::shard::peer::{MeshMessage, Parcel, Progress};
use crate::shard::sys_snapshot::Snapshot;
use crate::shard::{Counters, Effects, Phase, ShardLoad};
use crate::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

pub const BLOB_BYTES: usize = 32 << 20;
const BLOB_PIECE_BYTES: usize = 1 << 20;
pub const PIECE_BYTES: usize = 5_000;
pub const PAUSE_MS: u64 = 200;

#[derive(Default)]
struct Connection {
    generation: u32,
    /// Negative in a free slot.
    socket: i32,
    pieces: VecDeque<Vec<u8>>,
    sent: usize,
    flushing: bool,
    closing: bool,
}

/// What an echo core tells the test that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    Unread,
    End { reset: bool },
    Closed,
    Moved { peer_gone: bool },
    Sys { shards: usize, accepted: u64 },
    Phase(Phase),
}

pub struct EchoCore {
    effects: Effects,
    counters: Counters,
    core: usize,
    cores: usize,
    connections: Vec<Connection>,
    free: Vec<u32>,
    flush: Vec<ConnectionId>,
    paused: VecDeque<(Time, ConnectionId)>,
    phase: Phase,
    tell: Box<dyn Fn(Told)>,
}

impl EchoCore {
    pub fn new(core: CoreId, cores: usize, tell: impl Fn(Told) + 'static) -> Self {
        let mut effects = Effects::default();
        effects.mesh.resize_with(cores, Vec::new);
        Self {
            effects,
            counters: Counters::default(),
            core: core.index(),
            cores,
            connections: Vec::new(),
            free: Vec::new(),
            flush: Vec::new(),
            paused: VecDeque::new(),
            phase: Phase::Running,
            tell: Box::new(tell),
        }
    }

    fn add(&mut self, socket: i32) -> ConnectionId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.connections.push(Connection { socket: -1, ..Connection::default() });
            self.connections.len() as u32 - 1
        });
        let connection = &mut self.connections[slot as usize];
        let generation = connection.generation + 1;
        *connection = Connection { generation, socket, ..Connection::default() };
        ConnectionId { slot, generation }
    }

    fn remove(&mut self, id: ConnectionId) {
        self.connections[id.slot as usize].socket = -1;
        self.free.push(id.slot);
    }

    fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = &self.connections[id.slot as usize];
        (connection.generation == id.generation && connection.socket >= 0).then_some(connection)
    }

    fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = &mut self.connections[id.slot as usize];
        (connection.generation == id.generation && connection.socket >= 0).then_some(connection)
    }

    fn write(&mut self, id: ConnectionId, bytes: &[u8]) {
        let Some(connection) = self.get_mut(id) else { return };
        match connection.pieces.back_mut() {
            Some(piece) if piece.len() < 4096 => piece.extend_from_slice(bytes),
            _ => connection.pieces.push_back(bytes.to_vec()),
        }
        if !std::mem::replace(&mut connection.flushing, true) {
            self.flush.push(id);
        }
    }

    fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get_mut(id)
            && !std::mem::replace(&mut connection.closing, true)
        {
            self.effects.closes.push(id);
        }
    }

    fn push(&mut self, to: usize, message: MeshMessage) {
        self.effects.mesh[to].push(message);
    }
}

impl Core for EchoCore {
    fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn load(&self) -> ShardLoad {
        ShardLoad { connections: self.connections() as u64, ..ShardLoad::default() }
    }

    fn connections(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    fn on_accepted(&mut self, socket: i32, _listener: u16, _now: Time) -> Option<ConnectionId> {
        self.counters.connections_accepted += 1;
        Some(self.add(socket))
    }

    fn on_received(&mut self, id: ConnectionId, bytes: &[u8], now: Time) {
        let next = (self.core + 1) % self.cores;
        match bytes.first() {
            Some(b'C') => {
                self.write(id, b"bye");
                self.close(id);
            }
            Some(b'B') => {
                for number in 0..BLOB_BYTES / BLOB_PIECE_BYTES {
                    self.write(id, &vec![number as u8; BLOB_PIECE_BYTES]);
                }
            }
            Some(b'M') => (1..=3).for_each(|number| self.write(id, &[number; PIECE_BYTES])),
            Some(b'P') => {
                self.effects.pauses.push(id);
                self.paused.push_back((now + Duration::from_millis(PAUSE_MS), id));
            }
            Some(b'H') => {
                let Some(socket) = self.get(id).map(|connection| connection.socket) else { return };
                self.remove(id);
                self.effects.departures.push(socket);
                let bytes = bytes[1..].to_vec();
                let parcel = Parcel { socket, listener: 0, connect_read_at: now, bytes, peer_address: None, peer_gone: false };
                self.push(next, MeshMessage::Parcel(Box::new(parcel)));
            }
            Some(b'A') => {
                let filter = format!("{} {}", id.slot, id.generation).into();
                self.push(next, MeshMessage::Group { filter, online: 0, offline: 0 });
            }
            Some(b'S') => std::thread::park(),
            _ => self.write(id, bytes),
        }
    }

    fn on_receive_end(&mut self, id: ConnectionId, reset: bool, _now: Time) {
        (self.tell)(Told::End { reset });
        self.close(id);
    }

    fn on_unread(&mut self, _id: ConnectionId) {
        (self.tell)(Told::Unread);
    }

    fn take_flush(&mut self, flush: &mut Vec<ConnectionId>) {
        for id in std::mem::take(&mut self.flush) {
            if let Some(connection) = self.get_mut(id) {
                connection.flushing = false;
                flush.push(id);
            }
        }
    }

    fn outbox(&self, id: ConnectionId) -> Option<&[u8]> {
        let connection = self.get(id)?;
        connection.pieces.front().map(|piece| &piece[connection.sent..])
    }

    fn is_last_piece(&self, id: ConnectionId) -> bool {
        self.get(id).is_none_or(|connection| connection.pieces.len() <= 1)
    }

    fn on_sent(&mut self, id: ConnectionId, n: usize, _now: Time) {
        let Some(connection) = self.get_mut(id) else { return };
        connection.sent += n;
        if connection.pieces.front().is_some_and(|piece| piece.len() == connection.sent) {
            connection.pieces.pop_front();
            connection.sent = 0;
        }
    }

    fn on_closed(&mut self, id: ConnectionId, _now: Time) {
        (self.tell)(Told::Closed);
        self.remove(id);
    }

    fn socket(&self, id: ConnectionId) -> Option<i32> {
        self.get(id).map(|connection| connection.socket)
    }

    fn on_progress(&mut self, _peer: CoreId, _progress: Progress, _now: Time) {}

    fn mesh_budget(&self) -> usize {
        1024
    }

    fn on_mesh(&mut self, from: CoreId, message: MeshMessage, _now: Time) {
        match message {
            MeshMessage::Parcel(parcel) => {
                (self.tell)(Told::Moved { peer_gone: parcel.peer_gone });
                let id = self.add(parcel.socket);
                self.effects.arrivals.push(id);
                self.write(id, b"moved");
                self.write(id, &parcel.bytes);
                if parcel.peer_gone {
                    self.close(id);
                }
            }
            MeshMessage::Group { filter, online: 0, offline } => {
                self.push(from.index(), MeshMessage::Group { filter, online: 1, offline });
            }
            MeshMessage::Group { filter, .. } => {
                let (slot, generation) = filter.split_once(' ').expect("the core wrote it");
                let number = |text: &str| text.parse().expect("the core wrote it");
                self.write(ConnectionId { slot: number(slot), generation: number(generation) }, b"answered");
            }
            _ => {}
        }
    }

    fn run(&mut self, now: Time) -> bool {
        while let Some(&(until, id)) = self.paused.front() {
            if until > now {
                break;
            }
            self.paused.pop_front();
            self.effects.resumes.push(id);
        }
        if self.phase == Phase::Disconnecting {
            for slot in 0..self.connections.len() {
                let connection = &self.connections[slot];
                let id = ConnectionId { slot: slot as u32, generation: connection.generation };
                if connection.socket >= 0 && !connection.closing {
                    self.write(id, b"shutdown");
                    self.close(id);
                }
            }
        }
        false
    }

    fn next_deadline(&self) -> Time {
        self.paused.front().map_or(Time::NEVER, |(until, _)| *until)
    }

    fn publish_sys(&mut self, snapshot: &Snapshot, _now: Time) {
        (self.tell)(Told::Sys { shards: snapshot.shards.len(), accepted: snapshot.counters.connections_accepted });
    }

    fn set_phase(&mut self, phase: Phase, _now: Time) {
        self.phase = phase;
        (self.tell)(Told::Phase(phase));
    }

    fn is_drained(&self) -> bool {
        true
    }
}
