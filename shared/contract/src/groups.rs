//! Groups: the counts of all devices with one label, and questions about them on `muster.query.{labels,groups,group}`.
//!
//! A group's view has the shape of a site's. Groups of one label and the devices without it add up to the fleet.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::Document;
use crate::explained::Explained;
use crate::ids::{DeploymentId, LabelKey, LabelValue, ViewName};
use crate::point::Point;
use crate::standing_part::StandingPart;
use crate::version::{ApiVersion, kind};
use crate::view::{AsOf, Split, Tally};

/// `group.<label>.<value>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupView {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `GroupView`
    pub kind: kind::GroupView,
    /// The label.
    pub label: LabelKey,
    /// The value of the label on the counted devices.
    pub value: LabelValue,
    /// The counts.
    #[serde(flatten)]
    pub tally: Tally,
}

impl Document for GroupView {
    const KIND: &'static str = "GroupView";
}

/// A question about groups or defined views. Every field is optional on the wire; which are needed depends on the
/// endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupQuery {
    /// A label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelKey>,
    /// A value of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<LabelValue>,
    /// A deployment: its standings alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<DeploymentId>,
    /// A defined view.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view: Option<ViewName>,
    /// Most rows wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Rows after this one: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The point in time; the present if absent. Defined views exist for the present only.
    #[serde(flatten)]
    pub point: Point,
}

/// Answer of `muster.query.labels`: what devices are grouped by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelsAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The labels, by name.
    pub labels: Vec<LabelLine>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabelLine {
    /// Its name.
    pub label: LabelKey,
    /// How many values it has.
    pub values: u64,
    /// Devices that have it.
    pub devices: Split,
    /// Devices that do not.
    pub without: Split,
}

/// Answer of `muster.query.groups`: the fleet, or a deployment, by one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupsAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The label.
    pub label: LabelKey,
    /// The deployment whose standings are counted; those of all where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentId>,
    /// Everything together: the groups of all pages, and `without`.
    pub total: Explained<StandingPart>,
    /// The groups by value. Of a deployment only those that have it.
    pub groups: Vec<GroupLine>,
    /// The standings outside every group, on devices without the label. It has no times, because no counts are kept of these devices.
    pub without: Explained<StandingPart>,
    /// There is more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One group in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupLine {
    /// The value of the label.
    pub value: LabelValue,
    /// All its devices by freshness, also those without a standing here.
    pub devices: Split,
    /// Its standings.
    #[serde(flatten)]
    pub part: Explained<StandingPart>,
}

/// Answer of `muster.query.views`: which views are defined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ViewsAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The definitions by name, each with how far it is counted.
    pub views: Vec<ViewLine>,
}

/// One defined view in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ViewLine {
    /// The definition.
    pub definition: crate::defined::ViewDefinition,
    /// False while devices are still being counted, after the definition or the rollup is new.
    pub ready: bool,
    /// Groups it has, listed or not.
    pub groups: u64,
    /// More views are defined than are counted, and this is one beyond those: it waits until another is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncounted: bool,
}

/// Request of `muster.view.remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoveViewRequest {
    /// The view.
    pub name: ViewName,
}

/// Answer of `muster.view.apply` and `muster.view.remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ViewAnswer {
    /// The view.
    pub name: ViewName,
    /// False where it was so before.
    pub changed: bool,
    /// When the rollup took it.
    pub at: Timestamp,
}
