//! Watches the bucket `views` for foreign writes: entries that the rollup did not write, and signs that entries
//! are missing.
//!
//! The publisher decides what to do about them. A deleted bucket is created again.

use std::time::Duration;

use futures_util::FutureExt;
use muster_bus::topology::VIEWS_STREAM;
use muster_bus::{Bus, ReadError, StreamState, ViewEntry};
use muster_service::error::chain;
use muster_service::retry::{Backoff, RetryPolicy, retry_with};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

/// Time between two looks at how much the bucket holds: entries that are purged leave no message.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Entries read at once.
const BATCH_MAX: usize = 256;
/// Events that wait for the publisher; the bus keeps the rest.
const EVENTS_WAITING: usize = 16;
/// Delays before the bucket is watched again.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(100), max: Duration::from_secs(5) };

const _: () = assert!(LOOK_EVERY.as_millis() < 1000);

/// An observation of the bucket.
#[derive(Debug)]
pub(crate) enum BucketEvent {
    /// Entries, in their order.
    Entries(Vec<ViewEntry>),
    /// Entries may be gone: the bucket is to be read again.
    Shrunk,
}

/// The watch.
#[derive(Debug)]
pub(crate) struct BucketWatch {
    bus: Bus,
    events: mpsc::Sender<BucketEvent>,
    last: Option<StreamState>,
}

impl BucketWatch {
    /// A watch, and where its events come.
    pub(crate) fn new(bus: Bus) -> (Self, mpsc::Receiver<BucketEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_WAITING);
        (Self { bus, events, last: None }, receiver)
    }

    /// Watches until `stop`, or until the receiver is gone.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let failure = "cannot watch the bucket of views";
        let watching = retry_with(RETRY, failure, &mut self, |watch, backoff| watch.watch(backoff).boxed());
        stop.run_until_cancelled(watching).await;
    }

    /// Follows the bucket, and creates it if it is missing.
    async fn watch(&mut self, backoff: Backoff) -> Result<(), ReadError> {
        let followed = self.follow(backoff).await;
        if let Err(error) = &followed {
            self.recreate(error).await;
        }
        followed
    }

    /// Returns without an error only when the receiver is gone.
    async fn follow(&mut self, backoff: Backoff) -> Result<(), ReadError> {
        let mut watch = self.bus.view_watch(">").await?;
        backoff.reset();
        // The first look is immediate: a purge before it would be missed.
        let mut look = interval_at(Instant::now(), LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                batch = watch.next_batch(BATCH_MAX) => BucketEvent::Entries(batch?),
                _ = look.tick() => {
                    if !self.has_shrunk().await? {
                        continue;
                    }
                    BucketEvent::Shrunk
                }
            };
            if self.events.send(event).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Whether the bucket holds less than before, or is another one.
    async fn has_shrunk(&mut self) -> Result<bool, ReadError> {
        match self.bus.stream_state(VIEWS_STREAM).await {
            Ok(now) => {
                let before = self.last.replace(now.clone());
                Ok(before.is_some_and(|before| {
                    before.created_at != now.created_at || now.messages < before.messages
                }))
            }
            Err(error @ ReadError::Missing { .. }) => {
                self.recreate(&error).await;
                Ok(true)
            }
            // The connection is down or the server is busy: the next look decides.
            Err(error) if error.is_transient() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn recreate(&self, error: &ReadError) {
        if matches!(error, ReadError::Missing { .. }) {
            tracing::error!("the bucket of views is missing or has no leader; creating it if it is missing");
            if let Err(error) = self.bus.converge_streams().await {
                tracing::error!(error = chain(&error), "cannot create the bucket of views");
            }
        }
    }
}
