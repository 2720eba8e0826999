//! Quarantine of what comes too fast. A device may have [`FACTS_PER_MINUTE`] facts of single messages a minute; what it
//! sends beyond is counted together, and one fact every [`SUM_EVERY`] stands for all of it: with their count, with every
//! number that could be read, and with the last message as an example. So a device set back or doubled, or a broken one,
//! fills LEDGER at a bounded rate ([`refusal_facts_max`]), and the account still explains every number.
//!
//! A message in a sum is settled when the sum is in LEDGER, and is acknowledged no earlier. Those behind it in its
//! partition wait with their acknowledgement, not with their facts; when [`SUM_MESSAGES_MAX`] wait, sums are made at once.
//!
//! After a crash or a rewind what was not acknowledged comes again and is summed again. Numbers that a sum in LEDGER names
//! are recognised then, so that only the count of messages without a readable number may be too high.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_contract::fact::{Fact, QuarantineFact};
use muster_contract::limits::ERROR_MESSAGE_BYTES_MAX;
use muster_contract::state::cut;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Epoch, Seq, SeqRanges, Timestamp};

use super::refuse::{Evidence, Refused};
use super::{Border, Outcome, ids};
use crate::account::PIECES_MAX;
use crate::lease::elapsed;

/// Quarantine facts of single messages that a device may have in a minute.
pub const FACTS_PER_MINUTE: u32 = 10;
/// Time after which what waits is summed up. Shorter than the bus waits for an acknowledgement.
pub const SUM_EVERY: Duration = Duration::from_secs(10);
/// Messages of a partition that may wait for a sum; well below what the bus hands out without an acknowledgement.
pub const SUM_MESSAGES_MAX: usize = 2048;
/// Messages, good ones too, that may wait behind those in a sum before it is made: far fewer than a partition's reader is
/// given without acknowledgements.
pub const UNSETTLED_MAX: usize = 4096;
/// Epochs of a device whose numbers one sum tells apart; a device that is well has one.
const EPOCHS_MAX: usize = 4;
/// Pieces into which the numbers of a sum may fall.
const SUM_PIECES_MAX: usize = 512;
/// Bytes of the example.
const EXAMPLE_BYTES_MAX: usize = 1024;
/// What a message that waits for a sum needs to be settled.
const UNTIL_SUMMED: u64 = u64::MAX;
const MINUTE: Duration = Duration::from_secs(60);

/// Facts of one device that one sum can take: one for each epoch, and one for messages without a number.
pub const SUM_FACTS_MAX: usize = EPOCHS_MAX + 1;

/// Most quarantine facts of one device within so many seconds, in which its partition takes so many messages: single ones, a
/// sum every [`SUM_EVERY`], and one more whenever [`SUM_PIECES_MAX`] messages came since the one before.
pub const fn refusal_facts_max(messages: u64, seconds: u64) -> u64 {
    // Both ends of the time may lie within a minute, or between two sums.
    let single = FACTS_PER_MINUTE as u64 * (seconds / MINUTE.as_secs() + 2);
    let sums = seconds / SUM_EVERY.as_secs() + 2 + messages / SUM_PIECES_MAX as u64;
    single + SUM_FACTS_MAX as u64 * sums
}

const _: () = {
    // Whatever makes a sum early, so many messages came since the one before.
    assert!(SUM_PIECES_MAX <= SUM_MESSAGES_MAX && SUM_PIECES_MAX <= UNSETTLED_MAX);
    assert!(SUM_EVERY.as_secs() * 2 < MINUTE.as_secs());
    assert!(SUM_PIECES_MAX < PIECES_MAX);
};

/// What one device sends faster than it may.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    /// Since when facts are counted, and how many there were.
    minute: Option<(Timestamp, u32)>,
    /// By the epoch of the numbers; none for messages without one.
    open: BTreeMap<Option<Epoch>, Sum>,
}

/// Messages that will share a fact.
#[derive(Debug, Clone)]
struct Sum {
    count: u64,
    numbers: SeqRanges,
    last: Example,
}

/// The last of them.
#[derive(Debug, Clone)]
struct Example {
    seq: Option<Seq>,
    reason: String,
    subject: String,
    payload: Vec<u8>,
    bytes: u64,
    position: u64,
    stored_at: Timestamp,
}

/// What of a partition waits for sums.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    places: BTreeSet<usize>,
    since: Option<Timestamp>,
    messages: usize,
    /// A sum has as many numbers as it can hold.
    is_full: bool,
}

impl Sums {
    fn take_turn(&mut self, now: Timestamp) -> bool {
        let (since, count) = self
            .minute
            .filter(|(since, _)| *since <= now && elapsed(*since, now) < MINUTE)
            .unwrap_or((now, 0));
        let is_free = count < FACTS_PER_MINUTE;
        self.minute = Some((since, count + u32::from(is_free)));
        is_free
    }
}

impl Border {
    /// Whether the device may have a quarantine fact for a single message now; if so, it is taken.
    pub(super) fn may_have_a_fact(&mut self, place: usize) -> bool {
        let now = self.now;
        self.devices[place].sums.get_or_insert_default().take_turn(now)
    }

    /// True where a message with this number waits for a sum.
    pub(super) fn is_in_a_sum(&self, place: usize, number: Option<(Epoch, Seq)>) -> bool {
        let Some(((epoch, seq), sums)) = number.zip(self.devices[place].sums.as_ref()) else { return false };
        sums.open.get(&Some(epoch)).is_some_and(|sum| sum.numbers.contains(seq.get()))
    }

    /// Keeps what a sum will say of a message.
    pub(super) fn put_into_a_sum(
        &mut self,
        place: usize,
        evidence: &Evidence<'_>,
        refused: &Refused,
        number: Option<(Epoch, Seq)>,
    ) -> Outcome {
        let sums = self.devices[place].sums.get_or_insert_default();
        let has_room = |epoch| sums.open.contains_key(&Some(epoch)) || sums.open.len() < EPOCHS_MAX;
        let number = number.filter(|(epoch, _)| has_room(*epoch));
        let last = Example::of(evidence, refused, number.map(|(_, seq)| seq));
        let sum = sums.open.entry(number.map(|(epoch, _)| epoch));
        let sum = sum.or_insert_with(|| Sum { count: 0, numbers: SeqRanges::new(), last: last.clone() });
        sum.count += 1;
        sum.last = last;
        number.iter().for_each(|(_, seq)| _ = sum.numbers.insert(seq.get()));
        self.summing.is_full |= sum.numbers.len() >= SUM_PIECES_MAX;
        self.summing.places.insert(place);
        self.summing.since.get_or_insert(self.now);
        self.summing.messages += 1;
        // Whoever is chased by another of its name hears of that by receipts alone.
        self.owe_receipt(place);
        Outcome::Summed
    }

    /// How many publications must be confirmed before a message with this outcome is settled.
    pub(super) fn needed_by(&self, outcome: Outcome) -> u64 {
        if outcome == Outcome::Summed { UNTIL_SUMMED } else { self.made_count }
    }

    pub(super) fn sum_up_if_many(&mut self) {
        let many = self.summing.messages >= SUM_MESSAGES_MAX;
        // Nothing behind a message that waits for a sum can be acknowledged, and the bus delivers only so much more. Where the
        // oldest message waits for LEDGER instead, a sum would free nothing.
        let oldest_waits = self.unsettled.front() == Some(&UNTIL_SUMMED);
        let held_up = oldest_waits && self.unsettled.len() >= UNSETTLED_MAX;
        if self.summing.is_full || many || held_up {
            self.sum_up();
        }
    }

    pub(super) fn sum_up_if_due(&mut self) {
        let now = self.now;
        // A clock that was set back says nothing of how long they wait.
        let is_due = |since: Timestamp| since > now || elapsed(since, now) >= SUM_EVERY;
        if self.summing.since.is_some_and(is_due) {
            self.sum_up();
        }
    }

    /// Makes a fact of everything that waits for one.
    pub fn sum_up(&mut self) {
        for place in std::mem::take(&mut self.summing).places {
            let open = self.devices[place].sums.as_mut().map(|sums| std::mem::take(&mut sums.open));
            for (epoch, sum) in open.into_iter().flatten() {
                self.publish_sum(place, epoch, sum);
            }
        }
        let made = self.made_count;
        self.unsettled.iter_mut().filter(|needs| **needs == UNTIL_SUMMED).for_each(|needs| *needs = made);
    }

    /// They are not acknowledged and come again.
    pub(super) fn forget_sums(&mut self) {
        for place in std::mem::take(&mut self.summing).places {
            self.devices[place].sums.iter_mut().for_each(|sums| sums.open.clear());
        }
    }

    fn publish_sum(&mut self, place: usize, epoch: Option<Epoch>, Sum { count, mut numbers, last }: Sum) {
        let Example { seq, reason, subject, payload, bytes, position, stored_at } = last;
        seq.iter().for_each(|seq| _ = numbers.remove_span(seq.get(), seq.get()));
        let others = count - 1;
        let reason = match others {
            0 => reason,
            _ => format!(
                "{reason} (this is the last of {count} messages that came faster than {FACTS_PER_MINUTE} a minute; \
                 of the others only the count and the numbers are kept)"
            ),
        };
        let key = self.devices[place].key.clone();
        let id = ids::summed(key.as_ref(), position, stored_at, count);
        let fact = QuarantineFact {
            api_version: ApiVersion::V1,
            kind: kind::QuarantineFact::QuarantineFact,
            reason,
            epoch,
            seq,
            subject,
            received_at: stored_at,
            payload_base64: QuarantineFact::encode_payload(&payload),
            bytes,
            count_for_device: self.devices[place].latest().quarantined + count,
            others,
            other_seqs: numbers,
            reasserted: false,
        };
        self.publish(place, LedgerSubject::Quarantine(key), &Fact::Quarantine(fact), Some(id));
    }
}

impl Example {
    fn of(evidence: &Evidence<'_>, refused: &Refused, seq: Option<Seq>) -> Self {
        let Evidence { subject, payload, position, stored_at } = evidence;
        Self {
            seq,
            // What is added to it must still fit.
            reason: cut(refused.to_string(), ERROR_MESSAGE_BYTES_MAX / 2),
            subject: subject.clone(),
            payload: payload[..payload.len().min(EXAMPLE_BYTES_MAX)].to_vec(),
            bytes: payload.len() as u64,
            position: *position,
            stored_at: *stored_at,
        }
    }
}
