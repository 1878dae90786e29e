//! Shared subscriptions (section 4.8.2): `$share/{group}/{filter}`.
//!
//! Membership is replicated like interest: each core knows how many members of a group are online and offline on every core, and its
//! own by name. The publisher's core picks a core by weight and sends once; that core picks a member in turn. No core carries a group.
//! Counts are announced when they have changed and there is room, the latest only, so a storm of members costs one message a turn.

use super::Shard;
use super::peer::{Cargo, MeshMessage};
use crate::ids::{CoreId, FilterId, SessionId};
use crate::segments::SegmentedSlab;
use crate::topic::{Filter, FilterIndex, Hasher, TopicKey};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

struct Group {
    /// The whole filter, `$share/{group}/` included.
    text: Arc<str>,
    online: Members,
    offline: Members,
    remote: SmallVec<[Remote; 2]>,
    /// What the other cores were last told.
    announced: (u32, u32),
    /// It stands in line to be announced.
    dirty: bool,
}

#[derive(Clone, Copy)]
struct Remote {
    core: CoreId,
    online: u32,
    offline: u32,
}

/// Members in turn; adding and removing are one step.
#[derive(Default)]
struct Members {
    list: Vec<SessionId>,
    positions: HashMap<SessionId, usize>,
    next: usize,
}

impl Members {
    fn add(&mut self, session: SessionId) {
        if let std::collections::hash_map::Entry::Vacant(entry) = self.positions.entry(session) {
            entry.insert(self.list.len());
            self.list.push(session);
        }
    }

    fn remove(&mut self, session: SessionId) -> bool {
        let Some(position) = self.positions.remove(&session) else { return false };
        self.list.swap_remove(position);
        if let Some(moved) = self.list.get(position) {
            self.positions.insert(*moved, position);
        }
        true
    }

    fn next(&mut self) -> Option<SessionId> {
        if self.list.is_empty() {
            return None;
        }
        self.next = (self.next + 1) % self.list.len();
        Some(self.list[self.next])
    }

    fn len(&self) -> u32 {
        self.list.len() as u32
    }
}

impl Group {
    fn counts(&self) -> (u32, u32) {
        (self.online.len(), self.offline.len())
    }

    fn is_unused(&self) -> bool {
        self.counts() == (0, 0) && self.remote.is_empty() && self.announced == (0, 0)
    }
}

#[derive(Default)]
pub(super) struct SharedGroups {
    groups: SegmentedSlab<Group>,
    /// Group by the filter without its `$share` part, for matching.
    index: Option<FilterIndex<u32>>,
    by_text: HashMap<Arc<str>, u32>,
    dirty: VecDeque<u32>,
    /// Sessions whose memberships are being moved because they have come or gone.
    moves: VecDeque<Move>,
    members: usize,
}

/// How far a session's memberships have been moved.
struct Move {
    session: SessionId,
    incarnation: u32,
    after: Option<FilterId>,
}

/// Memberships that a session's coming or going moves at once.
const MOVED_AT_ONCE: usize = 16;
/// Members found to be away while one is picked, at most.
const PASSED_MAX: usize = 16;

impl SharedGroups {
    /// Local members of all groups.
    pub(super) fn members(&self) -> usize {
        self.members
    }

    pub(super) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    pub(super) fn has_unannounced(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(super) fn find(&self, text: &str) -> Option<FilterId> {
        self.by_text.get(text).map(|&group| FilterId(group))
    }

    pub(super) fn text_len(&self, filter: FilterId) -> usize {
        self.groups.get(filter.0).map_or(0, |group| group.text.len())
    }

    fn get_or_add(&mut self, hasher: &Hasher, text: &str, filter: &str) -> u32 {
        if let Some(&group) = self.by_text.get(text) {
            return group;
        }
        let text: Arc<str> = text.into();
        let group = self.groups.insert(Group {
            text: text.clone(),
            online: Members::default(),
            offline: Members::default(),
            remote: SmallVec::new(),
            announced: (0, 0),
            dirty: false,
        });
        self.by_text.insert(text, group);
        self.index.get_or_insert_with(FilterIndex::new).insert(hasher, filter, group);
        group
    }

    fn mark(&mut self, group: u32) {
        let state = &mut self.groups[group];
        if !state.dirty && state.counts() != state.announced {
            state.dirty = true;
            self.dirty.push_back(group);
        }
    }

    fn forget_if_unused(&mut self, hasher: &Hasher, group: u32) {
        if !self.groups.get(group).is_some_and(|state| state.is_unused() && !state.dirty) {
            return;
        }
        if let Some(state) = self.groups.remove(group) {
            self.by_text.remove(&state.text);
            if let (Ok(filter), Some(index)) = (Filter::parse(&state.text, u16::MAX, u16::MAX), &mut self.index) {
                index.remove(hasher, filter.filter, |other| other == group);
            }
        }
    }

    pub(super) fn join(&mut self, hasher: &Hasher, filter: &Filter<'_>, session: SessionId, online: bool) -> FilterId {
        let group = self.get_or_add(hasher, filter.text, filter.filter);
        let state = &mut self.groups[group];
        let before = state.counts();
        if online { &mut state.online } else { &mut state.offline }.add(session);
        if state.counts() != before {
            self.members += 1;
        }
        self.mark(group);
        FilterId(group)
    }

    pub(super) fn leave(&mut self, hasher: &Hasher, filter: FilterId, session: SessionId) {
        let Some(state) = self.groups.get_mut(filter.0) else { return };
        if state.online.remove(session) || state.offline.remove(session) {
            self.members -= 1;
        }
        self.mark(filter.0);
        self.forget_if_unused(hasher, filter.0);
    }

    fn move_member(&mut self, filter: FilterId, session: SessionId, online: bool) {
        let Some(state) = self.groups.get_mut(filter.0) else { return };
        let (from, to) = if online { (&mut state.offline, &mut state.online) } else { (&mut state.online, &mut state.offline) };
        if from.remove(session) {
            to.add(session);
        }
        self.mark(filter.0);
    }
}

impl Shard {
    /// A session with shared subscriptions has come or gone.
    pub(super) fn on_group_members_online(&mut self, session: SessionId) {
        let state = &self.sessions[session.0];
        if state.subscriptions.next_shared(None).is_none() {
            return;
        }
        let mut budget = MOVED_AT_ONCE;
        let started = Move { session, incarnation: state.incarnation, after: None };
        if let Some(unfinished) = self.go_on_moving(started, &mut budget) {
            self.groups.moves.push_back(unfinished);
        }
    }

    /// Goes on moving memberships of sessions that have come or gone. Until a membership is moved, who picks a member looks itself.
    pub(super) fn move_members(&mut self, mut budget: usize) {
        while budget > 0
            && let Some(next) = self.groups.moves.pop_front()
        {
            budget -= 1;
            if let Some(unfinished) = self.go_on_moving(next, &mut budget) {
                self.groups.moves.push_front(unfinished);
                return;
            }
        }
    }

    fn go_on_moving(&mut self, mut of: Move, budget: &mut usize) -> Option<Move> {
        let state = self.sessions.get(of.session.0).filter(|state| state.incarnation == of.incarnation)?;
        let online = state.is_online();
        while let Some(subscription) = state.subscriptions.next_shared(of.after) {
            if *budget == 0 {
                return Some(of);
            }
            *budget -= 1;
            of.after = Some(subscription.filter);
            self.groups.move_member(subscription.filter, of.session, online);
        }
        None
    }

    /// Tells the other cores what has changed in the groups, as far as there is room.
    pub(super) fn announce_groups(&mut self) {
        while let Some(&group) = self.groups.dirty.front() {
            if self.cores > 1 {
                let bytes = (size_of::<MeshMessage>() + self.groups.groups[group].text.len()) as u64;
                if self.may_push_to_all(Cargo::Control, 1, bytes).is_err() {
                    return;
                }
            }
            self.groups.dirty.pop_front();
            let state = &mut self.groups.groups[group];
            state.dirty = false;
            state.announced = state.counts();
            let (filter, (online, offline)) = (state.text.clone(), state.announced);
            for core in 0..self.cores {
                let core = CoreId(core as u8);
                if core != self.core {
                    self.push(core, MeshMessage::Group { filter: filter.clone(), online, offline });
                    self.announced[core.index()] = self.peer(core).position();
                }
            }
            let hasher = self.hasher;
            self.groups.forget_if_unused(&hasher, group);
        }
    }

    /// Another core says how many members it has.
    pub(super) fn on_group(&mut self, from: CoreId, text: Arc<str>, online: u32, offline: u32) {
        let Ok(filter) = Filter::parse(&text, u16::MAX, u16::MAX) else { return };
        let hasher = self.hasher;
        let group = self.groups.get_or_add(&hasher, &text, filter.filter);
        let remote = &mut self.groups.groups[group].remote;
        remote.retain(|other| other.core != from);
        if (online, offline) != (0, 0) {
            remote.push(Remote { core: from, online, offline });
        }
        self.groups.forget_if_unused(&hasher, group);
    }

    /// For each group that matches a topic, a core of its members.
    pub(super) fn pick_groups(&mut self, key: &TopicKey<'_>) -> SmallVec<[(CoreId, Arc<str>); 2]> {
        let mut picked = SmallVec::new();
        let Some(index) = self.groups.index.as_ref().filter(|index| !index.is_empty()) else { return picked };
        let mut matching: SmallVec<[u32; 4]> = SmallVec::new();
        index.for_each_match(&self.hasher, key, |group| matching.push(group));
        for group in matching {
            let text = self.groups.groups[group].text.clone();
            let really =
                Filter::parse(&text, u16::MAX, u16::MAX).is_ok_and(|filter| crate::topic::matches(filter.filter, key.topic()));
            if really && let Some(core) = self.pick_core(group) {
                picked.push((core, text));
            }
        }
        picked
    }

    pub(super) fn pick_core_of_group(&mut self, text: &str) -> Option<CoreId> {
        let group = *self.groups.by_text.get(text)?;
        self.pick_core(group)
    }

    /// A core by its weight in online members; with none online anywhere, one by its offline sessions.
    fn pick_core(&mut self, group: u32) -> Option<CoreId> {
        let random = self.next_random();
        let state = &self.groups.groups[group];
        let own = Remote { core: self.core, online: state.online.len(), offline: state.offline.len() };
        for weight in [|remote: &Remote| remote.online, |remote: &Remote| remote.offline] {
            let all = || state.remote.iter().chain(std::iter::once(&own));
            let total: u64 = all().map(|remote| u64::from(weight(remote))).sum();
            if total == 0 {
                continue;
            }
            let mut pick = random % total;
            for remote in all() {
                let weight = u64::from(weight(remote));
                if pick < weight {
                    return Some(remote.core);
                }
                pick -= weight;
            }
        }
        None
    }

    /// The local member whose turn it is: one that is online or, with none online on any core, one that is offline.
    pub(super) fn next_member(&mut self, text: &str) -> Option<(SessionId, FilterId)> {
        let group = *self.groups.by_text.get(text)?;
        for _ in 0..PASSED_MAX {
            let Some(member) = self.groups.groups[group].online.next() else { break };
            if self.sessions.get(member.0).is_some_and(|state| state.is_online()) {
                return Some((member, FilterId(group)));
            }
            // It has gone, and its memberships are still being moved.
            self.groups.move_member(FilterId(group), member, false);
        }
        let state = &mut self.groups.groups[group];
        if state.remote.iter().any(|remote| remote.online > 0) {
            return None;
        }
        state.offline.next().map(|member| (member, FilterId(group)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_take_turns_and_leave_in_one_step() {
        let mut members = Members::default();
        for i in 0..4 {
            members.add(SessionId(i));
            members.add(SessionId(i));
        }
        let mut seen: Vec<u32> = (0..4).filter_map(|_| members.next()).map(|member| member.0).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        assert!(members.remove(SessionId(1)) && !members.remove(SessionId(1)));
        for _ in 0..6 {
            assert_ne!(members.next(), Some(SessionId(1)));
        }
        assert_eq!(members.len(), 3);
    }
}
