//! Acknowledgements that a publisher is owed and that wait for a sink's confirmation, in the order of its PUBLISHes: acknowledgements
//! leave in that order [MQTT-4.6.0-2] [MQTT-4.6.0-3], so one that is ready waits for those before it.

use crate::wire::ReasonCode;
use std::collections::VecDeque;

#[derive(Default)]
pub struct Owed {
    /// The number of the entry in front.
    first: u32,
    entries: VecDeque<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    packet_id: u16,
    /// The acknowledgement, once nothing is waited for.
    ready: Option<Acknowledgement>,
    /// Its PUBLISH came on the connection of now.
    asked: bool,
}

/// An acknowledgement to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledgement {
    pub reason: ReasonCode,
    pub why: Option<&'static str>,
}

impl Owed {
    /// What an entry takes.
    pub const ENTRY_BYTES: usize = size_of::<Entry>();

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The connection is gone: nothing is sent unless the client asks again. An answer on its next connection to a PUBLISH that has not
    /// come again there would have the client release a packet id that it is about to use.
    pub fn on_disconnected(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.asked = false);
    }

    /// A PUBLISH has come again; whether it is still owed its acknowledgement.
    pub fn ask_again(&mut self, packet_id: u16) -> bool {
        match self.entries.iter_mut().find(|entry| entry.packet_id == packet_id) {
            Some(entry) => entry.asked = true,
            None => return false,
        }
        true
    }

    /// Owes one more; returns its number, for [`Owed::settle`], if it is not ready.
    pub fn push(&mut self, packet_id: u16, ready: Option<Acknowledgement>) -> u32 {
        self.entries.push_back(Entry { packet_id, ready, asked: true });
        self.first.wrapping_add(self.entries.len() as u32 - 1)
    }

    /// What an acknowledgement waited for has come.
    pub fn settle(&mut self, number: u32, acknowledgement: Acknowledgement) {
        if let Some(entry) = self.entries.get_mut(number.wrapping_sub(self.first) as usize) {
            entry.ready = Some(acknowledgement);
        }
    }

    /// The next that waits for nothing: its packet id, the acknowledgement, and whether it is to be sent.
    pub fn pop(&mut self) -> Option<(u16, Acknowledgement, bool)> {
        let Entry { packet_id, ready, asked } = *self.entries.front()?;
        let acknowledgement = ready?;
        self.entries.pop_front();
        self.first = self.first.wrapping_add(1);
        if self.entries.is_empty() {
            self.entries.shrink_to(8);
        }
        Some((packet_id, acknowledgement, asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUCCESS: Acknowledgement = Acknowledgement { reason: ReasonCode::SUCCESS, why: None };

    #[test]
    fn what_is_ready_waits_for_what_was_owed_before() {
        let mut owed = Owed { first: u32::MAX, ..Owed::default() };
        let numbers = [7, 8].map(|packet_id| owed.push(packet_id, None));
        owed.push(9, Some(SUCCESS));
        assert_eq!((numbers, owed.pop()), ([u32::MAX, 0], None));
        owed.settle(numbers[1], SUCCESS);
        assert_eq!((owed.pop(), owed.len()), (None, 3));
        owed.settle(numbers[0], SUCCESS);
        let sent: Vec<u16> = std::iter::from_fn(|| owed.pop()).map(|(packet_id, ..)| packet_id).collect();
        assert_eq!((sent, owed.is_empty()), (vec![7, 8, 9], true));
    }

    #[test]
    fn after_a_disconnect_only_what_is_asked_for_again_is_sent() {
        let mut owed = Owed::default();
        let numbers = [7, 8].map(|packet_id| owed.push(packet_id, None));
        owed.on_disconnected();
        assert_eq!((owed.ask_again(8), owed.ask_again(9)), (true, false));
        numbers.iter().for_each(|number| owed.settle(*number, SUCCESS));
        assert_eq!([owed.pop(), owed.pop(), owed.pop()], [Some((7, SUCCESS, false)), Some((8, SUCCESS, true)), None]);
        // What is not there any more changes nothing.
        owed.settle(numbers[0], SUCCESS);
        assert_eq!(owed.pop(), None);
    }
}
