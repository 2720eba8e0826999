//! Reports of a device: the status of a deployment, or the device's capabilities. Both share one sequence of numbers.
//!
//! The subject names the device and its site; the body does not.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical::Digest;
use crate::decode::{self, Document, Refusal, Violation};
use crate::evidence::{Fidelity, Provenance};
use crate::ids::{DeploymentId, Epoch, Generation, Seq};
use crate::limits::{COMPONENTS_MAX, RETRIES_MAX};
use crate::ranges::SeqRanges;
use crate::retry::{self, Retry};
use crate::state::{ComponentStatus, DeploymentStatus};
use crate::version::{ApiVersion, kind};

/// `muster.report.<site>.<device>`: one change of one deployment, with the full state after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `StatusReport`
    pub kind: kind::StatusReport,
    /// The device's epoch.
    pub epoch: Epoch,
    /// The report's number within the epoch.
    pub seq: Seq,
    /// The highest number that the device had given at the moment of sending.
    pub head: Seq,
    /// When the device observed it, by its own clock: for people, never for order.
    pub observed_at: Timestamp,
    /// The deployment.
    pub deployment: DeploymentId,
    /// The generation being applied (Margo's adoptedManifestVersion).
    pub generation: Generation,
    /// Digest of the entry being applied.
    pub digest: Digest,
    /// Margo's status.
    pub status: DeploymentStatus,
    /// One entry for every component, from the first report on.
    #[schemars(length(max = COMPONENTS_MAX))]
    pub components: Vec<ComponentStatus>,
    /// The components that are tried again after an error: in every report from the first error on, until a success has held.
    /// Agents of earlier releases leave it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RETRIES_MAX))]
    pub retries: Vec<Retry>,
    /// True if no later report of this deployment exists up to `head`.
    pub current: bool,
    /// Numbers of reports folded into this one.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
    /// How the report reached the hub; absent if the device sent it.
    #[serde(default, skip_serializing_if = "Provenance::is_push")]
    pub origin: Provenance,
    /// Which part of the changes the reports show; absent if every change is one. A report of another kind is no sign of life of
    /// its device.
    #[serde(default, skip_serializing_if = "Fidelity::is_event")]
    pub fidelity: Fidelity,
}

/// `muster.report.<site>.<device>`: the device's capabilities. The first report of every epoch, and again on change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapabilitiesReport {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `CapabilitiesReport`
    pub kind: kind::CapabilitiesReport,
    /// The device's epoch.
    pub epoch: Epoch,
    /// The report's number within the epoch.
    pub seq: Seq,
    /// The highest number that the device had given at the moment of sending.
    pub head: Seq,
    /// When the device observed it, by its own clock.
    pub observed_at: Timestamp,
    /// Margo's DeviceCapabilities: cpus, memory, storage, peripherals, interfaces, supportedDeploymentTypes.
    pub properties: Map<String, Value>,
    /// Labels of the device.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Version of the agent.
    pub agent_version: String,
    /// Numbers of reports folded into this one.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
}

/// Either report: what UPLINK carries.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// A deployment's status.
    Status(StatusReport),
    /// The device's capabilities.
    Capabilities(CapabilitiesReport),
}

impl Report {
    /// Parses either report by its `kind`.
    ///
    /// # Errors
    /// A refusal that names the field and the rule.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        // Status reports are all but a few of the traffic: they are tried first and pay for no second look.
        match decode::parse::<StatusReport>(bytes) {
            Ok(report) => Ok(Self::Status(report)),
            Err(refusal) => match decode::peek(bytes).kind.as_deref() {
                Some(CapabilitiesReport::KIND) => decode::parse(bytes).map(Self::Capabilities),
                Some(StatusReport::KIND) => Err(refusal),
                Some(other) => Err(Refusal::Shape {
                    kind: "report",
                    path: "kind".to_owned(),
                    reason: format!("'{other}' is neither StatusReport nor CapabilitiesReport"),
                }),
                None => Err(refusal),
            },
        }
    }

    /// Its epoch.
    pub const fn epoch(&self) -> Epoch {
        match self {
            Self::Status(report) => report.epoch,
            Self::Capabilities(report) => report.epoch,
        }
    }

    /// Its number.
    pub const fn seq(&self) -> Seq {
        match self {
            Self::Status(report) => report.seq,
            Self::Capabilities(report) => report.seq,
        }
    }

    /// The head it advertises.
    pub const fn head(&self) -> Seq {
        match self {
            Self::Status(report) => report.head,
            Self::Capabilities(report) => report.head,
        }
    }

    /// Numbers folded into it.
    pub const fn coalesced(&self) -> &SeqRanges {
        match self {
            Self::Status(report) => &report.coalesced,
            Self::Capabilities(report) => &report.coalesced,
        }
    }

    /// When the device saw it.
    pub const fn observed_at(&self) -> Timestamp {
        match self {
            Self::Status(report) => report.observed_at,
            Self::Capabilities(report) => report.observed_at,
        }
    }
}

fn check_numbers(seq: Seq, head: Seq, coalesced: &SeqRanges) -> Result<(), Violation> {
    if head < seq {
        return Err(Violation::at("head", format!("{head} is below the report's own seq {seq}")));
    }
    if let Some(top) = coalesced.max().filter(|top| *top >= seq.get()) {
        return Err(Violation::at("coalesced", format!("{top} is not below the report's own seq {seq}")));
    }
    Ok(())
}

/// Up to so many are compared each with each: every report and every fact is looked at so, and a set costs more.
const FEW_COMPONENTS: usize = 8;

pub(crate) fn check_components(components: &[ComponentStatus]) -> Result<(), Violation> {
    if components.len() > COMPONENTS_MAX {
        let rule = format!("has {} entries; {COMPONENTS_MAX} are allowed", components.len());
        return Err(Violation::at("components", rule));
    }
    let few = components.len() <= FEW_COMPONENTS;
    let mut names = BTreeSet::new();
    for (at, component) in components.iter().enumerate() {
        let before = &components[..at];
        let again = if few {
            before.iter().any(|other| other.name == component.name)
        } else {
            !names.insert(&component.name)
        };
        if again {
            let rule = format!("'{}' is there twice", component.name);
            return Err(Violation::at(format!("components[{at}].name"), rule));
        }
        if let Some(error) = &component.error {
            error.check().map_err(|broken| broken.within(format!("components[{at}].error")))?;
        }
    }
    Ok(())
}

impl Document for StatusReport {
    const KIND: &'static str = "StatusReport";

    fn check(&self) -> Result<(), Violation> {
        check_numbers(self.seq, self.head, &self.coalesced)?;
        self.status.check()?;
        check_components(&self.components)?;
        retry::check(&self.retries)
    }
}

impl Document for CapabilitiesReport {
    const KIND: &'static str = "CapabilitiesReport";

    fn check(&self) -> Result<(), Violation> {
        check_numbers(self.seq, self.head, &self.coalesced)
    }
}
