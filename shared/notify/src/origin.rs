//! Which LEDGER a projection has read: positions of two LEDGERs cannot be compared.

use muster_contract::Timestamp;

/// The LEDGER of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// When the stream was created.
    pub created_at: Timestamp,
    /// How often this process has started over.
    pub restarts: u64,
}
