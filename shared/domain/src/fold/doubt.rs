//! Tracks quarantined messages that may supersede rows of their device, and decides which leave it uncertain.
//!
//! The content of a quarantined message is unknown. If its number is known and not above the device's head, the
//! number decides (`seq_account`, `standing`): it does not affect what was reported later. Otherwise the message
//! may be anything beyond that head, and everything about the device is uncertain until a heartbeat that came
//! after the message says how far the device's numbers go. From then on the message is one of those numbers, a
//! missing one if it is not held. So no message keeps a verdict open beyond the next heartbeat, unless its
//! number says that it may supersede a row.
//!
//! An operator's decision to drop the message ends the uncertainty at once, and so does accepting it.

use muster_contract::fact::QuarantineFact;
use muster_contract::{Epoch, Seq, SeqRanges, Timestamp};
use serde::{Deserialize, Serialize};

use super::seq_account::SeqAccount;
use crate::message_identity::MessageIdentity;

/// Messages of one device that are kept, the newest ones: in a flood the newest messages decide.
const UNRESOLVED_MAX: usize = 256;

/// A message in quarantine, with those it stands for, and where LEDGER holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Open {
    received_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<(Epoch, Seq)>,
    /// Numbers of those it stands for, in the same epoch.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    others: SeqRanges,
    ledger_seq: u64,
}

/// Messages of one device in quarantine, in the order in which they came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct UnresolvedQuarantine(Vec<Open>);

impl Open {
    const fn identity(&self) -> MessageIdentity {
        (self.received_at, self.number)
    }
}

impl UnresolvedQuarantine {
    /// Whether no message was ever in quarantine, or all of them are resolved.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a message; false if it is known and was only re-asserted.
    pub(super) fn add(&mut self, fact: &QuarantineFact, ledger_seq: u64) -> bool {
        let number = fact.epoch.zip(fact.seq);
        let open =
            Open { received_at: fact.received_at, number, others: fact.other_seqs.clone(), ledger_seq };
        self.insert(open)
    }

    /// Adds the messages of another list.
    pub(super) fn join(&mut self, other: Self) {
        other.0.into_iter().for_each(|open| _ = self.insert(open));
    }

    /// Keeps the messages whose number, if they have one, fulfils `wanted`.
    pub(super) fn keep(&mut self, wanted: impl Fn(Option<(Epoch, Seq)>) -> bool) {
        self.0.retain(|open| wanted(open.number));
    }

    fn insert(&mut self, open: Open) -> bool {
        match self.0.binary_search_by_key(&open.identity(), Open::identity) {
            Ok(at) => {
                self.0[at].ledger_seq = open.ledger_seq;
                false
            }
            Err(at) => {
                self.0.insert(at, open);
                if self.0.len() > UNRESOLVED_MAX {
                    self.0.remove(0);
                }
                true
            }
        }
    }

    /// Removes a message that an operator requeued or dropped.
    pub(super) fn resolve(&mut self, received_at: Timestamp, number: Option<(Epoch, Seq)>) {
        self.0.retain(|open| open.identity() != (received_at, number));
    }

    /// Messages that may be any report: they came after the newest heartbeat, and have no number up to the device's head.
    pub(super) fn beyond(&self, seq_account: &SeqAccount, beat_at: Option<Timestamp>) -> u64 {
        self.0.iter().filter(|open| open.is_beyond(seq_account, beat_at)).count() as u64
    }

    /// LEDGER's sequence of the newest of those.
    pub(super) fn ledger_seq_beyond(
        &self,
        seq_account: &SeqAccount,
        beat_at: Option<Timestamp>,
    ) -> Option<u64> {
        self.0.iter().rfind(|open| open.is_beyond(seq_account, beat_at)).map(|open| open.ledger_seq)
    }

    /// LEDGER's sequence of the message with a number; `None` if it is no longer known.
    pub(super) fn ledger_seq_of(&self, epoch: Epoch, seq: u64) -> Option<u64> {
        let is_it = |open: &&Open| {
            open.number
                .is_some_and(|(of, own)| of == epoch && (own.get() == seq || open.others.contains(seq)))
        };
        self.0.iter().rfind(is_it).map(|open| open.ledger_seq)
    }
}

impl Open {
    fn is_beyond(&self, seq_account: &SeqAccount, beat_at: Option<Timestamp>) -> bool {
        beat_at.is_none_or(|beat_at| self.received_at >= beat_at)
            && self.number.is_none_or(|(epoch, seq)| seq_account.is_beyond(epoch, seq))
    }
}
