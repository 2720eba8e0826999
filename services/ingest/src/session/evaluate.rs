//! Evaluates the reports of a partition in their order, and interrupts that when a device's documents must be read first. It
//! reads no document itself.

use std::collections::{BTreeMap, VecDeque};

use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::IntakeState;

use super::io::{OrderRule, ReportDelivery};
use super::{SessionCore, incoming_report};

/// Reports that came and are not evaluated.
#[derive(Debug)]
pub(super) struct ReportQueue<D> {
    reports: VecDeque<D>,
    /// Devices whose documents were read for these reports, and whether the intake knows all of them.
    loaded: BTreeMap<DeviceKey, bool>,
    /// The device whose documents are being read.
    reading: Option<DeviceKey>,
    /// Every report stored up to this time is evaluated once all of these are.
    pub(super) complete_through: Option<Timestamp>,
}

impl<D> Default for ReportQueue<D> {
    fn default() -> Self {
        Self { reports: VecDeque::new(), loaded: BTreeMap::new(), reading: None, complete_through: None }
    }
}

impl<D> ReportQueue<D> {
    /// Adds reports, and the time up to which all have come.
    pub(super) fn push(&mut self, reports: Vec<D>, complete_through: Option<Timestamp>) {
        if self.reports.is_empty() {
            self.reports = reports.into();
        } else {
            self.reports.extend(reports);
        }
        self.complete_through = complete_through.or(self.complete_through);
    }

    /// Records that the documents of a device are known, or cannot be read: they are not read again for these reports.
    pub(super) fn documents_read(&mut self, key: DeviceKey, are_known: bool) {
        self.reading = None;
        self.loaded.insert(key, are_known);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.reports.len()
    }
}

impl<D: ReportDelivery> SessionCore<D> {
    /// Evaluates reports up to the first one that the intake would reject for its deployment, and returns the device whose
    /// documents must be read before.
    pub(super) fn evaluate(&mut self, intake: &mut IntakeState, now: Timestamp) -> Option<DeviceKey> {
        if self.reports.reading.is_some() {
            return None;
        }
        while let Some(delivery) = self.reports.reports.pop_front() {
            let report = incoming_report(&delivery, now);
            let mut are_unreadable = false;
            if let (Ok(key), Ok(parsed)) = (&report.origin.device, &report.parsed)
                && intake.needs_document(key, parsed, report.stored_at)
                && self.broken != Some(OrderRule::DocumentsBeforeRefusal)
            {
                match self.reports.loaded.get(key) {
                    Some(are_known) => are_unreadable = !are_known,
                    None => {
                        let key = key.clone();
                        drop(report);
                        self.reports.reports.push_front(delivery);
                        self.reports.reading = Some(key.clone());
                        return Some(key);
                    }
                }
            }
            intake.set_documents_unreadable(are_unreadable);
            let outcome = intake.apply_report(report);
            intake.set_documents_unreadable(false);
            self.metrics.report(outcome);
            self.facts.collect(intake, delivery.trace(), &mut self.rng);
            self.evaluated.push_back(delivery);
        }
        self.reports.loaded.clear();
        None
    }
}
