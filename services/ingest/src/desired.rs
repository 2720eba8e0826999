//! What devices shall run, as far as the border asks: followed in DOWNLINK, which holds the newest documents of every device,
//! and handed to the partitions.
//!
//! A partition that must know every document of a device before it judges a report asks for it ([`Documents::learn`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Replay, Start};
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::border::{Border, SENT_KEPT, UNVERIFIED_MAX};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Documents read at once.
const BATCH: usize = 256;
const SUBJECTS: &str = "muster.desired.>";
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long a report may wait for its device's documents. The other reports of its partition wait with it.
const LEARNT_WITHIN: Duration = Duration::from_secs(1);
/// How long nobody asks DOWNLINK again after it did not answer.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(10);

const _: () = assert!(LEARNT_WITHIN.as_secs() < REST_AFTER_FAILURE.as_secs());

/// A document and its device.
#[derive(Debug)]
pub struct Wish {
    /// The device.
    pub key: DeviceKey,
    /// What it shall run.
    pub state: DesiredState,
    /// When DOWNLINK stored it.
    pub stored_at: Timestamp,
    /// Deployments of documents that this one has superseded before the partition saw them.
    superseded: BTreeMap<DeploymentId, Timestamp>,
}

impl Wish {
    const fn new(key: DeviceKey, state: DesiredState, stored_at: Timestamp) -> Self {
        Self { key, state, stored_at, superseded: BTreeMap::new() }
    }

    /// Hands the document to the border.
    pub fn apply(&self, border: &mut Border) {
        for (deployment, stored_at) in &self.superseded {
            border.sent(&self.key, std::iter::once(deployment), *stored_at);
        }
        border.desire(&self.key, &self.state, self.stored_at);
    }

    /// Takes the place of an older document, whose deployments the device may have got to know.
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

/// What DOWNLINK asks of a partition.
#[derive(Debug)]
pub enum Task {
    /// To take in a document.
    Document(Box<Wish>),
    /// To write a device's receipt again.
    Receipt(DeviceKey),
}

impl Task {
    /// Tells the border.
    pub fn apply(&self, border: &mut Border) {
        match self {
            Self::Document(wish) => wish.apply(border),
            Self::Receipt(key) => border.owe_receipt_again(key),
        }
    }
}

/// What one partition has yet to take in: the newest document of each device, so that a partition that is busy keeps no
/// other waiting and needs no more room than its devices have documents; and devices whose receipts are to be written again.
#[derive(Debug, Default)]
pub struct Wishes {
    waiting: Mutex<Waiting>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    documents: BTreeMap<DeviceKey, Wish>,
    receipts: BTreeSet<DeviceKey>,
}

impl Wishes {
    /// A newer document than any before of its device.
    fn put(&self, wish: Wish) {
        let mut waiting = self.lock();
        let wish = match waiting.documents.remove(&wish.key) {
            Some(older) => wish.supersede(older),
            None => wish,
        };
        waiting.documents.insert(wish.key.clone(), wish);
        drop(waiting);
        self.came.notify_one();
    }

    /// The receipt of a device is to be written again.
    pub fn rewrite_receipt(&self, key: DeviceKey) {
        self.lock().receipts.insert(key);
        self.came.notify_one();
    }

    /// The document of a device that waits.
    fn remove(&self, key: &DeviceKey) -> Option<Wish> {
        self.lock().documents.remove(key)
    }

    /// The next one, for the partition alone. Cancel-safe.
    pub async fn next(&self) -> Task {
        loop {
            if let Some(task) = self.lock().pop() {
                return task;
            }
            self.came.notified().await;
        }
    }

    /// Collections that somebody panicked over are whole.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Task> {
        let document = self.documents.pop_first().map(|(_, wish)| Task::Document(Box::new(wish)));
        document.or_else(|| self.receipts.pop_first().map(Task::Receipt))
    }
}

/// Reads documents and hands each to the partition of its device.
#[derive(Debug)]
pub struct Follower {
    bus: Bus,
    partitions: BTreeMap<u16, Arc<Wishes>>,
    read_to: watch::Sender<u64>,
    chance: Rng,
}

impl Follower {
    /// A follower for these partitions.
    pub const fn new(
        bus: Bus,
        partitions: BTreeMap<u16, Arc<Wishes>>,
        read_to: watch::Sender<u64>,
        chance: Rng,
    ) -> Self {
        Self { bus, partitions, read_to, chance }
    }

    /// Follows until `stop`. Begins again where DOWNLINK itself was made again: older documents change nothing.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        let following = async {
            loop {
                let Err(error) = self.follow(&mut retry).await;
                let retry_in = retry.next(&mut self.chance);
                tracing::warn!(error = chain(&error), ?retry_in, "cannot follow what devices shall run");
                tokio::time::sleep(retry_in).await;
            }
        };
        stop.run_until_cancelled(following).await;
    }

    async fn follow(&self, retry: &mut FullJitter) -> Result<std::convert::Infallible, ReadError> {
        self.read_to.send_replace(0);
        let mut replay: Replay = self.bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::First).await?;
        loop {
            let batch = replay.next_batch(BATCH).await?;
            batch.iter().for_each(|delivery| self.hand_on(delivery));
            batch.last().into_iter().for_each(|last| _ = self.read_to.send_replace(last.stream_seq));
            retry.reset();
        }
    }

    fn hand_on(&self, delivery: &Delivery) {
        let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return };
        let Some(partition) = self.partitions.get(&partition_of(&key)) else { return };
        match decode::parse(&delivery.payload) {
            Ok(state) => partition.put(Wish::new(key, state, delivery.stored_at)),
            Err(refusal) => tracing::warn!(
                device.site = %key.site, device.id = %key.device, downlink.seq = delivery.stream_seq, %refusal,
                "a desired state cannot be read; its deadlines are not watched"
            ),
        }
    }
}

/// Makes sure that a border knows the documents of a device.
#[derive(Debug)]
pub struct Documents {
    bus: Bus,
    queue: Arc<Wishes>,
    /// The follower has handed on every document up to here.
    read_to: watch::Receiver<u64>,
    failed_at: Option<Instant>,
}

/// Why the documents of a device are not known.
#[derive(Debug, thiserror::Error)]
enum LearnError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("DOWNLINK did not answer, or its documents were not read, within {LEARNT_WITHIN:?}")]
    TimedOut,
}

impl Documents {
    /// The documents of one partition's devices.
    pub const fn new(bus: Bus, queue: Arc<Wishes>, read_to: watch::Receiver<u64>) -> Self {
        Self { bus, queue, read_to, failed_at: None }
    }

    /// Hands every document to the border that DOWNLINK held for a device when this was called; false where that cannot be
    /// made sure of. Then DOWNLINK is not asked again for a while.
    pub async fn learn(&mut self, key: &DeviceKey, border: &mut Border) -> bool {
        if self.failed_at.is_some_and(|at| at.elapsed() < REST_AFTER_FAILURE) {
            return false;
        }
        let learnt = timeout(LEARNT_WITHIN, self.follow_to_newest(key)).await;
        let newest =
            learnt.map_err(|_| LearnError::TimedOut).and_then(|newest| newest.map_err(LearnError::Read));
        match newest {
            Ok(newest) => {
                self.failed_at = None;
                self.queue.remove(key).iter().for_each(|wish| wish.apply(border));
                // The follower has left alone a document that it cannot read, and so does this.
                let state =
                    newest.and_then(|last| Some((decode::parse(&last.payload).ok()?, last.stored_at)));
                state.into_iter().for_each(|(state, at)| border.desire(key, &state, at));
                true
            }
            Err(error) => {
                self.failed_at = Some(Instant::now());
                tracing::warn!(
                    device.site = %key.site, device.id = %key.device, error = chain(&error),
                    "cannot read the device's document; for {REST_AFTER_FAILURE:?} up to {UNVERIFIED_MAX} deployments of a device are not verified"
                );
                false
            }
        }
    }

    /// The newest document of a device, once the follower has handed on that one and so all before it.
    async fn follow_to_newest(&mut self, key: &DeviceKey) -> Result<Option<Delivery>, ReadError> {
        let subject = LedgerSubject::Desired(key.clone()).to_string();
        let newest = self.bus.last(stream::DOWNLINK, &subject).await?;
        if let Some(newest) = &newest {
            // An error means that the follower has ended, and the process with it.
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

    fn wish(device: &str, generation: u64) -> Wish {
        let state = json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": "2026-01-01T00:00:00Z", "source": {"kind": "git", "revision": "a"}, "deployments": [],
        });
        let key = DeviceKey { site: "plant7".parse().unwrap(), device: device.parse().unwrap() };
        Wish::new(key, serde_json::from_value(state).unwrap(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn of_many_documents_that_wait_the_newest_of_each_device_is_taken_in() {
        let wishes = Wishes::default();
        for generation in 1..=1000 {
            wishes.put(wish("press-4", generation));
            wishes.put(wish("saw-1", generation));
        }
        let next = || match wishes.next().now_or_never()? {
            Task::Document(wish) => Some(wish.state.generation.get()),
            Task::Receipt(key) => panic!("{key}"),
        };
        assert_eq!([next(), next(), next()], [Some(1000), Some(1000), None]);
        wishes.put(wish("press-4", 1001));
        assert_eq!(next(), Some(1001));
    }
}
