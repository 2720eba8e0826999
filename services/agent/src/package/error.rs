//! The error of placing a package. Its texts reach everyone who reads a device's status, so addresses are without secrets.

use std::io;
use std::path::PathBuf;

use muster_contract::canonical::Digest;

use super::settings::PACKAGE_BYTES_MAX;

/// The error of placing a package.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// The address is none that this agent fetches.
    #[error("its package is at {address}, which cannot be fetched: {rule}")]
    Address {
        /// The address.
        address: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The server cannot be reached, or the link is lost.
    #[error(
        "its package cannot be fetched from {address}: the transfer is tried again and goes on where it ended"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refuses.
    #[error("its package cannot be fetched from {address}: the server answers {status}{hint}")]
    Refused {
        /// The address.
        address: String,
        /// The status of the answer.
        status: u16,
        /// The next step for a person.
        hint: &'static str,
    },
    /// The package or a document about it is larger than allowed.
    #[error("its package at {address} has more than {max} bytes, the most that are allowed here")]
    Large {
        /// The address.
        address: String,
        /// The bound.
        max: u64,
    },
    /// The content is another than the one asked for.
    #[error(
        "its package at {address} has the digest {found} and not {expected}: the file was changed or damaged"
    )]
    Digest {
        /// The address.
        address: String,
        /// The digest of what was fetched.
        found: Digest,
        /// The digest that was asked for.
        expected: Digest,
    },
    /// The registry's description of the artifact cannot be used.
    #[error("the artifact {address} cannot be used: {rule}")]
    Artifact {
        /// The address.
        address: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The archive cannot be used.
    #[error("the archive of {address} cannot be used: {rule}")]
    Archive {
        /// The address.
        address: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The object of the hub's object store cannot be used.
    #[error("its package {address} cannot be used: {rule}")]
    Object {
        /// The address.
        address: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// A key for signatures cannot be used.
    #[error("the key {address} for signatures of packages cannot be used: {rule}")]
    Key {
        /// Its address or file.
        address: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// The file of a key cannot be read.
    #[error("the key {} for signatures of packages cannot be read", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An OpenPGP signature cannot be verified.
    #[error("the OpenPGP signature of its package cannot be verified by the command gpgv{hint}")]
    Gpgv {
        /// The next step for a person.
        hint: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A package lacks a signature that it needs.
    #[error("its package at {address} is not signed by {whose}: {}", signatures(.count))]
    Signature {
        /// The address.
        address: String,
        /// The signatures that it has.
        count: usize,
        /// The key that is demanded.
        whose: &'static str,
    },
    /// The file with credentials cannot be used.
    #[error("the credentials of package hosts cannot be read from {} (--package-auth)", .path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("the certificates of package hosts cannot be read from {} (--package-ca)", .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file or folder of the package cannot be read or written.
    #[error("its package cannot be stored at {}", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No one waits for the package any more.
    #[error("the fetch was cancelled")]
    Cancelled,
    /// The thread that fetches panicked.
    #[error("the thread that fetches its package panicked")]
    Panicked(#[from] tokio::task::JoinError),
}

fn signatures(count: &usize) -> String {
    match count {
        0 => "it has no signature; sign it with `cosign sign --key` or, beside an archive, with `cosign sign-blob` (.sig) or `gpg --armor --detach-sign` (.asc)".to_owned(),
        1 => "its signature is of another key or another content".to_owned(),
        _ => format!("its {count} signatures are of other keys or another content"),
    }
}

impl PackageError {
    /// An error for a key.
    pub(super) fn key(address: &str, rule: &'static str) -> Self {
        Self::Key { address: address.to_owned(), rule }
    }

    /// An error for a package that is too large.
    pub(super) fn large(address: &str) -> Self {
        Self::Large { address: address.to_owned(), max: PACKAGE_BYTES_MAX }
    }
}
