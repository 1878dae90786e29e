//! What a file table of its own would give each shard, and what it would cost: threads that accept and close connections with the
//! process's table or, after `unshare(CLONE_FILES)`, with one of their own; and a connection handed to another table (SCM_RIGHTS, in
//! batches), which a shard would then have to do for each client whose home is another core.
//!
//! Prints CPU per connection, kernel and user, of the thread that does it; the client's side is counted too, the same in every line.
//!
//! Usage: file_tables [--threads 2] [--connections 20000] [--open 4000] [--rounds 5]

use clap::Parser;
use nix::cmsg_space;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::time::{ClockId, clock_gettime};
use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::time::Duration;

/// Descriptors in one message; the kernel takes 253.
const BATCH: usize = 64;

#[derive(Parser, Clone)]
struct Options {
    /// Threads at work at the same time.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Connections that each thread makes, accepts and closes per round.
    #[arg(long, default_value_t = 20_000)]
    connections: usize,
    /// Connections that each thread keeps open meanwhile.
    #[arg(long, default_value_t = 4_000)]
    open: usize,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn main() {
    let options = Options::parse();
    println!("{} threads, {} connections each per round, {} open", options.threads, options.connections, options.open);
    for _ in 0..options.rounds {
        let shared = accept_and_close(&options, false);
        let own = accept_and_close(&options, true);
        let (give, take) = hand_over(&options);
        println!(
            "connect + accept + close: {:.2} us shared, {:.2} us own table ({:.2}); hand over: {:.2} us to give and close, {:.2} us to take",
            shared,
            own,
            own / shared,
            give,
            take
        );
    }
}

/// CPU per connection, in µs.
fn accept_and_close(options: &Options, own_table: bool) -> f64 {
    let barrier = Barrier::new(options.threads);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|_| {
                scope.spawn(|| {
                    if own_table {
                        unshare(CloneFlags::CLONE_FILES).expect("no privilege is needed for it");
                    }
                    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
                    let address = listener.local_addr().expect("it is bound");
                    let pair = || (TcpStream::connect(address).expect("it listens"), listener.accept().expect("one waits").0);
                    let open: Vec<_> = (0..options.open).map(|_| pair()).collect();
                    barrier.wait();
                    let started = cpu_time();
                    for _ in 0..options.connections {
                        let (client, server) = pair();
                        // The client resets, so that no port waits in TIME_WAIT.
                        reset_on_close(&client);
                        drop(client);
                        drop(server);
                    }
                    let took = cpu_time() - started;
                    barrier.wait();
                    drop(open);
                    took.as_secs_f64() * 1e6 / options.connections as f64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<f64>() / options.threads as f64
    })
}

fn reset_on_close(socket: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::Linger, &linger).expect("a TCP socket");
}

/// CPU per connection of the giver and of the taker, in µs.
fn hand_over(options: &Options) -> (f64, f64) {
    let (giver, taker) = UnixStream::pair().expect("two descriptors");
    let rounds = options.connections.div_ceil(BATCH);
    std::thread::scope(|scope| {
        let taking = scope.spawn(move || {
            let taker_fd = taker.as_raw_fd();
            let started = cpu_time();
            for _ in 0..rounds {
                let mut byte = [0];
                let mut parts = [IoSliceMut::new(&mut byte)];
                let mut space = cmsg_space!([RawFd; BATCH]);
                let message =
                    recvmsg::<()>(taker_fd, &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC).expect("a batch comes");
                for control in message.cmsgs().expect("it fits") {
                    let ControlMessageOwned::ScmRights(descriptors) = control else { continue };
                    assert_eq!(descriptors.len(), BATCH);
                    for descriptor in descriptors {
                        // SAFETY: the kernel has just made it for this thread.
                        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
                    }
                }
            }
            cpu_time() - started
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut giving = Duration::ZERO;
        for _ in 0..rounds {
            let batch: Vec<TcpListener> = (0..BATCH).map(|_| listener.try_clone().expect("a descriptor")).collect();
            let descriptors: Vec<RawFd> = batch.iter().map(AsRawFd::as_raw_fd).collect();
            let started = cpu_time();
            let rights = [ControlMessage::ScmRights(&descriptors)];
            sendmsg::<()>(giver.as_raw_fd(), &[IoSlice::new(&[0])], &rights, MsgFlags::empty(), None)
                .expect("the other end is open");
            drop(batch);
            giving += cpu_time() - started;
        }
        let count = (rounds * BATCH) as f64;
        let taking = taking.join().expect("no panic");
        (giving.as_secs_f64() * 1e6 / count, taking.as_secs_f64() * 1e6 / count)
    })
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every kernel has it").into()
}
