//! Follows DOWNLINK and passes its documents, and those that are missing, to the announcer, which verifies them. If DOWNLINK
//! was deleted, this task creates it again.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use muster_bus::{Bus, Delivery, ReadError, Start, StreamState};
use muster_contract::subjects::stream;
use muster_service::error::chain;
use muster_service::retry::{Backoff, RetryPolicy, retry_with};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::announce::AnnouncerHandle;
use crate::foreign::StoredDocument;

/// Documents read at once.
const BATCH: usize = 500;
/// Time between two checks of the number of messages: a purge leaves no message.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Devices whose documents are read one by one; after more changes all documents are listed, once no more come.
const RECENTLY_STORED_MAX: usize = 256;
/// Longest time between two listings of all documents, which find what other checks miss.
const LIST_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Delays before another attempt to read.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(100), max: Duration::from_secs(5) };
const SUBJECTS: &str = "muster.desired.>";

/// Passes the documents of DOWNLINK to the announcer until `stop`.
pub(crate) async fn run(bus: Bus, announcer: AnnouncerHandle, stop: CancellationToken) {
    let mut follower = DocumentFollower { bus, announcer, last: None };
    let following = async {
        follower.announcer.known().await;
        let failure = "cannot verify the documents of DOWNLINK";
        while let Ended::Relist =
            retry_with(RETRY, failure, &mut follower, |follower, backoff| follower.run(backoff).boxed()).await
        {
            tracing::debug!("listing documents to find missing ones");
        }
    };
    stop.run_until_cancelled(following).await;
}

/// Why following ended without an error.
enum Ended {
    AnnouncerGone,
    /// DOWNLINK has lost messages, is another stream, or was listed long ago: list it again.
    Relist,
}

/// Reads DOWNLINK for the announcer.
struct DocumentFollower {
    bus: Bus,
    announcer: AnnouncerHandle,
    /// DOWNLINK when it was last counted.
    last: Option<StreamState>,
}

impl DocumentFollower {
    /// Follows DOWNLINK, and creates it if it is missing.
    async fn run(&mut self, backoff: Backoff) -> Result<Ended, ReadError> {
        let ended = self.follow(backoff).await;
        if let Err(error) = &ended {
            recreate(&self.bus, error).await;
        }
        ended
    }

    async fn follow(&mut self, backoff: Backoff) -> Result<Ended, ReadError> {
        let state = self.bus.stream_state(stream::DOWNLINK).await?;
        let is_new = self.last.replace(state.clone()).is_some_and(|last| last.created_at != state.created_at);
        let mut replay = self.bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::LastPerSubject).await?;
        let mut devices = BTreeSet::new();
        while let Some(batch) = replay.next_present(BATCH).await? {
            let documents = documents(batch);
            devices.extend(documents.iter().map(|document| document.key.clone()));
            if !self.announcer.verify(documents, is_new).await {
                return Ok(Ended::AnnouncerGone);
            }
        }
        backoff.reset();
        if !self.announcer.listed(devices).await {
            return Ok(Ended::AnnouncerGone);
        }
        let list_at = Instant::now() + LIST_INTERVAL;
        let mut look = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut recently_stored, mut is_quiet) = (BTreeSet::new(), true);
        loop {
            tokio::select! {
                batch = replay.next_batch(BATCH) => {
                    let documents = documents(batch?);
                    is_quiet = false;
                    recently_stored.extend(documents.iter().map(|document| document.key.clone()));
                    if !self.announcer.verify(documents, false).await {
                        return Ok(Ended::AnnouncerGone);
                    }
                }
                _ = look.tick() => {
                    // A document that is stored and purged between two counts changes neither.
                    let was_quiet = std::mem::replace(&mut is_quiet, true);
                    if recently_stored.len() > RECENTLY_STORED_MAX {
                        if was_quiet {
                            return Ok(Ended::Relist);
                        }
                    } else if !recently_stored.is_empty()
                        && !self.announcer.recently_stored(std::mem::take(&mut recently_stored)).await
                    {
                        return Ok(Ended::AnnouncerGone);
                    }
                }
            }
            if self.has_shrunk().await? || Instant::now() >= list_at {
                return Ok(Ended::Relist);
            }
        }
    }

    /// Whether DOWNLINK has fewer messages than before, or is another stream. It keeps the newest message of each subject for
    /// ever, so its number of messages never drops without a purge.
    async fn has_shrunk(&mut self) -> Result<bool, ReadError> {
        let now = match self.bus.stream_state(stream::DOWNLINK).await {
            Ok(now) => now,
            Err(error @ ReadError::Missing { .. }) => return Err(error),
            // The link is down, or the server is busy: the next check finds it.
            Err(_) => return Ok(false),
        };
        let is_other = self.last.as_ref().is_some_and(|last| last.created_at != now.created_at);
        if is_other {
            return Ok(true);
        }
        let before = self.last.replace(now.clone());
        Ok(before.is_some_and(|before| now.messages < before.messages))
    }
}

fn documents(batch: Vec<Delivery>) -> Vec<StoredDocument> {
    batch.into_iter().filter_map(StoredDocument::of).collect()
}

async fn recreate(bus: &Bus, error: &ReadError) {
    if matches!(error, ReadError::Missing { .. }) {
        tracing::error!("DOWNLINK does not exist or has no leader; creating it if it is missing");
        if let Err(error) = bus.converge_streams().await {
            tracing::error!(error = chain(&error), "cannot create DOWNLINK");
        }
    }
}
