//! A device: its database, its workloads, its agent while that lives, and its link. The agent's outbox, its rule of what
//! to send next and its judgement of desired states are the real ones; this is the wire between them, in the order of
//! the agent's own corridors: `follow` here, `relay` in [`super::relay`].

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use muster_agent::db::Db;
use muster_agent::follow::judge::{Verdict, judge};
use muster_agent::outbox::{Body, Entry, Limits, Outbox, Received};
use muster_agent::relay::sending::{Sending, Window};
use muster_agent::store::{self, Accepted};
use muster_bus::PublishErrorKind;
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::receipt::Receipt;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Timestamp};
use muster_service::backoff::FullJitter;

use super::agenda::{MINUTE, Millis, SECOND, moment};
use super::hub::Answer;
use super::law::Lawful;
use super::machine::Slot;
use super::rows::{self, now};
use super::world::{Event, Sabotage, World};

/// Bounds of the delay before the next attempt to send.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// What an agent does by itself, later.
#[derive(Debug, Clone)]
pub(crate) enum Chore {
    /// Goes on with an operation on a deployment.
    Work(DeploymentId, u64),
    /// Looks at the plan again.
    Plan,
    /// Tries to keep what could not be kept.
    Keep,
    /// Beats its heart, in this attempt.
    Beat(u64),
    /// Notes what is acknowledged.
    Note,
    /// Tidies its outbox, in this attempt.
    Tidy(u64),
    /// Gives up waiting for an answer.
    Impatience(Ticket),
    /// Begins another attempt.
    Retry,
    /// Goes on after a pause, in this attempt.
    Resume(u64),
    /// Asks for what is stored for it, over this connection.
    Look(u64),
}

/// A report under way: its attempt, its number, and when it was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    /// The attempt.
    pub(crate) attempt: u64,
    /// The number.
    pub(crate) seq: u64,
    /// When.
    pub(crate) at: Millis,
}

/// From a device to the hub.
#[derive(Debug, Clone)]
pub(crate) enum Upward {
    /// A report with its message id and number, sent in an attempt.
    Report {
        /// The document.
        bytes: Rc<[u8]>,
        /// The message id.
        id: String,
        /// Epoch and number, unless it was spoilt.
        number: Option<(u64, u64)>,
        /// Who waits for an answer.
        answer_to: Ticket,
    },
    /// A heartbeat.
    Beat(Rc<[u8]>),
    /// A question for what is stored.
    Look,
}

/// From the hub to a device.
#[derive(Debug, Clone)]
pub(crate) enum Downward {
    /// An answer to a report.
    Answer(Ticket, Answer),
    /// A desired state.
    Desired(Rc<[u8]>),
    /// A receipt.
    Receipt(Rc<[u8]>),
    /// All that was stored has been told.
    Looked,
}

/// An agent that lives.
#[derive(Debug)]
pub(crate) struct Agent {
    /// What waits for the hub.
    pub(crate) outbox: Outbox,
    /// What it was told last.
    pub(crate) accepted: Option<Accepted>,
    /// Its deployments.
    pub(crate) slots: BTreeMap<DeploymentId, Slot>,
    /// Reports that are not kept yet.
    pub(crate) waiting: VecDeque<Entry>,
    pub(crate) sending: Sending,
    /// The attempt under way, with its epoch.
    pub(crate) attempt: Option<(u64, Epoch)>,
    pub(crate) attempts: u64,
    pub(crate) begun_at: Millis,
    pub(crate) note_due: bool,
    pub(crate) greeted: bool,
    pub(crate) over: Option<u64>,
    pub(crate) delays: FullJitter,
}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its name.
    pub(crate) key: DeviceKey,
    /// Its database.
    pub(crate) disk: Db,
    /// An older copy of it.
    pub(crate) copy: Option<(rows::Image, Option<u64>)>,
    /// Its disk is full.
    pub(crate) full: bool,
    /// How often its memory was lost or set back.
    pub(crate) losses: u32,
    /// What runs.
    pub(crate) running: BTreeMap<DeploymentId, Digest>,
    /// Its agent, while it lives.
    pub(crate) agent: Option<Agent>,
    /// Which life of its agent this is.
    pub(crate) life: u64,
    /// The version of its agent.
    pub(crate) version: u64,
    /// Its connection, while it has one.
    pub(crate) connection: Option<u64>,
    /// Connections it has had.
    pub(crate) connections: u64,
    /// How far its clock is off.
    pub(crate) clock: Millis,
    /// The next report it sends is spoilt on its way.
    pub(crate) spoil: bool,
    /// The hub holds a report of it that nobody can read.
    pub(crate) hidden: bool,
    /// When the hub stored something of it last.
    pub(crate) heard_at: Option<Millis>,
    /// Its epoch as far as it is fixed, and the highest number it ever gave.
    pub(crate) count: (Option<u64>, u64),
    /// When what was sent last arrives, each way: a link keeps the order.
    pub(crate) arrivals: (Millis, Millis),
}

impl Device {
    /// A device that was never started.
    pub(crate) const fn new(key: DeviceKey, disk: Db) -> Self {
        Self {
            key,
            disk,
            copy: None,
            full: false,
            losses: 0,
            running: BTreeMap::new(),
            agent: None,
            life: 0,
            version: 0,
            connection: None,
            connections: 0,
            clock: 0,
            spoil: false,
            hidden: false,
            heard_at: None,
            count: (None, 0),
            arrivals: (0, 0),
        }
    }

    /// What runs after a step of an operation.
    pub(crate) fn run(&mut self, id: &DeploymentId, digest: &Digest, leaving: bool, all: bool) {
        if !leaving && all {
            self.running.insert(id.clone(), *digest);
        } else {
            self.running.remove(id);
        }
    }
}

impl World {
    /// What time a device thinks it is.
    pub(crate) fn device_time(&self, device: usize) -> Timestamp {
        moment(self.agenda.now() + self.devices[device].clock)
    }

    /// An agent will do something, if it lives so long.
    pub(crate) fn chore(&mut self, device: usize, life: u64, delay: Millis, chore: Chore) {
        self.agenda.after(delay, Event::Chore(device, life, chore));
    }

    /// An agent starts on what its database holds.
    pub(crate) fn start_agent(&mut self, device: usize) -> Lawful {
        let disk = self.devices[device].disk.clone();
        let limits = Limits { rows: self.profile.outbox_rows, ..Limits::default() };
        let outbox = now(Outbox::open(disk.clone(), limits)).unwrap();
        let standings = now(store::standings(&disk)).unwrap();
        let told = now(outbox.capabilities()).unwrap();
        self.devices[device].life += 1;
        self.devices[device].agent = Some(Agent {
            accepted: now(store::accepted(&disk)).unwrap(),
            slots: standings.into_iter().map(|it| (it.id().clone(), Slot::new(it))).collect(),
            waiting: VecDeque::new(),
            sending: Sending::new(Window::default()),
            attempt: None,
            attempts: 0,
            begun_at: 0,
            note_due: false,
            greeted: false,
            over: None,
            delays: FullJitter::new(RETRY.0, RETRY.1),
            outbox,
        });
        self.tell_device(device, told.as_ref());
        self.adopt(device);
        self.follow_plan(device);
        self.connected(device);
        self.lawful()
    }

    /// The agent is gone, and with it everything that is not in its database.
    pub(crate) fn kill_agent(&mut self, device: usize) {
        self.devices[device].agent = None;
        self.disconnect(device);
    }

    /// The link of a device is up.
    pub(crate) fn connect(&mut self, device: usize) {
        if self.devices[device].agent.is_none() || self.devices[device].connection.is_some() {
            return;
        }
        self.devices[device].connections += 1;
        self.devices[device].connection = Some(self.devices[device].connections);
        self.connected(device);
    }

    /// The link of a device is down.
    pub(crate) fn disconnect(&mut self, device: usize) {
        self.devices[device].connection = None;
        if let Some(agent) = &mut self.devices[device].agent {
            agent.attempt = None;
        }
        self.note(device);
    }

    fn connected(&mut self, device: usize) {
        let (Some(connection), life) = (self.devices[device].connection, self.devices[device].life) else {
            return;
        };
        self.chore(device, life, 1, Chore::Look(connection));
        self.begin_attempt(device);
    }

    /// An agent does what it had in mind.
    pub(crate) fn do_chore(&mut self, device: usize, chore: Chore) -> Lawful {
        let (time, life) = (self.device_time(device), self.devices[device].life);
        let attempt = self.devices[device].agent.as_ref().and_then(|agent| agent.attempt).map(|(it, _)| it);
        match chore {
            Chore::Work(id, number) => self.progress(device, &id, number),
            Chore::Plan => self.follow_plan(device),
            Chore::Keep => self.keep(device),
            Chore::Beat(of) => self.beat(device, of),
            Chore::Note => {
                self.note(device);
                self.fill(device);
            }
            Chore::Tidy(of) if attempt == Some(of) => {
                let Some(agent) = &self.devices[device].agent else { return Ok(()) };
                let tidied = now(agent.outbox.tidy(time));
                self.chore(device, life, MINUTE, Chore::Tidy(of));
                if tidied.is_ok() {
                    self.sends(device);
                    self.check_kept(device)?;
                }
            }
            Chore::Tidy(_) => {}
            Chore::Impatience(ticket) => {
                self.answered(device, ticket, Err(PublishErrorKind::Transient));
            }
            Chore::Retry => self.begin_attempt(device),
            Chore::Resume(of) if attempt == Some(of) => {
                self.devices[device].agent.iter_mut().for_each(|agent| agent.sending.resume());
                self.fill(device);
            }
            Chore::Resume(_) => {}
            Chore::Look(connection) if self.devices[device].connection == Some(connection) => {
                self.up(device, Upward::Look);
                let next = MINUTE + self.chance.i64(-12 * SECOND..12 * SECOND);
                self.chore(device, life, next, Chore::Look(connection));
            }
            Chore::Look(_) => {}
        }
        self.lawful()
    }

    /// A device is told something.
    pub(crate) fn arrives_at_device(&mut self, device: usize, what: Downward) -> Lawful {
        match what {
            Downward::Answer(to, Answer::Stored(_)) => self.answered(device, to, Ok(())),
            Downward::Answer(to, Answer::Refused) => {
                self.answered(device, to, Err(PublishErrorKind::Transient));
            }
            Downward::Answer(to, Answer::ShareFull) => {
                self.tally.share_full += 1;
                self.answered(device, to, Err(PublishErrorKind::SubjectFull));
            }
            Downward::Desired(bytes) => self.take_desired(device, &bytes),
            Downward::Receipt(bytes) => self.take_receipt(device, &bytes)?,
            Downward::Looked => {
                if let Some(agent) = &mut self.devices[device].agent {
                    agent.greeted = true;
                }
                self.begin_attempt(device);
            }
        }
        self.lawful()
    }

    fn take_desired(&mut self, device: usize, bytes: &[u8]) {
        let disk = self.devices[device].disk.clone();
        let Some(agent) = &mut self.devices[device].agent else { return };
        let document = match judge(agent.accepted.as_ref(), bytes) {
            Verdict::Accept(document) => document,
            Verdict::Refuse(_) if self.sabotage == Sabotage::ObeysTheOld => decode::parse(bytes).unwrap(),
            Verdict::Same | Verdict::Refuse(_) => return,
        };
        let generation = document.generation;
        if now(store::accept(&disk, generation, bytes.to_vec())).is_ok() {
            agent.accepted = Some(Accepted { generation, document: Some(document) });
            let accepted = self.law.accepted(device, generation.get());
            self.hold(accepted);
            self.follow_plan(device);
        }
    }

    fn take_receipt(&mut self, device: usize, bytes: &[u8]) -> Lawful {
        let time = self.device_time(device);
        let Some(agent) = &mut self.devices[device].agent else { return Ok(()) };
        let receipt: Receipt = decode::parse(bytes).unwrap();
        let Ok(received) = now(agent.outbox.receive(receipt, time)) else { return Ok(()) };
        if let Received::Renewed(epoch) = received {
            self.law.counts_anew(device);
            self.devices[device].count = (Some(epoch.get()), 0);
        }
        self.look_for_new_rows(device);
        self.sends(device);
        self.check_kept(device)
    }

    /// A number was given to a report.
    pub(crate) fn has_told(&mut self, device: usize, body: &Body) -> Lawful {
        let count = &mut self.devices[device].count;
        count.1 += 1;
        let (epoch, seq) = *count;
        self.law.told(device, epoch, seq, body);
        if self.profile.is_short_of_room() { self.check_kept(device) } else { Ok(()) }
    }

    /// Numbers that the outbox gave by itself.
    fn look_for_new_rows(&mut self, device: usize) {
        let (epoch, last) = self.devices[device].count;
        let disk = self.devices[device].disk.clone();
        let Some(agent) = &self.devices[device].agent else { return };
        if now(agent.outbox.summary()).unwrap().head == last {
            return;
        }
        for (seq, body) in rows::bodies_above(&disk, last) {
            self.devices[device].count.1 = seq;
            self.law.told(device, epoch, seq, &body);
        }
    }

    /// Nothing is forgotten that LEDGER does not hold.
    pub(crate) fn check_kept(&mut self, device: usize) -> Lawful {
        let (epoch, head) = self.devices[device].count;
        let kept = rows::numbers(&self.devices[device].disk);
        self.law.kept(device, epoch, head, &kept)
    }
}
