//! Signs and reads tokens: header, claims and an Ed25519 signature in the format of NATS (JWT v2, `ed25519-nkey`).
//!
//! The id of the claims, `jti`, is the hash of the claims without it, so a token is a pure function of claims and key.

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::KeyPair;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha512_256};

/// The first part of every token.
const HEADER: &str = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;
/// Largest size of a token, in bytes: an account with the revocations of a large fleet.
pub const TOKEN_BYTES_MAX: usize = 1024 * 1024;

/// Why a token cannot be signed or is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not have the three parts of a token.
    #[error("it is not a NATS JWT")]
    Shape,
    /// Its claims cannot be read.
    #[error("its claims cannot be read: {0}")]
    Claims(String),
    /// The signature is not its issuer's.
    #[error("its signature is not its issuer's: it was altered, or cut")]
    Signature,
    /// The key cannot sign.
    #[error("the key cannot sign: {0}")]
    Key(String),
}

/// The claims of a token that Muster reads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TokenClaims {
    /// Public key of the holder.
    pub sub: String,
    /// Public key of the signer.
    pub iss: String,
    /// Name of the holder: `SITE/DEVICE` for a device.
    #[serde(default)]
    pub name: String,
    /// When it was issued: Unix seconds.
    pub iat: u64,
    /// When it expires: Unix seconds; never if absent.
    pub exp: Option<u64>,
    /// The claims of NATS.
    pub nats: NatsClaims,
}

/// The part of the claims that NATS defines.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NatsClaims {
    /// `user`, `account` or `operator`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `site:plant7`, `device:press-4`, `role:ingest`.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Public key of the account if one of its signing keys signed; empty otherwise.
    #[serde(default)]
    pub issuer_account: String,
    /// In an account's token: revoked public keys, each with the second up to which its tokens are revoked.
    #[serde(default)]
    pub revocations: std::collections::BTreeMap<String, u64>,
}

impl TokenClaims {
    /// The value of a tag: `press-4` of `device:press-4`.
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.nats.tags.iter().find_map(|tag| tag.strip_prefix(name)?.strip_prefix(':'))
    }
}

/// Adds issuer and id to claims, signs them, and returns the token.
///
/// # Errors
/// The key has no seed.
pub fn sign(issuer: &KeyPair, mut claims: Map<String, Value>) -> Result<String, TokenError> {
    claims.insert("iss".to_owned(), json!(issuer.public_key()));
    claims.remove("jti");
    let hash = Sha512_256::digest(Value::Object(claims.clone()).to_string());
    claims.insert("jti".to_owned(), json!(BASE32_NOPAD.encode(&hash)));
    let body = Value::Object(claims).to_string();
    let text =
        format!("{}.{}", BASE64URL_NOPAD.encode(HEADER.as_bytes()), BASE64URL_NOPAD.encode(body.as_bytes()));
    let signature = issuer.sign(text.as_bytes()).map_err(|error| TokenError::Key(error.to_string()))?;
    Ok(format!("{text}.{}", BASE64URL_NOPAD.encode(&signature)))
}

/// Reads a token and checks that its issuer signed it. The server decides whether to trust the issuer.
///
/// # Errors
/// The text is no token, or was altered.
pub fn read(token: &str) -> Result<TokenClaims, TokenError> {
    let token = token.trim();
    let parts: Vec<&str> = token.split('.').collect();
    let [header, body, signature] = parts[..] else { return Err(TokenError::Shape) };
    let decoded = |part: &str| BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| TokenError::Shape);
    if token.len() > TOKEN_BYTES_MAX || decoded(header)? != HEADER.as_bytes() {
        return Err(TokenError::Shape);
    }
    let unreadable = |error: serde_json::Error| TokenError::Claims(error.to_string());
    let known: TokenClaims = serde_json::from_slice(&decoded(body)?).map_err(unreadable)?;
    let signed = &token.as_bytes()[..header.len() + 1 + body.len()];
    let issuer = KeyPair::from_public_key(&known.iss).map_err(|_| TokenError::Signature)?;
    issuer.verify(signed, &decoded(signature)?).map_err(|_| TokenError::Signature)?;
    Ok(known)
}

#[cfg(test)]
mod tests {
    use nkeys::KeyPairType;

    use super::*;

    fn key(kind: KeyPairType, byte: u8) -> KeyPair {
        KeyPair::new_from_raw(kind, [byte; 32]).unwrap()
    }

    fn token() -> String {
        let claims = json!({ "sub": key(KeyPairType::User, 2).public_key(), "name": "a/b", "iat": 7, "exp": 9,
            "nats": { "type": "user", "version": 2, "tags": ["site:a", "device:b"] } });
        sign(&key(KeyPairType::Account, 1), claims.as_object().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_token_is_read_as_it_was_signed() {
        let known = read(&format!("{}\n", token())).unwrap();
        assert_eq!((known.name.as_str(), known.iat, known.exp), ("a/b", 7, Some(9)));
        assert_eq!((known.tag("site"), known.tag("device"), known.tag("role")), (Some("a"), Some("b"), None));
        assert_eq!(token(), token(), "the same claims are the same token");
    }

    #[test]
    fn no_byte_of_a_token_can_be_changed() {
        let token = token();
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert!(read(std::str::from_utf8(&bytes).unwrap()).is_err(), "byte {at}");
        }
        for bad in ["", ".", "a.b.c", &token[..token.len() - 3], &format!("{token}.x"), "ü.ü.ü"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
