//! Reads the oldest facts of one partition from LEDGER in the background: they must be re-asserted before LEDGER discards them.
//!
//! The consumer has no subject filter, because a server searches for filtered messages many times slower than it sends all of
//! them. It is opened only if LEDGER has old facts, and by one partition after the other.

use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, ReadError, Replay, Start};
use muster_contract::Timestamp;
use muster_contract::fact::{Fact, Incident, IncidentKind};
use muster_contract::limits::REASSERT_AFTER;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::time::{sleep, timeout};

/// Messages of LEDGER read at once.
const BATCH: usize = 256;
/// Pause after each read: at most 2,560 messages a second, many times what a large fleet publishes, and a small part of what a
/// server can send.
const BATCH_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two checks while no fact is old enough. LEDGER keeps facts for ten days more.
const CHECK_EVERY: Duration = Duration::from_secs(60 * 60);
/// The first check of a process waits, so that new facts go first.
const FIRST_CHECK: Duration = Duration::from_secs(5);
/// Time between the first checks of two partitions of one process.
const CHECKS_APART: Duration = Duration::from_millis(500);
/// How long no message may come before LEDGER counts as read to its end.
const SILENCE: Duration = Duration::from_secs(5);

const _: () = assert!(CHECK_EVERY.as_secs() * 24 < REASSERT_AFTER.as_secs());

/// A fact that is old enough to be re-asserted.
pub(crate) type AgedFact = (LedgerSubject, Fact);

/// Reads the old facts of a partition, each once.
pub struct ReassertReader {
    bus: Bus,
    clock: Arc<dyn Clock>,
    partition: u16,
    replay: Option<Replay>,
    /// Everything up to this sequence was returned.
    position: u64,
    first: bool,
}

impl ReassertReader {
    /// A reader that has returned nothing yet.
    pub fn new(bus: Bus, clock: Arc<dyn Clock>, partition: u16) -> Self {
        Self { bus, clock, partition, replay: None, position: 0, first: true }
    }

    /// The next old facts, at least one, in LEDGER's order.
    pub async fn next(mut self) -> (Self, Vec<AgedFact>) {
        loop {
            sleep(self.pause()).await;
            match self.read().await {
                Ok(aged) if aged.is_empty() => {}
                Ok(aged) => return (self, aged),
                Err(error) => {
                    tracing::debug!(
                        partition = self.partition,
                        error = chain(&error),
                        "cannot read old facts"
                    );
                    self.replay = None;
                    // LEDGER may be another one now: it is read from its beginning.
                    self.position = if error.is_transient() { self.position } else { 0 };
                }
            }
        }
    }

    fn pause(&mut self) -> Duration {
        match (std::mem::take(&mut self.first), &self.replay) {
            (true, _) => FIRST_CHECK + CHECKS_APART * u32::from(self.partition),
            (false, Some(_)) => BATCH_PAUSE,
            (false, None) => CHECK_EVERY,
        }
    }

    async fn read(&mut self) -> Result<Vec<AgedFact>, ReadError> {
        let replay = match &mut self.replay {
            Some(replay) => replay,
            None => {
                let ledger = self.bus.stream_state(stream::LEDGER).await?;
                if ledger.messages == 0 || !is_old(ledger.first_at, self.clock.now()) {
                    return Ok(Vec::new());
                }
                let start = Start::After(self.position);
                self.replay.insert(self.bus.replay(stream::LEDGER, &[], start).await?)
            }
        };
        let Ok(batch) = timeout(SILENCE, replay.next_batch(BATCH)).await else {
            self.replay = None;
            return Ok(Vec::new());
        };
        let now = self.clock.now();
        let mut aged = Vec::new();
        for delivery in batch? {
            if !is_old(delivery.stored_at, now) {
                self.replay = None;
                break;
            }
            let subject = LedgerSubject::parse(&delivery.subject).filter(is_reasserted);
            let Some(subject) = subject else { continue };
            self.position = delivery.stream_seq;
            if subject.device().is_none_or(|key| partition_of(key) != self.partition) {
                continue;
            }
            // An unreadable fact was logged when ingest restored its state from LEDGER.
            let fact = Fact::parse(&subject, &delivery.payload).ok().filter(may_hold);
            aged.extend(fact.map(|fact| (subject, fact)));
        }
        Ok(aged)
    }
}

/// Whether facts of a subject are re-asserted. Liveness is republished by itself, incidents of the hub are history, and LEDGER
/// keeps only the newest pulse.
const fn is_reasserted(subject: &LedgerSubject) -> bool {
    use LedgerSubject::{Deadline, Device, Incident, Quarantine, Status};
    matches!(subject, Status(..) | Device(_) | Deadline(..) | Quarantine(_) | Incident(Some(_)))
}

/// Whether a fact of such a subject may hold: of the incidents of a device only the refusal of a desired state, which stands
/// until its end.
const fn may_hold(fact: &Fact) -> bool {
    match fact {
        Fact::Incident(Incident { what, .. }) => matches!(what, IncidentKind::DesiredRefused(_)),
        _ => true,
    }
}

fn is_old(stored_at: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(stored_at)).is_ok_and(|age| age >= REASSERT_AFTER)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

    use super::*;

    #[test]
    fn of_the_incidents_only_refusals_of_a_device_are_read() {
        let read = |subject: &str, body: &str| {
            let subject = LedgerSubject::parse(subject).filter(is_reasserted)?;
            let head = r#""apiVersion":"muster/v1","kind":"Incident","at":"2026-11-20T09:00:00Z""#;
            let fact = Fact::parse(&subject, format!("{{{head},{body}}}").as_bytes()).unwrap();
            may_hold(&fact).then_some(fact)
        };
        let since = r#""since":"2026-11-20T08:00:00Z""#;
        let refused = format!(r#""type":"desiredRefused","code":"older","message":"no",{since}"#);
        assert!(read("muster.incident.plant7.press-4", &refused).is_some());
        let accepted = r#""type":"desiredAccepted","generation":5,"refusedSince":"2026-11-20T08:00:00Z""#;
        for history in [accepted, r#""type":"clockSkew","seconds":900"#] {
            assert_eq!(read("muster.incident.plant7.press-4", history), None);
        }
        let full = r#""type":"ledgerNearlyFull","bytes":9,"bytesMax":10"#;
        assert_eq!(read("muster.incident._._", full), None);
    }
}
