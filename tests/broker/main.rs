//! Byte-exact tests of the broker as a process: raw bytes go in through a socket, and what comes out is compared byte by byte. A module
//! is named by the packet or feature it is about.
//!
//! A test's documentation names the statements that it proves, a line for each standard (`5.0: [MQTT-3.1.0-1]`); `tests/spec_ids.txt`
//! lists all of them. Nothing here depends on speed: what has to happen is waited for, and only what must not happen is given a
//! short time in which to be seen.

#[path = "../harness/mod.rs"]
mod harness;

mod command;
mod connect;
mod disconnect;
mod flow_control;
mod keep_alive;
mod limits;
mod malformed;
mod message_expiry;
mod packet_size;
mod publish;
mod retained;
mod session;
mod shared_subscription;
mod shutdown;
mod subscribe;
mod sys;
mod takeover;
mod topic;
mod topic_alias;
mod unsubscribe;
mod will;

use harness::{Broker, Client, Connect, Kind, PATIENCE, Packet, Version};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// In this time something that must not happen would have been seen.
pub const QUIET: Duration = Duration::from_millis(300);

/// A broker that the tests of a module share; it runs while any of them does.
pub struct Shared {
    config: &'static str,
    broker: Mutex<Weak<Broker>>,
}

impl Shared {
    pub const fn new(config: &'static str) -> Self {
        Self { config, broker: Mutex::new(Weak::new()) }
    }

    pub fn broker(&self) -> Arc<Broker> {
        let mut shared = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(broker) = shared.upgrade() {
            return broker;
        }
        let broker = Arc::new(Broker::start_with_config(self.config));
        *shared = Arc::downgrade(&broker);
        broker
    }
}

/// The packet gives this reason and beside it at most a text for humans (Reason String), which is free to change.
#[track_caller]
pub fn assert_reason(packet: &Packet, reason: u8) {
    assert_eq!(packet.reason(), reason, "{packet:?}");
    let properties = packet.properties();
    assert!(properties.len() <= 1 && properties.iter().all(|(id, _)| *id == harness::property::REASON_STRING), "{packet:?}");
}

/// The broker ends a connection for this reason: an MQTT 5 client is told it, an older one sees only the end.
#[track_caller]
pub fn expect_disconnect(client: &mut Client, reason: u8) {
    if client.version == Version::V5 {
        assert_reason(&client.expect_kind(Kind::Disconnect), reason);
    }
    client.expect_closed();
}

/// The broker refuses a CONNECT with this return code or reason, says that there is no session, and ends the connection.
#[track_caller]
pub fn expect_refused(client: &mut Client, return_code: u8, reason: u8) {
    if client.version == Version::V5 {
        let connack = client.expect_kind(Kind::Connack);
        assert_reason(&connack, reason);
        assert_eq!(connack.body()[0], 0, "{connack:?}");
    } else {
        client.expect(&[0x20, 0x02, 0x00, return_code]);
    }
    client.expect_closed();
}

/// An acknowledgement of this packet id. MQTT 3 has no reasons.
#[track_caller]
pub fn expect_ack(client: &mut Client, kind: Kind, id: u16, reason: u8) {
    let ack = client.expect_kind(kind);
    assert_eq!(ack.id(), id, "{ack:?}");
    match (client.version, reason) {
        (Version::V5, 1..) => assert_reason(&ack, reason),
        // The shortest form, which means success in MQTT 5.
        _ => assert_eq!(ack.0, harness::acknowledge(kind, id)),
    }
}

/// The next packets, of these kinds in whatever order; they are given back in the order asked for.
#[track_caller]
pub fn expect_kinds<const N: usize>(client: &mut Client, kinds: [Kind; N]) -> [Packet; N] {
    let mut packets: Vec<Packet> = kinds.iter().map(|_| client.expect_packet()).collect();
    kinds.map(|kind| {
        let position = packets.iter().position(|packet| packet.kind() == kind);
        packets.remove(position.unwrap_or_else(|| panic!("no {kind:?} among {packets:?}")))
    })
}

/// CONNECT with a session that outlives the connection, which then ends by DISCONNECT: what is published meanwhile is kept for it.
pub fn leave_session(broker: &Broker, version: Version, id: &str, filters: &[(&str, u8)]) {
    let (mut client, _) = broker.connect(&Connect::new(version, id).persistent());
    client.subscribe(filters);
    client.send(&[0xE0, 0x00]);
    client.expect_closed();
}

/// The `$SYS` topics of a broker, as a client sees them. Wants `sys_interval_s = 1`.
pub struct Sys {
    client: Client,
    values: HashMap<String, String>,
}

impl Sys {
    pub fn watch(broker: &Broker) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let id = format!("sys-watch-{}", SERIAL.fetch_add(1, Ordering::Relaxed));
        let mut client = broker.client(Version::V311, &id);
        client.send(&harness::subscribe(Version::V311, 1, &[("$SYS/broker/#", 0)]));
        Self { client, values: HashMap::new() }
    }

    fn read(&mut self, time: Duration) {
        let packet = self.client.packet_within(time).map(|packet| packet.expect("the broker serves $SYS"));
        if let Some(packet) = packet.filter(|packet| packet.kind() == Kind::Publish) {
            let publish = packet.publish(Version::V311);
            let name = publish.topic.strip_prefix("$SYS/broker/").expect("what was subscribed to").to_owned();
            self.values.insert(name, String::from_utf8(publish.payload).expect("values are text"));
        }
    }

    /// The value below `$SYS/broker/`, once it is as wanted.
    #[track_caller]
    pub fn wait_for(&mut self, name: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(value) = self.values.get(name).filter(|value| wanted(value)) {
                return value.clone();
            }
            assert!(Instant::now() < deadline, "$SYS/broker/{name} is {:?}", self.values.get(name));
            self.read(Duration::from_millis(100));
        }
    }

    /// The sum of these values, once it is as wanted or patience ends: those of one snapshot come one after another, so a sum may
    /// mix two of them for a moment.
    pub fn sum_once(&mut self, names: &[&str], wanted: u64) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let values = names.iter().filter_map(|name| self.values.get(*name)?.parse::<u64>().ok());
            let sum = values.sum();
            if sum == wanted || Instant::now() >= deadline {
                return sum;
            }
            self.read(Duration::from_millis(100));
        }
    }

    /// The counter of this name, once it is at least so high.
    #[track_caller]
    pub fn counter(&mut self, name: &str, at_least: u64) -> u64 {
        let is_there = |value: &str| value.parse::<u64>().is_ok_and(|value| value >= at_least);
        self.wait_for(&format!("counters/{name}"), is_there).parse().expect("it is a number")
    }

    /// The counter as it is now; it must have been published.
    #[track_caller]
    pub fn counter_now(&mut self, name: &str) -> u64 {
        self.counter(name, 0)
    }
}
