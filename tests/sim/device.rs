//! A device: its database, its workloads, its agent while that runs, and its link. The agent's outbox, its relay and its
//! decision about desired states are the real ones. This module handles messages from the hub, in the order of the agent's
//! `follow`; [`super::relay`] drives the relay.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use muster_agent::db::Db;
use muster_agent::follow::decision::{Decision, decide};
use muster_agent::follow::refusal::refusal;
use muster_agent::outbox::{Limits, NewReport, Outbox, ReceiptOutcome};
use muster_agent::relay::core::{Input, Ticket};
use muster_agent::report::Body;
use muster_agent::store::{self, AcceptedDesired};
use muster_bus::PublishErrorKind;
use muster_contract::canonical::Digest;
use muster_contract::decode;
use muster_contract::desired_refusal::DesiredRefusal;
use muster_contract::receipt::Receipt;
use muster_contract::{DeploymentId, DeviceKey, Epoch, Timestamp};

use super::agenda::{MINUTE, Millis, SECOND, moment};
use super::hub::Answer;
use super::law::Lawful;
use super::machine::DeploymentTask;
use super::relay::Relay;
use super::rows::{self, now};
use super::world::{Event, Sabotage, World};

/// A later action of an agent.
#[derive(Debug, Clone)]
pub(crate) enum Chore {
    /// Continues an operation on a deployment.
    Work(DeploymentId, u64),
    /// Plans again.
    Plan,
    /// Tries again to store the waiting reports.
    Keep,
    /// Asks its relay for effects.
    Wake,
    /// Marks rows of an epoch as sent.
    Mark(Epoch, Vec<u64>),
    /// Gives up waiting for an answer.
    AnswerTimeout(Ticket),
    /// Asks for the stored documents, over this connection.
    Look(u64),
}

/// From a device to the hub.
#[derive(Debug, Clone)]
pub(crate) enum Upward {
    /// A message with reports, and their numbers.
    Report {
        /// The payload.
        bytes: Rc<[u8]>,
        /// Epoch and number of each report, unless they were corrupted.
        numbers: Vec<(u64, u64)>,
        /// The reports that a batch says it has; `None` for a single report.
        reports: Option<String>,
        /// The numbers that it was sent under, and the ticket of its answer; `None` if no relay waits for one.
        answer_to: Option<(Vec<(u64, u64)>, Ticket)>,
    },
    /// A heartbeat.
    Beat(Rc<[u8]>),
    /// A request for the stored documents.
    Look,
}

/// From the hub to a device.
#[derive(Debug, Clone)]
pub(crate) enum Downward {
    /// An answer to a report.
    Answer(Ticket, Answer),
    /// A desired state that is pushed.
    Desired(Rc<[u8]>),
    /// The desired state that DOWNLINK holds.
    StoredDesired(Rc<[u8]>),
    /// A receipt.
    Receipt(Rc<[u8]>),
    /// Everything stored for the device was sent, with a receipt of this epoch if there is one.
    Looked(Option<u64>),
}

/// A running agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Its outbox.
    pub(crate) outbox: Outbox,
    /// The desired state accepted last.
    pub(crate) accepted: Option<AcceptedDesired>,
    /// The refusal of a desired state that stands.
    pub(crate) refused: Option<DesiredRefusal>,
    /// Its deployments.
    pub(crate) tasks: BTreeMap<DeploymentId, DeploymentTask>,
    /// Reports that are not stored yet.
    pub(crate) waiting: VecDeque<NewReport>,
    /// Its relay.
    pub(crate) relay: Relay,
    /// The last attempt to store reports succeeded.
    pub(crate) is_storing: bool,
    /// The outbox applied the last receipt that was fetched.
    pub(crate) has_receipt: bool,
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
    /// How often its database was lost or set back.
    pub(crate) losses: u32,
    /// Reports of a script that are not written yet.
    pub(crate) unwritten: VecDeque<NewReport>,
    /// The running workloads.
    pub(crate) running: BTreeMap<DeploymentId, Digest>,
    /// Its agent, while it runs.
    pub(crate) agent: Option<Agent>,
    /// The number of starts of its agent.
    pub(crate) life: u64,
    /// The version of its agent.
    pub(crate) version: u64,
    /// Its connection, while it has one.
    pub(crate) connection: Option<u64>,
    /// Connections it has had.
    pub(crate) connections: u64,
    /// The connection over which it last sent a heartbeat, or was retired.
    pub(crate) beaten_over: Option<u64>,
    /// The error of its clock.
    pub(crate) clock: Millis,
    /// Until when every operation fails.
    pub(crate) fails_until: Millis,
    /// The next report is corrupted on its way.
    pub(crate) spoil: bool,
    /// The hub holds a report of it that cannot be parsed.
    pub(crate) hidden: bool,
    /// Every deployment was reported again, because two reports had one number.
    pub(crate) reported_anew: bool,
    /// When the hub last stored a message of it.
    pub(crate) heard_at: Option<Millis>,
    /// When the hub last stored a heartbeat of it that it still holds.
    pub(crate) beat_at: Option<Millis>,
    /// Its epoch, if it is fixed, and the highest number it assigned.
    pub(crate) count: (Option<u64>, u64),
    /// When the last message arrives, each way: a link keeps the order.
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
            unwritten: VecDeque::new(),
            running: BTreeMap::new(),
            agent: None,
            life: 0,
            version: 0,
            connection: None,
            connections: 0,
            beaten_over: None,
            clock: 0,
            fails_until: 0,
            spoil: false,
            hidden: false,
            reported_anew: false,
            heard_at: None,
            beat_at: None,
            count: (None, 0),
            arrivals: (0, 0),
        }
    }

    /// The running workloads after a step of an operation.
    pub(crate) fn run(&mut self, id: &DeploymentId, digest: &Digest, leaving: bool, all: bool) {
        if !leaving && all {
            self.running.insert(id.clone(), *digest);
        } else {
            self.running.remove(id);
        }
    }
}

impl World {
    /// The time by a device's clock.
    pub(crate) fn device_time(&self, device: usize) -> Timestamp {
        moment(self.agenda.now() + self.devices[device].clock)
    }

    /// Schedules an action of an agent, if it still runs by then.
    pub(crate) fn chore(&mut self, device: usize, life: u64, delay: Millis, chore: Chore) {
        self.agenda.after(delay, Event::Chore(device, life, chore));
    }

    /// Starts an agent on the contents of its database.
    pub(crate) fn start_agent(&mut self, device: usize) -> Lawful {
        let disk = self.devices[device].disk.clone();
        let limits = Limits { rows: self.profile.outbox_rows, ..Limits::default() };
        let outbox = now(Outbox::open(disk.clone(), limits)).unwrap();
        let records = now(store::records(&disk)).unwrap();
        let told = now(outbox.capabilities()).unwrap();
        let core = self.relay_core();
        self.law.starts(device);
        self.devices[device].life += 1;
        self.devices[device].agent = Some(Agent {
            accepted: now(store::accepted(&disk)).unwrap(),
            refused: now(store::refusal(&disk)).unwrap(),
            tasks: records.into_iter().map(|it| (it.id().clone(), DeploymentTask::new(it))).collect(),
            waiting: VecDeque::new(),
            relay: Relay::new(core, outbox.changes()),
            is_storing: true,
            has_receipt: true,
            outbox,
        });
        self.tell_device(device, told.as_ref());
        self.adopt(device);
        self.follow_plan(device);
        self.write(device, None);
        self.connected(device);
        self.lawful()
    }

    /// Kills the agent: everything that is not in its database is lost.
    pub(crate) fn kill_agent(&mut self, device: usize) {
        self.devices[device].agent = None;
        self.disconnect(device);
    }

    /// Brings the link of a device up.
    pub(crate) fn connect(&mut self, device: usize) {
        if self.devices[device].agent.is_none() || self.devices[device].connection.is_some() {
            return;
        }
        self.devices[device].connections += 1;
        self.devices[device].connection = Some(self.devices[device].connections);
        self.connected(device);
    }

    /// Takes the link of a device down.
    pub(crate) fn disconnect(&mut self, device: usize) {
        self.devices[device].connection = None;
        self.relay_link_changed(device);
    }

    fn connected(&mut self, device: usize) {
        let (Some(connection), life) = (self.devices[device].connection, self.devices[device].life) else {
            return;
        };
        self.chore(device, life, 1, Chore::Look(connection));
        self.relay_link_changed(device);
    }

    /// Carries out a scheduled action of an agent.
    pub(crate) fn do_chore(&mut self, device: usize, chore: Chore) -> Lawful {
        let life = self.devices[device].life;
        match chore {
            Chore::Work(id, number) => self.progress(device, &id, number),
            Chore::Plan => self.follow_plan(device),
            Chore::Keep => self.keep(device),
            Chore::Wake => self.relay_woken(device),
            Chore::Mark(epoch, seqs) => self.mark_sent(device, epoch, &seqs)?,
            Chore::AnswerTimeout(ticket) => {
                self.answered(device, ticket, Err(PublishErrorKind::Transient));
            }
            Chore::Look(connection) if self.devices[device].connection == Some(connection) => {
                self.up(device, Upward::Look);
                let next = MINUTE + self.chance.i64(-12 * SECOND..12 * SECOND);
                self.chore(device, life, next, Chore::Look(connection));
            }
            Chore::Look(_) => {}
        }
        self.lawful()
    }

    /// Hands a message of the hub to a device.
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
            Downward::Desired(bytes) => self.take_desired(device, &bytes, false),
            Downward::StoredDesired(bytes) => self.take_desired(device, &bytes, true),
            Downward::Receipt(bytes) => self.take_receipt(device, &bytes)?,
            Downward::Looked(epoch) => {
                self.law.asked(device, epoch);
                if self.devices[device].agent.as_ref().is_some_and(|agent| agent.has_receipt) {
                    self.feed_relay(device, Input::ReceiptFetched);
                }
                self.run_relay(device);
            }
        }
        self.lawful()
    }

    fn take_desired(&mut self, device: usize, bytes: &[u8], is_stored: bool) {
        let disk = self.devices[device].disk.clone();
        let Some(agent) = &mut self.devices[device].agent else { return };
        let document = match decide(agent.accepted.as_ref(), bytes) {
            Decision::Accept(document) => *document,
            Decision::Reject(_) if self.sabotage == Sabotage::ObeysTheOld => decode::parse(bytes).unwrap(),
            // Only DOWNLINK shows whether a document holds.
            Decision::Unchanged | Decision::Reject(_) if !is_stored => return,
            Decision::Unchanged => return self.refuse(device, None),
            Decision::Reject(reason) => {
                let time = self.device_time(device);
                let known = self.devices[device].agent.as_ref().and_then(|agent| agent.refused.as_ref());
                return self.refuse(device, Some(refusal(&reason, bytes, known, time)));
            }
        };
        let generation = document.generation;
        if now(store::accept(&disk, generation, bytes.to_vec())).is_ok() {
            agent.accepted = Some(AcceptedDesired { generation, document: Some(document) });
            agent.refused = None;
            let accepted = self.law.accepted(device, generation.get());
            self.hold(accepted);
            self.follow_plan(device);
        }
    }

    /// Stores the refusal of a desired state, or its end; a heartbeat carries it at once.
    fn refuse(&mut self, device: usize, refused: Option<DesiredRefusal>) {
        let disk = self.devices[device].disk.clone();
        let Some(agent) = &mut self.devices[device].agent else { return };
        if agent.refused != refused {
            // A full disk forgets it at the next start.
            _ = now(store::refuse(&disk, refused.clone()));
            agent.refused = refused;
            self.feed_relay(device, Input::StateChanged);
            self.run_relay(device);
        }
    }

    fn take_receipt(&mut self, device: usize, bytes: &[u8]) -> Lawful {
        let time = self.device_time(device);
        let Some(agent) = &mut self.devices[device].agent else { return Ok(()) };
        let receipt: Receipt = decode::parse(bytes).unwrap();
        let received = now(agent.outbox.receive(receipt, time));
        agent.has_receipt = received.is_ok();
        let Ok(received) = received else { return Ok(()) };
        if let ReceiptOutcome::Renewed(epoch) = received {
            self.law.counts_anew(device);
            self.devices[device].count = (Some(epoch.get()), 0);
        }
        self.look_for_new_rows(device);
        self.run_relay(device);
        self.check_kept(device)
    }

    /// Records that a report got a number.
    pub(crate) fn has_told(&mut self, device: usize, body: &Body) -> Lawful {
        let count = &mut self.devices[device].count;
        count.1 += 1;
        let (epoch, seq) = *count;
        self.law.told(device, epoch, seq, body)?;
        if self.profile.is_short_of_room() { self.check_kept(device) } else { Ok(()) }
    }

    /// Records the numbers that the outbox assigned by itself.
    fn look_for_new_rows(&mut self, device: usize) {
        let (epoch, last) = self.devices[device].count;
        let disk = self.devices[device].disk.clone();
        let Some(agent) = &self.devices[device].agent else { return };
        if now(agent.outbox.summary()).unwrap().head == last {
            return;
        }
        for (seq, body) in rows::bodies_above(&disk, last) {
            self.devices[device].count.1 = seq;
            let told = self.law.told(device, epoch, seq, &body);
            self.hold(told);
        }
    }

    /// Checks that every number that LEDGER does not hold is in the outbox.
    pub(crate) fn check_kept(&mut self, device: usize) -> Lawful {
        let (epoch, head) = self.devices[device].count;
        let kept = rows::numbers(&self.devices[device].disk);
        self.law.kept(device, epoch, head, &kept)
    }
}
