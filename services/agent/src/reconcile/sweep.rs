//! Stops what runs in the name of this device for deployments that nobody knows any more: what is left of a life whose
//! database was lost. Looks until it has looked once, and stops until all of it is gone; then never again.
//!
//! Nothing is stopped before the device was told what to run. The first attempt goes before everything else, for
//! [`FIRST_MAX`] at most: strangers hold ports and memory. After that only a deployment that is wanted anew waits for the
//! end of its own strangers, because calls for one unit never overlap.

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

use super::operation::watched;
use super::{OPERATIONS_MAX, Retry};
use crate::runtime::{Running, Runtime, UnitName, code};

/// Time for which everything else waits for the first attempt.
const FIRST_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(FIRST_MAX.as_secs() > STOP_TIMEOUT_DEFAULT.as_secs());

/// How far the sweep is.
#[derive(Debug)]
pub(super) struct Sweep {
    /// When it is tried next; none while it is tried, and when it is done.
    at: Option<Instant>,
    /// Until when everything else waits.
    first_until: Option<Instant>,
    /// What is being stopped.
    strangers: BTreeSet<DeploymentId>,
    work: JoinSet<Swept>,
    delays: FullJitter,
}

/// What came of a part of it.
#[derive(Debug)]
pub(super) enum Swept {
    /// It looked.
    Looked(Result<Vec<Running>, StatusError>),
    /// It stopped strangers; whether all of them.
    Stopped(bool),
}

impl Sweep {
    pub(super) fn new(retry: Retry, now: Instant) -> Self {
        let delays = FullJitter::new(retry.min, retry.max);
        Self { at: Some(now), first_until: None, strangers: BTreeSet::new(), work: JoinSet::new(), delays }
    }

    /// Looks what runs here, if it is time to.
    pub(super) fn look(&mut self, runtime: &Arc<dyn Runtime>, now: Instant) {
        if self.at.is_none_or(|at| at > now) {
            return;
        }
        self.at = None;
        self.first_until.get_or_insert(now + FIRST_MAX);
        let runtime = Arc::clone(runtime);
        self.work.spawn(async move {
            let found = watched(Duration::ZERO, runtime.inventory(), code::INVENTORY_FAILED, "");
            Swept::Looked(found.await)
        });
    }

    /// The next thing that came of it; none while nothing is under way.
    pub(super) async fn next(&mut self) -> Option<Swept> {
        // A panic stops the process, as one of an operation does: what it was at is in no known state.
        let resumed = |error: JoinError| std::panic::resume_unwind(error.into_panic());
        Some(self.work.join_next().await?.unwrap_or_else(resumed))
    }

    /// Stops these, all at once.
    pub(super) fn stop(&mut self, runtime: &Arc<dyn Runtime>, strangers: Vec<UnitName>) {
        self.strangers = strangers.iter().map(|name| name.deployment.clone()).collect();
        let runtime = Arc::clone(runtime);
        self.work.spawn(async move {
            let stopped = stream::iter(strangers).map(|name| stop(&*runtime, name));
            let stopped: Vec<_> = stopped.buffer_unordered(OPERATIONS_MAX).collect().await;
            Swept::Stopped(!stopped.contains(&false))
        });
    }

    /// One attempt is over; it is done, or tried again later.
    pub(super) fn end(&mut self, done: bool, chance: &mut fastrand::Rng, now: Instant) {
        self.strangers.clear();
        self.first_until = Some(now);
        self.at = (!done).then(|| now + self.delays.next(chance));
    }

    /// When it has to be looked at again, if nothing comes of it before.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        // Before the first attempt it waits for a document, not for a time.
        let first = self.first_until?;
        if self.work.is_empty() { self.at } else { Some(first).filter(|until| *until > now) }
    }

    /// Whether everything waits for the first attempt.
    pub(super) fn goes_first(&self, now: Instant) -> bool {
        !self.work.is_empty() && self.first_until.is_some_and(|until| until > now)
    }

    /// Whether strangers of this deployment are being stopped.
    pub(super) fn holds(&self, id: &DeploymentId) -> bool {
        self.strangers.contains(id)
    }
}

/// Stops one; false where that failed.
async fn stop(runtime: &dyn Runtime, name: UnitName) -> bool {
    tracing::warn!(
        deployment.id = %name.deployment, component.name = %name.component,
        "stopping a component of a deployment that is not desired"
    );
    let removal = runtime.remove(&name, STOP_TIMEOUT_DEFAULT);
    let stopped = watched(STOP_TIMEOUT_DEFAULT, removal, code::STOP_FAILED, name.component.as_str()).await;
    if let Err(error) = &stopped {
        tracing::error!(
            error = error.message, deployment.id = %name.deployment, component.name = %name.component,
            "it does not stop: it is tried again"
        );
    }
    stopped.is_ok()
}
