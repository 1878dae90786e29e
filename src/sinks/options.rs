//! What sinks are made of, as plain data: the configuration fills it in.

use crate::record::ActionId;
pub use crate::shard::WhenFull;

/// A server or file that actions write to.
#[derive(Clone, PartialEq, Debug)]
pub struct SinkOptions {
    /// Distinct, never empty.
    pub name: String,
    pub buffer: BufferOptions,
    pub kind: SinkKind,
}

/// What lies between the shards and a sink, and how it is gathered to batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferOptions {
    /// Bytes of records in memory.
    pub memory_bytes_max: u64,
    /// The directory of the disk buffer; empty: there is none.
    pub disk_path: String,
    /// Bytes of records on disk.
    pub disk_bytes_max: u64,
    pub when_full: WhenFull,
    /// The file for records that the sink will never take, as JSON lines; empty: `<name>.dead-letters.jsonl` in the working directory.
    pub dead_letter_path: String,
    /// How long a batch waits for more.
    pub linger_ms: u32,
    pub batch_records_max: u32,
    pub batch_bytes_max: u64,
}

impl Default for BufferOptions {
    fn default() -> Self {
        Self {
            memory_bytes_max: 64 << 20,
            disk_path: String::new(),
            disk_bytes_max: 1 << 30,
            when_full: WhenFull::Hold,
            dead_letter_path: String::new(),
            linger_ms: 5,
            batch_records_max: 10_000,
            batch_bytes_max: 1 << 20,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum SinkKind {
    Kafka(KafkaOptions),
    Mongodb(MongodbOptions),
    Http(HttpOptions),
    File(FileOptions),
}

impl SinkKind {
    /// As in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kafka(_) => "kafka",
            Self::Mongodb(_) => "mongodb",
            Self::Http(_) => "http",
            Self::File(_) => "file",
        }
    }

    /// Which server or file, for people; without what may be secret: user names, passwords, paths and queries of URLs.
    pub fn place(&self) -> String {
        match self {
            Self::Kafka(kafka) => format!("Kafka at {}", kafka.brokers),
            Self::Mongodb(mongodb) => format!("MongoDB at {}", hosts(&mongodb.uri)),
            Self::Http(http) => format!("HTTP at {}", hosts(&http.url)),
            Self::File(FileOptions { path }) if path.is_empty() || path == "-" => "standard output".into(),
            Self::File(FileOptions { path }) => format!("file {path}"),
        }
    }
}

/// The hosts of a URL or a connection string.
fn hosts(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts)
}

/// Parts of its records: topic, key, payload, MQTT properties for headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaOptions {
    /// `host:port`, separated by commas.
    pub brokers: String,
    pub compression: Compression,
    pub acks: Acks,
    pub idempotence: bool,
    pub partitioner: Partitioner,
    pub tls: bool,
    /// Certificates of authorities in PEM; empty: those of the system.
    pub tls_ca_path: String,
    pub tls_certificate_path: String,
    pub tls_key_path: String,
    pub sasl: Sasl,
    pub sasl_username: String,
    /// The file that holds the password, without the newline at its end.
    pub sasl_password_path: String,
    /// Further settings of librdkafka, as `name=value` separated by commas or new lines.
    pub properties: String,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            brokers: "127.0.0.1:9092".into(),
            compression: Compression::Lz4,
            acks: Acks::All,
            idempotence: true,
            partitioner: Partitioner::Murmur2Random,
            tls: false,
            tls_ca_path: String::new(),
            tls_certificate_path: String::new(),
            tls_key_path: String::new(),
            sasl: Sasl::None,
            sasl_username: String::new(),
            sasl_password_path: String::new(),
            properties: String::new(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    None,
    Gzip,
    Lz4,
    Snappy,
    Zstd,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acks {
    None,
    Leader,
    All,
}

/// As librdkafka names them; `murmur2_random` is the one of Java's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Partitioner {
    Murmur2Random,
    ConsistentRandom,
    Fnv1aRandom,
    Random,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sasl {
    None,
    Plain,
    ScramSha256,
    ScramSha512,
}

/// Parts of its records: collection, document as JSON, filter of an upsert as JSON (empty: the document is inserted), the `_id` of a
/// document that brings none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MongodbOptions {
    /// A connection string.
    pub uri: String,
    pub database: String,
    /// Documents are inserted in their order, one batch at a time.
    pub ordered: bool,
    /// Batches under way at the same time, if not `ordered`; 1 where some action has a filter, because the order of upserts counts.
    pub batches_max: u32,
}

impl Default for MongodbOptions {
    fn default() -> Self {
        Self { uri: "mongodb://127.0.0.1:27017".into(), database: "corelane".into(), ordered: false, batches_max: 4 }
    }
}

/// Parts of its records: what is appended to the URL, body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpOptions {
    pub url: String,
    pub method: Method,
    pub body: BodyFormat,
    /// `Name: value` lines.
    pub headers: String,
    pub timeout_ms: u32,
    /// Requests under way at the same time.
    pub requests_max: u32,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            url: String::new(),
            method: Method::Post,
            body: BodyFormat::JsonArray,
            headers: String::new(),
            timeout_ms: 10_000,
            requests_max: 4,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    Post,
    Put,
}

/// How the records of a batch become one body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFormat {
    /// `[a,b]`; bodies must be JSON.
    JsonArray,
    /// A line each.
    JsonLines,
    /// Each record is a request of its own.
    Single,
}

/// Part of its records: the line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileOptions {
    /// Empty or `-`: standard output.
    pub path: String,
}

/// Kafka topics whose records are published to clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceOptions {
    pub name: String,
    pub kafka: KafkaOptions,
    /// Kafka topics, separated by commas.
    pub topics: String,
    pub group: String,
    /// With `${topic}`, `${key}`, `${partition}`, `${offset}` and `${headers.NAME}`.
    pub mqtt_topic: String,
    pub qos: u8,
    pub retain: bool,
    /// Where a group without committed offsets begins.
    pub from_beginning: bool,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            kafka: KafkaOptions::default(),
            topics: String::new(),
            group: "corelane".into(),
            mqtt_topic: "${key}".into(),
            qos: 1,
            retain: false,
            from_beginning: false,
        }
    }
}

/// An action as the sink core knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionOptions {
    pub id: ActionId,
    /// The rule's name and the action's number in it, for status and dead letters: `telemetry/1`.
    pub label: String,
    pub sink: u8,
    pub confirm: Confirm,
}

/// When a record counts as accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Confirm {
    /// Once it is buffered: in memory at once, or written to the disk buffer if there is one.
    #[default]
    Queued,
    /// Once the server has confirmed it.
    Delivered,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_names_servers_and_files_but_no_secrets() {
        let mongodb = |uri: &str| SinkKind::Mongodb(MongodbOptions { uri: uri.into(), ..MongodbOptions::default() });
        let http = |url: &str| SinkKind::Http(HttpOptions { url: url.into(), ..HttpOptions::default() });
        let file = |path: &str| SinkKind::File(FileOptions { path: path.into() });
        let cases = [
            (
                SinkKind::Kafka(KafkaOptions { brokers: "a:9092,b:9092".into(), ..KafkaOptions::default() }),
                "Kafka at a:9092,b:9092",
            ),
            (mongodb("mongodb://ann:p@ss@a:27017,b:27018/?replicaSet=r"), "MongoDB at a:27017,b:27018"),
            (mongodb("mongodb+srv://cluster.example"), "MongoDB at cluster.example"),
            (http("https://token@host:8443/in?key=secret"), "HTTP at host:8443"),
            (file("-"), "standard output"),
            (file("/var/log/rows.jsonl"), "file /var/log/rows.jsonl"),
        ];
        for (kind, place) in cases {
            assert_eq!(kind.place(), place);
        }
    }
}
