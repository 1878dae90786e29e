//! Clients that come and go: every cycle connects, subscribes, publishes, receives and leaves, in every version and QoS, with clean
//! and persistent sessions, retained messages set and cleared, and wills. Whatever a cycle leaves behind is bounded (a pool of
//! persistent client ids, sessions that expire within seconds, a fixed set of retained topics), so a broker's memory has to level
//! off: the run fails if the end differs from the first minute's end by more than five percent.

use clap::Parser;
use corelane_bench::mqtt::{self, Client, Connect, Version, Will};
use corelane_bench::process;
use corelane_bench::random::Random;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Connect/subscribe/publish/disconnect churn and the broker's memory under it")]
struct Arguments {
    #[arg(long)]
    address: SocketAddr,
    /// The broker's process id.
    #[arg(long)]
    pid: u32,
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Cycles per second in all.
    #[arg(long, default_value_t = 2000.0)]
    rate: f64,
    #[arg(long, default_value_t = 8)]
    threads: u64,
    /// Persistent MQTT 3 sessions, which have no expiry to ask for: a fixed set of ids that come back.
    #[arg(long, default_value_t = 400)]
    pool: usize,
    #[arg(long)]
    seed: Option<u64>,
}

const TOPICS: usize = 64;
const RETAINED_TOPICS: usize = 200;
const PATIENCE: Duration = Duration::from_secs(10);
const SAMPLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Counters {
    cycles: AtomicU64,
    published: AtomicU64,
    received: AtomicU64,
    resumed: AtomicU64,
    failed: AtomicU64,
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    process::raise_file_limit()?;
    let seed = arguments.seed.unwrap_or_else(Random::fresh_seed);
    println!("seed {seed}, {} minutes, {} cycles per second", arguments.minutes, arguments.rate);
    let counters = Counters::default();
    let stop = AtomicBool::new(false);
    let samples = std::thread::scope(|scope| {
        for thread in 0..arguments.threads {
            let (arguments, counters, stop) = (&arguments, &counters, &stop);
            let random = Random::new(seed.wrapping_add(thread));
            scope.spawn(move || churn(arguments, thread, random, counters, stop));
        }
        let samples = sample(&arguments, &counters);
        stop.store(true, Relaxed);
        samples
    })?;

    let (_, end) = samples[samples.len() - 1];
    let after_first_minute = samples.iter().find(|(seconds, _)| *seconds >= 59.0).map_or(samples[0].1, |(_, bytes)| *bytes);
    let change = 100.0 * (end as f64 / after_first_minute as f64 - 1.0);
    let holds = change.abs() <= 5.0;
    let failed = counters.failed.load(Relaxed);
    println!(
        "resident after the first minute {:.1} MB, at the end {:.1} MB: {change:+.1} %, at most ±5 %: {}",
        megabytes(after_first_minute),
        megabytes(end),
        if holds { "PASS" } else { "FAIL" }
    );
    println!("{} cycles, {failed} of them failed: {}", counters.cycles.load(Relaxed), if failed == 0 { "PASS" } else { "FAIL" });
    Ok(if holds && failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn sample(arguments: &Arguments, counters: &Counters) -> io::Result<Vec<(f64, u64)>> {
    let begin = Instant::now();
    let end = Duration::from_secs_f64(arguments.minutes * 60.0);
    let mut samples = Vec::new();
    let mut next = SAMPLE.min(end);
    loop {
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
        let seconds = begin.elapsed().as_secs_f64();
        let resident = process::resident_bytes(arguments.pid)?;
        println!(
            "{seconds:>5.0} s  {:>8.2} MB resident  {:>8} cycles  {:>8} published  {:>8} received  {:>6} resumed  {} failed",
            megabytes(resident),
            counters.cycles.load(Relaxed),
            counters.published.load(Relaxed),
            counters.received.load(Relaxed),
            counters.resumed.load(Relaxed),
            counters.failed.load(Relaxed),
        );
        samples.push((seconds, resident));
        if next >= end {
            return Ok(samples);
        }
        next = (next + SAMPLE).min(end);
    }
}

fn churn(arguments: &Arguments, thread: u64, mut random: Random, counters: &Counters, stop: &AtomicBool) {
    let interval = Duration::from_secs_f64(arguments.threads as f64 / arguments.rate);
    let mut next = Instant::now();
    let mut serial = 0;
    while !stop.load(Relaxed) {
        serial += 1;
        if let Err(error) = cycle(arguments, thread, serial, &mut random, counters)
            && counters.failed.fetch_add(1, Relaxed) < 20
        {
            eprintln!("a cycle failed: {error}");
        }
        counters.cycles.fetch_add(1, Relaxed);
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // Do not catch up in a burst after a stall.
        next = next.max(Instant::now() - interval);
    }
}

fn cycle(arguments: &Arguments, thread: u64, serial: u64, random: &mut Random, counters: &Counters) -> io::Result<()> {
    let version = *random.pick(&Version::ALL);
    let clean = random.chance(50);
    // Each thread has its own ids, so that no cycle is taken over by another thread's.
    // The pool's sessions come back in turn: how long each is away, and so what waits for it, does not grow with the run.
    let client_id = match (version, clean) {
        (Version::V5, false) if random.chance(50) => format!("c5-{thread}-{serial}"),
        (_, true) => format!("c{thread}-{serial}"),
        _ => format!("p{thread}-{}", serial % (arguments.pool as u64 / arguments.threads).max(1)),
    };
    let will_topic = format!("churn/will/{}", random.below(TOPICS));
    let will = Will { topic: &will_topic, payload: b"gone", qos: random.below(3) as u8, retain: false };
    let connect = Connect {
        version,
        client_id: &client_id,
        clean,
        keep_alive_s: 60,
        session_expiry_s: if clean { 0 } else { 1 + random.below(5) as u32 },
        will: random.chance(30).then_some(will),
    };
    let (mut client, present) = Client::connect(arguments.address, &connect, PATIENCE)?;
    counters.resumed.fetch_add(u64::from(present), Relaxed);

    // A persistent session's filter follows from its id, so that a session does not gather filters.
    let name = client_id.bytes().fold(0, |sum, byte| sum * 31 + usize::from(byte)) % TOPICS;
    let filter = match random.below(if clean { 4 } else { 1 }) {
        0 => format!("churn/{name}"),
        1 => format!("churn/+/{name}"),
        2 => format!("churn/retained/{}", random.below(RETAINED_TOPICS)),
        _ => format!("$share/group{}/churn/{name}", random.below(4)),
    };
    client.subscribe(&filter, random.below(3) as u8)?;

    for _ in 0..1 + random.below(4) {
        publish(&mut client, random)?;
        counters.published.fetch_add(1, Relaxed);
    }
    drain(&mut client)?;
    counters.received.fetch_add(client.messages, Relaxed);

    if random.chance(30) {
        let id = client.id();
        client.send(&mqtt::unsubscribe(version, id, &filter))?;
        client.wait_for(11, id)?;
    }
    // The rest just close, which publishes their wills.
    if random.chance(70) { client.send(&mqtt::DISCONNECT) } else { Ok(()) }
}

fn publish(client: &mut Client, random: &mut Random) -> io::Result<()> {
    let retain = random.chance(20);
    let topic = match retain {
        true => format!("churn/retained/{}", random.below(RETAINED_TOPICS)),
        false => format!("churn/{}", random.below(TOPICS)),
    };
    // Half of the retained messages clear their topic.
    let longest = if random.chance(5) { 2000 } else { 200 };
    let length = if retain && random.chance(50) { 0 } else { 1 + random.below(longest) };
    let (qos, id) = (random.below(3) as u8, client.id());
    client.send(&mqtt::publish(client.version, &topic, &vec![b'x'; length], qos, retain, id))?;
    match qos {
        0 => Ok(()),
        1 => client.wait_for(mqtt::PUBACK, id),
        _ => {
            client.wait_for(mqtt::PUBREC, id)?;
            client.send(&mqtt::acknowledge(mqtt::PUBREL, id))?;
            client.wait_for(mqtt::PUBCOMP, id)
        }
    }
}

/// Receives and acknowledges what waits for this client, until a ping finds nothing more, or other clients keep it busy.
fn drain(client: &mut Client) -> io::Result<()> {
    for _ in 0..20 {
        let before = client.messages;
        client.send(&mqtt::PINGREQ)?;
        client.wait_for(mqtt::PINGRESP, 0)?;
        if client.messages == before {
            break;
        }
    }
    Ok(())
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
