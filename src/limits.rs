//! The broker's limits as the pure core reads them: one plain struct, filled from the configuration (`config::knobs` has each
//! knob's bounds, default and description). Bytes are bytes, times are seconds unless the name ends in `_ms`.

/// What happens to a QoS 1 or 2 message for a session whose queue is full. QoS 0 is always dropped first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropPolicy {
    /// The arriving message is dropped.
    Newest,
    /// The message that has waited longest is dropped to make room.
    Oldest,
    /// The client is disconnected with 0x97 (Quota exceeded); an offline session drops the newest.
    Disconnect,
}

#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections of the whole process.
    pub connections_max: u64,
    /// Largest MQTT packet accepted, fixed header included; announced to MQTT 5 clients as Maximum Packet Size.
    pub packet_bytes_max: u32,
    /// Largest CONNECT accepted, fixed header included; `packet_bytes_max` lowers it.
    pub connect_bytes_max: u32,
    pub topic_levels_max: u16,
    pub topic_bytes_max: u16,
    pub client_id_bytes_max: u16,
    /// QoS 1 and 2 messages that a client may have in flight towards the broker (Receive Maximum in CONNACK).
    pub inflight_in_max: u16,
    /// QoS 1 and 2 messages in flight towards a client; the client's Receive Maximum lowers it.
    pub inflight_out_max: u16,
    /// QoS 1 and 2 messages waiting for a session, beyond those in flight.
    pub queued_messages_max: u32,
    pub queued_bytes_max: u64,
    pub drop_policy: DropPolicy,
    /// Bytes waiting for one socket before QoS 0 for it is dropped and QoS 1 and 2 stay in the queue.
    pub outbox_bytes_max: u32,
    /// Bytes read from a parked connection before its socket is no longer read.
    pub parked_bytes_max: u32,
    /// Retained messages of the whole process.
    pub retained_messages_max: u64,
    pub retained_bytes_max: u64,
    pub subscriptions_per_client_max: u32,
    /// Topic aliases a client may use towards the broker (Topic Alias Maximum in CONNACK).
    pub topic_alias_in_max: u16,
    /// Topic aliases the broker uses towards a client; the client's Topic Alias Maximum lowers it.
    pub topic_alias_out_max: u16,
    /// Upper bound of a session's expiry interval; 0xFFFF_FFFF means none.
    pub session_expiry_max_s: u32,
    /// Expiry of sessions of MQTT 3 clients with clean session 0, which cannot name one.
    pub session_expiry_v3_s: u32,
    /// Longest keep-alive granted; a client that asks for more (or for 0, none) is told this one as Server Keep Alive if it speaks
    /// MQTT 5. 0 means no limit.
    pub keep_alive_max_s: u16,
    /// Time from accept to a complete CONNECT.
    pub connect_deadline_s: u32,
    /// Memory charged to connections, sessions and messages, of the whole process; 0 means no limit.
    pub memory_max_bytes: u64,
    /// Messages in one ring between two cores.
    pub mesh_messages_max: u32,
    /// Bytes of messages in one ring between two cores.
    pub mesh_bytes_max: u64,
    /// Fan-outs waiting for their next turn on one shard.
    pub fanouts_max: u32,
    /// Subscribers served, timers fired, subscriptions removed and so on in one turn, each.
    pub turn_budget: u32,
    /// Answer to CONNECT's Request Response Information; empty means none.
    pub response_information: String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1_000_000,
            packet_bytes_max: 1 << 20,
            connect_bytes_max: 64 << 10,
            topic_levels_max: 32,
            topic_bytes_max: 4096,
            client_id_bytes_max: 1024,
            inflight_in_max: 1024,
            inflight_out_max: 256,
            queued_messages_max: 10_000,
            queued_bytes_max: 64 << 20,
            drop_policy: DropPolicy::Newest,
            outbox_bytes_max: 1 << 20,
            parked_bytes_max: 64 << 10,
            retained_messages_max: 1_000_000,
            retained_bytes_max: 1 << 30,
            subscriptions_per_client_max: 100_000,
            topic_alias_in_max: 64,
            topic_alias_out_max: 16,
            session_expiry_max_s: 7 * 86_400,
            session_expiry_v3_s: 86_400,
            keep_alive_max_s: 0,
            connect_deadline_s: 10,
            memory_max_bytes: 0,
            mesh_messages_max: 8192,
            mesh_bytes_max: 16 << 20,
            fanouts_max: 1024,
            turn_budget: 1024,
            response_information: String::new(),
        }
    }
}
