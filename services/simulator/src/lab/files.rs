//! The files of a server in a lab: its certificate, and copies of what `muster auth` keeps.

use std::path::Path;

use super::{certificate, keep};
use crate::error::Error;

/// The mode of a file that its owner alone reads.
pub(super) const SECRET: u32 = 0o600;
/// The mode of a file that everybody reads.
pub(super) const PUBLIC: u32 = 0o644;
/// The file of `muster auth` that nats-server includes.
pub(crate) const ACCOUNTS: &str = "nats-server.conf";

/// Makes a certificate for a server of these names into its folder, and its authority's into a file for everybody.
pub(crate) fn certify(names: &[String], folder: &Path, authority: &Path) -> Result<(), Error> {
    // The authority is written last: with it the certificate is whole.
    if authority.exists() {
        return Ok(());
    }
    let made = certificate::certified(names)
        .map_err(|error| Error::Certificate { names: names.join(", "), source: error })?;
    keep(&folder.join("cert.pem"), &made.certificate, PUBLIC)?;
    keep(&folder.join("key.pem"), &made.key, SECRET)?;
    keep(authority, &made.authority, PUBLIC)?;
    tracing::info!(names = names.join(", "), "made a certificate");
    Ok(())
}

/// Copies a file, unless the copy has the same text already.
pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Error> {
    let text =
        std::fs::read_to_string(from).map_err(|source| Error::Prepare { path: from.to_owned(), source })?;
    if std::fs::read_to_string(to).is_ok_and(|there| there == text) {
        return Ok(());
    }
    keep(to, &text, mode)
}
