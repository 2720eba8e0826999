//! Watches over the streams. A server that comes back without its memory has lost PRESENCE, and somebody may remove UPLINK
//! or LEDGER: what is missing is made. A LEDGER that is another one now, or ends before what this process knows of it (it
//! was deleted, recreated, or set back to a backup), has forgotten what this process takes for held. Ingest records the
//! incident in the LEDGER that is there now and ends; the next start reads LEDGER anew. Going on would let devices forget
//! reports that nobody holds. So after each new connection the partitions wait until LEDGER was seen over it.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Link, ReadError, StreamState};
use muster_contract::Timestamp;
use muster_contract::incident::{IncidentKind, IncidentRequest};
use muster_contract::subjects::stream;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::LedgerReplaced;
use crate::incidents::IncidentRecorder;
use crate::outlet::HighWater;

/// Time between two checks of LEDGER.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at whether the ways in are there.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long such a look may wait for a server that is choosing a leader.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How long the incident may take before ingest ends without it: rollup reports it as well.
const RECORD_MAX: Duration = Duration::from_secs(5);
/// How long the last check may take while the process stops.
const LAST_CHECK_MAX: Duration = Duration::from_secs(2);
/// Time after which a LEDGER that ends before what is known is looked at once more.
const CONFIRM_AFTER: Duration = Duration::from_millis(1_500);
/// Least and longest upper bound of the delay before LEDGER is looked at again.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(CHECK_EVERY.as_secs() < LOOK_EVERY.as_secs());
const _: () = assert!(CONFIRM_AFTER.as_millis() < LAST_CHECK_MAX.as_millis());
const _: () = {
    let stopping = LAST_CHECK_MAX.as_secs() + RECORD_MAX.as_secs();
    assert!(stopping < muster_service::life::DRAIN_DEADLINE.as_secs());
};

/// The watch over the streams.
#[derive(Debug)]
pub struct Guard {
    /// The bus.
    pub bus: Bus,
    /// How far LEDGER is known to reach.
    pub high_water: HighWater,
    /// When the LEDGER was created that this process has read.
    pub created_at: Timestamp,
    /// Where a replacement is recorded.
    pub incidents: IncidentRecorder,
    /// Over which connection LEDGER was seen to hold what this process knows.
    pub seen_over: watch::Sender<Link>,
}

impl Guard {
    /// Watches until `stop`, and looks at LEDGER once more then: a partition that cannot go on with another LEDGER stops the
    /// process as well.
    ///
    /// # Errors
    /// LEDGER is another one, or ends before what this process knows of it.
    pub async fn watch(self, stop: CancellationToken) -> Result<(), LedgerReplaced> {
        match stop.run_until_cancelled(self.watch_on()).await {
            Some(end) => end,
            None => timeout(LAST_CHECK_MAX, self.look()).await.unwrap_or(Ok(())),
        }
    }

    async fn watch_on(&self) -> Result<(), LedgerReplaced> {
        let mut link = self.bus.link();
        let mut seen = *self.seen_over.borrow();
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            // An error means that the bus is gone, and the process with it.
            if let Ok(Err(_)) = timeout(CHECK_EVERY, link.changed()).await {
                return Ok(());
            }
            let now = *link.borrow_and_update();
            if !now.is_up() {
                continue;
            }
            self.look().await?;
            self.seen_over.send_replace(now);
            if now != seen {
                converge(&self.bus, now).await;
                seen = now;
            } else if Instant::now() >= look_at {
                make_ways_in(&self.bus).await;
                look_at = Instant::now() + LOOK_EVERY;
            }
        }
    }

    /// Compares LEDGER with what is known of it, for as long as it takes to see it.
    async fn look(&self) -> Result<(), LedgerReplaced> {
        // Taken first: what is confirmed while LEDGER answers may be above what it answers.
        let known = self.high_water.now();
        let (mut retry, mut chance) = (FullJitter::new(RETRY_MIN, RETRY_MAX), Rng::new());
        let mut is_second = false;
        loop {
            match self.bus.stream_state(stream::LEDGER).await {
                // A replica that was just elected may still have to catch up with what it has confirmed.
                Ok(ledger) if self.is_behind(known, &ledger) && !is_second => {
                    is_second = true;
                    tokio::time::sleep(CONFIRM_AFTER).await;
                    continue;
                }
                Ok(ledger) => return self.compare(known, &ledger).await,
                Err(ReadError::Missing { .. }) => {
                    tracing::error!("LEDGER is gone, or nobody leads it; making it if it is missing");
                    let link = *self.bus.link().borrow();
                    let _ = timeout(LOOK_MAX, converge(&self.bus, link)).await;
                }
                Err(error) => tracing::debug!(error = chain(&error), "cannot see LEDGER's end yet"),
            }
            tokio::time::sleep(retry.next(&mut chance)).await;
        }
    }

    fn is_behind(&self, known: u64, ledger: &StreamState) -> bool {
        ledger.created_at == self.created_at && ledger.last_seq < known
    }

    async fn compare(&self, known: u64, ledger: &StreamState) -> Result<(), LedgerReplaced> {
        if ledger.created_at == self.created_at && ledger.last_seq >= known {
            return Ok(());
        }
        let what = IncidentKind::LedgerReplaced {
            known_created_at: self.created_at,
            known_seq: known,
            created_at: ledger.created_at,
            last_seq: ledger.last_seq,
        };
        tracing::error!(incident = ?what, "incident");
        match timeout(RECORD_MAX, self.incidents.record(&IncidentRequest::new(None, what))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(error = chain(&error), "cannot record the incident"),
            Err(_) => tracing::error!("cannot record the incident: LEDGER does not answer"),
        }
        Err(LedgerReplaced { known, ends_at: ledger.last_seq })
    }
}

/// Makes UPLINK and PRESENCE if they are gone: devices have what was lost with them.
async fn make_ways_in(bus: &Bus) {
    for name in [stream::UPLINK, stream::PRESENCE] {
        if let Err(ReadError::Missing { .. }) = bus.stream_state(name).await {
            tracing::warn!("{name} is gone, or nobody leads it; making it if it is missing");
            let link = *bus.link().borrow();
            // Whoever waits for a leader is asked again at the next look.
            let _ = timeout(LOOK_MAX, converge(bus, link)).await;
        }
    }
}

async fn converge(bus: &Bus, link: Link) {
    match bus.converge().await {
        Ok(()) => tracing::debug!(?link, "the streams stand"),
        Err(error) => tracing::error!(error = chain(&error), "the streams are not what they should be"),
    }
}
