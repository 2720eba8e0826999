//! What is known of a moment by now: what the hub knew then, and the reports that came later although their device
//! observed them by then.
//!
//! It begins with the fleet as of the last fact that LEDGER stored at or before the moment, and reads on. Of the facts
//! that follow, a report counts if its `observedAt` is not after the moment: it takes its place by (epoch, seq) as ever.
//! Everything else that follows is the hub's own doing after the moment: desired states, liveness and deadlines hold as
//! the hub knew them then. In which order reports come changes nothing.
//!
//! How much is known is judged of the numbers that may have been given by the moment. Those are all below the first
//! number that was observed later; where none was, all that the device has spoken of since. One of them that is not in,
//! or that was folded into a report observed later, is missing: what it said may be what was true.

use std::collections::{BTreeMap, HashMap};

use muster_contract::fact::{DeviceFact, Fact, Incident, IncidentKind, LivenessFact, StatusFact};
use muster_contract::history;
use muster_contract::query::SomeDevices;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::AsOf;
use muster_contract::{DeviceKey, Epoch, Seq, SeqRanges, Timestamp};

use super::device::Heard;
use super::fleet::{Fleet, Outcome, Position, Scope};

/// Devices with a wrong clock that are named.
const SKEWED_NAMED_MAX: usize = 20;

/// A fleet on its way from what was known then to what is known by now.
#[derive(Debug)]
pub struct Hindsight {
    fleet: Fleet,
    moment: Timestamp,
    known_then: AsOf,
    read_to: AsOf,
    /// Numbers of which facts that came later speak.
    numbers: HashMap<DeviceKey, BTreeMap<Epoch, Numbers>>,
    /// Devices that late reports changed, as the hub heard them then.
    heard_then: HashMap<DeviceKey, Heard>,
    skewed: BTreeMap<DeviceKey, u64>,
    late_reports: u64,
}

/// The numbers of one epoch.
#[derive(Debug, Default)]
struct Numbers {
    /// Those that came as reports.
    held: SeqRanges,
    /// Highest the device has spoken of.
    head: u64,
    /// Highest that was observed by the moment.
    last_within: u64,
    /// Lowest that was observed after it.
    first_beyond: Option<u64>,
}

impl Hindsight {
    /// Begins with the fleet as of the last fact that LEDGER stored at or before a moment.
    pub fn of(fleet: Fleet, moment: Timestamp) -> Self {
        let as_of = fleet.as_of();
        Self {
            skewed: fleet.skewed(),
            fleet,
            moment,
            known_then: as_of,
            read_to: as_of,
            numbers: HashMap::new(),
            heard_then: HashMap::new(),
            late_reports: 0,
        }
    }

    /// Up to where LEDGER was read.
    pub const fn as_of(&self) -> AsOf {
        self.read_to
    }

    /// Takes in what LEDGER stored after the moment.
    pub fn apply(&mut self, at: Position, subject: &LedgerSubject, fact: Fact) {
        if at.ledger_seq <= self.read_to.ledger_seq {
            return;
        }
        self.pass(at);
        match (subject, fact) {
            (LedgerSubject::Status(key, _), Fact::Status(fact)) => {
                let report = Report::of_status(&fact);
                self.report(at, subject, key, &report, Fact::Status(fact));
            }
            (LedgerSubject::Device(key), Fact::Device(fact)) => {
                let report = Report::of_device(&fact);
                self.report(at, subject, key, &report, Fact::Device(fact));
            }
            (LedgerSubject::Liveness(key), Fact::Liveness(fact)) => self.spoken_of(key, &fact),
            (LedgerSubject::Quarantine(Some(key)), Fact::Quarantine(fact)) => {
                if let Some((epoch, seq)) = fact.epoch.zip(fact.seq) {
                    self.numbers_of(key, epoch).held.insert(seq.get());
                }
            }
            (LedgerSubject::Incident(key), Fact::Incident(incident)) => self.skew(key, &incident),
            _ => {}
        }
    }

    /// Passes a message of LEDGER that holds no fact anybody can read.
    pub const fn pass(&mut self, at: Position) {
        if at.ledger_seq > self.read_to.ledger_seq {
            self.read_to = AsOf { ledger_seq: at.ledger_seq, at: at.stored_at };
        }
    }

    /// What is known of the moment, and what that rests on.
    pub fn finish(mut self) -> (Fleet, history::Hindsight) {
        let fleet = &mut self.fleet;
        for (key, heard) in self.heard_then {
            fleet.hear_as_then(&key, heard, self.numbers.get(&key));
            self.numbers.remove(&key);
        }
        for (key, epochs) in self.numbers {
            if let Some(heard) = fleet.find(&key).map(|device| device.about.heard()) {
                fleet.hear_as_then(&key, heard, Some(&epochs));
            }
        }
        fleet.as_of = self.read_to;
        let hindsight = history::Hindsight {
            at: self.moment,
            known_then: self.known_then,
            late_reports: self.late_reports,
            skewed: SomeDevices::of(self.skewed.keys(), SKEWED_NAMED_MAX),
            skew_seconds: self.skewed.values().max().copied().unwrap_or_default(),
        };
        (self.fleet, hindsight)
    }

    /// Notes a report's number, and takes it in where it was observed by the moment.
    fn report(
        &mut self,
        at: Position,
        subject: &LedgerSubject,
        key: &DeviceKey,
        report: &Report,
        fact: Fact,
    ) {
        let within = report.observed_at <= self.moment;
        let numbers = self.numbers_of(key, report.epoch);
        let seq = report.seq.get();
        numbers.held.insert(seq);
        numbers.head = numbers.head.max(report.head.get());
        if !within {
            numbers.first_beyond = Some(numbers.first_beyond.map_or(seq, |first| first.min(seq)));
            return;
        }
        numbers.last_within = numbers.last_within.max(seq);
        let fleet = &mut self.fleet;
        let heard = || fleet.find(key).map(|device| device.about.heard()).unwrap_or_default();
        self.heard_then.entry(key.clone()).or_insert_with(heard);
        if fleet.apply(at, subject, fact) != Outcome::Again {
            self.late_reports += 1;
        }
    }

    fn spoken_of(&mut self, key: &DeviceKey, fact: &LivenessFact) {
        let numbers = self.numbers_of(key, fact.epoch);
        numbers.head = numbers.head.max(fact.head);
    }

    fn numbers_of(&mut self, key: &DeviceKey, epoch: Epoch) -> &mut Numbers {
        self.numbers.entry(key.clone()).or_default().entry(epoch).or_default()
    }

    fn skew(&mut self, key: &DeviceKey, incident: &Incident) {
        let IncidentKind::ClockSkew { seconds } = incident.what else { return };
        let most = self.skewed.entry(key.clone()).or_default();
        *most = (*most).max(seconds.unsigned_abs());
    }
}

/// What a report says of its number.
struct Report {
    epoch: Epoch,
    seq: Seq,
    head: Seq,
    observed_at: Timestamp,
}

impl Report {
    const fn of_status(fact: &StatusFact) -> Self {
        Self { epoch: fact.epoch, seq: fact.seq, head: fact.head, observed_at: fact.observed_at }
    }

    const fn of_device(fact: &DeviceFact) -> Self {
        Self { epoch: fact.epoch, seq: fact.seq, head: fact.head, observed_at: fact.observed_at }
    }
}

impl Numbers {
    /// Up to which number may have been given by the moment, where the hub knew of `then` at the time.
    fn through(&self, then: u64) -> u64 {
        let possible = self.first_beyond.map_or(self.head, |first| first - 1);
        possible.max(self.last_within).max(then)
    }
}

impl Fleet {
    /// Devices whose clock was found wrong, and by how many seconds.
    fn skewed(&self) -> BTreeMap<DeviceKey, u64> {
        let skewed = self.devices.iter().filter_map(|device| {
            let seconds = device.about.troubles.as_deref()?.skew_seconds?;
            Some((device.about.key.clone(), seconds.unsigned_abs()))
        });
        skewed.collect()
    }

    /// Puts back how a device was heard at a moment, and what it may have said by then.
    fn hear_as_then(&mut self, key: &DeviceKey, then: Heard, numbers: Option<&BTreeMap<Epoch, Numbers>>) {
        let Some(number) = self.numbers.get(key).copied() else { return };
        let before = self.facet(number);
        let about = &mut self.devices[number as usize].about;
        let epoch = about.holdings.epoch();
        let head_then = if then.epoch == epoch { then.head } else { 0 };
        if let Some(numbers) = epoch.and_then(|epoch| numbers?.get(&epoch)) {
            about.holdings.see(&numbers.held, numbers.through(head_then));
        }
        about.put_back(then);
        self.settle(number, before, Scope::Device, |_| {});
    }
}
