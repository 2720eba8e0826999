//! Decides what follows from a report.
//!
//! | the account says | LEDGER gets |
//! |---|---|
//! | new | the fact; incident `sequenceFork` if a report with its number and another content waits in quarantine |
//! | opens an epoch | incident `amnesia`, the fact |
//! | amended | the fact again, marked as re-asserted, with all numbers that it now declares as coalesced |
//! | duplicate | nothing |
//! | fork | incident `sequenceFork`, quarantine |
//! | of an old epoch | quarantine, incident `clone` once for each pair of epochs; in a batch, once for the newer epoch |
//! | of an epoch that no device can have | quarantine |
//! | of a deployment or epoch beyond the device's quota | quarantine |
//! | scattered, unreadable, against a rule, too large as a fact | quarantine |

use muster_contract::fact::{DeviceFact, Fact, Incident, IncidentKind, StatusFact};
use muster_contract::incident::UNSUPPORTED_PROFILE;
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::report::Report;
use muster_contract::subjects::{LedgerSubject, Origin};
use muster_contract::{DeviceKey, Epoch, Refusal, Seq, State, Timestamp};

use super::message::{IncomingMessage, IncomingReport, Outcome};
use super::reject::OldEpochReport;
use super::reject_reason::RejectReason;
use super::state::{IntakeState, UNNAMED};
use super::{content, ids};
use crate::account::{Admission, Numbers};
use crate::aggregate;
use crate::skew::{self, Skew};

/// The fact that a report becomes.
struct ReportFact {
    subject: LedgerSubject,
    fact: Fact,
    is_late: bool,
}

impl IntakeState {
    /// Evaluates a report. It is settled once [`IntakeState::drain_settled`] has counted it.
    pub fn apply_report(&mut self, report: IncomingReport<'_>) -> Outcome {
        self.now = report.now;
        self.current_message = Some(self.settled_count + self.unsettled.len() as u64);
        let outcome = self.process(report);
        self.unsettled.push_back(self.settlement_of(outcome));
        self.current_message = None;
        self.publish_batches_if_many();
        outcome
    }

    pub(super) fn process(&mut self, report: IncomingReport<'_>) -> Outcome {
        let IncomingReport { origin: Origin { device, subject }, parsed, payload, position, stored_at, now } =
            report;
        let stored_at = stored_at.min(now);
        let message = IncomingMessage { subject, payload, position, stored_at };
        match device {
            Err(error) => self.reject(UNNAMED, &message, RejectReason::Sender(error), None),
            Ok(key) => {
                let index = self.index(&key);
                if !is_evidence(&parsed) {
                    self.devices[index].contact.record(stored_at);
                }
                let outcome = self.evaluate(index, &key, parsed, &message);
                self.check_after_report(index, stored_at, now);
                outcome
            }
        }
    }

    fn evaluate(
        &mut self,
        index: usize,
        key: &DeviceKey,
        parsed: Result<Report, Refusal>,
        message: &IncomingMessage<'_>,
    ) -> Outcome {
        let report = match parsed {
            Ok(report) => report,
            Err(refusal) => return self.reject(index, message, RejectReason::Unreadable(refusal), None),
        };
        let (epoch, head) = (report.epoch(), report.head().get());
        let outcome = match check_rules(&report) {
            Ok(()) => self.admit(index, key, report, message),
            Err(reason) => self.reject(index, message, reason, Some((epoch, report.seq()))),
        };
        // A rejected report counts as well: it could be parsed, so the device has assigned its numbers.
        if self.devices[index].accepts_epoch(epoch) {
            self.devices[index].contact.record_head(epoch, head, message.stored_at);
        }
        outcome
    }

    pub(super) fn admit(
        &mut self,
        index: usize,
        key: &DeviceKey,
        report: Report,
        message: &IncomingMessage<'_>,
    ) -> Outcome {
        let numbers = numbers(&report);
        let (epoch, seq) = (numbers.epoch, numbers.seq);
        if !self.devices[index].accepts_epoch(epoch) {
            return self.reject(index, message, RejectReason::EpochTooFar { epoch }, Some((epoch, seq)));
        }
        let admission = self.devices[index].latest().account.admit(numbers, || content::of_report(&report));
        if let Err(reason) = self.check_quota(index, &report, admission, message.stored_at) {
            return self.reject(index, message, reason, Some((epoch, seq)));
        }
        match admission {
            Admission::New => self.accept(index, key, report, message, false),
            Admission::NewEpoch { known } => {
                let what = IncidentKind::Amnesia { known_epoch: known, epoch };
                self.publish_incident(index, key, what, message.stored_at);
                self.accept(index, key, report, message, false)
            }
            Admission::Amended => self.accept(index, key, report, message, true),
            Admission::Duplicate => {
                self.owe_receipt(index);
                Outcome::Duplicate
            }
            Admission::Fork { held, other } => {
                let reason = RejectReason::Fork { epoch, seq, held, other };
                self.reject(index, message, reason, Some((epoch, seq)))
            }
            Admission::OldEpoch { known } => {
                let reason = RejectReason::OldEpoch { epoch, known };
                let outcome = self.reject(index, message, reason, Some((epoch, seq)));
                // LEDGER may have the record of the report and not the incident. Otherwise both follow from QUARANTINE's answer.
                if outcome == Outcome::Repeated {
                    let old = OldEpochReport { known_epoch: known, epoch, seq };
                    self.publish_clone(index, key, old, outcome, message.stored_at);
                }
                outcome
            }
            Admission::Scattered => self.reject(index, message, RejectReason::Scattered, None),
        }
    }

    fn accept(
        &mut self,
        index: usize,
        key: &DeviceKey,
        report: Report,
        message: &IncomingMessage<'_>,
        is_amended: bool,
    ) -> Outcome {
        let number = (report.epoch(), report.seq());
        let (observed_at, stored_at) = (report.observed_at(), message.stored_at);
        let forks = self.forks_in_quarantine(index, &report, message.payload);
        let ReportFact { subject, fact, is_late } = self.fact_for(index, key, report, stored_at, is_amended);
        let payload = fact.to_bytes();
        if payload.len() > MESSAGE_BYTES_MAX {
            return self.reject(
                index,
                message,
                RejectReason::TooLarge { bytes: payload.len() },
                Some(number),
            );
        }
        self.check_clock(index, key, number.0, number.1, observed_at, stored_at);
        if let Fact::Status(fact) = &fact
            && !is_amended
            && !is_late
            && let Some(what) = self.unsupported_profile(index, fact)
        {
            self.publish_incident(index, key, what, stored_at);
        }
        // Before the fact: once LEDGER has it, the number is no longer in quarantine.
        forks.into_iter().for_each(|fork| self.publish_fork(index, key, fork, false, stored_at));
        // Readers recognise the fact by its number.
        self.publish_serialised(index, subject, fact, payload, None);
        if is_amended {
            Outcome::Amended
        } else if is_late {
            Outcome::Late
        } else {
            Outcome::New
        }
    }

    fn fact_for(
        &self,
        index: usize,
        key: &DeviceKey,
        report: Report,
        stored_at: Timestamp,
        reasserted: bool,
    ) -> ReportFact {
        match report {
            Report::Status(report) => {
                let latest = self.devices[index].latest();
                let is_late = latest.is_late(&report.deployment, (report.epoch, report.seq));
                let subject = LedgerSubject::Status(key.clone(), report.deployment.clone());
                let mut fact = StatusFact { reasserted, ..StatusFact::of(report, stored_at, is_late) };
                fact.first_attempt_at = latest.first_attempt_at(&fact);
                ReportFact { subject, fact: Fact::Status(fact), is_late }
            }
            Report::Capabilities(report) => {
                let fact = DeviceFact { reasserted, ..DeviceFact::of(report, stored_at) };
                let subject = LedgerSubject::Device(key.clone());
                ReportFact { subject, fact: Fact::Device(fact), is_late: false }
            }
        }
    }

    /// The incident for a report of an unsupported profile; none if the deployment's report before has the same failure and content.
    fn unsupported_profile(&self, index: usize, fact: &StatusFact) -> Option<IncidentKind> {
        let error = fact.status.error.as_ref().filter(|error| error.code == UNSUPPORTED_PROFILE)?;
        let before = self.devices[index].latest().progress(&fact.deployment);
        let is_known =
            before.is_some_and(|before| before.state == State::Failed && before.digest == fact.digest);
        (!is_known).then(|| IncidentKind::ProfileUnsupported {
            deployment: fact.deployment.clone(),
            generation: fact.generation,
            message: error.message.clone(),
        })
    }

    fn check_clock(
        &mut self,
        index: usize,
        key: &DeviceKey,
        epoch: Epoch,
        seq: Seq,
        observed_at: Timestamp,
        stored_at: Timestamp,
    ) {
        let device = &mut self.devices[index];
        let head_known_at = device.contact.head_known_at(epoch, seq.get());
        match skew::judge(observed_at, stored_at, head_known_at) {
            Skew::Unknown => {}
            Skew::Right => device.amend(|state| state.clock_off = false),
            Skew::Off(_) if device.latest().clock_off => {}
            Skew::Off(seconds) => {
                self.publish_incident(index, key, IncidentKind::ClockSkew { seconds }, stored_at);
            }
        }
    }

    pub(super) fn publish_incident(
        &mut self,
        index: usize,
        key: &DeviceKey,
        what: IncidentKind,
        at: Timestamp,
    ) {
        let id = ids::incident(key, &what);
        let fact = Incident::new(at, what);
        self.publish(index, LedgerSubject::Incident(Some(key.clone())), Fact::Incident(fact), Some(id));
    }
}

/// Checks the rules of a report that its shape does not express.
pub(super) fn check_rules(report: &Report) -> Result<(), RejectReason> {
    match report {
        Report::Status(report) => {
            aggregate::check(&report.status, &report.components).map_err(RejectReason::State)
        }
        Report::Capabilities(_) => Ok(()),
    }
}

/// Whether a report is a snapshot or a sample: a heartbeat says how long its evidence counts, and the report proves nothing more
/// about when the device was heard.
fn is_evidence(parsed: &Result<Report, Refusal>) -> bool {
    matches!(parsed, Ok(Report::Status(report)) if !report.fidelity.is_event())
}

fn numbers(report: &Report) -> Numbers<'_> {
    Numbers { epoch: report.epoch(), seq: report.seq(), head: report.head(), coalesced: report.coalesced() }
}
