//! Why a deployment has its verdict: the rule, the standings that make it hold, and the facts that make those. Asked with a
//! [`Query`](crate::query::Query) on `muster.query.why`.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{DeploymentId, DeviceKey, Epoch, Generation, HubName, Seq};
use crate::pulse::HubHearing;
use crate::silence::SilentSites;
use crate::view::{AsOf, Freshness, Standing, Verdict};

/// Answer of `muster.query.why`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyAnswer {
    /// Up to where the answer has read.
    pub as_of: AsOf,
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its verdict.
    pub verdict: Verdict,
    /// The rule that gives it, in words. No rule before it holds.
    pub rule: String,
    /// Standings that make the rule hold: without these devices the verdict is another, with any one of them it is the same,
    /// and without any other device it is the same.
    pub because: u64,
    /// Of so many: targets, or devices that it is leaving.
    pub of: u64,
    /// So many of those targets are on devices that are heard: where none is, there is no fresh evidence. Absent where devices
    /// are only left, of which nobody counts how they are heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh: Option<u64>,
    /// Partitions with targets, or devices it is leaving, that the hub does not listen to, each with the
    /// fact that says so: the one cause of the freshness of all their devices.
    #[serde(default, skip_serializing_if = "HubHearing::is_whole")]
    pub hub: HubHearing,
    /// Sites that are silent as a whole, with targets of this deployment.
    #[serde(default, skip_serializing_if = "SilentSites::is_empty")]
    pub silent_sites: SilentSites,
    /// Where the answer is of several hubs: those that have it, by name. `asOf.ledgerSeq` is the sum of their sequences then,
    /// and no place in any LEDGER.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<WhyHub>,
    /// The standings, ordered by site and device; of one device its standing, whether or not it is one of them.
    pub standings: Vec<Because>,
    /// There may be more: ask again with this as `after`. One answer looks at a bounded number of devices, so a page may be
    /// short, or empty, and not the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What one hub of several has to do with a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhyHub {
    /// Its name in the federation.
    pub name: HubName,
    /// Up to where what is told of it has read, in its own LEDGER; absent where it was never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<AsOf>,
    /// The verdict on what it has alone. The hubs whose own verdict is that of the whole are those that make it.
    pub verdict: Verdict,
    /// Its standings that make the rule of the whole hold, wherever at the hub they are.
    pub because: u64,
    /// False where it does not answer: its devices count as stale then and nothing of them as known, and no facts of it are
    /// named.
    pub heard: bool,
    /// When it last answered, where it does not answer now, by the federation's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Timestamp>,
}

/// A standing and the facts that make it what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Because {
    /// The device.
    #[serde(flatten)]
    pub key: DeviceKey,
    /// Where it stands.
    pub standing: Standing,
    /// Whether that is fresh.
    pub freshness: Freshness,
    /// The first rule that it makes hold.
    pub speaks_for: Verdict,
    /// The facts that are enough for that, none of which can be left out. Where it takes that all reports are in, the last
    /// word on them stands for them all.
    pub facts: Vec<Evidence>,
}

/// A fact of LEDGER that matters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// What kind of fact.
    pub kind: EvidenceKind,
    /// Whose LEDGER holds it, where the answer is of several hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubName>,
    /// Where LEDGER holds it.
    pub ledger_seq: u64,
    /// The generation it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The epoch it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The number of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// When what it says was seen, or began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// What it says, in words.
    pub says: String,
}

/// Kinds of facts that make a standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EvidenceKind {
    /// The desired state: what the device shall run.
    Desired,
    /// The last report.
    Status,
    /// Whether the device is heard.
    Liveness,
    /// The deadline that passed.
    Deadline,
    /// The fact that speaks of the highest report number, or the last of those reports to come in.
    Head,
    /// The message in quarantine that may be news.
    Quarantine,
    /// Whether the hub listens to the device's partition.
    Hearing,
}

impl Evidence {
    /// A fact of a kind and what it says.
    pub const fn of(kind: EvidenceKind, ledger_seq: u64, says: String) -> Self {
        Self { kind, hub: None, ledger_seq, generation: None, epoch: None, seq: None, at: None, says }
    }
}
