//! What happened that an operator (and, later, a rule) wants to hear of. The core only states it; the shell logs it, rate-limited
//! per kind.

use crate::session::drops::{DropReason, Drops};
use crate::wire::ReasonCode;
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    ClientConnected {
        client_id: Box<str>,
        version: u8,
        resumed: bool,
    },
    ClientDisconnected {
        client_id: Box<str>,
        why: &'static str,
        /// What was dropped for the session so far.
        drops: Option<Box<Drops>>,
    },
    ConnectRefused {
        client_id: Box<str>,
        reason: ReasonCode,
        what: &'static str,
    },
    /// A connection closed before it had a session.
    ConnectionClosed {
        why: &'static str,
    },
    /// A client broke the protocol.
    ProtocolError {
        client_id: Option<Box<str>>,
        reason: ReasonCode,
        what: &'static str,
    },
    ConnectionRefused {
        why: &'static str,
    },
    MessageDropped {
        client_id: Box<str>,
        reason: DropReason,
        in_all: u32,
    },
    SessionExpired {
        client_id: Box<str>,
    },
    /// A rule failed on a message or event, or one of its actions did; told at most once a second and rule.
    RuleFailed {
        /// Its number.
        rule: u32,
        name: Box<str>,
        what: String,
    },
}

impl Event {
    /// How many kinds there are; [`Event::kind`] is below it.
    pub const KINDS: usize = 9;

    pub fn kind(&self) -> usize {
        match self {
            Event::ClientConnected { .. } => 0,
            Event::ClientDisconnected { .. } => 1,
            Event::ConnectRefused { .. } => 2,
            Event::ConnectionClosed { .. } => 3,
            Event::ProtocolError { .. } => 4,
            Event::ConnectionRefused { .. } => 5,
            Event::MessageDropped { .. } => 6,
            Event::SessionExpired { .. } => 7,
            Event::RuleFailed { .. } => 8,
        }
    }

    pub fn level(&self) -> Level {
        match self {
            Event::ClientConnected { .. } | Event::ClientDisconnected { .. } | Event::ConnectionClosed { .. } => Level::Debug,
            Event::SessionExpired { .. } => Level::Debug,
            Event::ConnectRefused { .. } | Event::ProtocolError { .. } => Level::Info,
            Event::ConnectionRefused { .. } | Event::MessageDropped { .. } | Event::RuleFailed { .. } => Level::Warn,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::ClientConnected { client_id, version, resumed } => {
                write!(
                    f,
                    "client {client_id:?} connected, protocol level {version}{}",
                    if *resumed { ", session resumed" } else { "" }
                )
            }
            Event::ClientDisconnected { client_id, why, drops: None } => write!(f, "client {client_id:?} disconnected: {why}"),
            Event::ClientDisconnected { client_id, why, drops: Some(drops) } => {
                write!(f, "client {client_id:?} disconnected: {why}; messages dropped for it: {drops}")
            }
            Event::ConnectRefused { client_id, reason, what } => write!(f, "client {client_id:?} refused: {what} ({reason})"),
            Event::ConnectionClosed { why } => write!(f, "connection closed before CONNECT was complete: {why}"),
            Event::ProtocolError { client_id: Some(id), reason, what } => write!(f, "client {id:?} closed: {what} ({reason})"),
            Event::ProtocolError { client_id: None, reason, what } => write!(f, "connection closed: {what} ({reason})"),
            Event::ConnectionRefused { why } => write!(f, "connection refused: {why}"),
            Event::MessageDropped { client_id, reason, in_all } => {
                write!(f, "message for client {client_id:?} dropped: {reason} ({in_all} for this client so far)")
            }
            Event::RuleFailed { name, what, .. } => write!(f, "rule {name:?} failed: {what}"),
            Event::SessionExpired { client_id } => write!(f, "session of client {client_id:?} expired"),
        }
    }
}
