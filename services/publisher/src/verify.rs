//! DOWNLINK followed for documents that no publisher wrote, and for documents that are gone. What each is, and what follows
//! from that, is the announcer's to decide. A DOWNLINK that was deleted is made anew.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Start, StreamState};
use muster_contract::subjects::stream;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::announce::Desk;
use crate::foreign::StoredDocument;

/// Documents read at once.
const BATCH: usize = 500;
/// Time between two looks at how much DOWNLINK holds: what is purged leaves no message.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Devices whose documents are asked for one by one; after more changes all documents are listed, once no more come.
const STORED_LATELY_MAX: usize = 256;
/// Longest time between two listings of all documents: what is missed otherwise is found then.
const LIST_EVERY: Duration = Duration::from_secs(10 * 60);
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);
const SUBJECTS: &str = "muster.desired.>";

const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// Tells the announcer what DOWNLINK holds, until `stop`.
pub(crate) async fn run(bus: Bus, desk: Desk, mut rng: Rng, stop: CancellationToken) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    let following = async {
        desk.known().await;
        let mut last = None;
        loop {
            match follow(&bus, &desk, &mut last, &mut retry).await {
                Ok(Ended::NobodyListens) => return,
                Ok(Ended::Relist) => {
                    tracing::debug!("looking for documents that are gone");
                }
                Err(error) => {
                    let retry_in = retry.next(&mut rng);
                    tracing::warn!(error = chain(&error), ?retry_in, "cannot verify what DOWNLINK holds");
                    recreate(&bus, &error).await;
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    };
    stop.run_until_cancelled(following).await;
}

/// Why following ended well.
enum Ended {
    NobodyListens,
    /// DOWNLINK has lost something, is another one, or was listed long ago: it is to be listed again.
    Relist,
}

async fn follow(
    bus: &Bus,
    desk: &Desk,
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
        if !desk.verify(documents, is_new).await {
            return Ok(Ended::NobodyListens);
        }
    }
    retry.reset();
    if !desk.listed(devices).await {
        return Ok(Ended::NobodyListens);
    }
    let list_at = Instant::now() + LIST_EVERY;
    let mut look = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut stored_lately, mut is_quiet) = (BTreeSet::new(), true);
    loop {
        tokio::select! {
            batch = replay.next_batch(BATCH) => {
                let documents = documents(batch?);
                is_quiet = false;
                stored_lately.extend(documents.iter().map(|document| document.key.clone()));
                if !desk.verify(documents, false).await {
                    return Ok(Ended::NobodyListens);
                }
            }
            _ = look.tick() => {
                // A document that is purged between its storing and the next count is in neither of two counts.
                let was_quiet = std::mem::replace(&mut is_quiet, true);
                if stored_lately.len() > STORED_LATELY_MAX {
                    if was_quiet {
                        return Ok(Ended::Relist);
                    }
                } else if !stored_lately.is_empty()
                    && !desk.stored_lately(std::mem::take(&mut stored_lately)).await
                {
                    return Ok(Ended::NobodyListens);
                }
            }
        }
        if has_shrunk(bus, last).await? || Instant::now() >= list_at {
            return Ok(Ended::Relist);
        }
    }
}

/// Whether DOWNLINK holds less than before, or is another one. It keeps the newest of each subject for ever, so it never
/// holds less by itself.
async fn has_shrunk(bus: &Bus, last: &mut Option<StreamState>) -> Result<bool, ReadError> {
    let now = match bus.stream_state(stream::DOWNLINK).await {
        Ok(now) => now,
        Err(error @ ReadError::Missing { .. }) => return Err(error),
        // The link is down, or the server is busy: the next look tells.
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
        tracing::error!("DOWNLINK is gone, or nobody leads it; making it if it is missing");
        if let Err(error) = bus.converge_streams().await {
            tracing::error!(error = chain(&error), "cannot make DOWNLINK");
        }
    }
}
