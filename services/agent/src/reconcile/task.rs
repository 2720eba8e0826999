//! One deployment in the reconciler: its record, the operation on it, and the time of its next retry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::state::StatusError;
use muster_contract::{ComponentName, DeviceKey, Generation, State, Timestamp};
use muster_domain::plan::{Actual, Step};
use muster_service::backoff::FullJitter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::operation::OperationEvent;
use super::settings::RetryPolicy;
use crate::attempts::CrashLoopRule;
use crate::record::DeploymentRecord;
use crate::report_writer::ReportSender;
use crate::runtime::{Exit, Stopped};

/// The record, and the state that a restart of the agent may forget.
#[derive(Debug)]
pub(super) struct DeploymentTask {
    pub(super) record: DeploymentRecord,
    pub(super) operation: Option<RunningOperation>,
    /// The last operation was cancelled, and may have left obsolete components.
    pub(super) was_cancelled: bool,
    /// An error of the deployment as a whole that was cleared for another attempt and not reported yet: the hub and the
    /// database still hold it.
    cleared_error: Option<StatusError>,
    delays: FullJitter,
    /// Bounds of the delays.
    delay_bounds: (Duration, Duration),
    retry_at: Option<Instant>,
    installed_at: Option<Instant>,
    /// Since when each component with attempts, and the deployment as a whole, has been ready without interruption.
    ready_since: BTreeMap<Option<ComponentName>, Instant>,
    crash_loop: CrashLoopRule,
    /// Exits during an operation: the operation may not yet have said that the component was ready.
    exits: BTreeMap<ComponentName, StatusError>,
    /// The [`crate::runtime::Unit::digest_prefix`] of each component.
    versions: BTreeMap<ComponentName, String>,
}

/// The target of an operation, and its cancellation.
#[derive(Debug)]
pub(super) struct RunningOperation {
    pub(super) cancel: CancellationToken,
    pub(super) digest: Digest,
    pub(super) generation: Generation,
    pub(super) leaving: bool,
}

impl RunningOperation {
    /// Whether this operation does what the step requires.
    pub(super) fn serves(&self, step: &Step, document: &DesiredState) -> bool {
        let wanted = document.deployments.iter().find(|entry| entry.id == *step.deployment());
        match wanted {
            None => self.leaving,
            Some(wanted) => {
                !self.leaving && self.digest == wanted.digest && self.generation >= wanted.target_generation
            }
        }
    }
}

impl DeploymentTask {
    pub(super) fn new(record: DeploymentRecord, retry: RetryPolicy) -> Self {
        let delays = FullJitter::new(retry.min, retry.max);
        let (exits, versions) = (BTreeMap::new(), BTreeMap::new());
        let mut task = Self {
            record,
            operation: None,
            was_cancelled: false,
            cleared_error: None,
            delays,
            delay_bounds: (retry.min, retry.max),
            retry_at: None,
            installed_at: None,
            ready_since: BTreeMap::new(),
            crash_loop: retry.crash_loop,
            exits,
            versions,
        };
        task.track_readiness();
        task
    }

    /// The deployment's actual state, for the plan.
    pub(super) fn actual(&self, now: Instant) -> Actual {
        self.record.actual(self.retry_at.is_some_and(|at| at <= now))
    }

    /// When it must be planned again, if nothing happens before.
    pub(super) fn due(&self) -> Option<Instant> {
        let retry = self.retry_at.filter(|_| self.operation.is_none());
        let held = self.ready_since.values().min().map(|since| *since + self.crash_loop.window);
        retry.into_iter().chain(held).min()
    }

    /// Clears attempts whose success has held; true if that must be reported.
    pub(super) fn confirm_successes(&mut self, now: Instant) -> bool {
        let has_held = |since: &Instant| now.duration_since(*since) >= self.crash_loop.window;
        let held: Vec<_> =
            self.ready_since.iter().filter(|(_, since)| has_held(since)).map(|(of, _)| of.clone()).collect();
        let mut is_changed = false;
        for of in held {
            is_changed |= self.record.attempts.confirm_success(of.as_ref());
            self.ready_since.remove(&of);
        }
        is_changed
    }

    /// Records since when the components with attempts have been ready.
    fn track_readiness(&mut self) {
        let ready = self.record.on_trial();
        self.ready_since.retain(|of, _| ready.contains(of));
        for of in ready {
            self.ready_since.entry(of).or_insert_with(Instant::now);
        }
    }

    /// Retries a failure at once: after a restart of the agent its reason may be gone.
    pub(super) fn retry_now(&mut self, now: Instant) {
        self.retry_at = Some(now);
    }

    /// Begins another attempt. That the error of the deployment as a whole is cleared is reported with the next
    /// change, or at the end of the operation: the attempt may fail with the same error.
    pub(super) fn retry(&mut self) {
        if let Some(error) = self.record.retry() {
            self.cleared_error = Some(error);
        }
    }

    /// Sets another target, with its own attempts.
    pub(super) fn set_target(&mut self, mut record: DeploymentRecord) {
        record.started |= self.record.has_started();
        self.record = record;
        self.track_readiness();
    }

    /// Reports the record.
    pub(super) async fn report(&mut self, reports: &ReportSender) {
        self.cleared_error = None;
        reports.report_record(&self.record).await;
    }

    /// Whether a cleared error was not reported yet.
    pub(super) fn has_unreported_recovery(&self) -> bool {
        self.cleared_error.is_some()
    }

    /// Begins an operation.
    pub(super) fn start_operation(&mut self, device: &DeviceKey) -> CancellationToken {
        let cancel = CancellationToken::new();
        self.operation = Some(RunningOperation {
            cancel: cancel.clone(),
            digest: self.record.entry.digest,
            generation: self.record.generation,
            leaving: self.record.leaving,
        });
        self.was_cancelled = false;
        self.retry_at = None;
        self.exits.clear();
        let units = self.record.units(device).unwrap_or_default();
        self.versions = units.iter().map(|unit| (unit.component.clone(), unit.digest_prefix())).collect();
        cancel
    }

    /// Ends the operation. Returns the delay of the retry, if it failed and is retried.
    pub(super) fn end(
        &mut self,
        retry: RetryPolicy,
        rng: &mut fastrand::Rng,
        now: Instant,
    ) -> Option<Duration> {
        self.was_cancelled = self.operation.take().is_some_and(|operation| operation.cancel.is_cancelled());
        if self.was_cancelled
            && let Some(error) = self.cleared_error.take()
        {
            // It is not known whether the error is gone, so the one that the hub knows is kept.
            self.record.error = Some(error);
        }
        // An error of the deployment as a whole may be cleared without a change of any component.
        self.track_readiness();
        match self.record.state() {
            State::Failed => self.schedule(retry, rng, now),
            State::Installed => {
                self.installed_at = Some(now);
                None
            }
            _ => None,
        }
    }

    /// Applies an event of the operation; true if it changed the record.
    pub(super) fn progress(&mut self, event: OperationEvent, at: Timestamp) -> bool {
        let (component, mut state, mut error) = match event {
            OperationEvent::Failed(error) => {
                self.record.attempts.record_failure(None, &error, self.crash_loop, at);
                let before = self.record.error.replace(error);
                self.track_readiness();
                return before != self.record.error;
            }
            OperationEvent::Progress(component, reason) => {
                return self.record.set_progress(&component, reason.as_deref());
            }
            OperationEvent::Stopped(component, state, Stopped::Killed) => {
                self.record.killed.insert(component.clone());
                (component, state, None)
            }
            OperationEvent::Stopped(component, state, Stopped::InTime) => (component, state, None),
            OperationEvent::Component(component, state, error) => (component, state, error),
        };
        match state {
            State::Installing => _ = self.exits.remove(&component),
            State::Installed => {
                if let Some(exit) = self.exits.remove(&component) {
                    (state, error) = (State::Failed, Some(exit));
                }
            }
            _ => {}
        }
        self.set(&component, state, error, at)
    }

    /// Sets the state of a component and counts its attempts; false if nothing changed.
    fn set(
        &mut self,
        component: &ComponentName,
        state: State,
        error: Option<StatusError>,
        at: Timestamp,
    ) -> bool {
        let is_changed = self.record.set_and_count(component, state, error, self.crash_loop, at);
        if is_changed {
            self.track_readiness();
        }
        is_changed
    }

    /// Applies an exit of a component; true if it changed the record.
    pub(super) fn exited(&mut self, exit: Exit, at: Timestamp) -> bool {
        let component = exit.name.component;
        if self.versions.get(&component) != Some(&exit.digest_prefix) || self.record.leaving {
            return false;
        }
        if self.operation.is_some() {
            self.exits.insert(component.clone(), exit.error.clone());
        }
        self.record.component(&component) == Some(State::Installed)
            && self.set(&component, State::Failed, Some(exit.error), at)
    }

    /// Schedules the retry of a failure. After a long success the delays begin anew.
    pub(super) fn schedule(
        &mut self,
        retry: RetryPolicy,
        rng: &mut fastrand::Rng,
        now: Instant,
    ) -> Option<Duration> {
        if self.installed_at.take().is_some_and(|since| now.duration_since(since) >= retry.max) {
            self.delays.reset();
        }
        if self.delay_bounds != (retry.min, retry.max) {
            self.delay_bounds = (retry.min, retry.max);
            self.delays = FullJitter::new(retry.min, retry.max);
        }
        let delay = self.record.may_retry().then(|| self.delays.next(rng))?;
        self.retry_at = Some(now + delay);
        Some(delay)
    }

    /// The components that have begun and failed.
    pub(super) fn failed(&self) -> BTreeSet<ComponentName> {
        self.record.attempts.retries().into_iter().filter_map(|retry| retry.component).collect()
    }

    /// The components that the hub knows as installed.
    pub(super) fn ready(&self) -> BTreeSet<ComponentName> {
        let installed = self.record.components.iter().filter(|component| component.state == State::Installed);
        installed.map(|component| component.name.clone()).collect()
    }
}
