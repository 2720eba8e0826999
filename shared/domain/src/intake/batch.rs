//! Bounds the quarantine facts of a device. A device may have [`FACTS_PER_MINUTE`] facts of single messages a minute; further
//! messages are counted together, and one fact every [`BATCH_EVERY`] stands for all of them: with their count,
//! every number that could be read, and the last message as a sample. So a device that was restored, cloned or broken fills
//! LEDGER at a bounded rate ([`rejection_facts_max`](super::rejection_facts_max)), and the account still explains every number.
//! The payloads are in QUARANTINE (`rejection`).
//!
//! A message in a batch is settled, and then acknowledged, when LEDGER has the batch's fact. The messages behind it wait with
//! their acknowledgement, not with their facts; when [`BATCH_MESSAGES_MAX`] wait, the batches are published at once.
//!
//! After a crash or a rewind the unacknowledged messages come again and are batched again. Numbers that a batch in LEDGER names
//! are recognised then, so that only the count of messages without a readable number may be too high.

use muster_contract::fact::{Fact, QuarantineFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Epoch, Seq, SeqRanges, Timestamp};

use super::ids;
use super::limits::{BATCH_EVERY, BATCH_MESSAGES_MAX, FACTS_PER_MINUTE, UNSETTLED_MAX};
use super::message::{MessageSample, Outcome};
use super::pending_rejections::RejectedMessage;
use super::quarantine_batch::QuarantineBatch;
use super::reject::OldEpochReport;
use super::reject_reason::RejectReason;
use super::state::{IntakeState, SettledBy};
use crate::lease::elapsed;

impl IntakeState {
    /// Whether a message with this number waits in a batch.
    pub(super) fn is_batched(&self, index: usize, number: Option<(Epoch, Seq)>) -> bool {
        let batches = self.devices[index].batches.as_ref();
        number.zip(batches).is_some_and(|((epoch, seq), batches)| batches.contains(epoch, seq))
    }

    /// Records a rejected message: with a fact of its own, or in a batch.
    pub(super) fn record_rejected(&mut self, rejected: RejectedMessage, is_kept: bool) -> Outcome {
        let fork = self.fork_of(&rejected);
        let RejectedMessage { index, reason, epoch, seq, sample, .. } = rejected;
        let key = self.devices[index].key.clone();
        let (not_kept, stored_at) = (u64::from(!is_kept), sample.stored_at);
        let now = self.now;
        let has_fact = self.devices[index].batches.get_or_insert_default().try_take_fact(now);
        // Before the message: a message that is quarantined is not evaluated again.
        if let Some((key, fork)) = key.as_ref().zip(fork) {
            self.publish_fork(index, key, fork, !has_fact, stored_at);
        }
        let outcome = if has_fact {
            let numbers = seq.map(|seq| SeqRanges::span(seq.get(), seq.get())).unwrap_or_default();
            let single = QuarantineBatch { count: 1, numbers, not_kept, last_seq: seq, last: sample };
            self.publish_batch(index, epoch, single);
            Outcome::Quarantined
        } else {
            self.add_to_batch(index, sample, epoch.zip(seq), not_kept)
        };
        if let (Some(key), RejectReason::OldEpoch { epoch, known }, Some(seq)) = (&key, &reason, seq) {
            let old = OldEpochReport { known_epoch: *known, epoch: *epoch, seq };
            self.publish_clone(index, key, old, outcome, stored_at);
        }
        outcome
    }

    fn add_to_batch(
        &mut self,
        index: usize,
        last: MessageSample,
        number: Option<(Epoch, Seq)>,
        not_kept: u64,
    ) -> Outcome {
        let is_full = self.devices[index].batches.get_or_insert_default().add(last, number, not_kept);
        self.batching.is_full |= is_full;
        self.batching.indexes.insert(index);
        self.batching.since.get_or_insert(self.now);
        self.batching.messages += 1;
        // A device whose name another device uses learns of that from receipts only.
        self.owe_receipt(index);
        Outcome::Batched
    }

    /// The condition under which a message with this outcome is settled.
    pub(super) const fn settlement_of(&self, outcome: Outcome) -> SettledBy {
        match outcome {
            Outcome::Batched => SettledBy::Batch,
            Outcome::Storing => SettledBy::StoreAnswer,
            _ => SettledBy::Confirmed(self.published_count),
        }
    }

    pub(super) fn publish_batches_if_many(&mut self) {
        let are_many = self.batching.messages >= BATCH_MESSAGES_MAX;
        // No message behind a batched one can be acknowledged, and the bus delivers only so many more. If the oldest message
        // waits for LEDGER instead, publishing the batches would not help.
        let oldest_waits = self.unsettled.front() == Some(&SettledBy::Batch);
        let holds_up = oldest_waits && self.unsettled.len() >= UNSETTLED_MAX;
        if self.batching.is_full || are_many || holds_up {
            self.publish_batches();
        }
    }

    pub(super) fn publish_batches_if_due(&mut self) {
        let now = self.now;
        // After the clock was set back the time that they have waited is unknown.
        let is_due = |since: Timestamp| since > now || elapsed(since, now) >= BATCH_EVERY;
        if self.batching.since.is_some_and(is_due) {
            self.publish_batches();
        }
    }

    /// Publishes a fact for every waiting batch.
    pub fn publish_batches(&mut self) {
        for index in std::mem::take(&mut self.batching).indexes {
            let open = self.devices[index].batches.as_mut().map(|batches| std::mem::take(&mut batches.open));
            for (epoch, batch) in open.into_iter().flatten() {
                self.publish_batch(index, epoch, batch);
            }
        }
        let settled_by = SettledBy::Confirmed(self.published_count);
        let batched = self.unsettled.iter_mut().filter(|condition| **condition == SettledBy::Batch);
        batched.for_each(|condition| *condition = settled_by);
    }

    /// Discards the waiting batches: their messages are not acknowledged and come again.
    pub(super) fn discard_batches(&mut self) {
        for index in std::mem::take(&mut self.batching).indexes {
            self.devices[index].batches.iter_mut().for_each(|batches| batches.open.clear());
        }
    }

    fn publish_batch(&mut self, index: usize, epoch: Option<Epoch>, batch: QuarantineBatch) {
        let QuarantineBatch { count, mut numbers, not_kept, last, last_seq: seq } = batch;
        let MessageSample { reason, subject, excerpt, bytes, position, stored_at } = last;
        seq.iter().for_each(|seq| _ = numbers.remove_span(seq.get(), seq.get()));
        let others = count - 1;
        let reason = match others {
            0 => reason,
            _ => format!(
                "{reason} (this is the last of {count} messages that came faster than {FACTS_PER_MINUTE} a minute; \
                 this fact has only the count and the numbers of the others)"
            ),
        };
        let key = self.devices[index].key.clone();
        let id = ids::batch(key.as_ref(), position, stored_at, count);
        let fact = QuarantineFact {
            api_version: ApiVersion::V1,
            kind: kind::QuarantineFact::QuarantineFact,
            reason,
            epoch,
            seq,
            subject,
            received_at: stored_at,
            payload_base64: QuarantineFact::encode_payload(&excerpt),
            bytes,
            count_for_device: self.devices[index].latest().quarantined + count,
            others,
            other_seqs: numbers,
            not_kept,
            reasserted: false,
        };
        self.publish(index, LedgerSubject::Quarantine(key), Fact::Quarantine(fact), Some(id));
    }
}
