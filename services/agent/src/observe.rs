//! Corridor: a changed standing → what the hub is told → the outbox. Holds no rule: the state is the domain's, the row
//! is the outbox's.
//!
//! Reports wait in one queue, in the order in which things happened, and are kept in groups. When they cannot be kept
//! (disk full), they stay here, in order, until they can; workloads go on meanwhile. Only a full queue makes the
//! reconciler wait. Until then what the hub holds may no longer be so, and it is told that much: heartbeats need no disk
//! ([`Keeper::trouble`]).

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
use crate::outbox::{Body, CapabilitiesBody, Effect, Entry, Outbox};
use crate::standing::Standing;

/// Reports that wait to be kept; with more, the reconciler waits.
pub const REPORTS_WAITING_MAX: usize = 1_024;
/// Reports kept in one transaction at most.
pub const REPORTS_PER_COMMIT_MAX: usize = 64;
/// Bounds of the delay before the next attempt to keep what could not be kept.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// Attempts for what is left when the agent stops.
const ATTEMPTS_WHEN_STOPPING: u32 = 3;
/// Time between two looks at what the device is.
const PROBE_INTERVAL: Duration = Duration::from_secs(10 * 60);

const _: () = assert!(REPORTS_PER_COMMIT_MAX < REPORTS_WAITING_MAX);

/// Where changes are told.
#[derive(Debug, Clone)]
pub struct Observer {
    queue: mpsc::Sender<Entry>,
    clock: Arc<dyn Clock>,
}

/// Why reports cannot be kept at present, in words for a person; none while they can.
pub type Trouble = Option<String>;

/// The other end: keeps what was told.
#[derive(Debug)]
pub struct Keeper {
    queue: mpsc::Receiver<Entry>,
    outbox: Outbox,
    metrics: Metrics,
    trouble: watch::Sender<Trouble>,
}

/// Both ends of the corridor.
pub fn corridor(outbox: Outbox, clock: Arc<dyn Clock>, metrics: Metrics) -> (Observer, Keeper) {
    let (sender, queue) = mpsc::channel(REPORTS_WAITING_MAX);
    let (trouble, _) = watch::channel(None);
    (Observer { queue: sender, clock }, Keeper { queue, outbox, metrics, trouble })
}

#[cfg(test)]
impl Observer {
    /// An observer whose reports are taken by a test.
    pub(crate) fn into(queue: mpsc::Sender<Entry>, clock: Arc<dyn Clock>) -> Self {
        Self { queue, clock }
    }
}

impl Observer {
    /// The time by the device's clock, as reports say it.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Tells that a standing has changed. Waits while too many reports wait.
    pub async fn tell(&self, standing: &Standing) {
        let body = Body::Status(standing.body(self.clock.now()));
        let effect = if standing.is_gone() {
            Effect::Forget(standing.id().clone())
        } else {
            Effect::Keep(Box::new(standing.clone()))
        };
        self.send(Entry { body, effect }).await;
    }

    /// Looks at what the device is and tells it, if it is not what was told last. Gives what the hub knows then.
    pub async fn tell_device(&self, probe: &Probe, told: Option<CapabilitiesBody>) -> CapabilitiesBody {
        let found = probe.look(self.clock.now());
        match told {
            Some(told) if same(&told, &found) => told,
            _ => {
                self.send(Entry { body: Body::Capabilities(found.clone()), effect: Effect::None }).await;
                found
            }
        }
    }

    /// Goes on looking at what the device is until `stop`.
    pub async fn watch_device(self, probe: Probe, told: CapabilitiesBody, stop: CancellationToken) {
        let mut told = Some(told);
        while stop.run_until_cancelled(sleep(PROBE_INTERVAL)).await.is_some() {
            told = Some(self.tell_device(&probe, told).await);
        }
    }

    async fn send(&self, entry: Entry) {
        // The keeper lives as long as anybody who tells.
        if self.queue.send(entry).await.is_err() {
            tracing::error!("a report came after the end: it will be told again at the next start");
        }
    }
}

impl Keeper {
    /// Whether what is told can be kept, from the first attempt that fails to the first that works.
    pub fn trouble(&self) -> watch::Receiver<Trouble> {
        self.trouble.subscribe()
    }

    /// Keeps what is told until nobody is left who could tell. `stopping` ends the patience with a bad disk: what cannot
    /// be kept then is told again by the next start.
    pub async fn run(mut self, stopping: CancellationToken, mut chance: fastrand::Rng) {
        let mut group = Vec::with_capacity(REPORTS_PER_COMMIT_MAX);
        while self.queue.recv_many(&mut group, REPORTS_PER_COMMIT_MAX).await > 0 {
            let entries = Arc::new(std::mem::take(&mut group));
            if !self.keep(&entries, &stopping, &mut chance).await {
                let count = entries.len() + self.queue.len();
                return tracing::error!(
                    reports.count = count,
                    "stopping with reports that could not be kept"
                );
            }
        }
    }

    /// Tries until it works; false when that was given up.
    async fn keep(
        &self,
        entries: &Arc<Vec<Entry>>,
        stopping: &CancellationToken,
        chance: &mut fastrand::Rng,
    ) -> bool {
        let mut delays = FullJitter::new(RETRY.0, RETRY.1);
        let (mut attempts, mut attempts_when_stopping) = (0_u64, 0);
        loop {
            match self.outbox.append_here(Arc::clone(entries)).await {
                Ok(()) => self.kept(entries, attempts),
                Err(error) => {
                    self.failed(&error, attempts, entries.len());
                    attempts += 1;
                    attempts_when_stopping += u32::from(stopping.is_cancelled());
                    if attempts_when_stopping >= ATTEMPTS_WHEN_STOPPING || matches!(error, db::Error::Closed)
                    {
                        return false;
                    }
                    stopping.run_until_cancelled(sleep(delays.next(chance))).await;
                    continue;
                }
            }
            return true;
        }
    }

    /// What is said of a change is said once it cannot be lost any more.
    fn kept(&self, entries: &[Entry], attempts: u64) {
        for Entry { body, .. } in entries {
            if let Body::Status(body) = body {
                tracing::info!(
                    deployment.id = %body.deployment, deployment.generation = body.generation.get(),
                    deployment.state = %body.status.state, "the deployment changed"
                );
            }
        }
        if attempts > 0 {
            tracing::info!("reports can be kept again: nothing was lost");
            self.trouble.send_replace(None);
            self.metrics.storing(true);
        }
    }

    fn failed(&self, error: &db::Error, attempts: u64, reports: usize) {
        self.metrics.storage_failed();
        if attempts == 0 {
            let words = chain(error);
            tracing::error!(
                error = words,
                reports.count = reports,
                "reports cannot be kept: workloads go on, it is tried again until it works, and the hub is told"
            );
            self.trouble.send_replace(Some(words));
            self.metrics.storing(false);
        }
    }
}

fn same(told: &CapabilitiesBody, found: &CapabilitiesBody) -> bool {
    *told == CapabilitiesBody { observed_at: told.observed_at, ..found.clone() }
}

#[cfg(test)]
mod tests;
