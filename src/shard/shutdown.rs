//! The phases of a shutdown, each entered by all cores before the next: accepts off, reads off; mesh and pending messages drained;
//! DISCONNECT 0x8B to those who understand it, and the close of every connection.

use super::Shard;
use crate::ids::ConnectionId;
use crate::time::Time;
use crate::wire::ReasonCode;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    Running,
    /// Nothing is accepted or read any more.
    ReadsOff,
    /// What was read is routed; the rings run empty.
    Draining,
    /// Clients are told and closed.
    Disconnecting,
}

impl Shard {
    pub fn set_phase(&mut self, phase: Phase, _now: Time) {
        self.phase = phase;
        self.shutdown_cursor = 0;
    }

    /// In [`Phase::Draining`]: everything read has been routed and the other cores have consumed all that was pushed to them.
    pub fn is_drained(&self) -> bool {
        let routed = self.pending.is_empty()
            && self.fanouts.is_empty()
            && !self.parking.has_ready()
            && self.unconfirmed.is_empty()
            && self.retained.is_idle()
            && !self.parking.someone_waits_for_fanouts()
            && self.sinks.is_idle();
        routed && self.peers.iter().flatten().all(|peer| peer.is_idle() && !peer.is_awaited())
    }

    pub(super) fn shutting_down_has_work(&self) -> bool {
        self.phase == Phase::Disconnecting && self.shutdown_cursor < self.connections.end()
    }

    pub(super) fn shut_down(&mut self, now: Time, budget: usize) {
        if self.phase != Phase::Disconnecting {
            return;
        }
        for _ in 0..budget {
            if self.shutdown_cursor >= self.connections.end() {
                return;
            }
            let slot = self.shutdown_cursor;
            self.shutdown_cursor += 1;
            let Some(connection) = self.connections.get(slot) else { continue };
            let id = ConnectionId { slot, generation: connection.generation };
            self.close(id, Some(ReasonCode::SERVER_SHUTTING_DOWN), "server shutting down", now);
        }
    }
}
