//! Why a stream, a consumer or a subject cannot be read.

use crate::wire::{ApiError, NoAnswer};

/// JetStream's codes for a missing stream and a missing consumer.
const MISSING: [u64; 2] = [10059, 10014];

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The link is down or went down before the answer.
    #[error("reading {what}: no connection to NATS")]
    Disconnected {
        /// The name of what the caller reads.
        what: String,
    },
    /// No answer in time; a missing permission has the same effect.
    #[error("reading {what}: no answer in time; if a permission is missing, the log names it")]
    TimedOut {
        /// The name of what the caller reads.
        what: String,
    },
    /// The stream or consumer does not exist, or has no leader now.
    #[error("reading {what}: it does not exist now; the first service that starts creates it")]
    Missing {
        /// The name of what the caller reads.
        what: String,
    },
    /// The stream was recreated, emptied or restored: positions in it mean something else now.
    #[error(
        "{stream} no longer holds position {position}: its last sequence is {last_seq}; read it from the start"
    )]
    StreamReset {
        /// The stream.
        stream: String,
        /// The reader's position.
        position: u64,
        /// The stream's last sequence now.
        last_seq: u64,
    },
    /// Messages after the position are gone: the reader was away for longer than the stream keeps them.
    #[error(
        "{stream} no longer holds what follows position {position}: it begins at {first_seq}; read it from the start"
    )]
    Trimmed {
        /// The stream.
        stream: String,
        /// The reader's position.
        position: u64,
        /// The first sequence the stream holds.
        first_seq: u64,
    },
    /// The server, or the bus itself, refuses.
    #[error("reading {what} was refused")]
    Refused {
        /// The name of what the caller reads.
        what: String,
        /// The refusal.
        #[source]
        source: ApiError,
    },
}

impl ReadError {
    /// The error of reading `what`.
    pub(crate) fn of(what: &str, error: ApiError) -> Self {
        let what = what.to_owned();
        match error {
            ApiError::NoAnswer(NoAnswer::Disconnected) => Self::Disconnected { what },
            ApiError::NoAnswer(NoAnswer::TimedOut(_)) => Self::TimedOut { what },
            ApiError::NoAnswer(NoAnswer::NoResponders) => Self::Missing { what },
            ApiError::Refused { code, .. } if MISSING.contains(&code) => Self::Missing { what },
            source => Self::Refused { what, source },
        }
    }

    /// True if trying again may help.
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::StreamReset { .. } | Self::Trimmed { .. })
    }
}
