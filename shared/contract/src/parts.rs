//! Parts of views: the unabridged counts of one hub, which a federation adds up. A hub answers them on
//! `muster.query.parts`.
//!
//! A view omits its rarest errors and does not split its counts by group, so views do not add up; parts do. If no site is
//! on two hubs, the sum of their parts equals the view of one hub with all sites. Adding is left to `muster-domain`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::decode::Document;
use crate::ids::{ComponentName, HubName, LabelKey, LabelValue};
use crate::pulse::HubHearing;
use crate::silence::SilentSites;
use crate::standing_part::StandingPart;
use crate::state::State;
use crate::version::{ApiVersion, kind};
use crate::view::{AsOf, Complete, ErrorCount, Split};

/// Most views whose parts one query may ask for.
pub const PARTS_MAX: usize = 64;
/// Most hubs of a federation. The sums of their counts fit the type of a count.
pub const HUBS_MAX: usize = 64;
/// Most standings of one hub that a sum can hold.
pub const HUB_STANDINGS_MAX: u64 = (u32::MAX as usize / HUBS_MAX) as u64;
/// Key of the [`HubList`] in the bucket `views` of a federation.
pub const HUBS_KEY: &str = "hubs";

/// Query for parts of views.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartsQuery {
    /// Keys of views: `deployment.<id>`, `group.<label>.<value>` or `fleet`. A site has no part: its view is complete.
    #[schemars(length(max = PARTS_MAX))]
    pub keys: Vec<String>,
    /// Rows to skip: `next` of the previous answer. Allowed with one key only.
    #[serde(skip_serializing_if = "crate::omit::is_zero")]
    pub skip: u64,
}

/// Answer of `muster.query.parts`. A key that is neither in `parts` nor in `gone` did not fit: query it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartsAnswer {
    /// The position in LEDGER that the answer reflects.
    pub as_of: AsOf,
    /// Parts by the key of their view.
    pub parts: BTreeMap<String, Part>,
    /// Keys without any device or standing on this hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

/// The part of one hub in a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum Part {
    /// The part in the view of a deployment.
    DeploymentPart(Box<DeploymentPart>),
    /// The part in the view of the fleet or of a group.
    TallyPart(Box<TallyPart>),
}

impl Part {
    /// Number of rows in this answer.
    pub const fn rows(&self) -> usize {
        match self {
            Self::DeploymentPart(part) => part.rows(),
            Self::TallyPart(_) => 0,
        }
    }
}

/// The part of one hub in a deployment. Several answers carry it if its rows do not fit into one: components by name, then
/// errors by code, then groups by label and value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentPart {
    /// Counts of the deployment's standings.
    pub standings: StandingPart,
    /// The name that people gave the deployment, as in [`DeploymentView`](crate::view::DeploymentView).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deployment_name: String,
    /// The time of its last change, as in [`DeploymentView`](crate::view::DeploymentView).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The time at which the hub last heard one of its targets, as in [`DeploymentView`](crate::view::DeploymentView).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Silent sites with targets of the deployment: no device of such a site is fresh.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// Partitions that no ingest reads, with targets of the deployment or devices that it is leaving.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Number of rows in earlier answers.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub skipped: u64,
    /// Digest of the complete part, if several answers carry it. Answers with different digests reflect different moments
    /// and must not be joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Digest>,
    /// Counts of component states, over the devices that report for their current target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentCount>,
    /// Errors of failed targets by code, each with its first device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorCount>,
    /// Counts of standings by group; a group without standings is omitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupShare>,
    /// Cursor of the next answer, to be sent as `skip`; absent in the last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl DeploymentPart {
    /// Number of rows in this answer.
    pub const fn rows(&self) -> usize {
        self.components.len() + self.errors.len() + self.groups.len()
    }
}

/// A component with the number of targets in each of its states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComponentCount {
    /// Name of the component.
    pub name: ComponentName,
    /// Number of targets by state of the component.
    #[schemars(schema_with = "crate::view::keyed::<State, u64>")]
    pub states: BTreeMap<State, u64>,
}

/// The standings of a deployment in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupShare {
    /// Label that defines the group.
    pub label: LabelKey,
    /// Value of the label on the devices of the group.
    pub value: LabelValue,
    /// Counts of the standings on these devices.
    pub standings: StandingPart,
    /// When one of the standings last changed; absent where the hub has more than 2,000 devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// When one of the devices was last heard, as LEDGER proves; absent as `changedAt` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
}

/// The part of one hub in the fleet, or in a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TallyPart {
    /// Devices by freshness, without retired devices.
    pub devices: Split,
    /// Number of devices with complete reports, of all devices.
    pub complete: Complete,
    /// Counts of the standings of all deployments.
    pub standings: StandingPart,
    /// The time of the last change, as in [`Tally`](crate::view::Tally).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The time at which the hub last heard one of the devices, as in [`Tally`](crate::view::Tally).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Partitions with devices that no ingest reads.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Silent sites; in the part of the fleet only.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
}

/// The hubs of a federation: the key `hubs` in its bucket, and the answer of `muster.query.hubs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubList {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `HubList`
    pub kind: kind::HubList,
    /// Hubs in the order of their names.
    pub hubs: Vec<HubLine>,
}

impl Document for HubList {
    const KIND: &'static str = "HubList";
}

/// A hub of a federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubLine {
    /// Name of the hub in this federation.
    pub name: HubName,
    /// Whether the hub answers. If it does not, its devices count as stale and their standings as unknown.
    pub heard: bool,
    /// Position of its newest part in its own LEDGER; absent if the federation never read one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<AsOf>,
    /// Time of its last answer, by the federation's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
    /// Number of its sites.
    pub sites: u64,
}
