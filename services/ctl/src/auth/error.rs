//! Why an identity is not made, given or taken.

use std::io;
use std::path::PathBuf;

use muster_bus::RequestError;
use muster_identity::{RosterError, TokenError};

use crate::reach::ReachError;

/// Why an identity is not made, given or taken.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// There is something already.
    #[error(
        "{} is there already and is not written over: whoever it let in would be out. Choose another --dir, or move it \
         away if that is wanted", .0.display()
    )]
    Exists(PathBuf),
    /// There is nothing yet.
    #[error("{} holds no keys; `muster auth init --dir {}` makes some", .0.display(), .0.display())]
    Nothing(PathBuf),
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
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{} is not {wanted}; restore it from a backup", .path.display())]
    Broken {
        /// Which.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// The file for new credentials holds something else.
    #[error("{} is there already and holds no credentials; choose another file", .0.display())]
    NoCreds(PathBuf),
    /// Nothing is known of the device's key.
    #[error(
        "no key of {0} is recorded: run `muster-agent key --data-dir …` on the device and give what it prints as --key"
    )]
    NoKey(String),
    /// The rules of the roster.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// Signing failed.
    #[error("cannot sign")]
    Sign(#[from] TokenError),
    /// No server heard of a revocation that stands.
    #[error(
        "it is recorded and signed, but NO SERVER KNOWS YET: whoever is out can still come in. Run `muster auth push` as \
         soon as a server can be reached"
    )]
    NotPushed(#[source] Box<AuthError>),
    /// The hub did not take a renewed JWT.
    #[error(
        "it is recorded and signed, but the hub does not have it: the device goes on with its older one. Run it again, or \
         carry a file (`-o`, then `muster-agent accept` on the device)"
    )]
    NotSent(#[source] Box<AuthError>),
    /// The stream says nothing.
    #[error(
        "DOWNLINK did not answer within {0:?}; does it take muster.credential.*.* (it was made by an older release?), and \
         do the servers know the accounts as they are now (`muster auth push`)?"
    )]
    Mute(std::time::Duration),
    /// The stream says no.
    #[error(transparent)]
    Unstored(#[from] muster_bus::PublishError),
    /// There is no connection.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// No server answers.
    #[error("no server confirms the account; does it include DIR/nats-server.conf?")]
    Silent(#[source] RequestError),
    /// A server says no.
    #[error("the server refuses the account: {0}")]
    Refused(String),
}

impl AuthError {
    /// Whether the answer is no, not that something is broken.
    pub const fn is_no(&self) -> bool {
        matches!(
            self,
            Self::Exists(_) | Self::Outdated(_) | Self::Roster(_) | Self::NoKey(_) | Self::NoCreds(_)
        )
    }
}
