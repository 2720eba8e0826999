//! Begins the steps of the plan: changes the record, reports it, and spawns the operation that does the work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_contract::desired::{DesiredDeployment, DesiredState, RemovalPhase};
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeploymentId, Generation, State};
use muster_domain::eligibility::{self, Capabilities};
use muster_domain::plan::Step;

use super::Reconciler;
use super::operation::Operation;
use super::removal::RemovalJobs;
use super::settings::OPERATIONS_MAX;
use super::task::DeploymentTask;
use crate::record::DeploymentRecord;
use crate::runtime::{Runtime, code};

impl Reconciler {
    pub(super) async fn start_step(&mut self, step: Step, document: &DesiredState) {
        let id = step.deployment().clone();
        let wanted = document.deployments.iter().find(|entry| entry.id == id);
        let generation = document.generation;
        match (step, wanted) {
            (Step::Remove(_), _) => self.remove(&id, generation).await,
            (Step::Stop(_), Some(entry)) => self.stop(entry, generation).await,
            (Step::Confirm(_), Some(entry)) => self.confirm(entry, generation).await,
            (Step::Resume(_) | Step::Retry(_), Some(entry)) if self.is_underway(entry) => {
                self.resume(&id, generation);
            }
            (_, Some(entry)) => self.install(entry, generation).await,
            // A plan names only desired and recorded deployments.
            (_, None) => {}
        }
    }

    /// Whether the hub knows that this version is being applied.
    fn is_underway(&self, entry: &DesiredDeployment) -> bool {
        self.tasks.get(&entry.id).is_some_and(|task| {
            task.record.entry.digest == entry.digest && task.record.generation >= entry.target_generation
        })
    }

    async fn confirm(&mut self, entry: &DesiredDeployment, generation: Generation) {
        let Some(task) = self.tasks.get_mut(&entry.id) else { return };
        task.record.generation = generation;
        task.record.entry = entry.clone();
        task.record.killed.clear();
        let was_cancelled = task.was_cancelled;
        task.report(&self.reports).await;
        if was_cancelled && !entry.stopped {
            // All of it runs; obsolete components that the cancelled operation has left are removed.
            self.start(&entry.id, BTreeMap::new());
        }
    }

    async fn install(&mut self, entry: &DesiredDeployment, generation: Generation) {
        let held = self.tasks.get(&entry.id).map(|task| &task.record);
        let mut record = match held {
            Some(held) => held.retarget(entry.clone(), generation),
            None => DeploymentRecord::new(entry.clone(), generation),
        };
        let stop_timeouts = held.map(DeploymentRecord::stop_timeouts).unwrap_or_default();
        record.reason = Some(self.reason_to_wait());
        let refused = refusal(entry, &*self.runtime, &self.settings.capabilities);
        let may_run = refused.is_none();
        if !may_run {
            record.reason = None;
            record.error = refused;
        }
        self.report_target(record).await;
        if may_run {
            self.start(&entry.id, stop_timeouts);
        }
    }

    /// Sets the record of another target and reports it.
    async fn report_target(&mut self, record: DeploymentRecord) {
        let (id, retry) = (record.id().clone(), self.settings.retry);
        let task = self.tasks.entry(id).or_insert_with(|| DeploymentTask::new(record.clone(), retry));
        task.set_target(record);
        task.report(&self.reports).await;
    }

    /// Stops every component of a deployment that is desired as stopped, or resumes the stop.
    async fn stop(&mut self, entry: &DesiredDeployment, generation: Generation) {
        let id = &entry.id;
        let held = self.tasks.get(id).map(|task| &task.record);
        let mut stop_timeouts = held.map(DeploymentRecord::stop_timeouts).unwrap_or_default();
        if let Some(error) = unsupported_operation(entry, &*self.runtime) {
            let retargeted = held.map(|held| held.retarget(entry.clone(), generation));
            let mut record = retargeted.unwrap_or_else(|| DeploymentRecord::new(entry.clone(), generation));
            record.error = Some(error);
            return self.report_target(record).await;
        }
        if self.is_underway(entry)
            && let Some(task) = self.tasks.get_mut(id)
        {
            task.record.generation = generation;
            task.retry();
        } else {
            self.report_target(DeploymentRecord::stopping(entry.clone(), generation)).await;
        }
        let Some(task) = self.tasks.get(id) else { return };
        stop_timeouts.extend(task.record.stop_timeouts());
        let components = task.record.components.iter().map(|component| component.name.clone()).collect();
        let operation = self.operation(id, stop_timeouts);
        self.work(id, async move { operation.stop_all(components).await });
    }

    fn resume(&mut self, id: &DeploymentId, generation: Generation) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.record.generation = generation;
        task.retry();
        self.start(id, BTreeMap::new());
    }

    /// Spawns the operation that applies the entry of the record.
    fn start(&mut self, id: &DeploymentId, mut stop_timeouts: BTreeMap<ComponentName, Duration>) {
        let device = self.settings.device.clone();
        let Some(task) = self.tasks.get_mut(id) else { return };
        stop_timeouts.extend(task.record.stop_timeouts());
        let (ready, failed) = (task.ready(), task.failed());
        let units = task.record.units(&device).unwrap_or_default();
        let removal_jobs = task.record.removal_job_names();
        let operation = self.operation(id, stop_timeouts);
        self.work(id, async move { operation.install(units, ready, failed, removal_jobs).await });
    }

    async fn remove(&mut self, id: &DeploymentId, generation: Generation) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let is_repeated = task.record.leaving;
        if is_repeated {
            task.retry();
        } else {
            task.record.start_removal(generation);
            task.report(&self.reports).await;
        }
        let left = task.record.components.iter().filter(|component| component.state != State::Removed);
        let components = left.map(|component| component.name.clone()).collect();
        let stop_timeouts = task.record.stop_timeouts();
        let is_refused = refusal(&task.record.entry, &*self.runtime, &self.settings.capabilities).is_some();
        let jobs = |phase| task.record.removal_jobs(&self.settings.device, phase).unwrap_or_default();
        // The device cannot run the jobs of a version that it refuses.
        let jobs = (!is_refused).then(|| RemovalJobs {
            before: jobs(RemovalPhase::PreDelete),
            after: jobs(RemovalPhase::PostDelete),
            started: task.record.started,
        });
        let operation = self.operation(id, stop_timeouts);
        self.work(id, async move { operation.remove(components, jobs.unwrap_or_default()).await });
    }

    /// Watches what was running when the agent ended, where the plan has no other step.
    pub(super) fn adopt(&mut self) {
        let idle =
            |(_, task): &(&DeploymentId, &DeploymentTask)| task.operation.is_none() && !task.record.leaving;
        let ids: Vec<_> = self.tasks.iter().filter(idle).map(|(id, _)| id.clone()).collect();
        for id in ids {
            let Some(task) = self.tasks.get(&id) else { continue };
            let (ready, mut units) =
                (task.ready(), task.record.units(&self.settings.device).unwrap_or_default());
            units.retain(|unit| ready.contains(&unit.component));
            let names = task.record.components.iter().map(|component| component.name.clone());
            let complete = (task.record.state() == State::Installed).then(|| names.collect());
            if !units.is_empty() {
                let operation = self.operation(&id, BTreeMap::new());
                self.work(&id, async move { operation.adopt(units, complete).await });
            }
        }
    }

    fn operation(
        &mut self,
        id: &DeploymentId,
        stop_timeouts: BTreeMap<ComponentName, Duration>,
    ) -> Operation {
        let device = &self.settings.device;
        let cancel = self.tasks.get_mut(id).map(|task| task.start_operation(device)).unwrap_or_default();
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
            0 => format!("waiting: this device already changes {OPERATIONS_MAX} deployments"),
            _ => "accepted; its first component is about to start".to_owned(),
        }
    }
}

/// The reason why this device cannot run an entry, if there is one.
pub(super) fn refusal(
    entry: &DesiredDeployment,
    runtime: &dyn Runtime,
    capabilities: &Capabilities,
) -> Option<StatusError> {
    if !runtime.profiles().contains(&entry.profile.profile_type) {
        return Some(unsupported(entry));
    }
    if let Some(error) = unsupported_operation(entry, runtime) {
        return Some(error);
    }
    let unmet = eligibility::refusal(entry.profile.device_constraints.as_ref()?, capabilities)?;
    let message = format!("the device does not meet deviceConstraints: {unmet}");
    Some(StatusError::new(code::NOT_ELIGIBLE, entry.id.as_str(), message))
}

/// The error of a desired stop or restart of components that the runtime runs and cannot stop in place.
fn unsupported_operation(entry: &DesiredDeployment, runtime: &dyn Runtime) -> Option<StatusError> {
    let operation = match (entry.stopped, entry.restart) {
        (true, _) => "stop",
        (false, 1..) => "restart",
        (false, 0) => return None,
    };
    let profile = entry.profile.profile_type;
    if profile.stops_in_place() || !runtime.profiles().contains(&profile) {
        return None;
    }
    let message = format!(
        "the agent's runtime cannot {operation} components of type {}, which keep running: remove the deployment, or \
         withdraw the {operation}",
        profile.as_str()
    );
    Some(StatusError::new(code::UNSUPPORTED_OPERATION, entry.id.as_str(), message))
}

fn unsupported(entry: &DesiredDeployment) -> StatusError {
    let kind = entry.profile.profile_type.as_str();
    let message = format!(
        "this agent's runtime does not run components of type {kind}: start the agent with a --runtime that does, \
         or target other devices"
    );
    StatusError::new(code::UNSUPPORTED_PROFILE, entry.id.as_str(), message)
}
