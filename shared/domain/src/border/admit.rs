//! Reports: what becomes of each.
//!
//! | the account says | LEDGER gets |
//! |---|---|
//! | new | the fact |
//! | opens an epoch | incident `amnesia`, the fact |
//! | amended | the fact again, marked as re-asserted, with all it now declares as folded |
//! | duplicate | nothing |
//! | fork | quarantine, incident `sequenceFork` |
//! | of an old epoch | quarantine, incident `clone` once for each pair of epochs |
//! | scattered, unreadable, against a rule | quarantine |

use muster_contract::canonical::Digest;
use muster_contract::fact::{DeviceFact, Fact, Incident, IncidentKind, StatusFact};
use muster_contract::report::Report;
use muster_contract::subjects::{LedgerSubject, Origin};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{DeviceKey, Refusal, Timestamp};

use super::refuse::{Evidence, Refused};
use super::{Border, NOBODY, content, ids};
use crate::account::{Admission, Numbers};
use crate::aggregate;
use crate::skew::{self, Skew};

/// A report as it arrived.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// Who sent it and where to.
    pub origin: Origin,
    /// What it says, or why that cannot be read.
    pub parsed: Result<Report, Refusal>,
    /// Its bytes.
    pub payload: &'a [u8],
    /// Its position in UPLINK.
    pub position: u64,
    /// When UPLINK stored it.
    pub stored_at: Timestamp,
    /// The hub's time now.
    pub now: Timestamp,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It becomes a fact.
    New,
    /// It becomes a fact, and a later report of its deployment was in already.
    Late,
    /// It was in, and declares more as folded than before: its fact is said again.
    Amended,
    /// It was in.
    Duplicate,
    /// It goes to quarantine.
    Quarantined,
    /// It was in quarantine.
    Repeated,
}

impl Border {
    /// Takes in a report. It is settled once [`Border::settled`] has counted it.
    pub fn report(&mut self, arrival: Arrival<'_>) -> Outcome {
        let Arrival { origin: Origin { device, subject }, parsed, payload, position, stored_at, now } =
            arrival;
        let evidence = Evidence { subject, payload, position, stored_at };
        let outcome = match device {
            Err(error) => self.refuse(NOBODY, &evidence, &Refused::Sender(error), None),
            Ok(key) => {
                let place = self.place(&key);
                self.devices[place].heard.hear(stored_at);
                let outcome = self.judge(place, &key, parsed, &evidence);
                self.listen(place, stored_at, now);
                outcome
            }
        };
        self.unsettled.push_back(self.made_count);
        outcome
    }

    fn judge(
        &mut self,
        place: usize,
        key: &DeviceKey,
        parsed: Result<Report, Refusal>,
        evidence: &Evidence<'_>,
    ) -> Outcome {
        let report = match parsed.map_err(Refused::Unreadable).and_then(ruled) {
            Ok(report) => report,
            Err(refused) => return self.refuse(place, evidence, &refused, None),
        };
        let numbers = numbers(&report);
        let number = Some((numbers.epoch, numbers.seq));
        match self.devices[place].latest().cursor.admit(numbers, || content_of(&report)) {
            Admission::New => self.let_in(place, key, report, evidence.stored_at),
            Admission::NewEpoch { known } => {
                let what = IncidentKind::Amnesia { known_epoch: known, epoch: numbers.epoch };
                self.incident(place, key, what, evidence.stored_at);
                self.let_in(place, key, report, evidence.stored_at)
            }
            Admission::Amended => self.say_again(place, key, report, evidence.stored_at),
            Admission::Duplicate => {
                self.spoke(place, &report, evidence.stored_at);
                self.owe_receipt(place);
                Outcome::Duplicate
            }
            Admission::Fork { held, other } => {
                let (epoch, seq) = (numbers.epoch, numbers.seq);
                let refused = Refused::Fork { epoch, seq, held, other };
                let outcome = self.refuse(place, evidence, &refused, number);
                if outcome == Outcome::Quarantined {
                    let what = IncidentKind::SequenceFork { epoch, seq, held, other };
                    self.incident(place, key, what, evidence.stored_at);
                }
                outcome
            }
            Admission::OldEpoch { known } => {
                let (epoch, seq) = (numbers.epoch, numbers.seq);
                if !self.devices[place].latest().has_clone(known, epoch) {
                    let what = IncidentKind::Clone { known_epoch: known, epoch, seq };
                    self.incident(place, key, what, evidence.stored_at);
                }
                self.refuse(place, evidence, &Refused::OldEpoch { epoch, known }, number)
            }
            Admission::Scattered => self.refuse(place, evidence, &Refused::Scattered, None),
        }
    }

    fn let_in(&mut self, place: usize, key: &DeviceKey, report: Report, stored_at: Timestamp) -> Outcome {
        let at = (report.epoch(), report.seq());
        self.judge_clock(place, key, &report, stored_at);
        self.spoke(place, &report, stored_at);
        let id = ids::numbered(key, at.0, at.1);
        match report {
            Report::Status(report) => {
                let late = self.devices[place].latest().is_late(&report.deployment, at);
                let subject = LedgerSubject::Status(key.clone(), report.deployment.clone());
                self.publish(place, subject, Fact::Status(StatusFact::of(report, stored_at, late)), Some(id));
                if late { Outcome::Late } else { Outcome::New }
            }
            Report::Capabilities(report) => {
                let fact = Fact::Device(DeviceFact::of(report, stored_at));
                self.publish(place, LedgerSubject::Device(key.clone()), fact, Some(id));
                Outcome::New
            }
        }
    }

    fn say_again(&mut self, place: usize, key: &DeviceKey, report: Report, stored_at: Timestamp) -> Outcome {
        self.spoke(place, &report, stored_at);
        let id = ids::amended(key, report.epoch(), report.seq(), report.coalesced().count());
        let (subject, fact) = match report {
            Report::Status(report) => {
                let late =
                    self.devices[place].latest().is_late(&report.deployment, (report.epoch, report.seq));
                let subject = LedgerSubject::Status(key.clone(), report.deployment.clone());
                let fact = StatusFact { reasserted: true, ..StatusFact::of(report, stored_at, late) };
                (subject, Fact::Status(fact))
            }
            Report::Capabilities(report) => {
                let fact = DeviceFact { reasserted: true, ..DeviceFact::of(report, stored_at) };
                (LedgerSubject::Device(key.clone()), Fact::Device(fact))
            }
        };
        self.publish(place, subject, fact, Some(id));
        Outcome::Amended
    }

    fn spoke(&mut self, place: usize, report: &Report, stored_at: Timestamp) {
        self.devices[place].heard.spoke(report.epoch(), report.head().get(), stored_at);
    }

    fn judge_clock(&mut self, place: usize, key: &DeviceKey, report: &Report, stored_at: Timestamp) {
        let device = &mut self.devices[place];
        let not_before = device.heard.not_before(report.epoch(), report.seq().get());
        match skew::judge(report.observed_at(), stored_at, not_before) {
            Skew::Unknown => {}
            Skew::Right => device.amend(|memory| memory.clock_off = false),
            Skew::Off(_) if device.latest().clock_off => {}
            Skew::Off(seconds) => {
                self.incident(place, key, IncidentKind::ClockSkew { seconds }, stored_at);
            }
        }
    }

    pub(super) fn incident(&mut self, place: usize, key: &DeviceKey, what: IncidentKind, at: Timestamp) {
        let id = ids::incident(key, &what);
        let fact = Incident { api_version: ApiVersion::V1, kind: kind::Incident::Incident, at, what };
        self.publish(place, LedgerSubject::Incident(key.clone()), Fact::Incident(fact), Some(id));
    }
}

/// The rule that the shape of a report does not hold.
fn ruled(report: Report) -> Result<Report, Refused> {
    match &report {
        Report::Status(status) => {
            aggregate::check(&status.status, &status.components).map_err(Refused::State)?;
        }
        Report::Capabilities(_) => {}
    }
    Ok(report)
}

fn numbers(report: &Report) -> Numbers<'_> {
    Numbers { epoch: report.epoch(), seq: report.seq(), head: report.head(), coalesced: report.coalesced() }
}

fn content_of(report: &Report) -> Digest {
    match report {
        Report::Status(report) => content::of_status(report),
        Report::Capabilities(report) => content::of_capabilities(report),
    }
}
