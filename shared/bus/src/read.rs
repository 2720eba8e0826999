//! Reads one message of a stream, follows a subject, and reads the state of a stream.

use std::time::Duration;

use async_nats::client::SubscribeErrorKind;
use async_nats::{StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_contract::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::message::Delivery;
use crate::read_error::ReadError;
use crate::wire::{ANSWER_TIMEOUT, ApiError, NoAnswer, Wire};

/// JetStream's codes for a message that is not there: no message has that sequence, or it cannot be removed again.
const NO_SUCH_MESSAGE: [u64; 2] = [10043, 10057];

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The first stored sequence; `last_seq + 1` when empty.
    pub first_seq: u64,
    /// The last assigned sequence.
    pub last_seq: u64,
    /// When the first stored message was stored; meaningless when empty.
    pub first_at: Timestamp,
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Limit of bytes, if there is one.
    pub bytes_max: Option<u64>,
    /// When the stream was created: another value means another stream.
    pub created_at: Timestamp,
    /// Number of replicas.
    pub replicas: usize,
}

/// The end of a stream at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    /// The state of the stream.
    pub state: StreamState,
    /// When the server answered, by the clock that also stamps stored messages.
    pub at: Timestamp,
    /// Progress of a mirror; `None` if the stream is no mirror.
    pub mirror: Option<MirrorProgress>,
}

/// Progress of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorProgress {
    /// Messages of its origin that it lacks.
    pub lag: u64,
    /// Time since its last contact with the origin; `None` before the first.
    pub heard: Option<Duration>,
}

/// A core subscription: the messages published while it lasts, each at most once.
#[derive(Debug)]
pub struct Subscription {
    messages: Subscriber,
}

impl Subscription {
    /// The next message; `None` when the bus is gone. A message that a stream republished has the subject, sequence and time
    /// of the original. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        self.messages.next().await.map(Delivery::from_original)
    }
}

impl Bus {
    /// The last message of a subject by direct get: one request, which needs only the right to
    /// `$JS.API.DIRECT.GET.<stream>.<subject>`.
    pub async fn last(&self, stream: &str, subject: &str) -> Result<Option<Delivery>, ReadError> {
        self.direct(format!("$JS.API.DIRECT.GET.{stream}.{subject}"), Bytes::new(), subject).await
    }

    /// The message at a sequence by direct get; `None` if the stream does not hold it.
    pub async fn at(&self, stream: &str, sequence: u64) -> Result<Option<Delivery>, ReadError> {
        let body = Bytes::from(json!({ "seq": sequence }).to_string());
        let what = format!("{sequence} of {stream}");
        self.direct(format!("$JS.API.DIRECT.GET.{stream}"), body, &what).await
    }

    /// The first message at a sequence or after it, by direct get; `None` if there is none.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn from(&self, stream: &str, sequence: u64) -> Result<Option<Delivery>, ReadError> {
        self.next_of(stream, sequence, ">").await
    }

    /// The same of the messages of one subject, or of a pattern of subjects.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn next_of(
        &self,
        stream: &str,
        sequence: u64,
        subject: &str,
    ) -> Result<Option<Delivery>, ReadError> {
        let body = Bytes::from(json!({ "seq": sequence, "next_by_subj": subject }).to_string());
        let what = format!("{sequence} of {stream}");
        self.direct(format!("$JS.API.DIRECT.GET.{stream}"), body, &what).await
    }

    /// Removes the message at a sequence; true if the stream held one.
    ///
    /// # Errors
    /// The server refused, or its answer was lost.
    pub async fn delete(&self, stream: &str, sequence: u64) -> Result<bool, ReadError> {
        let request = json!({ "seq": sequence, "no_erase": true });
        match self.wire.api::<Value>(&format!("STREAM.MSG.DELETE.{stream}"), &request).await {
            Ok(_) => Ok(true),
            Err(ApiError::Refused { code, .. }) if NO_SUCH_MESSAGE.contains(&code) => Ok(false),
            Err(error) => Err(ReadError::of(&format!("{sequence} of {stream} to remove it"), error)),
        }
    }

    async fn direct(&self, request: String, body: Bytes, what: &str) -> Result<Option<Delivery>, ReadError> {
        self.direct_within(ANSWER_TIMEOUT, request, body, what).await
    }

    /// A direct get that may take longer than a small read.
    pub(crate) async fn direct_within(
        &self,
        timeout: Duration,
        request: String,
        body: Bytes,
        what: &str,
    ) -> Result<Option<Delivery>, ReadError> {
        let answer = self.wire.ask(Subject::from(request), None, body, timeout).await;
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

    /// Follows a subject; survives reconnects, but misses the messages published meanwhile.
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

    /// The state of a stream, and the time by the clock with which the server stores messages.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn stream_now(&self, stream: &str) -> Result<(StreamState, Timestamp), ReadError> {
        stream_info(&self.wire, stream).await.map(|info| (info.state(), info.ts))
    }

    /// The end of a stream, with its progress if it is a mirror.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn stream_end(&self, stream: &str) -> Result<StreamEnd, ReadError> {
        stream_info(&self.wire, stream).await.map(|info| info.end())
    }
}

/// The parts of a `STREAM.INFO` answer that this crate uses.
#[derive(Debug, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) created: Timestamp,
    /// When the server answered, by its clock.
    ts: Timestamp,
    pub(crate) config: StreamLimits,
    state: Counts,
    /// A mirror's view of its origin.
    #[serde(default)]
    mirror: Option<Origin>,
}

#[derive(Debug, Deserialize)]
struct Origin {
    #[serde(default)]
    lag: u64,
    /// Nanoseconds since the last contact; negative before the first.
    #[serde(default)]
    active: Option<i64>,
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
        // The first sequence of a stream that never held a message is 0.
        let first_seq = if messages == 0 { last_seq + 1 } else { first_seq };
        let replicas = self.config.num_replicas.max(1);
        let bytes_max = u64::try_from(self.config.max_bytes).ok().filter(|bytes| *bytes > 0);
        let created_at = self.created;
        StreamState { first_seq, last_seq, first_at, messages, bytes, bytes_max, created_at, replicas }
    }

    fn end(&self) -> StreamEnd {
        let mirror = self.mirror.as_ref().map(|origin| {
            let heard = origin.active.and_then(|active| u64::try_from(active).ok()).map(Duration::from_nanos);
            MirrorProgress { lag: origin.lag, heard }
        });
        StreamEnd { state: self.state(), at: self.ts, mirror }
    }

    /// True if newer messages of a subject replace older ones, so that gaps in the sequences are no loss.
    pub(crate) const fn is_per_subject(&self) -> bool {
        self.config.max_msgs_per_subject > 0 && !self.config.discard_new_per_subject
    }
}

pub(crate) async fn stream_info(wire: &Wire, stream: &str) -> Result<StreamInfo, ReadError> {
    let info = wire.api(&format!("STREAM.INFO.{stream}"), &json!({})).await;
    info.map_err(|error| ReadError::of(&format!("stream {stream}"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(mirror: &Value) -> StreamEnd {
        let time = "2026-01-01T00:00:00Z";
        let mut info = json!({ "created": time, "ts": time, "config": {},
            "state": { "messages": 1, "bytes": 1, "first_seq": 1, "first_ts": time, "last_seq": 7 } });
        if !mirror.is_null() {
            info["mirror"] = mirror.clone();
        }
        serde_json::from_value::<StreamInfo>(info).unwrap().end()
    }

    #[test]
    fn the_end_of_a_mirror_says_what_it_lacks_and_when_it_heard_of_its_origin() {
        let progress = |lag, heard| Some(MirrorProgress { lag, heard });
        let heard = json!({ "name": "LEDGER", "lag": 3, "active": 1_500_000_000_u64 });
        assert_eq!(end(&heard).mirror, progress(3, Some(Duration::from_millis(1_500))));
        assert_eq!(end(&json!({ "name": "LEDGER", "lag": 0, "active": -1 })).mirror, progress(0, None));
        assert_eq!(end(&json!({ "name": "LEDGER" })).mirror, progress(0, None));
        assert_eq!(end(&Value::Null).mirror, None);
    }
}
