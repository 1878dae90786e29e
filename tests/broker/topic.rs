//! Topic names and filters: what matches, what is valid (section 4.7).

use crate::harness::{Broker, Client, Kind, Publish, Version};
use crate::{QUIET, Shared};

static SHARED: Shared = Shared::new("");

/// Publishes to each topic and returns those of which the subscriber got a message.
fn matching(publisher: &mut Client, subscriber: &mut Client, topics: &[&str]) -> Vec<String> {
    for topic in topics {
        publisher.publish(topic, "x", 1);
    }
    publisher.publish("topic/end", "", 1);
    let mut matched = Vec::new();
    loop {
        let publish = subscriber.expect_publish();
        if publish.topic == "topic/end" {
            return matched;
        }
        matched.push(publish.topic);
    }
}

/// 5.0: [MQTT-3.3.2-3] [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-4]
/// 3.1.1: [MQTT-3.3.2-3] [MQTT-4.7.1-2] [MQTT-4.7.1-3] [MQTT-4.7.3-4] [MQTT-3.8.3-2]
#[test]
fn filters_match_as_the_standards_examples_say() {
    let broker = Broker::start();
    let mut publisher = broker.client(Version::V5, "match-publisher");
    let topics = [
        "sport/tennis/player1",
        "sport/tennis/player1/ranking",
        "sport/tennis/player1/score/wimbledon",
        "sport/tennis/player2",
        "sport/tennis",
        "sport",
        "sport/",
        "/finance",
        "finance",
        "Sport",
        "sport//",
        "/",
        "a//b",
        "a/b",
        "Accounts payable",
        "e\u{301}",
        "\u{e9}",
        "\u{FEFF}sport",
    ];
    for (index, (filter, expected)) in [
        (
            "sport/tennis/player1/#",
            &["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"][..],
        ),
        ("sport/tennis/+", &["sport/tennis/player1", "sport/tennis/player2"]),
        ("sport/+", &["sport/tennis", "sport/"]),
        ("+/+", &["sport/tennis", "sport/", "/finance", "/", "a/b"]),
        ("/+", &["/finance", "/"]),
        ("+", &["sport", "finance", "Sport", "Accounts payable", "e\u{301}", "\u{e9}", "\u{FEFF}sport"]),
        ("sport", &["sport"]),
        ("/", &["/"]),
        ("a/+/b", &["a//b"]),
        ("Accounts payable", &["Accounts payable"]),
        ("\u{e9}", &["\u{e9}"]),
        (
            "+/tennis/#",
            &[
                "sport/tennis/player1",
                "sport/tennis/player1/ranking",
                "sport/tennis/player1/score/wimbledon",
                "sport/tennis/player2",
                "sport/tennis",
            ],
        ),
        ("#", &topics),
    ]
    .into_iter()
    .enumerate()
    {
        let mut subscriber = broker.client(Version::ALL[index % 3], "match-subscriber");
        assert_eq!(subscriber.subscribe(&[(filter, 0), ("topic/end", 0)]), [0, 0]);
        assert_eq!(matching(&mut publisher, &mut subscriber, &topics), expected, "{filter}");
        // Its id takes it to the same core each time; the next filter begins with a new session.
        subscriber.send(b"\xE0\x00");
        subscriber.expect_closed();
    }
}

/// 5.0: [MQTT-4.7.2-1]
/// 3.1.1: [MQTT-4.7.2-1]
#[test]
fn wildcards_at_the_beginning_do_not_match_topics_that_begin_with_a_dollar_sign() {
    let broker = Broker::start();
    for version in Version::ALL {
        let mut publisher = broker.client(version, "dollar-publisher");
        let mut subscriber = broker.client(version, "dollar-subscriber");
        for (filter, expected) in [
            ("#", &["dollar/x"][..]),
            ("+/x", &["dollar/x"]),
            ("+/#", &["dollar/x"]),
            ("$dollar/#", &["$dollar/x", "$dollar"]),
            ("$dollar/+", &["$dollar/x"]),
            ("$dollar/x", &["$dollar/x"]),
        ] {
            subscriber.subscribe(&[(filter, 0), ("topic/end", 0)]);
            let matched = matching(&mut publisher, &mut subscriber, &["$dollar/x", "dollar/x", "$dollar"]);
            assert_eq!(matched, expected, "{filter}");
            let id = subscriber.id();
            subscriber.send(&crate::harness::unsubscribe(version, id, &[filter]));
            subscriber.expect_kind(Kind::Unsuback);
        }
    }
}

/// 5.0: [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-3.8.4-7] [MQTT-3.9.3-2]
/// 3.1.1: [MQTT-4.7.1-2] [MQTT-4.7.1-3] [MQTT-4.7.3-1] [MQTT-3.9.3-2] [MQTT-3.8.4-5]
#[test]
fn filters_that_are_not_valid_fail_alone() {
    let broker = SHARED.broker();
    let invalid =
        ["", "a/#/b", "#/", "a#", "sport/tennis#", "sport+", "+a", "a/b+/c", "##", "++", "$share/g", "$share//a", "$share/+/a"];
    for version in Version::ALL {
        let mut client = broker.client(version, "invalid-filters");
        let refused = if version == Version::V5 { 0x8F } else { 0x80 };
        for filter in invalid {
            assert_eq!(client.subscribe(&[("topic/good", 1), (filter, 1), ("topic/fine", 2)]), [1, refused, 2], "{filter:?}");
        }
        client.send(&Publish::new("topic/good", "x").encode(version));
        assert_eq!(client.expect_publish().topic, "topic/good");
    }
}

/// 5.0: [MQTT-1.5.4-3]
/// 3.1.1: [MQTT-1.5.3-3]
#[test]
fn a_byte_order_mark_is_a_character_and_is_kept() {
    let broker = SHARED.broker();
    for version in Version::ALL {
        let mut client = broker.client(version, "mark");
        client.subscribe(&[("\u{FEFF}mark", 0)]);
        client.send(&Publish::new("mark", "without").encode(version));
        client.send(&Publish::new("\u{FEFF}mark", "with").encode(version));
        match version {
            Version::V5 => client.expect(b"\x30\x0E\x00\x07\xEF\xBB\xBFmark\x00with"),
            _ => client.expect(b"\x30\x0D\x00\x07\xEF\xBB\xBFmarkwith"),
        }
        client.expect_nothing(QUIET);
    }
}

/// 5.0: [MQTT-4.7.3-3] [MQTT-4.7.0-1]
/// 3.1.1: [MQTT-4.7.3-3] [MQTT-4.7.1-1]
#[test]
fn a_topic_may_have_every_byte_that_the_limits_allow() {
    let broker = Broker::start_with_config("[limits]\ntopic_bytes_max = 65535\ntopic_levels_max = 1024\n");
    for version in Version::ALL {
        let mut client = broker.client(version, "long");
        let long = "x".repeat(65_535);
        let deep = "/".repeat(1023);
        assert_eq!(client.subscribe(&[(&long, 0), (&deep, 0)]), [0, 0]);
        for topic in [&long, &deep] {
            client.send(&Publish::new(topic, "x").encode(version));
            assert_eq!(client.expect_publish().topic, *topic);
        }
    }
}
