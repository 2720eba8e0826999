//! Publishes one message and waits for its confirmation, and classifies failures by what the sender can do.

use std::time::Duration;

use async_nats::{HeaderMap, Message, StatusCode, Subject};
use bytes::Bytes;
use muster_contract::headers::{
    EXPECTED_LAST_SEQUENCE, EXPECTED_LAST_SUBJECT_SEQUENCE, EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    EXPECTED_STREAM, MSG_ID, TTL,
};
use serde::Deserialize;

use crate::bus::Bus;
use crate::message::{Headers, Outgoing, Stored};
use crate::wire::{ApiError, FailureBody, NoAnswer, unreadable};

/// How long a stream may take to confirm a message. Longer than a read: a disk may stall.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// JetStream's codes for a message that every attempt would be refused: too large, another stream's subject, and headers
/// that the stream does not allow (rollup, time to live).
const PERMANENT: [u64; 5] = [MESSAGE_TOO_LARGE, 10060, 10111, 10165, 10166];
/// JetStream's code for a message that is too large for the stream.
const MESSAGE_TOO_LARGE: u64 = 10054;
/// JetStream's codes for another last sequence of the subject or the stream; the second is that of replicated streams.
const CONFLICT: [u64; 2] = [10071, 10164];
/// Codes of the JetStream API for a temporary failure.
const TEMPORARY: [u64; 3] = [10008, 10118, 10167];
/// JetStream's code for a full stream that discards new messages.
const STORE_FAILED: u64 = 10077;
/// The part of the server's description by which a stream at its bound of bytes differs from one without disk space.
const BYTES_FULL: &str = "maximum bytes";
/// The part of the server's description by which a full subject differs from a full stream.
const SUBJECT_FULL: &str = "messages per subject";

/// The effect of a failed publish on the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishErrorKind {
    /// Try again later, in the same order. The message may have been stored.
    Transient,
    /// The subject's last sequence is not the expected one; nothing was stored.
    Conflict,
    /// Every attempt will be refused; nothing was stored.
    Permanent,
    /// The subject holds as many messages as it may; nothing was stored. Try again soon over the same link: the reader makes
    /// room.
    SubjectFull,
}

/// Why a message is not known to be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot publish to {subject}{}", advice(.cause))]
pub struct PublishError {
    /// The effect on the message, which decides what the sender can do.
    pub kind: PublishErrorKind,
    /// The subject of the message.
    pub subject: String,
    /// The failure.
    #[source]
    pub cause: ApiError,
}

impl PublishError {
    /// The error with the kind that follows from its cause.
    pub fn new(subject: impl Into<String>, cause: ApiError) -> Self {
        Self { kind: kind(&cause), subject: subject.into(), cause }
    }

    /// True if the stream, or the message's subject, holds as much as it may. Nothing was stored.
    pub fn is_full(&self) -> bool {
        self.cause.code() == Some(STORE_FAILED)
    }

    /// True if the stream holds as many bytes as it may. Nothing was stored.
    pub fn is_bytes_full(&self) -> bool {
        matches!(&self.cause, ApiError::Refused { code: STORE_FAILED, description } if description.contains(BYTES_FULL))
    }

    /// True if the link went down before the answer: whether the message was stored is unknown.
    pub const fn is_of_the_link(&self) -> bool {
        matches!(self.cause, ApiError::NoAnswer(NoAnswer::Disconnected))
    }

    /// True if the message itself is at fault, so that others may be stored. Nothing of it was stored.
    pub const fn is_of_the_message(&self) -> bool {
        matches!(
            self.cause,
            ApiError::NoAnswer(NoAnswer::TooLarge | NoAnswer::BadSubject)
                | ApiError::Refused { code: MESSAGE_TOO_LARGE, .. }
        )
    }
}

fn kind(cause: &ApiError) -> PublishErrorKind {
    match cause {
        ApiError::NoAnswer(NoAnswer::TooLarge | NoAnswer::BadSubject) => PublishErrorKind::Permanent,
        ApiError::Refused { code, .. } if CONFLICT.contains(code) => PublishErrorKind::Conflict,
        ApiError::Refused { code: STORE_FAILED, description } if description.contains(SUBJECT_FULL) => {
            PublishErrorKind::SubjectFull
        }
        ApiError::Refused { code, .. } if PERMANENT.contains(code) => PublishErrorKind::Permanent,
        // An unknown refusal may be temporary: the sender keeps the message and loses nothing.
        ApiError::Refused { .. } | ApiError::NoAnswer(_) | ApiError::Unreadable(_) => {
            PublishErrorKind::Transient
        }
    }
}

/// True for a code of the JetStream API of a temporary failure.
pub(crate) fn is_transient(code: u64) -> bool {
    TEMPORARY.contains(&code)
}

/// True if the message's subject is full, so that it was not stored and others of the subject are refused as well.
pub(crate) fn is_subject_full(cause: &ApiError) -> bool {
    kind(cause) == PublishErrorKind::SubjectFull
}

fn advice(cause: &ApiError) -> &'static str {
    match cause.code() {
        Some(STORE_FAILED) if is_subject_full(cause) => {
            " (the stream's limit for this subject is reached: is its reader running, or is it throttled?)"
        }
        Some(STORE_FAILED) => " (the stream is full: is its reader running, is there disk space?)",
        _ => "",
    }
}

#[derive(Deserialize)]
struct Confirmation {
    error: Option<FailureBody>,
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
}

impl Bus {
    /// Publishes and waits for the stream's confirmation.
    pub async fn publish(&self, message: Outgoing) -> Result<Stored, PublishError> {
        let Packed { subject, headers, payload } = pack(message, self.wire.message_bytes_max)?;
        let answer = self.wire.ask(subject.clone(), headers, payload, CONFIRM_TIMEOUT).await;
        answer
            .map_err(ApiError::from)
            .and_then(|answer| read(&answer))
            .map_err(|cause| failed(&subject, cause))
    }

    /// Publishes without a confirmation. Fails while the link is down, so that no message is queued for later.
    pub async fn publish_core(
        &self,
        subject: &str,
        headers: Headers,
        payload: Bytes,
    ) -> Result<(), PublishError> {
        let subject = Subject::from(subject);
        if !self.wire.link_now().is_up() {
            return Err(failed(&subject, NoAnswer::Disconnected.into()));
        }
        let headers = (!headers.is_empty()).then_some(headers.0);
        let posted = self.wire.post(subject.clone(), None, headers, payload).await;
        posted.map_err(|cause| failed(&subject, cause.into()))
    }
}

/// A message with its headers, ready for the client library.
#[derive(Clone)]
pub(crate) struct Packed {
    pub(crate) subject: Subject,
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) payload: Bytes,
}

/// Makes a message ready. Refuses one of more than `bytes_max` bytes.
pub(crate) fn pack(message: Outgoing, bytes_max: usize) -> Result<Packed, PublishError> {
    let Outgoing { subject, payload, mut headers, .. } = message;
    if let Some(id) = message.message_id {
        headers.insert(MSG_ID, id);
    }
    if let Some(stream) = message.expected_stream {
        headers.insert(EXPECTED_STREAM, stream);
    }
    if let Some(sequence) = message.expected_last_subject_sequence {
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE, sequence.to_string());
    }
    if let Some(sequence) = message.expected_last_sequence {
        headers.insert(EXPECTED_LAST_SEQUENCE, sequence.to_string());
    }
    if let Some(subject) = message.expected_of_subject {
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject);
    }
    if let Some(ttl) = message.ttl {
        headers.insert(TTL, format!("{}s", ttl.as_secs().max(1)));
    }
    // The server counts headers as well, and closes the connection of a client that exceeds the limit.
    if payload.len() + headers.wire_bytes() > bytes_max {
        return Err(PublishError::new(subject, NoAnswer::TooLarge.into()));
    }
    Ok(Packed { subject: subject.into(), headers: (!headers.is_empty()).then_some(headers.0), payload })
}

/// Parses a stream's confirmation.
pub(crate) fn read(answer: &Message) -> Result<Stored, ApiError> {
    if answer.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(NoAnswer::NoResponders.into());
    }
    match serde_json::from_slice(&answer.payload).map_err(|error| unreadable(&error))? {
        Confirmation { error: Some(error), .. } => Err(error.into()),
        Confirmation { seq: Some(sequence), duplicate, .. } => Ok(Stored { sequence, duplicate }),
        Confirmation { seq: None, .. } => Err(ApiError::Unreadable("it has no sequence".to_owned())),
    }
}

pub(crate) fn failed(subject: &Subject, cause: ApiError) -> PublishError {
    PublishError::new(subject.as_str(), cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_kind() {
        use PublishErrorKind::{Conflict, Permanent, Transient};
        let refused = |code| ApiError::Refused { code, description: "no".into() };
        for (cause, kind) in [
            (refused(10071), Conflict),
            (refused(10164), Conflict),
            (refused(10054), Permanent),
            (refused(10060), Permanent),
            (refused(10111), Permanent),
            (refused(10077), Transient),
            (refused(10047), Transient),
            (refused(10008), Transient),
            (refused(99999), Transient),
            (NoAnswer::NoResponders.into(), Transient),
            (NoAnswer::Disconnected.into(), Transient),
            (NoAnswer::TimedOut(CONFIRM_TIMEOUT).into(), Transient),
            (NoAnswer::TooLarge.into(), Permanent),
            (NoAnswer::BadSubject.into(), Permanent),
        ] {
            let error = PublishError::new("a.b", cause.clone());
            assert_eq!(error.kind, kind, "{cause}");
            let small = !matches!(cause.code(), Some(10054));
            let own = kind == Permanent && (cause.code().is_none() || !small);
            assert_eq!(error.is_of_the_message(), own, "{cause}");
        }
    }

    #[test]
    fn headers_count_towards_the_size_limit() {
        let sized = |bytes: usize| {
            let message =
                Outgoing { message_id: Some("known".to_owned()), ..Outgoing::new("a.b", vec![0; bytes]) };
            pack(message, 100).map(drop).map_err(|error| error.kind)
        };
        let headers = "NATS/1.0\r\nNats-Msg-Id: known\r\n\r\n".len();
        assert_eq!(sized(100 - headers), Ok(()));
        assert_eq!(sized(100 - headers + 1), Err(PublishErrorKind::Permanent));
    }

    #[test]
    fn a_full_subject_differs_from_a_full_stream() {
        let refused = |description: &str| {
            PublishError::new(
                "a.b",
                ApiError::Refused { code: STORE_FAILED, description: description.into() },
            )
        };
        let full = refused("maximum messages per subject exceeded");
        assert_eq!(full.kind, PublishErrorKind::SubjectFull);
        assert!(full.to_string().contains("throttled") && !full.is_of_the_message());
        for description in ["maximum bytes exceeded", "maximum messages exceeded", "no space left on device"]
        {
            assert_eq!(refused(description).kind, PublishErrorKind::Transient, "{description}");
        }
    }

    #[test]
    fn the_error_of_a_full_stream_names_what_to_check() {
        let full = ApiError::Refused { code: STORE_FAILED, description: "maximum bytes exceeded".into() };
        assert!(PublishError::new("a.b", full).to_string().contains("disk space"));
    }
}
