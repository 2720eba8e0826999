//! The errors of the commands for identities.

use std::io;
use std::path::PathBuf;

use muster_bus::RequestError;
use muster_identity::{RegistryError, TokenError};

use crate::reach::ReachError;

/// An error of a command for identities.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The directory exists.
    #[error(
        "{} exists and is not overwritten, because its users would lose access. Choose another --dir, or move it away if \
         that is intended", .0.display()
    )]
    Exists(PathBuf),
    /// The directory has no keys.
    #[error("{} has no keys; `muster auth init --dir {}` creates them", .0.display(), .0.display())]
    Missing(PathBuf),
    /// An older release made the directory.
    #[error(
        "{} was made by an older release and lacks accounts that keep readers from writing; run `muster auth upgrade \
         --dir {}` first", .0.display(), .0.display()
    )]
    Outdated(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// `read`, `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file has other content.
    #[error("{} is not {wanted}; restore it from a backup", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The expected content.
        wanted: &'static str,
    },
    /// The file for new credentials has other content.
    #[error("{} exists and has no credentials; choose another file", .0.display())]
    NoCreds(PathBuf),
    /// The registry has no key of the device.
    #[error(
        "no key of {0} is recorded: run `muster-agent key --data-dir …` on the device and pass its output as --key"
    )]
    NoKey(String),
    /// A rule of the registry refuses it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Only the credentials of a gateway for devices name sites.
    #[error("the role {0} is not limited to sites: omit --site")]
    NoSites(&'static str),
    /// The certificate is accepted as another device.
    #[error("{identity} is accepted as {device}; add --replace to accept it as another device")]
    AnotherDevice {
        /// The certificate's identity.
        identity: String,
        /// Its device.
        device: String,
    },
    /// A line of a file names no device.
    #[error("{}:{line}: {rule}", .path.display())]
    ChildrenFile {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The rule that it breaks.
        rule: String,
    },
    /// A rule refuses a device behind a gateway.
    #[error("{device} cannot be behind {identity}: {rule}")]
    Child {
        /// The gateway's certificate.
        identity: String,
        /// The device.
        device: String,
        /// The rule.
        rule: String,
    },
    /// The hub does not know the certificate.
    #[error("{0} was never accepted; `muster auth clients` lists those that were")]
    NoClient(String),
    /// The bucket of clients cannot be read.
    #[error(transparent)]
    Read(#[from] muster_bus::ReadError),
    /// The hub did not store a decision about a client.
    #[error("the hub did not answer within {0:?}: ask `muster auth clients` what it holds, and run it again")]
    ClientTimedOut(std::time::Duration),
    /// Signing failed.
    #[error("cannot sign")]
    Sign(#[from] TokenError),
    /// No server got a recorded revocation.
    #[error(
        "it is recorded and signed, but NO SERVER KNOWS YET: revoked keys can still connect. Run `muster auth push` as \
         soon as a server can be reached"
    )]
    NotPushed(#[source] Box<AuthError>),
    /// The hub did not store a renewed JWT.
    #[error(
        "it is recorded and signed, but the hub does not have it: the device still uses its older one. Run it again, or \
         copy a file (`-o`, then `muster-agent accept` on the device)"
    )]
    NotSent(#[source] Box<AuthError>),
    /// The stream does not answer.
    #[error(
        "DOWNLINK did not answer within {0:?}; does it have the subject muster.credential.*.* (an older release may have \
         created it), and do the servers have the current accounts (`muster auth push`)?"
    )]
    StoreTimedOut(std::time::Duration),
    /// The stream refuses it.
    #[error(transparent)]
    NotStored(#[from] muster_bus::PublishError),
    /// There is no connection.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// No server answers.
    #[error("no server confirms the account; does it include DIR/nats-server.conf?")]
    NoAnswer(#[source] RequestError),
    /// A server refuses it.
    #[error("the server refuses the account: {0}")]
    Refused(String),
}

impl AuthError {
    /// Whether a rule refuses the command, in contrast to a fault.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Exists(_)
                | Self::Outdated(_)
                | Self::Registry(_)
                | Self::NoKey(_)
                | Self::NoCreds(_)
                | Self::NoSites(_)
                | Self::AnotherDevice { .. }
                | Self::ChildrenFile { .. }
                | Self::Child { .. }
                | Self::NoClient(_)
        )
    }
}
