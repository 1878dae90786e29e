//! Bytes waiting for one socket. An idle connection has none: outboxes come from a pool and go back to it when they are sent.
//!
//! Small things are copied into one piece, so that a turn's packets leave in one send. A large payload is a piece of its own that
//! shares the message: fanned out to a thousand subscribers it is in memory once.

use crate::message::Message;
use std::collections::VecDeque;

/// Payloads from this size on are shared instead of copied.
pub const SHARED_PAYLOAD_MIN: usize = 16 << 10;
/// A piece of copied bytes is not grown past this; the next one begins.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// The pool keeps outboxes whose buffer is at most this large.
const POOLED_BYTES_MAX: usize = 8 << 10;
const POOLED_MAX: usize = 2048;

#[derive(Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are already sent.
    sent: usize,
    /// Bytes not yet sent, in all.
    len: usize,
    /// Bytes held in copied pieces. Shared payloads are charged where their message is made.
    copied: usize,
}

enum Piece {
    Bytes(Vec<u8>),
    Payload(Message),
}

impl Piece {
    fn as_slice(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Payload(message) => message.payload(),
        }
    }
}

impl Outbox {
    /// Bytes not yet sent.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Writes into the piece that is being gathered.
    pub fn write(&mut self, f: impl FnOnce(&mut Vec<u8>)) {
        let fits = matches!(self.pieces.back(), Some(Piece::Bytes(bytes)) if bytes.len() < PIECE_BYTES_MAX);
        if !fits {
            self.pieces.push_back(Piece::Bytes(Vec::new()));
        }
        if let Some(Piece::Bytes(bytes)) = self.pieces.back_mut() {
            let before = bytes.len();
            f(bytes);
            self.len += bytes.len() - before;
            self.copied += bytes.len() - before;
        }
    }

    pub fn push_payload(&mut self, message: Message) {
        let len = message.payload().len();
        if len > 0 {
            self.len += len;
            self.pieces.push_back(Piece::Payload(message));
        }
    }

    /// The next piece to send.
    pub fn front(&self) -> Option<&[u8]> {
        if self.len == 0 {
            return None;
        }
        self.pieces.front().map(|piece| &piece.as_slice()[self.sent..])
    }

    /// `n` bytes of the front piece went out.
    pub fn on_sent(&mut self, n: usize) {
        self.sent += n;
        self.len -= n;
        let Some(front) = self.pieces.front_mut() else { return };
        if self.sent < front.as_slice().len() {
            return;
        }
        self.sent = 0;
        if let Piece::Bytes(bytes) = front {
            self.copied -= bytes.len();
        }
        match front {
            // The last piece keeps its buffer for the next turn or the pool.
            Piece::Bytes(bytes) if self.len == 0 && bytes.capacity() <= POOLED_BYTES_MAX => bytes.clear(),
            _ => {
                self.pieces.pop_front();
            }
        }
    }
}

/// Outboxes that nobody needs just now.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "an outbox moves between the pool and its connection as the box that it is")]
pub struct OutboxPool {
    free: Vec<Box<Outbox>>,
    in_use: usize,
}

impl OutboxPool {
    /// Connections that have an outbox just now.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    pub fn take(&mut self) -> Box<Outbox> {
        self.in_use += 1;
        self.free.pop().unwrap_or_default()
    }

    pub fn put(&mut self, mut outbox: Box<Outbox>) {
        self.in_use -= 1;
        if self.free.len() < POOLED_MAX {
            if !outbox.is_empty() {
                *outbox = Outbox::default();
            }
            self.free.push(outbox);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageRef;
    use crate::time::Time;
    use crate::wire::QoS;

    fn drain(outbox: &mut Outbox, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(piece) = outbox.front() {
            let n = piece.len().min(step);
            out.extend_from_slice(&piece[..n]);
            outbox.on_sent(n);
        }
        out
    }

    #[test]
    fn bytes_and_shared_payloads_leave_in_order_whatever_the_size_of_sends() {
        let payload = vec![7u8; SHARED_PAYLOAD_MIN];
        let message = Message::from(MessageRef {
            topic: "t",
            properties: &[],
            payload: &payload,
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at: Time::NEVER,
        });
        for step in [1, 3, 1_000, usize::MAX] {
            let mut outbox = Outbox::default();
            outbox.write(|out| out.extend_from_slice(b"head"));
            outbox.push_payload(message.clone());
            outbox.write(|out| out.extend_from_slice(b"tail"));
            assert_eq!(outbox.len(), 8 + payload.len());
            assert_eq!(outbox.copied(), 8);
            let out = drain(&mut outbox, step);
            assert_eq!(outbox.copied(), 0);
            assert_eq!(out, [&b"head"[..], &payload, b"tail"].concat());
            assert!(outbox.is_empty() && outbox.front().is_none());
            outbox.write(|out| out.extend_from_slice(b"more"));
            assert_eq!(drain(&mut outbox, step), b"more");
        }
    }

    #[test]
    fn a_pooled_outbox_comes_back_empty() {
        let mut pool = OutboxPool::default();
        let mut outbox = pool.take();
        outbox.write(|out| out.extend_from_slice(b"unsent"));
        pool.put(outbox);
        assert!(pool.take().is_empty());
    }
}
