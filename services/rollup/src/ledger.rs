//! The state of LEDGER, and the incident of a LEDGER that takes the place of another.

use std::time::Duration;

use muster_bus::{Bus, StreamState};
use muster_contract::Timestamp;
use muster_contract::incident::IncidentKind;
use muster_contract::subjects::stream;
use muster_service::retry::{RetryPolicy, retry};

/// Delays before LEDGER's state is read again.
const RETRY: RetryPolicy = RetryPolicy { min: Duration::from_millis(100), max: Duration::from_secs(5) };

/// The incident of a LEDGER that takes the place of another, which was created and known up to this.
pub(crate) const fn replaced(
    known_created_at: Timestamp,
    known_seq: u64,
    ledger: &StreamState,
) -> IncidentKind {
    let StreamState { created_at, last_seq, .. } = *ledger;
    IncidentKind::LedgerReplaced { known_created_at, known_seq, created_at, last_seq }
}

/// The state of LEDGER, as soon as that can be known.
pub(crate) async fn ledger_state(bus: &Bus) -> StreamState {
    retry(RETRY, "cannot read LEDGER's state yet", |_| bus.stream_state(stream::LEDGER)).await
}
