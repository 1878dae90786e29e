//! Hostile input: sockets that send random bytes, mutated packets and valid packets out of order, in every version, while an honest
//! pair of clients exchanges a QoS 1 message every 100 ms and holds each to a deadline. The seed is printed: the same seed makes the
//! same bytes, socket by socket.

use clap::Parser;
use corelane_bench::mqtt::{self, Client, Connect, Version, Will};
use corelane_bench::process;
use corelane_bench::random::Random;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(about = "Random bytes and mutated packets, and whether others are still served")]
struct Arguments {
    #[arg(long)]
    address: SocketAddr,
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    #[arg(long, default_value_t = 64)]
    sockets: u64,
    /// Milliseconds a hostile socket waits between its bursts, on average.
    #[arg(long, default_value_t = 20)]
    pause_ms: usize,
    /// Milliseconds within which an honest message has to have come and been acknowledged.
    #[arg(long, default_value_t = 1000)]
    deadline_ms: u64,
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Default)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    connections: AtomicU64,
    refused: AtomicU64,
}

/// What became of the honest messages.
#[derive(Default)]
struct Honest {
    in_time: u64,
    late: u64,
    worst: Duration,
    broken: Option<io::Error>,
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    process::raise_file_limit()?;
    let seed = arguments.seed.unwrap_or_else(Random::fresh_seed);
    println!("seed {seed}, {} sockets, {} minutes", arguments.sockets, arguments.minutes);
    let counters = Counters::default();
    let stop = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs_f64(arguments.minutes * 60.0);
    let honest = std::thread::scope(|scope| {
        for socket in 0..arguments.sockets {
            let (arguments, counters, stop) = (&arguments, &counters, &stop);
            let random = Random::new(seed.wrapping_add(socket.wrapping_mul(0x1_0000_0001)));
            scope.spawn(move || attack(arguments, random, counters, stop));
        }
        let honest = exchange(&arguments, end, &counters);
        stop.store(true, Relaxed);
        honest
    });

    let served = honest.late == 0 && honest.broken.is_none() && honest.in_time > 0;
    println!(
        "hostile: {} packets, {} bytes, {} connections, {} connects refused",
        counters.packets.load(Relaxed),
        counters.bytes.load(Relaxed),
        counters.connections.load(Relaxed),
        counters.refused.load(Relaxed),
    );
    if let Some(error) = &honest.broken {
        println!("the honest pair lost its connection: {error}");
    }
    println!(
        "honest: {} exchanges in time, {} late, slowest {:.1} ms, deadline {} ms: {}",
        honest.in_time,
        honest.late,
        honest.worst.as_secs_f64() * 1e3,
        arguments.deadline_ms,
        if served { "PASS" } else { "FAIL" }
    );
    Ok(if served { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The honest pair: one publishes at QoS 1 and waits for PUBACK, the other waits for the message and acknowledges it.
fn exchange(arguments: &Arguments, end: Instant, counters: &Counters) -> Honest {
    let mut honest = Honest::default();
    honest.broken = exchange_until(arguments, end, counters, &mut honest).err();
    honest
}

fn exchange_until(arguments: &Arguments, end: Instant, counters: &Counters, honest: &mut Honest) -> io::Result<()> {
    let deadline = Duration::from_millis(arguments.deadline_ms);
    // Nobody meets these by chance.
    let name = format!("honest-{:016x}", Random::fresh_seed());
    let patience = deadline * 10;
    let (mut subscriber, _) = Client::connect(arguments.address, &Connect::new(Version::V311, &format!("{name}-s")), patience)?;
    subscriber.subscribe(&name, 1)?;
    let (mut publisher, _) = Client::connect(arguments.address, &Connect::new(Version::V5, &format!("{name}-p")), patience)?;
    let mut next = Instant::now();
    let mut next_report = next + Duration::from_secs(10);
    let mut serial = 0u64;
    while Instant::now() < end {
        serial += 1;
        let begin = Instant::now();
        let id = publisher.id();
        publisher.send(&mqtt::publish(Version::V5, &name, &serial.to_be_bytes(), 1, false, id))?;
        loop {
            let packet = subscriber.packet()?;
            let is_it = packet.kind == mqtt::PUBLISH && packet.publish()?.2 == serial.to_be_bytes();
            subscriber.answer(&packet)?;
            if is_it {
                break;
            }
        }
        publisher.wait_for(mqtt::PUBACK, id)?;
        let took = begin.elapsed();
        honest.worst = honest.worst.max(took);
        if took <= deadline {
            honest.in_time += 1;
        } else {
            honest.late += 1;
        }
        next = (next + Duration::from_millis(100)).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        if Instant::now() >= next_report {
            next_report += Duration::from_secs(10);
            println!(
                "{} packets, {} connections, honest {} in time, {} late, slowest {:.1} ms",
                counters.packets.load(Relaxed),
                counters.connections.load(Relaxed),
                honest.in_time,
                honest.late,
                honest.worst.as_secs_f64() * 1e3
            );
        }
    }
    Ok(())
}

fn attack(arguments: &Arguments, mut random: Random, counters: &Counters, stop: &AtomicBool) {
    let valid = Version::ALL.map(valid_packets);
    while !stop.load(Relaxed) {
        match TcpStream::connect_timeout(&arguments.address, Duration::from_secs(5)) {
            Ok(stream) => {
                counters.connections.fetch_add(1, Relaxed);
                // How a hostile connection ends is its own affair.
                let _ = attack_connection(arguments, stream, &valid[random.below(3)], &mut random, counters, stop);
            }
            Err(_) => {
                counters.refused.fetch_add(1, Relaxed);
            }
        }
        pause(arguments, &mut random);
    }
}

/// Packets of one version; the first is a CONNECT for a session that stays, the second one for a clean session.
type Packets = Vec<Vec<u8>>;

fn attack_connection(
    arguments: &Arguments,
    mut stream: TcpStream,
    valid: &Packets,
    random: &mut Random,
    counters: &Counters,
    stop: &AtomicBool,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(Duration::from_millis(500)))?;
    let mut sink = vec![0; 16 << 10];
    // Most connections get past CONNECT, so that what follows is reached too.
    let mut burst = if random.chance(80) { connect(valid, random) } else { hostile(valid, random) };
    let mut packets = 1;
    while !stop.load(Relaxed) {
        for _ in 0..random.below(8) {
            let bytes = if random.chance(60) { random.pick(&valid[1..]).clone() } else { hostile(valid, random) };
            burst.extend(bytes);
            packets += 1;
        }
        stream.write_all(&burst)?;
        counters.packets.fetch_add(packets, Relaxed);
        counters.bytes.fetch_add(burst.len() as u64, Relaxed);
        burst.clear();
        packets = 0;
        pause(arguments, random);
        // Some never read what they are sent.
        if random.chance(90) {
            stream.set_nonblocking(true)?;
            loop {
                match stream.read(&mut sink) {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            stream.set_nonblocking(false)?;
        }
        if random.chance(5) {
            return Ok(());
        }
    }
    Ok(())
}

fn pause(arguments: &Arguments, random: &mut Random) {
    std::thread::sleep(Duration::from_millis(random.below(2 * arguments.pause_ms + 1) as u64));
}

/// A CONNECT with one of some hundred client ids. Sessions that stay are few: each hears whatever is published, so with many of them
/// this would be a test of how much the broker can deliver.
fn connect(valid: &Packets, random: &mut Random) -> Vec<u8> {
    let (connect, ids) = if random.chance(25) { (&valid[0], 0..20) } else { (&valid[1], 20..300) };
    let mut bytes = connect.clone();
    if let Some(at) = bytes.windows(5).position(|window| window == b"chaos") {
        let digits = format!("{:03}", ids.start + random.below(ids.len()));
        bytes[at + 5..at + 8].copy_from_slice(digits.as_bytes());
    }
    bytes
}

fn hostile(valid: &Packets, random: &mut Random) -> Vec<u8> {
    if random.chance(15) {
        let length = 1 + random.below(200);
        return random.bytes(length);
    }
    let mut bytes = random.pick(valid).clone();
    for _ in 0..1 + random.below(3) {
        mutate(&mut bytes, valid, random);
    }
    bytes
}

fn mutate(bytes: &mut Vec<u8>, valid: &Packets, random: &mut Random) {
    let at = random.below(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
    if bytes.is_empty() {
        bytes.push(random.next() as u8);
        return;
    }
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes[at] = *random.pick(&[0, 1, 0x7F, 0x80, 0xFF]),
        3 => bytes.insert(at, random.next() as u8),
        4 => drop(bytes.remove(at)),
        5 => bytes.truncate(at),
        6 => {
            let copy = bytes[at..].to_vec();
            bytes.extend(copy);
        }
        7 => {
            let other = random.pick(valid);
            bytes.truncate(at);
            bytes.extend(&other[random.below(other.len())..]);
        }
        _ => {
            // A wrong remaining length, up to the longest that four bytes tell.
            let length = random.below(5);
            let mut remaining: Vec<u8> = random.bytes(length).into_iter().map(|byte| byte | 0x80).collect();
            remaining.push(random.below(128) as u8);
            let header = mqtt::packet_length(bytes).ok().flatten().map_or(1, |(header, _)| header);
            bytes.splice(1..header.min(bytes.len()), remaining);
        }
    }
}

fn valid_packets(version: Version) -> Packets {
    let v5 = version == Version::V5;
    let will = Will { topic: "chaos/will", payload: b"bye", qos: 1, retain: true };
    let connect = Connect { clean: false, keep_alive_s: 30, session_expiry_s: 10, ..Connect::new(version, "chaos000") };
    let mut packets = vec![
        connect.encode(),
        Connect { clean: true, will: Some(will), ..connect }.encode(),
        Connect { client_id: "", ..Connect::new(version, "") }.encode(),
        mqtt::PINGREQ.to_vec(),
        mqtt::DISCONNECT.to_vec(),
        mqtt::unsubscribe(version, 9, "chaos/+/x"),
    ];
    for filter in ["chaos/#", "chaos/+/x", "#", "+/+", "$SYS/#", "$share/g/chaos/#", "chaos/a", "/", "chaos/\u{1F697}"] {
        packets.push(mqtt::subscribe(version, 7, filter, 2));
        packets.push(mqtt::subscribe(version, 8, filter, 0));
    }
    for qos in 0..3 {
        for (topic, length) in [("chaos/a", 5), ("chaos/b/x", 300), ("chaos/c", 0), ("$SYS/x", 3)] {
            packets.push(mqtt::publish(version, topic, &vec![b'p'; length], qos, false, 3));
            packets.push(mqtt::publish(version, topic, &vec![b'r'; length], qos, true, 4));
        }
    }
    for kind in [mqtt::PUBACK, mqtt::PUBREC, mqtt::PUBREL, mqtt::PUBCOMP] {
        packets.extend((1..4).map(|id| mqtt::acknowledge(kind, id).to_vec()));
    }
    if v5 {
        packets.extend(valid_v5_packets());
    }
    packets
}

/// Packets with properties, which only v5 has.
fn valid_v5_packets() -> Packets {
    let with_properties = |first_byte: u8, before: &[u8], properties: &[u8], after: &[u8]| {
        mqtt::packet(first_byte, &[before, &[properties.len() as u8], properties, after].concat())
    };
    let connect = [&mqtt::string(b"MQTT")[..], &[5, 0b1100_0110, 0, 30]].concat();
    let will_and_login = [
        &mqtt::string(b"chaos000")[..],
        // Will delay, expiry and payload format, then the will itself, user name and password.
        &[12, 0x18, 0, 0, 0, 1, 0x02, 0, 0, 0, 9, 0x01, 1],
        &mqtt::string(b"chaos/will"),
        &mqtt::string(b"bye"),
        &mqtt::string(b"user"),
        &mqtt::string(b"word"),
    ]
    .concat();
    let message = [
        &[0x01, 1, 0x02, 0, 0, 0, 9][..],
        &[&[0x03][..], &mqtt::string(b"text")].concat(),
        &[&[0x08][..], &mqtt::string(b"chaos/reply")].concat(),
        &[&[0x09][..], &mqtt::string(&[0, 1, 2, 0xFF])].concat(),
        &[&[0x26][..], &mqtt::string(b"k"), &mqtt::string(b"v")].concat(),
    ]
    .concat();
    let topic = mqtt::string(b"chaos/a");
    let topic_and_id = [&topic[..], &[0, 5]].concat();
    vec![
        with_properties(
            0x10,
            &connect,
            &[0x11, 0, 0, 0, 5, 0x21, 0, 3, 0x22, 0, 10, 0x27, 0, 0, 8, 0, 0x17, 1, 0x19, 1],
            &will_and_login,
        ),
        with_properties(0x30, &topic, &message, b"hello"),
        with_properties(0x32, &topic_and_id, &message, b"hello"),
        with_properties(0x34, &topic_and_id, &message, b"hello"),
        with_properties(0x30, &topic, &[0x23, 0, 1], b"alias set"),
        with_properties(0x30, &[0, 0], &[0x23, 0, 1], b"alias used"),
        with_properties(0x82, &[0, 6], &[0x0B, 0x80, 0x01], &[&mqtt::string(b"chaos/#")[..], &[0b0010_1110]].concat()),
        with_properties(0xE0, &[0x04], &[0x11, 0, 0, 0, 1], &[]),
        with_properties(0xF0, &[0x18], &[0x15, 0, 1, b'm', 0x16, 0, 1, b'd'], &[]),
        with_properties(0x40, &[0, 3, 0x80], &[0x1F, 0, 1, b'r'], &[]),
        mqtt::packet(0x50, &[0, 3, 0x97]),
    ]
}
