//! Client id → session, and the ends of sessions: connection lost, will, expiry, removal.
//!
//! A session that ends leaves the client table at once, so that its id is free; its subscriptions and messages are removed at a
//! turn's budget, because there may be 100,000 of them.

use super::Shard;
use super::deliver::DELIVERY_BYTES;
use super::events::Event;
use super::peer::Cargo;
use super::publish::Pending;
use super::timers::{Timer, TimerKind};
use crate::fault::Fault;
use crate::ids::SessionId;
use crate::session::{Phase, Session};
use crate::time::Time;
use crate::wire::QoS;
use std::time::Duration;

impl Shard {
    pub(super) fn find_session(&self, client_id: &str) -> Option<SessionId> {
        let is_it = |session: &SessionId| *self.sessions[session.0].client_id == *client_id;
        self.clients.find(self.hasher.client_id(client_id), is_it).copied()
    }

    /// A session's connection is gone, for whatever reason: the will falls due, the expiry begins.
    pub(super) fn on_connection_lost(&mut self, session: SessionId, why: &'static str, now: Time) {
        self.online -= 1;
        self.raise_disconnected(session, why, now);
        let state = &mut self.sessions[session.0];
        state.connection = None;
        if let Some(inbound) = &mut state.inbound {
            inbound.owed.on_disconnected();
        }
        self.effects.events.push(Event::ClientDisconnected {
            client_id: state.client_id.clone(),
            why,
            drops: state.drops.clone(),
        });
        if !state.outlives_connection() {
            self.on_group_members_online(session);
            self.end_session(session, now);
            return;
        }
        let expiry = Duration::from_secs(state.expiry_interval_s.into());
        let for_ever = state.expiry_interval_s == u32::MAX || Fault::ForgetSessionExpiry.is_planted();
        state.expires_at = if for_ever { Time::NEVER } else { now + expiry };
        if let Some(will) = &mut state.will {
            if will.delay_interval_s == 0 || self.phase != super::Phase::Running || Fault::IgnoreWillDelay.is_planted() {
                self.publish_will(session, now);
            } else {
                will.due = now + Duration::from_secs(will.delay_interval_s.into());
            }
        }
        self.on_group_members_online(session);
        self.watch_session(session);
    }

    /// Publishes a session's will, if it has one; a broker that shuts down publishes none [MQTT-3.1.2-8 allows it].
    pub(super) fn publish_will(&mut self, session: SessionId, now: Time) {
        let Some(will) = self.sessions[session.0].will.take() else { return };
        if self.phase == super::Phase::Running && !Fault::ForgetWill.is_planted() {
            self.counters.wills_published += 1;
            let client_id = self.rules.is_some().then(|| self.sessions[session.0].client_id.clone());
            let message = will.publish(now);
            self.pending.push_back(Pending::Publish { message, publisher: Some(session), client_id, depth: 0 });
        }
    }

    fn watch_session(&mut self, session: SessionId) {
        let state = &mut self.sessions[session.0];
        let due = state.will.as_ref().map_or(Time::NEVER, |will| will.due).min(state.expires_at);
        // An entry that comes out earlier will do: a client that comes and goes does not leave one each time.
        if due < state.watched {
            state.timer = self.next_timer;
            state.watched = due;
            self.wheel.add(Timer::new(TimerKind::Session, session.0, self.next_timer), due);
            self.next_timer = self.next_timer.wrapping_add(1);
        }
    }

    pub(super) fn on_session_timer(&mut self, timer: Timer, now: Time) {
        let Some(state) = self.sessions.get_mut(timer.slot).filter(|state| timer.is_for(state.timer)) else { return };
        state.watched = Time::NEVER;
        if state.is_online() || state.phase != Phase::Alive {
            return;
        }
        let session = SessionId(timer.slot);
        if state.expires_at <= now {
            self.counters.sessions_expired += 1;
            self.effects.events.push(Event::SessionExpired { client_id: state.client_id.clone() });
            self.end_session(session, now);
            return;
        }
        if state.will.as_ref().is_some_and(|will| will.due <= now) {
            self.publish_will(session, now);
        }
        self.watch_session(session);
    }

    /// Ends a session: its will, if one waits, is published [MQTT-3.1.3-9], its id is free, the rest follows at a turn's budget.
    pub(super) fn end_session(&mut self, session: SessionId, now: Time) {
        self.publish_will(session, now);
        let state = &mut self.sessions[session.0];
        debug_assert!(state.connection.is_none() && state.phase == Phase::Alive);
        state.phase = Phase::Ending;
        let hash = self.hasher.client_id(&state.client_id);
        let removed = self.clients.remove(hash, |other| *other == session);
        debug_assert!(removed.is_some());
        let released = self.sessions[session.0].outbound.as_ref().map_or(0, |outbound| outbound.released());
        self.charge -= released as i64 * DELIVERY_BYTES;
        self.ending.push_back(session);
    }

    pub(super) fn ending_may_go_on(&self) -> bool {
        !self.ending.is_empty() && self.may_push_to_all(Cargo::Control, 1, 1024).is_ok()
    }

    /// Removes what ended sessions leave behind: subscriptions (their interest is retracted, which needs room on every ring) and
    /// undelivered messages, those of shared subscriptions to another member [MQTT-4.8.2-4 ff.].
    pub(super) fn remove_ended(&mut self, budget: usize, _now: Time) {
        let mut budget = budget;
        while let Some(&session) = self.ending.front() {
            while let Some(replay) = self.sessions[session.0].replays.as_mut().and_then(|replays| replays.close_one()) {
                self.retained.forget(replay);
                if budget == 0 {
                    return;
                }
                budget -= 1;
            }
            while !self.sessions[session.0].subscriptions.is_empty() {
                if budget == 0 || self.may_push_to_all(Cargo::Control, 1, 1024).is_err() {
                    return;
                }
                budget -= 1;
                if let Some(subscription) = self.sessions[session.0].subscriptions.pop() {
                    self.remove_subscription(session, subscription);
                }
            }
            while let Some(undelivered) =
                self.sessions[session.0].outbound.as_mut().and_then(|outbound| outbound.take_undelivered())
            {
                if budget == 0 {
                    // Taken out already: one over the budget.
                    self.redispatch(undelivered);
                    return;
                }
                budget -= 1;
                self.redispatch(undelivered);
            }
            self.ending.pop_front();
            if let Some(state) = self.sessions.remove(session.0)
                && !Fault::LeakSessionCharge.is_planted()
            {
                self.charge -= (size_of::<Session>() + state.client_id.len()) as i64;
            }
            // The session itself counts as well: it may have had nothing else.
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return;
            }
        }
    }

    fn redispatch(&mut self, (delivery, may_have_arrived): (crate::session::outbound::Delivery, bool)) {
        self.charge -= DELIVERY_BYTES;
        match delivery.group {
            // QoS 2 that is on its way to one client is never given to another [MQTT-4.8.2-5].
            _ if Fault::ForgetRedispatch.is_planted() => {}
            Some(filter) if delivery.qos == QoS::AtLeastOnce || !may_have_arrived => {
                self.pending.push_back(Pending::Redispatch { message: delivery.message, filter });
            }
            _ => self.counters.dropped_session_end += 1,
        }
    }
}
