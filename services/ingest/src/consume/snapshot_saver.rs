//! Saves snapshots of a partition while this process owns it: once a minute, and at the end.

use std::time::Duration;

use muster_contract::subjects::stream;
use muster_service::blocking::block_in_place_if_large;
use muster_service::error::chain;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Partition;
use crate::snapshot::LastFact;

/// Time between two snapshots of a partition.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(60);

/// Saves the snapshots of one session.
#[derive(Debug, Default)]
pub(super) struct SnapshotSaver {
    writing: Option<JoinHandle<()>>,
    /// The position of the newest snapshot that was begun.
    saved_through: u64,
}

impl SnapshotSaver {
    /// Begins to save the state of a partition's devices, which contains every fact up to a position. Does nothing while the
    /// snapshot before is being written, or if nothing has changed.
    pub(super) fn start_saving(&mut self, own: &Partition, position: u64) {
        let Some((snapshots, origin)) = own.context.snapshots.clone() else { return };
        if position <= self.saved_through || self.writing.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        self.saved_through = position;
        let content = block_in_place_if_large(own.intake.devices(), || own.intake.snapshot());
        let (bus, partition) = (own.context.bus.clone(), own.number);
        self.writing = Some(tokio::spawn(async move {
            // If the fact is gone or cannot be read, the next snapshot names another one.
            let Ok(Some(newest)) = bus.at(stream::LEDGER, position).await else { return };
            let fact = LastFact { position, stored_at: newest.stored_at };
            let written = spawn_blocking(move || snapshots.write(partition, origin, fact, &content)).await;
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

    /// Waits for the snapshot that is being written.
    pub(super) async fn finish(&mut self) {
        if let Some(task) = self.writing.take() {
            // A task that panicked has logged it.
            let _ = task.await;
        }
    }
}
