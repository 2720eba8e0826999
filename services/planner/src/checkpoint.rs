//! The planner's checkpoint: one file under `--data-dir` with the fold of LEDGER up to a message, and the listed targets of
//! rollouts. A start restores it and reads only later messages of LEDGER.
//!
//! The file is a cache of LEDGER. It names its format, its LEDGER, the last message in it and the digest of the rest. If it is
//! damaged, of another format or of another LEDGER, or LEDGER does not hold its last message, it is set aside and LEDGER is read
//! from its first message. It is written under another name, synced and renamed: a process that dies leaves the file before.
//!
//! [`content`] is the content of the file, [`Checkpointer`] copies it in small steps beside the planner's work.

pub(crate) mod content;
mod writer;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_service::error::chain;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::content::{ContentError, Restored};
pub(crate) use self::writer::Checkpointer;
use crate::evidence::Evidence;
use crate::rollouts::TrackedRollouts;

/// Name of the file in the folder.
const FILE: &str = "planner.checkpoint";
/// The format of the file, with the packed form of the records of devices.
const FORMAT: u32 = 3;
/// The format of what is packed: the records of devices, which the rollup's snapshots share.
const RECORD_FORMAT: u32 = 11;

/// The folder of checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    folder: Arc<Path>,
    every: Duration,
}

/// The last message in a checkpoint, and its LEDGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerMark {
    /// Creation time of LEDGER, or of the mirror that was read.
    pub ledger_created_at: Timestamp,
    /// Sequence of the message.
    pub position: u64,
    /// Time at which LEDGER stored the message.
    pub stored_at: Timestamp,
}

/// The first line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: u32,
    records: u32,
    #[serde(flatten)]
    mark: LedgerMark,
    digest: Digest,
}

/// A restored checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) mark: LedgerMark,
    pub(crate) restored: Restored,
}

impl Checkpoint {
    /// Its last message of LEDGER.
    pub const fn mark(&self) -> LedgerMark {
        self.mark
    }

    /// The evidence alone.
    pub(crate) fn into_evidence(self) -> Evidence {
        let Restored { fleet, projection, .. } = self.restored;
        Evidence::restore(fleet, projection)
    }

    /// The state of a planner that has read LEDGER up to that message.
    pub(crate) fn into_state(self, now: Instant) -> (Evidence, TrackedRollouts) {
        let Restored { fleet, projection, devices, deployments } = self.restored;
        let (evidence, mut rollouts) = (Evidence::restore(fleet, projection), TrackedRollouts::default());
        rollouts.restore(devices, deployments, &evidence, now);
        (evidence, rollouts)
    }
}

/// Why a checkpoint does not fit.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
    #[error("its first line is no header of a checkpoint")]
    NoHeader,
    #[error("it has format {0}.{1}, this muster-planner reads {FORMAT}.{RECORD_FORMAT}")]
    Format(u32, u32),
    #[error("its content does not have the digest that its header names")]
    Damaged,
    #[error(transparent)]
    Content(#[from] ContentError),
}

impl Checkpoints {
    /// The checkpoints of a folder, which is created if it is missing, and the time between two of them.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn open(folder: &Path, every: Duration) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.into(), every })
    }

    /// Restores the checkpoint; `None` if there is none that fits. Blocks the thread.
    pub fn restore(&self) -> Option<Checkpoint> {
        let bytes = match fs::read(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            read => read.map_err(Unfit::Io),
        };
        let line = bytes.as_ref().ok().map(|bytes| first_line(bytes).to_vec());
        match bytes.and_then(|bytes| parse(&bytes)) {
            Ok(checkpoint) => Some(checkpoint),
            Err(unfit) => {
                self.set_aside_if(|now| now == line.as_deref(), &chain(&unfit));
                None
            }
        }
    }

    /// Renames the checkpoint up to a message, so that a person can examine it, and logs why. One that another task has written
    /// meanwhile stays.
    pub(crate) fn set_aside(&self, mark: LedgerMark, reason: &str) {
        let mark_of = |line: &[u8]| serde_json::from_slice(line).ok().map(|header: Header| header.mark);
        self.set_aside_if(|line| line.and_then(mark_of) == Some(mark), reason);
    }

    /// Renames the checkpoint if it is still the one that was read, by its first line (`None` if it cannot be read).
    fn set_aside_if(&self, is_same: impl FnOnce(Option<&[u8]>) -> bool, reason: &str) {
        let (path, to) = (self.path(), self.path().with_extension("set-aside"));
        if !is_same(read_first_line(&path).ok().as_deref()) {
            tracing::warn!(
                reason,
                "kept another checkpoint than the one read, reading LEDGER from its first message"
            );
            return;
        }
        let is_renamed = fs::rename(path, &to).is_ok();
        tracing::warn!(reason, file = %to.display(), is_renamed, "set the checkpoint aside, reading LEDGER from its first message");
    }

    /// Writes a checkpoint. Blocks the thread.
    ///
    /// # Errors
    /// The file cannot be written; the file before stays.
    fn write(&self, mark: LedgerMark, content: &[u8]) -> io::Result<()> {
        let digest = Digest::of_bytes(content);
        let header = Header { format: FORMAT, records: RECORD_FORMAT, mark, digest };
        let unfinished = self.path().with_extension("new");
        let mut file = fs::File::create(&unfinished)?;
        serde_json::to_writer(&mut file, &header)?;
        file.write_all(b"\n")?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(unfinished, self.path())
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }
}

/// Restores the checkpoint on a thread of its own: a large one takes seconds.
pub(crate) async fn restore(checkpoints: Option<Checkpoints>) -> Option<Checkpoint> {
    let checkpoints = checkpoints?;
    match tokio::task::spawn_blocking(move || checkpoints.restore()).await {
        Ok(restored) => restored,
        Err(error) => {
            tracing::error!(%error, "cannot restore the checkpoint, reading LEDGER from its first message");
            None
        }
    }
}

/// The bytes before the first line break.
fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

fn read_first_line(path: &Path) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(fs::File::open(path)?).read_until(b'\n', &mut line)?;
    Ok(first_line(&line).to_vec())
}

fn parse(bytes: &[u8]) -> Result<Checkpoint, Unfit> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(Unfit::NoHeader)?;
    let (header, content) = (&bytes[..end], &bytes[end + 1..]);
    let Header { format, records, mark, digest } =
        serde_json::from_slice(header).map_err(|_| Unfit::NoHeader)?;
    if (format, records) != (FORMAT, RECORD_FORMAT) {
        return Err(Unfit::Format(format, records));
    }
    if digest != Digest::of_bytes(content) {
        return Err(Unfit::Damaged);
    }
    Ok(Checkpoint { mark, restored: content::read(content, mark)? })
}

#[cfg(test)]
mod tests;
