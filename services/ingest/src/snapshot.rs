//! Snapshots of what this process knows of its partitions: a file for each under `--data-dir`.
//!
//! The owner of a partition writes its file, in whole and under another name first. A file says its version, of which LEDGER it
//! is, up to which fact, when LEDGER stored that fact, and the digest of the rest. One that does not fit is set aside and
//! LEDGER is read instead: a snapshot saves time and holds nothing that LEDGER does not.
//!
//! Why files and no stream: a hot standby follows LEDGER and needs no snapshot to take over, and a process that starts elsewhere
//! reads LEDGER once. A stream would need rights, a bound and an owner's fence of its own. A file needs no fence: whatever a
//! former owner writes late is still the fold of LEDGER up to the fact that it names.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::subjects::stream;
use muster_domain::border::{Border, SNAPSHOT_VERSION, SnapshotError};
use muster_service::error::chain;
use serde::{Deserialize, Serialize};

/// The folder with the snapshots of a process.
#[derive(Debug, Clone)]
pub struct Snapshots(Arc<Path>);

/// What the first line of a file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u32,
    partition: u16,
    /// When LEDGER was made: another value means another LEDGER.
    ledger_created_at: Timestamp,
    /// The fact up to which LEDGER is in it, and when LEDGER stored it.
    position: u64,
    stored_at: Timestamp,
    digest: Digest,
}

/// Why a snapshot is of no use.
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
    #[error("its content does not have the digest that it names")]
    Damaged,
    #[error(transparent)]
    Content(#[from] SnapshotError),
    #[error("LEDGER is not the one it was made of, or was set back, or no longer holds fact {0}")]
    OtherLedger(u64),
}

/// Which LEDGER this is.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    created_at: Timestamp,
}

impl Origin {
    /// The LEDGER that was created then.
    pub const fn of(created_at: Timestamp) -> Self {
        Self { created_at }
    }
}

impl Snapshots {
    /// The snapshots in a folder, made where it is missing.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self(folder.into()))
    }

    /// Restores the border of a partition from its snapshot; the position up to which it knows LEDGER then. None where there
    /// is no snapshot that fits; the border knows nothing then.
    ///
    /// # Errors
    /// LEDGER cannot be read.
    pub async fn restore(
        &self,
        bus: &Bus,
        partition: u16,
        border: &mut Border,
    ) -> Result<Option<u64>, ReadError> {
        let path = self.path(partition);
        if !path.exists() {
            return Ok(None);
        }
        let read = fs::read(&path).map_err(Unfit::Io);
        let unfit = match read.and_then(|bytes| check(&bytes, partition).map(|header| (header, bytes))) {
            Ok((header, bytes)) if is_of_ledger(bus, &header).await? => {
                match border.restore_snapshot(content(&bytes)) {
                    Ok(()) => return Ok(Some(header.position)),
                    Err(error) => Unfit::Content(error),
                }
            }
            Ok((header, _)) => Unfit::OtherLedger(header.position),
            Err(unfit) => unfit,
        };
        let aside = path.with_extension("unfit");
        let is_aside = fs::rename(&path, &aside).is_ok();
        tracing::warn!(
            partition,
            error = chain(&unfit),
            file = %aside.display(),
            is_aside,
            "cannot use the snapshot; reading LEDGER instead"
        );
        Ok(None)
    }

    /// Writes the snapshot of a partition whose border knows LEDGER up to a position. Blocks the thread.
    ///
    /// # Errors
    /// The file cannot be written; the one before stays.
    pub fn write(
        &self,
        partition: u16,
        origin: Origin,
        (position, stored_at): (u64, Timestamp),
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
        let under_way = path.with_extension("new");
        let mut file = fs::File::create(&under_way)?;
        serde_json::to_writer(&mut file, &header)?;
        file.write_all(b"\n")?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(under_way, path)
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

/// Whether LEDGER holds the fact up to which a snapshot goes: one that was set back and grew again has another one there.
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
        let origin = Origin { created_at: Timestamp::UNIX_EPOCH };
        snapshots.write(3, origin, (7, Timestamp::UNIX_EPOCH), content).unwrap();
        fs::read(snapshots.path(3)).unwrap()
    }

    #[test]
    fn a_snapshot_of_another_version_or_partition_or_with_damage_is_unfit() {
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
