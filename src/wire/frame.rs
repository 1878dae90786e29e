//! Where one packet ends: the fixed header of section 2.1. Nothing behind it is looked at, so a frame may still hold any bytes.

use super::packet::WireError;
use super::reason::ReasonCode;
use super::varint;

pub const CONNECT: u8 = 1;
pub const CONNACK: u8 = 2;
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;
pub const SUBSCRIBE: u8 = 8;
pub const SUBACK: u8 = 9;
pub const UNSUBSCRIBE: u8 = 10;
pub const UNSUBACK: u8 = 11;
pub const PINGREQ: u8 = 12;
pub const PINGRESP: u8 = 13;
pub const DISCONNECT: u8 = 14;
pub const AUTH: u8 = 15;

/// One packet's bytes, split at the end of its fixed header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The first byte: packet type and flags.
    pub first: u8,
    /// Variable header and payload.
    pub body: &'a [u8],
    /// Bytes of the whole packet, fixed header included.
    pub len: usize,
}

/// The packet type in the upper half of a packet's first byte; 0 stands for none.
#[inline]
pub const fn packet_type(first: u8) -> u8 {
    first >> 4
}

/// The packet at the start of `bytes`, `None` while it is incomplete.
///
/// Errors, each as soon as the length is known: 0x81 when the remaining length runs past four bytes, 0x95 when the packet is
/// larger than `packet_bytes_max`.
#[inline]
pub fn frame(bytes: &[u8], packet_bytes_max: u32) -> Result<Option<Frame<'_>>, WireError> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
    let Some((length, length_len)) = varint::read_padded(rest)? else { return Ok(None) };
    let header_len = 1 + length_len;
    let len = header_len + length as usize;
    if len > packet_bytes_max as usize {
        return Err(WireError { reason: ReasonCode::PACKET_TOO_LARGE, what: "packet is larger than the maximum packet size" });
    }
    Ok(bytes.get(header_len..len).map(|body| Frame { first, body, len }))
}

/// The packet at the start of `bytes` with as much of its body as is there, `None` while its length is not known.
pub fn beginning(bytes: &[u8]) -> Option<Frame<'_>> {
    let (&first, rest) = bytes.split_first()?;
    let (length, length_len) = varint::read_padded(rest).ok()??;
    let body = &rest[length_len..];
    Some(Frame { first, body: &body[..body.len().min(length as usize)], len: 1 + length_len + length as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_ends_where_the_remaining_length_says_and_leaves_what_follows() {
        let bytes = [0x30, 0x03, 1, 2, 3, 0xC0, 0x00];
        let first = frame(&bytes, 100).unwrap().unwrap();
        assert_eq!(first, Frame { first: 0x30, body: &[1, 2, 3], len: 5 });
        assert_eq!(frame(&bytes[first.len..], 100), Ok(Some(Frame { first: 0xC0, body: &[], len: 2 })));
    }

    #[test]
    fn beginning_is_what_has_come_of_a_packet() {
        assert_eq!(beginning(&[0x30, 0x83]), None);
        assert_eq!(beginning(&[0x30, 0x03, 1]), Some(Frame { first: 0x30, body: &[1], len: 5 }));
        assert_eq!(beginning(&[0x30, 0x01, 1, 2]), Some(Frame { first: 0x30, body: &[1], len: 3 }));
    }

    #[test]
    fn too_large_a_packet_is_refused_before_its_body_has_arrived() {
        assert_eq!(frame(&[0x30, 0x62], 100), Ok(None));
        assert_eq!(frame(&[0x30, 0x63], 100).unwrap_err().reason, ReasonCode::PACKET_TOO_LARGE);
        assert_eq!(frame(&[0x30, 0xFF, 0xFF, 0xFF], 100), Ok(None));
        assert_eq!(frame(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], 100).unwrap_err().reason, ReasonCode::PACKET_TOO_LARGE);
        assert_eq!(frame(&[0x30, 0xFF, 0xFF, 0xFF, 0xFF], 100).unwrap_err().reason, ReasonCode::MALFORMED_PACKET);
    }
}
