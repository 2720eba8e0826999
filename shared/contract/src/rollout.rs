//! `rollout.yaml`, which defines the waves in which a changed deployment reaches devices, and the requests for the state of its
//! devices and for a release. `muster-domain` decides when a gate opens.

mod after;
mod approvals;
mod check;
mod cron;
mod decisions;
mod percent;
mod policy;
mod policy_time;
mod release;
mod wave;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::ids::{DeploymentId, DeviceKey, Generation};
use crate::labels::{self, Labels};
use crate::limits::{MESSAGE_BYTES_MAX, ROLLOUT_BYTES_MAX, WAVES_MAX};
use crate::query::some_devices::SomeDevices;
use crate::version::{ApiVersion, kind};

pub use self::after::{AFTER_MAX, WaitsFor};
pub use self::approvals::{Approvals, ApproverRole, Approvers};
pub use self::check::{
    CHECK_ANSWER_BYTES_MAX, CHECK_PREFIX, CHECK_TIMEOUT, CHECKS_MAX, Check, CheckAnswer, CheckRequest,
    CheckResult, CheckSubject, CheckTarget,
};
pub use self::cron::{Cron, CronError};
pub use self::decisions::{
    DecideAnswer, DecideRequest, GateEvidence, ImpossibleDecision, OnFailure, RolloutDecision,
    RolloutDecisions, RolloutEnd, RolloutPhase, RolloutRecord, RolloutVerb,
};
pub use self::percent::{Percent, PercentError};
pub use self::policy::{AtEnd, Budget, Deadlines, Offline, Retries, RetryBackoff};
pub use self::release::{RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest};
pub use self::wave::{Approval, AtMost, Completeness, FailureLimit, MINIMUM_SAMPLE, Order, Success, Wave};
pub use self::window::{WINDOW_LENGTH_MAX, WINDOWS_MAX, Weekday, Window};

const _: () = assert!(2 * ROLLOUT_BYTES_MAX < MESSAGE_BYTES_MAX);

/// The name of the last wave: the devices that no other wave matches.
pub const REST_WAVE: &str = "rest";

/// `rollout.yaml`: how a change of deployments is released to the devices that it governs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Rollout`
    pub kind: kind::Rollout,
    /// The waves in order. A device is in the first wave that matches it; the devices that no wave matches are one further wave,
    /// the last. If the list is empty, the first wave is one device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = WAVES_MAX))]
    pub waves: Vec<Wave>,
    /// The planner's reaction to a wave with more failures than it allows.
    #[serde(default, skip_serializing_if = "OnFailure::is_pause")]
    pub on_failure: OnFailure,
    /// The failures that a device may try again before they count; none if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,
    /// The approvals that a wave with `approval: before` or `after` needs.
    #[serde(default, skip_serializing_if = "Approvals::is_default")]
    pub approvals: Approvals,
    /// The number of unavailable devices that a release leaves in each group; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The times within which waves must pass their gates, and devices must get to an end; no limit if absent.
    #[serde(default, skip_serializing_if = "Deadlines::is_none")]
    pub deadlines: Deadlines,
    /// The periods in which devices get the content; always if the list is empty. A rollback needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = WINDOWS_MAX))]
    pub windows: Vec<Window>,
    /// The deployments that the rollout of a deployment comes after: it begins once their rollouts under this file have succeeded.
    /// Deployments that are not among the keys wait for none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = AFTER_MAX))]
    pub after: BTreeMap<DeploymentId, BTreeSet<DeploymentId>>,
}

impl Rollout {
    /// The digest of what an approval of a wave is about: the wave and the rule of approvals. An edit of either gives another one.
    pub fn approved_policy(&self, wave: &Wave) -> Digest {
        Digest::of_value(&(wave, &self.approvals))
    }
}

impl Document for Rollout {
    const KIND: &'static str = "Rollout";

    fn check(&self) -> Result<(), Violation> {
        if self.waves.len() > WAVES_MAX {
            let rule = format!("has {} waves; {WAVES_MAX} are allowed", self.waves.len());
            return Err(Violation::at("waves", rule));
        }
        if self.windows.len() > WINDOWS_MAX {
            let rule = format!("has {} windows; {WINDOWS_MAX} are allowed", self.windows.len());
            return Err(Violation::at("windows", rule));
        }
        if let Some(at) = self.windows.iter().position(|window| window.length > WINDOW_LENGTH_MAX) {
            return Err(Violation::at(format!("windows[{at}].length"), "is above 168h, a week"));
        }
        for (at, window) in self.windows.iter().enumerate() {
            let at = |field: &str| format!("windows[{at}]{field}");
            window.check().map_err(|(field, rule)| Violation::at(at(field), rule))?;
        }
        if let Some(budget) = &self.budget {
            budget.check().map_err(|rule| Violation::at("budget", rule))?;
        }
        if let Some(retries) = &self.retries {
            retries.check().map_err(|(field, rule)| Violation::at(format!("retries.{field}"), rule))?;
        }
        if let Err((field, rule)) = self.approvals.check() {
            return Err(Violation::at(format!("approvals.{field}"), rule));
        }
        after::check(&self.after)?;
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if bytes > ROLLOUT_BYTES_MAX {
            let rule = format!(
                "has {bytes} bytes as JSON; {ROLLOUT_BYTES_MAX} are allowed: select devices by labels"
            );
            return Err(Violation::at("waves", rule));
        }
        let (mut names, mut percent) = (BTreeSet::new(), None);
        for (at, wave) in self.waves.iter().enumerate() {
            if wave.name.as_str() == REST_WAVE {
                let rule =
                    format!("'{REST_WAVE}' is the name of the wave of devices that no other one matches");
                return Err(Violation::at(format!("waves[{at}].name"), rule));
            }
            if !names.insert(&wave.name) {
                return Err(Violation::at(
                    format!("waves[{at}].name"),
                    format!("'{}' is there twice", wave.name),
                ));
            }
            wave.check().map_err(|(path, rule)| Violation::at(format!("waves[{at}]{path}"), rule))?;
            if wave.percent.is_some() && wave.percent <= percent {
                let rule = "is not above that of the wave before: percentages count earlier waves as well";
                return Err(Violation::at(format!("waves[{at}].percent"), rule));
            }
            percent = wave.percent.or(percent);
        }
        Ok(())
    }
}

/// A change of one deployment that devices do not get before it is released to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldChange {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Digest that Git wants; absent if Git no longer has the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Path of the `rollout.yaml` that governs the devices.
    pub rollout: String,
    /// The devices. Each keeps the content that it has.
    pub devices: SomeDevices,
    /// Time since which this process of the publisher knows of the change.
    pub since: Timestamp,
    /// The phase of its rollout by decisions.
    #[serde(default, skip_serializing_if = "RolloutPhase::is_running")]
    pub phase: RolloutPhase,
}

/// A rollout that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenRollout {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// Its phase.
    #[serde(default, skip_serializing_if = "RolloutPhase::is_running")]
    pub phase: RolloutPhase,
}

/// Request of `muster.publisher.targets`: the devices that a rollout governs, with the content of a deployment that each has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetsQuery {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Most targets in one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Targets after this one: `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Targets of this commit, by its whole id, instead of the last accepted one: the devices for which it wants the
    /// deployment, without the contents that they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Answer of `muster.publisher.targets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetsAnswer {
    /// The commit that the answer is about.
    pub revision: String,
    /// Each `rollout.yaml` that governs one of these targets, by its path.
    pub rollouts: BTreeMap<String, Rollout>,
    /// The targets, ordered by site and device.
    pub targets: Vec<RolloutTarget>,
    /// The decisions about the deployment's rollouts, the newest at the end; on the first page alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<RolloutRecord>,
    /// The rollouts that those of the deployment wait for (`after` of a `rollout.yaml`), by the path of the file; on the first page
    /// alone.
    #[serde(default, rename = "waitsFor", skip_serializing_if = "BTreeMap::is_empty")]
    pub waits_for: BTreeMap<String, Vec<WaitsFor>>,
    /// `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl TargetsAnswer {
    /// Appends the next page; false, and nothing is appended, if that page is about another commit. A list of two commits
    /// would lack members of a wave, and a wave without its members is passed.
    #[must_use]
    pub fn append(&mut self, page: Self) -> bool {
        if page.revision != self.revision {
            return false;
        }
        self.rollouts.extend(page.rollouts);
        self.targets.extend(page.targets);
        self.next = page.next;
        true
    }
}

/// A governed device that has a deployment, or for which Git wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutTarget {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Its labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "labels::schema")]
    pub labels: Labels,
    /// Path of the `rollout.yaml` that governs it.
    pub rollout: String,
    /// Digest that Git wants; absent if Git no longer has the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Digest>,
    /// Digest that is published to the device; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Digest>,
    /// Generation of the device at which it got that digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_generation: Option<Generation>,
    /// Time at which it got that digest, by the publisher's clock, or of a later document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_at: Option<Timestamp>,
    /// Why a release, or a rollback of what it has, would not reach it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<ReleaseRefusal>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(waves: &serde_json::Value) -> String {
        let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "waves": waves });
        crate::decode::parse::<Rollout>(document.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn a_wave_without_conditions_needs_all_and_tolerates_no_failure() {
        let wave: Wave = serde_json::from_value(json!({ "name": "canary", "count": 1 })).unwrap();
        assert_eq!(wave.success.at_least.get(), 100);
        assert_eq!((wave.failure.at_most, wave.failure.minimum_sample), (AtMost::Count(0), None));
    }

    #[test]
    fn pages_of_targets_are_joined_if_they_are_about_one_commit() {
        let page = |revision: &str, device: &str, next: Option<&str>| -> TargetsAnswer {
            let target = json!({ "site": "a", "device": device, "rollout": "fleet/rollout.yaml" });
            let answer = json!({ "revision": revision, "rollouts": {}, "targets": [target], "next": next });
            serde_json::from_value(answer).unwrap()
        };
        let first = page("c1", "one", Some("a/one"));
        let mut whole = first.clone();
        assert!(!whole.append(page("c2", "two", None)));
        assert_eq!(whole, first);
        assert!(whole.append(page("c1", "two", None)));
        assert_eq!((whole.targets.len(), whole.next), (2, None));
    }

    #[test]
    fn a_wave_matches_devices_by_exactly_one_field() {
        for (waves, words) in [
            (json!([{ "name": "a" }]), "waves[0]: needs exactly one of"),
            (json!([{ "name": "a", "count": 1, "site": "x" }]), "waves[0]: needs exactly one of"),
            (json!([{ "name": "a", "devices": [] }]), "waves[0]: needs exactly one of"),
            (
                json!([{ "name": "a", "count": 1 }, { "name": "a", "count": 1 }]),
                "waves[1].name: 'a' is there twice",
            ),
            (
                json!([{ "name": "a", "percent": "50%" }, { "name": "b", "percent": "50%" }]),
                "waves[1].percent: is not above",
            ),
            (json!([{ "name": "a", "percent": "101%" }]), "waves[0].percent: '101%' is not a percentage"),
            (json!([{ "name": "a", "count": 0 }]), "waves[0].count"),
            (json!([{ "name": "a", "devices": ["one"] }]), "'one' is not SITE/DEVICE"),
            (
                json!([{ "name": "a", "count": 1, "failure": { "atMost": "x" } }]),
                "neither a number nor a percentage",
            ),
            (json!([{ "name": "a", "count": 1, "soak": "5" }]), "waves[0].soak: '5' is not a duration"),
            (json!([{ "name": "a", "count": 1, "approval": "during" }]), "unknown variant `during`"),
            (json!([{ "name": "rest", "count": 1 }]), "waves[0].name: 'rest' is the name of the wave"),
            (json!([{ "name": "a", "count": 1, "order": "random" }]), "unknown variant `random`"),
            (json!([{ "name": "a", "count": 1, "perMinute": 0 }]), "waves[0].perMinute"),
            (
                json!([{ "name": "a", "count": 1, "checks": [{}] }]),
                "waves[0].checks[0]: needs exactly one of",
            ),
            (
                json!([{ "name": "a", "count": 1, "checks": [{ "webhook": "http://a" }] }]),
                "waves[0].checks[0].webhook: 'http://a' is not the address of a webhook",
            ),
            (
                json!([{ "name": "a", "count": 1, "checks": [{ "request": "muster.check.a" }, { "request": "muster.check.a" }] }]),
                "waves[0].checks[1]: asks the same as an earlier one",
            ),
            (json!([{ "name": "a", "count": 1, "pace": 2 }]), "unknown field `pace`"),
        ] {
            let refusal = refusal(&waves);
            assert!(refusal.contains(words), "{waves}: {refusal}");
        }
    }
}
