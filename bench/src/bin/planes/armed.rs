//! Planes that keep a request armed for each connection: multishot receives into provided buffers, and multishot polls.

use crate::sockets::{Connections, is_idle, page};
use corelane_bench::epoll;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

const BUFFERS: u16 = 4096;
const BYTES: usize = 2048;
/// Buffers that one connection may be owed in one bundle.
const BUNDLE: u16 = 64;

const LISTENER: u64 = 1 << 56;
const SOCKET: u64 = 2 << 56;
const SENT: u64 = 3 << 56;
const KIND: u64 = 0xFF << 56;

const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

fn build() -> io::Result<IoUring> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_submit_all().setup_cqsize(16_384).build(4096)
}

/// A ring of provided buffers; the kernel takes them from one end.
struct Provided {
    entries: *mut types::BufRingEntry,
    mask: u16,
    tail: u16,
}

impl Provided {
    fn register(ring: &IoUring, entries: u16, group: u16) -> io::Result<Self> {
        let page = page(usize::from(entries) * size_of::<types::BufRingEntry>())?.cast::<types::BufRingEntry>();
        // SAFETY: the page is never unmapped.
        unsafe { ring.submitter().register_buf_ring_with_flags(page as u64, entries, group, 0) }?;
        Ok(Self { entries: page, mask: entries - 1, tail: 0 })
    }

    fn add(&mut self, id: u16, buffer: *const u8, len: usize) {
        // SAFETY: the index is below the number of entries, and the kernel reads entries below the tail only.
        unsafe {
            let entry = &mut *self.entries.add(usize::from(self.tail & self.mask));
            entry.set_addr(buffer as u64);
            entry.set_len(len as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = types::BufRingEntry::tail(self.entries).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}

/// `bundles`: what a connection is owed in a turn is one send of as many buffers as there are; else each buffer is a send.
pub fn receive(listener: &TcpListener, bundles: bool) -> io::Result<()> {
    let mut ring = build()?;
    if bundles && !ring.params().is_feature_recvsend_bundle() {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let memory = vec![0u8; usize::from(BUFFERS) * BYTES].leak();
    let buffer = |id: u16| memory[usize::from(id) * BYTES..].as_ptr();
    let mut provided = Provided::register(&ring, BUFFERS, 0)?;
    (0..BUFFERS).for_each(|id| provided.add(id, buffer(id), BYTES));
    let mut connections = Connections::default();
    let mut bundled: HashMap<RawFd, Provided> = HashMap::new();
    let mut requests = vec![poll(listener.as_raw_fd(), LISTENER)];
    let (mut used, mut owing): (Vec<u16>, Vec<RawFd>) = (Vec::new(), Vec::new());
    let mut completed: Vec<cqueue::Entry> = Vec::new();
    loop {
        requests.extend(owing.drain(..).map(|socket| {
            let send = opcode::SendBundle::new(types::Fd(socket), socket as u16).flags(SEND_FLAGS).build();
            send.flags(squeue::Flags::BUFFER_SELECT | squeue::Flags::SKIP_SUCCESS).user_data(SENT | socket as u64)
        }));
        submit_and_wait(&mut ring, &mut requests)?;
        // Sends do not wait, so the buffers of those of this enter are free.
        used.drain(..).for_each(|id| provided.add(id, buffer(id), BYTES));
        completed.extend(ring.completion());
        for entry in completed.drain(..) {
            let (data, result) = (entry.user_data(), entry.result());
            let socket = data as u32 as RawFd;
            match data & KIND {
                LISTENER => connections.accept(listener, |socket| {
                    if bundles {
                        bundled.insert(socket, Provided::register(&ring, BUNDLE, socket as u16)?);
                    }
                    requests.push(receive_all(socket));
                    Ok(())
                })?,
                // A full send says nothing.
                SENT => connections.close(socket),
                _ if result > 0 => {
                    let id = cqueue::buffer_select(entry.flags()).ok_or_else(|| io::Error::other("bytes without a buffer"))?;
                    used.push(id);
                    if let Some(bundle) = bundled.get_mut(&socket) {
                        bundle.add(id, buffer(id), result as usize);
                        if !owing.contains(&socket) {
                            owing.push(socket);
                        }
                    } else {
                        let send = opcode::Send::new(types::Fd(socket), buffer(id), result as u32).flags(SEND_FLAGS).build();
                        requests.push(send.flags(squeue::Flags::SKIP_SUCCESS).user_data(SENT | socket as u64));
                    }
                    if !cqueue::more(entry.flags()) {
                        requests.push(receive_all(socket));
                    }
                }
                _ if result == -libc::ENOBUFS => requests.push(receive_all(socket)),
                _ => {
                    if bundled.remove(&socket).is_some() {
                        owing.retain(|other| *other != socket);
                        ring.submitter().unregister_buf_ring(socket as u16)?;
                    }
                    connections.close(socket);
                }
            }
        }
    }
}

fn receive_all(socket: RawFd) -> squeue::Entry {
    opcode::RecvMulti::new(types::Fd(socket), 0).build().user_data(SOCKET | socket as u64)
}

fn poll(descriptor: RawFd, kind: u64) -> squeue::Entry {
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    opcode::PollAdd::new(types::Fd(descriptor), events).multi(true).build().user_data(kind | descriptor as u64)
}

/// Multishot polls say what is ready; recv(2); sends go with the enter that waits.
pub fn poll_plane(listener: &TcpListener) -> io::Result<()> {
    let mut ring = build()?;
    let mut connections = Connections::default();
    let mut requests = vec![poll(listener.as_raw_fd(), LISTENER)];
    let mut outboxes: Vec<Vec<u8>> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut completed: Vec<cqueue::Entry> = Vec::new();
    loop {
        submit_and_wait(&mut ring, &mut requests)?;
        let mut free = std::mem::take(&mut outboxes);
        completed.extend(ring.completion());
        for entry in completed.drain(..) {
            let (data, result) = (entry.user_data(), entry.result());
            let descriptor = data as u32 as RawFd;
            match data & KIND {
                LISTENER => connections.accept(listener, |socket| {
                    requests.push(poll(socket, SOCKET));
                    Ok(())
                })?,
                SENT => connections.close(descriptor),
                _ if result < 0 => {}
                _ => {
                    let goes_on = loop {
                        // SAFETY: its poll ends with its socket, and nothing is read of it then.
                        let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
                        match epoll::receive(&socket, &mut buffer) {
                            Ok(0) => break false,
                            Ok(count) => {
                                let mut outbox = free.pop().unwrap_or_default();
                                outbox.clear();
                                outbox.extend_from_slice(&buffer[..count]);
                                let send = opcode::Send::new(types::Fd(descriptor), outbox.as_ptr(), count as u32);
                                let send = send.flags(SEND_FLAGS).build().flags(squeue::Flags::SKIP_SUCCESS);
                                requests.push(send.user_data(SENT | descriptor as u64));
                                outboxes.push(outbox);
                                if count < buffer.len() {
                                    break true;
                                }
                            }
                            Err(error) => break error.raw_os_error().is_some_and(is_idle),
                        }
                    };
                    if !goes_on {
                        // An armed poll keeps the socket open in the kernel.
                        requests.push(opcode::PollRemove::new(SOCKET | descriptor as u64).build().user_data(data));
                        connections.close(descriptor);
                    } else if !cqueue::more(entry.flags()) {
                        requests.push(poll(descriptor, SOCKET));
                    }
                }
            }
        }
    }
}

fn submit_and_wait(ring: &mut IoUring, requests: &mut Vec<squeue::Entry>) -> io::Result<()> {
    for request in requests.drain(..) {
        // SAFETY: what a request points to stays until the enter that takes it has returned, or as long as the process runs.
        while unsafe { ring.submission().push(&request) }.is_err() {
            ring.submit()?;
        }
    }
    match ring.submit_and_wait(1) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        result => result.map(drop),
    }
}

/// Arms polls that never fire and cancels some of them one by one.
pub fn cancel(armed: u32) -> io::Result<()> {
    const CANCELS: u32 = 1000;
    let mut ring = build()?;
    // SAFETY: a new descriptor.
    let quiet = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    for number in 0..armed {
        let poll = opcode::PollAdd::new(types::Fd(quiet.as_raw_fd()), libc::POLLIN as u32).multi(true).build();
        // SAFETY: a poll points to nothing.
        while unsafe { ring.submission().push(&poll.clone().user_data(u64::from(number))) }.is_err() {
            ring.submit()?;
        }
    }
    ring.submit()?;
    let cancels = CANCELS.min(armed);
    let begun = Instant::now();
    for number in 0..cancels {
        let victim = u64::from(number) * u64::from(armed / cancels);
        // SAFETY: a cancel points to nothing.
        unsafe { ring.submission().push(&opcode::AsyncCancel::new(victim).build().user_data(u64::MAX)) }
            .map_err(io::Error::other)?;
        // Its own completion, and that of what it cancelled.
        ring.submit_and_wait(2)?;
        let found = ring.completion().filter(|entry| entry.user_data() == u64::MAX && entry.result() >= 0).count();
        if found != 1 {
            return Err(io::Error::other("a cancel did not find its request"));
        }
    }
    let each_us = begun.elapsed().as_secs_f64() * 1e6 / f64::from(cancels);
    println!("armed={armed} cancels={cancels} us_each={each_us:.2}");
    Ok(())
}
