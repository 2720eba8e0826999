//! The agent's metrics, served at `/metrics`. All metric names are here.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::token::TokenTerm;
use muster_service::health::Health;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::outbox::{Outbox, Summary};
use crate::status::{Figures, StatusFile};

/// Least time between two summaries of the outbox: a summary reads the database.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The agent's metrics. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    head: Gauge<i64, AtomicI64>,
    epoch: Gauge<i64, AtomicI64>,
    unsent: Gauge<i64, AtomicI64>,
    rows: Gauge<i64, AtomicI64>,
    bytes: Gauge<i64, AtomicI64>,
    refused_reports: Gauge<i64, AtomicI64>,
    generation: Gauge<i64, AtomicI64>,
    link: Gauge<i64, AtomicI64>,
    storing: Gauge<i64, AtomicI64>,
    token_end: Gauge<i64, AtomicI64>,
    token_ending: Gauge<i64, AtomicI64>,
    sent: Counter,
    held_back: Counter,
    refused: Counter,
    storage: Counter,
}

impl Metrics {
    /// Metrics that the process serves.
    pub fn register(health: &Health) -> Self {
        let metrics = Self::default();
        let gauges = [
            ("agent_head", "Highest report number given in this epoch", &metrics.head),
            ("agent_epoch", "Epoch of the database; 0 before it is fixed", &metrics.epoch),
            ("agent_unsent_reports", "Reports that no publish acknowledgement covers yet", &metrics.unsent),
            ("agent_outbox_rows", "Rows of the outbox, covered ones included", &metrics.rows),
            ("agent_outbox_bytes", "Bytes of the outbox, covered rows included", &metrics.bytes),
            (
                "agent_refused_reports",
                "Reports that the hub refused, by its last receipt; they stay in the outbox",
                &metrics.refused_reports,
            ),
            ("agent_desired_generation", "Generation accepted last; 0 before the first", &metrics.generation),
            ("agent_link_up", "1 while there is a connection to the hub", &metrics.link),
            ("agent_storing", "1 while reports can be stored", &metrics.storing),
            (
                "agent_token_end_timestamp_seconds",
                "When the device's token ends, in seconds since 1970; 0 if it does not end",
                &metrics.token_end,
            ),
            (
                "agent_token_ending",
                "1 while a tenth or less is left of the lifetime of the device's token",
                &metrics.token_ending,
            ),
        ];
        metrics.set_storing(true);
        let counters = [
            ("agent_reports_sent", "Reports that UPLINK confirmed", &metrics.sent),
            (
                "agent_reports_held_back",
                "Reports that UPLINK refused because the device's share is full",
                &metrics.held_back,
            ),
            ("agent_refused_documents", "Desired states that were rejected", &metrics.refused),
            ("agent_storage_failures", "Writes to the database that failed", &metrics.storage),
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

    /// Sets the figures of the outbox.
    pub(crate) fn set_outbox(&self, summary: &Summary) {
        self.set_head(summary.head);
        self.epoch.set(signed(summary.epoch.map_or(0, |epoch| epoch.get())));
        self.unsent.set(signed(summary.unsent));
        self.rows.set(signed(summary.rows));
        self.bytes.set(signed(summary.bytes));
        let refused = summary.refused.iter().map(|refused| refused.ranges.count()).sum();
        self.refused_reports.set(signed(refused));
    }

    /// Sets the highest report number.
    pub fn set_head(&self, head: u64) {
        self.head.set(signed(head));
    }

    /// Sets the generation accepted last.
    pub(crate) fn set_generation(&self, generation: u64) {
        self.generation.set(signed(generation));
    }

    /// Sets whether the agent is connected.
    pub fn set_link(&self, up: bool) {
        self.link.set(i64::from(up));
    }

    /// Sets whether reports can be stored.
    pub(crate) fn set_storing(&self, works: bool) {
        self.storing.set(i64::from(works));
    }

    /// Sets when the device's token ends, and whether that is soon.
    pub(crate) fn set_token(&self, ends_at: Option<Timestamp>, is_ending: bool) {
        self.token_end.set(ends_at.map_or(0, Timestamp::as_second));
        self.token_ending.set(i64::from(is_ending));
    }

    /// Counts reports that UPLINK confirmed.
    pub(crate) fn reports_sent(&self, count: usize) {
        self.sent.inc_by(count as u64);
    }

    /// Counts a report that UPLINK refused because the device's share is full.
    pub(crate) fn report_held_back(&self) {
        self.held_back.inc();
    }

    /// Counts a rejected desired state.
    pub(crate) fn rejected_document(&self) {
        self.refused.inc();
    }

    /// Counts a failed write to the database.
    pub(crate) fn storage_failed(&self) {
        self.storage.inc();
    }
}

/// Keeps the metrics of the outbox up to date, the head at once and the others within about a second; and the status file.
pub(crate) async fn update(
    metrics: Metrics,
    outbox: Outbox,
    mut refused: watch::Receiver<Option<DesiredRefusal>>,
    mut token: watch::Receiver<Option<TokenTerm>>,
    mut status: StatusFile,
) {
    let mut changes = outbox.changes();
    let mut counted = Instant::now();
    let mut stale = true;
    loop {
        tokio::select! {
            changed = changes.changed() => match changed {
                Ok(()) => {
                    metrics.set_head(changes.borrow_and_update().head);
                    stale = true;
                }
                Err(_) => return,
            },
            // The follower may end before this task: then nothing is refused any more.
            Ok(()) = refused.changed() => stale = true,
            Ok(()) = token.changed() => stale = true,
            () = sleep_until(status.due_at()), if status.is_due() => status.write().await,
            () = sleep_until(counted), if stale => {
                // The tasks that write to the database report its failures.
                let summary = outbox.summary().await;
                stale = summary.is_err();
                if let Ok(summary) = summary {
                    metrics.set_outbox(&summary);
                    let refused = refused.borrow_and_update().clone();
                    status.update(&Figures { summary, refused, token: *token.borrow_and_update() });
                }
                counted = Instant::now() + COUNT_INTERVAL;
            }
        }
    }
}

#[cfg(test)]
impl Metrics {
    /// Failed writes.
    pub(crate) fn storage_failures(&self) -> u64 {
        self.storage.get()
    }

    /// When the token ends: Unix seconds.
    pub(crate) fn token_end(&self) -> u64 {
        self.token_end.get().cast_unsigned()
    }

    /// Whether that is soon.
    pub(crate) fn is_token_ending(&self) -> bool {
        self.token_ending.get() == 1
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
