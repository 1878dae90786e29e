//! The data types of section 1.5, read one after the other from a packet's body. A length is never trusted: what runs past the end
//! of the body is a malformed packet.

use super::packet::WireError;
use super::reason::ReasonCode;
use super::varint;

const ENDS_EARLY: WireError = WireError::malformed("packet ends within a field");
const NOT_UTF_8: WireError = WireError::malformed("string is not UTF-8");
const NUL: WireError = WireError::malformed("string contains U+0000");

#[derive(Clone)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What has not been read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Everything that has not been read, which is then read.
    #[inline]
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ENDS_EARLY)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub fn two_bytes(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub fn four_bytes(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u32, WireError> {
        let (value, used) = varint::read(self.0)?.ok_or(ENDS_EARLY)?;
        self.0 = &self.0[used..];
        Ok(value)
    }

    #[inline]
    pub fn binary(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.two_bytes()?;
        self.take(usize::from(length))
    }

    /// A string as section 1.5.4 wants it: well-formed UTF-8 (so no surrogates) `[MQTT-1.5.4-1]` without U+0000 `[MQTT-1.5.4-2]`.
    #[inline]
    pub fn string(&mut self) -> Result<&'a str, WireError> {
        let bytes = self.binary()?;
        let string = str::from_utf8(bytes).map_err(|_| NOT_UTF_8)?;
        if bytes.contains(&0) { Err(NUL) } else { Ok(string) }
    }

    pub fn string_pair(&mut self) -> Result<(&'a str, &'a str), WireError> {
        Ok((self.string()?, self.string()?))
    }

    /// A string that names a topic, so without wildcards `[MQTT-3.3.2-2]`. It may be empty.
    #[inline]
    pub fn topic_name(&mut self) -> Result<&'a str, WireError> {
        let bytes = self.binary()?;
        let topic = str::from_utf8(bytes).map_err(|_| NOT_UTF_8)?;
        // No early exit: so this is a handful of vector instructions for any topic of usual length.
        let suspect = bytes.iter().fold(false, |suspect, byte| suspect | matches!(byte, 0 | b'+' | b'#'));
        if !suspect {
            Ok(topic)
        } else if bytes.contains(&0) {
            Err(NUL)
        } else {
            Err(WireError { reason: ReasonCode::TOPIC_NAME_INVALID, what: "topic name contains a wildcard" })
        }
    }
}
