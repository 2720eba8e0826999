//! Public keys with which signatures of packages are verified, and where they come from: files of the device (`--package-key`) and
//! the address that a component names (`keyLocation`).

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_contract::canonical::Digest;
use muster_contract::packages::SignatureFormat;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

use super::error::PackageError;
use super::http::{Get, HttpClient, require_success};
use super::openpgp::OpenPgpKey;
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
pub(super) enum PublicKey {
    /// An ECDSA key of the curve P-256: its point.
    Cosign(P256Key),
    /// An OpenPGP key.
    OpenPgp(OpenPgpKey),
}

/// An ECDSA key of the curve P-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct P256Key {
    point: Vec<u8>,
}

impl PublicKey {
    /// Parses the file of a key.
    pub(super) fn parse(file: &[u8]) -> Result<Self, &'static str> {
        match OpenPgpKey::parse(file) {
            Some(key) => key.map(Self::OpenPgp),
            None => P256Key::parse(file).map(Self::Cosign),
        }
    }

    /// The format of its signatures.
    pub(super) const fn format(&self) -> SignatureFormat {
        match self {
            Self::Cosign(_) => SignatureFormat::Cosign,
            Self::OpenPgp(_) => SignatureFormat::OpenPgp,
        }
    }

    /// A text that identifies the key.
    pub(super) fn fingerprint(&self) -> String {
        match self {
            Self::Cosign(key) => Digest::of_bytes(&key.point).to_string(),
            Self::OpenPgp(key) => key.fingerprint(),
        }
    }
}

impl P256Key {
    fn parse(pem: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(pem).map_err(|_| "it is no PEM file")?;
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

    /// Whether a signature in DER over a message is by this key.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(message, signature).is_ok()
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

    /// The address.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the key.
    pub(super) fn read(&self, http: &HttpClient) -> Result<PublicKey, PackageError> {
        let failed = |rule| PackageError::key(&shown(&self.0), rule);
        let file = match self.0.strip_prefix(LOCAL) {
            Some(path) => read_file(Path::new(path))?,
            None => {
                let get = Get { url: &self.0, accept: "*/*", authorization: None, max: KEY_BYTES_MAX };
                let (answer, body) = http.get(get)?;
                require_success(&answer, &self.0)?;
                body
            }
        };
        PublicKey::parse(&file).map_err(failed)
    }
}

/// Reads a regular file of bounded size: a device or pipe would never end, and opening a pipe would wait.
fn read_file(path: &Path) -> Result<Vec<u8>, PackageError> {
    let read = || {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?.take(KEY_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
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
        let key = P256Key::parse(pem(FOREIGN_KEY).as_bytes()).unwrap();
        let signature = STANDARD.decode(FOREIGN_SIGNATURE).unwrap();
        assert!(key.verifies(b"a package", &signature));
        assert!(!key.verifies(b"a packagf", &signature));
        assert!(!key.verifies(b"a package", &signature[1..]));
        assert!(!key.verifies(b"a package", &[]));
    }

    #[test]
    fn a_key_of_another_kind_is_refused_by_name() {
        let of_rsa = pem("MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBALh0");
        for (text, words) in [
            ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "no OpenPGP public key"),
            ("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME", "end is missing"),
            ("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n%%%\n-----END PGP PUBLIC KEY BLOCK-----", "base64"),
            ("-----BEGIN EC PRIVATE KEY-----\nMHc=\n-----END EC PRIVATE KEY-----", "no public key"),
            (of_rsa.as_str(), "no ECDSA key"),
            (pem("%%%").as_str(), "base64"),
            (pem(&FOREIGN_KEY[..40]).as_str(), "no ECDSA key"),
            ("", "no public key"),
        ] {
            let rule = PublicKey::parse(text.as_bytes()).unwrap_err();
            assert!(rule.contains(words), "{text}: {rule}");
        }
        assert!(PublicKey::parse(&[0x41, 0xff]).is_err());
    }
}
