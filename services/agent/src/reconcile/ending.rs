//! The end of an agent: operations end where they stand, and what runs goes on or is stopped, as the settings say, within
//! a part of the time that the whole process has for its end. What is left of that time is for keeping and sending what
//! was told meanwhile.

use std::time::Duration;

use futures_util::future::join_all;
use muster_contract::ComponentName;
use muster_contract::profile::STOP_TIMEOUT_DEFAULT;
use muster_service::life::DRAIN_DEADLINE;
use tokio::time::{Instant, timeout_at};

use super::{OnExit, Reconciler};
use crate::observe::Observer;
use crate::runtime::{Runtime, UnitName};
use crate::standing::Standing;

/// Time that operations have to come to a stop; only one that is stopping a component takes any.
const OPERATIONS_MAX: Duration = Duration::from_secs(3);
/// Time, from the request to end, in which components may end by themselves; then they are killed.
const STOP_BUDGET: Duration = Duration::from_secs(13);
/// Time for all of it, with what survives being killed.
const END_MAX: Duration = Duration::from_secs(17);

const _: () = {
    assert!(OPERATIONS_MAX.as_secs() + STOP_TIMEOUT_DEFAULT.as_secs() <= STOP_BUDGET.as_secs());
    assert!(STOP_BUDGET.as_secs() < END_MAX.as_secs() && END_MAX.as_secs() < DRAIN_DEADLINE.as_secs());
};

impl Reconciler {
    /// Ends the operations where they stand and, if so asked, stops what runs.
    pub(super) async fn finish(mut self) {
        let begun = Instant::now();
        self.slots.values().filter_map(|slot| slot.operation.as_ref()).for_each(|it| it.cancel.cancel());
        if timeout_at(begun + OPERATIONS_MAX, self.last_words()).await.is_err() {
            tracing::warn!("what was being stopped did not stop in time: it is left where it stands");
            self.operations.shutdown().await;
        }
        if self.settings.on_exit == OnExit::Keep {
            return;
        }
        let slots = std::mem::take(&mut self.slots);
        let put_away = slots
            .into_values()
            .map(|slot| put_away(&*self.runtime, &self.observer, slot.standing, begun + STOP_BUDGET));
        if timeout_at(begun + END_MAX, join_all(put_away)).await.is_err() {
            tracing::error!("some components do not stop, also killed: they are left");
        }
    }

    async fn last_words(&mut self) {
        while !self.operations.is_empty() {
            tokio::select! {
                biased;
                Some(progress) = self.progress.1.recv() => self.progressed(progress).await,
                Some(ended) = self.operations.join_next() => self.ended(ended).await,
            }
        }
    }
}

/// Stops a deployment because the agent ends; it is pending until the next agent starts it again. Jobs that have done
/// their work are left: stopped, they would be run again.
async fn put_away(runtime: &dyn Runtime, observer: &Observer, mut standing: Standing, killed_at: Instant) {
    let (stop_timeouts, done) = (standing.stop_timeouts(), standing.jobs_done());
    let running = standing.components.iter().rev().map(|component| &component.name);
    let running = running.filter(|name| !done.contains(name));
    join_all(running.map(|component| {
        let timeout = stop_timeouts.get(component).copied().unwrap_or(STOP_TIMEOUT_DEFAULT);
        stop(runtime, &standing, component, timeout.min(killed_at.duration_since(Instant::now())))
    }))
    .await;
    if standing.interrupt("stopped together with the agent") {
        observer.tell(&standing).await;
    }
}

async fn stop(runtime: &dyn Runtime, standing: &Standing, component: &ComponentName, timeout: Duration) {
    let name = UnitName { deployment: standing.id().clone(), component: component.clone() };
    if let Err(error) = runtime.stop(&name, timeout).await {
        tracing::error!(
            deployment.id = %name.deployment, component.name = %name.component, error = error.message,
            "a component does not stop"
        );
    }
}
