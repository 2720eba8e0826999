//! Devices and what the hub hears of them: a device installs what its document says, reports with numbers, and beats; its
//! link breaks, and it may die for ever. Facts enter LEDGER as ingest writes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineFact, DeadlineKind, Fact, Liveness, LivenessFact, StatusFact};
use muster_contract::state::StatusError;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Generation, State};
use muster_tests::facts;

use super::world::{Event, Millis, SECOND, World};

/// Time without a heartbeat after which a device is silent.
const LEASE: Millis = 20 * SECOND;
/// Time between two heartbeats.
const BEAT: Millis = 5 * SECOND;
/// The hub's deadline of every deployment.
const DEADLINE: Millis = 15 * SECOND;
/// Time that a slow content takes on some devices.
const SLOW: Millis = 150 * SECOND;

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) key: DeviceKey,
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
}

impl Device {
    pub(crate) fn new(key: DeviceKey) -> Self {
        Self {
            key,
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

    /// Whether the hub can hear it for good.
    pub(crate) const fn is_alive(&self) -> bool {
        !self.is_dead
    }
}

/// Whether a content fails on a device, by its command.
fn fails(command: &str, key: &DeviceKey) -> bool {
    let share = Digest::of_bytes(format!("{command} {key}").as_bytes()).to_string();
    match command.rsplit('-').next() {
        Some("bad") => true,
        Some("some") => share.ends_with(['0', '1', '2', '3', '4']),
        _ => false,
    }
}

/// Whether a content takes long on a device, by its command.
fn is_slow(command: &str, key: &DeviceKey) -> bool {
    let share = Digest::of_bytes(format!("{command} {key}").as_bytes()).to_string();
    command.ends_with("-slow") && share.ends_with(['0', '1', '2', '3', '4', '5', '6', '7'])
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
        self.devices.push(Device::new(key));
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
                begun.push((
                    entry.id.clone(),
                    target,
                    is_new,
                    is_slow(&command(&document, &entry.id), &device.key),
                ));
            }
        }
        let generation = document.generation;
        device.document = Some(document);
        for (id, (digest, target), is_new, is_slow) in begun {
            if is_new {
                self.report(at, (&id, digest, generation), State::Installing);
                self.after(DEADLINE, Event::Deadline(at, id.clone(), target, self.now));
            }
            let delay = self.rng_millis(SECOND..8 * SECOND) + if is_slow { SLOW } else { 0 };
            self.after(delay, Event::Installed(at, id, digest, generation));
        }
    }

    /// An installation ends on a device.
    pub(crate) fn installed(&mut self, at: usize, id: &DeploymentId, digest: Digest, generation: Generation) {
        let device = &self.devices[at];
        let Some(document) = &device.document else { return };
        if device.is_dead || device.contents.get(id).map(|(held, _)| *held) != Some(digest) {
            return;
        }
        let state = if fails(&command(document, id), &device.key) { State::Failed } else { State::Installed };
        self.report(at, (id, digest, generation), state);
    }

    /// Ingest writes that the deadline of a deployment has passed, if its device is heard and has reported no end.
    pub(crate) fn check_deadline(&mut self, at: usize, id: DeploymentId, target: Generation, since: Millis) {
        let device = &self.devices[at];
        let is_current = device.contents.get(&id).is_some_and(|(_, held)| *held == target);
        if !is_current || device.is_dead {
            return;
        }
        if device.is_heard && device.unfinished.get(&id) == Some(&target) {
            let fact = DeadlineFact {
                api_version: Default::default(),
                kind: Default::default(),
                generation: target,
                deadline: DeadlineKind::Stuck,
                since: self.time_of(since),
                limit_seconds: u64::try_from(DEADLINE / SECOND).unwrap(),
            };
            let subject = LedgerSubject::Deadline(device.key.clone(), id);
            self.append(subject, Fact::Deadline(fact));
        } else if self.now < since + SLOW {
            self.after(BEAT, Event::Deadline(at, id, target, since));
        }
    }

    /// A device writes a report, which follows the earlier ones.
    fn report(&mut self, at: usize, what: (&DeploymentId, Digest, Generation), state: State) {
        let (id, digest, generation) = what;
        let now = self.time();
        let device = &mut self.devices[at];
        device.sequence += 1;
        let error = (state == State::Failed).then(|| StatusError::new("exit", "main", "it has ended"));
        let content = (id, generation, digest);
        device.backlog.push_back(facts::status(now, device.sequence, content, (state, error)));
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
        match (report.status.state, device.contents.get(&report.deployment)) {
            (State::Installing, Some((_, target))) => {
                device.unfinished.insert(report.deployment.clone(), *target);
            }
            _ => _ = device.unfinished.remove(&report.deployment),
        }
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
