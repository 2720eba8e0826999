//! The format of answers. It renders none.

/// How every command can show an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people
    Table,
    /// For programs: the contract's documents as they are
    Json,
}
