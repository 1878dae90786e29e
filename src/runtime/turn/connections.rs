//! How connections begin and end: accepted, watched, closed in order or late.

use super::Turn;
use crate::ids::ConnectionId;
use crate::runtime::board::Stage;
use crate::runtime::core::Core;
use crate::runtime::listener::{ACCEPTS_MAX, Accepted};
use crate::runtime::ring::system;
use crate::runtime::sockets::{BROKEN, CLOSING, ENDED, Token};

impl<C: Core> Turn<C> {
    pub(super) fn accept(&mut self) {
        if self.listeners.is_empty() {
            return;
        }
        self.here().turn.enter(Stage::Accept);
        let mut left = ACCEPTS_MAX;
        // Each turn begins with another listener, so that a busy one leaves room for the rest.
        let first = self.shell.turns as usize;
        for offset in 0..self.listeners.len() {
            let index = (first + offset) % self.listeners.len();
            while left > 0 && self.listeners[index].is_hot(self.now) {
                left -= 1;
                match self.listeners[index].accept(self.now, system::accept) {
                    Accepted::Socket(socket) => self.on_accepted(socket, index),
                    Accepted::Nobody => {}
                    Accepted::Failed => {
                        self.shell.accepts_failed += 1;
                        self.log.accept_failed(self.now);
                    }
                    Accepted::Suspended(errno) => {
                        self.shell.accepts_suspended += 1;
                        self.log.accept_suspended(errno, self.now);
                    }
                }
            }
        }
    }

    pub(super) fn on_accepted(&mut self, socket: i32, listener: usize) {
        self.news = true;
        match self.core.on_accepted(socket, listener as u16, self.now) {
            Some(id) => {
                if self.core.wants_peer_address()
                    && let Some(address) = system::peer_address(socket)
                {
                    self.core.on_peer_address(id, address);
                }
                self.watch(id, socket);
            }
            None => system::close(socket),
        }
    }

    /// A connection begins on this core.
    pub(super) fn watch(&mut self, id: ConnectionId, socket: i32) {
        self.sockets.begin(id);
        if self.plane.watch(socket, Token::Connection(id).to_bits()).is_err() {
            self.sockets.set(id, BROKEN);
            self.on_end(id);
        }
    }

    pub(super) fn begin_close(&mut self, id: ConnectionId) {
        if self.core.socket(id).is_none() || !self.sockets.set(id, CLOSING) {
            return;
        }
        if self.sockets.has(id, BROKEN) || self.core.outbox(id).is_none() {
            self.finish_close(id);
        } else {
            self.closing.begin(id, self.now);
            self.owe(id);
        }
    }

    /// Everything is sent, or nothing can be.
    pub(super) fn finish_close(&mut self, id: ConnectionId) {
        let Some(socket) = self.core.socket(id) else { return };
        self.core.on_closed(id, self.now);
        if self.sockets.has(id, BROKEN) {
            system::close(socket);
        } else {
            self.closing.linger(&self.plane, socket, self.sockets.has(id, ENDED), self.now);
        }
    }

    pub(super) fn end_overdue(&mut self) {
        while let Some(id) = self.closing.overdue(self.now) {
            if let Some(socket) = self.core.socket(id) {
                self.core.on_closed(id, self.now);
                self.shell.closed_hard += 1;
                system::close_with_reset(socket);
            }
        }
        self.closing.expire(self.now);
    }
}
