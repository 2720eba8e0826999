//! Saves snapshots of a partition while it is this process's: now and then, and at the end.

use std::time::Duration;

use muster_contract::subjects::stream;
use muster_service::aside::aside;
use muster_service::error::chain;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Partition;

/// Time between two snapshots of a partition.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The snapshots of one session.
#[derive(Debug, Default)]
pub(super) struct Saving {
    under_way: Option<JoinHandle<()>>,
    /// The position of the newest snapshot that was begun.
    saved_to: u64,
}

impl Saving {
    /// Begins to save what LEDGER says of a partition's devices up to a position, all of which is confirmed. Does nothing
    /// while the one before is under way, or where nothing has changed.
    pub(super) fn begin(&mut self, own: &Partition, position: u64) {
        let Some((snapshots, origin)) = own.around.snapshots.clone() else { return };
        if position <= self.saved_to || self.under_way.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        self.saved_to = position;
        let content = aside(own.border.devices(), || own.border.snapshot());
        let (bus, partition) = (own.around.bus.clone(), own.number);
        self.under_way = Some(tokio::spawn(async move {
            // Where the fact is gone or cannot be read, the next snapshot names another one.
            let Ok(Some(newest)) = bus.at(stream::LEDGER, position).await else { return };
            let at = (position, newest.stored_at);
            let written = spawn_blocking(move || snapshots.write(partition, origin, at, &content)).await;
            match written {
                Ok(Ok(())) => tracing::debug!(partition, ledger.seq = position, "snapshot written"),
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

    /// Waits for the one under way.
    pub(super) async fn finish(&mut self) {
        if let Some(task) = self.under_way.take() {
            // A task that panicked has said so.
            let _ = task.await;
        }
    }
}
