//! Rejects a message that cannot be accepted: quarantines it with a reason that a person can act on. It never holds up the
//! facts of the messages behind it. `rejection` queues payloads for QUARANTINE, `batch` makes the records for LEDGER.

use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::fact::IncidentKind;
use muster_contract::report::Report;
use muster_contract::{DeviceKey, Epoch, Seq, Timestamp};

use super::content::{self, Contents};
use super::ids;
use super::message::{IncomingMessage, MessageSample, Outcome};
use super::pending_rejections::RejectedMessage;
use super::reject_reason::RejectReason;
use super::state::IntakeState;

impl IntakeState {
    /// Quarantines a message, unless it is quarantined already. `number` is the report's, if the report could be parsed. The
    /// payload is stored first, unless the device keeps the report because its number is not accounted for. A message with a
    /// quarantined number is stored as well, unless QUARANTINE is known to have its content.
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
        let report = parsed.then(|| Report::parse(message.payload).ok()).flatten();
        let contents = Contents::of(report.as_ref(), message.payload);
        let id = message_id(key, number, contents.exact(), message.payload);
        let excerpt = &message.payload[..message.payload.len().min(self.excerpt_bytes_max(message.payload))];
        let recorded = self.find_in_quarantine(index, message, excerpt, number, &contents);
        if recorded == Recorded::Same || self.is_rejection_pending(&id) {
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
            content: report.as_ref().map(content::of_report),
            contents,
            may_be_kept: recorded == Recorded::Unknown,
            id,
            payload: message.payload.to_vec(),
        };
        if is_stored { self.queue_rejection(rejected) } else { self.record_rejected(rejected, true) }
    }

    /// Compares a message with the records of its number in LEDGER and in a waiting batch.
    fn find_in_quarantine(
        &self,
        index: usize,
        message: &IncomingMessage<'_>,
        excerpt: &[u8],
        number: Option<(Epoch, Seq)>,
        contents: &Contents,
    ) -> Recorded {
        let known = self.devices[index].latest();
        // LEDGER has an excerpt of a message without a number, which proves nothing about the bytes after it.
        let is_whole = excerpt.len() == message.payload.len();
        if is_whole && known.has_rejected(&Digest::of_bytes(excerpt)) {
            return Recorded::Same;
        }
        let Some((epoch, seq)) = number else { return Recorded::Other };
        let mut shown = known.contents_in_quarantine(epoch, seq).peekable();
        let is_shown = shown.peek().is_some();
        if shown.any(|shown| contents.contains(shown)) {
            return Recorded::Same;
        }
        if self.is_batched(index, number) || (known.account.is_quarantined(epoch, seq) && !is_shown) {
            Recorded::Unknown
        } else {
            Recorded::Other
        }
    }

    /// The forks that an acceptable report reveals: its number waits in quarantine with another content. A requeue evaluates the
    /// report that waits there.
    pub(super) fn forks_in_quarantine(&self, index: usize, report: &Report, payload: &[u8]) -> Vec<Fork> {
        if self.requeue_rejection.is_some() {
            return Vec::new();
        }
        let (epoch, seq) = (report.epoch(), report.seq());
        let mut waiting = self.devices[index].latest().contents_in_quarantine(epoch, seq).peekable();
        // The contents of a message cost more than all else about it, and hardly any number waits in quarantine.
        if waiting.peek().is_none() {
            return Vec::new();
        }
        let contents = Contents::of(Some(report), payload);
        let others = waiting.filter(|rejected| !contents.contains(*rejected));
        others.map(|other| Fork { epoch, seq, held: content::of_report(report), other }).collect()
    }

    /// The fork that a rejected message is: the hub holds its number with another content, accepted or in quarantine.
    pub(super) fn fork_of(&self, rejected: &RejectedMessage) -> Option<Fork> {
        if let RejectReason::Fork { epoch, seq, held, other } = rejected.reason {
            return Some(Fork { epoch, seq, held, other });
        }
        let (epoch, seq) = rejected.epoch.zip(rejected.seq)?;
        let state = self.devices[rejected.index].latest();
        if let Some((held, other)) = state.account.content_of(epoch, seq).zip(rejected.content) {
            return (held != other).then_some(Fork { epoch, seq, held, other });
        }
        let held =
            state.contents_in_quarantine(epoch, seq).find(|shown| !rejected.contents.contains(*shown))?;
        Some(Fork { epoch, seq, held, other: rejected.contents.exact()? })
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

/// The content that is recorded in quarantine for the number of a rejected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorded {
    /// None, or only other ones.
    Other,
    /// The content of the message.
    Same,
    /// An unknown one: a batch has the number alone, or a verdict ended the record.
    Unknown,
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
    number: Option<(Epoch, Seq)>,
    content: Option<Digest>,
    payload: &[u8],
) -> String {
    let content = content.unwrap_or_else(|| Digest::of_bytes(payload));
    match (key, number) {
        (Some(key), Some((epoch, seq))) => ids::rejected_number(key, epoch, seq, &content),
        _ => ids::rejected(key, &Digest::of_bytes(payload)),
    }
}

/// The readable ones of the epoch and the number of a message that cannot be parsed.
fn peek_number(payload: &[u8]) -> (Option<Epoch>, Option<Seq>) {
    let peek = decode::peek(payload);
    (peek.epoch.and_then(Epoch::new), peek.seq.and_then(Seq::new))
}
