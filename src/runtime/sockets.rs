//! What the shell remembers of each connection: two bytes, by its slot. The rest is the core's.

use crate::ids::ConnectionId;

/// It stands in the queue of those to receive from.
pub const READY: u16 = 1;
/// It stands in the queue of those to send to.
pub const OWED: u16 = 1 << 1;
/// Its socket was full: it is sent to again when it reports room.
pub const FULL: u16 = 1 << 2;
/// The core does not want its bytes just now.
pub const PAUSED: u16 = 1 << 3;
/// The peer has sent its last byte or is gone: receive until that shows.
pub const ENDING: u16 = 1 << 4;
/// The end was received and told to the core.
pub const ENDED: u16 = 1 << 5;
/// The connection is gone in both directions: nothing can be sent.
pub const BROKEN: u16 = 1 << 6;
/// The core wants it closed; its last bytes are on their way.
pub const CLOSING: u16 = 1 << 7;

/// The shell's own tokens have this bit in their slot; connections never do, so many there cannot be.
const SHELL: u32 = 1 << 31;
const LISTENER: u32 = 1 << 30;

/// What a readiness event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    Connection(ConnectionId),
    Listener(usize),
    /// A socket in the table of those being closed.
    Lingering {
        index: u32,
        generation: u32,
    },
}

impl Token {
    pub fn to_bits(self) -> u64 {
        match self {
            Token::Connection(id) => id.to_bits(),
            Token::Listener(index) => ConnectionId { slot: SHELL | LISTENER | index as u32, generation: 0 }.to_bits(),
            Token::Lingering { index, generation } => ConnectionId { slot: SHELL | index, generation }.to_bits(),
        }
    }

    pub fn from_bits(bits: u64) -> Self {
        let id = ConnectionId::from_bits(bits);
        if id.slot & SHELL == 0 {
            Token::Connection(id)
        } else if id.slot & LISTENER != 0 {
            Token::Listener((id.slot & !(SHELL | LISTENER)) as usize)
        } else {
            Token::Lingering { index: id.slot & !SHELL, generation: id.generation }
        }
    }
}

#[derive(Default)]
pub struct Sockets {
    flags: Vec<u16>,
}

impl Sockets {
    /// A connection begins in its slot.
    pub fn begin(&mut self, id: ConnectionId) {
        debug_assert!(id.slot & SHELL == 0);
        let index = id.slot as usize;
        if index >= self.flags.len() {
            self.flags.resize(index + 1, 0);
        }
        self.flags[index] = 0;
    }

    /// Whether any of `flags` is set.
    pub fn has(&self, id: ConnectionId, flags: u16) -> bool {
        self.flags[id.slot as usize] & flags != 0
    }

    /// Sets `flags`; true if none of them was set before.
    pub fn set(&mut self, id: ConnectionId, flags: u16) -> bool {
        let all = &mut self.flags[id.slot as usize];
        let new = *all & flags == 0;
        *all |= flags;
        new
    }

    pub fn clear(&mut self, id: ConnectionId, flags: u16) {
        self.flags[id.slot as usize] &= !flags;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_reads_back_as_what_it_was() {
        let tokens = [
            Token::Connection(ConnectionId { slot: 0, generation: 0 }),
            Token::Connection(ConnectionId { slot: SHELL - 1, generation: u32::MAX }),
            Token::Listener(3),
            Token::Lingering { index: 5, generation: u32::MAX },
        ];
        for token in tokens {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }

    #[test]
    fn a_slot_used_again_has_forgotten_the_connection_before() {
        let mut sockets = Sockets::default();
        let id = ConnectionId { slot: 3, generation: 1 };
        sockets.begin(id);
        assert!(sockets.set(id, PAUSED) && !sockets.set(id, PAUSED | FULL));
        assert!(sockets.has(id, FULL | READY) && !sockets.has(id, READY));
        sockets.begin(ConnectionId { slot: 3, generation: 2 });
        assert!(!sockets.has(id, u16::MAX));
    }
}
