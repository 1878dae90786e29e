//! What a shard wants done. The core writes it, the shell performs it at the end of the turn and clears it; nothing in it is
//! answered within the turn.

use super::peer::MeshMessage;
use crate::ids::ConnectionId;
use crate::record::Record;
use crate::shard::events::Event;

#[derive(Default)]
pub struct Effects {
    /// Connections whose outbox has bytes to send, each once. The shell takes it with `Shard::take_flush`, never directly.
    pub(super) flush: Vec<ConnectionId>,
    /// Connections that arrived from another core: to be watched for readiness here.
    pub arrivals: Vec<ConnectionId>,
    /// Sockets that leave for another core: to be watched no longer, before the mesh is flushed.
    pub departures: Vec<i32>,
    /// Connections whose socket must not be read until they stand in `resumes`.
    pub pauses: Vec<ConnectionId>,
    pub resumes: Vec<ConnectionId>,
    /// Connections to close once their outbox is sent (or their linger time is over). The shell calls `Shard::on_closed` when it
    /// has taken the socket over.
    pub closes: Vec<ConnectionId>,
    /// Sockets whose bytes are to be acknowledged at once: they brought a publisher's last acknowledgements and nothing is owed to
    /// it. With Nagle's algorithm its next PUBLISH waits for that, up to 40 ms.
    pub quick_acks: Vec<i32>,
    /// Messages for each core's ring, in order. Room for them has been reserved.
    pub mesh: Vec<Vec<MeshMessage>>,
    /// Records for the sink core, in order. Room for them has been reserved.
    pub records: Vec<Record>,
    /// What happened, for the log (and, later, for rules).
    pub events: Vec<Event>,
}
