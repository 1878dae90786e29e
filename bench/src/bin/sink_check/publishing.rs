//! QoS 1 clients that outlive their broker: each has a window of unacknowledged messages, connects again when its connection ends, sends
//! again what was not acknowledged (with DUP), and goes on. What was acknowledged is remembered by number. One thread serves all.

use super::acknowledged::Ranges;
use corelane_bench::epoll;
use corelane_bench::load::buffers::{Buffers, Slot};
use corelane_bench::load::control::{histogram, record};
use corelane_bench::load::packets::{self, Connect, Incoming};
use corelane_bench::load::report::{Percentiles, significant};
use corelane_bench::load::socket::{self, EdgeSet, Event, now_ns};
use corelane_bench::load::stamp::{STAMP_BYTES, Stamp};
use corelane_bench::load::template::Template;
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

pub struct Settings {
    pub address: SocketAddr,
    pub clients: u32,
    /// Connections begun per second; 0 is all at once.
    pub connect_rate: f64,
    /// Messages per second of all clients together.
    pub rate: f64,
    /// How long messages are published, from when all clients are connected.
    pub seconds: f64,
    /// Publishing ends earlier, as soon as there is such a file.
    pub until_file: Option<PathBuf>,
    /// Longest wait for the acknowledgements that are still missing then.
    pub drain_s: f64,
    /// Unacknowledged messages of a client, at most. One that is due beyond that is skipped and counted.
    pub window: u32,
    pub size: usize,
    pub json: bool,
    pub client_id: Template,
    pub topic: Template,
    pub keep_alive_s: u16,
    /// A line per second on standard output.
    pub progress: bool,
}

/// More ids than any window has messages; each id is free again long before its turn comes.
pub const WINDOW_MAX: u32 = 60_000;
const IDS: u32 = 65_535;
const EVENTS: usize = 512;
const RECEIVE_BYTES: usize = 64 << 10;
/// What is done of each kind per turn, so that what arrives is not kept waiting.
const BUDGET: u32 = 256;
const SLEEP: Duration = Duration::from_millis(5);
const RETRY_NS: u64 = 200_000_000;
const SWEEP_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// All clients have to be connected so long after the last of them began.
const PATIENCE_NS: u64 = 60 * SECOND_NS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Away,
    Connecting,
    Greeting,
    Up,
}

struct Client {
    socket: Option<OwnedFd>,
    generation: u32,
    state: State,
    /// The beginning of a packet that has not come to its end, and what the socket did not take.
    partial: Slot,
    outbox: Slot,
    /// The number of its next message.
    next: u32,
    /// Number and due time, oldest first.
    unacknowledged: VecDeque<(u32, u64)>,
    acknowledged: Ranges,
    sent_ns: u64,
    /// When the ping that waits for its answer was sent; 0: there is none.
    pinged_ns: u64,
}

/// What came of it.
pub struct Outcome {
    pub acknowledged: Vec<Ranges>,
    pub totals: Totals,
    /// How long it took from the first connect until all clients were connected.
    pub connected_after_s: f64,
    /// How long messages were published.
    pub seconds: f64,
    /// From when a message was due to its acknowledgement.
    pub response: Histogram<u64>,
    /// From PINGREQ to PINGRESP.
    pub ping: Histogram<u64>,
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    pub up: u64,
    /// Messages, each counted once.
    pub sent: u64,
    pub acknowledged: u64,
    pub resent: u64,
    /// Due, and not sent: the window was full or the client away.
    pub skipped: u64,
    /// Connections that ended although the client wanted them.
    pub lost: u64,
    pub pings: u64,
    /// Pings without an answer within the keep-alive; their connections were given up.
    pub unanswered: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { up, sent, acknowledged, resent, skipped, lost, pings, unanswered } = self;
        let waiting = sent - acknowledged;
        write!(
            f,
            "up {up}, sent {sent}, acknowledged {acknowledged}, unacknowledged {waiting}, resent {resent}, skipped {skipped}"
        )?;
        write!(f, ", lost connections {lost}, pings {pings}, unanswered {unanswered}")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{}", self.totals)?;
        write!(
            f,
            "connected after {:.2} s, {:.0} messages/s acknowledged",
            self.connected_after_s,
            self.totals.acknowledged as f64 / self.seconds.max(1e-9)
        )?;
        for (what, times) in [("response", &self.response), ("ping", &self.ping)] {
            if let Some(times) = Percentiles::of(times) {
                let [mean, p50, p99, max] = [times.mean_ms, times.p50_ms, times.p99_ms, times.max_ms].map(significant);
                write!(f, "\n{what}: mean {mean} ms, p50 {p50}, p99 {p99}, max {max}")?;
            }
        }
        Ok(())
    }
}

pub fn run(settings: &Settings) -> io::Result<Outcome> {
    Fleet::new(settings)?.run()
}

struct Fleet<'a> {
    settings: &'a Settings,
    set: EdgeSet,
    clients: Vec<Client>,
    buffers: Buffers,
    receive: Vec<u8>,
    out: Vec<u8>,
    text: Vec<u8>,
    /// Clients to connect again, and when.
    retries: VecDeque<(u64, u32)>,
    totals: Totals,
    response: Histogram<u64>,
    ping: Histogram<u64>,
    now_ns: u64,
}

impl<'a> Fleet<'a> {
    fn new(settings: &'a Settings) -> io::Result<Self> {
        let client = |_| Client {
            socket: None,
            generation: 0,
            state: State::Away,
            partial: Slot::NONE,
            outbox: Slot::NONE,
            next: 0,
            unacknowledged: VecDeque::new(),
            acknowledged: Ranges::default(),
            sent_ns: 0,
            pinged_ns: 0,
        };
        Ok(Self {
            settings,
            set: EdgeSet::new(EVENTS)?,
            clients: (0..settings.clients).map(client).collect(),
            buffers: Buffers::default(),
            receive: vec![0; RECEIVE_BYTES],
            out: Vec::new(),
            text: Vec::new(),
            retries: VecDeque::new(),
            totals: Totals::default(),
            response: histogram(3),
            ping: histogram(3),
            now_ns: now_ns(),
        })
    }

    fn run(mut self) -> io::Result<Outcome> {
        let settings = self.settings;
        let began_ns = self.now_ns;
        let every_ns = |rate: f64| if rate > 0.0 { 1e9 / rate } else { 0.0 };
        let (connect_ns, publish_ns) = (every_ns(settings.connect_rate), every_ns(settings.rate));
        let give_up_ns = began_ns + (connect_ns * f64::from(settings.clients)) as u64 + PATIENCE_NS;
        let (mut connects, mut messages) = (0u32, 0u64);
        // Once all clients are connected: since when messages are published.
        let mut from_ns = None;
        let mut until_ns = u64::MAX;
        let (mut sweep_ns, mut progress_ns) = (began_ns, began_ns + SECOND_NS);
        loop {
            self.now_ns = now_ns();
            let mut budget = BUDGET;
            while connects < settings.clients && began_ns + (f64::from(connects) * connect_ns) as u64 <= self.now_ns && budget > 0
            {
                self.connect(connects);
                connects += 1;
                budget -= 1;
            }
            while budget > 0
                && let Some(&(at_ns, number)) = self.retries.front()
                && at_ns <= self.now_ns
            {
                self.retries.pop_front();
                self.connect(number);
                budget -= 1;
            }
            let mut next_ns = self.now_ns + SLEEP.as_nanos() as u64;
            match from_ns {
                None if self.totals.up == u64::from(settings.clients) => {
                    from_ns = Some(self.now_ns);
                    until_ns = self.now_ns + (settings.seconds * 1e9) as u64;
                }
                None if self.now_ns > give_up_ns => {
                    return Err(io::Error::other(format!(
                        "only {} of {} clients are connected",
                        self.totals.up, settings.clients
                    )));
                }
                None => {}
                Some(from_ns) => {
                    let due_ns = |number: u64| from_ns + (number as f64 * publish_ns) as u64;
                    let mut budget = BUDGET;
                    while budget > 0 && due_ns(messages) <= self.now_ns.min(until_ns) && publish_ns > 0.0 {
                        self.publish((messages % u64::from(settings.clients)) as u32, due_ns(messages));
                        messages += 1;
                        budget -= 1;
                    }
                    next_ns = next_ns.min(due_ns(messages));
                    let drained = self.totals.acknowledged == self.totals.sent;
                    if self.now_ns > until_ns && (drained || self.now_ns > until_ns + (settings.drain_s * 1e9) as u64) {
                        return Ok(self.finish(began_ns, from_ns, until_ns));
                    }
                }
            }
            if self.now_ns >= sweep_ns {
                sweep_ns = self.now_ns + SWEEP_NS;
                self.sweep();
                if settings.until_file.as_ref().is_some_and(|path| path.exists()) {
                    until_ns = until_ns.min(self.now_ns);
                }
            }
            if settings.progress && self.now_ns >= progress_ns {
                progress_ns += SECOND_NS;
                println!("{:.0} s: {}", (self.now_ns - began_ns) as f64 / 1e9, self.totals);
            }
            let sleep = if budget == 0 { Duration::ZERO } else { Duration::from_nanos(next_ns.saturating_sub(now_ns())) };
            for index in 0..self.set.wait(sleep)? {
                self.attend(self.set.event(index));
            }
        }
    }

    fn finish(mut self, began_ns: u64, from_ns: u64, until_ns: u64) -> Outcome {
        for number in 0..self.settings.clients {
            self.out.clear();
            self.out.extend_from_slice(&corelane_bench::mqtt::DISCONNECT);
            if self.clients[number as usize].state == State::Up {
                self.send(number);
            }
        }
        Outcome {
            acknowledged: self.clients.into_iter().map(|client| client.acknowledged).collect(),
            totals: self.totals,
            connected_after_s: (from_ns - began_ns) as f64 / 1e9,
            seconds: (until_ns - from_ns) as f64 / 1e9,
            response: self.response,
            ping: self.ping,
        }
    }

    fn connect(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        client.generation = client.generation.wrapping_add(1);
        let token = u64::from(client.generation) << 32 | u64::from(number);
        let begun = socket::begin_connect(self.settings.address, None).and_then(|socket| {
            self.set.add(&socket, token)?;
            Ok(socket)
        });
        match begun {
            Ok(socket) => {
                client.socket = Some(socket);
                client.state = State::Connecting;
            }
            Err(_) => self.lose(number),
        }
    }

    /// The connection has ended or could not be made: there will be another one.
    fn lose(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        if client.state == State::Up {
            self.totals.up -= 1;
            self.totals.lost += 1;
        }
        client.state = State::Away;
        client.socket = None;
        client.pinged_ns = 0;
        self.buffers.give_back(&mut client.partial);
        self.buffers.give_back(&mut client.outbox);
        self.retries.push_back((self.now_ns + RETRY_NS, number));
    }

    fn attend(&mut self, event: Event) {
        let number = event.token as u32;
        let client = &mut self.clients[number as usize];
        if client.generation != (event.token >> 32) as u32 || client.socket.is_none() {
            return;
        }
        if client.state == State::Connecting {
            if event.writable {
                self.greet(number);
            }
            return;
        }
        if event.writable && client.outbox != Slot::NONE {
            self.out.clear();
            self.out.extend_from_slice(self.buffers.get(client.outbox));
            self.buffers.give_back(&mut client.outbox);
            self.send(number);
        }
        if event.readable {
            self.read(number);
        }
    }

    fn greet(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        if client.socket.as_ref().is_none_or(|socket| socket::take_error(socket).is_err()) {
            return self.lose(number);
        }
        client.state = State::Greeting;
        self.text.clear();
        self.settings.client_id.write(number, &mut self.text);
        let connect = Connect {
            v5: false,
            client_id: &self.text,
            // Its session is to stay, as that of a client that repeats what was not acknowledged.
            clean: false,
            keep_alive_s: self.settings.keep_alive_s,
            session_expiry_s: 0,
            will: None,
        };
        self.out.clear();
        packets::connect(&connect, &mut self.out);
        self.send(number);
    }

    /// Sends `out`, behind what the client already owes.
    fn send(&mut self, number: u32) {
        let client = &mut self.clients[number as usize];
        let Some(socket) = &client.socket else { return };
        client.sent_ns = self.now_ns;
        let mut sent = 0;
        while client.outbox == Slot::NONE && sent < self.out.len() {
            match epoll::send(socket, &self.out[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return self.lose(number),
            }
        }
        if sent < self.out.len() {
            self.buffers.append(&mut client.outbox, &self.out[sent..]);
        }
    }

    fn read(&mut self, number: u32) {
        let mut receive = std::mem::take(&mut self.receive);
        while let Some(socket) = &self.clients[number as usize].socket {
            match epoll::receive(socket, &mut receive) {
                Ok(count) if count > 0 => {
                    self.now_ns = now_ns();
                    if self.take_in(number, &receive[..count]).is_err() {
                        self.lose(number);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => self.lose(number),
            }
        }
        self.receive = receive;
    }

    /// Handles the whole packets, and keeps what is left.
    fn take_in(&mut self, number: u32, received: &[u8]) -> io::Result<()> {
        let mut partial = self.clients[number as usize].partial;
        if partial == Slot::NONE {
            let taken = self.handle_all(number, received)?;
            if taken < received.len() {
                self.buffers.append(&mut self.clients[number as usize].partial, &received[taken..]);
            }
            return Ok(());
        }
        self.buffers.append(&mut partial, received);
        let bytes = self.buffers.get(partial).to_vec();
        let taken = self.handle_all(number, &bytes)?;
        self.buffers.consume(&mut self.clients[number as usize].partial, taken);
        Ok(())
    }

    fn handle_all(&mut self, number: u32, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while let Some((incoming, length)) = packets::read(false, &bytes[taken..])? {
            taken += length;
            self.handle(number, incoming)?;
        }
        Ok(taken)
    }

    fn handle(&mut self, number: u32, incoming: Incoming) -> io::Result<()> {
        let client = &mut self.clients[number as usize];
        match incoming {
            Incoming::Connack { code: 0, .. } if client.state == State::Greeting => {
                client.state = State::Up;
                self.totals.up += 1;
                self.resend(number);
            }
            Incoming::Puback { id, .. } => {
                let at = client.unacknowledged.iter().position(|&(sequence, _)| packet_id(sequence) == id);
                // One without a message: the answer to what was sent twice.
                let Some((sequence, due_ns)) = at.and_then(|at| client.unacknowledged.remove(at)) else { return Ok(()) };
                client.acknowledged.add(sequence);
                self.totals.acknowledged += 1;
                record(&mut self.response, self.now_ns.saturating_sub(due_ns));
            }
            Incoming::Pingresp => {
                record(&mut self.ping, self.now_ns.saturating_sub(std::mem::take(&mut client.pinged_ns)));
            }
            other => return Err(io::Error::other(format!("{other:?} is not expected"))),
        }
        Ok(())
    }

    fn publish(&mut self, number: u32, due_ns: u64) {
        let client = &mut self.clients[number as usize];
        if client.state != State::Up || client.unacknowledged.len() >= self.settings.window as usize {
            self.totals.skipped += 1;
            return;
        }
        let sequence = client.next;
        client.next += 1;
        client.unacknowledged.push_back((sequence, due_ns));
        self.totals.sent += 1;
        self.out.clear();
        self.write_publish(number, sequence, due_ns, false);
        self.send(number);
    }

    /// Sends again, in their order, what was not acknowledged [MQTT-4.4.0-1].
    fn resend(&mut self, number: u32) {
        self.out.clear();
        let waiting = std::mem::take(&mut self.clients[number as usize].unacknowledged);
        for &(sequence, due_ns) in &waiting {
            self.write_publish(number, sequence, due_ns, true);
        }
        self.totals.resent += waiting.len() as u64;
        self.clients[number as usize].unacknowledged = waiting;
        self.send(number);
    }

    fn write_publish(&mut self, number: u32, sequence: u32, due_ns: u64, again: bool) {
        let (size, begin) = (self.settings.size, self.out.len());
        self.text.clear();
        self.settings.topic.write(number, &mut self.text);
        packets::publish_head(false, &self.text, 1, packet_id(sequence), size, &mut self.out);
        self.out[begin] |= u8::from(again) << 3;
        let stamp = Stamp { due_ns, publisher: number, sequence };
        if self.settings.json {
            stamp.write_json(size, &mut self.out);
        } else {
            self.out.extend_from_slice(&stamp.to_bytes());
            self.out.resize(self.out.len() + size - STAMP_BYTES, b'x');
        }
    }

    /// Pings for those who have been silent for half of their keep-alive, and gives up connections whose ping was not answered within it.
    fn sweep(&mut self) {
        let keep_alive_ns = u64::from(self.settings.keep_alive_s) * SECOND_NS;
        for number in 0..self.settings.clients {
            let client = &mut self.clients[number as usize];
            if client.state != State::Up || keep_alive_ns == 0 {
                continue;
            }
            if client.pinged_ns > 0 && self.now_ns - client.pinged_ns > keep_alive_ns {
                self.totals.unanswered += 1;
                self.lose(number);
            } else if client.pinged_ns == 0 && self.now_ns.saturating_sub(client.sent_ns) > keep_alive_ns / 2 {
                client.pinged_ns = self.now_ns;
                self.totals.pings += 1;
                self.out.clear();
                packets::ping_request(&mut self.out);
                self.send(number);
            }
        }
    }
}

fn packet_id(sequence: u32) -> u16 {
    (sequence % IDS) as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use corelane_bench::mqtt::{self, PINGREQ};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn settings(address: SocketAddr) -> Settings {
        Settings {
            address,
            clients: 1,
            connect_rate: 0.0,
            rate: 1000.0,
            seconds: 0.1,
            until_file: None,
            drain_s: 5.0,
            window: 4,
            size: 16,
            json: false,
            client_id: Template::parse("c-{i}").unwrap(),
            topic: Template::parse("t/{i}").unwrap(),
            keep_alive_s: 1,
            progress: false,
        }
    }

    /// The next whole packet; `None` at the end of the stream.
    fn next(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
        loop {
            if let Some((_, length)) = mqtt::packet_length(bytes).unwrap().filter(|&(_, length)| length <= bytes.len()) {
                return Some(bytes.drain(..length).collect());
            }
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// A broker of one client that ends its first connection after so many acknowledgements; what it received, DUP or not.
    fn broker(listener: TcpListener, acknowledges: usize) -> Vec<(u32, bool)> {
        let mut received = Vec::new();
        for connection in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut bytes, mut acknowledged) = (Vec::new(), 0);
            while let Some(packet) = next(&mut stream, &mut bytes) {
                match packet[0] >> 4 {
                    1 => stream.write_all(&[0x20, 2, 0, 0]).unwrap(),
                    3 => {
                        // Fixed header, topic "t/0", id.
                        let id = u16::from_be_bytes([packet[7], packet[8]]);
                        let stamp = Stamp::from_payload(&packet[9..]).unwrap();
                        received.push((stamp.sequence, packet[0] & 8 > 0));
                        if connection == 0 && acknowledged == acknowledges {
                            break;
                        }
                        acknowledged += 1;
                        stream.write_all(&mqtt::acknowledge(mqtt::PUBACK, id)).unwrap();
                    }
                    12 => stream.write_all(&[0xD0, 0]).unwrap(),
                    _ => return received,
                }
            }
        }
        received
    }

    #[test]
    fn what_was_not_acknowledged_is_sent_again_and_everything_is_acknowledged_in_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(listener.local_addr().unwrap());
        let (outcome, received) = std::thread::scope(|scope| {
            let broker = scope.spawn(move || broker(listener, 10));
            let outcome = run(&settings).unwrap();
            (outcome, broker.join().unwrap())
        });
        let totals = outcome.totals;
        assert!(totals.sent > 10 && totals.acknowledged == totals.sent, "{totals}");
        assert_eq!((totals.lost, totals.unanswered), (1, 0));
        assert!(totals.resent >= 1 && totals.resent <= 4 && totals.skipped > 0, "{totals}");
        assert_eq!(outcome.acknowledged[0].numbers().collect::<Vec<_>>(), (0..totals.sent as u32).collect::<Vec<_>>());
        let again: Vec<_> = received.iter().filter(|message| message.1).map(|message| message.0).collect();
        assert_eq!(again.len() as u64, totals.resent);
        assert_eq!(again[0], 10, "the first that was not acknowledged comes first");
    }

    #[test]
    fn a_silent_client_pings_and_gives_up_a_connection_that_does_not_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = Settings { seconds: 2.2, drain_s: 0.0, rate: 0.0, ..settings(listener.local_addr().unwrap()) };
        let (outcome, pings) = std::thread::scope(|scope| {
            let broker = scope.spawn(move || {
                let mut pings = 0;
                // The first connection is answered to, the second one only greeted.
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = Vec::new();
                while let Some(packet) = next(&mut stream, &mut bytes) {
                    match packet[0] >> 4 {
                        1 => stream.write_all(&[0x20, 2, 0, 0]).unwrap(),
                        12 => {
                            assert_eq!(packet, PINGREQ);
                            pings += 1;
                            if pings == 1 {
                                stream.write_all(&[0xD0, 0]).unwrap();
                            }
                        }
                        _ => break,
                    }
                }
                pings
            });
            (run(&settings).unwrap(), broker.join().unwrap())
        });
        assert_eq!(pings, 2);
        assert_eq!((outcome.totals.pings, outcome.totals.unanswered, outcome.totals.lost), (2, 1, 1));
        assert_eq!(outcome.ping.len(), 1);
    }
}
