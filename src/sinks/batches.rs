//! The way to a [`Target`]: gathers waiting records to batches, by linger, number and bytes, and has each tried until all of it has
//! ended. A batch is a task of the sink core's runtime; what became of it comes back as an [`Attempt`].

use super::buffer::Buffer;
use super::target::{Report, Target, Verdict};
use crate::record::Record;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the first try after a failure waits, and the longest wait that it grows to.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// What became of a batch in one attempt.
pub struct Attempt {
    /// Records that have ended, by number.
    pub delivered: Vec<u64>,
    pub refused: Vec<(u64, Record, String)>,
    /// How many of it are tried again.
    pub again: u64,
    pub error: Option<String>,
}

/// Where attempts go; false: nobody is interested any more.
pub type Tell = Arc<dyn Fn(Attempt) -> bool + Send + Sync>;

pub struct Batches {
    target: Arc<dyn Target>,
    tell: Tell,
    linger: Duration,
    records_max: usize,
    bytes_max: u64,
    under_way: usize,
    /// Since when the oldest waiting record does.
    waiting_since: Option<Instant>,
    /// Batches that are not through hold up the window; when one is, there is a pass.
    is_held_up: bool,
}

impl Batches {
    pub fn new(target: Arc<dyn Target>, linger: Duration, records_max: usize, bytes_max: u64, tell: Tell) -> Self {
        let records_max = records_max.min(target.records_max()).max(1);
        Self { target, tell, linger, records_max, bytes_max, under_way: 0, waiting_since: None, is_held_up: false }
    }

    /// Starts what batches are due; on the sink core's runtime.
    pub fn feed(&mut self, buffer: &mut Buffer, now: Instant, flush: bool) {
        if buffer.waiting() == 0 {
            self.waiting_since = None;
            return;
        }
        let mut since = *self.waiting_since.get_or_insert(now);
        let batches_max = self.target.batches_max().max(1);
        loop {
            self.is_held_up =
                self.under_way == batches_max || buffer.is_window_full(batches_max.saturating_mul(self.records_max));
            if self.is_held_up {
                break;
            }
            let is_full = buffer.waiting() >= self.records_max || buffer.waiting_bytes() >= self.bytes_max;
            if buffer.waiting() == 0 || !(is_full || flush || now >= since + self.linger) {
                break;
            }
            self.start(buffer);
            since = now;
            self.waiting_since = (buffer.waiting() > 0).then_some(now);
        }
    }

    /// When [`Batches::feed`] has something to do though nothing comes.
    pub fn due_at(&self) -> Option<Instant> {
        self.waiting_since.filter(|_| !self.is_held_up).map(|since| since + self.linger)
    }

    /// An attempt has been told.
    pub fn on_attempt(&mut self, attempt: &Attempt) {
        if attempt.again == 0 {
            self.under_way -= 1;
        }
    }

    fn start(&mut self, buffer: &mut Buffer) {
        let (mut numbers, mut records, mut bytes) = (Vec::new(), Vec::new(), 0);
        while records.len() < self.records_max {
            let Some(next) = buffer.front() else { break };
            bytes += next.record.bytes();
            if bytes > self.bytes_max && !records.is_empty() {
                break;
            }
            let (number, record) = buffer.lend().expect("there is one in front");
            numbers.push(number);
            records.push(record);
        }
        self.under_way += 1;
        tokio::spawn(deliver(Arc::clone(&self.target), numbers, records, Arc::clone(&self.tell)));
    }
}

async fn deliver(target: Arc<dyn Target>, mut numbers: Vec<u64>, mut records: Vec<Record>, tell: Tell) {
    let mut wait = WAIT_MIN;
    loop {
        let Report { verdicts, error } = target.deliver(&records).await;
        debug_assert_eq!(verdicts.len(), records.len(), "a verdict for each record");
        let verdicts = verdicts.into_iter().chain(std::iter::repeat(Verdict::Again));
        let (mut delivered, mut refused, mut again) = (Vec::new(), Vec::new(), (Vec::new(), Vec::new()));
        for ((number, record), verdict) in numbers.into_iter().zip(records).zip(verdicts) {
            match verdict {
                Verdict::Delivered => delivered.push(number),
                Verdict::Refused(reason) => refused.push((number, record, reason)),
                Verdict::Again => {
                    again.0.push(number);
                    again.1.push(record);
                }
            }
        }
        let is_progress = !(delivered.is_empty() && refused.is_empty());
        (numbers, records) = again;
        let is_over = numbers.is_empty();
        if !tell(Attempt { delivered, refused, again: numbers.len() as u64, error }) || is_over {
            return;
        }
        wait = if is_progress { WAIT_MIN } else { wait };
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(WAIT_MAX);
    }
}

/// Asks whether the server is there until it is, telling each answer; false from `tell` ends it.
pub async fn probe(target: Arc<dyn Target>, tell: impl Fn(Result<(), String>) -> bool + Send) {
    let mut wait = WAIT_MIN;
    loop {
        let answer = target.probe().await;
        let is_there = answer.is_ok();
        if !tell(answer) || is_there {
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(WAIT_MAX);
    }
}
