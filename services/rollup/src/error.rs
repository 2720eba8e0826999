//! Lists why the rollup cannot start. Later failures are handled where they happen.

use muster_bus::{ConnectError, TopologyError};

use crate::store::StoreError;

/// Why the rollup cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory")]
    Store(#[from] StoreError),
    /// There is no NATS server that serves.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The streams are not what they should be.
    #[error("cannot work with the streams")]
    Topology(#[from] TopologyError),
    /// The process was asked to stop before it had started.
    #[error("stopped before the start was complete")]
    Stopped,
}
