//! Re-asserts desired states before LEDGER discards them. LEDGER sources them from DOWNLINK and keeps them for 30 days, or
//! shorter near its byte limit: then the documents of its oldest half are published again.
//!
//! A document is replaced by the same bytes, by compare-and-set: the generation stays, so no device acts, and a document
//! that changed meanwhile is not replaced. The announcer gets the new sequence of each, on which its next plan depends.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Delivery, Outgoing, PublishErrorKind, ReadError, Start, StreamState};
use muster_contract::Timestamp;
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::ledger_room::LedgerSize;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::retry::{Backoff, RetryPolicy, retry};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::announce::AnnouncerHandle;

/// Time between two checks of the documents' age.
const CHECK_INTERVAL: Duration = Duration::from_secs(12 * 60 * 60);
/// Pause after each document: 100,000 documents that were published at once take half an hour.
const PAUSE: Duration = Duration::from_millis(20);
/// Documents read at once.
const BATCH: usize = 64;
/// Time between two checks of LEDGER's size.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after each document while LEDGER is nearly full: ingest throttles reports until they are re-asserted.
const PAUSE_UNDER_PRESSURE: Duration = Duration::from_millis(1);
/// Delays after an error.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_secs(1), max: Duration::from_secs(30) };
const SUBJECTS: &str = "muster.desired.>";

const _: () = assert!(10 * CHECK_INTERVAL.as_secs() < REASSERT_AFTER.as_secs());

/// Re-asserts old documents until `stop`.
pub async fn run(bus: Bus, announcer: AnnouncerHandle, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let renewing = async {
        loop {
            let (bus, announcer, clock) = (&bus, &announcer, clock.as_ref());
            let renew = |backoff: Backoff| async move {
                let begin = Instant::now();
                let renewed = renew_for_a_while(bus, announcer, clock).await;
                if begin.elapsed() > RETRY.max {
                    backoff.reset();
                }
                renewed
            };
            let documents = retry(RETRY, "cannot re-assert desired states yet", renew).await;
            if documents > 0 {
                tracing::info!(documents, "re-asserted desired states");
            }
        }
    };
    stop.run_until_cancelled(renewing).await;
}

/// Re-asserts documents that are old, then for [`CHECK_INTERVAL`] those of LEDGER's oldest half while it is nearly full.
async fn renew_for_a_while(
    bus: &Bus,
    announcer: &AnnouncerHandle,
    clock: &dyn Clock,
) -> Result<u64, ReadError> {
    let mut count = renew(bus, announcer, REASSERT_AFTER, clock).await?;
    let until = Instant::now() + CHECK_INTERVAL;
    // The age of the oldest document in DOWNLINK; unknown before the first pass.
    let mut oldest = None;
    while Instant::now() < until {
        tokio::time::sleep(ROOM_CHECK_INTERVAL).await;
        let Some(before) = oldest_half_stored_before(bus).await? else { continue };
        if oldest.is_some_and(|oldest| before < oldest) {
            continue;
        }
        let renewed = renew_before(bus, announcer, before, PAUSE_UNDER_PRESSURE).await?;
        (count, oldest) = (count + renewed.count, renewed.oldest);
    }
    Ok(count)
}

/// When the newest message of LEDGER's oldest half was stored; `None` unless LEDGER is nearly full.
async fn oldest_half_stored_before(bus: &Bus) -> Result<Option<Timestamp>, ReadError> {
    let StreamState { first_seq, last_seq, bytes, bytes_max, .. } = bus.stream_state(stream::LEDGER).await?;
    let Some(through) = (LedgerSize { first_seq, last_seq, bytes, bytes_max }).reassert_through() else {
        return Ok(None);
    };
    Ok(bus.at(stream::LEDGER, through).await?.map(|message| message.stored_at))
}

/// Re-asserts every document older than `age`, and passes its new sequence to the announcer; the number of documents.
///
/// # Errors
/// DOWNLINK cannot be read.
pub async fn renew(
    bus: &Bus,
    announcer: &AnnouncerHandle,
    age: Duration,
    clock: &dyn Clock,
) -> Result<u64, ReadError> {
    let Ok(before) = clock.now().checked_sub(age) else { return Ok(0) };
    renew_before(bus, announcer, before, PAUSE).await.map(|renewed| renewed.count)
}

/// The result of a pass.
struct Renewed {
    count: u64,
    /// When the oldest document that was not re-asserted was stored.
    oldest: Option<Timestamp>,
}

/// Re-asserts every document that was stored at `before` or earlier.
async fn renew_before(
    bus: &Bus,
    announcer: &AnnouncerHandle,
    before: Timestamp,
    pause: Duration,
) -> Result<Renewed, ReadError> {
    let mut replay = bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::LastPerSubject).await?;
    let mut renewed = Renewed { count: 0, oldest: None };
    while let Some(documents) = replay.next_present(BATCH).await? {
        for document in documents {
            if document.stored_at > before {
                let oldest = renewed.oldest.unwrap_or(document.stored_at);
                renewed.oldest = Some(oldest.min(document.stored_at));
                continue;
            }
            let (replaced, subject) = (document.stream_seq, document.subject.clone());
            let Some(now) = republish(bus, document).await else { continue };
            if let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&subject) {
                announcer.renewed(key, replaced, now).await;
            }
            renewed.count += 1;
            tokio::time::sleep(pause).await;
        }
    }
    Ok(renewed)
}

/// Publishes a document again; its new sequence, or `None` if that failed.
async fn republish(bus: &Bus, document: Delivery) -> Option<u64> {
    let outgoing = Outgoing {
        expected_stream: Some(stream::DOWNLINK),
        expected_last_subject_sequence: Some(document.stream_seq),
        headers: document.attributes(),
        ..Outgoing::new(document.subject, document.payload)
    };
    match bus.publish(outgoing).await {
        Ok(stored) => Some(stored.sequence),
        // The document has changed, so it is not old any more.
        Err(error) if error.kind == PublishErrorKind::Conflict => None,
        Err(error) => {
            tracing::debug!(error = chain(&error), "cannot re-assert a document; the next pass will");
            None
        }
    }
}
