//! When a shard may sleep, and what it says and hears before and after.

use super::{SHUTDOWN_INTERVAL, Turn};
use crate::ids::CoreId;
use crate::runtime::board::{ProcessPhase, Stage};
use crate::runtime::core::Core;
use crate::runtime::ring::SENDS_MAX;
use crate::runtime::sockets::CLOSING;
use std::io;

impl<C: Core> Turn<C> {
    /// Whether there is something to do, but for sends that leave nothing behind.
    pub(super) fn is_busy(&self) -> bool {
        self.more
            || self.plane.may_be_ready()
            || (self.reads_are_on() && !self.ready.is_empty())
            || self.listeners.iter().any(|listener| listener.is_hot(self.now))
            || self.owed.len() > SENDS_MAX
            || self.owed.iter().any(|&id| self.sockets.has(id, CLOSING) || !self.core.is_last_piece(id))
    }

    /// Whether there is nothing to do until something happens. If so, what was owed has been sent and the shard has announced that
    /// it sleeps.
    pub(super) fn may_sleep(&mut self) -> io::Result<bool> {
        if self.is_busy() {
            return Ok(false);
        }
        // A send that failed or was cut short is the core's business.
        if !self.owed.is_empty() && !self.exchange(false)? {
            return Ok(false);
        }
        for peer in self.mesh.peers() {
            let awaited = self.mesh.is_outstanding(peer) && self.core.awaits_progress(CoreId(peer as u8));
            self.mesh.await_progress(peer, awaited);
        }
        if let Some(sinks) = &self.sinks {
            sinks.await_room(self.core.awaits_sinks());
        }
        self.mesh.doorbell().announce_sleep();
        let has_news = self.mesh.has_news()
            || self.board.phase() != self.phase
            || self.sinks.as_ref().is_some_and(|sinks| sinks.has_news() || self.core.sinks_may_go_on());
        if has_news {
            self.wake_up();
        }
        Ok(!has_news)
    }

    pub(super) fn wake_up(&mut self) {
        self.mesh.doorbell().end_sleep();
        for peer in self.mesh.peers() {
            self.mesh.await_progress(peer, false);
        }
        if let Some(sinks) = &self.sinks {
            sinks.await_room(false);
        }
    }

    pub(super) fn sleep(&mut self) {
        let mut deadline = self.core.next_deadline().min(self.closing.next_deadline()).min(self.sys_at);
        for listener in &self.listeners {
            deadline = deadline.min(listener.next_deadline());
        }
        if self.news {
            deadline = deadline.min(self.publish_at);
        }
        if self.phase != ProcessPhase::Running {
            deadline = deadline.min(self.now + SHUTDOWN_INTERVAL);
        }
        self.here().turn.enter(Stage::Asleep);
        self.plane.sleep(self.now, deadline);
        self.wake_up();
        self.now = self.clock.now();
        self.here().turn.begin(self.now);
        self.shell.wakes += 1;
    }
}
