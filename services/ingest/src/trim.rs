//! Removes acknowledged reports of one partition from UPLINK, closely behind the acknowledgement: a device may have only a
//! share of reports there, and what is removed is what it may send. The owner of the partition does it; what other partitions
//! have acknowledged has no part in it.
//!
//! A session tells it what is settled and acknowledged; a task beside the session removes it. Which reports may go, and
//! when, is `muster_domain::trim`'s. What it has to remove is lost with the process or with a connection; then it removes what
//! the server knows as acknowledged, and goes on from there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use muster_bus::{Bus, Delivery, ReadError, UplinkPurger};
use muster_contract::subjects::stream;
use muster_domain::trim::{PartitionTrim, Purge, Quota, device_of};
use muster_service::error::chain;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::metrics::PartitionMetrics;

/// Least time between two removals: a device sends at most its share in this time.
pub const TRIM_EVERY: Duration = Duration::from_millis(50);
/// Time after which a removal that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between two looks at how full UPLINK is, while reports are held.
const ROOM_CHECK_EVERY: Duration = Duration::from_secs(2);
/// Part of UPLINK's room from which on nothing is held: it must not be full because of what is acknowledged.
const ROOM_PART: u64 = 2;

const _: () = assert!(TRIM_EVERY.as_millis() <= 300 && RETRY_AFTER.as_secs() <= ROOM_CHECK_EVERY.as_secs());

/// The acknowledged reports of one partition, shared by its session and the task that removes them.
#[derive(Debug)]
pub struct Trim {
    state: Mutex<State>,
    changed: Notify,
    started: Instant,
}

#[derive(Debug)]
struct State {
    reports: PartitionTrim,
    /// What removes them: of the deliveries that their positions belong to.
    purger: Option<UplinkPurger>,
}

/// What one removal came to.
enum Removed {
    Count(u64),
    /// The deliveries are over, and with them the meaning of the positions.
    Over,
    Failed(Purge, ReadError),
}

impl Trim {
    /// Nothing to remove, and a full bucket for every device.
    pub fn new(quota: Quota) -> Self {
        let state = State { reports: PartitionTrim::new(quota), purger: None };
        Self { state: Mutex::new(state), changed: Notify::new(), started: Instant::now() }
    }

    /// What follows from a report is in LEDGER.
    pub fn settled(&self, delivery: &Delivery) {
        let now = self.started.elapsed();
        if let Some(mut state) = self.state_of(delivery) {
            let bytes = delivery.stored_bytes() as u64;
            state.reports.settled(&delivery.subject, delivery.stream_seq, bytes, now);
        }
    }

    /// A report and all before it are acknowledged.
    pub fn acknowledged(&self, delivery: &Delivery) {
        if let Some(mut state) = self.state_of(delivery) {
            state.reports.acknowledged(delivery.stream_seq);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Removes what may be removed, for as long as it is polled.
    pub async fn run(self: Arc<Self>, bus: Bus, partition: u16, metrics: PartitionMetrics) {
        self.catch_up(&bus, partition, &metrics).await;
        let mut room_checked_at = Instant::now();
        loop {
            while !self.state().reports.has_work() {
                self.changed.notified().await;
            }
            let next = Instant::now() + TRIM_EVERY;
            if self.state().reports.throttled() > 0 && room_checked_at.elapsed() >= ROOM_CHECK_EVERY {
                room_checked_at = Instant::now();
                self.make_room(&bus, partition).await;
            }
            self.remove(&bus, partition, &metrics).await;
            sleep_until(next).await;
        }
    }

    /// Removes what the server knows as acknowledged: what was left behind by those before.
    async fn catch_up(&self, bus: &Bus, partition: u16, metrics: &PartitionMetrics) {
        loop {
            match bus.trim_partition(partition).await {
                Ok(count) => {
                    metrics.all.trimmed.inc_by(count);
                    return;
                }
                Err(error) => warn(partition, &error),
            }
            sleep(RETRY_AFTER).await;
        }
    }

    /// One turn: plans under the lock, asks the server without it.
    async fn remove(&self, bus: &Bus, partition: u16, metrics: &PartitionMetrics) {
        let (purger, purges) = {
            let mut state = self.state();
            let purges = state.reports.purges(self.started.elapsed());
            for (subject, held) in state.reports.take_notices() {
                tell_throttled(partition, &subject, held);
            }
            metrics.throttled.set(i64::try_from(state.reports.throttled()).unwrap_or(i64::MAX));
            let Some(purger) = state.purger.clone() else { return };
            (purger, purges)
        };
        let removals = join_all(purges.into_iter().map(|purge| remove(&purger, purge))).await;
        let (mut is_over, mut has_failed) = (false, false);
        for removed in removals {
            match removed {
                Removed::Count(count) => _ = metrics.all.trimmed.inc_by(count),
                Removed::Over => is_over = true,
                Removed::Failed(purge, error) => {
                    warn(partition, &error);
                    self.state().reports.failed(purge);
                    has_failed = true;
                }
            }
        }
        if has_failed {
            sleep(RETRY_AFTER).await;
        }
        if is_over {
            self.forget(&purger);
            self.catch_up(bus, partition, metrics).await;
        }
    }

    /// Lets held reports go where UPLINK gets full: it must have room for devices that are within their quota.
    async fn make_room(&self, bus: &Bus, partition: u16) {
        match bus.stream_state(stream::UPLINK).await {
            Ok(uplink) if uplink.bytes_max.is_some_and(|most| uplink.bytes >= most / ROOM_PART) => {
                let throttled = self.state().reports.throttled();
                self.state().reports.release_all();
                tracing::warn!(partition, throttled, "released held reports: UPLINK is half full");
            }
            Ok(_) => {}
            Err(error) => warn(partition, &error),
        }
    }

    /// Forgets positions of deliveries that are over, unless others have begun.
    fn forget(&self, purger: &UplinkPurger) {
        let mut state = self.state();
        if state.purger.as_ref().is_some_and(|current| current.is_same(purger)) {
            state.reports.reset_positions();
            state.purger = None;
        }
    }

    /// The state, if a delivery is of deliveries that last; positions of others mean nothing now.
    fn state_of(&self, delivery: &Delivery) -> Option<MutexGuard<'_, State>> {
        let purger = delivery.purger().filter(|purger| purger.is_current())?;
        let mut state = self.state();
        if !state.purger.as_ref().is_some_and(|current| current.is_same(purger)) {
            state.reports.reset_positions();
            state.purger = Some(purger.clone());
        }
        Some(state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn remove(purger: &UplinkPurger, purge: Purge) -> Removed {
    let removed = match &purge {
        Purge::Partition { through } => purger.purge_partition(*through).await,
        Purge::Device { subject, through } => purger.purge_subject(subject, *through).await,
    };
    match removed {
        Ok(Some(count)) => Removed::Count(count),
        Ok(None) => Removed::Over,
        Err(error) => Removed::Failed(purge, error),
    }
}

fn warn(partition: u16, error: &ReadError) {
    tracing::warn!(
        partition,
        error = chain(error),
        "cannot remove acknowledged reports from UPLINK; trying again"
    );
}

fn tell_throttled(partition: u16, subject: &str, held: usize) {
    tracing::warn!(
        partition,
        device = device_of(subject),
        held,
        "throttled a device that sends more than its quota: it may send as fast as its reports are removed from UPLINK, \
         and its outbox keeps the rest"
    );
}
