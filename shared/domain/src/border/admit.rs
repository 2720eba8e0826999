//! Reports: what becomes of each.
//!
//! | the account says | LEDGER gets |
//! |---|---|
//! | new | the fact |
//! | opens an epoch | incident `amnesia`, the fact |
//! | amended | the fact again, marked as re-asserted, with all it now declares as folded |
//! | duplicate | nothing |
//! | fork | incident `sequenceFork`, quarantine |
//! | of an old epoch | quarantine, incident `clone` once for each pair of epochs |
//! | of an epoch that no device can have | quarantine |
//! | of a deployment or epoch beyond the device's quota | quarantine |
//! | scattered, unreadable, against a rule, too large as a fact | quarantine |

use muster_contract::canonical::Digest;
use muster_contract::fact::{DeviceFact, Fact, Incident, IncidentKind, StatusFact};
use muster_contract::limits::MESSAGE_BYTES_MAX;
use muster_contract::report::Report;
use muster_contract::subjects::{LedgerSubject, Origin};
use muster_contract::{DeviceKey, Epoch, Refusal, Seq, Timestamp};

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
    /// It goes to quarantine, in a sum with others of its device.
    Summed,
}

impl Border {
    /// Takes in a report. It is settled once [`Border::settled`] has counted it.
    pub fn report(&mut self, arrival: Arrival<'_>) -> Outcome {
        self.now = arrival.now;
        self.taking = Some(self.settled_count + self.unsettled.len() as u64);
        let outcome = self.take_in(arrival);
        self.taking = None;
        self.unsettled.push_back(self.needed_by(outcome));
        self.sum_up_if_many();
        outcome
    }

    pub(super) fn take_in(&mut self, arrival: Arrival<'_>) -> Outcome {
        let Arrival { origin: Origin { device, subject }, parsed, payload, position, stored_at, now } =
            arrival;
        let stored_at = stored_at.min(now);
        let evidence = Evidence { subject, payload, position, stored_at };
        match device {
            Err(error) => self.refuse(NOBODY, &evidence, &Refused::Sender(error), None),
            Ok(key) => {
                let place = self.place(&key);
                self.devices[place].heard.hear(stored_at);
                let outcome = self.judge(place, &key, parsed, &evidence);
                self.listen(place, stored_at, now);
                outcome
            }
        }
    }

    fn judge(
        &mut self,
        place: usize,
        key: &DeviceKey,
        parsed: Result<Report, Refusal>,
        evidence: &Evidence<'_>,
    ) -> Outcome {
        let report = match parsed {
            Ok(report) => report,
            Err(refusal) => return self.refuse(place, evidence, &Refused::Unreadable(refusal), None),
        };
        let (epoch, head) = (report.epoch(), report.head().get());
        let outcome = match ruled(&report) {
            Ok(()) => self.admit(place, key, report, evidence),
            Err(refused) => self.refuse(place, evidence, &refused, Some((epoch, report.seq()))),
        };
        // Also of a report that is not let in: it could be read, so the device has come this far.
        if self.devices[place].believes(epoch) {
            self.devices[place].heard.spoke(epoch, head, evidence.stored_at);
        }
        outcome
    }

    pub(super) fn admit(
        &mut self,
        place: usize,
        key: &DeviceKey,
        report: Report,
        evidence: &Evidence<'_>,
    ) -> Outcome {
        let numbers = numbers(&report);
        let (epoch, seq) = (numbers.epoch, numbers.seq);
        if !self.devices[place].believes(epoch) {
            return self.refuse(place, evidence, &Refused::EpochTooFar { epoch }, Some((epoch, seq)));
        }
        let admission = self.devices[place].latest().cursor.admit(numbers, || content_of(&report));
        if let Err(refused) = self.check_quota(place, &report, admission, evidence.stored_at) {
            return self.refuse(place, evidence, &refused, Some((epoch, seq)));
        }
        match admission {
            Admission::New => self.let_in(place, key, report, evidence, false),
            Admission::NewEpoch { known } => {
                let what = IncidentKind::Amnesia { known_epoch: known, epoch };
                self.incident(place, key, what, evidence.stored_at);
                self.let_in(place, key, report, evidence, false)
            }
            Admission::Amended => self.let_in(place, key, report, evidence, true),
            Admission::Duplicate => {
                self.owe_receipt(place);
                Outcome::Duplicate
            }
            Admission::Fork { held, other } => {
                let refused = Refused::Fork { epoch, seq, held, other };
                self.refuse(place, evidence, &refused, Some((epoch, seq)))
            }
            Admission::OldEpoch { known } => {
                let refused = Refused::OldEpoch { epoch, known };
                let outcome = self.refuse(place, evidence, &refused, Some((epoch, seq)));
                let memory = self.devices[place].latest();
                let is_told = match outcome {
                    Outcome::Summed => memory.has_clone_of(known),
                    _ => memory.has_clone(known, epoch),
                };
                if !is_told {
                    let what = IncidentKind::Clone { known_epoch: known, epoch, seq };
                    self.incident(place, key, what, evidence.stored_at);
                }
                outcome
            }
            Admission::Scattered => self.refuse(place, evidence, &Refused::Scattered, None),
        }
    }

    fn let_in(
        &mut self,
        place: usize,
        key: &DeviceKey,
        report: Report,
        evidence: &Evidence<'_>,
        again: bool,
    ) -> Outcome {
        let at = (report.epoch(), report.seq());
        let (observed_at, stored_at) = (report.observed_at(), evidence.stored_at);
        let id = match again {
            true => ids::amended(key, at.0, at.1, report.coalesced().count()),
            false => ids::numbered(key, at.0, at.1),
        };
        let (subject, fact, late) = self.fact_of(place, key, report, stored_at, again);
        let payload = fact.to_bytes();
        if payload.len() > MESSAGE_BYTES_MAX {
            return self.refuse(place, evidence, &Refused::TooLarge { bytes: payload.len() }, Some(at));
        }
        self.judge_clock(place, key, at, observed_at, stored_at);
        self.publish_written(place, subject, &fact, payload, Some(id));
        match (again, late) {
            (true, _) => Outcome::Amended,
            (false, true) => Outcome::Late,
            (false, false) => Outcome::New,
        }
    }

    fn fact_of(
        &self,
        place: usize,
        key: &DeviceKey,
        report: Report,
        stored_at: Timestamp,
        reasserted: bool,
    ) -> (LedgerSubject, Fact, bool) {
        match report {
            Report::Status(report) => {
                let late =
                    self.devices[place].latest().is_late(&report.deployment, (report.epoch, report.seq));
                let subject = LedgerSubject::Status(key.clone(), report.deployment.clone());
                let mut fact = StatusFact { reasserted, ..StatusFact::of(report, stored_at, late) };
                fact.first_attempt_at = self.devices[place].latest().first_attempt_at(&fact);
                (subject, Fact::Status(fact), late)
            }
            Report::Capabilities(report) => {
                let fact = DeviceFact { reasserted, ..DeviceFact::of(report, stored_at) };
                (LedgerSubject::Device(key.clone()), Fact::Device(fact), false)
            }
        }
    }

    fn judge_clock(
        &mut self,
        place: usize,
        key: &DeviceKey,
        (epoch, seq): (Epoch, Seq),
        observed_at: Timestamp,
        stored_at: Timestamp,
    ) {
        let device = &mut self.devices[place];
        let not_before = device.heard.not_before(epoch, seq.get());
        match skew::judge(observed_at, stored_at, not_before) {
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
        let fact = Incident::new(at, what);
        self.publish(place, LedgerSubject::Incident(Some(key.clone())), &Fact::Incident(fact), Some(id));
    }
}

/// The rule that the shape of a report does not hold.
pub(super) fn ruled(report: &Report) -> Result<(), Refused> {
    match report {
        Report::Status(report) => {
            aggregate::check(&report.status, &report.components).map_err(Refused::State)
        }
        Report::Capabilities(_) => Ok(()),
    }
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
