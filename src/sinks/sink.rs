//! One sink: its buffer, the way to its server, its dead letters, and the end of each of its records. All on the sink core.
//!
//! Every record that was taken from a ring ends once: its gate is left, its memory given back, it is counted, and whoever waits for
//! it is told. A dead letter is written before that, so that nobody is told of what is not there.

use super::batches::{Attempt, Batches};
use super::buffer::{Buffer, Commit, Ending, Replay};
use super::dead_letter::DeadLetters;
use super::kafka::{Kafka, Report};
use super::log_limit::{LogLimit, Trouble};
use super::options::SinkOptions;
use super::status::{End, Ended, SinkStatus};
use crate::record::{ActionId, Outcome, Record};
use crate::runtime::sink_link::SinkEnd;
use crate::shard::{Gate, Globals};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two checkpoints of a disk buffer: what a kill delivers twice.
const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);
/// Before a disk that failed is tried again.
const DISK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Records dropped in one pass.
const DROPS_MAX: usize = 16_384;

/// The way to a sink's server.
pub enum Feed {
    Batches(Batches),
    Kafka(Box<Kafka>),
}

/// An action as its sink needs it.
#[derive(Clone, Default)]
pub struct ActionOfSink {
    pub label: String,
    pub sink: usize,
    /// Its records count as accepted once they are buffered.
    pub queued: bool,
}

/// What a pass of the core lends its sinks.
pub struct Pass<'a> {
    pub end: &'a mut SinkEnd,
    pub actions: &'a [ActionOfSink],
    pub globals: &'a Globals,
    pub ended: &'a mut Vec<Ended>,
    pub now: Instant,
    /// Microseconds since 1970.
    pub now_us: u64,
    /// Batches do not wait for more.
    pub flush: bool,
}

pub struct Sink {
    index: usize,
    buffer: Buffer,
    feed: Feed,
    letters: DeadLetters,
    status: Arc<SinkStatus>,
    endings: Vec<Ending>,
    reports: Vec<Report>,
    disk_again_at: Option<Instant>,
    /// When the next checkpoint may be written, and whether something has ended since the last.
    checkpoint_at: Instant,
    is_checkpoint_due: bool,
    dropped_log: LogLimit,
    disk_trouble: Trouble,
    server_trouble: Trouble,
}

impl Sink {
    /// What the buffer held from an earlier run enters the gate.
    pub fn new(
        index: usize,
        options: &SinkOptions,
        (buffer, replay): (Buffer, Replay),
        feed: Feed,
        status: Arc<SinkStatus>,
        globals: &Globals,
        now: Instant,
    ) -> Self {
        let gate = &globals.gates[index];
        gate.buffered_bytes.add(replay.bytes as i64);
        gate.buffered_records.add(replay.records as i64);
        let sink = &options.name;
        for line in &replay.corrupt {
            tracing::error!(sink, "the disk buffer has lost records: {line}");
            status.connection.fail(line);
        }
        status.dropped_corrupt.add(replay.lost);
        if replay.records > 0 {
            tracing::info!(sink, "{} records of an earlier run are delivered from the disk buffer", replay.records);
        }
        Self {
            index,
            buffer,
            feed,
            letters: DeadLetters::new(options),
            status,
            endings: Vec::new(),
            reports: Vec::new(),
            disk_again_at: None,
            checkpoint_at: now,
            is_checkpoint_due: false,
            dropped_log: LogLimit::default(),
            disk_trouble: Trouble::default(),
            server_trouble: Trouble::default(),
        }
    }

    /// Takes a record that a shard has admitted.
    pub fn push(&mut self, shard: usize, record: Record, queued: bool) {
        self.buffer.push(shard as u16, record, queued);
    }

    /// A batch has been tried.
    pub fn on_attempt(&mut self, attempt: Attempt, actions: &[ActionOfSink]) {
        if let Feed::Batches(batches) = &mut self.feed {
            batches.on_attempt(&attempt);
        }
        let Attempt { delivered, refused, again, error } = attempt;
        if !delivered.is_empty() || !refused.is_empty() {
            self.on_server(Ok(()));
        }
        self.status.retried.add(again);
        if again > 0 {
            self.on_server(Err(error.unwrap_or_else(|| "it is to be tried again".to_owned())));
        }
        for number in delivered {
            self.endings.push(self.buffer.end(number, End::Delivered).0);
        }
        for (number, record, reason) in refused {
            self.letters.add(label(actions, record.action), &record, &reason);
            self.status.connection.fail(&reason);
            self.endings.push(self.buffer.end(number, End::DeadLetter).0);
        }
    }

    /// What the server is known to be.
    pub fn on_server(&mut self, answer: Result<(), String>) {
        self.status.connection.set_connected(answer.is_ok());
        match answer {
            Ok(()) => {
                if self.server_trouble.ends() {
                    tracing::info!(sink = self.status.name, "the sink takes records again");
                }
            }
            Err(error) => {
                self.status.connection.fail(&error);
                if self.server_trouble.tells(&error, Instant::now()) {
                    tracing::warn!(sink = self.status.name, "the sink does not take records, which wait: {error}");
                }
            }
        }
    }

    /// Does what there is to do, bounded; whether there is more at once.
    pub fn pass(&mut self, pass: &mut Pass<'_>) -> bool {
        let mut again = self.feed_back(pass);
        self.commit(pass);
        again |= self.drop_oldest(pass.now);
        again |= self.refill(pass.now);
        again |= self.feed(pass);
        self.settle(pass);
        self.checkpoint(pass.now);
        self.status.in_flight.set(self.buffer.in_flight() as u64);
        self.status.disk_bytes.set(self.buffer.disk_bytes());
        again
    }

    /// When there is something to do though nothing comes.
    pub fn due_at(&self) -> Option<Instant> {
        let feed = match &self.feed {
            Feed::Batches(batches) => batches.due_at(),
            Feed::Kafka(kafka) => Some(kafka.due_at(&self.buffer)),
        };
        let checkpoint = self.is_checkpoint_due.then_some(self.checkpoint_at);
        [feed, checkpoint, self.disk_again_at].into_iter().flatten().min()
    }

    /// Whether every record has ended.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The end: the checkpoint is written; what is in memory only is lost and said.
    pub fn stop(&mut self) {
        self.write_checkpoint();
        let sink = &self.status.name;
        let lost = self.buffer.unsaved() as u64;
        if lost > 0 {
            self.status.lost.add(lost);
            tracing::error!(sink, "{lost} records were in memory only and are lost");
        } else if !self.buffer.is_empty() {
            tracing::info!(sink, "records stay in the disk buffer for the next start");
        }
    }

    /// Hears what became of records that Kafka was given.
    fn feed_back(&mut self, pass: &Pass<'_>) -> bool {
        let Feed::Kafka(kafka) = &mut self.feed else { return false };
        kafka.poll(&mut self.buffer, pass.now, &mut self.reports);
        self.on_reports(pass.actions);
        false
    }

    fn on_reports(&mut self, actions: &[ActionOfSink]) {
        for report in self.reports.drain(..) {
            let (ending, letter) = match report {
                Report::Delivered(number) => (self.buffer.end(number, End::Delivered).0, None),
                Report::Refused(number, reason) => {
                    let (ending, record) = self.buffer.end(number, End::DeadLetter);
                    (ending, record.map(|record| (record, reason)))
                }
                Report::FrontRefused(reason) => {
                    let Some((ending, record)) = self.buffer.end_front(End::DeadLetter) else { continue };
                    (ending, Some((record, reason)))
                }
            };
            if let Some((record, reason)) = letter {
                self.letters.add(label(actions, record.action), &record, &reason);
                self.status.connection.fail(&reason);
            }
            self.endings.push(ending);
        }
    }

    /// Puts what was taken where it is safe, and says so to those who wait for no more.
    fn commit(&mut self, pass: &mut Pass<'_>) {
        if self.disk_again_at.is_some_and(|at| pass.now < at) {
            return;
        }
        let gate = &pass.globals.gates[self.index];
        match self.buffer.commit() {
            Commit::Nothing => self.open_gate(gate),
            Commit::Done => {
                self.open_gate(gate);
                if self.disk_trouble.ends() {
                    tracing::info!(sink = self.status.name, "the disk buffer takes records again");
                }
                for (shard, ticket) in self.buffer.take_queued() {
                    pass.end.answer(usize::from(shard), ticket, Outcome::Accepted);
                }
            }
            Commit::Failed(error) => {
                gate.set_closed(true);
                self.disk_again_at = Some(pass.now + DISK_AGAIN_AFTER);
                self.on_disk_error(&error, pass.now);
            }
        }
    }

    fn drop_oldest(&mut self, now: Instant) -> bool {
        let mut dropped = 0;
        while dropped < DROPS_MAX {
            let Some(ending) = self.buffer.drop_oldest() else { break };
            self.endings.push(ending);
            dropped += 1;
        }
        if let Some(records) = self.dropped_log.count(dropped as u64, now) {
            tracing::warn!(sink = self.status.name, "the buffer is full: the oldest {records} records were dropped");
        }
        dropped == DROPS_MAX
    }

    fn refill(&mut self, now: Instant) -> bool {
        let mut lines = Vec::new();
        let before = self.endings.len();
        let result = self.buffer.refill(&mut self.endings, &mut lines);
        for line in lines {
            tracing::error!(sink = self.status.name, "the disk buffer: {line}");
            self.status.connection.fail(&line);
        }
        match result {
            Ok(more) => (more && self.buffer.must_refill()) || self.endings.len() > before,
            Err(error) => {
                self.on_disk_error(&error, now);
                self.disk_again_at.get_or_insert(now + DISK_AGAIN_AFTER);
                false
            }
        }
    }

    /// Records may come again; whether the disk takes them shows then.
    fn open_gate(&mut self, gate: &Gate) {
        if self.disk_again_at.take().is_some() {
            gate.set_closed(false);
        }
    }

    fn on_disk_error(&mut self, error: &io::Error, now: Instant) {
        let line = format!("the disk buffer: {error}");
        self.status.connection.fail(&line);
        if self.disk_trouble.tells(&line, now) {
            tracing::error!(sink = self.status.name, "{line}; records wait until it can be used");
        }
    }

    fn feed(&mut self, pass: &Pass<'_>) -> bool {
        match &mut self.feed {
            Feed::Batches(batches) => {
                batches.feed(&mut self.buffer, pass.now, pass.flush);
                false
            }
            Feed::Kafka(kafka) => {
                let again = kafka.send(&mut self.buffer, pass.now, &mut self.reports);
                self.on_reports(pass.actions);
                again
            }
        }
    }

    /// Ends what has ended.
    fn settle(&mut self, pass: &mut Pass<'_>) {
        self.letters.write(&self.status, pass.now);
        let (mut records, mut bytes) = (0, 0);
        for ending in self.endings.drain(..) {
            records += 1;
            bytes += ending.bytes;
            if let Some(ticket) = ending.ticket {
                let outcome = if ending.end == End::Delivered { Outcome::Accepted } else { Outcome::Failed };
                pass.end.answer(usize::from(ending.shard), ticket, outcome);
            }
            self.status.count(ending.end);
            let latency_us = pass.now_us.saturating_sub(ending.published_at_us);
            pass.ended.push(Ended { action: ending.action, end: ending.end, latency_us });
        }
        if records > 0 {
            pass.globals.gates[self.index].leave(records, bytes);
            self.is_checkpoint_due = self.buffer.has_disk();
        }
        pass.globals.memory_bytes.add(self.buffer.take_memory_change());
    }

    fn checkpoint(&mut self, now: Instant) {
        if self.is_checkpoint_due && now >= self.checkpoint_at {
            self.checkpoint_at = now + CHECKPOINT_INTERVAL;
            self.write_checkpoint();
        }
    }

    fn write_checkpoint(&mut self) {
        self.is_checkpoint_due = false;
        if let Err(error) = self.buffer.checkpoint() {
            // A restart delivers again what the older one does not cover.
            self.is_checkpoint_due = true;
            self.on_disk_error(&error, self.checkpoint_at);
        }
    }
}

fn label(actions: &[ActionOfSink], action: ActionId) -> &str {
    actions.get(usize::from(action.0)).map_or("unknown", |action| &action.label)
}
