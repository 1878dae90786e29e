//! What requests that stay armed cost when they have to go, what closing a socket under one does, and how much memory that counts as
//! locked a ring takes.

use crate::receives::BUFFER_BYTES;
use crate::ring::{self, BufferRing, Queues};
use io_uring::types::{CancelBuilder, Fd};
use io_uring::{IoUring, opcode};
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const GROUP: u16 = 0;
/// Sockets that requests are armed on, each on the next one in turn: the file limit is lower than the requests to try.
const SOCKETS_MAX: usize = 4_000;
/// `user_data` of what does not stay armed.
const CANCEL: u64 = u64::MAX;
const COMPLETIONS: u32 = 1024;

/// A provided buffer that receives wait with; nothing is ever received into it.
fn provide(queues: &Queues, memory: &mut Vec<u8>) -> io::Result<BufferRing> {
    memory.resize(BUFFER_BYTES, 0);
    let mut buffers = BufferRing::register(&queues.submitter, GROUP, 1)?;
    // SAFETY: nobody touches the memory, which its owner keeps as long as the ring.
    unsafe { buffers.add(memory.as_ptr(), BUFFER_BYTES, 0) };
    Ok(buffers)
}

fn arm(queues: &mut Queues, socket: i32, user_data: u64) -> io::Result<()> {
    let receive = opcode::RecvMulti::new(Fd(socket), GROUP).build().user_data(user_data);
    // SAFETY: it points to nothing.
    unsafe { queues.push(&receive) }
}

/// Cancels a request and waits until it and its cancellation are complete.
fn cancel(queues: &mut Queues, builder: CancelBuilder) -> io::Result<Duration> {
    let request = opcode::AsyncCancel2::new(builder).build().user_data(CANCEL);
    let began = Instant::now();
    // SAFETY: it points to nothing.
    unsafe { queues.push(&request) }?;
    let (mut cancelled, mut told) = (false, false);
    while !(cancelled && told) {
        queues.enter(1)?;
        while let Some(completion) = queues.next() {
            match (completion.user_data(), completion.result()) {
                (CANCEL, 0..) => told = true,
                (CANCEL, errno) => return Err(io::Error::from_raw_os_error(-errno)),
                _ => cancelled = true,
            }
        }
    }
    Ok(began.elapsed())
}

/// Arms so many receives and cancels some of them, one at a time. The kernel finds a request by its `user_data` in a hash table whose
/// size goes with that of the completion queue, so a small and a large one are tried.
pub fn cancels(armed: usize) -> io::Result<()> {
    corelane_bench::process::raise_file_limit()?;
    let pairs: Vec<(UnixStream, UnixStream)> =
        (0..armed.clamp(1, SOCKETS_MAX)).map(|_| UnixStream::pair()).collect::<io::Result<_>>()?;
    let socket = |index: usize| pairs[index % pairs.len()].0.as_raw_fd();
    for completions in [COMPLETIONS, 16 * COMPLETIONS] {
        let mut memory = Vec::new();
        let mut ring = ring::new(completions)?;
        let mut queues = Queues::of(&mut ring);
        let _buffers = provide(&queues, &mut memory)?;
        for index in 0..armed {
            arm(&mut queues, socket(index), index as u64)?;
        }
        queues.enter(0)?;
        if let Some(completion) = queues.next() {
            return Err(io::Error::other(format!("a receive that was to wait has ended with {}", completion.result())));
        }
        // Half of them by number; then there is still one on each socket of the other half.
        let half = armed / 2;
        let samples = half.min(500);
        let by_user_data = |sample: usize| CancelBuilder::user_data((sample * (half / samples)) as u64);
        let by_socket = |sample: usize| CancelBuilder::fd(Fd(socket(half + sample)));
        let ways: [(&str, &dyn Fn(usize) -> CancelBuilder); 2] = [("user_data", &by_user_data), ("socket", &by_socket)];
        for (name, way) in ways {
            let mut times: Vec<Duration> =
                (0..samples).map(|sample| cancel(&mut queues, way(sample))).collect::<io::Result<_>>()?;
            times.sort_unstable();
            let us = |index: usize| times[index].as_nanos() as f64 / 1e3;
            println!(
                "{armed} armed, room for {completions} completions, one cancelled by its {name}: {:.1} us (p99 {:.1})",
                us(samples / 2),
                us(samples * 99 / 100)
            );
        }
    }
    Ok(())
}

/// How long the peer waits for the end of a connection that was closed while a receive was armed on it.
pub fn close() -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_millis(500);
    let mut memory = Vec::new();
    let mut ring = ring::new(COMPLETIONS)?;
    let mut queues = Queues::of(&mut ring);
    let _buffers = provide(&queues, &mut memory)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let socket = listener.accept()?.0;
    arm(&mut queues, socket.as_raw_fd(), 0)?;
    queues.enter(0)?;
    drop(socket);
    client.set_read_timeout(Some(PATIENCE))?;
    let ended = |client: &mut TcpStream| client.read(&mut [0]).is_ok_and(|count| count == 0);
    let before = if ended(&mut client) { "a FIN" } else { "no FIN" };
    cancel(&mut queues, CancelBuilder::user_data(0))?;
    let after = if ended(&mut client) { "a FIN" } else { "no FIN" };
    println!(
        "closed with a receive armed: {before} within {} ms; after the receive was cancelled: {after}",
        PATIENCE.as_millis()
    );
    Ok(())
}

/// How much of the limit of locked memory the broker's rings take, and registered buffers.
pub fn locked_memory() -> io::Result<()> {
    const TRIES: usize = 4_000;
    const REGISTERED_BYTES: usize = 256 << 10;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit, which lives through the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    let limit_kib = limit.rlim_cur >> 10;
    let say = |what: &str, fitting: usize| match fitting {
        TRIES => println!("{what}: {TRIES} and more; the limit of {limit_kib} KiB is not applied to them, or not to this user"),
        _ => println!("{what}: {fitting} within the limit of {limit_kib} KiB"),
    };
    // Who is in the way of the second count is gone only some time after it was dropped, so the smaller rings come first.
    let buffer = vec![0u8; REGISTERED_BYTES];
    let registered = libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: REGISTERED_BYTES };
    let mut rings: Vec<IoUring> = Vec::new();
    let what = format!("rings of one request with {} KiB of registered buffers", REGISTERED_BYTES >> 10);
    say(
        &what,
        count(TRIES, || {
            let ring = IoUring::new(1)?;
            // SAFETY: the buffer outlives the rings.
            unsafe { ring.submitter().register_buffers(&[registered]) }?;
            rings.push(ring);
            Ok(())
        })?,
    );
    rings.clear();
    std::thread::sleep(Duration::from_secs(1));
    say(
        "rings as a shard has one",
        count(TRIES, || {
            rings.push(ring::build(COMPLETIONS)?);
            Ok(())
        })?,
    );
    Ok(())
}

/// How often something can be done until the kernel says that there is no memory for it.
fn count(tries: usize, mut once: impl FnMut() -> io::Result<()>) -> io::Result<usize> {
    for done in 0..tries {
        match once() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => return Ok(done),
            Err(error) => return Err(error),
        }
    }
    Ok(tries)
}
