//! Stores snapshots of partitions: one file for each under `--data-dir`.
//!
//! The owner of a partition writes its file as a whole, under another name first. A file names its version, its LEDGER, its last
//! fact, the time at which LEDGER stored that fact, and the digest of the rest. A file that does not match is renamed and LEDGER
//! is read instead: a snapshot saves time and contains nothing that LEDGER does not.
//!
//! Snapshots are files and no stream because a hot standby follows LEDGER and needs no snapshot to take over, and a process that
//! starts elsewhere reads LEDGER once. A stream would need rights, a bound and a fence. A file needs no fence: a file that a
//! former owner writes late is still the fold of LEDGER up to the fact that it names.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::subjects::stream;
use muster_domain::intake::{IntakeState, SNAPSHOT_VERSION, SnapshotError};
use muster_service::error::chain;
use serde::{Deserialize, Serialize};

/// The folder with the snapshots of a process.
#[derive(Debug, Clone)]
pub struct Snapshots(Arc<Path>);

/// The first line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u32,
    partition: u16,
    /// When LEDGER was created: another value means another LEDGER.
    ledger_created_at: Timestamp,
    /// The sequence of the last fact, and when LEDGER stored it.
    position: u64,
    stored_at: Timestamp,
    digest: Digest,
}

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
    #[error("its first line is no header of a snapshot")]
    NoHeader,
    #[error("it is of version {0}, and this release reads {SNAPSHOT_VERSION}")]
    Version(u32),
    #[error("it is of partition {0}")]
    OtherPartition(u16),
    #[error("its content does not have the digest that its header names")]
    Damaged,
    #[error(transparent)]
    Content(#[from] SnapshotError),
    #[error("LEDGER is another one, was restored from a backup, or no longer holds fact {0}")]
    OtherLedger(u64),
}

/// Identifies a LEDGER by the time of its creation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LedgerOrigin {
    created_at: Timestamp,
}

/// The last fact that a snapshot contains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastFact {
    /// Its sequence in LEDGER.
    pub(crate) position: u64,
    /// When LEDGER stored it.
    pub(crate) stored_at: Timestamp,
}

impl LedgerOrigin {
    /// The LEDGER that was created at this time.
    pub(crate) const fn of(created_at: Timestamp) -> Self {
        Self { created_at }
    }
}

impl Snapshots {
    /// The snapshots in a folder, which is created if it is missing.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self(folder.into()))
    }

    /// Restores a partition from its snapshot and returns the sequence of the last fact in it. `None` if no snapshot matches;
    /// then the intake must be discarded.
    ///
    /// # Errors
    /// LEDGER cannot be read.
    pub async fn restore(
        &self,
        bus: &Bus,
        partition: u16,
        intake: &mut IntakeState,
    ) -> Result<Option<u64>, ReadError> {
        let path = self.path(partition);
        if !path.exists() {
            return Ok(None);
        }
        let read = fs::read(&path).map_err(Unfit::Io);
        let unfit = match read.and_then(|bytes| check(&bytes, partition).map(|header| (header, bytes))) {
            Ok((header, bytes)) if is_of_ledger(bus, &header).await? => {
                match intake.restore_snapshot(content(&bytes)) {
                    Ok(()) => return Ok(Some(header.position)),
                    Err(error) => Unfit::Content(error),
                }
            }
            Ok((header, _)) => Unfit::OtherLedger(header.position),
            Err(unfit) => unfit,
        };
        let renamed = path.with_extension("unfit");
        let is_renamed = fs::rename(&path, &renamed).is_ok();
        tracing::warn!(
            partition,
            error = chain(&unfit),
            file = %renamed.display(),
            is_renamed,
            "cannot use the snapshot; reading LEDGER instead"
        );
        Ok(None)
    }

    /// Writes the snapshot of a partition. Blocks the thread.
    ///
    /// # Errors
    /// The file cannot be written; the file before stays.
    pub(crate) fn write(
        &self,
        partition: u16,
        origin: LedgerOrigin,
        LastFact { position, stored_at }: LastFact,
        content: &[u8],
    ) -> io::Result<()> {
        let header = Header {
            version: SNAPSHOT_VERSION,
            partition,
            ledger_created_at: origin.created_at,
            position,
            stored_at,
            digest: Digest::of_bytes(content),
        };
        let path = self.path(partition);
        let unfinished = path.with_extension("new");
        let mut file = fs::File::create(&unfinished)?;
        serde_json::to_writer(&mut file, &header)?;
        file.write_all(b"\n")?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(unfinished, path)
    }

    fn path(&self, partition: u16) -> PathBuf {
        self.0.join(format!("partition-{partition}.snapshot"))
    }
}

fn content(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    &bytes[end..]
}

fn check(bytes: &[u8], partition: u16) -> Result<Header, Unfit> {
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let header: Header = serde_json::from_slice(first).map_err(|_| Unfit::NoHeader)?;
    match &header {
        header if header.version != SNAPSHOT_VERSION => Err(Unfit::Version(header.version)),
        header if header.partition != partition => Err(Unfit::OtherPartition(header.partition)),
        header if header.digest != Digest::of_bytes(content(bytes)) => Err(Unfit::Damaged),
        _ => Ok(header),
    }
}

/// Whether LEDGER holds the last fact of a snapshot: a LEDGER that was restored and grew again has another fact there.
async fn is_of_ledger(bus: &Bus, header: &Header) -> Result<bool, ReadError> {
    if bus.stream_state(stream::LEDGER).await?.created_at != header.ledger_created_at {
        return Ok(false);
    }
    let held = bus.at(stream::LEDGER, header.position).await?;
    Ok(held.is_some_and(|held| held.stored_at == header.stored_at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

    use super::*;

    fn written(content: &[u8]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(folder.path()).unwrap();
        let origin = LedgerOrigin { created_at: Timestamp::UNIX_EPOCH };
        snapshots
            .write(3, origin, LastFact { position: 7, stored_at: Timestamp::UNIX_EPOCH }, content)
            .unwrap();
        fs::read(snapshots.path(3)).unwrap()
    }

    #[test]
    fn a_damaged_or_foreign_snapshot_is_not_used() {
        let bytes = written(b"a line\nanother\n");
        assert_eq!(check(&bytes, 3).unwrap().position, 7);
        assert_eq!(content(&bytes), b"a line\nanother\n");
        assert!(matches!(check(&bytes, 4), Err(Unfit::OtherPartition(3))));
        assert!(matches!(check(&bytes[..bytes.len() - 1], 3), Err(Unfit::Damaged)));
        assert!(matches!(check(b"", 3), Err(Unfit::NoHeader)));
        let older = String::from_utf8(bytes)
            .unwrap()
            .replace(&format!("\"version\":{SNAPSHOT_VERSION}"), "\"version\":0");
        assert!(matches!(check(older.as_bytes(), 3), Err(Unfit::Version(0))));
    }
}
