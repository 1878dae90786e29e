//! What a shard counts. Plain numbers on their own core; the shell copies them to where others sample them. Every refusal and every
//! drop is one of these, named by what and why.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[derive(Clone, Default, Debug, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Names and descriptions, in the order of [`Counters::values`].
            pub const NAMES: &'static [(&'static str, &'static str)] = &[$((stringify!($name), concat!($($doc),+)),)+];
            pub const COUNT: usize = Self::NAMES.len();

            pub fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$name,)+]
            }

            pub fn from_values(values: &[u64; Self::COUNT]) -> Self {
                let mut values = values.iter().copied();
                Self { $($name: values.next().unwrap_or_default(),)+ }
            }

            pub fn add(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections_accepted,
    /// Connections handed to their home core.
    connections_handed_over,
    /// Connections closed, for whatever reason.
    connections_closed,
    /// Connections refused: the process has `connections_max`.
    refused_connections_max,
    /// Clients without a session refused: memory is over 80 % of `memory_max`.
    refused_connections_memory,
    /// Connections refused: the broker is shutting down.
    refused_shutting_down,
    /// Connections closed: no complete CONNECT within `connect_deadline_s`.
    closed_connect_deadline,
    /// Connections closed: nothing received for 1.5 times the keep-alive.
    closed_keep_alive,
    /// Connections closed: malformed packet or protocol violation.
    closed_protocol_error,
    /// Connections closed: packet over `packet_bytes_max`.
    closed_packet_too_large,
    /// Connections closed: first packet over `connect_bytes_max`.
    closed_connect_too_large,
    /// Connections closed: more unacknowledged QoS 1 and 2 messages than the Receive Maximum granted.
    closed_receive_maximum,
    /// Connections closed: the session was taken over by a newer connection.
    closed_taken_over,
    /// Connections closed: an older CONNECT met a newer connection of the same client id.
    closed_older_connect,
    /// Connections closed: their peer had gone before they reached their home core.
    closed_peer_gone,
    /// Connections closed: their session's queue was full and `drop_policy` is `disconnect`.
    closed_queue_full,
    /// Connections closed: a QoS 1 or 2 message of an MQTT 3 client was refused because memory is at `memory_max`.
    closed_memory,
    /// Connections closed: memory is at `memory_max`, and their packet, of which a part has come, would take more.
    closed_memory_partial,
    /// Connections refused at CONNECT with a reason code: client id, protocol version, will topic and so on.
    refused_connects,
    /// CONNECT packets accepted.
    connects_accepted,
    /// Sessions resumed.
    sessions_resumed,
    /// Sessions whose expiry interval passed.
    sessions_expired,
    /// Packets received.
    packets_received,
    /// Packets sent.
    packets_sent,
    /// Bytes received.
    bytes_received,
    /// Bytes sent.
    bytes_sent,
    /// PUBLISH packets received from clients.
    publishes_received,
    /// PUBLISH packets sent to clients.
    publishes_sent,
    /// Payload bytes of PUBLISH packets received.
    publish_bytes_received,
    /// Payload bytes of PUBLISH packets sent.
    publish_bytes_sent,
    /// QoS 2 PUBLISH packets that repeated one already received.
    publishes_repeated,
    /// Messages that matched no subscription.
    publishes_unmatched,
    /// Messages forwarded to another core.
    mesh_messages_sent,
    /// Messages taken from other cores.
    mesh_messages_received,
    /// Will messages published.
    wills_published,
    /// Subscriptions made.
    subscribes,
    /// Subscriptions ended.
    unsubscribes,
    /// Subscriptions refused: `subscriptions_per_client_max`, or more filters than one SUBSCRIBE may carry.
    refused_subscriptions_quota,
    /// Subscriptions refused: the topic filter is not valid.
    refused_subscriptions_filter,
    /// Messages dropped: QoS 0 for a socket whose outbox is full.
    dropped_outbox_full,
    /// Messages dropped: the session's queue is full (newest, by `drop_policy`).
    dropped_queue_newest,
    /// Messages dropped: the session's queue is full (oldest, by `drop_policy`).
    dropped_queue_oldest,
    /// Messages dropped: QoS 0 for a session whose client is away.
    dropped_offline_qos0,
    /// Messages dropped: larger than the client's Maximum Packet Size.
    dropped_packet_too_large,
    /// Messages dropped: their message expiry interval passed while they waited.
    dropped_expired,
    /// Messages dropped: QoS 0 while memory is over 90 % of `memory_max`.
    dropped_memory_qos0,
    /// Messages refused: QoS 1 or 2 while memory is at `memory_max`.
    refused_memory,
    /// Messages refused: the topic is reserved for the broker (`$SYS`).
    refused_topic,
    /// Messages refused by the standard's rules or limits: topic name, payload format.
    refused_publishes,
    /// Messages dropped: still queued when their session ended.
    dropped_session_end,
    /// Messages dropped: no member of the shared group is left.
    dropped_group_empty,
    /// Retained messages not stored: `retained_messages_max` or `retained_bytes_max`.
    dropped_retained_quota,
    /// Retained messages removed: their message expiry interval passed.
    retained_expired,
    /// Packets that acknowledged a packet id that is not in use.
    acks_unknown,
    /// Times a connection was parked to wait for room on the ring to another core.
    parked_mesh,
    /// Times a connection was parked to wait for room before a sink.
    parked_sink,
    /// Times a connection was parked because it was owed `inflight_in_max` acknowledgements that wait for sinks.
    parked_acknowledgements,
    /// Records that rules sent to sinks.
    records_sent,
    /// Records dropped: the sink's buffer was full, and their message was of QoS 0, a will or a rule's, or they were of an event.
    dropped_sink_full,
    /// Messages that rules published.
    messages_republished,
    /// Messages of rules dropped: rules republished each other more than eight times.
    dropped_republish_loop,
    /// Messages of rules dropped: 65,536 of them wait already.
    dropped_republish_full,
    /// Messages that came from sources such as Kafka.
    source_messages,
    /// Times messages of sources were held to wait for room before a sink.
    source_messages_held,
    /// Times a connection was parked to wait for a decision.
    parked_decision,
    /// Packets left to the next turn because this one had done its share.
    parked_turn,
    /// Times a connection was parked to wait for room among the fan-outs of its own core.
    parked_fanout,
    /// Fan-outs that did not fit their turn and were continued in later ones.
    fanouts_continued,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_names_stand_in_one_order() {
        let counters = Counters { connections_accepted: 7, fanouts_continued: 9, ..Counters::default() };
        let values = counters.values();
        assert_eq!((values[0], values[Counters::COUNT - 1]), (7, 9));
        assert_eq!((Counters::NAMES[0].0, Counters::NAMES[Counters::COUNT - 1].0), ("connections_accepted", "fanouts_continued"));
        assert_eq!(Counters::from_values(&values), counters);
    }
}
