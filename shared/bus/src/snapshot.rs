//! Copies a stream out of a server and into another one, with its sequence numbers and times, by the server's snapshots.
//!
//! A snapshot is one packed file in pieces. The server sends a piece more for each that is acknowledged; pieces carry their
//! number, so that a lost one is found. A restored stream is there as a whole or not at all. It copies no consumer, reads no
//! message, and knows nothing of files.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::bus::Bus;
use crate::read::{StreamInfo, StreamState};
use crate::read_error::ReadError;
use crate::request::RequestError;
use crate::wire::{ANSWER_TIMEOUT, ApiError, NoAnswer, parse};

/// Bytes of a piece, below the smallest payload that Muster requires of a server.
const PIECE_BYTES: usize = 128 * 1024;
/// How long the server may take to begin: it writes down where each message is first.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(120);
/// How long one piece may take.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the server may take to unpack and index a restored stream.
const UNPACK_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The settings and counts that a server needs beside the pieces to make the stream again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// Its settings, as the server's API writes them.
    pub config: Value,
    /// Its counts and sequences, as the server's API writes them.
    pub state: Value,
}

/// A snapshot that the server sends.
#[derive(Debug)]
pub struct SnapshotReader {
    head: SnapshotHead,
    bus: Bus,
    stream: String,
    pieces: Subscriber,
    next: u64,
}

/// A stream that is being restored.
#[derive(Debug)]
pub struct SnapshotWriter {
    bus: Bus,
    stream: String,
    to: Subject,
}

/// Why a snapshot ended early.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The server refuses it.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The request has no answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A piece was lost on the way.
    #[error("copying {stream}: piece {expected} did not arrive; run it again")]
    PieceLost {
        /// The stream.
        stream: String,
        /// Its number.
        expected: u64,
    },
    /// The server fell silent.
    #[error("copying {stream}: nothing more came within {PIECE_TIMEOUT:?}; run it again")]
    Silent {
        /// The stream.
        stream: String,
    },
    /// The server gave up.
    #[error("copying {stream}: the server ended it: {reason}")]
    Ended {
        /// The stream.
        stream: String,
        /// Its words.
        reason: String,
    },
}

#[derive(Deserialize)]
struct Target {
    deliver_subject: String,
}

impl SnapshotHead {
    /// A number of the state, such as `last_seq`.
    pub fn number(&self, field: &str) -> u64 {
        self.state[field].as_u64().unwrap_or_default()
    }
}

impl Bus {
    /// Begins a snapshot of a stream, whose checksums the server checks first.
    ///
    /// # Errors
    /// The server does not answer, or refuses: the stream is missing, in memory only, or damaged.
    pub async fn snapshot(&self, stream: &str) -> Result<SnapshotReader, SnapshotError> {
        let inbox = self.wire.client.new_inbox();
        let pieces = self.wire.client.subscribe(inbox.clone()).await;
        let what = format!("a snapshot of {stream}");
        let pieces = pieces.map_err(|_| ReadError::of(&what, NoAnswer::Disconnected.into()))?;
        let request =
            json!({"deliver_subject": inbox, "no_consumers": true, "jsck": true, "chunk_size": PIECE_BYTES});
        let subject = format!("$JS.API.STREAM.SNAPSHOT.{stream}");
        let head = self.asked(&what, &subject, request.to_string().into(), BEGIN_TIMEOUT).await?;
        Ok(SnapshotReader { head, bus: self.clone(), stream: stream.to_owned(), pieces, next: 1 })
    }

    /// Begins to restore a stream, which must not exist.
    ///
    /// # Errors
    /// The server does not answer, or refuses: the stream exists, or there is no room.
    pub async fn restore_stream(
        &self,
        stream: &str,
        head: &SnapshotHead,
    ) -> Result<SnapshotWriter, SnapshotError> {
        let what = format!("the answer to a restore of {stream}");
        let subject = format!("$JS.API.STREAM.RESTORE.{stream}");
        let body = serde_json::to_vec(head).unwrap_or_default();
        let target: Target = self.asked(&what, &subject, body.into(), BEGIN_TIMEOUT).await?;
        Ok(SnapshotWriter { bus: self.clone(), stream: stream.to_owned(), to: target.deliver_subject.into() })
    }

    async fn asked<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        subject: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<T, SnapshotError> {
        let answer = self.request(subject, body, patience).await?;
        parse(&answer).map_err(|error| ReadError::of(what, error).into())
    }
}

impl SnapshotReader {
    /// The settings and counts that a server needs beside the pieces.
    pub const fn head(&self) -> &SnapshotHead {
        &self.head
    }

    /// The next piece; `None` after the last one.
    ///
    /// # Errors
    /// A piece is lost, or the server falls silent or gives up.
    pub async fn next(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let stream = || self.stream.clone();
        let piece = timeout(PIECE_TIMEOUT, self.pieces.next()).await;
        let piece = piece.ok().flatten().ok_or_else(|| SnapshotError::Silent { stream: stream() })?;
        if piece.payload.is_empty() {
            return ended(&piece)
                .map(|()| None)
                .map_err(|reason| SnapshotError::Ended { stream: stream(), reason });
        }
        if let Some(reply) = piece.reply {
            if reply.rsplit('.').next().and_then(|number| number.parse().ok()) != Some(self.next) {
                return Err(SnapshotError::PieceLost { stream: stream(), expected: self.next });
            }
            let acknowledged = self.bus.wire.post(reply, None, None, Bytes::new()).await;
            acknowledged.map_err(|error| ReadError::of(&self.stream, error.into()))?;
        }
        self.next += 1;
        Ok(Some(piece.payload))
    }
}

/// Whether the message without a payload is the end of the file, or else why there is none.
fn ended(last: &Message) -> Result<(), String> {
    match last.status {
        None => Ok(()),
        Some(status) if status.is_success() || status == StatusCode::OK => Ok(()),
        Some(status) => Err(last.description.clone().unwrap_or_else(|| status.to_string())),
    }
}

impl SnapshotWriter {
    /// Sends a piece and waits until the server has it.
    ///
    /// # Errors
    /// The server does not answer, or gives up.
    pub async fn send(&self, piece: Bytes) -> Result<(), SnapshotError> {
        let answer = self.ask(piece, PIECE_TIMEOUT).await?;
        if answer.is_empty() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&answer).into_owned();
        Err(SnapshotError::Ended { stream: self.stream.clone(), reason })
    }

    /// Ends the file; the stream exists then.
    ///
    /// # Errors
    /// The server does not answer, or cannot make the stream of it.
    pub async fn finish(self) -> Result<StreamState, SnapshotError> {
        let answer = self.ask(Bytes::new(), UNPACK_TIMEOUT).await?;
        parse::<Value>(&answer).map_err(|error| self.refused(error))?;
        let info = self.bus.wire.api::<StreamInfo>(&format!("STREAM.INFO.{}", self.stream), &json!({})).await;
        info.map(|info| info.state()).map_err(|error| self.refused(error).into())
    }

    async fn ask(&self, piece: Bytes, patience: Duration) -> Result<Bytes, ReadError> {
        let answer = self.bus.wire.ask(self.to.clone(), None, piece, patience.max(ANSWER_TIMEOUT)).await;
        answer.map(|answer| answer.payload).map_err(|error| self.refused(error.into()))
    }

    fn refused(&self, error: ApiError) -> ReadError {
        ReadError::of(&format!("the answer to a restore of {}", self.stream), error)
    }
}
