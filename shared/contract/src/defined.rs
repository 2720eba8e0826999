//! Views that people define: what to select, how to group it, what to count. A definition is a small document in the
//! bucket `views` under `definition.<name>`; what it gives is published under `view.<name>`.
//!
//! The counts of a definition are a function of LEDGER and of the definition. Every rule here concerns one device or one
//! standing alone, so that a fact changes a count without reading any other device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::explained::Explained;
use crate::ids::{DeploymentId, LabelError, LabelKey, LabelValue, SiteId, ViewName};
use crate::limits::SELECT_VALUES_MAX;
use crate::pulse::HubHearing;
use crate::standing_part::StandingPart;
use crate::state::State;
use crate::version::{ApiVersion, kind};
use crate::view::{AsOf, Complete, Freshness, Split, Standing, Verdict, keyed};

/// `definition.<name>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ViewDefinition {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `ViewDefinition`
    pub kind: kind::ViewDefinition,
    /// The name of the view.
    pub name: ViewName,
    /// The counted devices or standings; all of them if it is absent.
    #[serde(default, skip_serializing_if = "Selection::is_everything")]
    pub select: Selection,
    /// The common property of a group; one total alone if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_by: Option<GroupBy>,
    /// The unit of the counts.
    #[serde(default)]
    pub count: Counted,
}

/// The selected devices or standings. Every field must match, by any of its values. Retired devices never match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Selection {
    /// Devices with these labels: for each label any of its values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "keyed::<LabelKey, Values<LabelValue>>")]
    pub labels: BTreeMap<LabelKey, Values<LabelValue>>,
    /// Devices of these sites.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sites: Option<Values<SiteId>>,
    /// Devices that are this fresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freshness: Option<Values<Freshness>>,
    /// Standings with these deployments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployments: Option<Values<DeploymentId>>,
    /// Standings that are one of these; none that is leaving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standings: Option<Values<Standing>>,
    /// Standings that by themselves would give a deployment this verdict; `removing` are those that are leaving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<Values<Verdict>>,
}

/// Alternatives: at least one, because naming none would read as "none" and as "all".
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Values<T: Ord>(BTreeSet<T>);

/// The common property of a group: `site`, `deployment`, `component` or `label:<label>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupBy {
    /// The device's site.
    Site,
    /// The deployment.
    Deployment,
    /// The component; only where components are counted.
    Component,
    /// A label of the device.
    Label(LabelKey),
}

/// The unit of the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Counted {
    /// Pairs of device and deployment.
    #[default]
    Standings,
    /// Devices: those with a standing that is selected, or all where the selection says nothing about standings.
    Devices,
    /// Components of targets that report for their current target.
    Components,
}

/// `view.<name>`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefinedView {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `DefinedView`
    pub kind: kind::DefinedView,
    /// Its name.
    pub name: ViewName,
    /// Digest of the definition it is made by.
    pub definition: Digest,
    /// Up to where it has read.
    pub as_of: AsOf,
    /// The common property of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_by: Option<GroupBy>,
    /// The unit of the counts.
    pub count: Counted,
    /// Everything that is selected. The groups, `without` and `omitted` add up to it, but where devices are counted by
    /// deployment: there one device may be in several groups.
    pub total: CountedPart,
    /// The first groups by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<NamedPart>,
    /// The count outside every group, for devices without the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<Explained<CountedPart>>,
    /// The groups beyond the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omitted: Option<OmittedGroups>,
    /// Partitions with devices that count for anything here that the hub does not listen to.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Why the verdict on all selected standings is so; of devices and components, how the worst of them are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When a standing that is counted, or is of a counted device, last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// The newest moment at which LEDGER proves that a device that counts for anything here was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_at: Option<Timestamp>,
    /// SHA-256 of the view's canonical JSON without `asOf`, `changedAt`, `digest`, `lastHeardAt` and `message`; `groups`, `omitted`
    /// and `without` are hashed without these fields too.
    pub digest: Digest,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedPart {
    /// The value that its members share.
    pub name: String,
    /// Its counts. In a fleet of more than 20,000 devices, a time is absent from when its device leaves the group until a newer time
    /// comes.
    #[serde(flatten)]
    pub part: Explained<CountedPart>,
}

/// Groups that are not listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OmittedGroups {
    /// How many there are.
    pub groups: u64,
    /// Their counts together.
    #[serde(flatten)]
    pub part: Explained<CountedPart>,
}

/// The counts of a part of the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CountedPart {
    /// Standings.
    Standings(StandingPart),
    /// Devices.
    Devices(DevicePart),
    /// Components.
    Components(ComponentPart),
}

/// Counts over devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DevicePart {
    /// By freshness.
    pub devices: Split,
    /// The number of them with complete reports.
    pub complete: Complete,
}

/// Counts over components.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComponentPart {
    /// By state.
    #[schemars(schema_with = "keyed::<State, u64>")]
    pub components: BTreeMap<State, u64>,
    /// The number of their targets with a known standing.
    pub complete: Complete,
}

impl Selection {
    /// True where nothing is left out.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// True where nothing is said about standings.
    pub const fn is_of_devices(&self) -> bool {
        self.deployments.is_none() && self.standings.is_none() && self.verdicts.is_none()
    }

    fn check(&self) -> Result<(), Violation> {
        let labels = self.labels.iter().map(|(label, values)| (format!("labels.{label}"), values.0.len()));
        let named = [
            ("labels", self.labels.len()),
            ("sites", self.sites.as_ref().map_or(0, Values::len)),
            ("deployments", self.deployments.as_ref().map_or(0, Values::len)),
        ];
        let named = named.into_iter().map(|(field, count)| (field.to_owned(), count));
        let mut beyond = named.chain(labels).filter(|(_, count)| *count > SELECT_VALUES_MAX);
        if let Some((field, count)) = beyond.next() {
            return Err(Violation::at(field, format!("has {count} values; {SELECT_VALUES_MAX} are allowed")));
        }
        if self.verdicts.as_ref().is_some_and(|verdicts| verdicts.contains(&Verdict::Empty)) {
            return Err(Violation::at("verdicts", "no standing makes a deployment empty: leave it out"));
        }
        Ok(())
    }
}

impl Document for ViewDefinition {
    const KIND: &'static str = "ViewDefinition";

    fn check(&self) -> Result<(), Violation> {
        self.select.check().map_err(|broken| broken.within("select"))?;
        if self.group_by == Some(GroupBy::Component) && self.count != Counted::Components {
            let rule = "component needs count: components, because a standing has several of them";
            return Err(Violation::at("groupBy", rule));
        }
        Ok(())
    }
}

impl ViewDefinition {
    /// The digest by which two definitions differ.
    pub fn digest(&self) -> Digest {
        Digest::of_value(self)
    }
}

impl Document for DefinedView {
    const KIND: &'static str = "DefinedView";
}

impl<T: Ord> Values<T> {
    /// Whether a value is one of them.
    pub fn contains(&self, value: &T) -> bool {
        self.0.contains(value)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'de, T: Ord + Deserialize<'de>> Deserialize<'de> for Values<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeSet::deserialize(deserializer)?;
        if values.is_empty() {
            return Err(serde::de::Error::custom("names nothing: name one at least, or leave the field out"));
        }
        Ok(Self(values))
    }
}

impl<T: Ord + JsonSchema> JsonSchema for Values<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Values_of_{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array", "items": generator.subschema_for::<T>(),
            "minItems": 1, "maxItems": SELECT_VALUES_MAX, "uniqueItems": true
        })
    }
}

/// Why a text is nothing to group by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GroupByError {
    /// No such word.
    #[error("'{0}' is nothing to group by; there are site, deployment, component and label:<label>")]
    Unknown(String),
    /// The text after `label:` is no label.
    #[error(transparent)]
    Label(#[from] LabelError),
}

impl FromStr for GroupBy {
    type Err = GroupByError;
    fn from_str(text: &str) -> Result<Self, GroupByError> {
        match text {
            "site" => Ok(Self::Site),
            "deployment" => Ok(Self::Deployment),
            "component" => Ok(Self::Component),
            _ => match text.strip_prefix("label:") {
                Some(label) => Ok(Self::Label(label.parse()?)),
                None => Err(GroupByError::Unknown(text.chars().take(80).collect())),
            },
        }
    }
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Site => f.write_str("site"),
            Self::Deployment => f.write_str("deployment"),
            Self::Component => f.write_str("component"),
            Self::Label(label) => write!(f, "label:{label}"),
        }
    }
}

impl Serialize for GroupBy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GroupBy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parse(deserializer)
    }
}

impl JsonSchema for GroupBy {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GroupBy".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^(site|deployment|component|label:[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)$",
            "description": "The common property of a group."
        })
    }
}
