//! The record of one deployment: the entry being applied, its generation, and the state of each component. Pure: how
//! a record changes, and what it contributes to reports and to the plan.
//!
//! It is stored in the transaction of the report about it ([`crate::outbox`]). It does not know what runs, nor when a
//! failure is retried.

mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::decode::Violation;
use muster_contract::desired::{Component, DesiredDeployment, RemovalPhase};
use muster_contract::profile::{Readiness, Restart, STOP_TIMEOUT_DEFAULT, Workload};
use muster_contract::retry::Retry;
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError, cut};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, Generation, State, Timestamp};
use muster_domain::aggregate;
use muster_domain::plan::Actual;
use serde::{Deserialize, Serialize};

use self::units::{unit_digests, units};
use crate::attempts::{Attempts, CrashLoopRule};
use crate::report::{BODY_BYTES_MAX, StatusBody};
use crate::runtime::{Unit, code};

/// The record of one deployment on this device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentRecord {
    /// The entry that was applied last, is being applied, or is being removed.
    pub entry: DesiredDeployment,
    /// The generation of the document that began the change.
    pub generation: Generation,
    /// The deployment is being removed, or was.
    pub leaving: bool,
    /// The error of the deployment as a whole.
    pub error: Option<StatusError>,
    /// Why it is in its state, unless an error says so.
    pub reason: Option<String>,
    /// One entry per component of `entry`, in its order.
    pub components: Vec<ComponentStatus>,
    /// The attempts at this target.
    #[serde(default, skip_serializing_if = "Attempts::is_empty")]
    pub attempts: Attempts,
    /// The components that did not end within their `stopTimeout` when they were stopped last, and were killed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub killed: BTreeSet<ComponentName>,
    /// A component was started since the deployment came to the device: its removal jobs will run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
}

impl DeploymentRecord {
    /// A record with every component pending.
    pub fn new(entry: DesiredDeployment, generation: Generation) -> Self {
        let components = pending(&entry.profile.components);
        let attempts = Attempts::default();
        let (killed, started) = (BTreeSet::new(), false);
        Self {
            entry,
            generation,
            leaving: false,
            error: None,
            reason: None,
            components,
            attempts,
            killed,
            started,
        }
    }

    /// The deployment.
    pub fn id(&self) -> &DeploymentId {
        &self.entry.id
    }

    /// The state that follows from the components.
    pub fn state(&self) -> State {
        aggregate::overall(self.components.iter().map(|component| component.state), self.error.as_ref())
    }

    /// The record for another entry. Installed components that did not change stay installed.
    #[must_use]
    pub fn retarget(&self, entry: DesiredDeployment, generation: Generation) -> Self {
        let mut next = Self::new(entry, generation);
        let (before, after) = (unit_digests(&self.entry), unit_digests(&next.entry));
        for component in &mut next.components {
            let unchanged = before.get(&component.name) == after.get(&component.name);
            if unchanged && !self.leaving && self.component(&component.name) == Some(State::Installed) {
                component.state = State::Installed;
            }
        }
        next
    }

    /// A record of an entry that is desired as stopped: every component is being stopped.
    pub fn stopping(entry: DesiredDeployment, generation: Generation) -> Self {
        let mut record = Self::new(entry, generation);
        record.components.iter_mut().for_each(|component| component.state = State::Removing);
        record
    }

    /// Whether a component was started since the deployment came to the device.
    pub fn has_started(&self) -> bool {
        // Only the components tell of records that an agent without removal jobs wrote.
        let has_begun =
            |component: &ComponentStatus| matches!(component.state, State::Installing | State::Installed);
        self.started || self.components.iter().any(has_begun)
    }

    /// Begins the removal.
    pub fn start_removal(&mut self, generation: Generation) {
        self.started = self.has_started();
        self.generation = generation;
        self.leaving = true;
        self.error = None;
        self.reason = None;
        self.killed.clear();
        self.attempts = Attempts::default();
        for component in &mut self.components {
            component.state = State::Removing;
            component.error = None;
        }
    }

    /// Begins another attempt: failed components are pending again. Returns the error of the deployment as a whole,
    /// which the hub keeps until the next report.
    pub fn retry(&mut self) -> Option<StatusError> {
        self.started = self.has_started();
        self.attempts.start_retry();
        let taken = self.error.take();
        if taken.is_some() {
            self.reason = None;
        }
        for component in self.components.iter_mut().filter(|component| component.state == State::Failed) {
            let ends = self.leaving || self.entry.stopped;
            component.state = if ends { State::Removing } else { State::Pending };
            component.error = None;
        }
        taken
    }

    /// Sets the state of a component and counts its attempts; false if nothing changed.
    pub fn set_and_count(
        &mut self,
        name: &ComponentName,
        state: State,
        error: Option<StatusError>,
        rule: CrashLoopRule,
        at: Timestamp,
    ) -> bool {
        let failure = error.clone().filter(|_| state == State::Failed);
        let is_changed = self.set(name, state, error);
        if is_changed {
            match (state, failure) {
                (State::Installing, _) => self.attempts.record_start(name, at),
                (State::Installed, _) => self.attempts.record_ready(name, at),
                (State::Removed, _) => _ = self.attempts.confirm_success(Some(name)),
                (_, Some(error)) => self.attempts.record_failure(Some(name), &error, rule, at),
                _ => {}
            }
        }
        is_changed
    }

    /// The components with attempts that are ready, and the deployment as a whole if it is: their success is on trial.
    pub fn on_trial(&self) -> BTreeSet<Option<ComponentName>> {
        let is_ready = |of: &Option<&ComponentName>| match of {
            Some(name) => self.component(name) == Some(State::Installed),
            None => self.state() == State::Installed,
        };
        self.attempts.components().filter(is_ready).map(Option::<&_>::cloned).collect()
    }

    /// Sets the state of a component; false if nothing changed.
    fn set(&mut self, name: &ComponentName, state: State, error: Option<StatusError>) -> bool {
        let Some(component) = self.components.iter_mut().find(|component| component.name == *name) else {
            return false;
        };
        self.started |= state == State::Installing;
        let before = std::mem::replace(component, ComponentStatus { name: name.clone(), state, error });
        if *component == before {
            return false;
        }
        self.reason = None;
        true
    }

    /// Sets or clears why a component that is being installed, or runs at the removal, takes its time; false if nothing changed.
    pub(crate) fn set_progress(&mut self, name: &ComponentName, reason: Option<&str>) -> bool {
        let is_removal = self.leaving && self.component(name) == Some(State::Removing);
        if !is_removal && self.component(name) != Some(State::Installing) {
            return false;
        }
        let reason = reason.map(|reason| format!("component {name} {reason}"));
        let is_changed = self.reason != reason;
        self.reason = reason;
        is_changed
    }

    /// The sentence about components that were killed; `None` for none.
    fn killed_reason(&self) -> Option<String> {
        let names: Vec<_> = self.killed.iter().take(KILLED_NAMED_MAX).map(ComponentName::as_str).collect();
        let others = self.killed.len() - names.len();
        let more = if others == 0 { String::new() } else { format!(" and {others} more") };
        (!names.is_empty()).then(|| format!("killed after stopTimeout: {}{more}", names.join(", ")))
    }

    /// Sets components that were being installed or are installed to pending, with a reason, except completed jobs;
    /// false if there were none.
    pub fn interrupt(&mut self, reason: &str) -> bool {
        self.started = self.has_started();
        let done = self.jobs_done();
        let begun = |component: &&ComponentStatus| {
            matches!(component.state, State::Installing | State::Installed) && !done.contains(&component.name)
        };
        let names: Vec<_> =
            self.components.iter().filter(begun).map(|component| component.name.clone()).collect();
        for name in &names {
            self.set(name, State::Pending, None);
        }
        if !names.is_empty() {
            self.reason = Some(reason.to_owned());
        }
        !names.is_empty()
    }

    /// Whether the deployment is desired as stopped, and stays on the device.
    fn is_to_be_stopped(&self) -> bool {
        self.entry.stopped && !self.leaving
    }

    /// The state of a component.
    pub fn component(&self, name: &ComponentName) -> Option<State> {
        self.components.iter().find(|component| component.name == *name).map(|component| component.state)
    }

    /// Whether the removal is complete.
    pub fn is_removed(&self) -> bool {
        self.leaving && self.state() == State::Removed
    }

    /// The deployment's actual state, for the plan.
    pub fn actual(&self, retry_due: bool) -> Actual {
        Actual {
            deployment: self.entry.id.clone(),
            generation: self.generation,
            digest: self.entry.digest,
            state: self.state(),
            leaving: self.leaving,
            retry_due,
        }
    }

    /// Whether the device cannot run the target at all.
    pub fn is_refused(&self) -> bool {
        self.error.as_ref().is_some_and(|error| code::REFUSALS.contains(&error.code.as_str()))
    }

    /// Whether a failure is retried: not if a failed component has `restart: never`, nor if the device cannot run the
    /// deployment at all.
    pub(crate) fn may_retry(&self) -> bool {
        if self.is_refused() {
            return false;
        }
        let Ok(workloads) = self.entry.workloads() else { return false };
        workloads.iter().all(|(component, workload)| {
            self.leaving
                || self.entry.stopped
                || restart(workload) == Restart::Always
                || self.component(&component.name) != Some(State::Failed)
        })
    }

    /// The units to run while the deployment is installed, in order.
    ///
    /// # Errors
    /// An invalid property; a document with one is never accepted.
    pub fn units(&self, device: &DeviceKey) -> Result<Vec<Unit>, Violation> {
        let units = units(&self.entry, device)?.into_iter();
        Ok(units.filter(|(runs_at, _)| runs_at.is_none()).map(|(_, unit)| unit).collect())
    }

    /// The removal jobs of a phase that have yet to run, in order.
    ///
    /// # Errors
    /// An invalid property; a document with one is never accepted.
    pub fn removal_jobs(&self, device: &DeviceKey, phase: RemovalPhase) -> Result<Vec<Unit>, Violation> {
        let mut jobs = units(&self.entry, device)?;
        jobs.retain(|(runs_at, job)| {
            *runs_at == Some(phase) && self.component(&job.component) != Some(State::Removed)
        });
        Ok(jobs.into_iter().map(|(_, job)| job).collect())
    }

    /// The names of all removal jobs.
    pub fn removal_job_names(&self) -> Vec<ComponentName> {
        let components = self.entry.profile.components.iter();
        components.filter(|it| it.runs_at.is_some()).map(|it| it.name.clone()).collect()
    }

    /// The completed jobs (readiness `exit`).
    pub(crate) fn jobs_done(&self) -> BTreeSet<ComponentName> {
        let workloads = self.entry.workloads().unwrap_or_default();
        let jobs = workloads.into_iter().filter(|(component, workload)| {
            matches!(workload, Workload::Process(process) if process.readiness == Readiness::Exit)
                && self.component(&component.name) == Some(State::Installed)
        });
        jobs.map(|(component, _)| component.name.clone()).collect()
    }

    /// The stop timeout of each component.
    pub(crate) fn stop_timeouts(&self) -> BTreeMap<ComponentName, Duration> {
        let workloads = self.entry.workloads().unwrap_or_default();
        workloads
            .into_iter()
            .map(|(component, workload)| (component.name.clone(), stop_timeout(&workload)))
            .collect()
    }

    /// The reason of a state without another reason: the deployment is desired as stopped, or waits between two components.
    fn state_reason(&self) -> Option<String> {
        match self.state() {
            State::Removing if self.is_to_be_stopped() => return Some(STOPPING.to_owned()),
            State::Pending if self.is_to_be_stopped() => return Some(STOPPED.to_owned()),
            _ => {}
        }
        let jobs = self.removal_job_names();
        let components: Vec<_> = self.components.iter().filter(|it| !jobs.contains(&it.name)).collect();
        let waits = |component: &&&ComponentStatus| component.state == State::Pending;
        let next = components.iter().find(waits).filter(|_| self.state() == State::Pending)?;
        let ready = components.iter().filter(|component| component.state == State::Installed).count();
        Some(format!("component {} is next; {ready} of {} are installed", next.name, components.len()))
    }

    /// The reason to report, with the components that were killed.
    fn whole_reason(&self) -> Option<String> {
        let reason = self.reason.clone().or_else(|| self.state_reason());
        reason.into_iter().chain(self.killed_reason()).reduce(|one, other| format!("{one}; {other}"))
    }

    /// The retries to report; none if the failure is final, or nothing is left.
    fn retries(&self) -> Vec<Retry> {
        let stays_failed = self.state() == State::Failed && !self.may_retry();
        if stays_failed || self.is_removed() { Vec::new() } else { self.attempts.retries() }
    }

    /// The report of this record. If it would be too large, texts of errors are cut, and say so; if that is not enough,
    /// components and retries keep only the code of their error.
    pub fn body(&self, observed_at: Timestamp) -> StatusBody {
        let mut body = StatusBody {
            observed_at,
            deployment: self.entry.id.clone(),
            generation: self.generation,
            digest: self.entry.digest,
            status: DeploymentStatus {
                state: self.state(),
                error: self.error.clone(),
                reason: self.whole_reason(),
            },
            components: self.components.clone(),
            retries: self.retries(),
        };
        let mut message_bytes_max = muster_contract::limits::ERROR_MESSAGE_BYTES_MAX;
        while message_bytes_max > MESSAGE_BYTES_LEAST && body.stored_bytes() > BODY_BYTES_MAX {
            message_bytes_max /= 2;
            shorten(&mut body, message_bytes_max);
        }
        if body.stored_bytes() > BODY_BYTES_MAX {
            keep_codes(&mut body);
        }
        body
    }
}

/// The reason of a deployment whose components are being stopped because it is desired as stopped.
const STOPPING: &str = "stopping on request";
/// The reason of a deployment that is stopped on request. Nothing is under way.
const STOPPED: &str = "stopped on request";
/// The message of an error that was cut to its code.
const CUT: &str = "(cut)";
/// Killed components that a reason names, at most.
const KILLED_NAMED_MAX: usize = 5;
/// Texts of errors are not cut below this size.
const MESSAGE_BYTES_LEAST: usize = 64;

fn shorten(body: &mut StatusBody, bytes_max: usize) {
    let components = body.components.iter_mut().filter_map(|component| component.error.as_mut());
    for error in components.chain(body.status.error.as_mut()) {
        for text in [&mut error.message, &mut error.code, &mut error.source] {
            *text = cut(std::mem::take(text), bytes_max);
        }
    }
    body.retries.iter_mut().for_each(|retry| retry.last_error.shorten(bytes_max));
}

/// Reduces each component's error to its code, whose source is the component itself, and marks its message as cut.
/// The error of the deployment as a whole stays.
fn keep_codes(body: &mut StatusBody) {
    for error in body.components.iter_mut().filter_map(|component| component.error.as_mut()) {
        error.source.clear();
        CUT.clone_into(&mut error.message);
    }
    body.retries.iter_mut().for_each(|retry| CUT.clone_into(&mut retry.last_error.message));
}

fn pending(components: &[Component]) -> Vec<ComponentStatus> {
    let entry = |component: &Component| ComponentStatus {
        name: component.name.clone(),
        state: State::Pending,
        error: None,
    };
    components.iter().map(entry).collect()
}

fn restart(workload: &Workload) -> Restart {
    match workload {
        Workload::Process(process) => process.restart,
        Workload::Simulated(script) => script.restart,
        Workload::Compose(_) | Workload::Helm(_) | Workload::Kubernetes(_) => Restart::Always,
    }
}

fn stop_timeout(workload: &Workload) -> Duration {
    match workload {
        Workload::Process(process) => process.stop_timeout(),
        Workload::Compose(package) => package.stop_timeout.unwrap_or(STOP_TIMEOUT_DEFAULT),
        Workload::Simulated(_) | Workload::Helm(_) | Workload::Kubernetes(_) => STOP_TIMEOUT_DEFAULT,
    }
}

#[cfg(test)]
mod tests;
