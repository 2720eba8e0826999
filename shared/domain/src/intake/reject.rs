//! Rejects a message that cannot be accepted: quarantines it with a reason that a person can act on. It never holds up the
//! facts of the messages behind it. `rejection` queues payloads for QUARANTINE, `batch` makes the records for LEDGER.

use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::fact::IncidentKind;
use muster_contract::report::Report;
use muster_contract::{DeviceKey, Epoch, Seq, Timestamp};

use super::message::{IncomingMessage, MessageSample, Outcome};
use super::pending_rejections::RejectedMessage;
use super::reject_reason::RejectReason;
use super::state::IntakeState;
use super::{content, ids};

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
        let parsed = number.is_some();
        let number = epoch.zip(seq);
        let key = self.devices[index].key.as_ref();
        let id = message_id(key, &reason, number, message.payload);
        let excerpt = &message.payload[..message.payload.len().min(self.excerpt_bytes_max(message.payload))];
        if self.is_in_quarantine(index, message, excerpt, number) || self.is_rejection_pending(&id) {
            self.owe_receipt(index);
            return Outcome::Repeated;
        }
        let is_stored = reason.is_stored();
        let report = parsed.then(|| Report::parse(message.payload).ok()).flatten();
        let rejected = RejectedMessage {
            index,
            cause: self.current_message,
            sample: MessageSample::of(message, &reason, excerpt),
            reason,
            epoch,
            seq,
            content: report.as_ref().map(content::of_report),
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

    /// The forks that an acceptable report reveals: its number waits in quarantine with another content. A requeue evaluates the
    /// report that waits there.
    pub(super) fn forks_in_quarantine(&self, index: usize, report: &Report, payload: &[u8]) -> Vec<Fork> {
        if self.requeue_rejection.is_some() {
            return Vec::new();
        }
        let (epoch, seq) = (report.epoch(), report.seq());
        let waiting = self.devices[index].latest().contents_in_quarantine(epoch, seq);
        let others = waiting.filter(|rejected| content::differs(*rejected, report, payload));
        others.map(|other| Fork { epoch, seq, held: content::of_report(report), other }).collect()
    }

    /// The fork that a rejected message is: the hub holds its number with another content.
    pub(super) fn fork_of(&self, rejected: &RejectedMessage) -> Option<Fork> {
        if let RejectReason::Fork { epoch, seq, held, other } = rejected.reason {
            return Some(Fork { epoch, seq, held, other });
        }
        let ((epoch, seq), other) = (rejected.epoch.zip(rejected.seq)?, rejected.content?);
        let held = self.devices[rejected.index].latest().account.content_of(epoch, seq)?;
        (held != other).then_some(Fork { epoch, seq, held, other })
    }

    /// Publishes the incident of a number that came with another content, unless it was published: LEDGER may have the incident
    /// without the message. A batched message needs any incident of its number only, so that a flood makes no more incidents
    /// than facts.
    pub(super) fn publish_fork(
        &mut self,
        index: usize,
        key: &DeviceKey,
        fork: Fork,
        is_batched: bool,
        at: Timestamp,
    ) {
        let Fork { epoch, seq, held, other } = fork;
        let state = self.devices[index].latest();
        let is_published =
            if is_batched { state.has_fork_of(epoch, seq) } else { state.has_fork(epoch, seq, other) };
        if !is_published {
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

/// A number with two contents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fork {
    epoch: Epoch,
    seq: Seq,
    /// Digest of the content that counts.
    held: Digest,
    /// Digest of the other.
    other: Digest,
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
