//! A wave of a rollout: the devices that it matches, their order and rate, and the conditions of its gate. `muster-domain`
//! judges them.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{CHECKS_MAX, Check};
use super::decisions::{RolloutPhase, RolloutRecord, RolloutVerb};
use super::percent::Percent;
use super::policy::Offline;
use crate::duration_text;
use crate::ids::{DeviceKey, LabelKey, SiteId, WaveName};
use crate::labels::{self, Labels};

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
    /// The order in which its devices get the content.
    #[serde(default, skip_serializing_if = "Order::is_name")]
    pub order: Order,
    /// Most devices of the rollout that get the content within a minute while this wave is released; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<NonZeroU32>,
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
    /// The checks of others that must pass once the evidence is enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = CHECKS_MAX))]
    pub checks: Vec<Check>,
    /// Whether the wave needs approvals: before it begins, or after its evidence is enough.
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
    /// Whether every target must have a known end as well.
    #[serde(default, skip_serializing_if = "Completeness::is_lower")]
    pub evidence: Completeness,
}

/// The targets whose end must be known before a gate opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Completeness {
    /// As many as must be confirmed: the lower bound of success decides.
    #[default]
    Lower,
    /// All of them, but for those that the wave leaves out.
    Complete,
}

/// The order in which the devices of a wave get the content. A device that a release would not reach now is behind the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Order {
    /// By site and name.
    #[default]
    Name,
    /// By a hash of rollout and device: another order for the next content.
    Hash,
    /// By the value of this label: whole numbers first, the lowest in front, then texts, then devices without it.
    Label(LabelKey),
}

/// The failures that a wave tolerates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureLimit {
    /// Most known failures: a number, or a share of the targets with a known end.
    #[serde(default)]
    pub at_most: AtMost,
    /// Number of targets with a known end from which on a share of failures counts: 10 if absent. A wave of fewer targets needs
    /// all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_sample: Option<NonZeroU32>,
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
    /// The gate behind it needs approvals of its evidence.
    After,
}

/// Targets with a known end before a share of failures counts, if the wave does not say.
pub const MINIMUM_SAMPLE: u32 = 10;

impl Approval {
    /// Whether the wave needs none.
    pub const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

impl Completeness {
    /// Whether it is the default.
    pub const fn is_lower(&self) -> bool {
        matches!(self, Self::Lower)
    }
}

impl Order {
    /// Whether it is the default.
    pub const fn is_name(&self) -> bool {
        matches!(self, Self::Name)
    }
}

impl Default for Success {
    fn default() -> Self {
        Self { at_least: Percent::all(), evidence: Completeness::Lower }
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

mod device_names {
    use std::collections::BTreeSet;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::ids::DeviceKey;

    pub(super) fn serialize<S: Serializer>(keys: &BTreeSet<DeviceKey>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(keys.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<DeviceKey>, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
    }
}

impl Wave {
    /// Whether it waits for approval by the decisions about its rollout: it has not begun, or its evidence is ready and no later wave
    /// has begun.
    pub fn waits_for_approval(&self, record: Option<&RolloutRecord>) -> bool {
        let run = record.map(RolloutRecord::of_this_run).unwrap_or_default();
        let first = |verb: RolloutVerb| {
            run.iter().position(|decision| decision.verb == verb && decision.is_about(self.name.as_str()))
        };
        let has_begin_after = |at: usize| run[at..].iter().any(|later| later.verb == RolloutVerb::Begin);
        let is_over = record.is_some_and(|record| record.phase() == RolloutPhase::Succeeded);
        match self.approval {
            Approval::Before => !is_over && first(RolloutVerb::Begin).is_none(),
            Approval::After => !is_over && first(RolloutVerb::Ready).is_some_and(|at| !has_begin_after(at)),
            Approval::None => false,
        }
    }

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

    /// Checks the rules that a JSON schema cannot express; the path below the wave, and the rule that is broken.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        if self.matchers() != 1 {
            let rule = "needs exactly one of devices, selector, site, percent, count, with a value";
            return Err((String::new(), rule.to_owned()));
        }
        labels::check(&self.selector).map_err(|rule| (".selector".to_owned(), rule))?;
        if self.checks.len() > CHECKS_MAX {
            let rule = format!("has {} checks; {CHECKS_MAX} are allowed", self.checks.len());
            return Err((".checks".to_owned(), rule));
        }
        for (at, check) in self.checks.iter().enumerate() {
            let is_again = self.checks[..at].iter().any(|other| other.name() == check.name());
            let rule = if is_again { Err("asks the same as an earlier one") } else { check.check() };
            rule.map_err(|rule| (format!(".checks[{at}]"), rule.to_owned()))?;
        }
        Ok(())
    }
}
