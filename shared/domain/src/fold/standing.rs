//! Where one device stands with one deployment, and the share of the counts that this makes.

use muster_contract::fact::DeadlineFact;
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_contract::{Epoch, Generation, State, Timestamp};
use serde::{Deserialize, Serialize};

use super::blueprint;
use super::moment::Second;
use super::report::Report;

/// A device's row for a deployment. It is kept while anything is known of it, also where nothing is shown: a row that
/// ended as removed refuses the older reports that may still come.
#[derive(Debug)]
pub(super) struct Row {
    /// The deployment's number.
    pub(super) deployment: u32,
    /// The number of what shall run, or shall not run any more; [`blueprint::NONE`] where nobody said what that is.
    pub(super) blueprint: u32,
    /// Generation at which its target last changed; none where it shall not run.
    pub(super) target: Option<Generation>,
    /// Since when that is so, to the second; [`NEVER`] where nobody said so, or withdrew it before anything was reported.
    since: Second,
    pub(super) report: Option<Report>,
    pub(super) deadline: Option<Box<Deadline>>,
}

/// Before any time.
const NEVER: Timestamp = Timestamp::MIN;

/// A deadline that passed, and where LEDGER holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Deadline {
    pub(super) fact: DeadlineFact,
    pub(super) ledger_seq: u64,
}

/// What a standing takes from its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facet {
    pub(super) retired: bool,
    pub(super) freshness: Freshness,
    pub(super) epoch: Option<Epoch>,
    pub(super) head: u64,
    pub(super) missing: u64,
    pub(super) doubt: Doubt,
    /// The device's partition, where the hub does not listen to that.
    pub(super) unheard_in: Option<u8>,
    /// It would be fresh if the hub did.
    pub(super) is_masked: bool,
}

/// What may be news of the device and cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Doubt {
    /// The highest number in quarantine that nobody has dropped, of those that the device has spoken of; 0 for none.
    pub(super) seq: u64,
    /// A message in quarantine may be anything.
    pub(super) beyond: bool,
    /// The device cannot keep what it would report.
    pub(super) not_storing: bool,
}

/// What a standing adds to the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Nothing: there is no such row for anybody who looks.
    Nothing,
    /// It shall not run and is still there.
    Leaving,
    /// It shall run.
    Target {
        standing: Standing,
        freshness: Freshness,
        known: bool,
        overdue: bool,
        /// It is tried again after an error.
        retried: bool,
        missing: u64,
    },
}

impl Facet {
    /// True where no standing of the device can tell the two apart. The head matters only while reports are missing.
    pub(super) fn is_same_for_standings(&self, other: &Self) -> bool {
        let head_matters = self.missing > 0;
        let blind = |facet: &Self| Self { head: if head_matters { facet.head } else { 0 }, ..*facet };
        blind(self) == blind(other)
    }

    /// Whether everything is known of the device, of which so many targets are not.
    pub(super) const fn is_complete(&self, unknown: u32) -> bool {
        self.missing == 0 && unknown == 0 && !self.doubt.beyond && !self.doubt.not_storing
    }

    /// Whether the hub can know that this is the deployment's last report (or that there is none), and what it says.
    fn knows(&self, report: Option<&Report>) -> bool {
        self.has_last(report) && !self.doubts(report) && !self.doubt.not_storing
    }

    /// Whether every report that could be later is in, readable or not.
    pub(super) fn has_last(&self, report: Option<&Report>) -> bool {
        let Some(epoch) = self.epoch else { return true };
        match report {
            Some(report) if report.epoch < epoch => false,
            report => self.says_it_is_last(report) || self.missing == 0,
        }
    }

    /// Whether the report itself says that nothing newer has been said of its deployment.
    pub(super) fn says_it_is_last(&self, report: Option<&Report>) -> bool {
        report.is_some_and(|report| Some(report.epoch) == self.epoch && report.current_through() >= self.head)
    }

    /// Whether a message in quarantine may be a later report. What the deployment's last report said up to a head is not
    /// touched by a number up to there.
    pub(super) fn doubts(&self, report: Option<&Report>) -> bool {
        let of_epoch = report.filter(|report| Some(report.epoch) == self.epoch);
        let settled = of_epoch.map_or(0, |report| report.seq.get().max(report.current_through()));
        self.doubt.beyond || self.doubt.seq > settled
    }

    /// Whether the device lost its memory after this report, and everything it has said since is here and can be read: it
    /// knows nothing of the deployment, so it will never say that it is gone.
    fn has_forgotten(&self, report: Option<&Report>) -> bool {
        self.missing == 0
            && report.is_some_and(|report| Some(report.epoch) < self.epoch)
            && !self.doubts(report)
    }
}

impl Row {
    pub(super) fn new(deployment: u32) -> Self {
        let (target, since, report, deadline) = (None, NEVER.into(), None, None);
        Self { deployment, blueprint: blueprint::NONE, target, since, report, deadline }
    }

    /// It shall run this from then on, if it shall not already. What was withdrawn before anything was reported of it leaves
    /// no time.
    pub(super) fn aim(&mut self, target: Option<Generation>, at: Timestamp) {
        if self.target != target {
            self.since = if target.is_some() || self.report.is_some() { at } else { NEVER }.into();
            self.target = target;
        }
    }

    /// Since when its target is what it is; none where nothing was said of it.
    pub(super) fn since(&self) -> Option<Timestamp> {
        Some(self.since.get()).filter(|since| *since > NEVER)
    }

    /// It has been so since then.
    pub(super) fn put_back(&mut self, target: Option<Generation>, since: Option<Timestamp>) {
        (self.target, self.since) = (target, since.unwrap_or(NEVER).into());
    }

    /// When the hub took in its last report, or was told what it shall run, if that was later.
    pub(super) fn changed_at(&self) -> Option<Timestamp> {
        self.since().max(self.report.as_ref().map(Report::received_at))
    }

    /// Where it stands; none where it neither shall run nor was ever reported.
    pub(super) fn standing(&self) -> Option<Standing> {
        match (&self.report, self.target) {
            (None, None) => None,
            (None, Some(_)) => Some(Standing::Waiting),
            (Some(report), Some(target)) if report.generation < target => Some(Standing::Outdated),
            (Some(report), Some(_)) if report.is_crash_loop() => Some(Standing::Failed),
            (Some(report), _) => Some(report.state.into()),
        }
    }

    pub(super) fn is_known(&self, facet: &Facet) -> bool {
        facet.knows(self.report.as_ref())
    }

    /// The deadline it is past: one of its current target and of no attempt before the first that counts, while it is not at
    /// an end for that target. What is tried again is at none.
    pub(super) fn overdue(&self) -> Option<&Deadline> {
        let deadline = self.deadline.as_deref()?;
        let report = self.report.as_ref();
        let at_end = matches!(self.standing(), Some(Standing::Installed | Standing::Failed))
            && !report.is_some_and(Report::is_retried);
        let is_of_target = self.target == Some(deadline.fact.generation);
        let first = report.filter(|report| Some(report.generation) >= self.target);
        let is_void =
            first.and_then(Report::first_attempt_at).is_some_and(|first| deadline.fact.since < first);
        (is_of_target && !at_end && !is_void).then_some(deadline)
    }

    pub(super) fn share(&self, facet: &Facet) -> Share {
        match (self.standing(), self.target) {
            _ if facet.retired => Share::Nothing,
            (None, _) | (Some(Standing::Removed), None) => Share::Nothing,
            (Some(_), None) if facet.has_forgotten(self.report.as_ref()) => Share::Nothing,
            (Some(_), None) => Share::Leaving,
            (Some(standing), Some(_)) => Share::Target {
                standing,
                freshness: facet.freshness,
                known: self.is_known(facet),
                overdue: self.overdue().is_some(),
                retried: standing != Standing::Outdated
                    && self.report.as_ref().is_some_and(Report::is_retried),
                missing: facet.missing,
            },
        }
    }

    /// True where nothing about the row is worth keeping: it shall not run, and what it held is void. `forgotten`
    /// says whether a report is older than anything LEDGER still holds.
    pub(super) fn is_spent(
        &self,
        generation: Generation,
        facet: &Facet,
        forgotten: impl Fn(&Report) -> bool,
    ) -> bool {
        let awaited = self.deadline.as_ref().is_some_and(|deadline| deadline.fact.generation > generation);
        let over = |report: &Report| report.state == State::Removed || facet.has_forgotten(Some(report));
        let tombstone_due = self.report.as_ref().is_none_or(|report| over(report) && forgotten(report));
        self.target.is_none() && !awaited && tombstone_due
    }
}

/// True where it reports for its current target and is at no end of it.
pub(super) const fn is_at_work(standing: Standing) -> bool {
    matches!(standing, Standing::Pending | Standing::Installing | Standing::Removing | Standing::Removed)
}

impl Share {
    /// True where the report's components count: it is about the current target.
    pub(super) const fn shows_components(self) -> bool {
        match self {
            Self::Target { standing, .. } => !matches!(standing, Standing::Waiting | Standing::Outdated),
            Self::Nothing | Self::Leaving => false,
        }
    }

    /// True where it shall be and is not known.
    pub(super) const fn is_unknown(self) -> bool {
        matches!(self, Self::Target { known: false, .. })
    }

    /// True where it makes the rule of a verdict hold.
    pub(super) const fn speaks_for(self, verdict: Verdict) -> bool {
        let Self::Target { standing, freshness, known, overdue, .. } = self else {
            return matches!((self, verdict), (Self::Leaving, Verdict::Removing));
        };
        match verdict {
            Verdict::Empty | Verdict::Removing => false,
            Verdict::Failing => matches!(standing, Standing::Failed),
            Verdict::Overdue => overdue,
            Verdict::Incomplete => !known,
            Verdict::Progressing => is_at_work(standing) && matches!(freshness, Freshness::Fresh),
            // Who is silent while at work may have stopped for ever: that is no progress.
            Verdict::Waiting if is_at_work(standing) => !matches!(freshness, Freshness::Fresh),
            Verdict::Waiting => matches!(standing, Standing::Waiting | Standing::Outdated),
            Verdict::ConvergedStale => !matches!(freshness, Freshness::Fresh),
            Verdict::Converged => true,
        }
    }

    /// The first verdict whose rule it makes hold.
    pub(super) fn verdict(self) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|verdict| self.speaks_for(*verdict))
    }

    /// True where the report's errors count.
    pub(super) const fn shows_errors(self) -> bool {
        matches!(self, Self::Target { standing: Standing::Failed, .. } | Self::Target { retried: true, .. })
    }
}
