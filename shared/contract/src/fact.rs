//! Facts: the messages of LEDGER. Each fact is complete in itself, so the newest one of a subject supersedes the older ones.

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
use crate::limits::{COMPONENTS_MAX, QUARANTINE_EXCERPT_BYTES_MAX, RETRIES_MAX};
pub use crate::liveness::{Account, Liveness, LivenessFact};
use crate::quarantine::QuarantineVerdict;
use crate::ranges::SeqRanges;
use crate::report::{CapabilitiesReport, StatusReport, check_components};
use crate::retry::{self, Retry};
use crate::state::{ComponentStatus, DeploymentStatus};
use crate::subjects::LedgerSubject;
use crate::version::{ApiVersion, kind};

pub use crate::evidence::{Fidelity, Provenance};
pub use crate::incident::{Incident, IncidentKind};
pub use crate::ownership::Ownership;
pub use crate::pulse::{Hearing, HearingFact, PulseFact};

/// `muster.status.<site>.<device>.<deployment>`: a status report that ingest accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatusFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `StatusFact`
    pub kind: kind::StatusFact,
    /// The epoch of the report.
    pub epoch: Epoch,
    /// The number of the report within its epoch.
    pub seq: Seq,
    /// The highest number that the device had given when it sent the report.
    pub head: Seq,
    /// When the device observed this state, by its own clock; for people.
    pub observed_at: Timestamp,
    /// The deployment.
    pub deployment: DeploymentId,
    /// The generation of desired state that the report is about.
    pub generation: Generation,
    /// The digest of the deployment's desired entry that the report is about.
    pub digest: Digest,
    /// The state of the deployment as a whole.
    pub status: DeploymentStatus,
    /// The state of each component.
    #[schemars(length(max = COMPONENTS_MAX))]
    pub components: Vec<ComponentStatus>,
    /// The components that the device tries again after an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RETRIES_MAX))]
    pub retries: Vec<Retry>,
    /// When the first attempt at this target began, or the first since a success that held, in hub time. Absent where the
    /// deployment is at an end, in a late report, and in facts of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_attempt_at: Option<Timestamp>,
    /// True if no later report of this deployment existed up to `head`.
    pub current: bool,
    /// Numbers of reports that the device folded into this one.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
    /// When UPLINK stored the report, by the hub's clock.
    pub received_at: Timestamp,
    /// How the report reached the hub.
    #[serde(default)]
    pub origin: Provenance,
    /// Which part of the changes the reports show.
    #[serde(default)]
    pub fidelity: Fidelity,
    /// A later report of this deployment was a fact already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// The same fact, re-asserted before it ages out.
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
            origin,
            fidelity,
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
            origin,
            fidelity,
            late,
            reasserted: false,
        }
    }
}

/// `muster.device.<site>.<device>`: a capabilities report that ingest accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `DeviceFact`
    pub kind: kind::DeviceFact,
    /// The epoch of the report.
    pub epoch: Epoch,
    /// The number of the report within its epoch.
    pub seq: Seq,
    /// The highest number that the device had given when it sent the report.
    pub head: Seq,
    /// When the device observed this, by its own clock; for people.
    pub observed_at: Timestamp,
    /// The device's properties, as Margo's DeviceCapabilities names them.
    pub properties: Map<String, Value>,
    /// The device's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The version of its agent.
    pub agent_version: String,
    /// Numbers of reports that the device folded into this one.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub coalesced: SeqRanges,
    /// When UPLINK stored the report, by the hub's clock.
    pub received_at: Timestamp,
    /// The same fact, re-asserted before it ages out.
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

/// `muster.deadline.<site>.<device>.<deployment>`: a deadline passed, by the hub's clock. Written once; void for a later
/// generation, and for a first attempt that began later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadlineFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// Always `DeadlineFact`. The contract calls the reason of the deadline `kind` as well; on the wire that is
    /// `deadline`, because one object cannot have the key twice.
    pub kind: kind::DeadlineFact,
    /// The target generation that missed its deadline.
    pub generation: Generation,
    /// The missed deadline.
    pub deadline: DeadlineKind,
    /// When the time began to count, by the hub's clock.
    pub since: Timestamp,
    /// The time that the deployment had, in seconds.
    pub limit_seconds: u64,
}

/// `muster.quarantine.<site>.<device>`: a message that ingest rejected, with the reason and an excerpt of its payload. QUARANTINE
/// holds the whole payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuarantineFact {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `QuarantineFact`
    pub kind: kind::QuarantineFact,
    /// The fault, in words that a person can act on.
    pub reason: String,
    /// Its epoch, if one could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Its number, if one could be read: then it counts as quarantined in the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The subject it was sent to.
    pub subject: String,
    /// When UPLINK stored it.
    pub received_at: Timestamp,
    /// The first bytes of the payload, at most 1 KiB; up to 64 KiB in facts of earlier releases, which kept payloads here.
    #[schemars(extend("contentEncoding" = "base64"))]
    pub payload_base64: String,
    /// The size of the payload.
    pub bytes: u64,
    /// Messages of this device in quarantine, including this one and those of `others`.
    pub count_for_device: u64,
    /// The same fact, re-asserted before it ages out because the content of the message is still unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reasserted: bool,
    /// Further messages that this fact records: they came faster than ingest writes facts of rejections.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub others: u64,
    /// Numbers of the further messages, in the same epoch: they count as quarantined in the account, like `seq`.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    pub other_seqs: SeqRanges,
    /// Messages of this fact whose payload is lost: QUARANTINE was full or did not answer, and no device keeps them.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub not_kept: u64,
}

impl QuarantineFact {
    /// The excerpt of a payload: base64 of at most the contract's limit.
    pub fn encode_payload(payload: &[u8]) -> String {
        BASE64.encode(&payload[..payload.len().min(QUARANTINE_EXCERPT_BYTES_MAX)])
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
    /// The desired state of a device.
    Desired(DesiredState),
    /// The state of a deployment on a device.
    Status(StatusFact),
    /// The capabilities of a device.
    Device(DeviceFact),
    /// The freshness of a device.
    Liveness(LivenessFact),
    /// A deadline that passed.
    Deadline(DeadlineFact),
    /// An incident of a device or of the hub.
    Incident(Incident),
    /// A rejected message.
    Quarantine(QuarantineFact),
    /// The verdict on a message in quarantine.
    Verdict(QuarantineVerdict),
    /// The owner of a partition; it changes no view.
    Ownership(Ownership),
    /// The pulse of a partition; it changes no view.
    Pulse(PulseFact),
    /// Whether the hub listens to a partition.
    Hearing(HearingFact),
}

impl Fact {
    /// Parses a message of LEDGER.
    ///
    /// # Errors
    /// The reason why the message has no readable fact.
    pub fn of_message(
        subject: &str,
        payload: &[u8],
        checked: &mut Checked,
    ) -> Result<(LedgerSubject, Self), String> {
        let subject = LedgerSubject::parse(subject).ok_or("LEDGER has no such subject")?;
        match Self::parse_beside(&subject, payload, checked) {
            Ok(fact) => Ok((subject, fact)),
            Err(refusal) => Err(refusal.to_string()),
        }
    }

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

    /// As [`Fact::parse`], for a reader of many facts: documents equal to one checked before are not checked again.
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

    /// Serializes the fact; [`Fact::parse`] reads it.
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
