//! A message to its local subscribers. A few are served at once; more than the turn has budget for become a queued fan-out, which goes
//! on in later turns: messages of that topic wait behind it, others pass.

use super::Shard;
use super::deliver::{Routed, Terms};
use crate::fault::Fault;
use crate::ids::{FilterId, SessionId};
use crate::message::Message;
use crate::segments::SegmentedTable;
use crate::time::Time;
use crate::topic::{self, TopicKey};
use crate::wire::QoS;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

/// A message to so few subscribers is served at once, whatever the turn has done before: it costs what its own packet costs.
const AT_ONCE: usize = 64;

/// With so many connections still to be sent to, fan-outs go on only as fast as sends do: what waits stays one message and a cursor
/// instead of becoming bytes for each subscriber.
const OUTBOXES_MANY: usize = 1 << 16;
const SLOWLY: usize = 256;

/// So many filters looked at for one session cost about what a delivery does.
const FILTERS_AT_ONCE: usize = 16;

/// What deliveries cost beside the packet that causes them, which costs 1: each, and each filter that matches beyond the first.
const DELIVERY_WORK: usize = 2;
pub(super) const FILTER_WORK: usize = 4;

pub(super) type Filters = SmallVec<[FilterId; 8]>;

/// How far a fan-out has come.
#[derive(Clone, Copy, Default)]
struct Cursor {
    filter: usize,
    slot: u32,
}

/// Where a message comes from. Each may have half of the fan-outs, so that a flood from the one never keeps the other out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A publisher of this core.
    Here,
    /// Another core's ring.
    Ring,
}

/// A message's subscribers on this core, before it is admitted.
#[derive(Default)]
pub(super) struct Local {
    filters: Filters,
    /// They are few, and nothing of the topic waits: the message needs no place among the fan-outs.
    at_once: bool,
}

impl Local {
    pub(super) fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    pub(super) fn may_take_turns(&self) -> bool {
        !self.at_once && !self.is_empty()
    }
}

struct Fanout {
    message: Message,
    source: Source,
    filters: Filters,
    cursor: Cursor,
    publisher: Option<SessionId>,
    served: Served,
    /// [`crate::topic::Subscriptions::removals`] when its filters were last looked at.
    removals: u64,
}

/// Sessions that a fan-out of several turns has served, which it may come upon again through another filter. Where they subscribe changes
/// between turns, so only what was done tells. `None`: the fan-out is done in one go or has one filter.
type Served = Option<SegmentedTable<SessionId>>;

/// Whether this is the first time that a session is served.
fn is_new(served: &mut SegmentedTable<SessionId>, session: SessionId) -> bool {
    let hash = |session: &SessionId| u64::from(session.0 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let new = served.find(hash(&session), |other| *other == session).is_none();
    if new {
        served.insert_unique(hash(&session), session, hash);
    }
    new
}

/// Fan-outs that go on in later turns, by topic: one topic's in their order, topics in turn.
#[derive(Default)]
pub(super) struct Fanouts {
    topics: HashMap<u64, VecDeque<Fanout>>,
    turns: VecDeque<u64>,
    /// How many, by [`Source`].
    lens: [usize; 2],
}

impl Fanouts {
    pub(super) fn len(&self) -> usize {
        self.lens.iter().sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_busy(&self, topic: u64) -> bool {
        !self.topics.is_empty() && self.topics.contains_key(&topic)
    }

    fn push(&mut self, topic: u64, fanout: Fanout) {
        self.lens[fanout.source as usize] += 1;
        let queue = self.topics.entry(topic).or_default();
        if queue.is_empty() {
            self.turns.push_back(topic);
        }
        queue.push_back(fanout);
    }

    /// Takes the next topic's first fan-out; give it back with [`Fanouts::put_back`] or call [`Fanouts::done`].
    fn take(&mut self) -> Option<(u64, Fanout)> {
        let topic = self.turns.pop_front()?;
        let fanout = self.topics.get_mut(&topic)?.pop_front()?;
        Some((topic, fanout))
    }

    fn put_back(&mut self, topic: u64, fanout: Fanout) {
        if let Some(queue) = self.topics.get_mut(&topic) {
            queue.push_front(fanout);
            self.turns.push_back(topic);
        }
    }

    fn done(&mut self, topic: u64, source: Source) {
        self.lens[source as usize] -= 1;
        if self.topics.get(&topic).is_some_and(VecDeque::is_empty) {
            self.topics.remove(&topic);
        } else {
            self.turns.push_back(topic);
        }
    }
}

impl Shard {
    /// How many fan-outs more may begin now.
    pub(super) fn room_for_fanouts(&self, source: Source) -> usize {
        let most = self.limits.fanouts_max as usize;
        let share = if self.cores == 1 { most } else { most.div_ceil(2) };
        share.saturating_sub(self.fanouts.lens[source as usize])
    }

    /// The local subscribers of a topic.
    pub(super) fn local(&mut self, key: &TopicKey<'_>) -> Local {
        let mut filters = Filters::new();
        self.subscriptions.matching(&self.hasher, key, &mut filters);
        self.work += filters.len().saturating_sub(1) * FILTER_WORK;
        let busy = || self.fanouts.is_busy(key.exact()) && !Fault::OvertakeFanout.is_planted();
        let subscribers: usize = filters.iter().map(|&filter| self.subscriptions.slots(filter) as usize).sum();
        Local { at_once: subscribers <= AT_ONCE && !busy(), filters }
    }

    /// Delivers to the local subscribers of a topic, now or in turns.
    pub(super) fn fan_out(
        &mut self,
        routed: &mut Routed<'_>,
        key: &TopicKey<'_>,
        local: Local,
        source: Source,
        publisher: Option<SessionId>,
        now: Time,
    ) {
        let Local { filters, at_once } = local;
        if filters.is_empty() {
            return;
        }
        let mut cursor = Cursor::default();
        if at_once {
            let budget = std::mem::replace(&mut self.budget, usize::MAX);
            let done = self.serve(routed, &filters, &mut cursor, &mut None, publisher, now);
            debug_assert!(done);
            self.work += (usize::MAX - self.budget) * DELIVERY_WORK;
            self.budget = budget;
            return;
        }
        let budget = self.budget;
        let mut served = (filters.len() > 1).then(SegmentedTable::new);
        let begins = !self.fanouts.is_busy(key.exact()) || Fault::OvertakeFanout.is_planted();
        let done = begins && self.serve(routed, &filters, &mut cursor, &mut served, publisher, now);
        self.work += (budget - self.budget) * DELIVERY_WORK;
        if done {
            return;
        }
        self.counters.fanouts_continued += 1;
        let removals = self.subscriptions.removals();
        let fanout = Fanout { message: routed.owned(), source, filters, cursor, publisher, served, removals };
        self.fanouts.push(key.exact(), fanout);
    }

    /// Serves subscribers from the cursor on; `false`: the turn's budget is used up.
    fn serve(
        &mut self,
        routed: &mut Routed<'_>,
        filters: &Filters,
        cursor: &mut Cursor,
        served: &mut Served,
        publisher: Option<SessionId>,
        now: Time,
    ) -> bool {
        while let Some(&filter) = filters.get(cursor.filter) {
            while cursor.slot < self.subscriptions.slots(filter) {
                if self.budget == 0 {
                    return false;
                }
                self.budget -= 1;
                let session = self.subscriptions.subscriber_at(filter, cursor.slot);
                cursor.slot += 1;
                if let Some(session) = session {
                    self.deliver_once(routed, filters, cursor.filter, served, session, publisher, now);
                }
            }
            *cursor = Cursor { filter: cursor.filter + 1, slot: 0 };
        }
        true
    }

    /// Delivers to a session found through one of the matching filters. A session that several of them lead to gets the message once,
    /// at the first of them, with the highest QoS and all identifiers (section 3.3.4).
    #[expect(clippy::too_many_arguments, reason = "a fan-out's parts, borrowed one by one")]
    fn deliver_once(
        &mut self,
        routed: &mut Routed<'_>,
        filters: &Filters,
        found_by: usize,
        served: &mut Served,
        session: SessionId,
        publisher: Option<SessionId>,
        now: Time,
    ) {
        let Some(state) = self.sessions.get(session.0) else { return };
        if let Some(served) = served
            && !is_new(served, session)
        {
            return;
        }
        let own = publisher == Some(session);
        let mut qos = QoS::AtMostOnce;
        let mut retain = false;
        let mut identifiers: SmallVec<[u32; 4]> = SmallVec::new();
        let alone = filters.len() == 1 || state.subscriptions.len() == 1;
        let considered = if alone { found_by..found_by + 1 } else { 0..filters.len() };
        // Many filters that all match cost as much as many subscribers.
        self.budget = self.budget.saturating_sub(considered.len() / FILTERS_AT_ONCE);
        let mut first = None;
        for position in considered {
            let Some(subscription) = state.subscription(false, filters[position]) else { continue };
            let options = subscription.options();
            if own && options.no_local && !Fault::IgnoreNoLocal.is_planted() {
                continue;
            }
            let first = *first.get_or_insert(position);
            if first < found_by && served.is_none() {
                return;
            }
            qos = if Fault::DeliverAtLastQos.is_planted() { options.qos } else { qos.max(options.qos) };
            retain |= options.retain_as_published;
            let enough = Fault::SendOneIdentifier.is_planted() && !identifiers.is_empty();
            if subscription.identifier != 0 && !enough {
                identifiers.push(subscription.identifier);
            }
        }
        if first.is_none() || (served.is_none() && first != Some(found_by)) {
            return;
        }
        if routed.message.retain && state.replays.is_some() {
            self.cancel_replay_of(session, routed.message.topic);
        }
        let terms = Terms {
            qos: qos.min(routed.message.qos),
            retain: retain && routed.message.retain,
            identifiers: &identifiers,
            group: None,
        };
        self.deliver(routed, session, terms, now);
    }

    /// Filters have gone since a fan-out was begun, and their ids may be in use for others: only what still matches stays.
    fn forget_removed(&self, fanout: &mut Fanout) {
        let Fanout { message, filters, cursor, removals, .. } = fanout;
        *removals = self.subscriptions.removals();
        let mut position = 0;
        filters.retain(|filter| {
            let matches = self.subscriptions.text(*filter).is_some_and(|text| topic::matches(text, message.topic()));
            match position.cmp(&cursor.filter) {
                _ if matches => position += 1,
                Ordering::Less => cursor.filter -= 1,
                Ordering::Equal => cursor.slot = 0,
                Ordering::Greater => {}
            }
            matches
        });
    }

    /// Goes on with queued fan-outs, a share of the budget each.
    pub(super) fn run_fanouts(&mut self, now: Time) {
        if self.pool.in_use() > OUTBOXES_MANY {
            self.budget = self.budget.min(SLOWLY);
        }
        while self.budget > 0 {
            let Some((topic, mut fanout)) = self.fanouts.take() else { break };
            let message = fanout.message.clone();
            if fanout.removals != self.subscriptions.removals() {
                self.forget_removed(&mut fanout);
            }
            let mut routed = Routed::new(message.as_ref(), Some(message.clone()), self.take_frames());
            let done = self.serve(&mut routed, &fanout.filters, &mut fanout.cursor, &mut fanout.served, fanout.publisher, now);
            self.scratch = Some(routed.into_frames());
            if done {
                self.fanouts.done(topic, fanout.source);
            } else {
                self.fanouts.put_back(topic, fanout);
            }
        }
        self.wake_waiting_for_fanouts(self.room_for_fanouts(Source::Here));
    }
}
