//! Verifies the signatures of packages, as `cosign sign` and `cosign sign-blob` make them: ECDSA over P-256 with SHA-256.
//!
//! The device has keys in files (`--package-key`), and a component may name one (`keyLocation`). A package needs a signature by
//! one of the device's keys if there are any, and one by its component's key if it names one. Certificates, transparency logs
//! and OpenPGP are not supported.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_contract::canonical::Digest;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

use super::error::PackageError;
use super::http::{Get, HttpClient, require_success};
use super::source::{is_loopback_url, shown};

/// Bytes of a key's file.
const KEY_BYTES_MAX: u64 = 16 * 1024;
/// The beginning of a P-256 public key in DER (SubjectPublicKeyInfo), before the 65 bytes of the point.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const POINT_BYTES: usize = 65;
const LOCAL: &str = "file://";

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    point: Vec<u8>,
}

impl PublicKey {
    /// Parses a PEM file.
    pub(super) fn parse(pem: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(pem).map_err(|_| "it is no PEM file")?;
        if text.contains("BEGIN PGP") {
            return Err("it is an OpenPGP key; sign with cosign and a P-256 key");
        }
        let inside =
            text.split_once("-----BEGIN PUBLIC KEY-----").and_then(|(_, rest)| rest.split_once("-----END"));
        let (inside, _) = inside.ok_or("it is no public key in PEM (BEGIN PUBLIC KEY)")?;
        let packed: String = inside.split_whitespace().collect();
        let der = STANDARD.decode(packed).map_err(|_| "its base64 is damaged")?;
        match der.strip_prefix(&P256_PREFIX) {
            Some(point) if point.len() == POINT_BYTES => Ok(Self { point: point.to_vec() }),
            _ => Err("it is no ECDSA key of the curve P-256, as `cosign generate-key-pair` makes them"),
        }
    }

    /// Whether a signature over a message is by this key.
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(message, signature).is_ok()
    }

    /// A text that identifies the key.
    fn fingerprint(&self) -> String {
        Digest::of_bytes(&self.point).to_string()
    }
}

/// The address of a component's key: https, or a file of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyLocation(String);

impl KeyLocation {
    /// Checks the address.
    ///
    /// # Errors
    /// It is neither https nor a file, or has a user or password.
    pub fn parse(address: &str) -> Result<Self, PackageError> {
        let host = super::source::host(address);
        let is_remote = address.starts_with("https://") || is_loopback_url(address);
        let is_one_line = !address.contains(char::is_control);
        if is_one_line && (address.starts_with("file:///") || is_remote && !host.contains('@')) {
            return Ok(Self(address.to_owned()));
        }
        Err(PackageError::key(&shown(address), "a key is at https://… without credentials, or at file:///…"))
    }

    fn read(&self, http: &HttpClient) -> Result<PublicKey, PackageError> {
        let failed = |rule| PackageError::key(&shown(&self.0), rule);
        let pem = match self.0.strip_prefix(LOCAL) {
            Some(path) => read_file(Path::new(path))?,
            None => {
                let get = Get { url: &self.0, accept: "*/*", authorization: None, max: KEY_BYTES_MAX };
                let (answer, body) = http.get(get)?;
                require_success(&answer, &self.0)?;
                body
            }
        };
        PublicKey::parse(&pem).map_err(failed)
    }
}

/// Reads a regular file of bounded size: a device or pipe would never end, and opening a pipe would wait.
fn read_file(path: &Path) -> Result<Vec<u8>, PackageError> {
    let read = || {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut pem = Vec::new();
        File::open(path)?.take(KEY_BYTES_MAX).read_to_end(&mut pem)?;
        Ok(pem)
    };
    read().map_err(|source| PackageError::KeyFile { path: path.to_owned(), source })
}

/// Reads the keys of the device.
pub(super) fn device_keys(paths: &[PathBuf]) -> Result<Vec<PublicKey>, PackageError> {
    let read = |path: &PathBuf| {
        PublicKey::parse(&read_file(path)?)
            .map_err(|rule| PackageError::key(&path.display().to_string(), rule))
    };
    paths.iter().map(read).collect()
}

/// The signatures that a package must have.
#[derive(Debug, Default)]
pub(super) struct SignaturePolicy {
    device: Vec<PublicKey>,
    component: Option<(KeyLocation, PublicKey)>,
}

/// A signature and the bytes that it is over.
#[derive(Debug)]
pub(super) struct SignedMessage {
    /// The bytes.
    pub(super) message: Vec<u8>,
    /// The signature in DER.
    pub(super) signature: Vec<u8>,
}

impl SignaturePolicy {
    /// The signatures that the device's keys and a component's key demand.
    pub(super) fn new(
        device: Vec<PublicKey>,
        component: Option<&KeyLocation>,
        http: &HttpClient,
    ) -> Result<Self, PackageError> {
        let component =
            component.map(|location| Ok::<_, PackageError>((location.clone(), location.read(http)?)));
        Ok(Self { device, component: component.transpose()? })
    }

    /// Whether a package needs no signature.
    pub(super) const fn is_empty(&self) -> bool {
        self.device.is_empty() && self.component.is_none()
    }

    /// Checks the signatures of a package; the lines that say by whom it is signed.
    ///
    /// # Errors
    /// A signature is missing.
    pub(super) fn check(&self, address: &str, signed: &[SignedMessage]) -> Result<Vec<String>, PackageError> {
        let is_by = |key: &&PublicKey| signed.iter().any(|it| key.verifies(&it.message, &it.signature));
        let missing = |whose| PackageError::Signature { address: shown(address), count: signed.len(), whose };
        let mut lines = Vec::new();
        if !self.device.is_empty() {
            let key = self
                .device
                .iter()
                .find(is_by)
                .ok_or_else(|| missing("a key of this device (--package-key)"))?;
            lines.push(signed_line(key));
        }
        if let Some((location, key)) = &self.component {
            Some(key).filter(is_by).ok_or_else(|| missing("the component's key (keyLocation)"))?;
            lines.push(location_line(location));
        }
        Ok(lines)
    }
}

/// Whether the lines of a placed package say that it has the signatures it needs now.
pub(super) fn is_signed(lines: &[&str], device: &[PublicKey], component: Option<&KeyLocation>) -> bool {
    let has = |line: String| lines.contains(&line.as_str());
    (device.is_empty() || device.iter().any(|key| has(signed_line(key))))
        && component.is_none_or(|location| has(location_line(location)))
}

fn signed_line(key: &PublicKey) -> String {
    format!("signed {}", key.fingerprint())
}

fn location_line(location: &KeyLocation) -> String {
    format!("key {}", location.0)
}

/// A signature as cosign writes it: base64 of DER.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A public key, and a signature over `a package`, that OpenSSL has made.
    const FOREIGN_KEY: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAECO8eC9anv0AWcDLstU+T7fuOamNrfGWV+XOaw2aOaqlMLGsjmpxKpzaoWeVDm6nfT8BAdy5eYLCSONbYWvnN4w==";
    const FOREIGN_SIGNATURE: &str =
        "MEYCIQCp9pGc0PZJDDE7/R9KQgNJiH5EWmt5o4UW/gZem3+bAgIhAPbvQsXX/2oUewg9Fs8E9bNkHT5dUDwRYmkABnIQw0Tl";

    fn pem(inside: &str) -> String {
        format!("-----BEGIN PUBLIC KEY-----\n{inside}\n-----END PUBLIC KEY-----\n")
    }

    #[test]
    fn a_signature_by_another_program_is_verified() {
        let key = PublicKey::parse(pem(FOREIGN_KEY).as_bytes()).unwrap();
        let signature = decoded(&format!("{FOREIGN_SIGNATURE}\n")).unwrap();
        assert!(key.verifies(b"a package", &signature));
        assert!(!key.verifies(b"a packagf", &signature));
        assert!(!key.verifies(b"a package", &signature[1..]));
        assert!(!key.verifies(b"a package", &[]));
    }

    #[test]
    fn a_key_of_another_kind_is_refused_by_name() {
        let of_rsa = pem("MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBALh0");
        for (text, words) in [
            ("-----BEGIN PGP PUBLIC KEY BLOCK-----", "OpenPGP"),
            ("-----BEGIN EC PRIVATE KEY-----\nMHc=\n-----END EC PRIVATE KEY-----", "no public key"),
            (of_rsa.as_str(), "no ECDSA key"),
            (pem("%%%").as_str(), "base64"),
            (pem(&FOREIGN_KEY[..40]).as_str(), "no ECDSA key"),
            ("", "no public key"),
        ] {
            let rule = PublicKey::parse(text.as_bytes()).unwrap_err();
            assert!(rule.contains(words), "{text}: {rule}");
        }
        assert!(PublicKey::parse(&[0xff]).is_err());
    }
}
