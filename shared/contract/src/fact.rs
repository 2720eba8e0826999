//! Facts: what LEDGER holds. Each is complete in itself, so the newest of a subject supersedes the older ones.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::canonical::Digest;
use crate::checked::Checked;
use crate::decode::{self, Document, Refusal, Violation};
use crate::desired::DesiredState;
use crate::ids::{DeploymentId, Epoch, Generation, Seq};
use crate::limits::{COMPONENTS_MAX, QUARANTINE_PAYLOAD_BYTES_MAX, RETRIES_MAX};
pub use crate::liveness::{Account, Liveness, LivenessFact};
use crate::quarantine::QuarantineVerdict;
use crate::ranges::SeqRanges;
use crate::report::{CapabilitiesReport, StatusReport, check_components};
use crate::retry::{self, Retry};
use crate::state::{ComponentStatus, DeploymentStatus};
use crate::subjects::LedgerSubject;
use crate::version::{ApiVersion, kind};

pub use crate::incident::{Incident, IncidentKind};
pub use crate::ownership::Ownership;
pub use crate::pulse::{Hearing, HearingFact, PulseFact};

/// How a fact reached the hub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// The device sent it.
    #[default]
    Push,
    /// Something at the hub asked for it.
    Pull,
    /// It was read from metrics.
    Metrics,
}

/// How much of what happened a fact shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fidelity {
    /// One of all changes.
    #[default]
    Event,
    /// What was so at a moment.
    Snapshot,
    /// One of some moments.
    Sampled,
}

/// `muster.status.<site>.<device>.<deployment>`: a status report as the border let it in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `StatusFact`
    pub kind: kind::StatusFact,
    /// See [`StatusReport::epoch`].
    pub epoch: Epoch,
    /// See [`StatusReport::seq`].
    pub seq: Seq,
    /// See [`StatusReport::head`].
    pub head: Seq,
    /// See [`StatusReport::observed_at`].
    pub observed_at: Timestamp,
    /// See [`StatusReport::deployment`].
    pub deployment: DeploymentId,
    /// See [`StatusReport::generation`].
    pub generation: Generation,
    /// See [`StatusReport::digest`].
    pub digest: Digest,
    /// See [`StatusReport::status`].
    pub status: DeploymentStatus,
    /// See [`StatusReport::components`].
    #[schemars(length(max = COMPONENTS_MAX))]
    pub components: Vec<ComponentStatus>,
    /// See [`StatusReport::retries`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RETRIES_MAX))]
    pub retries: Vec<Retry>,
    /// When the first attempt at this target began, or the first since a success that held, in hub time. Absent where the
    /// deployment is at an end, in a late report, and in facts of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_attempt_at: Option<Timestamp>,
    /// See [`StatusReport::current`].
    pub current: bool,
    /// See [`StatusReport::coalesced`].
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
    /// When the bus took the report in, by the hub's clock.
    pub received_at: Timestamp,
    /// How it came.
    #[serde(default)]
    pub origin: Provenance,
    /// How much it shows.
    #[serde(default)]
    pub fidelity: Fidelity,
    /// A later report of this deployment was in already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// The same fact said again before it ages out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reasserted: bool,
}

impl StatusFact {
    /// The fact that a report becomes.
    pub fn of(report: StatusReport, received_at: Timestamp, late: bool) -> Self {
        let StatusReport {
            api_version,
            kind: kind::StatusReport::StatusReport,
            epoch,
            seq,
            head,
            observed_at,
            deployment,
            generation,
            digest,
            status,
            components,
            retries,
            current,
            coalesced,
        } = report;
        Self {
            api_version,
            kind: kind::StatusFact::default(),
            epoch,
            seq,
            head,
            observed_at,
            deployment,
            generation,
            digest,
            status,
            components,
            retries,
            first_attempt_at: None,
            current,
            coalesced,
            received_at,
            origin: Provenance::Push,
            fidelity: Fidelity::Event,
            late,
            reasserted: false,
        }
    }
}

/// `muster.device.<site>.<device>`: a capabilities report as the border let it in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `DeviceFact`
    pub kind: kind::DeviceFact,
    /// See [`CapabilitiesReport::epoch`].
    pub epoch: Epoch,
    /// See [`CapabilitiesReport::seq`].
    pub seq: Seq,
    /// See [`CapabilitiesReport::head`].
    pub head: Seq,
    /// See [`CapabilitiesReport::observed_at`].
    pub observed_at: Timestamp,
    /// See [`CapabilitiesReport::properties`].
    pub properties: Map<String, Value>,
    /// See [`CapabilitiesReport::labels`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// See [`CapabilitiesReport::agent_version`].
    pub agent_version: String,
    /// See [`CapabilitiesReport::coalesced`].
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
    /// When the bus took the report in, by the hub's clock.
    pub received_at: Timestamp,
    /// The same fact said again before it ages out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reasserted: bool,
}

impl DeviceFact {
    /// The fact that a report becomes.
    pub fn of(report: CapabilitiesReport, received_at: Timestamp) -> Self {
        let CapabilitiesReport {
            api_version,
            kind: kind::CapabilitiesReport::CapabilitiesReport,
            epoch,
            seq,
            head,
            observed_at,
            properties,
            labels,
            agent_version,
            coalesced,
        } = report;
        Self {
            api_version,
            kind: kind::DeviceFact::default(),
            epoch,
            seq,
            head,
            observed_at,
            properties,
            labels,
            agent_version,
            coalesced,
            received_at,
            reasserted: false,
        }
    }
}

/// Why a standing is overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DeadlineKind {
    /// The device reported nothing for the target generation.
    NeverStarted,
    /// The device stayed in a state that is not an end.
    Stuck,
}

/// `muster.deadline.<site>.<device>.<deployment>`: hub time made a fact, once. Void for a later generation, and
/// for a first attempt that began later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadlineFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// Always `DeadlineFact`. The contract calls the reason of the deadline `kind` as well; on the wire that is
    /// `deadline`, because one object cannot have the key twice.
    pub kind: kind::DeadlineFact,
    /// The target generation it is about.
    pub generation: Generation,
    /// What did not happen.
    pub deadline: DeadlineKind,
    /// Since when it was awaited, in hub time.
    pub since: Timestamp,
    /// How long it was given.
    pub limit_seconds: u64,
}

/// `muster.quarantine.<site>.<device>`: a message that could not be let in, kept with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `QuarantineFact`
    pub kind: kind::QuarantineFact,
    /// What is wrong with it, in words a person can act on.
    pub reason: String,
    /// Its epoch, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Its number, if one could be read: then it counts as quarantined in the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The subject it was sent to.
    pub subject: String,
    /// When the bus took it in.
    pub received_at: Timestamp,
    /// Its bytes, up to 64 KiB of them.
    #[schemars(extend("contentEncoding" = "base64"))]
    pub payload_base64: String,
    /// Its real size.
    pub bytes: u64,
    /// How many messages of this device are in quarantine, with this one and those it stands for.
    pub count_for_device: u64,
    /// The same fact said again before it ages out, because what the message said is still not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reasserted: bool,
    /// Messages that it stands for beside its own: they came faster than each could have a fact.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u64,
    /// Numbers of those, in the same epoch: they count as quarantined in the account, like `seq`.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub other_seqs: SeqRanges,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl QuarantineFact {
    /// The payload as kept: base64 of at most the contract's limit.
    pub fn encode_payload(payload: &[u8]) -> String {
        BASE64.encode(&payload[..payload.len().min(QUARANTINE_PAYLOAD_BYTES_MAX)])
    }

    /// Every number that it puts into quarantine, with their epoch; `None` where none could be read.
    pub fn numbers(&self) -> Option<(Epoch, SeqRanges)> {
        crate::quarantine::numbers(self.epoch, self.seq, &self.other_seqs)
    }

    /// The bytes kept; `None` where they are not base64.
    pub fn payload(&self) -> Option<Vec<u8>> {
        BASE64.decode(&self.payload_base64).ok()
    }
}

macro_rules! documents {
    ($($name:ident),+) => { $( impl Document for $name { const KIND: &'static str = stringify!($name); } )+ };
}
documents!(DeviceFact, LivenessFact, DeadlineFact, QuarantineFact, Ownership);

impl Document for StatusFact {
    const KIND: &'static str = "StatusFact";

    fn check(&self) -> Result<(), Violation> {
        self.status.check()?;
        check_components(&self.components)?;
        retry::check(&self.retries)
    }
}

/// A fact of LEDGER, by its subject.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// What a device shall run.
    Desired(DesiredState),
    /// What a deployment on a device is.
    Status(StatusFact),
    /// What a device is.
    Device(DeviceFact),
    /// Whether a device is heard.
    Liveness(LivenessFact),
    /// What did not happen in time.
    Deadline(DeadlineFact),
    /// What a person should know.
    Incident(Incident),
    /// What could not be let in.
    Quarantine(QuarantineFact),
    /// What became of a message in quarantine: nothing to a view.
    Verdict(QuarantineVerdict),
    /// Who writes the facts of a partition: nothing to a view.
    Ownership(Ownership),
    /// That the owner of a partition hears its devices: nothing to a view.
    Pulse(PulseFact),
    /// Whether the hub listens to a partition.
    Hearing(HearingFact),
}

impl Fact {
    /// Parses the fact that a subject carries.
    ///
    /// # Errors
    /// A refusal that names the field and the rule.
    pub fn parse(subject: &LedgerSubject, bytes: &[u8]) -> Result<Self, Refusal> {
        match subject {
            LedgerSubject::Desired(_) => decode::parse(bytes).map(Self::Desired),
            LedgerSubject::Status(..) => decode::parse(bytes).map(Self::Status),
            LedgerSubject::Device(_) => decode::parse(bytes).map(Self::Device),
            LedgerSubject::Liveness(_) => decode::parse(bytes).map(Self::Liveness),
            LedgerSubject::Deadline(..) => decode::parse(bytes).map(Self::Deadline),
            LedgerSubject::Incident(_) => decode::parse(bytes).map(Self::Incident),
            LedgerSubject::Quarantine(_) => decode::parse(bytes).map(Self::Quarantine),
            LedgerSubject::Verdict(_) => decode::parse(bytes).map(Self::Verdict),
            LedgerSubject::Owner { .. } => decode::parse(bytes).map(Self::Ownership),
            LedgerSubject::Hub(_) => decode::parse(bytes).map(Self::Pulse),
            LedgerSubject::Hearing(_) => decode::parse(bytes).map(Self::Hearing),
        }
    }

    /// The same for a reader of many facts: what it has checked before is not checked again.
    ///
    /// # Errors
    /// As [`Fact::parse`].
    pub fn parse_beside(
        subject: &LedgerSubject,
        bytes: &[u8],
        checked: &mut Checked,
    ) -> Result<Self, Refusal> {
        match subject {
            LedgerSubject::Desired(_) => {
                decode::parse_by(bytes, |state| checked.check(state, bytes.len())).map(Self::Desired)
            }
            _ => Self::parse(subject, bytes),
        }
    }

    /// Writes the fact: what [`Fact::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Desired(state) => decode::to_bytes(state),
            Self::Status(fact) => decode::to_bytes(fact),
            Self::Device(fact) => decode::to_bytes(fact),
            Self::Liveness(fact) => decode::to_bytes(fact),
            Self::Deadline(fact) => decode::to_bytes(fact),
            Self::Incident(fact) => decode::to_bytes(fact),
            Self::Quarantine(fact) => decode::to_bytes(fact),
            Self::Verdict(fact) => decode::to_bytes(fact),
            Self::Ownership(record) => decode::to_bytes(record),
            Self::Pulse(pulse) => decode::to_bytes(pulse),
            Self::Hearing(fact) => decode::to_bytes(fact),
        }
    }

    /// Its `kind`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Desired(_) => DesiredState::KIND,
            Self::Status(_) => StatusFact::KIND,
            Self::Device(_) => DeviceFact::KIND,
            Self::Liveness(_) => LivenessFact::KIND,
            Self::Deadline(_) => DeadlineFact::KIND,
            Self::Incident(_) => Incident::KIND,
            Self::Quarantine(_) => QuarantineFact::KIND,
            Self::Verdict(_) => QuarantineVerdict::KIND,
            Self::Ownership(_) => Ownership::KIND,
            Self::Pulse(_) => PulseFact::KIND,
            Self::Hearing(_) => HearingFact::KIND,
        }
    }
}
