//! The rings to the other cores, as this core uses them: pushes that were admitted, what arrives, what has been confirmed, and the
//! SUBACKs that wait for it.

use super::Shard;
use super::fanout::Source;
use super::peer::{Cargo, MeshMessage, Peer, Progress};
use crate::fault::Fault;
use crate::ids::{ConnectionId, CoreId};
use crate::time::Time;
use crate::topic::InterestKey;
use crate::wire::{Packet, ReasonCode, SubAck};
use smallvec::SmallVec;
use std::sync::Arc;

/// Ring messages taken in one turn, all peers together; one that announces many filters or is delivered often counts as several.
const TAKEN_PER_TURN: usize = 1024;
/// Work that counts as one message more.
const WORK_PER_MESSAGE: usize = 4;

/// A SUBACK whose subscriptions not every core knows of yet.
pub(super) struct Unconfirmed {
    connection: ConnectionId,
    packet_id: u16,
    reasons: SmallVec<[u8; 8]>,
    /// Replays that begin once the interest is confirmed.
    replays: SmallVec<[u64; 1]>,
    /// Ring position to be consumed, by core.
    positions: SmallVec<[u64; 4]>,
}

impl Shard {
    pub(super) fn peer(&mut self, core: CoreId) -> &mut Peer {
        self.peers[core.index()].as_mut().expect("a core is no peer of itself")
    }

    /// Whether messages may be pushed to a core now. What does not wait yet queues behind those that do.
    pub(super) fn may_push(&self, core: CoreId, cargo: Cargo, messages: u64, bytes: u64) -> bool {
        let Some(peer) = &self.peers[core.index()] else { return true };
        peer.has_room(cargo, messages, bytes) && !(self.parking.queueing && peer.someone_waits(cargo))
    }

    /// The same for every other core; Err: one that has no room.
    pub(super) fn may_push_to_all(&self, cargo: Cargo, messages: u64, bytes: u64) -> Result<(), CoreId> {
        match self.peers.iter().flatten().find(|peer| !self.may_push(peer.core, cargo, messages, bytes)) {
            Some(peer) => Err(peer.core),
            None => Ok(()),
        }
    }

    /// Pushes what was admitted.
    pub(super) fn push(&mut self, core: CoreId, message: MeshMessage) {
        self.peer(core).on_pushed(&message);
        self.effects.mesh[core.index()].push(message);
    }

    /// Announces or retracts interest to every other core. Only with room on all rings.
    pub(super) fn announce(&mut self, changes: Vec<(InterestKey, bool)>) {
        if changes.is_empty() || self.cores == 1 {
            return;
        }
        let single = changes.len() == 1;
        let all: Arc<[(InterestKey, bool)]> = changes.into();
        for core in 0..self.cores {
            let core = CoreId(core as u8);
            if core == self.core {
                continue;
            }
            let message = if single {
                let (key, wanted) = all[0].clone();
                MeshMessage::Interest { key, wanted }
            } else {
                MeshMessage::Interests(all.clone())
            };
            self.push(core, message);
            self.announced[core.index()] = self.peer(core).position();
        }
    }

    /// Sends a SUBACK once every announcement made so far is confirmed by every core, in the order of the SUBSCRIBEs; and begins the
    /// replays that wait for the same.
    pub(super) fn confirm_then(
        &mut self,
        connection: ConnectionId,
        packet_id: u16,
        reasons: SmallVec<[u8; 8]>,
        replays: SmallVec<[u64; 1]>,
        now: Time,
    ) {
        let positions = SmallVec::from_slice(&self.announced);
        let suback = Unconfirmed { connection, packet_id, reasons, replays, positions };
        if self.unconfirmed.is_empty() && self.is_confirmed(&suback) {
            self.on_confirmed(suback, now);
        } else {
            self.unconfirmed.push_back(suback);
        }
    }

    fn is_confirmed(&self, suback: &Unconfirmed) -> bool {
        Fault::SubackBeforeInterest.is_planted()
            || self.peers.iter().flatten().all(|peer| peer.has_confirmed(suback.positions[peer.core.index()]))
    }

    pub(super) fn confirm_subscriptions(&mut self, now: Time) {
        while self.unconfirmed.front().is_some_and(|suback| self.is_confirmed(suback)) {
            if let Some(suback) = self.unconfirmed.pop_front() {
                self.on_confirmed(suback, now);
            }
        }
    }

    fn on_confirmed(&mut self, suback: Unconfirmed, now: Time) {
        let Unconfirmed { connection, packet_id, reasons, replays, .. } = suback;
        if self.connection(connection).is_some_and(super::is_open) {
            let suback = SubAck { packet_id, reasons: &reasons, ..SubAck::default() };
            if !self.send_if_it_fits(connection.slot, &Packet::Suback(suback)) {
                let what = "its SUBACK is larger than the client's Maximum Packet Size";
                self.close(connection, Some(ReasonCode::PACKET_TOO_LARGE), what, now);
            }
        }
        for replay in replays {
            self.retained.begin(replay);
        }
    }

    /// What the rings to and from a core show at the start of a turn.
    pub fn on_progress(&mut self, peer: CoreId, progress: Progress, _now: Time) {
        self.peer(peer).on_progress(progress);
        if self.peer(peer).is_awaited() {
            self.wake_waiting_for(peer);
        }
    }

    /// How many ring messages the core takes now, all peers together; 0: the fan-outs that they may begin are full.
    pub fn mesh_budget(&self) -> usize {
        if self.room_for_fanouts(Source::Ring) == 0 { 0 } else { TAKEN_PER_TURN.saturating_sub(self.taken) }
    }

    /// Whether someone waits for another core to consume what was pushed to it: the shell then has that core wake this one.
    pub fn awaits_progress(&self) -> bool {
        !self.unconfirmed.is_empty()
            || !self.pending.is_empty()
            || !self.ending.is_empty()
            || self.groups.has_unannounced()
            || self.retained.awaits_room()
            || self.phase != super::Phase::Running
            || self.peers.iter().flatten().any(Peer::is_awaited)
    }

    /// A message from another core. It causes local deliveries and replies only, so taking it never needs room.
    pub fn on_mesh(&mut self, from: CoreId, message: MeshMessage, now: Time) {
        self.peer(from).on_taken(&message);
        self.taken += 1;
        match message {
            MeshMessage::Parcel(parcel) => self.on_parcel(*parcel, now),
            MeshMessage::Publish { message, deliver, store, groups } => {
                let before = self.work;
                self.on_mesh_publish(message, deliver, store, groups, now);
                self.taken += (self.work - before) / WORK_PER_MESSAGE;
                // It leaves the turn's share for what clients send as it was.
                self.work = before;
            }
            MeshMessage::Interest { key, wanted } => self.on_interest(from, &key, wanted),
            MeshMessage::Interests(changes) => {
                self.taken += changes.len();
                for (key, wanted) in changes.iter() {
                    self.on_interest(from, key, *wanted);
                }
            }
            MeshMessage::Group { filter, online, offline } => self.on_group(from, filter, online, offline),
            MeshMessage::RetainedAsk(ask) => self.on_retained_ask(from, *ask),
            MeshMessage::RetainedPage(page) => self.on_retained_page(*page, now),
        }
    }

    fn on_interest(&mut self, from: CoreId, key: &InterestKey, wanted: bool) {
        if wanted {
            self.interest.announce(&self.hasher, from, key);
        } else {
            self.interest.retract(&self.hasher, from, key);
        }
    }
}
