//! Hashes and encodings.

use super::super::value::Value;
use super::{Arguments, Function, Returned, line};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use sha2::Digest;
use std::borrow::Cow;
use std::fmt::Write;

pub const FUNCTIONS: &[Function] = &[
    line("md5", "text or bytes", "MD5 in hex.", "md5('a')", r#""0cc175b9c0f1b6a831c399e269772661""#, hash::<md5::Md5>),
    line(
        "sha1",
        "text or bytes",
        "SHA-1 in hex.",
        "sha1('a')",
        r#""86f7e437faa5a7fce15d1ddcb9eaeaea377667b8""#,
        hash::<sha1::Sha1>,
    ),
    line(
        "sha256",
        "text or bytes",
        "SHA-256 in hex.",
        "sha256('a')",
        r#""ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb""#,
        hash::<sha2::Sha256>,
    ),
    line(
        "sha512",
        "text or bytes",
        "SHA-512 in hex.",
        "left(sha512('a'), 32)",
        r#""1f40fc92da241694750979ee6cf582f2""#,
        hash::<sha2::Sha512>,
    ),
    line("base64_encode", "text or bytes", "In base64.", "base64_encode('a?>')", r#""YT8+""#, |mut a| {
        Ok(Value::text(STANDARD.encode(a.bytes(0)?)))
    }),
    line(
        "base64_decode",
        "text",
        "From base64: a text, or bytes if it is not UTF-8.",
        "base64_decode('YT8+')",
        r#""a?>""#,
        |mut a| decoded(STANDARD.decode(&*a.bytes(0)?).map_err(|error| error.to_string())?),
    ),
    line(
        "base64url_encode",
        "text or bytes",
        "In the base64 of URLs, unpadded.",
        "base64url_encode('a?>')",
        r#""YT8-""#,
        |mut a| Ok(Value::text(URL_SAFE_NO_PAD.encode(a.bytes(0)?))),
    ),
    line(
        "base64url_decode",
        "text",
        "As `base64_decode`, from the base64 of URLs.",
        "base64url_decode('YT8-')",
        r#""a?>""#,
        |mut a| decoded(URL_SAFE_NO_PAD.decode(&*a.bytes(0)?).map_err(|error| error.to_string())?),
    ),
    line("hex_encode", "text or bytes", "In hex.", "hex_encode('az')", r#""617a""#, |mut a| Ok(Value::text(hex(&a.bytes(0)?)))),
    line("hex_decode", "text", "From hex: a text, or bytes if it is not UTF-8.", "hex_decode('617A')", r#""az""#, |mut a| {
        let text = a.bytes(0)?;
        if text.len() % 2 == 1 {
            return Err("there is an odd number of digits".into());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let bytes: Option<Vec<u8>> = text.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
        decoded(bytes.ok_or("it is not hex")?)
    }),
    line("hex_to_int", "text", "The int that is written in hex.", "hex_to_int('ff')", "255", |mut a| {
        i64::from_str_radix(&a.text(0)?, 16).map(Value::Int).map_err(|error| error.to_string())
    }),
    line("int_to_hex", "int", "The int in hex; a negative one in two's complement.", "int_to_hex(255)", r#""ff""#, |a| {
        Ok(Value::text(format!("{:x}", a.int(0)?)))
    }),
    line(
        "url_encode",
        "text",
        "With everything but letters, digits and `-._~` as `%` and hex.",
        "url_encode('a b/é')",
        r#""a%20b%2F%C3%A9""#,
        |mut a| {
            let mut encoded = String::new();
            for byte in a.bytes(0)?.iter() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(*byte)),
                    _ => write!(encoded, "%{byte:02X}").expect("a String takes what is written"),
                }
            }
            Ok(Value::text(encoded))
        },
    ),
    line("url_decode", "text", "The other way round.", "url_decode('a%20b')", r#""a b""#, |mut a| {
        Ok(Value::text(url_decode(&a.text(0)?)?))
    }),
];

fn hash<'a, D: Digest>(mut a: Arguments<'_, 'a>) -> Returned<'a> {
    Ok(Value::text(hex(&D::digest(a.bytes(0)?))))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// A text if it is one.
fn decoded<'a>(bytes: Vec<u8>) -> Returned<'a> {
    Ok(match String::from_utf8(bytes) {
        Ok(text) => Value::text(text),
        Err(error) => Value::Bytes(Cow::Owned(error.into_bytes())),
    })
}

pub fn url_decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16).map(|digit| digit as u8);
            let pair = digit().zip(digit()).ok_or("% is not followed by two digits of hex")?;
            bytes.push(pair.0 << 4 | pair.1);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| "what is encoded is not UTF-8".into())
}
