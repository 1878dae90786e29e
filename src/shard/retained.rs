//! Retained messages (section 3.3.1.3): stored on the core of their topic's hash, replayed to new subscriptions.
//!
//! A subscriber's core asks only after its interest is confirmed everywhere; the home of the messages first takes in all that it sees
//! in its rings, then answers. So a message published around a subscribe is either live or in the replay. A live retained message
//! cancels its topic's entry in an open replay: what is older never follows what is newer.
//!
//! A replay is session state. It asks for one page at a time, and for the next only when the session has nothing queued: it is never
//! cut short by queue limits and never floods a slow client. While the client is away it waits.

use super::Shard;
use super::deliver::{Routed, Terms};
use super::peer::{Cargo, MeshMessage, RetainedAsk, RetainedPage};
use crate::fault::Fault;
use crate::ids::{CoreId, FilterId, SessionId};
use crate::message::Message;
use crate::segments::SegmentedTable;
use crate::time::Time;
use crate::topic::{self, Page, RetainedTree, TopicKey};
use crate::wire::QoS;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::time::Duration;

/// A page holds at most so many messages and, unless one alone is larger, so many bytes.
const PAGE_MESSAGES: usize = 64;
const PAGE_BYTES: usize = 64 << 10;
/// Topics looked at for one page: what a turn may spend on it.
const PAGE_STEPS: usize = 512;
/// Replays of one session that go on at one sign of progress.
const CONTINUED_AT_ONCE: usize = 4;
/// How often expired messages are looked for, and how many are looked at in one turn.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
const SWEEP_STEPS: usize = 512;

/// A subscription's retained messages on their way to its session. It is in one place at a time: its subscription awaits
/// confirmation, it stands in line (`ready`), a question of it is on its way, or it waits for its session (paced).
struct Replay {
    id: u64,
    session: SessionId,
    filter_id: FilterId,
    filter: Box<str>,
    qos: QoS,
    identifier: u32,
    /// The cores still to be asked, the present one first.
    cores: VecDeque<CoreId>,
    /// The topic that the last page of the present core ended with.
    after: Option<Box<str>>,
}

/// An ask that is answered when everything in the rings at its arrival has been taken.
struct Question {
    from: CoreId,
    ask: RetainedAsk,
    /// By core: how far its ring reached.
    tails: SmallVec<[u64; 4]>,
}

pub(super) struct Retained {
    tree: RetainedTree,
    /// By id; a fleet that connects has one open for each client.
    replays: SegmentedTable<Box<Replay>>,
    next_replay: u64,
    ready: VecDeque<u64>,
    /// The front of `ready` waits for room on a ring.
    blocked: bool,
    questions: VecDeque<Question>,
    /// The sweep for expired messages: where it is, and when it goes on.
    sweep_after: Option<Box<str>>,
    next_sweep: Time,
    /// Messages with an expiry were stored since the sweep last began.
    expiring: bool,
}

impl Retained {
    pub(super) fn new() -> Self {
        Self {
            tree: RetainedTree::new(),
            replays: SegmentedTable::new(),
            next_replay: 1,
            ready: VecDeque::new(),
            blocked: false,
            questions: VecDeque::new(),
            sweep_after: None,
            next_sweep: Time::NEVER,
            expiring: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tree.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.tree.bytes()
    }

    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty() && !self.blocked || !self.questions.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.questions.is_empty()
    }

    pub(super) fn awaits_room(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn next_sweep(&self) -> Time {
        self.next_sweep
    }

    /// The interest of a replay's subscription is confirmed. There may be thousands for one SUBACK, so whether it is still open is seen
    /// in its turn.
    pub(super) fn begin(&mut self, replay: u64) {
        self.ready.push_back(replay);
    }

    fn replay(&mut self, id: u64) -> Option<&mut Replay> {
        self.replays.find_mut(spread(id), |replay| replay.id == id).map(|replay| &mut **replay)
    }

    /// A replay that its session has closed.
    pub(super) fn forget(&mut self, id: u64) {
        self.replays.remove(spread(id), |replay| replay.id == id);
    }
}

/// Replay ids are the broker's own numbers: spreading them needs no key. It must not spread them too evenly, though, or all segments of
/// the table would be full, and split, in the same turn.
fn spread(id: u64) -> u64 {
    topic::hash::mix(id)
}

impl Shard {
    /// Stores a retained message, or removes its topic's if it has no payload [MQTT-3.3.1-6]. Only on the core of its topic.
    pub(super) fn store_retained(&mut self, routed: &mut Routed<'_>) {
        let topic = routed.message.topic;
        // The broker's own topics are few and bounded; they take nothing from the clients' quota.
        let counts = !topic::is_of_broker(topic);
        let keeps = Fault::KeepOlderRetained.is_planted() && self.retained.tree.get(topic).is_some();
        if keeps || Fault::KeepClearedRetained.is_planted() && routed.message.payload.is_empty() {
            return;
        }
        let removed = if routed.message.payload.is_empty() {
            self.retained.tree.remove(topic)
        } else {
            let bytes =
                (topic.len() + routed.message.properties.len() + routed.message.payload.len() + Message::OVERHEAD_BYTES) as u64;
            let old = self.retained.tree.get(topic).map(|old| old.bytes() as u64);
            let others = self.globals.retained_bytes.get().saturating_sub(old.unwrap_or(0));
            let over = old.is_none() && self.globals.retained_messages.get() >= self.limits.retained_messages_max
                || others + bytes > self.limits.retained_bytes_max;
            if counts && over {
                self.counters.dropped_retained_quota += 1;
                return;
            }
            if routed.message.expires_at != Time::NEVER {
                self.retained.expiring = true;
                self.retained.next_sweep = self.retained.next_sweep.min(routed.message.expires_at + Duration::from_secs(1));
            }
            if counts {
                self.globals.retained_messages.add(1);
                self.globals.retained_bytes.add(bytes as i64);
            }
            self.retained.tree.insert(routed.owned())
        };
        if let Some(old) = removed.filter(|_| counts) {
            self.globals.retained_messages.add(-1);
            self.globals.retained_bytes.add(-(old.bytes() as i64));
        }
    }

    /// Opens a replay for a subscription just made, or made again; `None`: nothing is retained anywhere, so nothing can match.
    pub(super) fn open_replay(
        &mut self,
        session: SessionId,
        (filter_id, filter): (FilterId, &str),
        (qos, identifier): (QoS, u32),
    ) -> Option<u64> {
        let hasher = self.hasher;
        let cores: VecDeque<CoreId> = if topic::is_wildcard(filter) {
            (0..self.cores).map(|core| CoreId(core as u8)).collect()
        } else {
            let home = self.core_of_topic(&TopicKey::new(filter, &hasher));
            // Alone on its core and not there: most subscriptions of a fleet.
            if home == self.core && self.cores == 1 && self.retained.tree.get(filter).is_none() {
                return None;
            }
            [home].into()
        };
        if self.cores == 1 && self.retained.tree.is_empty() {
            return None;
        }
        let replay = self.retained.next_replay;
        self.retained.next_replay += 1;
        let state = Replay { id: replay, session, filter_id, filter: filter.into(), qos, identifier, cores, after: None };
        self.retained.replays.insert_unique(spread(replay), Box::new(state), |replay| spread(replay.id));
        // A subscription made again begins its replay again.
        if let Some(replaced) = self.sessions[session.0].replays.get_or_insert_default().open(filter_id, replay) {
            self.retained.forget(replaced);
        }
        Some(replay)
    }

    /// A live retained message reaches a session with open replays.
    pub(super) fn cancel_replay_of(&mut self, session: SessionId, topic: &str) {
        if Fault::ReplayStaleRetained.is_planted() {
            return;
        }
        let hash = self.hasher.exact(topic);
        if let Some(replays) = &mut self.sessions[session.0].replays {
            replays.overtake(hash, self.retained.next_replay - 1);
        }
    }

    /// A subscription is no more, or its replay is done: others of the session's go on.
    pub(super) fn close_replay(&mut self, session: SessionId, filter: FilterId) {
        let Some(replays) = &mut self.sessions[session.0].replays else { return };
        let Some(replay) = replays.close(filter) else { return };
        let all_closed = replays.is_empty();
        self.retained.forget(replay);
        if all_closed {
            self.sessions[session.0].replays = None;
        } else {
            self.continue_replays(session);
        }
    }

    /// A replay whose SUBACK will never be sent.
    pub(super) fn abandon_replay(&mut self, replay: u64) {
        if let Some(state) = self.retained.replay(replay) {
            let (session, filter) = (state.session, state.filter_id);
            self.close_replay(session, filter);
        }
    }

    /// A session has sent what it had queued: some of its replays ask for their next pages. Others follow when those are done, or when
    /// what they brought is sent.
    pub(super) fn continue_replays(&mut self, session: SessionId) {
        for _ in 0..CONTINUED_AT_ONCE {
            let Some(replay) = self.sessions[session.0].replays.as_mut().and_then(|replays| replays.take_paced()) else { return };
            self.retained.ready.push_back(replay);
        }
    }

    /// A replay waits for its session.
    fn pace(&mut self, replay: u64) {
        let Some(state) = self.retained.replay(replay) else { return };
        let session = state.session;
        if let Some(replays) = &mut self.sessions[session.0].replays {
            replays.pace(replay);
        }
    }

    /// Asks for pages and answers questions, within a turn's budget.
    pub(super) fn replay_retained(&mut self, now: Time, budget: usize) {
        self.retained.blocked = false;
        let pages = (budget / PAGE_MESSAGES).max(1);
        for _ in 0..pages {
            let Some(&replay) = self.retained.ready.front() else { break };
            if !self.ask_for_page(replay) {
                self.retained.blocked = true;
                break;
            }
            self.retained.ready.pop_front();
        }
        for _ in 0..pages {
            let answerable = self.retained.questions.front().is_some_and(|question| {
                self.peers.iter().flatten().all(|peer| peer.has_taken(question.tails[peer.core.index()]))
            });
            if !answerable {
                return;
            }
            if let Some(question) = self.retained.questions.pop_front() {
                self.answer(question, now);
            }
        }
    }

    /// Asks for a replay's next page; `false`: there is no room to ask.
    fn ask_for_page(&mut self, replay: u64) -> bool {
        let Some(state) = self.retained.replay(replay) else { return true };
        let session = &self.sessions[state.session.0];
        let ready = session.connection.is_some_and(|slot| {
            let connection = &self.connections[slot];
            connection.outbox_len() < self.limits.outbox_bytes_max as usize / 2
        });
        let queued = session.outbound.as_ref().is_some_and(|outbound| outbound.queued() > 0);
        if !ready || queued {
            // Its outbox or its window will have it go on; an outbox that is merely half full must say so.
            if let Some(slot) = session.connection.filter(|_| !queued) {
                self.connections[slot].congested = true;
            }
            self.pace(replay);
            return true;
        }
        let Some(&core) = state.cores.front() else { return true };
        let ask = RetainedAsk { replay, filter: state.filter.clone(), after: state.after.clone() };
        if core == self.core {
            self.on_retained_ask(core, ask);
            return true;
        }
        let message = MeshMessage::RetainedAsk(Box::new(ask));
        let may_ask = self.peers[core.index()].as_ref().is_some_and(|peer| peer.may_ask());
        if !may_ask || !self.may_push(core, Cargo::Control, 1, message.bytes()) {
            return false;
        }
        self.peer(core).on_asked();
        self.push(core, message);
        true
    }

    pub(super) fn on_retained_ask(&mut self, from: CoreId, ask: RetainedAsk) {
        let tails = self.peers.iter().map(|peer| peer.as_ref().map_or(0, |peer| peer.arrived())).collect();
        self.retained.questions.push_back(Question { from, ask, tails });
    }

    fn answer(&mut self, question: Question, now: Time) {
        let Question { from, ask, .. } = question;
        let mut messages = Vec::new();
        let mut bytes = 0;
        let page = self.retained.tree.page(&ask.filter, ask.after.as_deref(), PAGE_STEPS, |message| {
            if message.expires_at() <= now {
                return true;
            }
            if messages.len() == PAGE_MESSAGES || (bytes > 0 && bytes + message.bytes() > PAGE_BYTES) {
                return false;
            }
            bytes += message.bytes();
            messages.push(message.clone());
            true
        });
        let more_after = match page {
            Page::Done => None,
            Page::More(after) => Some(after),
        };
        let page = RetainedPage { replay: ask.replay, messages, more_after };
        if from == self.core {
            self.on_retained_page(page, now);
        } else {
            self.push(from, MeshMessage::RetainedPage(Box::new(page)));
        }
    }

    pub(super) fn on_retained_page(&mut self, page: RetainedPage, now: Time) {
        let Some(state) = self.retained.replay(page.replay) else { return };
        let session = state.session;
        if self.sessions[session.0].connection.is_none() {
            // The client has gone meanwhile; the page is asked for again when it is back.
            self.pace(page.replay);
            return;
        }
        state.after = page.more_after;
        if state.after.is_none() {
            state.cores.pop_front();
        }
        let (qos, identifier, filter) = (state.qos, [state.identifier], state.filter_id);
        let done = state.cores.is_empty();
        let hasher = self.hasher;
        let replays = self.sessions[session.0].replays.as_deref();
        let replays = replays.filter(|replays| replays.any_overtaken());
        let overtaken = |topic: &str| replays.is_some_and(|replays| replays.is_overtaken(hasher.exact(topic), page.replay));
        let messages: Vec<Message> = page.messages.into_iter().filter(|message| !overtaken(message.topic())).collect();
        for message in messages {
            let mut routed = Routed::new(message.as_ref(), Some(message.clone()), self.take_frames());
            let identifiers = if identifier[0] == 0 { &[][..] } else { &identifier[..] };
            let terms = Terms { qos: qos.min(message.qos()), retain: true, identifiers, group: None };
            self.deliver_replayed(&mut routed, session, terms, now);
            self.scratch = Some(routed.into_frames());
        }
        if done {
            self.close_replay(session, filter);
        } else {
            self.retained.ready.push_back(page.replay);
        }
    }

    /// Removes expired messages, a few at a time.
    pub(super) fn sweep_retained(&mut self, now: Time) {
        if self.retained.next_sweep > now {
            return;
        }
        let mut expired = Vec::new();
        let mut after = self.retained.sweep_after.take();
        if after.is_none() {
            self.retained.expiring = false;
        }
        let mut ended = false;
        for _ in 0..SWEEP_STEPS {
            let Some(message) = self.retained.tree.next_after(after.as_deref()) else {
                ended = true;
                break;
            };
            after = Some(message.topic().into());
            if message.expires_at() <= now {
                expired.push(message.clone());
            } else if message.expires_at() != Time::NEVER {
                self.retained.expiring = true;
            }
        }
        for message in expired {
            self.retained.tree.remove(message.topic());
            self.counters.retained_expired += 1;
            self.globals.retained_messages.add(-1);
            self.globals.retained_bytes.add(-(message.bytes() as i64));
        }
        if ended {
            self.retained.next_sweep = if self.retained.expiring { now + SWEEP_INTERVAL } else { Time::NEVER };
        } else {
            self.retained.sweep_after = after;
            self.retained.next_sweep = now + Duration::from_millis(10);
        }
    }
}
