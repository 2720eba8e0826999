//! The last report of a deployment on a device, in compact form: everything that a query can show of it.

use std::sync::Arc;

use muster_contract::evidence::EvidenceSource;
use muster_contract::fact::{Fidelity, Provenance, StatusFact};
use muster_contract::limits::{ERROR_CODE_BYTES_MAX, VIEW_MESSAGE_BYTES_MAX};
use muster_contract::query::{LastReport, Output};
use muster_contract::retry::{Retry, RetrySummary};
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};
use muster_contract::view::UNSPECIFIED;
use muster_contract::{ComponentName, Epoch, Generation, Seq, State, Timestamp};
use serde::{Deserialize, Serialize};

use super::component_set::{ComponentInterner, ComponentSet};
use super::packed_offset::{PackedCounter, PackedOffset};
use super::packed_timestamp::PackedTimestamp;

/// The last report by (epoch, seq), independent of the order of arrival.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) epoch: Epoch,
    pub(super) seq: Seq,
    pub(super) generation: Generation,
    current_through: PackedCounter,
    pub(super) state: State,
    pub(super) components: Arc<ComponentSet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    words: Option<Box<ReportDetails>>,
    observed_at: PackedTimestamp,
    received_at: PackedTimestamp,
    ledger_seq: PackedOffset,
}

/// Fields that only some reports have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct ReportDetails {
    error: Option<StatusError>,
    reason: Option<String>,
    /// Errors of components, ordered by name.
    components: Vec<(ComponentName, StatusError)>,
    /// The running retries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    retries: Vec<Retry>,
    /// When the first attempt began, in hub time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_attempt_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Provenance::is_push")]
    origin: Provenance,
    #[serde(default, skip_serializing_if = "Fidelity::is_event")]
    fidelity: Fidelity,
}

/// A report whose components have a number: epoch, number, generation, head up to which it is the last, state, components, details,
/// second and nanosecond at which it was observed and received, and sequence of LEDGER.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PackedReport(
    Epoch,
    Seq,
    Generation,
    PackedCounter,
    State,
    u32,
    Option<Box<ReportDetails>>,
    (i64, i32),
    (i64, i32),
    PackedOffset,
);

/// One error of a report.
pub(super) struct ReportError<'a> {
    pub(super) code: &'a str,
    /// The failed component; none for the deployment as a whole.
    pub(super) component: Option<&'a ComponentName>,
    pub(super) message: &'a str,
    /// How often it was tried.
    pub(super) retry: Option<RetrySummary>,
}

impl PackedReport {
    /// The report; `None` if nothing has the number of its components, or a time does not exist.
    pub(super) fn report(
        self,
        components_of: impl FnOnce(u32) -> Option<Arc<ComponentSet>>,
    ) -> Option<Report> {
        let Self(
            epoch,
            seq,
            generation,
            current_through,
            state,
            components,
            words,
            observed,
            received,
            ledger_seq,
        ) = self;
        let time = |(second, nanosecond)| Timestamp::new(second, nanosecond).ok().map(PackedTimestamp::from);
        Some(Report {
            epoch,
            seq,
            generation,
            current_through,
            state,
            components: components_of(components)?,
            words,
            observed_at: time(observed)?,
            received_at: time(received)?,
            ledger_seq,
        })
    }
}

impl Report {
    /// Keeps a fact, with its components as the fleet holds them.
    pub(super) fn of(fact: StatusFact, ledger_seq: u64, component_sets: &mut ComponentInterner) -> Self {
        let StatusFact {
            epoch,
            seq,
            head,
            observed_at,
            generation,
            status: DeploymentStatus { state, error, reason },
            components,
            retries,
            first_attempt_at,
            current,
            received_at,
            origin,
            fidelity,
            // No query shows the rest of a report.
            api_version: _,
            kind: _,
            deployment: _,
            digest: _,
            coalesced: _,
            late: _,
            reasserted: _,
        } = fact;
        let component_set = component_sets.of(&components);
        let mut words = ReportDetails {
            error,
            reason,
            components: Vec::new(),
            retries,
            first_attempt_at,
            origin,
            fidelity,
        };
        for ComponentStatus { name, error, .. } in components {
            words.components.extend(error.map(|error| (name, error)));
        }
        words.components.sort_by(|one, other| one.0.cmp(&other.0));
        Self {
            epoch,
            seq,
            generation,
            current_through: if current { head.get().into() } else { PackedCounter::ZERO },
            state,
            components: component_set,
            words: (words != ReportDetails::default()).then(|| Box::new(words)),
            observed_at: observed_at.into(),
            received_at: received_at.into(),
            ledger_seq: ledger_seq.into(),
        }
    }

    /// The report with the number of its components.
    pub(super) fn packed(self, number_of: impl FnOnce(&Arc<ComponentSet>) -> u32) -> PackedReport {
        let Self { epoch, seq, generation, current_through, state, components, words, .. } = self;
        let time = |at: PackedTimestamp| (at.get().as_second(), at.get().subsec_nanosecond());
        let (observed, received) = (time(self.observed_at), time(self.received_at));
        let components = number_of(&components);
        PackedReport(
            epoch,
            seq,
            generation,
            current_through,
            state,
            components,
            words,
            observed,
            received,
            self.ledger_seq,
        )
    }

    /// Has its components as the fleet holds them from now on.
    pub(super) fn intern(&mut self, component_sets: &mut ComponentInterner) {
        self.components = component_sets.sharing(self.components.clone());
    }

    /// When the hub took it in.
    pub(super) fn received_at(&self) -> Timestamp {
        self.received_at.get()
    }

    /// The head up to which the report is the deployment's last; 0 where the device did not say so.
    pub(super) fn current_through(&self) -> u64 {
        self.current_through.get()
    }

    /// Its place among all reports of the device.
    pub(super) const fn place(&self) -> (Epoch, Seq) {
        (self.epoch, self.seq)
    }

    /// The same report came again, perhaps re-asserted and with a later head.
    pub(super) fn again(&mut self, fact: &StatusFact, ledger_seq: u64) {
        if fact.current {
            self.current_through = self.current_through().max(fact.head.get()).into();
        }
        self.ledger_seq = ledger_seq.into();
    }

    /// Its errors, the deployment's own first, then by component: those it reports, and of what is tried again the last one.
    /// A failure that names none has one of code [`UNSPECIFIED`].
    pub(super) fn errors(&self) -> Vec<ReportError<'_>> {
        let Some(words) = &self.words else { return vec![ReportError::unspecified("")] };
        let own = words.error.iter().map(|error| ReportError::of(self.component(&error.source), error));
        let theirs = words.components.iter().map(|(name, error)| ReportError::of(Some(name), error));
        let mut errors: Vec<_> = own.chain(theirs).collect();
        for error in &mut errors {
            let retry = words.retries.iter().find(|retry| retry.component.as_ref() == error.component);
            error.retry = retry.map(Retry::summary);
        }
        for retry in &words.retries {
            let is_told = match &retry.component {
                Some(name) => words.components.iter().any(|(of, _)| of == name),
                None => words.error.is_some(),
            };
            if !is_told {
                errors.push(ReportError::of_retry(retry));
            }
        }
        if errors.is_empty() {
            errors.push(ReportError::unspecified(words.reason.as_deref().unwrap_or_default()));
        }
        errors.sort_by_key(|error| error.component);
        errors
    }

    /// The running retries.
    pub(super) fn retries(&self) -> &[Retry] {
        self.words.as_deref().map_or(&[], |words| &words.retries)
    }

    /// True while anything is tried again: then no state is an end, not even a success, which has yet to hold.
    pub(super) fn is_retried(&self) -> bool {
        !self.retries().is_empty()
    }

    /// True where the report counts as failed by the device's rule, whatever its current state.
    pub(super) fn is_crash_loop(&self) -> bool {
        self.retries().iter().any(|retry| retry.crash_loop)
    }

    /// True where a component counts as failed by that rule.
    pub(super) fn has_crash_loop(&self, component: &ComponentName) -> bool {
        self.retry_of(component).is_some_and(|retry| retry.crash_loop)
    }

    /// The running retry of a component.
    pub(super) fn retry_of(&self, component: &ComponentName) -> Option<&Retry> {
        self.retries().iter().find(|retry| retry.component.as_ref() == Some(component))
    }

    /// The worst running retry: a crash loop before any other, then the most attempts.
    pub(super) fn worst_retry(&self) -> Option<&Retry> {
        // The first of equals counts.
        self.retries().iter().rev().max_by_key(|retry| (retry.crash_loop, retry.attempt))
    }

    /// When the first attempt began, in hub time, if known.
    pub(super) fn first_attempt_at(&self) -> Option<Timestamp> {
        self.words.as_deref()?.first_attempt_at
    }

    /// The source of the report, as evidence.
    pub(super) fn evidence_source(&self) -> EvidenceSource {
        let held = |words: &ReportDetails| EvidenceSource { origin: words.origin, fidelity: words.fidelity };
        self.words.as_deref().map_or_else(EvidenceSource::default, held)
    }

    /// The error of a component.
    pub(super) fn component_error(&self, name: &ComponentName) -> Option<&StatusError> {
        let errors = &self.words.as_deref()?.components;
        errors.iter().find(|(of, _)| of == name).map(|(_, error)| error)
    }

    /// The reason for waiting, if there is one.
    pub(super) fn reason(&self) -> Option<&str> {
        self.words.as_deref()?.reason.as_deref()
    }

    /// Its component of this name.
    fn component(&self, name: &str) -> Option<&ComponentName> {
        self.components.iter().map(|(component, _)| component).find(|component| component.as_str() == name)
    }

    /// As a query shows it.
    pub(super) fn shown(&self, output: Output) -> LastReport {
        let detail = output == Output::Detail;
        let mut retries = self.retries().to_vec();
        if !detail {
            retries.iter_mut().for_each(|retry| retry.last_error.shorten(VIEW_MESSAGE_BYTES_MAX));
        }
        let EvidenceSource { origin, fidelity } = self.evidence_source();
        LastReport {
            state: self.state,
            generation: self.generation,
            observed_at: self.observed_at.get(),
            received_at: self.received_at.get(),
            epoch: self.epoch,
            seq: self.seq,
            ledger_seq: self.ledger_seq.get(),
            origin,
            fidelity,
            retries,
            status: detail.then(|| self.status()),
            components: if detail { self.component_statuses() } else { Vec::new() },
        }
    }

    fn status(&self) -> DeploymentStatus {
        let words = self.words.as_deref();
        DeploymentStatus {
            state: self.state,
            error: words.and_then(|words| words.error.clone()),
            reason: words.and_then(|words| words.reason.clone()),
        }
    }

    fn component_statuses(&self) -> Vec<ComponentStatus> {
        let errors = self.words.as_deref().map_or(&[][..], |words| &words.components);
        let error = |name| errors.iter().find(|(of, _)| of == name).map(|(_, error)| error.clone());
        self.components
            .iter()
            .map(|(name, state)| ComponentStatus { name: name.clone(), state: *state, error: error(name) })
            .collect()
    }
}

impl<'a> ReportError<'a> {
    fn of(component: Option<&'a ComponentName>, error: &'a StatusError) -> Self {
        Self { code: shown(&error.code), component, message: &error.message, retry: None }
    }

    /// The last error of what is tried again.
    pub(super) fn of_retry(retry: &'a Retry) -> Self {
        let (component, error) = (retry.component.as_ref(), &retry.last_error);
        Self { code: shown(&error.code), component, message: &error.message, retry: Some(retry.summary()) }
    }

    const fn unspecified(message: &'a str) -> Self {
        Self { code: UNSPECIFIED, component: None, message, retry: None }
    }
}

/// An error code as errors are distinguished by it.
fn shown(code: &str) -> &str {
    let code = &code[..code.floor_char_boundary(ERROR_CODE_BYTES_MAX)];
    if code.is_empty() { UNSPECIFIED } else { code }
}
