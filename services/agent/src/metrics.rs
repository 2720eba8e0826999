//! What an agent counts and shows at `/metrics`. Names of metrics stand only here.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use muster_service::health::Health;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use tokio::time::{Instant, sleep_until};

use crate::outbox::{Outbox, Summary};

/// Least time between two counts of the outbox: counting is not free.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The agent's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    head: Gauge<i64, AtomicI64>,
    epoch: Gauge<i64, AtomicI64>,
    unsent: Gauge<i64, AtomicI64>,
    rows: Gauge<i64, AtomicI64>,
    bytes: Gauge<i64, AtomicI64>,
    generation: Gauge<i64, AtomicI64>,
    link: Gauge<i64, AtomicI64>,
    storing: Gauge<i64, AtomicI64>,
    sent: Counter,
    held_back: Counter,
    refused: Counter,
    storage: Counter,
}

impl Metrics {
    /// Metrics that a process shows.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        let gauges = [
            ("agent_head", "Highest report number given in this epoch", &metrics.head),
            ("agent_epoch", "Epoch of the database; 0 before it is fixed", &metrics.epoch),
            ("agent_unsent_reports", "Reports that no publish acknowledgement covers yet", &metrics.unsent),
            ("agent_outbox_rows", "Rows of the outbox, covered ones included", &metrics.rows),
            ("agent_outbox_bytes", "Bytes of the outbox, covered rows included", &metrics.bytes),
            ("agent_desired_generation", "Generation accepted last; 0 before the first", &metrics.generation),
            ("agent_link_up", "1 while there is a connection to the hub", &metrics.link),
            ("agent_storing", "1 while what happens can be kept for the hub", &metrics.storing),
        ];
        metrics.storing(true);
        let counters = [
            ("agent_reports_sent", "Reports that the bus acknowledged", &metrics.sent),
            (
                "agent_reports_held_back",
                "Refusals because UPLINK holds as much of this device as it may",
                &metrics.held_back,
            ),
            ("agent_refused_documents", "Desired states that were not accepted", &metrics.refused),
            ("agent_storage_failures", "Attempts to write to the database that failed", &metrics.storage),
        ];
        health.metrics(|registry| {
            for (name, help, gauge) in gauges {
                registry.register(name, help, gauge.clone());
            }
            for (name, help, counter) in counters {
                registry.register(name, help, counter.clone());
            }
        });
        metrics
    }

    /// What the outbox holds.
    pub fn outbox(&self, summary: &Summary) {
        self.head(summary.head);
        self.epoch.set(signed(summary.epoch.map_or(0, |epoch| epoch.get())));
        self.unsent.set(signed(summary.unsent));
        self.rows.set(signed(summary.rows));
        self.bytes.set(signed(summary.bytes));
    }

    /// The highest number given.
    pub fn head(&self, head: u64) {
        self.head.set(signed(head));
    }

    /// The generation accepted last.
    pub fn generation(&self, generation: u64) {
        self.generation.set(signed(generation));
    }

    /// Whether there is a connection.
    pub fn link(&self, up: bool) {
        self.link.set(i64::from(up));
    }

    /// Whether what happens can be kept for the hub.
    pub fn storing(&self, works: bool) {
        self.storing.set(i64::from(works));
    }

    /// The bus acknowledged a report.
    pub fn sent(&self) {
        self.sent.inc();
    }

    /// UPLINK holds as much of this device as it may, and refused a report.
    pub fn held_back(&self) {
        self.held_back.inc();
    }

    /// A desired state was not accepted.
    pub fn refused(&self) {
        self.refused.inc();
    }

    /// The database could not be written to.
    pub fn storage_failed(&self) {
        self.storage.inc();
    }
}

/// Keeps the figures of the outbox true: the head at once, the others within a second or so.
pub async fn follow(metrics: Metrics, outbox: Outbox) {
    let mut news = outbox.news();
    let mut counted = Instant::now();
    let mut stale = true;
    loop {
        tokio::select! {
            changed = news.changed() => match changed {
                Ok(()) => {
                    metrics.head(news.borrow_and_update().head);
                    stale = true;
                }
                Err(_) => return,
            },
            () = sleep_until(counted), if stale => {
                // A database in trouble is the business of those who write to it.
                if let Ok(summary) = outbox.summary().await {
                    metrics.outbox(&summary);
                }
                stale = false;
                counted = Instant::now() + COUNT_INTERVAL;
            }
        }
    }
}

#[cfg(test)]
impl Metrics {
    /// Attempts to write that failed.
    pub(crate) fn storage_failures(&self) -> u64 {
        self.storage.get()
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
