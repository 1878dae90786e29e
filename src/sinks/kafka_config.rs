//! From options to librdkafka's settings, for the producer and the consumer alike. What the user wrote in `properties` comes last and wins.

use super::options::{Acks, BufferOptions, Compression, KafkaOptions, Partitioner, Sasl, SourceOptions, WhenFull};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use std::fs;

/// How often librdkafka says what it is connected to.
const STATISTICS_INTERVAL_MS: u32 = 5_000;
/// After an outage the connection is back within this time, instead of librdkafka's ten seconds.
const RECONNECT_MS_MAX: u32 = 2_000;

/// What a producer may have under way: librdkafka has a copy of it, and the buffer keeps the original.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub records: usize,
    pub bytes: u64,
}

impl Window {
    /// Enough batches to keep several partitions busy. What is under way cannot be dropped any more, so where the oldest are to be dropped
    /// it is at most half of the buffer: else an outage would keep the oldest and drop the newest.
    pub fn of(options: &BufferOptions) -> Self {
        let records = (u64::from(options.batch_records_max) * 10).clamp(1, 1_000_000) as usize;
        let bytes_max = match options.when_full {
            WhenFull::DropOldest => options.memory_bytes_max / 2,
            WhenFull::Hold => u64::MAX,
        };
        Self { records, bytes: options.batch_bytes_max.saturating_mul(16).min(bytes_max).clamp(1, 1 << 30) }
    }
}

/// # Errors
/// A property or a password file, in one line.
pub fn producer(kafka: &KafkaOptions, buffer: &BufferOptions) -> Result<ClientConfig, String> {
    let mut config = common(kafka)?;
    let window = Window::of(buffer);
    let compression = match kafka.compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Lz4 => "lz4",
        Compression::Snappy => "snappy",
        Compression::Zstd => "zstd",
    };
    let acks = match kafka.acks {
        Acks::None => "0",
        Acks::Leader => "1",
        Acks::All => "all",
    };
    let partitioner = match kafka.partitioner {
        Partitioner::Murmur2Random => "murmur2_random",
        Partitioner::ConsistentRandom => "consistent_random",
        Partitioner::Fnv1aRandom => "fnv1a_random",
        Partitioner::Random => "random",
    };
    config
        .set("compression.type", compression)
        .set("acks", acks)
        .set("partitioner", partitioner)
        .set("enable.idempotence", kafka.idempotence.to_string())
        .set("linger.ms", buffer.linger_ms.to_string())
        .set("batch.num.messages", buffer.batch_records_max.clamp(1, 1_000_000).to_string())
        .set("batch.size", buffer.batch_bytes_max.clamp(1, i32::MAX as u64).to_string())
        // The window bounds it; librdkafka never has a reason to refuse.
        .set("queue.buffering.max.messages", (2 * window.records).to_string())
        .set("queue.buffering.max.kbytes", (2 * window.bytes / 1024 + 1024).to_string())
        // It retries for ever, in order: what is to be given up is decided here.
        .set("message.timeout.ms", "0");
    if !kafka.idempotence {
        // Otherwise a batch that is tried again comes behind one that was sent after it.
        config.set("max.in.flight.requests.per.connection", "1");
    }
    properties(&mut config, &kafka.properties)?;
    Ok(config)
}

/// # Errors
/// As [`producer`].
pub fn consumer(options: &SourceOptions) -> Result<ClientConfig, String> {
    let mut config = common(&options.kafka)?;
    config
        .set("group.id", &options.group)
        .set("auto.offset.reset", if options.from_beginning { "earliest" } else { "latest" })
        // What has been stored is committed every second, when partitions are taken away, and at the end. Stored is what was accepted.
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "1000")
        .set("enable.auto.offset.store", "false")
        // What is fetched ahead waits in memory.
        .set("queued.max.messages.kbytes", "8192");
    properties(&mut config, &options.kafka.properties)?;
    Ok(config)
}

/// What an error of a client's creation says, with the property that is to blame.
pub fn error(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, description, name, value) if name.contains("password") => {
            format!("property {name}: {description}{}", if value.is_empty() { "" } else { " (its value is not shown)" })
        }
        KafkaError::ClientConfig(_, description, name, value) => format!("property {name}={value}: {description}"),
        other => other.to_string(),
    }
}

fn common(kafka: &KafkaOptions) -> Result<ClientConfig, String> {
    let mut config = ClientConfig::new();
    let protocol = match (kafka.tls, kafka.sasl) {
        (false, Sasl::None) => "plaintext",
        (true, Sasl::None) => "ssl",
        (false, _) => "sasl_plaintext",
        (true, _) => "sasl_ssl",
    };
    config
        .set("client.id", "corelane")
        .set("bootstrap.servers", &kafka.brokers)
        .set("security.protocol", protocol)
        .set("statistics.interval.ms", STATISTICS_INTERVAL_MS.to_string())
        .set("reconnect.backoff.max.ms", RECONNECT_MS_MAX.to_string())
        // Brokers close idle connections; that is no event.
        .set("log.connection.close", "false")
        .set_log_level(RDKafkaLogLevel::Info);
    if kafka.tls {
        let authorities = if kafka.tls_ca_path.is_empty() { "probe" } else { &kafka.tls_ca_path };
        config.set("ssl.ca.location", authorities);
        for (name, path) in [("ssl.certificate.location", &kafka.tls_certificate_path), ("ssl.key.location", &kafka.tls_key_path)]
        {
            if !path.is_empty() {
                config.set(name, path);
            }
        }
    }
    let mechanism = match kafka.sasl {
        Sasl::None => return Ok(config),
        Sasl::Plain => "PLAIN",
        Sasl::ScramSha256 => "SCRAM-SHA-256",
        Sasl::ScramSha512 => "SCRAM-SHA-512",
    };
    let path = &kafka.sasl_password_path;
    let password = fs::read_to_string(path).map_err(|error| format!("the password file {path}: {error}"))?;
    let password = password.strip_suffix('\n').unwrap_or(&password);
    config
        .set("sasl.mechanism", mechanism)
        .set("sasl.username", &kafka.sasl_username)
        .set("sasl.password", password.strip_suffix('\r').unwrap_or(password));
    Ok(config)
}

/// Sets what the user wrote.
fn properties(config: &mut ClientConfig, text: &str) -> Result<(), String> {
    for property in parse_properties(text) {
        let Property { name, value, .. } = property.map_err(|(_, what)| what)?;
        config.set(name, value);
    }
    Ok(())
}

struct Property {
    /// The character of the text, from 1, at which its name begins.
    at: usize,
    name: String,
    value: String,
}

/// Reads `name=value` separated by commas or new lines. What follows a comma and is no `name=value` belongs to the value before it,
/// because values may have commas. What is neither comes with the character at which it begins.
fn parse_properties(text: &str) -> Vec<Result<Property, (usize, String)>> {
    let mut properties: Vec<Result<Property, _>> = Vec::new();
    let mut next = 1;
    for line in text.split('\n') {
        let of_line = properties.len();
        for piece in line.split(',') {
            let at = next + piece.chars().take_while(|c| c.is_whitespace()).count();
            next += piece.chars().count() + 1;
            let words = piece.trim();
            match (words.split_once('='), properties[of_line..].last_mut()) {
                (Some((name, value)), _) => {
                    properties.push(Ok(Property { at, name: name.trim_end().to_owned(), value: value.trim_start().to_owned() }));
                }
                (None, Some(Ok(last))) => {
                    last.value.push(',');
                    last.value.push_str(words);
                }
                (None, _) if words.is_empty() => {}
                (None, _) => properties.push(Err((at, format!("property {words:?} is not `name=value`")))),
            }
        }
    }
    properties
}

/// What is wrong with properties as far as each is wrong by itself, with the character (from 1) at which it begins.
pub fn check_properties(text: &str) -> Vec<(usize, String)> {
    let check = |property: Result<Property, _>| {
        let Property { at, name, value } = property?;
        let native = ClientConfig::new().set(name, value).create_native_config();
        native.map(drop).map_err(|error| (at, self::error(&error)))
    };
    parse_properties(text).into_iter().filter_map(|property| check(property).err()).collect()
}

pub fn may_be_in_topic(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// What Kafka takes for a topic.
pub fn check_topic(topic: &str) -> Result<(), String> {
    if topic.is_empty() || topic.len() > 249 || matches!(topic, "." | "..") || !topic.chars().all(may_be_in_topic) {
        return Err(format!("{topic:?} is no Kafka topic, which is 1 to 249 letters, digits, \".\", \"_\" and \"-\""));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Directory;
    use super::*;
    use rdkafka::producer::BaseProducer;

    fn of(properties: &str) -> Result<ClientConfig, String> {
        let kafka = KafkaOptions { properties: properties.to_owned(), ..KafkaOptions::default() };
        producer(&kafka, &BufferOptions::default())
    }

    fn creation(config: &ClientConfig) -> Result<(), String> {
        config.create::<BaseProducer>().map(drop).map_err(|error| self::error(&error))
    }

    #[test]
    fn options_become_settings_and_properties_win() {
        let config = of("linger.ms=7, debug=broker,msg\nclient.id = fleet ,").unwrap();
        let of = |name| config.get(name).unwrap();
        assert_eq!([of("linger.ms"), of("debug"), of("client.id")], ["7", "broker,msg", "fleet,"]);
        assert_eq!([of("acks"), of("enable.idempotence"), of("message.timeout.ms")], ["all", "true", "0"]);
        assert_eq!([of("compression.type"), of("partitioner")], ["lz4", "murmur2_random"]);
        assert_eq!(of("security.protocol"), "plaintext");
        assert_eq!(config.get("max.in.flight.requests.per.connection"), None);
        assert_eq!(check_properties("linger.ms=7, debug=broker,msg\nclient.id = fleet ,"), []);
    }

    #[test]
    fn every_choice_is_one_that_librdkafka_knows() {
        use Compression::*;
        use Partitioner::*;
        for compression in [None, Gzip, Lz4, Snappy, Zstd] {
            for (acks, idempotence) in [(Acks::None, false), (Acks::Leader, false), (Acks::All, true)] {
                let kafka = KafkaOptions { compression, acks, idempotence, ..KafkaOptions::default() };
                creation(&producer(&kafka, &BufferOptions::default()).unwrap()).unwrap();
            }
        }
        for partitioner in [Murmur2Random, ConsistentRandom, Fnv1aRandom, Random] {
            let kafka = KafkaOptions { partitioner, ..KafkaOptions::default() };
            creation(&producer(&kafka, &BufferOptions::default()).unwrap()).unwrap();
        }
    }

    #[test]
    fn where_the_oldest_are_dropped_half_of_the_buffer_stays_out_of_reach_of_the_server() {
        let options = |when_full| BufferOptions { memory_bytes_max: 100_000, when_full, ..BufferOptions::default() };
        assert_eq!(Window::of(&options(WhenFull::DropOldest)).bytes, 50_000);
        assert_eq!(Window::of(&options(WhenFull::Hold)).bytes, 16 << 20);
        let large = BufferOptions { when_full: WhenFull::DropOldest, ..BufferOptions::default() };
        assert_eq!(Window::of(&large).bytes, 16 << 20);
    }

    #[test]
    fn a_bad_property_is_named() {
        assert_eq!(of("acks").err().unwrap(), "property \"acks\" is not `name=value`");
        let unknown = creation(&of("no.such=1").unwrap()).unwrap_err();
        assert!(unknown.starts_with("property no.such=1: "), "{unknown}");
        let invalid = creation(&of("linger.ms=often").unwrap()).unwrap_err();
        assert!(invalid.starts_with("property linger.ms=often: "), "{invalid}");
        let all = check_properties("linger.ms=7,\n é, no.such=1");
        let [(first, neither), (second, unknown)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((*first, &**neither, *second), (15, "property \"é\" is not `name=value`", 18));
        assert!(unknown.starts_with("property no.such=1: "), "{unknown}");
        let clash = creation(&of("acks=1").unwrap()).unwrap_err();
        assert!(clash.contains("acks"), "{clash}");
    }

    #[test]
    fn credentials_come_from_a_file_and_tls_is_built_in() {
        let directory = Directory::new();
        let path = directory.path("password");
        fs::write(&path, "secret\r\n").unwrap();
        for (sasl, mechanism) in
            [(Sasl::Plain, "PLAIN"), (Sasl::ScramSha256, "SCRAM-SHA-256"), (Sasl::ScramSha512, "SCRAM-SHA-512")]
        {
            for (tls, protocol) in [(false, "sasl_plaintext"), (true, "sasl_ssl")] {
                let kafka = KafkaOptions {
                    sasl,
                    tls,
                    sasl_username: "fleet".into(),
                    sasl_password_path: path.to_str().unwrap().into(),
                    ..KafkaOptions::default()
                };
                let config = producer(&kafka, &BufferOptions::default()).unwrap();
                let of = |name| config.get(name).unwrap();
                assert_eq!([of("sasl.mechanism"), of("security.protocol")], [mechanism, protocol]);
                assert_eq!([of("sasl.username"), of("sasl.password")], ["fleet", "secret"]);
                creation(&config).unwrap();
            }
        }
        let missing = KafkaOptions { sasl: Sasl::Plain, sasl_password_path: "/no/such".into(), ..KafkaOptions::default() };
        let error = producer(&missing, &BufferOptions::default()).err().unwrap();
        assert!(error.starts_with("the password file /no/such: "), "{error}");
    }

    #[test]
    fn a_consumer_commits_what_was_stored_and_nothing_else() {
        let config =
            consumer(&SourceOptions { group: "fleet".into(), from_beginning: true, ..SourceOptions::default() }).unwrap();
        let of = |name| config.get(name).unwrap();
        assert_eq!([of("group.id"), of("auto.offset.reset"), of("enable.auto.offset.store")], ["fleet", "earliest", "false"]);
        let config = consumer(&SourceOptions::default()).unwrap();
        assert_eq!(config.get("auto.offset.reset"), Some("latest"));
    }
}
