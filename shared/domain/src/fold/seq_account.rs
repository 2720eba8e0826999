//! Accounts for the sequence numbers of one device's current epoch that LEDGER holds. Always `head = received +
//! coalesced + quarantined + missing`.
//!
//! The order of arrival changes nothing: a number counts as received before coalesced before quarantined. A
//! quarantined number is uncertain until an operator drops it: it may supersede a row. Earlier epochs are
//! history and not kept.

use std::collections::BTreeMap;

use muster_contract::fact::Account;
use muster_contract::{Epoch, Seq, SeqRanges};
use serde::{Deserialize, Serialize};

use super::seq_set::SeqSet;
use crate::account::PIECES_MAX;

/// Future epochs whose quarantined numbers are kept until a readable report of them arrives. Their numbers come
/// from unreadable messages and are unreliable, so only the nearest are kept.
const AHEAD_EPOCHS_MAX: usize = 4;

/// The numbers held of a device's current epoch, and how many there should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub(super) struct SeqAccount {
    epoch: Option<Epoch>,
    head: u64,
    held: SeqSet,
    irregular: Option<Box<IrregularSeqs>>,
}

/// As a snapshot has them.
#[derive(Serialize, Deserialize)]
struct Stored {
    epoch: Option<Epoch>,
    head: u64,
    held: SeqRanges,
    /// How many numbers `held` has, for those who read it without counting.
    count: u64,
    #[serde(default, rename = "odd", skip_serializing_if = "Option::is_none")]
    irregular: Option<Box<IrregularSeqs>>,
}

/// Numbers held otherwise than as received facts; most devices have none. All but `ahead` are subsets of
/// `held`, and no number is in two of them; the rest of `held` was received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct IrregularSeqs {
    coalesced: SeqRanges,
    /// In quarantine, and not dropped by an operator.
    quarantined: SeqRanges,
    /// In quarantine, and of no use.
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    dropped: SeqRanges,
    /// Numbers known only from a liveness fact's account, because their own facts have aged out.
    untold: SeqRanges,
    /// How many of `untold` that account calls coalesced.
    untold_coalesced: u64,
    /// How many of `untold` that account calls quarantined.
    untold_quarantined: u64,
    /// Quarantined numbers of epochs that no report has opened yet.
    ahead: BTreeMap<Epoch, FutureEpochSeqs>,
}

/// Quarantined numbers of a future epoch. A number may be in both: then it is dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FutureEpochSeqs {
    quarantined: SeqRanges,
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    dropped: SeqRanges,
}

impl SeqAccount {
    /// Those of a device that has not spoken.
    pub(super) const fn new() -> Self {
        Self { epoch: None, head: 0, held: SeqSet::NONE, irregular: None }
    }

    pub(super) const fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Highest number the device has spoken of.
    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    /// Opens a newer epoch, if this is one. True where this is the current epoch then.
    pub(super) fn enter(&mut self, epoch: Epoch) -> bool {
        if self.epoch < Some(epoch) {
            let mut ahead = self.irregular.take().map(|irregular| irregular.ahead).unwrap_or_default();
            let FutureEpochSeqs { quarantined, dropped } = ahead.remove(&epoch).unwrap_or_default();
            ahead.retain(|other, _| *other > epoch);
            *self = Self { epoch: Some(epoch), ..Self::default() };
            if !ahead.is_empty() {
                self.irregular().ahead = ahead;
            }
            dropped.iter().for_each(|(from, to)| self.drop_span(from, to));
            quarantined.iter().for_each(|(from, to)| self.quarantine_span(from, to));
        }
        self.epoch == Some(epoch)
    }

    pub(super) fn advertise(&mut self, head: u64) {
        self.head = self.head.max(head);
    }

    /// A number came as a fact, which proves that it was given.
    pub(super) fn receive(&mut self, seq: Seq) {
        let seq = seq.get();
        self.advertise(seq);
        if !self.held.insert(seq)
            && let Some(irregular) = &mut self.irregular
        {
            irregular.coalesced.remove_span(seq, seq);
            irregular.quarantined.remove_span(seq, seq);
            irregular.dropped.remove_span(seq, seq);
            irregular.untold.remove_span(seq, seq);
        }
    }

    /// Numbers were declared as folded into another.
    pub(super) fn coalesce(&mut self, folded: &SeqRanges) {
        for (from, to) in folded.iter() {
            self.advertise(to);
            let new = self.held.missing_within(from, to);
            self.held.extend(&new);
            let irregular = self.irregular();
            for known_bad in [&mut irregular.quarantined, &mut irregular.dropped] {
                irregular.coalesced.extend(&known_bad.within(from, to));
                known_bad.remove_span(from, to);
            }
            irregular.coalesced.extend(&new);
            irregular.untold.remove_span(from, to);
        }
    }

    /// Records the numbers of quarantined messages. An unreadable message proves no epoch, so it opens none.
    pub(super) fn quarantine(&mut self, epoch: Epoch, seqs: &SeqRanges) {
        if self.epoch == Some(epoch) {
            seqs.iter().for_each(|(from, to)| self.quarantine_span(from, to));
        } else if self.epoch < Some(epoch) {
            self.ahead(epoch, |ahead| insert_bounded(&mut ahead.quarantined, seqs));
        }
    }

    /// Records that an operator dropped the messages with these numbers: they stay quarantined and no longer
    /// cause uncertainty.
    pub(super) fn drop_quarantined(&mut self, epoch: Epoch, seqs: &SeqRanges) {
        if self.epoch == Some(epoch) {
            seqs.iter().for_each(|(from, to)| self.drop_span(from, to));
        } else if self.epoch < Some(epoch) {
            self.ahead(epoch, |ahead| insert_bounded(&mut ahead.dropped, seqs));
        }
    }

    /// The highest uncertain number up to the device's head; 0 where there is none.
    pub(super) fn in_doubt(&self) -> u64 {
        self.irregular
            .as_deref()
            .and_then(|irregular| irregular.quarantined.max_through(self.head))
            .unwrap_or(0)
    }

    /// The numbers in doubt, of those that the device has spoken of.
    pub(super) fn all_in_doubt(&self) -> SeqRanges {
        self.irregular
            .as_deref()
            .map(|irregular| irregular.quarantined.within(1, self.head))
            .unwrap_or_default()
    }

    /// True where a quarantined number is of a newer epoch, or of the current one and above the device's head,
    /// and is not dropped.
    pub(super) fn is_beyond(&self, epoch: Epoch, seq: Seq) -> bool {
        let irregular = self.irregular.as_deref();
        match self.epoch {
            Some(current) if epoch < current => false,
            Some(current) if epoch == current => {
                // This includes a number that is not held because there are too many pieces: it may supersede a
                // row.
                seq.get() > self.head
                    && !irregular.is_some_and(|irregular| irregular.dropped.contains(seq.get()))
            }
            _ => !irregular
                .and_then(|irregular| irregular.ahead.get(&epoch))
                .is_some_and(|ahead| ahead.dropped.contains(seq.get())),
        }
    }

    /// Merges a liveness fact's account for numbers whose facts have aged out: every number up to `head` that
    /// the account does not miss is held.
    pub(super) fn learn(&mut self, head: u64, account: &Account) {
        self.advertise(head);
        let told = account.missing.missing(head);
        let mut new = SeqRanges::new();
        told.iter().for_each(|(from, to)| {
            new.extend(&self.held.missing_within(from, to));
        });
        if new.is_empty() {
            return;
        }
        let learnt = self.held.extend(&new);
        let irregular = self.irregular();
        let own_quarantined = irregular.quarantined_through(head);
        let beyond = |told: u64, own: u64, before: u64| told.saturating_sub(own).saturating_sub(before);
        let own_coalesced = irregular.coalesced.count_through(head);
        let coalesced = beyond(account.coalesced, own_coalesced, irregular.untold_coalesced).min(learnt);
        let quarantined = beyond(account.quarantined, own_quarantined, irregular.untold_quarantined)
            .min(learnt - coalesced);
        irregular.untold.extend(&new);
        irregular.untold_coalesced += coalesced;
        irregular.untold_quarantined += quarantined;
    }

    /// Adds these numbers as reports, out of quarantine if they were in it, and sets the device's head.
    pub(super) fn insert_reports(&mut self, held: &SeqRanges, head: u64) {
        self.held.extend(held);
        self.head = head;
        if let Some(irregular) = &mut self.irregular {
            for (from, to) in held.iter() {
                irregular.quarantined.remove_span(from, to);
                irregular.dropped.remove_span(from, to);
            }
        }
    }

    /// How many numbers up to the head are not held.
    pub(super) fn missing(&self) -> u64 {
        self.head - self.held_through_head()
    }

    /// The accounting of the epoch.
    pub(super) fn account(&self) -> Account {
        let (mut coalesced, mut quarantined) = (0, 0);
        if let Some(irregular) = &self.irregular {
            coalesced = irregular.coalesced.count_through(self.head) + irregular.untold_coalesced;
            quarantined = irregular.quarantined_through(self.head) + irregular.untold_quarantined;
        }
        Account {
            received: self.held_through_head() - coalesced - quarantined,
            coalesced,
            quarantined,
            missing: self.held.missing_within(1, self.head),
        }
    }

    /// Numbers above the head are held only where a bad message claimed one: they count when the head reaches them.
    fn held_through_head(&self) -> u64 {
        match self.held.last() {
            top if top > self.head => self.held.count() - self.held.within(self.head + 1, top).count(),
            _ => self.held.count(),
        }
    }

    fn quarantine_span(&mut self, from: u64, to: u64) {
        let new = self.found_bad(from, to);
        self.irregular().quarantined.extend(&new);
    }

    fn drop_span(&mut self, from: u64, to: u64) {
        let new = self.found_bad(from, to);
        let irregular = self.irregular();
        irregular.dropped.extend(&irregular.quarantined.within(from, to));
        irregular.quarantined.remove_span(from, to);
        irregular.dropped.extend(&new);
    }

    /// Marks numbers as quarantined that were not held, or were known by an account only: a fact says more.
    /// Where the held numbers are in [`PIECES_MAX`] pieces, no further number is held: it stays missing, as in
    /// ingest's account.
    fn found_bad(&mut self, from: u64, to: u64) -> SeqRanges {
        let mut new = if self.held.pieces() < PIECES_MAX {
            self.held.missing_within(from, to)
        } else {
            SeqRanges::new()
        };
        self.held.extend(&new);
        if let Some(irregular) = &mut self.irregular {
            let told = irregular.untold.within(from, to);
            irregular.untold.remove_span(from, to);
            irregular.untold_quarantined = irregular.untold_quarantined.saturating_sub(told.count());
            // The remaining counts of an account must fit the numbers that are known by it alone.
            irregular.untold_coalesced = irregular.untold_coalesced.min(irregular.untold.count());
            new.extend(&told);
        }
        new
    }

    fn ahead(&mut self, epoch: Epoch, note: impl FnOnce(&mut FutureEpochSeqs)) {
        let ahead = &mut self.irregular().ahead;
        note(ahead.entry(epoch).or_default());
        if ahead.len() > AHEAD_EPOCHS_MAX {
            ahead.pop_last();
        }
    }

    fn irregular(&mut self) -> &mut IrregularSeqs {
        self.irregular.get_or_insert_default()
    }
}

/// Adds ranges in ascending order, as long as the set has fewer than [`PIECES_MAX`] pieces.
fn insert_bounded(set: &mut SeqRanges, ranges: &SeqRanges) {
    for (from, to) in ranges.iter() {
        if set.len() < PIECES_MAX {
            set.insert_span(from, to);
        }
    }
}

impl From<Stored> for SeqAccount {
    fn from(Stored { epoch, head, held, count: _, irregular }: Stored) -> Self {
        Self { epoch, head, held: held.into(), irregular }
    }
}

impl From<SeqAccount> for Stored {
    fn from(SeqAccount { epoch, head, held, irregular }: SeqAccount) -> Self {
        Self { epoch, head, held: held.ranges(), count: held.count(), irregular }
    }
}

impl IrregularSeqs {
    /// All in quarantine up to a number, dropped or not.
    fn quarantined_through(&self, through: u64) -> u64 {
        self.quarantined.count_through(through) + self.dropped.count_through(through)
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::limits::COUNTER_MAX;

    use super::*;

    fn epoch(number: u64) -> Epoch {
        Epoch::new(number).unwrap()
    }

    fn seq(number: u64) -> Seq {
        Seq::new(number).unwrap()
    }

    fn sums_up(seq_account: &SeqAccount) -> Account {
        let account = seq_account.account();
        assert_eq!(account.missing.count(), seq_account.missing());
        let sum = account.received + account.coalesced + account.quarantined + account.missing.count();
        assert_eq!(sum, seq_account.head(), "{seq_account:?}");
        account
    }

    #[test]
    fn a_number_counts_once_in_its_best_way() {
        let mut seq_account = SeqAccount::default();
        seq_account.enter(epoch(1));
        seq_account.quarantine(epoch(1), &SeqRanges::span(3, 3));
        assert_eq!(seq_account.missing(), 0, "nobody has spoken of 3 yet");
        seq_account.coalesce(&SeqRanges::span(2, 3));
        assert_eq!(sums_up(&seq_account).coalesced, 2);
        seq_account.receive(seq(3));
        seq_account.quarantine(epoch(1), &SeqRanges::span(3, 3));
        seq_account.coalesce(&SeqRanges::span(3, 3));
        let account = sums_up(&seq_account);
        assert_eq!((account.received, account.coalesced, account.quarantined), (1, 1, 0));
        assert_eq!(account.missing, SeqRanges::span(1, 1));
    }

    #[test]
    fn a_bad_message_before_its_epoch_counts_when_the_epoch_opens() {
        let mut seq_account = SeqAccount::default();
        for ahead in [9, 2, 8, 7, 6, 5] {
            seq_account.quarantine(epoch(ahead), &SeqRanges::span(1, 1));
        }
        seq_account.enter(epoch(2));
        seq_account.receive(seq(2));
        assert_eq!(sums_up(&seq_account).quarantined, 1);
        assert!(!seq_account.enter(epoch(1)), "an older epoch is not entered again");
        seq_account.enter(epoch(9));
        seq_account.receive(seq(2));
        assert_eq!(sums_up(&seq_account).quarantined, 0, "only the nearest epochs to come are kept");
    }

    #[test]
    fn a_dropped_number_is_quarantined_and_certain_in_either_order() {
        for drop_first in [false, true] {
            for ahead in [false, true] {
                let mut seq_account = SeqAccount::default();
                let open = |seq_account: &mut SeqAccount| {
                    seq_account.enter(epoch(3));
                    seq_account.advertise(6);
                };
                if !ahead {
                    open(&mut seq_account);
                }
                if drop_first {
                    seq_account.drop_quarantined(epoch(3), &SeqRanges::span(5, 5));
                }
                seq_account.quarantine(epoch(3), &SeqRanges::span(4, 4));
                seq_account.quarantine(epoch(3), &SeqRanges::span(5, 5));
                if !drop_first {
                    seq_account.drop_quarantined(epoch(3), &SeqRanges::span(5, 5));
                }
                open(&mut seq_account);
                assert_eq!((sums_up(&seq_account).quarantined, seq_account.in_doubt()), (2, 4));
                seq_account.receive(seq(4));
                seq_account.receive(seq(5));
                assert_eq!((sums_up(&seq_account).quarantined, seq_account.in_doubt()), (0, 0));
            }
        }
    }

    #[test]
    fn aged_out_numbers_are_merged_from_ingests_account() {
        let mut seq_account = SeqAccount::default();
        seq_account.enter(epoch(1));
        seq_account.receive(seq(9));
        let missing = SeqRanges::span(4, 4);
        let border = Account { received: 5, coalesced: 2, quarantined: 1, missing };
        seq_account.learn(9, &border);
        assert_eq!(sums_up(&seq_account), border);
        seq_account.learn(9, &border);
        assert_eq!(sums_up(&seq_account), border, "learnt once");
        seq_account.receive(seq(10));
        seq_account.receive(seq(4));
        let account = sums_up(&seq_account);
        assert_eq!((account.received, account.missing.count()), (7, 0));
    }

    #[test]
    fn a_quarantined_number_read_after_its_account_is_still_uncertain() {
        let mut seq_account = SeqAccount::default();
        seq_account.enter(epoch(1));
        let border = Account { received: 3, coalesced: 1, quarantined: 1, missing: SeqRanges::new() };
        seq_account.learn(5, &border);
        assert_eq!((sums_up(&seq_account), seq_account.in_doubt()), (border.clone(), 0));
        seq_account.quarantine(epoch(1), &SeqRanges::span(4, 4));
        assert_eq!((sums_up(&seq_account), seq_account.in_doubt()), (border.clone(), 4));
        seq_account.drop_quarantined(epoch(1), &SeqRanges::span(4, 4));
        assert_eq!((sums_up(&seq_account), seq_account.in_doubt()), (border, 0));
        // More numbers than the account had: the sum still holds.
        [1, 2, 3, 5]
            .into_iter()
            .for_each(|number| seq_account.quarantine(epoch(1), &SeqRanges::span(number, number)));
        assert_eq!((sums_up(&seq_account).quarantined, seq_account.in_doubt()), (5, 5));
    }

    #[test]
    fn an_account_that_does_not_add_up_still_leaves_ours_adding_up() {
        let mut seq_account = SeqAccount::default();
        seq_account.enter(epoch(1));
        let border = Account { received: 0, coalesced: 90, quarantined: 90, missing: SeqRanges::span(2, 3) };
        seq_account.learn(5, &border);
        sums_up(&seq_account);
    }

    #[test]
    fn scattered_bad_numbers_take_bounded_room_and_stay_missing() {
        let (mut seq_account, top) = (SeqAccount::default(), 6 * PIECES_MAX as u64 + 1);
        seq_account.enter(epoch(1));
        for number in (1..=top).step_by(2) {
            [1, 2]
                .into_iter()
                .for_each(|of| seq_account.quarantine(epoch(of), &SeqRanges::span(number, number)));
        }
        let room = |seq_account: &SeqAccount| {
            let irregular = seq_account.irregular.as_ref().unwrap();
            let ahead: usize = irregular.ahead.values().map(|ahead| ahead.quarantined.len()).sum();
            (seq_account.held.pieces(), irregular.quarantined.len(), ahead)
        };
        assert_eq!(room(&seq_account), (PIECES_MAX, PIECES_MAX, PIECES_MAX));
        assert!(
            seq_account.is_beyond(epoch(1), seq(top)),
            "it may be anything while nobody has spoken of it"
        );
        for of in [1, 2] {
            seq_account.enter(epoch(of));
            seq_account.advertise(top);
            let account = sums_up(&seq_account);
            assert_eq!(account.quarantined, PIECES_MAX as u64);
            assert!(account.missing.contains(top), "so nothing of the device is known");
        }
        assert_eq!(room(&seq_account), (PIECES_MAX, PIECES_MAX, 0));
        seq_account.coalesce(&SeqRanges::span(1, top - 1));
        seq_account.quarantine(epoch(2), &SeqRanges::span(top, top));
        assert_eq!(
            (sums_up(&seq_account).missing.count(), seq_account.in_doubt()),
            (0, top),
            "closed holes make room"
        );
    }

    #[test]
    fn the_largest_head_is_only_a_large_number() {
        let mut seq_account = SeqAccount::default();
        seq_account.enter(epoch(1));
        seq_account.receive(seq(COUNTER_MAX));
        seq_account.quarantine(epoch(1), &SeqRanges::span(COUNTER_MAX, COUNTER_MAX));
        assert_eq!(sums_up(&seq_account).missing.count(), COUNTER_MAX - 1);
    }
}
