//! Views: what is true of a deployment, a site and the fleet, with how much of it is known.
//!
//! A view is a pure function of LEDGER up to `asOf.ledgerSeq`. Buckets of zero are left out; what is there adds up.

mod bounds;
mod retried;
mod words;

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::Digest;
use crate::decode::Document;
use crate::evidence::{EvidenceCounts, Fidelity, Provenance};
use crate::ids::{ComponentName, DeploymentId, DeviceKey, SiteId};
use crate::pulse::HubHearing;
use crate::retry::RetrySummary;
use crate::state::State;
use crate::version::{ApiVersion, kind};

pub use bounds::{Bounds, Complete};
pub use retried::Retried;

/// Up to where a view has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = crate::validity::describe)]
#[serde(rename_all = "camelCase")]
pub struct AsOf {
    /// Sequence in LEDGER of the last fact read; 0 before the first.
    pub ledger_seq: u64,
    /// When the bus stored that fact.
    pub at: Timestamp,
}

/// Where a device stands with a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Targeted; nothing heard for this deployment.
    Waiting,
    /// The last fact is for a generation below the target.
    Outdated,
    /// Reported: pending.
    Pending,
    /// Reported: installing.
    Installing,
    /// Reported: installed.
    Installed,
    /// Reported: removing.
    Removing,
    /// Reported: removed.
    Removed,
    /// Reported: failed.
    Failed,
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Outdated,
        Self::Pending,
        Self::Installing,
        Self::Installed,
        Self::Removing,
        Self::Removed,
        Self::Failed,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Outdated => "outdated",
            Self::Pending => "pending",
            Self::Installing => "installing",
            Self::Installed => "installed",
            Self::Removing => "removing",
            Self::Removed => "removed",
            Self::Failed => "failed",
        }
    }
}

impl From<State> for Standing {
    fn from(state: State) -> Self {
        match state {
            State::Pending => Self::Pending,
            State::Installing => Self::Installing,
            State::Installed => Self::Installed,
            State::Removing => Self::Removing,
            State::Removed => Self::Removed,
            State::Failed => Self::Failed,
        }
    }
}

/// Whether what is shown of a device is fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Freshness {
    /// Heard within the lease.
    Fresh,
    /// Heard once, silent for longer than the lease.
    Stale,
    /// Never heard.
    Never,
}

/// A count split by freshness.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Split {
    /// The count on fresh devices.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub fresh: u64,
    /// The count on stale devices.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub stale: u64,
    /// The count on devices never heard.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub never: u64,
}

impl Split {
    /// The three together.
    pub const fn total(self) -> u64 {
        self.fresh + self.stale + self.never
    }

    /// That none of several things is heard, in words; nothing where any is, or where there is none.
    pub fn unheard(self, thing: &str) -> Option<String> {
        match (self.fresh, self.total()) {
            (1.., _) | (_, 0) => None,
            (0, 1) => Some(format!("the only {thing} is silent: no fresh evidence")),
            (0, of) => Some(format!("all {of} {thing}s are silent: no fresh evidence")),
        }
    }

    /// The count of one freshness.
    pub const fn get_mut(&mut self, freshness: Freshness) -> &mut u64 {
        match freshness {
            Freshness::Fresh => &mut self.fresh,
            Freshness::Stale => &mut self.stale,
            Freshness::Never => &mut self.never,
        }
    }
}

/// The verdict on a deployment: the first that holds, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// No targets, and nothing leaving. Never success.
    Empty,
    /// No targets; some devices still have it.
    Removing,
    /// Some device failed for the current target.
    Failing,
    /// Some device is past its deadline.
    Overdue,
    /// Some target's standing is not known.
    Incomplete,
    /// Some device that is heard is at work.
    Progressing,
    /// Some device has not begun, or is silent while at work: that it gets on, nobody knows.
    Waiting,
    /// Installed everywhere, but some devices are stale.
    ConvergedStale,
    /// Installed everywhere, fresh and known.
    Converged,
}

impl Verdict {
    /// All of them, the first that holds first.
    pub const ALL: [Self; 9] = [
        Self::Empty,
        Self::Removing,
        Self::Failing,
        Self::Overdue,
        Self::Incomplete,
        Self::Progressing,
        Self::Waiting,
        Self::ConvergedStale,
        Self::Converged,
    ];

    /// All of them by urgency, the most urgent first.
    pub const WORST_FIRST: [Self; 9] = [
        Self::Failing,
        Self::Overdue,
        Self::Incomplete,
        Self::Waiting,
        Self::Progressing,
        Self::Removing,
        Self::ConvergedStale,
        Self::Converged,
        Self::Empty,
    ];

    /// The rule in words; it counts only where no rule before it holds.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Empty => "no device should run it, and none still has it",
            Self::Removing => "no device should run it, and some still have it",
            Self::Failing => "some device failed to apply its target",
            Self::Overdue => "some device is past its deadline",
            Self::Incomplete => "some device has missing, unreadable or unstored reports",
            Self::Progressing => "some fresh device is applying its target",
            Self::Waiting => "some device has not started its target, or fell silent while applying it",
            Self::ConvergedStale => "installed everywhere, but some devices are stale",
            Self::Converged => "installed everywhere, fresh and known",
        }
    }

    /// The rule's text for the case that no target is fresh.
    pub const fn rule_unheard(self) -> &'static str {
        match self {
            Self::ConvergedStale => "installed everywhere by the last reports",
            _ => self.rule(),
        }
    }

    /// The rule's text, with a note if no target is fresh.
    pub fn words(self, targets: Split) -> String {
        match targets.unheard("target") {
            None => self.rule().to_owned(),
            Some(unheard) => format!("{}; {unheard}", self.rule_unheard()),
        }
    }

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Removing => "removing",
            Self::Failing => "failing",
            Self::Overdue => "overdue",
            Self::Incomplete => "incomplete",
            Self::Progressing => "progressing",
            Self::Waiting => "waiting",
            Self::ConvergedStale => "convergedStale",
            Self::Converged => "converged",
        }
    }
}

const _: () = {
    let (mut at, mut listed) = (0, 0_u32);
    while at < Verdict::ALL.len() {
        assert!(Verdict::ALL[at] as usize == at, "Verdict::ALL has the order of the enum");
        listed |= 1 << Verdict::WORST_FIRST[at] as u32;
        at += 1;
    }
    assert!(at == Verdict::Converged as usize + 1, "Verdict::ALL lists every verdict, Converged last");
    assert!(listed + 1 == 1 << at, "Verdict::WORST_FIRST lists every verdict");
};

/// The code of an error that has none, and of a failure without an error.
pub const UNSPECIFIED: &str = "unspecified";

/// How often an error is reported, with one example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorCount {
    /// Its code, cut to [`ERROR_CODE_BYTES_MAX`](crate::limits::ERROR_CODE_BYTES_MAX);
    /// [`UNSPECIFIED`] where the device gives none.
    pub code: String,
    /// Devices that report it.
    pub count: u64,
    /// The first of them by site, device and component.
    pub example: ErrorExample,
}

/// Where an error is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorExample {
    /// The device.
    #[serde(flatten)]
    pub device: DeviceKey,
    /// The component, unless it is the deployment as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component: Option<ComponentName>,
    /// The device's message, cut to [`VIEW_MESSAGE_BYTES_MAX`](crate::limits::VIEW_MESSAGE_BYTES_MAX).
    pub message: String,
    /// How often it was tried, where it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySummary>,
}

/// The parts that are not shown, so that a view fits into a message: the highest names and the rarest errors. Every count
/// includes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Omitted {
    /// Components beyond [`COMPONENTS_MAX`](crate::limits::COMPONENTS_MAX).
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub components: u64,
    /// Error codes beyond [`VIEW_ERRORS_MAX`](crate::limits::VIEW_ERRORS_MAX).
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub errors: u64,
}

impl Omitted {
    /// True where everything is shown.
    pub const fn is_nothing(&self) -> bool {
        self.components == 0 && self.errors == 0
    }
}

/// Counts by standing, split by freshness. They add up to `targets`.
pub type Counts = BTreeMap<Standing, Split>;

/// The schema of a map whose keys are not any text.
pub(crate) fn keyed<K: JsonSchema, V: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": generator.subschema_for::<K>(),
        "additionalProperties": generator.subschema_for::<V>()
    })
}

/// `deployment.<id>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentView {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `DeploymentView`
    pub kind: kind::DeploymentView,
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its name for people, if that is not its id: the most frequent name of its standings; the first of equally frequent ones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deployment_name: String,
    /// Up to where it has read.
    pub as_of: AsOf,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for the verdict as a text; follows from the counts and errors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When a device's standing with it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The newest moment at which LEDGER proves that one of its targets or leaving devices was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Devices that shall run it.
    pub targets: u64,
    /// Devices that shall not and still have it.
    pub leaving: u64,
    /// Targets past their deadline; a mark beside the standing, so they are in `counts` too.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub overdue: u64,
    /// Targets that are tried again after an error.
    #[serde(default, skip_serializing_if = "Retried::is_nothing")]
    pub retried: Retried,
    /// Targets by standing and freshness.
    #[schemars(schema_with = "keyed::<Standing, Split>")]
    pub counts: Counts,
    /// Targets by the evidence of their last report, where the device did not send every change itself.
    #[serde(default, skip_serializing_if = "EvidenceCounts::is_empty")]
    #[schemars(schema_with = "keyed::<Provenance, BTreeMap<Fidelity, u64>>")]
    pub evidence: EvidenceCounts,
    /// The bounds of the truth.
    pub converged: Bounds,
    /// How much is known.
    pub complete: Complete,
    /// States of each component over the targets that report for their current target: a component of an older
    /// generation is no evidence for the new one.
    #[schemars(schema_with = "keyed::<ComponentName, BTreeMap<State, u64>>")]
    pub components: BTreeMap<ComponentName, BTreeMap<State, u64>>,
    /// Errors of targets that failed or are tried again, most frequent first, then by code. One device counts once for
    /// each code.
    pub errors: Vec<ErrorCount>,
    /// The parts beyond the limits of a view.
    #[serde(default, skip_serializing_if = "Omitted::is_nothing")]
    pub omitted: Omitted,
    /// Partitions with targets, or devices it is leaving, that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// SHA-256 of the canonical JSON without the fields `asOf`, `changedAt`, `deploymentName`, `digest`, `lastHeardAt` and
    /// `message`.
    pub digest: Digest,
}

/// `site.<site>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SiteView {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `SiteView`
    pub kind: kind::SiteView,
    /// The site.
    pub site: SiteId,
    /// The counts.
    #[serde(flatten)]
    pub tally: Tally,
}

/// `fleet`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetView {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `FleetView`
    pub kind: kind::FleetView,
    /// The counts.
    #[serde(flatten)]
    pub tally: Tally,
}

/// The counts that the view of a site and that of the fleet share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Up to where it has read.
    pub as_of: AsOf,
    /// The first verdict that its deployments have, with its rule, as a text; follows from the counts. Absent if no deployment
    /// should run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When a standing of one of its devices last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The newest moment at which LEDGER proves that one of its devices was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Devices by freshness; retired ones are not counted.
    pub devices: Split,
    /// Targets: pairs of a device and a deployment that it should run.
    pub targets: u64,
    /// Pairs that remain although the device should no longer run the deployment.
    pub leaving: u64,
    /// Targets past their deadline.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub overdue: u64,
    /// Targets that are tried again after an error.
    #[serde(default, skip_serializing_if = "Retried::is_nothing")]
    pub retried: Retried,
    /// Targets by standing and freshness.
    #[schemars(schema_with = "keyed::<Standing, Split>")]
    pub counts: Counts,
    /// Targets by the evidence of their last report, where the device did not send every change itself.
    #[serde(default, skip_serializing_if = "EvidenceCounts::is_empty")]
    #[schemars(schema_with = "keyed::<Provenance, BTreeMap<Fidelity, u64>>")]
    pub evidence: EvidenceCounts,
    /// Deployments by verdict (in a site's view: the verdict on the site's devices alone).
    #[schemars(schema_with = "keyed::<Verdict, u64>")]
    pub deployments: BTreeMap<Verdict, u64>,
    /// Devices of which everything is known, of all devices: no report is missing, none in quarantine can be news, and the
    /// standing of every target is known.
    pub complete: Complete,
    /// Partitions with devices that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// SHA-256 of the canonical JSON without the fields `asOf`, `changedAt`, `deploymentName`, `digest`, `lastHeardAt` and
    /// `message`.
    pub digest: Digest,
}

macro_rules! documents {
    ($($name:ident),+) => { $( impl Document for $name { const KIND: &'static str = stringify!($name); } )+ };
}
documents!(DeploymentView, SiteView, FleetView);

/// Fields of a view that its digest does not cover. The texts are for people. The times depend on when messages arrived and not
/// on their content, and change without any count: their change alone causes no write of a view.
pub const FIELDS_OUTSIDE_DIGEST: [&str; 6] =
    ["asOf", "changedAt", "deploymentName", "digest", "lastHeardAt", "message"];
/// Fields with the parts of a defined view, which have texts and times of their own.
const PARTS_OF_VIEW: [&str; 3] = ["groups", "omitted", "without"];

/// The digest that a view must carry.
///
/// # Panics
/// Never: views are JSON objects.
#[allow(clippy::expect_used)]
pub fn content_digest<V: Serialize>(view: &V) -> Digest {
    let mut value = serde_json::to_value(view).expect("views are JSON");
    drop_outside_digest(&mut value);
    for field in PARTS_OF_VIEW {
        match value.get_mut(field) {
            Some(Value::Array(parts)) => parts.iter_mut().for_each(drop_outside_digest),
            Some(part) => drop_outside_digest(part),
            None => {}
        }
    }
    Digest::of_value(&value)
}

fn drop_outside_digest(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        object.retain(|field, _| !FIELDS_OUTSIDE_DIGEST.contains(&field.as_str()));
    }
}
