//! Stores snapshots of partitions: one file for each under `--data-dir`.
//!
//! The owner of a partition writes its file as a whole, under another name first. A file names its version, its LEDGER, its last
//! fact, the time at which LEDGER stored that fact, the token of the owner, and the digest of the rest. A file that does not match
//! is renamed and LEDGER is read instead: a snapshot saves time and contains nothing that LEDGER does not.
//!
//! The token is the fence: a former owner that writes late does not replace the file of a later one. If it did, its file would
//! still be the fold of LEDGER up to the fact that it names, and the next start would read more.
//!
//! Snapshots are files and no stream because a hot standby follows LEDGER and needs no snapshot to take over, and a process that
//! starts elsewhere reads LEDGER once. A stream would need rights and a bound.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_bus::{Bus, ReadError};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::subjects::stream;
use muster_domain::intake::{IntakeState, SNAPSHOT_VERSION, SnapshotError};
use muster_service::error::chain;
use serde::{Deserialize, Serialize};

/// Bytes of a file's first line that are read before another file takes its place.
const HEADER_MAX: u64 = 4_096;

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
    /// The sequence of the token with which the writer owned the partition.
    #[serde(default)]
    token_seq: u64,
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

/// The content of a snapshot, by its last fact, and its writer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotOrigin {
    pub(crate) partition: u16,
    pub(crate) ledger: LedgerOrigin,
    /// The sequence of the token with which the writer owns the partition.
    pub(crate) token_seq: u64,
    /// The sequence in LEDGER of the last fact that it contains.
    pub(crate) position: u64,
    /// When LEDGER stored that fact.
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

    /// Writes the snapshot of a partition. False if a later owner has written one, which stays. Blocks the thread.
    ///
    /// # Errors
    /// The file cannot be written; the file before stays.
    pub(crate) fn write(&self, origin: &SnapshotOrigin, content: &[u8]) -> io::Result<bool> {
        let header = Header {
            version: SNAPSHOT_VERSION,
            partition: origin.partition,
            ledger_created_at: origin.ledger.created_at,
            position: origin.position,
            stored_at: origin.stored_at,
            token_seq: origin.token_seq,
            digest: Digest::of_bytes(content),
        };
        let path = self.path(origin.partition);
        if is_of_later_owner(&path, &header) {
            return Ok(false);
        }
        let unfinished = path.with_extension("new");
        let mut file = fs::File::create(&unfinished)?;
        serde_json::to_writer(&mut file, &header)?;
        file.write_all(b"\n")?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(unfinished, path)?;
        Ok(true)
    }

    fn path(&self, partition: u16) -> PathBuf {
        self.0.join(format!("partition-{partition}.snapshot"))
    }
}

fn content(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    &bytes[end..]
}

/// Whether a file holds a snapshot of the same LEDGER by a later owner than a header names.
fn is_of_later_owner(path: &Path, header: &Header) -> bool {
    let mut first = String::new();
    let read =
        fs::File::open(path).and_then(|file| BufReader::new(file).take(HEADER_MAX).read_line(&mut first));
    let written: Option<Header> = read.ok().and_then(|_| serde_json::from_str(&first).ok());
    written.is_some_and(|written| {
        written.ledger_created_at == header.ledger_created_at && written.token_seq > header.token_seq
    })
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

    fn origin(token_seq: u64, position: u64) -> SnapshotOrigin {
        let ledger = LedgerOrigin { created_at: Timestamp::UNIX_EPOCH };
        SnapshotOrigin { partition: 3, ledger, token_seq, position, stored_at: Timestamp::UNIX_EPOCH }
    }

    fn written(content: &[u8]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(folder.path()).unwrap();
        snapshots.write(&origin(1, 7), content).unwrap();
        fs::read(snapshots.path(3)).unwrap()
    }

    #[test]
    fn a_former_owner_does_not_replace_the_snapshot_of_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(folder.path()).unwrap();
        let position = || check(&fs::read(snapshots.path(3)).unwrap(), 3).unwrap().position;
        assert!(snapshots.write(&origin(5, 100), b"by the owner\n").unwrap());
        assert!(snapshots.write(&origin(5, 110), b"by the owner, later\n").unwrap());
        assert!(!snapshots.write(&origin(4, 120), b"by a former owner\n").unwrap());
        assert_eq!(position(), 110);
        assert!(snapshots.write(&origin(6, 115), b"by the next owner\n").unwrap());
        assert_eq!(position(), 115);
        let mut other = origin(1, 3);
        other.ledger.created_at = "2026-01-01T00:00:00Z".parse().unwrap();
        assert!(snapshots.write(&other, b"of another LEDGER\n").unwrap());
        assert_eq!(position(), 3, "tokens of different streams are not compared");
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
