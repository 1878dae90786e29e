//! How a run ends: everyone comes back for what is theirs, a new subscriber looks at what is retained, everything is taken down and
//! nothing must be left; or the broker shuts down in the midst of it.

use crate::client::PROBE;
use crate::script::{Action, ClientSpec, ConnectSpec, Step, TOPICS};
use crate::world::World;
use corelane::shard::Phase;
use corelane::time::Time;
use corelane::wire::{QoS, ReasonCode, SubscriptionOptions, Version};
use std::time::Duration;

/// The shell lets a shutdown drain for at most so long; here everything must have drained by then.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// The client that only looks at what is retained; the last one.
pub fn probe() -> ClientSpec {
    ClientSpec { id: PROBE.into(), version: Version::V5, maximum_packet_size: None }
}

fn connect(clean: bool, expiry_s: u32) -> Action {
    let keep_alive_s = 0;
    Action::Connect(ConnectSpec { clean, expiry_s, keep_alive_s, receive_maximum: None, topic_alias_maximum: 0, will: None })
}

impl World {
    /// A further round: each client does what `actions` says, then all must come to rest.
    fn further_round(&mut self, actions: impl Fn(&World, usize) -> Vec<Action>) {
        self.round += 1;
        self.net.fresh_topics.clear();
        for client in 0..self.clients.len() {
            for action in actions(self, client) {
                self.clients[client].push_step(Step { round: self.round, client, after_us: 0, action });
            }
        }
        self.settle();
    }

    /// Each step only if the one before it has not failed.
    pub fn finish(&mut self) {
        let steps =
            [World::come_back, World::look_at_retained, World::end_sessions, World::clear_retained, World::check_nothing_left];
        for step in steps {
            if self.failed() {
                return;
            }
            step(self);
        }
    }

    /// Everyone comes back for what is theirs.
    fn come_back(&mut self) {
        self.further_round(|world, client| {
            let away = !world.clients[client].is_up() && world.oracle.has_session(client, world.now);
            let v5 = world.clients[client].spec.version == Version::V5;
            let expiry_s = if v5 { 3_600 } else { world.script.limits.session_expiry_v3_s };
            if away { vec![connect(false, expiry_s)] } else { Vec::new() }
        });
        if !self.failed() {
            self.check();
        }
    }

    /// A new subscriber gets what was last retained of each topic, and each once.
    fn look_at_retained(&mut self) {
        let probe = self.clients.len() - 1;
        let options = SubscriptionOptions::from(QoS::AtLeastOnce);
        self.further_round(|_, client| {
            let subscribe = Action::Subscribe { filters: vec![("t/#", options)], identifier: None };
            if client == probe { vec![connect(true, 0), subscribe] } else { Vec::new() }
        });
        for topic in TOPICS {
            let seen: Vec<_> = self.clients[probe].seen.iter().filter(|(name, ..)| name == topic).cloned().collect();
            if seen.iter().any(|(.., retain)| !retain) {
                // A delayed will came live and may have been retained too.
                continue;
            }
            let allowed = self.oracle.may_be_retained(topic, self.now);
            let right = match seen.as_slice() {
                [] => allowed.contains(&None),
                [(_, message, _)] => message.is_some() && allowed.contains(message),
                _ => false,
            };
            if !right && !self.failed() {
                let detail = format!("a new subscriber got {seen:?}, may have got {allowed:?}");
                self.fail("retained", detail, vec![format!("{topic} "), format!("\"{topic}\"")]);
            }
        }
    }

    fn end_sessions(&mut self) {
        let probe = self.clients.len() - 1;
        self.further_round(|_, client| {
            let end = vec![connect(true, 0), Action::Disconnect { with_will: false }];
            if client == probe { Vec::new() } else { end }
        });
    }

    fn clear_retained(&mut self) {
        let probe = self.clients.len() - 1;
        let clear = |topic: &&'static str| Action::Publish {
            topic,
            qos: QoS::AtLeastOnce,
            retain: true,
            clear: true,
            expiry_s: None,
            bytes: 0,
            alias: false,
        };
        self.further_round(|_, client| {
            // Without its subscription, so that nothing comes back to it.
            let begin = [connect(true, 0)].into_iter();
            let actions = begin.chain(TOPICS.iter().map(clear)).chain([Action::Disconnect { with_will: false }]);
            if client == probe { actions.collect() } else { Vec::new() }
        });
    }

    /// Clients, sessions and retained messages are gone, and all the memory that was charged for them.
    fn check_nothing_left(&mut self) {
        // Outboxes that go back to their pool are settled in the turn after.
        for core in &mut self.cores {
            core.shard.run(self.now);
        }
        let globals = &self.globals;
        let left = [
            ("connections", globals.connections.get()),
            ("retained messages", globals.retained_messages.get()),
            ("retained bytes", globals.retained_bytes.get()),
            ("bytes of memory", globals.memory_bytes.get()),
        ];
        let loads: Vec<_> = self.cores.iter().map(|core| core.shard.load()).collect();
        let sessions: u64 = loads.iter().map(|load| load.sessions + load.subscriptions + load.shared_subscriptions).sum();
        if left.iter().any(|(_, count)| *count > 0) || sessions > 0 {
            self.fail("nothing left", format!("{left:?} {loads:?}"), vec![]);
        }
    }

    /// The broker shuts down whatever goes on: it drains, tells its clients, and closes all connections.
    pub fn shut_down(&mut self) {
        self.stopping = true;
        for phase in [Phase::ReadsOff, Phase::Draining] {
            for core in &mut self.cores {
                core.shard.set_phase(phase, self.now);
                core.idle_turns = 0;
            }
            self.run_for(Duration::from_millis(50));
        }
        let begun = self.now;
        while !self.cores.iter().all(|core| core.shard.is_drained()) && !self.failed() {
            self.run_for(Duration::from_millis(10));
            if self.now - begun > DRAINED_WITHIN {
                let loads: Vec<_> = self.cores.iter().map(|core| core.shard.load()).collect();
                return self.fail("shutdown", format!("not drained: {loads:?}"), vec!["core".into()]);
            }
        }
        let up: Vec<_> = (0..self.clients.len()).filter(|&client| self.is_told_of_the_end(client)).collect();
        for core in &mut self.cores {
            core.shard.set_phase(Phase::Disconnecting, self.now);
            core.idle_turns = 0;
        }
        self.run_for(Duration::from_secs(10));
        let connections = self.globals.connections.get();
        if connections > 0 && !self.failed() {
            return self.fail("shutdown", format!("{connections} connections are left"), vec!["core".into()]);
        }
        for client in up {
            let name = self.clients[client].spec.id.clone();
            if self.clients[client].told != Some(ReasonCode::SERVER_SHUTTING_DOWN) && !self.failed() {
                self.fail("shutdown", format!("{name} was not told: {:?}", self.clients[client].told), vec![name]);
            }
        }
    }

    /// Clients of MQTT 5 that are connected, read, and stay.
    fn is_told_of_the_end(&self, client: usize) -> bool {
        let client = &self.clients[client];
        let Some(link) = client.link.as_ref().filter(|link| link.up) else { return false };
        let socket = &self.net.sockets[link.socket];
        let stays = socket.is_open() && socket.stalled_until <= self.now && socket.to_client.len() == 0 && !client.has_steps();
        client.spec.version == Version::V5 && !client.may_be_cut && stays && socket.window > 10_000
    }

    fn run_for(&mut self, time: Duration) {
        let end: Time = self.now + time;
        while self.now < end && !self.failed() {
            if !self.step() {
                self.now = self.next_time().map_or(end, |next| next.min(end));
            }
        }
    }
}
