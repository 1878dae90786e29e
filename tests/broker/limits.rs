//! Every limit holds, whatever it refuses or drops is counted under a name that says what and why, and nobody else is hurt.

use crate::harness::{Broker, Client, Connect, Kind, Publish, Version, acknowledge, property, subscribe};
use crate::{PATIENCE, QUIET, Sys, assert_reason, expect_ack, expect_disconnect, leave_session};
use std::time::{Duration, Instant};

/// A broker with these limits whose counters are up to date within a second.
fn broker(limits: &str) -> Broker {
    Broker::start_with_config(&format!("[broker]\nsys_interval_s = 1\n[limits]\n{limits}\n"))
}

/// A client with a window of one message that never acknowledges it, so that everything else for it is queued.
fn stuck(broker: &Broker, id: &str, filter: &str) -> Client {
    let connect = Connect::new(Version::V5, id).property(property::u16(property::RECEIVE_MAXIMUM, 1));
    let (mut client, _) = broker.connect(&connect);
    client.subscribe(&[(filter, 1)]);
    client
}

/// The client gets messages with these numbers, all at QoS 1, and no others.
#[track_caller]
fn expect_numbers(client: &mut Client, numbers: &[u8]) {
    for number in numbers {
        let publish = client.expect_publish();
        assert_eq!(publish.payload, [*number]);
        client.send(&acknowledge(Kind::Puback, publish.id));
    }
    client.expect_nothing(QUIET);
}

/// Waits until a message that was acknowledged has reached the core of its topic: a new subscription is answered there behind it.
fn settle_retained(broker: &Broker, topic: &str) {
    let mut client = broker.client(Version::V5, "settle");
    client.subscribe(&[(topic, 0)]);
    // None for a message that is not stored.
    let _ = client.packet_within(QUIET);
    client.send(b"\xE0\x00");
    client.expect_closed();
}

fn publish_numbers(broker: &Broker, topic: &str, count: u8) {
    let mut publisher = broker.client(Version::V5, "numbers");
    (1..=count).for_each(|number| publisher.publish(topic, [number], 1));
    publisher.disconnect();
}

#[test]
fn connections_over_the_maximum_of_the_whole_process_are_closed_at_once() {
    let broker = broker("connections_max = 12");
    let mut sys = Sys::watch(&broker);
    // The kernel spreads them over both shards, in whatever proportion.
    let mut clients: Vec<Client> = (0..11).map(|index| broker.client(Version::V311, &format!("c{index}"))).collect();
    for _ in 0..5 {
        broker.socket().expect_closed();
    }
    sys.counter("refused_connections_max", 5);
    clients.iter_mut().for_each(Client::ping);
    clients.pop();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut client = broker.socket();
        let _ = client.try_send(&Connect::new(Version::V311, "again").encode());
        if client.packet().is_some() {
            client.ping();
            break;
        }
        assert!(Instant::now() < deadline, "a place that became free stays closed");
    }
}

#[test]
fn topics_over_the_limits_are_refused_with_their_reason() {
    let broker = broker("topic_levels_max = 4\ntopic_bytes_max = 32");
    let mut sys = Sys::watch(&broker);
    let mut client = broker.client(Version::V5, "topics");
    let (deep, long) = ("a/b/c/d/e", "x".repeat(33));
    assert_eq!(
        client.subscribe(&[("1/2/3/#", 0), (deep, 0), (&long, 0), (&long[1..], 0), ("$share/g/a/b/c/d", 0)]),
        [0, 0x8F, 0x8F, 0, 0]
    );
    sys.counter("refused_subscriptions_filter", 2);
    for (id, topic) in [(1, deep), (2, long.as_str())] {
        client.send(&Publish::new(topic, "x").qos(1).id(id).encode(Version::V5));
        expect_ack(&mut client, Kind::Puback, id, 0x90);
        client.send(&Publish::new(topic, "x").encode(Version::V5));
    }
    sys.counter("refused_publishes", 4);
    client.send(&Publish::new(&long[1..], "x").encode(Version::V5));
    client.send(&Publish::new("1/2/3/4", "x").encode(Version::V5));
    assert_eq!(client.expect_publish().topic, long[1..]);
    assert_eq!(client.expect_publish().topic, "1/2/3/4");
    // MQTT 3 has no way to say it: the message is acknowledged and dropped, a filter fails.
    let mut old = broker.client(Version::V311, "topics-old");
    assert_eq!(old.subscribe(&[(deep, 1)]), [0x80]);
    old.send(&Publish::new(deep, "x").qos(1).id(1).encode(Version::V311));
    old.expect(b"\x40\x02\x00\x01");
    // A will that could never be published is refused at once.
    let (mut client, connack) = broker.connect(&Connect::new(Version::V5, "topics-will").will(Publish::new(deep, "x")));
    assert_reason(&connack, 0x90);
    client.expect_closed();
    sys.counter("refused_connects", 1);
}

#[test]
fn a_full_queue_drops_the_newest_messages_by_default() {
    let broker = broker("queued_messages_max = 3");
    let mut sys = Sys::watch(&broker);
    leave_session(&broker, Version::V5, "away", &[("queue/away", 1)]);
    publish_numbers(&broker, "queue/away", 5);
    sys.counter("dropped_queue_newest", 2);
    let (mut client, _) = broker.connect(&Connect::new(Version::V5, "away").persistent());
    expect_numbers(&mut client, &[1, 2, 3]);
    // One in flight, three behind it.
    let mut client = stuck(&broker, "here", "queue/here");
    publish_numbers(&broker, "queue/here", 9);
    sys.counter("dropped_queue_newest", 7);
    expect_numbers(&mut client, &[1, 2, 3, 4]);
    assert_eq!(sys.counter_now("dropped_queue_newest"), 7);
}

#[test]
fn a_full_queue_drops_the_oldest_messages_if_so_configured() {
    let broker = broker("queued_messages_max = 3\ndrop_policy = \"oldest\"");
    let mut sys = Sys::watch(&broker);
    leave_session(&broker, Version::V311, "away", &[("queue/away", 1)]);
    publish_numbers(&broker, "queue/away", 5);
    sys.counter("dropped_queue_oldest", 2);
    let (mut client, _) = broker.connect(&Connect::new(Version::V311, "away").persistent());
    expect_numbers(&mut client, &[3, 4, 5]);
    // What is in flight is not dropped.
    let mut client = stuck(&broker, "here", "queue/here");
    publish_numbers(&broker, "queue/here", 9);
    sys.counter("dropped_queue_oldest", 7);
    expect_numbers(&mut client, &[1, 7, 8, 9]);
}

#[test]
fn a_full_queue_disconnects_its_client_if_so_configured_and_drops_the_newest_while_it_is_away() {
    let broker = broker("queued_messages_max = 3\ndrop_policy = \"disconnect\"");
    let mut sys = Sys::watch(&broker);
    let mut client = stuck(&broker, "here", "queue/here");
    publish_numbers(&broker, "queue/here", 4);
    assert_eq!(client.expect_publish().payload, [1]);
    client.ping();
    publish_numbers(&broker, "queue/here", 1);
    expect_disconnect(&mut client, 0x97);
    sys.counter("closed_queue_full", 1);
    leave_session(&broker, Version::V5, "away", &[("queue/away", 1)]);
    let dropped = sys.counter_now("dropped_queue_newest");
    publish_numbers(&broker, "queue/away", 5);
    sys.counter("dropped_queue_newest", dropped + 2);
    let (mut client, _) = broker.connect(&Connect::new(Version::V5, "away").persistent());
    expect_numbers(&mut client, &[1, 2, 3]);
}

#[test]
fn a_queue_is_full_by_its_bytes_too() {
    let broker = broker("queued_bytes_max = 4096\npacket_bytes_max = 1024");
    let mut sys = Sys::watch(&broker);
    leave_session(&broker, Version::V5, "away", &[("queue/bytes", 1)]);
    let mut publisher = broker.client(Version::V5, "publisher");
    for number in 0..10 {
        publisher.publish("queue/bytes", vec![number; 900], 1);
    }
    sys.counter("dropped_queue_newest", 6);
    let (mut client, _) = broker.connect(&Connect::new(Version::V5, "away").persistent());
    let mut kept = 0;
    while let Some(packet) = client.packet_within(if kept < 3 { PATIENCE } else { QUIET }) {
        let publish = packet.expect("it stays open").publish(Version::V5);
        assert_eq!(publish.payload, [kept; 900]);
        client.send(&acknowledge(Kind::Puback, publish.id));
        kept += 1;
    }
    assert!((3..=4).contains(&kept), "{kept} messages of 900 bytes in 4,096");
}

/// A reader that does not read: QoS 0 for it is dropped, QoS 1 waits in its queue; neither its publisher nor another reader notices.
#[test]
fn a_slow_reader_loses_qos_0_and_slows_nobody() {
    let broker = broker("outbox_bytes_max = \"64 KiB\"\npacket_bytes_max = \"32 KiB\"");
    let mut sys = Sys::watch(&broker);
    let mut slow = broker.client(Version::V311, "slow");
    slow.subscribe(&[("outbox/0", 0), ("outbox/1", 1)]);
    let mut fast = broker.client(Version::V5, "fast");
    fast.subscribe(&[("outbox/+", 1)]);
    let mut publisher = broker.client(Version::V5, "publisher");
    // Far more than the kernel buffers of a connection hold.
    const MESSAGES: u32 = 1000;
    let payload = |number: u32| [&number.to_be_bytes()[..], &[7; 20_000]].concat();
    for number in 0..MESSAGES {
        publisher.publish(if number % 2 == 0 { "outbox/0" } else { "outbox/1" }, payload(number), (number % 2) as u8);
        let publish = fast.expect_publish();
        assert!(publish.payload == payload(number), "message {number}");
        if publish.qos == 1 {
            fast.send(&acknowledge(Kind::Puback, publish.id));
        }
    }
    sys.counter("dropped_outbox_full", 1);
    // Now it reads: all of QoS 1 in order, and of QoS 0 what was not dropped.
    let (mut next_at_1, mut count_of_0) = (1, 0);
    while next_at_1 < MESSAGES {
        let publish = slow.expect_publish();
        let number = u32::from_be_bytes(publish.payload[..4].try_into().expect("four bytes"));
        if publish.qos == 1 {
            assert_eq!(number, next_at_1);
            next_at_1 += 2;
            slow.send(&acknowledge(Kind::Puback, publish.id));
        } else {
            count_of_0 += 1;
        }
    }
    assert!(count_of_0 > 0, "the kernel's buffers took some");
    let dropped = u64::from(MESSAGES) / 2 - count_of_0;
    sys.wait_for("counters/dropped_outbox_full", |value| value.parse() == Ok(dropped));
}

#[test]
fn retained_messages_over_the_maximum_are_delivered_and_not_stored() {
    let broker = broker("retained_messages_max = 3");
    let mut sys = Sys::watch(&broker);
    // The broker's own topics are retained as well and not counted.
    assert_eq!(sys.counter_now("dropped_retained_quota"), 0);
    let mut live = broker.client(Version::V311, "live");
    live.subscribe(&[("retained/+", 0)]);
    let mut publisher = broker.client(Version::V5, "publisher");
    let mut retain = |topic: &str, payload: &str| {
        publisher.publish_with(Publish::new(topic, payload).qos(1).retain());
        settle_retained(&broker, topic);
    };
    for topic in ["retained/1", "retained/2", "retained/3", "retained/4"] {
        retain(topic, "x");
        assert_eq!(live.expect_publish().topic, topic);
    }
    sys.counter("dropped_retained_quota", 1);
    // One that is there may be replaced, and one removed makes room.
    retain("retained/2", "y");
    retain("retained/1", "");
    live.expect_publish();
    live.expect_publish();
    retain("retained/5", "z");
    live.expect_publish();
    let mut late = broker.client(Version::V311, "late");
    late.subscribe(&[("retained/+", 0)]);
    let mut found: Vec<_> = (0..3).map(|_| late.expect_publish()).map(|publish| (publish.topic, publish.payload)).collect();
    found.sort();
    let expected = [("retained/2", "y"), ("retained/3", "x"), ("retained/5", "z")];
    assert_eq!(found, expected.map(|(topic, payload)| (topic.to_owned(), payload.as_bytes().to_owned())));
    late.expect_nothing(QUIET);
    sys.wait_for("uptime", |value| value != "0 seconds" && value != "1 seconds");
    assert_eq!(sys.counter_now("dropped_retained_quota"), 1);
}

#[test]
fn retained_bytes_have_a_maximum_as_well() {
    let broker = broker("retained_bytes_max = 4096");
    let mut sys = Sys::watch(&broker);
    assert_eq!(sys.counter_now("dropped_retained_quota"), 0);
    let mut publisher = broker.client(Version::V5, "publisher");
    for (topic, bytes) in
        [("retained/1", 1500), ("retained/2", 1500), ("retained/3", 1500), ("retained/2", 3000), ("retained/4", 500)]
    {
        publisher.publish_with(Publish::new(topic, vec![b'x'; bytes]).qos(1).retain());
        settle_retained(&broker, topic);
    }
    sys.counter("dropped_retained_quota", 2);
    let mut late = broker.client(Version::V311, "late");
    late.subscribe(&[("retained/+", 0)]);
    let mut found: Vec<_> = (0..3).map(|_| late.expect_publish()).map(|publish| (publish.topic, publish.payload.len())).collect();
    found.sort();
    assert_eq!(
        found,
        [("retained/1", 1500), ("retained/2", 1500), ("retained/4", 500)].map(|(topic, bytes)| (topic.to_owned(), bytes))
    );
}

#[test]
fn subscriptions_over_the_maximum_of_a_client_are_refused() {
    let broker = broker("subscriptions_per_client_max = 3");
    let mut sys = Sys::watch(&broker);
    for (version, refused) in [(Version::V5, 0x97), (Version::V311, 0x80), (Version::V31, 0x80)] {
        let mut client = broker.client(version, &format!("many-{version:?}"));
        assert_eq!(client.subscribe(&[("a", 0), ("b", 1), ("$share/g/c", 2), ("d", 0)]), [0, 1, 2, refused]);
        // One that is there may be replaced, and one removed makes room.
        assert_eq!(client.subscribe(&[("b", 2), ("d", 0)]), [2, refused]);
        let id = client.id();
        client.send(&crate::harness::unsubscribe(version, id, &["a"]));
        client.expect_kind(Kind::Unsuback);
        assert_eq!(client.subscribe(&[("d", 1), ("e", 1)]), [1, refused]);
    }
    sys.counter("refused_subscriptions_quota", 9);
}

#[test]
fn a_connection_without_a_whole_connect_is_closed_at_its_deadline() {
    let broker = broker("connect_deadline_s = 1");
    let mut sys = Sys::watch(&broker);
    let begun = Instant::now();
    let mut silent = broker.socket();
    let mut half = broker.socket();
    half.send(b"\x10\x0D\x00\x04MQTT");
    let mut dripping = broker.socket();
    let whole = Connect::new(Version::V5, &"x".repeat(500)).encode();
    for byte in &whole {
        if dripping.try_send(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for client in [&mut silent, &mut half, &mut dripping] {
        client.expect_closed();
    }
    assert!(begun.elapsed() >= Duration::from_millis(950));
    sys.counter("closed_connect_deadline", 3);
    let mut client = broker.client(Version::V311, "in-time");
    std::thread::sleep(Duration::from_millis(1500));
    client.ping();
}

/// The three steps of the memory maximum: no new connections, no QoS 0, no QoS 1 and 2; and back again.
///
/// 5.0: [MQTT-3.4.2-1] [MQTT-3.5.2-1]
/// 3.1.1: [MQTT-4.8.0-2]
#[test]
fn memory_has_three_steps_and_a_way_back() {
    let broker = broker("memory_max_bytes = \"16 MiB\"\nqueued_bytes_max = \"16 MiB\"\nmesh_bytes_max = \"4 MiB\"");
    let mut sys = Sys::watch(&broker);
    let hoarders = [stuck(&broker, "hoarder-1", "memory/1"), stuck(&broker, "hoarder-2", "memory/2")];
    let mut live = broker.client(Version::V311, "live");
    live.subscribe(&[("memory/live", 1)]);
    let mut old = broker.client(Version::V311, "old");
    let mut publisher = broker.client(Version::V5, "publisher");
    let mut sent = 0;
    let mut fill_to = |publisher: &mut Client, percent: usize| {
        while sent * 100_000 < (16 << 20) * percent / 100 {
            sent += 1;
            publisher.publish(&format!("memory/{}", 1 + sent % 2), vec![0; 100_000], 1);
        }
    };
    fill_to(&mut publisher, 70);
    broker.client(Version::V311, "admitted").ping();
    fill_to(&mut publisher, 84);
    sys.wait_for("heap/current", |value| value.parse::<u64>().is_ok_and(|bytes| bytes > (16 << 20) * 8 / 10));
    let mut late = broker.socket();
    late.send(&Connect::new(Version::V5, "late").encode());
    assert_eq!(late.expect_kind(Kind::Connack).reason(), 0x89);
    late.expect_closed();
    sys.counter("refused_connections_memory", 1);
    publisher.publish("memory/live", "0", 0);
    assert_eq!(live.expect_publish().payload, b"0");

    fill_to(&mut publisher, 94);
    sys.wait_for("heap/current", |value| value.parse::<u64>().is_ok_and(|bytes| bytes > (16 << 20) * 9 / 10));
    publisher.publish("memory/live", "0", 0);
    sys.counter("dropped_memory_qos0", 1);
    publisher.publish("memory/live", "1", 1);
    let publish = live.expect_publish();
    assert_eq!(publish.payload, b"1");
    live.send(&acknowledge(Kind::Puback, publish.id));

    // A packet that takes several reads is itself charged while it comes in, so the last bit is filled up with small ones.
    for bytes in [10_000, 1_000, 100] {
        let mut taken = 0;
        loop {
            publisher.send(&Publish::new("memory/1", vec![0; bytes]).qos(1).id(1).encode(Version::V5));
            let puback = publisher.expect_kind(Kind::Puback);
            if puback.reason() == 0x97 {
                assert_reason(&puback, 0x97);
                break;
            }
            taken += bytes;
            assert!(taken < 16 << 20, "memory has no end");
        }
    }
    publisher.send(&Publish::new("memory/1", [0; 100]).qos(2).id(2).encode(Version::V5));
    expect_ack(&mut publisher, Kind::Pubrec, 2, 0x97);
    sys.counter("refused_memory", 4);
    // An MQTT 3 client can only be closed, so that it keeps the message.
    old.send(&Publish::new("memory/live", "1").qos(1).id(1).encode(Version::V311));
    old.expect_closed();
    sys.counter("closed_memory", 1);
    live.expect_nothing(QUIET);

    drop(hoarders);
    sys.wait_for("heap/current", |value| value.parse::<u64>().is_ok_and(|bytes| bytes < 1 << 20));
    broker.client(Version::V311, "admitted").ping();
    publisher.publish("memory/live", "again", 0);
    assert_eq!(live.expect_publish().payload, b"again");
}

/// Packets that never become complete take no more than the memory maximum, whoever sends them; who sends whole ones stays.
#[test]
fn incomplete_packets_stay_within_the_memory_maximum() {
    let broker = broker("memory_max_bytes = \"16 MiB\"\nqueued_bytes_max = \"16 MiB\"\nmesh_bytes_max = \"4 MiB\"");
    let mut sys = Sys::watch(&broker);
    let mut witness = broker.client(Version::V5, "witness");
    let part = &Publish::new("memory/part", vec![0; 1_000_000]).encode(Version::V5)[..900_000];
    let mut clients: Vec<Client> = (0..40).map(|index| broker.client(Version::V5, &format!("part-{index}"))).collect();
    for client in &mut clients {
        // It may be closed before it has sent all.
        client.try_send(part).ok();
    }
    sys.counter("closed_memory_partial", 20);
    sys.wait_for("heap/current", |value| value.parse::<u64>().is_ok_and(|bytes| bytes < 20 << 20));
    witness.ping();
    drop(clients);
    sys.wait_for("heap/current", |value| value.parse::<u64>().is_ok_and(|bytes| bytes < 1 << 20));
}

/// A CONNECT is refused as soon as its length is known, before it is kept, and so is a whole one.
#[test]
fn a_connect_over_its_maximum_is_refused_before_it_is_complete() {
    let broker = broker("connect_bytes_max = 1000");
    let mut sys = Sys::watch(&broker);
    for version in Version::ALL {
        let connect = |bytes| Connect::new(version, "will").will(Publish::new("large/will", vec![0; bytes])).encode();
        for sent in [&connect(1_000)[..100], &connect(1_000), &connect(40_000)[..20_000]] {
            let mut client = broker.socket();
            client.try_send(sent).ok();
            if version == Version::V5 {
                assert_eq!(client.expect_kind(Kind::Connack).reason(), 0x95);
            }
            client.expect_closed();
        }
        broker.connect(&Connect::new(version, "small").will(Publish::new("large/will", vec![0; 800]))).0.ping();
    }
    sys.counter("closed_connect_too_large", 9);
}

/// A ring between two cores that is full has publishers wait; nothing is lost and nothing changes its order.
#[test]
fn a_full_ring_makes_publishers_wait_and_loses_nothing() {
    let broker = broker("mesh_messages_max = 16");
    let mut sys = Sys::watch(&broker);
    const MESSAGES: u16 = 500;
    let mut subscribers: Vec<Client> = (0..4)
        .map(|index| {
            let mut subscriber = broker.client(Version::V311, &format!("ring-{index}"));
            subscriber.subscribe(&[("ring/+", 0)]);
            subscriber
        })
        .collect();
    let mut publishers: Vec<Client> =
        (0..4).map(|index| broker.client(Version::V5, &format!("ring-publisher-{index}"))).collect();
    for (index, publisher) in publishers.iter_mut().enumerate() {
        let publish = |id: u16| Publish::new(&format!("ring/{index}"), id.to_be_bytes()).qos(1).id(id).encode(Version::V5);
        publisher.send(&(1..=MESSAGES).flat_map(publish).collect::<Vec<u8>>());
    }
    for publisher in &mut publishers {
        for id in 1..=MESSAGES {
            assert_eq!(publisher.expect_kind(Kind::Puback).id(), id);
        }
    }
    for subscriber in &mut subscribers {
        let mut last = [0; 4];
        for _ in 0..4 * usize::from(MESSAGES) {
            let publish = subscriber.expect_publish();
            let index = usize::from(publish.topic.as_bytes()["ring/".len()] - b'0');
            last[index] += 1;
            assert_eq!(publish.payload, u16::to_be_bytes(last[index]));
        }
    }
    sys.counter("parked_mesh", 1);
}

/// A message to more subscribers than a turn has budget for is delivered in several, each subscriber's order kept; another topic passes.
#[test]
fn a_message_to_many_is_spread_over_turns_in_its_order() {
    let broker = broker("turn_budget = 1\nfanouts_max = 2");
    let mut sys = Sys::watch(&broker);
    let mut subscribers: Vec<Client> = (0..200)
        .map(|index| {
            let mut subscriber = broker.client(Version::V311, &format!("many-{index}"));
            subscriber.subscribe(&[("many/x", 0)]);
            subscriber
        })
        .collect();
    let mut publisher = broker.client(Version::V311, "many-publisher");
    let mut passer = broker.client(Version::V5, "many-passer");
    passer.subscribe(&[("many/passes", 0)]);
    for number in 0..20 {
        publisher.send(&Publish::new("many/x", [number]).encode(Version::V311));
        if number == 10 {
            passer.send(&Publish::new("many/passes", "x").encode(Version::V5));
        }
    }
    passer.expect_publish();
    for subscriber in &mut subscribers {
        for number in 0..20 {
            assert_eq!(subscriber.expect_publish().payload, [number]);
        }
    }
    sys.counter("fanouts_continued", 1);
    sys.counter("parked_fanout", 1);
}

/// What has no limit of its own to be tested with is counted all the same.
#[test]
fn each_refusal_and_each_drop_is_counted_by_its_name() {
    let broker = broker("packet_bytes_max = 2000\ninflight_in_max = 1");
    let mut sys = Sys::watch(&broker);
    let qos_1 = |topic: &str, payload: &str| Publish::new(topic, payload).qos(1);
    let expiring = property::u32(property::MESSAGE_EXPIRY_INTERVAL, 1);

    broker.client(Version::V5, "protocol").send(b"\x00\x00");
    broker.client(Version::V5, "too-large").send(b"\x30\xFF\xFF\x01");
    let mut client = broker.client(Version::V5, "receive-maximum");
    for id in 1..=2 {
        client.send(&Publish::new("counted", "x").qos(2).id(id).encode(Version::V5));
    }
    let (mut client, _) = broker.connect(&Connect::new(Version::V5, "silent").keep_alive_s(1));
    drop((broker.client(Version::V5, "twice"), broker.client(Version::V5, "twice")));

    leave_session(&broker, Version::V5, "away", &[("counted/away", 1)]);
    let mut publisher = broker.client(Version::V5, "publisher");
    publisher.publish("counted/away", "offline", 0);
    publisher.publish_with(qos_1("counted/away", "expires").property(expiring.clone()));
    publisher.publish_with(qos_1("counted/retained", "expires").property(expiring).retain());
    publisher.publish_with(qos_1("counted/away", "left behind"));
    publisher.send(&Publish::new("counted/nobody", "x").qos(2).id(60_000).encode(Version::V5));
    publisher.send(&Publish::new("counted/nobody", "x").qos(2).id(60_000).dup().encode(Version::V5));
    publisher.send(&acknowledge(Kind::Puback, 9));
    let connect = Connect::new(Version::V5, "small").property(property::u32(property::MAXIMUM_PACKET_SIZE, 50));
    let (mut small, _) = broker.connect(&connect);
    small.send(&subscribe(Version::V5, 1, &[("counted/small", 0)]));
    small.expect_kind(Kind::Suback);
    publisher.send(&Publish::new("counted/small", [0; 100]).encode(Version::V5));
    drop(broker.connect(&Connect::new(Version::V5, "will").will(Publish::new("counted/will", "x"))).0);

    std::thread::sleep(Duration::from_millis(1500));
    let (away, connack) = broker.connect(&Connect::new(Version::V5, "away").persistent());
    assert!(connack.session_present());
    drop(away);
    // A clean start ends the session with the message that it still has.
    broker.client(Version::V5, "away").ping();
    let one_second = property::u32(property::SESSION_EXPIRY_INTERVAL, 1);
    drop(broker.connect(&Connect::new(Version::V5, "expires").property(one_second)).0);
    expect_disconnect(&mut client, 0x8D);

    for name in [
        "closed_protocol_error",
        "closed_packet_too_large",
        "closed_receive_maximum",
        "closed_keep_alive",
        "closed_taken_over",
        "dropped_offline_qos0",
        "dropped_expired",
        "dropped_packet_too_large",
        "dropped_session_end",
        "retained_expired",
        "publishes_repeated",
        "publishes_unmatched",
        "acks_unknown",
        "wills_published",
        "sessions_resumed",
        "sessions_expired",
        "connections_handed_over",
        "mesh_messages_sent",
        "mesh_messages_received",
    ] {
        sys.counter(name, 1);
    }
}
