//! Devices and what the hub hears of them: a device installs what its document says, late on some contents, tries some failures
//! again, reports with numbers, and beats. Its clock may be wrong, its link breaks, and it may die for ever. Facts enter LEDGER as
//! ingest writes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, DeadlineKind, Fact, Liveness, LivenessFact, StatusFact};
use muster_contract::retry::{LastError, Retry};
use muster_contract::state::StatusError;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, State, Timestamp};
use muster_tests::facts;

use super::world::{Event, MINUTE, Millis, SECOND, World};

/// Time without a heartbeat after which a device is silent.
const LEASE: Millis = 20 * SECOND;
/// Time between two heartbeats.
const BEAT: Millis = 5 * SECOND;
/// The hub's deadline of every deployment.
const DEADLINE: Millis = 15 * SECOND;
/// Time that a slow content takes on some devices.
const SLOW: Millis = 150 * SECOND;

/// Time after which a device begins with a late content.
const LATE: std::ops::Range<Millis> = 20 * SECOND..100 * SECOND;
/// Attempts of a device at a content that fails, at most: more than any policy allows.
const ATTEMPTS: u32 = 5;
/// Error of a wrong clock, at most.
const CLOCK_ERROR: Millis = 90 * MINUTE;

/// The attempts of a device at a content.
#[derive(Debug, Clone, Copy)]
struct Attempts {
    digest: Digest,
    begun: u32,
    /// When the first one began, by the hub's clock.
    first_at: Timestamp,
    since: Timestamp,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) key: DeviceKey,
    /// The difference of its clock from the hub's.
    clock_error: Millis,
    attempts: BTreeMap<DeploymentId, Attempts>,
    pub(crate) is_linked: bool,
    pub(crate) is_dead: bool,
    document: Option<DesiredState>,
    /// The content of each deployment that it runs or tries to run, and its target.
    contents: BTreeMap<DeploymentId, (Digest, Generation)>,
    sequence: u64,
    /// Reports that the hub does not have yet.
    backlog: VecDeque<StatusFact>,
    /// When the hub heard it last, and whether it counts as heard.
    heard_at: Millis,
    is_heard: bool,
    /// The highest number that it has spoken of at the hub.
    head: u64,
    received: BTreeSet<u64>,
    /// The target of each deployment about which the hub has no report of an end.
    unfinished: BTreeMap<DeploymentId, Generation>,
    /// The newest target of each deployment that the hub has a report of.
    reported: BTreeMap<DeploymentId, Generation>,
}

impl Device {
    pub(crate) fn new(key: DeviceKey, clock_error: Millis) -> Self {
        Self {
            key,
            clock_error,
            attempts: BTreeMap::new(),
            reported: BTreeMap::new(),
            is_linked: true,
            is_dead: false,
            document: None,
            contents: BTreeMap::new(),
            sequence: 0,
            backlog: VecDeque::new(),
            heard_at: 0,
            is_heard: false,
            head: 0,
            received: BTreeSet::new(),
            unfinished: BTreeMap::new(),
        }
    }

    /// The target at which it has a content, unless it is dead or the document of this generation is out of date.
    fn target(&self, id: &DeploymentId, digest: Digest, generation: Generation) -> Option<Generation> {
        let (held, target) = self.contents.get(id)?;
        (!self.is_dead && *held == digest && generation >= *target).then_some(*target)
    }

    /// Whether the hub can hear it for good.
    pub(crate) const fn is_alive(&self) -> bool {
        !self.is_dead
    }
}

/// The end of a content on a device, by its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Good,
    /// It fails, and is not tried again.
    Fails,
    /// It fails so often before it is installed.
    FailsFirst(u32),
    Slow,
    Late,
}

fn course(command: &str, key: &DeviceKey) -> Course {
    let share = Digest::of_bytes(format!("{command} {key}").as_bytes()).to_string();
    let of_ten = share.bytes().last().unwrap_or_default() % 10;
    match command.rsplit('-').next() {
        Some("bad") if of_ten < 5 => Course::Fails,
        Some("bad") => Course::FailsFirst(u32::MAX),
        Some("some") if of_ten < 2 => Course::Fails,
        Some("some") if of_ten < 4 => Course::FailsFirst(u32::MAX),
        Some("flaky") if of_ten < 6 => Course::FailsFirst(1 + u32::from(of_ten) % 4),
        Some("slow") if of_ten < 5 => Course::Slow,
        Some("late") if of_ten < 5 => Course::Late,
        _ => Course::Good,
    }
}

fn command(document: &DesiredState, id: &DeploymentId) -> String {
    let entry = document.deployments.iter().find(|entry| entry.id == *id);
    let properties = entry.and_then(|entry| entry.profile.components.first()).map(|main| &main.properties);
    properties.and_then(|all| all.get("command")?.as_str()).unwrap_or_default().to_owned()
}

impl World {
    /// A new device connects.
    pub(crate) fn add_device(&mut self, key: DeviceKey) {
        if self.devices.iter().any(|device| device.key == key) {
            return;
        }
        let is_wrong = self.rng.u8(0..4) == 0;
        let clock_error = if is_wrong { self.rng_millis(-CLOCK_ERROR..CLOCK_ERROR) } else { 0 };
        self.devices.push(Device::new(key, clock_error));
        let at = self.devices.len() - 1;
        let delay = self.rng_millis(10..BEAT);
        self.after(delay, Event::Beat(at));
    }

    /// The newest document reaches a device, if it is linked.
    pub(crate) fn deliver(&mut self, at: usize) {
        let Some(document) = self.hub.document(&self.devices[at].key).cloned() else { return };
        let device = &mut self.devices[at];
        let is_newer = device.document.as_ref().is_none_or(|before| before.generation < document.generation);
        if !device.is_linked || device.is_dead || !is_newer {
            return;
        }
        let ids: BTreeSet<_> = document.deployments.iter().map(|entry| entry.id.clone()).collect();
        device.contents.retain(|id, _| ids.contains(id));
        let mut begun = Vec::new();
        for entry in &document.deployments {
            let target = (entry.digest, entry.target_generation);
            let before = device.contents.insert(entry.id.clone(), target);
            if before != Some(target) {
                // Like an agent, the device confirms the same content again for a newer target.
                let is_new = before.is_none_or(|(digest, _)| digest != entry.digest);
                let course = course(&command(&document, &entry.id), &device.key);
                begun.push((entry.id.clone(), target, is_new, course));
            }
        }
        let generation = document.generation;
        device.document = Some(document);
        for (id, (digest, target), is_new, course) in begun {
            if is_new {
                let kind = DeadlineKind::NeverStarted;
                self.after(DEADLINE, Event::Deadline(at, id.clone(), target, kind, self.now));
                let delay = if course == Course::Late { self.rng_millis(LATE) } else { 0 };
                self.after(delay, Event::Begins(at, id, digest, generation));
            } else {
                let delay = self.rng_millis(SECOND..8 * SECOND);
                let is_trying = self.devices[at].attempts.contains_key(&id);
                let event = if is_trying { Event::Begins } else { Event::Installed };
                self.after(delay, event(at, id, digest, generation));
            }
        }
    }

    /// A device begins an attempt at a content.
    pub(crate) fn begins(&mut self, at: usize, id: &DeploymentId, digest: Digest, generation: Generation) {
        let (now, hub_time) = (self.now, self.time());
        let since = self.device_time(at);
        let device = &mut self.devices[at];
        let Some(target) = device.target(id, digest, generation) else { return };
        let first = Attempts { digest, begun: 0, first_at: hub_time, since };
        let attempts = device.attempts.entry(id.clone()).or_insert(first);
        if attempts.digest != digest {
            *attempts = first;
        }
        attempts.begun += 1;
        let is_first = attempts.begun == 1;
        let course = self.course_of(at, id);
        self.report(at, (id, digest, generation), State::Installing);
        if is_first {
            self.after(DEADLINE, Event::Deadline(at, id.clone(), target, DeadlineKind::Stuck, now));
        }
        let delay = self.rng_millis(SECOND..8 * SECOND) + if course == Course::Slow { SLOW } else { 0 };
        self.after(delay, Event::Installed(at, id.clone(), digest, generation));
    }

    fn course_of(&self, at: usize, id: &DeploymentId) -> Course {
        let device = &self.devices[at];
        device.document.as_ref().map_or(Course::Good, |document| course(&command(document, id), &device.key))
    }

    /// An attempt at a content ends on a device.
    pub(crate) fn installed(&mut self, at: usize, id: &DeploymentId, digest: Digest, generation: Generation) {
        let course = self.course_of(at, id);
        let device = &mut self.devices[at];
        if device.target(id, digest, generation).is_none() {
            return;
        }
        let begun = device.attempts.get(id).filter(|attempts| attempts.digest == digest);
        let begun = begun.map_or(1, |attempts| attempts.begun);
        let fails = match course {
            Course::Fails => true,
            Course::FailsFirst(times) => begun <= times,
            Course::Good | Course::Slow | Course::Late => false,
        };
        if !fails || course == Course::Fails {
            device.attempts.remove(id);
        }
        self.report(at, (id, digest, generation), if fails { State::Failed } else { State::Installed });
        if fails && course != Course::Fails && begun < ATTEMPTS {
            let delay = self.rng_millis(2 * SECOND..15 * SECOND);
            self.after(delay, Event::Begins(at, id.clone(), digest, generation));
        }
    }

    /// Ingest writes that a deadline of a deployment has passed, if its device is heard and has reported no end, or nothing.
    pub(crate) fn check_deadline(
        &mut self,
        at: usize,
        id: DeploymentId,
        target: Generation,
        (kind, since): (DeadlineKind, Millis),
    ) {
        let device = &self.devices[at];
        let is_current = device.contents.get(&id).is_some_and(|(_, held)| *held == target);
        if !is_current || device.is_dead {
            return;
        }
        let has_missed = match kind {
            DeadlineKind::Stuck => device.unfinished.get(&id) == Some(&target),
            DeadlineKind::NeverStarted => device.reported.get(&id).is_none_or(|reported| *reported < target),
        };
        if device.is_heard && has_missed {
            let fact = DeadlineFact {
                api_version: Default::default(),
                kind: Default::default(),
                generation: target,
                deadline: kind,
                since: self.time_of(since),
                limit_seconds: u64::try_from(DEADLINE / SECOND).unwrap(),
            };
            let subject = LedgerSubject::Deadline(device.key.clone(), id);
            self.append(subject, Fact::Deadline(fact));
        } else if self.now < since + SLOW {
            self.after(BEAT, Event::Deadline(at, id, target, kind, since));
        }
    }

    /// The time by a device's clock.
    fn device_time(&self, at: usize) -> Timestamp {
        self.time_of(self.now + self.devices[at].clock_error)
    }

    /// A device writes a report, which follows the earlier ones.
    fn report(&mut self, at: usize, what: (&DeploymentId, Digest, Generation), state: State) {
        let (id, digest, generation) = what;
        let (now, observed_at) = (self.time(), self.device_time(at));
        let device = &mut self.devices[at];
        device.sequence += 1;
        let error = (state == State::Failed).then(|| StatusError::new("exit", "main", "it has ended"));
        let mut report = facts::status(now, device.sequence, (id, generation, digest), (state, error));
        report.observed_at = observed_at;
        if let Some(attempts) = device.attempts.get(id).filter(|_| state != State::Installed) {
            report.first_attempt_at = Some(attempts.first_at);
            let last_error =
                LastError { code: "exit".to_owned(), message: "it has ended".to_owned(), at: observed_at };
            let (attempt, since) = (attempts.begun, attempts.since);
            let retry = Retry { component: None, attempt, since, last_error, crash_loop: false };
            // The first attempt is no retry before it has failed.
            report.retries.extend(Some(retry).filter(|_| state == State::Failed || attempt > 1));
        }
        device.backlog.push_back(report);
        let delay = self.rng_millis(20..3 * SECOND);
        self.after(delay, Event::Report(at));
    }

    /// The oldest report of a device reaches LEDGER, if it is linked.
    pub(crate) fn send_report(&mut self, at: usize) {
        let now = self.time();
        let device = &mut self.devices[at];
        if !device.is_linked || device.is_dead {
            return;
        }
        let Some(mut report) = device.backlog.pop_front() else { return };
        report.received_at = now;
        let is_at_end = report.status.state != State::Installing && report.retries.is_empty();
        match device.contents.get(&report.deployment) {
            Some((_, target)) if !is_at_end => {
                device.unfinished.insert(report.deployment.clone(), *target);
            }
            _ => _ = device.unfinished.remove(&report.deployment),
        }
        device.reported.insert(report.deployment.clone(), report.generation);
        device.received.insert(report.seq.get());
        device.head = device.head.max(report.seq.get());
        let subject = LedgerSubject::Status(device.key.clone(), report.deployment.clone());
        self.append(subject, Fact::Status(report));
        self.hear(at);
    }

    /// A device beats: it speaks of all of its reports, also of those that are under way.
    pub(crate) fn beat(&mut self, at: usize) {
        self.after(BEAT, Event::Beat(at));
        let device = &mut self.devices[at];
        if !device.is_linked || device.is_dead {
            return;
        }
        let is_news = device.head != device.sequence;
        device.head = device.sequence;
        if is_news {
            device.is_heard = false;
        }
        self.hear(at);
        if !self.devices[at].backlog.is_empty() {
            let delay = self.rng_millis(50..2 * SECOND);
            self.after(delay, Event::Report(at));
        }
        self.deliver(at);
    }

    /// The hub hears a device.
    fn hear(&mut self, at: usize) {
        let now = self.now;
        let device = &mut self.devices[at];
        device.heard_at = now;
        if !std::mem::replace(&mut device.is_heard, true) {
            self.say_liveness(at, Liveness::Fresh);
        }
    }

    /// Devices whose lease has ended are silent.
    pub(crate) fn check_leases(&mut self) {
        for at in 0..self.devices.len() {
            let device = &mut self.devices[at];
            if device.is_heard && device.heard_at + LEASE < self.now {
                device.is_heard = false;
                self.say_liveness(at, Liveness::Stale);
            }
        }
        self.after(2 * SECOND, Event::Leases);
    }

    fn say_liveness(&mut self, at: usize, state: Liveness) {
        let device = &self.devices[at];
        let fact = LivenessFact {
            api_version: Default::default(),
            kind: Default::default(),
            state,
            last_heard_at: self.time_of(device.heard_at),
            epoch: Epoch::new(1).unwrap(),
            head: device.head,
            account: None,
            beat_at: (state == Liveness::Fresh).then(|| self.time()),
            storing: true,
        };
        self.append(LedgerSubject::Liveness(self.devices[at].key.clone()), Fact::Liveness(fact));
    }
}
