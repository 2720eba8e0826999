//! The whole world of one seed: devices, links, the hub, ingest, rollups, and time. It takes one event after another and
//! hands each to whom it concerns; after each, the law has been asked. Everything that is left to chance comes from one
//! source, so a seed makes the same world every time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use fastrand::Rng;
use muster_agent::outbox::NewReport;
use muster_agent::relay::core::OrderRule as RelayRule;
use muster_contract::DeviceKey;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, ViewKey};
use muster_domain::intake::Rejection;
use muster_ingest::ledger_publisher::HighWater;
use muster_ingest::metrics::Metrics;
use muster_ingest::session::OrderRule;

use super::agenda::{Agenda, MINUTE, Millis, SECOND};
use super::device::{Chore, Device, Downward, Upward};
use super::ends::PlannedEnd;
use super::hub::Hub;
use super::ingest::{Owner, OwnerEvent};
use super::law::{Breach, Law, Lawful};
use super::monitor::Monitor;
use super::profile::{Fault, Profile};
use super::publisher::Wanted;
use super::rollup::Rollup;
use super::rows;

/// Events of one seed at most: a world that goes round in circles is a failure, too.
const EVENTS_MAX: u64 = 20_000_000;
/// The same for a sabotaged world: one that goes round in circles shows nothing, and the next seed may.
const SABOTAGED_EVENTS_MAX: u64 = 100_000;
/// Time between two trims of UPLINK, two backups, two copies of a device's database, two reviews of a calm world.
const EVERY: (Millis, Millis, Millis, Millis) = (2 * MINUTE, 3 * MINUTE, 2 * MINUTE, 10 * SECOND);
/// In a world with crashes, one in this many effects is the last one of its process.
pub(crate) const EFFECTS_PER_END: u16 = 1_500;
/// Events that are told of when something fails.
const REMEMBERED: usize = 60;

/// An error of a part of the world, to show that the law sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Nothing.
    None,
    /// Ingest's session breaks a rule of order.
    Breaks(OrderRule),
    /// Ingest starts without reading LEDGER.
    RemembersNothing,
    /// Ingest thinks that no report waits where none comes.
    TakesQuietForEmpty,
    /// Ingest gives every device a lease of a day.
    NeverDoubts,
    /// A new owner ignores the last pulse's `unprovenSince`.
    ProvesAnew,
    /// An agent's relay breaks a rule of order.
    RelayBreaks(RelayRule),
    /// A device forgets a report as soon as the bus has it.
    ForgetsOnAnswer,
    /// A device counts every attempt at a target as the first one.
    CountsEachAttemptAnew,
    /// A device accepts desired states that it should refuse.
    ObeysTheOld,
    /// Ingest lets a device speak of any deployment.
    LetsDevicesInvent,
    /// A rollup's snapshot lacks a device, and nobody looks.
    SnapshotsLoosely,
}

/// An event of the world.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// An agent's life does something.
    Chore(usize, u64, Chore),
    /// Something reaches the hub over a device's connection.
    Up(usize, u64, Upward),
    /// Something reaches a device over its connection.
    Down(usize, u64, Downward),
    /// The owner of a partition does something, in its life and session.
    Owner(usize, u64, u64, OwnerEvent),
    /// The owner of a partition hears what a device shall run.
    NewDocument(usize, u64, usize),
    /// A rejected report reaches QUARANTINE.
    Rejected {
        /// The partition that it is from.
        part: usize,
        /// The life, session and connection of its owner.
        from: (u64, u64, u64),
        /// The report.
        rejection: Rejection,
    },
    /// A fact reaches LEDGER.
    Fact {
        /// The partition that it is from.
        part: usize,
        /// The life, session and connection of its owner.
        from: (u64, u64, u64),
        /// Its number among the facts of the session.
        place: u64,
        /// Its subject.
        subject: LedgerSubject,
        /// The document.
        payload: Vec<u8>,
        /// Its message id.
        id: Option<String>,
    },
    /// A process that stood still goes on.
    Wake(usize),
    /// A rollup looks at what the hub itself hears.
    Monitor,
    /// A rollup reads on.
    Fold(usize),
    /// A rollup makes a snapshot.
    Snapshot(usize),
    /// A device's desired state changes.
    Edit(usize),
    /// The publisher replaces a device's desired state that was set back.
    Republish(usize),
    /// LEDGER takes over a desired state.
    Source(usize, Rc<[u8]>),
    /// A fault.
    Strike(Fault, Millis),
    /// A workload of a device ends again, so many times.
    Flap(usize, u32),
    /// The ingest of a partition restarts again, so many times.
    FlapIngest(usize, u32),
    /// A device's link is back.
    Connect(usize),
    /// A device's agent starts.
    StartAgent(usize),
    /// A device writes a report of a script.
    Write(usize, Box<NewReport>),
    /// A device's disk has room again.
    DiskFree(usize),
    /// A copy of a device's database is made.
    Copy(usize),
    /// UPLINK is trimmed.
    Trim,
    /// A backup of the hub is made.
    BackUp,
    /// Faults end.
    Calm,
    /// Is everything as it should be at last?
    Review,
}

/// Counts of events, effects and checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Events.
    pub(crate) events: u64,
    /// Virtual time.
    pub(crate) virtual_ms: Millis,
    /// Devices.
    pub(crate) devices: u64,
    /// Reports sent, repetitions included.
    pub(crate) sent: u64,
    /// Reports refused because UPLINK held as much of their device as it may.
    pub(crate) share_full: u64,
    /// Batches that agents sent.
    pub(crate) batches: u64,
    /// Rejected reports for which QUARANTINE had no room.
    pub(crate) no_room: u64,
    /// Reports in LEDGER.
    pub(crate) reports: u64,
    /// Reports by ingest's outcome.
    pub(crate) outcomes: BTreeMap<String, u64>,
    /// Effects of ingest's sessions.
    pub(crate) effects: u64,
    /// Effects of the agents' relays.
    pub(crate) relay_effects: u64,
    /// Facts that LEDGER held at the beginning.
    pub(crate) history: u64,
    /// Starts of a rollup from a snapshot of those facts.
    pub(crate) snapshot_folds: u64,
    /// Times LEDGER was read again.
    pub(crate) rewinds: u64,
    /// Starts of ingest from a snapshot.
    pub(crate) snapshot_starts: u64,
    /// Reports in LEDGER that list retries, those among them that list a crash loop, and deadlines in LEDGER.
    pub(crate) retried: u64,
    pub(crate) crash_loops: u64,
    pub(crate) deadlines: u64,
    /// Facts about the hub's own reception, by their state.
    pub(crate) hearing: BTreeMap<String, u64>,
    /// Site views and fleet views held against LEDGER.
    pub(crate) view_checks: u64,
    /// Times another law was asked.
    pub(crate) checks: u64,
    /// Times a rollup's views were held against the truth.
    pub(crate) folds: u64,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// A mark of what LEDGER held at the end.
    pub(crate) fingerprint: u64,
}

/// A world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) chance: Rng,
    pub(crate) profile: Profile,
    pub(crate) sabotage: Sabotage,
    pub(crate) agenda: Agenda<Event>,
    pub(crate) hub: Hub,
    pub(crate) names: BTreeMap<DeviceKey, usize>,
    pub(crate) devices: Vec<Device>,
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) rollups: Vec<Rollup>,
    pub(crate) monitor: Monitor,
    /// How far owners know LEDGER to reach: they are of one process here, each with a life of its own.
    pub(crate) high_water: HighWater,
    pub(crate) metrics: Metrics,
    /// Every view that ever was.
    pub(crate) views: BTreeSet<ViewKey>,
    pub(crate) law: Law,
    pub(crate) tally: Tally,
    /// Faults are injected.
    pub(crate) storm: bool,
    /// Ends ingest after one of its steps.
    pub(crate) planned_end: Option<PlannedEnd>,
    /// Ends an agent before one of its relay's effects.
    pub(crate) planned_agent_end: Option<PlannedEnd>,
    /// Operations begun.
    pub(crate) operations: u64,
    /// Reports of hostile devices.
    pub(crate) inventions: u64,
    breach: Option<Breach>,
    /// The last events, where they are traced.
    trace: Option<Vec<String>>,
}

/// The name of a device of a site, in a partition as the contract says.
fn key_of(at: usize, site: usize, part: usize) -> DeviceKey {
    let mut names = (0..).map(|number| format!("s{site}/d{at:03}-{number}").parse::<DeviceKey>().unwrap());
    names.find(|key| usize::from(partition_of(key)) == part).unwrap()
}

impl World {
    /// The world of a seed; with `trace` it remembers what happened.
    pub(crate) fn new(seed: u64, sabotage: Sabotage, trace: bool) -> Self {
        let mut chance = Rng::with_seed(seed);
        let profile = Profile::draw(&mut chance);
        let mut world = Self::of(chance, profile, sabotage, trace);
        world.begin();
        world
    }

    /// A world in which nothing happens yet.
    pub(crate) fn of(chance: Rng, profile: Profile, sabotage: Sabotage, trace: bool) -> Self {
        let key = |at: usize| key_of(at, at % profile.sites, at % profile.partitions);
        let names: BTreeMap<_, _> = (0..profile.devices).map(|at| (key(at), at)).collect();
        Self {
            hub: Hub::new(profile.devices, profile.partitions, profile.share),
            devices: (0..profile.devices).map(|at| Device::new(key(at), rows::fresh())).collect(),
            wanted: (0..profile.devices).map(|_| Wanted::default()).collect(),
            owners: (0..profile.partitions).map(|_| Owner::new()).collect(),
            rollups: vec![Rollup::default(), Rollup::default()],
            monitor: Monitor::default(),
            high_water: HighWater::default(),
            metrics: Metrics::default(),
            views: BTreeSet::from([ViewKey::Fleet]),
            law: Law::new(&names, &profile),
            tally: Tally { devices: profile.devices as u64, ..Tally::default() },
            agenda: Agenda::new(),
            storm: true,
            planned_end: None,
            planned_agent_end: None,
            operations: 0,
            inventions: 0,
            breach: None,
            trace: trace.then(Vec::new),
            names,
            chance,
            profile,
            sabotage,
        }
    }

    fn begin(&mut self) {
        for device in 0..self.devices.len() {
            let start = self.chance.i64(0..20 * SECOND);
            self.agenda.at(start, Event::Edit(device));
            self.agenda.at(start / 2 + self.chance.i64(0..10 * SECOND), Event::StartAgent(device));
            self.agenda.at(self.chance.i64(0..EVERY.2), Event::Copy(device));
        }
        for part in 0..self.owners.len() {
            self.agenda.at(self.chance.i64(0..20 * SECOND), Event::Owner(part, 0, 0, OwnerEvent::Start));
        }
        for rollup in 0..self.rollups.len() {
            self.agenda.at(self.chance.i64(0..30 * SECOND), Event::Snapshot(rollup));
        }
        if self.profile.history > 0 {
            let remembered = self.begin_with_history();
            self.hold(remembered);
        }
        self.agenda.at(0, Event::Monitor);
        for (fault, mean) in self.profile.faults.clone() {
            if self.profile.is_certain(fault) {
                let early = self.chance.i64(0..self.profile.storm / 3);
                self.agenda.at(early, Event::Strike(fault, mean));
            } else {
                self.next_strike(fault, mean);
            }
        }
        self.agenda.at(EVERY.0, Event::Trim);
        self.agenda.at(self.chance.i64(0..EVERY.1), Event::BackUp);
        self.agenda.at(self.profile.storm, Event::Calm);
    }

    /// Lets everything happen, until all is calm and right.
    pub(crate) fn run(&mut self) -> Lawful {
        let events_max = if self.sabotage == Sabotage::None { EVENTS_MAX } else { SABOTAGED_EVENTS_MAX };
        while let Some(event) = self.agenda.next() {
            self.tally.events += 1;
            self.remember(&event);
            if matches!(event, Event::Review) {
                if self.review()? {
                    break;
                }
                self.agenda.after(EVERY.3, Event::Review);
            } else {
                self.happens(event)?;
            }
            if self.tally.events > events_max {
                return Err(Breach {
                    law: "the world comes to rest",
                    seen: "it goes round in circles".into(),
                });
            }
        }
        self.tally.virtual_ms = self.agenda.now();
        let reports = self.metrics.partition(0);
        self.tally.outcomes =
            reports.reports().map(|(outcome, count)| (format!("{outcome:?}"), count)).collect();
        self.tally.reports = self.law.reports;
        self.tally.fingerprint = self.hub.fingerprint();
        Ok(())
    }

    /// Lets one thing happen.
    pub(crate) fn happens(&mut self, event: Event) -> Lawful {
        match event {
            Event::Chore(device, life, chore) if self.devices[device].life == life => {
                self.do_chore(device, chore)?;
            }
            Event::Chore(..) => {}
            Event::Up(device, connection, what) => self.arrives_at_hub(device, connection, what),
            Event::Down(device, connection, what) => {
                if self.devices[device].connection == Some(connection) {
                    self.arrives_at_device(device, what)?;
                }
            }
            Event::Owner(part, life, term, duty) => {
                if self.owners[part].life == life || matches!(duty, OwnerEvent::Acknowledge(..)) {
                    self.handle_owner_event(part, term, duty)?;
                }
            }
            Event::NewDocument(part, life, device) => {
                if self.owners[part].life == life {
                    self.handle_owner_event(part, self.owners[part].term, OwnerEvent::NewDocument(device))?;
                }
            }
            Event::Rejected { part, from, rejection } => self.rejected_arrives(part, from, &rejection)?,
            Event::Fact { part, from, place, subject, payload, id } => {
                self.fact_arrives(part, (from, place), subject, &payload, id)?;
            }
            Event::Wake(part) => self.wake_former(part)?,
            Event::Monitor => self.monitor()?,
            Event::Fold(rollup) => self.fold(rollup)?,
            Event::Snapshot(rollup) => {
                self.snapshot(rollup);
                let delay = self.chance.i64(5 * SECOND..2 * MINUTE);
                self.agenda.after(delay, Event::Snapshot(rollup));
            }
            Event::Edit(device) => self.edit(device),
            Event::Republish(device) => self.republish(device),
            Event::Source(device, bytes) => self.source(device, bytes)?,
            Event::Strike(fault, mean) if self.storm => {
                *self.tally.faults.entry(fault).or_default() += 1;
                self.strike(fault)?;
                self.next_strike(fault, mean);
            }
            Event::Strike(..) => {}
            Event::Flap(device, times) => self.flap(device, times),
            Event::FlapIngest(part, times) => self.flap_ingest(part, times),
            Event::Connect(device) => self.connect(device),
            Event::StartAgent(device) => self.start_device(device)?,
            Event::Write(device, entry) => self.write(device, Some(*entry)),
            Event::DiskFree(device) => self.free_disk(device),
            Event::Copy(device) => {
                self.copy(device);
                self.agenda.after(EVERY.2, Event::Copy(device));
            }
            Event::Trim => {
                self.hub.trim();
                if self.ends_now() {
                    self.end_owner(0);
                }
                self.agenda.after(EVERY.0, Event::Trim);
            }
            Event::BackUp => {
                self.hub.back_up();
                self.agenda.after(EVERY.1, Event::BackUp);
            }
            Event::Calm => self.clear_up()?,
            Event::Review => {}
        }
        self.lawful()
    }

    /// Keeps a breach until the event is over.
    pub(crate) fn hold(&mut self, lawful: Lawful) {
        if let Err(breach) = lawful {
            self.breach.get_or_insert(breach);
        }
    }

    /// The breach that is kept, if there is one.
    pub(crate) fn lawful(&self) -> Lawful {
        self.breach.clone().map_or(Ok(()), Err)
    }

    /// Whether this world injects a fault.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.profile.faults.iter().any(|(kind, _)| *kind == fault)
    }

    /// Whether ingest dies right now.
    pub(crate) fn strikes(&mut self) -> bool {
        let by_lot = self.storm && self.has(Fault::IngestCrash) && self.chance.u16(0..EFFECTS_PER_END) == 0;
        self.ends_now() || by_lot
    }

    fn remember(&mut self, event: &Event) {
        let now = self.agenda.now();
        let Some(trace) = &mut self.trace else { return };
        let mut line = String::new();
        _ = write!(line, "{:>9}.{:03} {event:?}", now / SECOND, now % SECOND);
        trace.push(line.chars().take(400).collect());
    }

    /// The last events, or all.
    pub(crate) fn story(&self, whole: bool) -> String {
        let trace = self.trace.as_deref().unwrap_or_default();
        let from = if whole { 0 } else { trace.len().saturating_sub(REMEMBERED) };
        trace[from..].join("\n")
    }
}
