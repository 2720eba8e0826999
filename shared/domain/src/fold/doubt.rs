//! Messages in quarantine that may be news of their device, and which of them leave it in doubt.
//!
//! A message went to quarantine, so what it said is not known. If its number is, and the device has spoken of that
//! number, the number decides (`holdings`, `standing`): what was reported later is not touched by it. If not, the message
//! may be anything up to what the device has not spoken of yet: everything about the device is in doubt until a heartbeat
//! that came after the message says how far its numbers go. From then on the message is one of those numbers: one that is
//! missing, if it is not held. So no message closes a verdict for longer than until the next heartbeat, unless its number
//! says that it is news.
//!
//! A person's word that nobody needs the message ends the doubt at once, and so does letting it in.

use muster_contract::fact::QuarantineFact;
use muster_contract::{Epoch, Seq, SeqRanges, Timestamp};
use serde::{Deserialize, Serialize};

use super::holdings::Holdings;

/// Messages of one device that are kept: the newest. More of them are a flood, and the newest decide.
const OPEN_MAX: usize = 256;

/// What tells a message of a device apart from its others, wherever LEDGER holds it and however often.
pub(super) type Identity = (Timestamp, Option<(Epoch, Seq)>);

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
pub(super) struct OpenMessages(Vec<Open>);

impl Open {
    const fn identity(&self) -> Identity {
        (self.received_at, self.number)
    }
}

impl OpenMessages {
    /// True where nothing was ever in quarantine, or all of it is settled.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes a message in; false where it is in, and was only said again.
    pub(super) fn add(&mut self, fact: &QuarantineFact, ledger_seq: u64) -> bool {
        let number = fact.epoch.zip(fact.seq);
        let open =
            Open { received_at: fact.received_at, number, others: fact.other_seqs.clone(), ledger_seq };
        self.insert(open)
    }

    /// Takes in what another list holds.
    pub(super) fn join(&mut self, other: Self) {
        other.0.into_iter().for_each(|open| _ = self.insert(open));
    }

    /// Keeps the messages of whose number, if they have one, this is true.
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
                if self.0.len() > OPEN_MAX {
                    self.0.remove(0);
                }
                true
            }
        }
    }

    /// A message is let in or dropped.
    pub(super) fn settle(&mut self, received_at: Timestamp, number: Option<(Epoch, Seq)>) {
        self.0.retain(|open| open.identity() != (received_at, number));
    }

    /// How many may be anything: they came after the newest heartbeat, and are no number that the device has spoken of.
    pub(super) fn beyond(&self, holdings: &Holdings, beat_at: Option<Timestamp>) -> u64 {
        self.0.iter().filter(|open| open.is_beyond(holdings, beat_at)).count() as u64
    }

    /// Where LEDGER holds the newest of those.
    pub(super) fn place_beyond(&self, holdings: &Holdings, beat_at: Option<Timestamp>) -> Option<u64> {
        self.0.iter().rfind(|open| open.is_beyond(holdings, beat_at)).map(|open| open.ledger_seq)
    }

    /// Where LEDGER holds the message with a number; nothing where that is no longer known.
    pub(super) fn place_of(&self, epoch: Epoch, seq: u64) -> Option<u64> {
        let is_it = |open: &&Open| {
            open.number
                .is_some_and(|(of, own)| of == epoch && (own.get() == seq || open.others.contains(seq)))
        };
        self.0.iter().rfind(is_it).map(|open| open.ledger_seq)
    }
}

impl Open {
    fn is_beyond(&self, holdings: &Holdings, beat_at: Option<Timestamp>) -> bool {
        beat_at.is_none_or(|beat_at| self.received_at >= beat_at)
            && self.number.is_none_or(|(epoch, seq)| holdings.is_beyond(epoch, seq))
    }
}
