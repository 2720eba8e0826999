//! `rollout.yaml`, which defines the waves in which a changed deployment reaches devices, and the requests for the state of its
//! devices and for a release. `muster-domain` decides when a gate opens.

mod decisions;
mod percent;
mod policy;
mod release;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::ids::{DeploymentId, DeviceKey, Generation, SiteId, WaveName};
use crate::labels::{self, Labels};
use crate::limits::{MESSAGE_BYTES_MAX, ROLLOUT_BYTES_MAX, WAVES_MAX};
use crate::profile::parse_duration;
use crate::query::SomeDevices;
use crate::version::{ApiVersion, kind};

pub use self::decisions::{
    Approvals, DecideAnswer, DecideRequest, GateEvidence, ImpossibleDecision, OnFailure, RolloutDecision,
    RolloutDecisions, RolloutPhase, RolloutRecord, RolloutVerb,
};
pub use self::percent::{Percent, PercentError};
pub use self::policy::{AtEnd, Budget, Deadlines, Offline};
pub use self::release::{RefusedRelease, ReleaseAnswer, ReleaseRefusal, ReleaseRequest};
pub use self::window::{WINDOW_LENGTH_MAX, WINDOWS_MAX, Weekday, Window};

const _: () = assert!(2 * ROLLOUT_BYTES_MAX < MESSAGE_BYTES_MAX);

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
    /// What the planner decides if a wave has more failures than it allows.
    #[serde(default, skip_serializing_if = "OnFailure::is_pause")]
    pub on_failure: OnFailure,
    /// The approvals that a wave with `approval: before` needs.
    #[serde(default, skip_serializing_if = "Approvals::is_default")]
    pub approvals: Approvals,
    /// The number of unavailable devices that a release leaves in each group; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The times within which waves must pass their gates; no limit if absent.
    #[serde(default, skip_serializing_if = "Deadlines::is_none")]
    pub deadlines: Deadlines,
    /// The periods in which devices get the content; always if the list is empty. A rollback needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = WINDOWS_MAX))]
    pub windows: Vec<Window>,
}

/// One wave. Exactly one of `devices`, `selector`, `site`, `percent` and `count` says which devices it matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wave {
    /// Its name, once in a rollout.
    pub name: WaveName,
    /// These devices, each as SITE/DEVICE.
    #[serde(default, with = "device_names", skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub devices: BTreeSet<DeviceKey>,
    /// Devices with all of these labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schemars(schema_with = "labels::schema")]
    pub selector: Labels,
    /// Devices of this site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// This share of all targets, including those of earlier waves: percentages of later waves are higher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<Percent>,
    /// This number of the targets that no earlier wave matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<NonZeroU32>,
    /// Most released devices that are neither confirmed nor known to have failed; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<NonZeroU32>,
    /// When the gate behind the wave opens.
    #[serde(default)]
    pub success: Success,
    /// Time for which a device must have been confirmed, and be heard at its end, before it counts: 90s, 8m30s; at most
    /// 24 h.
    #[serde(default, with = "duration_text", skip_serializing_if = "Duration::is_zero")]
    #[schemars(with = "String")]
    pub soak: Duration,
    /// Whether the wave needs approvals before it begins.
    #[serde(default, skip_serializing_if = "Approval::is_none")]
    pub approval: Approval,
    /// How the wave treats a released device that is not heard.
    #[serde(default, skip_serializing_if = "Offline::is_wait")]
    pub offline: Offline,
    /// When the wave fails.
    #[serde(default)]
    pub failure: FailureLimit,
    /// True if the wave may match no device. Otherwise the publisher refuses a commit in which it matches none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
}

/// The condition of success of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Success {
    /// Share of the wave's targets that must be confirmed.
    #[serde(default = "Percent::all")]
    pub at_least: Percent,
}

/// The failures that a wave tolerates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureLimit {
    /// Most known failures: a number, or a share of the targets with a known end.
    #[serde(default)]
    pub at_most: AtMost,
    /// Number of targets with a known end from which on a share of failures counts.
    #[serde(default = "one")]
    pub minimum_sample: NonZeroU32,
}

/// Whether a wave needs approvals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Approval {
    /// It begins once the gates before it are open.
    #[default]
    None,
    /// It needs approvals as well.
    Before,
}

impl Approval {
    /// Whether the wave needs none.
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

const fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

impl Default for Success {
    fn default() -> Self {
        Self { at_least: Percent::all() }
    }
}

impl Default for FailureLimit {
    fn default() -> Self {
        Self { at_most: AtMost::default(), minimum_sample: one() }
    }
}

/// A number of devices, or a share of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "neither a number nor a percentage such as 5%")]
pub enum AtMost {
    /// A number of devices.
    Count(u32),
    /// A share of devices.
    Percent(Percent),
}

impl Default for AtMost {
    fn default() -> Self {
        Self::Count(0)
    }
}

mod duration_text {
    use super::*;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let text = SignedDuration::try_from(*time).map_err(serde::ser::Error::custom)?;
        to.collect_str(&format_args!("{text:#}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

mod device_names {
    use super::*;

    pub(super) fn serialize<S: Serializer>(keys: &BTreeSet<DeviceKey>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(keys.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<DeviceKey>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
    }
}

impl Wave {
    /// The number of given fields that match devices.
    fn matchers(&self) -> usize {
        let matchers = [
            !self.devices.is_empty(),
            !self.selector.is_empty(),
            self.site.is_some(),
            self.percent.is_some(),
            self.count.is_some(),
        ];
        matchers.into_iter().filter(|is_there| *is_there).count()
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
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if bytes > ROLLOUT_BYTES_MAX {
            let rule = format!(
                "has {bytes} bytes as JSON; {ROLLOUT_BYTES_MAX} are allowed: select devices by labels"
            );
            return Err(Violation::at("waves", rule));
        }
        let (mut names, mut percent) = (BTreeSet::new(), None);
        for (at, wave) in self.waves.iter().enumerate() {
            if !names.insert(&wave.name) {
                return Err(Violation::at(
                    format!("waves[{at}].name"),
                    format!("'{}' is there twice", wave.name),
                ));
            }
            if wave.matchers() != 1 {
                let rule = "needs exactly one of devices, selector, site, percent, count, with a value";
                return Err(Violation::at(format!("waves[{at}]"), rule));
            }
            labels::check(&wave.selector)
                .map_err(|rule| Violation::at(format!("waves[{at}].selector"), rule))?;
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
        assert_eq!((wave.failure.at_most, wave.failure.minimum_sample.get()), (AtMost::Count(0), 1));
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
            (json!([{ "name": "a", "count": 1, "approval": "after" }]), "unknown variant `after`"),
            (json!([{ "name": "a", "count": 1, "pace": 2 }]), "unknown field `pace`"),
        ] {
            let refusal = refusal(&waves);
            assert!(refusal.contains(words), "{waves}: {refusal}");
        }
    }
}
