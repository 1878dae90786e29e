//! A multishot receive armed on every connection, which takes its buffers from one provided-buffer ring; nothing is asked for
//! readiness. The bytes are sent from the buffer they came in, which then goes back to the ring: one buffer per send, or, as a bundle,
//! all that a connection owes in one send, for which each connection has a provided-buffer ring of its own.
//!
//! A connection has one send in flight, since two could overtake each other. A socket is closed when nothing is armed on it any more:
//! while a request holds it, closing sends no FIN.

use crate::ring::{self, BufferRing, Queues};
use crate::sockets::{self, Connections};
use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

const COMPLETIONS: u32 = 16 << 10;
const BUFFERS: u16 = 4096;
pub const BUFFER_BYTES: usize = 2048;
/// The group of the ring that all receive from. Those to send from are numbered by their socket, which is never 0.
const RECEIVE_GROUP: u16 = 0;
/// Buffers in one bundle. A ring takes a page however few it is for.
const BUNDLE_MAX: usize = 256;

mod kind {
    pub const ACCEPT: u64 = 1 << 32;
    pub const RECEIVE: u64 = 2 << 32;
    pub const SEND: u64 = 3 << 32;
    pub const MASK: u64 = !0 << 32;
}

/// The buffers that all receives share.
struct Pool {
    ring: BufferRing,
    memory: Vec<u8>,
    /// The buffer at each position of the ring, and where in the ring each buffer is: a bundle names only its first.
    at: Vec<u16>,
    position_of: Vec<u16>,
}

impl Pool {
    fn new(queues: &Queues) -> io::Result<Self> {
        let count = usize::from(BUFFERS);
        let mut pool = Self {
            ring: BufferRing::register(&queues.submitter, RECEIVE_GROUP, BUFFERS)?,
            memory: vec![0; count * BUFFER_BYTES],
            at: vec![0; count],
            position_of: vec![0; count],
        };
        (0..BUFFERS).for_each(|id| pool.give_back(id));
        Ok(pool)
    }

    fn buffer(&self, id: u16) -> *const u8 {
        self.memory[usize::from(id) * BUFFER_BYTES..].as_ptr()
    }

    fn give_back(&mut self, id: u16) {
        // SAFETY: the memory is never moved; nobody but the kernel uses a buffer that is in the ring, and each is in it only once.
        let position = unsafe { self.ring.add(self.buffer(id), BUFFER_BYTES, id) };
        self.at[usize::from(position)] = id;
        self.position_of[usize::from(id)] = position;
    }

    /// The buffers, in order, that a receive of so many bytes has filled, with the length of each.
    fn filled(&self, first: u16, bytes: usize) -> impl Iterator<Item = (u16, usize)> {
        let position = usize::from(self.position_of[usize::from(first)]);
        (0..bytes.div_ceil(BUFFER_BYTES)).map(move |index| {
            let id = self.at[(position + index) % usize::from(BUFFERS)];
            (id, BUFFER_BYTES.min(bytes - index * BUFFER_BYTES))
        })
    }
}

struct Connection {
    stream: TcpStream,
    /// Received buffers and what is in them; the first so many are being sent.
    received: VecDeque<(u16, usize)>,
    sending: usize,
    is_armed: bool,
    /// Nothing more will be received.
    is_over: bool,
    bundle: Option<BufferRing>,
}

struct Plane<'ring> {
    queues: Queues<'ring>,
    pool: Pool,
    connections: Connections<Connection>,
    /// Sockets whose receive has ended because the pool was empty.
    starved: Vec<i32>,
    is_bundling: bool,
}

pub fn serve(port: u16, is_bundling: bool) -> io::Result<()> {
    let mut ring = ring::new(COMPLETIONS)?;
    if is_bundling && !ring.params().is_feature_recvsend_bundle() {
        return Err(ring::lacks("bundles of buffers (IORING_RECVSEND_BUNDLE)", "6.10"));
    }
    let mut queues = Queues::of(&mut ring);
    let pool = Pool::new(&queues)?;
    let listener = sockets::listen(port)?;
    queues.accept_all(&listener, kind::ACCEPT)?;
    let mut plane = Plane { queues, pool, connections: Connections::new(), starved: Vec::new(), is_bundling };
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
                kind::RECEIVE => plane.received(socket, &completion)?,
                kind::SEND => plane.sent(socket, completion.result())?,
                other => unreachable!("no request carries {other:#x}"),
            }
        }
    }
}

impl Plane<'_> {
    fn add(&mut self, stream: TcpStream) -> io::Result<()> {
        let socket = stream.as_raw_fd();
        let bundle = match (self.is_bundling, u16::try_from(socket)) {
            (false, _) => None,
            (true, Ok(group)) => Some(BufferRing::register(&self.queues.submitter, group, BUNDLE_MAX as u16)?),
            // There are no more groups: bundling ends at 65,535 connections.
            (true, Err(_)) => return Ok(()),
        };
        let connection = Connection { stream, received: VecDeque::new(), sending: 0, is_armed: false, is_over: false, bundle };
        self.connections.insert(socket, connection);
        self.arm(socket)
    }

    fn arm(&mut self, socket: i32) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        connection.is_armed = true;
        let receive = match self.is_bundling {
            true => opcode::RecvMultiBundle::new(Fd(socket), RECEIVE_GROUP).build(),
            false => opcode::RecvMulti::new(Fd(socket), RECEIVE_GROUP).build(),
        };
        self.push(receive.user_data(kind::RECEIVE | socket as u64))
    }

    fn push(&mut self, request: squeue::Entry) -> io::Result<()> {
        // SAFETY: it points to nothing, or to a buffer of the pool that goes back only when the send is over.
        unsafe { self.queues.push(&request) }
    }

    fn received(&mut self, socket: i32, completion: &cqueue::Entry) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        connection.is_armed = cqueue::more(completion.flags());
        match (completion.result(), cqueue::buffer_select(completion.flags())) {
            (bytes @ 1.., Some(first)) => connection.received.extend(self.pool.filled(first, bytes as usize)),
            (errno, _) if errno == -libc::ENOBUFS => {
                self.starved.push(socket);
                return Ok(());
            }
            _ => connection.is_over = true,
        }
        if !connection.is_armed && !connection.is_over {
            self.arm(socket)?;
        }
        self.send(socket)
    }

    /// Sends what was received next; a connection that has nothing left to do is closed.
    fn send(&mut self, socket: i32) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        if connection.sending > 0 {
            return Ok(());
        }
        let Some(&(id, len)) = connection.received.front() else {
            if connection.is_over && !connection.is_armed {
                self.close(socket)?;
            }
            return Ok(());
        };
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let send = match &mut connection.bundle {
            Some(bundle) => {
                connection.sending = connection.received.len().min(BUNDLE_MAX);
                for &(id, len) in connection.received.iter().take(connection.sending) {
                    // SAFETY: the buffer is the pool's, and goes back only when the send is over; no other is in the ring then.
                    unsafe { bundle.add(self.pool.buffer(id), len, id) };
                }
                opcode::SendBundle::new(Fd(socket), socket as u16).flags(flags).build()
            }
            None => {
                connection.sending = 1;
                opcode::Send::new(Fd(socket), self.pool.buffer(id), len as u32).flags(flags).build()
            }
        };
        self.push(send.user_data(kind::SEND | socket as u64))
    }

    fn sent(&mut self, socket: i32, result: i32) -> io::Result<()> {
        let Some(connection) = self.connections.get(socket) else { return Ok(()) };
        let sending = std::mem::take(&mut connection.sending);
        let bytes: usize = connection.received.iter().take(sending).map(|(_, len)| len).sum();
        // With MSG_WAITALL a send that stops short has failed.
        let is_whole = usize::try_from(result) == Ok(bytes);
        let count = if is_whole { sending } else { connection.received.len() };
        connection.received.drain(..count).for_each(|(id, _)| self.pool.give_back(id));
        if !is_whole {
            connection.is_over = true;
            sockets::shut(&connection.stream);
        }
        for starved in std::mem::take(&mut self.starved) {
            self.arm(starved)?;
        }
        self.send(socket)
    }

    fn close(&mut self, socket: i32) -> io::Result<()> {
        self.starved.retain(|&starved| starved != socket);
        if let Some(connection) = self.connections.remove(socket)
            && let Some(bundle) = connection.bundle
        {
            self.queues.submitter.unregister_buf_ring(socket as u16)?;
            drop(bundle);
        }
        Ok(())
    }
}
