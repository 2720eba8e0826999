//! Checks the streams. A restarted server has lost PRESENCE, and an operator may delete UPLINK or LEDGER: this creates missing
//! streams. If LEDGER is another one now, or ends before a position that this process knows (it was deleted, created again, or
//! restored from a backup), it lacks facts that this process takes for stored. Then ingest records the incident in the present
//! LEDGER and ends, and the next start reads LEDGER from its beginning. Otherwise devices would delete reports that no stream
//! holds. So after each new connection the partitions wait until LEDGER was checked over it.

use std::time::Duration;

use muster_bus::{Bus, Link, ReadError, StreamState};
use muster_contract::Timestamp;
use muster_contract::incident::{IncidentKind, IncidentRequest};
use muster_contract::subjects::stream;
use muster_service::error::chain;
use muster_service::retry::{RetryPolicy, retry};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::LedgerReplaced;
use crate::incidents::IncidentRecorder;
use crate::ledger_publisher::HighWater;

/// Time between two checks of LEDGER.
const LEDGER_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time between two checks of UPLINK and PRESENCE.
const INPUT_CHECK_EVERY: Duration = Duration::from_secs(10);
/// How long such a check may wait for a server that elects a leader.
const CONVERGE_WITHIN: Duration = Duration::from_secs(10);
/// How long recording the incident may take before ingest ends without it: rollup reports it as well.
const RECORD_WITHIN: Duration = Duration::from_secs(5);
/// How long the last check may take while the process stops.
const LAST_CHECK_WITHIN: Duration = Duration::from_secs(2);
/// Time after which a LEDGER that ends too early is checked once more.
const CONFIRM_AFTER: Duration = Duration::from_millis(1_500);
/// Delays between attempts to check LEDGER.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(50), max: Duration::from_secs(5) };

const _: () = assert!(LEDGER_CHECK_EVERY.as_secs() < INPUT_CHECK_EVERY.as_secs());
const _: () = assert!(CONFIRM_AFTER.as_millis() < LAST_CHECK_WITHIN.as_millis());
const _: () = {
    let stopping = LAST_CHECK_WITHIN.as_secs() + RECORD_WITHIN.as_secs();
    assert!(stopping < muster_service::supervisor::DRAIN_DEADLINE.as_secs());
};

/// Checks the streams until the process stops.
#[derive(Debug)]
pub(crate) struct Guard {
    /// The bus.
    pub(crate) bus: Bus,
    /// The highest known sequence of LEDGER.
    pub(crate) high_water: HighWater,
    /// When the LEDGER that this process has read was created.
    pub(crate) created_at: Timestamp,
    /// Records a replacement.
    pub(crate) incidents: IncidentRecorder,
    /// The connection over which LEDGER was last checked.
    pub(crate) seen_over: watch::Sender<Link>,
}

impl Guard {
    /// Checks until `stop`, and checks LEDGER once more then: a partition that cannot continue with another LEDGER stops the
    /// process as well.
    ///
    /// # Errors
    /// LEDGER is another one, or ends before a position that this process knows.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<(), LedgerReplaced> {
        match stop.run_until_cancelled(self.check_repeatedly()).await {
            Some(end) => end,
            None => timeout(LAST_CHECK_WITHIN, self.check_ledger()).await.unwrap_or(Ok(())),
        }
    }

    async fn check_repeatedly(&self) -> Result<(), LedgerReplaced> {
        let mut link = self.bus.link();
        let mut seen = *self.seen_over.borrow();
        let mut input_check_at = Instant::now() + INPUT_CHECK_EVERY;
        loop {
            // An error means that the bus is gone, and the process ends.
            if let Ok(Err(_)) = timeout(LEDGER_CHECK_EVERY, link.changed()).await {
                return Ok(());
            }
            let now = *link.borrow_and_update();
            if !now.is_up() {
                continue;
            }
            self.check_ledger().await?;
            self.seen_over.send_replace(now);
            if now != seen {
                converge(&self.bus, now).await;
                seen = now;
            } else if Instant::now() >= input_check_at {
                create_missing_inputs(&self.bus).await;
                input_check_at = Instant::now() + INPUT_CHECK_EVERY;
            }
        }
    }

    /// Compares LEDGER with what this process knows of it, and repeats that until LEDGER answers.
    async fn check_ledger(&self) -> Result<(), LedgerReplaced> {
        // Read first: a fact that is confirmed while LEDGER answers may be above the answer.
        let known = self.high_water.now();
        let mut ledger = self.ledger_state().await;
        if self.is_behind(known, &ledger) {
            // A replica that was just elected may lag behind the facts that were confirmed.
            tokio::time::sleep(CONFIRM_AFTER).await;
            ledger = self.ledger_state().await;
        }
        self.compare(known, &ledger).await
    }

    /// The state of LEDGER, which is created if it is missing.
    async fn ledger_state(&self) -> StreamState {
        let read = |_| async {
            let state = self.bus.stream_state(stream::LEDGER).await;
            if let Err(ReadError::Missing { .. }) = &state {
                tracing::error!("LEDGER is missing or has no leader; creating it if it is missing");
                let link = *self.bus.link().borrow();
                let _ = timeout(CONVERGE_WITHIN, converge(&self.bus, link)).await;
            }
            state
        };
        retry(RETRY, "cannot check LEDGER yet", read).await
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
        match timeout(RECORD_WITHIN, self.incidents.record(&IncidentRequest::new(None, what))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::error!(error = chain(&error), "cannot record the incident"),
            Err(_) => tracing::error!("cannot record the incident: LEDGER does not answer"),
        }
        Err(LedgerReplaced { known, ends_at: ledger.last_seq })
    }
}

/// Creates UPLINK and PRESENCE if they are missing: devices send the lost messages again.
async fn create_missing_inputs(bus: &Bus) {
    for name in [stream::UPLINK, stream::PRESENCE] {
        if let Err(ReadError::Missing { .. }) = bus.stream_state(name).await {
            tracing::warn!("{name} is missing or has no leader; creating it if it is missing");
            let link = *bus.link().borrow();
            // A stream without a leader is checked again the next time.
            let _ = timeout(CONVERGE_WITHIN, converge(bus, link)).await;
        }
    }
}

async fn converge(bus: &Bus, link: Link) {
    match bus.converge().await {
        Ok(()) => tracing::debug!(?link, "checked the streams"),
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot create or update the streams; trying again");
        }
    }
}
