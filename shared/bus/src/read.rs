//! Reading one message, following a subject, and the state of a stream.

use async_nats::client::SubscribeErrorKind;
use async_nats::{StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_contract::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::bus::Bus;
use crate::message::Delivery;
use crate::wire::{ANSWER_TIMEOUT, ApiError, NoAnswer, Wire};

/// JetStream's codes for a stream and a consumer that are not there.
const MISSING: [u64; 2] = [10059, 10014];

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
    #[error("reading {what}: no answer in time; if a permission is missing, the log names it")]
    TimedOut {
        /// What was to be read.
        what: String,
    },
    /// There is no such stream or consumer, or nobody leads it now.
    #[error("reading {what}: there is none now; it comes with the first service that starts")]
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
    /// Messages after the position are gone: the reader was away for longer than the stream keeps them.
    #[error(
        "{stream} no longer holds what follows position {position}: it begins at {first_seq}; read it from the start"
    )]
    Trimmed {
        /// The stream.
        stream: String,
        /// Where the reader was.
        position: u64,
        /// The first sequence the stream holds.
        first_seq: u64,
    },
    /// The server, or the bus itself, refuses.
    #[error("reading {what} was refused")]
    Refused {
        /// What was to be read.
        what: String,
        /// By whom and why.
        #[source]
        source: ApiError,
    },
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The first sequence still held; `last_seq + 1` when empty.
    pub first_seq: u64,
    /// The last sequence ever given.
    pub last_seq: u64,
    /// When the first one held was stored; meaningless when empty.
    pub first_at: Timestamp,
    /// Messages held.
    pub messages: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Bytes it may hold, if that is bounded.
    pub bytes_max: Option<u64>,
    /// When the stream was created: another value means another stream.
    pub created_at: Timestamp,
    /// Servers that keep it.
    pub replicas: usize,
}

/// A core subscription: what is published while it stands, at most once.
#[derive(Debug)]
pub struct Subscription {
    messages: Subscriber,
}

impl Subscription {
    /// The next message; `None` when the bus is gone. A message that a stream republished comes as the original:
    /// its subject, sequence and time. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.messages.next().await.map(Delivery::from_original)
    }
}

impl Bus {
    /// The last message of a subject by direct get: one request, no right but
    /// `$JS.API.DIRECT.GET.<stream>.<subject>`.
    pub async fn last(&self, stream: &str, subject: &str) -> Result<Option<Delivery>, ReadError> {
        self.direct(format!("$JS.API.DIRECT.GET.{stream}.{subject}"), Bytes::new(), subject).await
    }

    /// The message at a sequence by direct get; `None` where the stream holds none there.
    pub async fn at(&self, stream: &str, sequence: u64) -> Result<Option<Delivery>, ReadError> {
        let body = Bytes::from(json!({ "seq": sequence }).to_string());
        let what = format!("{sequence} of {stream}");
        self.direct(format!("$JS.API.DIRECT.GET.{stream}"), body, &what).await
    }

    /// The first message at a sequence or after it, by direct get; `None` where the stream holds none there.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn from(&self, stream: &str, sequence: u64) -> Result<Option<Delivery>, ReadError> {
        let body = Bytes::from(json!({ "seq": sequence, "next_by_subj": ">" }).to_string());
        let what = format!("{sequence} of {stream}");
        self.direct(format!("$JS.API.DIRECT.GET.{stream}"), body, &what).await
    }

    async fn direct(&self, request: String, body: Bytes, what: &str) -> Result<Option<Delivery>, ReadError> {
        let answer = self.wire.ask(Subject::from(request), None, body, ANSWER_TIMEOUT).await;
        let answer = answer.map_err(|error| ReadError::of(what, error.into()))?;
        match answer.status {
            None => Ok(Some(Delivery::from_original(answer))),
            Some(StatusCode::NOT_FOUND) => Ok(None),
            Some(status) => Err(ReadError::Refused {
                what: what.to_owned(),
                source: ApiError::Refused {
                    code: u16::from(status).into(),
                    description: answer.description.unwrap_or_default(),
                },
            }),
        }
    }

    /// Follows a subject; survives reconnects (what is published meanwhile is missed).
    pub async fn subscribe(&self, subject: &str) -> Result<Subscription, ReadError> {
        let messages = self.wire.client.subscribe(subject.to_owned()).await.map_err(|error| {
            let cause = match error.kind() {
                SubscribeErrorKind::Other => NoAnswer::Disconnected,
                _ => NoAnswer::BadSubject,
            };
            ReadError::of(subject, cause.into())
        })?;
        Ok(Subscription { messages })
    }

    /// The state of a stream.
    pub async fn stream_state(&self, stream: &str) -> Result<StreamState, ReadError> {
        stream_info(&self.wire, stream).await.map(|info| info.state())
    }

    /// The state of a stream, and the time by the clock of the server that tells it: the clock by which it stores messages.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn stream_now(&self, stream: &str) -> Result<(StreamState, Timestamp), ReadError> {
        stream_info(&self.wire, stream).await.map(|info| (info.state(), info.ts))
    }
}

/// What `STREAM.INFO` says, as far as it is used here.
#[derive(Debug, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) created: Timestamp,
    /// When the server answered, by its clock.
    ts: Timestamp,
    pub(crate) config: StreamLimits,
    state: Counts,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StreamLimits {
    #[serde(default)]
    max_msgs_per_subject: i64,
    #[serde(default)]
    discard_new_per_subject: bool,
    #[serde(default)]
    num_replicas: usize,
    #[serde(default)]
    max_bytes: i64,
}

#[derive(Debug, Deserialize)]
struct Counts {
    messages: u64,
    bytes: u64,
    first_seq: u64,
    first_ts: Timestamp,
    last_seq: u64,
}

impl StreamInfo {
    pub(crate) fn state(&self) -> StreamState {
        let Counts { messages, bytes, first_seq, first_ts: first_at, last_seq } = self.state;
        // An empty stream that never held anything says 0.
        let first_seq = if messages == 0 { last_seq + 1 } else { first_seq };
        let replicas = self.config.num_replicas.max(1);
        let bytes_max = u64::try_from(self.config.max_bytes).ok().filter(|bytes| *bytes > 0);
        let created_at = self.created;
        StreamState { first_seq, last_seq, first_at, messages, bytes, bytes_max, created_at, replicas }
    }

    /// True where older messages of a subject give way to newer ones, so that holes are no loss.
    pub(crate) const fn is_per_subject(&self) -> bool {
        self.config.max_msgs_per_subject > 0 && !self.config.discard_new_per_subject
    }
}

pub(crate) async fn stream_info(wire: &Wire, stream: &str) -> Result<StreamInfo, ReadError> {
    let info = wire.api(&format!("STREAM.INFO.{stream}"), &json!({})).await;
    info.map_err(|error| ReadError::of(&format!("stream {stream}"), error))
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

    /// True where trying again may help.
    pub const fn is_transient(&self) -> bool {
        !matches!(self, Self::StreamReset { .. } | Self::Trimmed { .. })
    }
}
