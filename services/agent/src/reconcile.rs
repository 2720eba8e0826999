//! Keeps the workloads as desired: the desired state and what runs → the plan → operations → changed records. The
//! domain plans, [`operation`] does the work; this module decides which operation works on which deployment.
//!
//! ```text
//! desired ─┐                        ┌─► operation (one per deployment, at most OPERATIONS_MAX at a time) ─► runtime
//! exits ───┼─► tasks ─► plan ─► steps ┘            │
//! timers ──┘     ▲──────────── progress ───────────┘   every change of a record ─► report_writer
//! ```
//!
//! One task of the async runtime owns all records. Progress of operations arrives over one channel and exits of
//! components over another, which is always read first: a later start never overtakes an exit, and an exit that
//! overtakes the message "ready" is remembered ([`task`]).
//!
//! A newer version cancels the operation on the older one; the next plan begins after that has ended. After a restart
//! of the agent nothing that runs is started again: operations adopt it. Orphans, which belong to no deployment, are
//! stopped first ([`sweep`]).

mod operation;
mod removal;
mod settings;
mod shutdown;
mod steps;
mod sweep;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::desired::DesiredState;
use muster_contract::{DeploymentId, State};
use muster_domain::plan::plan;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::operation::OperationProgress;
pub(crate) use self::settings::{CurrentDesired, OPERATIONS_MAX};
pub use self::settings::{OnExit, RetryPolicy, Settings};
use self::steps::refusal;
use self::sweep::{Sweep, SweepEvent};
use self::task::DeploymentTask;
use crate::record::DeploymentRecord;
use crate::report_writer::ReportSender;
use crate::runtime::{Exit, Running, Runtime, UnitName};

/// Unhandled messages of operations at most; with more, the operations wait.
const PROGRESS_WAITING_MAX: usize = 64;
/// Longest wait when nothing is due.
const IDLE: Duration = Duration::from_secs(60 * 60);

/// Keeps the workloads as desired.
pub(crate) struct Reconciler {
    settings: Settings,
    runtime: Arc<dyn Runtime>,
    reports: ReportSender,
    desired: watch::Receiver<CurrentDesired>,
    exits: mpsc::Receiver<Exit>,
    rng: fastrand::Rng,
    tasks: BTreeMap<DeploymentId, DeploymentTask>,
    operations: JoinSet<DeploymentId>,
    progress: (mpsc::Sender<OperationProgress>, mpsc::Receiver<OperationProgress>),
    permits: Arc<Semaphore>,
    sweep: Sweep,
    adopted: bool,
}

impl Reconciler {
    /// A reconciler that continues with these records.
    pub(crate) fn new(
        settings: Settings,
        runtime: Arc<dyn Runtime>,
        reports: ReportSender,
        desired: watch::Receiver<CurrentDesired>,
        exits: mpsc::Receiver<Exit>,
        records: Vec<DeploymentRecord>,
        rng: fastrand::Rng,
    ) -> Self {
        let now = reports.now();
        let task = |mut record: DeploymentRecord| {
            record.attempts.resume(settings.retry.crash_loop, now);
            (record.id().clone(), DeploymentTask::new(record, settings.retry))
        };
        Self {
            tasks: records.into_iter().map(task).collect(),
            sweep: Sweep::new(settings.retry, Instant::now()),
            adopted: false,
            settings,
            runtime,
            reports,
            desired,
            exits,
            rng,
            operations: JoinSet::new(),
            progress: mpsc::channel(PROGRESS_WAITING_MAX),
            permits: Arc::new(Semaphore::new(OPERATIONS_MAX)),
        }
    }

    /// Works until `stop`. Then the workloads keep running or are stopped, as the settings say.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.retry_failures();
        self.follow_plan().await;
        while !stop.is_cancelled() {
            self.step(&stop).await;
            self.confirm_successes().await;
            self.follow_plan().await;
        }
        self.finish().await;
    }

    /// Waits for one event and handles it.
    async fn step(&mut self, stop: &CancellationToken) {
        let now = Instant::now();
        let dues = self.tasks.values().filter_map(DeploymentTask::due).chain(self.sweep.due(now));
        let due = dues.min().unwrap_or(now + IDLE);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(exit) = self.exits.recv() => self.exited(exit).await,
            Some(progress) = self.progress.1.recv() => self.progressed(progress).await,
            Some(ended) = self.operations.join_next() => self.ended(ended).await,
            Some(sweep_event) = self.sweep.next() => self.sweep_event(sweep_event),
            Ok(()) = self.desired.changed() => {}
            () = sleep_until(due) => {}
        }
    }

    /// Reports successes that have held.
    async fn confirm_successes(&mut self) {
        let now = Instant::now();
        for task in self.tasks.values_mut() {
            if task.confirm_successes(now) {
                task.report(&self.reports).await;
            }
        }
    }

    /// Plans, and begins the steps that can begin.
    async fn follow_plan(&mut self) {
        let (document, now) = (self.desired.borrow_and_update().clone(), Instant::now());
        if let Some(document) = document {
            self.sweep.list(&self.runtime, now);
            if self.sweep.blocks_steps(now) {
                return;
            }
            self.apply_plan(&document, now).await;
        }
        if !std::mem::replace(&mut self.adopted, true) {
            self.adopt();
        }
    }

    async fn apply_plan(&mut self, document: &DesiredState, now: Instant) {
        let actual: Vec<_> = self.tasks.values().map(|task| task.actual(now)).collect();
        let mut steps = plan(&document.deployments, &actual);
        steps.retain(|step| !self.sweep.is_stopping(step.deployment()));
        for step in steps {
            match self.tasks.get(step.deployment()).and_then(|task| task.operation.as_ref()) {
                Some(ongoing) if !ongoing.serves(&step, document) => ongoing.cancel.cancel(),
                Some(_) => {}
                None => self.start_step(step, document).await,
            }
        }
    }

    async fn exited(&mut self, exit: Exit) {
        let id = exit.name.deployment.clone();
        let retry = self.retry_policy();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        tracing::warn!(
            deployment.id = %id, component.name = %exit.name.component, error = exit.error.message,
            "a component exited unexpectedly"
        );
        if !task.exited(exit, self.reports.now()) {
            return;
        }
        task.report(&self.reports).await;
        if task.operation.is_none() {
            let delay = task.schedule(retry, &mut self.rng, Instant::now());
            log_failure(&id, delay);
        }
    }

    async fn progressed(&mut self, progress: OperationProgress) {
        let Some(task) = self.tasks.get_mut(&progress.deployment) else { return };
        if task.progress(progress.event, self.reports.now()) {
            task.report(&self.reports).await;
        }
    }

    async fn ended(&mut self, ended: Result<DeploymentId, tokio::task::JoinError>) {
        // Its last progress may still be queued, and decides how it ended.
        while let Ok(progress) = self.progress.1.try_recv() {
            self.progressed(progress).await;
        }
        let id = match ended {
            Ok(id) => id,
            // An operation is never aborted, so it panicked: the process must not continue with a task that waits for
            // ever.
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let retry = self.retry_policy();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let delay = task.end(retry, &mut self.rng, Instant::now());
        if task.has_unreported_recovery() {
            task.report(&self.reports).await;
        }
        match task.record.state() {
            State::Failed => log_failure(&id, delay),
            _ if task.record.is_removed() => _ = self.tasks.remove(&id),
            _ => {}
        }
    }

    /// The retries of failed deployments, by the document or the agent's own settings.
    fn retry_policy(&self) -> RetryPolicy {
        let delays = self.desired.borrow().as_ref().and_then(|document| document.retry);
        self.settings.retry.with_delays(delays)
    }

    /// After a restart of the agent failures are retried at once, also deployments that this agent could not run
    /// before and can run now.
    fn retry_failures(&mut self) {
        let now = Instant::now();
        for task in self.tasks.values_mut().filter(|task| task.record.state() == State::Failed) {
            let refusal = refusal(&task.record.entry, &*self.runtime, &self.settings.capabilities);
            let may_run_now = task.record.is_refused() && refusal.is_none();
            if may_run_now || task.record.may_retry() {
                task.retry_now(now);
            }
        }
    }

    /// Handles an event of the sweep.
    fn sweep_event(&mut self, sweep_event: SweepEvent) {
        let now = Instant::now();
        let done = match sweep_event {
            SweepEvent::Listed(Ok(running)) => {
                let orphans = self.orphans(running);
                if !orphans.is_empty() {
                    return self.sweep.stop(&self.runtime, orphans);
                }
                true
            }
            SweepEvent::Listed(Err(error)) => {
                tracing::error!(error = error.message, "cannot list what runs here: trying again");
                false
            }
            SweepEvent::Stopped(all) => all,
        };
        self.sweep.end(done, &mut self.rng, now);
    }

    /// The units of deployments that are neither desired nor recorded.
    fn orphans(&self, running: Vec<Running>) -> Vec<UnitName> {
        let document = self.desired.borrow().clone();
        let wanted: BTreeSet<_> =
            document.iter().flat_map(|document| &document.deployments).map(|entry| &entry.id).collect();
        let known = |id: &DeploymentId| wanted.contains(id) || self.tasks.contains_key(id);
        running.into_iter().map(|found| found.name).filter(|name| !known(&name.deployment)).collect()
    }
}

fn log_failure(id: &DeploymentId, delay: Option<Duration>) {
    match delay {
        Some(delay) => {
            tracing::warn!(deployment.id = %id, retry.seconds = delay.as_secs_f64(), "a deployment failed: it will be retried");
        }
        None => {
            tracing::warn!(deployment.id = %id, "a deployment failed: it is not retried until its next generation");
        }
    }
}

#[cfg(test)]
mod tests;
