//! The `$SYS/broker/…` topics, by the names that mosquitto users' dashboards read, and below `$SYS/broker/shards/` each shard's load, so
//! that a hot shard is seen. Core 0 publishes them, retained; they are messages like any other.

use super::Shard;
use super::publish::Pending;
use super::sys_snapshot::Snapshot;
use crate::message::{Message, MessageRef};
use crate::rules::RuleCounts;
use crate::time::Time;
use crate::wire::QoS;
use std::fmt::Display;

/// What rates are computed from and what was published, between two calls.
#[derive(Default)]
pub(super) struct Sys {
    published: std::collections::HashMap<String, String>,
    loads: Vec<(&'static str, Load)>,
    last: Option<(Time, super::Counters)>,
    clients_maximum: u64,
}

/// An exponentially weighted mean per minute over 1, 5 and 15 minutes, as mosquitto computes it.
#[derive(Default, Clone, Copy)]
struct Load([f64; 3]);

impl Load {
    fn update(&mut self, per_minute: f64, interval_s: f64) {
        for (mean, minutes) in self.0.iter_mut().zip([1.0, 5.0, 15.0]) {
            let keep = (-interval_s / (60.0 * minutes)).exp();
            *mean = per_minute + keep * (*mean - per_minute);
        }
    }
}

impl Shard {
    /// Publishes what has changed since the last call. Only on core 0.
    pub fn publish_sys(&mut self, snapshot: &Snapshot, now: Time) {
        let counters = &snapshot.counters;
        let sum = |f: fn(&super::ShardLoad) -> u64| snapshot.shards.iter().map(|shard| f(&shard.load)).sum::<u64>();
        let connected = sum(|load| load.clients_connected);
        let sessions = sum(|load| load.sessions);
        let retained = sum(|load| load.retained_messages);
        let memory: i64 = snapshot.shards.iter().map(|shard| shard.load.memory_bytes).sum();
        let mut sys = std::mem::take(&mut self.sys);
        sys.clients_maximum = sys.clients_maximum.max(connected);
        let maximum = sys.clients_maximum;
        let dropped = counters.dropped_outbox_full
            + counters.dropped_queue_newest
            + counters.dropped_queue_oldest
            + counters.dropped_packet_too_large
            + counters.dropped_expired
            + counters.dropped_memory_qos0
            + counters.dropped_session_end
            + counters.dropped_offline_qos0
            + counters.dropped_group_empty
            + counters.dropped_republish_loop
            + counters.dropped_republish_full;
        let mut topics = Topics { sys: &mut sys, changed: Vec::new() };
        topics.set("version", format_args!("corelane version {}", env!("CARGO_PKG_VERSION")));
        topics.set("uptime", format_args!("{} seconds", snapshot.uptime_s));
        topics.set("clients/total", sessions);
        topics.set("clients/connected", connected);
        topics.set("clients/active", connected);
        topics.set("clients/disconnected", sessions.saturating_sub(connected));
        topics.set("clients/inactive", sessions.saturating_sub(connected));
        topics.set("clients/maximum", maximum);
        topics.set("clients/expired", counters.sessions_expired);
        topics.set("messages/received", counters.packets_received);
        topics.set("messages/sent", counters.packets_sent);
        topics.set("messages/stored", retained);
        topics.set("store/messages/count", retained);
        topics.set("store/messages/bytes", sum(|load| load.retained_bytes));
        topics.set("retained messages/count", retained);
        topics.set("publish/messages/received", counters.publishes_received);
        topics.set("publish/messages/sent", counters.publishes_sent);
        topics.set("publish/messages/dropped", dropped);
        topics.set("publish/bytes/received", counters.publish_bytes_received);
        topics.set("publish/bytes/sent", counters.publish_bytes_sent);
        topics.set("bytes/received", counters.bytes_received);
        topics.set("bytes/sent", counters.bytes_sent);
        topics.set("subscriptions/count", sum(|load| load.subscriptions));
        topics.set("shared_subscriptions/count", sum(|load| load.shared_subscriptions));
        topics.set("heap/current", memory.max(0));
        for ((name, _), value) in super::Counters::NAMES.iter().zip(counters.values()) {
            topics.set(&format!("counters/{name}"), value);
        }
        for (core, shard) in snapshot.shards.iter().enumerate() {
            let load = &shard.load;
            let values = [
                ("connections", load.connections),
                ("clients/connected", load.clients_connected),
                ("sessions", load.sessions),
                ("subscriptions", load.subscriptions),
                ("messages/received", shard.counters.publishes_received),
                ("messages/sent", shard.counters.publishes_sent),
                ("parked", load.parked),
                ("fanouts/waiting", load.fanouts_waiting),
                ("turn/p99_us", shard.turn_p99_us),
                ("turn/max_us", shard.turn_max_us),
                ("ring/depth_max", shard.ring_depth_max),
            ];
            for (name, value) in values {
                topics.set(&format!("shards/{core}/{name}"), value);
            }
        }
        for (name, counts) in self.rule_names().zip(&snapshot.rules) {
            for (what, value) in RuleCounts::NAMES.iter().zip(counts.values()) {
                topics.set(&format!("rules/{name}/{what}"), value);
            }
        }
        for (name, error) in self.rule_names().zip(&snapshot.rule_errors).filter(|(_, error)| !error.is_empty()) {
            topics.set(&format!("rules/{name}/last_error"), error);
        }
        for (topic, value) in &snapshot.sinks {
            topics.set(topic, value);
        }
        topics.loads(counters, now);
        let changed = topics.changed;
        self.sys = sys;
        for (topic, value) in changed {
            let message = MessageRef {
                topic: &format!("$SYS/broker/{topic}"),
                properties: &[],
                payload: value.as_bytes(),
                qos: QoS::AtMostOnce,
                retain: true,
                expires_at: Time::NEVER,
            };
            let message = Message::from(message);
            self.pending.push_back(Pending::Publish { message, publisher: None, client_id: None, depth: 0 });
        }
    }
}

struct Topics<'a> {
    sys: &'a mut Sys,
    changed: Vec<(String, String)>,
}

impl Topics<'_> {
    fn set(&mut self, topic: &str, value: impl Display) {
        let value = value.to_string();
        if self.sys.published.get(topic) != Some(&value) {
            self.sys.published.insert(topic.to_string(), value.clone());
            self.changed.push((topic.to_string(), value));
        }
    }

    fn loads(&mut self, counters: &super::Counters, now: Time) {
        let Some((then, before)) = self.sys.last.replace((now, counters.clone())) else { return };
        let interval_s = now.saturating_since(then).as_secs_f64();
        if interval_s <= 0.0 {
            return;
        }
        let rates: [(&'static str, u64, u64); 8] = [
            ("load/messages/received", counters.packets_received, before.packets_received),
            ("load/messages/sent", counters.packets_sent, before.packets_sent),
            ("load/publish/received", counters.publishes_received, before.publishes_received),
            ("load/publish/sent", counters.publishes_sent, before.publishes_sent),
            ("load/bytes/received", counters.bytes_received, before.bytes_received),
            ("load/bytes/sent", counters.bytes_sent, before.bytes_sent),
            ("load/sockets", counters.connections_accepted, before.connections_accepted),
            ("load/connections", counters.connects_accepted, before.connects_accepted),
        ];
        for (name, value, before) in rates {
            let per_minute = value.saturating_sub(before) as f64 * 60.0 / interval_s;
            let load = match self.sys.loads.iter_mut().find(|(known, _)| *known == name) {
                Some((_, load)) => load,
                None => {
                    self.sys.loads.push((name, Load::default()));
                    &mut self.sys.loads.last_mut().expect("just pushed").1
                }
            };
            load.update(per_minute, interval_s);
            let means = load.0;
            for (mean, window) in means.into_iter().zip(["1min", "5min", "15min"]) {
                self.set(&format!("{name}/{window}"), format_args!("{mean:.2}"));
            }
        }
    }
}
