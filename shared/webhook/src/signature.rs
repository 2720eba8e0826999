//! Signatures of posted bodies: HMAC-SHA-256 in hex.

use std::fmt::Write as _;

use ring::hmac;

/// The header with a signature.
pub const SIGNATURE: &str = "muster-signature";

/// The HMAC-SHA-256 of parts in order, in lower-case hex.
pub fn hex_hmac(secret: &[u8], parts: &[&[u8]]) -> String {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
    parts.iter().for_each(|part| context.update(part));
    context.sign().as_ref().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The value of [`SIGNATURE`] for a body that is posted at this time, in Unix seconds: `t=TIME,v1=HEX`. The signed text is the
/// time, a dot and the body, so that a receiver can refuse an old one.
pub fn timed(secret: &[u8], seconds: i64, body: &[u8]) -> String {
    let time = seconds.to_string();
    format!("t={time},v1={}", hex_hmac(secret, &[time.as_bytes(), b".", body]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_one_that_openssl_makes() {
        // printf '%s' '1700000000.{"a":1}' | openssl dgst -sha256 -hmac a-secret-of-the-test
        let made = timed(b"a-secret-of-the-test", 1_700_000_000, br#"{"a":1}"#);
        let hex = "9b952f3dbcbc84b7790853c7aff9fc4fe36048c2909ac63bfd9d1acdfaa19387";
        assert_eq!(made, format!("t=1700000000,v1={hex}"));
        assert_ne!(made, timed(b"another secret", 1_700_000_000, br#"{"a":1}"#));
        assert_ne!(made, timed(b"a-secret-of-the-test", 1_700_000_001, br#"{"a":1}"#));
    }
}
