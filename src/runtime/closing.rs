//! The end of a connection. A socket that is closed with unread bytes sends a reset, and a reset makes the peer's kernel throw away
//! what we sent last: our DISCONNECT. So: send what is owed (for at most a second), end the sending side, throw away what still comes
//! (at most 64 kB, for at most a second), and close at the peer's end.
//!
//! The core's slot is free once the last bytes are sent; from then on the socket is in the table here, under a token of its own.
//! A connection that does not take its last bytes in that time is closed with a reset.

use super::ring::Plane;
use super::ring::system::{self, Discarded};
use super::sockets::Token;
use crate::ids::ConnectionId;
use crate::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// How long the last bytes may take, and then how long the peer may take to end.
pub const LINGER: Duration = Duration::from_secs(1);
/// Bytes thrown away before the peer is no longer listened to.
const DISCARDED_MAX: usize = 64 << 10;

struct Lingering {
    /// Negative in a free entry.
    socket: i32,
    generation: u32,
    discarded: usize,
}

#[derive(Default)]
pub struct Closing {
    /// Connections whose last bytes are on their way, by the time they must be through. All wait equally long, so in order.
    flushing: VecDeque<(Time, ConnectionId)>,
    lingering: Vec<Lingering>,
    free: Vec<u32>,
    /// By the time they are closed at the latest.
    deadlines: VecDeque<(Time, u32, u32)>,
}

impl Closing {
    /// The core wants a connection closed; its last bytes are being sent.
    pub fn begin(&mut self, id: ConnectionId, now: Time) {
        self.flushing.push_back((now + LINGER, id));
    }

    /// The next connection whose time to send its last bytes is over. It may have been closed long since.
    pub fn overdue(&mut self, now: Time) -> Option<ConnectionId> {
        let (deadline, id) = *self.flushing.front()?;
        if deadline > now {
            return None;
        }
        self.flushing.pop_front();
        Some(id)
    }

    /// Takes over a socket to which everything was sent. `ended`: the peer's end has been received.
    pub fn linger(&mut self, plane: &Plane, socket: i32, ended: bool, now: Time) {
        if ended {
            return system::close(socket);
        }
        system::shutdown_send(socket);
        // Often the peer has ended already; then the socket needs no place in the table.
        let mut entry = Lingering { socket, generation: 0, discarded: 0 };
        if entry.discard() {
            return system::close(socket);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.lingering.push(Lingering { socket: -1, generation: 0, discarded: 0 });
            self.lingering.len() as u32 - 1
        });
        let place = &mut self.lingering[index as usize];
        entry.generation = place.generation;
        let generation = entry.generation;
        *place = entry;
        let token = Token::Lingering { index, generation }.to_bits();
        if plane.rewatch(socket, token).or_else(|_| plane.watch(socket, token)).is_err() {
            return self.close(index);
        }
        self.deadlines.push_back((now + LINGER, index, generation));
    }

    /// Something came on a lingering socket.
    pub fn on_ready(&mut self, index: u32, generation: u32) {
        if self.is_lingering(index, generation) && self.lingering[index as usize].discard() {
            self.close(index);
        }
    }

    /// Closes the sockets that have lingered long enough. What is sent and not yet acknowledged is still delivered by the kernel.
    pub fn expire(&mut self, now: Time) {
        while let Some(&(deadline, index, generation)) = self.deadlines.front() {
            if deadline > now {
                return;
            }
            self.deadlines.pop_front();
            if self.is_lingering(index, generation) {
                self.close(index);
            }
        }
    }

    pub fn next_deadline(&self) -> Time {
        let flushing = self.flushing.front().map_or(Time::NEVER, |(deadline, _)| *deadline);
        flushing.min(self.deadlines.front().map_or(Time::NEVER, |(deadline, ..)| *deadline))
    }

    /// No socket lingers.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.lingering.len()
    }

    fn is_lingering(&self, index: u32, generation: u32) -> bool {
        let entry = &self.lingering[index as usize];
        entry.generation == generation && entry.socket >= 0
    }

    fn close(&mut self, index: u32) {
        let entry = &mut self.lingering[index as usize];
        system::close(entry.socket);
        entry.socket = -1;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index);
    }
}

impl Lingering {
    /// Throws away what has come; true: the peer has ended, or sends too much.
    fn discard(&mut self) -> bool {
        loop {
            match system::discard(self.socket, DISCARDED_MAX) {
                Discarded::Nothing => return false,
                Discarded::End => return true,
                Discarded::Bytes(n) => self.discarded += n,
            }
            if self.discarded > DISCARDED_MAX {
                return true;
            }
        }
    }
}
