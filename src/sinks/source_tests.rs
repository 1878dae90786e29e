//! Against the cluster that librdkafka brings along for tests.

use super::super::options::KafkaOptions;
use super::super::testing::{World, wait_until};
use super::*;
use crate::runtime::sink_link::SinkCore;
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use std::collections::{BTreeSet, HashMap};

type Cluster = MockCluster<'static, DefaultProducerContext>;

const SHARDS: usize = 2;

fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("commands", 3, 1).unwrap();
    cluster
}

fn options(cluster: &Cluster) -> SourceOptions {
    let properties = "session.timeout.ms=6000\nheartbeat.interval.ms=200\nauto.commit.interval.ms=100".to_owned();
    SourceOptions {
        name: "commands".into(),
        kafka: KafkaOptions { brokers: cluster.bootstrap_servers(), properties, ..KafkaOptions::default() },
        topics: "commands".into(),
        group: "fleet".into(),
        mqtt_topic: "cmd/${key}".into(),
        from_beginning: true,
        ..SourceOptions::default()
    }
}

fn start(options: SourceOptions) -> World {
    World::start_with(SHARDS, vec![], &[], vec![options], |_| None).unwrap()
}

/// Writes records whose payloads are numbers, with one of seven keys each.
fn produce(cluster: &Cluster, numbers: std::ops::Range<u64>) {
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).set("linger.ms", "1").create().unwrap();
    for number in numbers {
        let (key, payload) = (format!("car-{}", number % 7), number.to_string());
        producer.send(BaseRecord::to("commands").key(&key).payload(&payload)).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(Duration::from_secs(10)).unwrap();
}

fn numbers(world: &World) -> Vec<u64> {
    world.messages.iter().map(|(_, message)| str::from_utf8(message.payload()).unwrap().parse().unwrap()).collect()
}

fn receive(world: &mut World, count: usize) {
    wait_until(|| {
        (0..SHARDS).for_each(|shard| drop(world.answers_now(shard)));
        world.messages.len() >= count
    });
}

fn assert_ordered(world: &World) {
    let mut last = HashMap::new();
    for ((_, message), number) in world.messages.iter().zip(numbers(world)) {
        assert_eq!(message.topic(), format!("cmd/car-{}", number % 7));
        if let Some(last) = last.insert(number % 7, number) {
            assert!(number > last, "{number} behind {last}");
        }
    }
}

#[test]
fn a_record_becomes_a_message_of_its_template_on_the_shard_of_its_key() {
    let cluster = cluster();
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", cluster.bootstrap_servers()).create().unwrap();
    let headers = OwnedHeaders::new()
        .insert(Header { key: "region", value: Some("eu") })
        .insert(Header { key: "binary", value: Some(&[0xFF][..]) })
        .insert(Header { key: "none", value: None::<&[u8]> });
    let record = BaseRecord::to("commands").key("car-1").payload("unlock").headers(headers);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(Duration::from_secs(10)).unwrap();
    let mqtt_topic = "${topic}/${headers.region}/${key}/${offset}".into();
    let mut world = start(SourceOptions { mqtt_topic, qos: 2, retain: true, ..options(&cluster) });
    receive(&mut world, 1);
    let (shard, message) = &world.messages[0];
    assert_eq!(*shard as u64, Hasher::from_seed(1).client_id("car-1") % SHARDS as u64);
    let message = message.as_ref();
    assert_eq!((message.topic, message.payload), ("commands/eu/car-1/0", &b"unlock"[..]));
    assert_eq!((message.qos, message.retain, message.expires_at), (QoS::ExactlyOnce, true, Time::NEVER));
    let mut properties = Vec::new();
    Property::UserProperty(("region", "eu")).encode(&mut properties);
    Property::UserProperty(("none", "")).encode(&mut properties);
    assert_eq!(message.properties, properties);
    wait_until(|| world.status()["sources/commands/published"] == "1");
    assert_eq!(world.status()["sources/commands/connected"], "1");
}

#[test]
fn what_was_accepted_does_not_come_again_and_what_was_not_does() {
    let cluster = cluster();
    produce(&cluster, 0..100);
    let mut world = start(options(&cluster));
    receive(&mut world, 100);
    wait_until(|| world.status()["sources/commands/published"] == "100");
    assert_ordered(&world);
    world.handle.stop();
    produce(&cluster, 100..150);
    // These are given to shards and none is accepted.
    let world = start(options(&cluster));
    wait_until(|| world.status()["sources/commands/received"] == "50");
    world.handle.stop();
    let mut world = start(options(&cluster));
    receive(&mut world, 50);
    let mut again = numbers(&world);
    again.sort_unstable();
    assert!(again.into_iter().eq(100..150));
    assert_ordered(&world);
}

#[test]
fn a_record_that_makes_no_topic_is_skipped_for_good() {
    let cluster = cluster();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers()).set("message.max.bytes", "4000000");
    let producer: BaseProducer = config.create().unwrap();
    let large = vec![b'x'; crate::limits::Limits::default().packet_bytes_max as usize];
    producer.send(BaseRecord::to("commands").partition(0).key("large").payload(&large)).map_err(|(error, _)| error).unwrap();
    for key in ["a/+/b", "#", "nul\0", "good"] {
        producer.send(BaseRecord::to("commands").partition(0).key(key).payload("1")).map_err(|(error, _)| error).unwrap();
    }
    producer.send(BaseRecord::<(), str>::to("commands").partition(0).payload("1")).map_err(|(error, _)| error).unwrap();
    producer.flush(Duration::from_secs(10)).unwrap();
    let mut world = start(options(&cluster));
    receive(&mut world, 1);
    wait_until(|| world.status()["sources/commands/skipped"] == "5" && world.status()["sources/commands/published"] == "1");
    assert_eq!(world.messages[0].1.topic(), "cmd/good");
    assert_eq!(world.status()["sources/commands/last_error"], "commands [0] at 5 was skipped: it has no key");
    world.handle.stop();
    let mut world = start(SourceOptions { mqtt_topic: "$SYS/${key}".into(), ..options(&cluster) });
    producer.send(BaseRecord::to("commands").partition(0).key("reserved").payload("1")).map_err(|(error, _)| error).unwrap();
    producer.flush(Duration::from_secs(10)).unwrap();
    wait_until(|| world.status()["sources/commands/received"] == "1" && world.status()["sources/commands/skipped"] == "1");
    assert!(world.answers_now(0).is_empty() && world.messages.is_empty());
}

#[test]
fn shards_that_accept_nothing_are_not_flooded_and_nothing_is_lost() {
    let cluster = cluster();
    produce(&cluster, 0..8_000);
    let mut world = start(options(&cluster));
    let received = |world: &World| world.status()["sources/commands/received"].parse::<usize>().unwrap();
    wait_until(|| received(&world) >= STALLED_MAX);
    std::thread::sleep(Duration::from_millis(500));
    let most = SHARDS * crate::runtime::sink_link::INBOUND_MAX as usize + STALLED_MAX + POLLS_MAX;
    assert!(received(&world) <= most, "{} of {most}", received(&world));
    receive(&mut world, 8_000);
    let mut all = numbers(&world);
    assert_ordered(&world);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..8_000));
    wait_until(|| world.status()["sources/commands/published"] == "8000");
}

#[test]
fn members_of_a_group_share_partitions_and_lose_nothing_when_one_comes_or_goes() {
    let cluster = cluster();
    produce(&cluster, 0..300);
    let mut first = start(options(&cluster));
    receive(&mut first, 100);
    let mut second = start(options(&cluster));
    let mut seen = BTreeSet::new();
    for round in 1..4 {
        produce(&cluster, round * 300..round * 300 + 300);
        wait_until(|| {
            for world in [&mut first, &mut second] {
                (0..SHARDS).for_each(|shard| drop(world.answers_now(shard)));
                seen.extend(numbers(world));
            }
            seen.len() as u64 == round * 300 + 300
        });
        std::thread::sleep(Duration::from_millis(1_000));
    }
    assert!(!second.messages.is_empty(), "the second member had nothing to do");
    second.handle.stop();
    produce(&cluster, 1_200..1_300);
    wait_until(|| {
        (0..SHARDS).for_each(|shard| drop(first.answers_now(shard)));
        seen.extend(numbers(&first));
        seen.len() == 1_300
    });
}

#[test]
fn at_a_flush_a_source_gives_nothing_more() {
    let cluster = cluster();
    produce(&cluster, 0..10);
    let mut world = start(options(&cluster));
    receive(&mut world, 10);
    assert!(world.handle.flush(Duration::from_secs(5)));
    produce(&cluster, 10..20);
    std::thread::sleep(Duration::from_millis(500));
    (0..SHARDS).for_each(|shard| drop(world.answers_now(shard)));
    assert_eq!(world.messages.len(), 10);
    world.handle.stop();
    let mut world = start(options(&cluster));
    receive(&mut world, 10);
    let mut rest = numbers(&world);
    rest.sort_unstable();
    assert!(rest.into_iter().eq(10..20));
}

/// A source of which only what is new is wanted, in a group that has committed nothing.
fn of_what_is_new(cluster: &Cluster, statistics_ms: u32) -> SourceOptions {
    let mut options = SourceOptions { from_beginning: false, ..options(cluster) };
    options.kafka.properties += &format!("\nstatistics.interval.ms={statistics_ms}");
    options
}

#[test]
fn a_new_group_that_nothing_came_for_goes_on_after_a_restart_from_where_it_began() {
    let cluster = cluster();
    produce(&cluster, 0..30);
    let world = start(of_what_is_new(&cluster, 200));
    let mut config = ClientConfig::new();
    let group: BaseConsumer =
        config.set("bootstrap.servers", cluster.bootstrap_servers()).set("group.id", "fleet").create().unwrap();
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range("commands", 0, 2);
    wait_until(|| {
        let committed = group.committed_offsets(partitions.clone(), Duration::from_secs(5)).unwrap();
        committed.elements().iter().all(|partition| matches!(partition.offset(), Offset::Offset(_)))
    });
    world.handle.stop();
    produce(&cluster, 30..60);
    let mut world = start(of_what_is_new(&cluster, 200));
    receive(&mut world, 30);
    let mut all = numbers(&world);
    all.sort_unstable();
    assert!(all.into_iter().eq(30..60));
}

#[test]
fn the_first_record_of_a_new_group_comes_again_if_it_was_not_accepted() {
    let cluster = cluster();
    let world = start(of_what_is_new(&cluster, 0));
    let received = |world: &World| world.status()["sources/commands/received"].parse::<usize>().unwrap();
    let mut next = 0;
    wait_until(|| {
        produce(&cluster, next..next + 1);
        next += 1;
        received(&world) > 0
    });
    world.handle.stop();
    let count = received(&world);
    let mut world = start(of_what_is_new(&cluster, 0));
    receive(&mut world, count);
}

#[test]
fn a_wrong_source_is_an_error_at_the_start() {
    let cluster = cluster();
    let error = |options| World::start_with(1, vec![], &[], vec![options], |_| None).err().unwrap().to_string();
    let wrong = error(SourceOptions { mqtt_topic: "cmd/${id}".into(), ..options(&cluster) });
    assert!(wrong.starts_with("source commands: mqtt_topic \"cmd/${id}\": at character 5: "), "{wrong}");
    assert_eq!(error(SourceOptions { qos: 3, ..options(&cluster) }), "source commands: qos 3: it is 0, 1 or 2");
    assert_eq!(error(SourceOptions { topics: " , ".into(), ..options(&cluster) }), "source commands: it names no Kafka topics");
}
