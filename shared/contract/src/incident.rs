//! Incidents: what a person should know of a device or of the hub; and the request by which a service has ingest record
//! one. Ingest alone writes incidents. An incident of the hub itself is about no device.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::Digest;
use crate::decode::{Document, Violation};
use crate::desired_refusal::DesiredRefusal;
use crate::ids::{DeploymentId, DeviceId, DeviceKey, Epoch, Generation, Seq, SiteId};
use crate::limits::ERROR_MESSAGE_BYTES_MAX;
use crate::ranges::SeqRanges;
use crate::version::{ApiVersion, kind};
use crate::view::AsOf;

/// How long an incident of the hub is shown after its newest occurrence, in seconds of hub time: a day.
pub const HUB_INCIDENT_SHOWN_SECONDS: u64 = 24 * 60 * 60;

/// `muster.incident.<site>.<device>`: something about a device that a person should know. `muster.incident._._`: the
/// same about the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// `muster/v1`
    pub api_version: ApiVersion,
    /// `Incident`
    pub kind: kind::Incident,
    /// When the hub saw it.
    pub at: Timestamp,
    /// The kind of the incident, with its evidence.
    #[serde(flatten)]
    pub what: IncidentKind,
    /// Incidents of the same type that ingest did not record before this one, because they came too fast.
    #[serde(default, skip_serializing_if = "crate::omit::is_zero")]
    pub others: u64,
}

impl Incident {
    /// An incident that stands for itself alone.
    pub const fn new(at: Timestamp, what: IncidentKind) -> Self {
        Self { api_version: ApiVersion::V1, kind: kind::Incident::Incident, at, what, others: 0 }
    }
}

impl Document for Incident {
    const KIND: &'static str = "Incident";
}

/// The incidents, each with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum IncidentKind {
    /// The device lost its memory and began a new epoch.
    Amnesia {
        /// The epoch known before.
        known_epoch: Epoch,
        /// The new one.
        epoch: Epoch,
    },
    /// A report of an older epoch arrived after one of a newer: two devices share one identity, or one was restored from a copy.
    Clone {
        /// The epoch known.
        known_epoch: Epoch,
        /// The older one that spoke.
        epoch: Epoch,
        /// Its number.
        seq: Seq,
    },
    /// One number came with two contents.
    SequenceFork {
        /// The epoch.
        epoch: Epoch,
        /// The number.
        seq: Seq,
        /// Digest of the content held.
        held: Digest,
        /// Digest of the other content.
        other: Digest,
    },
    /// The device's clock is off.
    ClockSkew {
        /// Seconds the device is ahead of the hub (negative: behind).
        seconds: i64,
    },
    /// Numbers are missing although later ones came.
    Gap {
        /// The epoch.
        epoch: Epoch,
        /// The numbers.
        missing: SeqRanges,
    },
    /// Nothing is missing any more.
    GapClosed {
        /// The epoch.
        epoch: Epoch,
        /// Everything up to here is held.
        through: u64,
    },
    /// A device that was retired still reports.
    RetiredButAlive {
        /// The generation that retired it.
        generation: Generation,
    },
    /// The device cannot run a deployment of its desired state, because its agent has no runtime for the profile. It runs its other
    /// deployments.
    ProfileUnsupported {
        /// The deployment.
        deployment: DeploymentId,
        /// The generation that the report names.
        generation: Generation,
        /// The message of the device's error.
        message: String,
    },
    /// The device refused its desired state: the one that it accepted last stays in force.
    DesiredRefused(DesiredRefusal),
    /// The device no longer refuses its desired state.
    DesiredAccepted {
        /// The generation that it holds; 0 for none.
        generation: u64,
        /// `since` of the refusal that ended.
        refused_since: Timestamp,
    },
    /// DOWNLINK held a document for the device that the publisher did not write, or lost the one that it wrote, or held a
    /// receipt that ingest did not write. The publisher publishes the right document again, with a higher generation;
    /// ingest writes the right receipt.
    ForeignDocument {
        /// The sequence of the foreign message in DOWNLINK; 0 where the document is missing.
        downlink_seq: u64,
        /// The fault of the document.
        cause: ForeignDocument,
        /// The same in words.
        reason: String,
        /// The generation that the foreign message claims, if it claims one that a device can have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<Generation>,
    },
    /// The bucket `views` held something that the rollup did not write, or lost a view. The rollup removes a foreign key
    /// and writes its own view in the place of a foreign value.
    ForeignView {
        /// The key; its first 256 bytes where it is longer.
        key: String,
        /// The revision of the foreign entry; 0 where the view is missing.
        revision: u64,
        /// The fault of the view.
        cause: ForeignView,
    },
    /// LEDGER was deleted, emptied, recreated or set back while services ran, or since they ran last.
    LedgerReplaced {
        /// When the LEDGER that was known before was created.
        known_created_at: Timestamp,
        /// The last sequence that was known of it.
        known_seq: u64,
        /// When the LEDGER that holds this fact was created.
        created_at: Timestamp,
        /// Its last sequence when the replacement was seen.
        last_seq: u64,
    },
    /// A credential has more connections than it may have.
    ConnectionsExceeded {
        /// The public key of the user.
        key: String,
        /// The name in the user's token.
        name: String,
        /// The most connections that were open at once.
        connections: u64,
        /// How many connections the key may have.
        limit: u64,
        /// Connections that were ended since the last incident of this key.
        disconnected: u64,
    },
    /// A tenth or less is left of the life of the device's token. The first of an end counts; another of the same end changes
    /// nothing.
    TokenEnding {
        /// When the token was issued.
        issued_at: Timestamp,
        /// When it ends: the device is out then.
        ends_at: Timestamp,
    },
    /// A token that was ending has been followed by a newer one. Without an end before it, it changes nothing.
    TokenRenewed {
        /// When the newer one ends.
        ends_at: Timestamp,
    },
    /// LEDGER holds nearly as many bytes as it may.
    LedgerNearlyFull {
        /// Bytes held.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// QUARANTINE refused a rejected report, because it holds as much as it may. Devices keep such reports.
    QuarantineFull {
        /// The bound that it has reached.
        bound: QuarantineBound,
        /// Reports of one sender, or bytes of all, that it may hold.
        limit: u64,
    },
}

/// A bound of QUARANTINE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QuarantineBound {
    /// Reports of one sender: of the device, or, as an incident of the hub, of all senders without a valid name.
    Reports,
    /// Bytes of all reports.
    Bytes,
}

/// The fault of a document in DOWNLINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ForeignDocument {
    /// It has no payload.
    Empty,
    /// It is no document of the contract.
    Unreadable,
    /// It has the shape of a document and breaks a rule of it, as a digest that is not the content's.
    Damaged,
    /// Its headers do not name a publisher, this device and this generation as a publisher's do.
    NotPublished,
    /// It is not newer than the document before it, and says something else.
    Stale,
    /// It names the publisher's commit, and says something else than the commit.
    Contradicts,
    /// There is no document any more.
    Missing,
}

/// The fault of an entry of the bucket `views`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ForeignView {
    /// The key is none of the contract, or of a view that the fleet does not have.
    Key,
    /// The value is no view.
    NoView,
    /// The digest of the view is not the digest of its content.
    Damaged,
    /// It is of an earlier moment than the view before it.
    Stale,
    /// It is of a moment that LEDGER has not reached.
    Unreached,
    /// It is of the moment that the rollup has read to, and says something else.
    Contradicts,
    /// The view was deleted, by somebody who is no rollup.
    Deleted,
    /// There is no entry any more.
    Missing,
}

/// The code of the error with which an agent reports a deployment whose profile it has no runtime for.
pub const UNSUPPORTED_PROFILE: &str = "UnsupportedProfile";

impl IncidentKind {
    /// Whether a service has ingest record it by a request. Ingest finds the others itself, in what devices send, and those of
    /// tokens as well.
    pub const fn is_requested(&self) -> bool {
        matches!(
            self,
            Self::ForeignDocument { .. }
                | Self::ForeignView { .. }
                | Self::LedgerReplaced { .. }
                | Self::ConnectionsExceeded { .. }
                | Self::TokenEnding { .. }
                | Self::TokenRenewed { .. }
                | Self::LedgerNearlyFull { .. }
                | Self::QuarantineFull { .. }
        )
    }

    /// Whether it is about the end of a device's token.
    pub const fn is_of_token(&self) -> bool {
        matches!(self, Self::TokenEnding { .. } | Self::TokenRenewed { .. })
    }

    /// Its type, as documents have it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Amnesia { .. } => "amnesia",
            Self::Clone { .. } => "clone",
            Self::SequenceFork { .. } => "sequenceFork",
            Self::ClockSkew { .. } => "clockSkew",
            Self::Gap { .. } => "gap",
            Self::GapClosed { .. } => "gapClosed",
            Self::RetiredButAlive { .. } => "retiredButAlive",
            Self::ProfileUnsupported { .. } => "profileUnsupported",
            Self::DesiredRefused(_) => "desiredRefused",
            Self::DesiredAccepted { .. } => "desiredAccepted",
            Self::ForeignDocument { .. } => "foreignDocument",
            Self::ForeignView { .. } => "foreignView",
            Self::LedgerReplaced { .. } => "ledgerReplaced",
            Self::ConnectionsExceeded { .. } => "connectionsExceeded",
            Self::TokenEnding { .. } => "tokenEnding",
            Self::TokenRenewed { .. } => "tokenRenewed",
            Self::LedgerNearlyFull { .. } => "ledgerNearlyFull",
            Self::QuarantineFull { .. } => "quarantineFull",
        }
    }

    /// A key that separates occurrences of one type: two services that see the same occurrence derive the same key.
    fn occurrence(&self) -> String {
        match self {
            Self::ForeignDocument { downlink_seq, .. } => downlink_seq.to_string(),
            Self::ForeignView { key, revision, .. } => format!("{key}.{revision}"),
            Self::LedgerReplaced { created_at, .. } => created_at.to_string(),
            Self::ConnectionsExceeded { key, connections, .. } => format!("{key}.{connections}"),
            Self::TokenEnding { ends_at, .. } | Self::TokenRenewed { ends_at } => ends_at.to_string(),
            Self::LedgerNearlyFull { bytes, .. } => bytes.to_string(),
            Self::QuarantineFull { limit, .. } => limit.to_string(),
            _ => String::new(),
        }
    }
}

/// Request of `muster.ingest.incident`: a service of the hub has seen this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IncidentRequest {
    /// The device that it is about, with its site; nothing where it is about the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteId>,
    /// See `site`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// The kind of the incident.
    #[serde(flatten)]
    pub what: IncidentKind,
}

impl IncidentRequest {
    /// An incident of a device, or of the hub.
    pub fn new(key: Option<DeviceKey>, what: IncidentKind) -> Self {
        let (site, device) = key.map(|key| (key.site, key.device)).unzip();
        Self { site, device, what }
    }

    /// The device that it is about.
    pub fn key(&self) -> Option<DeviceKey> {
        let (site, device) = self.site.clone().zip(self.device.clone())?;
        Some(DeviceKey { site, device })
    }

    /// A name for the occurrence, by which LEDGER recognises it when two services request it.
    pub fn id(&self) -> String {
        let (name, occurrence) = (self.what.name(), self.what.occurrence());
        match self.key() {
            Some(key) => format!("incident.{name}.{}.{}.{occurrence}", key.site, key.device),
            None => format!("incident.{name}.{occurrence}"),
        }
    }

    /// Checks what a shape cannot say.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn check(&self) -> Result<(), Violation> {
        if !self.what.is_requested() {
            let rule = format!("'{}' is found by ingest itself, in what devices send", self.what.name());
            return Err(Violation::at("type", rule));
        }
        if self.site.is_some() != self.device.is_some() {
            return Err(Violation::at("device", "needs site and device, or neither".to_owned()));
        }
        let (field, text) = match &self.what {
            IncidentKind::ForeignDocument { reason, .. } => ("reason", reason),
            IncidentKind::ForeignView { key, .. } => ("key", key),
            IncidentKind::ConnectionsExceeded { name, .. } => ("name", name),
            _ => return Ok(()),
        };
        if text.len() > ERROR_MESSAGE_BYTES_MAX {
            let rule = format!("has {} bytes, over the limit of {ERROR_MESSAGE_BYTES_MAX}", text.len());
            return Err(Violation::at(field, rule));
        }
        Ok(())
    }
}

/// Answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IncidentAnswer {
    /// Where LEDGER holds the incident; nothing where incidents of its type come too fast and it is only counted, in
    /// `others` of the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_seq: Option<u64>,
}

/// Answer to `muster.query.incidents`: the incidents of the hub itself that are shown now, the newest of each type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IncidentsAnswer {
    /// Up to where LEDGER was read.
    pub as_of: AsOf,
    /// The incidents, the newest first.
    pub incidents: Vec<HubIncident>,
}

/// An incident of the hub that is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HubIncident {
    /// Where LEDGER holds the newest of this type.
    pub ledger_seq: u64,
    /// How many of this type there were within the time that they are shown.
    pub count: u64,
    /// The newest.
    #[serde(flatten)]
    pub incident: Incident,
}

impl HubIncident {
    /// Whether LEDGER was replaced.
    pub const fn is_ledger_replaced(&self) -> bool {
        matches!(self.incident.what, IncidentKind::LedgerReplaced { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced() -> IncidentKind {
        let at = Timestamp::UNIX_EPOCH;
        IncidentKind::LedgerReplaced { known_created_at: at, known_seq: 9, created_at: at, last_seq: 0 }
    }

    #[test]
    fn a_request_names_a_whole_device_or_none_and_a_type_that_services_see() {
        let key = "plant7/press-4".parse().ok();
        let good = IncidentRequest::new(key, replaced());
        assert_eq!((good.check(), good.key()), (Ok(()), "plant7/press-4".parse().ok()));
        let half = IncidentRequest { device: None, ..good };
        assert!(half.check().is_err());
        let own = IncidentRequest::new(None, IncidentKind::ClockSkew { seconds: 9 });
        assert!(own.check().is_err());
        let long = IncidentKind::ForeignView {
            key: "x".repeat(ERROR_MESSAGE_BYTES_MAX + 1),
            revision: 1,
            cause: ForeignView::Key,
        };
        assert!(IncidentRequest::new(None, long).check().is_err());
    }

    #[test]
    fn the_same_occurrence_has_the_same_name_and_another_has_another() {
        let view = |revision| {
            let what =
                IncidentKind::ForeignView { key: "fleet".to_owned(), revision, cause: ForeignView::NoView };
            IncidentRequest::new(None, what).id()
        };
        assert_eq!(view(7), "incident.foreignView.fleet.7");
        assert_ne!(view(7), view(8));
    }
}
