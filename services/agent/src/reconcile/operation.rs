//! Carrying out one step: starts or stops the components of one deployment, in order, and tells how it goes. Decides
//! nothing; a cancelled operation leaves what runs as it is.
//!
//! It watches over the runtime: one that has a limit and does not keep it itself is given up, said so, and tried again
//! like any other failure. A start without a limit may take as long as it likes; whether that is too long the hub says.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use muster_contract::profile::STOP_TIMEOUT_DEFAULT;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, State};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Running, Runtime, Started, Unit, UnitName, code};

/// Time beyond its limit after which a runtime that has not answered is taken for wedged: more than it needs to take away
/// what it had begun.
pub(super) const WEDGED_AFTER: Duration = Duration::from_secs(5 * 60);

const _: () = assert!(WEDGED_AFTER.as_secs() > 2 * STOP_TIMEOUT_DEFAULT.as_secs());

/// News of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    /// Whose.
    pub(super) deployment: DeploymentId,
    /// What.
    pub(super) news: News,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    /// A component is in another state.
    Component(ComponentName, State, Option<StatusError>),
    /// The deployment as a whole cannot be worked on.
    Failed(StatusError),
}

/// One operation on one deployment.
pub(super) struct Operation {
    pub(super) deployment: DeploymentId,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) permits: Arc<Semaphore>,
    pub(super) cancel: CancellationToken,
    pub(super) progress: mpsc::Sender<Progress>,
    /// Time each component gets to stop, also those that are only in the version before.
    pub(super) stop_timeouts: BTreeMap<ComponentName, Duration>,
}

impl Operation {
    /// Stops what is there of another version, then sees to it that every unit runs: in order, each waiting for the one
    /// before unless that one says otherwise. The first failure ends it. `ready` are the components that the hub takes
    /// for installed; nothing is said of those that are.
    pub(super) async fn install(self, units: Vec<Unit>, ready: BTreeSet<ComponentName>) {
        let Some(_permit) = self.permit().await else { return };
        let running = match self.inventory().await {
            Ok(running) => running,
            Err(error) => return self.tell(News::Failed(error)).await,
        };
        if let Err(error) = self.clear(&running, &units).await {
            return self.tell(News::Failed(error)).await;
        }
        let mut behind = FuturesUnordered::new();
        for unit in &units {
            let silent =
                ready.contains(&unit.component) && running.iter().any(|found| is_version(found, unit));
            let start = self.start(unit, silent);
            if !unit.workload.gate().waits() {
                behind.push(start);
            } else if !alongside(start, &mut behind).await {
                break;
            }
        }
        while behind.next().await.is_some() {}
    }

    /// Starts again to watch over units that ran when the agent ended, or starts them if they do so no longer. One that
    /// fails does not concern the others.
    pub(super) async fn adopt(self, units: Vec<Unit>) {
        let Some(_permit) = self.permit().await else { return };
        let running = match self.inventory().await {
            Ok(running) => running,
            Err(error) => return self.tell(News::Failed(error)).await,
        };
        for unit in &units {
            self.start(unit, running.iter().any(|found| is_version(found, unit))).await;
        }
    }

    /// Stops every component, the last first, and whatever else runs in the name of the deployment.
    pub(super) async fn remove(self, components: Vec<ComponentName>) {
        let Some(_permit) = self.permit().await else { return };
        let running = match self.inventory().await {
            Ok(running) => running,
            Err(error) => {
                // The components are still known. What else there is waits for the next attempt, which this one leaves
                // to be made: nothing is removed as a whole while somebody cannot look.
                self.tell(News::Failed(error)).await;
                Vec::new()
            }
        };
        let known: BTreeSet<_> = components.iter().cloned().collect();
        let others =
            running.into_iter().map(|found| found.name.component).filter(|name| !known.contains(name));
        for component in others {
            if let Err(error) = self.take_away(&component).await {
                self.tell(News::Failed(error)).await;
            }
        }
        for component in components.iter().rev() {
            if self.cancel.is_cancelled() {
                return;
            }
            let (state, error) = match self.take_away(component).await {
                Ok(()) => (State::Removed, None),
                Err(error) => (State::Failed, Some(error)),
            };
            self.tell(News::Component(component.clone(), state, error)).await;
        }
    }

    /// Waits for its turn; `None` when the wish is taken back meanwhile.
    async fn permit(&self) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        self.cancel.run_until_cancelled(permit).await?.ok()
    }

    async fn inventory(&self) -> Result<Vec<Running>, StatusError> {
        let limit = Duration::ZERO;
        let found =
            watched(limit, self.runtime.inventory(), code::INVENTORY_FAILED, self.deployment.as_str());
        let mut running = found.await?;
        running.retain(|found| found.name.deployment == self.deployment);
        Ok(running)
    }

    /// Stops what runs but is none of these units.
    async fn clear(&self, running: &[Running], units: &[Unit]) -> Result<(), StatusError> {
        for found in running.iter().filter(|found| !units.iter().any(|unit| is_version(found, unit))) {
            let component = &found.name.component;
            let stays = units.iter().any(|unit| unit.component == *component);
            if stays { self.stop(component).await? } else { self.take_away(component).await? }
        }
        Ok(())
    }

    /// True if the unit is ready.
    async fn start(&self, unit: &Unit, silent: bool) -> bool {
        if !silent {
            self.tell(News::Component(unit.component.clone(), State::Installing, None)).await;
        }
        let start = self.runtime.start(unit, &self.cancel);
        let started = match unit.workload.gate().timeout {
            Some(limit) => watched(limit, start, code::NOT_READY, unit.component.as_str()).await,
            None => start.await,
        };
        let (state, error) = match started {
            Ok(Started::Ready) => (State::Installed, None),
            Ok(Started::Cancelled) => return false,
            Err(error) => (State::Failed, Some(error)),
        };
        self.tell(News::Component(unit.component.clone(), state, error)).await;
        state == State::Installed
    }

    async fn stop(&self, component: &ComponentName) -> Result<(), StatusError> {
        let name = UnitName { deployment: self.deployment.clone(), component: component.clone() };
        let limit = self.stop_timeouts.get(component).copied().unwrap_or(STOP_TIMEOUT_DEFAULT);
        watched(limit, self.runtime.stop(&name, limit), code::STOP_FAILED, component.as_str()).await
    }

    /// Stops a component that does not come back.
    async fn take_away(&self, component: &ComponentName) -> Result<(), StatusError> {
        let name = UnitName { deployment: self.deployment.clone(), component: component.clone() };
        let limit = self.stop_timeouts.get(component).copied().unwrap_or(STOP_TIMEOUT_DEFAULT);
        watched(limit, self.runtime.remove(&name, limit), code::STOP_FAILED, component.as_str()).await
    }

    async fn tell(&self, news: News) {
        let progress = Progress { deployment: self.deployment.clone(), news };
        // The reconciler outlives its operations; if it does not, nobody wants the news.
        _ = self.progress.send(progress).await;
    }
}

/// Waits for a runtime that shall answer within a limit, and gives it up when it is wedged.
pub(super) async fn watched<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, StatusError>>,
    code: &str,
    source: &str,
) -> Result<T, StatusError> {
    let limit = limit + WEDGED_AFTER;
    let wedged = || {
        let message =
            format!("the runtime has not answered within {limit:?} and was given up; it is tried again");
        Err(StatusError::new(code, source, message))
    };
    timeout(limit, answer).await.unwrap_or_else(|_| wedged())
}

fn is_version(found: &Running, unit: &Unit) -> bool {
    found.name == unit.name() && found.digest_prefix == unit.digest_prefix()
}

/// Runs a future to its end while those behind it go on.
async fn alongside<F: Future>(
    future: F,
    behind: &mut FuturesUnordered<impl Future<Output = bool>>,
) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        tokio::select! {
            // Those behind came first in the list, so they begin first.
            biased;
            Some(_) = behind.next() => {}
            output = &mut future => return output,
        }
    }
}
