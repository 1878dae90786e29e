//! How a worker's clients come and go: connects when they are due, CONNECT, SUBSCRIBE, and what follows when a connection ends.

use super::{Rota, State, Worker, next_id};
use crate::load::control::record;
use crate::load::counts::Count;
use crate::load::packets;
use crate::load::socket::{self, now_ns};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Connects that a turn begins at most, so that what arrives is not kept waiting.
const CONNECTS_PER_TURN: u32 = 64;
/// A failed connect, or one that the broker has closed, is made again after so long.
const RETRY_NS: u64 = 1_000_000_000;
/// A client pings after so much of its keep-alive, unless it has sent something in the last tenth of it.
const PING_PART: f64 = 0.9;
/// Clients of a worker that say goodbye at a time, how long the broker may take to close their connections, and how often it is asked
/// whether the time is over.
const GOODBYES: u32 = 1024;
const GOODBYE_NS: u64 = 250_000_000;
const GOODBYE_LOOK: Duration = Duration::from_millis(5);

/// When the first client has its first turn to ping. It must come within the keep-alive of every client, however short the ramp is beside
/// it. A turn that comes before its client is connected does no harm: the next one is not further from the connect than that.
fn pings_from_ns(at_ns: u64, ramp_ns: f64, every_ns: f64) -> u64 {
    at_ns + ramp_ns.min(every_ns) as u64
}

impl Worker<'_> {
    pub(super) fn start_connects(&mut self, group: usize, at_ns: u64) {
        let plan = &self.plan.groups[group];
        let workers = f64::from(self.plan.workers);
        let from_ns = at_ns + (plan.connect_gap_ns * f64::from(self.number)) as u64;
        let share = &mut self.shares[group];
        share.connects = Rota::start(from_ns, plan.connect_gap_ns * workers);
        if plan.keep_alive_s > 0 && share.count > 0 {
            let every_ns = f64::from(plan.keep_alive_s) * 1e9 * PING_PART;
            let ramp_ns = plan.connect_gap_ns * f64::from(plan.count);
            share.pings = Rota::start(pings_from_ns(at_ns, ramp_ns, every_ns), every_ns / f64::from(share.count));
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
            Err(error) => self.lose(number, &error),
        }
    }

    /// The connection is there: sends CONNECT.
    pub(super) fn greet(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        let Some(socket) = &client.socket else { return };
        if let Err(error) = socket::take_error(socket) {
            return self.lose(number, &error);
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
            will: will.map(|qos| packets::Will { topic, payload: packets::WILL, qos }),
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
    pub(super) fn lose(&mut self, number: u32, why: &io::Error) {
        let was_up = self.clients[number as usize].state == State::Up;
        self.count(if was_up { Count::Dropped } else { Count::Failed }, 1);
        self.control.note_loss(why);
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
        let socket = client.socket.take();
        self.forgive(number);
        socket
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

    /// DISCONNECT to all, some at a time: a million at once is more than queues in the kernel hold, and a close that is lost there
    /// leaves its connection open at the broker.
    pub(super) fn goodbye(&mut self) -> io::Result<()> {
        let all = self.clients.len() as u32;
        for first in (0..all).step_by(GOODBYES as usize) {
            let some = first..all.min(first + GOODBYES);
            let mut open = 0;
            for number in some.clone().filter(|&number| self.clients[number as usize].state == State::Up).collect::<Vec<_>>() {
                self.out.clear();
                self.out.extend_from_slice(&crate::mqtt::DISCONNECT);
                self.send_out(number);
                open += 1;
            }
            // A broker closes at DISCONNECT; where it does not, the client does.
            let until_ns = now_ns() + GOODBYE_NS;
            while open > 0 && now_ns() < until_ns {
                for index in 0..self.set.wait(GOODBYE_LOOK)? {
                    let event = self.set.event(index);
                    let number = event.token as u32;
                    let current = self.clients[number as usize].generation == (event.token >> 32) as u8;
                    if event.closed && current && self.close(number).is_some() && some.contains(&number) {
                        open -= 1;
                    }
                }
            }
            some.for_each(|number| drop(self.close(number)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_silent_for_longer_than_its_keep_alive_however_long_the_ramp() {
        const CLIENTS: u64 = 100;
        let (keep_alive_ns, every_ns) = (600_000_000_000u64, 540_000_000_000u64);
        for ramp_s in [0, 1, 20, 539, 540, 1000, 10_000] {
            let ramp_ns = ramp_s * 1_000_000_000;
            for rank in 0..CLIENTS {
                let mut rota = Rota::start(pings_from_ns(7, ramp_ns as f64, every_ns as f64), every_ns as f64 / CLIENTS as f64);
                let connected_ns = 7 + ramp_ns * rank / CLIENTS;
                let mut sent_ns = connected_ns;
                while let Some((turn, due_ns)) = rota.take(ramp_ns + 3 * keep_alive_ns) {
                    // As `ping_due` does.
                    if turn % CLIENTS == rank && due_ns >= connected_ns {
                        assert!(due_ns - sent_ns <= keep_alive_ns, "ramp {ramp_s} s, client {rank}");
                        if due_ns - sent_ns >= keep_alive_ns / 10 {
                            sent_ns = due_ns;
                        }
                    }
                }
                assert!(sent_ns > connected_ns, "ramp {ramp_s} s, client {rank}");
            }
        }
    }
}
