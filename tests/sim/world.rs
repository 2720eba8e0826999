//! The whole world of one seed: devices, links, the hub, ingest, rollups, and time. It takes one event after another and
//! hands each to whom it concerns; after each, the law has been asked. Everything that is left to chance comes from one
//! source, so a seed makes the same world every time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use fastrand::Rng;
use muster_contract::DeviceKey;
use muster_contract::subjects::{LedgerSubject, ViewKey};

use super::agenda::{Agenda, MINUTE, Millis, SECOND};
use super::device::{Chore, Device, Downward, Upward};
use super::hub::Hub;
use super::ingest::{Duty, Owner};
use super::kills::Reaper;
use super::law::{Breach, Law, Lawful};
use super::profile::{Fault, Profile};
use super::publisher::Wanted;
use super::rollup::Rollup;
use super::rows;

/// Events of one seed at most: a world that goes round in circles is a failure, too.
const EVENTS_MAX: u64 = 20_000_000;
/// Time between two trims of UPLINK, two backups, two copies of a device's database, two reviews of a calm world.
const EVERY: (Millis, Millis, Millis, Millis) = (2 * MINUTE, 3 * MINUTE, 2 * MINUTE, 10 * SECOND);
/// One in so many effects is the last of whoever has it, where crashes are in the weather.
pub(crate) const MORTALITY: u16 = 1_500;
/// Events that are told of when something fails.
const REMEMBERED: usize = 60;

/// What a part of the world does wrong, to show that the law sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Nothing.
    None,
    /// Ingest acknowledges a report before LEDGER has confirmed its fact.
    AcksFirst,
    /// Ingest takes a publication of unknown fate for stored.
    TakesSilenceForConsent,
    /// Ingest starts without reading LEDGER.
    RemembersNothing,
    /// Ingest thinks that no report waits where none comes.
    TakesQuietForEmpty,
    /// Ingest gives every device a lease of a day.
    NeverDoubts,
    /// A device forgets a report as soon as the bus has it.
    ForgetsOnAnswer,
    /// A device accepts desired states that it should refuse.
    ObeysTheOld,
    /// Ingest refuses reports by the documents that it happens to know.
    JudgesBeforeDocuments,
    /// Ingest lets a device speak of any deployment.
    LetsDevicesInvent,
    /// A rollup's snapshot lacks a device, and nobody looks.
    SnapshotsLoosely,
}

/// Whatever happens.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// An agent's life does something.
    Chore(usize, u64, Chore),
    /// Something reaches the hub over a device's connection.
    Up(usize, u64, Upward),
    /// Something reaches a device over its connection.
    Down(usize, u64, Downward),
    /// The owner of a partition does something, in its life and session.
    Duty(usize, u64, u64, Duty),
    /// The owner of a partition hears what a device shall run.
    Wish(usize, u64, usize),
    /// A fact reaches LEDGER.
    Fact {
        /// From which partition, life and session, and its place there.
        part: usize,
        /// See `part`.
        life: u64,
        /// See `part`.
        term: u64,
        /// See `part`.
        place: u64,
        /// Its subject.
        subject: LedgerSubject,
        /// What it says.
        payload: Vec<u8>,
        /// Its message id.
        id: Option<String>,
    },
    /// A rollup reads on.
    Fold(usize),
    /// A rollup makes a snapshot.
    Snapshot(usize),
    /// A device's desired state changes.
    Edit(usize),
    /// LEDGER takes over a desired state.
    Source(usize, Rc<[u8]>),
    /// A misfortune.
    Strike(Fault, Millis),
    /// A device's link is back.
    Connect(usize),
    /// A device's agent starts.
    StartAgent(usize),
    /// A device's disk has room again.
    DiskFree(usize),
    /// A copy of a device's database is made.
    Copy(usize),
    /// UPLINK is trimmed.
    Trim,
    /// A backup of the hub is made.
    BackUp,
    /// The weather clears.
    Calm,
    /// Is everything as it should be at last?
    Review,
}

/// What happened, in numbers.
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
    /// Reports in LEDGER.
    pub(crate) reports: u64,
    /// What ingest made of reports, by outcome.
    pub(crate) outcomes: BTreeMap<String, u64>,
    /// Times LEDGER was read again.
    pub(crate) rewinds: u64,
    /// Times a rollup's views were held against the truth.
    pub(crate) folds: u64,
    /// Misfortunes by kind.
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
    /// Every view that ever was.
    pub(crate) views: BTreeSet<ViewKey>,
    pub(crate) law: Law,
    pub(crate) tally: Tally,
    /// There is bad weather.
    pub(crate) storm: bool,
    /// Somebody waits for ingest, step by step.
    pub(crate) reaper: Option<Reaper>,
    /// Operations begun.
    pub(crate) operations: u64,
    /// Reports of hostile devices.
    pub(crate) inventions: u64,
    breach: Option<Breach>,
    /// What happened last, where somebody wants to read it.
    trace: Option<Vec<String>>,
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
        let key = |at: usize| format!("s{}/d{at:03}", at % profile.sites).parse::<DeviceKey>().unwrap();
        let names: BTreeMap<_, _> = (0..profile.devices).map(|at| (key(at), at)).collect();
        Self {
            hub: Hub::new(profile.devices, profile.partitions, profile.share),
            devices: (0..profile.devices).map(|at| Device::new(key(at), rows::fresh())).collect(),
            wanted: (0..profile.devices).map(|_| Wanted::default()).collect(),
            owners: (0..profile.partitions).map(|_| Owner::new()).collect(),
            rollups: vec![Rollup::default(), Rollup::default()],
            views: BTreeSet::from([ViewKey::Fleet]),
            law: Law::new(&names, profile.is_short_of_room()),
            tally: Tally { devices: profile.devices as u64, ..Tally::default() },
            agenda: Agenda::new(),
            storm: true,
            reaper: None,
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
            self.agenda.at(self.chance.i64(0..20 * SECOND), Event::Duty(part, 0, 0, Duty::Start));
        }
        for rollup in 0..self.rollups.len() {
            self.agenda.at(self.chance.i64(0..30 * SECOND), Event::Snapshot(rollup));
        }
        for (fault, mean) in self.profile.faults.clone() {
            self.next_strike(fault, mean);
        }
        self.agenda.at(EVERY.0, Event::Trim);
        self.agenda.at(self.chance.i64(0..EVERY.1), Event::BackUp);
        self.agenda.at(self.profile.storm, Event::Calm);
    }

    /// Lets everything happen, until all is calm and right.
    pub(crate) fn run(&mut self) -> Lawful {
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
            if self.tally.events > EVENTS_MAX {
                return Err(Breach {
                    law: "the world comes to rest",
                    seen: "it goes round in circles".into(),
                });
            }
        }
        self.tally.virtual_ms = self.agenda.now();
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
            Event::Duty(part, life, term, duty) => {
                if self.owners[part].life == life || matches!(duty, Duty::Acknowledge(..)) {
                    self.do_duty(part, term, duty)?;
                }
            }
            Event::Wish(part, life, device) => {
                if self.owners[part].life == life {
                    self.do_duty(part, self.owners[part].term, Duty::Wish(device))?;
                }
            }
            Event::Fact { part, life, term, place, subject, payload, id } => {
                self.fact_arrives(part, life, term, place, subject, &payload, id)?;
            }
            Event::Fold(rollup) => self.fold(rollup)?,
            Event::Snapshot(rollup) => {
                self.snapshot(rollup);
                let delay = self.chance.i64(5 * SECOND..2 * MINUTE);
                self.agenda.after(delay, Event::Snapshot(rollup));
            }
            Event::Edit(device) => self.edit(device),
            Event::Source(device, bytes) => self.source(device, bytes)?,
            Event::Strike(fault, mean) if self.storm => {
                *self.tally.faults.entry(fault).or_default() += 1;
                self.strike(fault)?;
                self.next_strike(fault, mean);
            }
            Event::Strike(..) => {}
            Event::Connect(device) => self.connect(device),
            Event::StartAgent(device) => self.start_device(device)?,
            Event::DiskFree(device) => self.free_disk(device),
            Event::Copy(device) => {
                self.copy(device);
                self.agenda.after(EVERY.2, Event::Copy(device));
            }
            Event::Trim => {
                self.hub.trim();
                if self.reaped() {
                    self.fell(0);
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

    /// Whether a misfortune is in the weather of this world.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.profile.faults.iter().any(|(kind, _)| *kind == fault)
    }

    /// Whether ingest dies right now.
    pub(crate) fn strikes(&mut self) -> bool {
        let by_lot = self.storm && self.has(Fault::IngestCrash) && self.chance.u16(0..MORTALITY) == 0;
        self.reaped() || by_lot
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
