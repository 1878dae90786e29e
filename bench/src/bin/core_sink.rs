//! The sink core alone: records from the ends of rings, as shards push them, to Kafka; and in alternation a plain producer with the same
//! settings fed from memory, which is the limit. Prints for each the rate and the CPU per message of the thread that feeds
//! librdkafka and of librdkafka's threads. Making the records is not counted.
//!
//! Usage: core_sink BROKERS TOPIC [MESSAGES] [RATE] [ROUNDS]; a rate of 0 is as fast as it goes.

use corelane::record::{ActionId, Parts, Record};
use corelane::runtime::Doorbell;
use corelane::runtime::sink_link::{RECORDS_MAX, SinkCore, connect};
use corelane::shard::{Gate, Globals, WhenFull};
use corelane::sinks::options::{ActionOptions, BufferOptions, Confirm, KafkaOptions, SinkKind, SinkOptions};
use corelane::sinks::{self, CoreOptions, gate_bytes_max};
use corelane::topic::Hasher;
use corelane_bench::process::threads_cpu_ns;
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PAYLOAD: [u8; 100] = [b'x'; 100];
const KEYS: u64 = 2_000;
const TICK: Duration = Duration::from_millis(1);

struct Run {
    brokers: String,
    topic: String,
    messages: u64,
    rate: f64,
}

impl Run {
    /// How many messages are to have been fed by now.
    fn due(&self, start: Instant) -> u64 {
        if self.rate == 0.0 { self.messages } else { ((start.elapsed().as_secs_f64() * self.rate) as u64).min(self.messages) }
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

fn cpu() -> BTreeMap<String, u64> {
    threads_cpu_ns(std::process::id()).expect("/proc is there")
}

/// Rate, CPU of the feeding thread and of librdkafka, in microseconds per message.
fn report(what: &str, run: &Run, start: Instant, before: &BTreeMap<String, u64>, feeder: &str) -> f64 {
    let (seconds, after) = (start.elapsed().as_secs_f64(), cpu());
    let used = |is: &dyn Fn(&str) -> bool| {
        let of = |cpu: &BTreeMap<String, u64>| cpu.iter().filter(|(name, _)| is(name)).map(|(_, ns)| ns).sum::<u64>();
        (of(&after) - of(before)) as f64 / 1e3 / run.messages as f64
    };
    let (feeding, library) = (used(&|name| name == feeder), used(&|name| name.starts_with("rdk:")));
    println!(
        "{what:>10}: {:>8.0} messages/s, CPU {:.3} µs per message: feeding {feeding:.3}, librdkafka {library:.3}",
        run.messages as f64 / seconds,
        feeding + library
    );
    feeding + library
}

fn through_core(run: &Run) -> f64 {
    let bells: Arc<[Doorbell]> = [Doorbell::new().expect("a doorbell")].into();
    let (mut shards, end) = connect(&bells).expect("rings");
    let mut shard = shards.remove(0);
    let buffer = BufferOptions::default();
    let globals = Arc::new(Globals { gates: [Gate::new(gate_bytes_max(&buffer), WhenFull::Hold)].into(), ..Globals::default() });
    let kafka = KafkaOptions { brokers: run.brokers.clone(), ..KafkaOptions::default() };
    let core = sinks::start(
        end,
        CoreOptions {
            sinks: vec![SinkOptions { name: "kafka".into(), buffer, kind: SinkKind::Kafka(kafka) }],
            actions: vec![ActionOptions { id: ActionId(0), label: "bench".into(), sink: 0, confirm: Confirm::Delivered }],
            sources: Vec::new(),
            globals: Arc::clone(&globals),
            hasher: Hasher::random(),
            limits: Arc::default(),
            cpu: None,
        },
    )
    .expect("the core starts");
    let gate = &globals.gates[0];
    let (mut parts, mut pushed, mut records) = (Parts::default(), 0, Vec::new());
    let mut push = |numbers: std::ops::Range<u64>, pushed: &mut u64| {
        for number in numbers {
            parts.part().extend_from_slice(run.topic.as_bytes());
            parts.end();
            parts.part().extend_from_slice(format!("vehicle-{}", number % KEYS).as_bytes());
            parts.end();
            parts.part().extend_from_slice(&PAYLOAD);
            parts.end();
            let record = Record::new(ActionId(0), now_us(), true, &mut parts);
            gate.enter(record.bytes());
            globals.memory_bytes.add(record.bytes() as i64);
            records.push(record);
            *pushed += 1;
        }
        shard.push(&mut records);
        shard.taken()
    };
    // The topic is known before the time runs.
    let mut taken = push(0..1, &mut pushed);
    while gate.buffered_records.get() > 0 {
        std::thread::sleep(TICK);
    }
    pushed = 0;
    taken = taken.max(1) - 1;
    let (before, start) = (cpu(), Instant::now());
    while pushed < run.messages {
        let room = u64::from(RECORDS_MAX) - (pushed - taken.min(pushed));
        let next = run.due(start).min(pushed + room.min(512));
        if next > pushed && gate.has_room(300 * 512) {
            taken = push(pushed..next, &mut pushed).max(1) - 1;
        } else {
            std::thread::sleep(TICK);
            taken = push(0..0, &mut pushed).max(1) - 1;
        }
    }
    while gate.buffered_records.get() > 0 {
        std::thread::sleep(TICK);
    }
    let used = report("sink core", run, start, &before, "sinks");
    for (topic, value) in core.status() {
        let is_of_interest = ["delivered", "dead_letters", "retried", "p50_us", "p99_us"].iter().any(|end| topic.ends_with(end));
        if is_of_interest && value != "0" {
            println!("{:>12} {topic} {value}", "");
        }
    }
    core.stop();
    used
}

#[derive(Default)]
struct Delivered(AtomicU64);

impl ClientContext for Delivered {}

impl ProducerContext for Delivered {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, _: usize) {
        assert!(result.is_ok(), "{result:?}");
        self.0.fetch_add(1, Relaxed);
    }
}

fn plain(run: &Run) -> f64 {
    let producer: BaseProducer<Delivered> = ClientConfig::new()
        .set("bootstrap.servers", &run.brokers)
        .set("compression.type", "lz4")
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "5")
        .set("batch.num.messages", "10000")
        .set("batch.size", "1048576")
        .create_with_context(Delivered::default())
        .expect("a producer");
    let keys: Vec<String> = (0..KEYS).map(|key| format!("vehicle-{key}")).collect();
    producer.client().fetch_metadata(Some(&run.topic), Duration::from_secs(10)).expect("the topic");
    let name = std::fs::read_to_string("/proc/thread-self/comm").expect("a name").trim().to_owned();
    let (before, start) = (cpu(), Instant::now());
    let mut sent = 0;
    while sent < run.messages {
        let next = run.due(start).min(sent + 512);
        while sent < next {
            let record = BaseRecord::with_opaque_to(&run.topic, sent as usize)
                .key(&keys[(sent % KEYS) as usize])
                .payload(&PAYLOAD[..])
                .timestamp((now_us() / 1_000) as i64);
            match producer.send(record) {
                Ok(()) => sent += 1,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => producer.poll(TICK),
                Err((error, _)) => panic!("{error}"),
            }
        }
        producer.poll(if run.rate > 0.0 { TICK } else { Duration::ZERO });
    }
    producer.flush(Duration::from_secs(30)).expect("flushed");
    report("plain", run, start, &before, &name)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: &str| arguments.next().unwrap_or_else(|| default.to_owned());
    let (brokers, topic) = (next("127.0.0.1:9092"), next("core-sink"));
    let number = |text: String| text.parse::<f64>().expect("a number");
    let (messages, rate, rounds) = (number(next("1000000")) as u64, number(next("0")), number(next("3")) as usize);
    let run = Run { brokers, topic, messages, rate };
    let mut used = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        used[0].push(plain(&run));
        used[1].push(through_core(&run));
    }
    let [plain, core] = used.map(|mut used| {
        used.sort_by(f64::total_cmp);
        used[used.len() / 2]
    });
    println!("medians: sink core {core:.3} µs, plain {plain:.3} µs, {:.2} times", core / plain);
}
