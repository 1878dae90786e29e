//! The thin shell around the pure core: everything that touches the world. It lives above the line; nothing below knows of it.
//!
//! Where to find what: `core` (what the shell asks of a shard) · `turn` (the loop of one shard) · `ring` (its network plane, and all
//! `unsafe`) · `sockets` (what is remembered per connection) · `listener` (bind and accept) · `closing` (the end of a connection) ·
//! `mesh` and `doorbell` (the rings between shards) · `sink_link` (those to the sink core) · `board` (what shards show others), `turn_times`, `log_line`, `event_log` ·
//! `watchdog` · `signals` · `probe` (whether the machine permits all this) · `clock`.
//!
//! Two steps: [`bind`] looks at the machine and opens all listeners, [`Bound::run`] turns until a signal comes. In between the start
//! screen can be printed, with the real ports.

pub mod board;
pub mod clock;
mod closing;
pub mod core;
mod doorbell;
mod event_log;
pub mod listener;
mod log_line;
mod mesh;
pub mod probe;
mod ring;
mod signals;
pub mod sink_link;
mod sockets;
mod turn;
mod turn_times;
mod watchdog;

pub use self::core::Core;
pub use doorbell::Doorbell;
pub use listener::ListenerOptions;
pub use ring::system::pin_to_cpu;

use crate::ids::{CORES_MAX, CoreId};
use crate::limits::Limits;
use crate::rules::PlannedRule;
use crate::shard::peer::REPLY_SLOTS;
use crate::shard::{Gate, Globals, Shard, ShardOptions, TestDelays};
use crate::time::Time;
use crate::topic::Hasher;
use board::{Board, ProcessPhase};
use clock::Clock;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement};
use log_line::LogLine;
use probe::{Host, ProbeError};
use signals::Signals;
use sink_link::{ShardEnd, SinkCore, SinkEnd};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use turn::{Turn, TurnOptions};
use watchdog::Watchdog;

/// Memory that each executor registers for file I/O, which a shard does not do.
const EXECUTOR_IO_BYTES: usize = 1 << 20;
/// Beyond the linger second: what closing a million connections by turns takes.
const DISCONNECT_MAX: Duration = Duration::from_secs(5);
/// How often the process looks whether a shard has died or a phase is finished.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const PHASE_LOOK_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardCount {
    /// One per CPU that the process may run on.
    Auto,
    /// So many; more than CPUs share them in turn.
    N(usize),
}

#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    pub limits: Arc<Limits>,
    pub rules: Arc<[PlannedRule]>,
    /// What rules see as `node`.
    pub node: String,
    pub listeners: Vec<ListenerOptions>,
    pub shards: ShardCount,
    /// Delays decisions at random, for tests of parking.
    pub delays: Option<TestDelays>,
    /// How long the messages under way may take to reach their subscribers at shutdown.
    pub shutdown_s: u64,
    /// A turn that takes longer ends the process; 0: never.
    pub stall_s: u64,
    /// Between two `$SYS` snapshots; 0: none.
    pub sys_interval_s: u64,
    /// Between two lines of the log about load; 0: none.
    pub log_interval_s: u64,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self {
            limits: Arc::default(),
            rules: Arc::new([]),
            node: "corelane".to_owned(),
            listeners: Vec::new(),
            shards: ShardCount::Auto,
            delays: None,
            shutdown_s: 10,
            stall_s: 10,
            sys_interval_s: 10,
            log_interval_s: 60,
        }
    }
}

/// Starts the sink core, given its end of the rings, what belongs to the whole process, and the hasher that shards find homes with.
pub type StartSinks = Box<dyn FnOnce(SinkEnd, Arc<Globals>, Hasher) -> io::Result<Arc<dyn SinkCore>>>;
type StartSinksWith = Box<dyn FnOnce(SinkEnd) -> io::Result<Arc<dyn SinkCore>>>;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("{count} shards: there must be 1 to {CORES_MAX}")]
    ShardCount { count: usize },
    #[error("listener {name} cannot listen on {address}: {}", bind_advice(source))]
    Bind { name: String, address: SocketAddr, source: io::Error },
    #[error("shard {shard} did not start: {what}")]
    Start { shard: usize, what: String },
    #[error("shard {shard} failed: {what}")]
    Shard { shard: usize, what: String },
    #[error("the sinks did not start: {0}")]
    Sinks(io::Error),
    #[error("the process lacks what it needs to start: {0}")]
    Process(#[from] io::Error),
}

fn bind_advice(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the address is in use, perhaps by another broker; stop that one or choose another port".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; choose one of its own, or 0.0.0.0 for all".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 are privileged; choose another or grant CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => error.to_string(),
    }
}

/// All listeners of a process, open, with nobody to serve them yet: clients that connect wait.
pub struct Bound {
    options: RuntimeOptions,
    pub host: Host,
    /// The CPU of each shard.
    pub cpus: Vec<usize>,
    /// Name and real address of each listener.
    pub listening: Vec<(String, SocketAddr)>,
    /// Of each shard: its socket of each listener.
    sockets: Vec<Vec<TcpListener>>,
}

/// Looks at the machine and opens the listeners.
///
/// # Errors
/// Each with what, why and the fix, in one line.
pub fn bind(options: RuntimeOptions) -> Result<Bound, RuntimeError> {
    let host = probe::host()?;
    let shards = match options.shards {
        ShardCount::Auto => host.cpus.len().min(CORES_MAX),
        ShardCount::N(count) => count,
    };
    if !(1..=CORES_MAX).contains(&shards) {
        return Err(RuntimeError::ShardCount { count: shards });
    }
    probe::check_files(&host, shards)?;
    let cpus = (0..shards).map(|shard| host.cpus[shard % host.cpus.len()]).collect();
    let mut sockets: Vec<Vec<TcpListener>> = (0..shards).map(|_| Vec::new()).collect();
    let mut listening = Vec::new();
    for listener in &options.listeners {
        let failed = |source| RuntimeError::Bind { name: listener.name.clone(), address: listener.address, source };
        let bound = listener::bind(listener, shards).map_err(failed)?;
        listening.push((listener.name.clone(), bound[0].local_addr().map_err(failed)?));
        for (sockets, socket) in sockets.iter_mut().zip(bound) {
            sockets.push(socket);
        }
    }
    Ok(Bound { options, host, cpus, listening, sockets })
}

/// The shards, turning.
struct Running {
    options: RuntimeOptions,
    board: Arc<Board>,
    clock: Clock,
    doorbells: Arc<[Doorbell]>,
    shards: Vec<ExecutorJoinHandle<io::Result<()>>>,
    watchdog: Option<Watchdog>,
    sinks: Arc<OnceLock<Arc<dyn SinkCore>>>,
}

impl Bound {
    /// Turns until SIGTERM or SIGINT, then shuts down in order. `gates`: one before each sink; `start_sinks` starts the core that
    /// empties the rings, or there is none and no action writes to a sink.
    ///
    /// # Errors
    /// A shard or the sink core cannot start, or a shard fails.
    pub fn run(self, gates: Vec<Gate>, start_sinks: Option<StartSinks>) -> Result<(), RuntimeError> {
        let RuntimeOptions { limits, delays, rules, node, .. } = self.options.clone();
        let globals = Arc::new(Globals { gates: gates.into(), ..Globals::default() });
        let hasher = Hasher::random();
        let of_sinks = Arc::clone(&globals);
        let start_sinks = start_sinks.map(|start| -> StartSinksWith { Box::new(move |end| start(end, of_sinks, hasher)) });
        let clock = Clock::start();
        let epoch_us = clock.epoch_us();
        let new_core = move |core, cores, now| {
            let (limits, globals, rules) = (Arc::clone(&limits), Arc::clone(&globals), Arc::clone(&rules));
            let node = node.as_str().into();
            Shard::new(ShardOptions { core, cores, limits, hasher, globals, delays, rules, node, epoch_us, now })
        };
        self.run_with(clock, start_sinks, new_core)
    }

    /// The same with any core; `new_core` makes the one of a shard, on its thread, given how many there are and the time.
    fn run_with<C: Core>(
        self,
        clock: Clock,
        start_sinks: Option<StartSinksWith>,
        new_core: impl Fn(CoreId, usize, Time) -> C + Send + Sync + 'static,
    ) -> Result<(), RuntimeError> {
        let signals = Signals::install()?;
        let running = self.start(clock, start_sinks, new_core)?;
        let interval = Duration::from_secs(running.options.log_interval_s);
        let mut log = LogLine::default();
        let mut log_at = running.clock.now() + interval;
        while !signals.wait(LOOK_INTERVAL) && !running.board.is_stopped() {
            let now = running.clock.now();
            if !interval.is_zero() && now >= log_at {
                log_at = now + interval;
                tracing::info!("{}", log.next(&running.board, now));
            }
        }
        running.shut_down()
    }

    /// Starts the shards; returns when all of them turn.
    fn start<C: Core>(
        self,
        clock: Clock,
        start_sinks: Option<StartSinksWith>,
        new_core: impl Fn(CoreId, usize, Time) -> C + Send + Sync + 'static,
    ) -> Result<Running, RuntimeError> {
        let Bound { options, cpus, sockets, .. } = self;
        let count = cpus.len();
        let board = Arc::new(Board::new(count, options.rules.len()));
        let meshes = mesh::connect(count, options.limits.mesh_messages_max as usize + REPLY_SLOTS as usize)?;
        let doorbells = Arc::clone(meshes[0].doorbells());
        let status: Arc<OnceLock<Arc<dyn SinkCore>>> = Arc::default();
        let mut ends: Vec<Option<ShardEnd>> = (0..count).map(|_| None).collect();
        if let Some(start) = start_sinks {
            let (shard_ends, sink_end) = sink_link::connect(&doorbells)?;
            ends = shard_ends.into_iter().map(Some).collect();
            let sinks = start(sink_end).map_err(RuntimeError::Sinks)?;
            status.set(sinks).ok();
        }
        let new_core = Arc::new(new_core);
        let (started, starting) = mpsc::channel();
        let mut shards = Vec::with_capacity(count);
        for (index, (((mesh, sinks), listeners), cpu)) in meshes.into_iter().zip(ends).zip(sockets).zip(cpus).enumerate() {
            let sys_interval = Duration::from_secs(options.sys_interval_s);
            let status = Arc::clone(&status);
            let turn = TurnOptions { index, mesh, sinks, status, listeners, board: Arc::clone(&board), clock, sys_interval };
            let (new_core, started, board) = (Arc::clone(&new_core), started.clone(), Arc::clone(&board));
            let shard = move || async move {
                let _stopped = Stopped(board);
                // The executor names its thread by a number of its own; the shard's is what `top -H` should show.
                std::fs::write("/proc/thread-self/comm", format!("shard-{index}")).ok();
                let core = new_core(CoreId(index as u8), count, clock.now());
                let turn = Turn::new(core, turn).inspect_err(|error| {
                    started.send((index, Err(error.to_string()))).ok();
                })?;
                started.send((index, Ok(()))).ok();
                drop(started);
                turn.run()
            };
            let executor = LocalExecutorBuilder::new(Placement::Fixed(cpu)).io_memory(EXECUTOR_IO_BYTES).name("shard");
            let failed = |error| RuntimeError::Start { shard: index, what: format!("{error}") };
            shards.push(executor.spawn(shard).map_err(failed)?);
        }
        drop(started);
        let mut turning = 0;
        for (shard, result) in starting {
            result.map_err(|what| RuntimeError::Start { shard, what })?;
            turning += 1;
        }
        if turning < count {
            // An executor that fails before its task says why when it is joined.
            for (shard, handle) in shards.into_iter().enumerate() {
                if let Err(error) = handle.join() {
                    return Err(RuntimeError::Start { shard, what: format!("{error}") });
                }
            }
            return Err(RuntimeError::Start { shard: 0, what: "its executor ended".to_owned() });
        }
        let watchdog = match options.stall_s {
            0 => None,
            stall_s => Some(Watchdog::start(Arc::clone(&board), clock, Duration::from_secs(stall_s), |report| {
                tracing::error!("{report}; aborting");
                std::process::abort();
            })?),
        };
        Ok(Running { options, board, clock, doorbells, shards, watchdog, sinks: status })
    }
}

/// Says that a shard has ended, however it did.
struct Stopped(Arc<Board>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.set_stopped();
    }
}

impl Running {
    /// Passes the phases of a shutdown, each when all shards have finished the one before, and ends the shards.
    fn shut_down(self) -> Result<(), RuntimeError> {
        tracing::info!("shutting down");
        self.pass(ProcessPhase::AcceptsOff, DISCONNECT_MAX);
        self.pass(ProcessPhase::ReadsOff, DISCONNECT_MAX);
        let at_most = Duration::from_secs(self.options.shutdown_s);
        let begun = Instant::now();
        self.pass(ProcessPhase::Draining, at_most);
        if let Some(sinks) = self.sinks.get() {
            sinks.flush(at_most.saturating_sub(begun.elapsed()));
        }
        self.pass(ProcessPhase::Disconnecting, closing::LINGER + DISCONNECT_MAX);
        self.begin(ProcessPhase::Exit);
        let Running { shards, watchdog, sinks, .. } = self;
        let mut result = Ok(());
        for (shard, handle) in shards.into_iter().enumerate() {
            let what = match handle.join() {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            result = result.and(Err(RuntimeError::Shard { shard, what }));
        }
        if let Some(sinks) = sinks.get() {
            sinks.stop();
        }
        if let Some(watchdog) = watchdog {
            watchdog.stop();
        }
        result
    }

    fn pass(&self, phase: ProcessPhase, at_most: Duration) {
        self.begin(phase);
        let deadline = Instant::now() + at_most;
        while !self.board.all_finished(phase) {
            if Instant::now() >= deadline {
                tracing::warn!("{phase:?} was not finished after {} s and is given up", at_most.as_secs());
                return;
            }
            if self.board.is_stopped() {
                return;
            }
            thread::sleep(PHASE_LOOK_INTERVAL);
        }
    }

    fn begin(&self, phase: ProcessPhase) {
        self.board.set_phase(phase);
        for doorbell in self.doorbells.iter() {
            doorbell.ring();
        }
    }
}

#[cfg(test)]
mod echo_core;
#[cfg(test)]
mod tests;
