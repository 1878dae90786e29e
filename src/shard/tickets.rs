//! Tickets: what an acknowledgement waits for. One is issued for a message of which several records may be made, and settled by the
//! last answer. A QoS 1 ticket belongs to the connection, a QoS 2 ticket to the session, which outlives it; or it is a source's.

use crate::ids::{ConnectionId, SessionId, TicketId};
use crate::record::Outcome;
use crate::segments::SegmentedSlab;
use crate::session::owed::Owed;

#[derive(Default)]
pub(super) struct Tickets {
    slots: SegmentedSlab<Ticket>,
    next_generation: u32,
    outstanding: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// It is acknowledged already, or nobody acknowledges it.
    Nobody,
    Connection(ConnectionId),
    /// With the session's incarnation.
    Session(SessionId, u32),
    Source,
}

/// What a ticket and the acknowledgement that waits for it are charged.
pub(super) const TICKET_BYTES: i64 = (size_of::<Ticket>() + Owed::ENTRY_BYTES) as i64;

struct Ticket {
    generation: u32,
    answers: u32,
    failed: bool,
    owner: Owner,
    /// Of the acknowledgement among those that the owner is owed.
    number: u32,
}

impl Tickets {
    /// A ticket for so many records; at least one.
    pub(super) fn issue(&mut self, answers: u32) -> TicketId {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        self.outstanding += answers;
        let ticket = Ticket { generation, answers, failed: false, owner: Owner::Nobody, number: 0 };
        TicketId { slot: self.slots.insert(ticket), generation }
    }

    /// Who is to be acknowledged, and which of the acknowledgements it is owed.
    pub(super) fn give(&mut self, id: TicketId, owner: Owner, number: u32) {
        if let Some(ticket) = self.slots.get_mut(id.slot).filter(|ticket| ticket.generation == id.generation) {
            (ticket.owner, ticket.number) = (owner, number);
        }
    }

    /// An answer; with the last one: the owner, the number of its acknowledgement, and whether any record failed.
    pub(super) fn on_answer(&mut self, id: TicketId, outcome: Outcome) -> Option<(Owner, u32, bool)> {
        let ticket = self.slots.get_mut(id.slot).filter(|ticket| ticket.generation == id.generation)?;
        self.outstanding -= 1;
        ticket.answers -= 1;
        ticket.failed |= outcome == Outcome::Failed;
        if ticket.answers > 0 {
            return None;
        }
        let Ticket { owner, number, failed, .. } = self.slots.remove(id.slot)?;
        Some((owner, number, failed))
    }

    /// Records whose outcome has not been heard.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_settled_by_its_last_answer_and_a_late_one_finds_nobody() {
        let mut tickets = Tickets::default();
        let first = tickets.issue(2);
        let owner = Owner::Session(SessionId(3), 4);
        tickets.give(first, owner, 9);
        assert_eq!((tickets.on_answer(first, Outcome::Failed), tickets.outstanding()), (None, 1));
        assert_eq!(tickets.on_answer(first, Outcome::Accepted), Some((owner, 9, true)));
        let second = tickets.issue(1);
        assert_eq!((first.slot == second.slot, tickets.on_answer(first, Outcome::Failed)), (true, None));
        assert_eq!(tickets.on_answer(second, Outcome::Accepted), Some((Owner::Nobody, 0, false)));
        assert_eq!(tickets.outstanding(), 0);
    }
}
