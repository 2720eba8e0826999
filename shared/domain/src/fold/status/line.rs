//! Renders a standing as a line: both axes, kstatus, and the reason in words.

use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::query::Output;
use muster_contract::retry::Retry;
use muster_contract::state::cut;
use muster_contract::status::{Axis, ComponentLine, Deployed, KStatus, Ready, TargetStatus, placed};
use muster_contract::view::{Freshness, Standing};
use muster_contract::{DeviceKey, State, Timestamp};

use super::super::axes::{Axes, ComponentCondition, RowCondition};
use super::super::device::DeviceState;
use super::super::report::Report;
use super::super::standing::Row;
use super::filter::{Age, Filter, FilteredRow};

/// Causes of a doubtful line: the rest of its message is cut to leave room for these.
const SILENT: &str = "; the device is silent";
const NOT_LISTENED_TO: &str = "; the hub does not listen to it";
const UNHEARD: &str = "; the device was never heard";
const NOT_IN: &str = "; newer reports of it are not in";
const OVERDUE: &str = "; past its deadline";

const _: () = assert!(
    SILENT.len() <= NOT_LISTENED_TO.len()
        && UNHEARD.len() <= NOT_LISTENED_TO.len()
        && NOT_LISTENED_TO.len() + NOT_IN.len() + OVERDUE.len() <= VIEW_MESSAGE_BYTES_MAX / 2
);

impl FilteredRow<'_> {
    /// The line of it, with one axis or both.
    pub(super) fn line(&self, filter: &Filter<'_>, output: Output, axis: Option<Axis>) -> TargetStatus {
        let (device, row) = (&self.device.state, self.row);
        let axes = &self.axes;
        let held = |axis_of| axis.is_none_or(|wanted| wanted == axis_of) && !self.is_gone();
        let deployed = axes.deployed_status();
        let report = row.report.as_ref();
        TargetStatus {
            key: self.key(),
            deployment: self.deployment.clone(),
            app: self.app().map(str::to_owned),
            standing: self.standing(),
            freshness: device.freshness(),
            last_heard_at: self.heard_at,
            known: row.is_known(&device.context()),
            leaving: row.target.is_none(),
            overdue: self.look_of_age().overdue,
            deadline: row
                .overdue()
                .filter(|_| self.look_of_age().overdue)
                .map(|deadline| deadline.fact.clone()),
            retry: report.and_then(Report::worst_retry).map(Retry::summary).filter(|_| self.age == Age::Now),
            superseded: self.age != Age::Now,
            target_generation: row.target,
            reported_generation: report.map(|report| report.generation),
            deployed_status: held(Axis::Deployed).then_some(deployed),
            ready_status: self.ready_status(axes).filter(|_| held(Axis::Ready)),
            axes: self.look_of_age().axes_of_whole(
                self.kstatus(),
                deployed,
                report.map(|report| report.state),
            ),
            message: self.message(),
            changed_at: self.changed_at(),
            components: self.components(filter, output, axis),
            report: report.map(|report| report.shown(output)),
            digest: None,
            source: None,
        }
    }

    /// kstatus of the row; unknown for a superseded generation that is not held.
    pub(super) fn kstatus(&self) -> KStatus {
        if self.is_gone() { KStatus::Unknown } else { self.scan.kstatus() }
    }

    /// The row's condition; without refusal and deadline where the line is about a generation that is not held:
    /// those of another generation say nothing about it.
    fn look_of_age(&self) -> RowCondition {
        if self.is_gone() { self.scan.of_another() } else { self.scan }
    }

    /// When the shown content last changed.
    pub(super) fn changed_at(&self) -> Option<Timestamp> {
        match self.age {
            Age::Now => self.row.changed_at(),
            Age::Reported => self.row.report.as_ref().map(Report::received_at),
            Age::Gone => None,
        }
    }

    /// The reason, with its place.
    pub(super) fn message_with_place(&self) -> String {
        placed(self.deployment, &self.key(), &self.message())
    }

    fn key(&self) -> DeviceKey {
        DeviceKey { site: self.site.clone(), device: self.device.state.name.clone() }
    }

    fn standing(&self) -> Standing {
        let then = self.scan.target.filter(|_| self.age == Age::Reported);
        then.or_else(|| self.row.standing()).unwrap_or(Standing::Waiting)
    }

    fn ready_status(&self, axes: &Axes) -> Option<Ready> {
        let status = axes.ready_status();
        (status != Ready::Empty).then_some(status)
    }

    fn components(&self, filter: &Filter<'_>, output: Output, axis: Option<Axis>) -> Vec<ComponentLine> {
        if output < Output::All {
            return Vec::new();
        }
        filter.parts(self).map(|part| self.component(&part, axis)).collect()
    }

    fn component(&self, part: &ComponentCondition<'_>, axis: Option<Axis>) -> ComponentLine {
        ComponentLine {
            name: part.name.clone(),
            state: part.state,
            deployed_status: (axis != Some(Axis::Ready)).then_some(part.deployed),
            ready_status: part.ready.filter(|_| axis != Some(Axis::Deployed)),
            axes: self.scan.axes(part),
            message: cut(self.component_message(part), VIEW_MESSAGE_BYTES_MAX),
            retry: self.retry_of(part).map(Retry::summary).filter(|_| self.age == Age::Now),
            changed_at: self.changed_at(),
        }
    }

    /// Why the whole is so.
    fn message(&self) -> String {
        if self.is_gone() {
            return "superseded, and how it ended is not in the present state".to_owned();
        }
        message(&self.device.state, self.row, self.scan)
    }

    fn retry_of(&self, part: &ComponentCondition<'_>) -> Option<&Retry> {
        self.row.report.as_ref().and_then(|report| report.retry_of(part.name))
    }

    fn component_message(&self, part: &ComponentCondition<'_>) -> String {
        let error = self.row.report.as_ref().and_then(|report| report.component_error(part.name));
        match (error, self.retry_of(part), part.state) {
            (Some(error), None, Some(State::Failed)) => return format!("{}: {}", error.code, error.message),
            (_, Some(retry), Some(state)) => {
                let (tried, error) = (retry.summary(), &retry.last_error);
                return format!("is {state} ({tried}): last error {}: {}", error.code, error.message);
            }
            _ => {}
        }
        let words = match (part.deployed, part.ready, part.state) {
            (Deployed::Deleting, _, Some(state)) => format!("shall go; is {state}"),
            (Deployed::Deleted, ..) => "is gone".to_owned(),
            (Deployed::Failed, ..) => return self.message(),
            (_, Some(Ready::NotPresent), Some(state)) => {
                format!("nothing is reported of what shall run now; was {state}")
            }
            (_, Some(Ready::NotPresent), None) => "nothing is reported of it".to_owned(),
            (.., Some(state)) => format!("is {state}"),
            (.., None) => "nothing is reported of it".to_owned(),
        };
        words + &doubts(&self.device.state, self.row, self.scan)
    }
}

/// The reason for a row's standing.
pub(in crate::fold) fn message(state: &DeviceState, row: &Row, scan: RowCondition) -> String {
    let words = match (scan.target, row.report.as_ref()) {
        (None, Some(report)) => format!("shall not run any more; {}", said(report)),
        (Some(Standing::Waiting) | None, _) => "nothing is reported of it".to_owned(),
        (Some(Standing::Outdated), Some(report)) => {
            format!("the target has changed since; {} in generation {}", said(report), report.generation)
        }
        (Some(Standing::Removed), _) => "is removed although it shall run".to_owned(),
        (Some(_), Some(report)) => said(report),
        (Some(standing), None) => standing.as_str().to_owned(),
    };
    let doubts = doubts(state, row, scan);
    cut(words, VIEW_MESSAGE_BYTES_MAX - doubts.len()) + &doubts
}

/// The reasons why the actual state may differ.
fn doubts(state: &DeviceState, row: &Row, scan: RowCondition) -> String {
    let mut words = String::new();
    match state.freshness() {
        Freshness::Fresh => {}
        // Without the time: subscribers receive this text, and the time may move without a change of any
        // standing.
        Freshness::Stale if state.is_masked() => words += NOT_LISTENED_TO,
        Freshness::Stale => words += SILENT,
        Freshness::Never => words += UNHEARD,
    }
    if !row.is_known(&state.context()) {
        words += NOT_IN;
    }
    if scan.overdue {
        words += OVERDUE;
    }
    words
}

/// The report's message: its error, the attempt, or its reason.
fn said(report: &Report) -> String {
    match report.reason() {
        Some(reason) if !report.is_retried() && report.failure().is_none() => {
            format!("is {}: {reason}", report.state)
        }
        _ => report.summary(),
    }
}
