//! Status after filters, in the words of those who ask: what was delivered beside what is observed (EMCO's two axes), and
//! kstatus with strategy, actuation and reconcile beside it (kpt's three). Asked with a [`StatusQuery`] on
//! `muster.query.status`.

mod axes;
mod merge;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::desired::Source;
use crate::evidence::{EvidenceCounts, Fidelity, Provenance};
use crate::fact::DeadlineFact;
use crate::ids::{ComponentName, DeploymentId, DeviceKey, DeviceKeyError, Generation, SiteId};
use crate::limits::FILTER_VALUES_MAX;
use crate::manifest::Manifest;
use crate::output::{LastReport, Output};
use crate::point::Point;
use crate::pulse::HubHearing;
use crate::retry::RetrySummary;
use crate::state::State;
use crate::view::{AsOf, Counts, Freshness, Retried, Standing, Verdict, keyed};

pub use self::axes::{Actuation, Deployed, KStatus, Ready, Reconcile, Strategy};
pub use self::merge::{place_of, placed};

/// Standings that one request looks at; what is beyond comes with the next page. It bounds how long a question keeps the
/// fold waiting.
pub const LOOKED_AT_MAX: usize = 2_000;

/// A question about status. Values of one filter are alternatives, several filters must all hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusQuery {
    /// The deployment; every one where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
    /// Only of these applications.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub app: Vec<String>,
    /// Only at these sites.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub site: Vec<SiteId>,
    /// Only on these devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub device: Vec<DevicePath>,
    /// Only these components.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub component: Vec<ComponentName>,
    /// Only targets of these standings. What is leaving is no target.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub standing: BTreeSet<Standing>,
    /// Only on devices that are heard so.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub freshness: BTreeSet<Freshness>,
    /// Only with an error of one of these codes.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub error: BTreeSet<String>,
    /// One axis only; both where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Axis>,
    /// How much of it.
    pub output: Output,
    /// As of this generation of the one device that is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Most targets wanted in one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The cursor to continue after: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// When.
    #[serde(flatten)]
    pub point: Point,
}

impl StatusQuery {
    /// Checks the rules of a question that hold for every service.
    ///
    /// # Errors
    /// A filter has too many values, or a generation without exactly one device; the message is for the person who asks.
    pub fn makes_sense(&self) -> Result<(), String> {
        let Self { app, site, device, component, error, .. } = self;
        for (name, count) in [
            ("app", app.len()),
            ("site", site.len()),
            ("device", device.len()),
            ("component", component.len()),
            ("error", error.len()),
        ] {
            check_filter_size(name, count)?;
        }
        if self.generation.is_some() && device.len() != 1 {
            return Err("generation: every device counts its own; name one device with it".to_owned());
        }
        Ok(())
    }

    /// True if the filters name only a deployment and sites, of which counts are kept.
    pub fn is_of_places(&self) -> bool {
        let Self { app, device, component, standing, freshness, error, generation, .. } = self;
        let is_of_rows = !standing.is_empty() || !freshness.is_empty() || !error.is_empty();
        app.is_empty() && device.is_empty() && component.is_empty() && generation.is_none() && !is_of_rows
    }
}

/// Checks the number of values of a filter.
///
/// # Errors
/// There are more than [`FILTER_VALUES_MAX`].
pub fn check_filter_size(name: &str, count: usize) -> Result<(), String> {
    if count > FILTER_VALUES_MAX {
        return Err(format!("{name}: {count} values; one question takes {FILTER_VALUES_MAX}"));
    }
    Ok(())
}

/// A device as one text: `SITE/DEVICE`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct DevicePath(pub DeviceKey);

impl FromStr for DevicePath {
    type Err = DeviceKeyError;
    fn from_str(text: &str) -> Result<Self, DeviceKeyError> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for DevicePath {
    type Error = DeviceKeyError;
    fn try_from(text: String) -> Result<Self, DeviceKeyError> {
        text.parse()
    }
}

impl From<DevicePath> for String {
    fn from(path: DevicePath) -> Self {
        path.0.to_string()
    }
}

impl fmt::Display for DevicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of EMCO's two axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// The published desired state, and how far devices have accepted it.
    Deployed,
    /// The observed state.
    Ready,
}

/// Answer of `muster.query.status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The deployment, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentId>,
    /// The generation, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Verdict on everything that passes the filters, if the query names a deployment and `whole` is true; absent if nothing
    /// passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The roll-up is of everything that passes the filters. Otherwise it is of what this page looked at, and the roll-ups
    /// of all pages add up.
    pub whole: bool,
    /// The roll-up.
    pub rollup: Rollup,
    /// Partitions with devices of the sites that were asked about that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// With any `output` but summary: a roll-up for each application over the targets that this page looked at. Those of all
    /// pages add up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppStatus>,
    /// With any `output` but summary: the targets, ordered by site, device and deployment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetStatus>,
    /// With `output` detail: what shall run, each once, by the `digest` of the targets that shall run it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "keyed::<Digest, Manifest>")]
    pub manifests: BTreeMap<Digest, Manifest>,
    /// With `output` detail: targets of this page that shall run something and whose manifest is not here. LEDGER does not
    /// hold it any more or did not give it in time, or it finds no room in a message.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub manifests_left_out: u64,
    /// How many targets there are on all pages, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Counts over any set of targets, and what follows from them. Counts of zero are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rollup {
    /// Targets: pairs of a device and a deployment that it should run.
    pub targets: u64,
    /// Pairs that remain although the device should no longer run the deployment.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub leaving: u64,
    /// Targets past their deadline.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub overdue: u64,
    /// Targets that are tried again after an error.
    #[serde(default, skip_serializing_if = "Retried::is_nothing")]
    pub retried: Retried,
    /// Targets of which the hub can know that it holds the last report.
    pub known: u64,
    /// Pairs whose generation was superseded before anything of it that is still held was reported.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub superseded: u64,
    /// Targets by standing and freshness.
    #[schemars(schema_with = "keyed::<Standing, crate::view::Split>")]
    pub counts: Counts,
    /// Targets by the evidence of their last report, where the device did not send every change itself.
    #[serde(default, skip_serializing_if = "EvidenceCounts::is_empty")]
    #[schemars(schema_with = "keyed::<Provenance, BTreeMap<Fidelity, u64>>")]
    pub evidence: EvidenceCounts,
    /// Pairs by kstatus.
    #[schemars(schema_with = "keyed::<KStatus, u64>")]
    pub kstatus: BTreeMap<KStatus, u64>,
    /// The worst of the components on the axis of delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_status: Option<Deployed>,
    /// The worst of the components on the axis of observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_status: Option<Ready>,
    /// Components by how far they were delivered.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "keyed::<Deployed, u64>")]
    pub deployed_counts: BTreeMap<Deployed, u64>,
    /// Components by what is observed of them; of what shall go nothing is expected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "keyed::<Ready, u64>")]
    pub ready_counts: BTreeMap<Ready, u64>,
    /// The most severe error, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the newest of the lines changed. Where counts are kept (no filter, or sites alone), what has left them since counts
    /// too, for as long as it is remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The newest moment at which LEDGER proves that a device of these lines was heard. No notice is due to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
}

/// An application over the targets of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppStatus {
    /// Its id; absent where the hub does not know it: it never heard that this shall run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The roll-up.
    pub rollup: Rollup,
}

/// A deployment on a device: a line of `muster.query.status`, of `muster.query.device` and of notices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The deployment.
    pub deployment: DeploymentId,
    /// The application; absent where the hub does not know it: it never heard that this shall run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Where it stands.
    pub standing: Standing,
    /// Whether the device is heard.
    pub freshness: Freshness,
    /// The newest moment at which LEDGER proves that the device was heard. A heartbeat is no fact, so a device that is fresh was
    /// heard since. No notice is due to it: a notice has it as of its `asOf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Whether the hub can know that it holds the last report.
    pub known: bool,
    /// It shall not run any more and is still there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// It is past its deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
    /// The deadline that it is past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineFact>,
    /// How often it was tried, where it is tried again after an error: of several components the one with the most attempts, a
    /// crash loop before any other. `message` has the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySummary>,
    /// The generation asked for has been superseded here: what is shown is the last that was reported of it, if that is
    /// still held.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// Generation at which its target last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_generation: Option<Generation>,
    /// Generation that the last report is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_generation: Option<Generation>,
    /// The worst of its components on the axis of delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_status: Option<Deployed>,
    /// The worst of its components on the axis of observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_status: Option<Ready>,
    /// kstatus and its axes.
    #[serde(flatten)]
    pub axes: KAxes,
    /// Why it is so, in words.
    pub message: String,
    /// When it changed last: the hub took in its last report, or was told what it shall run, if that was later. Of a superseded
    /// generation, when its report came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// With `output` all or detail: the components that pass the filters.
    pub components: Vec<ComponentLine>,
    /// The last report, unless nothing was heard; whole with `output` detail. Absent in notices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<LastReport>,
    /// With `output` detail: digest of what shall run, or should have by a superseded generation: the key of its manifest in the
    /// answer. Absent where nothing shall run, and where it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// With `output` detail: where what shall run comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

impl StatusAnswer {
    /// The manifest that a target must run, if the answer has it.
    pub fn manifest(&self, target: &TargetStatus) -> Option<&Manifest> {
        self.manifests.get(target.digest.as_ref()?)
    }

    /// Counts what is left out of the manifests.
    pub fn declare_manifests(&mut self) {
        let is_left_out = |target: &&TargetStatus| target.shall_run() && self.manifest(target).is_none();
        self.manifests_left_out = self.targets.iter().filter(is_left_out).count() as u64;
    }
}

impl TargetStatus {
    /// Whether it shall run something, or should have by the generation that was asked for, be it told here or not.
    pub const fn shall_run(&self) -> bool {
        self.target_generation.is_some() || self.superseded
    }
}

/// A component of a deployment on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentLine {
    /// Its name.
    pub name: ComponentName,
    /// The state last reported, of whatever generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// How far it was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployed_status: Option<Deployed>,
    /// The observed readiness; absent for a deployment that must go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_status: Option<Ready>,
    /// kstatus and its axes.
    #[serde(flatten)]
    pub axes: KAxes,
    /// Why it is so, in words.
    pub message: String,
    /// How often it was tried, where it is tried again after an error; `message` has the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySummary>,
    /// When its deployment's line changed: the component itself may have changed earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
}

/// kstatus, and ResourceGroup's three axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KAxes {
    /// kstatus.
    pub kstatus: KStatus,
    /// The strategy of the attempt.
    pub strategy: Strategy,
    /// Whether the device has acted on it.
    pub actuation: Actuation,
    /// Whether it has come about.
    pub reconcile: Reconcile,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_one_text() {
        let query: StatusQuery = serde_json::from_str(r#"{"device":["plant7/press-4"]}"#).unwrap();
        assert_eq!(query.device[0].to_string(), "plant7/press-4");
        assert!(serde_json::from_str::<StatusQuery>(r#"{"device":["press-4"]}"#).is_err());
    }
}
