//! What the broker tests share: a broker process on a free port with two shards, a client that is nothing but a socket, and
//! just enough of MQTT's encoding to write a packet down and to take one apart.
//!
//! Nothing here uses the library: a test that speaks through the broker's own codec would not see that codec's mistakes. Every
//! wait has a deadline, and a broker is killed when its [`Broker`] is dropped; if that happens in a failing test, the end of the
//! broker's log is printed.
//!
//! `CORELANE_TEST_BROKER=host:port` runs the tests against a broker that already listens there, which they then share: give it nothing
//! else to do and them `--test-threads 1`.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test waits for something that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

// ------------------------------------------------------------------------------------------------------------- the broker

/// A running broker. Dropping it kills the process.
pub struct Broker {
    address: SocketAddr,
    child: Option<Child>,
    log: Arc<Mutex<String>>,
    config: Option<std::path::PathBuf>,
}

impl Broker {
    /// A broker with two shards and every default.
    pub fn start() -> Self {
        Self::start_with(&["--shards", "2"])
    }

    /// A broker with two shards and the given configuration file text.
    pub fn start_with_config(toml: &str) -> Self {
        static SERIAL: AtomicU16 = AtomicU16::new(0);
        let name = format!("corelane-test-{}-{}.toml", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, toml).expect("the configuration file can be written");
        let mut broker = Self::start_with(&["--shards", "2", "--config", path.to_str().expect("a plain path")]);
        broker.config = Some(path);
        broker
    }

    /// A broker with exactly these arguments; `--listen` is added.
    pub fn start_with(arguments: &[&str]) -> Self {
        if let Ok(address) = std::env::var("CORELANE_TEST_BROKER") {
            let address = address.parse().expect("CORELANE_TEST_BROKER is host:port");
            return Self { address, child: None, log: Arc::default(), config: None };
        }
        for _ in 0..3 {
            let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let mut child = Command::new(env!("CARGO_BIN_EXE_corelane"))
                .args(["--listen", &address.to_string()])
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the broker's binary starts");
            let log = Arc::default();
            collect(child.stdout.take().expect("piped"), &log);
            collect(child.stderr.take().expect("piped"), &log);
            let mut broker = Self { address, child: Some(child), log, config: None };
            if broker.wait_until_it_listens() {
                return broker;
            }
            eprintln!("a broker did not start:\n{}", broker.log());
        }
        panic!("no broker started");
    }

    /// Whether it came to listen, from its own word for it; a probing connection would show in its counters.
    fn wait_until_it_listens(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.log().contains("listening on") {
                return true;
            }
            if self.exit_status().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id; `None` for a broker this test did not start.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Everything it has written to stdout and stderr so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no reader panicked").clone()
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().expect("a child can be waited for")
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = self.pid().expect("only a broker that this test started is terminated");
        assert!(Command::new("kill").args(["-TERM", &pid.to_string()]).status().expect("kill runs").success());
    }

    /// Waits for the process to end by itself.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.exit_status() {
                return status;
            }
            assert!(Instant::now() < deadline, "the broker did not exit");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A socket to the broker on which nothing has been sent.
    pub fn socket(&self) -> Client {
        Client::new(TcpStream::connect_timeout(&self.address, PATIENCE).expect("the broker accepts"), Version::V311)
    }

    /// Sends CONNECT and returns the client with its CONNACK, whatever that says.
    pub fn connect(&self, connect: &Connect) -> (Client, Packet) {
        let mut client = self.socket();
        client.version = connect.version;
        client.send(&connect.encode());
        let connack = client.expect_packet();
        assert_eq!(connack.kind(), Kind::Connack, "{connack:?}");
        (client, connack)
    }

    /// A connected client with a clean session.
    pub fn client(&self, version: Version, id: &str) -> Client {
        let (client, connack) = self.connect(&Connect::new(version, id));
        assert_eq!(connack.body()[..2], [0, 0], "{id} is admitted without a session");
        client
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(path) = &self.config {
            let _ = std::fs::remove_file(path);
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- the broker's last lines\n{}\n---", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// A port nobody listens on, below the ports that the kernel gives to outgoing connections. Two test processes begin at different
/// ones, because brokers share a port (SO_REUSEPORT) without noticing each other.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = (std::process::id() % 200) as u16 * 100;
    for _ in 0..20_000 {
        let port = 12_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Raises this process's soft limit of open files to the hard one, for tests with thousands of sockets.
pub fn raise_file_limit() {
    let pid = std::process::id().to_string();
    let hard = Command::new("prlimit").args(["--pid", &pid, "--nofile", "--output", "HARD", "--noheadings", "--raw"]).output();
    let hard = String::from_utf8(hard.expect("prlimit runs").stdout).expect("a number");
    let limit = format!("--nofile={}:{}", hard.trim(), hard.trim());
    assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().expect("prlimit runs").success());
}

fn collect(mut from: impl Read + Send + 'static, log: &Arc<Mutex<String>>) {
    let log = Arc::clone(log);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            log.lock().expect("no reader panicked").push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
}

// -------------------------------------------------------------------------------------------------------------- the client

/// A socket and the bytes received on it that no packet has been made of yet.
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
    closed: bool,
    nonblocking: bool,
    next_id: u16,
    pub version: Version,
}

impl Client {
    pub fn new(stream: TcpStream, version: Version) -> Self {
        stream.set_nodelay(true).expect("a socket takes its options");
        Self { stream, received: Vec::new(), closed: false, nonblocking: false, next_id: 0, version }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn local_port(&self) -> u16 {
        self.stream.local_addr().expect("a connected socket has one").port()
    }

    /// Sends all of the bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the broker takes the bytes");
    }

    /// Sends all of the bytes, or says why the broker did not take them.
    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.set_nonblocking(false);
        self.stream.set_write_timeout(Some(PATIENCE))?;
        self.stream.write_all(bytes)
    }

    /// The next packet, or `None` if the broker closes first; fails the test when neither comes in time.
    pub fn packet(&mut self) -> Option<Packet> {
        self.packet_within(PATIENCE).unwrap_or_else(|| panic!("no packet came; unparsed: {:02x?}", self.received))
    }

    /// The next packet (`Some(Some(_))`), the end of the stream (`Some(None)`), or nothing in that time (`None`).
    pub fn packet_within(&mut self, time: Duration) -> Option<Option<Packet>> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(packet) = self.take_packet() {
                return Some(Some(packet));
            }
            if self.closed {
                return Some(None);
            }
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.set_nonblocking(false);
            self.stream.set_read_timeout(Some(left)).expect("a socket takes its options");
            self.read();
        }
    }

    /// The next packet if it is already here.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        if let Some(packet) = self.take_packet() {
            return Some(packet);
        }
        self.set_nonblocking(true);
        self.read();
        self.take_packet()
    }

    /// The next packet; fails the test if none comes.
    pub fn expect_packet(&mut self) -> Packet {
        self.packet().expect("a packet comes before the broker closes")
    }

    /// The next packet, of this kind.
    pub fn expect_kind(&mut self, kind: Kind) -> Packet {
        let packet = self.expect_packet();
        assert_eq!(packet.kind(), kind, "{packet:?}");
        packet
    }

    /// The next packet is exactly these bytes.
    pub fn expect(&mut self, bytes: &[u8]) {
        let packet = self.expect_packet();
        assert_eq!(packet.0, bytes, "received {:02x?}, expected {bytes:02x?}", packet.0);
    }

    /// The next packet, a PUBLISH taken apart.
    pub fn expect_publish(&mut self) -> Publish {
        self.expect_kind(Kind::Publish).publish(self.version)
    }

    /// The broker closes the connection without another packet.
    pub fn expect_closed(&mut self) {
        if let Some(packet) = self.packet() {
            panic!("the broker sent {packet:?} where it had to close");
        }
    }

    /// Nothing comes for so long, and the connection stays open.
    pub fn expect_nothing(&mut self, time: Duration) {
        match self.packet_within(time) {
            None => {}
            Some(None) => panic!("the broker closed"),
            Some(Some(packet)) => panic!("unexpected {packet:?}"),
        }
    }

    /// Everything sent before has been handled: PINGREQ is answered, and nothing else comes first.
    pub fn ping(&mut self) {
        self.send(&[0xC0, 0]);
        self.expect(&[0xD0, 0]);
    }

    /// Whether the end of the stream (or a reset) has been read.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// A packet id that this client has not used lately.
    pub fn id(&mut self) -> u16 {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.next_id
    }

    /// Subscribes and returns the SUBACK's reason codes.
    pub fn subscribe(&mut self, filters: &[(&str, u8)]) -> Vec<u8> {
        let id = self.id();
        self.send(&subscribe(self.version, id, filters));
        let suback = self.expect_kind(Kind::Suback);
        assert_eq!(suback.id(), id);
        suback.body()[suback.body().len() - filters.len()..].to_vec()
    }

    /// Publishes and goes through the whole acknowledgement, which nothing else may interleave.
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) {
        self.publish_with(Publish::new(topic, payload).qos(qos));
    }

    /// As [`Client::publish`]; the packet id is filled in.
    pub fn publish_with(&mut self, mut publish: Publish) {
        if publish.qos > 0 {
            publish.id = self.id();
        }
        self.send(&publish.encode(self.version));
        match publish.qos {
            0 => {}
            1 => assert_eq!(self.expect_kind(Kind::Puback).id(), publish.id),
            _ => {
                assert_eq!(self.expect_kind(Kind::Pubrec).id(), publish.id);
                self.send(&acknowledge(Kind::Pubrel, publish.id));
                assert_eq!(self.expect_kind(Kind::Pubcomp).id(), publish.id);
            }
        }
    }

    /// DISCONNECT as the version has it, then closes.
    pub fn disconnect(mut self) {
        self.send(&[0xE0, 0]);
    }

    fn set_nonblocking(&mut self, nonblocking: bool) {
        if self.nonblocking != nonblocking {
            self.stream.set_nonblocking(nonblocking).expect("a socket takes its options");
            self.nonblocking = nonblocking;
        }
    }

    fn take_packet(&mut self) -> Option<Packet> {
        let length = packet_length(&self.received)?;
        let rest = self.received.split_off(length);
        Some(Packet(std::mem::replace(&mut self.received, rest)))
    }

    fn read(&mut self) {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.closed = true,
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(_) => self.closed = true,
        }
    }
}

/// Length of the first packet if all of it is here.
fn packet_length(bytes: &[u8]) -> Option<usize> {
    let mut remaining = 0;
    for index in 0..4 {
        let byte = *bytes.get(1 + index)?;
        remaining |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            let length = 2 + index + remaining;
            return (bytes.len() >= length).then_some(length);
        }
    }
    panic!("the broker sent a malformed length: {:02x?}", &bytes[..5]);
}

// ------------------------------------------------------------------------------------------------------------- the packets

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    V31,
    V311,
    V5,
}

impl Version {
    pub const ALL: [Version; 3] = [Version::V31, Version::V311, Version::V5];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Connect = 1,
    Connack,
    Publish,
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
    Subscribe,
    Suback,
    Unsubscribe,
    Unsuback,
    Pingreq,
    Pingresp,
    Disconnect,
    Auth,
}

impl Kind {
    const ALL: [Kind; 15] = {
        use Kind::*;
        [
            Connect,
            Connack,
            Publish,
            Puback,
            Pubrec,
            Pubrel,
            Pubcomp,
            Subscribe,
            Suback,
            Unsubscribe,
            Unsuback,
            Pingreq,
            Pingresp,
            Disconnect,
            Auth,
        ]
    };
}

/// A whole packet as it came.
#[derive(Clone, PartialEq, Eq)]
pub struct Packet(pub Vec<u8>);

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?} {:02x?}", self.kind(), &self.0[..self.0.len().min(64)])
    }
}

impl Packet {
    pub fn kind(&self) -> Kind {
        *Kind::ALL.get(usize::from(self.0[0] >> 4).wrapping_sub(1)).expect("packet type 0 is forbidden")
    }

    /// What follows the fixed header.
    pub fn body(&self) -> &[u8] {
        let length_bytes = self.0[1..].iter().take_while(|byte| *byte & 0x80 != 0).count() + 1;
        &self.0[1 + length_bytes..]
    }

    /// The packet id of any packet but PUBLISH that has one.
    pub fn id(&self) -> u16 {
        u16::from_be_bytes(self.body()[..2].try_into().expect("two bytes"))
    }

    /// The v5 reason code of an acknowledgement (0 if left out), of CONNACK, or of DISCONNECT.
    pub fn reason(&self) -> u8 {
        let at = match self.kind() {
            Kind::Connack => 1,
            Kind::Disconnect | Kind::Auth => 0,
            _ => 2,
        };
        self.body().get(at).copied().unwrap_or(0)
    }

    /// The session present flag of CONNACK.
    pub fn session_present(&self) -> bool {
        assert_eq!(self.kind(), Kind::Connack);
        self.body()[0] & 1 != 0
    }

    /// The properties of a v5 packet: identifier and value bytes, in order. Empty if the packet ends before them.
    pub fn properties(&self) -> Vec<(u8, Vec<u8>)> {
        let body = self.body();
        let at = match self.kind() {
            Kind::Connack => 2,
            Kind::Suback | Kind::Unsuback => 2,
            Kind::Disconnect | Kind::Auth => 1,
            Kind::Publish => return split_properties(&self.publish(Version::V5).properties),
            _ => 3,
        };
        if body.len() <= at {
            return Vec::new();
        }
        let mut rest = &body[at..];
        let length = take_variable(&mut rest) as usize;
        split_properties(&rest[..length])
    }

    /// The value bytes of the first property with this identifier.
    pub fn property(&self, identifier: u8) -> Option<Vec<u8>> {
        self.properties().into_iter().find(|(found, _)| *found == identifier).map(|(_, value)| value)
    }

    pub fn publish(&self, version: Version) -> Publish {
        assert_eq!(self.kind(), Kind::Publish);
        let flags = self.0[0];
        let qos = flags >> 1 & 3;
        let mut rest = self.body();
        let topic_length = usize::from(take_u16(&mut rest));
        let topic = String::from_utf8(take(&mut rest, topic_length).to_vec()).expect("a topic is UTF-8");
        let id = if qos > 0 { take_u16(&mut rest) } else { 0 };
        let properties = match version {
            Version::V5 => {
                let length = take_variable(&mut rest) as usize;
                take(&mut rest, length).to_vec()
            }
            _ => Vec::new(),
        };
        let (dup, retain) = (flags & 8 != 0, flags & 1 != 0);
        Publish { topic, payload: rest.to_vec(), qos, retain, dup, id, properties }
    }
}

/// A PUBLISH taken apart, or one to be written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Publish {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    /// 0 for QoS 0, which has none.
    pub id: u16,
    /// As on the wire, without their length; written only for v5.
    pub properties: Vec<u8>,
}

impl Publish {
    pub fn new(topic: &str, payload: impl AsRef<[u8]>) -> Self {
        Self { topic: topic.into(), payload: payload.as_ref().into(), ..Self::default() }
    }

    pub fn qos(self, qos: u8) -> Self {
        Self { qos, ..self }
    }

    pub fn id(self, id: u16) -> Self {
        Self { id, ..self }
    }

    pub fn retain(self) -> Self {
        Self { retain: true, ..self }
    }

    pub fn dup(self) -> Self {
        Self { dup: true, ..self }
    }

    pub fn property(mut self, property: Vec<u8>) -> Self {
        self.properties.extend(property);
        self
    }

    /// The value bytes of the first property with this identifier.
    pub fn property_value(&self, identifier: u8) -> Option<Vec<u8>> {
        split_properties(&self.properties).into_iter().find(|(found, _)| *found == identifier).map(|(_, value)| value)
    }

    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut body = string(&self.topic);
        if self.qos > 0 {
            body.extend(self.id.to_be_bytes());
        }
        if version == Version::V5 {
            body.extend(prefixed(&self.properties));
        }
        body.extend(&self.payload);
        packet(0x30 | u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.retain), &body)
    }
}

/// CONNECT: a clean session with no keep-alive unless told otherwise.
#[derive(Clone, Debug)]
pub struct Connect {
    pub version: Version,
    pub client_id: String,
    pub clean: bool,
    pub keep_alive_s: u16,
    pub properties: Vec<u8>,
    pub will: Option<Publish>,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
}

impl Connect {
    pub fn new(version: Version, client_id: &str) -> Self {
        Self {
            version,
            client_id: client_id.into(),
            clean: true,
            keep_alive_s: 0,
            properties: Vec::new(),
            will: None,
            username: None,
            password: None,
        }
    }

    /// Clean Session 0, or Clean Start 0 with a session that outlives the connection by an hour.
    pub fn persistent(self) -> Self {
        let connect = self.resume();
        match connect.version {
            Version::V5 => connect.property(property::u32(property::SESSION_EXPIRY_INTERVAL, 3600)),
            _ => connect,
        }
    }

    /// Clean Session or Clean Start 0, and nothing more.
    pub fn resume(self) -> Self {
        Self { clean: false, ..self }
    }

    pub fn keep_alive_s(self, keep_alive_s: u16) -> Self {
        Self { keep_alive_s, ..self }
    }

    pub fn property(mut self, property: Vec<u8>) -> Self {
        self.properties.extend(property);
        self
    }

    /// The will; its properties are the will properties.
    pub fn will(self, will: Publish) -> Self {
        Self { will: Some(will), ..self }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = match self.version {
            Version::V31 => [string("MQIsdp"), vec![3]].concat(),
            Version::V311 => [string("MQTT"), vec![4]].concat(),
            Version::V5 => [string("MQTT"), vec![5]].concat(),
        };
        let will_flags = self.will.as_ref().map_or(0, |will| 4 | will.qos << 3 | u8::from(will.retain) << 5);
        let credentials = u8::from(self.username.is_some()) << 7 | u8::from(self.password.is_some()) << 6;
        body.push(u8::from(self.clean) << 1 | will_flags | credentials);
        body.extend(self.keep_alive_s.to_be_bytes());
        if self.version == Version::V5 {
            body.extend(prefixed(&self.properties));
        }
        body.extend(string(&self.client_id));
        if let Some(will) = &self.will {
            if self.version == Version::V5 {
                body.extend(prefixed(&will.properties));
            }
            body.extend(string(&will.topic));
            body.extend(binary(&will.payload));
        }
        body.extend(self.username.iter().flat_map(|name| string(name)));
        body.extend(self.password.iter().flat_map(|password| binary(password)));
        packet(0x10, &body)
    }
}

/// SUBSCRIBE; each filter with its options byte (the QoS in v3).
pub fn subscribe(version: Version, id: u16, filters: &[(&str, u8)]) -> Vec<u8> {
    subscribe_with(version, id, &[], filters)
}

/// SUBSCRIBE with v5 properties as they are on the wire, without their length.
pub fn subscribe_with(version: Version, id: u16, properties: &[u8], filters: &[(&str, u8)]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.extend(prefixed(properties));
    }
    for (filter, options) in filters {
        body.extend(string(filter));
        body.push(*options);
    }
    packet(0x82, &body)
}

pub fn unsubscribe(version: Version, id: u16, filters: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
    }
    body.extend(filters.iter().flat_map(|filter| string(filter)));
    packet(0xA2, &body)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP in the short form, which means success in every version.
pub fn acknowledge(kind: Kind, id: u16) -> Vec<u8> {
    packet((kind as u8) << 4 | if kind == Kind::Pubrel { 2 } else { 0 }, &id.to_be_bytes())
}

/// The v5 long form of an acknowledgement, with a reason code.
pub fn acknowledge_with(kind: Kind, id: u16, reason: u8) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    packet((kind as u8) << 4 | if kind == Kind::Pubrel { 2 } else { 0 }, &[high, low, reason])
}

/// A packet from its first byte and what follows the fixed header.
pub fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    [&[first_byte], &variable(body.len() as u32)[..], body].concat()
}

pub fn string(text: &str) -> Vec<u8> {
    binary(text.as_bytes())
}

pub fn binary(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).expect("at most 65,535 bytes").to_be_bytes(), bytes].concat()
}

/// A Variable Byte Integer.
pub fn variable(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4);
    loop {
        let more = if value > 0x7F { 0x80 } else { 0 };
        bytes.push((value & 0x7F) as u8 | more);
        value >>= 7;
        if value == 0 {
            return bytes;
        }
    }
}

/// Bytes written as hexadecimal digits; white space is free.
pub fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// v5 properties, written and named.
pub mod property {
    pub const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
    pub const MESSAGE_EXPIRY_INTERVAL: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
    pub const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTHENTICATION_METHOD: u8 = 0x15;
    pub const AUTHENTICATION_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub const WILL_DELAY_INTERVAL: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub const RESPONSE_INFORMATION: u8 = 0x1A;
    pub const SERVER_REFERENCE: u8 = 0x1C;
    pub const REASON_STRING: u8 = 0x1F;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const MAXIMUM_QOS: u8 = 0x24;
    pub const RETAIN_AVAILABLE: u8 = 0x25;
    pub const USER_PROPERTY: u8 = 0x26;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
    pub const SUBSCRIPTION_IDENTIFIER_AVAILABLE: u8 = 0x29;
    pub const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;

    pub fn u8(identifier: u8, value: u8) -> Vec<u8> {
        vec![identifier, value]
    }

    pub fn u16(identifier: u8, value: u16) -> Vec<u8> {
        [&[identifier], &value.to_be_bytes()[..]].concat()
    }

    pub fn u32(identifier: u8, value: u32) -> Vec<u8> {
        [&[identifier], &value.to_be_bytes()[..]].concat()
    }

    pub fn variable(identifier: u8, value: u32) -> Vec<u8> {
        [vec![identifier], super::variable(value)].concat()
    }

    pub fn string(identifier: u8, value: &str) -> Vec<u8> {
        [vec![identifier], super::string(value)].concat()
    }

    pub fn binary(identifier: u8, value: &[u8]) -> Vec<u8> {
        [vec![identifier], super::binary(value)].concat()
    }

    pub fn pair(identifier: u8, name: &str, value: &str) -> Vec<u8> {
        [vec![identifier], super::string(name), super::string(value)].concat()
    }
}

fn split_properties(mut rest: &[u8]) -> Vec<(u8, Vec<u8>)> {
    use property::*;
    let mut found = Vec::new();
    while let Some((&identifier, after)) = rest.split_first() {
        let mut end = after;
        match identifier {
            PAYLOAD_FORMAT_INDICATOR
            | REQUEST_PROBLEM_INFORMATION
            | REQUEST_RESPONSE_INFORMATION
            | MAXIMUM_QOS
            | RETAIN_AVAILABLE
            | WILDCARD_SUBSCRIPTION_AVAILABLE
            | SUBSCRIPTION_IDENTIFIER_AVAILABLE
            | SHARED_SUBSCRIPTION_AVAILABLE => end = &end[1..],
            SERVER_KEEP_ALIVE | RECEIVE_MAXIMUM | TOPIC_ALIAS_MAXIMUM | TOPIC_ALIAS => end = &end[2..],
            MESSAGE_EXPIRY_INTERVAL | SESSION_EXPIRY_INTERVAL | WILL_DELAY_INTERVAL | MAXIMUM_PACKET_SIZE => end = &end[4..],
            SUBSCRIPTION_IDENTIFIER => {
                take_variable(&mut end);
            }
            USER_PROPERTY => (0..2).for_each(|_| skip_string(&mut end)),
            CONTENT_TYPE
            | RESPONSE_TOPIC
            | CORRELATION_DATA
            | ASSIGNED_CLIENT_IDENTIFIER
            | AUTHENTICATION_METHOD
            | AUTHENTICATION_DATA
            | RESPONSE_INFORMATION
            | SERVER_REFERENCE
            | REASON_STRING => skip_string(&mut end),
            unknown => panic!("the standard has no property {unknown:#04x}"),
        }
        found.push((identifier, after[..after.len() - end.len()].to_vec()));
        rest = end;
    }
    found
}

fn skip_string(rest: &mut &[u8]) {
    let length = usize::from(take_u16(rest));
    take(rest, length);
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, tail) = rest.split_at(count);
    *rest = tail;
    head
}

fn take_u16(rest: &mut &[u8]) -> u16 {
    u16::from_be_bytes(take(rest, 2).try_into().expect("two bytes"))
}

fn take_variable(rest: &mut &[u8]) -> u32 {
    let mut value = 0;
    for index in 0..4 {
        let byte = take(rest, 1)[0];
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a Variable Byte Integer has at most four bytes");
}

fn prefixed(properties: &[u8]) -> Vec<u8> {
    [&variable(properties.len() as u32), properties].concat()
}
