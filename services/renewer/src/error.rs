//! Why the renewer cannot start. The rounds handle later errors.

use muster_bus::ConnectError;

use crate::keys::KeysError;

/// Why the renewer cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No usable NATS server.
    #[error("cannot work with NATS")]
    Connect(#[from] ConnectError),
    /// The directory of keys cannot be used.
    #[error("cannot use the directory of keys")]
    Keys(#[from] KeysError),
    /// The process is stopping.
    #[error("stopped")]
    Stopped,
}
