//! What a network plane can be made of, each as an echo server that does nothing else, so that what differs between two of them is the
//! plane. `scripts/planes.sh` measures them against the epoll floor; `io_uring_notes.md` says what came of it.
//!
//! As in the floor, a peer that does not read its echo is cut off: these are planes, not servers.

mod armed;
mod batched;
mod epoll;
mod sockets;
mod streams;

use clap::{Parser, ValueEnum};
use corelane_bench::{epoll::lengthen_backlog, process};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Echo servers, each on another network plane")]
struct Arguments {
    /// The plane
    #[arg(long, value_enum, required_unless_present_any = ["list", "cancel"])]
    plane: Option<Plane>,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Print the names of all planes
    #[arg(long)]
    list: bool,
    /// Arm so many multishot polls in one ring and print what it costs to cancel one of them
    #[arg(long, value_name = "N")]
    cancel: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plane {
    /// Edge-triggered epoll, recv(2), send(2)
    EpollEdge,
    /// The same; before it sleeps it looks for 50 µs
    EpollSpin,
    /// The same as `epoll-edge`, the sockets with SO_BUSY_POLL of 50 µs
    EpollBusyPoll,
    /// Corelane's: readiness from epoll, receives and sends of a batch in one enter, sleep in epoll_wait
    Batched,
    /// `batched`, asleep in the ring with a multishot poll of the epoll descriptor
    BatchedRingSleep,
    /// `batched`, asleep in the ring with epoll_wait as a request (6.15)
    BatchedEpollWait,
    /// `batched` with registered files and a registered ring descriptor
    BatchedRegistered,
    /// `batched` with zero-copy sends
    BatchedZeroCopy,
    /// Multishot receives into provided buffers, sends from them
    MultishotReceive,
    /// Multishot polls, recv(2), sends in the enter that waits
    MultishotPoll,
    /// `multishot-receive`, what a connection is owed sent as one bundle of buffers (6.10)
    SendBundle,
    /// glommio's TcpStream, a task for each connection
    GlommioStreams,
}

/// The kernel has not what the plane needs.
const UNSUPPORTED: u8 = 3;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) => {
            eprintln!("planes: this kernel does not have it: {error}");
            ExitCode::from(UNSUPPORTED)
        }
        Err(error) => {
            eprintln!("planes: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    if arguments.list {
        for plane in Plane::value_variants() {
            println!("{}", plane.to_possible_value().expect("none is hidden").get_name());
        }
        return Ok(());
    }
    if let Some(armed) = arguments.cancel {
        return armed::cancel(armed);
    }
    process::raise_file_limit()?;
    let Some(plane) = arguments.plane else { return Ok(()) };
    if plane == Plane::GlommioStreams {
        return streams::run(arguments.listen);
    }
    let listener = TcpListener::bind(arguments.listen)?;
    listener.set_nonblocking(true)?;
    lengthen_backlog(&listener, 65_535)?;
    println!("listening on {}", listener.local_addr()?);
    let some_us = Duration::from_micros(50);
    let batched = batched::Options::default();
    match plane {
        Plane::EpollEdge => epoll::run(&listener, None, None),
        Plane::EpollSpin => epoll::run(&listener, Some(some_us), None),
        Plane::EpollBusyPoll => epoll::run(&listener, None, Some(some_us)),
        Plane::Batched => batched::run(&listener, batched),
        Plane::BatchedRingSleep => batched::run(&listener, batched::Options { sleep: batched::Sleep::Ring, ..batched }),
        Plane::BatchedEpollWait => batched::run(&listener, batched::Options { sleep: batched::Sleep::EpollWait, ..batched }),
        Plane::BatchedRegistered => batched::run(&listener, batched::Options { registered: true, ..batched }),
        Plane::BatchedZeroCopy => batched::run(&listener, batched::Options { zero_copy: true, ..batched }),
        Plane::MultishotReceive => armed::receive(&listener, false),
        Plane::MultishotPoll => armed::poll_plane(&listener),
        Plane::SendBundle => armed::receive(&listener, true),
        Plane::GlommioStreams => unreachable!("it has a listener of its own"),
    }
}
