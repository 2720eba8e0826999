//! What devices shall run, as far as the border asks: followed in DOWNLINK, which holds the newest of every device,
//! and handed to the partitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Replay, Start, partition_of};
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Documents read at once.
const BATCH: usize = 256;
const SUBJECTS: &str = "muster.desired.>";
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);

/// A document and its device.
#[derive(Debug)]
pub struct Wish {
    /// The device.
    pub key: DeviceKey,
    /// What it shall run.
    pub state: DesiredState,
    /// When DOWNLINK stored it.
    pub stored_at: Timestamp,
}

/// What one partition has yet to take in: the newest document of each device, so that a partition that is busy keeps no
/// other waiting and needs no more room than its devices have documents.
#[derive(Debug, Default)]
pub struct Wishes {
    waiting: Mutex<BTreeMap<DeviceKey, Wish>>,
    came: Notify,
}

impl Wishes {
    /// A newer document than any before of its device.
    fn put(&self, wish: Wish) {
        self.lock().insert(wish.key.clone(), wish);
        self.came.notify_one();
    }

    /// The next one, for the partition alone. Cancel-safe.
    pub async fn next(&self) -> Wish {
        loop {
            if let Some((_, wish)) = self.lock().pop_first() {
                return wish;
            }
            self.came.notified().await;
        }
    }

    /// A map that somebody panicked over is whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeviceKey, Wish>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads documents and hands each to the partition of its device.
#[derive(Debug)]
pub struct Follower {
    bus: Bus,
    partitions: BTreeMap<u16, Arc<Wishes>>,
    chance: Rng,
}

impl Follower {
    /// A follower for these partitions.
    pub const fn new(bus: Bus, partitions: BTreeMap<u16, Arc<Wishes>>, chance: Rng) -> Self {
        Self { bus, partitions, chance }
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
        let mut replay: Replay = self.bus.replay(stream::DOWNLINK, &[SUBJECTS], Start::First).await?;
        loop {
            replay.next_batch(BATCH).await?.iter().for_each(|delivery| self.hand_on(delivery));
            retry.reset();
        }
    }

    fn hand_on(&self, delivery: &Delivery) {
        let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return };
        let Some(partition) = self.partitions.get(&partition_of(&key)) else { return };
        match decode::parse(&delivery.payload) {
            Ok(state) => partition.put(Wish { key, state, stored_at: delivery.stored_at }),
            Err(refusal) => tracing::warn!(
                device.site = %key.site, device.id = %key.device, downlink.seq = delivery.stream_seq, %refusal,
                "a desired state cannot be read; its deadlines are not watched"
            ),
        }
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
        Wish { key, state: serde_json::from_value(state).unwrap(), stored_at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn of_many_documents_that_wait_the_newest_of_each_device_is_taken_in() {
        let wishes = Wishes::default();
        for generation in 1..=1000 {
            wishes.put(wish("press-4", generation));
            wishes.put(wish("saw-1", generation));
        }
        let next = || wishes.next().now_or_never().map(|wish| wish.state.generation.get());
        assert_eq!([next(), next(), next()], [Some(1000), Some(1000), None]);
        wishes.put(wish("press-4", 1001));
        assert_eq!(wishes.next().now_or_never().map(|wish| wish.state.generation.get()), Some(1001));
    }
}
