//! The broker's plane, and what it could do otherwise: sockets stand edge-triggered behind one epoll fd, and what is ready is received,
//! and what is owed is sent, in rounds, each one `io_uring_enter`. `src/runtime/ring.rs` says why; its rounds are the same here.
//!
//! The options change one thing each: where it sleeps, what is registered with the ring, how it sends, what it does before it sleeps.
//!
//! Every send and receive carries MSG_DONTWAIT and so has completed when the enter returns: buffers are then free again. Only a
//! zero-copy send keeps its bytes, in `sending`, until the kernel notifies that it has let go of them.

use crate::ring::{self, Queues};
use crate::sockets::{self, Connections, OWED_BYTES_MAX};
use corelane_bench::epoll::{self, Epoll};
use io_uring::types::{Fd, Fixed, Napi};
use io_uring::{cqueue, opcode, squeue};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// As the broker has them.
const RECEIVES_MAX: usize = 64;
const RECEIVE_BYTES: usize = 16 << 10;
const SENDS_MAX: usize = 256;
const EVENTS_MAX: usize = 64;
const COMPLETIONS: u32 = 1024;

/// How long the kernel may look at the device itself for packets, in microseconds.
const BUSY_POLL_US: u32 = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// epoll_wait(2); a round of one request is the plain system call.
    EpollWait,
    /// The ring, where a multishot poll of the epoll fd is armed; then epoll_wait(2) looks.
    PollRequest,
    /// The ring, where IORING_OP_EPOLL_WAIT is armed.
    EpollWaitRequest,
}

#[derive(Clone, Copy)]
pub struct Options {
    pub sleep: Sleep,
    pub registered_files: bool,
    pub registered_ring: bool,
    pub zero_copy: bool,
    /// SO_BUSY_POLL on the sockets and EPIOCSPARAMS on the epoll fd.
    pub busy_poll: bool,
    /// The ring's own busy polling.
    pub napi: bool,
    /// How long it looks for readiness before it sleeps.
    pub spin: Duration,
}

impl Options {
    pub const BROKER: Self = Self {
        sleep: Sleep::EpollWait,
        registered_files: false,
        registered_ring: false,
        zero_copy: false,
        busy_poll: false,
        napi: false,
        spin: Duration::ZERO,
    };
}

/// What a completion belongs to: the upper half of `user_data`; the lower half is the position in its round, or the socket.
mod kind {
    pub const SEND: u64 = 1 << 32;
    pub const RECEIVE: u64 = 2 << 32;
    pub const ZERO_COPY_SEND: u64 = 3 << 32;
    pub const WAKE: u64 = 4 << 32;
    pub const MASK: u64 = !0 << 32;
}

const LISTENER: u64 = u64::MAX;

struct Connection {
    stream: TcpStream,
    owed: Vec<u8>,
    /// What the kernel has been given, in the round or until it notifies.
    sending: Vec<u8>,
    /// It stands in the list of those that owe.
    is_listed: bool,
    /// Its socket takes nothing until it reports that it has room.
    is_full: bool,
    is_ending: bool,
    /// Of a zero-copy send, how much went out.
    sent: i32,
    /// It is over, but the kernel still has `sending`.
    is_over: bool,
}

struct Plane<'ring> {
    queues: Queues<'ring>,
    options: Options,
    set: Epoll,
    listener: TcpListener,
    connections: Connections<Connection>,
    buffers: Box<[u8]>,
    /// Sockets that may have something to receive, in order.
    ready: VecDeque<i32>,
    /// Sockets that something is owed to, in order.
    owed: VecDeque<i32>,
    /// What ended the sleep and was not looked at yet.
    found: Option<usize>,
    /// The last look at the epoll fd filled the batch.
    more: bool,
    /// The request that ends a sleep is with the kernel.
    is_armed: bool,
    /// The round: its requests, its sockets and what became of each.
    requests: Vec<squeue::Entry>,
    sends: Vec<(i32, i32)>,
    receives: Vec<(i32, i32)>,
}

pub fn serve(port: u16, options: Options) -> io::Result<()> {
    let mut ring = ring::new(COMPLETIONS)?;
    if options.zero_copy {
        ring::require(&ring, opcode::SendZc::CODE, "zero-copy send (IORING_OP_SEND_ZC)", "6.0")?;
    }
    if options.sleep == Sleep::EpollWaitRequest {
        ring::require(&ring, opcode::EpollWait::CODE, "request for epoll_wait (IORING_OP_EPOLL_WAIT)", "6.15")?;
    }
    let mut queues = Queues::of(&mut ring);
    if options.registered_files {
        let files = corelane_bench::process::raise_file_limit()?;
        queues.submitter.register_files_sparse(u32::try_from(files).unwrap_or(u32::MAX).min(1 << 20))?;
    }
    if options.registered_ring {
        queues.submitter.register_ring_fd()?;
    }
    if options.napi {
        let mut napi = Napi::new().set_busy_poll_timeout(BUSY_POLL_US);
        queues.submitter.register_napi(&mut napi).map_err(|_| ring::lacks("busy polling by the ring", "6.9"))?;
    }
    let set = Epoll::new(EVENTS_MAX)?;
    let listener = sockets::bind(port)?;
    if options.busy_poll {
        busy_poll(&listener, &set).map_err(|error| ring::unsupported(format!("the kernel refuses to busy poll: {error}")))?;
    }
    set.add(&listener, LISTENER)?;
    sockets::listening(&listener)?;
    let mut plane = Plane {
        queues,
        options,
        set,
        listener,
        connections: Connections::new(),
        buffers: vec![0; RECEIVES_MAX * RECEIVE_BYTES].into_boxed_slice(),
        ready: VecDeque::new(),
        owed: VecDeque::new(),
        found: None,
        more: false,
        is_armed: false,
        requests: Vec::new(),
        sends: Vec::new(),
        receives: Vec::new(),
    };
    loop {
        if plane.ready.is_empty() && !plane.more {
            plane.sleep()?;
        }
        plane.look()?;
        plane.gather();
        plane.exchange()?;
    }
}

/// Accepted sockets inherit it from the listener.
fn busy_poll(listener: &TcpListener, set: &Epoll) -> io::Result<()> {
    let (us, len) = (BUSY_POLL_US as i32, size_of::<i32>() as u32);
    let epoll = libc::epoll_params { busy_poll_usecs: BUSY_POLL_US, busy_poll_budget: 8, prefer_busy_poll: 0, __pad: 0 };
    // SAFETY: both settings live through the calls and have the sizes that the kernel reads.
    let results = unsafe {
        [
            libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BUSY_POLL, (&raw const us).cast(), len),
            libc::ioctl(set.as_raw_fd(), libc::EPIOCSPARAMS, &raw const epoll),
        ]
    };
    if results.contains(&-1) { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Plane<'_> {
    /// Sends what is owed and sleeps until something is ready; it may end early.
    fn sleep(&mut self) -> io::Result<()> {
        self.gather();
        if self.options.sleep == Sleep::EpollWait {
            self.exchange()?;
            if self.owed.is_empty() {
                self.found = Some(self.wait()?);
            }
            return Ok(());
        }
        if !self.is_armed {
            let epoll = Fd(self.set.as_raw_fd());
            let wake = match self.options.sleep {
                Sleep::EpollWaitRequest => {
                    let events = self.set.events();
                    opcode::EpollWait::new(epoll, events.as_mut_ptr().cast(), events.len() as u32).build()
                }
                _ => opcode::PollAdd::new(epoll, libc::POLLIN as u32).multi(true).build(),
            };
            self.requests.push(wake.user_data(kind::WAKE));
            self.is_armed = true;
        }
        self.enter(1)
    }

    /// epoll_wait(2), after looking without sleeping for as long as the options say.
    fn wait(&mut self) -> io::Result<usize> {
        if !self.options.spin.is_zero() {
            let began = Instant::now();
            while began.elapsed() < self.options.spin {
                let found = self.set.wait(Some(Duration::ZERO))?;
                if found > 0 {
                    return Ok(found);
                }
            }
        }
        self.set.wait(None)
    }

    fn look(&mut self) -> io::Result<()> {
        let found = match self.found.take() {
            Some(found) => found,
            // The kernel may still write to the events.
            None if self.options.sleep == Sleep::EpollWaitRequest && self.is_armed => 0,
            None => self.set.wait(Some(Duration::ZERO))?,
        };
        self.more = found == EVENTS_MAX;
        for index in 0..found {
            let (token, is_ending) = (self.set.token(index), self.set.is_ending(index));
            if token == LISTENER {
                self.accept()?;
                continue;
            }
            let socket = token as i32;
            let Some(connection) = self.connections.get(socket) else { continue };
            connection.is_ending |= is_ending;
            connection.is_full = false;
            self.ready.push_back(socket);
            self.owe(socket);
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Some(stream) = sockets::accept(&self.listener)? {
            let socket = stream.as_raw_fd();
            self.set.add_edge_triggered(&stream, socket as u64)?;
            if self.options.registered_files {
                self.queues.submitter.register_files_update(socket as u32, &[socket])?;
            }
            let connection = Connection {
                stream,
                owed: Vec::new(),
                sending: Vec::new(),
                is_listed: false,
                is_full: false,
                is_ending: false,
                sent: 0,
                is_over: false,
            };
            self.connections.insert(socket, connection);
        }
        Ok(())
    }

    /// Lists a socket that something is owed to.
    fn owe(&mut self, socket: i32) {
        let Some(connection) = self.connections.get(socket) else { return };
        if !connection.is_listed && !connection.owed.is_empty() {
            connection.is_listed = true;
            self.owed.push_back(socket);
        }
    }

    /// Makes the next round of what is owed and what is ready.
    fn gather(&mut self) {
        while self.sends.len() < SENDS_MAX
            && let Some(socket) = self.owed.pop_front()
        {
            let Some(connection) = self.connections.get(socket) else { continue };
            connection.is_listed = false;
            if connection.is_full || connection.is_over || connection.owed.is_empty() || !connection.sending.is_empty() {
                continue;
            }
            std::mem::swap(&mut connection.owed, &mut connection.sending);
            let request = send_request(self.options, socket, &connection.sending, self.sends.len());
            self.requests.push(request);
            if !self.options.zero_copy {
                // A send that went out whole has no completion.
                self.sends.push((socket, connection.sending.len() as i32));
            }
        }
        while self.receives.len() < RECEIVES_MAX
            && let Some(socket) = self.ready.pop_front()
        {
            let position = self.receives.len();
            let buffer = self.buffers[position * RECEIVE_BYTES..].as_mut_ptr();
            let receive = match self.options.registered_files {
                true => opcode::Recv::new(Fixed(socket as u32), buffer, RECEIVE_BYTES as u32),
                false => opcode::Recv::new(Fd(socket), buffer, RECEIVE_BYTES as u32),
            };
            self.requests.push(receive.flags(libc::MSG_DONTWAIT).build().user_data(kind::RECEIVE | position as u64));
            self.receives.push((socket, -libc::EAGAIN));
        }
    }

    /// Performs the round.
    fn exchange(&mut self) -> io::Result<()> {
        let is_plain = self.options.sleep == Sleep::EpollWait && !self.options.registered_files && self.requests.len() == 1;
        if !is_plain {
            return if self.requests.is_empty() { Ok(()) } else { self.enter(0) };
        }
        self.requests.clear();
        if let Some((socket, result)) = self.receives.first_mut()
            && let Some(connection) = self.connections.get(*socket)
        {
            *result = number(epoll::receive(&connection.stream, &mut self.buffers[..RECEIVE_BYTES]));
        }
        if let Some((socket, result)) = self.sends.first_mut()
            && let Some(connection) = self.connections.get(*socket)
        {
            *result = number(epoll::send(&connection.stream, &connection.sending));
        }
        self.settle();
        Ok(())
    }

    /// Hands the round to the kernel, waits for `wanted` completions, and takes all that there are.
    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        for request in self.requests.drain(..) {
            // SAFETY: the buffers are the plane's; the bytes to send are the connection's, which lives until they are sent.
            unsafe { self.queues.push(&request) }?;
        }
        self.queues.enter(wanted)?;
        while !self.queues.is_submitted() {
            self.queues.enter(0)?;
        }
        while let Some(completion) = self.queues.next() {
            let low = completion.user_data() as u32;
            match completion.user_data() & kind::MASK {
                kind::SEND => self.sends[low as usize].1 = completion.result(),
                kind::RECEIVE => self.receives[low as usize].1 = completion.result(),
                kind::ZERO_COPY_SEND => self.zero_copy_sent(low as i32, &completion),
                kind::WAKE => {
                    self.is_armed = cqueue::more(completion.flags());
                    if self.options.sleep == Sleep::EpollWaitRequest {
                        self.found = Some(usize::try_from(completion.result()).unwrap_or(0));
                    }
                }
                other => unreachable!("no request carries {other:#x}"),
            }
        }
        self.settle();
        Ok(())
    }

    /// Takes what became of the round.
    fn settle(&mut self) {
        for position in 0..self.sends.len() {
            let (socket, result) = self.sends[position];
            self.sent(socket, result);
        }
        self.sends.clear();
        for position in 0..self.receives.len() {
            let (socket, result) = self.receives[position];
            self.received(position, socket, result);
        }
        self.receives.clear();
    }

    /// A send is over: what did not go out is owed again, before what has come since.
    fn sent(&mut self, socket: i32, result: i32) {
        let Some(connection) = self.connections.get(socket) else { return };
        if result < 0 && result != -libc::EAGAIN {
            connection.sending.clear();
            return self.close(socket);
        }
        connection.sending.drain(..result.max(0) as usize);
        if !self.options.zero_copy {
            connection.is_full = !connection.sending.is_empty();
        }
        if !connection.sending.is_empty() {
            connection.sending.append(&mut connection.owed);
            std::mem::swap(&mut connection.owed, &mut connection.sending);
        }
        self.owe(socket);
    }

    /// The first completion of a zero-copy send says how much went out, the second that its bytes are free.
    fn zero_copy_sent(&mut self, socket: i32, completion: &cqueue::Entry) {
        let Some(connection) = self.connections.get(socket) else { return };
        if !cqueue::notif(completion.flags()) {
            connection.sent = completion.result();
            // Known now: the socket may have room again, and have said so, before the bytes are free.
            connection.is_full = usize::try_from(connection.sent) != Ok(connection.sending.len());
        }
        if !cqueue::more(completion.flags()) {
            let (result, is_over) = (connection.sent, connection.is_over);
            self.sent(socket, result);
            if is_over {
                self.close(socket);
            }
        }
    }

    fn received(&mut self, position: usize, socket: i32, result: i32) {
        let Some(connection) = self.connections.get(socket) else { return };
        match usize::try_from(result) {
            Ok(count @ 1..) if connection.owed.len() < OWED_BYTES_MAX => {
                connection.owed.extend_from_slice(&self.buffers[position * RECEIVE_BYTES..][..count]);
                if count == RECEIVE_BYTES || connection.is_ending {
                    self.ready.push_back(socket);
                }
                self.owe(socket);
            }
            Err(_) if result == -libc::EAGAIN => {}
            _ => self.close(socket),
        }
    }

    fn close(&mut self, socket: i32) {
        let Some(connection) = self.connections.get(socket) else { return };
        if self.options.zero_copy && !connection.sending.is_empty() {
            connection.is_over = true;
            return;
        }
        if self.options.registered_files {
            // It cannot fail: the slot is there.
            self.queues.submitter.register_files_update(socket as u32, &[-1]).ok();
        }
        self.connections.remove(socket);
    }
}

fn send_request(options: Options, socket: i32, bytes: &[u8], position: usize) -> squeue::Entry {
    let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
    let (start, len) = (bytes.as_ptr(), bytes.len() as u32);
    if options.zero_copy {
        let send = opcode::SendZc::new(Fd(socket), start, len);
        return send.flags(flags).build().user_data(kind::ZERO_COPY_SEND | socket as u64);
    }
    let send = match options.registered_files {
        true => opcode::Send::new(Fixed(socket as u32), start, len),
        false => opcode::Send::new(Fd(socket), start, len),
    };
    send.flags(flags).build().flags(squeue::Flags::SKIP_SUCCESS).user_data(kind::SEND | position as u64)
}

/// A system call's result as the ring gives it.
fn number(result: io::Result<usize>) -> i32 {
    match result {
        Ok(count) => count as i32,
        Err(error) if error.kind() == ErrorKind::WouldBlock => -libc::EAGAIN,
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}
