//! SIGTERM and SIGINT.

use crate::expect_disconnect;
use crate::harness::{Broker, Client, Kind, Publish, Version, acknowledge};
use std::process::Command;
use std::time::{Duration, Instant};

fn signal(broker: &Broker, name: &str) {
    let pid = broker.pid().expect("this test started it").to_string();
    assert!(Command::new("kill").args([name, &pid]).status().expect("kill runs").success());
}

/// 5.0: [MQTT-3.14.2-1] [MQTT-3.14.4-2] [MQTT-3.14.4-1]
#[test]
fn clients_are_told_and_the_exit_code_is_0() {
    for name in ["-TERM", "-INT"] {
        let mut broker = Broker::start();
        let mut clients: Vec<Client> =
            (0..12).map(|index| broker.client(Version::ALL[index % 3], &format!("told-{index}"))).collect();
        let mut nameless = broker.socket();
        signal(&broker, name);
        for client in &mut clients {
            expect_disconnect(client, 0x8B);
        }
        nameless.expect_closed();
        drop((clients, nameless));
        assert_eq!(broker.wait_for_exit().code(), Some(0), "{}", broker.log());
        assert!(std::net::TcpStream::connect(broker.address()).is_err(), "nobody listens any more");
    }
}

/// What was acknowledged has reached its subscribers, on both cores, before they are told.
#[test]
fn what_was_accepted_is_delivered_before_the_end() {
    let mut broker = Broker::start();
    let mut subscribers: Vec<Client> = (0..6)
        .map(|index| {
            let mut subscriber = broker.client(Version::V5, &format!("last-{index}"));
            subscriber.subscribe(&[("shutdown/last", 1)]);
            subscriber
        })
        .collect();
    let mut publisher = broker.client(Version::V311, "last-publisher");
    const MESSAGES: u16 = 200;
    for id in 1..=MESSAGES {
        publisher.send(&Publish::new("shutdown/last", id.to_be_bytes()).qos(1).id(id).encode(Version::V311));
    }
    for id in 1..=MESSAGES {
        assert_eq!(publisher.expect_kind(Kind::Puback).id(), id);
    }
    broker.terminate();
    for subscriber in &mut subscribers {
        for id in 1..=MESSAGES {
            let publish = subscriber.expect_publish();
            assert_eq!(publish.payload, id.to_be_bytes());
            // It is shutting down and may no longer read this.
            let _ = subscriber.try_send(&acknowledge(Kind::Puback, publish.id));
        }
        expect_disconnect(subscriber, 0x8B);
    }
    publisher.expect_closed();
    drop((subscribers, publisher));
    assert_eq!(broker.wait_for_exit().code(), Some(0), "{}", broker.log());
}

/// A client that does not read its last messages delays the end by `shutdown_s` at most.
#[test]
fn a_client_that_does_not_read_cannot_hold_it_up() {
    let mut broker = Broker::start_with_config("[broker]\nshutdown_s = 1\n[limits]\noutbox_bytes_max = \"16 MiB\"\n");
    let mut stuck = broker.client(Version::V5, "does-not-read");
    stuck.subscribe(&[("shutdown/stuck", 0)]);
    let mut publisher = broker.client(Version::V5, "publisher");
    for _ in 0..20 {
        publisher.publish("shutdown/stuck", vec![0; 900_000], 1);
    }
    let begun = Instant::now();
    broker.terminate();
    assert_eq!(broker.wait_for_exit().code(), Some(0), "{}", broker.log());
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

/// A second signal ends it at once, unless it comes together with the first: GNU `timeout` signals the process and then its group.
#[test]
fn a_second_signal_ends_it_at_once_and_one_beside_the_first_does_not() {
    let mut broker = Broker::start_with_config("[broker]\nshutdown_s = 60\n[limits]\noutbox_bytes_max = \"16 MiB\"\n");
    let mut stuck = broker.client(Version::V5, "does-not-read");
    stuck.subscribe(&[("shutdown/twice", 0)]);
    let mut publisher = broker.client(Version::V5, "publisher");
    for _ in 0..20 {
        publisher.publish("shutdown/twice", vec![0; 900_000], 1);
    }
    let pid = broker.pid().expect("this test started it").to_string();
    // Two of one kind could become one on their way.
    assert!(Command::new("sh").args(["-c", "kill -TERM $0; kill -INT $0", &pid]).status().expect("sh runs").success());
    std::thread::sleep(Duration::from_millis(500));
    assert!(broker.exit_status().is_none(), "it waits for the client: {}", broker.log());
    broker.terminate();
    assert_eq!(broker.wait_for_exit().code(), Some(143), "{}", broker.log());
}

/// Wills are for clients that are lost, not for a broker that goes: none is published on the way out.
#[test]
fn no_will_is_published_on_the_way_out() {
    let mut broker = Broker::start();
    let mut subscriber = broker.client(Version::V5, "will-watcher");
    subscriber.subscribe(&[("shutdown/will", 0)]);
    let will = Publish::new("shutdown/will", "gone");
    let clients: Vec<_> = (0..8)
        .map(|index| broker.connect(&crate::harness::Connect::new(Version::V5, &format!("will-{index}")).will(will.clone())))
        .collect();
    broker.terminate();
    expect_disconnect(&mut subscriber, 0x8B);
    drop(clients);
    assert_eq!(broker.wait_for_exit().code(), Some(0), "{}", broker.log());
}
