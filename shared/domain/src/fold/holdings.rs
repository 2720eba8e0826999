//! What LEDGER holds of one device's current epoch: which numbers, and in which way. Always
//! `head = received + coalesced + quarantined + missing`.
//!
//! The order in which numbers come changes nothing: a number counts as received before coalesced before quarantined. Of
//! the quarantined ones those are in doubt that nobody has dropped: they may be news.
//! What happened in earlier epochs is history and not kept.

use std::collections::BTreeMap;

use muster_contract::fact::Account;
use muster_contract::{Epoch, Seq, SeqRanges};
use serde::{Deserialize, Serialize};

use super::held::Held;
use crate::account::PIECES_MAX;

/// Epochs to come of which quarantined numbers are kept until a good report of them arrives. They are read from bad
/// messages and may be anything, so only the nearest are worth keeping.
const AHEAD_EPOCHS_MAX: usize = 4;

/// The numbers held of a device's current epoch, and how many there should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub(super) struct Holdings {
    epoch: Option<Epoch>,
    head: u64,
    held: Held,
    odd: Option<Box<Odd>>,
}

/// As a snapshot has them.
#[derive(Serialize, Deserialize)]
struct Stored {
    epoch: Option<Epoch>,
    head: u64,
    held: SeqRanges,
    /// How many numbers `held` has, for those who read it without counting.
    count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    odd: Option<Box<Odd>>,
}

/// What most devices never have: numbers held otherwise than as facts. All but `ahead` are parts of `held`, and
/// no number is in two of them; the rest of `held` was received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Odd {
    coalesced: SeqRanges,
    /// In quarantine, and nobody has said that they are of no use.
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
    ahead: BTreeMap<Epoch, Ahead>,
}

/// Quarantined numbers of an epoch to come. A number may be in both: then it is dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ahead {
    quarantined: SeqRanges,
    #[serde(default, skip_serializing_if = "SeqRanges::is_empty")]
    dropped: SeqRanges,
}

impl Holdings {
    /// Those of a device that has not spoken.
    pub(super) const fn new() -> Self {
        Self { epoch: None, head: 0, held: Held::NONE, odd: None }
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
            let mut ahead = self.odd.take().map(|odd| odd.ahead).unwrap_or_default();
            let Ahead { quarantined, dropped } = ahead.remove(&epoch).unwrap_or_default();
            ahead.retain(|other, _| *other > epoch);
            *self = Self { epoch: Some(epoch), ..Self::default() };
            if !ahead.is_empty() {
                self.odd().ahead = ahead;
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
            && let Some(odd) = &mut self.odd
        {
            odd.coalesced.remove_span(seq, seq);
            odd.quarantined.remove_span(seq, seq);
            odd.dropped.remove_span(seq, seq);
            odd.untold.remove_span(seq, seq);
        }
    }

    /// Numbers were declared as folded into another.
    pub(super) fn coalesce(&mut self, folded: &SeqRanges) {
        for (from, to) in folded.iter() {
            self.advertise(to);
            let new = self.held.missing_within(from, to);
            self.held.extend(&new);
            let odd = self.odd();
            for known_bad in [&mut odd.quarantined, &mut odd.dropped] {
                odd.coalesced.extend(&known_bad.within(from, to));
                known_bad.remove_span(from, to);
            }
            odd.coalesced.extend(&new);
            odd.untold.remove_span(from, to);
        }
    }

    /// Numbers came in messages that could not be let in. Their epoch is as good as the messages: it opens none.
    pub(super) fn quarantine(&mut self, epoch: Epoch, seqs: &SeqRanges) {
        if self.epoch == Some(epoch) {
            seqs.iter().for_each(|(from, to)| self.quarantine_span(from, to));
        } else if self.epoch < Some(epoch) {
            self.ahead(epoch, |ahead| insert_bounded(&mut ahead.quarantined, seqs));
        }
    }

    /// A person says that the messages with these numbers are of no use: they stay quarantined and are no news any more.
    pub(super) fn drop_quarantined(&mut self, epoch: Epoch, seqs: &SeqRanges) {
        if self.epoch == Some(epoch) {
            seqs.iter().for_each(|(from, to)| self.drop_span(from, to));
        } else if self.epoch < Some(epoch) {
            self.ahead(epoch, |ahead| insert_bounded(&mut ahead.dropped, seqs));
        }
    }

    /// The highest number in doubt, of those that the device has spoken of; 0 where there is none.
    pub(super) fn in_doubt(&self) -> u64 {
        self.odd.as_deref().and_then(|odd| odd.quarantined.max_through(self.head)).unwrap_or(0)
    }

    /// The numbers in doubt, of those that the device has spoken of.
    pub(super) fn all_in_doubt(&self) -> SeqRanges {
        self.odd.as_deref().map(|odd| odd.quarantined.within(1, self.head)).unwrap_or_default()
    }

    /// True where a quarantined number is above what the device has spoken of, and nobody has dropped it.
    pub(super) fn is_beyond(&self, epoch: Epoch, seq: Seq) -> bool {
        let odd = self.odd.as_deref();
        match self.epoch {
            Some(current) if epoch < current => false,
            Some(current) if epoch == current => {
                // Also one that is not held because there are too many pieces: nothing says that it is no news.
                seq.get() > self.head && !odd.is_some_and(|odd| odd.dropped.contains(seq.get()))
            }
            _ => !odd
                .and_then(|odd| odd.ahead.get(&epoch))
                .is_some_and(|ahead| ahead.dropped.contains(seq.get())),
        }
    }

    /// Takes from a liveness fact's account what the facts themselves no longer tell: every number up to `head`
    /// that it does not miss is held.
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
        let odd = self.odd();
        let own_quarantined = odd.quarantined_through(head);
        let beyond = |told: u64, own: u64, before: u64| told.saturating_sub(own).saturating_sub(before);
        let own_coalesced = odd.coalesced.count_through(head);
        let coalesced = beyond(account.coalesced, own_coalesced, odd.untold_coalesced).min(learnt);
        let quarantined =
            beyond(account.quarantined, own_quarantined, odd.untold_quarantined).min(learnt - coalesced);
        odd.untold.extend(&new);
        odd.untold_coalesced += coalesced;
        odd.untold_quarantined += quarantined;
    }

    /// Makes it so that these numbers are held as well, as reports, and that the device has spoken of those up to `head`.
    pub(super) fn see(&mut self, held: &SeqRanges, head: u64) {
        self.held.extend(held);
        self.head = head;
        if let Some(odd) = &mut self.odd {
            for (from, to) in held.iter() {
                odd.quarantined.remove_span(from, to);
                odd.dropped.remove_span(from, to);
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
        if let Some(odd) = &self.odd {
            coalesced = odd.coalesced.count_through(self.head) + odd.untold_coalesced;
            quarantined = odd.quarantined_through(self.head) + odd.untold_quarantined;
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
        self.odd().quarantined.extend(&new);
    }

    fn drop_span(&mut self, from: u64, to: u64) {
        let new = self.found_bad(from, to);
        let odd = self.odd();
        odd.dropped.extend(&odd.quarantined.within(from, to));
        odd.quarantined.remove_span(from, to);
        odd.dropped.extend(&new);
    }

    /// Numbers that are held from now on and were not, or were held for a border's word only: a fact says more than that.
    /// Where the held ones are in [`PIECES_MAX`] pieces, no other is held: it stays missing, as in the border's account.
    fn found_bad(&mut self, from: u64, to: u64) -> SeqRanges {
        let mut new = match self.held.pieces() < PIECES_MAX {
            true => self.held.missing_within(from, to),
            false => SeqRanges::new(),
        };
        self.held.extend(&new);
        if let Some(odd) = &mut self.odd {
            let told = odd.untold.within(from, to);
            odd.untold.remove_span(from, to);
            odd.untold_quarantined = odd.untold_quarantined.saturating_sub(told.count());
            // What is left of a border's word must fit into what is known by it alone.
            odd.untold_coalesced = odd.untold_coalesced.min(odd.untold.count());
            new.extend(&told);
        }
        new
    }

    fn ahead(&mut self, epoch: Epoch, note: impl FnOnce(&mut Ahead)) {
        let ahead = &mut self.odd().ahead;
        note(ahead.entry(epoch).or_default());
        if ahead.len() > AHEAD_EPOCHS_MAX {
            ahead.pop_last();
        }
    }

    fn odd(&mut self) -> &mut Odd {
        self.odd.get_or_insert_default()
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

impl From<Stored> for Holdings {
    fn from(Stored { epoch, head, held, count: _, odd }: Stored) -> Self {
        Self { epoch, head, held: held.into(), odd }
    }
}

impl From<Holdings> for Stored {
    fn from(Holdings { epoch, head, held, odd }: Holdings) -> Self {
        Self { epoch, head, held: held.ranges(), count: held.count(), odd }
    }
}

impl Odd {
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

    fn sums_up(holdings: &Holdings) -> Account {
        let account = holdings.account();
        assert_eq!(account.missing.count(), holdings.missing());
        let sum = account.received + account.coalesced + account.quarantined + account.missing.count();
        assert_eq!(sum, holdings.head(), "{holdings:?}");
        account
    }

    #[test]
    fn a_number_counts_once_in_its_best_way() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        holdings.quarantine(epoch(1), &SeqRanges::span(3, 3));
        assert_eq!(holdings.missing(), 0, "nobody has spoken of 3 yet");
        holdings.coalesce(&SeqRanges::span(2, 3));
        assert_eq!(sums_up(&holdings).coalesced, 2);
        holdings.receive(seq(3));
        holdings.quarantine(epoch(1), &SeqRanges::span(3, 3));
        holdings.coalesce(&SeqRanges::span(3, 3));
        let account = sums_up(&holdings);
        assert_eq!((account.received, account.coalesced, account.quarantined), (1, 1, 0));
        assert_eq!(account.missing, SeqRanges::span(1, 1));
    }

    #[test]
    fn a_bad_message_before_its_epoch_counts_when_the_epoch_opens() {
        let mut holdings = Holdings::default();
        for ahead in [9, 2, 8, 7, 6, 5] {
            holdings.quarantine(epoch(ahead), &SeqRanges::span(1, 1));
        }
        holdings.enter(epoch(2));
        holdings.receive(seq(2));
        assert_eq!(sums_up(&holdings).quarantined, 1);
        assert!(!holdings.enter(epoch(1)), "an older epoch is not entered again");
        holdings.enter(epoch(9));
        holdings.receive(seq(2));
        assert_eq!(sums_up(&holdings).quarantined, 0, "only the nearest epochs to come are kept");
    }

    #[test]
    fn a_dropped_number_is_quarantined_and_in_no_doubt_whichever_came_first() {
        for drop_first in [false, true] {
            for ahead in [false, true] {
                let mut holdings = Holdings::default();
                let open = |holdings: &mut Holdings| {
                    holdings.enter(epoch(3));
                    holdings.advertise(6);
                };
                if !ahead {
                    open(&mut holdings);
                }
                if drop_first {
                    holdings.drop_quarantined(epoch(3), &SeqRanges::span(5, 5));
                }
                holdings.quarantine(epoch(3), &SeqRanges::span(4, 4));
                holdings.quarantine(epoch(3), &SeqRanges::span(5, 5));
                if !drop_first {
                    holdings.drop_quarantined(epoch(3), &SeqRanges::span(5, 5));
                }
                open(&mut holdings);
                assert_eq!((sums_up(&holdings).quarantined, holdings.in_doubt()), (2, 4));
                holdings.receive(seq(4));
                holdings.receive(seq(5));
                assert_eq!((sums_up(&holdings).quarantined, holdings.in_doubt()), (0, 0));
            }
        }
    }

    #[test]
    fn what_has_aged_out_is_learnt_from_the_border() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        holdings.receive(seq(9));
        let missing = SeqRanges::span(4, 4);
        let border = Account { received: 5, coalesced: 2, quarantined: 1, missing };
        holdings.learn(9, &border);
        assert_eq!(sums_up(&holdings), border);
        holdings.learn(9, &border);
        assert_eq!(sums_up(&holdings), border, "learnt once");
        holdings.receive(seq(10));
        holdings.receive(seq(4));
        let account = sums_up(&holdings);
        assert_eq!((account.received, account.missing.count()), (7, 0));
    }

    #[test]
    fn a_bad_message_that_is_read_after_the_account_it_is_in_is_in_doubt_all_the_same() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        let border = Account { received: 3, coalesced: 1, quarantined: 1, missing: SeqRanges::new() };
        holdings.learn(5, &border);
        assert_eq!((sums_up(&holdings), holdings.in_doubt()), (border.clone(), 0));
        holdings.quarantine(epoch(1), &SeqRanges::span(4, 4));
        assert_eq!((sums_up(&holdings), holdings.in_doubt()), (border.clone(), 4));
        holdings.drop_quarantined(epoch(1), &SeqRanges::span(4, 4));
        assert_eq!((sums_up(&holdings), holdings.in_doubt()), (border, 0));
        // More of them than the account had: it is still one sum.
        [1, 2, 3, 5]
            .into_iter()
            .for_each(|number| holdings.quarantine(epoch(1), &SeqRanges::span(number, number)));
        assert_eq!((sums_up(&holdings).quarantined, holdings.in_doubt()), (5, 5));
    }

    #[test]
    fn an_account_that_does_not_add_up_still_leaves_ours_adding_up() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        let border = Account { received: 0, coalesced: 90, quarantined: 90, missing: SeqRanges::span(2, 3) };
        holdings.learn(5, &border);
        sums_up(&holdings);
    }

    #[test]
    fn scattered_bad_numbers_take_bounded_room_and_stay_missing() {
        let (mut holdings, top) = (Holdings::default(), 6 * PIECES_MAX as u64 + 1);
        holdings.enter(epoch(1));
        for number in (1..=top).step_by(2) {
            [1, 2]
                .into_iter()
                .for_each(|of| holdings.quarantine(epoch(of), &SeqRanges::span(number, number)));
        }
        let room = |holdings: &Holdings| {
            let odd = holdings.odd.as_ref().unwrap();
            let ahead: usize = odd.ahead.values().map(|ahead| ahead.quarantined.len()).sum();
            (holdings.held.pieces(), odd.quarantined.len(), ahead)
        };
        assert_eq!(room(&holdings), (PIECES_MAX, PIECES_MAX, PIECES_MAX));
        assert!(holdings.is_beyond(epoch(1), seq(top)), "it may be anything while nobody has spoken of it");
        for of in [1, 2] {
            holdings.enter(epoch(of));
            holdings.advertise(top);
            let account = sums_up(&holdings);
            assert_eq!(account.quarantined, PIECES_MAX as u64);
            assert!(account.missing.contains(top), "so nothing of the device is known");
        }
        assert_eq!(room(&holdings), (PIECES_MAX, PIECES_MAX, 0));
        holdings.coalesce(&SeqRanges::span(1, top - 1));
        holdings.quarantine(epoch(2), &SeqRanges::span(top, top));
        assert_eq!(
            (sums_up(&holdings).missing.count(), holdings.in_doubt()),
            (0, top),
            "closed holes make room"
        );
    }

    #[test]
    fn the_largest_head_is_only_a_large_number() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        holdings.receive(seq(COUNTER_MAX));
        holdings.quarantine(epoch(1), &SeqRanges::span(COUNTER_MAX, COUNTER_MAX));
        assert_eq!(sums_up(&holdings).missing.count(), COUNTER_MAX - 1);
    }
}
