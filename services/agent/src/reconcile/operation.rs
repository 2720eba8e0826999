//! Carries out one step: starts or stops the components of one deployment, in order, and reports progress. Decides
//! nothing about what is desired; a cancelled operation leaves what runs as it is.
//!
//! It limits the calls to the runtime: a call that exceeds its limit is given up as a failure, which is retried like
//! any other. A start without a limit may take any time; the hub decides whether it is overdue.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use muster_contract::profile::STOP_TIMEOUT_DEFAULT;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, State};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::runtime::{Running, Runtime, Started, Stopped, Unit, UnitName, code};

/// Time beyond its limit after which a call to the runtime is given up: more than the runtime needs to remove what it had
/// begun.
pub(super) const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(5 * 60);

/// Time between two reports of a start's progress: a report costs a message, and a thin link carries both.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

const _: () = assert!(UNRESPONSIVE_AFTER.as_secs() > 2 * STOP_TIMEOUT_DEFAULT.as_secs());

/// A message of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OperationProgress {
    /// The deployment.
    pub(super) deployment: DeploymentId,
    /// The event.
    pub(super) event: OperationEvent,
}

/// An event of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OperationEvent {
    /// A component has changed its state.
    Component(ComponentName, State, Option<StatusError>),
    /// A component was stopped.
    Stopped(ComponentName, State, Stopped),
    /// Why the start of a component takes its time; none if it is not known any more.
    Progress(ComponentName, Option<String>),
    /// The operation failed for the deployment as a whole.
    Failed(StatusError),
}

/// One operation on one deployment.
pub(super) struct Operation {
    pub(super) deployment: DeploymentId,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) cancel: CancellationToken,
    pub(super) progress: mpsc::Sender<OperationProgress>,
    /// The stop timeout of each component, also of those that only the version before has.
    pub(super) stop_timeouts: BTreeMap<ComponentName, Duration>,
}

impl Operation {
    /// Removes obsolete components and stops units of other versions, then starts every unit: in order, each after the one before
    /// unless that one does not wait. The first failure ends it. Obsolete components are those that the desired version lacks; they are
    /// removed first, because they may hold what a successor needs: a port, an object of a cluster, the room on the node.
    ///
    /// `ready` are the components that the hub knows as installed; nothing is reported of those that are. `failed` are those that
    /// have begun and failed: one of them starts at once if all before it ran. So does another version of one that runs, if all
    /// before it run unchanged and are ready. Last, the removal jobs are installed, which do not run before the removal.
    pub(super) async fn install(
        self,
        units: Vec<Unit>,
        ready: BTreeSet<ComponentName>,
        failed: BTreeSet<ComponentName>,
        removal_jobs: Vec<ComponentName>,
    ) {
        let Some(_permit) = self.permit().await else { return };
        let running = match self.inventory().await {
            Ok(running) => running,
            Err(error) => return self.report(OperationEvent::Failed(error)).await,
        };
        if let Err(error) = self.clear(&running, &units).await {
            return self.report(OperationEvent::Failed(error)).await;
        }
        if self.cancel.is_cancelled()
            || !self.start_in_order(&units, &running, &ready, &failed).await
            || self.cancel.is_cancelled()
        {
            return;
        }
        for component in removal_jobs.into_iter().filter(|job| !ready.contains(job)) {
            self.report(OperationEvent::Component(component, State::Installed, None)).await;
        }
    }

    /// Starts every unit; true if all that are waited for are ready.
    async fn start_in_order(
        &self,
        units: &[Unit],
        running: &[Running],
        ready: &BTreeSet<ComponentName>,
        failed: &BTreeSet<ComponentName>,
    ) -> bool {
        let mut behind = FuturesUnordered::new();
        let (mut all_ran, mut all_ready) = (true, true);
        let mut all_started = true;
        for unit in units {
            let runs = running.iter().any(|found| is_version(found, unit));
            let is_reported = runs && ready.contains(&unit.component);
            let wait = unit.workload.gate().wait_before;
            let is_updated = running.iter().any(|found| found.name == unit.name());
            let is_repeated = all_ran && failed.contains(&unit.component) || all_ready && is_updated;
            let wait = wait.filter(|_| !runs && !is_repeated);
            (all_ran, all_ready) = (all_ran && runs, all_ready && is_reported);
            let start = self.start_after(wait, unit, is_reported);
            if !unit.workload.gate().waits() {
                behind.push(start);
            } else if !run_alongside(start, &mut behind).await {
                all_started = false;
                break;
            }
        }
        while behind.next().await.is_some() {}
        all_started
    }

    /// Starts units again to watch those that were running when the agent ended, and to start those that run no
    /// longer. The failure of one does not affect the others. `complete` are all components of a deployment that was installed: an
    /// agent that was killed may have left others, which are removed.
    pub(super) async fn adopt(self, units: Vec<Unit>, complete: Option<BTreeSet<ComponentName>>) {
        let Some(_permit) = self.permit().await else { return };
        let running = match self.inventory().await {
            Ok(running) => running,
            Err(error) => return self.report(OperationEvent::Failed(error)).await,
        };
        for unit in &units {
            self.start(unit, running.iter().any(|found| is_version(found, unit))).await;
        }
        let Some(complete) = complete else { return };
        if let Err(error) = self.remove_obsolete(&running, |name| complete.contains(name)).await {
            self.report(OperationEvent::Failed(error)).await;
        }
    }

    /// Stops every component of a deployment that stays, the last first. Removes components that only an older version has.
    pub(super) async fn stop_all(self, components: Vec<ComponentName>) {
        let Some(_permit) = self.permit().await else { return };
        let running = match self.inventory().await {
            Ok(running) => running,
            Err(error) => return self.report(OperationEvent::Failed(error)).await,
        };
        let older = running.into_iter().map(|found| found.name.component);
        for component in older.filter(|name| !components.contains(name)) {
            if let Err(error) = self.remove_component(&component).await {
                return self.report(OperationEvent::Failed(error)).await;
            }
        }
        for component in components.iter().rev() {
            if self.cancel.is_cancelled() {
                return;
            }
            let stopped = self.stop(component).await;
            self.report_stopped(component, State::Pending, stopped).await;
        }
    }

    /// Waits for a permit; `None` if the operation is cancelled meanwhile.
    pub(super) async fn permit(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        self.cancel.run_until_cancelled(permit).await?.ok()
    }

    pub(super) async fn inventory(&self) -> Result<Vec<Running>, StatusError> {
        let limit = Duration::ZERO;
        let found =
            limited(limit, self.runtime.inventory(), code::INVENTORY_FAILED, self.deployment.as_str());
        let mut running = found.await?;
        running.retain(|found| found.name.deployment == self.deployment);
        Ok(running)
    }

    /// Removes obsolete components, and stops other versions of the units.
    async fn clear(&self, running: &[Running], units: &[Unit]) -> Result<(), StatusError> {
        self.remove_obsolete(running, |name| units.iter().any(|unit| unit.component == *name)).await?;
        if self.runtime.replaces_versions() {
            return Ok(());
        }
        for unit in units {
            let is_other = |found: &Running| found.name == unit.name() && !is_version(found, unit);
            if running.iter().any(is_other) {
                self.stop(&unit.component).await?;
            }
        }
        Ok(())
    }

    /// Removes the running components that are not desired, unless the operation is cancelled. The first failure ends it.
    async fn remove_obsolete(
        &self,
        running: &[Running],
        is_desired: impl Fn(&ComponentName) -> bool,
    ) -> Result<(), StatusError> {
        let names: BTreeSet<_> = running.iter().map(|found| &found.name.component).collect();
        for component in names.into_iter().filter(|name| !is_desired(name)) {
            if self.cancel.is_cancelled() {
                break;
            }
            self.remove_component(component).await?;
        }
        Ok(())
    }

    /// Starts a unit after a time; true if it is ready. An agent that is killed meanwhile begins the time anew.
    async fn start_after(&self, wait: Option<Duration>, unit: &Unit, is_reported: bool) -> bool {
        if let Some(wait) = wait {
            let component = &unit.component;
            self.report(OperationEvent::Component(component.clone(), State::Installing, None)).await;
            let reason = format!("starts {wait:?} after the components before it are ready");
            self.report(OperationEvent::Progress(component.clone(), Some(reason))).await;
            if self.cancel.run_until_cancelled(sleep(wait)).await.is_none() {
                return false;
            }
            self.report(OperationEvent::Progress(component.clone(), None)).await;
        }
        self.start(unit, is_reported).await
    }

    /// Starts a unit; true if it is ready.
    async fn start(&self, unit: &Unit, is_reported: bool) -> bool {
        if !is_reported {
            self.report(OperationEvent::Component(unit.component.clone(), State::Installing, None)).await;
        }
        let (state, error) = match self.run(unit).await {
            Ok(Started::Ready) => (State::Installed, None),
            Ok(Started::Cancelled) => return false,
            Err(error) => (State::Failed, Some(error)),
        };
        self.report(OperationEvent::Component(unit.component.clone(), state, error)).await;
        state == State::Installed
    }

    /// Has the runtime start a unit, within its `timeout`.
    pub(super) async fn run(&self, unit: &Unit) -> Result<Started, StatusError> {
        let name = unit.name();
        let start = self.with_progress(&name, self.runtime.start(unit, &self.cancel));
        match unit.workload.gate().timeout {
            Some(limit) => limited(limit, start, code::NOT_READY, unit.component.as_str()).await,
            None => start.await,
        }
    }

    /// Waits for a start, and reports its progress now and then.
    async fn with_progress<T>(&self, name: &UnitName, start: impl Future<Output = T>) -> T {
        let mut start = std::pin::pin!(start);
        let mut reported = None;
        loop {
            if let Ok(started) = timeout(PROGRESS_INTERVAL, &mut start).await {
                return started;
            }
            let reason = self.runtime.start_progress(name);
            if reason != reported {
                self.report(OperationEvent::Progress(name.component.clone(), reason.clone())).await;
                reported = reason;
            }
        }
    }

    /// Reports that a component was stopped, and is in a state now, or why it could not be stopped.
    pub(super) async fn report_stopped(
        &self,
        component: &ComponentName,
        state: State,
        stopped: Result<Stopped, StatusError>,
    ) {
        let component = component.clone();
        self.report(match stopped {
            Ok(stopped) => OperationEvent::Stopped(component, state, stopped),
            Err(error) => OperationEvent::Component(component, State::Failed, Some(error)),
        })
        .await;
    }

    fn stop_timeout(&self, component: &ComponentName) -> Duration {
        self.stop_timeouts.get(component).copied().unwrap_or(STOP_TIMEOUT_DEFAULT)
    }

    async fn stop(&self, component: &ComponentName) -> Result<Stopped, StatusError> {
        let name = UnitName { deployment: self.deployment.clone(), component: component.clone() };
        let limit = self.stop_timeout(component);
        limited(limit, self.runtime.stop(&name, limit), code::STOP_FAILED, component.as_str()).await
    }

    /// Stops a component for good.
    pub(super) async fn remove_component(&self, component: &ComponentName) -> Result<Stopped, StatusError> {
        let name = UnitName { deployment: self.deployment.clone(), component: component.clone() };
        let limit = self.stop_timeout(component);
        limited(limit, self.runtime.remove(&name, limit), code::STOP_FAILED, component.as_str()).await
    }

    pub(super) async fn report(&self, event: OperationEvent) {
        let progress = OperationProgress { deployment: self.deployment.clone(), event };
        // The reconciler outlives its operations.
        _ = self.progress.send(progress).await;
    }
}

/// Limits a call to the runtime.
pub(super) async fn limited<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, StatusError>>,
    code: &str,
    source: &str,
) -> Result<T, StatusError> {
    let limit = limit + UNRESPONSIVE_AFTER;
    let unresponsive = || {
        let message = format!("the runtime has not answered within {limit:?}; the agent tries again");
        Err(StatusError::new(code, source, message))
    };
    timeout(limit, answer).await.unwrap_or_else(|_| unresponsive())
}

fn is_version(found: &Running, unit: &Unit) -> bool {
    found.name == unit.name() && found.digest_prefix == unit.digest_prefix()
}

/// Polls a future to its end while those before it continue.
async fn run_alongside<F: Future>(
    future: F,
    behind: &mut FuturesUnordered<impl Future<Output = bool>>,
) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            // Polled first, because they began first.
            biased;
            Some(_) = behind.next() => {}
            output = &mut future => return output,
        }
    }
}
