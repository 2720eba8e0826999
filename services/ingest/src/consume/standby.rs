//! Stands by while another process owns the partition, and takes the partition once no process answers for it.
//!
//! The owner of a partition answers requests for its name. A process that was killed does not, because the server knows that its
//! connection is gone; neither does a process that stands still. After [`SILENCES`] unanswered requests this process takes the
//! partition, within [`TAKEN_WITHIN`] of the owner's death. A process that has just started, and finds no responder at all, takes
//! the partition at once, unless its owner took it a moment ago: in a cluster the other servers may not know of the responder
//! yet. A wrong decision is safe: LEDGER refuses the facts of a process that lost the partition.
//!
//! A process that stands by follows LEDGER once for all of its partitions ([`LedgerFollower`](crate::follow::LedgerFollower)).

use std::time::Duration;

use muster_bus::{ReadError, RequestError, Responder};
use muster_contract::Timestamp;
use muster_contract::subjects::ask_owner;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::{Instant, timeout};

use super::Partition;
use super::quarantine_handler::QuarantineHandler;
use crate::error::PartitionError;
use crate::ownership::{self, AcquireError, FencingToken, OwnerRecord};
use crate::restore::Span;
use crate::room::REASSERTED;

/// Time between two requests for the owner's name.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long an owner may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Unanswered requests after which the partition counts as free. More than one, because a link may flap.
const SILENCES: u32 = 3;
/// Least time between the last answer of an owner and the moment at which another process takes its partition.
pub(super) const TAKEN_AFTER_MIN: Duration = Duration::from_secs(ASK_EVERY.as_secs() * (SILENCES as u64 - 1));
/// How long a partition stays without an owner: the requests, and some time to read the end of LEDGER.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// How long a server of a cluster may take to learn of a responder at another one.
const RESPONDER_KNOWN_WITHIN: Duration = Duration::from_secs(2);

const _: () = {
    let asking = (ASK_EVERY.as_secs() + ANSWER_WITHIN.as_secs()) * SILENCES as u64;
    assert!(asking < TAKEN_WITHIN.as_secs());
    assert!(RESPONDER_KNOWN_WITHIN.as_secs() <= asking);
};

/// The ownership of a partition. While it exists, this process answers requests for the owner's name.
pub(super) struct PartitionLease {
    pub(super) token: FencingToken,
    pub(super) quarantine: QuarantineHandler,
    pub(super) responder: Responder,
    /// Since when no pulse of the partition was current, by the last one in LEDGER.
    pub(super) unproven_since: Option<Timestamp>,
}

/// The knowledge about the owner of a partition that this process does not own.
#[derive(Debug, Default)]
pub(super) struct StandbyState {
    /// This process owned it until now.
    was_owned: bool,
    /// Another process owned it at the last request.
    is_standing_by: bool,
    /// Requests since the last answer.
    silences: u32,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Ask(#[from] RequestError),
    #[error(transparent)]
    Acquire(AcquireError),
}

impl Partition {
    /// Waits until this process owns the partition, and has read LEDGER beyond everything that a former owner wrote.
    pub(super) async fn take_over(&mut self) -> Result<PartitionLease, PartitionError> {
        let mut link = self.context.bus.link();
        loop {
            // An error means that the bus is gone, and the process ends; the attempt reports it.
            let _ = link.wait_for(|link| link.is_up()).await;
            match self.attempt().await {
                Ok(Some(lease)) => {
                    self.standby = StandbyState { was_owned: true, ..StandbyState::default() };
                    self.metrics.owned.set(1);
                    return Ok(lease);
                }
                Ok(None) => self.pause(ASK_EVERY).await,
                Err(AttemptError::Read(source)) if !source.is_transient() => {
                    return Err(PartitionError { partition: self.number, source });
                }
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.rng);
                    tracing::warn!(
                        partition = self.number,
                        error = chain(&error),
                        ?retry_in,
                        "cannot take the partition yet"
                    );
                    self.pause(retry_in).await;
                }
            }
        }
    }

    /// Tries to take the partition; `None` if another process owns it.
    async fn attempt(&mut self) -> Result<Option<PartitionLease>, AttemptError> {
        let record = ownership::record(&self.context.bus, self.number).await?;
        let is_own = record.as_ref().is_some_and(|record| *record.owner == *self.context.name);
        if let Some(record) = record.as_ref()
            && !is_own
            && std::mem::take(&mut self.standby.was_owned)
        {
            self.report_lease_lost(record);
        }
        if !is_own && !self.is_free(record.as_ref()).await? {
            return Ok(None);
        }
        let (name, room) = (self.context.name.clone(), self.room.clone());
        let answer = move |asked: &[u8]| match asked {
            REASSERTED => room.reasserted().to_string().into(),
            _ => bytes::Bytes::copy_from_slice(name.as_bytes()),
        };
        let responder = self.context.bus.respond(&ask_owner(self.number), answer).await?;
        let (bus, now) = (&self.context.bus, self.context.clock.now());
        let acquired = ownership::acquire(bus, self.number, &self.context.name, record.as_ref(), now);
        let token = match acquired.await {
            Ok(token) => token,
            Err(error @ AcquireError::Taken(_)) => {
                tracing::info!(partition = self.number, error = chain(&error), "standing by");
                return Ok(None);
            }
            Err(error) => return Err(AttemptError::Acquire(error)),
        };
        // A former owner's pulses are refused from now on, so this one is the last.
        let unproven_since = ownership::unproven_since(bus, self.number).await?;
        self.catch_up(token.position()).await?;
        self.context.follower.stop_following(self.number).await;
        tracing::debug!(partition = self.number, ledger.seq = self.read_after, "read LEDGER to its end");
        let devices = self.intake.devices();
        tracing::info!(partition = self.number, ledger.seq = token.seq(), devices, "took the partition");
        let max_age = self.context.quarantine_max_age;
        let quarantine = QuarantineHandler::open(&self.context.bus, self.number, max_age).await?;
        Ok(Some(PartitionLease { token, quarantine, responder, unproven_since }))
    }

    /// Logs and counts that another process has taken the partition from this one.
    fn report_lease_lost(&self, record: &OwnerRecord) {
        self.metrics.all.leases_lost.inc();
        tracing::error!(
            partition = self.number,
            owner = record.owner,
            ledger.seq = record.seq,
            "another process has taken the partition, and LEDGER refuses the facts of this process. Either this process was too \
             slow, or two processes have the same --partitions"
        );
    }

    /// Requests the owner's name; true once no process has answered for long enough.
    async fn is_free(&mut self, record: Option<&OwnerRecord>) -> Result<bool, AttemptError> {
        let asked =
            self.context.bus.request(&ask_owner(self.number), bytes::Bytes::new(), ANSWER_WITHIN).await;
        match asked {
            Ok(name) => {
                self.stand_by(&String::from_utf8_lossy(&name));
                self.catch_up(0).await?;
            }
            Err(RequestError::NoResponders { .. })
                if !self.standby.is_standing_by && !is_recent(record, self.context.clock.now()) =>
            {
                self.standby.silences = SILENCES;
            }
            Err(RequestError::NoResponders { .. } | RequestError::Timeout { .. }) => {
                self.standby.silences += 1;
            }
            Err(error) => return Err(error.into()),
        }
        let is_free = self.standby.silences >= SILENCES;
        if let Some(record) = record.filter(|_| is_free) {
            tracing::info!(
                partition = self.number,
                owner = record.owner,
                "taking the partition: its owner does not answer"
            );
        }
        Ok(is_free)
    }

    /// Records that another process owns the partition.
    fn stand_by(&mut self, owner: &str) {
        self.standby.silences = 0;
        if !std::mem::replace(&mut self.standby.is_standing_by, true) {
            tracing::warn!(
                partition = self.number,
                owner,
                "another process owns the partition; standing by until it no longer answers"
            );
        }
        // A process that stands by is ready.
        self.ready.take().into_iter().for_each(Latch::release);
    }

    /// Applies the facts of LEDGER that the intake does not know.
    async fn catch_up(&mut self, through: u64) -> Result<(), ReadError> {
        let span = Span { after: self.read_after, through };
        let follower = &self.context.follower;
        self.read_after = follower.catch_up(self.number, &mut self.intake, span).await?;
        self.context.high_water.reached(self.read_after);
        Ok(())
    }

    /// Waits, and applies documents and receipts of DOWNLINK meanwhile.
    async fn pause(&mut self, span: Duration) {
        let until = Instant::now() + span;
        while let Ok(update) =
            timeout(until.saturating_duration_since(Instant::now()), self.desired.next()).await
        {
            update.apply(&mut self.intake);
        }
    }
}

/// Whether LEDGER stored a record so recently that a server may not know the responder of its writer.
fn is_recent(record: Option<&OwnerRecord>, now: Timestamp) -> bool {
    let age = record.map(|record| Duration::try_from(now.duration_since(record.stored_at)));
    // A time in the future comes from a wrong clock, and is no reason to wait.
    matches!(age, Some(Ok(age)) if age < RESPONDER_KNOWN_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_recent_until_every_server_knows_its_writer() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let table = [(0, true), (1_999, true), (2_000, false), (3_600_000, false), (-1, false)];
        for (age_ms, young) in table {
            let stored_at = Timestamp::from_millisecond(now.as_millisecond() - age_ms).unwrap();
            let record = OwnerRecord { seq: 7, owner: "a/1/b".to_owned(), fences: 1, stored_at };
            assert_eq!(is_recent(Some(&record), now), young, "{age_ms} ms");
        }
        assert!(!is_recent(None, now), "no record");
    }
}
