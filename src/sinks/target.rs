//! What a sink that takes batches (MongoDB, HTTP, a file) implements; the sink core does the rest: buffering, batching, waiting before
//! another try, dead letters, answers to shards, status. Kafka has a way of its own, because librdkafka batches by itself.
//!
//! What an implementation must do:
//!
//! - It is made by a function of its own from its options, on the sink core's runtime (a current-thread tokio runtime), and says there
//!   what is wrong with them. That must not depend on the server: one that is down at the start is found by [`Target::deliver`].
//! - [`Target::deliver`] makes one attempt with a time limit of its own, never waits longer than some ten seconds, and says of every
//!   record what became of it. It does not try again: whatever is [`Verdict::Again`] comes back to it, in order, after a wait
//!   that grows while the server is in trouble. A record may come twice if an attempt failed half-way (at least once).
//! - It never blocks the thread, which is the only one that all sinks have; what has no asynchronous form goes through
//!   `tokio::task::spawn_blocking`. It may be dropped at any await when the broker ends.
//! - Records come in the order in which their messages were published. With [`Target::batches_max`] of 1, the next batch begins after all of the
//!   last one is delivered or refused, so order is kept; with more, it is not.
//! - It does not log per record. The core keeps the last error, counts, and logs refusals.

use crate::record::Record;
use std::pin::Pin;

/// A future as [`Target`] returns them.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub trait Target: Send + Sync + 'static {
    /// How many batches may be under way at the same time, 1 or more.
    fn batches_max(&self) -> usize {
        1
    }

    /// Records of one batch, at most, 1 or more; the sink's options may say less.
    fn records_max(&self) -> usize {
        usize::MAX
    }

    /// Asks whether the server is there, so that the status can say so before the first record comes. Asked at the start, again after
    /// a wait while it fails.
    fn probe(&self) -> Pending<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Tries to deliver records, never none.
    fn deliver<'a>(&'a self, records: &'a [Record]) -> Pending<'a, Report>;
}

/// What became of one record in one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The server has confirmed it.
    Delivered,
    /// The server will never take it, and this is why: it becomes a dead letter and is not seen again.
    Refused(String),
    /// It is to be tried again: the server could not be reached, was too slow, or has trouble of its own.
    Again,
}

/// What became of a batch in one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// One for each record, in their order.
    pub verdicts: Vec<Verdict>,
    /// Why records are to be tried again, in one line; kept as the sink's last error.
    pub error: Option<String>,
}

impl Report {
    /// All records were confirmed.
    pub fn delivered(records: usize) -> Self {
        Self { verdicts: vec![Verdict::Delivered; records], error: None }
    }

    /// All records are to be tried again.
    pub fn again(records: usize, error: impl Into<String>) -> Self {
        Self { verdicts: vec![Verdict::Again; records], error: Some(error.into()) }
    }

    /// No record will ever be taken.
    pub fn refused(records: usize, reason: &str) -> Self {
        Self { verdicts: vec![Verdict::Refused(reason.to_owned()); records], error: None }
    }
}

/// A target in memory, for the tests of the core.
#[cfg(test)]
pub mod fake {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// What the test sees of a [`Fake`], and tells it.
    #[derive(Default)]
    pub struct Script {
        /// First parts of the records that were delivered, in the order of delivery.
        pub delivered: Vec<Vec<u8>>,
        /// Sizes of the batches of all attempts.
        pub attempts: Vec<usize>,
        /// What the next attempts answer, as far as they have records for it; after these, everything is delivered.
        pub reports: VecDeque<Report>,
        /// Every attempt fails with this, before `reports` is looked at.
        pub down: Option<String>,
        /// Records whose first part contains this are refused.
        pub refuses: Option<Vec<u8>>,
        /// Records with this first part are to be tried again, always.
        pub stuck: Option<Vec<u8>>,
        /// How long an attempt takes.
        pub takes: Duration,
    }

    #[derive(Clone)]
    pub struct Fake {
        pub script: Arc<Mutex<Script>>,
        pub batches_max: usize,
        pub records_max: usize,
    }

    impl Default for Fake {
        fn default() -> Self {
            Self { script: Arc::default(), batches_max: 1, records_max: usize::MAX }
        }
    }

    impl Fake {
        pub fn delivered(&self) -> Vec<Vec<u8>> {
            self.script.lock().unwrap().delivered.clone()
        }

        fn report(&self, records: &[Record]) -> Report {
            let mut script = self.script.lock().unwrap();
            script.attempts.push(records.len());
            if let Some(error) = &script.down {
                return Report::again(records.len(), error.clone());
            }
            let mut report = script.reports.pop_front().unwrap_or_else(|| Report::delivered(records.len()));
            report.verdicts.resize(records.len(), Verdict::Delivered);
            for (record, verdict) in records.iter().zip(&mut report.verdicts) {
                let refuses = |part: &Vec<u8>| record.part(0).windows(part.len()).any(|window| window == part);
                if script.refuses.as_ref().is_some_and(refuses) {
                    *verdict = Verdict::Refused("the fake refuses it".to_owned());
                }
                if script.stuck.as_deref() == Some(record.part(0)) {
                    *verdict = Verdict::Again;
                }
                if *verdict == Verdict::Delivered {
                    script.delivered.push(record.part(0).to_vec());
                }
            }
            report
        }
    }

    impl Target for Fake {
        fn batches_max(&self) -> usize {
            self.batches_max
        }

        fn records_max(&self) -> usize {
            self.records_max
        }

        fn probe(&self) -> Pending<'_, Result<(), String>> {
            let down = self.script.lock().unwrap().down.clone();
            Box::pin(std::future::ready(down.map_or(Ok(()), Err)))
        }

        fn deliver<'a>(&'a self, records: &'a [Record]) -> Pending<'a, Report> {
            Box::pin(async move {
                let takes = self.script.lock().unwrap().takes;
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                self.report(records)
            })
        }
    }
}
