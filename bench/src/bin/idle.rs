//! What an idle connection costs: clients with one distinct subscription each connect in steps; after each step the broker's
//! resident memory and the kernel's slab caches are read, and at the end the broker's CPU while nobody says anything.
//!
//! Both ends of every connection are on this host, so what a socket has at either end is halved. The generator keeps its sockets out
//! of any epoll set, so what belongs to epoll is the broker's alone. Caches that have nothing to do with a socket are left out: other
//! processes move them. The kernel merges caches of equal size, and whoever reads /proc/PID/fd makes dentries, so of the objects that
//! a connection's end has only one of, only one is counted.

use clap::Parser;
use corelane_bench::mqtt::{Client, Connect, Version};
use corelane_bench::process::{self, SlabCache};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Idle connections: memory and CPU of a broker per connection")]
struct Arguments {
    #[arg(long)]
    address: SocketAddr,
    /// The broker's process id.
    #[arg(long)]
    pid: u32,
    /// Connections at which memory is read. The slope is from the first to the last.
    #[arg(long, value_delimiter = ',', default_value = "5000,10000,15000")]
    steps: Vec<usize>,
    /// Shards of the broker, for the bound of its base memory.
    #[arg(long, default_value_t = 2)]
    shards: u64,
    /// Seconds over which the idle broker's CPU is read.
    #[arg(long, default_value_t = 30)]
    idle_s: u64,
    /// An echo server: nothing is said on the connections.
    #[arg(long)]
    raw: bool,
    /// Most resident bytes per connection.
    #[arg(long, default_value_t = 1000.0)]
    slope_max: f64,
}

/// What a socket has one of at either end.
const AT_EITHER_END: &[&str] = &["TCP", "sock_inode_cache", "filp", "dentry", "lsm_inode_cache", "lsm_file_cache"];
/// What a socket in an epoll set has one of; only the broker's are in one.
const IN_EPOLL: &[&str] = &["eventpoll_epi", "eventpoll_pwq", "ep_head"];
/// What there may be any number of, by the beginning of its name: buffers, timers and whatever else is allocated by size.
const BY_SIZE: &[&str] = &["kmalloc-", "skbuff_", "io_kiocb"];

struct Reading {
    connections: usize,
    resident: u64,
    slab: u64,
    caches: Vec<SlabCache>,
}

impl Reading {
    fn take(pid: u32, connections: usize) -> io::Result<Self> {
        // The kernel frees lazily, and so may the broker's allocator.
        std::thread::sleep(Duration::from_secs(2));
        let caches = process::slab_caches().unwrap_or_default();
        let reading = Self { connections, resident: process::resident_bytes(pid)?, slab: process::slab_bytes()?, caches };
        println!("{connections:>6} connections: {:>8.1} kB resident", reading.resident as f64 / 1024.0);
        Ok(reading)
    }
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    let last = *arguments.steps.last().expect("clap gives at least the default");
    let limit = process::raise_file_limit()?;
    if limit < last as u64 + 64 {
        return Err(io::Error::other(format!("{last} connections need {} open files; the hard limit is {limit}", last + 64)));
    }

    let base = Reading::take(arguments.pid, 0)?;
    let mut connections = Vec::with_capacity(last);
    let mut readings = Vec::new();
    for &step in &arguments.steps {
        let (begin, before) = (Instant::now(), connections.len());
        while connections.len() < step {
            connections.push(if arguments.raw {
                TcpStream::connect(arguments.address)?
            } else {
                connect(arguments.address, connections.len())?
            });
        }
        println!("       {} more in {:.1} s", step - before, begin.elapsed().as_secs_f64());
        readings.push(Reading::take(arguments.pid, step)?);
    }
    let (first, last) = (&readings[0], &readings[readings.len() - 1]);

    let between = (last.connections - first.connections).max(1) as f64;
    let slope = (last.resident as f64 - first.resident as f64) / between;
    let slope_holds = slope <= arguments.slope_max;
    println!(
        "slope {} to {}: {slope:.0} bytes per connection, at most {:.0}: {}",
        first.connections,
        last.connections,
        arguments.slope_max,
        verdict(slope_holds)
    );
    let base_max = (32 + 16 * arguments.shards) << 20;
    let base_holds = base.resident <= base_max;
    println!(
        "base: {:.1} MB resident, at most {} MB (32 MB + 16 MB per shard): {}",
        base.resident as f64 / (1 << 20) as f64,
        base_max >> 20,
        verdict(base_holds)
    );
    print_kernel(first, last, between);

    let idle = Duration::from_secs(arguments.idle_s);
    let (before, before_ticks, begin) = (process::cpu_ns(arguments.pid)?, process::cpu_ticks_ns(arguments.pid)?, Instant::now());
    std::thread::sleep(idle);
    let seconds = begin.elapsed().as_secs_f64();
    let used_ns = process::cpu_ns(arguments.pid)? - before;
    let used_ticks_ns = process::cpu_ticks_ns(arguments.pid)? - before_ticks;
    let percent = used_ns as f64 / 1e7 / seconds;
    let idle_holds = percent < 1.0;
    println!(
        "CPU while idle for {seconds:.0} s: {:.1} ms ({} ms in ticks), {percent:.3} % of a core, less than 1 %: {}",
        used_ns as f64 / 1e6,
        used_ticks_ns / 1_000_000,
        verdict(idle_holds)
    );
    let alive = check_alive(&connections)?;
    println!("{alive} of {} connections still open", connections.len());
    let holds = slope_holds && base_holds && idle_holds && alive == connections.len();
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn connect(address: SocketAddr, index: usize) -> io::Result<TcpStream> {
    let id = format!("idle-{index:06}");
    // The longest keep-alive, so that no timer of the run's length is due.
    let connect = Connect { keep_alive_s: u16::MAX, ..Connect::new(Version::V311, &id) };
    let (mut client, _) = Client::connect(address, &connect, Duration::from_secs(10))?;
    client.subscribe(&format!("vehicles/{index:06}/commands"), 1)?;
    Ok(client.stream)
}

/// How many have neither been closed nor been sent anything.
fn check_alive(connections: &[TcpStream]) -> io::Result<usize> {
    let mut alive = 0;
    for stream in connections {
        stream.set_nonblocking(true)?;
        alive += usize::from(stream.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    }
    Ok(alive)
}

fn print_kernel(first: &Reading, last: &Reading, connections: f64) {
    let whole = (last.slab as f64 - first.slab as f64) / connections;
    println!("kernel slab: {whole:.0} bytes per connection, of both ends and of anything else on this host, from /proc/meminfo");
    if last.caches.is_empty() {
        println!("       /proc/slabinfo is not readable; half of that, {:.0} bytes, is about the broker's", whole / 2.0);
        return;
    }
    let (mut broker, mut beside) = (0.0, 0.0);
    for cache in &last.caches {
        let Some(before) = first.caches.iter().find(|before| before.name == cache.name) else { continue };
        let objects = (cache.objects as f64 - before.objects as f64) / connections;
        if objects < 0.02 {
            continue;
        }
        let name = cache.name.as_str();
        let counted = match () {
            () if AT_EITHER_END.contains(&name) => (objects / 2.0).min(1.0),
            () if IN_EPOLL.contains(&name) => objects.min(1.0),
            () if BY_SIZE.iter().any(|prefix| name.starts_with(prefix)) => objects / 2.0,
            () => continue,
        };
        let bytes = counted * cache.object_bytes as f64;
        broker += bytes;
        if !AT_EITHER_END.contains(&name) {
            let each = if IN_EPOLL.contains(&name) { counted } else { objects };
            beside += (each + 0.1).floor() * cache.object_bytes as f64;
        }
        println!(
            "       {name:<20} {objects:>5.2} objects, {counted:.2} of them counted, of {} bytes: {bytes:.0}",
            cache.object_bytes
        );
    }
    println!("kernel slab of the broker's end: {broker:.0} bytes per connection, from the objects in /proc/slabinfo");
    println!("       {beside:.0} beside the socket itself, of whatever there is at least one for each connection");
}

fn verdict(holds: bool) -> &'static str {
    if holds { "PASS" } else { "FAIL" }
}
