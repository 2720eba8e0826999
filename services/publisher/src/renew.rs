//! What devices shall run, said again before LEDGER forgets it: LEDGER sources it from DOWNLINK and keeps it for 30 days, or
//! for less where it comes near its byte bound: then what stands in its oldest half is said again.
//!
//! The same bytes are put in the place of themselves, by compare-and-set: the generation stays, so no device does
//! anything, and a document that changed meanwhile stays as it is. The announcer is told where each stands since, so that
//! what it plans next follows on that.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, Outgoing, PublishErrorKind, ReadError, Start, StreamState};
use muster_contract::Timestamp;
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_domain::ledger_room::LedgerSize;
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::announce::Desk;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 60 * 60);
/// Pause after each document: a fleet that was published at once is said again over half an hour, at 100,000 devices.
const PACE: Duration = Duration::from_millis(20);
/// Documents read at once.
const BATCH: usize = 64;
/// Time between two looks at how full LEDGER is.
const LOOK_AT_ROOM_EVERY: Duration = Duration::from_secs(1);
/// Pause after each document while LEDGER fills up: reports wait for them.
const PACE_PRESSED: Duration = Duration::from_millis(1);
/// Shortest upper bound of the delay after an error.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest such bound.
const RETRY_MAX: Duration = Duration::from_secs(30);
const SUBJECTS: &str = "muster.desired.>";

const _: () = assert!(10 * LOOK_EVERY.as_secs() < REASSERT_AFTER.as_secs());
const _: () = assert!(RETRY_MIN.as_millis() < RETRY_MAX.as_millis());

/// Says again what is old, until `stop`.
pub async fn run(bus: Bus, desk: Desk, clock: Arc<dyn Clock>, mut rng: Rng, stop: CancellationToken) {
    let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
    let renewing = async {
        loop {
            let begin = Instant::now();
            match renew_for_a_while(&bus, &desk, clock.as_ref()).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(documents = count, "published again before LEDGER forgets them"),
                Err(error) => {
                    if begin.elapsed() > RETRY_MAX {
                        retry.reset();
                    }
                    // Without a connection the error comes at once.
                    let retry_in = retry.next(&mut rng);
                    tracing::warn!(
                        error = chain(&error),
                        ?retry_in,
                        "cannot publish desired documents again before LEDGER forgets them"
                    );
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    };
    stop.run_until_cancelled(renewing).await;
}

/// Says again what is old by its age, then for [`LOOK_EVERY`] what LEDGER has no room for.
async fn renew_for_a_while(bus: &Bus, desk: &Desk, clock: &dyn Clock) -> Result<u64, ReadError> {
    let mut count = renew(bus, desk, REASSERT_AFTER, clock).await?;
    let until = Instant::now() + LOOK_EVERY;
    // Nothing older is in DOWNLINK; unknown before the first look.
    let mut oldest = None;
    while Instant::now() < until {
        tokio::time::sleep(LOOK_AT_ROOM_EVERY).await;
        let Some(before) = pressed_out_before(bus).await? else { continue };
        if oldest.is_some_and(|oldest| before < oldest) {
            continue;
        }
        let renewed = renew_before(bus, desk, before, PACE_PRESSED).await?;
        (count, oldest) = (count + renewed.count, renewed.oldest);
    }
    Ok(count)
}

/// When the newest message of LEDGER's oldest half was stored, while LEDGER fills up.
async fn pressed_out_before(bus: &Bus) -> Result<Option<Timestamp>, ReadError> {
    let StreamState { first_seq, last_seq, bytes, bytes_max, .. } = bus.stream_state(stream::LEDGER).await?;
    let Some(through) = (LedgerSize { first_seq, last_seq, bytes, bytes_max }).reassert_through() else {
        return Ok(None);
    };
    Ok(bus.at(stream::LEDGER, through).await?.map(|message| message.stored_at))
}

/// Says again every document that is older than `age`, and tells the announcer where it stands now; how many those are.
///
/// # Errors
/// DOWNLINK cannot be read.
pub async fn renew(bus: &Bus, desk: &Desk, age: Duration, clock: &dyn Clock) -> Result<u64, ReadError> {
    let Ok(before) = clock.now().checked_sub(age) else { return Ok(0) };
    renew_before(bus, desk, before, PACE).await.map(|renewed| renewed.count)
}

/// What was said again.
struct Renewed {
    count: u64,
    /// When the oldest document that was left was stored.
    oldest: Option<Timestamp>,
}

/// Says again every document that is not younger than `before`.
async fn renew_before(
    bus: &Bus,
    desk: &Desk,
    before: Timestamp,
    pace: Duration,
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
            let Some(now) = say_again(bus, document).await else { continue };
            if let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&subject) {
                desk.renewed(key, replaced, now).await;
            }
            renewed.count += 1;
            tokio::time::sleep(pace).await;
        }
    }
    Ok(renewed)
}

/// The sequence it has now; none where it was not said again.
async fn say_again(bus: &Bus, document: Delivery) -> Option<u64> {
    let letter = Outgoing {
        expected_stream: Some(stream::DOWNLINK),
        expected_last_subject_sequence: Some(document.stream_seq),
        headers: document.attributes(),
        ..Outgoing::new(document.subject, document.payload)
    };
    match bus.publish(letter).await {
        Ok(stored) => Some(stored.sequence),
        // It has changed, so it is no longer old.
        Err(error) if error.kind == PublishErrorKind::Conflict => None,
        Err(error) => {
            tracing::debug!(error = chain(&error), "a document was not said again; the next look will");
            None
        }
    }
}
