//! What the device holds of one deployment: the entry being applied, under which generation, and how far each
//! component came. Pure: how a standing changes, what it says to the hub and what it says to the plan.
//!
//! It is kept in the same transaction as the report about it ([`crate::outbox`]). It does not know what runs now, nor
//! when a failure is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::decode::Violation;
use muster_contract::desired::{Component, DesiredDeployment};
use muster_contract::profile::{Readiness, Restart, STOP_TIMEOUT_DEFAULT, Workload};
use muster_contract::retry::Retry;
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError, cut};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, Generation, State, Timestamp};
use muster_domain::aggregate;
use muster_domain::plan::Actual;
use serde::{Deserialize, Serialize};

use crate::attempts::Attempts;
use crate::outbox::{REPORT_BYTES_MAX, StatusBody};
use crate::runtime::{Unit, code};

/// What the device holds of one deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// The entry last applied, or being applied, or being taken away.
    pub entry: DesiredDeployment,
    /// Generation of the document in which applying or taking away began.
    pub generation: Generation,
    /// The last thing done to it was its removal.
    pub leaving: bool,
    /// What is wrong with the deployment as a whole.
    pub error: Option<StatusError>,
    /// Why it is in its state, where that is no error.
    pub reason: Option<String>,
    /// One entry for every component of `entry`, in its order.
    pub components: Vec<ComponentStatus>,
    /// What was tried to get there.
    #[serde(default, skip_serializing_if = "Attempts::is_empty")]
    pub attempts: Attempts,
}

impl Standing {
    /// A deployment that was just taken in.
    pub fn new(entry: DesiredDeployment, generation: Generation) -> Self {
        let components = pending(&entry.profile.components);
        let attempts = Attempts::default();
        Self { entry, generation, leaving: false, error: None, reason: None, components, attempts }
    }

    /// The deployment.
    pub fn id(&self) -> &DeploymentId {
        &self.entry.id
    }

    /// The state that the rule gives for its components.
    pub fn state(&self) -> State {
        aggregate::overall(self.components.iter().map(|component| component.state), self.error.as_ref())
    }

    /// Takes in an entry to apply in place of the one held. Components that are installed and did not change stay so.
    #[must_use]
    pub fn towards(&self, entry: DesiredDeployment, generation: Generation) -> Self {
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

    /// Begins to take it away.
    pub fn leave(&mut self, generation: Generation) {
        self.generation = generation;
        self.leaving = true;
        self.error = None;
        self.reason = None;
        self.attempts = Attempts::default();
        for component in &mut self.components {
            component.state = State::Removing;
            component.error = None;
        }
    }

    /// Puts failed components back in line for another attempt, which counts. Gives what was wrong with the deployment as a whole: the
    /// hub goes on holding that until it is told something else.
    pub fn retry(&mut self) -> Option<StatusError> {
        self.attempts.try_again();
        let taken = self.error.take();
        if taken.is_some() {
            self.reason = None;
        }
        for component in self.components.iter_mut().filter(|component| component.state == State::Failed) {
            component.state = if self.leaving { State::Removing } else { State::Pending };
            component.error = None;
        }
        taken
    }

    /// Sets the state of a component; false where that says nothing new.
    pub fn set(&mut self, name: &ComponentName, state: State, error: Option<StatusError>) -> bool {
        let Some(component) = self.components.iter_mut().find(|component| component.name == *name) else {
            return false;
        };
        let before = std::mem::replace(component, ComponentStatus { name: name.clone(), state, error });
        if *component == before {
            return false;
        }
        self.reason = None;
        true
    }

    /// What was begun or done is pending again, for a reason, but for jobs that have done their work; false where nothing
    /// was.
    pub fn interrupt(&mut self, reason: &str) -> bool {
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

    /// The state of a component.
    pub fn component(&self, name: &ComponentName) -> Option<State> {
        self.components.iter().find(|component| component.name == *name).map(|component| component.state)
    }

    /// True when nothing of it is left to speak of.
    pub fn is_gone(&self) -> bool {
        self.leaving && self.state() == State::Removed
    }

    /// What the plan wants to know.
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

    /// Whether a failure is ever tried again by itself: not if a failed component wants to stay down, nor if the
    /// device cannot run such a thing at all.
    pub fn may_retry(&self) -> bool {
        let hopeless = [code::UNSUPPORTED_PROFILE, code::NOT_ELIGIBLE];
        if self.error.as_ref().is_some_and(|error| hopeless.contains(&error.code.as_str())) {
            return false;
        }
        let Ok(workloads) = self.entry.workloads() else { return false };
        workloads.iter().all(|(component, workload)| {
            self.leaving
                || restart(workload) == Restart::Always
                || self.component(&component.name) != Some(State::Failed)
        })
    }

    /// What to run, in order.
    ///
    /// # Errors
    /// A property that cannot be understood; a document with one was never accepted.
    pub fn units(&self, device: &DeviceKey) -> Result<Vec<Unit>, Violation> {
        units(&self.entry, device)
    }

    /// The jobs (readiness `exit`) that have done their work.
    pub fn jobs_done(&self) -> BTreeSet<ComponentName> {
        let workloads = self.entry.workloads().unwrap_or_default();
        let jobs = workloads.into_iter().filter(|(component, workload)| {
            matches!(workload, Workload::Process(process) if process.readiness == Readiness::Exit)
                && self.component(&component.name) == Some(State::Installed)
        });
        jobs.map(|(component, _)| component.name.clone()).collect()
    }

    /// Time each component gets to stop when asked.
    pub fn stop_timeouts(&self) -> BTreeMap<ComponentName, Duration> {
        let workloads = self.entry.workloads().unwrap_or_default();
        workloads
            .into_iter()
            .map(|(component, workload)| (component.name.clone(), stop_timeout(&workload)))
            .collect()
    }

    /// Why it is pending, where nothing else is said of that: between two components nothing is under way.
    fn next_in_line(&self) -> Option<String> {
        let waits = |component: &&ComponentStatus| component.state == State::Pending;
        let next = self.components.iter().find(waits).filter(|_| self.state() == State::Pending)?;
        let ready = self.components.iter().filter(|component| component.state == State::Installed).count();
        Some(format!("component {} is next; {ready} of {} are installed", next.name, self.components.len()))
    }

    /// What is tried again; nothing where a failure stays one.
    fn retries(&self) -> Vec<Retry> {
        let stays_failed = self.state() == State::Failed && !self.may_retry();
        if stays_failed { Vec::new() } else { self.attempts.retries() }
    }

    /// What the hub is told. Messages of errors are cut, and say so, where the report would be too large otherwise.
    pub fn body(&self, observed_at: Timestamp) -> StatusBody {
        let mut body = StatusBody {
            observed_at,
            deployment: self.entry.id.clone(),
            generation: self.generation,
            digest: self.entry.digest,
            status: DeploymentStatus {
                state: self.state(),
                error: self.error.clone(),
                reason: self.reason.clone().or_else(|| self.next_in_line()),
            },
            components: self.components.clone(),
            retries: self.retries(),
        };
        let mut message_bytes_max = muster_contract::limits::ERROR_MESSAGE_BYTES_MAX;
        while message_bytes_max > MESSAGE_BYTES_LEAST && body.stored_bytes() > REPORT_BYTES_MAX {
            message_bytes_max /= 2;
            shorten(&mut body, message_bytes_max);
        }
        body
    }
}

/// Error messages are not cut below this; a report of the most components, each failed, fits with it.
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

fn pending(components: &[Component]) -> Vec<ComponentStatus> {
    let entry = |component: &Component| ComponentStatus {
        name: component.name.clone(),
        state: State::Pending,
        error: None,
    };
    components.iter().map(entry).collect()
}

fn units(entry: &DesiredDeployment, device: &DeviceKey) -> Result<Vec<Unit>, Violation> {
    let unit = |(component, workload): (&Component, Workload)| {
        let environment = environment(entry, &component.name);
        Unit {
            device: device.clone(),
            deployment: entry.id.clone(),
            component: component.name.clone(),
            digest: unit_digest(component, &environment),
            workload,
            environment,
        }
    };
    Ok(entry.workloads()?.into_iter().map(unit).collect())
}

/// The variables that the deployment's parameters set for a component. Of two parameters for one variable the one
/// whose name sorts last wins.
fn environment(entry: &DesiredDeployment, component: &ComponentName) -> BTreeMap<String, String> {
    let pairs = entry.parameters.values().flat_map(|parameter| {
        let targets = parameter.targets.iter().filter(|target| target.components.contains(component));
        targets.filter_map(|target| {
            let variable = target.environment_variable()?;
            Some((variable.to_owned(), parameter.environment_value()))
        })
    });
    pairs.collect()
}

fn unit_digest(component: &Component, environment: &BTreeMap<String, String>) -> Digest {
    Digest::of_value(&(&component.properties, environment))
}

fn unit_digests(entry: &DesiredDeployment) -> BTreeMap<&ComponentName, Digest> {
    let digest = |component: &Component| unit_digest(component, &environment(entry, &component.name));
    entry.profile.components.iter().map(|component| (&component.name, digest(component))).collect()
}

fn restart(workload: &Workload) -> Restart {
    match workload {
        Workload::Process(process) => process.restart,
        Workload::Simulated(script) => script.restart,
        Workload::Compose(_) | Workload::Helm(_) => Restart::Always,
    }
}

fn stop_timeout(workload: &Workload) -> Duration {
    match workload {
        Workload::Process(process) => process.stop_timeout(),
        Workload::Simulated(_) | Workload::Compose(_) | Workload::Helm(_) => STOP_TIMEOUT_DEFAULT,
    }
}

#[cfg(test)]
mod tests;
