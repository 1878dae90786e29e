//! What a worker's clients send when it is due: messages of open and closed loops, and pings.

use super::{Rota, State, Worker, next_id};
use crate::load::counts::Count;
use crate::load::packets;
use crate::load::plan::{Group, Pace};
use crate::load::socket::now_ns;
use crate::load::stamp::Stamp;

/// Messages and pings each that a turn sends at most, so that what arrives is not kept waiting.
const MESSAGES_PER_TURN: u32 = 256;
/// Past so many bytes that the broker does not take, a client's further messages wait, with the time at which they were due.
const OUTBOX_BYTES: usize = 256 << 10;

impl Worker<'_> {
    pub(super) fn start_messages(&mut self, group: usize, at_ns: u64, rate: f64) {
        let Some(publish) = &self.plan.groups[group].publish else { return };
        let share = &mut self.shares[group];
        if share.publishers == 0 {
            return;
        }
        self.control.counts[self.number as usize].set_publishing(group, true);
        match publish.pace {
            Pace::Open { every_ns } => {
                let every_ns = every_ns / rate;
                let from_ns = at_ns + (every_ns / f64::from(publish.publishers) * f64::from(self.number)) as u64;
                share.messages = Rota::start(from_ns, every_ns / f64::from(share.publishers));
                // What was owed at another rate had other due times.
                for number in share.base..share.base + share.publishers {
                    self.forgive(number);
                }
            }
            Pace::Closed { .. } => {
                // Nothing is due by the clock: what arrives makes room.
                share.messages = Rota::start(u64::MAX, 0.0);
                let (base, publishers) = (share.base, share.publishers);
                (base..base + publishers).for_each(|number| self.credit(number));
            }
        }
    }

    pub(super) fn stop_messages(&mut self, group: usize) {
        self.shares[group].messages.active = false;
        self.control.counts[self.number as usize].set_publishing(group, false);
    }

    /// Publishes what is due; whether there is more.
    pub(super) fn publish_due(&mut self) -> bool {
        let mut budget = MESSAGES_PER_TURN;
        for group in 0..self.shares.len() {
            let Some(publish) = &self.plan.groups[group].publish else { continue };
            if !matches!(publish.pace, Pace::Open { .. }) {
                continue;
            }
            while budget > 0 {
                let now_ns = self.now_ns;
                let share = &mut self.shares[group];
                let publishers = u64::from(share.publishers);
                if !share.messages.active {
                    break;
                }
                if share.messages.taken >= publishers.saturating_mul(u64::from(publish.messages)) {
                    self.stop_messages(group);
                    break;
                }
                let Some((turn, due_ns)) = share.messages.take(now_ns) else { break };
                let number = share.base + (turn % publishers) as u32;
                budget -= 1;
                self.count(Count::Due, 1);
                self.publish_or_owe(number, due_ns);
            }
        }
        budget == 0
    }

    fn publish_or_owe(&mut self, number: u32, due_ns: u64) {
        if self.clients[number as usize].state != State::Up {
            self.count(Count::Unsent, 1);
            return;
        }
        if self.clients[number as usize].owed > 0 || !self.has_room(number) {
            let client = &mut self.clients[number as usize];
            match client.owed.checked_add(1) {
                Some(owed) => client.owed = owed,
                // It owes the last ones; the first of them is not sent any more.
                None => self.count(Count::Unsent, 1),
            }
            return;
        }
        self.out.clear();
        self.write_publish(number, due_ns);
        self.send_out(number);
    }

    /// What a client owes will not be sent any more.
    pub(super) fn forgive(&mut self, number: u32) {
        let owed = std::mem::take(&mut self.clients[number as usize].owed);
        self.count(Count::Unsent, u64::from(owed));
    }

    /// Whether a client may send one more message now: the broker's Receive Maximum [MQTT-3.3.4-7] and its socket allow it.
    fn has_room(&self, number: u32) -> bool {
        let client = &self.clients[number as usize];
        let Some(publish) = &self.plan.groups[usize::from(client.group)].publish else { return false };
        let in_flight = if publish.qos > 0 { client.sequence.wrapping_sub(client.acknowledged) } else { 0 };
        in_flight < u32::from(client.receive_maximum) && self.buffers.get(client.outbox).len() < OUTBOX_BYTES
    }

    /// Publishes what a client of an open loop owes, as far as there is room, with the times at which it was due.
    pub(super) fn pay(&mut self, number: u32) {
        while self.clients[number as usize].owed > 0 && self.has_room(number) {
            let client = &mut self.clients[number as usize];
            let share = &self.shares[usize::from(client.group)];
            let rank = u64::from(number - share.base);
            let publishers = u64::from(share.publishers);
            // The last round in which it has had its turn.
            let round = (share.messages.taken - rank + publishers - 1) / publishers.max(1);
            let due_ns = share.messages.due_ns(round.saturating_sub(u64::from(client.owed)) * publishers + rank);
            client.owed -= 1;
            self.out.clear();
            self.write_publish(number, due_ns);
            self.send_out(number);
        }
    }

    /// Appends a client's next PUBLISH to `out`.
    fn write_publish(&mut self, number: u32, due_ns: u64) {
        let client = &mut self.clients[number as usize];
        let plan: &Group = &self.plan.groups[usize::from(client.group)];
        let Some(publish) = &plan.publish else { return };
        self.text.clear();
        publish.topic.write(client.index, &mut self.text);
        let id = if publish.qos > 0 { next_id(&mut client.packet_id) } else { 0 };
        packets::publish_head(plan.v5, &self.text, publish.qos, id, publish.size, &mut self.out);
        let stamp = Stamp { due_ns, publisher: plan.first + client.index, sequence: client.sequence };
        client.sequence += 1;
        stamp.write(publish.json, publish.size, &mut self.out);
        if publish.qos > 0 && matches!(publish.pace, Pace::Open { .. }) {
            self.unanswered.insert((number, id), due_ns);
        }
        let copies = u64::from(publish.copies);
        let acknowledgeable = u64::from(publish.qos > 0);
        self.count(Count::Sent, 1);
        self.count(Count::Acknowledgeable, acknowledgeable);
        self.count(Count::Wanted, copies);
    }

    pub(super) fn credit(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        if !client.credited {
            client.credited = true;
            self.credits.push(number);
        }
    }

    /// Publishes what the windows of the credited clients have room for, each client's with one send, a batch at most.
    pub(super) fn refill_windows(&mut self) {
        let mut credits = std::mem::take(&mut self.credits);
        std::mem::swap(&mut self.credits, &mut self.refilling);
        for number in credits.drain(..) {
            self.clients[number as usize].credited = false;
            self.refill(number);
        }
        self.refilling = credits;
    }

    fn refill(&mut self, number: u32) {
        let client = &self.clients[number as usize];
        let group = usize::from(client.group);
        let Some(publish) = &self.plan.groups[group].publish else { return };
        let Pace::Closed { window, batch } = publish.pace else { return };
        if client.state != State::Up || !self.shares[group].messages.active {
            return;
        }
        let received = client.copies.checked_div(publish.copies).unwrap_or(u32::MAX);
        let acknowledged = if publish.qos > 0 { client.acknowledged } else { u32::MAX };
        let done = received.min(acknowledged).min(client.sequence);
        let room = window.min(u32::from(client.receive_maximum)).saturating_sub(client.sequence - done);
        let room = room.min(publish.messages.saturating_sub(client.sequence));
        let count = room.min(batch);
        if count == 0 {
            return;
        }
        self.out.clear();
        let due_ns = now_ns();
        for _ in 0..count {
            self.write_publish(number, due_ns);
        }
        self.count(Count::Due, u64::from(count));
        if self.clients[number as usize].sequence == publish.messages {
            self.shares[group].finished += 1;
            if self.shares[group].finished == self.shares[group].publishers {
                self.stop_messages(group);
            }
        }
        self.send_out(number);
        if count < room {
            self.credit(number);
        }
    }

    /// Pings for the clients whose turn it is; whether there are more.
    pub(super) fn ping_due(&mut self) -> bool {
        let mut budget = MESSAGES_PER_TURN;
        for group in 0..self.shares.len() {
            let fresh_ms = u32::from(self.plan.groups[group].keep_alive_s) * 100;
            while budget > 0 {
                let now_ns = self.now_ns;
                let share = &mut self.shares[group];
                let Some((turn, _)) = share.pings.take(now_ns) else { break };
                let number = share.base + (turn % u64::from(share.count)) as u32;
                budget -= 1;
                let client = &self.clients[number as usize];
                if client.state == State::Up && self.now_ms().wrapping_sub(client.sent_ms) >= fresh_ms {
                    self.out.clear();
                    packets::ping_request(&mut self.out);
                    self.count(Count::Pings, 1);
                    self.send_out(number);
                }
            }
        }
        budget == 0
    }
}
