//! rumqttc, the Rust client, against a broker: MQTT 3.1.1 and MQTT 5. Prints one line per case, `ok CLIENT: CASE` or
//! `FAIL CLIENT: CASE: why`; `tests/clients/run.sh` runs it beside the other clients.

use clap::Parser;
use corelane_bench::random::Random;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::time::timeout;

#[derive(Parser)]
#[command(about = "rumqttc against a broker")]
struct Arguments {
    #[arg(long)]
    address: SocketAddr,
}

/// How a case ends: what was wrong, if anything.
type Outcome<T = ()> = Result<T, String>;

const PATIENCE: Duration = Duration::from_secs(5);
/// How long nothing has to come for a test to believe that nothing comes.
const QUIET: Duration = Duration::from_millis(150);
/// Incoming and outgoing packets up to this size; the library's default is 10 kB.
const PACKET_MAX: u32 = 2 << 20;

fn fresh(name: &str) -> String {
    format!("{name}-{:012x}", Random::fresh_seed() >> 16)
}

fn check<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    let text = format!("{what}: {found:?}, expected {expected:?}");
    Err(text.chars().take(300).collect())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A received message, the same for both protocol versions.
#[derive(PartialEq, Debug)]
struct Message {
    topic: String,
    payload: Vec<u8>,
    qos: u8,
    retain: bool,
}

impl Message {
    fn new(topic: &str, payload: impl AsRef<[u8]>, qos: u8) -> Self {
        Self { topic: topic.into(), payload: payload.as_ref().into(), qos, retain: false }
    }
}

/// The cases that both versions share, on top of what the library has for each version separately.
macro_rules! shared_cases {
    ($module:ident { $($own:item)* }) => {
        mod $module {
            $($own)*

            use super::*;
            use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
            use tokio::task::JoinHandle;

            pub struct Peer {
                pub client: AsyncClient,
                messages: UnboundedReceiver<Publish>,
                answers: UnboundedReceiver<Packet>,
                network: JoinHandle<()>,
                pub session_present: bool,
            }

            impl Peer {
                pub async fn open(options: MqttOptions) -> Outcome<Self> {
                    let (client, mut events) = AsyncClient::new(options, 64);
                    let (to_messages, messages) = unbounded_channel();
                    let (to_answers, mut answers) = unbounded_channel();
                    let network = tokio::spawn(async move {
                        loop {
                            let sent = match events.poll().await {
                                Ok(Event::Incoming(Packet::Publish(publish))) => to_messages.send(publish).is_ok(),
                                Ok(Event::Incoming(packet)) => to_answers.send(packet).is_ok(),
                                Ok(Event::Outgoing(_)) => true,
                                Err(_) => false,
                            };
                            if !sent {
                                return;
                            }
                        }
                    });
                    match timeout(PATIENCE, answers.recv()).await {
                        Ok(Some(Packet::ConnAck(connack))) => {
                            let session_present = connack.session_present;
                            Ok(Self { client, messages, answers, network, session_present })
                        }
                        other => Err(format!("CONNACK: {other:?}")),
                    }
                }

                async fn answer(&mut self, is_it: impl Fn(&Packet) -> bool, what: &str) -> Outcome<Packet> {
                    loop {
                        match timeout(PATIENCE, self.answers.recv()).await {
                            Ok(Some(packet)) if is_it(&packet) => return Ok(packet),
                            Ok(Some(_)) => {}
                            _ => return Err(format!("no {what} came")),
                        }
                    }
                }

                pub async fn subscribe(&mut self, filter: &str, at: u8) -> Outcome {
                    self.client.subscribe(filter, qos(at)).await.map_err(text)?;
                    self.answer(|packet| matches!(packet, Packet::SubAck(_)), "SUBACK").await.map(drop)
                }

                /// Publishes and waits for the end of the exchange.
                pub async fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, at: u8, retain: bool) -> Outcome {
                    let payload = payload.as_ref().to_vec();
                    self.client.publish(topic, qos(at), retain, payload).await.map_err(text)?;
                    self.acknowledged(at).await
                }

                pub async fn acknowledged(&mut self, at: u8) -> Outcome {
                    match at {
                        0 => Ok(()),
                        1 => self.answer(|packet| matches!(packet, Packet::PubAck(_)), "PUBACK").await.map(drop),
                        _ => self.answer(|packet| matches!(packet, Packet::PubComp(_)), "PUBCOMP").await.map(drop),
                    }
                }

                pub async fn next_publish(&mut self) -> Outcome<Publish> {
                    timeout(PATIENCE, self.messages.recv()).await.ok().flatten().ok_or("no message came".into())
                }

                pub async fn expect(&mut self, expected: Message) -> Outcome {
                    let publish = self.next_publish().await?;
                    let found = Message {
                        topic: topic_of(&publish),
                        payload: publish.payload.to_vec(),
                        qos: publish.qos as u8,
                        retain: publish.retain,
                    };
                    check("message", found, expected)
                }

                pub async fn nothing(&mut self) -> Outcome {
                    match timeout(QUIET, self.messages.recv()).await {
                        Err(_) => Ok(()),
                        Ok(other) => Err(format!("unexpected {other:?}")),
                    }
                }

                pub async fn close(self) -> Outcome {
                    self.client.disconnect().await.map_err(text)?;
                    timeout(PATIENCE, self.network).await.map_err(text)?.map_err(text)
                }

                /// The connection goes without a DISCONNECT.
                pub async fn abandon(self) {
                    self.network.abort();
                    let _ = self.network.await;
                }
            }

            pub async fn every_qos(address: SocketAddr) -> Outcome {
                let mut peer = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                let topic = fresh("qos");
                peer.subscribe(&topic, 2).await?;
                for at in 0..3 {
                    peer.publish(&topic, [at], at, false).await?;
                    peer.expect(Message::new(&topic, [at], at)).await?;
                }
                peer.nothing().await?;
                peer.close().await
            }

            pub async fn order(address: SocketAddr) -> Outcome {
                let mut peer = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                let topic = fresh("order");
                peer.subscribe(&topic, 2).await?;
                for at in 0..3 {
                    for number in 0..200u8 {
                        peer.client.publish(topic.as_str(), qos(at), false, vec![number]).await.map_err(text)?;
                    }
                    for number in 0..200u8 {
                        peer.expect(Message::new(&topic, [number], at)).await?;
                    }
                }
                peer.nothing().await?;
                peer.close().await
            }

            pub async fn retained(address: SocketAddr) -> Outcome {
                let topic = fresh("retained");
                let mut publisher = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                publisher.publish(&topic, "kept", 1, true).await?;
                let mut late = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                late.subscribe(&topic, 1).await?;
                late.expect(Message { retain: true, ..Message::new(&topic, "kept", 1) }).await?;
                publisher.publish(&topic, "", 1, true).await?;
                late.expect(Message::new(&topic, "", 1)).await?;
                let mut later = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                later.subscribe(&topic, 1).await?;
                later.nothing().await?;
                publisher.close().await?;
                late.close().await?;
                later.close().await
            }

            pub async fn will(address: SocketAddr) -> Outcome {
                let topic = fresh("will");
                let mut watcher = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                watcher.subscribe(&topic, 1).await?;
                let with_will = |payload: &str| {
                    let mut options = options(address, &fresh("rumqttc"), true);
                    options.set_last_will(last_will(&topic, payload));
                    options
                };
                Peer::open(with_will("gone")).await?.abandon().await;
                watcher.expect(Message::new(&topic, "gone", 1)).await?;
                Peer::open(with_will("never")).await?.close().await?;
                watcher.nothing().await?;
                watcher.close().await
            }

            pub async fn wildcards(address: SocketAddr) -> Outcome {
                let root = fresh("wild");
                let mut one = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                one.subscribe(&format!("{root}/+/b"), 0).await?;
                let mut all = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                all.subscribe(&format!("{root}/#"), 0).await?;
                let topics = [format!("{root}/a/b"), format!("{root}/a/b/c"), root.clone()];
                for topic in &topics {
                    one.publish(topic, "x", 1, false).await?;
                }
                one.expect(Message::new(&topics[0], "x", 0)).await?;
                one.nothing().await?;
                for topic in &topics {
                    all.expect(Message::new(topic, "x", 0)).await?;
                }
                one.client.unsubscribe(format!("{root}/+/b")).await.map_err(text)?;
                one.answer(|packet| matches!(packet, Packet::UnsubAck(_)), "UNSUBACK").await?;
                one.publish(&topics[0], "x", 1, false).await?;
                one.nothing().await?;
                one.close().await?;
                all.close().await
            }

            pub async fn persistent(address: SocketAddr) -> Outcome {
                let (id, topic) = (fresh("persistent"), fresh("queue"));
                let mut first = Peer::open(options(address, &id, false)).await?;
                check("session present", first.session_present, false)?;
                first.subscribe(&topic, 2).await?;
                first.close().await?;
                let mut publisher = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                for number in 0..20 {
                    publisher.publish(&topic, [number], 1 + number % 2, false).await?;
                }
                let mut again = Peer::open(options(address, &id, false)).await?;
                check("session present", again.session_present, true)?;
                for number in 0..20 {
                    again.expect(Message::new(&topic, [number], 1 + number % 2)).await?;
                }
                again.nothing().await?;
                again.close().await?;
                let clean = Peer::open(options(address, &id, true)).await?;
                check("session present after a clean start", clean.session_present, false)?;
                clean.close().await?;
                publisher.close().await
            }

            pub async fn unicode_topics(address: SocketAddr) -> Outcome {
                let mut peer = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                let topic = fresh("Straße/温度/\u{1F697}");
                peer.subscribe(&topic, 1).await?;
                peer.publish(&topic, "23 °C 雪", 1, false).await?;
                peer.expect(Message::new(&topic, "23 °C 雪", 1)).await?;
                peer.close().await
            }

            pub async fn payloads(address: SocketAddr) -> Outcome {
                let mut peer = Peer::open(options(address, &fresh("rumqttc"), true)).await?;
                let topic = fresh("payload");
                peer.subscribe(&topic, 2).await?;
                for size in [0, 127, 128, 16_384, 65_536, 900_000] {
                    let payload = Random::new(size as u64).bytes(size);
                    for at in 0..3 {
                        peer.publish(&topic, &payload, at, false).await?;
                        peer.expect(Message::new(&topic, &payload, at)).await?;
                    }
                }
                peer.close().await
            }
        }
    };
}

shared_cases!(three {
    use rumqttc::mqttbytes::v4::{LastWill, Packet, Publish};
    use rumqttc::{AsyncClient, Event, MqttOptions, QoS};

    pub fn options(address: SocketAddr, id: &str, clean: bool) -> MqttOptions {
        let mut options = MqttOptions::new(id, address.ip().to_string(), address.port());
        options.set_clean_session(clean).set_max_packet_size(PACKET_MAX as usize, PACKET_MAX as usize);
        options
    }

    pub fn qos(at: u8) -> QoS {
        rumqttc::mqttbytes::qos(at).expect("0, 1 or 2")
    }

    fn last_will(topic: &str, payload: &str) -> LastWill {
        LastWill::new(topic, payload, qos(1), false)
    }

    fn topic_of(publish: &Publish) -> String {
        publish.topic.clone()
    }
});

shared_cases!(five {
    use rumqttc::v5::mqttbytes::QoS;
    use rumqttc::v5::mqttbytes::v5::{LastWill, Packet, Publish};
    use rumqttc::v5::{AsyncClient, Event, MqttOptions};

    pub fn options(address: SocketAddr, id: &str, clean: bool) -> MqttOptions {
        let mut options = MqttOptions::new(id, address.ip().to_string(), address.port());
        options.set_clean_start(clean).set_max_packet_size(Some(PACKET_MAX));
        if !clean {
            options.set_session_expiry_interval(Some(60));
        }
        options
    }

    pub fn qos(at: u8) -> QoS {
        rumqttc::v5::mqttbytes::qos(at).expect("0, 1 or 2")
    }

    fn last_will(topic: &str, payload: &str) -> LastWill {
        LastWill::new(topic, payload, qos(1), false, None)
    }

    fn topic_of(publish: &Publish) -> String {
        String::from_utf8_lossy(&publish.topic).into_owned()
    }
});

async fn message_properties(address: SocketAddr) -> Outcome {
    use rumqttc::v5::mqttbytes::v5::PublishProperties;
    let mut peer = five::Peer::open(five::options(address, &fresh("rumqttc"), true)).await?;
    let topic = fresh("properties");
    peer.subscribe(&topic, 1).await?;
    let sent = PublishProperties {
        payload_format_indicator: Some(1),
        message_expiry_interval: Some(100),
        response_topic: Some("answer".into()),
        correlation_data: Some(vec![0, 1, 255].into()),
        user_properties: vec![("a".into(), "1".into()), ("a".into(), "2".into()), ("ü".into(), "雪".into())],
        content_type: Some("text/plain".into()),
        ..PublishProperties::default()
    };
    let published = peer.client.publish_with_properties(topic.as_str(), five::qos(1), false, "text", sent.clone());
    published.await.map_err(text)?;
    peer.acknowledged(1).await?;
    let mut got = peer.next_publish().await?.properties.ok_or("no properties")?;
    // Less than a second has passed, or just more.
    if got.message_expiry_interval == Some(99) {
        got.message_expiry_interval = Some(100);
    }
    check("properties", got, sent)?;
    peer.close().await
}

async fn shared_subscription(address: SocketAddr) -> Outcome {
    let topic = fresh("shared");
    let mut members = Vec::new();
    for _ in 0..3 {
        let mut member = five::Peer::open(five::options(address, &fresh("rumqttc"), true)).await?;
        member.subscribe(&format!("$share/group/{topic}"), 1).await?;
        members.push(member);
    }
    let mut publisher = five::Peer::open(five::options(address, &fresh("rumqttc"), true)).await?;
    for number in 0..30 {
        publisher.publish(&topic, [number], 1, false).await?;
    }
    let mut got = Vec::new();
    for member in &mut members {
        while let Ok(Ok(publish)) = timeout(QUIET, member.next_publish()).await {
            got.push(publish.payload[0]);
        }
    }
    got.sort_unstable();
    check("messages of the group", got, (0..30).collect())?;
    for member in members {
        member.close().await?;
    }
    publisher.close().await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let address = Arguments::parse().address;
    let mut failed = 0;
    macro_rules! run {
        ($label:literal, $case:path) => {{
            let begin = Instant::now();
            let name = stringify!($case).rsplit("::").next().unwrap_or_default().trim();
            match timeout(Duration::from_secs(20), $case(address)).await.unwrap_or(Err("it did not end".into())) {
                Ok(()) => println!("ok   rumqttc 0.25: {} {name} ({:.2} s)", $label, begin.elapsed().as_secs_f64()),
                Err(why) => {
                    failed += 1;
                    println!("FAIL rumqttc 0.25: {} {name}: {why}", $label);
                }
            }
        }};
    }
    macro_rules! run_shared {
        ($label:literal, $module:ident) => {
            run!($label, $module::every_qos);
            run!($label, $module::order);
            run!($label, $module::retained);
            run!($label, $module::will);
            run!($label, $module::wildcards);
            run!($label, $module::persistent);
            run!($label, $module::unicode_topics);
            run!($label, $module::payloads);
        };
    }
    run_shared!("v3.1.1", three);
    run_shared!("v5", five);
    run!("v5", message_properties);
    run!("v5", shared_subscription);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
