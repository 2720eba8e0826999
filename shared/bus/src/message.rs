//! Outgoing and delivered messages, with a header list that hides the client library's.

use std::fmt;
use std::time::Duration;

use async_nats::{HeaderMap, HeaderName, Message};
use bytes::Bytes;
use muster_contract::Timestamp;
use muster_contract::headers::{EXPECTED_STREAM, MSG_ID};

use crate::ack::AckHandle;

/// A message to publish. Unset fields are not sent.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    /// The subject.
    pub subject: String,
    /// The document.
    pub payload: Bytes,
    /// Headers besides those of the fields below.
    pub headers: Headers,
    /// `Nats-Msg-Id`. The stream drops a second message with the same id within its duplicate window, so it must not be
    /// guessable unless every writer of the stream is trusted.
    pub message_id: Option<String>,
    /// `Nats-Expected-Stream`: any other stream refuses the message.
    pub expected_stream: Option<&'static str>,
    /// Compare-and-set: the sequence of the last message of this subject, 0 for none.
    pub expected_last_subject_sequence: Option<u64>,
    /// Compare-and-set: the sequence of the last message of the stream, 0 for none. The stream takes one writer at a time.
    pub expected_last_sequence: Option<u64>,
    /// The subject of the sequence of its subject, if it is not the message's own: a fence, which admits only writers that know the
    /// newest message of that subject. A replicated stream takes one message at a time on the same fence and answers
    /// others with a conflict.
    pub expected_of_subject: Option<String>,
    /// `Nats-TTL`: how long the stream keeps it, in whole seconds, if the stream allows that.
    pub ttl: Option<Duration>,
}

impl Outgoing {
    /// A message without headers or expectations.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { subject: subject.into(), payload: payload.into(), ..Self::default() }
    }
}

/// Bytes that the protocol adds to a message with headers: the verb, lengths, line ends and the reply subject.
const FRAME_BYTES: usize = 96;

impl Outgoing {
    /// Its approximate size on the wire: subject, headers, payload and the protocol's own bytes.
    pub fn wire_bytes(&self) -> usize {
        let line = |name: &str, value: &str| name.len() + value.len() + ": \r\n".len();
        let headers: usize = self.headers.iter().map(|(name, value)| line(name, value)).sum();
        let id = self.message_id.as_deref().map_or(0, |id| line(MSG_ID, id));
        let stream = self.expected_stream.map_or(0, |stream| line(EXPECTED_STREAM, stream));
        FRAME_BYTES + self.subject.len() + headers + id + stream + self.payload.len()
    }
}

/// The confirmation of a stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence in the stream; for a duplicate, that of the first message; 0 if the server does not say it. In a batch
    /// only the last stored message has one: the highest of the batch, if it is known.
    pub sequence: u64,
    /// The stream already held a message with this id.
    pub duplicate: bool,
}

/// A delivered message.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The subject it is stored under; for a republished message, the subject of the original.
    pub subject: String,
    /// The document.
    pub payload: Bytes,
    /// Its headers.
    pub headers: Headers,
    /// Its sequence in the stream; 0 for a message that no stream holds.
    pub stream_seq: u64,
    /// When the stream stored it; the Unix epoch for a message that no stream holds.
    pub stored_at: Timestamp,
    /// Messages that the reader had not been sent yet when the server sent this one; 0 means that it has caught up.
    pub pending: u64,
    pub(crate) ack: Option<AckHandle>,
}

impl Delivery {
    /// A message of a direct get or one that a stream republished: its headers hold the subject, sequence and time of the
    /// original. Any other message counts as held by no stream.
    pub(crate) fn from_original(message: Message) -> Self {
        let headers = Headers(message.headers.unwrap_or_default());
        let subject = headers.get("Nats-Subject").unwrap_or(&message.subject).to_owned();
        let stream_seq = headers.get("Nats-Sequence").and_then(|text| text.parse().ok()).unwrap_or(0);
        let stored_at = headers.get("Nats-Time-Stamp").and_then(|text| text.parse().ok()).unwrap_or_default();
        Self { subject, payload: message.payload, headers, stream_seq, stored_at, pending: 0, ack: None }
    }

    /// Its approximate bytes in the stream: subject, headers and document.
    pub fn stored_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.subject.len() + headers + self.payload.len()
    }

    /// Its headers without those of NATS: the attributes that its sender set, for publishing it again.
    pub fn attributes(&self) -> Headers {
        let mut headers = HeaderMap::new();
        for (name, values) in self.headers.0.iter().filter(|(name, _)| !name.to_string().starts_with("Nats-"))
        {
            values.iter().for_each(|value| headers.append(name.clone(), value.clone()));
        }
        Headers(headers)
    }

    /// A message as if it had been delivered, for a test or a simulation without a bus.
    pub fn new(
        subject: impl Into<String>,
        payload: impl Into<Bytes>,
        stream_seq: u64,
        stored_at: Timestamp,
    ) -> Self {
        Self {
            subject: subject.into(),
            payload: payload.into(),
            headers: Headers::new(),
            stream_seq,
            stored_at,
            pending: 0,
            ack: None,
        }
    }
}

/// Header names and values. Names are case-sensitive.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub(crate) HeaderMap);

impl Headers {
    /// Bytes of these headers on the wire; 0 without headers.
    pub(crate) fn wire_bytes(&self) -> usize {
        let lines = self.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len()).sum::<usize>();
        if lines == 0 { 0 } else { "NATS/1.0\r\n\r\n".len() + lines }
    }

    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a header, replacing one of the same name. Line breaks in a value become spaces.
    pub fn insert(&mut self, name: &'static str, value: impl Into<String>) {
        let value = value.into();
        // Hardly any value has a line break, and a check is cheaper than a copy of each.
        let is_line = !value.bytes().any(|byte| matches!(byte, b'\r' | b'\n'));
        let value = if is_line { value } else { value.replace(['\r', '\n'], " ") };
        self.0.insert(HeaderName::from_static(name), value);
    }

    /// The last value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get_last(name).map(|value| value.as_str())
    }

    /// All headers; a header with several values comes several times.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|(name, values)| values.iter().map(move |v| (name.as_ref(), v.as_str())))
    }

    /// True without any header.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
