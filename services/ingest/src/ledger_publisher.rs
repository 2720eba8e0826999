//! Publishes facts to LEDGER under the fence of their partition, and records how far LEDGER reaches. [`session`](crate::session)
//! decides their order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_bus::{Bus, Outgoing, PublishError, Stored, Window};

use crate::limits::{FACTS_IN_FLIGHT, RUN_ANSWER};
use crate::ownership::FencingToken;

/// The highest sequence of LEDGER that any partition of this process knows of. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct HighWater(Arc<AtomicU64>);

/// Publishes the facts of one partition in its owner's name.
#[derive(Debug)]
pub struct LedgerPublisher {
    window: Window<()>,
    token: FencingToken,
}

impl HighWater {
    /// Records that LEDGER has reached a sequence.
    pub fn reached(&self, position: u64) {
        self.0.fetch_max(position, Ordering::AcqRel);
    }

    /// The highest known sequence.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl LedgerPublisher {
    /// A publisher with nothing in flight, for the owner of a partition.
    pub fn new(bus: &Bus, token: FencingToken) -> Self {
        Self { window: bus.window(FACTS_IN_FLIGHT).ack_on_batch_end(), token }
    }

    /// Sends a fact; waits while too many are in flight.
    pub async fn send(&mut self, fact: Outgoing) {
        self.window.send(self.token.stamp(fact), ()).await;
    }

    /// Begins a run: the facts that follow share confirmations. A replicated LEDGER gets no runs: there a run is not known to be
    /// faster, and the server's behaviour for batches during leader changes is new.
    pub async fn start_run(&mut self) {
        if !self.token.has_many_fences() {
            self.window.batch_by(RUN_ANSWER).await;
        }
    }

    /// Ends the run: requests the confirmation of the rest.
    pub async fn end_run(&mut self) {
        self.window.end_batch().await;
    }

    /// The next answer in the order of sending; `None` if nothing is in flight. Cancel-safe.
    pub async fn answer(&mut self) -> Option<Result<Stored, PublishError>> {
        self.window.next().await.map(|((), answer)| answer)
    }

    /// The next answer if it has arrived.
    pub(crate) fn try_answer(&mut self) -> Option<Result<Stored, PublishError>> {
        self.window.try_next().map(|((), answer)| answer)
    }

    /// Facts in flight.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }
}
