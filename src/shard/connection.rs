//! A connection on this core: what lies between a socket and a session. Small, because there are a million of them: whatever an idle
//! connection does not need is behind an `Option`.

use super::outbox::Outbox;
use super::peer::Cargo;
use crate::fault::Fault;
use crate::ids::{CoreId, SessionId};
use crate::limits::Limits;
use crate::session::owed::Owed;
use crate::time::Time;
use crate::wire::{ReasonCode, Version};
use std::net::SocketAddr;

pub struct Connection {
    pub socket: i32,
    pub generation: u32,
    pub listener: u16,
    /// The keep-alive granted; 0: none.
    pub keep_alive_s: u16,
    /// Its keep-alive is shorter than the CONNECT deadline and has a timer of its own from the start.
    pub keep_alive_is_watched: bool,
    /// When it was accepted; from CONNECT on, when that was read.
    pub since: Time,
    pub last_received: Time,
    pub state: State,
    /// Known from CONNECT on.
    pub version: Option<Version>,
    pub session: Option<SessionId>,
    /// The client's limits.
    pub receive_maximum: u16,
    pub maximum_packet_size: u32,
    pub topic_alias_maximum: u16,
    pub problem_information: bool,
    /// It has published with QoS 1 or 2.
    pub publishes: bool,
    /// It stands in `Effects::flush`.
    pub flushing: bool,
    /// Its outbox was found full: the session's queue goes on when it has been sent.
    pub congested: bool,
    /// A packet that is not yet complete or, while parked, all that waits.
    pub read: Vec<u8>,
    pub outbox: Option<Box<Outbox>>,
    pub parked: Option<Box<Parked>>,
    pub aliases: Option<Box<Aliases>>,
    /// Made only where there are rules.
    pub ruled: Option<Box<Ruled>>,
}

/// What rules need of a connection: who is at the other end, and what the client is owed because of them.
#[derive(Default)]
pub struct Ruled {
    pub peer_address: Option<SocketAddr>,
    pub username: Option<Box<str>>,
    /// PUBACKs that wait for a sink's confirmation.
    pub owed: Owed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No CONNECT yet.
    New,
    Connected,
    /// Nothing more is read or routed; what is in the outbox still goes out.
    Closing,
}

/// Why a connection waits, and how far its bytes have been looked at.
pub struct Parked {
    pub wait: Wait,
    /// Bytes of `read` that were looked at for acknowledgements.
    pub scanned: usize,
    /// The socket is no longer read.
    pub paused: bool,
    /// The socket has bytes that were not read.
    pub unread: bool,
    /// The peer has sent all it will; the connection ends once it has been served.
    pub ended: bool,
    /// The decision about the packet at the front, once it has come.
    pub verdict: Option<Verdict>,
}

/// What was decided about a CONNECT, SUBSCRIBE or PUBLISH: whether it may go on, or the reason to refuse it with.
pub type Verdict = Result<(), ReasonCode>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For room on the ring to a core, for such a push.
    Mesh(CoreId, Cargo),
    /// For room among the fan-outs that this core's own publishers may begin.
    Fanout,
    /// For a decision about the packet at the front.
    Decision,
    /// For room on the way to a sink: the place among those of [`Sinks`](super::sinks::Sinks), and how much.
    Sink(u16, u64),
    /// Until the client is owed fewer acknowledgements.
    Acknowledgements,
    /// For nothing any more: it stands in line to go on.
    Nothing,
}

/// Topic aliases of a connection, both directions.
#[derive(Default)]
pub struct Aliases {
    /// Towards the broker: alias − 1 → topic.
    pub inbound: Vec<Option<Box<str>>>,
    /// Towards the client: (hash of topic, topic), alias − 1 is the position.
    pub outbound: Vec<Box<str>>,
}

impl Aliases {
    /// Topic and alias to send for `topic`: a known alias alone, a new one with the topic, or only the topic when all are taken.
    pub fn outbound<'a>(&mut self, topic: &'a str, maximum: u16) -> (&'a str, Option<u16>) {
        if let Some(position) = self.outbound.iter().position(|known| **known == *topic) {
            return ("", Some(position as u16 + 1));
        }
        if self.outbound.len() < usize::from(maximum) {
            self.outbound.push(topic.into());
            return (topic, Some(self.outbound.len() as u16));
        }
        (topic, None)
    }
}

impl Connection {
    pub fn new(socket: i32, listener: u16, generation: u32, now: Time) -> Self {
        Self {
            socket,
            generation,
            listener,
            keep_alive_s: 0,
            keep_alive_is_watched: false,
            since: now,
            last_received: now,
            state: State::New,
            version: None,
            session: None,
            receive_maximum: u16::MAX,
            maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            problem_information: true,
            publishes: false,
            flushing: false,
            congested: false,
            read: Vec::new(),
            outbox: None,
            parked: None,
            aliases: None,
            ruled: None,
        }
    }

    pub fn outbox_len(&self) -> usize {
        self.outbox.as_ref().map_or(0, |outbox| outbox.len())
    }

    /// QoS 1 and 2 messages that may be in flight to the client: its Receive Maximum, or the broker's own bound.
    pub fn quota(&self, limits: &Limits) -> u16 {
        let beyond = u16::from(Fault::ExceedReceiveMaximum.is_planted());
        self.receive_maximum.saturating_add(beyond).min(limits.inflight_out_max)
    }

    pub fn is_v5(&self) -> bool {
        self.version == Some(Version::V5)
    }
}
