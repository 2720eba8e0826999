//! Why the publisher cannot start. What goes wrong later is handled where it happens.

use std::io;

use muster_bus::{ConnectError, TopologyError};

/// Why the publisher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no NATS server that serves.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The streams are not what they should be.
    #[error("cannot work with the streams")]
    Topology(#[from] TopologyError),
    /// There is no place for the mirror.
    #[error("cannot make a private directory: name one with --data-dir")]
    Directory(#[source] io::Error),
}
