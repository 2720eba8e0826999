//! Deadlines: how long a deployment may stay waiting or unfinished on a device that is fresh.
//!
//! A deployment whose components all declare a timeout has their sum; any other has the default. The time counts
//! from the last moment at which something could still be expected: the target was set, the device came back, or
//! the deployment got on. Hub time only.

use std::time::Duration;

use muster_contract::desired::DesiredDeployment;
use muster_contract::fact::DeadlineKind;
use muster_contract::{DeploymentId, Generation, State, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lease::elapsed;

/// What a device shall run, as far as deadlines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
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
pub struct Progress {
    /// The generation of its last report.
    pub generation: Generation,
    /// Its state.
    pub state: State,
    /// Since when it is in this state for this generation.
    pub changed_at: Timestamp,
}

/// A deadline that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overdue {
    /// What did not happen.
    pub deadline: DeadlineKind,
    /// Since when it was awaited.
    pub since: Timestamp,
}

impl Target {
    /// The target that an entry of a desired state sets.
    pub fn of(entry: &DesiredDeployment, set_at: Timestamp, default_limit: Duration) -> Self {
        Self {
            deployment: entry.id.clone(),
            generation: entry.target_generation,
            set_at,
            limit: declared_limit(entry).unwrap_or(default_limit),
        }
    }

    /// Whether the deadline has passed on a device that is fresh since `fresh_since`.
    pub fn overdue(
        &self,
        progress: Option<&Progress>,
        fresh_since: Timestamp,
        now: Timestamp,
    ) -> Option<Overdue> {
        let awaited = self.set_at.max(fresh_since);
        let (deadline, since) = match progress.filter(|progress| progress.generation >= self.generation) {
            None => (DeadlineKind::NeverStarted, awaited),
            Some(progress) if progress.state.is_terminal() => return None,
            Some(progress) => (DeadlineKind::Stuck, awaited.max(progress.changed_at)),
        };
        (elapsed(since, now) > self.limit).then_some(Overdue { deadline, since })
    }
}

/// The sum of the components' timeouts, if every one declares one.
fn declared_limit(entry: &DesiredDeployment) -> Option<Duration> {
    let workloads = entry.workloads().ok()?;
    workloads.iter().map(|(_, workload)| workload.gate().timeout).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn what_is_waiting_or_unfinished_past_its_limit_is_overdue() {
        use DeadlineKind::{NeverStarted, Stuck};
        let target = Target {
            generation: Generation::new(3).unwrap(),
            ..Target::of(&entry(&[Some("60s")]), at(100), Duration::MAX)
        };
        // reported (generation, state, since), fresh since, now, overdue (what, since)
        let table = [
            (None, 0, 160, None),
            (None, 0, 161, Some((NeverStarted, 100))),
            (None, 150, 210, None),
            (None, 150, 211, Some((NeverStarted, 150))),
            // The old generation's ups and downs are no progress of the new one.
            (Some((2, State::Installed, 155)), 0, 161, Some((NeverStarted, 100))),
            (Some((2, State::Installing, 155)), 0, 161, Some((NeverStarted, 100))),
            (Some((3, State::Installing, 155)), 0, 215, None),
            (Some((3, State::Installing, 155)), 0, 216, Some((Stuck, 155))),
            (Some((3, State::Pending, 90)), 0, 161, Some((Stuck, 100))),
            (Some((4, State::Removing, 120)), 130, 191, Some((Stuck, 130))),
            (Some((3, State::Installed, 120)), 0, 9_999, None),
            (Some((3, State::Failed, 120)), 0, 9_999, None),
        ];
        for (reported, fresh_since, now, expected) in table {
            let progress = reported.map(|(generation, state, since)| Progress {
                generation: Generation::new(generation).unwrap(),
                state,
                changed_at: at(since),
            });
            let found = target.overdue(progress.as_ref(), at(fresh_since), at(now));
            let expected = expected.map(|(deadline, since)| Overdue { deadline, since: at(since) });
            assert_eq!(found, expected, "{reported:?} fresh since {fresh_since} at {now}");
        }
    }
}
