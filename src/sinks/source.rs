//! Back from Kafka: a member of a consumer group turns records into messages for the shards.
//!
//! What always holds:
//!
//! - A record goes to the shard of its key (the home of the client with that id), so the order of a key's records survives.
//! - A shard has at most a few hundred messages that it has not accepted. What does not go there waits here; when much does, Kafka
//!   is asked for no more until there is room.
//! - An offset is stored, for librdkafka to commit, when that record and all before it in its partition have been accepted or
//!   skipped. Where a partition begins is stored before that, or a group that has committed nothing would begin with what is new after
//!   every restart, and miss what was written meanwhile. A partition that goes to another member is forgotten; what it had not accepted is read again there: at least once.

use super::kafka::{Log, note_error, note_statistics};
use super::kafka_config;
use super::log_limit::LogLimit;
use super::options::SourceOptions;
use super::source_topic::{Template, View};
use super::status::SourceStatus;
use crate::limits::Limits;
use crate::message::{Message, MessageRef};
use crate::runtime::Doorbell;
use crate::runtime::sink_link::SinkEnd;
use crate::time::Time;
use crate::topic::{Hasher, name};
use crate::wire::{Property, QoS};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedHeaders, Headers, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Records taken from Kafka in one pass.
const POLLS_MAX: usize = 512;
/// Messages that wait here for shards before Kafka is asked for no more, and at which it is asked again.
const STALLED_MAX: usize = 1_024;
const STALLED_LOW: usize = STALLED_MAX / 2;
/// Though nothing comes: for errors, statistics, and to stay in the group.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Leaving the group may take so long at the end.
const CLOSE_MAX: Duration = Duration::from_secs(3);

/// What a PUBLISH has beside topic, properties and payload, at most.
const PUBLISH_HEAD_BYTES: usize = 1 + 4 + 2 + 2 + 4;

/// What a pass of the core lends its sources.
pub struct SourcePass<'a> {
    pub end: &'a mut SinkEnd,
    pub now: Instant,
}

pub struct Source {
    consumer: BaseConsumer<Context>,
    template: Template,
    qos: QoS,
    retain: bool,
    status: Arc<SourceStatus>,
    hasher: Hasher,
    levels_max: u16,
    topic_bytes_max: u16,
    packet_bytes_max: u32,
    partitions: Vec<Partition>,
    /// Per shard: messages that it has no room for, and those that it has not accepted.
    stalled: Vec<VecDeque<(Message, Mark)>>,
    given: Vec<VecDeque<(u64, Mark)>>,
    stalled_count: usize,
    /// Kafka is asked for nothing.
    is_paused: bool,
    /// It stays so.
    is_over: bool,
    polled_at: Instant,
    skipped_log: LogLimit,
}

/// How far a partition has come.
struct Partition {
    topic: String,
    number: i32,
    /// Changes when it goes to another member, so that what was given out before is ignored.
    generation: u32,
    /// Where it begins has been stored, or a record of it has come.
    is_begun: bool,
    /// Records taken and not stored, in order: their offsets and whether they are done.
    open: VecDeque<(i64, bool)>,
}

/// Which record a message was made of.
#[derive(Clone, Copy)]
struct Mark {
    partition: usize,
    generation: u32,
    offset: i64,
}

impl Source {
    /// # Errors
    /// A setting or the template is wrong. That Kafka is not there is none.
    pub fn open(
        options: &SourceOptions,
        status: Arc<SourceStatus>,
        bell: Arc<Doorbell>,
        shards: usize,
        hasher: Hasher,
        limits: &Limits,
    ) -> Result<Self, String> {
        let template =
            Template::parse(&options.mqtt_topic).map_err(|what| format!("mqtt_topic {:?}: {what}", options.mqtt_topic))?;
        let qos = match options.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            other => return Err(format!("qos {other}: it is 0, 1 or 2")),
        };
        let topics: Vec<&str> = options.topics.split(',').map(str::trim).filter(|topic| !topic.is_empty()).collect();
        if topics.is_empty() {
            return Err("it names no Kafka topics".to_owned());
        }
        let context = Context {
            status: Arc::clone(&status),
            log: Log::new(options.name.clone()),
            revoked: Mutex::default(),
            idle: Mutex::default(),
            news: Arc::new(AtomicBool::new(false)),
            heard: AtomicU64::new(0),
        };
        let news = Arc::clone(&context.news);
        let config = kafka_config::consumer(options)?;
        let mut consumer: BaseConsumer<Context> =
            config.create_with_context(context).map_err(|error| kafka_config::error(&error))?;
        consumer.set_nonempty_callback(move || {
            news.store(true, Relaxed);
            bell.ring();
        });
        consumer.subscribe(&topics).map_err(|error| error.to_string())?;
        Ok(Self {
            consumer,
            template,
            qos,
            retain: options.retain,
            status,
            hasher,
            levels_max: limits.topic_levels_max,
            topic_bytes_max: limits.topic_bytes_max,
            packet_bytes_max: limits.packet_bytes_max,
            partitions: Vec::new(),
            stalled: (0..shards).map(|_| VecDeque::new()).collect(),
            given: (0..shards).map(|_| VecDeque::new()).collect(),
            stalled_count: 0,
            is_paused: false,
            is_over: false,
            polled_at: Instant::now(),
            skipped_log: LogLimit::default(),
        })
    }

    /// Takes nothing more from Kafka; what shards have is still heard of.
    pub fn pause(&mut self) {
        self.is_over = true;
        self.ask_for_no_more();
    }

    /// Does what there is to do, bounded; whether there is more at once.
    pub fn pass(&mut self, pass: &mut SourcePass<'_>) -> bool {
        self.hear(pass.end);
        self.give(pass.end);
        self.poll(pass)
    }

    /// When there is something to do though nothing comes.
    pub fn due_at(&self) -> Instant {
        self.polled_at + POLL_INTERVAL
    }

    /// Whether something has come since the last pass.
    pub fn has_news(&self, end: &SinkEnd) -> bool {
        let is_accepted = |(shard, given): (usize, &VecDeque<(u64, Mark)>)| {
            given.front().is_some_and(|(number, _)| *number <= end.accepted(shard))
        };
        self.consumer.context().news.load(Relaxed) || self.given.iter().enumerate().any(is_accepted)
    }

    /// Leaves the group after storing what has been accepted; what has not is read again.
    pub fn stop(mut self, end: &mut SinkEnd) {
        self.hear(end);
        let (closed, closing) = mpsc::channel();
        let consumer = self.consumer;
        let end = move || {
            drop(consumer);
            closed.send(()).ok();
        };
        if std::thread::Builder::new().name("kafka-end".to_owned()).spawn(end).is_ok() && closing.recv_timeout(CLOSE_MAX).is_err()
        {
            tracing::warn!(source = self.status.name, "Kafka did not answer; records may be published again");
        }
    }

    /// Hears what shards have accepted, and stores how far each partition has come.
    fn hear(&mut self, end: &SinkEnd) {
        let mut heard = false;
        for (shard, given) in self.given.iter_mut().enumerate() {
            let accepted = end.accepted(shard);
            while let Some((number, mark)) = given.front().copied()
                && number <= accepted
            {
                given.pop_front();
                self.status.published.add(1);
                heard = true;
                let partition = &mut self.partitions[mark.partition];
                if partition.generation == mark.generation {
                    partition.finish(mark.offset);
                }
            }
        }
        if heard {
            self.store();
        }
    }

    fn store(&mut self) {
        let mut offsets = TopicPartitionList::new();
        for partition in &mut self.partitions {
            let mut next = None;
            while let Some((offset, true)) = partition.open.front() {
                next = Some(offset + 1);
                partition.open.pop_front();
            }
            if let Some(next) = next {
                // It cannot fail: offsets are not negative.
                offsets.add_partition_offset(&partition.topic, partition.number, Offset::Offset(next)).ok();
            }
        }
        if offsets.count() > 0 {
            self.store_offsets(&offsets);
        }
    }

    fn store_offsets(&self, offsets: &TopicPartitionList) {
        if let Err(error) = self.consumer.store_offsets(offsets) {
            // A partition that has just gone to another member.
            tracing::debug!(source = self.status.name, "offsets were not stored: {error}");
        }
    }

    /// Stores where a partition begins, once.
    fn begin(&mut self, place: usize, offset: i64) {
        let partition = &mut self.partitions[place];
        if !std::mem::replace(&mut partition.is_begun, true) {
            let mut offsets = TopicPartitionList::new();
            offsets.add_partition_offset(&partition.topic, partition.number, Offset::Offset(offset)).ok();
            self.store_offsets(&offsets);
        }
    }

    /// Stores where partitions begin of which no record has come.
    fn begin_idle(&mut self) {
        let idle = std::mem::take(&mut *self.consumer.context().idle.lock().unwrap_or_else(PoisonError::into_inner));
        for (topic, number, offset) in idle {
            let place = self.partition(&topic, number);
            self.begin(place, offset);
        }
    }

    /// Gives shards what waits for them.
    fn give(&mut self, end: &mut SinkEnd) {
        if self.is_over {
            return;
        }
        for shard in 0..self.stalled.len() {
            while end.may_publish(shard)
                && let Some((message, mark)) = self.stalled[shard].pop_front()
            {
                self.stalled_count -= 1;
                self.given[shard].push_back((end.publish(shard, message), mark));
            }
        }
    }

    fn poll(&mut self, pass: &mut SourcePass<'_>) -> bool {
        if self.is_paused && !self.is_over && self.stalled_count <= STALLED_LOW {
            self.is_paused = false;
            self.of_assignment(|consumer, assignment| consumer.resume(assignment));
        }
        self.polled_at = pass.now;
        self.consumer.context().news.store(false, Relaxed);
        let mut polls = 0;
        while polls < POLLS_MAX {
            polls += 1;
            let heard = self.consumer.context().heard.load(Relaxed);
            // Taken apart, because a record borrows from the consumer.
            let taken = match self.consumer.poll(Duration::ZERO) {
                None => {
                    self.forget_revoked();
                    // What came may have been no record, with records behind it.
                    if self.consumer.context().heard.load(Relaxed) == heard {
                        break;
                    }
                    continue;
                }
                Some(Err(error)) => {
                    self.status.connection.fail(&error.to_string());
                    continue;
                }
                Some(Ok(record)) => {
                    self.status.connection.set_connected(true);
                    self.status.received.add(1);
                    let message = message(&record, self);
                    (record.topic().to_owned(), record.partition(), record.offset(), message)
                }
            };
            self.forget_revoked();
            self.take(taken, pass);
            if self.stalled_count >= STALLED_MAX {
                self.ask_for_no_more();
            }
        }
        self.begin_idle();
        self.store();
        polls == POLLS_MAX
    }

    /// A record becomes a message on its way to a shard, or is skipped.
    fn take(&mut self, taken: (String, i32, i64, Result<(usize, Message), String>), pass: &mut SourcePass<'_>) {
        let (topic, number, offset, message) = taken;
        let partition = self.partition(&topic, number);
        if self.is_over {
            // It was on its way when the end began; nobody stores it.
            return;
        }
        self.begin(partition, offset);
        let Partition { generation, open, .. } = &mut self.partitions[partition];
        let mark = Mark { partition, generation: *generation, offset };
        match message {
            Ok((shard, message)) => {
                open.push_back((offset, false));
                if self.stalled[shard].is_empty() && pass.end.may_publish(shard) {
                    self.given[shard].push_back((pass.end.publish(shard, message), mark));
                } else {
                    self.stalled[shard].push_back((message, mark));
                    self.stalled_count += 1;
                }
            }
            Err(reason) => {
                open.push_back((offset, true));
                self.status.skipped.add(1);
                self.status.connection.fail(&format!("{topic} [{number}] at {offset} was skipped: {reason}"));
                if let Some(records) = self.skipped_log.count(1, pass.now) {
                    let source = &self.status.name;
                    tracing::warn!(source, "{records} records were skipped; the last, {topic} [{number}] at {offset}: {reason}");
                }
            }
        }
    }

    fn partition(&mut self, topic: &str, number: i32) -> usize {
        let place = self.partitions.iter().position(|partition| partition.number == number && partition.topic == topic);
        place.unwrap_or_else(|| {
            let (topic, open) = (topic.to_owned(), VecDeque::new());
            self.partitions.push(Partition { topic, number, generation: 0, is_begun: false, open });
            self.partitions.len() - 1
        })
    }

    /// Forgets partitions that have gone to other members.
    fn forget_revoked(&mut self) {
        let revoked = std::mem::take(&mut *self.consumer.context().revoked.lock().unwrap_or_else(PoisonError::into_inner));
        for (topic, number) in &revoked {
            let place = self.partition(topic, *number);
            let partition = &mut self.partitions[place];
            partition.generation += 1;
            partition.is_begun = false;
            partition.open.clear();
        }
        if !revoked.is_empty() {
            let partitions = &self.partitions;
            for stalled in &mut self.stalled {
                stalled.retain(|(_, mark)| partitions[mark.partition].generation == mark.generation);
            }
            self.stalled_count = self.stalled.iter().map(VecDeque::len).sum();
        }
    }

    fn ask_for_no_more(&mut self) {
        self.is_paused = true;
        self.of_assignment(|consumer, assignment| consumer.pause(assignment));
    }

    fn of_assignment(&self, change: impl Fn(&BaseConsumer<Context>, &TopicPartitionList) -> KafkaResult<()>) {
        let changed = self
            .consumer
            .assignment()
            .and_then(|assignment| if assignment.count() == 0 { Ok(()) } else { change(&self.consumer, &assignment) });
        if let Err(error) = changed {
            self.status.connection.fail(&error.to_string());
        }
    }
}

impl Partition {
    fn finish(&mut self, offset: i64) {
        let place = self.open.partition_point(|(open, _)| *open < offset);
        if let Some(open) = self.open.get_mut(place) {
            open.1 = true;
        }
    }
}

/// The message that a record makes, and the shard that it goes to; or why it makes none.
fn message(record: &rdkafka::message::BorrowedMessage<'_>, source: &Source) -> Result<(usize, Message), String> {
    let view = View {
        topic: record.topic(),
        key: record.key(),
        partition: record.partition(),
        offset: record.offset(),
        headers: &|name| record.headers().and_then(|headers| header(headers, name)),
    };
    let topic = source.template.render(&view)?;
    name::check_made_name(&topic, source.levels_max, source.topic_bytes_max).map_err(|error| error.to_string())?;
    let mut properties = Vec::new();
    if let Some(headers) = record.headers() {
        for header in headers.iter() {
            user_property(header.key, header.value.unwrap_or_default(), &mut properties);
        }
    }
    let payload = record.payload().unwrap_or_default();
    let bytes = PUBLISH_HEAD_BYTES + topic.len() + properties.len() + payload.len();
    if bytes > source.packet_bytes_max as usize {
        let bytes_max = source.packet_bytes_max;
        return Err(format!("a message of {bytes} bytes is more than limits.packet_bytes_max, which is {bytes_max}"));
    }
    let key = record.key().map(String::from_utf8_lossy);
    let shard = source.hasher.home(key.as_deref().unwrap_or(&topic), source.given.len());
    let message = Message::from(MessageRef {
        topic: &topic,
        properties: &properties,
        payload,
        qos: source.qos,
        retain: source.retain,
        expires_at: Time::NEVER,
    });
    Ok((shard, message))
}

fn header<'a>(headers: &'a BorrowedHeaders, name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.key == name).and_then(|header| header.value)
}

/// Appends a header as a user property; one that cannot be (not UTF-8, too long) is left out.
fn user_property(name: &str, value: &[u8], out: &mut Vec<u8>) {
    let fits = |text: &str| text.len() <= usize::from(u16::MAX) && !text.contains('\0');
    if let Ok(value) = str::from_utf8(value)
        && fits(name)
        && fits(value)
    {
        Property::UserProperty((name, value)).encode(out);
    }
}

/// What librdkafka tells while it is polled.
struct Context {
    status: Arc<SourceStatus>,
    log: Log,
    /// Partitions that went to other members.
    revoked: Mutex<Vec<(String, i32)>>,
    /// Partitions that have committed nothing and given nothing, and where they are read from.
    idle: Mutex<Vec<(String, i32, i64)>>,
    /// Something has come since it was last polled.
    news: Arc<AtomicBool>,
    /// Counts everything that it tells which is no record.
    heard: AtomicU64,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.heard.fetch_add(1, Relaxed);
        self.log.line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.fetch_add(1, Relaxed);
        note_error(&self.status.connection, &error, reason);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.heard.fetch_add(1, Relaxed);
        note_statistics(&self.status.connection, statistics);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(idle_partitions(statistics));
    }
}

/// Partitions that have committed nothing and given nothing, and where they are read from, by a client's statistics. While nothing of a
/// partition waits in librdkafka or has come from there, that is still where it began.
fn idle_partitions(statistics: &[u8]) -> Vec<(String, i32, i64)> {
    #[derive(Deserialize)]
    struct Statistics {
        #[serde(default)]
        topics: HashMap<String, Topic>,
    }
    #[derive(Deserialize)]
    struct Topic {
        partitions: HashMap<String, Partition>,
    }
    #[derive(Deserialize)]
    struct Partition {
        partition: i32,
        fetch_state: String,
        fetchq_cnt: i64,
        next_offset: i64,
        app_offset: i64,
        committed_offset: i64,
    }
    let is_idle = |of: &Partition| {
        of.fetch_state == "active" && of.fetchq_cnt == 0 && of.next_offset >= 0 && of.app_offset < 0 && of.committed_offset < 0
    };
    let Ok(Statistics { topics }) = serde_json::from_slice(statistics) else { return Vec::new() };
    let partitions =
        topics.into_iter().flat_map(|(name, topic)| topic.partitions.into_values().map(move |of| (name.clone(), of)));
    partitions.filter(|(_, of)| is_idle(of)).map(|(name, of)| (name, of.partition, of.next_offset)).collect()
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        self.heard.fetch_add(1, Relaxed);
        if let Rebalance::Revoke(partitions) = rebalance {
            let revoked = partitions.elements().into_iter().map(|element| (element.topic().to_owned(), element.partition()));
            self.revoked.lock().unwrap_or_else(PoisonError::into_inner).extend(revoked);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        self.heard.fetch_add(1, Relaxed);
        if let Err(error) = result {
            self.status.connection.fail(&error.to_string());
        }
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
