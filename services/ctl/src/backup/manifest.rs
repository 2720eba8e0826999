//! The manifest of a backup: its version, and each file with its size and digest. It is written last, so a directory without one is
//! no backup.

use muster_bus::SnapshotHead;
use muster_contract::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the directory's layout.
pub const FORMAT: u64 = 1;
/// The file that is written last.
pub const MANIFEST: &str = "manifest.json";

/// The contents of a backup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The version of the layout.
    pub format: u64,
    /// The release that made it.
    pub made_by: String,
    /// When it was begun.
    pub created_at: Timestamp,
    /// The streams, in the order in which they were copied.
    pub streams: Vec<SavedStream>,
    /// The directory of keys; empty if it was left out.
    pub keys: Vec<SavedFile>,
    /// The databases of a rollup; empty if they were left out.
    pub rollup: Vec<SavedFile>,
}

/// A copied stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedStream {
    /// Its name.
    pub name: String,
    /// Its settings and counts.
    #[serde(flatten)]
    pub head: SnapshotHead,
    /// Its file.
    pub file: SavedFile,
}

/// A copied file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedFile {
    /// Its path below the backup.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// The digest of its bytes.
    pub digest: String,
    /// The access mode of the original.
    pub mode: u32,
}
