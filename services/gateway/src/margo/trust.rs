//! The trust bundle of devices, in SPIFFE's form (a JWK Set), and the document that leads to it: Margo's `/.well-known/margo`.
//!
//! A device without a certificate cannot use the listener of devices, so the listener of people serves both documents to everybody over
//! https. The bundle has the public certificates of `--client-ca`. Devices would drop an authority that the bundle lacks, so one key
//! of an unsupported kind makes the whole bundle unavailable.

pub(crate) mod openapi;
pub(crate) mod routes;

use std::fmt;

use bytes::Bytes;
use data_encoding::{BASE64, BASE64URL_NOPAD};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use muster_contract::Timestamp;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

/// The address of the document that leads to the bundle.
const DISCOVERY: &str = "/.well-known/margo";
/// The address of the bundle.
const BUNDLE: &str = "/.well-known/spiffe/bundle.json";
/// Seconds after which a client should read the bundle again.
const REFRESH_SECONDS: u32 = 3600;

/// DER: tags of a sequence, an integer, a bit string, an object identifier, a certificate's version, and times.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT: u8 = 0x06;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Object identifiers of keys: RSA, elliptic curves, Ed25519.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const CURVES: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
/// Curves with their names in a JWK and the octets of a coordinate.
const NAMED: [(&[u8], &str, usize); 2] = [
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07], "P-256", 32),
    (&[0x2b, 0x81, 0x04, 0x00, 0x22], "P-384", 48),
];
/// The first octet of a point that is not compressed.
const UNCOMPRESSED: u8 = 4;

/// A certificate whose key has no place in a bundle.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownKey {
    /// Its position in the file, from 1.
    pub number: usize,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the key of certificate {} of --client-ca is no RSA, P-256, P-384 or Ed25519 key",
            self.number
        )
    }
}

/// The authorities of a trust domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrustBundle {
    domain: String,
    bundle: Bytes,
}

impl TrustBundle {
    /// The bundle of a manager's trust domain. `sequence` rises with every change of the authorities, if the operator counts them.
    ///
    /// # Errors
    /// A certificate has a key of an unknown kind.
    pub(crate) fn of(
        manager: &str,
        authorities: &[CertificateDer<'_>],
        sequence: Option<u64>,
    ) -> Result<Self, UnknownKey> {
        let domain = manager.strip_prefix("spiffe://").unwrap_or(manager);
        let domain = domain.split('/').next().unwrap_or_default().to_owned();
        let keys = authorities.iter().enumerate();
        let keys = keys.map(|(at, certificate)| jwk(certificate).ok_or(UnknownKey { number: at + 1 }));
        let keys = keys.collect::<Result<Vec<Value>, _>>()?;
        let mut bundle = json!({ "spiffe_refresh_hint": REFRESH_SECONDS, "keys": keys });
        if let Some(sequence) = sequence {
            bundle["spiffe_sequence"] = json!(sequence);
        }
        Ok(Self { domain, bundle: Bytes::from(bundle.to_string()) })
    }
}

/// An authority as a key of the set; `None` if its key is of an unknown kind.
fn jwk(certificate: &[u8]) -> Option<Value> {
    let mut key = public_key(certificate)?;
    key["use"] = json!("x509-svid");
    key["x5c"] = json!([BASE64.encode(certificate)]);
    Some(key)
}

/// The fields of a certificate behind its version and serial number.
fn fields_after_number(certificate: &[u8]) -> Option<&[u8]> {
    let (mut whole, _) = element(certificate, SEQUENCE)?;
    let mut content = take(&mut whole, SEQUENCE)?;
    if content.first() == Some(&VERSION) {
        take(&mut content, VERSION)?;
    }
    take(&mut content, INTEGER)?;
    Some(content)
}

fn public_key(certificate: &[u8]) -> Option<Value> {
    let mut content = fields_after_number(certificate)?;
    // Signature, issuer, validity, subject.
    for _ in 0..4 {
        take(&mut content, SEQUENCE)?;
    }
    let mut info = take(&mut content, SEQUENCE)?;
    let mut algorithm = take(&mut info, SEQUENCE)?;
    // No unused bits.
    let bits = take(&mut info, BIT_STRING)?.strip_prefix(&[0])?;
    let text = |octets: &[u8]| BASE64URL_NOPAD.encode(octets);
    match take(&mut algorithm, OBJECT)? {
        CURVES => {
            let curve = take(&mut algorithm, OBJECT)?;
            let (_, name, octets) = NAMED.into_iter().find(|(id, ..)| *id == curve)?;
            let point = bits.strip_prefix(&[UNCOMPRESSED]).filter(|point| point.len() == 2 * octets)?;
            let (x, y) = point.split_at(octets);
            Some(json!({ "kty": "EC", "crv": name, "x": text(x), "y": text(y) }))
        }
        RSA => {
            let (mut numbers, _) = element(bits, SEQUENCE)?;
            let modulus = unsigned(take(&mut numbers, INTEGER)?);
            let exponent = unsigned(take(&mut numbers, INTEGER)?);
            Some(json!({ "kty": "RSA", "n": text(modulus), "e": text(exponent) }))
        }
        ED25519 => Some(json!({ "kty": "OKP", "crv": "Ed25519", "x": text(bits) })),
        _ => None,
    }
}

/// The begin of a certificate's validity.
pub(crate) fn not_before(certificate: &[u8]) -> Option<Timestamp> {
    let mut content = fields_after_number(certificate)?;
    // Signature, issuer.
    for _ in 0..2 {
        take(&mut content, SEQUENCE)?;
    }
    let validity = take(&mut content, SEQUENCE)?;
    let (digits, century) = match element(validity, UTC_TIME) {
        // Two digits of a year up to 2049.
        Some((digits, _)) => (digits, if digits.first()? < &b'5' { "20" } else { "19" }),
        None => (element(validity, GENERALIZED_TIME)?.0, ""),
    };
    let text = format!("{century}{}", std::str::from_utf8(digits).ok()?.strip_suffix('Z')?);
    let time = DateTime::strptime("%Y%m%d%H%M%S", text).ok()?;
    time.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp())
}

/// A number without the octet that says that it is positive.
fn unsigned(number: &[u8]) -> &[u8] {
    number.strip_prefix(&[0]).unwrap_or(number)
}

/// The content of the next element, which must have this tag.
fn take<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (content, after) = element(rest, tag)?;
    *rest = after;
    Some(content)
}

/// The content of an element, and the octets behind it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = bytes.strip_prefix(&[tag])?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum: usize, octet| sum << 8 | usize::from(*octet)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    const MANAGER: &str = "spiffe://example.org/margo/wfm/main";

    fn authority(algorithm: &'static rcgen::SignatureAlgorithm) -> (CertificateDer<'static>, Vec<u8>) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = CertificateParams::new(Vec::new()).unwrap();
        (params.self_signed(&key).unwrap().der().clone(), key.public_key_raw().to_vec())
    }

    fn decoded(key: &Value, field: &str) -> Vec<u8> {
        BASE64URL_NOPAD.decode(key[field].as_str().unwrap().as_bytes()).unwrap()
    }

    #[test]
    fn a_bundle_has_the_key_and_the_certificate_of_each_authority() {
        let (one, raw) = authority(&PKCS_ECDSA_P256_SHA256);
        let (two, wide) = authority(&PKCS_ECDSA_P384_SHA384);
        let (three, edwards) = authority(&PKCS_ED25519);
        let all = [one.clone(), two, three];
        let trust = TrustBundle::of(MANAGER, &all, Some(12)).unwrap();
        assert_eq!(trust.domain, "example.org");
        let bundle: Value = serde_json::from_slice(&trust.bundle).unwrap();
        assert_eq!((&bundle["spiffe_sequence"], &bundle["spiffe_refresh_hint"]), (&json!(12), &json!(3600)));
        let keys = bundle["keys"].as_array().unwrap();
        let names: Vec<_> = keys.iter().map(|key| (key["kty"].as_str(), key["crv"].as_str())).collect();
        assert_eq!(
            names,
            [(Some("EC"), Some("P-256")), (Some("EC"), Some("P-384")), (Some("OKP"), Some("Ed25519"))]
        );
        let point = |key: &Value| [vec![UNCOMPRESSED], decoded(key, "x"), decoded(key, "y")].concat();
        assert_eq!((point(&keys[0]), point(&keys[1]), decoded(&keys[2], "x")), (raw, wide, edwards));
        assert_eq!(keys[0]["x5c"], json!([BASE64.encode(&one)]));
        assert!(keys.iter().all(|key| key["use"] == "x509-svid"));
        let uncounted = TrustBundle::of(MANAGER, &all, None).unwrap();
        assert!(!String::from_utf8_lossy(&uncounted.bundle).contains("spiffe_sequence"));
    }

    #[test]
    fn an_authority_with_an_rsa_key_has_modulus_and_exponent() {
        let der = BASE64.decode(RSA_AUTHORITY.replace('\n', "").as_bytes()).unwrap();
        let key = jwk(&der).unwrap();
        assert_eq!((key["kty"].as_str(), key["e"].as_str()), (Some("RSA"), Some("AQAB")));
        let modulus = decoded(&key, "n");
        assert_eq!((modulus.len(), modulus[..4].to_vec()), (256, RSA_MODULUS.to_vec()));
    }

    #[test]
    fn a_certificate_that_cannot_be_read_makes_no_bundle() {
        let (good, _) = authority(&PKCS_ECDSA_P256_SHA256);
        for length in 0..good.len() - 1 {
            // Cut anywhere it is refused, and nothing panics.
            assert_eq!(jwk(&good[..length]), None, "{length}");
        }
        let bad = CertificateDer::from(vec![SEQUENCE, 0]);
        assert_eq!(TrustBundle::of(MANAGER, &[good, bad], None), Err(UnknownKey { number: 2 }));
    }

    const RSA_MODULUS: [u8; 4] = [0x87, 0x79, 0xde, 0x79];
    const RSA_AUTHORITY: &str = "\
MIIC/zCCAeegAwIBAgIUBh2EqzodnOOpWJctUQgEY00watEwDQYJKoZIhvcNAQELBQAwDjEMMAoGA1UEAwwDcnNhMCAXDTI2
MTEyNjExNDcyNVoYDzIxMjYxMTAyMTE0NzI1WjAOMQwwCgYDVQQDDANyc2EwggEiMA0GCSqGSIb3DQEBAQUAA4IBDwAwggEK
AoIBAQCHed55SF5l7SMfybg32W9Qu6nFkTplma9m+28dIj6aFGbXCwiRZgtCL/RfZTd4bo2D571Ls3Slbfcx9ojQDQNiq+6K
GOepxur3fISHHzPrVIHJeW6Z23Ya7cVwYWnrSeLAi/i8jzhRUCS8pjeQkMq0boIZ5klEX4nQZxQuXDw6h6rTWA1/w46f8zH2
llb32mOKHJHSEqzSenlHQqB1LlOy+WspiA6SW3PsdwG8GRaoNF1FN7voKvdvvdbMbGkcP5PM6OMwyManRInq2d3NWo/h6zS8
cRpU2JtzIR43CDTNfXifBHLtcRfENnQVxi8Y6W9j46zySiYUkfIzU0vX61dnAgMBAAGjUzBRMB0GA1UdDgQWBBSEq8JL7B/l
fYR2yCaDUggKZk0N3jAfBgNVHSMEGDAWgBSEq8JL7B/lfYR2yCaDUggKZk0N3jAPBgNVHRMBAf8EBTADAQH/MA0GCSqGSIb3
DQEBCwUAA4IBAQB4nx6VOiwgRPlsedRYr1sCvD+9wDGkfu5j6b1pZmvIXDFV7XngZMZ0uAPaL2SrVBr0vHNAs8Yp4tFv0AMi
KoG3+2ZanS9uZk+cHKA+BK33A7+suNRnzp1/VlfGYIYYJDaPf+wYHccCXeHEj4qVa4Gh+iruNah7yb8tJtCT9OneBuTa0uWn
BaRZvkIhQf+iypb1+mothlPrHv1w2oMuvRNJyYsn7oo+X8+rAOEGKR0HRJuOA2Ub21+1Gz6YYOFfra6/if/vNbNM059EWfUg
95QKq86j9oR4R60ibQQu5jEpsm7xFts0QhpE9YWJ2S6Fjruia22fzwAb1bXEmN5hpZKP";
}
