//! The table of every knob: its name in the file, whether a change needs a restart, what values it takes, what it is for, and the
//! field that it sets. Reading the file, refusing what is wrong in it, the nearest names, the reference and the example file all come
//! from here; the default of a knob is what its field holds in the `Default` of [`Config`], [`Listener`] and
//! [`Limits`](crate::limits::Limits).

use super::setting::{Domain, Setting, Unit};
use super::{Config, Listener};
use crate::ids::CORES_MAX;

/// One knob of `T`: the whole [`Config`], or one [`Listener`].
pub struct Knob<T: 'static> {
    /// The name in the file, with its table: `limits.packet_bytes_max`.
    pub name: &'static str,
    pub description: &'static str,
    pub domain: Domain,
    /// Whether a running broker has to be restarted to take up a change.
    pub needs_restart: bool,
    /// The field it sets.
    pub field: fn(&mut T) -> &mut dyn Setting,
}

impl<T> Knob<T> {
    /// The table it stands in.
    pub fn table(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(table, _)| table)
    }

    /// The name inside its table.
    pub fn key(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, key)| key)
    }
}

/// A table of the file, with what its heading in the reference says.
pub struct Section {
    pub name: &'static str,
    pub description: &'static str,
}

/// The tables that set [`Config`], in the order of the reference.
pub const SECTIONS: [Section; 3] = [
    Section { name: "broker", description: "The process: its shards, who may connect, and its clocks." },
    Section { name: "log", description: "What is written to standard error." },
    Section {
        name: "limits",
        description: "Every limit of the broker. What exceeds one is refused or dropped, and counted with the reason.",
    },
];

/// The table that is written once per listener.
pub const LISTENER_SECTION: Section = Section {
    name: "listener",
    description: "Where clients connect. Write one [[listener]] per address; without any, it is 127.0.0.1:1883.",
};

const fn knob<T>(
    name: &'static str,
    needs_restart: bool,
    domain: Domain,
    description: &'static str,
    field: fn(&mut T) -> &mut dyn Setting,
) -> Knob<T> {
    Knob { name, description, domain, needs_restart, field }
}

const fn count(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Count, min, max, zero: None }
}

const fn bytes(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Bytes, min, max, zero: None }
}

const fn seconds(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Seconds, min, max, zero: None }
}

const fn milliseconds(min: u64, max: u64) -> Domain {
    Domain::Number { unit: Unit::Milliseconds, min, max, zero: None }
}

const fn text(bytes_max: usize) -> Domain {
    Domain::Text { bytes_max }
}

/// The file is read at start only, so that every knob needs a restart; a release that reloads it marks those that do not.
const RESTART: bool = true;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const DAY_S: u64 = 86_400;

pub static KNOBS: &[Knob<Config>] = &[
    knob(
        "broker.shards",
        RESTART,
        count(1, CORES_MAX as u64),
        "Shards, each a thread pinned to a core of its own inside the process's affinity mask. \"auto\" is one per core of the mask.",
        |c| &mut c.shards,
    ),
    knob(
        "broker.allow_anonymous",
        RESTART,
        Domain::Any,
        "Whether clients may connect without authentication. Unset, loopback listeners allow it and any other listener refuses to start.",
        |c| &mut c.allow_anonymous,
    ),
    knob(
        "broker.shutdown_s",
        RESTART,
        seconds(0, 3600).or_zero("at once"),
        "Longest time to flush what is owed to clients between SIGTERM or SIGINT and the exit.",
        |c| &mut c.shutdown_s,
    ),
    knob(
        "broker.stall_s",
        RESTART,
        seconds(1, 3600).or_zero("off"),
        "The process aborts, so that it is restarted, when one turn of a shard takes longer than this.",
        |c| &mut c.stall_s,
    ),
    knob(
        "broker.sys_interval_s",
        RESTART,
        seconds(1, DAY_S).or_zero("no $SYS topics"),
        "Time between two updates of the $SYS topics.",
        |c| &mut c.sys_interval_s,
    ),
    knob("log.level", RESTART, Domain::Any, "The least severe lines that are written.", |c| &mut c.log_level),
    knob(
        "log.format",
        RESTART,
        Domain::Any,
        "\"text\" begins each line with a time stamp, in colour on a terminal; \"journal\" leaves both out, for journald, which stamps lines itself.",
        |c| &mut c.log_format,
    ),
    knob(
        "log.interval_s",
        RESTART,
        seconds(1, DAY_S).or_zero("off"),
        "Time between two lines with the load of each shard.",
        |c| &mut c.log_interval_s,
    ),
    knob("limits.connections_max", RESTART, count(1, 100_000_000), "Connections of the whole process.", |c| {
        &mut c.limits.connections_max
    }),
    knob(
        "limits.packet_bytes_max",
        RESTART,
        bytes(256, 256 * MIB),
        "Largest MQTT packet accepted, fixed header included; told to MQTT 5 clients as Maximum Packet Size.",
        |c| &mut c.limits.packet_bytes_max,
    ),
    knob("limits.topic_levels_max", RESTART, count(1, 1024), "Levels of a topic name or filter.", |c| {
        &mut c.limits.topic_levels_max
    }),
    knob("limits.topic_bytes_max", RESTART, bytes(32, 65_535), "Length of a topic name or filter.", |c| {
        &mut c.limits.topic_bytes_max
    }),
    knob(
        "limits.client_id_bytes_max",
        RESTART,
        bytes(23, 65_535),
        "Length of a client identifier; the standard has every server accept 23 bytes.",
        |c| &mut c.limits.client_id_bytes_max,
    ),
    knob(
        "limits.inflight_in_max",
        RESTART,
        count(1, 65_535),
        "QoS 1 and 2 messages that a client may have in flight towards the broker; told to MQTT 5 clients as Receive Maximum.",
        |c| &mut c.limits.inflight_in_max,
    ),
    knob(
        "limits.inflight_out_max",
        RESTART,
        count(1, 65_535),
        "QoS 1 and 2 messages in flight towards a client; the client's Receive Maximum lowers it.",
        |c| &mut c.limits.inflight_out_max,
    ),
    knob(
        "limits.queued_messages_max",
        RESTART,
        count(1, 100_000_000),
        "QoS 1 and 2 messages waiting for one session, beyond those in flight.",
        |c| &mut c.limits.queued_messages_max,
    ),
    knob("limits.queued_bytes_max", RESTART, bytes(KIB, TIB), "Bytes of messages waiting for one session.", |c| {
        &mut c.limits.queued_bytes_max
    }),
    knob(
        "limits.drop_policy",
        RESTART,
        Domain::Any,
        "What happens to a QoS 1 or 2 message for a session whose queue is full: drop the newest, drop the oldest, or disconnect the client.",
        |c| &mut c.limits.drop_policy,
    ),
    knob(
        "limits.outbox_bytes_max",
        RESTART,
        bytes(4 * KIB, GIB),
        "Bytes waiting for one socket before QoS 0 messages for it are dropped and QoS 1 and 2 stay in the queue.",
        |c| &mut c.limits.outbox_bytes_max,
    ),
    knob(
        "limits.parked_bytes_max",
        RESTART,
        bytes(KIB, 256 * MIB),
        "Bytes read from a connection whose next packet has to wait, before its socket is no longer read.",
        |c| &mut c.limits.parked_bytes_max,
    ),
    knob(
        "limits.retained_messages_max",
        RESTART,
        count(1, 1_000_000_000).or_zero("that none is retained"),
        "Retained messages of the whole process.",
        |c| &mut c.limits.retained_messages_max,
    ),
    knob("limits.retained_bytes_max", RESTART, bytes(KIB, 16 * TIB), "Bytes of retained messages of the whole process.", |c| {
        &mut c.limits.retained_bytes_max
    }),
    knob("limits.subscriptions_per_client_max", RESTART, count(1, 10_000_000), "Subscriptions of one client.", |c| {
        &mut c.limits.subscriptions_per_client_max
    }),
    knob(
        "limits.topic_alias_in_max",
        RESTART,
        count(1, 65_535).or_zero("none"),
        "Topic aliases that a client may use towards the broker; told to MQTT 5 clients as Topic Alias Maximum.",
        |c| &mut c.limits.topic_alias_in_max,
    ),
    knob(
        "limits.topic_alias_out_max",
        RESTART,
        count(1, 65_535).or_zero("none"),
        "Topic aliases that the broker uses towards a client; the client's Topic Alias Maximum lowers it.",
        |c| &mut c.limits.topic_alias_out_max,
    ),
    knob(
        "limits.session_expiry_max_s",
        RESTART,
        seconds(0, u32::MAX as u64).or_zero("that every session ends with its connection"),
        "Longest session expiry interval granted; 4294967295 means that sessions may stay for ever.",
        |c| &mut c.limits.session_expiry_max_s,
    ),
    knob(
        "limits.session_expiry_v3_s",
        RESTART,
        seconds(0, u32::MAX as u64).or_zero("that it ends with its connection"),
        "Expiry of the session of an MQTT 3 client with clean session 0, which cannot name one; 4294967295 means never.",
        |c| &mut c.limits.session_expiry_v3_s,
    ),
    knob(
        "limits.keep_alive_max_s",
        RESTART,
        seconds(5, 65_535).or_zero("no limit"),
        "Longest keep-alive granted; a client that asks for more, or for none, is told this one as Server Keep Alive if it speaks MQTT 5.",
        |c| &mut c.limits.keep_alive_max_s,
    ),
    knob("limits.connect_deadline_s", RESTART, seconds(1, 3600), "Time from the accept to a complete CONNECT.", |c| {
        &mut c.limits.connect_deadline_s
    }),
    knob(
        "limits.memory_max_bytes",
        RESTART,
        bytes(16 * MIB, 16 * TIB).or_zero("no limit"),
        "Memory charged to connections, sessions and messages of the whole process: at 80 % no new sessions, at 90 % QoS 0 is dropped, at 100 % QoS 1 and 2 are refused.",
        |c| &mut c.limits.memory_max_bytes,
    ),
    knob(
        "limits.mesh_messages_max",
        RESTART,
        count(16, 1_048_576),
        "Places in the ring from one core to another, a quarter of them for messages, the rest for connections and subscriptions; who finds none waits.",
        |c| &mut c.limits.mesh_messages_max,
    ),
    knob(
        "limits.mesh_bytes_max",
        RESTART,
        bytes(64 * KIB, 64 * GIB),
        "Bytes of messages in the ring from one core to another.",
        |c| &mut c.limits.mesh_bytes_max,
    ),
    knob(
        "limits.fanouts_max",
        RESTART,
        count(1, 1_048_576),
        "Messages on one shard whose delivery to many subscribers is spread over several turns; half for its own publishers, half for other shards. Past it publishers wait.",
        |c| &mut c.limits.fanouts_max,
    ),
    knob(
        "limits.turn_budget",
        RESTART,
        count(1, 1_048_576),
        "Subscribers served, timers fired, subscriptions removed and so on in one turn of a shard, each: smaller is smoother, larger is cheaper.",
        |c| &mut c.limits.turn_budget,
    ),
    knob(
        "limits.response_information",
        RESTART,
        text(1024),
        "Answer to an MQTT 5 client that requests response information; empty means none.",
        |c| &mut c.limits.response_information,
    ),
];

pub static LISTENER_KNOBS: &[Knob<Listener>] = &[
    knob("listener.name", RESTART, text(64), "The name in logs; empty means the address.", |l| &mut l.name),
    knob(
        "listener.address",
        RESTART,
        Domain::Any,
        "The address and port; an IPv6 address does not listen for IPv4. Every listener names its own.",
        |l| &mut l.address,
    ),
    knob("listener.allow_anonymous", RESTART, Domain::Any, "As broker.allow_anonymous, for this listener alone.", |l| {
        &mut l.allow_anonymous
    }),
    knob(
        "listener.backlog",
        RESTART,
        count(1, 65_535),
        "Connections that wait to be accepted, on each shard; net.core.somaxconn lowers it.",
        |l| &mut l.backlog,
    ),
    knob("listener.tcp_nodelay", RESTART, Domain::Any, "Send small packets at once (TCP_NODELAY).", |l| &mut l.tcp_nodelay),
    knob(
        "listener.tcp_user_timeout_ms",
        RESTART,
        milliseconds(1, 86_400_000).or_zero("the kernel's default"),
        "Time that sent data may stay unacknowledged, or a full receiver full, before the kernel gives the connection up (TCP_USER_TIMEOUT).",
        |l| &mut l.tcp_user_timeout_ms,
    ),
    knob(
        "listener.tcp_keepalive_s",
        RESTART,
        seconds(1, 32_767).or_zero("no probes"),
        "Idle time before TCP asks whether the peer is still there (SO_KEEPALIVE); four probes follow at a quarter of it. It finds the half-open connections of clients that asked for no MQTT keep-alive.",
        |l| &mut l.tcp_keepalive_s,
    ),
    knob(
        "listener.receive_buffer_bytes",
        RESTART,
        bytes(2 * KIB, GIB).or_zero("the kernel's own tuning"),
        "Receive buffer of each connection (SO_RCVBUF); net.core.rmem_max lowers it.",
        |l| &mut l.receive_buffer_bytes,
    ),
    knob(
        "listener.send_buffer_bytes",
        RESTART,
        bytes(4 * KIB, GIB).or_zero("the kernel's own tuning"),
        "Send buffer of each connection (SO_SNDBUF); net.core.wmem_max lowers it.",
        |l| &mut l.send_buffer_bytes,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use std::collections::BTreeSet;
    use toml_edit::Value;

    /// The knob's default goes back in as it comes out, so it is within the knob's bounds; both bounds fit the field.
    fn check<T: Default>(knob: &Knob<T>) {
        let mut owner = T::default();
        let field = (knob.field)(&mut owner);
        if let Some(default) = field.to_toml(knob.domain) {
            let value: Value = default.parse().unwrap_or_else(|error| panic!("{}: {default}: {error}", knob.name));
            field.set(&value, knob.domain).unwrap_or_else(|error| panic!("{}: default: {error}", knob.name));
            assert_eq!(field.to_toml(knob.domain), Some(default), "{}", knob.name);
        }
        if let Domain::Number { min, max, .. } = knob.domain {
            for bound in [min, max] {
                let value = Value::from(i64::try_from(bound).unwrap());
                field.set(&value, knob.domain).unwrap_or_else(|error| panic!("{}: {bound}: {error}", knob.name));
            }
            let above = Value::from(i64::try_from(max + 1).unwrap());
            assert!(field.set(&above, knob.domain).is_err(), "{}: {above} is over the bound", knob.name);
            if min > 1 {
                let below = Value::from(i64::try_from(min - 1).unwrap());
                assert!(field.set(&below, knob.domain).is_err(), "{}: {below} is under the bound", knob.name);
            }
        }
    }

    #[test]
    fn every_default_and_both_bounds_of_every_knob_are_accepted_and_no_more() {
        KNOBS.iter().for_each(check);
        LISTENER_KNOBS.iter().for_each(check);
    }

    #[test]
    fn every_field_of_limits_is_a_knob_under_its_own_name() {
        let shown = format!("{:#?}", Limits::default());
        let fields: BTreeSet<&str> =
            shown.lines().filter_map(|line| line.trim().split_once(": ")).map(|(name, _)| name).collect();
        let knobs: BTreeSet<&str> = KNOBS.iter().filter(|knob| knob.table() == "limits").map(Knob::key).collect();
        assert_eq!(fields, knobs);
    }

    /// Setting one knob to something else than its default changes what that knob shows and what no other knob shows.
    fn check_field<T: Default>(knobs: &[Knob<T>]) {
        let show = |owner: &mut T| -> Vec<_> { knobs.iter().map(|knob| (knob.field)(owner).to_toml(knob.domain)).collect() };
        let defaults = show(&mut T::default());
        let words = ["x", "error", "journal", "oldest", "127.0.0.1:9"].map(Value::from);
        let values = [64, 65_000, 100_000_000].map(Value::from).into_iter().chain([true, false].map(Value::from)).chain(words);
        for (index, knob) in knobs.iter().enumerate() {
            let mut owner = T::default();
            let taken = values.clone().find(|value| {
                let field = (knob.field)(&mut owner);
                field.set(value, knob.domain).is_ok() && field.to_toml(knob.domain) != defaults[index]
            });
            assert!(taken.is_some(), "{}: no other value", knob.name);
            for (at, (shown, default)) in show(&mut owner).iter().zip(&defaults).enumerate() {
                assert_eq!(shown != default, at == index, "{} changes {}", knob.name, knobs[at].name);
            }
        }
    }

    #[test]
    fn each_knob_sets_its_own_field() {
        check_field(KNOBS);
        check_field(LISTENER_KNOBS);
    }

    #[test]
    fn names_are_unique_and_stand_in_a_known_table() {
        let names: Vec<&str> = KNOBS.iter().map(|knob| knob.name).chain(LISTENER_KNOBS.iter().map(|knob| knob.name)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for knob in KNOBS {
            assert!(SECTIONS.iter().any(|section| section.name == knob.table()), "{}", knob.name);
        }
        assert!(LISTENER_KNOBS.iter().all(|knob| knob.table() == LISTENER_SECTION.name));
    }
}
