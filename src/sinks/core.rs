//! The sink core: one thread for all sinks and sources, pinned to a CPU if told so (threads that it starts, librdkafka's among
//! them, stay there with it, so shards are not disturbed). It runs a current-thread tokio runtime, because the MongoDB driver and the
//! HTTP client need one.
//!
//! A pass takes records from the rings of all shards, so many at most, gives every sink its turn, and tells the shards. After a pass
//! that found something the core naps for a millisecond, in which shards need not ring: under load they never do, and batches form. After one that
//! found nothing it says that it sleeps, looks once more, and waits for the doorbell, for something that a batch or the owner
//! tells, or for the next time that something is due. It never spins.

use super::batches::{self, Attempt, Batches};
use super::buffer::Buffer;
use super::file::FileTarget;
use super::http::Http;
use super::kafka::Kafka;
use super::mongodb::Mongodb;
use super::options::{ActionOptions, Confirm, SinkKind, SinkOptions, SourceOptions};
use super::sink::{ActionOfSink, Feed, Pass, Sink};
use super::source::{Source, SourcePass};
use super::status::{Ended, SinkStatus, Status};
use super::target::Target;
use crate::limits::Limits;
use crate::message::take_charge;
use crate::record::Outcome;
use crate::runtime::sink_link::{SinkCore, SinkEnd};
use crate::runtime::{Doorbell, pin_to_cpu};
use crate::shard::Globals;
use crate::topic::Hasher;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Records, and bytes of records, taken from one shard's ring in one pass.
const RECORDS_MAX: usize = 4_096;
const BYTES_MAX: u64 = 8 << 20;
/// After a pass that found something.
const NAP: Duration = Duration::from_millis(1);
/// Threads for what has no asynchronous form: files, name resolution.
const BLOCKING_THREADS_MAX: usize = 16;
/// How much longer than asked a flush may take to say that it failed.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long an end is waited for.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A pass that takes longer is worth a line.
const PASS_MAX: Duration = Duration::from_secs(1);

pub struct CoreOptions {
    pub sinks: Vec<SinkOptions>,
    pub actions: Vec<ActionOptions>,
    pub sources: Vec<SourceOptions>,
    /// With a gate for each sink, in the same order, whose limit is [`gate_bytes_max`](super::gate_bytes_max).
    pub globals: Arc<Globals>,
    /// That of the shards: a source's record goes to the home of the client that its key names.
    pub hasher: Hasher,
    /// What a topic of a source may be.
    pub limits: Arc<Limits>,
    /// The CPU that the core may use; `None`: any.
    pub cpu: Option<usize>,
}

/// What wakes the core besides the doorbell.
enum Event {
    Attempt(usize, Attempt),
    Server(usize, Result<(), String>),
    /// Send what there is until then, and say whether everything ended.
    Flush(Instant, mpsc::Sender<bool>),
    Stop,
    /// Ends it as a kill would.
    #[cfg(test)]
    Kill,
}

/// The owner's end of a running sink core.
pub struct Handle {
    events: UnboundedSender<Event>,
    status: Arc<Status>,
    globals: Arc<Globals>,
    /// Closed when the thread has ended.
    running: Mutex<Option<mpsc::Receiver<()>>>,
    #[cfg(test)]
    task: Arc<std::sync::OnceLock<String>>,
}

/// Starts the sink core; returns when all sinks and sources are open. Servers need not be there.
///
/// # Errors
/// A sink or source cannot be opened as it is configured, with its name and what is wrong.
pub fn start(end: SinkEnd, options: CoreOptions) -> io::Result<Handle> {
    start_with(end, options, |_| None)
}

/// With targets for some sinks, by their numbers, in place of what their options say.
pub(super) fn start_with(
    end: SinkEnd,
    options: CoreOptions,
    targets: impl Fn(usize) -> Option<Arc<dyn Target>> + Send + 'static,
) -> io::Result<Handle> {
    let sinks = options.sinks.iter().map(|sink| sink.name.clone()).collect();
    let sources = options.sources.iter().map(|source| source.name.clone()).collect();
    let actions = actions(&options.actions);
    let labels = actions.iter().map(|action| action.label.clone()).collect();
    let status = Arc::new(Status::new(sinks, sources, labels));
    let globals = Arc::clone(&options.globals);
    let (events, inbox) = unbounded_channel();
    let (started, starting) = mpsc::channel();
    let (runs, running) = mpsc::channel::<()>();
    #[cfg(test)]
    let task = Arc::new(std::sync::OnceLock::new());
    {
        #[cfg(test)]
        let task = Arc::clone(&task);
        let (events, status) = (events.clone(), Arc::clone(&status));
        std::thread::Builder::new().name("sinks".to_owned()).spawn(move || {
            #[cfg(test)]
            task.get_or_init(|| std::fs::read_link("/proc/thread-self").unwrap().display().to_string());
            let run = || -> io::Result<()> {
                if let Some(cpu) = options.cpu {
                    pin_to_cpu(cpu).map_err(|error| io::Error::new(error.kind(), format!("sink core on CPU {cpu}: {error}")))?;
                }
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime =
                    runtime.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).thread_name("sinks-blocking").build()?;
                runtime.block_on(async {
                    let mut core = Core::open(end, options, actions, status, events, inbox, targets).await?;
                    started.send(Ok(())).ok();
                    core.run().await;
                    io::Result::Ok(())
                })?;
                // A write to a slow disk, or a pipe that nobody reads, is not waited for.
                runtime.shutdown_background();
                Ok(())
            };
            if let Err(error) = run() {
                started.send(Err(error)).ok();
            }
            drop(runs);
        })?;
    }
    match starting.recv() {
        Ok(Ok(())) => Ok(Handle {
            events,
            status,
            globals,
            running: Mutex::new(Some(running)),
            #[cfg(test)]
            task,
        }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the sink core ended while it started")),
    }
}

/// Actions by their numbers.
fn actions(options: &[ActionOptions]) -> Vec<ActionOfSink> {
    let count = options.iter().map(|action| usize::from(action.id.0) + 1).max().unwrap_or(0);
    let mut actions = vec![ActionOfSink { sink: usize::MAX, ..ActionOfSink::default() }; count];
    for action in options {
        actions[usize::from(action.id.0)] = ActionOfSink {
            label: action.label.clone(),
            sink: usize::from(action.sink),
            queued: action.confirm == Confirm::Queued,
        };
    }
    actions
}

impl SinkCore for Handle {
    fn flush(&self, at_most: Duration) -> bool {
        let (answer, answered) = mpsc::channel();
        if self.events.send(Event::Flush(Instant::now() + at_most, answer)).is_err() {
            return false;
        }
        answered.recv_timeout(at_most + ANSWER_MAX).unwrap_or(false)
    }

    fn stop(&self) {
        self.events.send(Event::Stop).ok();
        let running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        // Nothing is sent on it: it is closed when the thread ends.
        if let Some(running) = running
            && running.recv_timeout(STOP_MAX) == Err(mpsc::RecvTimeoutError::Timeout)
        {
            tracing::error!("the sink core does not end: something that it writes to, a disk perhaps, does not answer");
        }
    }

    fn status(&self) -> Vec<(String, String)> {
        self.status.topics(&self.globals)
    }
}

#[cfg(test)]
impl Handle {
    /// Ends the thread as a kill would.
    pub fn kill(&self) {
        self.events.send(Event::Kill).ok();
        self.stop();
    }

    /// The thread's directory below `/proc`.
    pub fn task(&self) -> &str {
        self.task.get().unwrap()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The doorbell as tokio watches it. It is never read, because it is watched edge-triggered.
struct Bell(Arc<Doorbell>);

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor()
    }
}

struct Flush {
    until: Instant,
    answer: mpsc::Sender<bool>,
}

struct Core {
    end: SinkEnd,
    bell: AsyncFd<Bell>,
    inbox: UnboundedReceiver<Event>,
    /// Events that came while the core waited.
    events: Vec<Event>,
    sinks: Vec<Sink>,
    sources: Vec<Source>,
    actions: Vec<ActionOfSink>,
    globals: Arc<Globals>,
    status: Arc<Status>,
    ended: Vec<Ended>,
    flush: Option<Flush>,
}

/// What follows a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The next.
    Again,
    /// A nap, and the next.
    Nap,
    Sleep,
    Stop,
}

impl Core {
    async fn open(
        end: SinkEnd,
        options: CoreOptions,
        actions: Vec<ActionOfSink>,
        status: Arc<Status>,
        events: UnboundedSender<Event>,
        inbox: UnboundedReceiver<Event>,
        targets: impl Fn(usize) -> Option<Arc<dyn Target>>,
    ) -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "its successor is unsafe for descriptors that may be closed; a doorbell keeps its own open"
        )]
        let bell = AsyncFd::new(Bell(Arc::clone(end.bell())))?;
        let now = Instant::now();
        let mut sinks = Vec::new();
        for (index, sink) in options.sinks.iter().enumerate() {
            let failed = |what: String| io::Error::new(io::ErrorKind::InvalidInput, format!("sink {}: {what}", sink.name));
            check_dead_letters(&sink.buffer.dead_letter_path).map_err(failed)?;
            let buffer = Buffer::open(&sink.buffer, sink.kind.name()).map_err(|error| failed(error.to_string()))?;
            let feed = feed(index, sink, targets(index), &status.sinks[index], &events, now).await.map_err(failed)?;
            let status = Arc::clone(&status.sinks[index]);
            sinks.push(Sink::new(index, sink, buffer, feed, status, &options.globals, now));
        }
        let mut sources = Vec::new();
        for (source, status) in options.sources.iter().zip(&status.sources) {
            let source =
                Source::open(source, Arc::clone(status), Arc::clone(end.bell()), end.shards(), options.hasher, &options.limits)
                    .map_err(|what| io::Error::new(io::ErrorKind::InvalidInput, format!("source {}: {what}", source.name)))?;
            sources.push(source);
        }
        let globals = options.globals;
        let (events, ended) = (Vec::new(), Vec::new());
        Ok(Self { end, bell, inbox, events, sinks, sources, actions, globals, status, ended, flush: None })
    }

    async fn run(&mut self) {
        loop {
            let begun = Instant::now();
            let next = self.pass();
            let took = begun.elapsed();
            if took > PASS_MAX {
                tracing::warn!(
                    "all sinks were held up for {} ms: the disk of a buffer or of dead letters is slow",
                    took.as_millis()
                );
            }
            match next {
                // Batches and the doorbell have their turn too.
                Next::Again => tokio::task::yield_now().await,
                Next::Nap => self.wait(Some(Instant::now() + NAP), false).await,
                Next::Sleep => self.sleep().await,
                Next::Stop => return,
            }
        }
    }

    fn pass(&mut self) -> Next {
        while let Ok(event) = self.inbox.try_recv() {
            self.events.push(event);
        }
        let now = Instant::now();
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Attempt(sink, attempt) => self.sinks[sink].on_attempt(attempt, &self.actions),
                Event::Server(sink, answer) => self.sinks[sink].on_server(answer),
                Event::Flush(until, answer) => {
                    self.sources.iter_mut().for_each(Source::pause);
                    self.flush = Some(Flush { until, answer });
                }
                Event::Stop => {
                    self.stop();
                    return Next::Stop;
                }
                #[cfg(test)]
                Event::Kill => return Next::Stop,
            }
        }
        let (taken, mut again) = self.take();
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
        let Self { end, actions, globals, ended, .. } = self;
        let mut pass = Pass { end, actions, globals, ended, now, now_us, flush: self.flush.is_some() };
        for sink in &mut self.sinks {
            again |= sink.pass(&mut pass);
        }
        for source in &mut self.sources {
            again |= source.pass(&mut SourcePass { end: pass.end, now });
        }
        self.globals.memory_bytes.add(take_charge());
        self.status.count(&mut self.ended);
        self.end.settle();
        self.answer_flush(now);
        match (again, taken || self.end.has_backlog()) {
            (true, _) => Next::Again,
            (false, true) => Next::Nap,
            (false, false) => Next::Sleep,
        }
    }

    /// Takes records from the rings; whether there were any, and whether there are more.
    fn take(&mut self) -> (bool, bool) {
        let (mut taken, mut more) = (false, false);
        for shard in 0..self.end.shards() {
            let (mut records, mut bytes) = (0, 0);
            while records < RECORDS_MAX && bytes < BYTES_MAX {
                let Some(record) = self.end.take(shard) else { break };
                records += 1;
                bytes += record.bytes();
                let action = self.actions.get(usize::from(record.action.0));
                match action.and_then(|action| Some((self.sinks.get_mut(action.sink)?, action.queued))) {
                    Some((sink, queued)) => sink.push(shard, record, queued),
                    None => {
                        debug_assert!(false, "a record of an action that is not configured");
                        if let Some(ticket) = record.ticket {
                            self.end.answer(shard, ticket, Outcome::Failed);
                        }
                    }
                }
            }
            taken |= records > 0;
            more |= records == RECORDS_MAX || bytes >= BYTES_MAX;
        }
        (taken, more)
    }

    fn answer_flush(&mut self, now: Instant) {
        let Some(flush) = &self.flush else { return };
        let is_done = !self.end.has_records() && !self.end.has_backlog() && self.sinks.iter().all(Sink::is_empty);
        if is_done || now >= flush.until {
            flush.answer.send(is_done).ok();
            if !is_done {
                tracing::warn!("records were left when the time for sending them was over");
            }
            self.flush = None;
        }
    }

    fn stop(&mut self) {
        self.sinks.iter_mut().for_each(Sink::stop);
        for source in self.sources.drain(..) {
            source.stop(&mut self.end);
        }
    }

    /// Sleeps until there is something to do.
    async fn sleep(&mut self) {
        let flush = self.flush.as_ref().map(|flush| flush.until);
        let sinks = self.sinks.iter().filter_map(Sink::due_at);
        let until = sinks.chain(self.sources.iter().map(Source::due_at)).chain(flush).min();
        self.end.bell().announce_sleep();
        if !self.end.has_records() && !self.sources.iter().any(|source| source.has_news(&self.end)) {
            self.wait(until, true).await;
        }
        self.end.bell().end_sleep();
    }

    /// Waits for an event, for the doorbell if told so, or until then.
    async fn wait(&mut self, until: Option<Instant>, bell: bool) {
        let Self { inbox, events, bell: doorbell, .. } = self;
        let something = poll_fn(|context| {
            let mut came = false;
            while let Poll::Ready(Some(event)) = inbox.poll_recv(context) {
                events.push(event);
                came = true;
            }
            while bell && let Poll::Ready(Ok(mut ready)) = doorbell.poll_read_ready(context) {
                ready.clear_ready();
                came = true;
            }
            if came { Poll::Ready(()) } else { Poll::Pending }
        });
        match until {
            Some(until) => drop(tokio::time::timeout_at(until.into(), something).await),
            None => something.await,
        }
    }
}

/// Whether a dead letter could be written one day.
fn check_dead_letters(path: &str) -> Result<(), String> {
    match Path::new(path).parent() {
        Some(directory) if !directory.as_os_str().is_empty() && !directory.is_dir() => {
            Err(format!("dead_letter_path {path:?}: there is no such directory; make it, or name another file"))
        }
        _ => Ok(()),
    }
}

/// Opens the way to a sink's server.
async fn feed(
    index: usize,
    options: &SinkOptions,
    target: Option<Arc<dyn Target>>,
    status: &Arc<SinkStatus>,
    events: &UnboundedSender<Event>,
    now: Instant,
) -> Result<Feed, String> {
    let target: Arc<dyn Target> = match (target, &options.kind) {
        (Some(target), _) => target,
        (None, SinkKind::Kafka(kafka)) => {
            return Ok(Feed::Kafka(Box::new(Kafka::open(kafka, &options.buffer, Arc::clone(status), now)?)));
        }
        (None, SinkKind::File(file)) => Arc::new(FileTarget::new(file)),
        (None, SinkKind::Http(http)) => Arc::new(Http::new(http)?),
        (None, SinkKind::Mongodb(mongodb)) => Arc::new(Mongodb::new(mongodb)?),
    };
    let attempts = events.clone();
    let tell = Arc::new(move |attempt| attempts.send(Event::Attempt(index, attempt)).is_ok());
    let answers = events.clone();
    tokio::spawn(batches::probe(Arc::clone(&target), move |answer| answers.send(Event::Server(index, answer)).is_ok()));
    let buffer = &options.buffer;
    let linger = Duration::from_millis(buffer.linger_ms.into());
    Ok(Feed::Batches(Batches::new(target, linger, buffer.batch_records_max as usize, buffer.batch_bytes_max, tell)))
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
