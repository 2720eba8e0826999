//! Removes acknowledged reports of one partition from UPLINK, soon after the acknowledgement: a device may have only a limited
//! number of reports there, so the removal sets the speed at which it may send. The owner of the partition does it, independently
//! of other partitions.
//!
//! The session records which reports are settled and acknowledged; a task beside the session removes them. `muster_domain::trim`
//! decides which reports may be removed, and when. The list is lost with the process or the connection; then the task removes the
//! reports that the server counts as acknowledged, and continues from there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use muster_bus::{Bus, Delivery, ReadError, UplinkPurger};
use muster_contract::subjects::stream;
use muster_domain::trim::{PartitionTrim, Purge, Quota, Weight, device_of};
use muster_service::error::chain;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::metrics::PartitionMetrics;
use crate::session::EvaluatedMessage;

/// Least time between two removals: a device sends at most its share in this time.
pub(crate) const TRIM_EVERY: Duration = Duration::from_millis(50);
/// Time after which a removal that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between two checks of UPLINK's size while reports are held.
const ROOM_CHECK_EVERY: Duration = Duration::from_secs(2);
/// The part of UPLINK's bound from which on no report is held: UPLINK must not fill up with acknowledged reports.
const ROOM_PART: u64 = 2;

const _: () = assert!(TRIM_EVERY.as_millis() <= 300 && RETRY_AFTER.as_secs() <= ROOM_CHECK_EVERY.as_secs());

/// The acknowledged reports of one partition, shared by its session and the task that removes them.
#[derive(Debug)]
pub(crate) struct Trim {
    state: Mutex<State>,
    changed: Notify,
    started: Instant,
}

#[derive(Debug)]
struct State {
    reports: PartitionTrim,
    /// Removes them; it belongs to the deliveries whose positions are recorded.
    purger: Option<UplinkPurger>,
}

/// The result of one removal.
enum Removed {
    Count(u64),
    /// The deliveries have ended, so their positions have no meaning any more.
    Over,
    Failed(Purge, ReadError),
}

impl Trim {
    /// A list without reports, and with a full bucket for every device.
    pub(crate) fn new(quota: Quota) -> Self {
        let state = State { reports: PartitionTrim::new(quota), purger: None };
        Self { state: Mutex::new(state), changed: Notify::new(), started: Instant::now() }
    }

    /// Records that LEDGER has everything that follows from a message.
    pub(crate) fn record_settled(&self, message: &EvaluatedMessage<Delivery>) {
        let EvaluatedMessage { delivery, reports, bytes } = message;
        let now = self.started.elapsed();
        if let Some(mut state) = self.state_of(delivery) {
            let headers = delivery.stored_bytes().saturating_sub(delivery.payload.len());
            let bytes = bytes.max(&delivery.payload.len()) + headers;
            let weight = Weight { reports: *reports as u64, bytes: bytes as u64 };
            state.reports.record_settled(&delivery.subject, delivery.stream_seq, weight, now);
        }
    }

    /// Records that a report and all before it are acknowledged.
    pub(crate) fn acknowledged(&self, delivery: &Delivery) {
        if let Some(mut state) = self.state_of(delivery) {
            state.reports.acknowledged(delivery.stream_seq);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Removes the reports that may be removed, until it is dropped.
    pub(crate) async fn run(self: Arc<Self>, bus: Bus, partition: u16, metrics: PartitionMetrics) {
        self.catch_up(&bus, partition, &metrics).await;
        let mut room_checked_at = Instant::now();
        loop {
            while !self.state().reports.has_work() {
                self.changed.notified().await;
            }
            let next = Instant::now() + TRIM_EVERY;
            if self.state().reports.throttled() > 0 && room_checked_at.elapsed() >= ROOM_CHECK_EVERY {
                room_checked_at = Instant::now();
                self.evict(&bus, partition).await;
            }
            self.remove(&bus, partition, &metrics).await;
            sleep_until(next).await;
        }
    }

    /// Removes the reports that the server counts as acknowledged, which earlier owners left.
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

    /// One turn: plans the removals under the lock, and requests them without it.
    async fn remove(&self, bus: &Bus, partition: u16, metrics: &PartitionMetrics) {
        let (purger, purges) = {
            let mut state = self.state();
            let purges = state.reports.purges(self.started.elapsed());
            for (subject, held) in state.reports.drain_notices() {
                log_throttled(partition, &subject, held);
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

    /// Releases held reports if UPLINK fills up: it must have room for devices within their quota.
    async fn evict(&self, bus: &Bus, partition: u16) {
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

    /// Forgets the positions of deliveries that have ended, unless others have begun.
    fn forget(&self, purger: &UplinkPurger) {
        let mut state = self.state();
        if state.purger.as_ref().is_some_and(|current| current.is_same(purger)) {
            state.reports.reset_positions();
            state.purger = None;
        }
    }

    /// The state, if the deliveries of a report still last; otherwise its position has no meaning.
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

fn log_throttled(partition: u16, subject: &str, held: usize) {
    tracing::warn!(
        partition,
        device = device_of(subject),
        held,
        "throttled a device that sends more than its quota; its outbox keeps the reports until it may send them"
    );
}
