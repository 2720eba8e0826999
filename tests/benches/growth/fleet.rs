//! A fleet that is made fact by fact, as if each had just been parsed: with names of its own that are let go of with it.

use std::time::Duration;

use muster_contract::fact::{Fact, StatusFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{Seq, State, Timestamp};
use muster_domain::fold::{Fleet, Position};
use muster_tests::ledger::{self, DEPLOYMENTS, Message};
use rustix::time::{ClockId, clock_gettime};

/// Facts that are made and folded at once: as many as the rollup takes.
const BATCH: usize = 1000;
/// Steps of so many devices visit each once, far from the one before, so that no cache holds it.
const STEP: usize = 15_485_863;

type Read = (LedgerSubject, Fact);

/// A fleet on its way.
pub(crate) struct Made {
    pub(crate) fleet: Fleet,
    devices: usize,
    round: u64,
    reports: Vec<StatusFact>,
    batch: Vec<Read>,
}

impl Made {
    pub(crate) fn new(devices: usize) -> Self {
        let reports = ledger::reports(0, 1).map(|message| match read(&message) {
            (_, Fact::Status(fact)) => fact,
            other => panic!("{other:?} is no report"),
        });
        Self { fleet: Fleet::default(), devices, round: 0, reports: reports.into(), batch: Vec::new() }
    }

    /// Takes the memory that facts need, before any is measured.
    pub(crate) fn warm_up(&mut self) {
        for device in 0..BATCH / DEPLOYMENTS.len() {
            self.make(device, 1);
        }
        self.batch.clear();
    }

    /// Folds what every device shall run, and that it is heard.
    pub(crate) fn begin(&mut self) {
        let facts = ledger::beginning(0).map(|message| read(&message).1);
        for device in 0..self.devices {
            let subjects =
                ledger::beginning_subjects(device).map(|subject| LedgerSubject::parse(&subject).unwrap());
            self.batch.extend(subjects.into_iter().zip(facts.clone()));
            if self.batch.len() >= BATCH {
                self.fold();
            }
        }
        self.fold();
    }

    /// Folds a report of each deployment of each device, from all over the fleet; how long that took on a processor.
    pub(crate) fn report(&mut self) -> Duration {
        self.round += 1;
        let mut folding = Duration::ZERO;
        for nth in 0..self.devices {
            self.make(nth * STEP % self.devices, self.round);
            if self.batch.len() >= BATCH {
                folding += self.fold();
            }
        }
        folding + self.fold()
    }

    fn make(&mut self, device: usize, round: u64) {
        let state = if round.is_multiple_of(2) { State::Installed } else { State::Installing };
        for (at, (id, report)) in DEPLOYMENTS.iter().zip(&self.reports).enumerate() {
            let mut fact = report.clone();
            fact.seq = Seq::new((round - 1) * DEPLOYMENTS.len() as u64 + at as u64 + 1).unwrap();
            (fact.head, fact.status.state) = (fact.seq, state);
            fact.deployment = id.parse().unwrap();
            for component in &mut fact.components {
                component.name = component.name.as_str().parse().unwrap();
                component.state = state;
            }
            let subject = LedgerSubject::parse(&ledger::status_subject(device, id)).unwrap();
            self.batch.push((subject, Fact::Status(fact)));
        }
    }

    fn fold(&mut self) -> Duration {
        let begun = processor_time();
        for (subject, fact) in self.batch.drain(..) {
            let ledger_seq = self.fleet.as_of().ledger_seq + 1;
            self.fleet.apply(Position { ledger_seq, stored_at: Timestamp::UNIX_EPOCH }, &subject, fact);
        }
        processor_time() - begun
    }
}

fn read((subject, body): &Message) -> Read {
    let subject = LedgerSubject::parse(subject).unwrap();
    let fact = Fact::parse(&subject, body.as_bytes()).unwrap();
    (subject, fact)
}

/// Time this thread has spent on a processor.
fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec.unsigned_abs() as u32)
}
