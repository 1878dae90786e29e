//! The way to Kafka: librdkafka's producer, which batches, compresses, retries for ever and keeps order by itself. This file gives it
//! records as far as its window allows, hears what became of them, and decides what librdkafka leaves open. It never waits.
//!
//! What always holds:
//!
//! - A record is in flight from when librdkafka has it until its delivery report; its number travels with it and nothing is allocated for it
//!   here. The original stays in the buffer, for another try or the dead-letter file.
//! - Records are given to librdkafka in their order. One that failed for a passing reason is sent again only after everything in flight has
//!   ended, so what failed together keeps its order.
//! - Kafka refuses batches, not records: one that is too large or invalid takes its neighbours with it. Refused records are sent again in
//!   ever smaller groups; only one that is refused alone is a dead letter.
//! - A topic that Kafka does not know may be one that a broker has not yet loaded after a restart. If there was trouble
//!   with the connection, librdkafka is made anew, which asks anew; a topic that is still unknown makes dead letters.
//!
//! librdkafka calls back only while it is polled, on this thread. Reports are polled for in every pass, and by a timer while
//! something is in flight: an eventfd on its queue would save about a thousand idle polls a second and cost `unsafe` code.

use super::buffer::Buffer;
use super::kafka_config::{self, Window};
use super::log_limit::LogLimit;
use super::options::{BufferOptions, KafkaOptions};
use super::status::SinkStatus;
use crate::record::Record;
use crate::wire::Properties;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use serde::Deserialize;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Between polls while reports come; it doubles up to the second while none do.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(16);
/// With nothing in flight, for errors and statistics.
const POLL_INTERVAL_IDLE: Duration = Duration::from_secs(1);
/// Polls without a report before the interval grows.
const POLLS_PATIENT: u32 = 32;
/// Events taken from librdkafka in one pass; one of them may report thousands of records.
const EVENTS_MAX: u32 = 64;
/// Records given to librdkafka in one pass.
const SENDS_MAX: usize = 4_096;
/// Before what failed is sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Groups that grew to this size again are no longer watched.
const GROUP_MAX: usize = 4_096;

/// Topics that a producer is given, at most: librdkafka keeps some 20 KB for each as long as it lives, and clients may choose the names. For
/// one more it is made anew, once nothing is in flight.
const TOPICS_MAX: usize = if cfg!(test) { 16 } else { 4_096 };

/// Parts of a record, by number.
const TOPIC: usize = 0;
const KEY: usize = 1;
const PAYLOAD: usize = 2;
const PROPERTIES: usize = 3;

/// What became of a record in flight or in front.
#[derive(PartialEq, Eq, Debug)]
pub enum Report {
    Delivered(u64),
    /// It was in flight and is refused.
    Refused(u64, String),
    /// The buffer's front is refused without having been in flight.
    FrontRefused(String),
}

pub struct Kafka {
    config: ClientConfig,
    window: Window,
    status: Arc<SinkStatus>,
    producer: Option<BaseProducer<Context>>,
    /// That it has been given.
    topics: HashSet<Box<str>>,
    /// Nothing is sent before.
    resume_at: Option<Instant>,
    /// Records are sent in groups of this size, each after the end of the last.
    group: Option<usize>,
    /// Records of the last group; 0 before the first.
    group_sent: usize,
    reports: Vec<(u64, Option<RDKafkaErrorCode>)>,
    polled_at: Instant,
    polls_without: u32,
}

impl Kafka {
    /// # Errors
    /// A setting is wrong. That Kafka is not there is none.
    pub fn open(kafka: &KafkaOptions, buffer: &BufferOptions, status: Arc<SinkStatus>, now: Instant) -> Result<Self, String> {
        let config = kafka_config::producer(kafka, buffer)?;
        let producer = producer(&config, &status)?;
        Ok(Self {
            config,
            window: Window::of(buffer),
            status,
            producer: Some(producer),
            topics: HashSet::new(),
            resume_at: None,
            group: None,
            group_sent: 0,
            reports: Vec::new(),
            polled_at: now,
            polls_without: 0,
        })
    }

    /// Hears what became of records; [`Report::FrontRefused`] does not come from here.
    pub fn poll(&mut self, buffer: &mut Buffer, now: Instant, out: &mut Vec<Report>) {
        self.polled_at = now;
        let Some(producer) = &self.producer else { return };
        let context = producer.client().context();
        for _ in 0..EVENTS_MAX {
            let before = context.heard();
            producer.poll(Duration::ZERO);
            if context.heard() == before {
                break;
            }
        }
        std::mem::swap(&mut *lock(&context.reports), &mut self.reports);
        self.polls_without = if self.reports.is_empty() { self.polls_without.saturating_add(1) } else { 0 };
        let is_fatal = context.fatal.swap(false, Relaxed);
        let had_trouble = context.trouble.load(Relaxed);
        let mut batch_refused = 0;
        let mut anew = is_fatal;
        let mut unknown = None;
        let mut delivered = false;
        for (number, error) in self.reports.drain(..) {
            let Some(code) = error else {
                delivered = true;
                out.push(Report::Delivered(number));
                continue;
            };
            match Failure::of(code) {
                Failure::Topic if had_trouble => unknown = Some(code),
                Failure::Batch if self.group_sent != 1 => {
                    batch_refused += 1;
                    self.status.connection.fail(&format!("a batch was refused: {code}"));
                    buffer.again(number);
                }
                Failure::Topic | Failure::Authorization | Failure::Batch => {
                    out.push(Report::Refused(number, code.to_string()));
                }
                Failure::Passing => {
                    anew |= code == RDKafkaErrorCode::Fatal;
                    self.status.connection.fail(&code.to_string());
                    self.status.retried.add(1);
                    self.resume_at = Some(now + AGAIN_AFTER);
                    buffer.again(number);
                }
            }
        }
        if delivered {
            self.status.connection.set_connected(true);
        }
        if batch_refused > 0 {
            self.status.retried.add(batch_refused);
            if self.group.is_none() {
                self.group_sent = 0;
            }
            self.group = Some((self.group.unwrap_or(usize::MAX).min(batch_refused as usize) / 2).max(1));
        } else if let Some(group) = self.group
            && self.group_sent > 0
            && delivered
        {
            // The smaller groups pass; sizes grow until the next is refused, or all are as before.
            self.group = Some(2 * group).filter(|group| *group < GROUP_MAX);
        }
        // Those in flight are sent again once what ended in this poll has left the buffer.
        if let Some(code) = unknown {
            self.ask_again(code, now);
        } else if anew {
            self.resume_at = Some(now + AGAIN_AFTER);
            self.discard();
        }
    }

    /// After [`Kafka::poll`] and after the ends that it said: gives librdkafka what it may have. Whether there is more at once.
    pub fn send(&mut self, buffer: &mut Buffer, now: Instant, out: &mut Vec<Report>) -> bool {
        if self.producer.is_none() {
            if buffer.in_flight() > 0 {
                self.status.retried.add(buffer.in_flight() as u64);
                buffer.all_again();
            }
            if self.resume_at.is_some_and(|at| now < at) {
                return false;
            }
            match producer(&self.config, &self.status) {
                Ok(producer) => {
                    self.producer = Some(producer);
                    self.topics.clear();
                }
                Err(error) => {
                    self.status.connection.fail(&error);
                    self.resume_at = Some(now + AGAIN_AFTER);
                    return false;
                }
            }
        }
        if let Some(at) = self.resume_at {
            if buffer.in_flight() > 0 || now < at {
                return false;
            }
            self.resume_at = None;
        }
        if self.group.is_some() && buffer.in_flight() > 0 {
            return false;
        }
        let most = self.group.unwrap_or(SENDS_MAX).min(SENDS_MAX);
        let mut sent = 0;
        let mut again = false;
        let producer = self.producer.as_ref().expect("it was made above");
        while let Some(entry) = buffer.front() {
            let is_full = buffer.in_flight() >= self.window.records
                || (buffer.in_flight_bytes() >= self.window.bytes && buffer.in_flight() > 0)
                || buffer.is_window_full(self.window.records);
            if is_full || sent == most {
                again = !is_full && self.group.is_none();
                break;
            }
            let topic = match topic(&entry.record) {
                Ok(topic) => topic,
                // The caller ends it before there is another front.
                Err(reason) => {
                    out.push(Report::FrontRefused(reason));
                    again = true;
                    break;
                }
            };
            if !self.topics.contains(topic) {
                if self.topics.len() == TOPICS_MAX {
                    if buffer.in_flight() == 0 {
                        self.status.renewed.add(1);
                        self.discard();
                        again = true;
                    }
                    break;
                }
                self.topics.insert(topic.into());
            }
            match send(producer, topic, entry.number, &entry.record) {
                Sent::InFlight => {
                    buffer.send();
                    sent += 1;
                }
                Sent::Full => break,
                Sent::Refused(reason) => {
                    out.push(Report::FrontRefused(reason));
                    again = true;
                    break;
                }
                Sent::UnknownTopic(code) if !producer.client().context().trouble.load(Relaxed) => {
                    out.push(Report::FrontRefused(code.to_string()));
                    again = true;
                    break;
                }
                Sent::UnknownTopic(code) => {
                    self.ask_again(code, now);
                    break;
                }
                Sent::Failed(code) => {
                    self.status.connection.fail(&code.to_string());
                    self.resume_at = Some(now + AGAIN_AFTER);
                    if code == RDKafkaErrorCode::Fatal {
                        self.discard();
                    }
                    break;
                }
            }
        }
        if sent > 0 {
            self.group_sent = if self.group.is_some() { sent } else { 0 };
            self.polls_without = 0;
        }
        again
    }

    /// When there is something to do though nothing comes.
    pub fn due_at(&self, buffer: &Buffer) -> Instant {
        let interval = if buffer.in_flight() > 0 {
            let doublings = self.polls_without.saturating_sub(POLLS_PATIENT).min(4);
            (POLL_INTERVAL * 2u32.pow(doublings)).min(POLL_INTERVAL_MAX)
        } else {
            POLL_INTERVAL_IDLE
        };
        let poll_at = self.polled_at + interval;
        self.resume_at.filter(|_| buffer.in_flight() == 0).map_or(poll_at, |at| at.min(poll_at))
    }

    /// Kafka may not yet have loaded a topic after trouble: a producer made anew asks for it anew.
    fn ask_again(&mut self, code: RDKafkaErrorCode, now: Instant) {
        self.status.connection.fail(&format!("{code}; asking again"));
        self.resume_at = Some(now + AGAIN_AFTER);
        self.discard();
    }

    /// Lets go of librdkafka with all that it has. Its end may take a while, which another thread spends.
    fn discard(&mut self) {
        if let Some(producer) = self.producer.take() {
            let end = std::thread::Builder::new().name("kafka-end".to_owned());
            // Without a thread for it, the core spends that while.
            end.spawn(move || drop(producer)).map_or_else(drop, drop);
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.discard();
    }
}

fn producer(config: &ClientConfig, status: &Arc<SinkStatus>) -> Result<BaseProducer<Context>, String> {
    let context = Context {
        status: Arc::clone(status),
        events: AtomicU64::new(0),
        reports: Mutex::default(),
        fatal: AtomicBool::new(false),
        trouble: AtomicBool::new(false),
        log: Log::new(status.name.clone()),
    };
    config.create_with_context(context).map_err(|error| kafka_config::error(&error))
}

enum Sent {
    InFlight,
    Full,
    Refused(String),
    UnknownTopic(RDKafkaErrorCode),
    Failed(RDKafkaErrorCode),
}

/// The topic of a record, if Kafka can have such a one: librdkafka would ask for it, and remember that it is not there.
fn topic(record: &Record) -> Result<&str, String> {
    let topic = str::from_utf8(record.part(TOPIC)).map_err(|_| "its topic is not UTF-8".to_owned())?;
    if topic.is_empty() {
        return Err("it has no topic".to_owned());
    }
    kafka_config::check_topic(topic).map(|()| topic)
}

fn send(producer: &BaseProducer<Context>, topic: &str, number: u64, record: &Record) -> Sent {
    let mut message = BaseRecord::with_opaque_to(topic, number as usize)
        .payload(record.part(PAYLOAD))
        .timestamp((record.published_at_us / 1_000) as i64);
    let (key, properties) = (record.part(KEY), record.part(PROPERTIES));
    if !key.is_empty() {
        message = message.key(key);
    }
    if !properties.is_empty() {
        message.headers = headers(properties);
    }
    match producer.send(message) {
        Ok(()) => Sent::InFlight,
        Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => Sent::Full,
        Err((KafkaError::MessageProduction(code), _)) => match Failure::of(code) {
            Failure::Passing => Sent::Failed(code),
            Failure::Topic => Sent::UnknownTopic(code),
            // librdkafka looks at this record alone.
            Failure::Authorization | Failure::Batch => Sent::Refused(code.to_string()),
        },
        Err((error, _)) => Sent::Refused(error.to_string()),
    }
}

/// The user properties of the message; none: no headers.
fn headers(properties: &[u8]) -> Option<OwnedHeaders> {
    let mut headers = None;
    for (name, value) in Properties::from_validated(properties).user_properties() {
        let header = Header { key: name, value: Some(value) };
        headers = Some(headers.unwrap_or_else(OwnedHeaders::new).insert(header));
    }
    headers
}

/// What an error of a record means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// It may pass.
    Passing,
    /// Kafka does not know the topic.
    Topic,
    /// The record may not be written there.
    Authorization,
    /// The batch that it was in was refused; perhaps because of it.
    Batch,
}

impl Failure {
    fn of(code: RDKafkaErrorCode) -> Self {
        use RDKafkaErrorCode::*;
        match code {
            UnknownTopic | UnknownPartition | UnknownTopicOrPartition => Self::Topic,
            TopicAuthorizationFailed | InvalidTopic => Self::Authorization,
            MessageSizeTooLarge
            | MessageBatchTooLarge
            | InvalidMessageSize
            | InvalidRecord
            | InvalidDifferentRecord
            | InvalidTimestamp
            | InvalidArgument
            | BadMessage
            | BadCompression
            | UnsupportedForMessageFormat
            | PolicyViolation => Self::Batch,
            _ => Self::Passing,
        }
    }
}

/// What librdkafka tells while it is polled.
struct Context {
    status: Arc<SinkStatus>,
    /// Everything that it told but delivery reports.
    events: AtomicU64,
    reports: Mutex<Vec<(u64, Option<RDKafkaErrorCode>)>>,
    /// It will not deliver anything any more.
    fatal: AtomicBool,
    /// There was an error of a connection.
    trouble: AtomicBool,
    log: Log,
}

impl Context {
    /// Changes when librdkafka has told something.
    fn heard(&self) -> (u64, usize) {
        (self.events.load(Relaxed), lock(&self.reports).len())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.events.fetch_add(1, Relaxed);
        self.log.line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.events.fetch_add(1, Relaxed);
        self.trouble.store(true, Relaxed);
        note_error(&self.status.connection, &error, reason);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.fatal.store(true, Relaxed);
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.events.fetch_add(1, Relaxed);
        note_statistics(&self.status.connection, statistics);
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let error = result.as_ref().err().map(|(error, _)| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown));
        lock(&self.reports).push((number as u64, error));
    }
}

/// Keeps an error of a client for the status. That all servers are down is no news beside why the last of them is, which came before.
pub(super) fn note_error(connection: &super::status::Connection, error: &KafkaError, reason: &str) {
    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
        connection.set_connected(false);
        if !connection.last_error().is_empty() {
            return;
        }
    }
    let code = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string());
    connection.fail(&if reason.is_empty() { code } else { format!("{code}: {reason}") });
}

/// Whether a broker is connected, from a client's statistics.
pub(super) fn note_statistics(connection: &super::status::Connection, statistics: &[u8]) {
    #[derive(Deserialize)]
    struct Statistics {
        brokers: HashMap<String, Broker>,
    }
    #[derive(Deserialize)]
    struct Broker {
        state: String,
    }
    if let Ok(statistics) = serde_json::from_slice::<Statistics>(statistics) {
        connection.set_connected(statistics.brokers.values().any(|broker| broker.state == "UP"));
    }
}

/// The log of a client of librdkafka, with a limit for each kind of line.
pub(super) struct Log {
    name: String,
    kinds: Mutex<HashMap<String, LogLimit>>,
}

/// Kinds of lines that are told apart.
const LOG_KINDS_MAX: usize = 64;

impl Log {
    pub fn new(name: String) -> Self {
        Self { name, kinds: Mutex::default() }
    }

    pub fn line(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let lines = {
            let mut kinds = lock(&self.kinds);
            let kind = if kinds.len() < LOG_KINDS_MAX || kinds.contains_key(facility) { facility } else { "" };
            kinds.entry(kind.to_owned()).or_default().count(1, Instant::now())
        };
        let Some(lines) = lines else { return };
        let name = &self.name;
        let more = if lines > 1 { format!(" (and {} more like it)", lines - 1) } else { String::new() };
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
                tracing::error!(name, "librdkafka: {facility}: {message}{more}");
            }
            RDKafkaLogLevel::Warning => tracing::warn!(name, "librdkafka: {facility}: {message}{more}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => tracing::info!(name, "librdkafka: {facility}: {message}{more}"),
            RDKafkaLogLevel::Debug => tracing::debug!(name, "librdkafka: {facility}: {message}{more}"),
        }
    }
}

#[cfg(test)]
#[path = "kafka_tests.rs"]
mod tests;
