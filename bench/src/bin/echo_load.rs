//! Load on an echo server: every connection gets back what it sends. The server is either the epoll floor (`--protocol raw`) or a
//! broker whose clients subscribe to their own topics (`--protocol mqtt`). After the set-up both are spoken to with the same bytes,
//! MQTT 3.1.1 PUBLISH packets of QoS 0, by the same code, so that what differs is the server.
//!
//! Closed loop: one message in flight per connection. Open loop (`--rate`): messages at fixed times whatever comes back, evenly
//! spread over the connections; latency counts from the time a message was due. One thread, and nothing is allocated per message.
//! The generator never sleeps, so that its own wake-ups are not in the latency: give it a core of its own.

use clap::{Parser, ValueEnum};
use corelane_bench::mqtt::{self, Client, Connect, Version};
use corelane_bench::{epoll, process};
use hdrhistogram::Histogram;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Closed-loop and open-loop echo load, raw or MQTT")]
struct Arguments {
    #[arg(long)]
    address: SocketAddr,
    #[arg(long, value_enum)]
    protocol: Protocol,
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Payload bytes; the topic and headers come on top.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=8192))]
    payload: u16,
    /// Messages per second in all; without it, closed loop.
    #[arg(long)]
    rate: Option<u32>,
    /// Measured seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds of load before measuring begins.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// The server's process id.
    #[arg(long)]
    pid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Raw,
    Mqtt,
}

/// Where in the frame the payload begins with the time, in nanoseconds, at which the message was due.
const TIME_BYTES: usize = 8;

struct Connection {
    stream: TcpStream,
    frame: Vec<u8>,
    /// A frame of which `partial` bytes have come.
    incoming: Vec<u8>,
    partial: usize,
}

impl Connection {
    fn open(arguments: &Arguments, index: usize) -> io::Result<Self> {
        let patience = Duration::from_secs(10);
        let topic = format!("echo/{index:05}");
        let stream = match arguments.protocol {
            Protocol::Raw => Client::open(arguments.address, Version::V311, patience)?.stream,
            Protocol::Mqtt => {
                let id = format!("echo-{index}");
                let (mut client, _) = Client::connect(arguments.address, &Connect::new(Version::V311, &id), patience)?;
                client.subscribe(&topic, 0)?;
                client.stream
            }
        };
        let frame = mqtt::publish(Version::V311, &topic, &vec![b'x'; usize::from(arguments.payload)], 0, false, 0);
        Ok(Self { stream, incoming: vec![0; frame.len()], frame, partial: 0 })
    }

    fn send(&mut self, payload_at: usize, due_ns: u64) -> io::Result<()> {
        self.frame[payload_at..payload_at + TIME_BYTES].copy_from_slice(&due_ns.to_be_bytes());
        match epoll::send(&self.stream, &self.frame)? {
            sent if sent == self.frame.len() => Ok(()),
            _ => Err(io::Error::other("the server does not keep up: a send was cut short")),
        }
    }

    /// Takes received bytes and calls `on_message` with the due time of every frame that is complete.
    fn take(&mut self, mut bytes: &[u8], payload_at: usize, mut on_message: impl FnMut(u64)) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = bytes.len().min(self.incoming.len() - self.partial);
            self.incoming[self.partial..self.partial + count].copy_from_slice(&bytes[..count]);
            self.partial += count;
            bytes = &bytes[count..];
            if self.partial == self.incoming.len() {
                self.partial = 0;
                let time_end = payload_at + TIME_BYTES;
                if self.incoming[..payload_at] != self.frame[..payload_at] || self.incoming[time_end..] != self.frame[time_end..]
                {
                    return Err(io::Error::other(format!("not the echo: {:02x?}", self.incoming)));
                }
                on_message(u64::from_be_bytes(self.incoming[payload_at..time_end].try_into().expect("eight bytes")));
            }
        }
        Ok(())
    }
}

/// What was counted between two readings of the server's CPU.
struct Measured {
    messages: u64,
    cpu_ns: u64,
    /// Time that server and generator waited for a core that somebody else had.
    waited_ns: u64,
    elapsed: Duration,
    latency_ns: Histogram<u32>,
}

fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    process::raise_file_limit()?;
    let connections = (0..arguments.connections).map(|index| Connection::open(&arguments, index)).collect::<io::Result<_>>()?;
    let measured = run(&arguments, connections)?;
    let quantile_us = |quantile| measured.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "messages={} per_second={:.0} cpu_us={:.3} p50_us={:.1} p99_us={:.1} waited_percent={:.1}",
        measured.messages,
        measured.messages as f64 / measured.elapsed.as_secs_f64(),
        measured.cpu_ns as f64 / 1e3 / measured.messages.max(1) as f64,
        quantile_us(0.5),
        quantile_us(0.99),
        100.0 * measured.waited_ns as f64 / measured.elapsed.as_nanos() as f64,
    );
    Ok(())
}

fn run(arguments: &Arguments, mut connections: Vec<Connection>) -> io::Result<Measured> {
    let mut set = epoll::Epoll::new(1024)?;
    for (index, connection) in connections.iter().enumerate() {
        set.add(&connection.stream, index as u64)?;
    }
    let payload_at = connections[0].frame.len() - usize::from(arguments.payload);
    let mut buffer = vec![0; 64 << 10];
    let mut latency_ns = Histogram::<u32>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid");

    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    let begin_ns = (arguments.warm_up * 1e9) as u64;
    let end_ns = begin_ns + (arguments.seconds * 1e9) as u64;
    let interval_ns = arguments.rate.map(|rate| 1_000_000_000 / u64::from(rate.max(1)));

    let waited_ns = || process::waited_ns(arguments.pid) + process::waited_ns(std::process::id());
    let mut before = None;
    let (mut messages, mut outstanding, mut sent) = (0, 0u64, 0u64);
    if interval_ns.is_none() {
        for connection in &mut connections {
            connection.send(payload_at, now_ns())?;
        }
        outstanding = connections.len() as u64;
    }
    let mut last_progress_ns = 0;
    loop {
        let now = now_ns();
        if before.is_none() && now >= begin_ns {
            before = Some((process::cpu_ns(arguments.pid)?, waited_ns(), now_ns()));
            messages = 0;
            latency_ns.reset();
        }
        if now >= end_ns {
            break;
        }
        if let Some(interval_ns) = interval_ns {
            while sent * interval_ns <= now {
                let index = (sent % arguments.connections as u64) as usize;
                connections[index].send(payload_at, sent * interval_ns)?;
                sent += 1;
                outstanding += 1;
            }
        }
        for index in 0..set.wait(Some(Duration::ZERO))? {
            let connection = &mut connections[set.token(index) as usize];
            let count = match epoll::receive(&connection.stream, &mut buffer) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let now = now_ns();
            let mut whole = 0;
            connection.take(&buffer[..count], payload_at, |due_ns| {
                whole += 1;
                latency_ns.saturating_record(now.saturating_sub(due_ns).max(1));
            })?;
            messages += whole;
            outstanding -= whole;
            if interval_ns.is_none() && whole > 0 {
                connection.send(payload_at, now)?;
                outstanding += 1;
            }
            last_progress_ns = now;
        }
        if now.saturating_sub(last_progress_ns) > 5_000_000_000 {
            return Err(io::Error::other(format!("nothing came back for 5 s; {outstanding} messages are out")));
        }
    }
    let (cpu_before_ns, waited_before_ns, began_ns) = before.expect("measuring begins before it ends");
    Ok(Measured {
        messages,
        cpu_ns: process::cpu_ns(arguments.pid)? - cpu_before_ns,
        waited_ns: waited_ns() - waited_before_ns,
        elapsed: Duration::from_nanos(now_ns() - began_ns),
        latency_ns,
    })
}
