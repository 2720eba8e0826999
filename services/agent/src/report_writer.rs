//! Queues reports and stores them in the outbox. Holds no rule: the domain derives states, the outbox assigns
//! numbers.
//!
//! Reports wait in one queue, in the order of the events, and are stored in groups. Reports that cannot be stored
//! (disk full) wait here, in order, until they can; workloads keep running. Only a full queue makes the reconciler
//! wait. Meanwhile the hub's view of this device may be wrong, and heartbeats say so, because they need no disk
//! ([`ReportWriter::storage_failure`]).

use std::sync::Arc;
use std::time::Duration;

use muster_contract::Timestamp;
use muster_service::backoff::FullJitter;
use muster_service::clock::Clock;
use muster_service::error::chain;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::capabilities::Probe;
use crate::db;
use crate::metrics::Metrics;
use crate::outbox::{NewReport, Outbox, REPORTS_PER_COMMIT_MAX, RecordChange};
use crate::record::DeploymentRecord;
use crate::report::{Body, CapabilitiesBody};

/// Reports in the queue; with more, the reconciler waits.
pub(crate) const REPORTS_WAITING_MAX: usize = 1_024;
/// Bounds of the delay before another attempt to store reports.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Attempts to store the remaining reports when the agent stops.
const ATTEMPTS_WHEN_STOPPING: u32 = 3;
/// Time between two checks of the capabilities.
const PROBE_INTERVAL: Duration = Duration::from_secs(10 * 60);

const _: () = assert!(REPORTS_PER_COMMIT_MAX < REPORTS_WAITING_MAX);

/// Queues reports.
#[derive(Debug, Clone)]
pub(crate) struct ReportSender {
    queue: mpsc::Sender<NewReport>,
    clock: Arc<dyn Clock>,
}

/// Why reports cannot be stored at present, for a person; `None` while they can.
pub(crate) type StorageFailure = Option<String>;

/// Stores the queued reports.
#[derive(Debug)]
pub(crate) struct ReportWriter {
    queue: mpsc::Receiver<NewReport>,
    outbox: Outbox,
    metrics: Metrics,
    storage_failure: watch::Sender<StorageFailure>,
}

/// Both ends of the queue.
pub(crate) fn queue(outbox: Outbox, clock: Arc<dyn Clock>, metrics: Metrics) -> (ReportSender, ReportWriter) {
    let (sender, queue) = mpsc::channel(REPORTS_WAITING_MAX);
    let (storage_failure, _) = watch::channel(None);
    (ReportSender { queue: sender, clock }, ReportWriter { queue, outbox, metrics, storage_failure })
}

#[cfg(test)]
impl ReportSender {
    /// A sender whose reports a test receives.
    pub(crate) fn for_test(queue: mpsc::Sender<NewReport>, clock: Arc<dyn Clock>) -> Self {
        Self { queue, clock }
    }
}

impl ReportSender {
    /// The time by the device's clock, as in reports.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Queues the report of a changed record. Waits while the queue is full.
    pub(crate) async fn report_record(&self, record: &DeploymentRecord) {
        let body = Body::Status(record.body(self.clock.now()));
        let change = if record.is_removed() {
            RecordChange::Remove(record.id().clone())
        } else {
            RecordChange::Store(Box::new(record.clone()))
        };
        self.send(NewReport { body, change }).await;
    }

    /// Reads the capabilities and queues a report of them, unless they are those reported last. Returns the capabilities
    /// that are the last reported ones then.
    pub(crate) async fn report_capabilities(
        &self,
        probe: &Probe,
        reported: Option<CapabilitiesBody>,
    ) -> CapabilitiesBody {
        let found = probe.read(self.clock.now());
        match reported {
            Some(reported) if same(&reported, &found) => reported,
            _ => {
                self.send(NewReport { body: Body::Capabilities(found.clone()), change: RecordChange::None })
                    .await;
                found
            }
        }
    }

    /// Checks the capabilities at an interval until `stop`.
    pub(crate) async fn watch_capabilities(
        self,
        probe: Probe,
        reported: CapabilitiesBody,
        stop: CancellationToken,
    ) {
        let mut reported = Some(reported);
        while stop.run_until_cancelled(sleep(PROBE_INTERVAL)).await.is_some() {
            reported = Some(self.report_capabilities(&probe, reported).await);
        }
    }

    async fn send(&self, report: NewReport) {
        // The writer outlives its senders.
        if self.queue.send(report).await.is_err() {
            tracing::error!("a report came after the end of the writer: the next start reports it");
        }
    }
}

impl ReportWriter {
    /// Publishes whether reports can be stored, from the first failed attempt to the first successful one.
    pub(crate) fn storage_failure(&self) -> watch::Receiver<StorageFailure> {
        self.storage_failure.subscribe()
    }

    /// Stores reports until there is no sender left. After `stopping` the attempts are few: the next start reports
    /// again what could not be stored then.
    pub(crate) async fn run(mut self, stopping: CancellationToken, mut rng: fastrand::Rng) {
        let mut group = Vec::with_capacity(REPORTS_PER_COMMIT_MAX);
        while self.queue.recv_many(&mut group, REPORTS_PER_COMMIT_MAX).await > 0 {
            let reports = Arc::new(std::mem::take(&mut group));
            if !self.store(&reports, &stopping, &mut rng).await {
                let count = reports.len() + self.queue.len();
                return tracing::error!(
                    reports.count = count,
                    "stopping although these reports could not be stored"
                );
            }
        }
    }

    /// Tries until it succeeds; false if it gives up.
    async fn store(
        &self,
        reports: &Arc<Vec<NewReport>>,
        stopping: &CancellationToken,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let mut delays = FullJitter::new(RETRY.0, RETRY.1);
        let (mut attempts, mut attempts_when_stopping) = (0_u64, 0);
        loop {
            match self.outbox.append_here(Arc::clone(reports)).await {
                Ok(()) => {
                    self.log_stored(reports, attempts);
                    return true;
                }
                Err(error) => {
                    self.failed(&error, attempts, reports.len());
                    attempts += 1;
                    attempts_when_stopping += u32::from(stopping.is_cancelled());
                    if attempts_when_stopping >= ATTEMPTS_WHEN_STOPPING || matches!(error, db::Error::Closed)
                    {
                        return false;
                    }
                    stopping.run_until_cancelled(sleep(delays.next(rng))).await;
                }
            }
        }
    }

    /// Logs stored changes: they can no longer be lost.
    fn log_stored(&self, reports: &[NewReport], attempts: u64) {
        for NewReport { body, .. } in reports {
            if let Body::Status(body) = body {
                tracing::info!(
                    deployment.id = %body.deployment, deployment.generation = body.generation.get(),
                    deployment.state = %body.status.state, "a deployment changed its state"
                );
            }
        }
        if attempts > 0 {
            tracing::info!("reports can be stored again: none was lost");
            self.storage_failure.send_replace(None);
            self.metrics.set_storing(true);
        }
    }

    fn failed(&self, error: &db::Error, attempts: u64, reports: usize) {
        self.metrics.storage_failed();
        if attempts == 0 {
            let words = chain(error);
            tracing::error!(
                error = words,
                reports.count = reports,
                "cannot store reports: workloads keep running, heartbeats tell the hub, and the agent tries again"
            );
            self.storage_failure.send_replace(Some(words));
            self.metrics.set_storing(false);
        }
    }
}

fn same(reported: &CapabilitiesBody, found: &CapabilitiesBody) -> bool {
    *reported == CapabilitiesBody { observed_at: reported.observed_at, ..found.clone() }
}

#[cfg(test)]
mod tests;
