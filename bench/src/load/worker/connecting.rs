//! How a worker's clients come and go: connects when they are due, CONNECT, SUBSCRIBE, and what follows when a connection ends.

use super::{Rota, State, Worker, next_id};
use crate::load::control::record;
use crate::load::counts::Count;
use crate::load::packets;
use crate::load::socket::{self, now_ns};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Connects that a turn begins at most, so that what arrives is not kept waiting.
const CONNECTS_PER_TURN: u32 = 64;
/// A failed connect, or one that the broker has closed, is made again after so long.
const RETRY_NS: u64 = 1_000_000_000;
/// A client pings after so much of its keep-alive, unless it has sent something in the last tenth of it.
const PING_PART: f64 = 0.9;

impl Worker<'_> {
    pub(super) fn start_connects(&mut self, group: usize, at_ns: u64) {
        let plan = &self.plan.groups[group];
        let workers = f64::from(self.plan.workers);
        let from_ns = at_ns + (plan.connect_gap_ns * f64::from(self.number)) as u64;
        let share = &mut self.shares[group];
        share.connects = Rota::start(from_ns, plan.connect_gap_ns * workers);
        let every_ns = f64::from(plan.keep_alive_s) * 1e9 * PING_PART;
        if plan.keep_alive_s > 0 && share.count > 0 {
            share.pings = Rota::start(at_ns + every_ns as u64, every_ns / f64::from(share.count));
        }
    }

    /// Begins the connects that are due; whether there are more.
    pub(super) fn connect_due(&mut self) -> bool {
        let mut budget = CONNECTS_PER_TURN.min(self.plan.greeting_max.saturating_sub(self.greeting));
        if budget == 0 {
            return false;
        }
        while self.retries.front().is_some_and(|&(at_ns, _)| at_ns <= self.now_ns) && budget > 0 {
            if let Some((at_ns, number)) = self.retries.pop_front() {
                budget -= 1;
                self.connect(number, at_ns);
            }
        }
        for group in 0..self.shares.len() {
            while budget > 0 {
                let now_ns = self.now_ns;
                let share = &mut self.shares[group];
                if share.connects.taken >= u64::from(share.count) {
                    share.connects.active = false;
                    break;
                }
                let Some((rank, due_ns)) = share.connects.take(now_ns) else { break };
                let number = share.base + rank as u32;
                budget -= 1;
                self.connect(number, due_ns);
            }
        }
        budget == 0
    }

    fn connect(&mut self, number: u32, due_ns: u64) {
        let client = &mut self.clients[number as usize];
        if client.state != State::Closed {
            return;
        }
        // Sources and addresses advance at different paces, so that all pairs are used.
        let turn = (client.index / self.plan.workers) as usize;
        let address = self.plan.addresses[turn % self.plan.addresses.len()];
        let sources = self.plan.sources.len();
        let source = (sources > 0).then(|| self.plan.sources[turn / self.plan.addresses.len() % sources]);
        client.began_us = (due_ns / 1000) as u32;
        client.generation = client.generation.wrapping_add(1);
        let token = u64::from(client.generation) << 32 | u64::from(number);
        let begun = socket::begin_connect(address, source).and_then(|socket| {
            self.set.add(&socket, token)?;
            Ok(socket)
        });
        match begun {
            Ok(socket) => {
                client.socket = Some(socket);
                client.state = State::Connecting;
                self.greeting += 1;
            }
            Err(_) => self.lose(number),
        }
    }

    /// The connection is there: sends CONNECT.
    pub(super) fn greet(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        if client.socket.as_ref().is_none_or(|socket| socket::take_error(socket).is_err()) {
            return self.lose(number);
        }
        client.state = State::Greeting;
        let plan = &self.plan.groups[usize::from(client.group)];
        self.text.clear();
        plan.client_id.write(client.index, &mut self.text);
        let id_bytes = self.text.len();
        let will = plan.will.as_ref().map(|(topic, qos)| {
            topic.write(client.index, &mut self.text);
            *qos
        });
        let (client_id, topic) = self.text.split_at(id_bytes);
        let connect = packets::Connect {
            v5: plan.v5,
            client_id,
            clean: plan.clean,
            keep_alive_s: plan.keep_alive_s,
            session_expiry_s: plan.session_expiry_s,
            will: will.map(|qos| packets::Will { topic, payload: b"gone", qos }),
        };
        self.out.clear();
        packets::connect(&connect, &mut self.out);
        self.send_out(number);
    }

    pub(super) fn subscribe(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        client.state = State::Subscribing;
        let plan = &self.plan.groups[usize::from(client.group)];
        self.text.clear();
        self.filters.clear();
        for (filter, qos) in &plan.subscribe {
            let before = self.text.len();
            filter.write(client.index, &mut self.text);
            self.filters.push((self.text.len() - before, *qos));
        }
        let id = next_id(&mut client.packet_id);
        self.out.clear();
        packets::subscribe(plan.v5, id, &self.text, &self.filters, &mut self.out);
        self.send_out(number);
    }

    pub(super) fn come_up(&mut self, number: u32) {
        let now_ns = now_ns();
        let client = &mut self.clients[number as usize];
        client.state = State::Up;
        let group = usize::from(client.group);
        let took_us = ((now_ns / 1000) as u32).wrapping_sub(client.began_us);
        if self.window.until_ns == u64::MAX {
            record(&mut self.times.connect, u64::from(took_us) * 1000);
        }
        self.shares[group].up += 1;
        let counts = &self.control.counts[self.number as usize];
        counts.set_up(group, self.shares[group].up);
        counts.add(Count::Connected, 1);
        counts.last_connected_ns.store(now_ns, Ordering::Relaxed);
        if self.shares[group].messages.active {
            self.credit(number);
        }
    }

    /// The connection has failed, or the broker has closed it: counted, and made again in a moment.
    pub(super) fn lose(&mut self, number: u32) {
        let was_up = self.clients[number as usize].state == State::Up;
        self.count(if was_up { Count::Dropped } else { Count::Failed }, 1);
        drop(self.close(number));
        self.retries.push_back((self.now_ns + RETRY_NS, number));
    }

    fn close(&mut self, number: u32) -> Option<OwnedFd> {
        let client = &mut self.clients[number as usize];
        let group = usize::from(client.group);
        if client.state == State::Up {
            self.shares[group].up -= 1;
            self.control.counts[self.number as usize].set_up(group, self.shares[group].up);
        }
        if matches!(client.state, State::Connecting | State::Greeting) {
            self.greeting -= 1;
        }
        client.state = State::Closed;
        self.buffers.give_back(&mut client.partial);
        self.buffers.give_back(&mut client.outbox);
        // What was in flight will not be answered on another connection: a closed loop starts again.
        client.acknowledged = client.sequence;
        if let Some(publish) = &self.plan.groups[group].publish {
            client.copies = client.sequence.saturating_mul(publish.copies);
        }
        client.socket.take()
    }

    pub(super) fn reset(&mut self, group: usize) {
        let (base, count) = (self.shares[group].base, self.shares[group].count);
        let wills = u64::from(self.plan.groups[group].will.is_some());
        for number in base..base + count {
            let was_up = self.clients[number as usize].state == State::Up;
            if let Some(socket) = self.close(number) {
                self.count(Count::Resets, u64::from(was_up));
                self.count(Count::WillsDue, u64::from(was_up) * wills);
                socket::reset(socket);
            }
        }
    }

    /// DISCONNECT to all, then the close.
    pub(super) fn goodbye(&mut self) {
        for number in 0..self.clients.len() as u32 {
            if self.clients[number as usize].state == State::Up {
                self.out.clear();
                self.out.extend_from_slice(&crate::mqtt::DISCONNECT);
                self.send_out(number);
            }
            drop(self.close(number));
        }
    }
}
