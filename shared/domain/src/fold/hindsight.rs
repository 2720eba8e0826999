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
//! or that was folded into a report observed later, is missing: what it said may be what was true. So it is with a newer
//! epoch that the device may have begun by the moment.
//!
//! A message that went to quarantine later and may have been sent by the moment leaves in doubt what was true, as if it
//! had been known then: by its number, if that may have been given by the moment; without one, or with one of which the
//! device has not spoken, until a heartbeat that came after it. A person's later word that nobody needs the message ends
//! that, and so does letting it in, because it is a report then and counts by when it was observed. Whether the device
//! could keep what it would report is as the hub knew it then.

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
use super::doubt::{Identity, OpenMessages};
use super::fleet::{Fleet, Outcome, Position, Scope};

/// Devices with a wrong clock that are named.
pub(super) const SKEWED_NAMED_MAX: usize = 20;

/// A fleet on its way from what was known then to what is known by now.
#[derive(Debug)]
pub struct Hindsight {
    fleet: Fleet,
    moment: Timestamp,
    known_then: AsOf,
    read_to: AsOf,
    /// What facts that came later say of what a device may have said by the moment.
    since: HashMap<DeviceKey, Since>,
    /// Devices that late reports changed, as the hub heard them then.
    heard_then: HashMap<DeviceKey, Heard>,
    skewed: BTreeMap<DeviceKey, u64>,
    late_reports: u64,
}

/// What came later of one device.
#[derive(Debug, Default)]
struct Since {
    epochs: BTreeMap<Epoch, Numbers>,
    /// Messages that went to quarantine.
    messages: OpenMessages,
    /// Messages that a person has looked at.
    settled: Vec<Identity>,
    /// The newest heartbeat.
    beat_at: Option<Timestamp>,
}

/// The numbers of one epoch.
#[derive(Debug, Default)]
struct Numbers {
    /// Those that came as reports.
    held: SeqRanges,
    /// Those that came in messages that could not be let in.
    bad: SeqRanges,
    /// Those of which a person said that nobody needs them.
    dropped: SeqRanges,
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
            since: HashMap::new(),
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
        if at.ledger_seq <= self.read_to.ledger_seq || matches!(subject, LedgerSubject::Hub(_)) {
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
                self.quarantined(at, key, &fact);
            }
            (LedgerSubject::Verdict(Some(key)), Fact::Verdict(fact)) => self.looked_at(key, &fact),
            (LedgerSubject::Incident(Some(key)), Fact::Incident(incident)) => self.skew(key, &incident),
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
            fleet.hear_as_then(&key, heard, self.since.remove(&key).unwrap_or_default());
        }
        for (key, since) in self.since {
            if let Some(heard) = fleet.find(&key).map(|device| device.about.as_heard()) {
                fleet.hear_as_then(&key, heard, since);
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
        let heard = || fleet.find(key).map(|device| device.about.as_heard()).unwrap_or_default();
        self.heard_then.entry(key.clone()).or_insert_with(heard);
        if fleet.apply(at, subject, fact) != Outcome::Again {
            self.late_reports += 1;
        }
    }

    fn spoken_of(&mut self, key: &DeviceKey, fact: &LivenessFact) {
        let numbers = self.numbers_of(key, fact.epoch);
        numbers.head = numbers.head.max(fact.head);
        let since = self.since.entry(key.clone()).or_default();
        since.beat_at = since.beat_at.max(fact.beat_at);
    }

    fn quarantined(&mut self, at: Position, key: &DeviceKey, fact: &QuarantineFact) {
        let since = self.since.entry(key.clone()).or_default();
        since.messages.add(fact, at.ledger_seq);
        if let Some((epoch, numbers)) = fact.numbers() {
            since.epochs.entry(epoch).or_default().bad.extend(&numbers);
        }
    }

    fn looked_at(&mut self, key: &DeviceKey, fact: &QuarantineVerdict) {
        let since = self.since.entry(key.clone()).or_default();
        since.settled.extend(fact.received_at.map(|received_at| (received_at, fact.epoch.zip(fact.seq))));
        let dropped = fact.numbers().filter(|_| fact.verdict == quarantine::Verdict::Dropped);
        if let Some((epoch, numbers)) = dropped {
            since.epochs.entry(epoch).or_default().dropped.extend(&numbers);
        }
    }

    fn numbers_of(&mut self, key: &DeviceKey, epoch: Epoch) -> &mut Numbers {
        self.since.entry(key.clone()).or_default().epochs.entry(epoch).or_default()
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

    /// Whether it is not known what was said with one of the numbers that may have been given by the moment, where the hub
    /// knew of none at the time.
    fn leaves_open(&self) -> bool {
        let mut known = self.held.clone();
        known.extend(&self.dropped);
        !known.missing(self.through(0)).is_empty()
    }
}

impl Since {
    /// The epoch that the device may have begun by the moment, where the hub knew of one, and the first place among its
    /// reports from that one on that it is known to have come to only later.
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
            let seconds = device.about.troubles.as_deref()?.skew_seconds?;
            Some((self.key_of(device), seconds.unsigned_abs()))
        });
        skewed.collect()
    }

    /// Puts back how a device was heard at a moment, and what it may have said by then.
    fn hear_as_then(&mut self, key: &DeviceKey, then: Heard, since: Since) {
        let Some(number) = self.number_of(key) else { return };
        let before = self.facet(number);
        let about = &mut self.devices[number as usize].about;
        let (epoch, end) = since.reach(about.holdings.epoch());
        if let Some(epoch) = epoch {
            about.holdings.enter(epoch);
        }
        let through = |of: Epoch, numbers: &Numbers| {
            numbers.through(if then.epoch == Some(of) { then.head } else { 0 })
        };
        for (of, numbers) in &since.epochs {
            if epoch == Some(*of) {
                about.holdings.see(&numbers.held, through(*of, numbers));
            }
            let last = end.map_or(COUNTER_MAX, |end| match of.cmp(&end.0) {
                Ordering::Less => COUNTER_MAX,
                Ordering::Equal => through(*of, numbers),
                Ordering::Greater => 0,
            });
            about.holdings.quarantine(*of, &numbers.bad.within(1, last));
            about.holdings.drop_quarantined(*of, &numbers.dropped.within(1, last));
        }
        let mut messages = since.messages;
        // All that came before a number that is known to be later has a number below it.
        messages.keep(|place| match (place, end) {
            (_, None) => true,
            (Some((of, seq)), Some(end)) => (of, seq.get()) < end,
            (None, Some(end)) => Some(end.0) > epoch,
        });
        about.doubt_again(messages, &since.settled, since.beat_at);
        about.put_back(then);
        self.settle(number, before, Scope::Device, |_| {});
    }
}
