//! Sends reports and heartbeats. The send queue selects rows of the outbox, the bus publishes them, and
//! the outbox marks those that UPLINK confirms. [`core`] decides the order of everything, without I/O; the driver
//! carries it out over one bus after another.
//!
//! Every session begins with a heartbeat, which carries the head; then come the reports. Nothing is queued for a link
//! that is down: the outbox is the queue. Under a rate limit reports wait for the [`budget`]; heartbeats do not.

pub mod budget;
pub mod core;
mod driver;
mod message;
mod send_queue;

use std::sync::Arc;

use muster_bus::{Bus, Link};
use muster_contract::DeviceKey;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_service::clock::Clock;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::core::{Input, RelayCore};
use self::driver::Driver;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::reconcile::CurrentDesired;
use crate::report_writer::StorageFailure;
use crate::token::CurrentToken;

/// The relay of a device.
pub struct Relay {
    /// The device.
    pub device: DeviceKey,
    /// The outbox.
    pub outbox: Outbox,
    /// The wall clock, for heartbeats and the outbox.
    pub clock: Arc<dyn Clock>,
    /// The desired state: heartbeats carry its generation; a retired device sends none.
    pub desired: watch::Receiver<CurrentDesired>,
    /// Whether reports can be stored: heartbeats say so.
    pub storage_failure: watch::Receiver<StorageFailure>,
    /// The desired state that the device refused, while it has accepted none since: heartbeats carry it.
    pub refused: watch::Receiver<Option<DesiredRefusal>>,
    /// The term of the device's token: heartbeats carry it while it ends soon, and now and then.
    pub token: watch::Receiver<CurrentToken>,
    /// True once the hub's last receipt was fetched and stored, or there is none. Before that no new epoch is fixed
    /// and no report is sent.
    pub receipt_fetched: watch::Receiver<bool>,
    /// The metrics of the agent.
    pub metrics: Metrics,
    /// Decides the order of everything.
    pub core: RelayCore,
}

impl Relay {
    /// Sends over one bus until `cut`; or until `stop`, and then the remaining reports if that is quick.
    pub async fn run(&mut self, bus: &Bus, cut: &CancellationToken, stop: &CancellationToken) {
        // Another bus counts its connections anew.
        self.core.handle(Input::Link(Link::Down), Instant::now());
        Driver::new(self, bus).run(cut, stop).await;
    }
}
