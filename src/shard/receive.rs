//! From bytes to packets: where a packet ends, what version it is read in, which verb handles it, and what happens to the rest.

use super::connection::{Connection, State, Verdict, Wait};
use super::events::Event;
use super::{Shard, is_open};
use crate::ids::ConnectionId;
use crate::time::Time;
use crate::wire::{self, Frame, Packet, ReasonCode, Version, WireError};

/// What a connection may hold of a packet while memory is at `memory_max`. The end of a read cuts small packets in two: to close a
/// client for that would free less than its coming back costs.
const SPARED_BYTES: usize = 1 << 10;

/// What a packet's handler says about the connection's next packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    Next,
    /// The packet has had no effect yet; it is looked at again when the wait is over.
    Park(Wait),
    /// The connection has been closed, or has left for its home core.
    Gone,
}

impl Shard {
    /// A socket was accepted. `None`: refused and counted; the shell closes it.
    pub fn on_accepted(&mut self, socket: i32, listener: u16, now: Time) -> Option<ConnectionId> {
        let refusal = if self.phase != super::Phase::Running {
            Some((&mut self.counters.refused_shutting_down, "shutting down"))
        } else if self.globals.connections.get() >= self.limits.connections_max {
            Some((&mut self.counters.refused_connections_max, "connections_max reached"))
        } else {
            None
        };
        if let Some((counter, why)) = refusal {
            *counter += 1;
            self.effects.events.push(Event::ConnectionRefused { why });
            return None;
        }
        self.counters.connections_accepted += 1;
        self.globals.connections.add(1);
        Some(self.add_connection(socket, listener, now))
    }

    /// Bytes were read from a socket.
    pub fn on_received(&mut self, id: ConnectionId, bytes: &[u8], now: Time) {
        self.counters.bytes_received += bytes.len() as u64;
        self.acknowledged = false;
        let Some(connection) = self.connection_mut(id) else { return };
        connection.last_received = now;
        if !is_open(connection) {
            return;
        }
        if connection.parked.is_some() {
            self.keep(id.slot, bytes);
            self.serve_parked(id, now);
        } else if connection.read.is_empty() {
            let consumed = self.process(id, bytes, None, now);
            self.keep_rest(id, &bytes[consumed..], now);
        } else {
            self.keep(id.slot, bytes);
            self.process_kept(id, None, now);
            self.admit_partial(id, now);
        }
        if self.acknowledged
            && let Some(connection) = self.connection(id)
            && connection.publishes
            && connection.outbox.is_none()
        {
            self.effects.quick_acks.push(connection.socket);
        }
    }

    /// Goes on with what was kept of a connection's bytes.
    pub(super) fn process_kept(&mut self, id: ConnectionId, verdict: Option<Verdict>, now: Time) {
        let Some(connection) = self.connection_mut(id) else { return };
        let mut read = std::mem::take(&mut connection.read);
        let capacity = read.capacity();
        let consumed = self.process(id, &read, verdict, now);
        if self.connection(id).is_none_or(|connection| !is_open(connection)) {
            self.charge -= capacity as i64;
            return;
        }
        read.drain(..consumed);
        if read.is_empty() {
            self.charge -= capacity as i64;
            return;
        }
        self.connections[id.slot].read = read;
        self.serve_parked(id, now);
    }

    /// Keeps bytes that could not be processed yet.
    fn keep(&mut self, slot: u32, bytes: &[u8]) {
        let read = &mut self.connections[slot].read;
        let before = read.capacity();
        read.extend_from_slice(bytes);
        self.charge += (read.capacity() - before) as i64;
    }

    fn keep_rest(&mut self, id: ConnectionId, rest: &[u8], now: Time) {
        if rest.is_empty() || self.connection(id).is_none_or(|connection| !is_open(connection)) {
            return;
        }
        self.keep(id.slot, rest);
        self.serve_parked(id, now);
        self.admit_partial(id, now);
    }

    /// Closes a connection whose incomplete packet takes more than it may. To leave it unread would not do: where all memory is held
    /// by such packets, none would ever be completed and freed.
    fn admit_partial(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.connection(id) else { return };
        if !is_open(connection) || connection.parked.is_some() {
            return;
        }
        if connection.state == State::New && wire::frame(&connection.read, self.connect_bytes_max()).is_err() {
            let read = std::mem::take(&mut self.connections[id.slot].read);
            self.charge -= read.capacity() as i64;
            self.refuse_large_connect(id, &read, now);
        } else if connection.read.len() > SPARED_BYTES && self.memory_over(100) {
            // Others may have been closed for it since the account was brought up to date.
            self.settle_memory();
            if self.memory_over(100) {
                self.counters.closed_memory_partial += 1;
                self.close(id, Some(ReasonCode::QUOTA_EXCEEDED), "memory is at memory_max and its packet is incomplete", now);
            }
        }
    }

    /// The largest packet that a connection may begin with.
    fn connect_bytes_max(&self) -> u32 {
        self.limits.connect_bytes_max.min(self.limits.packet_bytes_max)
    }

    /// Handles packets until the bytes, or the turn's share of work, are over; returns how many bytes are done with.
    fn process(&mut self, id: ConnectionId, bytes: &[u8], verdict: Option<Verdict>, now: Time) -> usize {
        let mut at = 0;
        self.parking.verdict = verdict;
        // What comes now queues behind what waits already.
        self.parking.queueing = !self.parking.resuming;
        loop {
            let frame = match wire::frame(&bytes[at..], self.limits.packet_bytes_max) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    if self.connections[id.slot].state == State::New && error.reason == ReasonCode::PACKET_TOO_LARGE {
                        self.refuse_large_connect(id, &bytes[at..], now);
                    } else {
                        self.refuse(id, error, now);
                    }
                    break;
                }
            };
            let len = frame.len;
            if self.work >= self.work_max && self.connections[id.slot].state != State::New {
                // Others have their turn; this connection goes on in the next. A CONNECT does not wait: it is dated by when it is read.
                self.counters.parked_turn += 1;
                self.park(id, Wait::Nothing, len, self.parking.verdict, now);
                break;
            }
            self.work += 1;
            let asked = self.parking.verdict;
            match self.on_packet(id, frame, &bytes[at..], now) {
                Flow::Next => {
                    self.counters.packets_received += 1;
                    at += len;
                    if !is_open(&self.connections[id.slot]) {
                        break;
                    }
                }
                Flow::Park(wait) => {
                    self.park(id, wait, len, asked, now);
                    break;
                }
                Flow::Gone => break,
            }
            self.parking.verdict = None;
        }
        self.parking.verdict = None;
        self.parking.queueing = false;
        at
    }

    fn on_packet(&mut self, id: ConnectionId, frame: Frame<'_>, from_here: &[u8], now: Time) -> Flow {
        let connection = &self.connections[id.slot];
        // A CONNECT that has waited is read again as the first packet that it is.
        let version = connection.version.filter(|_| connection.state != State::New);
        let packet = match wire::decode(frame, version) {
            Ok(packet) => packet,
            Err(error) => {
                if version.is_none() {
                    self.refuse_undecoded_connect(id, frame, error);
                }
                self.refuse(id, error, now);
                return Flow::Gone;
            }
        };
        match packet {
            Packet::Connect(_) if version.is_none() && frame.len > self.connect_bytes_max() as usize => {
                self.refuse_large_connect(id, from_here, now);
                Flow::Gone
            }
            Packet::Connect(connect) => self.on_connect(id, &connect, from_here, now),
            Packet::Publish(publish) => self.on_publish(id, &publish, now),
            Packet::Subscribe(subscribe) => self.on_subscribe(id, &subscribe, now),
            Packet::Unsubscribe(unsubscribe) => self.on_unsubscribe(id, &unsubscribe, now),
            Packet::Disconnect(disconnect) => self.on_disconnect(id, &disconnect, now),
            Packet::Auth(_) => {
                // Enhanced authentication was not begun: CONNECT with a method is refused [MQTT-4.12.0-6].
                let what = "AUTH without enhanced authentication";
                self.refuse(id, WireError { reason: ReasonCode::PROTOCOL_ERROR, what }, now);
                Flow::Gone
            }
            other => self.on_light_packet(id, &other, now),
        }
    }

    /// The packets that never wait: they are handled at once also while the connection is parked.
    pub(super) fn on_light_packet(&mut self, id: ConnectionId, packet: &Packet<'_>, now: Time) -> Flow {
        match packet {
            Packet::Pingreq => self.send(id.slot, &Packet::Pingresp),
            Packet::Puback(ack) => self.on_puback(id, ack, now),
            Packet::Pubrec(ack) => self.on_pubrec(id, ack, now),
            Packet::Pubrel(ack) => self.on_pubrel(id, ack),
            Packet::Pubcomp(ack) => self.on_pubcomp(id, ack, now),
            _ => {
                // CONNACK, SUBACK, UNSUBACK and PINGRESP go the other way.
                let what = "packet that only a server sends";
                self.refuse(id, WireError { reason: ReasonCode::PROTOCOL_ERROR, what }, now);
                return Flow::Gone;
            }
        }
        Flow::Next
    }

    /// Closes a connection for what it sent, with the reason code that the standard names.
    pub(super) fn refuse(&mut self, id: ConnectionId, error: WireError, now: Time) {
        let counter = match error.reason {
            ReasonCode::PACKET_TOO_LARGE => &mut self.counters.closed_packet_too_large,
            ReasonCode::RECEIVE_MAXIMUM_EXCEEDED => &mut self.counters.closed_receive_maximum,
            _ => &mut self.counters.closed_protocol_error,
        };
        *counter += 1;
        let client_id = self.client_id_of(id);
        self.effects.events.push(Event::ProtocolError { client_id, reason: error.reason, what: error.what });
        self.close(id, Some(error.reason), error.what, now);
    }

    /// Closes a connection for a first packet over `connect_bytes_max`. An MQTT 5 client is told why if the part that has come says
    /// that it is one; CONNACK of MQTT 3 has no code for it.
    fn refuse_large_connect(&mut self, id: ConnectionId, from_here: &[u8], now: Time) {
        let what = "first packet is larger than connect_bytes_max";
        self.counters.closed_connect_too_large += 1;
        let reason = ReasonCode::PACKET_TOO_LARGE;
        self.effects.events.push(Event::ProtocolError { client_id: None, reason, what });
        let connect = wire::beginning(from_here).filter(|frame| frame.first == wire::CONNECT << 4);
        if connect.and_then(|frame| wire::connect_version(&frame)) == Some(Version::V5) {
            self.connections[id.slot].version = Some(Version::V5);
            self.send(id.slot, &Packet::Connack(wire::Connack { reason, ..wire::Connack::default() }));
        }
        self.close(id, None, what, now);
    }

    /// The peer has sent all it will (`reset` false), or the connection broke.
    pub fn on_receive_end(&mut self, id: ConnectionId, reset: bool, now: Time) {
        let Some(connection) = self.connection_mut(id) else { return };
        if !is_open(connection) {
            return;
        }
        match &mut connection.parked {
            // What it sent before it left is still to be served.
            Some(parked) if !reset => parked.ended = true,
            _ => {
                let why = if reset { "connection lost" } else { "connection closed by the client without DISCONNECT" };
                self.close(id, None, why, now);
            }
        }
    }

    /// Ends a connection: an MQTT 5 client that is connected is told `reason`, the session is left to itself, and the shell closes
    /// the socket once the outbox is sent.
    pub(super) fn close(&mut self, id: ConnectionId, reason: Option<ReasonCode>, why: &'static str, now: Time) {
        let Some(connection) = self.connection(id).filter(|connection| is_open(connection)) else { return };
        if let Some(reason) = reason
            && connection.state == State::Connected
            && connection.is_v5()
        {
            let reason_string = self.may_say_why(id.slot).then_some(why);
            let disconnect = wire::Disconnect { reason, reason_string, ..wire::Disconnect::default() };
            self.send(id.slot, &Packet::Disconnect(disconnect));
        }
        let connection = &mut self.connections[id.slot];
        if connection.state == State::New {
            self.effects.events.push(Event::ConnectionClosed { why });
        }
        connection.state = State::Closing;
        self.charge -= std::mem::take(&mut connection.read).capacity() as i64;
        let session = connection.session.take();
        connection.aliases = None;
        if connection.parked.take().is_some() {
            self.parking.parked -= 1;
            self.drop_partial(id);
        }
        self.counters.connections_closed += 1;
        self.effects.closes.push(id);
        if let Some(session) = session {
            self.on_connection_lost(session, why, now);
        }
    }

    /// The shell has taken the socket over; the slot is free from here on.
    pub fn on_closed(&mut self, id: ConnectionId, now: Time) {
        if self.connection(id).is_some_and(is_open) {
            self.close(id, None, "connection lost", now);
        }
        if self.connection(id).is_some() {
            self.remove_connection(id.slot);
            self.globals.connections.add(-1);
        }
    }

    pub(super) fn client_id_of(&self, id: ConnectionId) -> Option<Box<str>> {
        let session = self.connection(id)?.session?;
        Some(self.sessions[session.0].client_id.clone())
    }

    /// A CONNECT that could not be read: what its version's clients understand.
    fn refuse_undecoded_connect(&mut self, id: ConnectionId, frame: Frame<'_>, error: WireError) {
        if frame.first != wire::CONNECT << 4 {
            return;
        }
        let version = match wire::connect_version(&frame) {
            Some(Version::V5) => Version::V5,
            None if error.reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => Version::V3_1_1,
            _ => return,
        };
        self.connections[id.slot].version = Some(version);
        self.send(id.slot, &Packet::Connack(wire::Connack { reason: error.reason, ..wire::Connack::default() }));
    }
}

impl Connection {
    /// When nothing received means that the client has gone: 1.5 times the keep-alive [MQTT-3.1.2-22].
    pub(super) fn keep_alive_deadline(&self) -> Option<Time> {
        let ms = u64::from(self.keep_alive_s) * 1_500;
        (ms > 0).then(|| self.last_received + std::time::Duration::from_millis(ms))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Globals, ShardOptions};
    use super::*;
    use crate::ids::CoreId;
    use crate::limits::Limits;
    use crate::topic::Hasher;
    use std::sync::Arc;

    const NOW: Time = Time(5_000_000_000);
    const MEMORY_MAX: u64 = 1 << 20;

    fn shard() -> Shard {
        Shard::new(ShardOptions {
            core: CoreId(0),
            cores: 1,
            limits: Arc::new(Limits { memory_max_bytes: MEMORY_MAX, ..Limits::default() }),
            hasher: Hasher::from_seed(1),
            globals: Arc::new(Globals::default()),
            delays: None,
            rules: Arc::new([]),
            node: "here".into(),
            epoch_us: 0,
            now: NOW,
        })
    }

    fn connected(shard: &mut Shard, name: u8) -> ConnectionId {
        let id = shard.on_accepted(1, 0, NOW).unwrap();
        let connect = [&[0x10, 14, 0, 4][..], b"MQTT", &[5, 2, 0, 60, 0, 0, 1, b'!' + name]].concat();
        shard.on_received(id, &connect, NOW);
        assert_eq!(shard.connections[id.slot].state, State::Connected);
        shard.on_sent(id, shard.connections[id.slot].outbox_len(), NOW);
        id
    }

    /// One read's worth of a PUBLISH of 1,000,000 bytes.
    fn beginning() -> Vec<u8> {
        let mut bytes = vec![0x30, 0xC0, 0x84, 0x3D];
        bytes.resize(16 << 10, 0);
        bytes
    }

    #[test]
    fn incomplete_packets_take_no_more_than_memory_max() {
        let mut shard = shard();
        let ids: Vec<ConnectionId> = (0..90).map(|name| connected(&mut shard, name)).collect();
        for id in &ids {
            shard.on_received(*id, &beginning(), NOW);
            shard.run(NOW);
            // Over it by the read that reached it, and by what is sent to those that are closed.
            assert!(shard.globals.memory_bytes.get() <= MEMORY_MAX + (32 << 10));
        }
        let closed = ids.iter().filter(|id| !is_open(shard.connection(**id).unwrap())).count();
        assert!((1..90).contains(&closed), "{closed}");
        assert_eq!(shard.counters.closed_memory_partial, closed as u64);
        let told = ids.iter().filter(|id| shard.outbox(**id).is_some_and(|bytes| bytes[0] == 0xE0 && bytes[2] == 0x97));
        assert_eq!(told.count(), closed);
    }

    #[test]
    fn a_small_packet_cut_in_two_is_no_reason_to_close_at_memory_max() {
        let mut shard = shard();
        let id = connected(&mut shard, 0);
        shard.globals.memory_bytes.add(2 * MEMORY_MAX as i64);
        shard.on_received(id, &[0xC0], NOW);
        shard.on_received(id, &[0], NOW);
        assert_eq!(shard.outbox(id), Some(&[0xD0, 0][..]));
    }

    #[test]
    fn nothing_is_kept_of_a_connect_over_its_maximum() {
        let mut shard = shard();
        let id = shard.on_accepted(1, 0, NOW).unwrap();
        shard.on_received(id, &[&[0x10, 0xC0, 0x84, 0x3D, 0, 4][..], b"MQTT", &[5, 2, 0, 60]].concat(), NOW);
        assert!(!is_open(shard.connection(id).unwrap()));
        assert_eq!(shard.connections[id.slot].read.capacity(), 0);
        assert_eq!(shard.outbox(id), Some(&[0x20, 3, 0, 0x95, 0][..]));
        assert_eq!(shard.counters.closed_connect_too_large, 1);
    }
}
