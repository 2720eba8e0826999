//! What devices shall run, as far as the border asks: followed in DOWNLINK, which holds the newest of every device,
//! and handed to the partitions.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, ReadError, Replay, Start, partition_of};
use muster_contract::decode;
use muster_contract::desired::DesiredState;
use muster_contract::subjects::{LedgerSubject, stream};
use muster_contract::{DeviceKey, Timestamp};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Documents of one partition that may wait to be taken in.
pub const WAITING_MAX: usize = 256;
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

/// Reads documents and hands each to the partition of its device.
#[derive(Debug)]
pub struct Follower {
    bus: Bus,
    partitions: BTreeMap<u16, mpsc::Sender<Wish>>,
    chance: Rng,
}

impl Follower {
    /// A follower for these partitions.
    pub const fn new(bus: Bus, partitions: BTreeMap<u16, mpsc::Sender<Wish>>, chance: Rng) -> Self {
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
            for delivery in replay.next_batch(BATCH).await? {
                self.hand_on(&delivery).await;
            }
            retry.reset();
        }
    }

    async fn hand_on(&self, delivery: &Delivery) {
        let Some(LedgerSubject::Desired(key)) = LedgerSubject::parse(&delivery.subject) else { return };
        let Some(partition) = self.partitions.get(&partition_of(&key)) else { return };
        match decode::parse(&delivery.payload) {
            Ok(state) => {
                let wish = Wish { key, state, stored_at: delivery.stored_at };
                // Refused only when the partition has ended, and the process with it.
                let _ = partition.send(wish).await;
            }
            Err(refusal) => tracing::warn!(
                device.site = %key.site, device.id = %key.device, downlink.seq = delivery.stream_seq, %refusal,
                "a desired state cannot be read; its deadlines are not watched"
            ),
        }
    }
}
