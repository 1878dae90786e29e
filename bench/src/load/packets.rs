//! Packets written into a vector that is kept, and read where they lie in a receive buffer: nothing is allocated per packet.

use crate::mqtt::{CONNACK, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, acknowledge, packet_length};
use std::io;

const DISCONNECT: u8 = 14;
/// Property identifier of Receive Maximum in a CONNACK [MQTT-3.2.2.3.3].
const RECEIVE_MAXIMUM: u8 = 0x21;

pub struct Connect<'a> {
    pub v5: bool,
    pub client_id: &'a [u8],
    pub clean: bool,
    pub keep_alive_s: u16,
    /// Written only for v5.
    pub session_expiry_s: u32,
    pub will: Option<Will<'a>>,
}

/// The payload of every will, by which receivers know one.
pub const WILL: &[u8] = b"gone";

pub struct Will<'a> {
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub qos: u8,
}

pub fn connect(connect: &Connect, into: &mut Vec<u8>) {
    let will_flags = connect.will.as_ref().map_or(0, |will| 4 | will.qos << 3);
    let will_bytes = connect.will.as_ref().map_or(0, |will| 4 + will.topic.len() + will.payload.len() + usize::from(connect.v5));
    let properties_bytes = if connect.v5 { 6 } else { 0 };
    header(0x10, 10 + properties_bytes + 2 + connect.client_id.len() + will_bytes, into);
    string(b"MQTT", into);
    into.extend_from_slice(&[if connect.v5 { 5 } else { 4 }, u8::from(connect.clean) << 1 | will_flags]);
    into.extend_from_slice(&connect.keep_alive_s.to_be_bytes());
    if connect.v5 {
        into.extend_from_slice(&[5, 0x11]);
        into.extend_from_slice(&connect.session_expiry_s.to_be_bytes());
    }
    string(connect.client_id, into);
    if let Some(will) = &connect.will {
        if connect.v5 {
            into.push(0);
        }
        string(will.topic, into);
        string(will.payload, into);
    }
}

/// One SUBSCRIBE for all filters, whose bytes `filters` writes one after the other, `lengths` and QoS beside them.
pub fn subscribe(v5: bool, id: u16, filters: &[u8], lengths: &[(usize, u8)], into: &mut Vec<u8>) {
    header(0x82, 2 + usize::from(v5) + filters.len() + 3 * lengths.len(), into);
    into.extend_from_slice(&id.to_be_bytes());
    if v5 {
        into.push(0);
    }
    let mut rest = filters;
    for &(length, qos) in lengths {
        let (filter, after) = rest.split_at(length);
        string(filter, into);
        into.push(qos);
        rest = after;
    }
}

/// A PUBLISH up to its payload, of which `payload_bytes` have to follow; `id` counts only above QoS 0.
pub fn publish_head(v5: bool, topic: &[u8], qos: u8, id: u16, payload_bytes: usize, into: &mut Vec<u8>) {
    let id_bytes = if qos > 0 { 2 } else { 0 };
    header(0x30 | qos << 1, 2 + topic.len() + id_bytes + usize::from(v5) + payload_bytes, into);
    string(topic, into);
    if qos > 0 {
        into.extend_from_slice(&id.to_be_bytes());
    }
    if v5 {
        into.push(0);
    }
}

pub fn puback(id: u16, into: &mut Vec<u8>) {
    into.extend_from_slice(&acknowledge(PUBACK, id));
}

pub fn pubrec(id: u16, into: &mut Vec<u8>) {
    into.extend_from_slice(&acknowledge(PUBREC, id));
}

pub fn pubrel(id: u16, into: &mut Vec<u8>) {
    into.extend_from_slice(&acknowledge(PUBREL, id));
}

pub fn pubcomp(id: u16, into: &mut Vec<u8>) {
    into.extend_from_slice(&acknowledge(PUBCOMP, id));
}

pub fn ping_request(into: &mut Vec<u8>) {
    into.extend_from_slice(&PINGREQ);
}

fn header(first_byte: u8, mut length: usize, into: &mut Vec<u8>) {
    into.push(first_byte);
    loop {
        let more = if length > 0x7F { 0x80 } else { 0 };
        into.push((length & 0x7F) as u8 | more);
        length >>= 7;
        if length == 0 {
            break;
        }
    }
}

fn string(bytes: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    into.extend_from_slice(bytes);
}

/// A packet from the broker.
#[derive(PartialEq, Eq, Debug)]
pub enum Incoming<'a> {
    Connack {
        session_present: bool,
        code: u8,
        receive_maximum: u16,
    },
    Suback {
        refused: bool,
    },
    /// Without an id at QoS 0.
    Publish {
        qos: u8,
        id: u16,
        topic: &'a [u8],
        payload: &'a [u8],
    },
    Puback {
        id: u16,
        refused: bool,
    },
    Pubrec {
        id: u16,
        refused: bool,
    },
    Pubrel {
        id: u16,
    },
    Pubcomp {
        id: u16,
    },
    Pingresp,
    Disconnect {
        code: u8,
    },
    Other,
}

/// The first packet in `bytes` and its length; `None` if it is not all there.
pub fn read(v5: bool, bytes: &[u8]) -> io::Result<Option<(Incoming<'_>, usize)>> {
    let Some((head, length)) = packet_length(bytes)? else { return Ok(None) };
    let Some(packet) = bytes.get(..length) else { return Ok(None) };
    let incoming = parse(v5, packet[0], &packet[head..])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("a malformed packet, type {}", packet[0] >> 4)))?;
    Ok(Some((incoming, length)))
}

fn parse(v5: bool, first_byte: u8, body: &[u8]) -> Option<Incoming<'_>> {
    let id = || body.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    let refused = || body.get(2).is_some_and(|&code| code >= 0x80);
    Some(match first_byte >> 4 {
        CONNACK => {
            let (&flags, &code) = (body.first()?, body.get(1)?);
            let receive_maximum = if v5 && code == 0 { receive_maximum(body.get(2..)?) } else { u16::MAX };
            Incoming::Connack { session_present: flags & 1 == 1, code, receive_maximum }
        }
        SUBACK => {
            let codes_at = if v5 { 2 + properties_end(body.get(2..)?)? } else { 2 };
            Incoming::Suback { refused: body.get(codes_at..)?.iter().any(|&code| code >= 0x80) }
        }
        PUBLISH => {
            let qos = first_byte >> 1 & 3;
            let (topic, mut rest) = body.get(2..)?.split_at_checked(usize::from(id()?))?;
            let mut id = 0;
            if qos > 0 {
                id = u16::from_be_bytes(*rest.first_chunk()?);
                rest = &rest[2..];
            }
            if v5 {
                rest = rest.get(properties_end(rest)?..)?;
            }
            Incoming::Publish { qos, id, topic, payload: rest }
        }
        PUBACK => Incoming::Puback { id: id()?, refused: refused() },
        PUBREC => Incoming::Pubrec { id: id()?, refused: refused() },
        PUBREL => Incoming::Pubrel { id: id()? },
        PUBCOMP => Incoming::Pubcomp { id: id()? },
        PINGRESP => Incoming::Pingresp,
        DISCONNECT => Incoming::Disconnect { code: body.first().copied().unwrap_or(0) },
        _ => Incoming::Other,
    })
}

/// Where the properties that `bytes` begins with end.
fn properties_end(bytes: &[u8]) -> Option<usize> {
    let mut length = 0;
    for index in 0..4 {
        let byte = *bytes.get(index)?;
        length |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(index + 1 + length);
        }
    }
    None
}

/// Receive Maximum among the properties of a CONNACK; what cannot be read counts as absent.
fn receive_maximum(properties: &[u8]) -> u16 {
    let find = || {
        let end = properties_end(properties)?;
        let mut rest = properties.get(..end)?;
        rest = &rest[rest.iter().position(|byte| byte & 0x80 == 0)? + 1..];
        while let Some((&identifier, value)) = rest.split_first() {
            if identifier == RECEIVE_MAXIMUM {
                return value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
            }
            // The lengths of the properties that a CONNACK may have; binary and strings carry theirs.
            let text =
                |at: usize| value.get(at..at + 2).map(|bytes| at + 2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]])));
            let length = match identifier {
                0x24 | 0x25 | 0x28 | 0x29 | 0x2A => 1,
                0x13 | 0x22 => 2,
                0x11 | 0x27 => 4,
                0x26 => text(text(0)?)?,
                _ => text(0)?,
            };
            rest = value.get(length..)?;
        }
        None
    };
    find().unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt;

    #[test]
    fn written_packets_are_those_of_the_blocking_client() {
        for (version, v5) in [(mqtt::Version::V311, false), (mqtt::Version::V5, true)] {
            let mut bytes = Vec::new();
            let will = Will { topic: b"w", payload: b"gone", qos: 1 };
            connect(
                &Connect { v5, client_id: b"c1", clean: true, keep_alive_s: 9, session_expiry_s: 7, will: Some(will) },
                &mut bytes,
            );
            let will = mqtt::Will { topic: "w", payload: b"gone", qos: 1, retain: false };
            let wanted =
                mqtt::Connect { version, client_id: "c1", clean: true, keep_alive_s: 9, session_expiry_s: 7, will: Some(will) };
            assert_eq!(bytes, wanted.encode());

            bytes.clear();
            subscribe(v5, 5, b"a/b", &[(3, 1)], &mut bytes);
            assert_eq!(bytes, mqtt::subscribe(version, 5, "a/b", 1));

            for qos in 0..3 {
                bytes.clear();
                let payload = [3; 300];
                publish_head(v5, b"t/1", qos, 8, payload.len(), &mut bytes);
                bytes.extend(payload);
                assert_eq!(bytes, mqtt::publish(version, "t/1", &payload, qos, false, 8));
                let id = if qos > 0 { 8 } else { 0 };
                let publish = Incoming::Publish { qos, id, topic: b"t/1", payload: &payload };
                assert_eq!(read(v5, &bytes).unwrap(), Some((publish, bytes.len())));
                assert_eq!(read(v5, &bytes[..bytes.len() - 1]).unwrap(), None);
            }
        }
    }

    #[test]
    fn receive_maximum_is_found_behind_other_properties() {
        let bytes = [0x20, 13, 1, 0, 10, 0x12, 0, 1, b'x', 0x24, 1, 0x21, 0, 20, 0];
        let read = read(true, &bytes).unwrap().unwrap().0;
        assert_eq!(read, Incoming::Connack { session_present: true, code: 0, receive_maximum: 20 });
    }

    #[test]
    fn a_refusal_is_seen_in_each_acknowledgement() {
        assert_eq!(read(false, &[0x90, 3, 0, 1, 0x80]).unwrap().unwrap().0, Incoming::Suback { refused: true });
        assert_eq!(read(true, &[0x90, 4, 0, 1, 0, 1]).unwrap().unwrap().0, Incoming::Suback { refused: false });
        assert_eq!(read(true, &[0x40, 3, 0, 1, 0x97]).unwrap().unwrap().0, Incoming::Puback { id: 1, refused: true });
        assert!(read(false, &[0x30, 1, 0]).is_err());
    }
}
