//! Ordered reading of a stream: gapless, without repetition, healing itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Config as Consumer, DeliverPolicy};
use muster_contract::Timestamp;
use muster_service::error::chain;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::bus::Bus;
use crate::converge::create_consumer;
use crate::heal::Pause;
use crate::message::Delivery;
use crate::pull::Pull;
use crate::read::{ReadError, StreamInfo, stream_info};
use crate::wire::Wire;

/// How long the server keeps a reader's consumer after the reader has gone silent.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Messages asked for at once. Nothing is acknowledged, so it may be more than of a partition: the server need not wait while a
/// reader works off what has come.
const ASKED_AT_ONCE: usize = 4000;
/// Silence after which a reader of the present asks whether there is any more: what waited for it may have expired.
const PRESENT_SILENCE: Duration = Duration::from_secs(2);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the first message held.
    First,
    /// After a sequence; 0 is [`Start::First`].
    After(u64),
    /// With the newest message of every subject, then everything after.
    LastPerSubject,
    /// With what is stored from now on.
    New,
}

/// An ordered reader of a stream.
#[derive(Debug)]
pub struct Replay {
    wire: Arc<Wire>,
    stream: String,
    filters: Vec<String>,
    start: Start,
    /// The sequence after which to go on; `None` until it is known.
    position: Option<u64>,
    /// Tells this stream from a later one of the same name.
    created: Option<Timestamp>,
    /// Messages that waited when it was opened.
    waiting: u64,
    /// Messages handed out since.
    read: u64,
    /// Nothing was left when the last one was sent.
    at_end: bool,
    life: Option<Life>,
    /// Says whether there is a life.
    whole: Arc<AtomicBool>,
    pause: Pause,
}

/// A consumer and what comes from it.
#[derive(Debug)]
struct Life {
    consumer: Consumer,
    pull: Pull,
}

#[derive(Deserialize)]
struct Created {
    #[serde(default)]
    num_pending: u64,
    delivered: Sequences,
}

#[derive(Deserialize)]
struct Sequences {
    stream_seq: u64,
}

impl Bus {
    /// Reads a stream in order, restricted to subject filters (none: everything).
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
            created: None,
            waiting: 0,
            read: 0,
            at_end: false,
            life: None,
            whole: Arc::default(),
            pause: Pause::new(),
        };
        replay.waiting = replay.open().await?;
        replay.at_end = replay.waiting == 0;
        Ok(replay)
    }
}

impl Replay {
    /// The next messages, at least one and at most `max`, in stream order, none left out and none twice. Waits for the
    /// first, never for the others.
    ///
    /// Heals itself over lost links, restarted servers and lost consumers. Fails only with [`ReadError::StreamReset`]
    /// and [`ReadError::Trimmed`], when nothing can follow the last message without a hole. Cancel-safe.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Delivery>, ReadError> {
        loop {
            let Some(life) = &mut self.life else {
                self.heal().await?;
                continue;
            };
            match life.pull.next_batch(max).await {
                Ok(batch) => {
                    self.pause.reset();
                    let batch: Vec<_> = batch.into_iter().map(|pulled| pulled.delivery).collect();
                    self.position = batch.last().map(|last| last.stream_seq).or(self.position);
                    self.read += batch.len() as u64;
                    self.at_end |= batch.last().is_some_and(|last| last.pending == 0);
                    return Ok(batch);
                }
                Err(broken) => {
                    tracing::info!(stream = self.stream, position = self.position, %broken, "reading again");
                    self.leave();
                }
            }
        }
    }

    /// The next messages of what was there when it was opened; none when all of that is read. What comes with the last
    /// of them, and is newer, is handed out too.
    ///
    /// Of a stream that forgets, what waited may be gone before it comes, and nothing else ever takes its place: where
    /// nothing comes for a while, the server is asked whether anything is left. Fails as [`Self::next_batch`] does, and is
    /// as cancel-safe.
    pub async fn next_present(&mut self, max: usize) -> Result<Option<Vec<Delivery>>, ReadError> {
        while !self.at_end && self.read < self.waiting {
            if self.life.is_none() {
                // Takes its time over a slow link: only what should be coming is not waited for any longer.
                self.heal().await?;
            }
            match timeout(PRESENT_SILENCE, self.next_batch(max)).await {
                Ok(batch) => return batch.map(Some),
                Err(_) => self.at_end = self.has_nothing_left().await,
            }
        }
        Ok(None)
    }

    /// Whether the server has sent everything. It says so when asked for a consumer that it has already. Of a stream that
    /// forgets, what waited may be gone before it comes.
    pub async fn has_nothing_left(&self) -> bool {
        let Some(life) = &self.life else { return false };
        let found: Result<Created, _> = create_consumer(&self.wire, &self.stream, &life.consumer).await;
        found.is_ok_and(|found| found.num_pending == 0)
    }

    /// Has a flag say from now on whether what follows is on its way, also while somebody waits for it.
    pub fn tell(&mut self, whole: Arc<AtomicBool>) {
        whole.store(self.is_whole(), Ordering::Release);
        self.whole = whole;
    }

    /// True where what follows is on its way; otherwise the next reading begins with mending.
    pub const fn is_whole(&self) -> bool {
        self.life.is_some()
    }

    /// The sequence of the last message handed out, or after which the first one will come.
    pub const fn position(&self) -> Option<u64> {
        self.position
    }

    /// Messages that waited for it when it was opened: a reader of the present alone has seen it after so many.
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }

    async fn heal(&mut self) -> Result<(), ReadError> {
        loop {
            self.pause.before_attempt(&self.wire.link).await;
            match self.open().await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(stream = self.stream, cause = chain(&error), "cannot read; trying again");
                }
                end => return end.map(|_| ()),
            }
        }
    }

    /// Makes the consumer; how many messages wait for it.
    async fn open(&mut self) -> Result<u64, ReadError> {
        let info = stream_info(&self.wire, &self.stream).await?;
        self.check_position(&info)?;
        let consumer = self.consumer();
        let name = consumer.name.clone().unwrap_or_default();
        let created: Created = create_consumer(&self.wire, &self.stream, &consumer)
            .await
            .map_err(|error| ReadError::of(&self.stream, error))?;
        let pull = Pull::open(Arc::clone(&self.wire), &self.stream, &name, 1, ASKED_AT_ONCE).await;
        let pull = pull.map_err(|error| ReadError::of(&self.stream, error.into()))?;
        self.created = Some(info.created);
        if self.start == Start::New && self.position.is_none() {
            self.position = Some(created.delivered.stream_seq);
        }
        self.life = Some(Life { consumer, pull });
        self.whole.store(true, Ordering::Release);
        Ok(created.num_pending)
    }

    /// Refuses to go on where the stream's numbers mean something else now, or what would be next is gone.
    fn check_position(&self, info: &StreamInfo) -> Result<(), ReadError> {
        let Some(position) = self.position else { return Ok(()) };
        let (state, stream) = (info.state(), self.stream.clone());
        if state.last_seq < position || self.created.is_some_and(|created| created != info.created) {
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
            // "Last of each subject" wants the subjects named, even if they are all.
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
            inactive_threshold: FORGOTTEN_AFTER,
            num_replicas: 1,
            memory_storage: true,
            metadata: HashMap::new(),
            ..Consumer::default()
        }
    }

    /// Gives the consumer back without waiting; the server forgets it by itself otherwise.
    fn leave(&mut self) {
        self.whole.store(false, Ordering::Release);
        let Some(Life { consumer, .. }) = self.life.take() else { return };
        let consumer = consumer.name.unwrap_or_default();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (wire, verb) = (Arc::clone(&self.wire), format!("CONSUMER.DELETE.{}.{consumer}", self.stream));
        runtime.spawn(async move {
            if let Err(error) = wire.api::<Value>(&verb, &json!({})).await {
                tracing::debug!(cause = chain(&error), "consumer left for the server to forget");
            }
        });
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.leave();
    }
}

const _: () = assert!(FORGOTTEN_AFTER.as_secs() > crate::heal::HEAL_MAX.as_secs());
