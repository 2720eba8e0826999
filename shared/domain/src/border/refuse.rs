//! Quarantine: what is not let in is kept, with a reason a person can act on. It never holds up what follows it. What
//! comes too fast is `sums`'.

use muster_contract::canonical::Digest;
use muster_contract::decode::{self, Violation};
use muster_contract::fact::{Fact, IncidentKind, QuarantineFact};
use muster_contract::ids::LabelError;
use muster_contract::limits::{
    DEPLOYMENTS_PER_DEVICE_MAX, EPOCH_BELIEVED_MAX, EPOCH_RISES_PER_HOUR, ERROR_MESSAGE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
};
use muster_contract::state::cut;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, Refusal, Seq, SeqRanges, Timestamp};

use super::quota::{LEDGER_DAYS, UNVERIFIED_MAX};
use super::{Border, Outcome, ids};
use crate::account::PIECES_MAX;

/// Why a report is not let in, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The sender's name is no identifier.
    #[error("{0}; enrol the device under a name that keeps to this")]
    Sender(LabelError),
    /// It cannot be read, or breaks a rule of its shape.
    #[error("{0}; correct the sender and let it send again: nothing of this report was taken over")]
    Unreadable(Refusal),
    /// Its state is not what its components make it.
    #[error("StatusReport breaks a rule: {0}; correct the sender: nothing of this report was taken over")]
    State(Violation),
    /// Its number came before with another content.
    #[error(
        "number {seq} of epoch {epoch} is held with another content ({held}, this one has {other}); either two \
         devices share this identity, or the device was set back to an older copy of its memory: give each device \
         an identity of its own, and let one that was set back begin a new epoch"
    )]
    Fork {
        /// The epoch.
        epoch: Epoch,
        /// The number.
        seq: Seq,
        /// Digest of the content held.
        held: Digest,
        /// Digest of this one.
        other: Digest,
    },
    /// Its epoch is over.
    #[error(
        "epoch {epoch} is over, the device has since reported in epoch {known}; either two devices share this \
         identity, or the device was set back to an older copy of its memory: give each device an identity of its \
         own, and let one that was set back begin a new epoch"
    )]
    OldEpoch {
        /// The epoch of the report.
        epoch: Epoch,
        /// The current one.
        known: Epoch,
    },
    /// Its epoch is one that no device can have come to.
    #[error(
        "epoch {epoch} is above {EPOCH_BELIEVED_MAX} and not the one after this device's: an epoch is the clock's seconds \
         when the device's memory began, or one more than that of its last receipt; correct the sender"
    )]
    EpochTooFar {
        /// The epoch of the report.
        epoch: Epoch,
    },
    /// It fits, but the fact it would become does not.
    #[error(
        "as a fact this report has {bytes} bytes, over the limit of {MESSAGE_BYTES_MAX}; send less in one report: \
         fewer properties, shorter messages"
    )]
    TooLarge {
        /// The fact's size.
        bytes: usize,
    },
    /// LEDGER does not take the fact it would become, today or ever.
    #[error(
        "LEDGER takes no such fact: {words}; allow larger messages (max_msg_size of the stream, max_payload of the \
         server), or send less in one report"
    )]
    Unstorable {
        /// What the server says.
        words: String,
    },
    /// The hub never sent its deployment to the device, or long ago.
    #[error(
        "deployment {deployment} was not sent to this device within {LEDGER_DAYS} days and has no standing on it; target the \
         device with it and requeue this message, or correct the device: it reports what it was never told to run"
    )]
    NotSent {
        /// The deployment.
        deployment: DeploymentId,
    },
    /// It speaks of a document that is newer than any the hub has.
    #[error(
        "deployment {deployment} is in no document that the hub has for this device, and the report is for generation \
         {generation}, above the newest one ({known}); publish the device's document again, as after a restored backup: \
         the device then sends this report again by itself"
    )]
    DocumentLost {
        /// The deployment.
        deployment: DeploymentId,
        /// The generation of the report.
        generation: Generation,
        /// The newest generation that the hub has.
        known: Generation,
    },
    /// The hub cannot read its documents, and the device has many deployments that no known document explains.
    #[error(
        "deployment {deployment} is in no document that ingest knows for this device, ingest cannot read DOWNLINK at present, and \
         the device has {UNVERIFIED_MAX} others; make DOWNLINK answer (the log of muster-ingest says why it does not): the device \
         then sends this report again by itself"
    )]
    DocumentsUnreadable {
        /// The deployment.
        deployment: DeploymentId,
    },
    /// The device has no desired document, and speaks of many deployments already.
    #[error(
        "deployment {deployment} is one more than the {most} that a device without a desired document may report within \
         {LEDGER_DAYS} days; target the device with it, or raise --unsolicited of muster-ingest, then requeue this message"
    )]
    Unsolicited {
        /// The deployment.
        deployment: DeploymentId,
        /// How many it may report.
        most: usize,
    },
    /// The device has many deployments beside its current document that it never reported as removed.
    #[error(
        "deployment {deployment} would be one more than the {DEPLOYMENTS_PER_DEVICE_MAX} that this device may have beside its \
         current document; let the device report as removed what it no longer runs, then requeue this message"
    )]
    TooManyDeployments {
        /// The deployment.
        deployment: DeploymentId,
    },
    /// The device's epoch rises too often.
    #[error(
        "epoch {epoch} would be the device's {nth}th new one within an hour, {EPOCH_RISES_PER_HOUR} are allowed; its memory is \
         lost over and over (a failing disk?) or several devices share its name. The hub takes the newest epoch in and asks \
         for its reports by itself once the oldest rise is an hour ago",
        nth = EPOCH_RISES_PER_HOUR + 1
    )]
    EpochRisesTooOften {
        /// The epoch of the report.
        epoch: Epoch,
    },
    /// Its epoch would fall into too many pieces.
    #[error(
        "with this report the numbers of its epoch would be in more than {PIECES_MAX} pieces; send what is missing \
         first, it will be let in then"
    )]
    Scattered,
}

impl Refused {
    /// Whether the number counts as quarantined. Not that of a report which may come again and be let in then, and not
    /// one of an epoch that is none.
    const fn counts(&self) -> bool {
        !matches!(
            self,
            Self::Scattered
                | Self::EpochTooFar { .. }
                | Self::EpochRisesTooOften { .. }
                | Self::DocumentLost { .. }
                | Self::DocumentsUnreadable { .. }
        )
    }
}

/// What is kept of a message that is not let in.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) subject: String,
    pub(super) payload: &'a [u8],
    pub(super) position: u64,
    pub(super) stored_at: Timestamp,
}

impl Border {
    /// Puts a message into quarantine, unless it is there. `number` is the report's, where it could be read whole.
    pub(super) fn refuse(
        &mut self,
        place: usize,
        evidence: &Evidence<'_>,
        refused: &Refused,
        number: Option<(Epoch, Seq)>,
    ) -> Outcome {
        if let Some(words) = &mut self.judging_again {
            *words = refused.to_string();
            return Outcome::Repeated;
        }
        let (epoch, seq) = match number {
            Some((epoch, seq)) => (Some(epoch), Some(seq)),
            None => readable(evidence.payload),
        };
        let seq = seq.filter(|_| refused.counts());
        let kept = &evidence.payload[..evidence.payload.len().min(self.kept_bytes_max(evidence.payload))];
        let known = self.devices[place].latest();
        let in_quarantine = |(epoch, seq)| known.cursor.is_quarantined(epoch, seq);
        let waits = self.is_in_a_sum(place, epoch.zip(seq));
        if waits || known.has_refused(&Digest::of_bytes(kept)) || epoch.zip(seq).is_some_and(in_quarantine) {
            self.owe_receipt(place);
            return Outcome::Repeated;
        }
        if !self.may_have_a_fact(place) {
            return self.put_into_a_sum(place, evidence, refused, epoch.zip(seq));
        }
        let fact = QuarantineFact {
            api_version: ApiVersion::V1,
            kind: kind::QuarantineFact::QuarantineFact,
            reason: cut(refused.to_string(), ERROR_MESSAGE_BYTES_MAX),
            epoch,
            seq,
            subject: evidence.subject.clone(),
            received_at: evidence.stored_at,
            payload_base64: QuarantineFact::encode_payload(kept),
            bytes: evidence.payload.len() as u64,
            count_for_device: self.devices[place].latest().quarantined + 1,
            others: 0,
            other_seqs: SeqRanges::new(),
            reasserted: false,
        };
        let key = self.devices[place].key.clone();
        // Before the message: once that is in quarantine, nobody looks at it again.
        if let Some(key) = &key {
            self.tell_of_fork(place, key, refused, evidence.stored_at);
        }
        let id = ids::quarantine(key.as_ref(), evidence.position, evidence.stored_at);
        self.publish(place, LedgerSubject::Quarantine(key), &Fact::Quarantine(fact), Some(id));
        Outcome::Quarantined
    }

    /// An incident for a number that came with another content, unless that is on record: LEDGER may have got the incident
    /// and not the message.
    fn tell_of_fork(&mut self, place: usize, key: &DeviceKey, refused: &Refused, at: Timestamp) {
        let Refused::Fork { epoch, seq, held, other } = *refused else { return };
        if !self.devices[place].latest().has_fork(epoch, seq, other) {
            self.incident(place, key, IncidentKind::SequenceFork { epoch, seq, held, other }, at);
        }
    }
}

/// The number of a message that may be anything.
fn readable(payload: &[u8]) -> (Option<Epoch>, Option<Seq>) {
    let peek = decode::peek(payload);
    (peek.epoch.and_then(Epoch::new), peek.seq.and_then(Seq::new))
}
