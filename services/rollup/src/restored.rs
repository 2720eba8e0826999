//! Takes over databases that `muster restore --from` has put into the data directory.
//!
//! A restored LEDGER has its former sequences, but to the server it is a new stream with another time of creation, by which
//! the databases name it. The restore leaves that time in a file, which is read once. Whether the snapshot fits LEDGER is
//! judged afterwards as for any other: one that is ahead of LEDGER is set aside.

use std::fs;
use std::io;
use std::path::Path;

use muster_contract::Timestamp;
use serde::Deserialize;

use crate::history::store::name_ledger;
use crate::store::StoreError;

/// The file that the restore leaves.
const NOTE: &str = "restored.json";

/// The note of a restore.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    /// When the restored LEDGER was created.
    created_at: Timestamp,
}

/// Names the restored LEDGER in the databases of a directory, if a restore has put them there.
///
/// # Errors
/// The directory or a database cannot be read or written.
pub(crate) fn take_over(directory: &Path) -> Result<(), StoreError> {
    let path = directory.join(NOTE);
    let unusable = |source| StoreError::Directory { path: path.clone(), source };
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unusable(error)),
    };
    match serde_json::from_slice::<Note>(&text) {
        Ok(note) => {
            name_ledger(directory, note.created_at)?;
            tracing::info!(created_at = %note.created_at, "took restored databases over");
        }
        Err(error) => tracing::warn!(%error, path = %path.display(), "cannot read the note of a restore"),
    }
    fs::remove_file(&path).map_err(unusable)
}
