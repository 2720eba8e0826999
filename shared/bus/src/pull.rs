//! Pulls the messages of one consumer, in order and without a gap, until the session breaks.
//!
//! It requests messages ahead of time, and ends with a [`PullError`] when the server's heartbeats stop, the link is lost or
//! the consumer's count of deliveries has a gap. Its owner opens the next session.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_contract::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::SERVER_PAYLOAD_MIN;
use crate::last_received::LastReceived;
use crate::link::{self, Link};
use crate::message::{Delivery, Headers};
use crate::wire::{NoAnswer, Wire, ready};

/// Messages requested at once. Fewer cost throughput, more cost memory.
pub(crate) const BATCH: usize = 1000;
/// Bytes requested at once: large messages come in smaller batches.
const BATCH_BYTES: usize = 16 * 1024 * 1024;
/// How long a request stays at the server.
const EXPIRES: Duration = Duration::from_secs(30);
/// Time between two heartbeats that the server sends for a request while there are no messages.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence after which a request counts as lost: two heartbeats and some slack.
const SILENCE_MAX: Duration = Duration::from_secs(12);

/// One session of a pull consumer.
#[derive(Debug)]
pub(crate) struct Pull {
    wire: Arc<Wire>,
    link: watch::Receiver<Link>,
    /// The link that the session uses.
    over: Link,
    request: Subject,
    inbox: Subject,
    messages: Subscriber,
    pub(crate) settings: PullSettings,
    /// Messages requested and not received yet.
    outstanding: usize,
    /// The consumer's count of deliveries at the next message.
    expected: u64,
    /// When the session began: silence counts from then on, also while the owner does not wait.
    opened_at: Instant,
    error: Option<PullError>,
}

/// How a session pulls.
#[derive(Debug, Clone)]
pub(crate) struct PullSettings {
    /// Messages requested at once.
    pub(crate) batch: usize,
    /// Time between two heartbeats of the server while there are no messages; at most [`HEARTBEAT`].
    pub(crate) heartbeat: Duration,
    /// Where the session records when it received anything.
    pub(crate) last_received: LastReceived,
}

impl PullSettings {
    /// Settings that request so many messages at once, with the usual heartbeat.
    pub(crate) fn new(batch: usize) -> Self {
        Self { batch, heartbeat: HEARTBEAT, last_received: LastReceived::default() }
    }
}

/// Why a session is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PullError {
    #[error("the connection was lost")]
    LinkLost,
    #[error("the server's heartbeats stopped")]
    NoHeartbeat,
    #[error("messages were lost or repeated: received delivery {found}, expected {expected}")]
    Gap { expected: u64, found: u64 },
    #[error("the server ended it: {0}")]
    Ended(String),
    #[error("a message has no position: {0}")]
    Unreadable(String),
}

/// A message whose count of deliveries is the expected one.
#[derive(Debug)]
pub(crate) struct PulledMessage {
    pub(crate) delivery: Delivery,
    /// The subject of its acknowledgement.
    pub(crate) reply: Subject,
}

impl Pull {
    /// Begins to pull. `expected` is the consumer's count of deliveries at the next message.
    pub(crate) async fn open(
        wire: Arc<Wire>,
        stream: &str,
        consumer: &str,
        expected: u64,
        settings: PullSettings,
    ) -> Result<Self, NoAnswer> {
        let link = wire.link.clone();
        let over = *link.borrow();
        let inbox = Subject::from(wire.client.new_inbox());
        let subscribed = wire.client.subscribe(inbox.clone()).await;
        let messages = subscribed.map_err(|_| NoAnswer::Disconnected)?;
        let request = Subject::from(format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"));
        let opened_at = Instant::now();
        settings.last_received.set(opened_at);
        Ok(Self {
            wire,
            link,
            over,
            request,
            inbox,
            messages,
            settings,
            outstanding: 0,
            expected,
            opened_at,
            error: None,
        })
    }

    /// At least one message and at most `max`; waits for the first, never for the others. Cancel-safe.
    pub(crate) async fn next_batch(&mut self, max: usize) -> Result<Vec<PulledMessage>, PullError> {
        let first = loop {
            if let Some(broken) = self.error.clone() {
                return Err(broken);
            }
            if let Some(first) = self.step().await {
                break first;
            }
        };
        let mut batch = vec![first];
        while batch.len() < max && self.error.is_none() {
            match ready(&mut self.messages) {
                Some(message) => batch.extend(self.receive(message)),
                None => break,
            }
        }
        Ok(batch)
    }

    async fn step(&mut self) -> Option<PulledMessage> {
        self.request_ahead().await;
        let silence = tokio::time::sleep_until(self.last_received_at() + SILENCE_MAX);
        let broken = tokio::select! {
            biased;
            message = self.messages.next() => match message {
                Some(message) => return self.receive(message),
                None => PullError::LinkLost,
            },
            () = link::lost(self.link.clone(), self.over) => PullError::LinkLost,
            () = silence => PullError::NoHeartbeat,
        };
        self.error = Some(broken);
        None
    }

    fn last_received_at(&self) -> Instant {
        self.settings.last_received.get().unwrap_or(self.opened_at)
    }

    async fn request_ahead(&mut self) {
        let batch = self.settings.batch;
        if self.outstanding > batch / 2 {
            return;
        }
        let body = format!(
            r#"{{"batch":{batch},"max_bytes":{BATCH_BYTES},"expires":{},"idle_heartbeat":{}}}"#,
            EXPIRES.as_nanos(),
            self.settings.heartbeat.as_nanos()
        );
        let (request, inbox) = (self.request.clone(), self.inbox.clone());
        match self.wire.post(request, Some(inbox), None, Bytes::from(body)).await {
            Ok(()) => self.outstanding += batch,
            Err(_) => self.error = Some(PullError::LinkLost),
        }
    }

    fn receive(&mut self, message: Message) -> Option<PulledMessage> {
        self.settings.last_received.set(Instant::now());
        match message.status {
            None | Some(StatusCode::OK) => self.receive_message(message),
            Some(StatusCode::IDLE_HEARTBEAT) => None,
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND | StatusCode::REQUEST_TERMINATED) => {
                self.receive_end(&message);
                None
            }
            Some(status) => {
                let description = message.description.unwrap_or_default();
                self.error = Some(PullError::Ended(format!("{status} {description}")));
                None
            }
        }
    }

    fn receive_message(&mut self, message: Message) -> Option<PulledMessage> {
        self.outstanding = self.outstanding.saturating_sub(1);
        let reply = message.reply.clone().unwrap_or_else(|| Subject::from_static(""));
        let Some(position) = AckPosition::parse(&reply) else {
            self.error = Some(PullError::Unreadable(reply.to_string()));
            return None;
        };
        if position.delivery != self.expected {
            self.error = Some(PullError::Gap { expected: self.expected, found: position.delivery });
            return None;
        }
        self.expected += 1;
        let delivery = Delivery {
            subject: message.subject.into_string(),
            payload: message.payload,
            headers: Headers(message.headers.unwrap_or_default()),
            stream_seq: position.stream_seq,
            stored_at: position.stored_at,
            pending: position.pending,
            ack: None,
        };
        Some(PulledMessage { delivery, reply })
    }

    /// Handles the end of a request: the messages that it did not bring are no longer outstanding. Without that number the
    /// end is an error: the consumer was deleted, its leader moved, or the server stops.
    fn receive_end(&mut self, message: &Message) {
        let left = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        match left.and_then(|left| left.as_str().parse::<usize>().ok()) {
            Some(left) => self.outstanding = self.outstanding.saturating_sub(left),
            None => {
                let description = message.description.clone().unwrap_or_default();
                self.error = Some(PullError::Ended(description));
            }
        }
    }
}

/// The position of a message, which the server writes into the subject for acknowledgements.
#[derive(Debug, PartialEq, Eq)]
struct AckPosition {
    stream_seq: u64,
    /// The consumer's count of deliveries, this one included.
    delivery: u64,
    stored_at: Timestamp,
    pending: u64,
}

impl AckPosition {
    /// `$JS.ACK.<stream>.<consumer>.<tries>.<stream seq>.<delivery>.<nanoseconds>.<pending>`; in the newer form domain
    /// and account come before the stream, and more may follow.
    fn parse(reply: &str) -> Option<Self> {
        // Every message has such a subject: reading the tokens in place avoids an allocation for each.
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let at = match rest.bytes().filter(|byte| *byte == b'.').count() + 1 {
            7 => 3,
            9.. => 5,
            _ => return None,
        };
        let mut tokens = rest.split('.').skip(at);
        let mut number = || tokens.next()?.parse::<u64>().ok();
        Some(Self {
            stream_seq: number()?,
            delivery: number()?,
            stored_at: Timestamp::from_nanosecond(number()?.into()).ok()?,
            pending: number()?,
        })
    }
}

const _: () = {
    assert!(2 * HEARTBEAT.as_secs() < SILENCE_MAX.as_secs() && SILENCE_MAX.as_secs() < EXPIRES.as_secs());
    assert!(SERVER_PAYLOAD_MIN < BATCH_BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_read_from_both_forms_of_its_reply() {
        let position = AckPosition {
            stream_seq: 100,
            delivery: 7,
            stored_at: "2026-09-24T06:14:30.084404Z".parse().unwrap(),
            pending: 42,
        };
        for reply in [
            "$JS.ACK.LEDGER.replay-x.1.100.7.1790230470084404000.42",
            "$JS.ACK._.szMpdrwD.LEDGER.replay-x.1.100.7.1790230470084404000.42",
            "$JS.ACK.hub.szMpdrwD.LEDGER.replay-x.1.100.7.1790230470084404000.42.token",
        ] {
            assert_eq!(AckPosition::parse(reply).as_ref(), Some(&position), "{reply}");
        }
        for bad in
            ["", "_INBOX.a.b", "$JS.ACK.LEDGER.x.1.100.7.1", "$JS.ACK.LEDGER.x.1.y.7.1790230470084404000.42"]
        {
            assert_eq!(AckPosition::parse(bad), None, "{bad}");
        }
    }
}
