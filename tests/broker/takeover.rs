//! A client id that connects while it is connected (section 3.1.4).

use crate::harness::{Client, Connect, Kind, Publish, Version, acknowledge, property};
use crate::{QUIET, Shared, expect_disconnect};

static SHARED: Shared = Shared::new("");

/// 5.0: [MQTT-3.1.4-3] [MQTT-3.14.4-2] [MQTT-3.14.4-1]
/// 3.1.1: [MQTT-3.1.4-2]
#[test]
fn the_existing_connection_is_closed_and_an_mqtt_5_client_is_told_why() {
    let broker = SHARED.broker();
    for old_version in Version::ALL {
        for new_version in Version::ALL {
            let id = format!("over-{old_version:?}-{new_version:?}");
            let mut old = broker.client(old_version, &id);
            let mut new = broker.client(new_version, &id);
            expect_disconnect(&mut old, 0x8E);
            new.ping();
        }
    }
}

/// 5.0: [MQTT-3.1.2-5] [MQTT-4.4.0-1]
/// 3.1.1: [MQTT-3.1.2-4] [MQTT-4.4.0-1]
#[test]
fn the_session_goes_over_with_what_was_in_flight() {
    let broker = SHARED.broker();
    for version in [Version::V311, Version::V5] {
        let connect = Connect::new(version, &format!("flight-{version:?}")).persistent();
        let (mut old, _) = broker.connect(&connect);
        old.subscribe(&[("takeover/flight", 1)]);
        let mut publisher = broker.client(version, "flight-publisher");
        publisher.publish("takeover/flight", "x", 1);
        let publish = old.expect_publish();
        let (mut new, connack) = broker.connect(&connect);
        assert!(connack.session_present());
        expect_disconnect(&mut old, 0x8E);
        let again = new.expect_publish();
        assert_eq!(again, Publish { dup: true, ..publish });
        new.send(&acknowledge(Kind::Puback, again.id));
        // What the old connection may still send is nobody's.
        let _ = old.try_send(&acknowledge(Kind::Puback, again.id));
        publisher.publish("takeover/flight", "y", 1);
        assert_eq!(new.expect_publish().payload, b"y");
    }
}

/// The will of the connection that was taken over: sent if its session ends or its delay is 0, kept back if the session goes on before
/// the delay has passed.
///
/// 5.0: [MQTT-3.1.2-8] [MQTT-3.1.3-9] [MQTT-3.1.4-3]
/// 3.1.1: [MQTT-3.1.2-8]
#[test]
fn the_will_is_sent_unless_the_session_goes_on_before_its_delay_has_passed() {
    let broker = SHARED.broker();
    let mut watcher = broker.client(Version::V5, "takeover-watcher");
    watcher.subscribe(&[("takeover/will/#", 0)]);
    let with_will = |id: &str, delay_s: u32, expiry_s: u32| {
        let will =
            Publish::new(&format!("takeover/will/{id}"), "gone").property(property::u32(property::WILL_DELAY_INTERVAL, delay_s));
        Connect::new(Version::V5, id).resume().property(property::u32(property::SESSION_EXPIRY_INTERVAL, expiry_s)).will(will)
    };
    let take_over = |id: &str, delay_s, expiry_s, clean| -> Client {
        let (mut old, _) = broker.connect(&with_will(id, delay_s, expiry_s));
        let (new, _) = broker.connect(&Connect { clean, ..Connect::new(Version::V5, id) });
        expect_disconnect(&mut old, 0x8E);
        new
    };
    let mut kept = Vec::new();
    for (id, delay_s, expiry_s, clean, sent) in [
        ("no-delay", 0, 100, false, true),
        ("delay", 100, 100, false, false),
        ("delay-no-expiry", 100, 0, false, true),
        ("delay-clean", 100, 100, true, true),
    ] {
        kept.push(take_over(id, delay_s, expiry_s, clean));
        if sent {
            assert_eq!(watcher.expect_publish().topic, format!("takeover/will/{id}"));
        }
        watcher.expect_nothing(QUIET);
    }
    let (mut old, _) = broker.connect(&Connect::new(Version::V311, "old").will(Publish::new("takeover/will/old", "gone")));
    let _new = broker.client(Version::V311, "old");
    old.expect_closed();
    assert_eq!(watcher.expect_publish().topic, "takeover/will/old");
}

/// A storm of one id ends with one owner, and none of the losers locks it out.
///
/// 5.0: [MQTT-3.1.4-3]
/// 3.1.1: [MQTT-3.1.4-2]
#[test]
fn many_connections_of_one_id_leave_one() {
    let broker = SHARED.broker();
    let mut clients: Vec<Client> = (0..20).map(|_| broker.socket()).collect();
    for client in &mut clients {
        client.send(&Connect::new(Version::V311, "storm").encode());
    }
    // Each of them is admitted or finds a newer one there; which is which depends on the order in which they are read.
    let admitted = clients.iter_mut().filter_map(Client::packet).count();
    assert!(admitted > 0);
    let mut last = broker.client(Version::V311, "storm");
    last.subscribe(&[("takeover/storm", 0)]);
    for client in &mut clients {
        while client.packet().is_some() {}
    }
    last.send(&Publish::new("takeover/storm", "x").encode(Version::V311));
    assert_eq!(last.expect_publish().payload, b"x");
}
