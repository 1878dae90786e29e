//! The floor that brokers are compared with: a single-threaded relay on level-triggered epoll that does one receive of up to 64 kB
//! and one send per wake, allocates nothing per message, and does not look into what it moves. What publisher `i` sends goes to
//! subscriber `i`, or with `--fan-out` to every subscriber.
//!
//! It answers CONNECT and SUBSCRIBE, so that the same generator runs against it: client ids that begin with "publishers" or
//! "subscribers" and end with a number say who is who. Anyone else is only connected.

use clap::Parser;
use corelane_bench::{epoll, process};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};

#[derive(Parser)]
#[command(about = "An epoll relay")]
struct Arguments {
    #[arg(long)]
    listen: SocketAddr,
    /// Send what a publisher sends to every subscriber
    #[arg(long)]
    fan_out: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Unknown,
    Publisher(usize),
    Subscriber(usize),
}

struct Connection {
    stream: TcpStream,
    role: Role,
}

const LISTENER: u64 = u64::MAX;
const CONNECT: u8 = 0x10;
const SUBSCRIBE: u8 = 0x82;
const NOBODY: usize = usize::MAX;

struct Relay {
    fan_out: bool,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// By number, the subscriber's slot.
    subscribers: Vec<usize>,
}

fn main() -> std::io::Result<()> {
    let arguments = Arguments::parse();
    process::raise_file_limit()?;
    let listener = TcpListener::bind(arguments.listen)?;
    listener.set_nonblocking(true)?;
    epoll::lengthen_backlog(&listener, 65_535)?;
    let mut set = epoll::Epoll::new(1024)?;
    set.add(&listener, LISTENER)?;
    println!("listening on {}", listener.local_addr()?);

    let mut relay = Relay { fan_out: arguments.fan_out, connections: Vec::new(), free: Vec::new(), subscribers: Vec::new() };
    let mut buffer = vec![0; 64 << 10];
    loop {
        for index in 0..set.wait(None)? {
            match set.token(index) {
                LISTENER => {
                    while let Ok((stream, _)) = listener.accept() {
                        stream.set_nodelay(true)?;
                        let slot = relay.free.pop().unwrap_or_else(|| {
                            relay.connections.push(None);
                            relay.connections.len() - 1
                        });
                        set.add(&stream, slot as u64)?;
                        relay.connections[slot] = Some(Connection { stream, role: Role::Unknown });
                    }
                }
                token => relay.serve(token as usize, &mut buffer),
            }
        }
    }
}

impl Relay {
    fn serve(&mut self, slot: usize, buffer: &mut [u8]) {
        let Some(connection) = &self.connections[slot] else { return };
        let count = match epoll::receive(&connection.stream, buffer) {
            Ok(count) if count > 0 => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            _ => return self.close(slot),
        };
        let bytes = &buffer[..count];
        match (connection.role, bytes[0]) {
            (Role::Publisher(_), _) if self.fan_out => {
                for &subscriber in &self.subscribers {
                    self.forward(subscriber, bytes);
                }
            }
            (Role::Publisher(number), _) => {
                if let Some(&subscriber) = self.subscribers.get(number) {
                    self.forward(subscriber, bytes);
                }
            }
            (_, CONNECT) => self.greet(slot, bytes),
            (_, SUBSCRIBE) => {
                // The packet id is behind a length of one byte or two.
                let at = if bytes[1] & 0x80 == 0 { 2 } else { 3 };
                if let Some(&[high, low]) = bytes.get(at..at + 2) {
                    let _ = epoll::send(&connection.stream, &[0x90, 3, high, low, 0]);
                }
            }
            _ => {}
        }
    }

    /// A receiver that does not read in time loses what it does not take: this is a floor, not a server.
    fn forward(&self, slot: usize, bytes: &[u8]) {
        if let Some(Some(subscriber)) = self.connections.get(slot) {
            let _ = epoll::send(&subscriber.stream, bytes);
        }
    }

    fn greet(&mut self, slot: usize, bytes: &[u8]) {
        let Some(connection) = &mut self.connections[slot] else { return };
        let body = if bytes[1] & 0x80 == 0 { 2 } else { 3 };
        let clean = bytes.get(body + 7).is_some_and(|flags| flags & 2 != 0);
        let id = bytes.get(body + 10..).and_then(|rest| {
            let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
            std::str::from_utf8(rest.get(2..2 + length)?).ok()
        });
        let number = |id: &str| id.rsplit('-').next()?.parse().ok();
        connection.role = match id {
            Some(id) if id.starts_with("publishers") => number(id).map_or(Role::Unknown, Role::Publisher),
            Some(id) if id.starts_with("subscribers") => number(id).map_or(Role::Unknown, Role::Subscriber),
            _ => Role::Unknown,
        };
        // Who does not ask for a clean session is told that there is one.
        let _ = epoll::send(&connection.stream, &[0x20, 2, u8::from(!clean), 0]);
        if let Role::Subscriber(number) = connection.role {
            if self.subscribers.len() <= number {
                self.subscribers.resize(number + 1, NOBODY);
            }
            self.subscribers[number] = slot;
        }
    }

    fn close(&mut self, slot: usize) {
        if let Some(connection) = self.connections[slot].take() {
            self.free.push(slot);
            if let Role::Subscriber(number) = connection.role
                && self.subscribers[number] == slot
            {
                self.subscribers[number] = NOBODY;
            }
        }
    }
}
