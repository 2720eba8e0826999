//! Why ingest cannot start, or cannot go on. What may pass is handled where it happens.

use std::io;
use std::path::PathBuf;

use muster_bus::{ConnectError, ReadError, TopologyError};

/// Why ingest cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no NATS server that serves.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The streams are not what they should be.
    #[error("cannot work with the streams")]
    Topology(#[from] TopologyError),
    /// There is no place for snapshots.
    #[error("cannot make the folder {} for snapshots; give another --data-dir, or none", folder.display())]
    DataDir {
        /// The folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// LEDGER cannot be read.
    #[error("cannot read what LEDGER holds")]
    Restore(#[from] ReadError),
}

/// Why a partition cannot go on: another start reads LEDGER from its beginning.
#[derive(Debug, thiserror::Error)]
#[error("cannot tell what LEDGER holds of partition {partition}; start again")]
pub struct PartitionError {
    /// The partition.
    pub partition: u16,
    /// What happened.
    #[source]
    pub source: ReadError,
}

/// LEDGER is another one than this process has read, or was set back to an older state: this process knows too much.
#[derive(Debug, thiserror::Error)]
#[error(
    "LEDGER ends at {ends_at}, and {known} was known to be in it: it was deleted, recreated or set back to an older state. \
     Start again: what LEDGER holds is read anew, and devices send again what it lacks"
)]
pub struct LedgerReplaced {
    /// The highest position known.
    pub known: u64,
    /// Where LEDGER ends now.
    pub ends_at: u64,
}
