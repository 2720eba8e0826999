//! Removes a deployment: its removal jobs run before and after its components are removed. It does not decide that a deployment is
//! removed, and does not remove single components of one that stays.

use std::collections::BTreeSet;

use muster_contract::{ComponentName, State};

use super::operation::{Operation, OperationEvent};
use crate::runtime::{Running, Started, Unit};

/// The removal jobs of a deployment that have yet to run.
#[derive(Debug, Default)]
pub(super) struct RemovalJobs {
    /// The jobs before everything else, in order.
    pub(super) before: Vec<Unit>,
    /// The jobs after everything else, in order.
    pub(super) after: Vec<Unit>,
    /// Whether a component of the deployment was ever started, as far as the record says. Otherwise no job runs.
    pub(super) started: bool,
}

impl Operation {
    /// Runs the removal jobs before, removes every component, the last first, and whatever else runs of the deployment, and runs
    /// the removal jobs after. A job that fails holds up what comes after it, unless it is not waited for. `components` are
    /// those that are not removed yet, jobs included.
    pub(super) async fn remove(self, components: Vec<ComponentName>, mut jobs: RemovalJobs) {
        let Some(_permit) = self.permit().await else { return };
        let inventory = self.inventory().await;
        let is_listed = inventory.is_ok();
        let running = match inventory {
            Ok(running) => running,
            Err(error) => {
                // The components are still known. Other units wait for the next attempt, which this failure ensures: the
                // deployment is not removed as long as the inventory fails.
                self.report(OperationEvent::Failed(error)).await;
                Vec::new()
            }
        };
        // An agent that was killed may have started a component that no record knows.
        if !jobs.started && running.is_empty() {
            jobs = RemovalJobs::default();
        }
        if !self.run_jobs(&jobs.before).await {
            return;
        }
        let is_job =
            |name: &&ComponentName| jobs.before.iter().chain(&jobs.after).any(|job| job.component == **name);
        let (of_jobs, others): (Vec<_>, Vec<_>) = components.iter().partition(is_job);
        if self.remove_all(&others, &of_jobs, running).await && is_listed {
            self.run_jobs(&jobs.after).await;
        }
    }

    /// Removes components, the last first, and whatever else runs of the deployment but jobs; true if all are removed.
    async fn remove_all(
        &self,
        components: &[&ComponentName],
        jobs: &[&ComponentName],
        running: Vec<Running>,
    ) -> bool {
        let known: BTreeSet<_> = components.iter().chain(jobs).copied().cloned().collect();
        let mut all_removed = true;
        let others =
            running.into_iter().map(|found| found.name.component).filter(|name| !known.contains(name));
        for component in others {
            if let Err(error) = self.remove_component(&component).await {
                all_removed = false;
                self.report(OperationEvent::Failed(error)).await;
            }
        }
        for component in components.iter().rev() {
            if self.cancel.is_cancelled() {
                return false;
            }
            let removed = self.remove_component(component).await;
            all_removed &= removed.is_ok();
            self.report_stopped(component, State::Removed, removed).await;
        }
        all_removed
    }

    /// Runs removal jobs one after another, each to its end, and removes each; false if one that is waited for did not end well.
    async fn run_jobs(&self, jobs: &[Unit]) -> bool {
        for job in jobs {
            let component = &job.component;
            if self.cancel.is_cancelled() {
                return false;
            }
            let reason = "runs as a removal job".to_owned();
            self.report(OperationEvent::Progress(component.clone(), Some(reason))).await;
            match self.run(job).await {
                Ok(Started::Ready) => {}
                Ok(Started::Cancelled) => return false,
                Err(error) => {
                    let failed = OperationEvent::Component(component.clone(), State::Failed, Some(error));
                    self.report(failed).await;
                    if job.workload.gate().waits() {
                        return false;
                    }
                }
            }
            let removed = self.remove_component(component).await;
            let is_removed = removed.is_ok();
            self.report_stopped(component, State::Removed, removed).await;
            if !is_removed {
                return false;
            }
        }
        true
    }
}
