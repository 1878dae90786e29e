//! QoS 2 towards the broker: the packet ids received and not yet released (MQTT 5.0 section 4.3.3, method A: the message is routed
//! when it is received, its id kept until PUBREL).

use super::owed::Owed;
use std::collections::VecDeque;

#[derive(Default)]
pub struct Inbound {
    /// In order of receipt, which is nearly always the order of release.
    received: VecDeque<u16>,
    /// PUBRECs that wait for a sink's confirmation. They belong to the session: a client that comes back finds its messages routed.
    pub owed: Owed,
}

impl Inbound {
    pub fn contains(&self, packet_id: u16) -> bool {
        self.received.contains(&packet_id)
    }

    pub fn len(&self) -> usize {
        self.received.len()
    }

    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// Records an id that is not in it yet.
    pub fn on_publish(&mut self, packet_id: u16) {
        debug_assert!(!self.contains(packet_id));
        self.received.push_back(packet_id);
    }

    /// PUBREL, or a PUBREC that refused: whether the id was in use.
    pub fn release(&mut self, packet_id: u16) -> bool {
        let Some(position) = self.received.iter().position(|&id| id == packet_id) else { return false };
        self.received.remove(position);
        if self.received.is_empty() {
            self.received.shrink_to(8);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_in_use_from_publish_to_pubrel() {
        let mut inbound = Inbound::default();
        for id in [1, 2, 3] {
            assert!(!inbound.contains(id));
            inbound.on_publish(id);
        }
        assert!(inbound.contains(2) && inbound.release(2));
        assert!(!inbound.contains(2) && !inbound.release(2));
        assert_eq!(inbound.len(), 2);
    }
}
