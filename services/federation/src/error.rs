//! Lists why the federation cannot start. Later failures are handled where they happen.

use muster_bus::{ConnectError, ReadError, TopologyError};

/// Why the federation cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no NATS server that serves.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The bucket is not what it should be.
    #[error("cannot work with the bucket of views")]
    Topology(#[from] TopologyError),
    /// Whether that server is a hub cannot be determined.
    #[error("cannot see whether --nats-url is a hub")]
    Look(#[from] ReadError),
    /// A rollup writes views of its own there.
    #[error(
        "--nats-url is a hub: it holds a LEDGER, whose rollup writes other views under the same keys; give the federation a NATS \
         server or an account of its own"
    )]
    IsHub,
}
