//! Follows the desired states in DOWNLINK, which holds the newest documents of every device, and queues them for the partitions,
//! together with the stored receipts that [`verify`](crate::verify) reads.
//!
//! A partition that must know every document of a device before it evaluates a report loads them ([`DocumentLoader::load`]).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_bus::{Bus, Delivery, ReadError, Replay, Start};
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::partition::partition_of;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::intake::{IntakeState, SENT_KEPT, UNVERIFIED_MAX};
use muster_service::error::chain;
use muster_service::retry::{Backoff, retry_until};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::limits::READ_RETRY;

/// Documents read at once.
const BATCH: usize = 256;
const SUBJECTS: &str = "muster.desired.>";
/// How long a report may wait for its device's documents; the other reports of its partition wait with it.
const LOAD_WITHIN: Duration = Duration::from_secs(1);
/// How long DOWNLINK is not asked again after it did not answer.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(10);

const _: () = assert!(LOAD_WITHIN.as_secs() < PAUSE_AFTER_FAILURE.as_secs());

/// The desired state of a device.
#[derive(Debug)]
pub(crate) struct DesiredDocument {
    /// The device.
    pub(crate) key: DeviceKey,
    /// Its desired state.
    pub(crate) state: DesiredState,
    /// When DOWNLINK stored it.
    pub(crate) stored_at: Timestamp,
    /// Deployments of the documents that this one superseded before the partition received them.
    superseded: BTreeMap<DeploymentId, Timestamp>,
}

impl DesiredDocument {
    const fn new(key: DeviceKey, state: DesiredState, stored_at: Timestamp) -> Self {
        Self { key, state, stored_at, superseded: BTreeMap::new() }
    }

    /// Applies the document to the intake.
    pub(crate) fn apply(&self, intake: &mut IntakeState) {
        for (deployment, stored_at) in &self.superseded {
            intake.record_sent(&self.key, std::iter::once(deployment), *stored_at);
        }
        intake.apply_desired(&self.key, &self.state, self.stored_at);
    }

    /// Supersedes an older document, whose deployments the device may have received.
    fn supersede(mut self, older: Self) -> Self {
        self.superseded = older.superseded;
        for entry in older.state.deployments {
            if self.superseded.len() < SENT_KEPT {
                self.superseded.insert(entry.id, older.stored_at);
            }
        }
        self
    }
}

/// A change of DOWNLINK that a partition applies.
#[derive(Debug)]
pub(crate) enum DownlinkUpdate {
    /// A new desired state.
    Document(Box<DesiredDocument>),
    /// The newest stored receipt of a device, which the partition compares with its account.
    Receipt(DeviceKey, StoredReceipt),
}

/// The newest receipt of a device in DOWNLINK.
#[derive(Debug)]
pub(crate) enum StoredReceipt {
    /// No ingest wrote it: another receipt is owed.
    Foreign,
    /// An ingest wrote it: another receipt is owed if it would cover more.
    Ours(Receipt),
}

impl DownlinkUpdate {
    /// Applies the change to the intake.
    pub(crate) fn apply(&self, intake: &mut IntakeState) {
        match self {
            Self::Document(document) => document.apply(intake),
            Self::Receipt(key, StoredReceipt::Foreign) => intake.owe_receipt_to(key),
            Self::Receipt(key, StoredReceipt::Ours(stored)) => intake.check_stored_receipt(key, stored),
        }
    }
}

/// The updates that wait for one partition: the newest document and the newest stored receipt of each device. So a busy partition
/// does not delay the others, and the queue never holds more than DOWNLINK has subjects.
#[derive(Debug, Default)]
pub(crate) struct DesiredQueue {
    waiting: Mutex<QueuedUpdates>,
    added: Notify,
}

#[derive(Debug, Default)]
struct QueuedUpdates {
    documents: BTreeMap<DeviceKey, DesiredDocument>,
    receipts: BTreeMap<DeviceKey, StoredReceipt>,
}

impl DesiredQueue {
    /// Queues a document that is newer than every one before of its device.
    fn push(&self, document: DesiredDocument) {
        let mut waiting = self.lock();
        let document = match waiting.documents.remove(&document.key) {
            Some(older) => document.supersede(older),
            None => document,
        };
        waiting.documents.insert(document.key.clone(), document);
        drop(waiting);
        self.added.notify_one();
    }

    /// Queues the newest receipt of a device in DOWNLINK.
    pub(crate) fn check_receipt(&self, key: DeviceKey, stored: StoredReceipt) {
        self.lock().receipts.insert(key, stored);
        self.added.notify_one();
    }

    /// Removes the waiting document of a device.
    fn remove(&self, key: &DeviceKey) -> Option<DesiredDocument> {
        self.lock().documents.remove(key)
    }

    /// The next update; only the partition may call this. Cancel-safe.
    pub(crate) async fn next(&self) -> DownlinkUpdate {
        loop {
            if let Some(update) = self.lock().pop() {
                return update;
            }
            self.added.notified().await;
        }
    }

    /// No code panics while it holds the lock, so a poisoned state is complete.
    fn lock(&self) -> MutexGuard<'_, QueuedUpdates> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedUpdates {
    fn pop(&mut self) -> Option<DownlinkUpdate> {
        let document =
            self.documents.pop_first().map(|(_, document)| DownlinkUpdate::Document(Box::new(document)));
        document
            .or_else(|| self.receipts.pop_first().map(|(key, stored)| DownlinkUpdate::Receipt(key, stored)))
    }
}

/// Follows the documents of DOWNLINK and queues each for the partition of its device.
#[derive(Debug)]
pub(crate) struct DesiredFollower {
    bus: Bus,
    partitions: BTreeMap<u16, Arc<DesiredQueue>>,
    read_to: watch::Sender<u64>,
}

impl DesiredFollower {
    /// A follower for these partitions.
    pub(crate) const fn new(
        bus: Bus,
        partitions: BTreeMap<u16, Arc<DesiredQueue>>,
        read_to: watch::Sender<u64>,
    ) -> Self {
        Self { bus, partitions, read_to }
    }

    /// Follows until `stop`. Begins again if DOWNLINK was created again: older documents change nothing.
    pub(crate) async fn run(self, stop: CancellationToken) {
        retry_until(&stop, READ_RETRY, "cannot read desired states", |backoff| self.follow(backoff)).await;
    }

    async fn follow(&self, backoff: Backoff) -> Result<Infallible, ReadError> {
        self.read_to.send_replace(0);
        let mut replay: Replay = self.bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::First).await?;
        loop {
            let batch = replay.next_batch(BATCH).await?;
            batch.iter().for_each(|delivery| self.enqueue(delivery));
            batch.last().into_iter().for_each(|last| _ = self.read_to.send_replace(last.stream_seq));
            backoff.reset();
        }
    }

    fn enqueue(&self, delivery: &Delivery) {
        let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return };
        let Some(partition) = self.partitions.get(&partition_of(&key)) else { return };
        match decode::parse(&delivery.payload) {
            Ok(state) => partition.push(DesiredDocument::new(key, state, delivery.stored_at)),
            Err(refusal) => tracing::warn!(
                device.site = %key.site, device.id = %key.device, downlink.seq = delivery.stream_seq, %refusal,
                "cannot parse a desired state; ingest does not check its deadlines"
            ),
        }
    }
}

/// Loads the documents of a device into the intake.
#[derive(Debug)]
pub(crate) struct DocumentLoader {
    bus: Bus,
    queue: Arc<DesiredQueue>,
    /// The sequence up to which the follower has queued every document.
    read_to: watch::Receiver<u64>,
    failed_at: Option<Instant>,
}

/// Why the documents of a device are unknown.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("DOWNLINK did not answer, or ingest did not read its documents, within {LOAD_WITHIN:?}")]
    TimedOut,
}

impl DocumentLoader {
    /// A loader for one partition's devices.
    pub(crate) const fn new(bus: Bus, queue: Arc<DesiredQueue>, read_to: watch::Receiver<u64>) -> Self {
        Self { bus, queue, read_to, failed_at: None }
    }

    /// Applies every document that DOWNLINK holds for a device at the time of the call; false if they cannot be read. Then
    /// DOWNLINK is not asked again for a while.
    pub(crate) async fn load(&mut self, key: &DeviceKey, intake: &mut IntakeState) -> bool {
        if self.failed_at.is_some_and(|at| at.elapsed() < PAUSE_AFTER_FAILURE) {
            return false;
        }
        let loaded = timeout(LOAD_WITHIN, self.follow_to_newest(key)).await;
        let newest =
            loaded.map_err(|_| LoadError::TimedOut).and_then(|newest| newest.map_err(LoadError::Read));
        match newest {
            Ok(newest) => {
                self.failed_at = None;
                self.queue.remove(key).iter().for_each(|document| document.apply(intake));
                // Like the follower, this ignores a document that cannot be parsed.
                let state =
                    newest.and_then(|last| Some((decode::parse(&last.payload).ok()?, last.stored_at)));
                state.into_iter().for_each(|(state, at)| intake.apply_desired(key, &state, at));
                true
            }
            Err(error) => {
                self.failed_at = Some(Instant::now());
                tracing::warn!(
                    device.site = %key.site, device.id = %key.device, error = chain(&error),
                    "cannot read the device's document; for {PAUSE_AFTER_FAILURE:?} ingest accepts up to {UNVERIFIED_MAX} deployments \
                     that it cannot verify"
                );
                false
            }
        }
    }

    /// The newest document of a device, once the follower has queued it and so all before it.
    async fn follow_to_newest(&mut self, key: &DeviceKey) -> Result<Option<Delivery>, ReadError> {
        let subject = LedgerSubject::Desired(key.clone()).to_string();
        let newest = self.bus.last(stream::DOWNLINK, &subject).await?;
        if let Some(newest) = &newest {
            // An error means that the follower has ended, and the process ends.
            let _ = self.read_to.wait_for(|read_to| *read_to >= newest.stream_seq).await;
        }
        Ok(newest)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

    use futures_util::FutureExt;
    use serde_json::json;

    use super::*;

    fn document(device: &str, generation: u64) -> DesiredDocument {
        let state = json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": "2026-01-01T00:00:00Z", "source": {"kind": "git", "revision": "a"}, "deployments": [],
        });
        let key = DeviceKey { site: "plant7".parse().unwrap(), device: device.parse().unwrap() };
        DesiredDocument::new(key, serde_json::from_value(state).unwrap(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn only_the_newest_of_a_devices_waiting_documents_is_applied() {
        let queue = DesiredQueue::default();
        for generation in 1..=1000 {
            queue.push(document("press-4", generation));
            queue.push(document("saw-1", generation));
        }
        let next = || match queue.next().now_or_never()? {
            DownlinkUpdate::Document(document) => Some(document.state.generation.get()),
            DownlinkUpdate::Receipt(key, _) => panic!("{key}"),
        };
        assert_eq!([next(), next(), next()], [Some(1000), Some(1000), None]);
        queue.push(document("press-4", 1001));
        assert_eq!(next(), Some(1001));
    }
}
