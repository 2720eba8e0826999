//! The world of one seed: the hub, the programs, devices, people, and time. It takes one event after another; the law is asked
//! about every document and every decision. All chance comes from one source, so a seed makes the same world every time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use muster_contract::canonical::Digest;
use muster_contract::fact::{DeadlineKind, Fact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, Generation, Timestamp};
use muster_service::clock::ManualClock;

use super::calm::End;
use super::checks::CheckServices;
use super::device::Device;
use super::fault_schedule::{Fault, FaultSchedule};
use super::hub::Hub;
use super::law::{Breach, Law, Lawful};
use super::ledger::Feed;
use super::liveness::Stands;
use super::oracle::{Past, device_of};
use super::programs::Programs;
use super::repository::Repository;
use super::wire::{Operation, Process};

/// Virtual milliseconds.
pub(crate) type Millis = i64;
pub(crate) const SECOND: Millis = 1000;
pub(crate) const MINUTE: Millis = 60 * SECOND;
/// The beginning of every world.
pub(crate) const BEGIN: Millis = 1_790_000_000_000;
/// Longest step of time: timers of the programs are late by this at most.
const STEP: Millis = 250;
/// Events of a world at most.
const EVENTS_MAX: u64 = 3_000_000;
/// Events that a failure shows.
const REMEMBERED: usize = 80;

/// A rule that a part of the world breaks, to show that the law sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    None,
    /// LEDGER delivers every device to planners as heard.
    HearsEverybody,
    /// The planner forces its releases.
    ForcesReleases,
    /// The planner does not record that a wave begins.
    SkipsBegin,
    /// The planner begins waves without looking at gates.
    InventsEvidence,
    /// The planner releases to every device of the rollout at once.
    ReleasesAll,
    /// DOWNLINK stores decisions whatever the newest message is.
    StoresUnchecked,
    /// Requests of the planner do not name the commit that it has judged.
    ForgetsCommit,
    /// The planner never records that a wave has failed.
    SwallowsFailures,
    /// The planner releases the devices of a wave from the end of its order.
    ReversesOrder,
    /// The planner records that all checks have passed.
    PassesChecks,
    /// The planner overlooks the windows of policies.
    OverlooksWindows,
    /// The planner overlooks the rates of waves.
    OverlooksRates,
}

/// An event.
pub(crate) enum Event {
    /// An operation of a process reaches the hub.
    Execute(Process, Operation),
    /// An answer reaches a process.
    Answer(Box<dyn FnOnce() + Send>),
    StartPublisher,
    StartPlanner(usize),
    /// A device gets the newest document.
    Document(usize),
    Installed(usize, DeploymentId, Digest, Generation),
    /// A device begins to install a content.
    Begins(usize, DeploymentId, Digest, Generation),
    /// A deadline of a deployment on a device, since a moment, by its target generation.
    Deadline(usize, DeploymentId, Generation, DeadlineKind, Millis),
    Report(usize),
    Beat(usize),
    Leases,
    /// LEDGER copies DOWNLINK up to a message.
    Copy(usize),
    /// LEDGER delivers new messages to planners.
    Feed,
    Link(usize, bool),
    Strike(Fault, Millis),
    /// A content is committed by a script.
    Script(&'static str),
    /// Diligent people look at the rollouts.
    People,
    Calm,
    Review,
    /// Every rollout is looked at: none may stand without a reason.
    Look,
}

/// Counts of one world.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    pub(crate) operations: u64,
    pub(crate) requests: u64,
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// Decisions by verb.
    pub(crate) verbs: BTreeMap<&'static str, u64>,
    /// Rollouts by their end.
    pub(crate) ends: BTreeMap<End, u64>,
    pub(crate) fingerprint: u64,
}

/// A world.
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Millis,
    pub(crate) clock: ManualClock,
    agenda: BTreeMap<(Millis, u64), Event>,
    number: u64,
    pub(crate) sabotage: Sabotage,
    pub(crate) hub: Hub,
    pub(crate) copied: usize,
    pub(crate) feed: Feed,
    pub(crate) repository: Repository,
    pub(crate) programs: Programs,
    pub(crate) devices: Vec<Device>,
    pub(crate) law: Law,
    pub(crate) checks: CheckServices,
    /// All of LEDGER, as people read it.
    pub(crate) present: RefCell<Past>,
    /// How long each rollout has stood.
    pub(crate) stands: Stands,
    pub(crate) schedule: FaultSchedule,
    pub(crate) tally: Tally,
    /// Kills a program at one of its writes.
    pub(crate) planned_kill: Option<super::kills::PlannedKill>,
    /// How far the streams went when diligent people looked last, and when that was.
    pub(crate) looked_at: Option<((u64, usize), Millis)>,
    /// Reviews in a row that have found a rollout without an end.
    pub(crate) open_reviews: u32,
    /// When a document or a decision was stored last.
    pub(crate) changed_at: Millis,
    pub(crate) breach: Arc<Mutex<Option<Breach>>>,
    trace: Option<Vec<String>>,
}

impl World {
    /// The world of a seed; with `trace` it remembers what happens.
    pub(crate) fn new(seed: u64, sabotage: Sabotage, trace: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let repository = Repository::draw(&mut rng);
        let schedule = FaultSchedule::draw(&mut rng);
        let length = schedule.length;
        let mut world = Self::of(rng, repository, schedule, (sabotage, trace));
        world.after(length, Event::Calm);
        world
    }

    /// A world of this repository and fault schedule.
    pub(crate) fn of(
        rng: Rng,
        repository: Repository,
        schedule: FaultSchedule,
        (sabotage, trace): (Sabotage, bool),
    ) -> Self {
        let clock = ManualClock::at(Timestamp::from_millisecond(BEGIN).unwrap());
        let mut world = Self {
            programs: Programs::new(&repository),
            feed: Feed::default(),
            now: 0,
            agenda: BTreeMap::new(),
            number: 0,
            sabotage,
            hub: Hub::default(),
            copied: 0,
            devices: Vec::new(),
            law: Law::default(),
            checks: CheckServices::default(),
            present: RefCell::default(),
            stands: Stands::default(),
            tally: Tally::default(),
            planned_kill: None,
            looked_at: None,
            open_reviews: 0,
            changed_at: 0,
            breach: Arc::default(),
            trace: trace.then(Vec::new),
            clock,
            repository,
            schedule,
            rng,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.append_pulses();
        self.after(0, Event::StartPublisher);
        self.after(SECOND, Event::StartPlanner(0));
        self.after(SECOND, Event::Leases);
        self.after(MINUTE, Event::Look);
        self.add_devices();
        for (fault, mean) in self.schedule.faults.clone() {
            let first = self.rng_millis(20 * SECOND..20 * SECOND + 2 * mean);
            self.after(first, Event::Strike(fault, mean));
        }
    }

    /// Adds an event after a delay.
    pub(crate) fn after(&mut self, delay: Millis, event: Event) {
        self.number += 1;
        self.agenda.insert((self.now + delay, self.number), event);
    }

    pub(crate) fn rng_millis(&mut self, range: std::ops::Range<Millis>) -> Millis {
        self.rng.i64(range)
    }

    /// The time of the hub's clock.
    pub(crate) fn time(&self) -> Timestamp {
        self.time_of(self.now)
    }

    pub(crate) fn time_of(&self, at: Millis) -> Timestamp {
        Timestamp::from_millisecond(BEGIN + at).unwrap()
    }

    /// Runs the world until it is at rest.
    pub(crate) async fn run(&mut self) -> Lawful {
        loop {
            self.run_until_idle();
            self.lawful()?;
            let Some((at, _)) = self.agenda.first_key_value().map(|(key, _)| *key) else { return Ok(()) };
            while self.now < at {
                let step = (at - self.now).min(STEP);
                self.now += step;
                self.clock.set(self.time());
                tokio::time::advance(std::time::Duration::from_millis(step.unsigned_abs())).await;
                if self.now < at {
                    self.run_until_idle();
                }
            }
            // Operations of the programs may come before the event.
            let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= self.now) else {
                continue;
            };
            let event = entry.remove();
            self.tally.events += 1;
            if self.tally.events > EVENTS_MAX {
                return Err(Breach {
                    law: "the world comes to rest",
                    seen: "it goes round in circles".into(),
                });
            }
            self.remember(&event);
            if matches!(event, Event::Review) {
                if self.review()? {
                    self.tally.fingerprint = self.fingerprint();
                    return Ok(());
                }
            } else {
                self.happen(event);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Execute(process, operation) => self.execute(process, operation),
            Event::Answer(answer) => answer(),
            Event::StartPublisher => self.start_publisher(),
            Event::StartPlanner(at) => self.start_planner(at),
            Event::Document(at) => self.deliver(at),
            Event::Installed(at, id, digest, generation) => self.installed(at, &id, digest, generation),
            Event::Begins(at, id, digest, generation) => self.begins(at, &id, digest, generation),
            Event::Deadline(at, id, target, kind, since) => {
                self.check_deadline(at, id, target, (kind, since));
            }
            Event::Report(at) => self.send_report(at),
            Event::Beat(at) => self.beat(at),
            Event::Leases => self.check_leases(),
            Event::Copy(to) => self.copy(to),
            Event::Feed => self.feed(),
            Event::Link(at, is_linked) => self.devices[at].is_linked = is_linked,
            Event::Strike(fault, mean) => self.strike(fault, mean),
            Event::Script(command) => self.script(command),
            Event::People => self.people(),
            Event::Calm => self.calm(),
            Event::Look => self.look(),
            Event::Review => {}
        }
    }

    /// LEDGER copies the documents of DOWNLINK up to one.
    fn copy(&mut self, to: usize) {
        while self.copied < to {
            let (_, key, document) = self.hub.log[self.copied].clone();
            self.copied += 1;
            self.append(LedgerSubject::Desired(key), Fact::Desired(document));
        }
    }

    /// Appends a fact to LEDGER.
    pub(crate) fn append(&mut self, subject: LedgerSubject, fact: Fact) {
        let at = self.time();
        if let Some(key) = device_of(&subject) {
            self.law.fact(key, at, &subject, &fact);
        }
        self.hub.append(at, subject, fact);
        self.expect_feed();
    }

    /// Keeps a breach until the event is over.
    pub(crate) fn hold(&mut self, lawful: Lawful) {
        if let Err(breach) = lawful {
            self.breach.lock().unwrap().get_or_insert(breach);
        }
    }

    fn lawful(&self) -> Lawful {
        self.breach.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    /// The events that processes have not executed yet, of one process.
    pub(crate) fn operations_of(&self, process: Process) -> Vec<(Millis, u64)> {
        let is_of = |event: &Event| matches!(event, Event::Execute(of, _) if *of == process);
        self.agenda.iter().filter(|(_, event)| is_of(event)).map(|(key, _)| *key).collect()
    }

    pub(crate) fn remove(&mut self, key: (Millis, u64)) -> Option<Event> {
        self.agenda.remove(&key)
    }

    fn remember(&mut self, event: &Event) {
        let now = self.now;
        let Some(trace) = &mut self.trace else { return };
        let what = match event {
            Event::Execute(process, operation) => format!("{process:?} {}", operation.words()),
            Event::Strike(fault, _) => format!("{fault:?}"),
            Event::Installed(at, id, ..) => format!("device {at} ends the installation of {id}"),
            Event::Deadline(at, id, ..) => format!("the deadline of {id} on device {at} is checked"),
            Event::StartPublisher => "the publisher starts".to_owned(),
            Event::StartPlanner(at) => format!("planner {at} starts"),
            Event::Calm => "the faults end".to_owned(),
            _ => return,
        };
        trace.push(format!(
            "{:>7}.{:03} {}",
            now / SECOND,
            now % SECOND,
            what.chars().take(600).collect::<String>()
        ));
    }

    /// The last events, or all.
    pub(crate) fn story(&self, whole: bool) -> String {
        let trace = self.trace.as_deref().unwrap_or_default();
        let from = if whole { 0 } else { trace.len().saturating_sub(REMEMBERED) };
        trace[from..].join("\n")
    }

    fn fingerprint(&self) -> u64 {
        let text = format!("{:?}{:?}{}", self.hub.decisions, self.hub.log, self.hub.ledger.len());
        let digest = Digest::of_bytes(text.as_bytes()).to_string();
        digest.bytes().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
    }
}
