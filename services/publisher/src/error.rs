//! Why the publisher cannot start. Later failures are handled where they happen.

use std::io;

use muster_bus::{ConnectError, TopologyError};

/// Why the publisher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No usable NATS server.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The streams cannot be used.
    #[error("cannot work with the streams")]
    Topology(#[from] TopologyError),
    /// The mirror's directory cannot be created.
    #[error("cannot make a private directory: name one with --data-dir")]
    Directory(#[source] io::Error),
}
