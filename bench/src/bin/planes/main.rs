//! Echo servers, one for each way to do a shard's network I/O that was weighed against the broker's, and what the pitfalls of io_uring
//! cost. `scripts/planes.sh` measures them; `io_uring_notes.md` has the results.
//!
//! | module | what |
//! |---|---|
//! | [`epoll`] | epoll, recv(2), send(2) |
//! | [`batch`] | epoll for readiness, receives and sends in batches through the ring: the broker's plane and its options |
//! | [`receives`] | multishot receives into provided buffers, sent one by one or in bundles |
//! | [`polls`] | multishot polls |
//! | [`streams`] | glommio's streams |
//! | [`pitfalls`] | cancelling, closing, locked memory |
//! | [`ring`], [`sockets`] | what they share |
//!
//! Usage: planes --list | --plane NAME [--port P] | --cancel ARMED | --close | --locked-memory

mod batch;
mod epoll;
mod pitfalls;
mod polls;
mod receives;
mod ring;
mod sockets;
mod streams;

use batch::{Options, Sleep};
use clap::Parser;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::time::Duration;

/// The kernel cannot do it: the exit code that the broker has for this, too.
const UNSUPPORTED: u8 = 71;

#[derive(Parser)]
#[command(about = "An echo server on one of several network planes", group(clap::ArgGroup::new("what").required(true)))]
struct Arguments {
    /// Prints the planes' names and what they do.
    #[arg(long, group = "what")]
    list: bool,
    /// Serves on this plane. Exits with 71 if the kernel cannot do it.
    #[arg(long, group = "what", value_name = "NAME", value_parser = plane)]
    plane: Option<&'static Plane>,
    /// The port on 127.0.0.1; 0: any that is free.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// How long the plane `spin` looks for readiness before it sleeps.
    #[arg(long, default_value_t = 50)]
    spin_us: u64,
    /// Arms so many receives and prints what it takes to cancel one.
    #[arg(long, group = "what", value_name = "ARMED", value_parser = clap::value_parser!(u32).range(2..))]
    cancel: Option<u32>,
    /// Closes a socket on which a receive is armed and prints whether its peer sees the end.
    #[arg(long, group = "what")]
    close: bool,
    /// Prints how many rings the limit of locked memory allows; it does not hold for root.
    #[arg(long, group = "what")]
    locked_memory: bool,
}

struct Plane {
    name: &'static str,
    what: &'static str,
    serve: fn(&Arguments) -> io::Result<()>,
}

const PLANES: &[Plane] = &[
    Plane { name: "epoll", what: "edge-triggered epoll, recv(2), send(2)", serve: |arguments| epoll::serve(arguments.port) },
    Plane {
        name: "ring-batch",
        what: "the broker's: readiness from epoll, receives and sends in batches through the ring, sleeps in epoll_wait(2)",
        serve: |arguments| batch::serve(arguments.port, Options::BROKER),
    },
    Plane {
        name: "ring-sleep",
        what: "ring-batch that sleeps in the ring, in a multishot poll of the epoll fd",
        serve: |arguments| batch::serve(arguments.port, Options { sleep: Sleep::PollRequest, ..Options::BROKER }),
    },
    Plane {
        name: "epoll-wait",
        what: "ring-batch that sleeps in the ring, in IORING_OP_EPOLL_WAIT",
        serve: |arguments| batch::serve(arguments.port, Options { sleep: Sleep::EpollWaitRequest, ..Options::BROKER }),
    },
    Plane {
        name: "registered-files",
        what: "ring-batch with its sockets registered, and so every receive and send through the ring",
        serve: |arguments| batch::serve(arguments.port, Options { registered_files: true, ..Options::BROKER }),
    },
    Plane {
        name: "registered-ring",
        what: "ring-batch with the ring's own fd registered",
        serve: |arguments| batch::serve(arguments.port, Options { registered_ring: true, ..Options::BROKER }),
    },
    Plane {
        name: "send-zc",
        what: "ring-sleep with zero-copy sends (IORING_OP_SEND_ZC)",
        serve: |arguments| {
            batch::serve(arguments.port, Options { zero_copy: true, sleep: Sleep::PollRequest, ..Options::BROKER })
        },
    },
    Plane {
        name: "spin",
        what: "ring-batch that looks for readiness for --spin-us before it sleeps",
        serve: |arguments| {
            batch::serve(arguments.port, Options { spin: Duration::from_micros(arguments.spin_us), ..Options::BROKER })
        },
    },
    Plane {
        name: "busy-poll",
        what: "ring-batch with SO_BUSY_POLL and EPIOCSPARAMS",
        serve: |arguments| batch::serve(arguments.port, Options { busy_poll: true, ..Options::BROKER }),
    },
    Plane {
        name: "napi",
        what: "ring-sleep with the ring's own busy polling (IORING_REGISTER_NAPI)",
        serve: |arguments| batch::serve(arguments.port, Options { napi: true, sleep: Sleep::PollRequest, ..Options::BROKER }),
    },
    Plane {
        name: "multishot-recv",
        what: "a multishot receive armed per connection, one ring of provided buffers, sends as requests",
        serve: |arguments| receives::serve(arguments.port, false),
    },
    Plane {
        name: "send-bundle",
        what: "multishot-recv with bundles (IORING_RECVSEND_BUNDLE), which takes a ring of buffers per connection",
        serve: |arguments| receives::serve(arguments.port, true),
    },
    Plane {
        name: "multishot-poll",
        what: "a multishot poll armed per connection, recv(2), sends as requests",
        serve: |arguments| polls::serve(arguments.port),
    },
    Plane {
        name: "glommio",
        what: "glommio's TcpStream, a task per connection",
        serve: |arguments| streams::serve(arguments.port),
    },
];

fn plane(name: &str) -> Result<&'static Plane, String> {
    let names = || PLANES.iter().map(|plane| plane.name).collect::<Vec<_>>().join(", ");
    PLANES.iter().find(|plane| plane.name == name).ok_or_else(|| format!("there are {}", names()))
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("planes: {error}");
            if error.kind() == ErrorKind::Unsupported { ExitCode::from(UNSUPPORTED) } else { ExitCode::FAILURE }
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    if let Some(plane) = arguments.plane {
        corelane_bench::process::raise_file_limit()?;
        return (plane.serve)(arguments);
    }
    match arguments.cancel {
        Some(armed) => pitfalls::cancels(armed as usize),
        None if arguments.close => pitfalls::close(),
        None if arguments.locked_memory => pitfalls::locked_memory(),
        None => {
            PLANES.iter().for_each(|plane| println!("{:<16} {}", plane.name, plane.what));
            Ok(())
        }
    }
}
