//! The reasons for which a report is rejected, in words that say what a person can do.

use muster_contract::canonical::Digest;
use muster_contract::decode::Violation;
use muster_contract::ids::LabelError;
use muster_contract::limits::{
    DEPLOYMENTS_PER_DEVICE_MAX, EPOCH_BELIEVED_MAX, EPOCH_RISES_PER_HOUR, ERROR_MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
};
use muster_contract::quarantine::RejectionCode;
use muster_contract::state::cut;
use muster_contract::{DeploymentId, Epoch, Generation, Refusal, Seq};

use super::limits::{LEDGER_DAYS, UNVERIFIED_MAX};
use crate::account::PIECES_MAX;

/// Why a report is rejected, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The sender's name is no identifier.
    #[error("{0}; enrol the device under a name that follows this rule")]
    Sender(LabelError),
    /// It cannot be parsed, or breaks a rule of its shape.
    #[error("{0}; correct the sender and let it send again: no part of this report was accepted")]
    Unreadable(Refusal),
    /// Its state does not follow from the states of its components.
    #[error("StatusReport breaks a rule: {0}; correct the sender: no part of this report was accepted")]
    State(Violation),
    /// Its number was received before with another content.
    #[error(
        "number {seq} of epoch {epoch} is held with another content ({held}, this report has {other}); either two \
         devices share this identity, or the device's database was restored from an older copy: give each device \
         its own identity, and let a restored device begin a new epoch"
    )]
    Fork {
        /// The epoch.
        epoch: Epoch,
        /// The number.
        seq: Seq,
        /// Digest of the accepted content.
        held: Digest,
        /// Digest of the content of this report.
        other: Digest,
    },
    /// Its epoch is over.
    #[error(
        "epoch {epoch} is over, the device has since reported in epoch {known}; either two devices share this \
         identity, or the device's database was restored from an older copy: give each device its own identity, \
         and let a restored device begin a new epoch"
    )]
    OldEpoch {
        /// The epoch of the report.
        epoch: Epoch,
        /// The current one.
        known: Epoch,
    },
    /// No device can have reached its epoch.
    #[error(
        "epoch {epoch} is above {EPOCH_BELIEVED_MAX} and does not follow this device's epoch: an epoch is the clock's seconds \
         when the device's database was created, or one more than the epoch of its last receipt; correct the sender"
    )]
    EpochTooFar {
        /// The epoch of the report.
        epoch: Epoch,
    },
    /// Its fact would be larger than a message may be.
    #[error(
        "as a fact this report has {bytes} bytes, over the limit of {MESSAGE_BYTES_MAX}; send less in one report: \
         fewer properties, shorter messages"
    )]
    TooLarge {
        /// The fact's size.
        bytes: usize,
    },
    /// LEDGER will never store its fact.
    #[error(
        "LEDGER cannot store the fact: {answer}; allow larger messages (max_msg_size of the stream, max_payload of the \
         server), or send less in one report"
    )]
    Unstorable {
        /// The answer of the server.
        answer: String,
    },
    /// The hub did not send its deployment to the device, or sent it too long ago.
    #[error(
        "deployment {deployment} was not sent to this device within {LEDGER_DAYS} days and has no standing on it; target the \
         device with it and requeue this message, or correct the device, which reports a deployment that it never received"
    )]
    NotSent {
        /// The deployment.
        deployment: DeploymentId,
    },
    /// It reports a generation that is newer than every document the hub has.
    #[error(
        "deployment {deployment} is in no document that the hub has for this device, and the report is for generation \
         {generation}, above the newest one ({known}); publish the device's document again, as after a restored backup: \
         the device then sends this report again"
    )]
    DocumentLost {
        /// The deployment.
        deployment: DeploymentId,
        /// The generation of the report.
        generation: Generation,
        /// The newest generation that the hub has.
        known: Generation,
    },
    /// The hub cannot read its documents, and the device has too many deployments that no known document has.
    #[error(
        "deployment {deployment} is in no document that ingest knows for this device, ingest cannot read DOWNLINK at present, and \
         the device has {UNVERIFIED_MAX} others; make DOWNLINK available (the log of muster-ingest names the error): the device \
         then sends this report again"
    )]
    DocumentsUnreadable {
        /// The deployment.
        deployment: DeploymentId,
    },
    /// The device has no desired document, and has reported as many deployments as it may.
    #[error(
        "deployment {deployment} is one more than the {most} that a device without a desired document may report within \
         {LEDGER_DAYS} days; target the device with it, or raise --unsolicited of muster-ingest, then requeue this message"
    )]
    Unsolicited {
        /// The deployment.
        deployment: DeploymentId,
        /// The number of deployments that it may report.
        most: usize,
    },
    /// The device has too many deployments beside its current document that it never reported as removed.
    #[error(
        "deployment {deployment} would be one more than the {DEPLOYMENTS_PER_DEVICE_MAX} that this device may have beside its \
         current document; let the device report deployments that it no longer runs as removed, then requeue this message"
    )]
    TooManyDeployments {
        /// The deployment.
        deployment: DeploymentId,
    },
    /// The device's epoch rises too often.
    #[error(
        "epoch {epoch} would be the device's {nth}th new one within an hour, {EPOCH_RISES_PER_HOUR} are allowed; it loses its \
         database again and again (a failing disk?) or several devices share its name. Ingest accepts the newest epoch and \
         requests its reports once the oldest rise is an hour ago",
        nth = EPOCH_RISES_PER_HOUR + 1
    )]
    EpochRisesTooOften {
        /// The epoch of the report.
        epoch: Epoch,
    },
    /// The numbers of its epoch would have too many gaps.
    #[error(
        "with this report the numbers of its epoch would be in more than {PIECES_MAX} ranges; send the missing reports \
         first: this one is accepted then"
    )]
    Scattered,
}

impl RejectReason {
    /// Whether the account counts the number as quarantined. It does not count a report that may be accepted when it comes
    /// again, or an impossible epoch.
    pub(super) const fn is_accounted(&self) -> bool {
        !matches!(
            self,
            Self::Scattered
                | Self::EpochTooFar { .. }
                | Self::EpochRisesTooOften { .. }
                | Self::DocumentLost { .. }
                | Self::DocumentsUnreadable { .. }
        )
    }

    /// Whether QUARANTINE stores the payload. Otherwise the device keeps the report, because its number stays missing.
    pub(super) const fn is_stored(&self) -> bool {
        self.is_accounted() || matches!(self, Self::EpochTooFar { .. })
    }

    /// The reason in words, cut to the length that a document may have.
    pub(super) fn text(&self) -> String {
        cut(self.to_string(), ERROR_MESSAGE_BYTES_MAX)
    }

    /// The code by which operators filter.
    pub const fn code(&self) -> RejectionCode {
        match self {
            Self::Sender(_) => RejectionCode::Sender,
            Self::Unreadable(_) => RejectionCode::Unreadable,
            Self::State(_) => RejectionCode::State,
            Self::Fork { .. } => RejectionCode::Fork,
            Self::OldEpoch { .. } => RejectionCode::OldEpoch,
            Self::TooLarge { .. } | Self::Unstorable { .. } => RejectionCode::TooLarge,
            Self::NotSent { .. } => RejectionCode::NotSent,
            Self::Unsolicited { .. } => RejectionCode::Unsolicited,
            Self::TooManyDeployments { .. } => RejectionCode::TooManyDeployments,
            Self::EpochTooFar { .. }
            | Self::DocumentLost { .. }
            | Self::DocumentsUnreadable { .. }
            | Self::EpochRisesTooOften { .. }
            | Self::Scattered => RejectionCode::Other,
        }
    }
}
