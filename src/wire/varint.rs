//! The Variable Byte Integer of section 1.5.5: seven bits a byte, least significant first, at most four bytes.

use super::packet::WireError;

/// The largest value that four bytes can carry.
pub const MAX: u32 = 268_435_455;

const TOO_LONG: WireError = WireError::malformed("variable byte integer is longer than four bytes");
const PADDED: WireError = WireError::malformed("variable byte integer is longer than its value needs");

/// Bytes that `value` occupies, 1 to 4.
#[inline]
pub const fn len(value: u32) -> usize {
    match value {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

/// Appends `value`, which is at most [`MAX`].
#[inline]
pub fn write(value: u32, out: &mut Vec<u8>) {
    debug_assert!(value <= MAX, "{value} does not fit a variable byte integer");
    let mut rest = value.min(MAX);
    while rest > 127 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The value at the start of `bytes` and how many bytes it occupies; `None` when more are needed.
///
/// Errors: 0x81 when it runs past four bytes, or uses more of them than the value needs `[MQTT-1.5.5-1]`.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Option<(u32, usize)>, WireError> {
    match read_padded(bytes)? {
        Some((value, used)) if used != len(value) => Err(PADDED),
        read => Ok(read),
    }
}

/// As [`read`], but a value may use more bytes than it needs: MQTT 3.x does not forbid that in a remaining length.
#[inline]
pub(super) fn read_padded(bytes: &[u8]) -> Result<Option<(u32, usize)>, WireError> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() < 4 { Ok(None) } else { Err(TOO_LONG) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_boundary_of_the_table_reads_back_in_the_length_it_names() {
        let table: [(u32, &[u8]); 9] = [
            (0, &[0]),
            (127, &[0x7F]),
            (128, &[0x80, 0x01]),
            (321, &[0xC1, 0x02]),
            (16_383, &[0xFF, 0x7F]),
            (16_384, &[0x80, 0x80, 0x01]),
            (2_097_151, &[0xFF, 0xFF, 0x7F]),
            (2_097_152, &[0x80, 0x80, 0x80, 0x01]),
            (MAX, &[0xFF, 0xFF, 0xFF, 0x7F]),
        ];
        for (value, bytes) in table {
            let mut written = Vec::new();
            write(value, &mut written);
            assert_eq!(written, bytes);
            assert_eq!(len(value), bytes.len());
            assert_eq!(read(bytes), Ok(Some((value, bytes.len()))));
            assert_eq!(read(&bytes[..bytes.len() - 1]), Ok(None), "a prefix of {value} is incomplete");
        }
    }

    #[test]
    fn padded_and_overlong_integers_are_malformed() {
        assert_eq!(read(&[0x80, 0x00]), Err(PADDED));
        assert_eq!(read(&[0xFF, 0x80, 0x00]), Err(PADDED));
        assert_eq!(read(&[0x80, 0x80, 0x80, 0x80]), Err(TOO_LONG));
        assert_eq!(read(&[0xFF, 0xFF, 0xFF, 0xFF, 0x01]), Err(TOO_LONG));
        assert_eq!(read_padded(&[0x85, 0x00]), Ok(Some((5, 2))));
    }
}
