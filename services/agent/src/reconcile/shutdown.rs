//! The end of the reconciler: operations are cancelled, and workloads keep running or are stopped, as the settings
//! say, within a part of the time that the whole process has to stop. The rest is for storing and sending the last
//! reports.

use std::time::Duration;

use futures_util::future::join_all;
use muster_contract::ComponentName;
use muster_contract::profile::STOP_TIMEOUT_DEFAULT;
use muster_service::supervisor::DRAIN_DEADLINE;
use tokio::time::{Instant, timeout_at};

use super::{OnExit, Reconciler};
use crate::record::DeploymentRecord;
use crate::report_writer::ReportSender;
use crate::runtime::{Runtime, UnitName};

/// Time for operations to end; only one that is stopping a component needs any.
const OPERATIONS_END_MAX: Duration = Duration::from_secs(3);
/// Time, from the request to stop, in which components may exit; then they are killed.
const STOP_BUDGET: Duration = Duration::from_secs(13);
/// Time for all of it, including components that survive SIGKILL for a while.
const END_MAX: Duration = Duration::from_secs(17);

const _: () = {
    assert!(OPERATIONS_END_MAX.as_secs() + STOP_TIMEOUT_DEFAULT.as_secs() <= STOP_BUDGET.as_secs());
    assert!(STOP_BUDGET.as_secs() < END_MAX.as_secs() && END_MAX.as_secs() < DRAIN_DEADLINE.as_secs());
};

impl Reconciler {
    /// Cancels the operations and, if the settings say so, stops what runs.
    pub(super) async fn finish(mut self) {
        let begun = Instant::now();
        self.tasks.values().filter_map(|task| task.operation.as_ref()).for_each(|it| it.cancel.cancel());
        if timeout_at(begun + OPERATIONS_END_MAX, self.finish_operations()).await.is_err() {
            tracing::warn!(
                "components that were being stopped did not stop in time: they are left as they are"
            );
            self.operations.shutdown().await;
        }
        if self.settings.on_exit == OnExit::Keep {
            return;
        }
        let tasks = std::mem::take(&mut self.tasks);
        let stops = tasks
            .into_values()
            .map(|task| stop_deployment(&*self.runtime, &self.reports, task.record, begun + STOP_BUDGET));
        if timeout_at(begun + END_MAX, join_all(stops)).await.is_err() {
            tracing::error!("some components did not stop, even when killed: they are left running");
        }
    }

    async fn finish_operations(&mut self) {
        while !self.operations.is_empty() {
            tokio::select! {
                biased;
                Some(progress) = self.progress.1.recv() => self.progressed(progress).await,
                Some(ended) = self.operations.join_next() => self.ended(ended).await,
            }
        }
    }
}

/// Stops a deployment because the agent ends; it is pending until the next agent starts it again. Completed jobs are
/// left: once stopped, they would run again.
async fn stop_deployment(
    runtime: &dyn Runtime,
    reports: &ReportSender,
    mut record: DeploymentRecord,
    killed_at: Instant,
) {
    let (stop_timeouts, done) = (record.stop_timeouts(), record.jobs_done());
    let running = record.components.iter().rev().map(|component| &component.name);
    let running = running.filter(|name| !done.contains(name));
    join_all(running.map(|component| {
        let timeout = stop_timeouts.get(component).copied().unwrap_or(STOP_TIMEOUT_DEFAULT);
        stop(runtime, &record, component, timeout.min(killed_at.duration_since(Instant::now())))
    }))
    .await;
    if record.interrupt("stopped together with the agent") {
        reports.report_record(&record).await;
    }
}

async fn stop(
    runtime: &dyn Runtime,
    record: &DeploymentRecord,
    component: &ComponentName,
    timeout: Duration,
) {
    let name = UnitName { deployment: record.id().clone(), component: component.clone() };
    if let Err(error) = runtime.stop(&name, timeout).await {
        tracing::error!(
            deployment.id = %name.deployment, component.name = %name.component, error = error.message,
            "cannot stop a component"
        );
    }
}
