//! Evaluates the reports of a partition in their order, and interrupts that when a device's documents must be read first, or when
//! enough facts wait. It reads no document itself.
//!
//! A message with several reports is evaluated report by report, as if each had come alone.

use std::collections::{BTreeMap, VecDeque};

use muster_contract::headers::REPORTS;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::IntakeState;

use super::content::{MessageContent, reports_declared};
use super::io::{EvaluatedMessage, OrderRule, ReportDelivery};
use super::{SessionCore, incoming_report};
use crate::limits::BATCH;

/// Facts and rejected reports that wait for an answer, from which on no further message is evaluated: a batch adds up to 256.
const WAITING_MAX: usize = 2 * BATCH;

/// Messages that came and are not evaluated.
#[derive(Debug)]
pub(super) struct ReportQueue<D> {
    pub(super) reports: VecDeque<D>,
    /// Reports of the first message that are evaluated.
    evaluated_of_first: usize,
    /// Devices whose documents were read for these reports, and whether the intake knows all of them.
    loaded: BTreeMap<DeviceKey, bool>,
    /// The device whose documents are being read.
    reading: Option<DeviceKey>,
    /// Every report stored up to this time is evaluated once all of these are.
    pub(super) complete_through: Option<Timestamp>,
}

impl<D> Default for ReportQueue<D> {
    fn default() -> Self {
        Self {
            reports: VecDeque::new(),
            evaluated_of_first: 0,
            loaded: BTreeMap::new(),
            reading: None,
            complete_through: None,
        }
    }
}

impl<D: ReportDelivery> ReportQueue<D> {
    /// Adds messages, and the time up to which all have come.
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

    pub(super) const fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Reports that are not evaluated, as far as their messages say.
    pub(super) fn len(&self) -> usize {
        self.reports.iter().map(|delivery| reports_declared(delivery.header(REPORTS))).sum()
    }
}

impl<D: ReportDelivery> SessionCore<D> {
    /// Evaluates reports up to the first one that the intake would reject for its deployment, and returns the device whose
    /// documents must be read before. It stops as well when enough facts wait.
    pub(super) fn evaluate(&mut self, intake: &mut IntakeState, now: Timestamp) -> Option<DeviceKey> {
        if self.reports.is_reading() {
            return None;
        }
        while self.facts.len() + intake.rejections_pending() < WAITING_MAX {
            let Some(delivery) = self.reports.reports.pop_front() else {
                self.reports.loaded.clear();
                return None;
            };
            match self.evaluate_message(intake, &delivery, now) {
                Ok((reports, bytes)) => {
                    self.evaluated.push_back(EvaluatedMessage { delivery, reports, bytes });
                }
                Err(key) => {
                    self.reports.reports.push_front(delivery);
                    self.reports.reading = Some(key.clone());
                    return Some(key);
                }
            }
        }
        None
    }

    /// Evaluates the reports of a message that are not evaluated yet; returns their number and bytes, or the device whose
    /// documents must be read before the next one.
    fn evaluate_message(
        &mut self,
        intake: &mut IntakeState,
        delivery: &D,
        now: Timestamp,
    ) -> Result<(usize, usize), DeviceKey> {
        let content = MessageContent::of(delivery);
        for at in self.reports.evaluated_of_first..content.len() {
            let report = incoming_report(delivery, &content, at, now);
            let mut are_unreadable = false;
            if let (Ok(key), Ok(parsed)) = (&report.origin.device, &report.parsed)
                && intake.needs_document(key, parsed, report.stored_at)
                && self.broken != Some(OrderRule::DocumentsBeforeRefusal)
            {
                match self.reports.loaded.get(key) {
                    Some(are_known) => are_unreadable = !are_known,
                    None => {
                        self.reports.evaluated_of_first = at;
                        return Err(key.clone());
                    }
                }
            }
            if let (MessageContent::Refused(..), Ok(key)) = (&content, &report.origin.device) {
                intake.refuse_batches(key, now);
            }
            intake.set_documents_unreadable(are_unreadable);
            let outcome = intake.apply_report(report);
            intake.set_documents_unreadable(false);
            self.metrics.report(outcome);
            self.facts.collect(intake, delivery.trace(), &mut self.rng);
        }
        self.reports.evaluated_of_first = 0;
        Ok((content.len(), content.bytes()))
    }
}
