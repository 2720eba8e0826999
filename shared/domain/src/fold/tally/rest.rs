//! Subtracts parts from a whole, so that the rest need not be counted again.

use muster_contract::standing_part::StandingPart;

use super::{Axes, Devices, Group};

impl Group {
    /// The group without a part of it, and without axes, which exist for whole groups only. A whole and a part that
    /// hubs gave at different moments may not fit together: no count falls below zero.
    #[must_use]
    pub(in crate::fold) fn without(mut self, part: &Self) -> Self {
        for (own, others) in self.counts.as_flattened_mut().iter_mut().zip(part.counts.as_flattened()) {
            *own = own.saturating_sub(*others);
        }
        let targets = self.targets.saturating_sub(part.targets);
        let within = |own: u32, others: u32| own.saturating_sub(others).min(targets);
        let mut evidence = self.evidence;
        evidence.combine(&part.evidence, within);
        Self {
            counts: self.counts,
            targets,
            leaving: self.leaving.saturating_sub(part.leaving),
            overdue: within(self.overdue, part.overdue),
            retried: within(self.retried, part.retried),
            attempts: self.attempts.saturating_sub(part.attempts),
            known: within(self.known, part.known),
            confirmed_installed: within(self.confirmed_installed, part.confirmed_installed),
            confirmed_failed: within(self.confirmed_failed, part.confirmed_failed),
            missing: self.missing.saturating_sub(part.missing),
            evidence,
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
            retried: self.retried(),
            counts: self.counts(),
            evidence: self.evidence(),
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
