//! Reports as they come out of UPLINK, for one partition. Opens the way again for as long as it takes.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, Deliveries, Delivery};
use muster_service::backoff::FullJitter;
use muster_service::error::chain;

/// Reports taken at once.
pub const BATCH: usize = 512;
/// Least and longest upper bound of the delay before another attempt to open the way.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// See [`RETRY_MIN`].
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The reports of one partition.
#[derive(Debug)]
pub struct Intake {
    bus: Bus,
    partition: u16,
    deliveries: Option<Deliveries>,
    retry: FullJitter,
    chance: Rng,
}

impl Intake {
    /// The reports of a partition, from the first one not acknowledged.
    pub fn new(bus: Bus, partition: u16, chance: Rng) -> Self {
        let retry = FullJitter::new(RETRY_MIN, RETRY_MAX);
        Self { bus, partition, deliveries: None, retry, chance }
    }

    /// The next reports. An empty batch says that the way is open now.
    pub async fn next(mut self) -> (Self, Vec<Delivery>) {
        loop {
            let Some(deliveries) = &mut self.deliveries else {
                match self.bus.partition(self.partition).await {
                    Ok(opened) => self.deliveries = Some(opened),
                    Err(error) => {
                        let retry_in = self.retry.next(&mut self.chance);
                        tracing::warn!(
                            partition = self.partition,
                            error = chain(&error),
                            ?retry_in,
                            "cannot take reports"
                        );
                        tokio::time::sleep(retry_in).await;
                        continue;
                    }
                }
                return (self, Vec::new());
            };
            match deliveries.next_batch(BATCH).await {
                Ok(batch) => {
                    self.retry.reset();
                    return (self, batch);
                }
                Err(error) => {
                    tracing::warn!(
                        partition = self.partition,
                        error = chain(&error),
                        "reports stopped coming; opening the way again"
                    );
                    self.deliveries = None;
                }
            }
        }
    }
}
