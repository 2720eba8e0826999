//! The errors of backup and restore.

use std::io;
use std::path::{Path, PathBuf};

use muster_bus::SnapshotError;

use super::manifest::{FORMAT, MANIFEST};

/// Why a backup is not made, or not restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target exists.
    #[error("{} exists and is not overwritten: choose another directory, or move it away", .0.display())]
    Exists(PathBuf),
    /// The directory holds no finished backup.
    #[error("{} holds no {MANIFEST}: it is no backup, or one that did not end", .0.display())]
    NotABackup(PathBuf),
    /// A newer release made it.
    #[error("{} has format {found}, and this muster reads format {FORMAT}: use the newer muster that made it", .path.display())]
    Newer {
        /// The backup.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// A file of the backup is not what it was.
    #[error("{} of the backup is damaged: {reason}. Nothing was restored; use another backup", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it differs.
        reason: String,
    },
    /// The backup lacks a part that is to be restored.
    #[error("the backup holds no {0}: it was made without them")]
    Lacks(&'static str),
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
    /// A muster-rollup has its database open.
    #[error("{} is in use, or was not closed: stop muster-rollup in order while it is copied, or leave --rollup-data out", .0.display())]
    InUse(PathBuf),
    /// The database is not a rollup's.
    #[error("{} is no database of muster-rollup; --rollup-data is its --data-dir", .0.display())]
    NotOfRollup(PathBuf),
    /// The server holds other streams.
    #[error(
        "the server already has {}: restore into a server without them, before any service of the hub starts. Nothing was \
         restored", .0.join(", ")
    )]
    StreamsExist(Vec<String>),
    /// The server has none of the streams.
    #[error("the server has none of the streams of a hub: is it the right server and account?")]
    NoStreams,
    /// A stream was not copied.
    #[error("on a hub with keys, copying streams needs the role maintainer (`muster auth creds maintainer`)")]
    Stream(#[from] SnapshotError),
    /// A stream was not restored, after others were.
    #[error("{stream} was not restored; restored before it: {}. Run the command again: it goes on there", listed(.done))]
    Interrupted {
        /// The stream.
        stream: String,
        /// The streams that are restored.
        done: Vec<String>,
        /// Why.
        #[source]
        source: SnapshotError,
    },
}

impl BackupError {
    /// An error of an operation on a file.
    pub(super) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { doing, path, source }
    }

    /// Whether a rule refuses the command, in contrast to a fault.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Exists(_)
                | Self::NotABackup(_)
                | Self::Newer { .. }
                | Self::Damaged { .. }
                | Self::Lacks(_)
                | Self::InUse(_)
                | Self::NotOfRollup(_)
                | Self::StreamsExist(_)
        )
    }
}

fn listed(done: &[String]) -> String {
    if done.is_empty() { "none".to_owned() } else { done.join(", ") }
}
