//! Bytes from and to the sockets: what is ready is received, what is owed is sent, in one system call for both.

use super::Turn;
use crate::ids::ConnectionId;
use crate::runtime::board::Stage;
use crate::runtime::core::Core;
use crate::runtime::ring::{RECEIVE_BYTES, Ready, SENDS_MAX};
use crate::runtime::sockets::{BROKEN, CLOSING, ENDED, ENDING, FULL, OWED, PAUSED, READY, Token};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

impl<C: Core> Turn<C> {
    /// Sends what is owed and, if asked to, receives what is ready. Whether each send went out whole.
    pub(super) fn exchange(&mut self, receive: bool) -> io::Result<bool> {
        self.here().turn.enter(Stage::Exchange);
        self.sending.clear();
        self.receiving.clear();
        let mut round = self.plane.round();
        while self.sending.len() < SENDS_MAX
            && let Some(id) = self.owed.pop_front()
        {
            match (self.core.socket(id), self.core.outbox(id)) {
                (Some(socket), Some(bytes)) => {
                    round.send(socket, bytes);
                    self.sending.push((id, bytes.len()));
                }
                (Some(_), None) => self.sockets.clear(id, OWED),
                (None, _) => {}
            }
        }
        while receive
            && self.receiving.len() < self.batch
            && let Some(id) = self.ready.pop_front()
        {
            let Some(socket) = self.core.socket(id) else { continue };
            self.sockets.clear(id, READY);
            // A paused connection is made ready again when it goes on.
            if !self.sockets.has(id, PAUSED | CLOSING | ENDED) {
                round.receive(socket);
                self.receiving.push(id);
            }
        }
        round.exchange()?;
        let turn = &self.board.shard(self.index).turn;
        turn.sends.store(self.sending.len() as u32, Relaxed);
        turn.receives.store(self.receiving.len() as u32, Relaxed);
        self.news |= !self.sending.is_empty() || !self.receiving.is_empty();
        Ok(self.settle_sends())
    }

    /// Tells the core what the sends of the last round came to. Whether each went out whole.
    pub(super) fn settle_sends(&mut self) -> bool {
        let mut whole = true;
        for position in 0..self.sending.len() {
            let (id, offered) = self.sending[position];
            if self.core.socket(id).is_none() {
                continue;
            }
            self.sockets.clear(id, OWED);
            let result = self.plane.sent(position);
            whole &= result == Ok(offered);
            match result {
                Ok(sent) => {
                    self.core.on_sent(id, sent, self.now);
                    if sent < offered {
                        self.shell.sends_cut_short += 1;
                        self.sockets.set(id, FULL);
                    } else if self.core.outbox(id).is_some() {
                        self.owe(id);
                    } else if self.sockets.has(id, CLOSING) {
                        self.finish_close(id);
                    }
                }
                Err(libc::EAGAIN) => {
                    self.shell.sends_cut_short += 1;
                    self.sockets.set(id, FULL);
                }
                Err(libc::EINTR | libc::ENOMEM) => self.owe(id),
                Err(_) => self.on_send_failed(id),
            }
        }
        self.sending.clear();
        whole
    }

    pub(super) fn on_send_failed(&mut self, id: ConnectionId) {
        self.sockets.set(id, BROKEN);
        if self.sockets.has(id, CLOSING) {
            self.finish_close(id);
        } else if self.sockets.has(id, PAUSED | ENDED) || !self.reads_are_on() {
            self.on_end(id);
        } else {
            // What the peer sent before it went is still there and counts.
            self.make_ready(id);
        }
    }

    /// Takes a batch of readiness events.
    pub(super) fn take_readiness(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.plane.ready(&mut events);
        for event in events.drain(..) {
            match Token::from_bits(event.token) {
                Token::Connection(id) => self.on_ready(id, event),
                Token::Listener(index) => {
                    if let Some(listener) = self.listeners.get_mut(index) {
                        listener.on_ready();
                    }
                }
                Token::Lingering { index, generation } => self.closing.on_ready(index, generation),
            }
        }
        self.events = events;
    }

    pub(super) fn on_ready(&mut self, id: ConnectionId, event: Ready) {
        if self.core.socket(id).is_none() {
            return;
        }
        if event.writable() && self.sockets.has(id, FULL) {
            self.sockets.clear(id, FULL);
            self.owe(id);
        }
        if !event.readable() {
            return;
        }
        if event.ending() {
            self.sockets.set(id, ENDING);
        }
        if event.broken() {
            self.sockets.set(id, BROKEN);
        }
        if self.sockets.has(id, CLOSING) {
            // Bytes are thrown away when everything is sent.
            if event.broken() {
                self.finish_close(id);
            }
        } else if self.sockets.has(id, PAUSED) {
            self.core.on_unread(id);
            if event.broken() {
                self.on_end(id);
            }
        } else {
            self.make_ready(id);
        }
    }

    pub(super) fn make_ready(&mut self, id: ConnectionId) {
        if self.sockets.set(id, READY) {
            self.ready.push_back(id);
        }
    }

    pub(super) fn owe(&mut self, id: ConnectionId) {
        if self.core.socket(id).is_some() && !self.sockets.has(id, BROKEN | FULL) && self.sockets.set(id, OWED) {
            self.owed.push_back(id);
        }
    }

    /// Hands what was received to the core.
    pub(super) fn take_received(&mut self) {
        self.here().turn.enter(Stage::Received);
        for position in 0..self.receiving.len() {
            let id = self.receiving[position];
            // It may have been closed since, by what came from another core.
            if self.core.socket(id).is_none() || self.sockets.has(id, CLOSING) {
                continue;
            }
            match self.plane.received(position) {
                Ok([]) => self.on_end(id),
                Ok(bytes) => {
                    let filled = bytes.len() == RECEIVE_BYTES;
                    self.core.on_received(id, bytes, self.now);
                    // A connection that has left for another core is looked at there.
                    if (filled || self.sockets.has(id, ENDING)) && self.core.socket(id).is_some() {
                        self.make_ready(id);
                    }
                }
                Err(libc::EAGAIN) => {}
                Err(libc::EINTR | libc::ENOMEM) => self.make_ready(id),
                Err(_) => {
                    self.sockets.set(id, BROKEN);
                    self.on_end(id);
                }
            }
        }
        self.receiving.clear();
    }

    /// The peer has sent its last byte, or the connection broke.
    pub(super) fn on_end(&mut self, id: ConnectionId) {
        if self.sockets.set(id, ENDED) {
            self.core.on_receive_end(id, self.sockets.has(id, BROKEN), self.now);
        }
    }
}
