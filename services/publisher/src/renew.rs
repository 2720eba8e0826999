//! What devices shall run, said again before LEDGER forgets it: LEDGER sources it from DOWNLINK and keeps it for 30 days.
//!
//! The same bytes are put in the place of themselves, by compare-and-set: the generation stays, so no device does
//! anything, and a document that changed meanwhile stays as it is. The announcer is told where each stands since, so that
//! what it plans next follows on that.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, Delivery, Outgoing, PublishErrorKind, ReadError, Start};
use muster_contract::Timestamp;
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio_util::sync::CancellationToken;

use crate::announce::Desk;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 60 * 60);
/// Pause after each document: a fleet that was published at once is said again over half an hour, at 100,000 devices.
const PACE: Duration = Duration::from_millis(20);
/// Documents read at once.
const BATCH: usize = 64;
const SUBJECTS: &str = "muster.desired.>";

const _: () = assert!(10 * LOOK_EVERY.as_secs() < REASSERT_AFTER.as_secs());

/// Says again what is old, until `stop`.
pub async fn run(bus: Bus, desk: Desk, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let renewing = async {
        loop {
            match renew(&bus, &desk, REASSERT_AFTER, clock.as_ref()).await {
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

/// Says again every document that is older than `age`, and tells the announcer where it stands now; how many those are.
///
/// # Errors
/// DOWNLINK cannot be read.
pub async fn renew(bus: &Bus, desk: &Desk, age: Duration, clock: &dyn Clock) -> Result<u64, ReadError> {
    let mut replay = bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::LastPerSubject).await?;
    let mut count = 0;
    while let Some(documents) = replay.next_present(BATCH).await? {
        for document in documents {
            if !is_old(document.stored_at, clock.now(), age) {
                continue;
            }
            let (before, subject) = (document.stream_seq, document.subject.clone());
            let Some(now) = say_again(bus, document).await else { continue };
            if let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&subject) {
                desk.renewed(key, before, now).await;
            }
            count += 1;
            tokio::time::sleep(PACE).await;
        }
    }
    Ok(count)
}

fn is_old(stored_at: Timestamp, now: Timestamp, age: Duration) -> bool {
    Duration::try_from(now.duration_since(stored_at)).is_ok_and(|span| span >= age)
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
