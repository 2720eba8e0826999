//! Why a snapshot does not hold, and why the data directory cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use muster_contract::Timestamp;
use rusqlite::ErrorCode;

/// Why a snapshot does not hold.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The file is not a database, or not one of ours.
    #[error("it is not a snapshot of muster-rollup")]
    Stranger,
    /// It was written by another version.
    #[error("it has format {found}, this muster-rollup reads format {read}")]
    Format {
        /// The format it has.
        found: i64,
        /// The format that is read.
        read: i64,
    },
    /// SQLite cannot read it.
    #[error("it cannot be read")]
    Unreadable(#[source] rusqlite::Error),
    /// A record was altered.
    #[error("its record of {key} is damaged")]
    Record {
        /// The device.
        key: String,
    },
    /// Its records do not give the view that was true when it was written.
    #[error("its records do not match their digest")]
    Counts,
    /// The snapshot belongs to another LEDGER.
    #[error("it is of a LEDGER created at {of}, this one was created at {now}")]
    OtherLedger {
        /// When its LEDGER was created.
        of: Timestamp,
        /// When this LEDGER was created.
        now: Timestamp,
    },
}

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made or written.
    #[error(
        "{path} must be a directory this user may write to: make it so, or choose another with --data-dir"
    )]
    Directory {
        /// The directory, or a file in it.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another process has the snapshot open.
    #[error("{path} is in use: another muster-rollup runs on it; give each its own --data-dir")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The disk is full.
    #[error("no space left for {path}: free some, or choose another place with --data-dir")]
    Full {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
    /// The file cannot be written.
    #[error(
        "cannot write {path}: see that this user may write it and its directory, and that the disk is healthy"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
}

/// Whether an error is about what the file holds, and not about reaching it.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    let out_of_reach = [
        ErrorCode::CannotOpen,
        ErrorCode::ReadOnly,
        ErrorCode::PermissionDenied,
        ErrorCode::DatabaseBusy,
        ErrorCode::DatabaseLocked,
        ErrorCode::DiskFull,
        ErrorCode::SystemIoFailure,
        ErrorCode::OutOfMemory,
    ];
    error.sqlite_error_code().is_none_or(|code| !out_of_reach.contains(&code))
}

pub(crate) fn write_error(path: &Path, source: rusqlite::Error) -> StoreError {
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::InUse { path },
        Some(ErrorCode::DiskFull) => StoreError::Full { path, source },
        _ => StoreError::Write { path, source },
    }
}
