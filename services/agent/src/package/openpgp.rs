//! OpenPGP keys, as Margo's `keyLocation` names them. Verifies signatures with `gpgv`, GnuPG's program for that, and implements
//! nothing of OpenPGP but the armor of a key.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_contract::canonical::Digest;
use tokio::process::Command;
use tokio::time::timeout;

use super::error::PackageError;

/// Time limit of `gpgv`: it reads a package once.
const LIMIT: Duration = Duration::from_secs(120);
const PROGRAM: &str = "gpgv";
const BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";
/// The bit that is set in the first byte of every OpenPGP packet.
const PACKET_BIT: u8 = 0x80;
/// The status line of a good signature by a key that has not expired.
const GOOD: &str = "[GNUPG:] GOODSIG ";
/// The folder, below that of a unit, with the files of one verification.
const FOLDER: &str = "openpgp";

/// One or more OpenPGP public keys, as binary packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenPgpKey(Vec<u8>);

impl OpenPgpKey {
    /// Parses an exported key, armored or binary; none if it is no OpenPGP key.
    pub(super) fn parse(file: &[u8]) -> Option<Result<Self, &'static str>> {
        if file.first().is_some_and(|first| first & PACKET_BIT != 0) && std::str::from_utf8(file).is_err() {
            return Some(Ok(Self(file.to_vec())));
        }
        let text = std::str::from_utf8(file).ok().filter(|text| text.contains("BEGIN PGP"))?;
        Some(dearmored(text).map(Self))
    }

    /// A text that identifies the key.
    pub(super) fn fingerprint(&self) -> String {
        Digest::of_bytes(&self.0).to_string()
    }

    /// Whether a signature over a file is by this key, which has not expired. Uses files below `home`.
    ///
    /// # Errors
    /// `gpgv` is missing or does not end, or its files cannot be written.
    pub(super) async fn verifies(
        &self,
        file: &Path,
        signature: &[u8],
        home: &Path,
    ) -> Result<bool, PackageError> {
        let folder = home.join(FOLDER);
        let verified = self.run(file, signature, &folder).await;
        // A folder that stays is replaced by the next verification, and removed with the unit.
        let _ = fs::remove_dir_all(&folder);
        let output = verified?;
        Ok(output.status.success() && is_good(&output.stdout))
    }

    async fn run(&self, file: &Path, signature: &[u8], folder: &Path) -> Result<Output, PackageError> {
        let (keyring, beside) = (folder.join("keyring.gpg"), folder.join("signature"));
        let written = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&keyring, &self.0))
            .and_then(|()| fs::write(&beside, signature));
        written.map_err(|source| PackageError::Write { path: folder.to_owned(), source })?;
        let mut command = Command::new(PROGRAM);
        // A device without a clock in its board is in the past when it starts.
        command.args(["--status-fd", "1", "--ignore-time-conflict", "--weak-digest", "SHA1", "--homedir"]);
        command.arg(folder).arg("--keyring").arg(&keyring).arg(&beside).arg(file);
        command.stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let ended = timeout(LIMIT, command.output()).await;
        let output = ended.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        output.map_err(|source| PackageError::Gpgv { hint: hint(&source), source })
    }
}

/// The next step for a person whose device cannot run `gpgv`.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => ": install it on the device (Debian's package gpgv)",
        _ => ": the next attempt verifies it again",
    }
}

/// Whether the status lines of `gpgv` name a good signature.
fn is_good(status: &[u8]) -> bool {
    String::from_utf8_lossy(status).lines().any(|line| line.starts_with(GOOD))
}

/// The bytes of an armored public key: base64 between an empty line and a checksum, which `gpgv` does not need.
fn dearmored(text: &str) -> Result<Vec<u8>, &'static str> {
    let (_, rest) = text.split_once(BEGIN).ok_or("it is no OpenPGP public key")?;
    let (inside, _) = rest.split_once("-----END").ok_or("it is an OpenPGP key whose end is missing")?;
    // Headers, which may be none, end with an empty line.
    let inside = inside.replace('\r', "");
    let body = inside.split_once("\n\n").map_or(inside.as_str(), |(_, body)| body);
    let data: String = body.lines().map(str::trim).filter(|line| !line.starts_with('=')).collect();
    STANDARD.decode(data).map_err(|_| "it is an OpenPGP key whose base64 is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_signature_by_a_key_that_has_not_expired_counts() {
        assert!(is_good(b"[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG AD02 Muster test\n[GNUPG:] VALIDSIG D2\n"));
        for status in [
            "[GNUPG:] KEYEXPIRED 1\n[GNUPG:] EXPKEYSIG 6344 [GNUPG:] GOODSIG\n[GNUPG:] VALIDSIG 11\n",
            "[GNUPG:] BADSIG AD02 Muster test\n",
            "[GNUPG:] ERRSIG AD02\n[GNUPG:] NO_PUBKEY AD02\n",
            "",
        ] {
            assert!(!is_good(status.as_bytes()), "{status}");
        }
    }
}
