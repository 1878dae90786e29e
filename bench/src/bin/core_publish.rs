//! Messages through the pure core, with no I/O at all: codec, session, fan-out to one local subscriber, codec. For callgrind, which
//! counts instructions: `scripts/instructions.sh` runs it with two counts and divides the difference.
//!
//! Usage: core_publish QOS MESSAGES [BATCH]; BATCH PUBLISH packets come in one receive, as from a client with a window.

use corelane::ids::{ConnectionId, CoreId};
use corelane::limits::Limits;
use corelane::shard::{Globals, Shard, ShardOptions};
use corelane::time::Time;
use corelane::topic::Hasher;
use corelane::wire::{
    self, Ack, Connect, Packet, Properties, Publish, QoS, ReasonCode, Subscribe, SubscribeFilters, SubscriptionOptions, Version,
};
use std::sync::Arc;

const TOPIC: &str = "vehicle/000042/telemetry/speed";
const NOW: Time = Time(1_000_000_000);

struct World {
    shard: Shard,
    flush: Vec<ConnectionId>,
}

impl World {
    fn new() -> Self {
        let limits = Limits { inflight_out_max: 65_535, ..Limits::default() };
        let shard = Shard::new(ShardOptions {
            core: CoreId(0),
            cores: 1,
            limits: Arc::new(limits),
            hasher: Hasher::from_seed(7),
            globals: Arc::new(Globals::default()),
            delays: None,
            rules: std::sync::Arc::new([]),
            node: "bench".into(),
            epoch_us: 0,
            now: NOW,
        });
        Self { shard, flush: Vec::new() }
    }

    fn connect(&mut self, socket: i32, client_id: &str) -> ConnectionId {
        let id = self.shard.on_accepted(socket, 0, NOW).expect("below every limit");
        let connect = Connect { version: Version::V3_1_1, client_id, clean_start: true, ..Connect::default() };
        self.receive(id, &encode(&[Packet::Connect(connect)]));
        id
    }

    fn receive(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.shard.on_received(id, bytes, NOW);
        self.shard.run(NOW);
    }

    /// Takes what every connection is owed, as the shell does; returns how many bytes.
    fn send(&mut self, mut take: impl FnMut(ConnectionId, &[u8])) -> usize {
        let mut sent = 0;
        self.shard.effects.events.clear();
        self.shard.take_flush(&mut self.flush);
        while let Some(id) = self.flush.pop() {
            while let Some(bytes) = self.shard.outbox(id) {
                let len = bytes.len();
                take(id, bytes);
                sent += len;
                self.shard.on_sent(id, len, NOW);
            }
        }
        sent
    }
}

fn encode(packets: &[Packet<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    for packet in packets {
        wire::encode(packet, Version::V3_1_1, &mut out);
    }
    out
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>().expect("a number"));
    let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][arguments.next().expect("QOS")];
    let messages = arguments.next().expect("MESSAGES");
    let batch = arguments.next().unwrap_or(1).max(1);

    let mut world = World::new();
    let publisher = world.connect(1, "publisher");
    let subscriber = world.connect(2, "subscriber");
    let mut scratch = Vec::new();
    let filters = SubscribeFilters::new(&[(TOPIC, SubscriptionOptions::from(qos))], &mut scratch);
    let subscribe = Subscribe { packet_id: 1, subscription_identifier: None, properties: Properties::EMPTY, filters };
    world.receive(subscriber, &encode(&[Packet::Subscribe(subscribe)]));
    world.send(|_, _| {});

    let payload = [b'x'; 64];
    let mut bytes = Vec::new();
    let mut acknowledgements = Vec::new();
    let (mut done, mut packet_id, mut delivered) = (0, 0u16, 0);
    while done < messages {
        bytes.clear();
        for _ in 0..batch {
            packet_id = if packet_id == u16::MAX { 1 } else { packet_id + 1 };
            let packet_id = if qos == QoS::AtMostOnce { 0 } else { packet_id };
            let publish = Publish { qos, topic: TOPIC, packet_id, payload: &payload, ..Publish::default() };
            wire::encode(&Packet::Publish(publish), Version::V3_1_1, &mut bytes);
        }
        done += batch;
        world.receive(publisher, &bytes);
        // Both clients acknowledge until nothing is owed.
        loop {
            acknowledgements.clear();
            world.send(|id, bytes| answer(id, bytes, &mut acknowledgements, &mut delivered));
            if acknowledgements.is_empty() {
                break;
            }
            for (id, bytes) in &acknowledgements {
                world.shard.on_received(*id, bytes, NOW);
            }
            world.shard.run(NOW);
        }
    }
    assert_eq!(delivered, done);
    println!("{delivered} messages delivered");
}

/// What a client answers to the packets it is sent.
fn answer(id: ConnectionId, mut bytes: &[u8], answers: &mut Vec<(ConnectionId, Vec<u8>)>, delivered: &mut usize) {
    let mut out = Vec::new();
    while let Ok(Some(frame)) = wire::frame(bytes, u32::MAX) {
        bytes = &bytes[frame.len..];
        let ack = |packet_id| Ack { packet_id, reason: ReasonCode::SUCCESS, ..Ack::default() };
        let reply = match wire::decode(frame, Some(Version::V3_1_1)).expect("the broker writes valid packets") {
            Packet::Publish(publish) => {
                *delivered += 1;
                match publish.qos {
                    QoS::AtMostOnce => continue,
                    QoS::AtLeastOnce => Packet::Puback(ack(publish.packet_id)),
                    QoS::ExactlyOnce => Packet::Pubrec(ack(publish.packet_id)),
                }
            }
            Packet::Pubrec(pubrec) => Packet::Pubrel(ack(pubrec.packet_id)),
            Packet::Pubrel(pubrel) => Packet::Pubcomp(ack(pubrel.packet_id)),
            _ => continue,
        };
        wire::encode(&reply, Version::V3_1_1, &mut out);
    }
    if !out.is_empty() {
        answers.push((id, out));
    }
}
