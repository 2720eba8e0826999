//! Canonical JSON (RFC 8785) and its SHA-256: the same content has the same digest in every language.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

const PREFIX: &str = "sha256:";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// `sha256:` and 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Digest of bytes as they are.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Digest of a value's canonical JSON.
    ///
    /// # Panics
    /// Never for our documents: their maps have string keys and they hold no NaN.
    pub fn of_value<T: Serialize>(value: &T) -> Self {
        Self::of_bytes(&canonical_json(value))
    }

    /// The raw 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A value's canonical JSON.
///
/// # Panics
/// Where the value cannot be JSON at all (a map with keys that are no strings, a number that is no number),
/// which is a mistake in a type of ours, not in anybody's input.
#[allow(clippy::expect_used)]
pub fn canonical_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("documents of the contract are JSON")
}

/// A digest as text; every report and every view has some.
struct DigestText([u8; PREFIX.len() + 64]);

impl DigestText {
    fn of(digest: &Digest) -> Self {
        let mut text = [0; PREFIX.len() + 64];
        text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
        for (at, byte) in digest.0.into_iter().enumerate() {
            text[PREFIX.len() + 2 * at] = HEX[usize::from(byte >> 4)];
            text[PREFIX.len() + 2 * at + 1] = HEX[usize::from(byte & 15)];
        }
        Self(text)
    }

    fn as_str(&self) -> &str {
        // ASCII, as it was made.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DigestText::of(self).as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a digest: sha256: and 64 lower-case hex digits")]
pub struct DigestError(String);

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let refuse = || DigestError(text.chars().take(80).collect());
        let hex = text.strip_prefix(PREFIX).ok_or_else(refuse)?.as_bytes();
        let hex: &[u8; 64] = hex.try_into().map_err(|_| refuse())?;
        let (mut bytes, mut all) = ([0; 32], 0);
        for (at, byte) in bytes.iter_mut().enumerate() {
            let (high, low) = (NIBBLES[usize::from(hex[2 * at])], NIBBLES[usize::from(hex[2 * at + 1])]);
            // Whether all were digits is asked once: every report and every fact has a digest.
            all |= high | low;
            *byte = high << 4 | low & 15;
        }
        if all > 15 { Err(refuse()) } else { Ok(Self(bytes)) }
    }
}

/// The value of each byte as a hexadecimal digit; a larger value marks a byte that is no digit.
const NIBBLES: [u8; 256] = {
    let mut nibbles = [NO_DIGIT; 256];
    let mut worth = 0;
    while worth < HEX.len() {
        nibbles[HEX[worth] as usize] = worth as u8;
        worth += 1;
    }
    nibbles
};
const NO_DIGIT: u8 = 0xff;

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(DigestText::of(self).as_str())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parse(deserializer)
    }
}

impl JsonSchema for Digest {
    fn schema_name() -> Cow<'static, str> {
        "Digest".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^sha256:[0-9a-f]{64}$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_order_and_spacing_do_not_change_a_digest() {
        let one: serde_json::Value = serde_json::from_str(r#"{"b": 1.0, "a": ["x", null]}"#).unwrap();
        let two: serde_json::Value = serde_json::from_str(r#"{"a":["x",null],"b":1}"#).unwrap();
        assert_eq!(Digest::of_value(&one), Digest::of_value(&two));
    }

    #[test]
    fn text_and_back() {
        let digest = Digest::of_bytes(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        for bad in ["", "sha256:", "md5:00", &text.to_uppercase(), &text[..70]] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?} was accepted");
        }
        for (at, stranger) in (7..text.len()).zip((0..=127u8).filter(|byte| !HEX.contains(byte)).cycle()) {
            let mut bad = text.as_bytes().to_vec();
            bad[at] = stranger;
            assert!(str::from_utf8(&bad).unwrap().parse::<Digest>().is_err(), "{stranger} at {at}");
        }
    }
}
