//! Saves snapshots of a partition while this process owns it: at the first turn, then once a minute, sooner if LEDGER grows fast,
//! and at the end.

use std::time::Duration;

use muster_contract::subjects::stream;
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Partition;
use crate::snapshot::Identity;

/// Time between two turns.
pub(super) const SAVE_TURN: Duration = Duration::from_secs(10);
/// Turns after which a snapshot is due: a minute.
const TURNS_MAX: u32 = 6;
/// Facts in LEDGER behind the newest snapshot with which the next is due at the turn: a start reads 90,000 a second. At the most
/// facts that a hub takes in, one is due at every second turn.
const FACTS_BEHIND_MAX: u64 = 75_000;

/// Saves the snapshots of one session.
#[derive(Debug)]
pub(super) struct SnapshotSaver {
    writing: Option<JoinHandle<()>>,
    schedule: Schedule,
    /// The sequence of the token with which this session owns the partition.
    token_seq: u64,
}

/// When the next snapshot is due.
#[derive(Debug, Default)]
struct Schedule {
    /// The position of the newest snapshot that was begun.
    saved_through: u64,
    /// Turns since then.
    turns: u32,
}

impl Schedule {
    /// Whether a snapshot up to a position is due at this turn.
    fn turn(&mut self, position: u64) -> bool {
        self.turns += 1;
        let behind = position.saturating_sub(self.saved_through);
        let is_due =
            behind >= FACTS_BEHIND_MAX || behind > 0 && (self.turns >= TURNS_MAX || self.saved_through == 0);
        if is_due {
            *self = Self { saved_through: position, turns: 0 };
        }
        is_due
    }
}

impl SnapshotSaver {
    pub(super) fn new(token_seq: u64) -> Self {
        Self { writing: None, schedule: Schedule::default(), token_seq }
    }

    /// Takes a turn: begins to save the state of a partition's devices, which contains every fact up to a position, if a snapshot
    /// is due and the one before is written.
    pub(super) fn turn(&mut self, own: &Partition, position: u64) {
        let Some((snapshots, origin)) = own.context.snapshots.clone() else { return };
        let is_writing = self.writing.as_ref().is_some_and(|task| !task.is_finished());
        if is_writing || !self.schedule.turn(position) {
            return;
        }
        let content = block_in_place_if_large(own.intake.devices(), || own.intake.snapshot());
        let (bus, partition, token_seq) = (own.context.bus.clone(), own.number, self.token_seq);
        self.writing = Some(tokio::spawn(async move {
            // If the fact is gone or cannot be read, the next snapshot names another one.
            let Ok(Some(newest)) = bus.at(stream::LEDGER, position).await else { return };
            let identity = Identity { partition, origin, token_seq, position, stored_at: newest.stored_at };
            let written = spawn_blocking(move || snapshots.write(&identity, &content)).await;
            match written {
                Ok(Ok(())) => tracing::debug!(partition, ledger.seq = position, "wrote a snapshot"),
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

    /// Waits for the snapshot that is being written. Another one is due at the next turn if anything has changed since.
    pub(super) async fn finish(&mut self) {
        self.schedule.turns = TURNS_MAX;
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
    fn a_snapshot_is_due_first_each_minute_and_behind_many_facts() {
        let mut schedule = Schedule::default();
        assert!(schedule.turn(1_000), "the first");
        assert_eq!((1..=TURNS_MAX).filter(|_| schedule.turn(1_000)).count(), 0, "nothing has changed");
        assert!(schedule.turn(1_001), "a minute has passed");
        assert!(!schedule.turn(1_000 + FACTS_BEHIND_MAX), "one fact less than due");
        assert!(schedule.turn(1_001 + FACTS_BEHIND_MAX), "many facts");
        assert_eq!((1..=TURNS_MAX).find(|turn| schedule.turn(80_000 + u64::from(*turn))), Some(TURNS_MAX));
    }
}
