//! Publishing one message, and what a failure means.

use std::time::Duration;

use async_nats::{HeaderMap, Message, StatusCode, Subject};
use bytes::Bytes;
use muster_contract::headers::{
    EXPECTED_LAST_SUBJECT_SEQUENCE, EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, EXPECTED_STREAM, MSG_ID, TTL,
};
use serde::Deserialize;

use crate::bus::Bus;
use crate::config::SERVER_PAYLOAD_MIN;
use crate::message::{Headers, Outgoing, Stored};
use crate::wire::{ApiError, FailureBody, NoAnswer, unreadable};

/// How long a stream may take to confirm a message. Longer than a read: a disk may stall.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// JetStream's codes for a message that will be refused every time: too large, another stream's subject, and headers
/// the stream does not allow (rollup, time to live).
const PERMANENT: [u64; 5] = [MESSAGE_TOO_LARGE, 10060, 10111, 10165, 10166];
/// The stream takes no message of this size.
const MESSAGE_TOO_LARGE: u64 = 10054;
/// The subject's last sequence is another; replicated streams say it with the second.
const CONFLICT: [u64; 2] = [10071, 10164];
/// Codes by which the JetStream API says "not now".
const NOT_NOW: [u64; 3] = [10008, 10118, 10167];
/// The stream is full and keeps what it has.
const STORE_FAILED: u64 = 10077;
/// How the server words it where one subject is full, and not the whole stream.
const SUBJECT_FULL: &str = "messages per subject";

/// What a failed publish means for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishErrorKind {
    /// Try again later, in the same order. It may have been stored.
    Transient,
    /// The subject's last sequence is another than expected; nothing was stored.
    Conflict,
    /// It will be refused every time; nothing was stored.
    Permanent,
    /// Its subject holds as many messages as it may; nothing was stored. Room comes as the reader catches up: try again
    /// soon, over the same link.
    SubjectFull,
}

/// Why a message is not known to be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot publish to {subject}{}", advice(.cause))]
pub struct PublishError {
    /// What it means for the message.
    pub kind: PublishErrorKind,
    /// Where to.
    pub subject: String,
    /// What happened.
    #[source]
    pub cause: ApiError,
}

impl PublishError {
    /// The error of a cause; the kind follows from it.
    pub fn new(subject: impl Into<String>, cause: ApiError) -> Self {
        Self { kind: kind(&cause), subject: subject.into(), cause }
    }

    /// True where the message itself is at fault: any other may well be stored. Nothing of it was.
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
        // An unknown refusal may pass; what is kept for a retry is not lost.
        ApiError::Refused { .. } | ApiError::NoAnswer(_) | ApiError::Unreadable(_) => {
            PublishErrorKind::Transient
        }
    }
}

/// True for a code of the JetStream API that may pass by itself.
pub(crate) fn is_transient(code: u64) -> bool {
    NOT_NOW.contains(&code)
}

/// True where the message's subject is full, so that nothing was stored and others of the subject are refused, too.
pub(crate) fn is_subject_full(cause: &ApiError) -> bool {
    kind(cause) == PublishErrorKind::SubjectFull
}

fn advice(cause: &ApiError) -> &'static str {
    match cause.code() {
        Some(STORE_FAILED) if is_subject_full(cause) => {
            " (the stream holds as much of this subject as it may: is its reader running, or is it throttled?)"
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
    /// Publishes and waits for the stream's answer.
    pub async fn publish(&self, message: Outgoing) -> Result<Stored, PublishError> {
        let Packed { subject, headers, payload } = pack(message)?;
        let answer = self.wire.ask(subject.clone(), headers, payload, CONFIRM_TIMEOUT).await;
        answer
            .map_err(ApiError::from)
            .and_then(|answer| read(&answer))
            .map_err(|cause| failed(&subject, cause))
    }

    /// Publishes without an answer. Refuses while the link is down, so that nothing is queued behind it.
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

/// A message as the library takes it.
#[derive(Clone)]
pub(crate) struct Packed {
    pub(crate) subject: Subject,
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) payload: Bytes,
}

pub(crate) fn pack(message: Outgoing) -> Result<Packed, PublishError> {
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
    if let Some(subject) = message.expected_of_subject {
        headers.insert(EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT, subject);
    }
    if let Some(ttl) = message.ttl {
        headers.insert(TTL, format!("{}s", ttl.as_secs().max(1)));
    }
    // The server counts headers as well, and ends the connection of whoever sends more.
    if payload.len() + headers.wire_bytes() > SERVER_PAYLOAD_MIN {
        return Err(PublishError::new(subject, NoAnswer::TooLarge.into()));
    }
    Ok(Packed { subject: subject.into(), headers: (!headers.is_empty()).then_some(headers.0), payload })
}

/// Reads a stream's answer to a message.
pub(crate) fn read(answer: &Message) -> Result<Stored, ApiError> {
    if answer.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(NoAnswer::NoResponders.into());
    }
    match serde_json::from_slice(&answer.payload).map_err(|error| unreadable(&error))? {
        Confirmation { error: Some(error), .. } => Err(error.into()),
        Confirmation { seq: Some(sequence), duplicate, .. } => Ok(Stored { sequence, duplicate }),
        Confirmation { seq: None, .. } => Err(ApiError::Unreadable("it holds no sequence".to_owned())),
    }
}

pub(crate) fn failed(subject: &Subject, cause: ApiError) -> PublishError {
    PublishError::new(subject.as_str(), cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_apart_by_what_to_do_about_them() {
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
    fn headers_count_towards_what_a_message_may_be() {
        let sized = |bytes: usize| {
            let message =
                Outgoing { message_id: Some("known".to_owned()), ..Outgoing::new("a.b", vec![0; bytes]) };
            pack(message).map(drop).map_err(|error| error.kind)
        };
        let headers = "NATS/1.0\r\nNats-Msg-Id: known\r\n\r\n".len();
        assert_eq!(sized(SERVER_PAYLOAD_MIN - headers), Ok(()));
        assert_eq!(sized(SERVER_PAYLOAD_MIN - headers + 1), Err(PublishErrorKind::Permanent));
    }

    #[test]
    fn a_full_subject_is_told_apart_from_a_full_stream() {
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
    fn a_full_stream_is_told_with_what_to_look_at() {
        let full = ApiError::Refused { code: STORE_FAILED, description: "maximum bytes exceeded".into() };
        assert!(PublishError::new("a.b", full).to_string().contains("disk space"));
    }
}
