//! The corridor of one partition: take in what came, publish what follows from it, acknowledge what is confirmed.
//!
//! A session lasts while every publication is confirmed. When the fate of one is unknown, the session ends, LEDGER is
//! read again, and the next session takes in again what was not acknowledged. There is no other way back.

mod receipts;
mod session;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, PublishError};
use muster_domain::border::Border;
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use muster_service::health::Latch;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::session::Session;
use crate::desired::Wish;
use crate::error::PartitionError;
use crate::metrics::PartitionMetrics;
use crate::outlet::HighWater;
use crate::restore;

/// Least and longest upper bound of the delay before LEDGER is read again.
const RECOVER_MIN: Duration = Duration::from_millis(100);
/// See [`RECOVER_MIN`].
const RECOVER_MAX: Duration = Duration::from_secs(10);

/// What a partition stands on.
#[derive(Debug, Clone)]
pub struct Around {
    /// The bus.
    pub bus: Bus,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// How far LEDGER is known to reach.
    pub high_water: HighWater,
}

/// One partition and all state of its devices.
#[derive(Debug)]
pub struct Partition {
    number: u16,
    around: Around,
    border: Border,
    desired: mpsc::Receiver<Wish>,
    metrics: PartitionMetrics,
    ready: Option<Latch>,
    chance: Rng,
    retry: FullJitter,
}

/// How a session ended.
enum Ending {
    /// It was asked to stop, and everything taken in is settled.
    Stopped,
    /// The fate of a publication is unknown. LEDGER must be read after the position.
    Lost { cause: PublishError, read_after: u64 },
}

impl Partition {
    /// A partition with what LEDGER holds of it. `ready` is released when its reports can come.
    pub fn new(
        number: u16,
        around: Around,
        border: Border,
        desired: mpsc::Receiver<Wish>,
        metrics: PartitionMetrics,
        ready: Latch,
    ) -> Self {
        let retry = FullJitter::new(RECOVER_MIN, RECOVER_MAX);
        Self { number, around, border, desired, metrics, ready: Some(ready), chance: Rng::new(), retry }
    }

    /// Works until `stop`, then finishes what was taken in.
    ///
    /// # Errors
    /// LEDGER no longer holds what it must be asked for.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), PartitionError> {
        loop {
            match Session::open(&mut self).run(&stop).await {
                Ending::Stopped => return Ok(()),
                Ending::Lost { cause, read_after } => {
                    self.metrics.all.rewinds.inc();
                    tracing::warn!(
                        partition = self.number,
                        error = chain(&cause),
                        ledger.seq = read_after,
                        "a fact may or may not be in LEDGER; reading it again"
                    );
                    let recovering = self.recover(read_after);
                    match stop.run_until_cancelled(recovering).await {
                        // What was not acknowledged comes again to the next process.
                        None => return Ok(()),
                        Some(recovered) => recovered?,
                    }
                }
            }
        }
    }

    /// Forgets what is under way and asks LEDGER what became of it, for as long as it takes.
    async fn recover(&mut self, read_after: u64) -> Result<(), PartitionError> {
        self.border.rewind();
        let mut link = self.around.bus.link();
        loop {
            tokio::time::sleep(self.retry.next(&mut self.chance)).await;
            // An error means that the bus is gone, and the process with it; the reading will say so.
            let _ = link.wait_for(|link| link.is_up()).await;
            let number = self.number;
            match restore::tail(&self.around.bus, number, &mut self.border, read_after).await {
                Ok(restored) => {
                    self.around.high_water.reached(restored.position);
                    tracing::info!(
                        partition = number,
                        facts = restored.facts,
                        ledger.seq = restored.position,
                        "LEDGER read again"
                    );
                    return Ok(());
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(partition = number, error = chain(&error), "cannot read LEDGER yet");
                }
                Err(source) => return Err(PartitionError { partition: number, source }),
            }
        }
    }
}
