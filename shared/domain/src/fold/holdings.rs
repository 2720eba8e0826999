//! What LEDGER holds of one device's current epoch: which numbers, and in which way. Always
//! `head = received + coalesced + quarantined + missing`.
//!
//! The order in which numbers come changes nothing: a number counts as received before coalesced before quarantined.
//! What happened in earlier epochs is history and not kept.

use std::collections::BTreeMap;

use muster_contract::fact::Account;
use muster_contract::{Epoch, Seq, SeqRanges};
use serde::{Deserialize, Serialize};

/// Epochs to come of which quarantined numbers are kept until a good report of them arrives. They are read from bad
/// messages and may be anything, so only the nearest are worth keeping.
const AHEAD_EPOCHS_MAX: usize = 4;

/// The numbers held of a device's current epoch, and how many there should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holdings {
    epoch: Option<Epoch>,
    head: u64,
    held: SeqRanges,
    /// How many numbers `held` has: kept, because asking it is not free.
    count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    odd: Option<Box<Odd>>,
}

/// What most devices never have: numbers held otherwise than as facts. All but `ahead` are parts of `held`, and
/// no number is in two of them; the rest of `held` was received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Odd {
    coalesced: SeqRanges,
    quarantined: SeqRanges,
    /// Numbers known only from a liveness fact's account, because their own facts have aged out.
    untold: SeqRanges,
    /// How many of `untold` that account calls coalesced.
    untold_coalesced: u64,
    /// How many of `untold` that account calls quarantined.
    untold_quarantined: u64,
    /// Quarantined numbers of epochs that no report has opened yet.
    ahead: BTreeMap<Epoch, SeqRanges>,
}

impl Holdings {
    /// Those of a device that has not spoken.
    pub(super) const fn new() -> Self {
        Self { epoch: None, head: 0, held: SeqRanges::new(), count: 0, odd: None }
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
            let quarantined = ahead.remove(&epoch).unwrap_or_default();
            ahead.retain(|other, _| *other > epoch);
            *self = Self { epoch: Some(epoch), ..Self::default() };
            if !ahead.is_empty() {
                self.odd().ahead = ahead;
            }
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
        if self.held.insert(seq) {
            self.count += 1;
        } else if let Some(odd) = &mut self.odd {
            odd.coalesced.remove_span(seq, seq);
            odd.quarantined.remove_span(seq, seq);
        }
    }

    /// Numbers were declared as folded into another.
    pub(super) fn coalesce(&mut self, folded: &SeqRanges) {
        for (from, to) in folded.iter() {
            self.advertise(to);
            let new = self.held.missing_within(from, to);
            self.count += self.held.extend(&new);
            let odd = self.odd();
            let known_bad = odd.quarantined.within(from, to);
            odd.quarantined.remove_span(from, to);
            odd.coalesced.extend(&new);
            odd.coalesced.extend(&known_bad);
        }
    }

    /// A number came in a message that could not be let in. Its epoch is as good as the message: it opens none.
    pub(super) fn quarantine(&mut self, epoch: Epoch, seq: Seq) {
        if self.epoch == Some(epoch) {
            self.quarantine_span(seq.get(), seq.get());
        } else if self.epoch < Some(epoch) {
            let ahead = &mut self.odd().ahead;
            ahead.entry(epoch).or_default().insert(seq.get());
            if ahead.len() > AHEAD_EPOCHS_MAX {
                ahead.pop_last();
            }
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
        self.count += learnt;
        let odd = self.odd();
        let beyond = |told: u64, own: &SeqRanges, before: u64| {
            told.saturating_sub(own.count_through(head)).saturating_sub(before)
        };
        let coalesced = beyond(account.coalesced, &odd.coalesced, odd.untold_coalesced).min(learnt);
        let quarantined =
            beyond(account.quarantined, &odd.quarantined, odd.untold_quarantined).min(learnt - coalesced);
        odd.untold.extend(&new);
        odd.untold_coalesced += coalesced;
        odd.untold_quarantined += quarantined;
    }

    /// Makes it so that these numbers are held as well, and that the device has spoken of those up to `head`.
    pub(super) fn see(&mut self, held: &SeqRanges, head: u64) {
        self.count += self.held.extend(held);
        self.head = head;
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
            quarantined = odd.quarantined.count_through(self.head) + odd.untold_quarantined;
        }
        Account {
            received: self.held_through_head() - coalesced - quarantined,
            coalesced,
            quarantined,
            missing: self.held.missing(self.head),
        }
    }

    /// Numbers above the head are held only where a bad message claimed one: they count when the head reaches them.
    fn held_through_head(&self) -> u64 {
        match self.held.max() {
            Some(top) if top > self.head => self.count - self.held.within(self.head + 1, top).count(),
            _ => self.count,
        }
    }

    fn quarantine_span(&mut self, from: u64, to: u64) {
        let new = self.held.missing_within(from, to);
        self.count += self.held.extend(&new);
        self.odd().quarantined.extend(&new);
    }

    fn odd(&mut self) -> &mut Odd {
        self.odd.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
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
        holdings.quarantine(epoch(1), seq(3));
        assert_eq!(holdings.missing(), 0, "nobody has spoken of 3 yet");
        holdings.coalesce(&SeqRanges::span(2, 3));
        assert_eq!(sums_up(&holdings).coalesced, 2);
        holdings.receive(seq(3));
        holdings.quarantine(epoch(1), seq(3));
        holdings.coalesce(&SeqRanges::span(3, 3));
        let account = sums_up(&holdings);
        assert_eq!((account.received, account.coalesced, account.quarantined), (1, 1, 0));
        assert_eq!(account.missing, SeqRanges::span(1, 1));
    }

    #[test]
    fn a_bad_message_before_its_epoch_counts_when_the_epoch_opens() {
        let mut holdings = Holdings::default();
        for ahead in [9, 2, 8, 7, 6, 5] {
            holdings.quarantine(epoch(ahead), seq(1));
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
    fn an_account_that_does_not_add_up_still_leaves_ours_adding_up() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        let border = Account { received: 0, coalesced: 90, quarantined: 90, missing: SeqRanges::span(2, 3) };
        holdings.learn(5, &border);
        sums_up(&holdings);
    }

    #[test]
    fn a_head_at_the_end_of_u64_is_only_a_large_number() {
        let mut holdings = Holdings::default();
        holdings.enter(epoch(1));
        holdings.receive(seq(u64::MAX));
        holdings.quarantine(epoch(1), seq(u64::MAX));
        assert_eq!(sums_up(&holdings).missing.count(), u64::MAX - 1);
    }
}
