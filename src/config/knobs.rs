//! The tables of the process and its listeners, and with those of sinks and rules all there are. Reading the file, refusing what is
//! wrong in it, the nearest names, the reference and the example file all come from them; the default of a knob is what its field holds
//! in the `Default` of [`Config`], [`Listener`], [`Limits`](crate::limits::Limits) and so on.

use super::rule_knobs::{ACTIONS, RULE};
use super::setting::Domain;
use super::sink_knobs::{FILE, HTTP, KAFKA, KAFKA_SOURCE, MONGODB};
use super::table::*;
use super::{Config, Listener};
use crate::ids::CORES_MAX;

/// The tables that set [`Config`].
pub static SETTINGS: [&Table<Config>; 3] = [&BROKER, &LOG, &LIMITS];

/// Every table, in the order of the reference.
pub fn all() -> impl Iterator<Item = &'static dyn AnyTable> {
    let before: [&dyn AnyTable; 10] =
        [&BROKER, &LOG, &LIMITS, &LISTENER, &KAFKA, &MONGODB, &HTTP, &FILE, &RULE, ACTIONS[0].table];
    let actions = ACTIONS[1..].iter().map(|action| action.table as &dyn AnyTable);
    before.into_iter().chain(actions).chain([&KAFKA_SOURCE as &dyn AnyTable])
}

pub static BROKER: Table<Config> = Table {
    name: "broker",
    description: "The process: its shards, who may connect, and its clocks.",
    list: false,
    knobs: &[&[
        knob(
            "shards",
            RESTART,
            count(1, CORES_MAX as u64),
            "Shards, each a thread pinned to a core of its own inside the process's affinity mask. \"auto\" is one per core of the mask.",
            |c| &mut c.shards,
        ),
        knob(
            "allow_anonymous",
            RESTART,
            Domain::Any,
            "Whether clients may connect without authentication. Unset, loopback listeners allow it and any other listener refuses to start.",
            |c| &mut c.allow_anonymous,
        ),
        knob(
            "shutdown_s",
            RESTART,
            seconds(0, 3600).or_zero("at once"),
            "Longest time to flush what is owed to clients between SIGTERM or SIGINT and the exit.",
            |c| &mut c.shutdown_s,
        ),
        knob(
            "stall_s",
            RESTART,
            seconds(1, 3600).or_zero("off"),
            "The process aborts, so that it is restarted, when one turn of a shard takes longer than this.",
            |c| &mut c.stall_s,
        ),
        knob(
            "sys_interval_s",
            RESTART,
            seconds(1, DAY_S).or_zero("no $SYS topics"),
            "Time between two updates of the $SYS topics.",
            |c| &mut c.sys_interval_s,
        ),
        knob(
            "sink_core",
            RESTART,
            count(0, 4095),
            "The CPU of the thread that serves sinks and sources, by its number in the process's affinity mask's terms; shards are placed without regard to it. \"auto\" is the last CPU of the mask if there are more than shards; else it runs wherever the kernel puts it.",
            |c| &mut c.sink_core,
        ),
        knob("node", RESTART, text(255), "What rules see as node; empty means the host's name.", |c| &mut c.node),
    ]],
};

pub static LOG: Table<Config> = Table {
    name: "log",
    description: "What is written to standard error.",
    list: false,
    knobs: &[&[
        knob("level", RESTART, Domain::Any, "The least severe lines that are written.", |c| &mut c.log_level),
        knob(
            "format",
            RESTART,
            Domain::Any,
            "\"text\" begins each line with a time stamp, in colour on a terminal; \"journal\" leaves both out, for journald, which stamps lines itself.",
            |c| &mut c.log_format,
        ),
        knob(
            "interval_s",
            RESTART,
            seconds(1, DAY_S).or_zero("off"),
            "Time between two lines with the load of each shard.",
            |c| &mut c.log_interval_s,
        ),
    ]],
};

pub static LIMITS: Table<Config> = Table {
    name: "limits",
    description: "Every limit of the broker. What exceeds one is refused or dropped, and counted with the reason.",
    list: false,
    knobs: &[&[
        knob("connections_max", RESTART, count(1, 100_000_000), "Connections of the whole process.", |c| {
            &mut c.limits.connections_max
        }),
        knob(
            "packet_bytes_max",
            RESTART,
            bytes(256, 256 * MIB),
            "Largest MQTT packet accepted, fixed header included; told to MQTT 5 clients as Maximum Packet Size.",
            |c| &mut c.limits.packet_bytes_max,
        ),
        knob(
            "connect_bytes_max",
            RESTART,
            bytes(256, 256 * MIB),
            "Largest CONNECT accepted, with its will, user name and password: what a stranger can have the broker keep. packet_bytes_max lowers it.",
            |c| &mut c.limits.connect_bytes_max,
        ),
        knob("topic_levels_max", RESTART, count(1, 1024), "Levels of a topic name or filter.", |c| {
            &mut c.limits.topic_levels_max
        }),
        knob("topic_bytes_max", RESTART, bytes(32, 65_535), "Length of a topic name or filter.", |c| {
            &mut c.limits.topic_bytes_max
        }),
        knob(
            "client_id_bytes_max",
            RESTART,
            bytes(23, 65_535),
            "Length of a client identifier; the standard has every server accept 23 bytes.",
            |c| &mut c.limits.client_id_bytes_max,
        ),
        knob(
            "inflight_in_max",
            RESTART,
            count(1, 65_535),
            "QoS 1 and 2 messages that a client may have in flight towards the broker; told to MQTT 5 clients as Receive Maximum.",
            |c| &mut c.limits.inflight_in_max,
        ),
        knob(
            "inflight_out_max",
            RESTART,
            count(1, 65_535),
            "QoS 1 and 2 messages in flight towards a client; the client's Receive Maximum lowers it.",
            |c| &mut c.limits.inflight_out_max,
        ),
        knob(
            "queued_messages_max",
            RESTART,
            count(1, 100_000_000),
            "QoS 1 and 2 messages waiting for one session, beyond those in flight.",
            |c| &mut c.limits.queued_messages_max,
        ),
        knob("queued_bytes_max", RESTART, bytes(KIB, TIB), "Bytes of messages waiting for one session.", |c| {
            &mut c.limits.queued_bytes_max
        }),
        knob(
            "drop_policy",
            RESTART,
            Domain::Any,
            "What happens to a QoS 1 or 2 message for a session whose queue is full: drop the newest, drop the oldest, or disconnect the client.",
            |c| &mut c.limits.drop_policy,
        ),
        knob(
            "outbox_bytes_max",
            RESTART,
            bytes(4 * KIB, GIB),
            "Bytes waiting for one socket before QoS 0 messages for it are dropped and QoS 1 and 2 stay in the queue.",
            |c| &mut c.limits.outbox_bytes_max,
        ),
        knob(
            "parked_bytes_max",
            RESTART,
            bytes(KIB, 256 * MIB),
            "Bytes read from a connection whose next packet has to wait, before its socket is no longer read.",
            |c| &mut c.limits.parked_bytes_max,
        ),
        knob(
            "retained_messages_max",
            RESTART,
            count(1, 1_000_000_000).or_zero("that none is retained"),
            "Retained messages of the whole process.",
            |c| &mut c.limits.retained_messages_max,
        ),
        knob("retained_bytes_max", RESTART, bytes(KIB, 16 * TIB), "Bytes of retained messages of the whole process.", |c| {
            &mut c.limits.retained_bytes_max
        }),
        knob("subscriptions_per_client_max", RESTART, count(1, 10_000_000), "Subscriptions of one client.", |c| {
            &mut c.limits.subscriptions_per_client_max
        }),
        knob(
            "topic_alias_in_max",
            RESTART,
            count(1, 65_535).or_zero("none"),
            "Topic aliases that a client may use towards the broker; told to MQTT 5 clients as Topic Alias Maximum.",
            |c| &mut c.limits.topic_alias_in_max,
        ),
        knob(
            "topic_alias_out_max",
            RESTART,
            count(1, 65_535).or_zero("none"),
            "Topic aliases that the broker uses towards a client; the client's Topic Alias Maximum lowers it.",
            |c| &mut c.limits.topic_alias_out_max,
        ),
        knob(
            "session_expiry_max_s",
            RESTART,
            seconds(0, u32::MAX as u64).or_zero("that every session ends with its connection"),
            "Longest session expiry interval granted; 4294967295 means that sessions may stay for ever.",
            |c| &mut c.limits.session_expiry_max_s,
        ),
        knob(
            "session_expiry_v3_s",
            RESTART,
            seconds(0, u32::MAX as u64).or_zero("that it ends with its connection"),
            "Expiry of the session of an MQTT 3 client with clean session 0, which cannot name one; 4294967295 means never.",
            |c| &mut c.limits.session_expiry_v3_s,
        ),
        knob(
            "keep_alive_max_s",
            RESTART,
            seconds(5, 65_535).or_zero("no limit"),
            "Longest keep-alive granted; a client that asks for more, or for none, is told this one as Server Keep Alive if it speaks MQTT 5.",
            |c| &mut c.limits.keep_alive_max_s,
        ),
        knob("connect_deadline_s", RESTART, seconds(1, 3600), "Time from the accept to a complete CONNECT.", |c| {
            &mut c.limits.connect_deadline_s
        }),
        knob(
            "memory_max_bytes",
            RESTART,
            bytes(16 * MIB, 16 * TIB).or_zero("no limit"),
            "Memory charged to connections, sessions and messages of the whole process: at 80 % no new sessions, at 90 % QoS 0 is dropped, at 100 % QoS 1 and 2 are refused, and who is in the middle of a packet is closed.",
            |c| &mut c.limits.memory_max_bytes,
        ),
        knob(
            "mesh_messages_max",
            RESTART,
            count(16, 1_048_576),
            "Places in the ring from one core to another, a quarter of them for messages, the rest for connections and subscriptions; who finds none waits.",
            |c| &mut c.limits.mesh_messages_max,
        ),
        knob(
            "mesh_bytes_max",
            RESTART,
            bytes(64 * KIB, 64 * GIB),
            "Bytes of messages in the ring from one core to another.",
            |c| &mut c.limits.mesh_bytes_max,
        ),
        knob(
            "fanouts_max",
            RESTART,
            count(1, 1_048_576),
            "Messages on one shard whose delivery to many subscribers is spread over several turns; half for its own publishers, half for other shards. Past it publishers wait.",
            |c| &mut c.limits.fanouts_max,
        ),
        knob(
            "turn_budget",
            RESTART,
            count(1, 1_048_576),
            "Subscribers served, timers fired, subscriptions removed and so on in one turn of a shard, each: smaller is smoother, larger is cheaper.",
            |c| &mut c.limits.turn_budget,
        ),
        knob(
            "response_information",
            RESTART,
            text(1024),
            "Answer to an MQTT 5 client that requests response information; empty means none.",
            |c| &mut c.limits.response_information,
        ),
    ]],
};

pub static LISTENER: Table<Listener> = Table {
    name: "listener",
    description: "Where clients connect. Write one [[listener]] per address; without any, it is 127.0.0.1:1883.",
    list: true,
    knobs: &[&[
        knob("name", RESTART, text(64), "The name in logs; empty means the address.", |l| &mut l.name),
        knob(
            "address",
            RESTART,
            Domain::Any,
            "The address and port; an IPv6 address does not listen for IPv4. Every listener names its own.",
            |l: &mut Listener| &mut l.address,
        )
        .required("\"127.0.0.1:1883\""),
        knob("allow_anonymous", RESTART, Domain::Any, "As broker.allow_anonymous, for this listener alone.", |l| {
            &mut l.allow_anonymous
        }),
        knob(
            "backlog",
            RESTART,
            count(1, 65_535),
            "Connections that wait to be accepted, on each shard; net.core.somaxconn lowers it.",
            |l| &mut l.backlog,
        ),
        knob("tcp_nodelay", RESTART, Domain::Any, "Send small packets at once (TCP_NODELAY).", |l| &mut l.tcp_nodelay),
        knob(
            "tcp_user_timeout_ms",
            RESTART,
            milliseconds(1, 86_400_000).or_zero("the kernel's default"),
            "Time that sent data may stay unacknowledged, or a full receiver full, before the kernel gives the connection up (TCP_USER_TIMEOUT).",
            |l| &mut l.tcp_user_timeout_ms,
        ),
        knob(
            "tcp_keepalive_s",
            RESTART,
            seconds(1, 32_767).or_zero("no probes"),
            "Idle time before TCP asks whether the peer is still there (SO_KEEPALIVE); four probes follow at a quarter of it. It finds the half-open connections of clients that asked for no MQTT keep-alive.",
            |l| &mut l.tcp_keepalive_s,
        ),
        knob(
            "receive_buffer_bytes",
            RESTART,
            bytes(2 * KIB, GIB).or_zero("the kernel's own tuning"),
            "Receive buffer of each connection (SO_RCVBUF); net.core.rmem_max lowers it.",
            |l| &mut l.receive_buffer_bytes,
        ),
        knob(
            "send_buffer_bytes",
            RESTART,
            bytes(4 * KIB, GIB).or_zero("the kernel's own tuning"),
            "Send buffer of each connection (SO_SNDBUF); net.core.wmem_max lowers it.",
            |l| &mut l.send_buffer_bytes,
        ),
    ]],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::sinks::options::{FileOptions, HttpOptions, KafkaOptions, MongodbOptions, SourceOptions};
    use std::collections::BTreeSet;
    use std::fmt::Debug;
    use toml_edit::Value;

    /// What the reference shows of a knob goes in, so it is within the knob's bounds; a default comes out as it went in; both bounds fit
    /// the field.
    fn check<T: Default>(table: &Table<T>) {
        for knob in table.knobs() {
            let name = format!("{}.{}", table.name, knob.key);
            let mut owner = T::default();
            let field = (knob.field)(&mut owner);
            let default = field.to_toml(knob.domain);
            if let Some(shown) = knob.example.map(str::to_owned).or(default.clone()) {
                let value: Value = shown.parse().unwrap_or_else(|error| panic!("{name}: {shown}: {error}"));
                field.set(&value, knob.domain).unwrap_or_else(|error| panic!("{name}: {shown}: {error}"));
                assert!(knob.example.is_some() || field.to_toml(knob.domain) == default, "{name}");
            }
            if let Domain::Number { min, max, .. } = knob.domain {
                for bound in [min, max] {
                    let value = Value::from(i64::try_from(bound).unwrap());
                    field.set(&value, knob.domain).unwrap_or_else(|error| panic!("{name}: {bound}: {error}"));
                }
                let above = Value::from(i64::try_from(max + 1).unwrap());
                assert!(field.set(&above, knob.domain).is_err(), "{name}: {above} is over the bound");
                if min > 1 {
                    let below = Value::from(i64::try_from(min - 1).unwrap());
                    assert!(field.set(&below, knob.domain).is_err(), "{name}: {below} is under the bound");
                }
            }
        }
    }

    /// Setting one knob to something else than its default changes what that knob shows and what no other knob shows.
    fn check_field<T: Default>(table: &Table<T>) {
        let show = |owner: &mut T| -> Vec<_> { table.knobs().map(|knob| (knob.field)(owner).to_toml(knob.domain)).collect() };
        let defaults = show(&mut T::default());
        let words = [
            "x",
            "error",
            "journal",
            "oldest",
            "127.0.0.1:9",
            "hold",
            "gzip",
            "leader",
            "random",
            "plain",
            "put",
            "single",
            "none",
            "delivered",
        ];
        let numbers = [64, 65_000, 100_000_000, 2].map(Value::from);
        let values: Vec<Value> =
            numbers.into_iter().chain([true, false].map(Value::from)).chain(words.map(Value::from)).collect();
        for (index, knob) in table.knobs().enumerate() {
            let mut owner = T::default();
            let taken = values.iter().find(|value| {
                let field = (knob.field)(&mut owner);
                field.set(value, knob.domain).is_ok() && field.to_toml(knob.domain) != defaults[index]
            });
            assert!(taken.is_some(), "{}: no other value", knob.key);
            for (at, (shown, default)) in show(&mut owner).iter().zip(&defaults).enumerate() {
                assert_eq!(shown != default, at == index, "{}.{} changes {at}", table.name, knob.key);
            }
        }
    }

    fn check_both<T: Default>(table: &Table<T>) {
        check(table);
        check_field(table);
    }

    #[test]
    fn every_default_and_both_bounds_of_every_knob_are_accepted_and_no_more_and_each_sets_its_own_field() {
        SETTINGS.into_iter().for_each(check_both);
        check_both(&LISTENER);
        check_both(&KAFKA);
        check_both(&MONGODB);
        check_both(&HTTP);
        check_both(&FILE);
        check_both(&KAFKA_SOURCE);
        check_both(&RULE);
        ACTIONS.iter().for_each(|action| check_both(action.table));
    }

    /// The fields of a struct that shows itself.
    fn fields(value: impl Debug) -> BTreeSet<String> {
        let shown = format!("{value:#?}");
        let own = shown.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
        own.filter_map(|line| line.trim().split_once(": ")).map(|(name, _)| name.to_owned()).collect()
    }

    fn keys(table: &dyn AnyTable) -> BTreeSet<String> {
        table.keys().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn every_field_of_limits_sinks_and_sources_is_a_knob_under_its_own_name() {
        assert_eq!(fields(Limits::default()), keys(&LIMITS));
        let mut of_sinks = fields(crate::sinks::options::BufferOptions::default());
        of_sinks.insert("name".into());
        let with = |fields: BTreeSet<String>| -> BTreeSet<String> { of_sinks.union(&fields).cloned().collect() };
        assert_eq!(with(fields(KafkaOptions::default())), keys(&KAFKA));
        assert_eq!(with(fields(MongodbOptions::default())), keys(&MONGODB));
        assert_eq!(with(fields(HttpOptions::default())), keys(&HTTP));
        assert_eq!(with(fields(FileOptions::default())), keys(&FILE));
        // Of the connection a source has what is not about producing.
        let producing = ["compression", "acks", "idempotence", "partitioner"].map(str::to_owned);
        let mut of_source = fields(SourceOptions::default());
        of_source.remove("kafka");
        of_source.extend(fields(KafkaOptions::default()).into_iter().filter(|name| !producing.contains(name)));
        assert_eq!(of_source, keys(&KAFKA_SOURCE));
    }

    #[test]
    fn names_are_unique_in_their_table() {
        for table in all() {
            assert_eq!(keys(table).len(), table.keys().len(), "{}", table.name());
        }
    }
}
