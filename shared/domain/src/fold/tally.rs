//! Counts that add up: of standings ([`Group`]) and of devices ([`Devices`]). Counts of disjoint parts of a
//! fleet are merged by adding them, in any order. The verdict is read off a group.

mod part;
mod rest;

pub use part::BadPart;

use std::ops::AddAssign;

use muster_contract::evidence::EvidenceCounts;
use muster_contract::view::{Bounds, Complete, Counts, Freshness, Retried, Split, Standing, Verdict};

use super::axes::Axes;
use super::delta::{Delta, combine};
use super::evidence_table::EvidenceTable;
use super::standing::CountClass;
use super::verdict::of_target;

/// Missing reports of one device that the sums count at most: more than a device makes, and little enough that no sum
/// over `u32::MAX` standings can overflow. The device's own account always says the true number.
const MISSING_COUNTED_MAX: u64 = u32::MAX as u64;

/// Counts over any set of standings.
///
/// `u32` suffices: a process that held `u32::MAX` standings would need more than a terabyte for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Group {
    counts: [[u32; 3]; Standing::ALL.len()],
    targets: u32,
    leaving: u32,
    overdue: u32,
    /// Targets under retry, and the attempts of all of them.
    retried: u32,
    attempts: u64,
    known: u32,
    /// Installed for the current target, fresh and known.
    confirmed_installed: u32,
    /// Failed for the current target, fresh and known.
    confirmed_failed: u32,
    missing: u64,
    evidence: EvidenceTable,
    /// The same standings on the other axes; the holder of the group updates them, because a class does not
    /// contain them.
    pub(super) axes: Axes,
}

/// The change of the counts of a group when one standing changes its class: computed once a fact, however many groups the standing
/// is in. Each count is a difference modulo 2³² or 2⁶⁴.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupChange(Group);

/// Counts by standing and freshness.
const COUNTS: usize = 3 * Standing::ALL.len();

/// The verdicts of [`of_target`], each as its bit, in the places of the counts of a group.
const VERDICT_BITS: [u32; COUNTS] = {
    let mut bits = [0; COUNTS];
    let mut at = 0;
    while at < Standing::ALL.len() {
        let (standing, first) = (Standing::ALL[at], 3 * Standing::ALL[at] as usize);
        bits[first + Freshness::Fresh as usize] = bit_of(of_target(standing, Freshness::Fresh));
        bits[first + Freshness::Stale as usize] = bit_of(of_target(standing, Freshness::Stale));
        bits[first + Freshness::Never as usize] = bit_of(of_target(standing, Freshness::Never));
        at += 1;
    }
    bits
};

/// The bit of a verdict: earlier verdicts have lower bits.
const fn bit_of(verdict: Verdict) -> u32 {
    1 << verdict as u32
}

/// Counts over any set of devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Devices {
    by_freshness: [u32; 3],
    complete: u32,
    missing: u64,
}

impl Group {
    /// Adds a standing or retracts it.
    pub(super) fn shift(&mut self, delta: Delta, class: CountClass) {
        let CountClass::Target { standing, freshness, known, overdue, attempts, missing, source } = class
        else {
            delta.apply(&mut self.leaving, (class == CountClass::Leaving).into());
            return;
        };
        let fresh = freshness == Freshness::Fresh;
        delta.apply(&mut self.counts[standing as usize][freshness as usize], 1);
        delta.apply(&mut self.targets, 1);
        delta.apply(&mut self.overdue, overdue.into());
        delta.apply(&mut self.retried, (attempts > 0).into());
        delta.apply(&mut self.attempts, attempts.into());
        delta.apply(&mut self.known, known.into());
        delta
            .apply(&mut self.confirmed_installed, (standing == Standing::Installed && fresh && known).into());
        delta.apply(&mut self.confirmed_failed, (standing == Standing::Failed && fresh && known).into());
        delta.apply(&mut self.missing, missing.min(MISSING_COUNTED_MAX));
        self.evidence.shift(delta, source);
    }

    /// The counts of one standing.
    fn of(class: CountClass, axes: Axes) -> Self {
        let mut group = Self { axes, ..Self::default() };
        group.shift(Delta::Add, class);
        group
    }

    /// Changes a standing's contribution.
    pub(super) fn apply(&mut self, change: &GroupChange) {
        self.combine(&change.0, add_difference, |own, other| own.wrapping_add(other));
    }

    /// Combines each count with that of another group.
    fn combine(&mut self, other: &Self, small: impl Fn(u32, u32) -> u32, large: impl Fn(u64, u64) -> u64) {
        combine(self.counts.as_flattened_mut(), other.counts.as_flattened(), &small);
        self.targets = small(self.targets, other.targets);
        self.leaving = small(self.leaving, other.leaving);
        self.overdue = small(self.overdue, other.overdue);
        self.retried = small(self.retried, other.retried);
        self.known = small(self.known, other.known);
        self.confirmed_installed = small(self.confirmed_installed, other.confirmed_installed);
        self.confirmed_failed = small(self.confirmed_failed, other.confirmed_failed);
        self.attempts = large(self.attempts, other.attempts);
        self.missing = large(self.missing, other.missing);
        self.evidence.combine(&other.evidence, &small);
        self.axes.combine(&other.axes, &small);
    }

    /// True where all counts are zero.
    pub(super) fn is_empty(&self) -> bool {
        self.targets == 0 && self.leaving == 0
    }

    /// Standings with a target.
    pub(super) fn targets(&self) -> u64 {
        self.targets.into()
    }

    /// Standings without a target that are not removed yet.
    pub(super) fn leaving(&self) -> u64 {
        self.leaving.into()
    }

    /// Targets past their deadline.
    pub(super) fn overdue(&self) -> u64 {
        self.overdue.into()
    }

    /// Targets under retry.
    pub(super) fn retried(&self) -> Retried {
        Retried { targets: self.retried.into(), attempts: self.attempts }
    }

    /// Targets by the evidence of their last report.
    pub(super) fn evidence(&self) -> EvidenceCounts {
        self.evidence.counts()
    }

    /// Targets by standing and freshness, without the zeros.
    pub(super) fn counts(&self) -> Counts {
        let split = |standing: Standing| split(self.counts[standing as usize]);
        Standing::ALL.into_iter().map(|at| (at, split(at))).filter(|(_, split)| split.total() > 0).collect()
    }

    /// Targets by freshness.
    pub(super) fn heard(&self) -> Split {
        let add = |sum: [u32; 3], of: &[u32; 3]| [sum[0] + of[0], sum[1] + of[1], sum[2] + of[2]];
        split(self.counts.iter().fold([0; 3], add))
    }

    /// The bounds of the truth.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { lo: self.confirmed_installed.into(), hi: (self.targets - self.confirmed_failed).into() }
    }

    /// The number of targets with a known standing.
    pub(super) fn complete(&self) -> Complete {
        Complete { devices: self.known.into(), of: self.targets.into(), missing_reports: self.missing }
    }

    /// The number of rows that make this verdict, if it is the verdict of the group or an earlier one.
    pub(super) fn because(&self, verdict: Verdict) -> u64 {
        let count = match verdict {
            Verdict::Empty => 0,
            Verdict::Removing => self.leaving,
            Verdict::Overdue => self.overdue,
            Verdict::Incomplete => self.targets - self.known,
            Verdict::Failing
            | Verdict::Progressing
            | Verdict::Waiting
            | Verdict::ConvergedStale
            | Verdict::Converged => {
                self.by_verdict().filter(|(found, _)| *found == verdict).map(|(_, count)| count).sum()
            }
        };
        count.into()
    }

    /// The first verdict of all rows; of rows without targets only if there are no others.
    pub(super) fn verdict(&self) -> Verdict {
        // A fact asks four times: one pass over a table, without branches.
        let (counts, mut found) = (self.counts.as_flattened(), 0);
        for at in 0..COUNTS {
            found |= if counts[at] > 0 { VERDICT_BITS[at] } else { 0 };
        }
        found |= if self.overdue > 0 { bit_of(Verdict::Overdue) } else { 0 };
        found |= if self.known < self.targets { bit_of(Verdict::Incomplete) } else { 0 };
        let without_targets = if self.leaving > 0 { Verdict::Removing } else { Verdict::Empty };
        Verdict::ALL.get(found.trailing_zeros() as usize).copied().unwrap_or(without_targets)
    }

    /// The counts of targets that are not 0, each with its verdict by standing and freshness.
    fn by_verdict(&self) -> impl Iterator<Item = (Verdict, u32)> {
        let counts = Standing::ALL.into_iter().flat_map(|standing| {
            let of = self.counts[standing as usize];
            let freshness = [Freshness::Fresh, Freshness::Stale, Freshness::Never].into_iter();
            freshness.map(move |at| (of_target(standing, at), of[at as usize]))
        });
        counts.filter(|(_, count)| *count > 0)
    }
}

impl GroupChange {
    /// The change from one contribution to another.
    pub(super) fn between(from: CountClass, from_axes: Axes, to: CountClass, to_axes: Axes) -> Self {
        let mut difference = Group::of(to, to_axes);
        let from = Group::of(from, from_axes);
        difference.combine(&from, |own, other| own.wrapping_sub(other), |own, other| own.wrapping_sub(other));
        Self(difference)
    }

    /// The same for groups that do not count the other axes.
    pub(super) fn without_axes(self) -> Self {
        Self(Group { axes: Axes::default(), ..self.0 })
    }
}

/// Adds a difference to a count, which is at least 0 and below 2³² before and after.
fn add_difference(count: u32, difference: u32) -> u32 {
    debug_assert!(count.checked_add_signed(difference.cast_signed()).is_some(), "{count} + {difference}");
    count.wrapping_add(difference)
}

impl Devices {
    /// Adds a device or retracts it.
    pub(super) fn shift(&mut self, delta: Delta, freshness: Freshness, missing: u64, complete: bool) {
        delta.apply(&mut self.by_freshness[freshness as usize], 1);
        delta.apply(&mut self.complete, complete.into());
        delta.apply(&mut self.missing, missing.min(MISSING_COUNTED_MAX));
    }

    /// Devices by freshness.
    pub(super) fn by_freshness(&self) -> Split {
        split(self.by_freshness)
    }

    /// The number of completely known devices.
    pub(super) fn complete(&self) -> Complete {
        Complete {
            devices: self.complete.into(),
            of: self.by_freshness().total(),
            missing_reports: self.missing,
        }
    }
}

fn split(counts: [u32; 3]) -> Split {
    let of = |freshness: Freshness| u64::from(counts[freshness as usize]);
    Split { fresh: of(Freshness::Fresh), stale: of(Freshness::Stale), never: of(Freshness::Never) }
}

impl AddAssign for Group {
    fn add_assign(&mut self, other: Self) {
        self.combine(&other, |own, other| own + other, |own, other| own + other);
    }
}

impl AddAssign for Devices {
    fn add_assign(&mut self, other: Self) {
        self.by_freshness.iter_mut().zip(other.by_freshness).for_each(|(own, others)| *own += others);
        self.complete += other.complete;
        self.missing += other.missing;
    }
}

#[cfg(test)]
mod tests;
