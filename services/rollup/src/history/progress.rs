//! The progress of a rebuild, as its steps report it. [`super::point_in_time`] keeps it for requesters.

/// Receives the progress of a rebuild.
pub trait ReadProgress: Sync {
    /// LEDGER is read up to `at`, of the facts up to `to`.
    fn read(&self, at: u64, to: u64);
}
