//! Decides whether a package has the signatures that it needs: cosign's (ECDSA over P-256 with SHA-256) and OpenPGP's.
//!
//! A package needs a signature by one of the device's keys if there are any, and one by its component's key if it names one.
//! Certificates and transparency logs are not supported.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_contract::packages::SignatureFormat;
use tokio_util::sync::CancellationToken;

use super::block_on;
use super::error::PackageError;
use super::http::HttpClient;
use super::public_key::{KeyLocation, PublicKey};
use super::source::shown;

/// The signatures that a package must have.
#[derive(Debug, Default)]
pub(super) struct SignaturePolicy {
    device: Vec<PublicKey>,
    component: Option<(KeyLocation, PublicKey)>,
}

/// A signature of a package.
#[derive(Debug)]
pub(super) enum Signature {
    /// One by cosign.
    Cosign {
        /// The bytes that it is over.
        message: Vec<u8>,
        /// The signature in DER.
        der: Vec<u8>,
    },
    /// One by OpenPGP.
    OpenPgp {
        /// The file that it is over.
        file: PathBuf,
        /// The signature, armored or binary.
        packets: Vec<u8>,
    },
}

impl Signature {
    /// The signature that lies beside an archive, over the whole file.
    pub(super) fn beside(format: SignatureFormat, file: &Path, bytes: Vec<u8>) -> Result<Self, PackageError> {
        Ok(match format {
            SignatureFormat::Cosign => {
                let read = fs::read(file);
                let message = read.map_err(|source| PackageError::Write { path: file.to_owned(), source })?;
                let text = String::from_utf8(bytes).ok();
                Self::Cosign { message, der: text.and_then(|text| decoded(&text)).unwrap_or_default() }
            }
            SignatureFormat::OpenPgp => Self::OpenPgp { file: file.to_owned(), packets: bytes },
        })
    }
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

    /// The formats of the signatures that count. Without any, a package needs no signature.
    pub(super) fn formats(&self) -> BTreeSet<SignatureFormat> {
        let component = self.component.iter().map(|(_, key)| key);
        self.device.iter().chain(component).map(PublicKey::format).collect()
    }

    /// Checks the signatures of a package; the lines that say by whom it is signed. Uses files below `home`.
    ///
    /// # Errors
    /// A signature is missing, or cannot be verified.
    pub(super) fn check(
        &self,
        address: &str,
        signatures: &[Signature],
        home: &Path,
        stop: &CancellationToken,
    ) -> Result<Vec<String>, PackageError> {
        let is_by = |key: &PublicKey| block_on(stop, is_signed_by(key, signatures, home));
        let missing =
            |whose| PackageError::Signature { address: shown(address), count: signatures.len(), whose };
        let mut lines = Vec::new();
        if !self.device.is_empty() {
            let mut signer = None;
            for key in &self.device {
                if is_by(key)? {
                    signer = Some(key);
                    break;
                }
            }
            lines.push(signed_line(signer.ok_or_else(|| missing("a key of this device (--package-key)"))?));
        }
        if let Some((location, key)) = &self.component {
            if !is_by(key)? {
                return Err(missing("the component's key (keyLocation)"));
            }
            lines.push(location_line(location));
        }
        Ok(lines)
    }
}

async fn is_signed_by(key: &PublicKey, signatures: &[Signature], home: &Path) -> Result<bool, PackageError> {
    for signature in signatures {
        let is_by_key = match (key, signature) {
            (PublicKey::Cosign(key), Signature::Cosign { message, der }) => key.verifies(message, der),
            (PublicKey::OpenPgp(key), Signature::OpenPgp { file, packets }) => {
                key.verifies(file, packets, home).await?
            }
            _ => false,
        };
        if is_by_key {
            return Ok(true);
        }
    }
    Ok(false)
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
    format!("key {}", location.as_str())
}

/// A signature as cosign writes it: base64 of DER.
pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text.trim()).ok()
}
