//! Kafka as the checks see it: topics made, records produced by a plain producer as fast as it can or at a rate, a topic read to its end.

use super::found::Found;
use corelane_bench::load::control::record;
use corelane_bench::load::socket::now_ns;
use corelane_bench::load::stamp::{STAMP_BYTES, Stamp};
use corelane_bench::load::template::Template;
use corelane_bench::process;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Offset, Timestamp, TopicPartitionList};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long a feeder at a rate serves the producer between two looks at the clock.
const TICK: Duration = Duration::from_millis(1);

/// Makes a topic whose records carry the time at which Kafka appended them. One that is there is an error: its records are another run's.
pub fn create(brokers: &str, topic: &str, partitions: i32) -> Result<(), String> {
    let told = |error: String| format!("topic {topic} on {brokers}: {error}");
    let client: AdminClient<DefaultClientContext> = config(brokers).create().map_err(|error| told(error.to_string()))?;
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1)).set("message.timestamp.type", "LogAppendTime");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let results = runtime.block_on(client.create_topics([&new], &options)).map_err(|error| told(error.to_string()))?;
    results.into_iter().try_for_each(|result| result.map(|_| ()).map_err(|(_, code)| told(code.to_string())))
}

/// A cluster of librdkafka's in this process until `commands` end: a line `down` or `up` is an outage, which keeps the records. Its
/// address, and then each command once it is done, is a line on standard output.
pub fn mock(commands: impl Iterator<Item = std::io::Result<String>>) -> Result<(), String> {
    let cluster = MockCluster::new(1).map_err(|error| error.to_string())?;
    println!("{}", cluster.bootstrap_servers());
    for command in commands {
        let command = command.map_err(|error| error.to_string())?;
        match command.as_str() {
            "down" => cluster.broker_down(1),
            "up" => cluster.broker_up(1),
            _ => return Err(format!("{command:?} is neither down nor up")),
        }
        .map_err(|error| error.to_string())?;
        println!("{command}");
    }
    Ok(())
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

pub struct Feed {
    pub topic: String,
    /// Settings of librdkafka.
    pub properties: Vec<(String, String)>,
    pub messages: u64,
    /// Per second; 0 is as fast as the producer takes them.
    pub rate: f64,
    /// Keys are those of so many publishers in turn.
    pub publishers: u32,
    pub key: Template,
    pub size: usize,
    pub json: bool,
}

#[derive(Default)]
pub struct Produced {
    pub delivered: u64,
    pub failed: u64,
    pub seconds: f64,
    /// Of this thread, which feeds and hears what became of each record.
    pub feeder_cpu_ns: u64,
    /// Of librdkafka's threads.
    pub library_cpu_ns: u64,
}

impl Produced {
    pub fn cpu_us(&self) -> f64 {
        (self.feeder_cpu_ns + self.library_cpu_ns) as f64 / 1e3 / self.delivered.max(1) as f64
    }
}

impl fmt::Display for Produced {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let per_message = |ns: u64| ns as f64 / 1e3 / self.delivered.max(1) as f64;
        write!(
            f,
            "delivered {}, failed {}, {:.1} s, {:.0} messages/s, CPU {:.3} µs per message (feeding {:.3}, librdkafka {:.3})",
            self.delivered,
            self.failed,
            self.seconds,
            self.delivered as f64 / self.seconds.max(1e-9),
            self.cpu_us(),
            per_message(self.feeder_cpu_ns),
            per_message(self.library_cpu_ns),
        )
    }
}

#[derive(Default)]
struct Deliveries {
    delivered: AtomicU64,
    failed: AtomicU64,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult, (): ()) {
        let count = if result.is_ok() { &self.delivered } else { &self.failed };
        count.fetch_add(1, Relaxed);
    }
}

/// Feeds a producer from memory: the limit of what a sink can do with the same settings.
pub fn produce(brokers: &str, feed: &Feed) -> Result<Produced, String> {
    let mut config = config(brokers);
    for (name, value) in &feed.properties {
        config.set(name, value);
    }
    let producer: BaseProducer<Deliveries> =
        config.create_with_context(Deliveries::default()).map_err(|error| error.to_string())?;
    // The topic's partitions are known before the time runs, so that no record waits for them.
    producer.client().fetch_metadata(Some(&feed.topic), PATIENCE).map_err(|error| error.to_string())?;
    let keys: Vec<Vec<u8>> = (0..feed.publishers)
        .map(|publisher| {
            let mut key = Vec::new();
            feed.key.write(publisher, &mut key);
            key
        })
        .collect();
    let mut payload = Vec::with_capacity(feed.size);
    let (cpu_before, began_ns) = (process::threads_cpu_ns(std::process::id()).map_err(|error| error.to_string())?, now_ns());
    let mut fed = 0;
    while fed < feed.messages {
        let due = match feed.rate {
            0.0 => fed + 256,
            rate => (((now_ns() - began_ns) as f64 / 1e9 * rate) as u64).max(fed),
        };
        while fed < due.min(feed.messages) {
            let publisher = (fed % u64::from(feed.publishers)) as u32;
            let due_ns = if feed.rate > 0.0 { began_ns + (fed as f64 / feed.rate * 1e9) as u64 } else { now_ns() };
            let stamp = Stamp { due_ns, publisher, sequence: (fed / u64::from(feed.publishers)) as u32 };
            payload.clear();
            if feed.json {
                stamp.write_json(feed.size, &mut payload);
            } else {
                payload.extend_from_slice(&stamp.to_bytes());
                payload.resize(feed.size.max(STAMP_BYTES), b'x');
            }
            let record = BaseRecord::to(&feed.topic).key(&keys[publisher as usize]).payload(&payload);
            match producer.send(record) {
                Ok(()) => fed += 1,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => producer.poll(TICK),
                Err((error, _)) => return Err(error.to_string()),
            }
        }
        producer.poll(Duration::ZERO);
        if feed.rate > 0.0 {
            // As the broker's sink core does; waiting in librdkafka ends with every single report.
            std::thread::sleep(TICK);
        }
    }
    producer.flush(PATIENCE).map_err(|error| error.to_string())?;
    let (cpu_after, ended_ns) = (process::threads_cpu_ns(std::process::id()).map_err(|error| error.to_string())?, now_ns());
    let used = |is_library: bool| {
        let of = |cpu: &BTreeMap<String, u64>| {
            cpu.iter().filter(|(name, _)| name.starts_with("rdk:") == is_library).map(|(_, ns)| ns).sum::<u64>()
        };
        of(&cpu_after).saturating_sub(of(&cpu_before))
    };
    let deliveries = producer.context();
    Ok(Produced {
        delivered: deliveries.delivered.load(Relaxed),
        failed: deliveries.failed.load(Relaxed),
        seconds: (ended_ns - began_ns) as f64 / 1e9,
        feeder_cpu_ns: used(false),
        library_cpu_ns: used(true),
    })
}

pub struct Reading {
    pub topic: String,
    /// What the keys have to be, if they are looked at.
    pub key: Option<Template>,
    /// Goes on past the end that the topic has now, until so many distinct messages were found or nothing came for so long.
    pub follow: Option<(u64, Duration)>,
    /// Times are those of the arrivals here, not those at which Kafka appended.
    pub arrivals: bool,
}

/// Reads a topic from its begin.
pub fn read(brokers: &str, reading: &Reading, found: &mut Found) -> Result<(), String> {
    let told = |error: KafkaError| format!("topic {} on {brokers}: {error}", reading.topic);
    let consumer: BaseConsumer = config(brokers)
        // Nothing is committed to the group, but there is no consumer without one.
        .set("group.id", "corelane-sink-check")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "false")
        .create()
        .map_err(told)?;
    // A Kafka that has just been started needs a moment until every partition has its leader.
    let deadline_ns = now_ns() + PATIENCE.as_nanos() as u64;
    let mut ends = loop {
        match ends(&consumer, &reading.topic) {
            Ok(ends) => break ends,
            Err(error) if now_ns() > deadline_ns => return Err(told(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    };
    if ends.is_empty() {
        return Err(format!("{brokers} has no topic {}", reading.topic));
    }
    let mut list = TopicPartitionList::new();
    for &partition in ends.keys() {
        list.add_partition_offset(&reading.topic, partition, Offset::Beginning).map_err(told)?;
    }
    ends.retain(|_, (low, high)| low < high);
    consumer.assign(&list).map_err(told)?;
    let realtime_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?.as_nanos() as i128;
    let clock_ns = realtime_ns - i128::from(now_ns());
    let (mut key, mut last_ns) = (Vec::new(), now_ns());
    loop {
        match reading.follow {
            Some((expected, idle)) if found.distinct >= expected || now_ns() - last_ns > idle.as_nanos() as u64 => return Ok(()),
            Some(_) => {}
            None if ends.is_empty() => return Ok(()),
            None if now_ns() - last_ns > PATIENCE.as_nanos() as u64 => {
                return Err(format!("topic {}: nothing more comes, and its ends are not reached: {ends:?}", reading.topic));
            }
            None => {}
        }
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message.map_err(told)?;
        last_ns = now_ns();
        if let Some(stamp) = found.note_payload(message.payload().unwrap_or_default(), message.partition()) {
            let had_ns = if reading.arrivals { Some(last_ns) } else { appended_ns(&message, clock_ns) };
            if let Some(had_ns) = had_ns {
                record(&mut found.times, had_ns.saturating_sub(stamp.due_ns));
            }
            if let Some(template) = &reading.key {
                key.clear();
                template.write(stamp.publisher, &mut key);
                found.wrong_keys += u64::from(message.key() != Some(&key));
            }
        }
        if ends.get(&message.partition()).is_some_and(|&(_, end)| message.offset() + 1 >= end) {
            ends.remove(&message.partition());
        }
    }
}

/// The offsets at which each partition of a topic begins and ends.
fn ends(consumer: &BaseConsumer, topic: &str) -> Result<BTreeMap<i32, (i64, i64)>, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions()).map(|partition| partition.id());
    partitions.map(|partition| Ok((partition, consumer.fetch_watermarks(topic, partition, PATIENCE)?))).collect()
}

/// When Kafka appended a record, on the monotonic clock, if its topic keeps that time. It is kept in milliseconds.
fn appended_ns(message: &BorrowedMessage, clock_ns: i128) -> Option<u64> {
    let Timestamp::LogAppendTime(ms) = message.timestamp() else { return None };
    u64::try_from(i128::from(ms) * 1_000_000 - clock_ns).ok()
}
