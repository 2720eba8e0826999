//! Counts that add up: of standings ([`Group`]) and of devices ([`Devices`]). Both form a commutative group under
//! addition, so the counts of disjoint parts of a fleet are merged by adding them. The verdict is read off a group.

use std::ops::{AddAssign, SubAssign};

use muster_contract::view::{Bounds, Complete, Counts, Freshness, Split, Standing, Verdict};

use super::standing::Share;

/// Missing reports of one device that the sums count at most: more than a device makes, and little enough that no sum
/// over `u32::MAX` standings can overflow. The device's own account always says the true number.
const MISSING_COUNTED_MAX: u64 = u32::MAX as u64;

/// Counts over any set of standings.
///
/// `u32` suffices: a process that held `u32::MAX` standings would need more than a terabyte for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Group {
    counts: [[u32; 3]; Standing::ALL.len()],
    targets: u32,
    leaving: u32,
    overdue: u32,
    known: u32,
    /// Installed for the current target, fresh and known.
    sure: u32,
    /// Failed for the current target, and known.
    lost: u32,
    missing: u64,
}

/// Counts over any set of devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Devices {
    by_freshness: [u32; 3],
    complete: u32,
    missing: u64,
}

impl Group {
    /// The group of one standing.
    pub(super) fn of(share: Share) -> Self {
        let mut group = Self::default();
        match share {
            Share::Nothing => {}
            Share::Leaving => group.leaving = 1,
            Share::Target { standing, freshness, known, overdue, missing } => {
                group.counts[standing as usize][freshness as usize] = 1;
                group.targets = 1;
                group.overdue = overdue.into();
                group.known = known.into();
                let sure = standing == Standing::Installed && freshness == Freshness::Fresh && known;
                group.sure = sure.into();
                group.lost = (standing == Standing::Failed && known).into();
                group.missing = missing.min(MISSING_COUNTED_MAX);
            }
        }
        group
    }

    /// True where it holds nothing at all.
    pub fn is_empty(&self) -> bool {
        self.targets == 0 && self.leaving == 0
    }

    /// Standings that shall be.
    pub fn targets(&self) -> u64 {
        self.targets.into()
    }

    /// Standings that shall not be and still are.
    pub fn leaving(&self) -> u64 {
        self.leaving.into()
    }

    /// Targets past their deadline.
    pub fn overdue(&self) -> u64 {
        self.overdue.into()
    }

    /// Targets by standing and freshness, without the zeros.
    pub fn counts(&self) -> Counts {
        let split = |standing: Standing| split(self.counts[standing as usize]);
        Standing::ALL.into_iter().map(|at| (at, split(at))).filter(|(_, split)| split.total() > 0).collect()
    }

    /// The bounds of the truth.
    pub fn bounds(&self) -> Bounds {
        Bounds { lo: self.sure.into(), hi: (self.targets - self.lost).into() }
    }

    /// Of how many targets the standing is known.
    pub fn complete(&self) -> Complete {
        Complete { devices: self.known.into(), of: self.targets.into(), missing_reports: self.missing }
    }

    /// The first that holds. At work is whatever reports for its current target and is at no end of it; not begun
    /// is whatever does not yet.
    pub fn verdict(&self) -> Verdict {
        let total = |standing: Standing| self.counts[standing as usize].iter().sum::<u32>();
        let at_work = [Standing::Pending, Standing::Installing, Standing::Removing, Standing::Removed];
        let fresh = self.counts[Standing::Installed as usize][Freshness::Fresh as usize];
        match self {
            _ if self.is_empty() => Verdict::Empty,
            _ if self.targets == 0 => Verdict::Removing,
            _ if total(Standing::Failed) > 0 => Verdict::Failing,
            _ if self.overdue > 0 => Verdict::Overdue,
            _ if self.known < self.targets => Verdict::Incomplete,
            _ if at_work.into_iter().any(|standing| total(standing) > 0) => Verdict::Progressing,
            _ if total(Standing::Installed) < self.targets => Verdict::Waiting,
            _ if fresh < self.targets => Verdict::ConvergedStale,
            _ => Verdict::Converged,
        }
    }
}

impl Devices {
    /// The count of one device.
    pub(super) fn one(freshness: Freshness, missing: u64) -> Self {
        let mut devices = Self { complete: (missing == 0).into(), ..Self::default() };
        devices.by_freshness[freshness as usize] = 1;
        devices.missing = missing.min(MISSING_COUNTED_MAX);
        devices
    }

    /// Devices by freshness.
    pub fn by_freshness(&self) -> Split {
        split(self.by_freshness)
    }

    /// Of how many devices every report is in.
    pub fn complete(&self) -> Complete {
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
        self.known += other.known;
        self.sure += other.sure;
        self.lost += other.lost;
        self.missing += other.missing;
    }
}

impl SubAssign for Group {
    fn sub_assign(&mut self, other: Self) {
        for (own, others) in self.counts.as_flattened_mut().iter_mut().zip(other.counts.as_flattened()) {
            *own -= others;
        }
        self.targets -= other.targets;
        self.leaving -= other.leaving;
        self.overdue -= other.overdue;
        self.known -= other.known;
        self.sure -= other.sure;
        self.lost -= other.lost;
        self.missing -= other.missing;
    }
}

impl AddAssign for Devices {
    fn add_assign(&mut self, other: Self) {
        self.by_freshness.iter_mut().zip(other.by_freshness).for_each(|(own, others)| *own += others);
        self.complete += other.complete;
        self.missing += other.missing;
    }
}

impl SubAssign for Devices {
    fn sub_assign(&mut self, other: Self) {
        self.by_freshness.iter_mut().zip(other.by_freshness).for_each(|(own, others)| *own -= others);
        self.complete -= other.complete;
        self.missing -= other.missing;
    }
}
