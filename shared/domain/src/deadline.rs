//! Computes deadlines: how long a deployment may stay waiting or unfinished on a fresh device.
//!
//! If all components declare a timeout, the limit is their sum; otherwise it is the default. The times that components
//! wait before their start are added. The time counts from the first attempt at the target, or, before any report, from
//! the moment at which the device could first learn of it. Only a new target restarts it, or a success that held: no retry, no flap, no silence of the
//! device, no restart of the hub and no re-assertion does. A device or hub that comes back has half a lease to
//! report before a deadline passes. All times are hub time: of the device's clock only elapsed time is used.

use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredDeployment;
use muster_contract::fact::{DeadlineKind, StatusFact};
use muster_contract::limits::SUCCESS_HELD_AFTER;
use muster_contract::{DeploymentId, Generation, State, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lease::elapsed;

/// Outages of a device that are remembered: a link may flap while a deadline runs, and each device pays for as many.
const OUTAGES_KEPT: usize = 4;

/// The parts of a device's target that deadlines depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its target generation.
    pub generation: Generation,
    /// When the hub learnt of this target.
    pub set_at: Timestamp,
    /// How long it may take.
    pub limit: Duration,
}

/// How far a deployment has come on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The generation of its last report.
    pub generation: Generation,
    /// The content that is being applied. Targets with the same content are the same, whatever generation
    /// reports it.
    pub digest: Digest,
    /// Its state.
    pub state: State,
    /// Since when it has been in this state for this target.
    pub changed_at: Timestamp,
    /// When the first attempt began: at this target, or since a success that held.
    pub first_attempt_at: Timestamp,
    /// Since when the device has been retrying, by its own clock; none where it is not.
    pub retried_since: Option<Timestamp>,
}

/// A deadline that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// The missed deadline.
    pub deadline: DeadlineKind,
    /// Since when it was awaited.
    pub since: Timestamp,
}

/// A time in which a device was not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outage {
    /// Up to when it was heard before; the least moment there is if it was not heard before.
    pub until: Timestamp,
    /// From when it was heard again.
    pub since: Timestamp,
}

/// The newest outages of a device that are over, the oldest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Outages([Option<Outage>; OUTAGES_KEPT]);

impl Outages {
    /// The same and one more.
    #[must_use]
    pub(crate) fn and(mut self, outage: Outage) -> Self {
        self.0.rotate_left(1);
        self.0[OUTAGES_KEPT - 1] = Some(outage);
        self
    }

    /// When the device could first learn of a target set at a moment. A target set before all remembered
    /// outages was known when the oldest outage began, at the latest.
    fn first_after(&self, set_at: Timestamp) -> Timestamp {
        let known = || self.0.iter().flatten();
        match known().find(|outage| outage.until < set_at && set_at < outage.since) {
            Some(outage) => outage.since,
            None => known().next().map_or(set_at, |oldest| set_at.max(oldest.until)),
        }
    }
}

/// How long the device has been heard, and the hub has listened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listening {
    /// When the device became fresh.
    pub fresh_since: Timestamp,
    /// When it was not heard before.
    pub outages: Outages,
    /// Since when the hub listens.
    pub hub_since: Timestamp,
    /// Silence after which a device is stale.
    pub lease: Duration,
}

impl Progress {
    /// The state that a status fact reports on its own.
    pub(crate) fn of(fact: &StatusFact) -> Self {
        let retried_since = fact.retries.iter().map(|retry| retry.since).min();
        let received_at = fact.received_at;
        // However long the report was under way: at least so long ago. A clock that is wrong by a constant does no harm; one that
        // was set between the two moments makes it earlier, and a deadline counts from when the target was set at the earliest.
        let tried_for =
            retried_since.map_or(SignedDuration::ZERO, |since| fact.observed_at.duration_since(since));
        let first = received_at.checked_sub(tried_for.max(SignedDuration::ZERO)).unwrap_or(Timestamp::MIN);
        Self {
            generation: fact.generation,
            digest: fact.digest,
            state: fact.status.state,
            changed_at: received_at,
            first_attempt_at: fact.first_attempt_at.unwrap_or(first),
            retried_since,
        }
    }

    /// The same after an earlier report of the deployment: the first attempt stays the first.
    #[must_use]
    pub(crate) fn after(self, before: &Self, received_at: Timestamp) -> Self {
        let same_state = (before.digest, before.state) == (self.digest, self.state);
        let changed_at = if same_state { before.changed_at } else { self.changed_at };
        let first_attempt_at = if self.digest == before.digest && !before.has_held(&self, received_at) {
            before.first_attempt_at.min(self.first_attempt_at)
        } else {
            self.first_attempt_at
        };
        Self { changed_at, first_attempt_at, ..self }
    }

    /// Whether it ended and held until the next report. A device that retries says so itself.
    fn has_held(&self, next: &Self, received_at: Timestamp) -> bool {
        match (self.state, self.retried_since, next.retried_since) {
            (State::Removed, ..) => true,
            // That success is still on trial, unless the device counts anew since: it held, and that report is late or folded.
            (State::Installed, Some(before), Some(next)) => next > before,
            (State::Installed, Some(_), None) => false,
            (State::Installed, None, Some(_)) => true,
            (State::Installed, None, _) => elapsed(self.changed_at, received_at) >= SUCCESS_HELD_AFTER,
            _ => false,
        }
    }

    /// True where nothing more is going to happen by itself.
    pub(crate) const fn is_at_end(&self) -> bool {
        match self.state {
            State::Installed | State::Removed => true,
            State::Failed => self.retried_since.is_none(),
            State::Pending | State::Installing | State::Removing => false,
        }
    }
}

impl Listening {
    /// True while a device or a hub that came back may still have to say how things stand.
    fn is_too_short(&self, limit: Duration, now: Timestamp) -> bool {
        let since = self.fresh_since.max(self.hub_since);
        elapsed(since, now) < (self.lease / 2).min(limit)
    }
}

impl Target {
    /// The target that an entry of a desired state sets. A stopped deployment stays unfinished for as long as somebody wants,
    /// so no deadline passes.
    pub(crate) fn of(entry: &DesiredDeployment, set_at: Timestamp, default_limit: Duration) -> Self {
        let running_limit = || declared_limit(entry).unwrap_or(default_limit).saturating_add(waits(entry));
        Self {
            deployment: entry.id.clone(),
            generation: entry.target_generation,
            set_at,
            limit: if entry.stopped { Duration::MAX } else { running_limit() },
        }
    }

    /// Whether the deadline has passed on a device that is fresh.
    pub(crate) fn overdue(
        &self,
        progress: Option<&Progress>,
        listening: &Listening,
        now: Timestamp,
    ) -> Option<Overdue> {
        let (deadline, since) = match progress.filter(|progress| progress.generation >= self.generation) {
            None => (DeadlineKind::NeverStarted, listening.outages.first_after(self.set_at)),
            Some(progress) if progress.is_at_end() => return None,
            // No attempt at a target began before the target was set.
            Some(progress) => (DeadlineKind::Stuck, self.set_at.max(progress.first_attempt_at)),
        };
        let has_passed = elapsed(since, now) > self.limit && !listening.is_too_short(self.limit, now);
        has_passed.then_some(Overdue { deadline, since })
    }
}

/// The sum of the components' timeouts, if every one declares one. Removal jobs take no part in the installation.
fn declared_limit(entry: &DesiredDeployment) -> Option<Duration> {
    let workloads = entry.workloads().ok()?;
    let installed = workloads.iter().filter(|(component, _)| component.runs_at.is_none());
    installed.map(|(_, workload)| workload.gate().timeout).sum()
}

/// The sum of the times that components wait before their start.
fn waits(entry: &DesiredDeployment) -> Duration {
    let workloads = entry.workloads().unwrap_or_default();
    workloads.iter().filter_map(|(_, workload)| workload.gate().wait_before).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn removal_jobs_take_no_part_in_the_limit_of_an_installation() {
        let component = |name: &str, timeout: &str, runs_at: Option<&str>| json!({ "name": name, "properties": { "timeout": timeout }, "runsAt": runs_at });
        let components = [component("main", "90s", None), component("drain", "30m", Some("pre-delete"))];
        let entry: DesiredDeployment = serde_json::from_value(json!({
            "id": "web", "name": "web", "applicationId": "com-acme", "targetGeneration": 1,
            "digest": format!("sha256:{}", "0".repeat(64)),
            "profile": { "type": "simulated", "components": components },
        }))
        .unwrap();
        assert_eq!(declared_limit(&entry), Some(Duration::from_secs(90)));
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn entry(timeouts: &[Option<&str>]) -> DesiredDeployment {
        let component = |(index, timeout): (usize, &Option<&str>)| json!({"name": format!("c{index}"), "properties": {"command": "true", "timeout": timeout}});
        let components: Vec<_> = timeouts.iter().enumerate().map(component).collect();
        serde_json::from_value(json!({
            "id": "web", "name": "Web", "applicationId": "web", "targetGeneration": 3,
            "digest": format!("sha256:{}", "0".repeat(64)),
            "profile": {"type": "process", "components": components},
        }))
        .unwrap()
    }

    #[test]
    fn the_limit_is_the_sum_of_the_timeouts_if_all_components_declare_one() {
        let default = Duration::from_secs(1800);
        let limit = |timeouts: &[Option<&str>]| Target::of(&entry(timeouts), at(0), default).limit.as_secs();
        assert_eq!(limit(&[Some("90s"), Some("8m30s")]), 600);
        assert_eq!(limit(&[Some("90s"), None]), 1800);
        assert_eq!(limit(&[None]), 1800);
    }

    #[test]
    fn the_time_before_a_start_is_added_to_the_limit() {
        let default = Duration::from_secs(1800);
        for (timeouts, limit) in [([Some("90s"), Some("60s")], 180), ([Some("90s"), None], 1830)] {
            let mut entry = entry(&timeouts);
            entry.profile.components[1].properties.insert("waitBefore".to_owned(), json!("30s"));
            assert_eq!(Target::of(&entry, at(0), default).limit.as_secs(), limit);
        }
    }

    #[test]
    fn a_stopped_deployment_has_no_deadline() {
        let stopped = DesiredDeployment { stopped: true, ..entry(&[Some("60s")]) };
        let target = Target::of(&stopped, at(100), Duration::from_secs(60));
        for reported in
            [None, Some(progress(3, State::Pending, 120)), Some(progress(3, State::Removing, 120))]
        {
            assert_eq!(target.overdue(reported.as_ref(), &heard_since(0), at(9_999_999)), None);
        }
    }

    fn digest(of: u8) -> Digest {
        Digest::of_bytes(&[of])
    }

    fn progress(generation: u64, state: State, first_attempt_at: i64) -> Progress {
        Progress {
            generation: Generation::new(generation).unwrap(),
            digest: digest(0),
            state,
            changed_at: at(first_attempt_at),
            first_attempt_at: at(first_attempt_at),
            retried_since: None,
        }
    }

    fn target() -> Target {
        Target {
            generation: Generation::new(3).unwrap(),
            ..Target::of(&entry(&[Some("60s")]), at(100), Duration::MAX)
        }
    }

    fn heard_since(fresh_since: i64) -> Listening {
        let lease = Duration::from_secs(90);
        let first = Outage { until: Timestamp::MIN, since: at(fresh_since) };
        Listening {
            fresh_since: at(fresh_since),
            outages: Outages::default().and(first),
            hub_since: at(0),
            lease,
        }
    }

    #[test]
    fn what_is_waiting_or_unfinished_past_its_limit_is_overdue() {
        use DeadlineKind::{NeverStarted, Stuck};
        // reported (generation, state, first attempt), fresh since, now, overdue (what, since)
        let table = [
            (None, 0, 160, None),
            (None, 0, 161, Some((NeverStarted, 100))),
            (None, 150, 210, None),
            (None, 150, 211, Some((NeverStarted, 150))),
            // The old generation's ups and downs are no attempt at the new one.
            (Some((2, State::Installed, 155)), 0, 161, Some((NeverStarted, 100))),
            (Some((2, State::Installing, 155)), 0, 161, Some((NeverStarted, 100))),
            (Some((3, State::Installing, 155)), 0, 215, None),
            (Some((3, State::Installing, 155)), 0, 216, Some((Stuck, 155))),
            (Some((3, State::Pending, 90)), 0, 161, Some((Stuck, 100))),
            (Some((3, State::Installed, 120)), 0, 9_999, None),
            (Some((3, State::Failed, 120)), 0, 9_999, None),
            // A device that comes back has half a lease to report; the time continues meanwhile.
            (Some((4, State::Removing, 120)), 200, 244, None),
            (Some((4, State::Removing, 120)), 200, 245, Some((Stuck, 120))),
        ];
        for (reported, fresh_since, now, expected) in table {
            let progress = reported.map(|(generation, state, first)| progress(generation, state, first));
            let found = target().overdue(progress.as_ref(), &heard_since(fresh_since), at(now));
            let expected = expected.map(|(deadline, since)| Overdue { deadline, since: at(since) });
            assert_eq!(found, expected, "{reported:?} fresh since {fresh_since} at {now}");
        }
    }

    #[test]
    fn neither_silence_nor_a_restart_of_the_hub_restarts_the_time() {
        let again = |outages: &[(i64, i64)]| {
            let first = heard_since(0).outages;
            let outage = |&(until, since): &(i64, i64)| Outage { until: at(until), since: at(since) };
            let outages = outages.iter().map(outage).fold(first, Outages::and);
            Listening { outages, hub_since: at(400), ..heard_since(300) }
        };
        let never_started =
            |outages, now| target().overdue(None, &again(outages), at(now)).map(|overdue| overdue.since);
        for (now, expected) in [(444, None), (445, Some(100))] {
            let since = never_started(&[(120, 300)], now);
            assert_eq!(since, expected.map(at), "it could have begun before it fell silent");
            let installing = progress(3, State::Installing, 100);
            let stuck = target().overdue(Some(&installing), &again(&[(120, 300)]), at(now));
            let stuck = stuck.map(|overdue| overdue.since);
            assert_eq!(stuck, expected.map(at));
        }
        assert_eq!(never_started(&[(99, 300)], 445), Some(at(300)), "it could not");
        assert_eq!(
            never_started(&[(50, 250), (260, 300)], 445),
            Some(at(250)),
            "a later flap changes nothing"
        );
        let flaps: Vec<_> = (0..OUTAGES_KEPT as i64).map(|nth| (200 + 20 * nth, 210 + 20 * nth)).collect();
        assert_eq!(never_started(&flaps, 445), Some(at(200)), "what was before is forgotten");
    }

    #[test]
    fn a_failure_that_is_tried_again_is_no_end() {
        let failed = progress(3, State::Failed, 110);
        let retried = Progress { retried_since: Some(at(5)), ..failed };
        assert_eq!(target().overdue(Some(&failed), &heard_since(0), at(999)), None);
        assert_eq!(target().overdue(Some(&retried), &heard_since(0), at(999)).unwrap().since, at(110));
    }

    #[test]
    fn only_another_target_and_a_success_that_held_begin_anew() {
        let held = SUCCESS_HELD_AFTER.as_secs().cast_signed();
        let retried = |progress| Progress { retried_since: Some(at(7)), ..progress };
        let new = progress(3, State::Installing, 5_000);
        let table = [
            (progress(3, State::Installing, 100), new, 100),
            (progress(3, State::Failed, 100), new, 100),
            (progress(2, State::Pending, 100), new, 100),
            (progress(3, State::Removed, 100), new, 5_000),
            (Progress { digest: digest(1), ..progress(3, State::Failed, 100) }, new, 5_000),
            // By the hub's time, where the device does not say that it tries again.
            (Progress { changed_at: at(5_001 - held), ..progress(3, State::Installed, 100) }, new, 100),
            (Progress { changed_at: at(5_000 - held), ..progress(3, State::Installed, 100) }, new, 5_000),
            // By the device's own word, where it retries.
            (retried(progress(3, State::Installed, 100)), retried(new), 100),
            (
                retried(progress(3, State::Installed, 100)),
                Progress { retried_since: Some(at(8)), ..new },
                5_000,
            ),
            (retried(progress(3, State::Installed, 100)), new, 100),
            (progress(3, State::Installed, 100), retried(new), 5_000),
        ];
        for (before, next, first) in table {
            let found = next.after(&before, at(5_000)).first_attempt_at;
            assert_eq!(found, at(first), "{before:?}");
        }
    }
}
