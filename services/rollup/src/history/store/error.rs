//! Why a checkpoint is not made, and why one is of no use.

use std::io;

use crate::store::{Damage, StoreError};

/// Why a checkpoint is not made.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The source snapshot is damaged.
    #[error("the snapshot cannot be copied")]
    Snapshot(#[from] Damage),
    /// It cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be packed.
    #[error("cannot pack records")]
    Pack(#[source] io::Error),
}

/// Why a checkpoint is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// SQLite cannot read it.
    #[error("it cannot be read")]
    Unreadable(#[source] rusqlite::Error),
    /// A part cannot be unpacked.
    #[error("a part of it is damaged")]
    Part(#[source] io::Error),
    /// A record is none.
    #[error("a record of it is damaged")]
    Record(#[source] serde_json::Error),
    /// It does not give the view that was true.
    #[error("its records do not match their digest")]
    Counts,
}

impl LoadError {
    /// True where the checkpoint itself is wrong, and will be so for ever. A disk that cannot be read now, and memory that
    /// is short, say nothing of it.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Unreadable(error) => crate::store::is_damage(error),
            Self::Part(error) => {
                // The unpacker names it in words only.
                let is_short =
                    error.kind() == io::ErrorKind::OutOfMemory || error.to_string().contains("memory");
                !is_short
            }
            Self::Record(_) | Self::Counts => true,
        }
    }
}
