//! A multishot poll armed on every connection instead of a place in an epoll fd: what it reports is received with recv(2), and sent as
//! a request to the ring.
//!
//! A connection has one send in flight, whose bytes stay in `sending` until it is over. A socket is closed when nothing is armed on it
//! any more: its poll has to be removed first.

use crate::ring::{self, Queues};
use crate::sockets::{self, Connections, OWED_BYTES_MAX};
use corelane_bench::epoll;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

const COMPLETIONS: u32 = 16 << 10;
const INTEREST: i32 = (libc::POLLIN | libc::POLLRDHUP) as i32;
const ENDING: i32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as i32;

mod kind {
    pub const ACCEPT: u64 = 1 << 32;
    pub const POLL: u64 = 2 << 32;
    pub const SEND: u64 = 3 << 32;
    pub const REMOVE: u64 = 4 << 32;
    pub const MASK: u64 = !0 << 32;
}

struct Connection {
    stream: TcpStream,
    owed: Vec<u8>,
    sending: Vec<u8>,
    is_armed: bool,
    /// Nothing more will be received.
    is_over: bool,
}

struct Plane<'ring> {
    queues: Queues<'ring>,
    connections: Connections<Connection>,
    buffer: Vec<u8>,
}

pub fn serve(port: u16) -> io::Result<()> {
    let mut ring = ring::new(COMPLETIONS)?;
    let mut queues = Queues::of(&mut ring);
    let listener = sockets::listen(port)?;
    queues.accept_all(&listener, kind::ACCEPT)?;
    let mut plane = Plane { queues, connections: Connections::new(), buffer: vec![0; 64 << 10] };
    loop {
        plane.queues.enter(1)?;
        while let Some(completion) = plane.queues.next() {
            let socket = completion.user_data() as u32 as i32;
            match completion.user_data() & kind::MASK {
                kind::ACCEPT => {
                    if let Some(stream) = ring::accepted(&completion) {
                        plane.add(stream)?;
                    }
                    if !cqueue::more(completion.flags()) {
                        plane.queues.accept_all(&listener, kind::ACCEPT)?;
                    }
                }
                kind::POLL => plane.polled(socket, &completion)?,
                kind::SEND => plane.sent(socket, completion.result())?,
                kind::REMOVE => {}
                other => unreachable!("no request carries {other:#x}"),
            }
        }
    }
}

impl Plane<'_> {
    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        let socket = stream.as_raw_fd();
        let connection = Connection { stream, owed: Vec::new(), sending: Vec::new(), is_armed: false, is_over: false };
        self.connections.insert(socket, connection);
        self.arm(socket)
    }

    fn arm(&mut self, socket: i32) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        connection.is_armed = true;
        let poll = opcode::PollAdd::new(Fd(socket), INTEREST as u32).multi(true).build();
        self.push(poll.user_data(kind::POLL | socket as u64))
    }

    fn push(&mut self, request: squeue::Entry) -> io::Result<()> {
        // SAFETY: it points to nothing, or to what a connection is sending, which stays there until the send is over.
        unsafe { self.queues.push(&request) }
    }

    fn polled(&mut self, socket: i32, completion: &cqueue::Entry) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        connection.is_armed = cqueue::more(completion.flags());
        if !connection.is_over {
            let is_ending = completion.result() < 0 || completion.result() & ENDING != 0;
            connection.is_over = connection.receive(is_ending, &mut self.buffer).is_err();
            match (connection.is_over, connection.is_armed) {
                (true, true) => {
                    let remove = opcode::PollRemove::new(kind::POLL | socket as u64).build();
                    self.push(remove.user_data(kind::REMOVE))?;
                }
                (false, false) => self.arm(socket)?,
                _ => {}
            }
        }
        self.send(socket)
    }

    /// Sends what is owed; a connection that has nothing left to do is closed.
    fn send(&mut self, socket: i32) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        if !connection.sending.is_empty() {
            return Ok(());
        }
        if connection.owed.is_empty() {
            if connection.is_over && !connection.is_armed {
                self.connections.remove(socket);
            }
            return Ok(());
        }
        std::mem::swap(&mut connection.owed, &mut connection.sending);
        let bytes = &connection.sending;
        let send = opcode::Send::new(Fd(socket), bytes.as_ptr(), bytes.len() as u32);
        let send = send.flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).build();
        self.push(send.user_data(kind::SEND | socket as u64))
    }

    fn sent(&mut self, socket: i32, result: i32) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        // With MSG_WAITALL a send that stops short has failed.
        if usize::try_from(result) != Ok(connection.sending.len()) {
            connection.owed.clear();
            // The poll reports it.
            sockets::shut(&connection.stream);
        }
        connection.sending.clear();
        self.send(socket)
    }
}

impl Connection {
    /// Takes what the socket has; an error if that was the end.
    fn receive(&mut self, is_ending: bool, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            let count = match epoll::receive(&self.stream, buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            self.owed.extend_from_slice(&buffer[..count]);
            if self.owed.len() > OWED_BYTES_MAX {
                self.owed.clear();
                return Err(ErrorKind::OutOfMemory.into());
            }
            // A receive that leaves room has emptied the socket, but for its end.
            if count < buffer.len() && !is_ending {
                return Ok(());
            }
        }
    }
}
