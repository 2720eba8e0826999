//! When the snapshot is brought up to date: after so many facts, after so much time, and at the end of the process.
//! Only devices that changed are written. A snapshot that fails is said and tried again; nobody waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_service::error::chain;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, SnapshotResult};
use crate::present::{Origin, Present};
use crate::store::{Changes, Store};

/// When a snapshot is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cadence {
    /// So long after the one before, if anything came in since.
    pub every: Duration,
    /// So many facts after the one before.
    pub facts: u64,
}

/// The writer of snapshots.
#[derive(Debug)]
pub struct Snapshots {
    present: Arc<Present>,
    /// Away while it is being written to.
    store: Option<Store>,
    cadence: Cadence,
    metrics: Metrics,
    /// What the store is a snapshot of, and up to where.
    stored: (Origin, u64),
    /// Devices whose record the store does not hold as it is.
    due: BTreeSet<DeviceKey>,
    /// The last attempt failed: the next one waits its time, however many facts come in.
    failed: bool,
}

impl Snapshots {
    /// A writer to a store that holds the present as it is now, or nothing.
    pub fn new(present: Arc<Present>, store: Store, cadence: Cadence, metrics: Metrics) -> Self {
        let stored = present.look(|now| (now.origin, now.fleet.as_of().ledger_seq));
        Self { present, store: Some(store), cadence, metrics, stored, due: BTreeSet::new(), failed: false }
    }

    /// Writes until `stop`, and once more then.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut read_to = self.present.read_to();
        while stop.run_until_cancelled(self.until_due(&mut read_to)).await.is_some() {
            self.save().await;
        }
        self.save().await;
    }

    async fn until_due(&mut self, read_to: &mut watch::Receiver<u64>) {
        let enough = self.stored.1.saturating_add(self.cadence.facts);
        let deadline = Instant::now() + self.cadence.every;
        if self.failed || self.store.is_none() {
            return tokio::time::sleep_until(deadline).await;
        }
        // The present outlives this task, so neither wait can end for want of a sender.
        let _ = tokio::time::timeout_at(deadline, read_to.wait_for(|seq| *seq >= enough)).await;
    }

    async fn save(&mut self) {
        let Some(mut store) = self.store.take() else { return };
        let (origin, changes) = self.collect();
        if (origin, changes.as_of.ledger_seq) == self.stored {
            self.store = Some(store);
            return;
        }
        let begun = Instant::now();
        let (ledger_seq, devices) = (changes.as_of.ledger_seq, changes.records.len());
        let written = tokio::task::spawn_blocking(move || {
            let result = store.save(&changes);
            (store, result)
        });
        let result = match written.await {
            Ok((store, result)) => {
                self.store = Some(store);
                result
            }
            Err(error) => {
                self.metrics.snapshot(SnapshotResult::Failed);
                tracing::error!(%error, "the snapshot's writer is gone; a restart would read more of LEDGER");
                return;
            }
        };
        match result {
            Ok(()) => {
                self.stored = (origin, ledger_seq);
                self.due.clear();
                self.failed = false;
                self.metrics.snapshot(SnapshotResult::Stored);
                self.metrics.snapshot_seq.set(ledger_seq as i64);
                self.metrics.snapshot_seconds.set(begun.elapsed().as_secs_f64());
                tracing::debug!(ledger.seq = ledger_seq, devices, "snapshot stored");
            }
            Err(error) => {
                self.failed = true;
                self.metrics.snapshot(SnapshotResult::Failed);
                tracing::error!(error = chain(&error), "no snapshot; a restart would read more of LEDGER");
            }
        }
    }

    /// What the store has yet to hold, all of it as of one moment.
    fn collect(&mut self) -> (Origin, Changes) {
        let (stored, due) = (self.stored.0, &mut self.due);
        self.present.take(|now| {
            let afresh = now.origin != stored;
            if afresh {
                due.clear();
            }
            due.extend(now.fleet.take_changed_devices());
            let changes = Changes {
                afresh,
                created_at: now.origin.created_at,
                as_of: now.fleet.as_of(),
                fleet_digest: now.fleet.fleet_view().tally.digest,
                records: due.iter().filter_map(|key| now.fleet.record(key)).collect(),
            };
            (now.origin, changes)
        })
    }
}
