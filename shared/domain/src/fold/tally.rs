//! Counts that add up: of standings ([`Group`]) and of devices ([`Devices`]). Counts of disjoint parts of a
//! fleet are merged by adding them, in any order. The verdict is read off a group.

mod part;
mod rest;

pub use part::BadPart;

use std::ops::AddAssign;

use muster_contract::view::{Bounds, Complete, Counts, Freshness, Retried, Split, Standing, Verdict};

use super::axes::Axes;
use super::delta::Delta;
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
    /// The same standings on the other axes; the holder of the group updates them, because a class does not
    /// contain them.
    pub(super) axes: Axes,
}

/// The verdicts of [`of_target`], at the indices of `Group::counts`.
const VERDICTS: [[Verdict; 3]; Standing::ALL.len()] = {
    let mut verdicts = [[Verdict::Empty; 3]; Standing::ALL.len()];
    let mut at = 0;
    while at < Standing::ALL.len() {
        let (standing, of) = (Standing::ALL[at], &mut verdicts[Standing::ALL[at] as usize]);
        of[Freshness::Fresh as usize] = of_target(standing, Freshness::Fresh);
        of[Freshness::Stale as usize] = of_target(standing, Freshness::Stale);
        of[Freshness::Never as usize] = of_target(standing, Freshness::Never);
        at += 1;
    }
    verdicts
};

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
        let CountClass::Target { standing, freshness, known, overdue, attempts, missing } = class else {
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
    }

    /// Replaces a standing's class.
    pub(super) fn exchange(&mut self, from: CountClass, to: CountClass) {
        if from != to {
            self.shift(Delta::Retract, from);
            self.shift(Delta::Add, to);
        }
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
            _ => self.by_verdict().filter(|(found, _)| *found == verdict).map(|(_, count)| count).sum(),
        };
        count.into()
    }

    /// The first verdict of all rows; of rows without targets only if there are no others.
    pub(super) fn verdict(&self) -> Verdict {
        // Each fact calls this four times, so it reads a table instead of evaluating the rules.
        let mut first = None;
        for (count, verdict) in self.counts.as_flattened().iter().zip(VERDICTS.as_flattened()) {
            if *count > 0 {
                first = Some(first.map_or(*verdict, |first: Verdict| first.min(*verdict)));
            }
        }
        let overdue = (self.overdue > 0).then_some(Verdict::Overdue);
        let unknown = (self.known < self.targets).then_some(Verdict::Incomplete);
        let without_targets = if self.leaving > 0 { Verdict::Removing } else { Verdict::Empty };
        [first, overdue, unknown].into_iter().flatten().min().unwrap_or(without_targets)
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
        for (own, others) in self.counts.as_flattened_mut().iter_mut().zip(other.counts.as_flattened()) {
            *own += others;
        }
        self.targets += other.targets;
        self.leaving += other.leaving;
        self.overdue += other.overdue;
        self.retried += other.retried;
        self.attempts += other.attempts;
        self.known += other.known;
        self.confirmed_installed += other.confirmed_installed;
        self.confirmed_failed += other.confirmed_failed;
        self.missing += other.missing;
        self.axes.shift(Delta::Add, &other.axes);
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
