//! Clients on different cores: order and delivery across them, clients that come back through another core, and many connections
//! that claim one client id at once. Client ids are hashed to cores and source ports to listeners, so a few dozen of either cover
//! every pairing of two shards.

mod harness;

use harness::{Broker, Client, Connect, Kind, Packet, Publish, Version, acknowledge, raise_file_limit};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a whole scenario may take.
const DEADLINE: Duration = Duration::from_secs(60);

fn version(index: usize) -> Version {
    Version::ALL[index % Version::ALL.len()]
}

/// Sends the acknowledgement that a receiver owes for this packet.
fn answer(client: &mut Client, packet: &Packet) {
    let reply = match packet.kind() {
        Kind::Publish => {
            let publish = packet.publish(client.version);
            match publish.qos {
                1 => acknowledge(Kind::Puback, publish.id),
                2 => acknowledge(Kind::Pubrec, publish.id),
                _ => return,
            }
        }
        Kind::Pubrec => acknowledge(Kind::Pubrel, packet.id()),
        Kind::Pubrel => acknowledge(Kind::Pubcomp, packet.id()),
        _ => return,
    };
    client.send(&reply);
}

/// Publisher and sequence number, as the payload has them.
fn numbers(payload: &[u8]) -> (usize, u32) {
    let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("eight bytes of payload"));
    (number(0) as usize, number(4))
}

// -------------------------------------------------------------------------------------------- a thousand to a thousand

const PUBLISHERS: usize = 1000;
const SUBSCRIBERS: usize = 1000;
/// Each subscriber hears this many publishers, and each publisher is heard by as many subscribers.
const HEARD: usize = 4;
/// Messages of each publisher at each QoS: so few that one subscriber to all of them stays below every default limit.
const MESSAGES: u32 = 8;
/// QoS 1 and 2 messages that a publisher has in flight.
const WINDOW: u32 = 3;

struct Publisher {
    client: Client,
    index: usize,
    sent: u32,
    acknowledged: u32,
}

impl Publisher {
    /// Sends what its window allows and handles what has come.
    fn go_on(&mut self, qos: u8) -> bool {
        let mut progress = false;
        while let Some(packet) = self.client.poll_packet() {
            progress = true;
            answer(&mut self.client, &packet);
            match packet.kind() {
                Kind::Puback | Kind::Pubcomp => self.acknowledged += 1,
                Kind::Pubrec => {}
                _ => panic!("publisher {}: unexpected {packet:?}", self.index),
            }
        }
        assert!(!self.client.is_closed(), "publisher {} was closed", self.index);
        while self.sent < MESSAGES && (qos == 0 || self.sent - self.acknowledged < WINDOW) {
            let payload = [(self.index as u32).to_be_bytes(), self.sent.to_be_bytes()].concat();
            let id = if qos > 0 { self.client.id() } else { 0 };
            let publish = Publish::new(&format!("cross/{}", self.index), payload).qos(qos).id(id);
            self.client.send(&publish.encode(self.client.version));
            self.sent += 1;
            progress = true;
            if qos == 0 {
                // One per round, so that publishers interleave.
                self.acknowledged += 1;
                break;
            }
        }
        progress
    }

    fn is_done(&self) -> bool {
        self.acknowledged == MESSAGES
    }
}

struct Subscriber {
    client: Client,
    /// The next sequence number expected of each publisher that it hears.
    next: Vec<Option<u32>>,
    received: usize,
    expected: usize,
}

impl Subscriber {
    fn new(broker: &Broker, name: usize, filters: &[String], heard: impl Iterator<Item = usize>, qos: u8) -> Self {
        let mut client = broker.client(version(name), &format!("sub-{name}"));
        let filters: Vec<(&str, u8)> = filters.iter().map(|filter| (filter.as_str(), qos)).collect();
        assert_eq!(client.subscribe(&filters), vec![qos; filters.len()]);
        let mut next = vec![None; PUBLISHERS];
        let mut expected = 0;
        for publisher in heard {
            next[publisher] = Some(0);
            expected += MESSAGES as usize;
        }
        Self { client, next, received: 0, expected }
    }

    fn go_on(&mut self, qos: u8) -> bool {
        let mut progress = false;
        while let Some(packet) = self.client.poll_packet() {
            progress = true;
            answer(&mut self.client, &packet);
            match packet.kind() {
                Kind::Publish => {
                    let publish = packet.publish(self.client.version);
                    let (publisher, sequence) = numbers(&publish.payload);
                    assert_eq!(publish.topic, format!("cross/{publisher}"));
                    assert_eq!((publish.qos, publish.dup, publish.retain), (qos, false, false));
                    let next = self.next[publisher].as_mut().expect("only what was subscribed to arrives");
                    assert_eq!(sequence, *next, "publisher {publisher} at QoS {qos}: the next in order, once");
                    *next += 1;
                    self.received += 1;
                }
                Kind::Pubrel => {}
                _ => panic!("a subscriber received {packet:?}"),
            }
        }
        assert!(!self.client.is_closed(), "a subscriber was closed");
        progress
    }
}

fn many_to_many(qos: u8) {
    raise_file_limit();
    let broker = Broker::start();
    let mut subscribers: Vec<Subscriber> = (0..SUBSCRIBERS)
        .map(|name| {
            let heard = || (0..HEARD).map(move |step| (name + step * 251) % PUBLISHERS);
            let filters: Vec<String> = heard().map(|publisher| format!("cross/{publisher}")).collect();
            Subscriber::new(&broker, name, &filters, heard(), qos)
        })
        .collect();
    // Wildcards across everything, in every version.
    for name in SUBSCRIBERS..SUBSCRIBERS + 3 {
        let filter = if name % 2 == 0 { "cross/#" } else { "+/+" };
        subscribers.push(Subscriber::new(&broker, name, &[filter.into()], 0..PUBLISHERS, qos));
    }
    let mut publishers: Vec<Publisher> = (0..PUBLISHERS)
        .map(|index| {
            let client = broker.client(version(index / 3), &format!("pub-{index}"));
            Publisher { client, index, sent: 0, acknowledged: 0 }
        })
        .collect();

    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut progress = false;
        for publisher in &mut publishers {
            progress |= publisher.go_on(qos);
        }
        for subscriber in &mut subscribers {
            progress |= subscriber.go_on(qos);
        }
        if publishers.iter().all(Publisher::is_done) && subscribers.iter().all(|each| each.received >= each.expected) {
            break;
        }
        let missing: usize = subscribers.iter().map(|each| each.expected - each.received).sum();
        let unacknowledged = publishers.iter().filter(|each| !each.is_done()).count();
        assert!(
            Instant::now() < deadline,
            "QoS {qos}: {missing} messages did not arrive, {unacknowledged} publishers wait for acknowledgements"
        );
        if !progress {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Whatever the broker still has for a subscriber comes before the answer to its ping, and would be one too many.
    for subscriber in &mut subscribers {
        while subscriber.client.poll_packet().is_some_and(|packet| {
            packet.kind() == Kind::Pubrel && {
                answer(&mut subscriber.client, &packet);
                true
            }
        }) {}
        subscriber.client.send(&[0xC0, 0]);
        loop {
            let packet = subscriber.client.expect_packet();
            match packet.kind() {
                Kind::Pubrel => answer(&mut subscriber.client, &packet),
                Kind::Pingresp => break,
                _ => panic!("one too many: {packet:?}"),
            }
        }
    }
}

#[test]
fn a_thousand_publishers_reach_a_thousand_subscribers_in_order_at_qos_0() {
    many_to_many(0);
}

#[test]
fn a_thousand_publishers_reach_a_thousand_subscribers_in_order_at_qos_1() {
    many_to_many(1);
}

#[test]
fn a_thousand_publishers_reach_a_thousand_subscribers_in_order_exactly_once_at_qos_2() {
    many_to_many(2);
}

// ------------------------------------------------------------------------------------------------- clients that hop ports

/// `[MQTT-3.1.2-4]`, `[MQTT-3.1.2-5]`: the session is found again, whichever core accepts the new connection.
#[test]
fn a_client_that_hops_ports_finds_its_session_twenty_times() {
    let broker = Broker::start();
    for version in Version::ALL {
        for name in 0..4 {
            let id = format!("hopper-{version:?}-{name}");
            let topic = format!("hop/{id}");
            let mut publisher = broker.client(version, &format!("feeder-{version:?}-{name}"));
            let mut ports = HashSet::new();
            for hop in 0..20u8 {
                let (mut client, connack) = broker.connect(&Connect::new(version, &id).persistent());
                assert_eq!(connack.body()[1], 0);
                // A v3.1 CONNACK has no session present flag.
                if version != Version::V31 {
                    assert_eq!(connack.session_present(), hop > 0, "{id}, hop {hop}");
                }
                ports.insert(client.local_port());
                if hop == 0 {
                    assert_eq!(client.subscribe(&[(&topic, 1)]), [1]);
                } else {
                    let publish = client.expect_publish();
                    assert_eq!((publish.payload, publish.qos), (vec![hop - 1], 1), "{id}, hop {hop}: what was queued");
                    client.send(&acknowledge(Kind::Puback, publish.id));
                    client.ping();
                }
                if hop % 2 == 0 {
                    client.disconnect();
                } else {
                    drop(client);
                }
                publisher.publish(&topic, [hop], 1);
            }
            assert!(ports.len() > 10, "the client came from different ports");
        }
    }
}

/// `[MQTT-4.4.0-1]`, `[MQTT-4.3.3-2]` and on: both ends of QoS 2 lose their connections again and again.
#[test]
fn qos_2_is_exactly_once_though_both_ends_hop_ports() {
    const COUNT: u32 = 400;
    let broker = Broker::start();
    for version in [Version::V311, Version::V5] {
        let receiver_connect = Connect::new(version, &format!("receiver-{version:?}")).persistent();
        let sender_connect = Connect::new(version, &format!("sender-{version:?}")).persistent();
        let topic = format!("hop/exactly/{version:?}");
        let (mut receiver, _) = broker.connect(&receiver_connect);
        assert_eq!(receiver.subscribe(&[(&topic, 2)]), [2]);
        let (mut sender, _) = broker.connect(&sender_connect);

        // What either end's session has to keep: messages received and not released; messages sent, and whether PUBREC has come.
        let mut received_ids = HashSet::new();
        let mut outstanding: Vec<(Publish, bool)> = Vec::new();
        let mut received = Vec::new();
        let (mut next, mut next_id) = (0u32, 0u16);
        let (mut sender_hops, mut receiver_hops) = (0, 0);
        let deadline = Instant::now() + DEADLINE;
        while received.len() < COUNT as usize || !outstanding.is_empty() {
            assert!(Instant::now() < deadline, "{} of {COUNT} arrived, {} outstanding", received.len(), outstanding.len());
            if next / 20 > sender_hops && sender_hops < 19 {
                sender_hops += 1;
                let connack;
                (sender, connack) = broker.connect(&sender_connect);
                assert!(connack.session_present(), "the sender's session");
                for (publish, released) in &outstanding {
                    sender.send(&match released {
                        true => acknowledge(Kind::Pubrel, publish.id),
                        false => publish.clone().dup().encode(version),
                    });
                }
            }
            if received.len() as u32 / 20 > receiver_hops && receiver_hops < 19 {
                receiver_hops += 1;
                let connack;
                (receiver, connack) = broker.connect(&receiver_connect);
                assert!(connack.session_present(), "the receiver's session");
            }
            while next < COUNT && outstanding.len() < 8 {
                next_id += 1;
                let publish = Publish::new(&topic, [0u32.to_be_bytes(), next.to_be_bytes()].concat()).qos(2).id(next_id);
                sender.send(&publish.encode(version));
                outstanding.push((publish, false));
                next += 1;
            }
            let mut progress = false;
            // A few packets each, so that the hops fall into the middle of exchanges.
            for _ in 0..3 {
                if let Some(packet) = sender.poll_packet() {
                    progress = true;
                    answer(&mut sender, &packet);
                    let at = outstanding.iter().position(|(publish, _)| publish.id == packet.id());
                    match (packet.kind(), at) {
                        (Kind::Pubrec, Some(at)) => outstanding[at].1 = true,
                        (Kind::Pubcomp, Some(at)) => drop(outstanding.remove(at)),
                        // A second answer to what was sent twice.
                        (Kind::Pubrec | Kind::Pubcomp, None) => {}
                        _ => panic!("the sender received {packet:?}"),
                    }
                }
                if let Some(packet) = receiver.poll_packet() {
                    progress = true;
                    match packet.kind() {
                        Kind::Publish => {
                            let publish = packet.publish(version);
                            if received_ids.insert(publish.id) {
                                received.push(numbers(&publish.payload).1);
                            } else {
                                assert!(publish.dup, "only a resent message has an id that is in use");
                            }
                        }
                        Kind::Pubrel => drop(received_ids.remove(&packet.id())),
                        _ => panic!("the receiver received {packet:?}"),
                    }
                    answer(&mut receiver, &packet);
                }
            }
            assert!(!sender.is_closed() && !receiver.is_closed(), "the broker closed a connection");
            if !progress {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        assert!(sender_hops >= 19 && receiver_hops >= 19);
        assert_eq!(received, (0..COUNT).collect::<Vec<_>>(), "each once and in order");
        std::thread::sleep(Duration::from_millis(50));
        while let Some(packet) = receiver.poll_packet() {
            assert_eq!(packet.kind(), Kind::Pubrel, "nothing but the end of an exchange follows");
        }
    }
}

// --------------------------------------------------------------------------------------------------------- takeover storms

/// What a contender for the client id has seen by the end of a storm.
#[derive(Default)]
struct Outcome {
    admitted: bool,
    owner: bool,
}

fn outcome(client: &mut Client) -> Outcome {
    let mut outcome = Outcome::default();
    // The loser's socket may be closed already.
    let _ = client.try_send(&[0xC0, 0]);
    let deadline = Instant::now() + harness::PATIENCE;
    while let Some(packet) =
        client.packet_within(deadline.saturating_duration_since(Instant::now())).expect("an end or an answer")
    {
        match packet.kind() {
            Kind::Connack => {
                assert_eq!(packet.body()[1], 0, "a storm is no reason to refuse");
                outcome.admitted = true;
            }
            Kind::Pingresp => {
                outcome.owner = true;
                break;
            }
            Kind::Disconnect => {
                assert_eq!(client.version, Version::V5, "[MQTT-3.14] only v5 servers send DISCONNECT");
                assert_eq!(packet.reason(), 0x8E, "session taken over");
            }
            _ => panic!("a contender received {packet:?}"),
        }
    }
    outcome
}

/// `[MQTT-3.1.4-2]` (v3.1.1), `[MQTT-3.1.4-3]` and `[MQTT-3.1.3-9]` (v5): fifty connections claim one id at once. One of them keeps it, every other one
/// that was admitted is disconnected and its will is published, and whoever connects next is served.
fn takeover_storm(versions: &[Version], persistent: bool) {
    const CONTENDERS: usize = 50;
    const ROUNDS: usize = 6;
    let broker = Broker::start();
    for round in 0..ROUNDS {
        let id = format!("storm-{round}");
        let will_topic = format!("wills/{round}");
        let mut watcher = broker.client(Version::V5, &format!("watcher-{round}"));
        assert_eq!(watcher.subscribe(&[(&will_topic, 0)]), [0]);

        let mut contenders: Vec<Client> = (0..CONTENDERS)
            .map(|index| {
                let mut client = broker.socket();
                client.version = versions[index % versions.len()];
                client
            })
            .collect();
        for (index, client) in contenders.iter_mut().enumerate() {
            let will = Publish::new(&will_topic, [index as u8]);
            let connect = Connect::new(client.version, &id).will(will);
            client.send(&if persistent { connect.persistent() } else { connect }.encode());
        }
        // CONNECTs on their way between cores have arrived when a client connects in the ordinary way after them.
        std::thread::sleep(Duration::from_millis(200));
        let outcomes: Vec<Outcome> = contenders.iter_mut().map(outcome).collect();
        let owners: Vec<usize> = (0..CONTENDERS).filter(|index| outcomes[*index].owner).collect();
        assert_eq!(owners.len(), 1, "round {round}: exactly one owner");
        let admitted: HashSet<u8> = (0..CONTENDERS as u8).filter(|index| outcomes[usize::from(*index)].admitted).collect();
        let owner = owners[0] as u8;
        assert!(admitted.contains(&owner));

        // The last connect is served, and takes over from the owner, whose will is published too.
        let version = versions[round % versions.len()];
        let last = Connect::new(version, &id);
        let (mut last, connack) = broker.connect(&if persistent { last.persistent() } else { last });
        assert_eq!(connack.body()[1], 0, "round {round}: nobody is locked out");
        if persistent && version != Version::V31 {
            assert!(connack.session_present(), "round {round}: the session outlives the storm");
        }
        let own_topic = format!("storm/own/{round}");
        assert_eq!(last.subscribe(&[(&own_topic, 0)]), [0]);
        last.publish(&own_topic, "works", 0);
        assert_eq!(last.expect_publish().payload, b"works");
        if let Some(packet) = contenders[usize::from(owner)].packet() {
            assert_eq!((packet.kind(), packet.reason()), (Kind::Disconnect, 0x8E));
            contenders[usize::from(owner)].expect_closed();
        }

        // Each admitted contender's will, once; nobody else's.
        let mut wills = Vec::new();
        while wills.len() < admitted.len() {
            let publish = watcher.expect_publish();
            assert_eq!(publish.topic, will_topic);
            wills.push(publish.payload[0]);
        }
        watcher.expect_nothing(Duration::from_millis(50));
        assert_eq!(wills.iter().copied().collect::<HashSet<u8>>(), admitted, "round {round}: wills {wills:?}");
        assert_eq!(wills.len(), admitted.len());
        last.disconnect();
    }
}

#[test]
fn a_storm_of_v3_takeovers_ends_with_one_owner_and_every_will_published() {
    takeover_storm(&[Version::V311], false);
}

#[test]
fn a_storm_of_v5_takeovers_ends_with_one_owner_and_every_will_published() {
    takeover_storm(&[Version::V5], false);
}

#[test]
fn a_storm_of_all_versions_ends_with_one_owner_and_its_session() {
    takeover_storm(&Version::ALL, true);
}

/// Takeovers without a pause, by clients that subscribe in the same breath as they connect; the last one in a row always works.
#[test]
fn a_chain_of_takeovers_never_locks_the_client_out() {
    let broker = Broker::start();
    let mut previous = Vec::new();
    for turn in 0..200 {
        let version = version(turn);
        let mut client = broker.socket();
        client.version = version;
        let mut bytes = Connect::new(version, "chain").encode();
        bytes.extend(harness::subscribe(version, 1, &[("chain/topic", 0)]));
        bytes.extend(Publish::new("chain/topic", [turn as u8]).encode(version));
        client.send(&bytes);
        assert_eq!(client.expect_kind(Kind::Connack).body()[1], 0, "turn {turn}");
        // The message may come before the SUBACK (MQTT 5, section 3.8.4).
        let (first, second) = (client.expect_packet(), client.expect_packet());
        let (suback, publish) = if first.kind() == Kind::Suback { (first, second) } else { (second, first) };
        assert_eq!((suback.kind(), suback.id()), (Kind::Suback, 1), "turn {turn}");
        assert_eq!(publish.publish(version).payload, [turn as u8], "turn {turn}: only its own message");
        previous.push(client);
    }
    let last = previous.len() - 1;
    previous[last].ping();
    for (turn, client) in previous[..last].iter_mut().enumerate() {
        while let Some(packet) = client.packet() {
            assert_eq!((packet.kind(), packet.reason()), (Kind::Disconnect, 0x8E), "turn {turn}");
        }
    }
}

/// A topic's subscribers on both cores hear a publisher that hops, too: interest does not depend on where a publisher is.
#[test]
fn a_publisher_that_hops_ports_is_heard_on_every_core() {
    let broker = Broker::start();
    let mut subscribers: Vec<Client> = (0..16)
        .map(|name| {
            let mut client = broker.client(version(name), &format!("listener-{name}"));
            assert_eq!(client.subscribe(&[("news/+", 1)]), [1]);
            client
        })
        .collect();
    for hop in 0..20u8 {
        let mut publisher = broker.client(version(usize::from(hop)), &format!("crier-{hop}"));
        publisher.publish("news/today", [hop], 1);
        publisher.disconnect();
        for client in &mut subscribers {
            let publish = client.expect_publish();
            assert_eq!((publish.topic.as_str(), publish.payload.as_slice()), ("news/today", &[hop][..]));
            client.send(&acknowledge(Kind::Puback, publish.id));
        }
    }
}

/// However many messages come to a core from elsewhere, to so many subscribers that each takes turns, its own clients are served.
#[test]
fn a_flood_to_many_subscribers_keeps_no_publisher_waiting_for_its_end() {
    let broker = Broker::start();
    // On each of the two cores more than are served at once. They do not read: what they lose is QoS 0.
    let _subscribers: Vec<Client> = (0..200)
        .map(|name| {
            let mut client = broker.client(version(name), &format!("flooded-{name}"));
            client.subscribe(&[("flood/#", 0)]);
            client
        })
        .collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in 0..6 {
            let (over, broker) = (&over, &broker);
            scope.spawn(move || {
                let mut client = broker.client(Version::V311, &format!("flooding-{name}"));
                let batch = Publish::new(&format!("flood/{name}"), [b'x'; 100]).encode(Version::V311).repeat(100);
                while !over.load(Ordering::Relaxed) {
                    client.send(&batch);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        for name in 0..12 {
            // Connecting, subscribing and publishing, each waits for an answer.
            let mut client = broker.client(version(name), &format!("bystander-{name}"));
            client.subscribe(&[(&format!("quiet/{name}"), 1)]);
            client.publish(&format!("quiet/nobody/{name}"), "x", 1);
        }
        over.store(true, Ordering::Relaxed);
    });
}
