//! Shared subscriptions (section 4.8.2).

use crate::harness::{
    Client, Connect, Kind, Publish, Version, acknowledge, acknowledge_with, property, subscribe_with, unsubscribe,
};
use crate::{PATIENCE, QUIET, Shared};
use std::time::{Duration, Instant};

static SHARED: Shared = Shared::new("");

/// 5.0: [MQTT-4.8.2-1] [MQTT-4.8.2-2]
#[test]
fn a_share_name_is_one_level_without_wildcards_and_followed_by_a_filter() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "names");
    for filter in ["$share", "$share/g/a/#", "$share/g//", "$share/\u{e9}/+", "$shared/x"] {
        assert_eq!(client.subscribe(&[(filter, 1)]), [1], "{filter}");
    }
    for filter in ["$share/", "$share//a", "$share/g", "$share/g/", "$share/g+/a", "$share/#/a", "$share/g/a+", "$share/g/#/a"] {
        assert_eq!(client.subscribe(&[(filter, 1)]), [0x8F], "{filter}");
    }
}

/// Each message goes to one member of each group, and to every ordinary subscriber; members share the load.
///
/// 5.0: [MQTT-4.8.2-3] [MQTT-3.3.4-3]
#[test]
fn a_message_goes_to_one_member_of_each_group_at_its_qos() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "one-publisher");
    let mut members: Vec<Client> = (0..8)
        .map(|index| {
            let mut member = broker.client(Version::V5, &format!("one-member-{index}"));
            // Two groups of four; each member has its own QoS and identifier.
            let filter = format!("$share/group-{}/shared/one/+", index % 2);
            let identifier = property::variable(property::SUBSCRIPTION_IDENTIFIER, index + 1);
            member.send(&subscribe_with(Version::V5, 1, &identifier, &[(&filter, (index / 2 % 3) as u8)]));
            member.expect_kind(Kind::Suback);
            member
        })
        .collect();
    let mut plain = broker.client(Version::V311, "one-plain");
    plain.subscribe(&[("shared/one/#", 0)]);
    // Members may be known on the publisher's core a moment after their SUBACK; the confirmation is part of it, so they are not.
    const MESSAGES: usize = 80;
    for index in 0..MESSAGES {
        publisher.publish("shared/one/x", [index as u8], 1);
    }
    for index in 0..MESSAGES {
        assert_eq!(plain.expect_publish().payload, [index as u8]);
    }
    let mut seen = [vec![0; MESSAGES], vec![0; MESSAGES]];
    let mut counts = [0; 8];
    let deadline = Instant::now() + PATIENCE;
    while counts.iter().sum::<usize>() < 2 * MESSAGES {
        assert!(Instant::now() < deadline, "{seen:?}");
        for (index, member) in members.iter_mut().enumerate() {
            let Some(packet) = member.poll_packet() else { continue };
            let publish = packet.publish(Version::V5);
            seen[index % 2][usize::from(publish.payload[0])] += 1;
            counts[index] += 1;
            assert_eq!(publish.qos, (index / 2 % 3).min(1) as u8);
            assert_eq!(publish.properties, [0x0B, index as u8 + 1]);
            if publish.qos == 1 {
                member.send(&acknowledge(Kind::Puback, publish.id));
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 0), "each member has its share: {counts:?}");
    members.iter_mut().for_each(|member| member.expect_nothing(QUIET / 8));
    assert!(seen.iter().flatten().all(|count| *count == 1), "{seen:?}");
}

/// Retained messages are not sent to a shared subscription (section 3.3.1.3).
#[test]
fn a_shared_subscription_gets_no_retained_messages() {
    let broker = SHARED.broker();
    let mut client = broker.client(Version::V5, "retained");
    client.publish_with(Publish::new("shared/retained", "x").qos(1).retain());
    client.subscribe(&[("$share/g/shared/retained", 1)]);
    client.expect_nothing(QUIET);
    client.publish_with(Publish::new("shared/retained", "").qos(0).retain());
    client.expect_publish();
}

/// 5.0: [MQTT-4.8.2-6]
#[test]
fn a_message_that_a_member_refused_is_not_offered_to_another() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "refused-publisher");
    let mut members: Vec<Client> = (0..4)
        .map(|index| {
            let mut member = broker.client(Version::V5, &format!("refused-member-{index}"));
            member.subscribe(&[("$share/g/shared/refused", 2)]);
            member
        })
        .collect();
    for qos in [1, 2] {
        publisher.publish("shared/refused", "x", qos);
        let deadline = Instant::now() + PATIENCE;
        let (member, packet) = loop {
            assert!(Instant::now() < deadline, "nobody got it");
            if let Some(found) = members.iter_mut().find_map(|member| member.poll_packet().map(|packet| (member, packet))) {
                break found;
            }
        };
        let kind = if qos == 1 { Kind::Puback } else { Kind::Pubrec };
        member.send(&acknowledge_with(kind, packet.publish(Version::V5).id, 0x80));
        member.ping();
        for member in &mut members {
            member.expect_nothing(Duration::from_millis(100));
        }
    }
}

/// 5.0: [MQTT-4.8.2-4]
#[test]
fn a_qos_2_message_in_delivery_is_completed_with_the_member_that_began_it() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "begun-publisher");
    let connect = Connect::new(Version::V5, "begun-first").persistent();
    let (mut first, _) = broker.connect(&connect);
    first.subscribe(&[("$share/g/shared/begun", 2)]);
    publisher.publish("shared/begun", "1", 2);
    publisher.publish("shared/begun", "2", 2);
    let (one, two) = (first.expect_publish(), first.expect_publish());
    first.send(&acknowledge(Kind::Pubrec, one.id));
    first.expect(&acknowledge(Kind::Pubrel, one.id));
    let mut second = broker.client(Version::V5, "begun-second");
    second.subscribe(&[("$share/g/shared/begun", 2)]);
    drop(first);
    second.expect_nothing(QUIET);
    let (mut first, _) = broker.connect(&connect);
    first.expect(&acknowledge(Kind::Pubrel, one.id));
    assert_eq!(first.expect_publish(), Publish { dup: true, ..two.clone() });
    first.send(&acknowledge(Kind::Pubcomp, one.id));
    first.send(&acknowledge(Kind::Pubrec, two.id));
    first.expect(&acknowledge(Kind::Pubrel, two.id));
    first.send(&acknowledge(Kind::Pubcomp, two.id));
    first.ping();
}

/// 5.0: [MQTT-4.8.2-5]
#[test]
fn when_a_members_session_ends_its_qos_1_goes_to_another_and_its_qos_2_to_nobody() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "ended-publisher");
    let mut first = broker.client(Version::V5, "ended-first");
    first.subscribe(&[("$share/g/shared/ended", 2)]);
    publisher.publish("shared/ended", "qos 1", 1);
    publisher.publish("shared/ended", "qos 2", 2);
    first.expect_publish();
    first.expect_publish();
    let mut second = broker.client(Version::V5, "ended-second");
    second.subscribe(&[("$share/g/shared/ended", 2)]);
    drop(first);
    let publish = second.expect_publish();
    assert_eq!(publish.payload, b"qos 1");
    second.send(&acknowledge(Kind::Puback, publish.id));
    second.expect_nothing(QUIET);
}

/// Members that are away get nothing while another one is there; with nobody there the message waits for one of them.
#[test]
fn members_that_are_there_come_first_and_with_none_the_message_waits() {
    let broker = SHARED.broker();
    let mut publisher = broker.client(Version::V5, "away-publisher");
    crate::leave_session(&broker, Version::V5, "away", &[("$share/g/shared/away", 1)]);
    let mut here = broker.client(Version::V5, "here");
    here.subscribe(&[("$share/g/shared/away", 1)]);
    for index in 0..10 {
        publisher.publish("shared/away", [index], 1);
        let publish = here.expect_publish();
        assert_eq!(publish.payload, [index]);
        here.send(&acknowledge(Kind::Puback, publish.id));
    }
    here.send(&unsubscribe(Version::V5, 9, &["$share/g/shared/away"]));
    here.expect(b"\xB0\x04\x00\x09\x00\x00");
    // The other core hears of it a moment later.
    std::thread::sleep(QUIET);
    publisher.publish("shared/away", "waits", 1);
    let (mut away, _) = broker.connect(&Connect::new(Version::V5, "away").persistent());
    assert_eq!(away.expect_publish().payload, b"waits");
}
