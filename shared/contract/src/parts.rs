//! Parts: what one hub gives to a federation of hubs, so that counts can be added. Asked for on `muster.query.parts`.
//!
//! A view leaves out the rarest errors and does not tell who counts in which group, so views do not add up. A part says
//! the same unabridged. The parts of hubs whose sites are disjoint give, added, exactly the views of one hub that has all
//! those sites.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::decode::Document;
use crate::groups::StandingPart;
use crate::ids::{ComponentName, HubName, LabelKey, LabelValue};
use crate::pulse::HubHearing;
use crate::silence::SilentSites;
use crate::state::State;
use crate::version::{ApiVersion, kind};
use crate::view::{AsOf, Complete, ErrorCount, Split};

/// Views whose parts one question asks for.
pub const PARTS_MAX: usize = 64;
/// Hubs of one federation. Sums of counts of so many stay within their type.
pub const HUBS_MAX: usize = 64;
/// Standings of one hub that a sum takes.
pub const HUB_STANDINGS_MAX: u64 = (u32::MAX as usize / HUBS_MAX) as u64;
/// Key of the document [`HubList`] in the bucket `views` of a federation.
pub const HUBS_KEY: &str = "hubs";

/// A question for parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PartsQuery {
    /// Keys of views: `deployment.<id>`, `group.<label>.<value>`, `fleet`. The part of a site is its view.
    #[schemars(length(max = PARTS_MAX))]
    pub keys: Vec<String>,
    /// Rows of the part that the asker has already: `next` of what came before. For one key only.
    #[serde(skip_serializing_if = "crate::omit::is_zero")]
    pub skip: u64,
}

/// Answer of `muster.query.parts`. A key that is neither in `parts` nor in `gone` did not fit: ask again for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartsAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The parts by key.
    pub parts: BTreeMap<String, Part>,
    /// Keys of which there is nothing to count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

/// The part that a hub has in a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum Part {
    /// Of a deployment.
    DeploymentPart(Box<DeploymentPart>),
    /// Of the fleet or of a group.
    TallyPart(Box<TallyPart>),
}

impl Part {
    /// Rows that it shows.
    pub const fn rows(&self) -> usize {
        match self {
            Self::DeploymentPart(part) => part.rows(),
            Self::TallyPart(_) => 0,
        }
    }
}

/// What a hub has of a deployment. It comes in as many answers as its rows need: components by name, then errors by code,
/// then groups by label and value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentPart {
    /// Its standings.
    pub standings: StandingPart,
    /// See [`DeploymentView::deployment_name`](crate::view::DeploymentView::deployment_name).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deployment_name: String,
    /// See [`DeploymentView::changed_at`](crate::view::DeploymentView::changed_at).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// See [`DeploymentView::last_heard_at`](crate::view::DeploymentView::last_heard_at).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Sites that are silent as a whole, with targets of it.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// Partitions with targets, or devices it is leaving, that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Rows that came before those here.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub skipped: u64,
    /// Where it comes in several answers: what tells the whole of it from any other. Answers that differ in it are of
    /// different moments and are not to be put together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Digest>,
    /// States of components, over the targets that report for their current target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<ComponentCount>,
    /// Errors of failed targets, each code with its first device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorCount>,
    /// Its standings by group; groups without any are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupShare>,
    /// There are more rows: ask again with this as `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl DeploymentPart {
    /// Rows that it shows.
    pub const fn rows(&self) -> usize {
        self.components.len() + self.errors.len() + self.groups.len()
    }
}

/// A component and how often it is in which state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComponentCount {
    /// Its name.
    pub name: ComponentName,
    /// Targets by its state.
    #[schemars(schema_with = "crate::view::keyed::<State, u64>")]
    pub states: BTreeMap<State, u64>,
}

/// A group's share of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupShare {
    /// The label.
    pub label: LabelKey,
    /// What it says of the devices counted here.
    pub value: LabelValue,
    /// Their standings.
    pub standings: StandingPart,
}

/// What a hub has of the fleet, or of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TallyPart {
    /// Devices by freshness; retired ones are not counted.
    pub devices: Split,
    /// Devices of which everything is known, of all devices.
    pub complete: Complete,
    /// The standings of all deployments together.
    pub standings: StandingPart,
    /// See [`Tally::changed_at`](crate::view::Tally::changed_at).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// See [`Tally::last_heard_at`](crate::view::Tally::last_heard_at).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// Partitions with devices that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Of the fleet: sites that are silent as a whole.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
}

/// `hubs` in the bucket of a federation, and the answer of `muster.query.hubs`: whose counts are added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubList {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `HubList`
    pub kind: kind::HubList,
    /// The hubs by name.
    pub hubs: Vec<HubLine>,
}

impl Document for HubList {
    const KIND: &'static str = "HubList";
}

/// A hub of a federation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubLine {
    /// Its name in this federation.
    pub name: HubName,
    /// False while it does not answer: its devices are counted as stale then, and nothing of them as known.
    pub heard: bool,
    /// Up to where its newest part has read, in its own LEDGER; absent where it was never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<AsOf>,
    /// When it last answered, by the federation's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
    /// How many sites it has.
    pub sites: u64,
}
