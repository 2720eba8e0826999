//! Standing by: waiting for a partition that another process owns, and taking it once nobody speaks for it.
//!
//! The owner answers whoever asks for it. A process that is killed no longer does, because the server knows that its
//! connection is gone; one that stands still does not either. After [`SILENCES`] unanswered questions the partition is
//! taken: within [`TAKEN_WITHIN`] of the owner's death, as far as this waiting goes. A process that has just started and
//! finds nobody listening at all takes it at once, but from an owner of this moment: on a cluster the word that somebody
//! listens may still be on its way. To be wrong is safe: LEDGER refuses whoever lost the partition.
//!
//! While it waits, a process follows LEDGER once for all of its partitions ([`LedgerFollower`](crate::follow::LedgerFollower)).

use std::time::Duration;

use muster_bus::{Answering, ReadError, RequestError};
use muster_contract::Timestamp;
use muster_contract::subjects::ask_owner;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::time::{Instant, timeout};

use super::Partition;
use super::quarantine::Desk;
use crate::error::PartitionError;
use crate::ownership::{self, Claim, ClaimError, Record};
use crate::restore::Span;
use crate::room::REASSERTED;

/// Time between two questions for the owner.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long an owner may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Questions without an answer after which nobody owns the partition. More than one: a link may flap.
const SILENCES: u32 = 3;
/// No process takes a partition sooner after its owner's last answer.
pub(super) const TAKEN_AFTER_MIN: Duration = Duration::from_secs(ASK_EVERY.as_secs() * (SILENCES as u64 - 1));
/// How long a partition stays without an owner: the questions, and some time to read the end of LEDGER.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// How long a server of a cluster may take to hear that an owner listens at another one.
const HEARD_OF_WITHIN: Duration = Duration::from_secs(2);

const _: () = {
    let asking = (ASK_EVERY.as_secs() + ANSWER_WITHIN.as_secs()) * SILENCES as u64;
    assert!(asking < TAKEN_WITHIN.as_secs());
    assert!(HEARD_OF_WITHIN.as_secs() <= asking);
};

/// A partition that is ours, and that we say so.
pub(super) struct Turn {
    pub(super) claim: Claim,
    pub(super) desk: Desk,
    pub(super) answering: Answering,
}

/// How long nobody has spoken for the partition.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// It was this process's until now.
    was_ours: bool,
    /// Somebody else owned it when last seen.
    standing_by: bool,
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
    Claim(ClaimError),
}

impl Partition {
    /// Waits until the partition is this process's, and LEDGER has been read beyond everything a former owner wrote.
    pub(super) async fn take_over(&mut self) -> Result<Turn, PartitionError> {
        let mut link = self.around.bus.link();
        loop {
            // An error means that the bus is gone, and the process with it; the attempt will say so.
            let _ = link.wait_for(|link| link.is_up()).await;
            match self.attempt().await {
                Ok(Some(turn)) => {
                    self.waiting = Waiting { was_ours: true, ..Waiting::default() };
                    self.metrics.owned.set(1);
                    return Ok(turn);
                }
                Ok(None) => self.pause(ASK_EVERY).await,
                Err(AttemptError::Read(source)) if !source.is_transient() => {
                    return Err(PartitionError { partition: self.number, source });
                }
                Err(error) => {
                    let retry_in = self.retry.next(&mut self.chance);
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

    /// The partition, if it is ours now.
    async fn attempt(&mut self) -> Result<Option<Turn>, AttemptError> {
        let record = ownership::record(&self.around.bus, self.number).await?;
        let ours = record.as_ref().is_some_and(|record| *record.owner == *self.around.name);
        if let Some(record) = record.as_ref().filter(|_| !ours && std::mem::take(&mut self.waiting.was_ours))
        {
            self.metrics.all.usurped.inc();
            tracing::error!(
                partition = self.number,
                owner = record.owner,
                ledger.seq = record.seq,
                "another process has taken this partition; nothing of ours is stored any more. Was this one too slow, \
                 or are two meant to own it?"
            );
        }
        if !ours && !self.is_free(record.as_ref()).await? {
            return Ok(None);
        }
        let (name, room) = (self.around.name.clone(), self.room.clone());
        let answer = move |asked: &[u8]| match asked {
            REASSERTED => room.reasserted().to_string().into(),
            _ => bytes::Bytes::copy_from_slice(name.as_bytes()),
        };
        let answering = self.around.bus.answer(&ask_owner(self.number), answer).await?;
        let (bus, now) = (&self.around.bus, self.around.clock.now());
        let claim = match ownership::claim(bus, self.number, &self.around.name, record.as_ref(), now).await {
            Ok(claim) => claim,
            Err(error @ ClaimError::Taken(_)) => {
                tracing::info!(partition = self.number, error = chain(&error), "standing by");
                return Ok(None);
            }
            Err(error) => return Err(AttemptError::Claim(error)),
        };
        self.catch_up(claim.position()).await?;
        self.around.follower.leave(self.number).await;
        tracing::debug!(partition = self.number, ledger.seq = self.read_after, "LEDGER read to its end");
        let devices = self.border.devices();
        tracing::info!(partition = self.number, ledger.seq = claim.seq(), devices, "the partition is ours");
        let desk = Desk::open(&self.around.bus, self.number).await?;
        Ok(Some(Turn { claim, desk, answering }))
    }

    /// Asks for the owner; true once nobody has answered for long enough.
    async fn is_free(&mut self, record: Option<&Record>) -> Result<bool, AttemptError> {
        let asked =
            self.around.bus.request(&ask_owner(self.number), bytes::Bytes::new(), ANSWER_WITHIN).await;
        match asked {
            Ok(name) => {
                self.stand_by(&String::from_utf8_lossy(&name));
                self.catch_up(0).await?;
            }
            Err(RequestError::NoResponders { .. })
                if !self.waiting.standing_by && !is_of_this_moment(record, self.around.clock.now()) =>
            {
                self.waiting.silences = SILENCES;
            }
            Err(RequestError::NoResponders { .. } | RequestError::Timeout { .. }) => {
                self.waiting.silences += 1;
            }
            Err(error) => return Err(error.into()),
        }
        let free = self.waiting.silences >= SILENCES;
        if let Some(record) = record.filter(|_| free) {
            tracing::info!(
                partition = self.number,
                owner = record.owner,
                "nobody speaks for it; taking it over"
            );
        }
        Ok(free)
    }

    /// Somebody else owns the partition.
    fn stand_by(&mut self, owner: &str) {
        self.waiting.silences = 0;
        if !std::mem::replace(&mut self.waiting.standing_by, true) {
            tracing::warn!(
                partition = self.number,
                owner,
                "another process owns the partition; standing by until it no longer answers"
            );
        }
        // Standing by is what it is there for.
        self.ready.take().into_iter().for_each(Latch::release);
    }

    /// Reads what LEDGER holds beyond what is known.
    async fn catch_up(&mut self, through: u64) -> Result<(), ReadError> {
        let span = Span { after: self.read_after, through };
        let follower = &self.around.follower;
        self.read_after = follower.catch_up(self.number, &mut self.border, span).await?;
        self.around.high_water.reached(self.read_after);
        Ok(())
    }

    /// Waits, taking in what devices shall run.
    async fn pause(&mut self, span: Duration) {
        let until = Instant::now() + span;
        while let Ok(task) =
            timeout(until.saturating_duration_since(Instant::now()), self.desired.next()).await
        {
            task.apply(&mut self.border);
        }
    }
}

/// A record that LEDGER has stored so lately that not every server knows its writer.
fn is_of_this_moment(record: Option<&Record>, now: Timestamp) -> bool {
    let age = record.map(|record| Duration::try_from(now.duration_since(record.stored_at)));
    // A time to come is a clock that goes wrong, and no reason to wait.
    matches!(age, Some(Ok(age)) if age < HEARD_OF_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_of_this_moment_is_one_whose_record_is_younger_than_word_takes_to_spread() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let table = [(0, true), (1_999, true), (2_000, false), (3_600_000, false), (-1, false)];
        for (age_ms, young) in table {
            let stored_at = Timestamp::from_millisecond(now.as_millisecond() - age_ms).unwrap();
            let record = Record { seq: 7, owner: "a/1/b".to_owned(), lanes: 1, stored_at };
            assert_eq!(is_of_this_moment(Some(&record), now), young, "{age_ms} ms");
        }
        assert!(!is_of_this_moment(None, now), "nobody");
    }
}
