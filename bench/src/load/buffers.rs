//! Buffers for the few connections that hold half a packet or owe bytes at a moment. A connection keeps a number; buffers that come
//! back keep their memory, so nothing is allocated in steady state.

/// A buffer's number; [`Slot::NONE`] is no buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u32);

impl Slot {
    pub const NONE: Slot = Slot(u32::MAX);
}

/// Of a buffer that comes back, at most so much is kept.
const KEPT_BYTES: usize = 64 << 10;

#[derive(Default)]
pub struct Buffers {
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
}

impl Buffers {
    pub fn get(&self, slot: Slot) -> &[u8] {
        self.buffers.get(slot.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// Appends, to a new buffer if there is none yet.
    pub fn append(&mut self, slot: &mut Slot, bytes: &[u8]) {
        if *slot == Slot::NONE {
            *slot = Slot(self.free.pop().unwrap_or_else(|| {
                self.buffers.push(Vec::new());
                (self.buffers.len() - 1) as u32
            }));
        }
        self.buffers[slot.0 as usize].extend_from_slice(bytes);
    }

    /// Takes bytes off the front; the buffer comes back when it is empty.
    pub fn consume(&mut self, slot: &mut Slot, count: usize) {
        let Some(buffer) = self.buffers.get_mut(slot.0 as usize) else { return };
        buffer.drain(..count);
        if buffer.is_empty() {
            self.give_back(slot);
        }
    }

    pub fn give_back(&mut self, slot: &mut Slot) {
        let Some(buffer) = self.buffers.get_mut(slot.0 as usize) else { return };
        buffer.clear();
        buffer.shrink_to(KEPT_BYTES);
        self.free.push(slot.0);
        *slot = Slot::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_buffer_is_used_again() {
        let mut buffers = Buffers::default();
        let (mut a, mut b) = (Slot::NONE, Slot::NONE);
        buffers.append(&mut a, b"abc");
        buffers.append(&mut b, b"x");
        buffers.consume(&mut a, 1);
        assert_eq!(buffers.get(a), b"bc");
        buffers.consume(&mut a, 2);
        assert_eq!(a, Slot::NONE);
        assert_eq!(buffers.get(a), b"");
        buffers.append(&mut a, b"new");
        assert_eq!((buffers.get(a), buffers.buffers.len()), (b"new".as_slice(), 2));
    }
}
