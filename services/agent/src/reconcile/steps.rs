//! Beginning a step of the plan: what changes of the standing, what is told of it, and which operation does the work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, Generation, State};
use muster_domain::eligibility::{self, Capabilities};
use muster_domain::plan::Step;

use super::operation::Operation;
use super::slot::Slot;
use super::{OPERATIONS_MAX, Reconciler};
use crate::runtime::{Runtime, code};
use crate::standing::Standing;

impl Reconciler {
    pub(super) async fn begin(&mut self, step: Step, document: &DesiredState) {
        let id = step.deployment().clone();
        let wanted = document.deployments.iter().find(|entry| entry.id == id);
        let generation = document.generation;
        match (step, wanted) {
            (Step::Remove(_), _) => self.remove(&id, generation).await,
            (Step::Confirm(_), Some(entry)) => self.confirm(entry, generation).await,
            (Step::Resume(_) | Step::Retry(_), Some(entry)) if self.is_underway(entry) => {
                self.resume(&id, generation);
            }
            (_, Some(entry)) => self.install(entry, generation).await,
            // A plan speaks only of what is wanted or held.
            (_, None) => {}
        }
    }

    /// Whether the hub has heard that this very version is being applied.
    fn is_underway(&self, entry: &DesiredDeployment) -> bool {
        self.slots.get(&entry.id).is_some_and(|slot| {
            slot.standing.entry.digest == entry.digest && slot.standing.generation >= entry.target_generation
        })
    }

    async fn confirm(&mut self, entry: &DesiredDeployment, generation: Generation) {
        let Some(slot) = self.slots.get_mut(&entry.id) else { return };
        slot.standing.generation = generation;
        slot.standing.entry = entry.clone();
        slot.tell(&self.observer).await;
    }

    async fn install(&mut self, entry: &DesiredDeployment, generation: Generation) {
        let held = self.slots.get(&entry.id).map(|slot| &slot.standing);
        let mut standing = match held {
            Some(held) => held.towards(entry.clone(), generation),
            None => Standing::new(entry.clone(), generation),
        };
        let stop_timeouts = held.map(Standing::stop_timeouts).unwrap_or_default();
        standing.reason = Some(self.reason_to_wait());
        let refused = refusal(entry, &*self.runtime, &self.settings.capabilities);
        let may_run = refused.is_none();
        if !may_run {
            standing.reason = None;
            standing.error = refused;
        }
        let retry = self.settings.retry;
        let slot = self.slots.entry(entry.id.clone()).or_insert_with(|| Slot::new(standing.clone(), retry));
        slot.set_target(standing);
        slot.tell(&self.observer).await;
        if may_run {
            self.start(&entry.id, stop_timeouts);
        }
    }

    fn resume(&mut self, id: &DeploymentId, generation: Generation) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.standing.generation = generation;
        slot.retry();
        self.start(id, BTreeMap::new());
    }

    /// Begins the operation that brings a deployment to its standing's entry.
    fn start(&mut self, id: &DeploymentId, mut stop_timeouts: BTreeMap<ComponentName, Duration>) {
        let device = self.settings.device.clone();
        let Some(slot) = self.slots.get_mut(id) else { return };
        stop_timeouts.extend(slot.standing.stop_timeouts());
        let (ready, units) = (slot.ready(), slot.standing.units(&device).unwrap_or_default());
        let operation = self.operation(id, stop_timeouts);
        self.work(id, async move { operation.install(units, ready).await });
    }

    async fn remove(&mut self, id: &DeploymentId, generation: Generation) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let again = slot.standing.leaving;
        if again {
            slot.retry();
        } else {
            slot.standing.leave(generation);
            slot.tell(&self.observer).await;
        }
        let left = slot.standing.components.iter().filter(|component| component.state != State::Removed);
        let components = left.map(|component| component.name.clone()).collect();
        let stop_timeouts = slot.standing.stop_timeouts();
        let operation = self.operation(id, stop_timeouts);
        self.work(id, async move { operation.remove(components).await });
    }

    /// Watches again over what ran when the agent ended, where the plan found nothing else to do.
    pub(super) fn adopt(&mut self) {
        let idle = |(_, slot): &(&DeploymentId, &Slot)| slot.operation.is_none() && !slot.standing.leaving;
        let ids: Vec<_> = self.slots.iter().filter(idle).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let Some(slot) = self.slots.get(&id) else { continue };
            let (ready, mut units) =
                (slot.ready(), slot.standing.units(&self.settings.device).unwrap_or_default());
            units.retain(|unit| ready.contains(&unit.component));
            if !units.is_empty() {
                let operation = self.operation(&id, BTreeMap::new());
                self.work(&id, async move { operation.adopt(units).await });
            }
        }
    }

    fn operation(
        &mut self,
        id: &DeploymentId,
        stop_timeouts: BTreeMap<ComponentName, Duration>,
    ) -> Operation {
        let device = &self.settings.device;
        let cancel = self.slots.get_mut(id).map(|slot| slot.begin(device)).unwrap_or_default();
        Operation {
            deployment: id.clone(),
            runtime: Arc::clone(&self.runtime),
            permits: Arc::clone(&self.permits),
            cancel,
            progress: self.progress.0.clone(),
            stop_timeouts,
        }
    }

    fn work(&mut self, id: &DeploymentId, work: impl Future<Output = ()> + Send + 'static) {
        let id = id.clone();
        self.operations.spawn(async move {
            work.await;
            id
        });
    }

    fn reason_to_wait(&self) -> String {
        match self.permits.available_permits() {
            0 => format!("waits for its turn: {OPERATIONS_MAX} deployments of this device are being changed"),
            _ => "taken in; its first component is about to begin".to_owned(),
        }
    }
}

/// Why this device deploys nothing of an entry, if it does not.
pub(super) fn refusal(
    entry: &DesiredDeployment,
    runtime: &dyn Runtime,
    capabilities: &Capabilities,
) -> Option<StatusError> {
    if !runtime.supports(entry.profile.profile_type) {
        return Some(unsupported(entry));
    }
    let unmet = eligibility::refusal(entry.profile.device_constraints.as_ref()?, capabilities)?;
    let message = format!("the device does not meet deviceConstraints: {unmet}");
    Some(StatusError::new(code::NOT_ELIGIBLE, entry.id.as_str(), message))
}

fn unsupported(entry: &DesiredDeployment) -> StatusError {
    let kind = entry.profile.profile_type.as_str();
    let message = format!(
        "this agent's runtime does not run components of type {kind}: start it with a --runtime that does, \
         or aim the deployment at other devices"
    );
    StatusError::new(code::UNSUPPORTED_PROFILE, entry.id.as_str(), message)
}
