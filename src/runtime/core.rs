//! What the shell asks of the pure core: the seam at the line that separates what touches the world from what does not.
//!
//! [`Shard`] is the core; tests of the shell bring a small one of their own. All calls are synchronous, come from the shard's own
//! thread, and carry the time. What the core wants done stands in [`Effects`] afterwards; the shell performs it at the end of the
//! turn, in this order: departures, arrivals, pauses, resumes, mesh, records, sends, closes, events.

use crate::ids::{ConnectionId, CoreId, TicketId};
use crate::message::Message;
use crate::record::Outcome;
use crate::rules::RuleCounts;
use crate::shard::peer::{MeshMessage, Progress};
use crate::shard::sys_snapshot::Snapshot;
use crate::shard::{Counters, Effects, Phase, Shard, ShardLoad};
use crate::time::Time;
use std::net::SocketAddr;

pub trait Core {
    fn effects(&mut self) -> &mut Effects;
    fn counters(&self) -> &Counters;
    fn load(&self) -> ShardLoad;
    fn connections(&self) -> usize;

    /// A connection was accepted. `None`: refused and counted; the socket is to be closed at once.
    fn on_accepted(&mut self, socket: i32, listener: u16, now: Time) -> Option<ConnectionId>;
    /// Whether [`Core::on_peer_address`] is to be called after each accept.
    fn wants_peer_address(&self) -> bool {
        false
    }
    fn on_peer_address(&mut self, _id: ConnectionId, _address: SocketAddr) {}
    fn on_received(&mut self, id: ConnectionId, bytes: &[u8], now: Time);
    /// The peer sent its last byte (`reset` is false) or the connection broke.
    fn on_receive_end(&mut self, id: ConnectionId, reset: bool, now: Time);
    /// A paused connection has bytes that were not read.
    fn on_unread(&mut self, id: ConnectionId);
    /// Connections that have something to send, each at most once; taken at the end of a turn.
    fn take_flush(&mut self, flush: &mut Vec<ConnectionId>);
    /// The next bytes to send, as one piece. They stay where they are until the next call that takes `&mut self`.
    fn outbox(&self, id: ConnectionId) -> Option<&[u8]>;
    /// Whether the connection is owed nothing more once what [`Core::outbox`] shows has gone out.
    fn is_last_piece(&self, id: ConnectionId) -> bool;
    /// `n` bytes of what [`Core::outbox`] showed went out.
    fn on_sent(&mut self, id: ConnectionId, n: usize, now: Time);
    /// The shell has taken the socket over to close it: the slot is free from here on.
    fn on_closed(&mut self, id: ConnectionId, now: Time);
    /// The socket of a connection; `None` once it is closed or has left for another core.
    fn socket(&self, id: ConnectionId) -> Option<i32>;

    fn on_progress(&mut self, peer: CoreId, progress: Progress, now: Time);
    /// Whether something here waits for a peer to process what was pushed to it, so that the peer must wake this core for it. Asked
    /// before the shard sleeps, about peers that have not processed everything. True too often costs a wake-up for each message.
    fn awaits_progress(&self, _peer: CoreId) -> bool {
        true
    }
    /// Messages that the core takes from each ring now; 0: none this turn.
    fn mesh_budget(&self) -> usize;
    fn on_mesh(&mut self, from: CoreId, message: MeshMessage, now: Time);

    /// The sink core has taken so many records, cumulative.
    fn on_records_taken(&mut self, _taken: u64) {}
    fn on_answer(&mut self, _ticket: TicketId, _outcome: Outcome) {}
    /// A message that the sink core brought; counted by [`Core::source_messages_accepted`] once it is published.
    fn on_source_message(&mut self, _message: Message) {}
    fn source_messages_accepted(&self) -> u64 {
        0
    }
    /// Whether someone here waits for room before a sink, so that the sink core must wake this core.
    fn awaits_sinks(&self) -> bool {
        false
    }
    /// Whether that room has come.
    fn sinks_may_go_on(&self) -> bool {
        false
    }
    /// What each rule has done.
    fn rule_counts(&self) -> &[RuleCounts] {
        &[]
    }
    /// Microseconds since 1970-01-01 UTC when the shell's clock showed zero.
    fn set_epoch(&mut self, _epoch_us: i64) {}

    /// Timers and everything else that is done by and by. `true`: there is more to do now.
    fn run(&mut self, now: Time) -> bool;
    /// When [`Core::run`] must be called next, at the latest.
    fn next_deadline(&self) -> Time;

    fn publish_sys(&mut self, snapshot: &Snapshot, now: Time);
    fn set_phase(&mut self, phase: Phase, now: Time);
    /// Everything read has been routed, and the other cores have processed all that was pushed to them.
    fn is_drained(&self) -> bool;
}

impl Core for Shard {
    fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn load(&self) -> ShardLoad {
        self.load()
    }

    fn connections(&self) -> usize {
        self.connections()
    }

    fn on_accepted(&mut self, socket: i32, listener: u16, now: Time) -> Option<ConnectionId> {
        self.on_accepted(socket, listener, now)
    }

    fn wants_peer_address(&self) -> bool {
        self.wants_peer_address()
    }

    fn on_peer_address(&mut self, id: ConnectionId, address: SocketAddr) {
        self.on_peer_address(id, address);
    }

    fn on_records_taken(&mut self, taken: u64) {
        self.on_records_taken(taken);
    }

    fn on_answer(&mut self, ticket: TicketId, outcome: Outcome) {
        self.on_answer(ticket, outcome);
    }

    fn on_source_message(&mut self, message: Message) {
        self.on_source_message(message);
    }

    fn source_messages_accepted(&self) -> u64 {
        self.source_messages_accepted()
    }

    fn awaits_sinks(&self) -> bool {
        self.awaits_sinks()
    }

    fn sinks_may_go_on(&self) -> bool {
        self.sinks_may_go_on()
    }

    fn rule_counts(&self) -> &[RuleCounts] {
        self.rule_counts()
    }

    fn set_epoch(&mut self, epoch_us: i64) {
        self.set_epoch(epoch_us);
    }

    fn on_received(&mut self, id: ConnectionId, bytes: &[u8], now: Time) {
        self.on_received(id, bytes, now);
    }

    fn on_receive_end(&mut self, id: ConnectionId, reset: bool, now: Time) {
        self.on_receive_end(id, reset, now);
    }

    fn on_unread(&mut self, id: ConnectionId) {
        self.on_unread(id);
    }

    fn take_flush(&mut self, flush: &mut Vec<ConnectionId>) {
        self.take_flush(flush);
    }

    fn outbox(&self, id: ConnectionId) -> Option<&[u8]> {
        self.outbox(id)
    }

    fn is_last_piece(&self, id: ConnectionId) -> bool {
        self.is_last_piece(id)
    }

    fn on_sent(&mut self, id: ConnectionId, n: usize, now: Time) {
        self.on_sent(id, n, now);
    }

    fn on_closed(&mut self, id: ConnectionId, now: Time) {
        self.on_closed(id, now);
    }

    fn socket(&self, id: ConnectionId) -> Option<i32> {
        self.socket(id)
    }

    fn on_progress(&mut self, peer: CoreId, progress: Progress, now: Time) {
        self.on_progress(peer, progress, now);
    }

    fn awaits_progress(&self, _peer: CoreId) -> bool {
        self.awaits_progress()
    }

    fn mesh_budget(&self) -> usize {
        self.mesh_budget()
    }

    fn on_mesh(&mut self, from: CoreId, message: MeshMessage, now: Time) {
        self.on_mesh(from, message, now);
    }

    fn run(&mut self, now: Time) -> bool {
        self.run(now)
    }

    fn next_deadline(&self) -> Time {
        self.next_deadline()
    }

    fn publish_sys(&mut self, snapshot: &Snapshot, now: Time) {
        self.publish_sys(snapshot, now);
    }

    fn set_phase(&mut self, phase: Phase, now: Time) {
        self.set_phase(phase, now);
    }

    fn is_drained(&self) -> bool {
        self.is_drained()
    }
}
