//! As much of MQTT as a load generator speaks: packets written into vectors, and a blocking client that reads whole packets.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    V31,
    V311,
    V5,
}

impl Version {
    pub const ALL: [Version; 3] = [Version::V31, Version::V311, Version::V5];
}

pub const CONNACK: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;
pub const SUBACK: u8 = 9;
pub const PINGRESP: u8 = 13;

/// What a CONNECT says.
#[derive(Clone, Copy)]
pub struct Connect<'a> {
    pub version: Version,
    pub client_id: &'a str,
    pub clean: bool,
    pub keep_alive_s: u16,
    /// Written only for v5.
    pub session_expiry_s: u32,
    pub will: Option<Will<'a>>,
}

#[derive(Clone, Copy)]
pub struct Will<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: u8,
    pub retain: bool,
}

impl<'a> Connect<'a> {
    /// A clean session with no will and no keep-alive.
    pub fn new(version: Version, client_id: &'a str) -> Self {
        Self { version, client_id, clean: true, keep_alive_s: 0, session_expiry_s: 0, will: None }
    }

    pub fn encode(&self) -> Vec<u8> {
        let (name, level): (&[u8], u8) = match self.version {
            Version::V31 => (b"MQIsdp", 3),
            Version::V311 => (b"MQTT", 4),
            Version::V5 => (b"MQTT", 5),
        };
        let will_flags = self.will.map_or(0, |will| 4 | will.qos << 3 | u8::from(will.retain) << 5);
        let mut body = string(name);
        body.extend([level, u8::from(self.clean) << 1 | will_flags]);
        body.extend(self.keep_alive_s.to_be_bytes());
        if self.version == Version::V5 {
            body.extend([5, 0x11]);
            body.extend(self.session_expiry_s.to_be_bytes());
        }
        body.extend(string(self.client_id.as_bytes()));
        if let Some(will) = self.will {
            if self.version == Version::V5 {
                body.push(0);
            }
            body.extend(string(will.topic.as_bytes()));
            body.extend(string(will.payload));
        }
        packet(0x10, &body)
    }
}

pub fn subscribe(version: Version, id: u16, filter: &str, options: u8) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
    }
    body.extend(string(filter.as_bytes()));
    body.push(options);
    packet(0x82, &body)
}

pub fn unsubscribe(version: Version, id: u16, filter: &str) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version == Version::V5 {
        body.push(0);
    }
    body.extend(string(filter.as_bytes()));
    packet(0xA2, &body)
}

/// A PUBLISH; `id` counts only above QoS 0.
pub fn publish(version: Version, topic: &str, payload: &[u8], qos: u8, retain: bool, id: u16) -> Vec<u8> {
    let mut body = string(topic.as_bytes());
    if qos > 0 {
        body.extend(id.to_be_bytes());
    }
    if version == Version::V5 {
        body.push(0);
    }
    body.extend(payload);
    packet(0x30 | qos << 1 | u8::from(retain), &body)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP.
pub fn acknowledge(kind: u8, id: u16) -> [u8; 4] {
    let [high, low] = id.to_be_bytes();
    [kind << 4 | if kind == PUBREL { 2 } else { 0 }, 2, high, low]
}

pub const PINGREQ: [u8; 2] = [0xC0, 0];
pub const DISCONNECT: [u8; 2] = [0xE0, 0];

/// A packet from its first byte and what follows the fixed header.
pub fn packet(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first_byte];
    let mut length = body.len();
    loop {
        let more = if length > 0x7F { 0x80 } else { 0 };
        bytes.push((length & 0x7F) as u8 | more);
        length >>= 7;
        if length == 0 {
            break;
        }
    }
    bytes.extend(body);
    bytes
}

/// A string or binary data with its length before it.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

/// Length of the fixed header and of the whole first packet, if its fixed header is all here.
pub fn packet_length(bytes: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let mut remaining = 0;
    for index in 0..4 {
        let Some(byte) = bytes.get(1 + index) else { return Ok(None) };
        remaining |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((2 + index, 2 + index + remaining)));
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a packet length of more than four bytes"))
}

/// A received packet.
pub struct Packet {
    pub kind: u8,
    pub flags: u8,
    pub body: Vec<u8>,
}

impl Packet {
    /// The packet id of anything but PUBLISH; 0 if the packet is too short for one.
    pub fn id(&self) -> u16 {
        self.body.get(..2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// QoS, packet id and what follows it (v5: with the properties) of a PUBLISH.
    pub fn publish(&self) -> io::Result<(u8, u16, &[u8])> {
        let qos = self.flags >> 1 & 3;
        let short = || io::Error::new(io::ErrorKind::InvalidData, "a PUBLISH that is too short");
        let topic_length = usize::from(self.id());
        let rest = self.body.get(2 + topic_length..).ok_or_else(short)?;
        if qos == 0 {
            return Ok((0, 0, rest));
        }
        let id = rest.get(..2).ok_or_else(short)?;
        Ok((qos, u16::from_be_bytes([id[0], id[1]]), &rest[2..]))
    }
}

/// A blocking client. Every read and write has the same deadline.
pub struct Client {
    pub stream: TcpStream,
    pub version: Version,
    /// Messages received and answered so far.
    pub messages: u64,
    received: Vec<u8>,
    next_id: u16,
}

impl Client {
    /// A socket to the broker; nothing is sent.
    pub fn open(address: SocketAddr, version: Version, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, version, messages: 0, received: Vec::new(), next_id: 0 })
    }

    /// Connects and waits for CONNACK; a refusal is an error. Whether a session was present is the second value.
    pub fn connect(address: SocketAddr, connect: &Connect, patience: Duration) -> io::Result<(Self, bool)> {
        let mut client = Self::open(address, connect.version, patience)?;
        client.send(&connect.encode())?;
        let connack = client.packet()?;
        if connack.kind != CONNACK || connack.body.get(1) != Some(&0) {
            return Err(io::Error::other(format!("refused: {:02x?}", connack.body)));
        }
        let present = connack.body[0] == 1;
        Ok((client, present))
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn id(&mut self) -> u16 {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.next_id
    }

    pub fn subscribe(&mut self, filter: &str, options: u8) -> io::Result<()> {
        let id = self.id();
        self.send(&subscribe(self.version, id, filter, options))?;
        self.wait_for(SUBACK, id)
    }

    /// Reads up to the acknowledgement of this kind and id; acknowledges the messages that come before it.
    pub fn wait_for(&mut self, kind: u8, id: u16) -> io::Result<()> {
        loop {
            let packet = self.packet()?;
            if packet.kind == kind && (kind == PINGRESP || packet.id() == id) {
                return Ok(());
            }
            self.answer(&packet)?;
        }
    }

    /// Sends what the receiver of this packet owes for it, and counts messages.
    pub fn answer(&mut self, packet: &Packet) -> io::Result<()> {
        match packet.kind {
            PUBLISH => {
                self.messages += 1;
                match packet.publish()? {
                    (1, id, _) => self.send(&acknowledge(PUBACK, id)),
                    (2, id, _) => self.send(&acknowledge(PUBREC, id)),
                    _ => Ok(()),
                }
            }
            PUBREC => self.send(&acknowledge(PUBREL, packet.id())),
            PUBREL => self.send(&acknowledge(PUBCOMP, packet.id())),
            _ => Ok(()),
        }
    }

    /// The next packet. The end of the stream is an error.
    pub fn packet(&mut self) -> io::Result<Packet> {
        loop {
            if let Some((header, length)) = packet_length(&self.received)?
                && self.received.len() >= length
            {
                let rest = self.received.split_off(length);
                let bytes = std::mem::replace(&mut self.received, rest);
                return Ok(Packet { kind: bytes[0] >> 4, flags: bytes[0] & 15, body: bytes[header..].to_vec() });
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.received.extend_from_slice(&bytes[..count]),
            }
        }
    }
}
