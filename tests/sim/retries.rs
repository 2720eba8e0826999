//! The laws of retries and deadlines. A component under retry stays in every report of its device, with the first attempt's time,
//! until its success has held; a deadline is in LEDGER once, and counts from no later than LEDGER learned of the attempts.
//!
//! A trial is everything that a device reports of a deployment from a new target, or from a success that held, to the next one.
//! The law counts trials by the reports in the order in which the device wrote them.

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::report::StatusBody;
use muster_contract::canonical::Digest;
use muster_contract::fact::{DeadlineFact, DeadlineKind, StatusFact};
use muster_contract::{ComponentName, DeploymentId, Generation, State, Timestamp};

use super::agenda::{Millis, SECOND};
use super::law::{Lawful, must};

/// How much later than the first report of its trial a deadline may begin: LEDGER learns of reports in any order.
const SLACK: Millis = SECOND;

/// The retries in the newest report of a deployment that a device has written.
#[derive(Debug)]
struct Listed {
    digest: Digest,
    generation: Generation,
    state: State,
    /// Each component under retry with the time of its first attempt, and the number of attempts.
    retries: BTreeMap<Option<ComponentName>, (Timestamp, u32)>,
    /// The components that are ready.
    ready: BTreeSet<ComponentName>,
    trial: u64,
}

impl Listed {
    fn since(&self) -> Option<Timestamp> {
        self.retries.values().map(|(since, _)| *since).min()
    }

    /// Whether the next report is of another trial.
    fn has_ended(&self, next: &Self) -> bool {
        let has_held = match (self.since(), next.since()) {
            (Some(before), Some(after)) => after > before,
            (before, _) => before.is_none(),
        };
        self.digest != next.digest
            || self.state == State::Removed
            || (self.state == State::Installed && has_held)
    }
}

/// The attempts of a device at its deployments, as its reports list them.
#[derive(Debug, Default)]
pub(crate) struct Attempted {
    newest: BTreeMap<DeploymentId, Listed>,
    trials: u64,
    /// The device's database was an older copy once: it may write reports of that time between those of now.
    is_set_back: bool,
}

impl Attempted {
    /// The device has lost its memory.
    pub(crate) fn forget(&mut self) {
        self.newest.clear();
    }

    /// The device remembers an older state.
    pub(crate) fn set_back(&mut self) {
        self.is_set_back = true;
        self.forget();
    }

    /// The device writes a report; returns the trial that it is of.
    pub(crate) fn told(&mut self, body: &StatusBody) -> Lawful<u64> {
        let retries = body.retries.iter();
        let retries = retries.map(|retry| (retry.component.clone(), (retry.since, retry.attempt))).collect();
        let ready = body.components.iter().filter(|component| component.state == State::Installed);
        self.trials += 1;
        let mut next = Listed {
            digest: body.digest,
            generation: body.generation,
            state: body.status.state,
            retries,
            ready: ready.map(|component| component.name.clone()).collect(),
            trial: self.trials,
        };
        if let Some(before) = self.newest.get(&body.deployment) {
            if !self.is_set_back {
                stays_listed(before, &next, body)?;
            }
            if !before.has_ended(&next) {
                next.trial = before.trial;
            }
        }
        let trial = next.trial;
        self.newest.insert(body.deployment.clone(), next);
        Ok(trial)
    }
}

/// A component under retry is listed again, unless it was and is ready, or another target or the removal replaces this one.
fn stays_listed(before: &Listed, next: &Listed, body: &StatusBody) -> Lawful {
    let is_leaving = matches!(next.state, State::Removing | State::Removed);
    // A target that was replaced and is back is a new one.
    if before.digest != next.digest || before.generation < next.generation || is_leaving {
        return Ok(());
    }
    let is_ready = |name: &Option<ComponentName>| {
        let mut of = body.components.iter().filter(|one| name.as_ref().is_none_or(|name| *name == one.name));
        of.all(|component| component.state == State::Installed)
    };
    let lost = before.retries.iter().find(|(name, (since, attempt))| match next.retries.get(*name) {
        Some((again, attempts)) => again != since || attempts < attempt,
        None => !is_ready(name) || name.as_ref().is_some_and(|name| !before.ready.contains(name)),
    });
    must(lost.is_none(), "a retry is in every report until a success has held", || {
        format!("{} listed {lost:?}, and then {body:?}", body.deployment)
    })
}

/// When LEDGER learned of the trials of a device, and its deadlines.
#[derive(Debug, Default)]
pub(crate) struct StartOfTrials {
    /// The number of the newest report of each deployment, with its trial.
    newest: BTreeMap<DeploymentId, ((u64, u64), Option<u64>)>,
    /// When the hub received each report of a trial, with the report's generation.
    received: BTreeMap<(DeploymentId, u64), Vec<(Generation, Timestamp)>>,
    deadlines: BTreeSet<(DeploymentId, Generation, Timestamp, bool)>,
    /// Trials with a deadline of a target.
    overdue: BTreeSet<(DeploymentId, Generation, u64)>,
}

impl StartOfTrials {
    /// LEDGER holds a report of a trial; `None` if the law does not know the report.
    pub(crate) fn reported(&mut self, fact: &StatusFact, trial: Option<u64>) {
        let (id, number) = (&fact.deployment, (fact.epoch.get(), fact.seq.get()));
        if let Some(trial) = trial {
            let received = self.received.entry((id.clone(), trial)).or_default();
            received.push((fact.generation, fact.received_at));
        }
        if self.newest.get(id).is_none_or(|(newest, _)| *newest < number) {
            self.newest.insert(id.clone(), (number, trial));
        }
    }

    /// LEDGER holds a deadline.
    pub(crate) fn deadline(
        &mut self,
        id: &DeploymentId,
        fact: &DeadlineFact,
        has_clock_steps: bool,
    ) -> Lawful {
        let is_stuck = fact.deadline == DeadlineKind::Stuck;
        let is_new = self.deadlines.insert((id.clone(), fact.generation, fact.since, is_stuck));
        must(is_new, "a deadline is in LEDGER once", || format!("{id} {fact:?}"))?;
        let trial = self.newest.get(id).and_then(|(_, trial)| *trial).filter(|_| is_stuck);
        let is_first = trial.is_none_or(|trial| self.overdue.insert((id.clone(), fact.generation, trial)));
        must(is_first, "a target has one deadline until a success has held", || format!("{id} {fact:?}"))?;
        let received = trial.and_then(|trial| self.received.get(&(id.clone(), trial)));
        let of_target = received.into_iter().flatten().filter(|(of, _)| *of >= fact.generation);
        let first = of_target.map(|(_, at)| *at).min().filter(|_| !has_clock_steps);
        let is_in_time =
            first.is_none_or(|first| fact.since.as_millisecond() - first.as_millisecond() <= SLACK);
        must(is_in_time, "a deadline counts from the first attempt", || {
            format!("{id} {fact:?}, and the first report is of {first:?}")
        })
    }
}
