//! Questions to the query service (`muster.query.*`) and to the publisher (`muster.publisher.*`), and their answers.
//! An answer is either what was asked for or an [`ErrorReply`].

mod errors;
mod publisher;
mod sites;
pub(crate) mod some_devices;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::desired_refusal::DesiredRefusal;
use crate::fact::{Account, Incident};
use crate::host::Host;
use crate::ids::{DeploymentId, DeviceId, DeviceKey, Epoch, Generation};
use crate::limits::FILTER_VALUES_MAX;
use crate::liveness::{holds, is_so};
use crate::point::Point;
use crate::pulse::HubHearing;
use crate::ranges::SeqRanges;
use crate::silence::SilentSites;
use crate::status::TargetStatus;
use crate::view::{AsOf, DeploymentView, Freshness, Retried, Standing, Verdict, keyed};

pub use errors::{ErrorBody, ErrorCode, ErrorReply};
pub use publisher::{
    ApplyRequest, GitStatus, HeldBack, Problem, PublishAnswer, PublisherQuery, PublisherStatus,
    RefusedCommit, RemoveRequest, RetireRequest,
};
pub use sites::Sites;
pub use some_devices::SomeDevices;

pub use crate::output::{LastReport, Output};

/// Rows of one answer, where the request does not say.
pub const PAGE_DEFAULT: usize = 200;
/// Most rows of one answer.
pub const PAGE_MAX: usize = 1000;
/// Most targets of a page of status in detail: what shall run is read for each.
pub const DETAIL_PAGE_MAX: usize = 200;

const _: () = assert!(DETAIL_PAGE_MAX <= PAGE_MAX);

/// A question. Every field is optional on the wire; which are needed depends on the endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Query {
    /// A deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
    /// A site. Lists take several, and a list of deployments then counts and judges these sites alone.
    #[serde(skip_serializing_if = "Sites::is_empty")]
    pub site: Sites,
    /// A device; needs its site. As a filter of `devices`: those of this name, at any site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// For a list of devices: only devices of any of these freshnesses. A retired device never matches.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub freshness: BTreeSet<Freshness>,
    /// Filter of `deployments`: one of these verdicts, at the sites named.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub verdict: BTreeSet<Verdict>,
    /// Filter of `deployments` and `devices`: an error with one of these codes, at the sites named.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub error: BTreeSet<String>,
    /// Filter of `devices`: an agent of one of these versions.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schemars(length(max = FILTER_VALUES_MAX))]
    pub version: BTreeSet<String>,
    /// Filter of `devices`: targets of this deployment that have not installed it, by their last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_running: Option<DeploymentId>,
    /// For `devices`: stale and never heard devices in the order of silence: never heard first, then by the second of `lastHeardAt`,
    /// then by name. Retired devices, and those of partitions that the hub does not hear, are left out. The only other filter is
    /// `site`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_silence: bool,
    /// How much of `device`: with `detail` the last report of each deployment is whole.
    pub output: Output,
    /// When: the present where nothing is said.
    #[serde(flatten)]
    pub point: Point,
    /// Most rows wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Rows after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Answer of `muster.query.deployment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentAnswer {
    /// The view.
    pub view: DeploymentView,
    /// Sites that are silent as a whole, with targets of this deployment.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
}

/// Answer of `muster.query.deployments`: views ordered by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentsAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The views. If the query names sites, each view counts and judges these sites alone, without components and errors.
    pub deployments: Vec<DeploymentView>,
    /// Partitions with devices that were asked about that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Sites that are silent as a whole, of those that were asked about.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Answer of `muster.query.devices`: ordered by site and device, or by silence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DevicesAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The devices. Where only some pass a filter there may be none of them on this page, and more to come.
    pub devices: Vec<DeviceLine>,
    /// Partitions with devices that were asked about that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One device in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceLine {
    /// Which.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Whether it is heard.
    pub freshness: Freshness,
    /// The newest moment at which LEDGER proves that it was heard. A heartbeat is no fact, so a device that is fresh was heard
    /// since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Why its most severe standing is so, with the deployment; absent if it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When one of its standings last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// It was taken out of the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// The deployment that hosts it, if its label names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosted_by: Option<Host>,
    /// Its epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Highest report number it has spoken of.
    pub head: u64,
    /// The accounting of its epoch.
    pub account: Account,
    /// Numbers in quarantine that nobody has dropped: whatever was reported before one of them is not known any more.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub in_doubt: SeqRanges,
    /// Messages in quarantine of which the hub cannot tell yet which numbers they are: until the next heartbeat says how
    /// far the device's numbers go, nothing of it is known.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub unread: u64,
    /// False while the device says that it cannot store reports, or sends heartbeats of a newer epoch that ingest has not opened:
    /// none of its standings is known then.
    #[serde(default = "holds", skip_serializing_if = "is_so")]
    pub storing: bool,
    /// Generation of its desired state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Version of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Its targets by standing.
    #[schemars(schema_with = "keyed::<Standing, u64>")]
    pub standings: BTreeMap<Standing, u64>,
    /// Its targets that are tried again after an error.
    #[serde(default, skip_serializing_if = "Retried::is_nothing")]
    pub retried: Retried,
    /// How many incidents it has had.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub incidents: u64,
    /// Messages without a readable number in quarantine, beside those in the account.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub unnumbered_quarantined: u64,
    /// When its token ends, where a tenth of the token's life or less is left and no newer one is known. It is out then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ends_at: Option<Timestamp>,
    /// The desired state that it refused, while it has accepted none since: the one that it accepted last stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<DesiredRefusal>,
}

/// Answer of `muster.query.device`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The device.
    pub device: DeviceLine,
    /// Its deployments, ordered by id, as `brief` lines of `muster.query.status`; with `output` detail each last report is whole.
    pub deployments: Vec<TargetStatus>,
    /// The reported capabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Map<String, Value>>,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Version of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Its last incident.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_incident: Option<Incident>,
    /// The device's partition, where the hub does not listen to it.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// The parts that are not shown.
    #[serde(default, skip_serializing_if = "DeviceOmitted::is_nothing")]
    pub omitted: DeviceOmitted,
}

/// The parts of a device that are not shown, so that the answer fits into a message. No standing is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceOmitted {
    /// Components of its deployments: of each the least severe, and of those the last.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub components: u64,
    /// Components that are tried again: of each deployment those that were tried least often.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub retries: u64,
    /// Texts of errors and reasons that are shown, and cut short.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub texts: u64,
    /// The reported capabilities.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capabilities: bool,
}

impl DeviceOmitted {
    /// True where everything is shown.
    pub const fn is_nothing(&self) -> bool {
        self.components == 0 && self.retries == 0 && self.texts == 0 && !self.capabilities
    }
}
