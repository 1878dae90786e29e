//! What a run says of a broker that lies: each lie fails the check that is there for it, and an honest broker passes.

use corelane_bench::load::conductor::{self, Settings};
use corelane_bench::load::report::Report;
use corelane_bench::load::scenario::Scenario;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    None,
    /// One message in ten is not delivered.
    Loses,
    Duplicates,
    /// The last byte of the payload is another one.
    Corrupts,
    /// To the receiver of another topic.
    Misroutes,
    /// With QoS 0 what was published with QoS 1.
    Downgrades,
    /// One message in ten is not acknowledged.
    ForgetsToAcknowledge,
    /// It takes one message per second: Receive Maximum 1, and PUBACK after a second.
    IsSlow,
}

type Receivers = Arc<Mutex<HashMap<Vec<u8>, TcpStream>>>;

fn broker(lie: Lie) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let receivers = Receivers::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let receivers = Arc::clone(&receivers);
            std::thread::spawn(move || serve(stream, lie, &receivers));
        }
    });
    address
}

/// One packet's first byte and body.
fn packet(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut byte = [0];
    stream.read_exact(&mut byte).ok()?;
    let (first, mut length, mut shift) = (byte[0], 0, 0);
    loop {
        stream.read_exact(&mut byte).ok()?;
        length |= usize::from(byte[0] & 127) << shift;
        shift += 7;
        if byte[0] < 128 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((first, body))
}

fn serve(mut stream: TcpStream, lie: Lie, receivers: &Receivers) {
    let mut count = 0;
    while let Some((first, mut body)) = packet(&mut stream) {
        match first >> 4 {
            // CONNACK of MQTT 5 with Receive Maximum.
            1 if lie == Lie::IsSlow => stream.write_all(&[0x20, 6, 0, 0, 3, 0x21, 0, 1]).unwrap(),
            1 => stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap(),
            8 => {
                let topic = body[5..body.len() - 1].to_vec();
                receivers.lock().unwrap().insert(topic, stream.try_clone().unwrap());
                stream.write_all(&[0x90, 4, body[0], body[1], 0, 1]).unwrap();
            }
            3 => {
                count += 1;
                let one_in_ten = count % 10 == 3;
                let topic_length = usize::from(body[1]);
                let id = [body[2 + topic_length], body[3 + topic_length]];
                let mut topic = body[2..2 + topic_length].to_vec();
                let mut first = first;
                match lie {
                    Lie::Corrupts if one_in_ten => *body.last_mut().unwrap() ^= 1,
                    Lie::Misroutes if one_in_ten => *topic.last_mut().unwrap() ^= 1,
                    Lie::Downgrades if one_in_ten => {
                        first &= !0b110;
                        body.drain(2 + topic_length..4 + topic_length);
                    }
                    Lie::IsSlow => std::thread::sleep(std::time::Duration::from_secs(1)),
                    _ => {}
                }
                let mut message = vec![first, body.len() as u8];
                message.extend(&body);
                let copies = match lie {
                    Lie::Loses if one_in_ten => 0,
                    Lie::Duplicates if one_in_ten => 2,
                    _ => 1,
                };
                let receivers = receivers.lock().unwrap();
                (0..copies).for_each(|_| (&receivers[&topic]).write_all(&message).unwrap());
                if !(lie == Lie::ForgetsToAcknowledge && one_in_ten) {
                    (&stream).write_all(&[0x40, 2, id[0], id[1]]).unwrap();
                }
            }
            12 => stream.write_all(&[0xD0, 0]).unwrap(),
            _ => {}
        }
    }
}

/// Two publishers send 40 messages each to a receiver each.
fn run(lie: Lie) -> Report {
    let scenario = Scenario::parse(
        r#"
        description = "pairs"
        source = "here"
        [[group]]
        name = "receivers"
        count = 2
        version = 5
        subscribe = [{ filter = "pairs/{i}", qos = 1 }]
        [[group]]
        name = "publishers"
        count = 2
        version = 5
        publish = { topic = "pairs/{i}", size = 40, qos = 1, every_s = 0.02 }
        [[phase]]
        name = "connect"
        connect = ["receivers", "publishers"]
        [[phase]]
        name = "measure"
        publish = ["publishers"]
        seconds = 0.8
        measure = true
        "#,
    )
    .unwrap();
    let settings = Settings {
        addresses: vec![broker(lie)],
        sources: Vec::new(),
        threads: Some(2),
        spin: false,
        greeting: None,
        broker_pid: None,
        scale: 1.0,
        name: "pairs".to_owned(),
        note: String::new(),
        slab: false,
        progress_s: 0,
    };
    conductor::run(&scenario, &settings).unwrap()
}

#[test]
fn each_lie_fails_its_check() {
    let lies = [
        (Lie::None, None),
        (Lie::Loses, Some("messages lost")),
        (Lie::Duplicates, Some("duplicates")),
        (Lie::Corrupts, Some("messages that were not published like this")),
        (Lie::Misroutes, Some("messages that were not published like this")),
        (Lie::Downgrades, Some("messages that were not published like this")),
        (Lie::ForgetsToAcknowledge, Some("messages not acknowledged")),
        (Lie::IsSlow, Some("part of the due messages not sent")),
    ];
    // All at the same time, because each waits long for what does not come.
    let reports = std::thread::scope(|scope| lies.map(|(lie, _)| scope.spawn(move || run(lie))).map(|run| run.join().unwrap()));
    for ((lie, check), report) in lies.into_iter().zip(reports) {
        let failed: Vec<&str> = report.checks.iter().filter(|check| !check.holds).map(|check| check.what.as_str()).collect();
        assert_eq!(failed.contains(&check.unwrap_or("none")), check.is_some(), "{lie:?}: {failed:?}, {}", report.messages());
        // What follows from a lie: what is not delivered as published is lost, and what is in flight at the end not acknowledged.
        let follows = |what: &str| what == "messages lost" || (lie == Lie::IsSlow && what == "messages not acknowledged");
        assert!(failed.iter().all(|what| Some(*what) == check || (check.is_some() && follows(what))), "{lie:?}: {failed:?}");
        if lie == Lie::None {
            assert_eq!(
                (report.due, report.sent, report.received, report.unacknowledged),
                (80, 80, 80, 0),
                "{}",
                report.messages()
            );
        }
    }
}
