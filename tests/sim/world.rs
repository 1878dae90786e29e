//! Shards, rings and virtual time in one thread: the shell of the core, with chance in place of the kernel. A shard's turn is cut into
//! phases between which others run, rings are pushed one at a time, bytes are read and sent in pieces, cores fall asleep for seconds.

use crate::client::Client;
use crate::ending;
use crate::net::{Net, Trace};
use crate::oracle::{Failure, Oracle};
use crate::random::Random;
use crate::script::{Action, Script};
use crate::sink::{self, Sink};
use crate::socket::{End, Owner};
use corelane::ids::{ConnectionId, CoreId};
use corelane::limits::DropPolicy;
use corelane::record::Outcome;
use corelane::shard::peer::{MeshMessage, Progress, REPLY_SLOTS};
use corelane::shard::{Counters, Globals, Shard, ShardOptions, TestDelays};
use corelane::time::Time;
use corelane::topic::Hasher;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The shell gives a connection so long to take its last bytes.
const LINGER: Duration = Duration::from_secs(1);
/// Virtual time in which everything must have come to rest.
const REST_WITHIN: Duration = Duration::from_secs(300);
const STEPS_MAX: u64 = 3_000_000;

#[derive(Default)]
struct Ring {
    messages: VecDeque<MeshMessage>,
    pushed: u64,
    pushed_bytes: u64,
    consumed: u64,
    consumed_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Mesh,
    Sockets,
    Run,
    Perform,
    /// Pushing to rings, one a step.
    Push,
    Send,
}

pub struct Core {
    pub shard: Shard,
    stage: Stage,
    /// What its clock shows when this turn began.
    now: Time,
    more: bool,
    /// One step in so many that it could do is done.
    slowness: usize,
    /// Of what its rings hold it takes little in a turn.
    lazy: bool,
    /// It does nothing before then.
    asleep_until: Time,
    outgoing: Vec<(usize, Vec<MeshMessage>)>,
    /// Connections with bytes to send.
    hot: Vec<ConnectionId>,
    closing: Vec<ConnectionId>,
    /// Progress it has been shown last.
    shown: Vec<Progress>,
    pub idle_turns: u32,
}

pub struct Report {
    pub steps: u64,
    pub checked: u64,
    pub failure: Option<Failure>,
    pub counters: Counters,
    pub now: Time,
    pub trace: Vec<(Time, String)>,
}

pub struct World {
    pub script: Script,
    random: Random,
    pub net: Net,
    pub cores: Vec<Core>,
    rings: Vec<Vec<Ring>>,
    pub globals: Arc<Globals>,
    /// There is a rule, and a sink that its records go to.
    sink: Option<Sink>,
    pub clients: Vec<Client>,
    pub oracle: Oracle,
    pub now: Time,
    pub round: usize,
    steps: u64,
    connects_read: u64,
    /// The broker shuts down: nothing is read any more.
    pub stopping: bool,
    by_connection: BTreeMap<(usize, u64), usize>,
}

pub fn run(script: &Script, trace: bool) -> Report {
    let _ = corelane::message::take_charge();
    let mut world = World::new(script.clone(), trace);
    world.run();
    Report {
        steps: world.steps,
        checked: world.oracle.checked,
        failure: world.oracle.failure.take(),
        counters: world.counters(),
        now: world.now,
        trace: std::mem::take(&mut world.net.trace.lines),
    }
}

impl World {
    fn new(mut script: Script, trace: bool) -> Self {
        script.clients.push(ending::probe());
        let now = Time::from_ms(1_000_000);
        let mut random = Random::new(script.seed ^ 0xABCD);
        let globals = Arc::new(Globals { gates: Box::new([sink::gate()]), ..Globals::default() });
        let rules = if script.sink { sink::rules() } else { Arc::new([]) };
        let hasher = Hasher::from_seed(script.seed);
        let limits = Arc::new(script.limits.clone());
        let delays = (script.delay_one_in > 0).then_some(TestDelays { one_in: script.delay_one_in, delay_ms_max: 300 });
        let cores = (0..script.shards)
            .map(|index| Core {
                shard: Shard::new(ShardOptions {
                    core: CoreId(index as u8),
                    cores: script.shards,
                    limits: limits.clone(),
                    hasher,
                    globals: globals.clone(),
                    delays,
                    rules: rules.clone(),
                    node: "sim".into(),
                    epoch_us: 0,
                    now,
                }),
                stage: Stage::Mesh,
                now,
                more: false,
                slowness: if script.rough && script.clients.len() < 30 { random.pick(&[1, 1, 1, 5, 50]) } else { 1 },
                lazy: script.rough && random.one_in(3),
                asleep_until: Time(0),
                outgoing: Vec::new(),
                hot: Vec::new(),
                closing: Vec::new(),
                shown: vec![Progress::default(); script.shards],
                idle_turns: 0,
            })
            .collect();
        let rings = (0..script.shards).map(|_| (0..script.shards).map(|_| Ring::default()).collect()).collect();
        let clients = script
            .clients
            .iter()
            .enumerate()
            .map(|(index, spec)| {
                let steps = script.steps.iter().filter(|step| step.client == index).cloned().collect();
                let may_be_cut = script.limits.drop_policy == DropPolicy::Disconnect;
                Client::new(index, spec.clone(), may_be_cut, steps, now)
            })
            .collect();
        Self {
            random,
            net: Net {
                sockets: Vec::new(),
                open: Vec::new(),
                random: Random::new(script.seed ^ 0x1234_5678),
                fresh_topics: Vec::new(),
                trace: Trace { on: trace, lines: Vec::new() },
                shards: script.shards,
                rough: script.rough,
            },
            oracle: Oracle::new(&script),
            cores,
            rings,
            globals,
            sink: script.sink.then(|| Sink::new(script.shards)),
            clients,
            now,
            round: 0,
            steps: 0,
            connects_read: 0,
            stopping: false,
            by_connection: BTreeMap::new(),
            script,
        }
    }

    pub fn failed(&self) -> bool {
        self.oracle.failure.is_some()
    }

    pub fn fail(&mut self, property: &'static str, detail: String, subjects: Vec<String>) {
        self.oracle.fail(property, detail, subjects);
    }

    // The run as a whole.

    fn run(&mut self) {
        for round in 0..self.script.rounds {
            self.round = round;
            if self.script.shutdown && round + 1 == self.script.rounds {
                let steps = self.random.below(5_000);
                for _ in 0..steps {
                    self.step();
                }
                return self.shut_down();
            }
            self.settle();
            if self.failed() {
                return;
            }
            self.check();
            if self.failed() {
                return;
            }
        }
        self.finish();
    }

    /// Lets the world go on until all is quiet.
    pub fn settle(&mut self) {
        loop {
            self.go_on_until_quiet();
            if self.failed() {
                return;
            }
            self.check_owners();
            let mut adopted = false;
            for client in &mut self.clients {
                adopted |= client.adopt(&mut self.net, &mut self.oracle, self.now);
            }
            if !adopted || self.failed() {
                return;
            }
        }
    }

    fn go_on_until_quiet(&mut self) {
        let begun = self.now;
        let begun_steps = self.steps;
        while !self.failed() {
            if self.is_quiet() {
                return;
            }
            if !self.step() {
                let next = self.next_time();
                match next {
                    Some(next) if next > self.now => self.now = next,
                    _ => self.now = self.now + Duration::from_millis(50),
                }
            }
            if self.now - begun > REST_WITHIN + Duration::from_secs(self.round_waits_s()) || self.steps - begun_steps > STEPS_MAX
            {
                let why: Vec<_> = self.unrest().collect();
                let subjects = self.clients.iter().map(|client| client.spec.id.clone()).collect();
                self.fail("liveness", format!("no rest after {:?}: {why:?}", self.now - begun), subjects);
            }
        }
    }

    /// How long the scripts of this round may take by themselves.
    fn round_waits_s(&self) -> u64 {
        let ms: u64 = self
            .script
            .steps
            .iter()
            .filter(|step| step.round == self.round)
            .map(|step| match step.action {
                Action::Wait { ms } | Action::StopReading { ms } => ms,
                _ => 1_000,
            })
            .sum();
        ms / 1_000
    }

    /// What is still going on.
    fn unrest(&self) -> impl Iterator<Item = String> {
        let clients = self.clients.iter().filter_map(|client| {
            let unread = client.link.as_ref().is_some_and(|link| {
                let socket = &self.net.sockets[link.socket];
                socket.to_client.len() > 0 || socket.is_closed_by_broker()
            });
            let why = client.busy(self.round);
            why.or_else(|| unread.then(|| format!("{} has bytes or the end to read", client.spec.id)))
        });
        let sockets = self.net.open.iter().filter_map(|&at| {
            let socket = &self.net.sockets[at];
            let name = &self.clients[socket.client].spec.id;
            if socket.client_end.is_some() || socket.closing.is_some() {
                return Some(format!("socket {at} of {name} is not closed: {:?} {:?}", socket.owner, socket.client_end));
            }
            let unread = socket.to_broker.len() > 0 || socket.connect_unread > 0;
            unread.then(|| format!("socket {at} of {name} is not read: {:?}, paused {}", socket.owner, socket.paused))
        });
        let cores = self.cores.iter().enumerate().filter_map(|(index, core)| {
            let load = core.shard.load();
            let unsent = core.hot.iter().any(|id| self.socket_of(index, *id).is_some_and(|at| self.is_read(at)));
            let ring = self.rings[index].iter().map(|ring| ring.messages.len()).max();
            let rests = !self.has_work(index)
                && load.parked == 0
                && load.fanouts_waiting == 0
                && !core.more
                && !unsent
                && ring == Some(0);
            (!rests).then(|| format!("core {index}: {load:?}, more {}, unsent {unsent}, in a ring {ring:?}", core.more))
        });
        let sink = self.sink.iter().filter(|sink| !sink.is_idle()).map(|_| "the sink has records or answers".to_owned());
        clients.chain(sockets).chain(cores).chain(sink)
    }

    /// Somebody reads what is sent there: the client's connection of the moment, not one it has forgotten or one of a storm.
    fn is_read(&self, socket: usize) -> bool {
        self.clients[self.net.sockets[socket].client].link.as_ref().is_some_and(|link| link.socket == socket)
    }

    fn is_quiet(&self) -> bool {
        self.cores.iter().all(|core| core.idle_turns >= 3 && core.stage == Stage::Mesh) && self.unrest().next().is_none()
    }

    /// When something will happen by itself.
    pub fn next_time(&self) -> Option<Time> {
        let clients = self.clients.iter().filter_map(|client| client.next_time(self.round, &self.net));
        let sockets = self.net.open.iter().map(|&at| &self.net.sockets[at]).flat_map(|socket| {
            let end = (socket.client_end.is_some() && !socket.end_reported).then_some(socket.client_end_arrives);
            [socket.to_broker.next_arrival().filter(|_| !socket.paused), end, socket.closing]
        });
        let cores = self.cores.iter().flat_map(|core| {
            let deadline = core.shard.next_deadline();
            [Some(core.asleep_until), (deadline < Time::NEVER).then_some(deadline)]
        });
        let sink = self.sink.as_ref().and_then(Sink::next_time);
        clients.chain(sockets.flatten()).chain(cores.flatten()).chain(sink).filter(|time| *time > self.now).min()
    }

    /// One small thing, somewhere. `false`: nothing was to be done.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        self.now = self.now + Duration::from_micros(self.random.between(1, 40));
        let in_script = self.round < self.script.rounds && !self.stopping;
        if self.script.rough && in_script && self.random.one_in(20_000) {
            let s = self.random.between(1, 20);
            self.net.trace.say(self.now, || format!("the clock jumps {s} s"));
            self.now = self.now + Duration::from_secs(s);
        }
        let clients = self.clients.len();
        let count = clients + self.cores.len() + usize::from(self.sink.is_some());
        let turn = self.random.below(count);
        for offset in 0..count {
            let which = (turn + offset) % count;
            let did = if which < clients {
                self.clients[which].poll(self.round, &mut self.net, &mut self.oracle, self.now)
            } else if which - clients < self.cores.len() {
                self.step_core(which - clients)
            } else {
                let Self { sink, globals, random, oracle, now, script, .. } = self;
                let rough = script.rough && !self.stopping;
                sink.as_mut().is_some_and(|sink| sink.step(globals, random, oracle, *now, rough))
            };
            if did {
                return true;
            }
        }
        false
    }

    // A core's turn.

    fn step_core(&mut self, index: usize) -> bool {
        if self.cores[index].asleep_until > self.now {
            return false;
        }
        let slowness = self.cores[index].slowness;
        if slowness > 1 && !self.random.one_in(slowness) {
            let core = &self.cores[index];
            return core.stage != Stage::Mesh || core.idle_turns < 3 || self.has_work(index);
        }
        if self.script.rough && self.random.one_in(100) {
            // Most pauses are an interrupt's, a few a machine's.
            // A connection is closed in the midst of its last bytes if its core sleeps too long; so none does at the end.
            let us = if self.random.one_in(30) && !self.stopping {
                self.random.between(1_000, 4_000_000)
            } else {
                self.random.between(10, 3_000)
            };
            self.cores[index].asleep_until = self.now + Duration::from_micros(us);
            self.net.trace.say(self.now, || format!("core {index} falls asleep for {us} µs"));
            return true;
        }
        if self.cores[index].stage == Stage::Mesh {
            if !self.has_work(index) {
                // Shells also wake without reason; a core that has had a few turns with nothing to do is idle.
                if self.cores[index].idle_turns >= 3 {
                    return false;
                }
                self.cores[index].idle_turns += 1;
            } else {
                self.cores[index].idle_turns = 0;
            }
            self.cores[index].now = self.now;
        }
        match self.cores[index].stage {
            Stage::Mesh => self.take_mesh(index),
            Stage::Sockets => self.read_sockets(index),
            Stage::Run => {
                let core = &mut self.cores[index];
                core.more = core.shard.run(core.now);
                core.stage = Stage::Perform;
            }
            Stage::Perform => self.perform(index),
            Stage::Push => self.push(index),
            Stage::Send => {
                self.send(index);
                self.cores[index].stage = Stage::Mesh;
            }
        }
        true
    }

    fn has_work(&self, index: usize) -> bool {
        let core = &self.cores[index];
        let shard = &core.shard;
        core.more
            || shard.next_deadline() <= self.now
            || self.sink.as_ref().is_some_and(|sink| sink.has_news(index) || shard.sinks_may_go_on())
            || (0..self.cores.len()).any(|other| {
                other != index
                    && (!self.rings[other][index].messages.is_empty() || core.shown[other] != self.progress(index, other))
            })
            || core.hot.iter().any(|id| self.socket_of(index, *id).is_none_or(|socket| self.net.sockets[socket].is_writable()))
            || core.closing.iter().any(|id| self.may_close(index, *id))
            || self.net.open.iter().map(|&at| &self.net.sockets[at]).any(|socket| match socket.owner {
                Owner::Backlog(shard) => shard == index,
                Owner::Shard(shard, _) => {
                    shard == index
                        && !self.stopping
                        && socket.closing.is_none()
                        && if socket.paused {
                            !socket.unread_reported && socket.to_broker.arrived(self.now)
                        } else {
                            socket.to_broker.arrived(self.now) || self.end_arrived(socket)
                        }
                }
                _ => false,
            })
    }

    fn end_arrived(&self, socket: &crate::socket::Socket) -> bool {
        socket.client_end.is_some()
            && !socket.end_reported
            && socket.client_end_arrives <= self.now
            && socket.to_broker.len() == 0
    }

    fn progress(&self, of: usize, other: usize) -> Progress {
        let out = &self.rings[of][other];
        Progress {
            consumed_messages: out.consumed,
            consumed_bytes: out.consumed_bytes,
            arrived_messages: self.rings[other][of].pushed,
        }
    }

    fn take_mesh(&mut self, index: usize) {
        let now = self.cores[index].now;
        for other in 0..self.cores.len() {
            if other != index {
                let progress = self.progress(index, other);
                self.cores[index].shown[other] = progress;
                self.cores[index].shard.on_progress(CoreId(other as u8), progress, now);
            }
        }
        if let Some(sink) = &mut self.sink {
            let shard = &mut self.cores[index].shard;
            shard.on_records_taken(sink.show(index));
            while let Some(ticket) = sink.answer(index) {
                shard.on_answer(ticket, Outcome::Accepted);
            }
        }
        let lazy = self.cores[index].lazy || self.random.one_in(3);
        let most = if lazy { self.random.below(4) } else { 1024 };
        let mut budget = self.cores[index].shard.mesh_budget().min(most);
        let first = self.random.below(self.cores.len());
        for offset in 0..self.cores.len() {
            let other = (first + offset) % self.cores.len();
            while budget > 0
                && let Some(mut message) = self.rings[other][index].messages.pop_front()
            {
                budget -= 1;
                let bytes = message.bytes();
                if let MeshMessage::Parcel(parcel) = &mut message {
                    let socket = &self.net.sockets[parcel.socket as usize];
                    parcel.peer_gone = socket.client_end == Some(End::Reset) && socket.client_end_arrives <= self.now;
                }
                self.net.trace.say(now, || format!("core {index} takes from core {other}: {}", describe(&message)));
                self.cores[index].shard.on_mesh(CoreId(other as u8), message, now);
                let ring = &mut self.rings[other][index];
                ring.consumed += 1;
                ring.consumed_bytes += bytes;
            }
        }
        self.cores[index].stage = Stage::Sockets;
    }

    fn read_sockets(&mut self, index: usize) {
        let now = self.cores[index].now;
        let open = self.net.open.clone();
        let count = open.len();
        let first = self.random.below(count);
        let batch = if self.random.one_in(4) { 1 + self.random.below(3) } else { 64 };
        let mut read = 0;
        for offset in 0..count {
            if read == batch {
                break;
            }
            let at = open[(first + offset) % count];
            if self.stopping && matches!(self.net.sockets[at].owner, Owner::Shard(..)) {
                continue;
            }
            match self.net.sockets[at].owner {
                Owner::Backlog(shard) if shard == index && !self.random.one_in(5) => {
                    read += 1;
                    match self.cores[index].shard.on_accepted(at as i32, 0, now) {
                        Some(id) => {
                            self.net.sockets[at].owner = Owner::Shard(index, id);
                            self.net.sockets[at].accepted_at = now;
                            self.net.sockets[at].last_received = now;
                            self.by_connection.insert((index, id.to_bits()), at);
                        }
                        None => {
                            self.net.close(at);
                            if !self.stopping {
                                let name = self.clients[self.net.sockets[at].client].spec.id.clone();
                                self.fail("legal client refused", format!("{name}: accept refused"), vec![name]);
                            }
                        }
                    }
                }
                Owner::Shard(shard, id) if shard == index && self.net.sockets[at].closing.is_none() => {
                    if self.net.sockets[at].paused {
                        if self.net.sockets[at].to_broker.arrived(self.now) {
                            self.net.sockets[at].unread_reported = true;
                            self.cores[index].shard.on_unread(id);
                        }
                        continue;
                    }
                    read += usize::from(self.read_socket(index, at, id, now));
                }
                _ => {}
            }
        }
        self.cores[index].stage = Stage::Run;
    }

    fn read_socket(&mut self, index: usize, at: usize, id: ConnectionId, now: Time) -> bool {
        let max = if self.random.one_in(3) { 1 + self.random.below(40) } else { 64 << 10 };
        // The core's clock is that of its turn's begin; the kernel has what has arrived since.
        let bytes = self.net.sockets[at].to_broker.take(max, self.now);
        if !bytes.is_empty() {
            let socket = &mut self.net.sockets[at];
            socket.last_received = now;
            if socket.connect_unread > 0 {
                socket.connect_unread = socket.connect_unread.saturating_sub(bytes.len());
                if socket.connect_unread == 0 {
                    self.connects_read += 1;
                    socket.connect_read = Some((now, self.connects_read));
                    self.net.trace.say(now, || format!("core {index} has read the CONNECT of socket {at}"));
                }
            }
            self.cores[index].shard.on_received(id, &bytes, now);
            return true;
        }
        if self.end_arrived(&self.net.sockets[at]) {
            let socket = &mut self.net.sockets[at];
            socket.end_reported = true;
            let reset = socket.client_end == Some(End::Reset);
            self.net.trace.say(now, || format!("core {index} sees the end of socket {at}, reset: {reset}"));
            self.cores[index].shard.on_receive_end(id, reset, now);
            return true;
        }
        false
    }

    fn socket_of(&self, index: usize, id: ConnectionId) -> Option<usize> {
        self.by_connection
            .get(&(index, id.to_bits()))
            .copied()
            .filter(|at| self.net.sockets[*at].owner == Owner::Shard(index, id))
    }

    fn perform(&mut self, index: usize) {
        let now = self.cores[index].now;
        let effects = &mut self.cores[index].shard.effects;
        let (departures, arrivals) = (std::mem::take(&mut effects.departures), std::mem::take(&mut effects.arrivals));
        let (pauses, resumes) = (std::mem::take(&mut effects.pauses), std::mem::take(&mut effects.resumes));
        let closes = std::mem::take(&mut effects.closes);
        let events = std::mem::take(&mut effects.events);
        if let Some(sink) = &mut self.sink {
            sink.push(index, effects.records.drain(..));
        }
        let outgoing = effects.mesh.iter_mut().map(std::mem::take).enumerate().filter(|(_, list)| !list.is_empty()).collect();
        self.cores[index].outgoing = outgoing;
        for event in events {
            self.net.trace.say(now, || format!("core {index}: {event}"));
        }
        for socket in departures {
            self.net.sockets[socket as usize].owner = Owner::Moving;
        }
        for id in arrivals {
            let Some(socket) = self.cores[index].shard.socket(id) else {
                self.fail("seam", format!("core {index} says that {id:?} arrives, which has no socket"), vec![]);
                return;
            };
            let at = socket as usize;
            let socket = &mut self.net.sockets[at];
            // Whoever watches a socket anew hears of all that is there to be read, its end included.
            (socket.owner, socket.paused, socket.end_reported) = (Owner::Shard(index, id), false, false);
            self.by_connection.insert((index, id.to_bits()), at);
        }
        for id in pauses {
            if let Some(at) = self.socket_of(index, id) {
                self.net.sockets[at].paused = true;
                self.net.sockets[at].unread_reported = false;
            }
        }
        for id in resumes {
            if let Some(at) = self.socket_of(index, id) {
                self.net.sockets[at].paused = false;
            }
        }
        for id in closes {
            let Some(at) = self.socket_of(index, id) else {
                self.fail("seam", format!("core {index} closes {id:?}, which has no socket"), vec![]);
                return;
            };
            self.net.sockets[at].closing = Some(self.now + LINGER);
            self.cores[index].closing.push(id);
            self.clients[self.net.sockets[at].client].on_closing(at, &mut self.oracle, now);
            self.check_close(at, now);
        }
        self.cores[index].stage = Stage::Push;
    }

    /// The broker closes a connection: it must have a reason that the rules know.
    fn check_close(&mut self, at: usize, now: Time) {
        let socket = &self.net.sockets[at];
        let idle = now.saturating_since(socket.last_received);
        let keep_alive = Duration::from_millis(u64::from(socket.keep_alive_s) * 1_500);
        let newer = self.net.sockets.iter().any(|other| {
            other.client == socket.client
                && match (other.connect_read, socket.connect_read) {
                    (Some(other), Some(own)) => other.0 >= own.0 && other.1 != own.1,
                    (Some(_), None) => true,
                    _ => false,
                }
        });
        let explained = socket.client_end.is_some()
            || socket.may_close
            || newer
            || (socket.keep_alive_s > 0 && idle >= keep_alive)
            || (socket.connect_unread > 0 && now - socket.accepted_at >= Duration::from_secs(10))
            || (self.script.limits.drop_policy == DropPolicy::Disconnect && self.counters().closed_queue_full > 0)
            || self.stopping;
        if !explained {
            let name = self.clients[socket.client].spec.id.clone();
            self.fail("legal client closed", format!("{name}: socket {at} closed by the broker"), vec![name]);
        }
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.cores.iter().for_each(|core| sum.add(&core.shard.counters));
        sum
    }

    fn push(&mut self, index: usize) {
        if self.cores[index].outgoing.is_empty() {
            self.cores[index].stage = Stage::Send;
            return;
        }
        let which = self.random.below(self.cores[index].outgoing.len());
        let (to, messages) = self.cores[index].outgoing.swap_remove(which);
        for message in messages {
            let ring = &mut self.rings[index][to];
            let reply = matches!(message, MeshMessage::RetainedPage(_));
            ring.pushed += 1;
            ring.pushed_bytes += message.bytes();
            ring.messages.push_back(message);
            let waiting = ring.pushed - ring.consumed;
            let waiting_bytes = ring.pushed_bytes - ring.consumed_bytes;
            let most = u64::from(self.script.limits.mesh_messages_max + REPLY_SLOTS);
            // One message is let in however large; a SUBSCRIBE's announcements are let in as a whole.
            let bytes_most = self.script.limits.mesh_bytes_max + (8 << 10);
            if waiting > most || (waiting_bytes > bytes_most && waiting > 1 && !reply) {
                let detail = format!("ring {index} to {to}: {waiting} messages of {most}, {waiting_bytes} bytes of {bytes_most}");
                self.fail("admission", detail, vec![format!("core {index}")]);
                return;
            }
        }
        // The other core is rung for.
        self.cores[to].idle_turns = 0;
    }

    fn send(&mut self, index: usize) {
        let now = self.cores[index].now;
        let core = &mut self.cores[index];
        core.shard.take_flush(&mut core.hot);
        let mut rest = Vec::new();
        let mut hot = std::mem::take(&mut core.hot);
        while let Some(id) = hot.pop() {
            let Some(at) = self.socket_of(index, id) else { continue };
            let mut left = false;
            while let Some(piece) = self.cores[index].shard.outbox(id) {
                if piece.is_empty() {
                    self.fail("seam", format!("core {index} has an empty piece to send"), vec![]);
                    return;
                }
                if !self.net.sockets[at].is_writable() || self.random.one_in(50) {
                    left = true;
                    break;
                }
                let n = if self.random.one_in(5) { 1 + self.random.below(piece.len()) } else { piece.len() };
                let bytes = piece[..n].to_vec();
                self.net.send(at, &bytes, now);
                self.cores[index].shard.on_sent(id, n, now);
            }
            if left && !rest.contains(&id) {
                rest.push(id);
            }
            self.cores[index].shard.take_flush(&mut hot);
        }
        self.cores[index].hot = rest;
        let closing = std::mem::take(&mut self.cores[index].closing);
        for id in closing {
            if self.may_close(index, id) {
                if let Some(at) = self.socket_of(index, id) {
                    self.net.close(at);
                    self.by_connection.remove(&(index, id.to_bits()));
                    self.net.trace.say(now, || format!("core {index} closes socket {at}"));
                }
                self.cores[index].shard.on_closed(id, now);
                self.cores[index].idle_turns = 0;
            } else {
                self.cores[index].closing.push(id);
            }
        }
    }

    /// Everything was sent, or its time is over.
    fn may_close(&self, index: usize, id: ConnectionId) -> bool {
        let Some(at) = self.socket_of(index, id) else { return true };
        let socket = &self.net.sockets[at];
        self.cores[index].shard.outbox(id).is_none() || socket.closing.is_some_and(|by| by <= self.now)
    }

    // What must hold when all is quiet.

    /// One connection a client id, and that the newest.
    fn check_owners(&mut self) {
        for client in 0..self.clients.len() {
            let name = self.clients[client].spec.id.clone();
            let open: Vec<_> = self.net.sockets.iter().enumerate().filter(|(_, s)| s.client == client && s.is_open()).collect();
            if open.len() > 1 {
                let sockets: Vec<_> = open.iter().map(|(at, socket)| (at, socket.owner)).collect();
                return self.fail("one owner", format!("{name} is connected more than once: {sockets:?}"), vec![name]);
            }
            let Some((at, socket)) = open.first() else { continue };
            let newest =
                self.net.sockets.iter().filter(|s| s.client == client).filter_map(|s| s.connect_read).map(|(time, _)| time).max();
            let own = socket.connect_read.map(|(time, _)| time);
            // Connections that their client has ended itself do not count; they may have been the newest.
            let ended = |time: Time| {
                self.net
                    .sockets
                    .iter()
                    .any(|s| s.client == client && s.client_end.is_some() && s.connect_read.is_some_and(|(read, _)| read == time))
            };
            // The newest may have been disconnected because it was slow, while an older one was on its way.
            let lenient = self.script.limits.drop_policy == DropPolicy::Disconnect;
            if !lenient && newest.is_some_and(|newest| own.is_none_or(|own| own < newest) && !ended(newest)) {
                return self.fail("one owner", format!("{name}: socket {at} is not the newest"), vec![name]);
            }
        }
    }

    fn dropped(&self) -> u64 {
        let c = self.counters();
        c.dropped_outbox_full
            + c.dropped_queue_newest
            + c.dropped_queue_oldest
            + c.dropped_packet_too_large
            + c.dropped_expired
            + c.dropped_memory_qos0
    }

    pub fn check(&mut self) {
        let now = self.now;
        for client in &mut self.clients {
            let gone = self.net.open.iter().all(|at| self.net.sockets[*at].client != client.index);
            client.on_quiet(gone, &mut self.oracle, now);
        }
        let sockets = &self.net.sockets;
        self.oracle.settle_wills(|socket| sockets[socket].owner == Owner::Closed, now);
        let in_flight: HashSet<_> = self.clients.iter().flat_map(Client::in_flight).collect();
        self.oracle.settle(&in_flight, now);
        let counters = self.counters();
        let outbox_may_be_full = self.script.bytes_published() >= u64::from(self.script.limits.outbox_bytes_max) / 2;
        let full = counters.dropped_queue_newest + counters.dropped_queue_oldest;
        let full = full + if outbox_may_be_full { 0 } else { counters.dropped_outbox_full };
        if full > 0 && !self.script.is_small() {
            return self.fail("nothing lost", format!("{full} dropped although nothing was full"), vec![]);
        }
        let dropped = self.dropped();
        self.oracle.on_quiet(dropped, now);
    }
}

fn describe(message: &MeshMessage) -> String {
    match message {
        MeshMessage::Parcel(parcel) => format!("parcel, socket {}", parcel.socket),
        MeshMessage::Publish { message, deliver, store, groups } => format!(
            "publish {} {:?}, deliver {deliver}, store {store}, groups {groups:?}",
            message.topic(),
            String::from_utf8_lossy(&message.payload()[..message.payload().len().min(12)])
        ),
        MeshMessage::Interest { key, wanted } => format!("interest {key:?} {wanted}"),
        MeshMessage::Interests(list) => format!("interests {list:?}"),
        MeshMessage::Group { filter, online, offline } => format!("group {filter} online {online} offline {offline}"),
        MeshMessage::RetainedAsk(ask) => format!("{ask:?}"),
        MeshMessage::RetainedPage(page) => format!("page of {} for replay {}", page.messages.len(), page.replay),
    }
}
