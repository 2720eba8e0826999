//! The standing of one device with one deployment, and the count class that follows from it.

use muster_contract::evidence::EvidenceSource;
use muster_contract::fact::DeadlineFact;
use muster_contract::view::{Freshness, Standing};
use muster_contract::{Epoch, Generation, State, Timestamp};
use serde::{Deserialize, Serialize};

use super::app_spec;
use super::packed_timestamp::PackedSeconds;
use super::report::Report;

/// A device's row for a deployment. It is kept while anything is known of it, even if it is not shown: a row
/// that ended as removed still refuses older reports that may come.
#[derive(Debug)]
pub(super) struct Row {
    /// The deployment's number.
    pub(super) deployment: u32,
    /// The number of the spec that is targeted or leaving; [`app_spec::NONE`] where none was assigned.
    pub(super) spec: u32,
    /// Generation at which the target last changed; none without a target.
    pub(super) target: Option<Generation>,
    /// Since when the target is that, to the second; [`NEVER`] where no target was set, or it was withdrawn
    /// before any report.
    since: PackedSeconds,
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

/// The inputs of row evaluation from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceContext {
    pub(super) retired: bool,
    pub(super) freshness: Freshness,
    pub(super) epoch: Option<Epoch>,
    pub(super) head: u64,
    pub(super) missing: u64,
    pub(super) doubt: Uncertainty,
    /// The device's partition, where the hub does not hear it.
    pub(super) unheard_in: Option<u8>,
    /// It would be fresh if the hub did.
    pub(super) is_masked: bool,
    /// When it was last heard, as facts prove it. No class depends on it.
    pub(super) heard_at: Option<Timestamp>,
}

/// Messages that may supersede a row of the device and cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Uncertainty {
    /// The highest quarantined and not dropped number up to the device's head; 0 for none.
    pub(super) seq: u64,
    /// A message in quarantine may be anything.
    pub(super) beyond: bool,
    /// The state of the device may have changed without a report: it cannot store reports, or lost its memory.
    pub(super) not_storing: bool,
}

/// The counting class of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountClass {
    /// Not counted: the row is not shown.
    Nothing,
    /// The row has no target and is not removed yet.
    Leaving,
    /// The row has a target.
    Target {
        standing: Standing,
        freshness: Freshness,
        known: bool,
        overdue: bool,
        /// Attempts of the worst retry that is running after an error; 0 if none is.
        attempts: u32,
        missing: u64,
        /// The source of its last report as evidence; the default without a report.
        source: EvidenceSource,
    },
}

impl DeviceContext {
    /// True where no row of the device distinguishes the two. The head matters only while reports are missing.
    pub(super) fn is_same_for_rows(&self, other: &Self) -> bool {
        let head_matters = self.missing > 0;
        let blind = |context: &Self| Self {
            head: if head_matters { context.head } else { 0 },
            heard_at: None,
            ..*context
        };
        blind(self) == blind(other)
    }

    /// When the device was heard last, if it counts at all.
    pub(super) fn counted_heard_at(&self) -> Option<Timestamp> {
        self.heard_at.filter(|_| !self.retired)
    }

    /// When the device was last heard, if it is silent. While the hub does not hear its partition, nothing is known of the
    /// silence of a device that was heard until then.
    pub(super) fn silent_since(&self) -> Option<Timestamp> {
        let is_silent = self.freshness == Freshness::Stale && !self.is_masked;
        self.counted_heard_at().filter(|_| is_silent)
    }

    /// Whether the device is completely known, given its number of unknown targets.
    pub(super) const fn is_complete(&self, unknown: u32) -> bool {
        self.missing == 0 && unknown == 0 && !self.doubt.beyond && !self.doubt.not_storing
    }

    /// Whether the hub knows that this is the deployment's last report (or that there is none), and its
    /// content.
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

    /// Whether the report itself says that it is the deployment's last.
    pub(super) fn says_it_is_last(&self, report: Option<&Report>) -> bool {
        report.is_some_and(|report| Some(report.epoch) == self.epoch && report.current_through() >= self.head)
    }

    /// Whether a quarantined message may be a later report. A report that was current up to a head is not
    /// affected by numbers up to there.
    pub(super) fn doubts(&self, report: Option<&Report>) -> bool {
        let of_epoch = report.filter(|report| Some(report.epoch) == self.epoch);
        let settled = of_epoch.map_or(0, |report| report.seq.get().max(report.current_through()));
        self.doubt.beyond || self.doubt.seq > settled
    }

    /// Whether the device lost its memory after this report, and all its reports since are stored and readable:
    /// it does not know the deployment, so it will never report its removal.
    fn has_forgotten(&self, report: Option<&Report>) -> bool {
        self.missing == 0
            && report.is_some_and(|report| Some(report.epoch) < self.epoch)
            && !self.doubts(report)
    }
}

impl Row {
    pub(super) fn new(deployment: u32) -> Self {
        let (target, since, report, deadline) = (None, NEVER.into(), None, None);
        Self { deployment, spec: app_spec::NONE, target, since, report, deadline }
    }

    /// Sets the target, if it differs. A target withdrawn before any report leaves no time.
    pub(super) fn set_target(&mut self, target: Option<Generation>, at: Timestamp) {
        if self.target != target {
            self.since = if target.is_some() || self.report.is_some() { at } else { NEVER }.into();
            self.target = target;
        }
    }

    /// Since when the target is what it is; none where none was set, or it was withdrawn before any report.
    pub(super) fn since(&self) -> Option<Timestamp> {
        Some(self.since.get()).filter(|since| *since > NEVER)
    }

    /// Restores the target and its time from a record.
    pub(super) fn restore_target(&mut self, target: Option<Generation>, since: Option<Timestamp>) {
        (self.target, self.since) = (target, since.unwrap_or(NEVER).into());
    }

    /// When the hub received the last report or set the target, whichever is later.
    pub(super) fn changed_at(&self) -> Option<Timestamp> {
        self.since().max(self.report.as_ref().map(Report::received_at))
    }

    /// The standing; none where the row has neither a target nor a report.
    pub(super) fn standing(&self) -> Option<Standing> {
        match (&self.report, self.target) {
            (None, None) => None,
            (None, Some(_)) => Some(Standing::Waiting),
            (Some(report), Some(target)) if report.generation < target => Some(Standing::Outdated),
            (Some(report), Some(_)) if report.is_crash_loop() => Some(Standing::Failed),
            (Some(report), _) => Some(report.state.into()),
        }
    }

    pub(super) fn is_known(&self, context: &DeviceContext) -> bool {
        context.knows(self.report.as_ref())
    }

    /// The deadline that the row has missed: one of its current target, not of an attempt before the first that
    /// counts, while the row has not finished that target. A retried row has not finished.
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

    pub(super) fn count_class(&self, context: &DeviceContext) -> CountClass {
        match (self.counted_standing(context), self.target) {
            (None, _) => CountClass::Nothing,
            (Some(_), None) => CountClass::Leaving,
            (Some(standing), Some(_)) => CountClass::Target {
                standing,
                freshness: context.freshness,
                known: self.is_known(context),
                overdue: self.overdue().is_some(),
                attempts: self.attempts(standing),
                missing: context.missing,
                source: self.report.as_ref().map_or_else(EvidenceSource::default, Report::evidence_source),
            },
        }
    }

    /// Attempts of the worst retry; 0 if none is running. A retry of an older generation does not count.
    fn attempts(&self, standing: Standing) -> u32 {
        let report = self.report.as_ref().filter(|_| standing != Standing::Outdated);
        report.and_then(Report::worst_retry).map_or(0, |retry| retry.attempt)
    }

    /// Whether the row counts for anything.
    pub(super) fn is_counted(&self, context: &DeviceContext) -> bool {
        self.counted_standing(context).is_some()
    }

    /// The standing, if the row counts for anything.
    fn counted_standing(&self, context: &DeviceContext) -> Option<Standing> {
        if context.retired {
            return None;
        }
        let standing = self.standing()?;
        let has_left = self.target.is_none()
            && (standing == Standing::Removed || context.has_forgotten(self.report.as_ref()));
        (!has_left).then_some(standing)
    }

    /// True where the row may be dropped: it has no target, no deadline of a generation after this one, and
    /// either no report or one that ended as removed or that its device forgot, and that is `forgotten`: older
    /// than everything LEDGER still holds.
    pub(super) fn is_spent(
        &self,
        generation: Generation,
        context: &DeviceContext,
        forgotten: impl Fn(&Report) -> bool,
    ) -> bool {
        let awaited = self.deadline.as_ref().is_some_and(|deadline| deadline.fact.generation > generation);
        let over = |report: &Report| report.state == State::Removed || context.has_forgotten(Some(report));
        let tombstone_due = self.report.as_ref().is_none_or(|report| over(report) && forgotten(report));
        self.target.is_none() && !awaited && tombstone_due
    }
}

impl CountClass {
    /// True where the report's components count: the report is about the current target.
    pub(super) const fn shows_components(self) -> bool {
        match self {
            Self::Target { standing, .. } => !matches!(standing, Standing::Waiting | Standing::Outdated),
            Self::Nothing | Self::Leaving => false,
        }
    }

    /// True where the row is a target that is not known.
    pub(super) const fn is_unknown(self) -> bool {
        matches!(self, Self::Target { known: false, .. })
    }

    /// True where the report's errors count.
    pub(super) const fn shows_errors(self) -> bool {
        matches!(self, Self::Target { standing: Standing::Failed, .. } | Self::Target { attempts: 1.., .. })
    }
}
