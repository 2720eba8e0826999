//! Answer of `muster.query.why`: the rule behind a deployment's verdict, the standings that make the rule hold, and the facts
//! behind each standing.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::desired_refusal::DesiredRefusal;
use crate::host::Host;
use crate::ids::{DeploymentId, DeviceKey, Epoch, Generation, HubName, Seq};
use crate::pulse::HubHearing;
use crate::silence::SilentSites;
use crate::view::{AsOf, Freshness, Standing, Verdict};

/// Answer of `muster.query.why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyAnswer {
    /// The position in LEDGER that the answer reflects.
    pub as_of: AsOf,
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its verdict.
    pub verdict: Verdict,
    /// The rule that gives the verdict, as a text. No earlier rule holds.
    pub rule: String,
    /// The number of standings that make the rule hold. The verdict depends on exactly these devices: any one of them is enough
    /// for it, and without all of them it is another.
    pub because: u64,
    /// The number of targets, or of devices that the deployment is leaving.
    pub of: u64,
    /// The number of targets on fresh devices: if it is 0, there is no fresh evidence. Absent if the deployment has no targets,
    /// because the freshness of devices that it is leaving is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh: Option<u64>,
    /// Partitions that the hub does not listen to, if they have targets or devices that the deployment is leaving, each with its
    /// fact: the one cause why none of their devices is fresh.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Sites that are silent as a whole, with targets of this deployment.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// Targets whose devices refuse their desired state, one entry for each code: they run the state that they accepted last, whatever the
    /// verdict is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedTargets>,
    /// In an answer about several hubs, the hubs that have the deployment, by name. `asOf.ledgerSeq` is then the sum of their
    /// sequences, and no position in any LEDGER.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<WhyHub>,
    /// The standings, ordered by site and device. If the query names a device, its standing alone, even if the verdict does not
    /// depend on it.
    pub standings: Vec<Because>,
    /// `after` of the next page, if there may be one. One answer looks at a bounded number of devices, so a page that is not the
    /// last may be short or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Targets whose devices refuse their desired state for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedTargets {
    /// The number of targets.
    pub targets: u64,
    /// The device that has refused for longest.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Its refusal.
    pub refusal: DesiredRefusal,
}

/// The part of one hub of several in a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyHub {
    /// Its name in the federation.
    pub name: HubName,
    /// The position in its LEDGER that its part reflects; absent if it never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<AsOf>,
    /// The verdict on its devices alone. The hubs whose own verdict equals the whole verdict cause it.
    pub verdict: Verdict,
    /// The number of its standings that make the rule hold.
    pub because: u64,
    /// False if it does not answer: its devices then count as stale and not known, and the answer has none of its facts.
    pub heard: bool,
    /// When it last answered, by the federation's clock, if it does not answer now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
}

/// A standing and the facts behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Because {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// The standing.
    pub standing: Standing,
    /// The freshness of the device.
    pub freshness: Freshness,
    /// The deployment that hosts the device, if its label names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosted_by: Option<Host>,
    /// The first rule that it fulfils.
    pub speaks_for: Verdict,
    /// A minimal set of facts that is enough for that. The newest account of the device stands for the fact that no report is
    /// missing.
    pub facts: Vec<Evidence>,
}

/// A fact of LEDGER behind a standing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// The kind of fact.
    pub kind: EvidenceKind,
    /// The hub whose LEDGER holds it, in an answer about several hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubName>,
    /// Its sequence in LEDGER.
    pub ledger_seq: u64,
    /// Its generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Its epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The number of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// When its content was observed, or began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Its content as a text.
    pub says: String,
}

/// Kinds of facts behind a standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EvidenceKind {
    /// The desired state of the device.
    Desired,
    /// The last report.
    Status,
    /// The liveness of the device.
    Liveness,
    /// The deadline that passed.
    Deadline,
    /// The fact with the highest report number, or the last of the reports up to it that arrived.
    Head,
    /// A message in quarantine that may supersede the last report.
    Quarantine,
    /// Whether the hub listens to the device's partition.
    Hearing,
}

impl Evidence {
    /// A fact of a kind with its content as a text.
    pub const fn of(kind: EvidenceKind, ledger_seq: u64, says: String) -> Self {
        Self { kind, hub: None, ledger_seq, generation: None, epoch: None, seq: None, at: None, says }
    }
}
