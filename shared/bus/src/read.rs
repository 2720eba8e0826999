//! Reading one message, following a subject, and the state of a stream.

use muster_contract::Timestamp;

use crate::bus::Bus;
use crate::message::Delivery;

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The link is down or went down before the answer.
    #[error("reading {what}: no connection to NATS")]
    Disconnected {
        /// What was to be read.
        what: String,
    },
    /// No answer in time; also what a missing permission looks like.
    #[error("reading {what}: no answer in time (a missing permission looks the same)")]
    TimedOut {
        /// What was to be read.
        what: String,
    },
    /// The stream or consumer does not exist.
    #[error("reading {what}: it does not exist yet")]
    Missing {
        /// What was to be read.
        what: String,
    },
    /// The stream was recreated, emptied or restored: positions in it mean something else now.
    #[error(
        "{stream} no longer holds position {position}: its last sequence is {last_seq}; read it from the start"
    )]
    StreamReset {
        /// The stream.
        stream: String,
        /// Where the reader was.
        position: u64,
        /// The stream's last sequence now.
        last_seq: u64,
    },
    /// The server refused.
    #[error("reading {what}: {reason}")]
    Refused {
        /// What was to be read.
        what: String,
        /// The server's words.
        reason: String,
    },
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The first sequence still held; `last_seq + 1` when empty.
    pub first_seq: u64,
    /// The last sequence ever given.
    pub last_seq: u64,
    /// Messages held.
    pub messages: u64,
    /// Bytes held.
    pub bytes: u64,
    /// When the stream was created: another value means another stream.
    pub created_at: Timestamp,
}

/// A core subscription: what is published while it stands, at most once.
#[derive(Debug)]
pub struct Subscription {}

impl Subscription {
    /// The next message; `None` when the bus is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        std::future::pending().await
    }
}

impl Bus {
    /// The last message of a subject by direct get: one request, no right but that one.
    pub async fn last(&self, stream: &str, subject: &str) -> Result<Option<Delivery>, ReadError> {
        let _ = (stream, subject);
        std::future::pending().await
    }

    /// Follows a subject; survives reconnects (what is published meanwhile is missed).
    pub async fn subscribe(&self, subject: &str) -> Result<Subscription, ReadError> {
        let _ = subject;
        std::future::pending().await
    }

    /// The state of a stream.
    pub async fn stream_state(&self, stream: &str) -> Result<StreamState, ReadError> {
        let _ = stream;
        std::future::pending().await
    }
}
