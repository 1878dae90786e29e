//! What the clients of a run will do, as data, so that a failing run can be repeated with less of it. Steps that do not fit the state
//! a client is in are passed over, so any part of a script is a legal script.

use crate::random::Random;
use corelane::limits::{DropPolicy, Limits};
use corelane::wire::{QoS, RetainHandling, SubscriptionOptions, Version};
use std::sync::LazyLock;

/// Topics that ordinary subscriptions may match, and those that only shared ones do.
pub const TOPICS: &[&str] = &["t/0", "t/1", "t/2", "t/a/b", "t/a/c"];
pub const SHARED_TOPICS: &[&str] = &["s/x/y/0", "s/x/y/1"];
const FILTERS: &[&str] = &["t/0", "t/1", "t/2", "t/+", "t/#", "+/0", "t/a/#", "+/a/+", "t/a/b", "+/+/c", "+/1", "t/0/#"];
const SHARED_FILTERS: &[&str] = &["$share/g/s/#", "$share/g/s/x/+/0", "$share/h/s/x/y/+", "$share/h/s/x/y/1"];

/// Topics of which each is subscribed to once, so that every subscription is its core's first.
static FRESH_TOPICS: LazyLock<Vec<String>> = LazyLock::new(|| (0..200).map(|index| format!("fresh/{index}")).collect());

#[derive(Clone)]
pub struct Script {
    pub seed: u64,
    pub shards: usize,
    pub limits: Limits,
    /// One decision in so many is delayed; 0: none.
    pub delay_one_in: u32,
    /// Network, core and clock are unkind.
    pub rough: bool,
    pub clients: Vec<ClientSpec>,
    pub rounds: usize,
    pub steps: Vec<Step>,
    /// It ends with a shutdown while clients are connected.
    pub shutdown: bool,
    /// A rule sends messages to a sink, and their publishers wait for it.
    pub sink: bool,
}

#[derive(Clone, Debug)]
pub struct ClientSpec {
    pub id: String,
    pub version: Version,
    /// The same on all of its connections: what it could take once it can take again.
    pub maximum_packet_size: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub round: usize,
    pub client: usize,
    /// How long the client waits before it.
    pub after_us: u64,
    pub action: Action,
}

#[derive(Clone, Debug)]
pub struct ConnectSpec {
    pub clean: bool,
    /// MQTT 3.x has none.
    pub expiry_s: u32,
    pub keep_alive_s: u16,
    pub receive_maximum: Option<u16>,
    pub topic_alias_maximum: u16,
    pub will: Option<WillSpec>,
}

#[derive(Clone, Debug)]
pub struct WillSpec {
    pub topic: &'static str,
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
}

#[derive(Clone, Debug)]
pub enum Action {
    Connect(ConnectSpec),
    Subscribe {
        filters: Vec<(&'static str, SubscriptionOptions)>,
        identifier: Option<u32>,
    },
    Unsubscribe {
        filters: Vec<&'static str>,
    },
    Publish {
        topic: &'static str,
        qos: QoS,
        retain: bool,
        clear: bool,
        expiry_s: Option<u32>,
        bytes: usize,
        alias: bool,
    },
    /// DISCONNECT; with reason 0x04 if the will is wanted.
    Disconnect {
        with_will: bool,
    },
    /// It connects and is gone before anybody answers.
    Flee {
        connect: ConnectSpec,
        reset: bool,
    },
    /// The connection breaks off.
    Drop {
        reset: bool,
    },
    /// So many connections of this client's id at once; the newest must win.
    Storm {
        sockets: usize,
        connect: ConnectSpec,
    },
    StopReading {
        ms: u64,
    },
    Garbage {
        bytes: Vec<u8>,
    },
    Wait {
        ms: u64,
    },
}

impl ConnectSpec {
    /// A session that ends with its connection.
    pub fn clean() -> Self {
        Self { clean: true, expiry_s: 0, keep_alive_s: 0, receive_maximum: None, topic_alias_maximum: 0, will: None }
    }
}

fn publish(topic: &'static str, qos: QoS, retain: bool) -> Action {
    Action::Publish { topic, qos, retain, clear: false, expiry_s: None, bytes: 0, alias: false }
}

impl Script {
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let shards = match random.below(10) {
            0 => 1,
            1..=5 => 2,
            6..=7 => 3,
            8 => 4,
            _ => random.between(5, 16) as usize,
        };
        let small = random.one_in(4);
        let mut limits = Limits {
            mesh_messages_max: random.pick(&[16, 17, 24, 64, 1024]),
            mesh_bytes_max: random.pick(&[64 << 10, 64 << 10, 1 << 20]),
            fanouts_max: random.pick(&[1, 2, 8, 1024]),
            turn_budget: random.pick(&[1, 2, 7, 64, 1024]),
            inflight_in_max: random.pick(&[1, 3, 20, 1000]),
            inflight_out_max: random.pick(&[1, 2, 10, 256]),
            topic_alias_out_max: random.pick(&[0, 1, 2, 16]),
            parked_bytes_max: random.pick(&[64, 1000, 64 << 10]),
            packet_bytes_max: 1 << 20,
            ..Limits::default()
        };
        if small {
            limits.queued_messages_max = random.pick(&[1, 3, 10]);
            limits.outbox_bytes_max = random.pick(&[100, 1000, 10_000]);
            limits.drop_policy = random.pick(&[DropPolicy::Newest, DropPolicy::Oldest, DropPolicy::Disconnect]);
        }
        if random.one_in(6) {
            limits.outbox_bytes_max = random.pick(&[100, 1000, 10_000]);
        }
        // Many steps at once, or so many subscribers that fan-outs take several turns.
        let heavy = random.one_in(10);
        let crowd = !heavy && random.one_in(20);
        let wanted = match (heavy, crowd) {
            (true, _) => random.between(5, 25),
            (_, true) => random.between(70, 150),
            _ => random.between(2, 7),
        } as usize;
        let shards = if crowd { random.between(1, 2) as usize } else { shards };
        let clients = (0..wanted)
            .map(|index| ClientSpec {
                id: format!("client-{index}"),
                version: random.pick(&[Version::V5, Version::V5, Version::V5, Version::V3_1_1, Version::V3_1]),
                maximum_packet_size: None,
            })
            .collect();
        let mut script = Self {
            seed,
            shards,
            limits,
            delay_one_in: random.pick(&[0, 0, 1, 3, 20]),
            rough: random.one_in(2),
            clients,
            rounds: random.between(1, if heavy || crowd { 2 } else { 5 }) as usize,
            steps: Vec::new(),
            shutdown: random.one_in(4),
            sink: seed.is_multiple_of(3),
        };
        if !heavy && !crowd && random.one_in(8) {
            script.subscribe_to_fresh_topics(random);
            return script;
        }
        match seed % 16 {
            7 => {
                script.subscribe_amid_retained(random);
                return script;
            }
            11 => {
                script.publish_to_a_crowd(random);
                return script;
            }
            _ => {}
        }
        let features = Features::random(random);
        for client in &mut script.clients {
            let limited = client.version == Version::V5 && features.maximum_packet_size && random.one_in(2);
            client.maximum_packet_size = limited.then(|| random.pick(&[100, 1000]));
        }
        for round in 0..script.rounds {
            for client in 0..script.clients.len() {
                let most = match (heavy, crowd) {
                    (true, _) => 60,
                    (_, true) if client > 5 => 4,
                    _ => 14,
                };
                for position in 0..random.between(1, most) {
                    let v5 = script.clients[client].version == Version::V5;
                    let action = if round == 0 && position == 0 {
                        Action::Connect(connect(random, v5, &features))
                    } else if crowd && round == 0 && position == 1 {
                        let filter = random.pick(&["t/#", "t/+", "t/0"]);
                        Action::Subscribe { filters: vec![(filter, options(random, v5, false, &features))], identifier: None }
                    } else {
                        action(random, v5, &features)
                    };
                    let after_us = match random.below(3) {
                        0 if !heavy || random.one_in(10) => random.between(0, 20_000),
                        _ => random.between(0, if heavy { 5 } else { 300 }),
                    };
                    script.steps.push(Step { round, client, after_us, action });
                }
            }
        }
        script
    }

    /// Everyone subscribes to topic after topic that nobody knows yet; another client publishes there as soon as SUBACK has come.
    fn subscribe_to_fresh_topics(&mut self, random: &mut Random) {
        (self.rounds, self.rough, self.shards) = (1, true, random.between(2, 4) as usize);
        let mut topics = FRESH_TOPICS.iter();
        // Busy cores are in the midst of a turn when news reaches them.
        let most_us = random.pick(&[100, 500, 5_000]);
        for client in 0..self.clients.len() {
            let persistent = ConnectSpec {
                clean: false,
                expiry_s: Limits::default().session_expiry_v3_s,
                keep_alive_s: 0,
                receive_maximum: None,
                topic_alias_maximum: 0,
                will: None,
            };
            let connect = Step { round: 0, client, after_us: 0, action: Action::Connect(persistent) };
            let subscribes = topics.by_ref().take(20).map(|topic| {
                let filters = vec![(topic.as_str(), SubscriptionOptions::from(QoS::AtLeastOnce))];
                let action = Action::Subscribe { filters, identifier: None };
                Step { round: 0, client, after_us: random.between(0, most_us), action }
            });
            self.steps.extend([connect].into_iter().chain(subscribes));
        }
    }

    /// Everyone subscribes again and again to topics that everyone publishes retained messages to.
    fn subscribe_amid_retained(&mut self, random: &mut Random) {
        (self.rounds, self.rough, self.shards) = (2, true, random.between(3, 5) as usize);
        for client in 0..self.clients.len() {
            self.steps.push(Step { round: 0, client, after_us: 0, action: Action::Connect(ConnectSpec::clean()) });
            for round in 0..self.rounds {
                for _ in 0..random.between(5, 25) {
                    let action = match random.below(3) {
                        0 => {
                            let options = SubscriptionOptions::from(QoS::AtLeastOnce);
                            Action::Subscribe { filters: vec![(random.pick(&["t/0", "t/1", "t/#"]), options)], identifier: None }
                        }
                        _ => publish(random.pick(&["t/0", "t/1"]), QoS::AtLeastOnce, true),
                    };
                    self.steps.push(Step { round, client, after_us: random.between(0, 2_000), action });
                }
            }
        }
    }

    /// More subscribers than a turn serves, and publishers that send message after message to the same topics; some of the subscribers
    /// come and go, and with them their shares of shared subscriptions.
    fn publish_to_a_crowd(&mut self, random: &mut Random) {
        (self.rounds, self.shards, self.shutdown) = (2, 1, false);
        self.limits.turn_budget = random.pick(&[1, 2, 7]);
        let qos = random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        for index in self.clients.len()..random.between(70, 120) as usize {
            self.clients.push(ClientSpec { id: format!("client-{index}"), version: Version::V5, maximum_packet_size: None });
        }
        for client in 0..self.clients.len() {
            let mut step = |round, after_us, action| self.steps.push(Step { round, client, after_us, action });
            step(0, 0, Action::Connect(ConnectSpec::clean()));
            let filters = vec![(random.pick(&["t/0", "t/+", "t/#"]), SubscriptionOptions::from(qos))];
            step(0, random.between(0, 2_000), Action::Subscribe { filters, identifier: None });
            if client < 10 {
                let filters = vec![("$share/g/s/#", SubscriptionOptions::from(QoS::AtLeastOnce))];
                step(0, 0, Action::Subscribe { filters, identifier: None });
            }
            for _ in 0..if client < 5 { random.between(3, 8) } else { 0 } {
                step(1, random.between(0, 500), publish("t/0", qos, false));
                step(1, 0, publish(random.pick(SHARED_TOPICS), QoS::AtLeastOnce, false));
            }
            if (5..10).contains(&client) {
                step(1, 0, Action::StopReading { ms: 1_000 });
                step(1, random.between(0, 20_000), Action::Drop { reset: random.one_in(2) });
            }
        }
    }

    /// What its publishers send, roughly: a subscriber that does not read may be owed all of it.
    pub fn bytes_published(&self) -> u64 {
        const OVERHEAD_BYTES: usize = 30;
        let bytes = |step: &Step| match step.action {
            Action::Publish { bytes, .. } => bytes + OVERHEAD_BYTES,
            _ => OVERHEAD_BYTES,
        };
        self.steps.iter().map(bytes).sum::<usize>() as u64
    }

    pub fn is_small(&self) -> bool {
        self.limits.queued_messages_max < 100
    }
}

/// What the clients of a run do at all: runs that leave things out find other things.
struct Features {
    qos: &'static [QoS],
    retain: bool,
    shared: bool,
    garbage: bool,
    storms: bool,
    drops: bool,
    expiry: bool,
    large: bool,
    wills: bool,
    maximum_packet_size: bool,
}

impl Features {
    fn random(random: &mut Random) -> Self {
        use QoS::*;
        Self {
            qos: random.pick(&[
                &[AtMostOnce, AtLeastOnce, ExactlyOnce][..],
                &[AtMostOnce, AtLeastOnce, ExactlyOnce][..],
                &[AtLeastOnce][..],
                &[ExactlyOnce][..],
                &[AtLeastOnce, ExactlyOnce][..],
            ]),
            retain: random.one_in(2),
            shared: random.one_in(2),
            garbage: random.one_in(4),
            storms: random.one_in(2),
            drops: !random.one_in(3),
            expiry: random.one_in(4),
            large: random.one_in(4),
            wills: random.one_in(2),
            maximum_packet_size: random.one_in(5),
        }
    }
}

fn connect(random: &mut Random, v5: bool, features: &Features) -> ConnectSpec {
    let clean = random.one_in(3);
    ConnectSpec {
        clean,
        expiry_s: match (v5, clean) {
            (true, _) => random.pick(&[0, 5, 3600, 3600, 3600, u32::MAX]),
            (false, true) => 0,
            (false, false) => Limits::default().session_expiry_v3_s,
        },
        keep_alive_s: random.pick(&[0, 0, 10, 60]),
        receive_maximum: (v5 && random.one_in(2)).then(|| random.pick(&[1, 2, 5, 100])),
        topic_alias_maximum: if v5 { random.pick(&[0, 0, 1, 3]) } else { 0 },
        will: (features.wills && random.one_in(2)).then(|| WillSpec {
            topic: random.pick(TOPICS),
            qos: random.pick(features.qos),
            retain: features.retain && random.one_in(3),
            delay_s: if v5 { random.pick(&[0, 0, 1, 10]) } else { 0 },
        }),
    }
}

fn options(random: &mut Random, v5: bool, shared: bool, features: &Features) -> SubscriptionOptions {
    let qos = random.pick(features.qos);
    if !v5 {
        return SubscriptionOptions { qos, ..SubscriptionOptions::default() };
    }
    SubscriptionOptions {
        qos,
        no_local: !shared && random.one_in(4),
        retain_as_published: random.one_in(3),
        retain_handling: random.pick(&[RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend]),
    }
}

fn action(random: &mut Random, v5: bool, features: &Features) -> Action {
    match random.below(100) {
        0..=7 => Action::Connect(connect(random, v5, features)),
        8..=24 => {
            let filters = (0..random.between(1, 3))
                .map(|_| {
                    let shared = features.shared && random.one_in(3);
                    let filter = random.pick(if shared { SHARED_FILTERS } else { FILTERS });
                    (filter, options(random, v5, shared, features))
                })
                .collect();
            Action::Subscribe { filters, identifier: (v5 && random.one_in(3)).then(|| random.pick(&[1, 2, 3])) }
        }
        25..=31 => {
            let one = |random: &mut Random| {
                let shared = features.shared && random.one_in(3);
                random.pick(if shared { SHARED_FILTERS } else { FILTERS })
            };
            Action::Unsubscribe { filters: (0..random.between(1, 2)).map(|_| one(random)).collect() }
        }
        32..=37 => Action::Disconnect { with_will: v5 && random.one_in(3) },
        38 if features.drops => Action::Flee { connect: connect(random, v5, features), reset: random.one_in(2) },
        39..=43 if features.drops => Action::Drop { reset: random.one_in(2) },
        44..=46 if features.storms => {
            Action::Storm { sockets: random.between(2, 6) as usize, connect: connect(random, v5, features) }
        }
        47..=49 => Action::StopReading { ms: random.between(1, 3_000) },
        50 if features.garbage => {
            let bytes = match random.below(3) {
                0 => (0..random.between(1, 30)).map(|_| random.next() as u8).collect(),
                1 => vec![0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
                _ => vec![0x62, 0x02, 0x00, 0x00],
            };
            Action::Garbage { bytes }
        }
        51..=52 => Action::Wait { ms: random.between(1, 12_000) },
        _ => {
            let shared = features.shared && random.one_in(3);
            let topic = random.pick(if shared { SHARED_TOPICS } else { TOPICS });
            let retain = features.retain && topic.starts_with('t') && random.one_in(3);
            Action::Publish {
                topic,
                qos: random.pick(features.qos),
                retain,
                clear: retain && random.one_in(4),
                expiry_s: (v5 && features.expiry && random.one_in(3)).then(|| random.pick(&[1, 5, 100])),
                bytes: match random.below(if features.large { 4 } else { 20 }) {
                    0 if features.large => random.pick(&[200, 5_000, 20_000, 70_000]),
                    _ => 0,
                },
                alias: v5 && random.one_in(3),
            }
        }
    }
}
