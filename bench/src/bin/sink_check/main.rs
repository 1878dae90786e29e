//! What sinks have to show: the limit of what a server takes from a plain client, load whose acknowledgements are remembered, and every
//! message found again.
//!
//! | module | what |
//! |---|---|
//! | [`found`] | every message that was found: losses, duplicates, order per key, times |
//! | [`acknowledged`] | what a broker has acknowledged to its clients, as a file |
//! | [`publishing`] | QoS 1 clients that outlive their broker |
//! | [`kafka`] | a plain producer, and a topic read to its end |
//! | [`mongodb`] | a plain driver, and a collection read to its end |
//!
//! They are not in the library because what only reaches an MQTT broker should not link the clients of Kafka and MongoDB.

mod acknowledged;
mod found;
mod kafka;
mod mongodb;
mod publishing;

use clap::{Args, Parser, Subcommand, ValueEnum};
use corelane_bench::load::report::{Percentiles, significant};
use corelane_bench::load::scenario::SIZE_MAX;
use corelane_bench::load::stamp::{JSON_BYTES_MIN, STAMP_BYTES};
use corelane_bench::load::template::Template;
use corelane_bench::process;
use found::Found;
use publishing::WINDOW_MAX;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(version, about = "Whether everything that clients sent is in Kafka or MongoDB, and what these take from a plain client", after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 everything held, 1 something did not, 2 it could not be done.";

#[derive(Subcommand)]
enum Command {
    /// Make a Kafka topic whose records carry the time at which Kafka appended them
    Create {
        #[command(flatten)]
        place: Place,
        #[arg(long, default_value_t = 4)]
        partitions: i32,
    },
    /// Be a Kafka of librdkafka's (its mock cluster) until standard input ends; prints its address, `down` and `up` are an outage
    Mock,
    /// Produce to Kafka from memory with a plain producer: the limit of a sink with the same settings
    Produce {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        payload: Payload,
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
        /// Messages per second; 0 is as fast as the producer takes them
        #[arg(long, default_value_t = 0.0)]
        rate: f64,
        /// Keys are those of so many publishers in turn
        #[arg(long, default_value_t = 2000)]
        publishers: u32,
        #[arg(long, default_value = "vehicle-{i}", value_parser = Template::parse)]
        key: Template,
        /// Settings of librdkafka, in place of those that a sink has by default
        #[arg(short = 'X', value_parser = parse_property, default_values = SINK_DEFAULTS)]
        property: Vec<(String, String)>,
    },
    /// Insert into MongoDB with the plain driver as fast as the server takes it
    Insert {
        #[command(flatten)]
        place: Place,
        #[arg(long, default_value_t = 100)]
        size: usize,
        /// Documents per insertMany
        #[arg(long, default_value_t = 1000)]
        batch: u32,
        /// insertMany under way at a time
        #[arg(long, default_value_t = 4)]
        parallel: u32,
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
    },
    /// Read a sink to its end and say what is missing, there twice, or out of order
    Verify {
        #[command(flatten)]
        place: Place,
        /// So many distinct messages have to be there, and no number of a publisher may be missing
        #[arg(long)]
        expect: Option<u64>,
        /// The key of each publisher's records
        #[arg(long, value_parser = Template::parse)]
        key: Option<Template>,
        /// Messages found twice are no fault
        #[arg(long)]
        duplicates: bool,
        /// Kafka: go on reading until what is expected was found, or nothing came for so many seconds
        #[arg(long, requires = "expect")]
        follow_s: Option<f64>,
        /// Kafka: times are those of arrivals here, not those at which Kafka appended
        #[arg(long)]
        arrivals: bool,
    },
    /// Publish with QoS 1 from clients that outlive their broker, and write down what was acknowledged
    Publish {
        #[arg(long, default_value = "127.0.0.1:1883")]
        address: SocketAddr,
        #[arg(long, default_value_t = 200)]
        clients: u32,
        /// Connections begun per second; 0 is all at once
        #[arg(long, default_value_t = 0.0)]
        connect_rate: f64,
        /// Messages per second of all clients together
        #[arg(long, default_value_t = 1000.0)]
        rate: f64,
        /// Unacknowledged messages of a client, at most
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(WINDOW_MAX)))]
        window: u32,
        #[arg(long, default_value_t = 30.0)]
        seconds: f64,
        /// Publishing ends as soon as there is such a file
        #[arg(long)]
        until_file: Option<PathBuf>,
        /// Longest wait for missing acknowledgements at the end
        #[arg(long, default_value_t = 60.0)]
        drain_s: f64,
        #[arg(long, default_value_t = 10)]
        keep_alive_s: u16,
        #[command(flatten)]
        payload: Payload,
        #[arg(long, default_value = "vehicle-{i}", value_parser = Template::parse)]
        client_id: Template,
        #[arg(long, default_value = "vehicle/{i}/telemetry", value_parser = Template::parse)]
        topic: Template,
        /// Where the acknowledged numbers of each client are written
        #[arg(long)]
        acknowledged: PathBuf,
        /// No line per second
        #[arg(long)]
        quiet: bool,
    },
    /// Whether every acknowledged message is in the sink
    Check {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        acknowledged: PathBuf,
    },
}

/// What the broker's Kafka sink sets unless it is told otherwise.
const SINK_DEFAULTS: [&str; 7] = [
    "compression.type=lz4",
    "acks=all",
    "enable.idempotence=true",
    "partitioner=murmur2_random",
    "linger.ms=5",
    "batch.num.messages=10000",
    "batch.size=1048576",
];

#[derive(Args)]
struct Place {
    #[arg(long, value_enum, default_value_t = Sink::Kafka)]
    into: Sink,
    /// Kafka's `host:port`, or MongoDB's connection string
    #[arg(long)]
    server: Option<String>,
    /// Kafka's topic, or MongoDB's DATABASE.COLLECTION
    #[arg(long)]
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sink {
    Kafka,
    Mongodb,
}

impl Place {
    fn server(&self) -> &str {
        self.server.as_deref().unwrap_or(match self.into {
            Sink::Kafka => "127.0.0.1:9092",
            Sink::Mongodb => "mongodb://127.0.0.1:27017",
        })
    }

    fn only(&self, into: Sink) -> Result<&str, String> {
        let wrong = "this command is for the other kind of sink".to_owned();
        if self.into == into { Ok(self.server()) } else { Err(wrong) }
    }

    fn read(&self, key: Option<Template>, follow: Option<(u64, Duration)>, arrivals: bool) -> Result<Found, String> {
        let mut found = Found::default();
        match self.into {
            Sink::Kafka => {
                let reading = kafka::Reading { topic: self.name.clone(), key, follow, arrivals };
                kafka::read(self.server(), &reading, &mut found)?;
            }
            Sink::Mongodb => mongodb::read(self.server(), &self.name, &mut found)?,
        }
        println!("{found}");
        Ok(found)
    }
}

#[derive(Args)]
struct Payload {
    /// Payload bytes
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// The payload is a JSON object
    #[arg(long)]
    json: bool,
}

impl Payload {
    fn check(&self) -> Result<(), String> {
        let least = if self.json { JSON_BYTES_MIN } else { STAMP_BYTES };
        if (least..=SIZE_MAX).contains(&self.size) { Ok(()) } else { Err(format!("--size is {least} to {SIZE_MAX} bytes")) }
    }
}

fn parse_property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("sink_check: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<bool, String> {
    match command {
        Command::Create { place, partitions } => {
            kafka::create(place.only(Sink::Kafka)?, &place.name, partitions)?;
            Ok(true)
        }
        Command::Mock => {
            kafka::mock(std::io::stdin().lines())?;
            Ok(true)
        }
        Command::Produce { place, payload, messages, rate, publishers, key, property } => {
            payload.check()?;
            let feed = kafka::Feed {
                topic: place.name.clone(),
                properties: property,
                messages,
                rate,
                publishers: publishers.max(1),
                key,
                size: payload.size,
                json: payload.json,
            };
            let produced = kafka::produce(place.only(Sink::Kafka)?, &feed)?;
            println!("{produced}");
            Ok(produced.failed == 0 && produced.delivered == messages)
        }
        Command::Insert { place, size, batch, parallel, seconds } => {
            let uri = place.only(Sink::Mongodb)?.to_owned();
            let inserted = mongodb::insert(&mongodb::Filling { uri, collection: place.name, batch, parallel, seconds, size })?;
            println!("{inserted}");
            Ok(inserted.documents > 0)
        }
        Command::Verify { place, expect, key, duplicates, follow_s, arrivals } => {
            let found = place.read(key, expect.zip(follow_s.map(Duration::from_secs_f64)), arrivals)?;
            if let Some(times) = Percentiles::of(&found.times) {
                let [p50, p99, max] = [times.p50_ms, times.p99_ms, times.max_ms].map(significant);
                println!("end to end: p50 {p50} ms, p99 {p99}, max {max}");
            }
            let missing = expect.map_or(0, |expect| expect.saturating_sub(found.distinct));
            println!("missing {missing}");
            let whole = expect.is_none_or(|expect| found.distinct == expect && found.gaps() == 0);
            Ok(whole && found.in_order() && found.unreadable == 0 && (duplicates || found.duplicates == 0))
        }
        Command::Publish {
            address,
            clients,
            connect_rate,
            rate,
            window,
            seconds,
            until_file,
            drain_s,
            keep_alive_s,
            payload,
            client_id,
            topic,
            acknowledged,
            quiet,
        } => {
            payload.check()?;
            process::raise_file_limit().map_err(|error| format!("the file limit: {error}"))?;
            let settings = publishing::Settings {
                address,
                clients: clients.max(1),
                connect_rate,
                rate,
                seconds,
                until_file,
                drain_s,
                window,
                size: payload.size,
                json: payload.json,
                client_id,
                topic,
                keep_alive_s,
                progress: !quiet,
            };
            let outcome = publishing::run(&settings).map_err(|error| error.to_string())?;
            acknowledged::write(&acknowledged, (0..).zip(&outcome.acknowledged))?;
            println!("{outcome}");
            Ok(outcome.totals.unanswered == 0 && outcome.totals.acknowledged == outcome.totals.sent)
        }
        Command::Check { place, acknowledged } => {
            let lines = acknowledged::read(&acknowledged)?;
            let found = place.read(None, None, false)?;
            let comparison = acknowledged::compare(&lines, &found);
            println!(
                "acknowledged {}, found {}, missing {}, duplicates {}, found without acknowledgement {}",
                comparison.acknowledged, found.distinct, comparison.missing, found.duplicates, comparison.unacknowledged
            );
            for (publisher, number) in &comparison.examples {
                println!("  missing: number {number} of publisher {publisher}");
            }
            Ok(comparison.missing == 0 && comparison.acknowledged > 0)
        }
    }
}
