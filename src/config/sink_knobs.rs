//! The tables of sinks, one kind each, and of sources.

use super::setting::{Choice, Domain};
use super::table::*;
use crate::sinks::options::{
    Acks, BodyFormat, BufferOptions, Compression, FileOptions, HttpOptions, KafkaOptions, Method, MongodbOptions, Partitioner,
    Sasl, SourceOptions, WhenFull,
};

/// A sink as the file has it.
#[derive(Clone, Default)]
pub struct Sink<K> {
    pub name: String,
    pub when_full: FullPolicy,
    /// All of it but `when_full`.
    pub buffer: BufferOptions,
    pub options: K,
}

/// [`WhenFull`], or what suits the actions of a sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FullPolicy {
    /// Hold, if some action's acknowledgements wait for the sink.
    #[default]
    Auto,
    Always(WhenFull),
}

impl Choice for FullPolicy {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("hold", Self::Always(WhenFull::Hold)), ("drop_oldest", Self::Always(WhenFull::DropOldest))];
}

impl Choice for Compression {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("gzip", Self::Gzip), ("lz4", Self::Lz4), ("snappy", Self::Snappy), ("zstd", Self::Zstd)];
}

impl Choice for Acks {
    const CHOICES: &'static [(&'static str, Self)] = &[("none", Self::None), ("leader", Self::Leader), ("all", Self::All)];
}

impl Choice for Partitioner {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("murmur2_random", Self::Murmur2Random),
        ("consistent_random", Self::ConsistentRandom),
        ("fnv1a_random", Self::Fnv1aRandom),
        ("random", Self::Random),
    ];
}

impl Choice for Sasl {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("plain", Self::Plain),
        ("scram_sha_256", Self::ScramSha256),
        ("scram_sha_512", Self::ScramSha512),
    ];
}

impl Choice for Method {
    const CHOICES: &'static [(&'static str, Self)] = &[("post", Self::Post), ("put", Self::Put)];
}

impl Choice for BodyFormat {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("json_array", Self::JsonArray), ("json_lines", Self::JsonLines), ("single", Self::Single)];
}

impl AsMut<KafkaOptions> for Sink<KafkaOptions> {
    fn as_mut(&mut self) -> &mut KafkaOptions {
        &mut self.options
    }
}

impl AsMut<KafkaOptions> for SourceOptions {
    fn as_mut(&mut self) -> &mut KafkaOptions {
        &mut self.kafka
    }
}

/// What every sink has; `example` is its name in the reference.
const fn sink_knobs<K>(example: &'static str) -> [Knob<Sink<K>>; 9] {
    [
        knob(
            "name",
            RESTART,
            Domain::Name,
            "What actions call it by, and its name below $SYS/broker/sinks/.",
            |s: &mut Sink<K>| &mut s.name,
        )
        .required(example),
        knob(
            "memory_bytes_max",
            RESTART,
            bytes(64 * KIB, TIB),
            "Bytes of records in memory, being delivered or waiting. With a disk buffer, what exceeds it waits on disk.",
            |s| &mut s.buffer.memory_bytes_max,
        ),
        knob(
            "disk_path",
            RESTART,
            text(4096),
            "The directory of the disk buffer, which outlives the process; empty means that there is none.",
            |s| &mut s.buffer.disk_path,
        ),
        knob(
            "disk_bytes_max",
            RESTART,
            bytes(MIB, 16 * TIB),
            "Bytes of records in the disk buffer; its files may take a quarter more.",
            |s| &mut s.buffer.disk_bytes_max,
        ),
        knob(
            "when_full",
            RESTART,
            Domain::Any,
            "What happens when the buffer is full: \"hold\" has publishers of QoS 1 and 2 wait and drops QoS 0, \"drop_oldest\" drops the oldest records; both count what is dropped. \"auto\" is \"hold\" if any action of the sink has ack = \"delivered\", else \"drop_oldest\".",
            |s| &mut s.when_full,
        ),
        knob(
            "dead_letter_path",
            RESTART,
            text(4096),
            "The file for records that the sink will never take, a line of JSON each; empty means NAME.dead-letters.jsonl in the working directory.",
            |s| &mut s.buffer.dead_letter_path,
        ),
        knob("linger_ms", RESTART, milliseconds(1, 60_000).or_zero("at once"), "How long a batch waits for more records.", |s| {
            &mut s.buffer.linger_ms
        }),
        knob("batch_records_max", RESTART, count(1, 1_000_000), "Records of a batch.", |s| &mut s.buffer.batch_records_max),
        knob(
            "batch_bytes_max",
            RESTART,
            bytes(KIB, GIB),
            "Bytes of a batch; a record that is larger alone is a batch of its own.",
            |s| &mut s.buffer.batch_bytes_max,
        ),
    ]
}

/// How a Kafka cluster is reached.
const fn connection_knobs<T: AsMut<KafkaOptions>>() -> [Knob<T>; 9] {
    [
        knob(
            "brokers",
            RESTART,
            text(4096),
            "HOST:PORT of some brokers of the cluster, separated by commas; the others are learnt from them.",
            |t: &mut T| &mut t.as_mut().brokers,
        ),
        knob("tls", RESTART, Domain::Any, "Whether connections are encrypted.", |t| &mut t.as_mut().tls),
        knob(
            "tls_ca_path",
            RESTART,
            text(4096),
            "Certificates of the authorities that are trusted, in PEM; empty means those of the system.",
            |t| &mut t.as_mut().tls_ca_path,
        ),
        knob(
            "tls_certificate_path",
            RESTART,
            text(4096),
            "The certificate that the broker shows, in PEM; empty means none.",
            |t| &mut t.as_mut().tls_certificate_path,
        ),
        knob("tls_key_path", RESTART, text(4096), "Its private key, in PEM.", |t| &mut t.as_mut().tls_key_path),
        knob("sasl", RESTART, Domain::Any, "How the broker proves who it is.", |t| &mut t.as_mut().sasl),
        knob("sasl_username", RESTART, text(1024), "The user name for sasl.", |t| &mut t.as_mut().sasl_username),
        knob(
            "sasl_password_path",
            RESTART,
            text(4096),
            "The file that holds the password for sasl; a newline at its end is not part of it.",
            |t| &mut t.as_mut().sasl_password_path,
        ),
        knob(
            "properties",
            RESTART,
            lines(65_535),
            "Further settings of librdkafka, as name=value separated by commas or new lines.",
            |t| &mut t.as_mut().properties,
        ),
    ]
}

pub static KAFKA: Table<Sink<KafkaOptions>> = Table {
    name: "kafka",
    description: "A Kafka cluster that actions write to.",
    list: true,
    knobs: &[
        &sink_knobs("\"kafka\""),
        &connection_knobs(),
        &[
            knob("compression", RESTART, Domain::Any, "How batches are compressed.", |s| &mut s.options.compression),
            knob(
                "acks",
                RESTART,
                Domain::Any,
                "Whose confirmation counts: nobody's, the partition leader's, or that of all replicas in sync.",
                |s| &mut s.options.acks,
            ),
            knob(
                "idempotence",
                RESTART,
                Domain::Any,
                "Whether retries are free of duplicates and changes of order; needs acks = \"all\".",
                |s| &mut s.options.idempotence,
            ),
            knob(
                "partitioner",
                RESTART,
                Domain::Any,
                "How a key finds its partition; \"murmur2_random\" does as Kafka's Java clients do.",
                |s| &mut s.options.partitioner,
            ),
        ],
    ],
};

pub static MONGODB: Table<Sink<MongodbOptions>> = Table {
    name: "mongodb",
    description: "A MongoDB server or cluster that actions write to.",
    list: true,
    knobs: &[
        &sink_knobs("\"mongodb\""),
        &[
            knob(
                "uri",
                RESTART,
                text(65_535),
                "The connection string, with user, TLS and write concern where they are needed.",
                |s| &mut s.options.uri,
            ),
            knob("database", RESTART, text(63), "The database.", |s| &mut s.options.database),
            knob(
                "ordered",
                RESTART,
                Domain::Any,
                "Insert documents in their order, one batch at a time; what follows a refused document is then sent anew.",
                |s| &mut s.options.ordered,
            ),
            knob(
                "batches_max",
                RESTART,
                count(1, 64),
                "Batches under way at the same time; 1 if ordered, or if some action of the sink has a filter.",
                |s| &mut s.options.batches_max,
            ),
        ],
    ],
};

pub static HTTP: Table<Sink<HttpOptions>> = Table {
    name: "http",
    description: "An HTTP server that actions write to.",
    list: true,
    knobs: &[
        &sink_knobs("\"http\""),
        &[
            knob("url", RESTART, text(65_535), "Where requests go; an action may append a path.", |s: &mut Sink<HttpOptions>| {
                &mut s.options.url
            })
            .required("\"http://127.0.0.1:8080/ingest\""),
            knob("method", RESTART, Domain::Any, "The method of requests.", |s| &mut s.options.method),
            knob(
                "body",
                RESTART,
                Domain::Any,
                "How the records of a batch become a body: [a,b], a line each, or a request for each record.",
                |s| &mut s.options.body,
            ),
            knob(
                "headers",
                RESTART,
                lines(65_535),
                "Further headers, a line such as \"Authorization: Bearer x\" each; a Content-Type here replaces the body's own.",
                |s| &mut s.options.headers,
            ),
            knob("timeout_ms", RESTART, milliseconds(10, 600_000), "Time for a request, answer included.", |s| {
                &mut s.options.timeout_ms
            }),
            knob("requests_max", RESTART, count(1, 256), "Requests under way at the same time; 1 keeps their order.", |s| {
                &mut s.options.requests_max
            }),
        ],
    ],
};

pub static FILE: Table<Sink<FileOptions>> = Table {
    name: "file",
    description: "A file, or standard output, that actions write lines to.",
    list: true,
    knobs: &[
        &sink_knobs("\"file\""),
        &[knob("path", RESTART, text(4096), "The file, which is appended to; empty or \"-\" means standard output.", |s| {
            &mut s.options.path
        })],
    ],
};

pub static KAFKA_SOURCE: Table<SourceOptions> = Table {
    name: "kafka_source",
    description: "Kafka topics whose records are published to clients.",
    list: true,
    knobs: &[
        &[
            knob("name", RESTART, Domain::Name, "Its name in logs and below $SYS/broker/sources/.", |s: &mut SourceOptions| {
                &mut s.name
            })
            .required("\"commands\""),
            knob("topics", RESTART, text(65_535), "The Kafka topics, separated by commas.", |s: &mut SourceOptions| {
                &mut s.topics
            })
            .required("\"commands\""),
            knob("group", RESTART, text(249), "The consumer group, which remembers how far it has come.", |s| &mut s.group),
            knob(
                "mqtt_topic",
                RESTART,
                text(65_535),
                "The MQTT topic, with ${topic}, ${key}, ${partition}, ${offset} and ${headers.NAME} of the Kafka record.",
                |s| &mut s.mqtt_topic,
            ),
            knob("qos", RESTART, count(0, 2), "QoS of the messages.", |s| &mut s.qos),
            knob("retain", RESTART, Domain::Any, "Whether the messages are retained.", |s| &mut s.retain),
            knob(
                "from_beginning",
                RESTART,
                Domain::Any,
                "Where a group that has not been here before begins: with all there is, or with what is new.",
                |s| &mut s.from_beginning,
            ),
        ],
        &connection_knobs(),
    ],
};
