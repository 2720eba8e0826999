//! The messages of one pull consumer, in order and without a hole, until something breaks.
//!
//! It asks for messages ahead of time, watches the server's heartbeats, the link and the consumer's own count of
//! deliveries, and says [`Broken`] when any of them is not as it should be. Mending is its owner's.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use muster_contract::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::SERVER_PAYLOAD_MIN;
use crate::link::{self, Link};
use crate::message::{Delivery, Headers};
use crate::wire::{NoAnswer, Wire, ready};

/// Messages asked for at once. Fewer cost throughput, more cost memory.
pub(crate) const BATCH: usize = 1000;
/// Bytes asked for at once: large messages come in smaller batches.
const BATCH_BYTES: usize = 16 * 1024 * 1024;
/// How long a request stands at the server.
const EXPIRES: Duration = Duration::from_secs(30);
/// How often the server says that a request stands while there are no messages.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence after which the request is taken for lost: two heartbeats and some slack.
const SILENCE_MAX: Duration = Duration::from_secs(12);

/// One life of a pull consumer's delivery.
#[derive(Debug)]
pub(crate) struct Pull {
    wire: Arc<Wire>,
    link: watch::Receiver<Link>,
    over: Link,
    request: Subject,
    inbox: Subject,
    messages: Subscriber,
    /// Messages asked for at once.
    batch: usize,
    /// Messages asked for and not yet come.
    outstanding: usize,
    /// The consumer's count of deliveries at the next message.
    expected: u64,
    /// When anything came last: silence goes on while nobody waits.
    heard_at: Instant,
    broken: Option<Broken>,
}

/// Why no more messages come from this life.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection was lost")]
    LinkLost,
    #[error("the server's heartbeats stopped")]
    Silence,
    #[error("messages were lost on the way or repeated: delivery {found} came where {expected} was due")]
    Gap { expected: u64, found: u64 },
    #[error("the server ended it: {0}")]
    Ended(String),
    #[error("a message came without its position: {0}")]
    Unreadable(String),
}

/// A message with its place in the consumer's own count taken care of.
#[derive(Debug)]
pub(crate) struct Pulled {
    pub(crate) delivery: Delivery,
    /// Where an acknowledgement goes.
    pub(crate) reply: Subject,
}

impl Pull {
    /// Begins to pull, so many messages at once. `expected` is the consumer's count of deliveries at the next message.
    pub(crate) async fn open(
        wire: Arc<Wire>,
        stream: &str,
        consumer: &str,
        expected: u64,
        batch: usize,
    ) -> Result<Self, NoAnswer> {
        let link = wire.link.clone();
        let over = *link.borrow();
        let inbox = Subject::from(wire.client.new_inbox());
        let subscribed = wire.client.subscribe(inbox.clone()).await;
        let messages = subscribed.map_err(|_| NoAnswer::Disconnected)?;
        let request = Subject::from(format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"));
        let heard_at = Instant::now();
        Ok(Self {
            wire,
            link,
            over,
            request,
            inbox,
            messages,
            batch,
            outstanding: 0,
            expected,
            heard_at,
            broken: None,
        })
    }

    /// At least one message and at most `max`; waits for the first, never for the others. Cancel-safe.
    pub(crate) async fn next_batch(&mut self, max: usize) -> Result<Vec<Pulled>, Broken> {
        let first = loop {
            if let Some(broken) = self.broken.clone() {
                return Err(broken);
            }
            if let Some(first) = self.step().await {
                break first;
            }
        };
        let mut batch = vec![first];
        while batch.len() < max && self.broken.is_none() {
            match ready(&mut self.messages) {
                Some(message) => batch.extend(self.take(message)),
                None => break,
            }
        }
        Ok(batch)
    }

    async fn step(&mut self) -> Option<Pulled> {
        self.ask_ahead().await;
        let silence = tokio::time::sleep_until(self.heard_at + SILENCE_MAX);
        let broken = tokio::select! {
            biased;
            message = self.messages.next() => match message {
                Some(message) => return self.take(message),
                None => Broken::LinkLost,
            },
            () = link::lost(self.link.clone(), self.over) => Broken::LinkLost,
            () = silence => Broken::Silence,
        };
        self.broken = Some(broken);
        None
    }

    async fn ask_ahead(&mut self) {
        let batch = self.batch;
        if self.outstanding > batch / 2 {
            return;
        }
        let body = format!(
            r#"{{"batch":{batch},"max_bytes":{BATCH_BYTES},"expires":{},"idle_heartbeat":{}}}"#,
            EXPIRES.as_nanos(),
            HEARTBEAT.as_nanos()
        );
        let (request, inbox) = (self.request.clone(), self.inbox.clone());
        match self.wire.post(request, Some(inbox), None, Bytes::from(body)).await {
            Ok(()) => self.outstanding += batch,
            Err(_) => self.broken = Some(Broken::LinkLost),
        }
    }

    fn take(&mut self, message: Message) -> Option<Pulled> {
        self.heard_at = Instant::now();
        match message.status {
            None | Some(StatusCode::OK) => self.take_message(message),
            Some(StatusCode::IDLE_HEARTBEAT) => None,
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND | StatusCode::REQUEST_TERMINATED) => {
                self.take_end(&message);
                None
            }
            Some(status) => {
                let words = message.description.unwrap_or_default();
                self.broken = Some(Broken::Ended(format!("{status} {words}")));
                None
            }
        }
    }

    fn take_message(&mut self, message: Message) -> Option<Pulled> {
        self.outstanding = self.outstanding.saturating_sub(1);
        let reply = message.reply.clone().unwrap_or_else(|| Subject::from_static(""));
        let Some(place) = Place::parse(&reply) else {
            self.broken = Some(Broken::Unreadable(reply.to_string()));
            return None;
        };
        if place.delivery != self.expected {
            self.broken = Some(Broken::Gap { expected: self.expected, found: place.delivery });
            return None;
        }
        self.expected += 1;
        let delivery = Delivery {
            subject: message.subject.into_string(),
            payload: message.payload,
            headers: Headers(message.headers.unwrap_or_default()),
            stream_seq: place.stream_seq,
            stored_at: place.stored_at,
            pending: place.pending,
            ack: None,
        };
        Some(Pulled { delivery, reply })
    }

    /// A request came to its end: what it did not bring is no longer on its way. An end that does not say how much that
    /// was is not an ordinary one (the consumer was deleted, its leader moved, the server stops).
    fn take_end(&mut self, message: &Message) {
        let left = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        match left.and_then(|left| left.as_str().parse::<usize>().ok()) {
            Some(left) => self.outstanding = self.outstanding.saturating_sub(left),
            None => {
                let words = message.description.clone().unwrap_or_default();
                self.broken = Some(Broken::Ended(words));
            }
        }
    }
}

/// What the server writes into the subject for acknowledgements.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    stream_seq: u64,
    /// The consumer's count of deliveries, this one included.
    delivery: u64,
    stored_at: Timestamp,
    pending: u64,
}

impl Place {
    /// `$JS.ACK.<stream>.<consumer>.<tries>.<stream seq>.<delivery>.<nanoseconds>.<pending>`; in the newer form domain
    /// and account come before the stream, and more may follow.
    fn parse(reply: &str) -> Option<Self> {
        // Every message has one: the tokens are looked at where they stand.
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
    // Asking ahead must not ask for more than may be unacknowledged.
    assert!((2 * BATCH as i64) < crate::topology::ACK_PENDING_MAX);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_read_from_both_forms_of_its_reply() {
        let place = Place {
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
            assert_eq!(Place::parse(reply).as_ref(), Some(&place), "{reply}");
        }
        for bad in
            ["", "_INBOX.a.b", "$JS.ACK.LEDGER.x.1.100.7.1", "$JS.ACK.LEDGER.x.1.y.7.1790230470084404000.42"]
        {
            assert_eq!(Place::parse(bad), None, "{bad}");
        }
    }
}
