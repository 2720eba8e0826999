//! Stops orphans: units of this device that belong to no known deployment, left by an agent whose database was lost.
//! Lists the units until that succeeds once, then stops the orphans until all are gone; then never again.
//!
//! Nothing is stopped before a desired state was accepted. Every step waits for the first attempt, for [`FIRST_MAX`]
//! at most: orphans hold ports and memory. After that only a deployment that is desired again waits for its own
//! orphans to stop, because calls for one unit never overlap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use muster_contract::DeploymentId;
use muster_contract::profile::STOP_TIMEOUT_DEFAULT;
use muster_contract::state::StatusError;
use muster_service::backoff::FullJitter;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::operation::limited;
use super::settings::{OPERATIONS_MAX, RetryPolicy};
use crate::runtime::{Running, Runtime, UnitName, code};

/// Longest time for which every step waits for the first attempt.
const FIRST_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(FIRST_MAX.as_secs() > STOP_TIMEOUT_DEFAULT.as_secs());

/// The state of the sweep.
#[derive(Debug)]
pub(super) struct Sweep {
    /// The time of the next attempt; `None` during an attempt, and after the last.
    at: Option<Instant>,
    /// Until when every step waits.
    first_until: Option<Instant>,
    /// The deployments whose orphans are being stopped.
    orphans: BTreeSet<DeploymentId>,
    work: JoinSet<SweepEvent>,
    delays: FullJitter,
}

/// An event of the sweep.
#[derive(Debug)]
pub(super) enum SweepEvent {
    /// The units were listed, or could not be.
    Listed(Result<Vec<Running>, StatusError>),
    /// Orphans were stopped: all of them, or not.
    Stopped(bool),
}

impl Sweep {
    pub(super) fn new(retry: RetryPolicy, now: Instant) -> Self {
        let delays = FullJitter::new(retry.min, retry.max);
        Self { at: Some(now), first_until: None, orphans: BTreeSet::new(), work: JoinSet::new(), delays }
    }

    /// Begins to list the units, if that is due.
    pub(super) fn list(&mut self, runtime: &Arc<dyn Runtime>, now: Instant) {
        if self.at.is_none_or(|at| at > now) {
            return;
        }
        self.at = None;
        self.first_until.get_or_insert(now + FIRST_MAX);
        let runtime = Arc::clone(runtime);
        self.work.spawn(async move {
            let found = limited(Duration::ZERO, runtime.inventory(), code::INVENTORY_FAILED, "");
            SweepEvent::Listed(found.await)
        });
    }

    /// The next event; `None` while nothing is under way.
    pub(super) async fn next(&mut self) -> Option<SweepEvent> {
        // A panic ends the process, like that of an operation: the state of what it did is unknown.
        let resumed = |error: JoinError| std::panic::resume_unwind(error.into_panic());
        Some(self.work.join_next().await?.unwrap_or_else(resumed))
    }

    /// Stops these orphans, all at once.
    pub(super) fn stop(&mut self, runtime: &Arc<dyn Runtime>, orphans: Vec<UnitName>) {
        self.orphans = orphans.iter().map(|name| name.deployment.clone()).collect();
        let runtime = Arc::clone(runtime);
        self.work.spawn(async move {
            let stopped = stream::iter(orphans).map(|name| stop(&*runtime, name));
            let stopped: Vec<_> = stopped.buffer_unordered(OPERATIONS_MAX).collect().await;
            SweepEvent::Stopped(!stopped.contains(&false))
        });
    }

    /// Ends an attempt: the sweep is complete, or tried again later.
    pub(super) fn end(&mut self, done: bool, rng: &mut fastrand::Rng, now: Instant) {
        self.orphans.clear();
        self.first_until = Some(now);
        self.at = (!done).then(|| now + self.delays.next(rng));
    }

    /// When it must be called again, if no event comes before.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        // The first attempt waits for a document, not for a time.
        let first = self.first_until?;
        if self.work.is_empty() { self.at } else { Some(first).filter(|until| *until > now) }
    }

    /// Whether every step waits for the first attempt.
    pub(super) fn blocks_steps(&self, now: Instant) -> bool {
        !self.work.is_empty() && self.first_until.is_some_and(|until| until > now)
    }

    /// Whether orphans of this deployment are being stopped.
    pub(super) fn is_stopping(&self, id: &DeploymentId) -> bool {
        self.orphans.contains(id)
    }
}

/// Stops one orphan; false if that failed.
async fn stop(runtime: &dyn Runtime, name: UnitName) -> bool {
    tracing::warn!(
        deployment.id = %name.deployment, component.name = %name.component,
        "stopping a component of a deployment that is not desired"
    );
    let removal = runtime.remove(&name, STOP_TIMEOUT_DEFAULT);
    let stopped = limited(STOP_TIMEOUT_DEFAULT, removal, code::STOP_FAILED, name.component.as_str()).await;
    if let Err(error) = &stopped {
        tracing::error!(
            error = error.message, deployment.id = %name.deployment, component.name = %name.component,
            "cannot stop an orphan: trying again"
        );
    }
    stopped.is_ok()
}
