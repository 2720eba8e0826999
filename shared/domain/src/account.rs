//! The account of one device: the report numbers that the hub holds, and so the missing ones.
//!
//! ```text
//! epoch 1 (closed)        epoch 2 (current)
//! held 1-40               held 1-7,9   quarantined 4   head 9   ⇒ missing 8
//! ```
//!
//! A device's newest epoch is its current one. An older epoch is closed: its numbers are still recognised, and no new
//! number is accepted into it. Within an epoch order does not matter. The content of a number's first good report is
//! remembered as a digest for the newest few numbers only; that a number is held is remembered for ever.
//!
//! This module knows no streams, no time and no other devices.

use muster_contract::canonical::Digest;
use muster_contract::fact::Account;
use muster_contract::limits::{IN_FLIGHT_MAX, OUTBOX_ROWS_DEFAULT, RECEIPT_RANGES_MAX};
use muster_contract::receipt::Receipt;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Epoch, Seq, SeqRanges};
use serde::{Deserialize, Serialize};

use crate::recent::Recent;

/// Epochs of a device that are distinguished. Older epochs are only known to be closed.
pub(crate) const EPOCHS_KEPT: usize = 4;
/// Numbers of a device whose content is remembered, so that a second content is recognised as one.
pub(crate) const CONTENTS_KEPT: usize = 16;
/// Pieces into which the numbers of one epoch may fall. A device that sends in order stays far below: as many holes
/// as it has reports under way, and one for each deployment whose newest report went first.
pub(crate) const PIECES_MAX: usize = 2048;

const _: () = {
    assert!(PIECES_MAX > 2 * IN_FLIGHT_MAX + 2 * muster_contract::limits::DEPLOYMENTS_PER_DEVICE_MAX);
    assert!(PIECES_MAX < OUTBOX_ROWS_DEFAULT);
};

/// The numbers a report carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbers<'a> {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its own number.
    pub seq: Seq,
    /// The highest number given when it was sent.
    pub head: Seq,
    /// Numbers folded into it.
    pub coalesced: &'a SeqRanges,
}

/// The account's verdict on a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The hub does not hold its number.
    New,
    /// It opens an epoch: the device lost its memory.
    NewEpoch {
        /// The epoch that ends with it.
        known: Epoch,
    },
    /// Its number is in, but it declares numbers folded into it that are not: it was folded after it was sent.
    Amended,
    /// It is in.
    Duplicate,
    /// Its number is in with another content.
    Fork {
        /// Digest of the content held.
        held: Digest,
        /// Digest of this one.
        other: Digest,
    },
    /// Its epoch is over, and its number did not come while it lasted.
    OldEpoch {
        /// The current epoch.
        known: Epoch,
    },
    /// With it the numbers of the epoch would be in more than [`PIECES_MAX`] pieces.
    Scattered,
}

/// The numbers that the hub holds of one device's reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReportAccount {
    current: Option<Epoch>,
    /// Ascending by epoch; a page above `current` holds quarantined numbers of an epoch that has yet to open.
    pages: Vec<EpochNumbers>,
    contents: Recent<((Epoch, Seq), Digest), CONTENTS_KEPT>,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EpochNumbers {
    epoch: Epoch,
    /// Highest number a good document spoke of.
    head: u64,
    /// Everything held: received, coalesced or quarantined.
    held: SeqRanges,
    /// The part of `held` that is in quarantine.
    quarantined: SeqRanges,
    /// How many of `held` were only declared as folded.
    coalesced: u64,
    /// The part of `held` that is known from an account alone, because the facts have aged out.
    untold: SeqRanges,
    /// Quarantined numbers known by count alone, because their facts have aged out.
    quarantined_aged: u64,
}

impl ReportAccount {
    /// The account's verdict on a report. `content` is computed only where the number is held already.
    pub(crate) fn admit(&self, numbers: Numbers<'_>, content: impl FnOnce() -> Digest) -> Admission {
        let page = self.page(numbers.epoch);
        let in_good = page.is_some_and(|page| page.holds_good(numbers.seq));
        if in_good {
            return self.admit_again(page, numbers, content());
        }
        match self.current {
            Some(known) if numbers.epoch < known => Admission::OldEpoch { known },
            _ if page.map_or(numbers.coalesced.len() >= PIECES_MAX, |page| page.scatters(numbers)) => {
                Admission::Scattered
            }
            Some(known) if numbers.epoch > known => Admission::NewEpoch { known },
            _ => Admission::New,
        }
    }

    fn admit_again(&self, page: Option<&EpochNumbers>, numbers: Numbers<'_>, other: Digest) -> Admission {
        let key = (numbers.epoch, numbers.seq);
        match self.contents.find(|(known, _)| *known == key) {
            Some((_, held)) if *held != other => return Admission::Fork { held: *held, other },
            _ => {}
        }
        let open = self.current == Some(numbers.epoch);
        let adds = page.is_some_and(|page| page.lacks(numbers.coalesced) && !page.scatters(numbers));
        if open && adds { Admission::Amended } else { Admission::Duplicate }
    }

    /// A report is in, with the digest of its content.
    pub(crate) fn receive(&mut self, numbers: Numbers<'_>, content: Digest) {
        self.open(numbers.epoch);
        let Some(page) = self.page_or_new(numbers.epoch) else { return };
        page.head = page.head.max(numbers.head.get()).max(numbers.seq.get());
        // A good report replaces a bad one, whichever came first.
        if page.quarantined.remove_span(numbers.seq.get(), numbers.seq.get()) == 0 {
            page.held.insert(numbers.seq.get());
        }
        page.untold.remove_span(numbers.seq.get(), numbers.seq.get());
        let folded = |(from, to)| page.quarantined.remove_span(from, to) + page.held.insert_span(from, to);
        page.coalesced += numbers.coalesced.iter().map(folded).sum::<u64>();
        numbers.coalesced.iter().for_each(|(from, to)| _ = page.untold.remove_span(from, to));
        let key = (numbers.epoch, numbers.seq);
        if self.contents.find(|(known, _)| *known == key).is_none() {
            self.contents.push_new((key, content));
        }
    }

    /// Records that reports with these numbers are in quarantine. They open no epoch: an unreadable message
    /// proves nothing.
    pub(crate) fn quarantine(&mut self, epoch: Epoch, seqs: &SeqRanges) {
        let Some(page) = self.page_or_new(epoch) else { return };
        for (from, to) in seqs.iter() {
            // Re-asserted: the account alone did not say which numbers these are.
            let named = page.untold.within(from, to);
            page.untold.remove_span(from, to);
            page.quarantined_aged = page.quarantined_aged.saturating_sub(named.count());
            page.quarantined.extend(&named);
            if page.held.len() < PIECES_MAX {
                let new = page.held.missing_within(from, to);
                page.held.extend(&new);
                page.quarantined.extend(&new);
            }
        }
    }

    /// The device was heard in this epoch with this head, and this is what was held of it then. Numbers whose facts
    /// have aged out are learnt from it.
    pub(crate) fn learn(&mut self, epoch: Epoch, head: u64, account: Option<&Account>) {
        self.open(epoch);
        let Some(page) = self.page_or_new(epoch) else { return };
        page.head = page.head.max(head);
        let Some(account) = account else { return };
        let told = account.missing.missing(head);
        let new = |(from, to)| page.untold.extend(&page.held.missing_within(from, to));
        told.iter().map(new).for_each(drop);
        if page.held.extend(&told) > 0 {
            page.coalesced = page.coalesced.max(account.coalesced);
            page.quarantined_aged = account.quarantined.saturating_sub(page.quarantined.count());
        }
    }

    /// The current epoch; none before the first good document.
    pub(crate) const fn epoch(&self) -> Option<Epoch> {
        self.current
    }

    /// The highest number of the current epoch that a good document spoke of.
    pub(crate) fn head(&self) -> u64 {
        self.current_page().map_or(0, |page| page.head)
    }

    /// The highest number of the current epoch that is held, as far as a good document has spoken of it, in LEDGER or
    /// (up to `spoken`) elsewhere: a number that only a poisonous message claims says nothing of how far the device is.
    pub(crate) fn top(&self, spoken: u64) -> u64 {
        let top = |page: &EpochNumbers| page.held.max().map(|top| top.min(page.head.max(spoken)));
        self.current_page().and_then(top).unwrap_or(0)
    }

    /// True where every number up to `head` is held in the current epoch.
    pub(crate) fn is_complete(&self, head: u64) -> bool {
        head == 0
            || self
                .current_page()
                .is_some_and(|page| page.held.iter().next().is_some_and(|(from, to)| from == 1 && to >= head))
    }

    /// The numbers up to `through` that the current epoch lacks.
    pub(crate) fn missing(&self, through: u64) -> SeqRanges {
        self.current_page().map_or_else(|| SeqRanges::span(1, through), |page| page.held.missing(through))
    }

    /// The numbers up to `through` that an epoch lacks.
    pub(crate) fn missing_of(&self, epoch: Epoch, through: u64) -> SeqRanges {
        self.page(epoch).map_or_else(|| SeqRanges::span(1, through), |page| page.held.missing(through))
    }

    /// True if the hub holds the number, and not in quarantine.
    pub(crate) fn is_received(&self, epoch: Epoch, seq: Seq) -> bool {
        self.page(epoch).is_some_and(|page| page.holds_good(seq))
    }

    /// Digest of the content of a number that the hub holds, and not in quarantine, while it is remembered.
    pub(crate) fn content_of(&self, epoch: Epoch, seq: Seq) -> Option<Digest> {
        let found = self.contents.find(|(known, _)| *known == (epoch, seq));
        found.filter(|_| self.is_received(epoch, seq)).map(|(_, content)| *content)
    }

    /// True where the number is in quarantine.
    pub(crate) fn is_quarantined(&self, epoch: Epoch, seq: Seq) -> bool {
        self.page(epoch).is_some_and(|page| page.quarantined.contains(seq.get()))
    }

    /// The account of the current epoch up to `head`: its four parts add up to `head`.
    pub(crate) fn at_head(&self, head: u64) -> Account {
        let missing = self.missing(head);
        let held = head - missing.count();
        let Some(page) = self.current_page() else { return Account { missing, ..Account::default() } };
        let quarantined = (page.quarantined.count_through(head) + page.quarantined_aged).min(held);
        let coalesced = page.coalesced.min(held - quarantined);
        Account { received: held - quarantined - coalesced, coalesced, quarantined, missing }
    }

    /// The receipt for the current epoch, up to the highest number held (see [`ReportAccount::top`]) or `asked`,
    /// whichever is higher; less far where one receipt cannot list all holes.
    pub(crate) fn receipt(&self, spoken: u64, asked: u64) -> Option<Receipt> {
        let epoch = self.current?;
        let mut through = self.top(spoken).max(asked);
        let mut missing = self.missing(through);
        let beyond = missing.iter().nth(RECEIPT_RANGES_MAX);
        if let Some((from, _)) = beyond {
            through = from - 1;
            missing = missing.truncated(RECEIPT_RANGES_MAX);
        }
        Some(Receipt {
            api_version: ApiVersion::V1,
            kind: kind::Receipt::Receipt,
            epoch,
            through,
            missing,
            refused: Vec::new(),
            batches: Vec::new(),
            generation: None,
        })
    }

    /// How many epochs, and how many pieces of all their sets, are remembered.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        let pieces = |page: &EpochNumbers| page.held.len() + page.quarantined.len() + page.untold.len();
        (self.pages.len(), self.pages.iter().map(pieces).sum())
    }

    fn open(&mut self, epoch: Epoch) {
        self.current = self.current.max(Some(epoch));
    }

    fn page(&self, epoch: Epoch) -> Option<&EpochNumbers> {
        self.pages.iter().find(|page| page.epoch == epoch)
    }

    fn current_page(&self) -> Option<&EpochNumbers> {
        self.page(self.current?)
    }

    /// The numbers of an epoch, created where there are none. None where the epoch is older than all that are
    /// kept.
    fn page_or_new(&mut self, epoch: Epoch) -> Option<&mut EpochNumbers> {
        if self.page(epoch).is_none() {
            self.pages.push(EpochNumbers::new(epoch));
            self.pages.sort_by_key(|page| page.epoch);
            if self.pages.len() > EPOCHS_KEPT {
                let spare = self.pages.iter().position(|page| Some(page.epoch) != self.current);
                self.pages.remove(spare.unwrap_or(0));
            }
        }
        self.pages.iter_mut().find(|page| page.epoch == epoch)
    }
}

impl EpochNumbers {
    const fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            head: 0,
            held: SeqRanges::new(),
            quarantined: SeqRanges::new(),
            coalesced: 0,
            untold: SeqRanges::new(),
            quarantined_aged: 0,
        }
    }

    fn holds_good(&self, seq: Seq) -> bool {
        self.held.contains(seq.get()) && !self.quarantined.contains(seq.get())
    }

    /// Whether any of these numbers is not held, or held only provisionally.
    fn lacks(&self, numbers: &SeqRanges) -> bool {
        let lacks = |(from, to)| {
            !self.held.missing_within(from, to).is_empty() || !self.quarantined.within(from, to).is_empty()
        };
        numbers.iter().any(lacks)
    }

    /// Whether these numbers would split the epoch into too many pieces. Exact only near the limit.
    fn scatters(&self, numbers: Numbers<'_>) -> bool {
        if self.held.len() + numbers.coalesced.len() < PIECES_MAX {
            return false;
        }
        let mut with = self.held.clone();
        with.insert(numbers.seq.get());
        with.extend(numbers.coalesced);
        with.len() > PIECES_MAX && with.len() > self.held.len()
    }
}

#[cfg(test)]
mod tests;
