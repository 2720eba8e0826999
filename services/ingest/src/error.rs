//! The errors that end ingest. Transient errors are handled where they occur.

use std::io;
use std::path::PathBuf;

use muster_bus::{ConnectError, ReadError, TopologyError};

/// Why ingest cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No NATS server accepts the connection.
    #[error("cannot connect to NATS")]
    Connect(#[from] ConnectError),
    /// The streams cannot be created, or differ from their definition.
    #[error("cannot create or check the streams")]
    Topology(#[from] TopologyError),
    /// The folder for snapshots cannot be created.
    #[error("cannot create the folder {} for snapshots; give another --data-dir, or none", folder.display())]
    DataDir {
        /// The folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// LEDGER cannot be read.
    #[error("cannot read LEDGER")]
    Restore(#[from] ReadError),
}

/// Why a partition cannot continue.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the facts of partition {partition} from LEDGER; start ingest again: it then reads LEDGER from its beginning"
)]
pub(crate) struct PartitionError {
    /// The partition.
    pub partition: u16,
    /// Why.
    #[source]
    pub source: ReadError,
}

/// LEDGER is another one than this process has read, or was restored from a backup: it lacks facts that this process knows.
#[derive(Debug, thiserror::Error)]
#[error(
    "LEDGER ends at {ends_at}, before the known fact {known}: it was deleted, created again or restored from a backup. Start \
     ingest again: it then reads LEDGER from its beginning, and devices send the missing reports again"
)]
pub(crate) struct LedgerReplaced {
    /// The highest known sequence.
    pub known: u64,
    /// The last sequence of LEDGER now.
    pub ends_at: u64,
}
