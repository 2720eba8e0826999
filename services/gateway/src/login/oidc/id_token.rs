//! Checks an ID token: the signature by a key of the provider, and issuer, audience, time and nonce of the claims. A published
//! key decides the algorithm, never the token alone; `none` and HMAC are not supported.

use data_encoding::BASE64URL_NOPAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// How far the provider's clock may be from this one, in seconds.
const CLOCK_SKEW: i64 = 120;
/// Longest token in bytes.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// First byte of an uncompressed point on a curve (SEC 1).
const UNCOMPRESSED_POINT: u8 = 4;

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// It is no JWT.
    #[error("it is no ID token")]
    Shape,
    /// The provider has no key of that name and algorithm.
    #[error("it is signed with a key that the provider does not publish")]
    UnknownKey,
    /// The signature is wrong.
    #[error("its signature is wrong")]
    Signature,
    /// Another provider issued it, or it has no subject.
    #[error("another provider issued it")]
    Issuer,
    /// It is for another client.
    #[error("it is for another client")]
    Audience,
    /// It has expired, or was issued in the future.
    #[error("it has expired, or was issued in the future: compare the clocks")]
    Time,
    /// It has the nonce of another login.
    #[error("it belongs to another login")]
    Nonce,
}

/// The claims of a token.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Claims {
    /// The provider.
    pub iss: String,
    /// The person's subject at the provider.
    pub sub: String,
    /// When it was issued: Unix seconds.
    pub iat: i64,
    exp: i64,
    aud: Value,
    #[serde(default)]
    azp: Option<String>,
    #[serde(default)]
    nonce: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The keys that a provider publishes.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct JsonWebKeySet {
    keys: Vec<JsonWebKey>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct JsonWebKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
}

/// The values that a token must have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedClaims<'a> {
    /// The provider.
    pub issuer: &'a str,
    /// The client.
    pub client_id: &'a str,
    /// The nonce of the login.
    pub nonce: &'a str,
    /// The time now: Unix seconds.
    pub now: i64,
}

/// Verifies a token that a provider made for a login; its claims.
///
/// # Errors
/// The token is refused.
pub(crate) fn verify(
    token: &str,
    keys: &JsonWebKeySet,
    wanted: ExpectedClaims<'_>,
) -> Result<Claims, TokenRefusal> {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, body, signature] = parts[..] else { return Err(TokenRefusal::Shape) };
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenRefusal::Shape);
    }
    let decoded = |part: &str| BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| TokenRefusal::Shape);
    let named: Header = serde_json::from_slice(&decoded(header)?).map_err(|_| TokenRefusal::Shape)?;
    let (signed, signature) = (&token.as_bytes()[..header.len() + 1 + body.len()], decoded(signature)?);
    let fits: Vec<&JsonWebKey> = keys.keys.iter().filter(|key| key.fits(&named)).collect();
    if fits.is_empty() {
        return Err(TokenRefusal::UnknownKey);
    }
    if !fits.iter().any(|key| key.has_signed(signed, &signature).is_some()) {
        return Err(TokenRefusal::Signature);
    }
    let claims: Claims = serde_json::from_slice(&decoded(body)?).map_err(|_| TokenRefusal::Shape)?;
    claims.check(wanted)?;
    Ok(claims)
}

impl JsonWebKey {
    /// Whether a token with this header may be signed with the key.
    fn fits(&self, header: &Header) -> bool {
        let kind = match header.alg.as_str() {
            "RS256" => self.kty == "RSA",
            "ES256" => self.kty == "EC" && self.crv.as_deref() == Some("P-256"),
            "EdDSA" => self.kty == "OKP" && self.crv.as_deref() == Some("Ed25519"),
            _ => false,
        };
        let is_named = header.kid.is_none() || header.kid == self.kid;
        kind && is_named && self.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
    }

    fn has_signed(&self, signed: &[u8], signature: &[u8]) -> Option<()> {
        let number = |text: &Option<String>| BASE64URL_NOPAD.decode(text.as_ref()?.as_bytes()).ok();
        match self.kty.as_str() {
            "RSA" => {
                let key = RsaPublicKeyComponents { n: number(&self.n)?, e: number(&self.e)? };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature).ok()
            }
            "EC" => {
                let point = [&[UNCOMPRESSED_POINT][..], &number(&self.x)?, &number(&self.y)?].concat();
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature).ok()
            }
            _ => UnparsedPublicKey::new(&ED25519, number(&self.x)?).verify(signed, signature).ok(),
        }
    }
}

impl Claims {
    fn check(&self, wanted: ExpectedClaims<'_>) -> Result<(), TokenRefusal> {
        if self.iss != wanted.issuer || self.sub.is_empty() {
            return Err(TokenRefusal::Issuer);
        }
        let audience = texts(&self.aud);
        // With several audiences `azp` must name the client.
        let is_shared = audience.len() > 1 && self.azp.is_none();
        let is_for_another = self.azp.as_deref().is_some_and(|azp| azp != wanted.client_id);
        if !audience.contains(&wanted.client_id) || is_shared || is_for_another {
            return Err(TokenRefusal::Audience);
        }
        let is_over = self.exp.saturating_add(CLOCK_SKEW) <= wanted.now;
        if is_over || self.iat > wanted.now.saturating_add(CLOCK_SKEW) {
            return Err(TokenRefusal::Time);
        }
        if self.nonce.as_deref() == Some(wanted.nonce) { Ok(()) } else { Err(TokenRefusal::Nonce) }
    }

    /// The strings of a claim: one, or a list.
    pub(crate) fn texts(&self, name: &str) -> Vec<&str> {
        self.others.get(name).map(texts).unwrap_or_default()
    }

    /// A name of the person to show.
    pub(crate) fn name(&self) -> &str {
        let named = ["preferred_username", "email", "name"].into_iter();
        named.filter_map(|name| self.texts(name).first().copied()).next().unwrap_or(&self.sub)
    }
}

fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64URL_NOPAD;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
    use serde_json::{Value, json};

    use super::*;

    const WANTED: ExpectedClaims<'_> =
        ExpectedClaims { issuer: "https://id.example", client_id: "muster", nonce: "n", now: 1_200 };
    /// A token that OpenSSL signed, and the modulus of its key.
    const RSA: (&str, &str) = (include_str!("rs256.golden"), include_str!("rs256.modulus.golden"));

    struct Signer(Ed25519KeyPair);

    impl Signer {
        fn new() -> Self {
            let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
            Self(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
        }

        fn keys(&self) -> JsonWebKeySet {
            let x = BASE64URL_NOPAD.encode(self.0.public_key().as_ref());
            keys(&json!({ "kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x }))
        }

        fn token(&self, header: &Value, change: &Value) -> String {
            let signed = signed(header, &claims(change));
            format!("{signed}.{}", BASE64URL_NOPAD.encode(self.0.sign(signed.as_bytes()).as_ref()))
        }
    }

    fn keys(key: &Value) -> JsonWebKeySet {
        serde_json::from_value(json!({ "keys": [{ "kty": "oct", "kid": "a", "k": "AAAA" }, key] })).unwrap()
    }

    fn claims(change: &Value) -> Value {
        let mut claims = json!({ "iss": WANTED.issuer, "sub": "4711", "aud": "muster", "iat": 1_000, "exp": 1_300, "nonce": "n" });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    fn signed(header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        format!("{}.{}", part(header), part(claims))
    }

    fn header() -> Value {
        json!({ "alg": "EdDSA", "kid": "a" })
    }

    #[test]
    fn the_three_common_signatures_are_checked() {
        let signer = Signer::new();
        let claims = verify(&signer.token(&header(), &json!({})), &signer.keys(), WANTED).unwrap();
        assert_eq!((claims.sub.as_str(), claims.name()), ("4711", "4711"));
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let point = pair.public_key().as_ref();
        let (x, y) = (BASE64URL_NOPAD.encode(&point[1..33]), BASE64URL_NOPAD.encode(&point[33..]));
        let es256 = keys(&json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y }));
        let signed = signed(&json!({ "alg": "ES256" }), &self::claims(&json!({})));
        let signature = pair.sign(&random, signed.as_bytes()).unwrap();
        let token = format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref()));
        assert!(verify(&token, &es256, WANTED).is_ok());
        let rs256 = keys(&json!({ "kty": "RSA", "use": "sig", "kid": "r", "n": RSA.1.trim(), "e": "AQAB" }));
        assert!(verify(RSA.0.trim(), &rs256, WANTED).is_ok());
        let altered = RSA.0.trim().replacen(".eyJ", ".eyK", 1);
        assert_eq!(verify(&altered, &rs256, WANTED).unwrap_err(), TokenRefusal::Signature);
    }

    #[test]
    fn the_algorithm_is_that_of_a_published_key_not_of_the_token_alone() {
        let (signer, other) = (Signer::new(), Signer::new());
        for alg in ["none", "HS256", "RS256", "ES256", "eddsa"] {
            let token = signer.token(&json!({ "alg": alg, "kid": "a" }), &json!({}));
            assert_eq!(
                verify(&token, &signer.keys(), WANTED).unwrap_err(),
                TokenRefusal::UnknownKey,
                "{alg}"
            );
        }
        let unnamed = signer.token(&json!({ "alg": "EdDSA", "kid": "b" }), &json!({}));
        assert_eq!(verify(&unnamed, &signer.keys(), WANTED).unwrap_err(), TokenRefusal::UnknownKey);
        let foreign = other.token(&header(), &json!({}));
        assert_eq!(verify(&foreign, &signer.keys(), WANTED).unwrap_err(), TokenRefusal::Signature);
        for bad in ["", "a.b", "a.b.c", "..."] {
            assert_eq!(verify(bad, &signer.keys(), WANTED).unwrap_err(), TokenRefusal::Shape, "{bad}");
        }
    }

    #[test]
    fn claims_are_of_this_provider_client_time_and_login() {
        let signer = Signer::new();
        let verified = |change: Value| verify(&signer.token(&header(), &change), &signer.keys(), WANTED);
        for (change, refusal) in [
            (json!({ "iss": "https://evil.example" }), TokenRefusal::Issuer),
            (json!({ "sub": "" }), TokenRefusal::Issuer),
            (json!({ "aud": "other" }), TokenRefusal::Audience),
            (json!({ "aud": ["muster", "other"] }), TokenRefusal::Audience),
            (json!({ "aud": ["muster", "other"], "azp": "other" }), TokenRefusal::Audience),
            (json!({ "exp": 1_000 }), TokenRefusal::Time),
            (json!({ "iat": 9_000 }), TokenRefusal::Time),
            (json!({ "nonce": "other" }), TokenRefusal::Nonce),
            (json!({ "nonce": null }), TokenRefusal::Nonce),
        ] {
            assert_eq!(verified(change.clone()).unwrap_err(), refusal, "{change}");
        }
        let claims = verified(
            json!({ "aud": ["muster", "other"], "azp": "muster", "roles": ["a", "b"], "email": "a@b" }),
        );
        let claims = claims.unwrap();
        assert_eq!(
            (claims.texts("roles"), claims.texts("role"), claims.name()),
            (vec!["a", "b"], vec![], "a@b")
        );
    }
}
