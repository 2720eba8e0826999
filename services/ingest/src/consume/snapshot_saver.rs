//! Saves snapshots of a partition while this process owns it: soon after it began, then once a minute, sooner if LEDGER grows
//! fast, and at the end.

use std::time::Duration;

use muster_contract::subjects::stream;
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Partition;
use crate::snapshot::SnapshotOrigin;

/// Time between two checks whether a snapshot is due.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Longest time between two snapshots while LEDGER grows.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Checks between two snapshots at most.
const CHECKS_MAX: u64 = SAVE_EVERY.as_secs() / CHECK_EVERY.as_secs();
/// Facts in LEDGER behind the newest snapshot with which the next one is due: a start reads about 90,000 a second, and a hub that
/// takes in 5,000 a second saves at every second check.
const FACTS_BEHIND_MAX: u64 = 75_000;

/// Saves the snapshots of one session.
#[derive(Debug)]
pub(super) struct SnapshotSaver {
    writing: Option<JoinHandle<()>>,
    schedule: SaveSchedule,
    /// The sequence of the token with which this session owns the partition.
    token_seq: u64,
}

/// Decides when the next snapshot is due.
#[derive(Debug, Default)]
struct SaveSchedule {
    /// The position of the newest snapshot that was begun; none if there is none of this session.
    saved_through: Option<u64>,
    /// Checks since then.
    checks: u64,
}

impl SaveSchedule {
    /// Counts a check. True if a snapshot up to a position is due, which counts as saved then.
    fn check(&mut self, position: u64) -> bool {
        self.checks += 1;
        let behind = self.saved_through.map(|through| position.saturating_sub(through));
        let is_due = match behind {
            None => true,
            Some(0) => false,
            Some(facts) => facts >= FACTS_BEHIND_MAX || self.checks >= CHECKS_MAX,
        };
        if is_due {
            *self = Self { saved_through: Some(position), checks: 0 };
        }
        is_due
    }
}

impl SnapshotSaver {
    pub(super) fn new(token_seq: u64) -> Self {
        Self { writing: None, schedule: SaveSchedule::default(), token_seq }
    }

    /// Begins to save the state of a partition's devices, which contains every fact up to a position, if a snapshot is due and the
    /// one before is written.
    pub(super) fn save_if_due(&mut self, own: &Partition, position: u64) {
        let Some((snapshots, ledger)) = own.context.snapshots.clone() else { return };
        let is_writing = self.writing.as_ref().is_some_and(|task| !task.is_finished());
        if is_writing || !self.schedule.check(position) {
            return;
        }
        let content = block_in_place_if_large(own.intake.devices(), || own.intake.snapshot());
        let (bus, partition, token_seq) = (own.context.bus.clone(), own.number, self.token_seq);
        self.writing = Some(tokio::spawn(async move {
            // If the fact is gone or cannot be read, the next snapshot names another one.
            let Ok(Some(newest)) = bus.at(stream::LEDGER, position).await else { return };
            let origin =
                SnapshotOrigin { partition, ledger, token_seq, position, stored_at: newest.stored_at };
            let written = spawn_blocking(move || snapshots.write(&origin, &content)).await;
            match written {
                Ok(Ok(is_written)) => {
                    tracing::debug!(partition, ledger.seq = position, is_written, "finished a snapshot");
                }
                Ok(Err(error)) => {
                    tracing::warn!(
                        partition,
                        error = chain(&error),
                        "cannot write the snapshot; the one before stays"
                    );
                }
                Err(_) => {}
            }
        }));
    }

    /// Waits for the snapshot that is being written. Another one is due at the next check if LEDGER has grown since.
    pub(super) async fn finish(&mut self) {
        self.schedule.checks = CHECKS_MAX;
        if let Some(task) = self.writing.take() {
            // A task that panicked has logged it.
            let _ = task.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_due_at_first_each_minute_and_behind_many_facts() {
        let mut schedule = SaveSchedule::default();
        assert!(schedule.check(1_000), "the first");
        assert_eq!((0..CHECKS_MAX).filter(|_| schedule.check(1_000)).count(), 0, "LEDGER has not grown");
        assert!(schedule.check(1_001), "a minute has passed");
        assert!(!schedule.check(1_000 + FACTS_BEHIND_MAX), "one fact less than due");
        assert!(schedule.check(1_001 + FACTS_BEHIND_MAX), "many facts");
        let due = (1..=CHECKS_MAX).find(|_| schedule.check(1_002 + FACTS_BEHIND_MAX));
        assert_eq!(due, Some(CHECKS_MAX), "another minute");
    }
}
