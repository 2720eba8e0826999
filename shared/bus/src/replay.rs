//! Reads a stream in order, without gaps and repetitions, and reopens its consumer after failures.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config as Consumer, DeliverPolicy};
use muster_contract::Timestamp;
use muster_service::error::chain;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::bus::Bus;
use crate::converge::create_consumer;
use crate::last_received::LastReceived;
use crate::message::Delivery;
use crate::pull::{HEARTBEAT, Pull, PullSettings};
use crate::read::{StreamInfo, stream_info};
use crate::read_error::ReadError;
use crate::retry_delay::RetryDelay;
use crate::wire::Wire;

/// How long the server keeps the consumer of a silent reader.
const INACTIVE_MAX: Duration = Duration::from_secs(60);
/// Messages requested at once. It is more than for a partition because the reader acknowledges nothing, so the server can
/// send ahead while the reader works.
const REQUEST_SIZE: usize = 4000;
/// Silence after which a reader of current messages asks the server whether any are left: pending ones may have expired.
const PRESENT_SILENCE: Duration = Duration::from_secs(2);

/// The first message to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The first stored message.
    First,
    /// The first message after a sequence; 0 is [`Start::First`].
    After(u64),
    /// The newest message of every subject, then every later message.
    LastPerSubject,
    /// The first message stored from now on.
    New,
}

/// An ordered reader of a stream.
#[derive(Debug)]
pub struct Replay {
    wire: Arc<Wire>,
    stream: String,
    filters: Vec<String>,
    start: Start,
    /// The sequence after which to continue; `None` until it is known.
    position: Option<u64>,
    /// When the stream was created: another value means another stream of the same name.
    stream_created: Option<Timestamp>,
    /// Messages that were pending when it was opened.
    waiting: u64,
    /// Messages returned since.
    read: u64,
    /// No message was pending when the last one was sent.
    is_at_end: bool,
    session: Option<ConsumerSession>,
    settings: PullSettings,
    retry_delay: RetryDelay,
}

/// A consumer and its messages.
#[derive(Debug)]
struct ConsumerSession {
    consumer: Consumer,
    pull: Pull,
}

#[derive(Deserialize)]
struct CreatedConsumer {
    #[serde(default)]
    num_pending: u64,
    delivered: LastDelivered,
}

#[derive(Deserialize)]
struct LastDelivered {
    stream_seq: u64,
}

impl Bus {
    /// Reads a stream in order, restricted to subject filters (empty: all subjects).
    pub async fn replay(&self, stream: &str, filters: &[&str], start: Start) -> Result<Replay, ReadError> {
        let (start, position) = match start {
            Start::After(0) => (Start::First, None),
            Start::After(position) => (start, Some(position)),
            start => (start, None),
        };
        let mut replay = Replay {
            wire: Arc::clone(&self.wire),
            stream: stream.to_owned(),
            filters: filters.iter().map(|&filter| filter.to_owned()).collect(),
            start,
            position,
            stream_created: None,
            waiting: 0,
            read: 0,
            is_at_end: false,
            session: None,
            settings: PullSettings::new(REQUEST_SIZE),
            retry_delay: RetryDelay::new(),
        };
        replay.waiting = replay.open().await?;
        replay.is_at_end = replay.waiting == 0;
        Ok(replay)
    }
}

impl Replay {
    /// The next messages, at least one and at most `max`, in stream order, without gaps and repetitions. Waits for the
    /// first, never for the others.
    ///
    /// Survives lost links, restarted servers and lost consumers. Fails only with [`ReadError::StreamReset`] and
    /// [`ReadError::Trimmed`], when the stream no longer holds what follows the last message. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        loop {
            let Some(session) = &mut self.session else {
                self.reopen().await?;
                continue;
            };
            match session.pull.next_batch(max).await {
                Ok(batch) => {
                    self.retry_delay.reset();
                    let batch: Vec<_> = batch.into_iter().map(|pulled| pulled.delivery).collect();
                    self.position = batch.last().map(|last| last.stream_seq).or(self.position);
                    self.read += batch.len() as u64;
                    self.is_at_end |= batch.last().is_some_and(|last| last.pending == 0);
                    return Ok(batch);
                }
                Err(broken) => {
                    tracing::info!(stream = self.stream, position = self.position, %broken, "opening the consumer again");
                    self.release();
                }
            }
        }
    }

    /// The next of the messages that were stored when it was opened; `None` when all are read. Newer messages may come with
    /// the last of them.
    ///
    /// Messages may expire before they are read, and no other takes their place: after [`PRESENT_SILENCE`] this asks the
    /// server whether any are left. Fails like [`Self::next_batch`], and is as cancel-safe.
    pub async fn next_present(&mut self, max: usize) -> Result<Option<Vec<Delivery>>, ReadError> {
        while !self.is_at_end && self.read < self.waiting {
            if self.session.is_none() {
                // Outside of the time limit: opening may take long over a slow link.
                self.reopen().await?;
            }
            match timeout(PRESENT_SILENCE, self.next_batch(max)).await {
                Ok(batch) => return batch.map(Some),
                Err(_) => self.is_at_end = self.is_drained().await,
            }
        }
        Ok(None)
    }

    /// Whether the server has sent everything. Creating the existing consumer again returns its number of pending messages.
    /// Messages may expire before they are sent.
    pub async fn is_drained(&self) -> bool {
        let Some(session) = &self.session else { return false };
        let found: Result<CreatedConsumer, _> =
            create_consumer(&self.wire, &self.stream, &session.consumer).await;
        found.is_ok_and(|found| found.num_pending == 0)
    }

    /// Records from now on when anything is received, also while a caller waits for messages: at least once in each
    /// `heartbeat` (at most 5 s) while the server works. To be called before the first read.
    pub fn record_received(&mut self, last_received: LastReceived, heartbeat: Duration) {
        self.settings.heartbeat = heartbeat.min(HEARTBEAT);
        match self.settings.last_received.get() {
            Some(at) => last_received.set(at),
            None => last_received.clear(),
        }
        self.settings.last_received = last_received;
        if let Some(session) = &mut self.session {
            session.pull.settings = self.settings.clone();
        }
    }

    /// True while a session is open; otherwise the next read opens one first.
    pub const fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// The sequence of the last message returned, or the one after which reading begins.
    pub const fn position(&self) -> Option<u64> {
        self.position
    }

    /// Number of messages that were pending when it was opened.
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }

    async fn reopen(&mut self) -> Result<(), ReadError> {
        loop {
            self.retry_delay.before_attempt(&self.wire.link).await;
            match self.open().await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(
                        stream = self.stream,
                        cause = chain(&error),
                        "cannot read a stream; trying again"
                    );
                }
                end => return end.map(|_| ()),
            }
        }
    }

    /// Creates the consumer; the number of pending messages.
    async fn open(&mut self) -> Result<u64, ReadError> {
        let info = stream_info(&self.wire, &self.stream).await?;
        self.check_position(&info)?;
        let consumer = self.consumer();
        let name = consumer.name.clone().unwrap_or_default();
        let created: CreatedConsumer = create_consumer(&self.wire, &self.stream, &consumer)
            .await
            .map_err(|error| ReadError::of(&self.stream, error))?;
        let pull = Pull::open(Arc::clone(&self.wire), &self.stream, &name, 1, self.settings.clone()).await;
        let pull = pull.map_err(|error| ReadError::of(&self.stream, error.into()))?;
        self.stream_created = Some(info.created);
        if self.start == Start::New && self.position.is_none() {
            self.position = Some(created.delivered.stream_seq);
        }
        self.session = Some(ConsumerSession { consumer, pull });
        Ok(created.num_pending)
    }

    /// Fails if the stream is another one, or no longer holds the next message.
    fn check_position(&self, info: &StreamInfo) -> Result<(), ReadError> {
        let Some(position) = self.position else { return Ok(()) };
        let (state, stream) = (info.state(), self.stream.clone());
        if state.last_seq < position || self.stream_created.is_some_and(|created| created != info.created) {
            return Err(ReadError::StreamReset { stream, position, last_seq: state.last_seq });
        }
        if state.first_seq > position + 1 && !info.is_per_subject() {
            return Err(ReadError::Trimmed { stream, position, first_seq: state.first_seq });
        }
        Ok(())
    }

    fn consumer(&self) -> Consumer {
        let token = self.wire.client.new_inbox();
        let token = token.rsplit('.').next().unwrap_or_default();
        let deliver_policy = match (self.position, self.start) {
            (Some(position), _) => DeliverPolicy::ByStartSequence { start_sequence: position + 1 },
            (None, Start::LastPerSubject) => DeliverPolicy::LastPerSubject,
            (None, Start::New) => DeliverPolicy::New,
            (None, Start::First | Start::After(_)) => DeliverPolicy::All,
        };
        let (filter_subject, filter_subjects) = match self.filters.as_slice() {
            // `LastPerSubject` needs a filter, even for all subjects.
            [] => (">".to_owned(), Vec::new()),
            [one] => (one.clone(), Vec::new()),
            many => (String::new(), many.to_vec()),
        };
        Consumer {
            name: Some(format!("replay-{token}")),
            deliver_policy,
            filter_subject,
            filter_subjects,
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE_MAX,
            num_replicas: 1,
            memory_storage: true,
            metadata: HashMap::new(),
            ..Consumer::default()
        }
    }

    /// Deletes the consumer without waiting; if that fails, the server removes it after [`INACTIVE_MAX`].
    fn release(&mut self) {
        self.settings.last_received.clear();
        let Some(ConsumerSession { consumer, .. }) = self.session.take() else { return };
        let consumer = consumer.name.unwrap_or_default();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (wire, verb) = (Arc::clone(&self.wire), format!("CONSUMER.DELETE.{}.{consumer}", self.stream));
        runtime.spawn(async move {
            if let Err(error) = wire.api::<Value>(&verb, &json!({})).await {
                tracing::debug!(cause = chain(&error), "cannot delete a consumer; the server will");
            }
        });
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.release();
    }
}

const _: () = assert!(INACTIVE_MAX.as_secs() > crate::retry_delay::REOPEN.max.as_secs());
