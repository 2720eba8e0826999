//! The link to the server as a watched value.

/// Whether there is a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Connected; the count rises with every new connection.
    Up {
        /// Connections made so far, this one included.
        since_count: u64,
    },
    /// Not connected; the bus reconnects by itself.
    Down,
}

impl Link {
    /// True when connected.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}
