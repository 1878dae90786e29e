//! Corelane's plane and its variants: epoll says what is ready; the sends that the last turn owes and the receives of this one share one
//! `io_uring_enter`. Nothing of it is in flight between two turns, but for zero-copy sends.

use crate::sockets::{Connections, EdgeSet, is_idle};
use corelane_bench::{epoll, process};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Sleep {
    #[default]
    Epoll,
    /// A multishot poll of the epoll descriptor ends the enter.
    Ring,
    /// `epoll_wait` is a request of the enter.
    EpollWait,
}

#[derive(Clone, Copy, Default)]
pub struct Options {
    pub sleep: Sleep,
    /// Files, and the ring itself, by their numbers in tables of the ring.
    pub registered: bool,
    pub zero_copy: bool,
}

const BATCH: usize = 64;
const BYTES: usize = 16 << 10;
/// Buffers of what is owed; with zero-copy sends the kernel keeps some for a while.
const OUTBOXES: usize = 4096;

const SEND: u64 = 1 << 56;
const RECEIVE: u64 = 2 << 56;
const POLL: u64 = 3 << 56;
const WAITED: u64 = 4 << 56;
const KIND: u64 = 0xFF << 56;

/// What a connection is owed: the bytes of a buffer.
struct Owed {
    socket: RawFd,
    outbox: usize,
    len: usize,
}

struct Turn {
    set: EdgeSet,
    connections: Connections,
    received: Vec<u8>,
    outboxes: Vec<u8>,
    free: Vec<usize>,
    owed: Vec<Owed>,
}

impl Turn {
    /// What came of a receive: bytes, or a negative errno. `false`: the peer is gone.
    fn on_received(&mut self, index: usize, socket: RawFd, result: i32) -> io::Result<bool> {
        if result <= 0 {
            return Ok(result < 0 && is_idle(-result));
        }
        let Some(outbox) = self.free.pop() else { return Err(io::Error::other("no outbox is free")) };
        let len = result as usize;
        // Copied, as a broker writes anew what it passes on.
        self.outboxes[outbox * BYTES..][..len].copy_from_slice(&self.received[index * BYTES..][..len]);
        self.owed.push(Owed { socket, outbox, len });
        if len == BYTES {
            // There may be more, and the edge has passed.
            self.set.add_again(socket)?;
        }
        Ok(true)
    }

    /// One thing alone is cheaper as the plain call.
    fn send_alone(&mut self) {
        let Some(Owed { socket, outbox, len }) = self.owed.pop() else { return };
        // SAFETY: the socket is open: what it is owed came from it in the turn before.
        let descriptor = unsafe { BorrowedFd::borrow_raw(socket) };
        if !epoll::send(&descriptor, &self.outboxes[outbox * BYTES..][..len]).is_ok_and(|sent| sent == len) {
            self.connections.close(socket);
        }
        self.free.push(outbox);
    }

    fn receive_alone(&mut self, socket: RawFd) -> io::Result<()> {
        // SAFETY: an event is of a socket that is open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(socket) };
        let result = match epoll::receive(&descriptor, &mut self.received[..BYTES]) {
            Ok(count) => count as i32,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        if !self.on_received(0, socket, result)? {
            self.connections.close(socket);
        }
        Ok(())
    }
}

pub fn run(listener: &TcpListener, options: Options) -> io::Result<()> {
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_submit_all().setup_cqsize(8192).build(2048)?;
    let (mut submitter, mut submission, mut completion) = ring.split();
    if options.registered {
        // The kernel makes no larger table than this.
        let files = process::raise_file_limit()?.min(1 << 20);
        submitter.register_files_sparse(files as u32)?;
        submitter.register_ring_fd()?;
    }
    let set = EdgeSet::new(BATCH)?;
    set.add(listener.as_raw_fd())?;
    let set_descriptor = types::Fd(set.as_raw_fd());
    let poll = opcode::PollAdd::new(set_descriptor, libc::POLLIN as u32).multi(true).build().user_data(POLL);
    let mut turn = Turn {
        set,
        connections: Connections::default(),
        received: vec![0; BATCH * BYTES],
        outboxes: vec![0; OUTBOXES * BYTES],
        free: (0..OUTBOXES).collect(),
        owed: Vec::new(),
    };
    let mut requests: Vec<squeue::Entry> = Vec::new();
    // Of a zero-copy send the notification comes as work of this thread, which an enter has to ask for.
    let asks = if options.zero_copy { EnterFlags::GETEVENTS.bits() } else { 0 };
    let plain = !options.zero_copy && !options.registered;
    let (mut armed, mut look, mut waited) = (false, false, None);
    loop {
        if turn.owed.len() == 1 && options.sleep == Sleep::Epoll && plain {
            turn.send_alone();
        }
        let ready = match options.sleep {
            Sleep::Epoll => turn.set.wait(turn.owed.is_empty())?,
            Sleep::Ring if look => turn.set.wait(false)?,
            Sleep::Ring => 0,
            Sleep::EpollWait => waited.take().unwrap_or(0),
        };
        look = options.sleep == Sleep::Ring && ready == BATCH;
        let sleeps = options.sleep != Sleep::Epoll && ready == 0;
        requests.clear();
        requests.extend(turn.owed.iter().map(|owed| send(owed, &turn.outboxes, options)));
        if sleeps && !armed {
            requests.push(match options.sleep {
                Sleep::EpollWait => {
                    let events = turn.set.events.as_mut_ptr().cast();
                    opcode::EpollWait::new(set_descriptor, events, BATCH as u32).build().user_data(WAITED)
                }
                _ => poll.clone(),
            });
            armed = true;
        }
        let mut accepts = false;
        let owed = requests.len();
        for (index, event) in turn.set.events[..ready].iter().enumerate() {
            let socket = event.u64 as RawFd;
            if socket == listener.as_raw_fd() {
                accepts = true;
                continue;
            }
            requests.push(receive(socket, index, &mut turn.received, options));
        }
        if accepts {
            turn.connections.accept(listener, |socket| {
                if options.registered {
                    submitter.register_files_update(socket as u32, &[socket])?;
                }
                turn.set.add(socket)
            })?;
        }
        if owed == 0 && requests.len() == 1 && plain && !sleeps {
            let socket = requests[0].get_user_data() as u32 as RawFd;
            turn.receive_alone(socket)?;
            continue;
        }
        // SAFETY: buffers and events live as long as the loop, and nobody touches those of a request before its end.
        unsafe { submission.push_multiple(&requests) }.map_err(io::Error::other)?;
        submission.sync();
        if sleeps {
            interrupted(submitter.submit_and_wait(1))?;
        } else if !requests.is_empty() {
            // SAFETY: no argument goes with it.
            interrupted(unsafe { submitter.enter::<libc::sigset_t>(requests.len() as u32, 0, asks, None) })?;
        }
        if options.zero_copy {
            turn.owed.clear();
        } else {
            turn.free.extend(turn.owed.drain(..).map(|owed| owed.outbox));
        }
        completion.sync();
        for completed in &mut completion {
            let (data, result) = (completed.user_data(), completed.result());
            let (socket, number) = (data as u32 as RawFd, (data >> 32 & 0xFF_FFFF) as usize);
            let goes_on = match data & KIND {
                // A full send says nothing; of a zero-copy send there is a result, and then the end of its buffer.
                SEND if options.zero_copy => {
                    if cqueue::notif(completed.flags()) || !cqueue::more(completed.flags()) {
                        turn.free.push(number);
                    }
                    result >= 0
                }
                SEND => false,
                POLL => {
                    look = true;
                    armed = cqueue::more(completed.flags());
                    true
                }
                WAITED if result < 0 => return Err(io::Error::from_raw_os_error(-result)),
                WAITED => {
                    waited = Some(result as usize);
                    armed = false;
                    true
                }
                _ => turn.on_received(number, socket, result)?,
            };
            if !goes_on {
                if options.registered {
                    submitter.register_files_update(socket as u32, &[-1])?;
                }
                turn.connections.close(socket);
            }
        }
    }
}

fn receive(socket: RawFd, index: usize, received: &mut [u8], options: Options) -> squeue::Entry {
    let buffer = received[index * BYTES..].as_mut_ptr();
    let request = if options.registered {
        opcode::Recv::new(types::Fixed(socket as u32), buffer, BYTES as u32).flags(libc::MSG_DONTWAIT).build()
    } else {
        opcode::Recv::new(types::Fd(socket), buffer, BYTES as u32).flags(libc::MSG_DONTWAIT).build()
    };
    request.user_data(RECEIVE | (index as u64) << 32 | socket as u64)
}

fn send(owed: &Owed, outboxes: &[u8], options: Options) -> squeue::Entry {
    let Owed { socket, outbox, len } = *owed;
    let bytes = outboxes[outbox * BYTES..].as_ptr();
    let data = SEND | (outbox as u64) << 32 | socket as u64;
    let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
    if options.zero_copy {
        return opcode::SendZc::new(types::Fd(socket), bytes, len as u32).flags(flags).build().user_data(data);
    }
    let request = if options.registered {
        opcode::Send::new(types::Fixed(socket as u32), bytes, len as u32).flags(flags).build()
    } else {
        opcode::Send::new(types::Fd(socket), bytes, len as u32).flags(flags).build()
    };
    request.flags(squeue::Flags::SKIP_SUCCESS).user_data(data)
}

fn interrupted(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        result => result.map(drop),
    }
}
