//! Against the cluster that librdkafka brings along for tests.

use super::super::options::{Confirm, SinkKind, SinkOptions};
use super::super::testing::{Directory, World, record, wait_until};
use super::*;
use crate::ids::TicketId;
use crate::record::Outcome;
use crate::wire::Property;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::collections::BTreeSet;

const PARTITIONS: i32 = 3;

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("telemetry", PARTITIONS, 1).unwrap();
    cluster
}

fn sink(cluster: &Cluster, directory: &Directory, properties: &str) -> SinkOptions {
    let kafka =
        KafkaOptions { brokers: cluster.bootstrap_servers(), properties: properties.to_owned(), ..KafkaOptions::default() };
    let dead_letter_path = directory.path("letters").to_str().unwrap().to_owned();
    let buffer = BufferOptions { dead_letter_path, ..BufferOptions::default() };
    SinkOptions { name: "kafka".into(), buffer, kind: SinkKind::Kafka(kafka) }
}

fn start(sink: SinkOptions) -> World {
    World::start(1, vec![sink], &[(0, Confirm::Delivered)], |_| None)
}

fn numbered(topic: &str, number: u64) -> Record {
    let key = format!("car-{}", number % 7);
    let mut record = record(0, &[topic.as_bytes(), key.as_bytes(), format!("{number:06}").as_bytes()]);
    record.ticket = Some(TicketId { slot: number as u32, generation: 0 });
    record
}

fn push(world: &mut World, numbers: std::ops::Range<u64>) {
    world.push_records(0, 0, numbers.map(|number| numbered("telemetry", number)).collect());
}

struct Read {
    key: Vec<u8>,
    payload: Vec<u8>,
    timestamp_ms: i64,
    headers: Vec<(String, Vec<u8>)>,
}

/// What is in the topic, of each partition in order, until there are so many.
fn read(cluster: &Cluster, count: usize) -> Vec<Read> {
    read_until(cluster, |all| all.len() >= count)
}

fn read_until(cluster: &Cluster, is_enough: impl Fn(&[Read]) -> bool) -> Vec<Read> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let mut partitions = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        partitions.add_partition_offset("telemetry", partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&partitions).unwrap();
    let mut all = Vec::new();
    let until = Instant::now() + Duration::from_secs(20);
    while !is_enough(&all) && Instant::now() < until {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            let headers = message
                .headers()
                .map(|headers| headers.iter().map(|header| (header.key.to_owned(), header.value.unwrap().to_vec())).collect());
            all.push(Read {
                key: message.key().unwrap_or_default().to_vec(),
                payload: message.payload().unwrap_or_default().to_vec(),
                timestamp_ms: message.timestamp().to_millis().unwrap(),
                headers: headers.unwrap_or_default(),
            });
        }
    }
    all
}

/// The numbers in the topic: each at least once, and its first in order among those of its key.
fn numbers(cluster: &Cluster, count: usize) -> Vec<u64> {
    let mut last = HashMap::new();
    let mut numbers = Vec::new();
    for read in read(cluster, count) {
        let number: u64 = str::from_utf8(&read.payload).unwrap().parse().unwrap();
        assert_eq!(read.key, format!("car-{}", number % 7).as_bytes());
        if let Some(last) = last.insert(read.key, number) {
            assert!(number > last, "{number} behind {last}");
        }
        numbers.push(number);
    }
    numbers.sort_unstable();
    numbers
}

fn letters(directory: &Directory) -> Vec<(String, String)> {
    let lines = std::fs::read_to_string(directory.path("letters")).unwrap_or_default();
    let letter = |line: &str| {
        let letter: serde_json::Value = serde_json::from_str(line).unwrap();
        (letter["parts"][2].as_str().unwrap().to_owned(), letter["reason"].as_str().unwrap().to_owned())
    };
    lines.lines().map(letter).collect()
}

#[test]
fn records_arrive_with_key_payload_headers_and_the_time_of_their_publish() {
    let (cluster, directory) = (cluster(), Directory::new());
    let mut world = start(sink(&cluster, &directory, ""));
    let mut properties = Vec::new();
    Property::ContentType("json").encode(&mut properties);
    Property::UserProperty(("region", "eu")).encode(&mut properties);
    Property::UserProperty(("region", "north")).encode(&mut properties);
    world.push_records(0, 0, vec![record(0, &[b"telemetry", b"car-1", b"{\"v\":1}", &properties])]);
    world.assert_nothing_held();
    let read = read(&cluster, 1);
    assert_eq!(
        (&read[0].key[..], &read[0].payload[..], read[0].timestamp_ms),
        (&b"car-1"[..], &b"{\"v\":1}"[..], 1_700_000_000_000)
    );
    let header = |value: &str| ("region".to_owned(), value.as_bytes().to_vec());
    assert_eq!(read[0].headers, [header("eu"), header("north")]);
    let status = world.status();
    assert_eq!([&status["sinks/kafka/connected"], &status["sinks/kafka/delivered"]], ["1", "1"]);
}

#[test]
fn every_record_arrives_once_and_in_the_order_of_its_key_whatever_the_compression() {
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let (cluster, directory) = (cluster(), Directory::new());
        let mut world = start(sink(&cluster, &directory, &format!("compression.type={compression}")));
        for round in 0..20 {
            push(&mut world, round * 100..round * 100 + 100);
        }
        let answers = world.answers(0, 2_000);
        assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted));
        assert!(numbers(&cluster, 2_000).into_iter().eq(0..2_000), "{compression}");
        world.assert_nothing_held();
    }
}

#[test]
fn a_record_that_librdkafka_itself_refuses_is_a_dead_letter_and_the_rest_goes_on() {
    let (cluster, directory) = (cluster(), Directory::new());
    let mut world = start(sink(&cluster, &directory, "message.max.bytes=1000"));
    let large = |number: u64| record(0, &[b"telemetry", b"car-0", &vec![b'0' + number as u8; 2_000]]);
    push(&mut world, 0..10);
    world.push_records(0, 0, vec![large(1), record(0, &[b"", b"k", b"no topic"]), record(0, &[b"a\0b", b"k", b"nul"])]);
    push(&mut world, 10..20);
    let answers = world.answers(0, 20);
    assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted));
    world.assert_nothing_held();
    assert!(numbers(&cluster, 20).into_iter().eq(0..20));
    let letters = letters(&directory);
    assert_eq!(letters.iter().map(|(payload, _)| payload.len()).collect::<Vec<_>>(), [2_000, 8, 3]);
    assert!(letters[0].1.contains("Message size too large"), "{letters:?}");
    assert_eq!(letters[1].1, "it has no topic");
    assert!(letters[2].1.starts_with("\"a\\0b\" is no Kafka topic"), "{letters:?}");
    assert_eq!(world.status()["sinks/kafka/dead_letters"], "3");
}

#[test]
fn of_a_refused_batch_only_the_record_that_is_refused_alone_is_a_dead_letter() {
    use RDKafkaRespErr::*;
    for error in [RD_KAFKA_RESP_ERR_INVALID_RECORD, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE] {
        let (cluster, directory) = (cluster(), Directory::new());
        let mut options = sink(&cluster, &directory, "");
        options.buffer.linger_ms = 100;
        let mut world = start(options);
        // Eight in one batch, then four, two, and one.
        cluster.request_errors(RDKafkaApiKey::Produce, &[error; 4]);
        let records = (0..8).map(|number| numbered("telemetry", 7 * number)).collect();
        world.push_records(0, 0, records);
        let mut answers = world.answers(0, 8);
        answers.sort_unstable_by_key(|(number, _)| *number);
        let failed: Vec<u32> =
            answers.iter().filter(|(_, outcome)| *outcome == Outcome::Failed).map(|(number, _)| *number).collect();
        assert_eq!(failed, [0], "{error:?}");
        assert_eq!(letters(&directory).len(), 1);
        assert_eq!(numbers(&cluster, 7), [7, 14, 21, 28, 35, 42, 49]);
        world.assert_nothing_held();
    }
}

#[test]
fn a_topic_that_kafka_does_not_know_or_does_not_let_be_written_makes_dead_letters() {
    use RDKafkaRespErr::*;
    for (error, reason) in [
        (RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, "nknown topic"),
        (RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, "uthorization"),
        (RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION, "opic"),
    ] {
        let (cluster, directory) = (cluster(), Directory::new());
        cluster.create_topic("missing", 1, 1).unwrap();
        cluster.topic_error("missing", error).unwrap();
        let mut world = start(sink(&cluster, &directory, "topic.metadata.propagation.max.ms=300"));
        world.push_records(0, 0, (0..5).map(|number| numbered("missing", number)).collect());
        push(&mut world, 5..10);
        let mut answers = world.answers(0, 10);
        answers.sort_unstable_by_key(|(number, _)| *number);
        let outcome = |number| if number < 5 { Outcome::Failed } else { Outcome::Accepted };
        assert!(answers.iter().all(|(number, answer)| *answer == outcome(*number)), "{error:?} {answers:?}");
        let letters = letters(&directory);
        assert_eq!(letters.len(), 5, "{error:?}");
        assert!(letters.iter().all(|(_, why)| why.contains(reason)), "{error:?} {letters:?}");
        world.assert_nothing_held();
    }
}

#[test]
fn a_topic_that_is_unknown_for_a_moment_after_an_outage_loses_nothing() {
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    // A topic that was unknown all along makes its records fail later, one that has become unknown at once.
    for was_known in [true, false] {
        let (cluster, directory) = (cluster(), Directory::new());
        if !was_known {
            cluster.topic_error("telemetry", unknown).unwrap();
        }
        let properties = "topic.metadata.propagation.max.ms=500\ntopic.metadata.refresh.interval.ms=200";
        let mut world = start(sink(&cluster, &directory, properties));
        if was_known {
            push(&mut world, 0..10);
            world.answers(0, 10);
        }
        cluster.broker_down(-1).unwrap();
        wait_until(|| world.status()["sinks/kafka/connected"] == "0" && !world.status()["sinks/kafka/last_error"].is_empty());
        cluster.topic_error("telemetry", unknown).unwrap();
        cluster.broker_up(-1).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        push(&mut world, 10..20);
        wait_until(|| world.status()["sinks/kafka/last_error"].contains("asking again"));
        cluster.topic_error("telemetry", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
        let answers = world.answers(0, 10);
        assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted), "{answers:?}");
        assert!(numbers(&cluster, 10).into_iter().all(|number| number < 20));
        assert!(letters(&directory).is_empty());
    }
}

#[test]
fn an_outage_holds_records_and_loses_none() {
    let (cluster, directory) = (cluster(), Directory::new());
    let mut world = start(sink(&cluster, &directory, ""));
    push(&mut world, 0..100);
    world.answers(0, 100);
    cluster.broker_down(-1).unwrap();
    push(&mut world, 100..1_000);
    wait_until(|| world.status()["sinks/kafka/connected"] == "0");
    assert!(world.answers_now(0).is_empty());
    let status = world.status();
    assert_eq!(status["sinks/kafka/queue/records"], "900");
    assert!(!status["sinks/kafka/last_error"].is_empty());
    push(&mut world, 1_000..1_100);
    cluster.broker_up(-1).unwrap();
    let answers = world.answers(0, 1_000);
    assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted));
    assert!(numbers(&cluster, 1_100).into_iter().eq(0..1_100));
    assert_eq!(world.status()["sinks/kafka/connected"], "1");
    world.assert_nothing_held();
}

#[test]
fn errors_that_pass_are_not_seen_by_anybody() {
    use RDKafkaRespErr::*;
    let (cluster, directory) = (cluster(), Directory::new());
    let mut world = start(sink(&cluster, &directory, "retry.backoff.ms=10"));
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            RD_KAFKA_RESP_ERR__TRANSPORT,
            RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        ],
    );
    push(&mut world, 0..500);
    let answers = world.answers(0, 500);
    assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted));
    assert!(numbers(&cluster, 500).into_iter().eq(0..500));
    assert!(letters(&directory).is_empty());
}

#[test]
fn what_librdkafka_gives_up_is_sent_again() {
    let (cluster, directory) = (cluster(), Directory::new());
    cluster.broker_down(-1).unwrap();
    let mut world = start(sink(&cluster, &directory, "message.timeout.ms=500"));
    push(&mut world, 0..50);
    wait_until(|| world.status()["sinks/kafka/retried"].parse::<u64>().unwrap() >= 50);
    cluster.broker_up(-1).unwrap();
    assert_eq!(world.answers(0, 50).len(), 50);
    assert!(numbers(&cluster, 50).into_iter().eq(0..50));
}

#[test]
fn a_producer_that_fails_for_good_is_made_anew_and_nothing_is_lost() {
    let (cluster, directory) = (cluster(), Directory::new());
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 2]);
    let mut world = start(sink(&cluster, &directory, ""));
    push(&mut world, 0..50);
    let answers = world.answers(0, 50);
    assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted), "{answers:?}");
    assert!(numbers(&cluster, 50).into_iter().eq(0..50));
    world.assert_nothing_held();
}

#[test]
fn the_window_bounds_what_librdkafka_holds() {
    let (cluster, directory) = (cluster(), Directory::new());
    cluster.broker_down(-1).unwrap();
    let mut options = sink(&cluster, &directory, "");
    options.buffer.batch_records_max = 3;
    let mut world = start(options);
    push(&mut world, 0..200);
    wait_until(|| world.status()["sinks/kafka/in_flight"] == "30");
    cluster.broker_up(-1).unwrap();
    world.answers(0, 200);
    assert!(numbers(&cluster, 200).into_iter().eq(0..200));
}

#[test]
fn a_disk_buffer_before_kafka_outlives_a_crash_of_the_broker_while_kafka_is_down() {
    let (cluster, directory) = (cluster(), Directory::new());
    let mut options = sink(&cluster, &directory, "");
    options.buffer.disk_path = directory.path("buffer").to_str().unwrap().to_owned();
    options.buffer.memory_bytes_max = 100 * numbered("telemetry", 0).bytes();
    let start = |confirm| World::start(1, vec![options.clone()], &[(0, confirm)], |_| None);
    let mut world = start(Confirm::Queued);
    push(&mut world, 0..300);
    world.answers(0, 300);
    world.assert_gate_empty();
    cluster.broker_down(-1).unwrap();
    push(&mut world, 300..1_000);
    assert_eq!(world.answers(0, 700).len(), 700);
    world.kill();
    drop(world);
    cluster.broker_up(-1).unwrap();
    let mut world = start(Confirm::Queued);
    push(&mut world, 1_000..1_100);
    world.answers(0, 100);
    world.assert_gate_empty();
    // Some may have come twice.
    let distinct = |all: &[Read]| all.iter().map(|read| read.payload.clone()).collect::<BTreeSet<_>>();
    let found = distinct(&read_until(&cluster, |all| distinct(all).len() == 1_100));
    assert!(found.into_iter().eq((0..1_100).map(|number| format!("{number:06}").into_bytes())));
}

#[test]
fn an_idle_producer_costs_next_to_nothing() {
    let (cluster, directory) = (cluster(), Directory::new());
    let mut world = start(sink(&cluster, &directory, ""));
    push(&mut world, 0..10);
    world.answers(0, 10);
    std::thread::sleep(Duration::from_millis(200));
    let before = world.thread_ticks();
    std::thread::sleep(Duration::from_secs(2));
    // In hundredths of a second.
    let ticks = world.thread_ticks() - before;
    assert!(ticks <= 1, "{ticks} ticks in two seconds of nothing");
}

#[test]
fn a_wrong_setting_is_an_error_at_the_start() {
    let (cluster, directory) = (cluster(), Directory::new());
    let options = sink(&cluster, &directory, "no.such.setting=1");
    let error = World::try_start(1, vec![options], &[(0, Confirm::Delivered)], |_| None).err().unwrap();
    assert!(error.to_string().starts_with("sink kafka: property no.such.setting=1: "), "{error}");
}

#[test]
fn the_last_error_is_why_a_server_is_down_and_not_that_all_are() {
    let connection = super::super::status::Connection::default();
    let note = |code, reason: &str| note_error(&connection, &KafkaError::Global(code), reason);
    connection.set_connected(true);
    note(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
    assert!(connection.last_error().ends_with("1/1 brokers are down"), "{}", connection.last_error());
    assert!(!connection.is_connected());
    note(RDKafkaErrorCode::Authentication, "no such user");
    note(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
    assert!(connection.last_error().ends_with("no such user"), "{}", connection.last_error());
}

#[test]
fn a_client_that_was_given_many_topics_is_made_anew_and_loses_nothing() {
    let (cluster, directory) = (cluster(), Directory::new());
    let topics: Vec<String> = (0..3 * TOPICS_MAX).map(|number| format!("t-{number}")).collect();
    for topic in &topics {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    let mut world = start(sink(&cluster, &directory, ""));
    world.push_records(0, 0, topics.iter().zip(0..).map(|(topic, number)| numbered(topic, number)).collect());
    let answers = world.answers(0, topics.len());
    assert!(answers.iter().all(|(_, outcome)| *outcome == Outcome::Accepted), "{:?}", letters(&directory));
    world.assert_nothing_held();
    let status = world.status();
    assert_eq!([&status["sinks/kafka/renewed"], &status["sinks/kafka/retried"]], ["2", "0"]);
}
