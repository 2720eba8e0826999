//! Folds by event time: the state at a moment as known by now, that is, the hub's state then and the reports
//! that came later although their device observed them by then.
//!
//! The fold begins with the fleet as of the last fact that LEDGER stored at or before the moment, and reads on.
//! A later report counts if its `observedAt` is not after the moment, ordered by (epoch, seq) as always. All
//! other later facts are acts of the hub after the moment: desired states, liveness and deadlines hold as the
//! hub knew them then. The order of reports changes nothing.
//!
//! Completeness is judged by the numbers that the device may have assigned by the moment: all numbers below the
//! first one observed later, or, where there is none, all up to the device's head. A number among them that is
//! missing, or was coalesced into a report observed later, counts as missing: its content may have been true at
//! the moment. The same holds for a newer epoch that the device may have begun by the moment.
//!
//! A message quarantined later that may have been sent by the moment makes the state uncertain, as if it had
//! been known then: by its number, if that may have been assigned by the moment; without a known number, until
//! a heartbeat that came after it. An operator's later decision to drop the message ends that. Accepting it
//! ends it too, because it then is a report and counts by its `observedAt`. Whether the device could store its
//! reports is as the hub knew it then.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use muster_contract::fact::{
    DeviceFact, Fact, Incident, IncidentKind, LivenessFact, QuarantineFact, StatusFact,
};
use muster_contract::history;
use muster_contract::limits::COUNTER_MAX;
use muster_contract::quarantine::{self, QuarantineVerdict};
use muster_contract::query::SomeDevices;
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::AsOf;
use muster_contract::{DeviceKey, Epoch, Seq, SeqRanges, Timestamp};

use super::device::Heard;
use super::doubt::UnresolvedQuarantine;
use super::fleet::{Fleet, Outcome, Position, Scope};
use crate::message_identity::MessageIdentity;

/// Devices with a wrong clock that are named.
const SKEWED_NAMED_MAX: usize = 20;

/// A fleet on its way from what was known then to what is known by now.
#[derive(Debug)]
pub struct EventTimeFold {
    fleet: Fleet,
    moment: Timestamp,
    known_then: AsOf,
    read_to: AsOf,
    /// Per device, the facts that came later and tell what it may have reported by the moment.
    since: HashMap<DeviceKey, LaterFacts>,
    /// Devices that late reports changed, as the hub heard them then.
    heard_then: HashMap<DeviceKey, Heard>,
    skewed: BTreeMap<DeviceKey, u64>,
    late_reports: u64,
}

/// Later facts of one device.
#[derive(Debug, Default)]
struct LaterFacts {
    epochs: BTreeMap<Epoch, EpochSeqs>,
    /// Messages that went to quarantine.
    messages: UnresolvedQuarantine,
    /// Messages with an operator's decision.
    settled: Vec<MessageIdentity>,
    /// The newest heartbeat.
    beat_at: Option<Timestamp>,
}

/// The numbers of one epoch.
#[derive(Debug, Default)]
struct EpochSeqs {
    /// Those that came as reports.
    held: SeqRanges,
    /// Numbers of quarantined messages.
    bad: SeqRanges,
    /// Numbers that an operator dropped.
    dropped: SeqRanges,
    /// Highest the device has spoken of.
    head: u64,
    /// Highest that was observed by the moment.
    last_within: u64,
    /// Lowest that was observed after it.
    first_beyond: Option<u64>,
}

impl EventTimeFold {
    /// Begins with the fleet as of the last fact that LEDGER stored at or before a moment.
    pub fn of(fleet: Fleet, moment: Timestamp) -> Self {
        let as_of = fleet.as_of();
        Self {
            skewed: fleet.skewed(),
            fleet,
            moment,
            known_then: as_of,
            read_to: as_of,
            since: HashMap::new(),
            heard_then: HashMap::new(),
            late_reports: 0,
        }
    }

    /// Up to where LEDGER was read.
    pub const fn as_of(&self) -> AsOf {
        self.read_to
    }

    /// Applies a fact that LEDGER stored after the moment.
    pub fn apply(&mut self, at: Position, subject: &LedgerSubject, fact: Fact) {
        if at.ledger_seq <= self.read_to.ledger_seq || matches!(subject, LedgerSubject::Hub(_)) {
            return;
        }
        self.pass(at);
        match (subject, fact) {
            (LedgerSubject::Status(key, _), Fact::Status(fact)) => {
                let report = ReportSeq::of_status(&fact);
                self.report(at, subject, key, &report, Fact::Status(fact));
            }
            (LedgerSubject::Device(key), Fact::Device(fact)) => {
                let report = ReportSeq::of_device(&fact);
                self.report(at, subject, key, &report, Fact::Device(fact));
            }
            (LedgerSubject::Liveness(key), Fact::Liveness(fact)) => self.apply_liveness(key, &fact),
            (LedgerSubject::Quarantine(Some(key)), Fact::Quarantine(fact)) => {
                self.apply_quarantine(at, key, &fact);
            }
            (LedgerSubject::Verdict(Some(key)), Fact::Verdict(fact)) => self.apply_verdict(key, &fact),
            (LedgerSubject::Incident(Some(key)), Fact::Incident(incident)) => self.skew(key, &incident),
            _ => {}
        }
    }

    /// Skips a message of LEDGER without a readable fact.
    pub const fn pass(&mut self, at: Position) {
        if at.ledger_seq > self.read_to.ledger_seq {
            self.read_to = AsOf { ledger_seq: at.ledger_seq, at: at.stored_at };
        }
    }

    /// The state at the moment, with its basis: positions, number of late reports and skewed clocks.
    pub fn finish(mut self) -> (Fleet, history::EventTimeCertainty) {
        let fleet = &mut self.fleet;
        for (key, heard) in self.heard_then {
            fleet.restore_liveness(&key, heard, self.since.remove(&key).unwrap_or_default());
        }
        for (key, since) in self.since {
            if let Some(heard) = fleet.find(&key).map(|device| device.state.as_heard()) {
                fleet.restore_liveness(&key, heard, since);
            }
        }
        fleet.as_of = self.read_to;
        let certainty = history::EventTimeCertainty {
            at: self.moment,
            known_then: self.known_then,
            late_reports: self.late_reports,
            skewed: SomeDevices::of(self.skewed.keys(), SKEWED_NAMED_MAX),
            skew_seconds: self.skewed.values().max().copied().unwrap_or_default(),
        };
        (self.fleet, certainty)
    }

    /// Notes a report's number, and applies it if it was observed by the moment.
    fn report(
        &mut self,
        at: Position,
        subject: &LedgerSubject,
        key: &DeviceKey,
        report: &ReportSeq,
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
        let heard = || fleet.find(key).map(|device| device.state.as_heard()).unwrap_or_default();
        self.heard_then.entry(key.clone()).or_insert_with(heard);
        if fleet.apply(at, subject, fact) != Outcome::Duplicate {
            self.late_reports += 1;
        }
    }

    fn apply_liveness(&mut self, key: &DeviceKey, fact: &LivenessFact) {
        let numbers = self.numbers_of(key, fact.epoch);
        numbers.head = numbers.head.max(fact.head);
        let since = self.since.entry(key.clone()).or_default();
        since.beat_at = since.beat_at.max(fact.beat_at);
    }

    fn apply_quarantine(&mut self, at: Position, key: &DeviceKey, fact: &QuarantineFact) {
        let since = self.since.entry(key.clone()).or_default();
        since.messages.add(fact, at.ledger_seq);
        if let Some((epoch, numbers)) = fact.numbers() {
            since.epochs.entry(epoch).or_default().bad.extend(&numbers);
        }
    }

    fn apply_verdict(&mut self, key: &DeviceKey, fact: &QuarantineVerdict) {
        if !fact.ends_doubt() {
            return;
        }
        let since = self.since.entry(key.clone()).or_default();
        since.settled.extend(fact.received_at.map(|received_at| (received_at, fact.epoch.zip(fact.seq))));
        let dropped = fact.numbers().filter(|_| fact.verdict == quarantine::QuarantineDecision::Dropped);
        if let Some((epoch, numbers)) = dropped {
            since.epochs.entry(epoch).or_default().dropped.extend(&numbers);
        }
    }

    fn numbers_of(&mut self, key: &DeviceKey, epoch: Epoch) -> &mut EpochSeqs {
        self.since.entry(key.clone()).or_default().epochs.entry(epoch).or_default()
    }

    fn skew(&mut self, key: &DeviceKey, incident: &Incident) {
        let IncidentKind::ClockSkew { seconds } = incident.what else { return };
        let most = self.skewed.entry(key.clone()).or_default();
        *most = (*most).max(seconds.unsigned_abs());
    }
}

/// A report's number and times.
struct ReportSeq {
    epoch: Epoch,
    seq: Seq,
    head: Seq,
    observed_at: Timestamp,
}

impl ReportSeq {
    const fn of_status(fact: &StatusFact) -> Self {
        Self { epoch: fact.epoch, seq: fact.seq, head: fact.head, observed_at: fact.observed_at }
    }

    const fn of_device(fact: &DeviceFact) -> Self {
        Self { epoch: fact.epoch, seq: fact.seq, head: fact.head, observed_at: fact.observed_at }
    }
}

impl EpochSeqs {
    /// The highest number that may have been assigned by the moment, where the hub knew of `then` at the time.
    fn through(&self, then: u64) -> u64 {
        let possible = self.first_beyond.map_or(self.head, |first| first - 1);
        possible.max(self.last_within).max(then)
    }

    /// Whether the content of a number that may have been assigned by the moment is unknown, where the hub knew
    /// of no number then.
    fn leaves_open(&self) -> bool {
        let mut known = self.held.clone();
        known.extend(&self.dropped);
        !known.missing(self.through(0)).is_empty()
    }
}

impl LaterFacts {
    /// The epoch that the device may have begun by the moment, given the one that the hub knew, and the first
    /// (epoch, number) from that epoch on which was certainly assigned later.
    fn reach(&self, known: Option<Epoch>) -> (Option<Epoch>, Option<(Epoch, u64)>) {
        let mut reached = known;
        for (epoch, numbers) in self.epochs.iter().filter(|(epoch, _)| Some(**epoch) >= known) {
            if Some(*epoch) > known && numbers.leaves_open() {
                reached = Some(*epoch);
            }
            if let Some(first) = numbers.first_beyond {
                return (reached, Some((*epoch, first)));
            }
        }
        (reached, None)
    }
}

impl Fleet {
    /// Devices whose clock was found wrong, and by how many seconds.
    fn skewed(&self) -> BTreeMap<DeviceKey, u64> {
        let skewed = self.devices.iter().filter_map(|device| {
            let seconds = device.state.anomalies.as_deref()?.skew_seconds?;
            Some((self.key_of(device), seconds.unsigned_abs()))
        });
        skewed.collect()
    }

    /// Restores how a device was heard at the moment, and the numbers it may have assigned by then.
    fn restore_liveness(&mut self, key: &DeviceKey, then: Heard, since: LaterFacts) {
        let Some(number) = self.number_of(key) else { return };
        let before = self.context(number);
        let state = &mut self.devices[number as usize].state;
        let (epoch, end) = since.reach(state.seq_account.epoch());
        if let Some(epoch) = epoch {
            state.seq_account.enter(epoch);
        }
        let through = |of: Epoch, numbers: &EpochSeqs| {
            numbers.through(if then.epoch == Some(of) { then.head } else { 0 })
        };
        for (of, numbers) in &since.epochs {
            if epoch == Some(*of) {
                state.seq_account.insert_reports(&numbers.held, through(*of, numbers));
            }
            let last = end.map_or(COUNTER_MAX, |end| match of.cmp(&end.0) {
                Ordering::Less => COUNTER_MAX,
                Ordering::Equal => through(*of, numbers),
                Ordering::Greater => 0,
            });
            state.seq_account.quarantine(*of, &numbers.bad.within(1, last));
            state.seq_account.drop_quarantined(*of, &numbers.dropped.within(1, last));
        }
        let mut messages = since.messages;
        // A message sent before a number that is certainly later has a lower number.
        messages.keep(|place| match (place, end) {
            (_, None) => true,
            (Some((of, seq)), Some(end)) => (of, seq.get()) < end,
            (None, Some(end)) => Some(end.0) > epoch,
        });
        state.doubt_again(messages, &since.settled, since.beat_at);
        state.restore_heard(then);
        self.update_rows(number, before, Scope::Device, |_| {});
    }
}
