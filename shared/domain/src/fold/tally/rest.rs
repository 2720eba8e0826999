//! What is left of a whole without its parts. Parts add up, so they can be taken away; nobody counts the rest anew.

use muster_contract::groups::StandingPart;

use super::{Axes, Devices, Group};

impl Group {
    /// The same without a part of it. The axes are of the whole group or of none, so they are left out. A whole and a part
    /// that hubs gave at different moments may not fit together: then what is left is never less than nothing.
    #[must_use]
    pub(in crate::fold) fn without(mut self, part: &Self) -> Self {
        for (own, others) in self.counts.as_flattened_mut().iter_mut().zip(part.counts.as_flattened()) {
            *own = own.saturating_sub(*others);
        }
        let targets = self.targets.saturating_sub(part.targets);
        let within = |own: u32, others: u32| own.saturating_sub(others).min(targets);
        Self {
            counts: self.counts,
            targets,
            leaving: self.leaving.saturating_sub(part.leaving),
            overdue: within(self.overdue, part.overdue),
            known: within(self.known, part.known),
            sure: within(self.sure, part.sure),
            lost: within(self.lost, part.lost),
            missing: self.missing.saturating_sub(part.missing),
            axes: Axes::default(),
        }
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
        let by_freshness = self.by_freshness.iter_mut().zip(part.by_freshness);
        by_freshness.for_each(|(own, others)| *own = own.saturating_sub(others));
        self.complete = self.complete.saturating_sub(part.complete);
        self.missing = self.missing.saturating_sub(part.missing);
        self
    }
}
