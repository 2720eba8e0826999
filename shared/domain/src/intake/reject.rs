//! Rejects a message that cannot be accepted: quarantines it with a reason that a person can act on. It never holds up the
//! facts of the messages behind it. `rejection` queues payloads for QUARANTINE, `batch` makes the records for LEDGER.

use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::fact::IncidentKind;
use muster_contract::{DeviceKey, Epoch, Seq, Timestamp};

use super::ids;
use super::message::{IncomingMessage, MessageSample, Outcome};
use super::pending_rejections::RejectedMessage;
use super::reject_reason::RejectReason;
use super::state::IntakeState;

impl IntakeState {
    /// Quarantines a message, unless it is quarantined already. `number` is the report's, if the report could be parsed. The
    /// payload is stored first, unless the device keeps the report because its number is not accounted for.
    pub(super) fn reject(
        &mut self,
        index: usize,
        message: &IncomingMessage<'_>,
        reason: RejectReason,
        number: Option<(Epoch, Seq)>,
    ) -> Outcome {
        if let Some(text) = &mut self.requeue_rejection {
            *text = reason.to_string();
            return Outcome::Repeated;
        }
        let (epoch, seq) = match number {
            Some((epoch, seq)) => (Some(epoch), Some(seq)),
            None => peek_number(message.payload),
        };
        let seq = seq.filter(|_| reason.is_accounted());
        let number = epoch.zip(seq);
        let key = self.devices[index].key.as_ref();
        let id = message_id(key, &reason, number, message.payload);
        let excerpt = &message.payload[..message.payload.len().min(self.excerpt_bytes_max(message.payload))];
        if self.is_in_quarantine(index, message, excerpt, number) || self.is_rejection_pending(&id) {
            self.owe_receipt(index);
            return Outcome::Repeated;
        }
        let is_stored = reason.is_stored();
        let rejected = RejectedMessage {
            index,
            cause: self.current_message,
            sample: MessageSample::of(message, &reason, excerpt),
            reason,
            epoch,
            seq,
            id,
            payload: message.payload.to_vec(),
        };
        if is_stored { self.queue_rejection(rejected) } else { self.record_rejected(rejected, true) }
    }

    /// Whether LEDGER has a record of a message, or a waiting batch holds it.
    fn is_in_quarantine(
        &self,
        index: usize,
        message: &IncomingMessage<'_>,
        excerpt: &[u8],
        number: Option<(Epoch, Seq)>,
    ) -> bool {
        let known = self.devices[index].latest();
        // LEDGER has an excerpt of a message without a number, which proves nothing about the bytes after it.
        let is_whole = excerpt.len() == message.payload.len();
        self.is_batched(index, number)
            || (is_whole && known.has_rejected(&Digest::of_bytes(excerpt)))
            || number.is_some_and(|(epoch, seq)| known.account.is_quarantined(epoch, seq))
    }

    /// Publishes the incident of a number that came with another content, unless it was published: LEDGER may have the incident
    /// without the message.
    pub(super) fn publish_fork(
        &mut self,
        index: usize,
        key: &DeviceKey,
        reason: &RejectReason,
        at: Timestamp,
    ) {
        let RejectReason::Fork { epoch, seq, held, other } = *reason else { return };
        if !self.devices[index].latest().has_fork(epoch, seq, other) {
            self.publish_incident(index, key, IncidentKind::SequenceFork { epoch, seq, held, other }, at);
        }
    }

    /// Publishes the incident of a report whose epoch is over, unless it was published. A batched report needs any incident of
    /// the newer epoch only, so that a flood makes no more incidents than facts.
    pub(super) fn publish_clone(
        &mut self,
        index: usize,
        key: &DeviceKey,
        old: OldEpochReport,
        outcome: Outcome,
        at: Timestamp,
    ) {
        let OldEpochReport { known_epoch, epoch, seq } = old;
        let state = self.devices[index].latest();
        let is_published = match outcome {
            Outcome::Batched => state.has_clone_of(known_epoch),
            _ => state.has_clone(known_epoch, epoch),
        };
        if !is_published {
            self.publish_incident(index, key, IncidentKind::Clone { known_epoch, epoch, seq }, at);
        }
    }
}

/// A report of an epoch that is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct OldEpochReport {
    pub(super) known_epoch: Epoch,
    pub(super) epoch: Epoch,
    pub(super) seq: Seq,
}

/// The id under which QUARANTINE stores a rejected report.
fn message_id(
    key: Option<&DeviceKey>,
    reason: &RejectReason,
    number: Option<(Epoch, Seq)>,
    payload: &[u8],
) -> String {
    match (key, number, reason) {
        // The number alone would identify the accepted report of that number.
        (_, _, RejectReason::Fork { .. }) | (_, None, _) | (None, ..) => {
            ids::rejected(key, &Digest::of_bytes(payload))
        }
        (Some(key), Some((epoch, seq)), _) => ids::rejected_number(key, epoch, seq),
    }
}

/// The readable ones of the epoch and the number of a message that cannot be parsed.
fn peek_number(payload: &[u8]) -> (Option<Epoch>, Option<Seq>) {
    let peek = decode::peek(payload);
    (peek.epoch.and_then(Epoch::new), peek.seq.and_then(Seq::new))
}
