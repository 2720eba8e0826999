//! Watches the bucket `views` for foreign writes: entries that the rollup did not write, and signs that entries
//! are missing.
//!
//! The publisher decides what to do about them. A deleted bucket is created again.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::topology::VIEWS_STREAM;
use muster_bus::{Bus, ReadError, StreamState, ViewEntry, ViewWatch};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

/// Time between two looks at how much the bucket holds: entries that are purged leave no message.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Entries read at once.
const BATCH_MAX: usize = 256;
/// Events that wait for the publisher; the bus keeps the rest.
const EVENTS_WAITING: usize = 16;
/// Least and longest upper bound of the delay before the bucket is watched again.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest delay between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);

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
    rng: Rng,
    last: Option<StreamState>,
}

impl BucketWatch {
    /// A watch, and where its events come.
    pub(crate) fn new(bus: Bus, rng: Rng) -> (Self, mpsc::Receiver<BucketEvent>) {
        let (events, receiver) = mpsc::channel(EVENTS_WAITING);
        (Self { bus, events, rng, last: None }, receiver)
    }

    /// Watches until `stop`, or until the receiver is gone.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        stop.run_until_cancelled(self.watch()).await;
    }

    async fn watch(&mut self) {
        let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        loop {
            let error = match self.bus.view_watch(">").await {
                Ok(watch) => {
                    retry.reset();
                    match self.follow(watch).await {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            let retry_in = retry.next(&mut self.rng);
            tracing::warn!(error = chain(&error), ?retry_in, "cannot watch the bucket of views");
            self.recreate(&error).await;
            tokio::time::sleep(retry_in).await;
        }
    }

    /// Returns without an error only when the receiver is gone.
    async fn follow(&mut self, mut watch: ViewWatch) -> Result<(), ReadError> {
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
