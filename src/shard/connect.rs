//! CONNECT (section 3.1): to the home core, the checks, the decision, the session, CONNACK. DISCONNECT (section 3.14) is here too.

use super::Shard;
use super::connection::{State, Wait};
use super::events::Event;
use super::peer::{Cargo, MeshMessage, Parcel};
use super::receive::Flow;
use super::timers::{Timer, TimerKind};
use crate::fault::Fault;
use crate::ids::{ConnectionId, CoreId, SessionId};
use crate::message::{Message, MessageRef};
use crate::session::Session;
use crate::session::will::Will;
use crate::time::Time;
use crate::topic;
use crate::wire::{self, Connack, Connect, Disconnect, Packet, ReasonCode, Version, WireError};

impl Shard {
    /// The core where a client id's session lives.
    pub(super) fn home(&self, client_id: &str) -> CoreId {
        CoreId(self.hasher.home(client_id, self.cores) as u8)
    }

    pub(super) fn on_connect(&mut self, id: ConnectionId, connect: &Connect<'_>, from_here: &[u8], now: Time) -> Flow {
        let connection = &mut self.connections[id.slot];
        if connection.state != State::New {
            // A second CONNECT is a protocol violation [MQTT-3.1.0-2].
            self.refuse(id, WireError { reason: ReasonCode::PROTOCOL_ERROR, what: "second CONNECT" }, now);
            return Flow::Gone;
        }
        if connection.version.is_none() {
            // Read for the first time: this moment orders it against other CONNECTs of its client id.
            if !self.parking.arrived && !self.parking.resuming {
                connection.since = now;
            }
            self.parking.arrived = false;
        }
        if !connect.client_id.is_empty() {
            let home = self.home(connect.client_id);
            if home != self.core {
                return self.hand_over(id, home, from_here);
            }
        }
        self.connections[id.slot].version = Some(connect.version);
        if let Err(refusal) = self.check_connect(connect) {
            return self.refuse_connect(id, connect.client_id, refusal, connect.maximum_packet_size, now);
        }
        match self.ask(id, now) {
            None => return Flow::Park(Wait::Decision),
            Some(Err(reason)) => {
                return self.refuse_connect(id, connect.client_id, (reason, "not authorized"), connect.maximum_packet_size, now);
            }
            Some(Ok(())) => {}
        }
        self.accept_connect(id, connect, now)
    }

    /// Sends a connection to its home core, once, with all that was read from it.
    fn hand_over(&mut self, id: ConnectionId, home: CoreId, from_here: &[u8]) -> Flow {
        let connection = &self.connections[id.slot];
        let parcel = Parcel {
            socket: connection.socket,
            listener: connection.listener,
            connect_read_at: connection.since,
            bytes: from_here.to_vec(),
            peer_address: connection.ruled.as_ref().and_then(|ruled| ruled.peer_address),
            peer_gone: false,
        };
        let message = MeshMessage::Parcel(Box::new(parcel));
        if !self.may_push(home, Cargo::Control, 1, message.bytes()) {
            return Flow::Park(Wait::Mesh(home, Cargo::Control));
        }
        self.effects.departures.push(self.connections[id.slot].socket);
        self.remove_connection(id.slot);
        self.counters.connections_handed_over += 1;
        self.push(home, message);
        Flow::Gone
    }

    /// A connection arrives at its home core.
    pub(super) fn on_parcel(&mut self, parcel: Parcel, now: Time) {
        let id = self.add_connection(parcel.socket, parcel.listener, now);
        self.connections[id.slot].since = parcel.connect_read_at;
        if let Some(address) = parcel.peer_address {
            self.on_peer_address(id, address);
        }
        self.effects.arrivals.push(id);
        // A client may connect, publish and leave in one breath: what it sent behind its CONNECT counts.
        let only_connect = wire::frame(&parcel.bytes, self.limits.packet_bytes_max)
            .is_ok_and(|frame| frame.is_none_or(|frame| frame.len == parcel.bytes.len()));
        if parcel.peer_gone && only_connect {
            self.counters.closed_peer_gone += 1;
            self.close(id, None, "its peer had gone before it reached its home core", now);
            return;
        }
        self.parking.arrived = true;
        // Counted where they were received.
        let counted = self.counters.bytes_received;
        self.on_received(id, &parcel.bytes, now);
        self.counters.bytes_received = counted;
        self.parking.arrived = false;
    }

    fn check_connect(&self, connect: &Connect<'_>) -> Result<(), (ReasonCode, &'static str)> {
        let v5 = connect.version == Version::V5;
        if connect.client_id.is_empty() && !v5 && (connect.version == Version::V3_1 || !connect.clean_start) {
            // 3.1 has no assigned ids; 3.1.1 only with clean session 1 [MQTT-3.1.3-8].
            return Err((ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, "empty client id"));
        }
        if connect.client_id.len() > usize::from(self.limits.client_id_bytes_max) {
            return Err((ReasonCode::CLIENT_IDENTIFIER_NOT_VALID, "client id longer than client_id_bytes_max"));
        }
        if connect.authentication_method.is_some() {
            return Err((ReasonCode::BAD_AUTHENTICATION_METHOD, "enhanced authentication is not offered"));
        }
        if let Some(will) = &connect.will {
            if topic::check_name(will.topic, self.limits.topic_levels_max, self.limits.topic_bytes_max).is_err() {
                return Err((ReasonCode::TOPIC_NAME_INVALID, "will topic is not a valid topic name"));
            }
            if topic::is_of_broker(will.topic) {
                return Err((ReasonCode::NOT_AUTHORIZED, "will topic is reserved for the broker"));
            }
        }
        Ok(())
    }

    fn accept_connect(&mut self, id: ConnectionId, connect: &Connect<'_>, now: Time) -> Flow {
        let v5 = connect.version == Version::V5;
        let assigned = connect.client_id.is_empty().then(|| self.assign_client_id());
        let client_id = assigned.as_deref().unwrap_or(connect.client_id);

        // What is granted, and whether the client takes a packet that says so. Nothing has happened yet.
        let limits = self.limits.clone();
        let expiry_asked = match connect.session_expiry_interval_s {
            Some(s) => s,
            None if v5 || connect.clean_start => 0,
            None => limits.session_expiry_v3_s,
        };
        let expiry_interval_s = expiry_asked.min(limits.session_expiry_max_s);
        let keep_alive_max_s = limits.keep_alive_max_s;
        let over = keep_alive_max_s != 0 && (connect.keep_alive_s == 0 || connect.keep_alive_s > keep_alive_max_s);
        // Only an MQTT 5 client can be told another keep-alive than its own; older ones keep theirs, and one that asked for none
        // gets none.
        let keep_alive_s = if over && v5 { keep_alive_max_s } else { connect.keep_alive_s };
        let mut connack = Connack { reason: ReasonCode::SUCCESS, ..Connack::default() };
        if v5 {
            connack.session_expiry_interval_s = (expiry_interval_s != expiry_asked).then_some(expiry_interval_s);
            connack.receive_maximum = Some(limits.inflight_in_max);
            connack.maximum_packet_size = Some(limits.packet_bytes_max);
            connack.assigned_client_id = assigned.as_deref();
            connack.topic_alias_maximum = (limits.topic_alias_in_max > 0).then_some(limits.topic_alias_in_max);
            connack.server_keep_alive_s = (keep_alive_s != connect.keep_alive_s).then_some(keep_alive_s);
            connack.response_information = (connect.request_response_information && !limits.response_information.is_empty())
                .then_some(limits.response_information.as_str());
        }
        let maximum_packet_size = connect.maximum_packet_size.unwrap_or(u32::MAX);
        self.connections[id.slot].maximum_packet_size = maximum_packet_size;
        if !self.fits(id.slot, &Packet::Connack(connack.clone())) {
            // A client that cannot even be told its terms cannot be served.
            let refusal = (ReasonCode::PACKET_TOO_LARGE, "its CONNACK is larger than the client's Maximum Packet Size");
            return self.refuse_connect(id, client_id, refusal, connect.maximum_packet_size, now);
        }

        let mut session = self.find_session(client_id);
        if session.is_none() && self.memory_over(80) {
            // A client that comes back to its session is let in: only it can take what waits for it.
            self.counters.refused_connections_memory += 1;
            let refusal = (ReasonCode::SERVER_BUSY, "memory over 80 % of memory_max");
            return self.refuse_connect(id, client_id, refusal, connect.maximum_packet_size, now);
        }
        // Takeover: one connection a client id [MQTT-3.1.4-3].
        if let Some(slot) = session.and_then(|session| self.sessions[session.0].connection) {
            let older = self.id_of(slot);
            if self.connections[slot].since > self.connections[id.slot].since {
                self.counters.closed_older_connect += 1;
                self.close(id, None, "a newer connection of the same client id is there already", now);
                return Flow::Gone;
            }
            self.counters.closed_taken_over += 1;
            if connect.clean_start || !Fault::KeepOlderConnection.is_planted() {
                self.close(older, Some(ReasonCode::SESSION_TAKEN_OVER), "session taken over by a newer connection", now);
            }
            // The session may have ended with that connection.
            session = self.find_session(client_id);
        }
        if let Some(present) = session
            && connect.clean_start
            && !Fault::ResumeOnCleanStart.is_planted()
        {
            self.end_session(present, now);
            session = None;
        }
        let session_present = session.is_some();
        connack.session_present = session_present;
        let session = session.unwrap_or_else(|| self.add_session(client_id));
        if session_present {
            self.counters.sessions_resumed += 1;
        }

        let connect_deadline = self.connect_deadline();
        let connection = &mut self.connections[id.slot];
        connection.state = State::Connected;
        connection.session = Some(session);
        connection.keep_alive_s = keep_alive_s;
        connection.receive_maximum = connect.receive_maximum.unwrap_or(u16::MAX);
        connection.topic_alias_maximum = connect.topic_alias_maximum.min(self.limits.topic_alias_out_max);
        connection.problem_information = connect.request_problem_information;
        // A longer keep-alive is watched from the CONNECT deadline on, which comes first: clients that come and go leave one entry
        // each, for seconds, and not one for the length of their keep-alive.
        if let Some(deadline) =
            connection.keep_alive_deadline().filter(|deadline| *deadline < connection.since + connect_deadline)
        {
            connection.keep_alive_is_watched = true;
            self.wheel.add(Timer::new(TimerKind::KeepAlive, id.slot, id.generation), deadline);
        }

        let will = connect.will.as_ref().map(|will| {
            let mut scratch = Vec::new();
            let message = Message::from(MessageRef {
                topic: will.topic,
                properties: will.properties.forwarded(&mut scratch),
                payload: will.payload,
                qos: will.qos,
                retain: will.retain,
                expires_at: Time::NEVER,
            });
            Box::new(Will::new(message, will.delay_interval_s, will.message_expiry_interval_s))
        });
        if Fault::PublishWillOnResume.is_planted() {
            self.publish_will(session, now);
        }
        let state = &mut self.sessions[session.0];
        state.connection = Some(id.slot);
        state.expiry_interval_s = expiry_interval_s;
        state.expires_at = Time::NEVER;
        state.will = will;
        if let Some(outbound) = &mut state.outbound {
            outbound.on_connected();
        }
        self.online += 1;
        self.on_group_members_online(session);
        self.counters.connects_accepted += 1;
        if self.rules.is_some() {
            self.connections[id.slot].ruled.get_or_insert_default().username = connect.username.map(Into::into);
            self.raise_connected(session, connect, session_present, now);
        }
        self.effects.events.push(Event::ClientConnected {
            client_id: client_id.into(),
            version: connect.version as u8,
            resumed: session_present,
        });

        self.send(id.slot, &Packet::Connack(connack));
        self.pump(session, now);
        Flow::Next
    }

    /// An id for a client that has none, such that its home is here.
    fn assign_client_id(&mut self) -> String {
        loop {
            let client_id = format!("corelane-{:016x}", self.next_random());
            if self.home(&client_id) == self.core && self.find_session(&client_id).is_none() {
                return client_id;
            }
        }
    }

    fn add_session(&mut self, client_id: &str) -> SessionId {
        let incarnation = self.next_incarnation;
        self.next_incarnation = incarnation.wrapping_add(1);
        self.charge += (size_of::<Session>() + client_id.len()) as i64;
        let session = SessionId(self.sessions.insert(Session::new(client_id.into(), incarnation)));
        let (hasher, sessions) = (self.hasher, &self.sessions);
        let rehash = |session: &SessionId| hasher.client_id(&sessions[session.0].client_id);
        self.clients.insert_unique(hasher.client_id(client_id), session, rehash);
        session
    }

    pub(super) fn on_disconnect(&mut self, id: ConnectionId, disconnect: &Disconnect<'_>, now: Time) -> Flow {
        let Some(session) = self.connections[id.slot].session else { return Flow::Gone };
        let state = &mut self.sessions[session.0];
        if let Some(expiry) = disconnect.session_expiry_interval_s {
            // A session announced as ending with its connection cannot be kept after all [MQTT-3.14.2-2]. Where the limit is 0 all
            // sessions end so, whatever their clients announced.
            let limit = self.limits.session_expiry_max_s;
            if state.expiry_interval_s == 0 && expiry > 0 && limit > 0 {
                let what = "DISCONNECT sets a session expiry where CONNECT had none";
                self.refuse(id, WireError { reason: ReasonCode::PROTOCOL_ERROR, what }, now);
                return Flow::Gone;
            }
            state.expiry_interval_s = expiry.min(limit);
        }
        let wants_will = disconnect.reason == ReasonCode::DISCONNECT_WITH_WILL_MESSAGE || disconnect.reason.is_error();
        if !wants_will && !Fault::KeepWillOnDisconnect.is_planted() {
            // Reason 0x00 discards the will [MQTT-3.14.4-3]; every other one publishes it.
            state.will = None;
        }
        self.counters.packets_received += 1;
        self.close(id, None, "DISCONNECT by the client", now);
        Flow::Gone
    }
}
