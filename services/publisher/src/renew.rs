//! What devices shall run, said again before LEDGER forgets it: LEDGER sources it from DOWNLINK and keeps it for 30 days.
//!
//! The same bytes are put in the place of themselves, by compare-and-set: the generation stays, so no device does
//! anything, and a document that changed meanwhile stays as it is. The announcer sees another writer and reads again.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Delivery, Outgoing, PublishErrorKind, ReadError, Start};
use muster_contract::Timestamp;
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::stream;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 60 * 60);
/// Pause after each document: a fleet that was published at once is said again over half an hour, at 100,000 devices.
const PACE: Duration = Duration::from_millis(20);
/// Documents read at once.
const BATCH: usize = 64;
const SUBJECTS: &str = "muster.desired.>";

const _: () = assert!(10 * LOOK_EVERY.as_secs() < REASSERT_AFTER.as_secs());

/// Says again what is old, until `stop`.
pub async fn run(bus: Bus, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let renewing = async {
        loop {
            match renew(&bus, REASSERT_AFTER, clock.as_ref()).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(documents = count, "said again before LEDGER forgets them"),
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot say again what devices shall run; trying again"
                    );
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    stop.run_until_cancelled(renewing).await;
}

/// Says again every document that is older than `age`; how many those are.
///
/// # Errors
/// DOWNLINK cannot be read.
pub async fn renew(bus: &Bus, age: Duration, clock: &dyn Clock) -> Result<u64, ReadError> {
    let mut replay = bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::LastPerSubject).await?;
    let mut count = 0;
    while let Some(documents) = replay.next_present(BATCH).await? {
        for document in documents {
            if is_old(document.stored_at, clock.now(), age) && say_again(bus, document).await {
                count += 1;
                tokio::time::sleep(PACE).await;
            }
        }
    }
    Ok(count)
}

fn is_old(stored_at: Timestamp, now: Timestamp, age: Duration) -> bool {
    Duration::try_from(now.duration_since(stored_at)).is_ok_and(|span| span >= age)
}

async fn say_again(bus: &Bus, document: Delivery) -> bool {
    let letter = Outgoing {
        expected_stream: Some(stream::DOWNLINK),
        expected_last_subject_sequence: Some(document.stream_seq),
        headers: document.attributes(),
        ..Outgoing::new(document.subject, document.payload)
    };
    match bus.publish(letter).await {
        Ok(_) => true,
        // It has changed, so it is no longer old.
        Err(error) if error.kind == PublishErrorKind::Conflict => false,
        Err(error) => {
            tracing::debug!(error = chain(&error), "a document was not said again; the next look will");
            false
        }
    }
}
