//! What is left of a whole without its parts. Parts add up, so they can be taken away; nobody counts the rest anew.

use muster_contract::groups::StandingPart;

use super::{Axes, Devices, Group};

impl Group {
    /// The same without a part of it. The axes are of the whole group or of none, so they are left out.
    #[must_use]
    pub(in crate::fold) fn without(mut self, part: &Self) -> Self {
        for (own, others) in self.counts.as_flattened_mut().iter_mut().zip(part.counts.as_flattened()) {
            *own -= others;
        }
        self.targets -= part.targets;
        self.leaving -= part.leaving;
        self.overdue -= part.overdue;
        self.known -= part.known;
        self.sure -= part.sure;
        self.lost -= part.lost;
        self.missing -= part.missing;
        self.axes = Axes::default();
        self
    }

    /// As a document.
    pub(in crate::fold) fn part(&self) -> StandingPart {
        StandingPart {
            verdict: self.verdict(),
            targets: self.targets(),
            leaving: self.leaving(),
            overdue: self.overdue(),
            counts: self.counts(),
            converged: self.bounds(),
            complete: self.complete(),
        }
    }
}

impl Devices {
    /// The same without a part of it.
    #[must_use]
    pub(in crate::fold) fn without(mut self, part: &Self) -> Self {
        self.by_freshness.iter_mut().zip(part.by_freshness).for_each(|(own, others)| *own -= others);
        self.complete -= part.complete;
        self.missing -= part.missing;
        self
    }
}
