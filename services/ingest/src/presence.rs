//! Heartbeats as they come out of PRESENCE, for one partition: the newest of every device, then each as it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Delivery, Replay, Start};
use muster_contract::DeviceKey;
use muster_contract::decode;
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::{self, origin, stream};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;

/// Heartbeats taken at once.
const BATCH: usize = 512;
/// Least and longest upper bound of the delay before another attempt to read.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Whether heartbeats can come: where PRESENCE cannot be read, silence says nothing of a device.
#[derive(Debug, Clone, Default)]
pub struct Hears(Arc<AtomicBool>);

impl Hears {
    /// True while they can.
    pub fn now(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The heartbeats of one partition.
#[derive(Debug)]
pub struct Presence {
    bus: Bus,
    partition: u16,
    replay: Option<Replay>,
    hears: Hears,
    retry: FullJitter,
    chance: Rng,
}

impl Presence {
    /// The heartbeats of a partition, and where it says whether they can come.
    pub fn new(bus: Bus, partition: u16, hears: Hears, chance: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        Self { bus, partition, replay: None, hears, retry, chance }
    }

    /// The next heartbeats, at least one. Reads from the newest of each again if it must: a heartbeat that comes twice
    /// says nothing new.
    pub async fn next(mut self) -> (Self, Vec<Delivery>) {
        loop {
            let read = match &mut self.replay {
                Some(replay) => replay.next_batch(BATCH).await.map(Some),
                None => self.open().await.map(|mut replay| {
                    replay.tell(self.hears.0.clone());
                    self.replay = Some(replay);
                    None
                }),
            };
            match read {
                Ok(None) => {}
                Ok(Some(batch)) => {
                    self.retry.reset();
                    return (self, batch);
                }
                Err(error) => {
                    self.replay = None;
                    self.hears.0.store(false, Ordering::Release);
                    let retry_in = self.retry.next(&mut self.chance);
                    tracing::warn!(
                        partition = self.partition,
                        error = chain(&error),
                        ?retry_in,
                        "cannot read heartbeats"
                    );
                    tokio::time::sleep(retry_in).await;
                }
            }
        }
    }

    async fn open(&self) -> Result<Replay, muster_bus::ReadError> {
        let filter = subjects::presence_partition(self.partition);
        self.bus.replay(stream::PRESENCE, &[&filter], Start::LastPerSubject).await
    }
}

/// Whose heart beat, and what it says if that can be read. None where the sender's name is no identifier.
pub fn read(delivery: &Delivery) -> Option<(DeviceKey, Option<Heartbeat>)> {
    let key = origin(&delivery.subject)?.device.ok()?;
    match decode::parse::<Heartbeat>(&delivery.payload) {
        Ok(beat) => Some((key, Some(beat))),
        Err(refusal) => {
            tracing::debug!(device.site = %key.site, device.id = %key.device, %refusal, "a heartbeat cannot be read");
            Some((key, None))
        }
    }
}
