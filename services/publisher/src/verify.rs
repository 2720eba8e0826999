//! Follows DOWNLINK and passes its documents, and those that are missing, to the announcer, which verifies them. If DOWNLINK
//! was deleted, this task creates it again.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start, StreamState};
use muster_contract::subjects::stream;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
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
/// Least upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// Longest upper bound of that delay.
const RETRY_MAX: Duration = Duration::from_secs(5);
const SUBJECTS: &str = "muster.desired.>";

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// Passes the documents of DOWNLINK to the announcer until `stop`.
pub(crate) async fn run(bus: Bus, announcer: AnnouncerHandle, mut rng: Rng, stop: CancellationToken) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    let following = async {
        announcer.known().await;
        let mut last = None;
        loop {
            match follow(&bus, &announcer, &mut last, &mut retry).await {
                Ok(Ended::AnnouncerGone) => return,
                Ok(Ended::Relist) => {
                    tracing::debug!("listing documents to find missing ones");
                }
                Err(error) => {
                    let retry_in = retry.next(&mut rng);
                    tracing::warn!(
                        error = chain(&error),
                        ?retry_in,
                        "cannot verify the documents of DOWNLINK"
                    );
                    recreate(&bus, &error).await;
                    tokio::time::sleep(retry_in).await;
                }
            }
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

async fn follow(
    bus: &Bus,
    announcer: &AnnouncerHandle,
    last: &mut Option<StreamState>,
    retry: &mut FullJitter,
) -> Result<Ended, ReadError> {
    let state = bus.stream_state(stream::DOWNLINK).await?;
    let is_new = last.replace(state.clone()).is_some_and(|last| last.created_at != state.created_at);
    let mut replay = bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::LastPerSubject).await?;
    let mut devices = BTreeSet::new();
    while let Some(batch) = replay.next_present(BATCH).await? {
        let documents = documents(batch);
        devices.extend(documents.iter().map(|document| document.key.clone()));
        if !announcer.verify(documents, is_new).await {
            return Ok(Ended::AnnouncerGone);
        }
    }
    retry.reset();
    if !announcer.listed(devices).await {
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
                if !announcer.verify(documents, false).await {
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
                    && !announcer.recently_stored(std::mem::take(&mut recently_stored)).await
                {
                    return Ok(Ended::AnnouncerGone);
                }
            }
        }
        if has_shrunk(bus, last).await? || Instant::now() >= list_at {
            return Ok(Ended::Relist);
        }
    }
}

/// Whether DOWNLINK has fewer messages than before, or is another stream. It keeps the newest message of each subject for
/// ever, so its number of messages never drops without a purge.
async fn has_shrunk(bus: &Bus, last: &mut Option<StreamState>) -> Result<bool, ReadError> {
    let now = match bus.stream_state(stream::DOWNLINK).await {
        Ok(now) => now,
        Err(error @ ReadError::Missing { .. }) => return Err(error),
        // The link is down, or the server is busy: the next check finds it.
        Err(_) => return Ok(false),
    };
    let is_other = last.as_ref().is_some_and(|last| last.created_at != now.created_at);
    if is_other {
        return Ok(true);
    }
    let before = last.replace(now.clone());
    Ok(before.is_some_and(|before| now.messages < before.messages))
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
