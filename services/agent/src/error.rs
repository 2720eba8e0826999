//! Why an agent does not start, or stops by itself. Errors of one room stand in that room.

use crate::{db, identity};

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its database cannot be used.
    #[error("the agent cannot start")]
    Database(#[from] db::Error),
    /// The thread that opens the database did not come back.
    #[error("the agent cannot start: opening the database was cut short")]
    Interrupted(#[from] tokio::task::JoinError),
    /// It cannot ask to be let in.
    #[error("the agent cannot ask to be let in")]
    Join(#[from] identity::IdentityError),
}

/// Why a running agent stops by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It must start again with a new database.
    #[error(
        "the database was found damaged: workloads go on; start the agent again, it sets the file aside and begins a new epoch"
    )]
    Damaged,
}
