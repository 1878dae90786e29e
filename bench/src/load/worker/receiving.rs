//! What a worker's clients receive: whole packets out of one buffer, their answers with one send, and what messages say of their way.

use super::{NOBODY, State, Worker};
use crate::epoll;
use crate::load::control::record;
use crate::load::counts::Count;
use crate::load::packets::{self, Incoming, WILL};
use crate::load::plan::Pace;
use crate::load::socket::now_ns;
use crate::load::stamp::{Arrival, Stamp, Track};
use corelane::topic::filter;
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering;

impl Worker<'_> {
    /// Reads all that is there; to the end of the stream if it has one.
    pub(super) fn read(&mut self, number: u32, closed: bool) {
        let mut receive = std::mem::take(&mut self.receive);
        let client = &mut self.clients[number as usize];
        let held = self.buffers.get(client.partial);
        let mut filled = held.len();
        receive[..filled].copy_from_slice(held);
        self.buffers.give_back(&mut client.partial);
        while let Some(socket) = &self.clients[number as usize].socket {
            let wanted = receive.len() - filled;
            let got = match epoll::receive(socket, &mut receive[filled..]) {
                Ok(count) if count > 0 => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(_) => {
                    self.lose(number, &io::Error::other("the broker closed the connection"));
                    break;
                }
                Err(error) => {
                    self.lose(number, &error);
                    break;
                }
            };
            self.now_ns = now_ns();
            filled += got;
            match self.take_in(number, &receive[..filled]) {
                Ok(taken) => {
                    receive.copy_within(taken..filled, 0);
                    filled -= taken;
                }
                Err(error) => {
                    self.lose(number, &error);
                    break;
                }
            }
            // A short read has emptied the socket; what comes later is reported again.
            if got < wanted && !closed {
                break;
            }
        }
        let client = &mut self.clients[number as usize];
        if client.socket.is_some() && filled > 0 {
            self.buffers.append(&mut client.partial, &receive[..filled]);
        }
        self.receive = receive;
    }

    /// Handles the whole packets in `bytes` and answers them with one send; how many bytes they were.
    fn take_in(&mut self, number: u32, bytes: &[u8]) -> io::Result<usize> {
        let v5 = self.plan.groups[usize::from(self.clients[number as usize].group)].v5;
        let mut taken = 0;
        self.answers.clear();
        while let Some((incoming, length)) = packets::read(v5, &bytes[taken..])? {
            taken += length;
            self.handle(number, incoming)?;
            if self.clients[number as usize].socket.is_none() {
                return Ok(taken);
            }
        }
        if !self.answers.is_empty() {
            std::mem::swap(&mut self.answers, &mut self.out);
            self.send_out(number);
        }
        Ok(taken)
    }

    fn handle(&mut self, number: u32, incoming: Incoming) -> io::Result<()> {
        match incoming {
            Incoming::Connack { session_present, code, receive_maximum } => {
                if code != 0 {
                    return Err(io::Error::other(format!("CONNACK with code {code:#04x}")));
                }
                if self.clients[number as usize].state != State::Greeting {
                    return Err(io::Error::other("a second CONNACK"));
                }
                self.count(Count::SessionsPresent, u64::from(session_present));
                self.greeting -= 1;
                let client = &mut self.clients[number as usize];
                client.receive_maximum = receive_maximum;
                let subscribes = !self.plan.groups[usize::from(client.group)].subscribe.is_empty();
                // A session that is still there has its subscriptions.
                if subscribes && !session_present {
                    self.subscribe(number);
                } else {
                    self.come_up(number);
                }
            }
            Incoming::Suback { .. } if self.clients[number as usize].state != State::Subscribing => {
                return Err(io::Error::other("a SUBACK that nobody waits for"));
            }
            Incoming::Suback { refused } => {
                self.count(Count::SubscriptionsRefused, u64::from(refused));
                self.come_up(number);
            }
            Incoming::Publish { qos, id, topic, payload } => {
                match qos {
                    1 => packets::puback(id, &mut self.answers),
                    2 => packets::pubrec(id, &mut self.answers),
                    _ => {}
                }
                self.count(Count::ReceivedBytes, payload.len() as u64);
                match Stamp::from_payload(payload) {
                    Some(stamp) if self.is_as_published(number, stamp, topic, qos, payload) => {
                        self.receive_message(number, stamp)
                    }
                    None if payload == WILL => self.count(Count::Wills, 1),
                    _ => self.count(Count::Foreign, 1),
                }
            }
            Incoming::Puback { id, refused } => self.acknowledged(number, id, refused),
            Incoming::Pubrec { id, refused: true } => self.acknowledged(number, id, true),
            Incoming::Pubrec { id, refused: false } => packets::pubrel(id, &mut self.answers),
            Incoming::Pubrel { id } => packets::pubcomp(id, &mut self.answers),
            Incoming::Pubcomp { id } => self.acknowledged(number, id, false),
            Incoming::Pingresp => self.count(Count::Pongs, 1),
            Incoming::Disconnect { code } => return Err(io::Error::other(format!("DISCONNECT with reason {code:#04x}"))),
            Incoming::Other => return Err(io::Error::other("a packet that no client is sent")),
        }
        Ok(())
    }

    /// Whether this is what the publisher that the stamp names has published, to a receiver that asked for it.
    fn is_as_published(&mut self, number: u32, stamp: Stamp, topic: &[u8], qos: u8, payload: &[u8]) -> bool {
        let Some((group, index)) = self.plan.locate(stamp.publisher) else { return false };
        let Some(publish) = &self.plan.groups[group].publish else { return false };
        if index >= publish.publishers
            || stamp.due_ns > self.now_ns
            || payload.len() != publish.size
            || qos > publish.qos
            || !stamp.is_of(publish.json, payload)
        {
            return false;
        }
        let client = &mut self.clients[number as usize];
        // The QoS is in it, because it is looked at with the topic.
        let hash = topic.iter().fold(u32::from(qos), |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        if client.hears == stamp.publisher && client.topic_hash == hash {
            return true;
        }
        self.text.clear();
        publish.topic.write(index, &mut self.text);
        if self.text != topic {
            return false;
        }
        let Ok(topic) = str::from_utf8(topic) else { return false };
        let index = client.index;
        let asked_for = self.plan.groups[usize::from(client.group)].subscribe.iter().any(|(filter, most)| {
            self.text.clear();
            filter.write(index, &mut self.text);
            let filter = str::from_utf8(&self.text).unwrap_or_default();
            let filter =
                filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/')).map_or(filter, |(_, filter)| filter);
            qos == publish.qos.min(*most) && filter::matches(filter, topic)
        });
        if asked_for && (client.hears == stamp.publisher || client.hears == NOBODY) {
            client.topic_hash = hash;
        }
        asked_for
    }

    fn receive_message(&mut self, number: u32, stamp: Stamp) {
        let age_ns = self.now_ns.saturating_sub(stamp.due_ns);
        if self.window.holds(stamp.due_ns) {
            record(&mut self.times.delivery, age_ns);
        }
        record(&mut self.interval, age_ns);
        let client = &mut self.clients[number as usize];
        let shared = self.plan.groups[usize::from(client.group)].shared;
        let arrival = if shared {
            let Some(track) = self.plan.tracks.get(stamp.publisher as usize) else { return };
            let arrival = track.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).note(stamp.sequence);
            // Members share a publisher's messages, so between them there is no order.
            if arrival == Arrival::OutOfOrder { Arrival::InOrder } else { arrival }
        } else {
            if client.hears == NOBODY {
                client.hears = stamp.publisher;
                client.track = Track::from(stamp.sequence);
            }
            if client.hears == stamp.publisher {
                client.track.note(stamp.sequence)
            } else {
                let track = self.tracks.entry((number, stamp.publisher)).or_insert_with(|| Track::from(stamp.sequence));
                track.note(stamp.sequence)
            }
        };
        let counts = &self.control.counts[self.number as usize];
        match arrival {
            Arrival::Duplicate => return counts.add(Count::Duplicates, 1),
            Arrival::TooLate => return counts.add(Count::TooLate, 1),
            Arrival::OutOfOrder => counts.add(Count::OutOfOrder, 1),
            Arrival::InOrder | Arrival::Gap(_) => {}
        }
        counts.add(Count::Received, 1);
        counts.last_received_ns.store(self.now_ns, Ordering::Relaxed);
        if self.plan.windows {
            self.credit_publisher(stamp.publisher);
        }
    }

    /// Tells a closed loop's publisher that a copy of one of its messages has arrived.
    fn credit_publisher(&mut self, publisher: u32) {
        let Some((group, index)) = self.plan.locate(publisher) else { return };
        let Some(publish) = &self.plan.groups[group].publish else { return };
        if !matches!(publish.pace, Pace::Closed { .. }) || index % self.plan.workers != self.number {
            return;
        }
        let number = self.shares[group].base + index / self.plan.workers;
        let client = &mut self.clients[number as usize];
        client.copies += 1;
        if publish.copies <= 1 || client.copies.is_multiple_of(publish.copies) {
            self.credit(number);
        }
    }

    fn acknowledged(&mut self, number: u32, id: u16, refused: bool) {
        self.count(Count::Acknowledged, 1);
        self.count(Count::Refused, u64::from(refused));
        let client = &mut self.clients[number as usize];
        client.acknowledged += 1;
        let owes = client.owed > 0;
        match self.plan.groups[usize::from(client.group)].publish.as_ref().map(|publish| publish.pace) {
            Some(Pace::Closed { .. }) => self.credit(number),
            Some(Pace::Open { .. }) => {
                if let Some(due_ns) = self.unanswered.remove(&(number, id))
                    && self.window.holds(due_ns)
                {
                    record(&mut self.times.response, self.now_ns.saturating_sub(due_ns));
                }
                if owes {
                    self.pay(number);
                }
            }
            None => {}
        }
    }
}
