//! Simulates a partition's owner: it starts from LEDGER or from a snapshot and the tail of LEDGER, opens a session, loses
//! its connection, stands still, dies, and comes back. The session itself is driven in [`super::consume`].

use std::ops::Range;
use std::time::Duration;

use muster_bus::Link;
use muster_contract::decode;
use muster_contract::fact::{Fact, Liveness};
use muster_contract::limits::{DEADLINE_DEFAULT, LEASE};
use muster_contract::receipt::Receipt;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::{IntakeState, NotStored, Publication, Rules};
use muster_ingest::session::{Input, SessionCore, SessionStart};

use super::agenda::{MINUTE, Millis, SECOND};
use super::former::Former;
use super::hub::Answer;
use super::law::{Lawful, must};
use super::profile::Fault;
use super::session::Session;
use super::snapshots::Snapshot;
use super::world::{Event, Sabotage, World};

/// Time between two turns of receipts.
const RECEIPTS_EVERY: Millis = SECOND;
/// Time between two snapshots.
const SNAPSHOT_EVERY: Range<Millis> = 20 * SECOND..MINUTE;
/// How much sooner than a lease by the true time a device may become stale: the hub's clock may be corrected by less than what
/// counts as a step.
const CLOCK_SLACK: Millis = 8 * SECOND;
/// Time that a fact may wait until LEDGER is checked over a new connection.
const LEAVES_WITHIN: Millis = 10 * SECOND;

/// An event of a partition's owner.
#[derive(Debug, Clone)]
pub(crate) enum OwnerEvent {
    /// Reports may have come.
    Reports,
    /// Heartbeats may have come.
    Heartbeats,
    /// Time to check leases, gaps and deadlines.
    Tick,
    /// Time for receipts.
    ReceiptsDue,
    /// Time for a snapshot.
    Snapshot,
    /// LEDGER has answered a publication, by its index in the session; `None` if no answer came.
    Answered(u64, Option<Answer>),
    /// A receipt of a device was stored or not.
    ReceiptAnswered(DeviceKey, bool),
    /// QUARANTINE has answered for a rejected report, by its ticket.
    RejectionAnswered(u64, Result<(), NotStored>),
    /// An acknowledgement up to a position gets through, over a connection of the hub.
    Acknowledge(u64, u64),
    /// A desired state has come.
    NewDocument(usize),
    /// The hub has answered up to which position there were reports at the time of the request.
    Progress { asked_at: Timestamp, last: u64 },
    /// LEDGER is checked over a connection.
    LedgerSeen(u64),
    /// LEDGER can be read again.
    Recover(u64),
    /// A new process begins.
    Start,
}

/// How an owner or an agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndKind {
    /// It loses its connection.
    Cut,
    /// It dies.
    Crash,
}

/// The owner of a partition.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) intake: IntakeState,
    pub(crate) session: Option<Session>,
    /// The number of this life: events meant for another one do not happen.
    pub(crate) life: u64,
    /// When the next process begins, or this one began.
    starts_at: Millis,
    /// The number of this session.
    pub(crate) term: u64,
    /// Its connection.
    pub(crate) link: u64,
    /// The connection over which it has checked LEDGER.
    pub(crate) seen_over: u64,
    /// The LEDGER that it has read.
    pub(crate) origin: u64,
    /// LEDGER refuses facts of lives and sessions before this one.
    pub(crate) fenced_from: (u64, u64),
    /// The origin of facts that no longer arrive: one before them was lost.
    pub(crate) lost_from: Option<(u64, u64, u64)>,
    /// The time at which the fact sent last arrives.
    pub(crate) arrives: Millis,
    /// A read of reports is scheduled.
    pub(crate) expecting: bool,
    /// A read of heartbeats is scheduled.
    expecting_beats: bool,
    /// The end that it is about to meet.
    pub(crate) end_kind: Option<EndKind>,
    /// The snapshot that it saved last.
    pub(crate) snapshot: Option<Snapshot>,
    /// An owner before it that stands still.
    pub(crate) former: Option<Former>,
}

impl Owner {
    /// No owner yet.
    pub(crate) fn new() -> Self {
        Self {
            intake: IntakeState::new(Rules::default(), Timestamp::UNIX_EPOCH),
            session: None,
            life: 0,
            starts_at: 0,
            term: 0,
            link: 1,
            seen_over: 1,
            origin: 1,
            fenced_from: (0, 0),
            lost_from: None,
            arrives: 0,
            expecting: false,
            expecting_beats: false,
            end_kind: None,
            snapshot: None,
            former: None,
        }
    }

    /// Nothing waits to be confirmed or settled.
    pub(crate) fn is_idle(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.core.facts_unconfirmed() == 0)
            && self.intake.in_flight() == 0
            && self.intake.unsettled() == 0
    }

    /// The life, session and connection that facts are sent from.
    pub(crate) const fn origin_of_facts(&self) -> (u64, u64, u64) {
        (self.life, self.term, self.link)
    }
}

impl World {
    /// Schedules an event of the owner, which happens if the owner and its session still exist then.
    pub(crate) fn schedule_owner(&mut self, part: usize, delay: Millis, duty: OwnerEvent) {
        let owner = &self.owners[part];
        let event = Event::Owner(part, owner.life, owner.term, duty);
        self.agenda.after(delay, event);
    }

    /// A report came into a partition.
    pub(crate) fn expect_reports(&mut self, part: usize) {
        // A server under load, or a link that stalls, lets one wait.
        let slow = self.chance.u8(0..12) == 0;
        self.expect_reports_in(part, if slow { SECOND..20 * SECOND } else { 1..50 });
    }

    fn expect_reports_in(&mut self, part: usize, delay: Range<Millis>) {
        if self.owners[part].session.is_some() && !std::mem::replace(&mut self.owners[part].expecting, true) {
            let delay = self.chance.i64(delay);
            self.schedule_owner(part, delay, OwnerEvent::Reports);
        }
    }

    /// A heartbeat came into a partition.
    pub(crate) fn expect_heartbeats(&mut self, part: usize) {
        let owner = &mut self.owners[part];
        if owner.session.is_some() && !std::mem::replace(&mut owner.expecting_beats, true) {
            let slow = self.chance.u8(0..16) == 0;
            let delay = self.chance.i64(if slow { SECOND..3 * MINUTE } else { 1..SECOND });
            self.schedule_owner(part, delay, OwnerEvent::Heartbeats);
        }
    }

    /// A device's desired state is new: the owner of its partition gets it.
    pub(crate) fn announce_document(&mut self, device: usize) {
        let (part, delay) = (self.hub.partition(device), self.chance.i64(5..500));
        let owner = &self.owners[part];
        // Every session of this life receives it.
        self.agenda.after(delay, Event::NewDocument(part, owner.life, device));
    }

    /// A process begins: it reads LEDGER, from its snapshot on where it has one, then opens the ways in.
    fn start_owner(&mut self, part: usize) -> Lawful {
        let now = self.hub.time(self.agenda.now());
        let mut intake = IntakeState::new(self.rules(), now);
        if self.sabotage != Sabotage::RemembersNothing {
            let after = self.restore_snapshot(part, &mut intake);
            self.read_ledger(part, &mut intake, after);
            if after > 0 {
                self.check_restored(part, &intake)?;
            }
        }
        for device in (0..self.devices.len()).filter(|device| self.hub.partition(*device) == part) {
            if let Some((bytes, at)) = self.hub.desired[device].last() {
                intake.apply_desired(&self.devices[device].key, &decode::parse(bytes).unwrap(), *at);
            }
        }
        let owner = &mut self.owners[part];
        (owner.intake, owner.origin) = (intake, self.hub.origin);
        if self.ends_now() {
            self.end_owner(part);
            return Ok(());
        }
        self.open(part);
        Ok(())
    }

    pub(crate) fn rules(&self) -> Rules {
        let deadline = self.profile.deadline.map(|limit| Duration::from_millis(limit.unsigned_abs()));
        let rules = Rules { deadline_default: deadline.unwrap_or(DEADLINE_DEFAULT), ..Rules::default() };
        match self.sabotage {
            Sabotage::NeverDoubts => Rules { lease: Duration::from_secs(24 * 60 * 60), ..rules },
            Sabotage::LetsDevicesInvent => Rules { unsolicited: usize::MAX, ..rules },
            _ => rules,
        }
    }

    fn open(&mut self, part: usize) {
        let (now, time) = (self.agenda.now(), self.hub.time(self.agenda.now()));
        let (metrics, rng) = (self.metrics.partition(part as u16), self.chance.fork());
        let unproven_since =
            self.monitor.unproven_since(part).filter(|_| self.sabotage != Sabotage::ProvesAnew);
        let owner = &mut self.owners[part];
        owner.term += 1;
        owner.fenced_from = (owner.life, owner.term);
        owner.seen_over = owner.link;
        let start = SessionStart {
            now: time,
            link: Link::Up { since_count: owner.link },
            high_water: self.high_water.clone(),
            read_through: self.high_water.now(),
            reasserted_through: 0,
        };
        let mut core = SessionCore::new(&mut owner.intake, start, metrics, rng);
        owner.intake.publish_pulses_as(part as u16, "ingest", unproven_since);
        if let Sabotage::Breaks(rule) = self.sabotage {
            core.break_rule(rule);
        }
        owner.session = Some(Session::new(core, self.hub.floors[part], now));
        (owner.expecting, owner.expecting_beats) = (false, false);
        let slow = self.chance.u8(0..4) == 0;
        self.expect_reports_in(part, if slow { SECOND..MINUTE } else { 1..2 * SECOND });
        self.schedule_owner(part, self.profile.tick, OwnerEvent::Tick);
        self.schedule_owner(part, RECEIPTS_EVERY, OwnerEvent::ReceiptsDue);
        let snapshot = self.chance.i64(SNAPSHOT_EVERY);
        self.schedule_owner(part, snapshot, OwnerEvent::Snapshot);
        if self.owners[part].former.is_some() {
            let wakes = self.chance.i64(SECOND..MINUTE);
            self.agenda.after(wakes, Event::Wake(part));
        }
    }

    /// The process dies: its state is lost except for LEDGER.
    pub(crate) fn kill_owner(&mut self, part: usize) {
        let delay = self.chance.i64(100..20 * SECOND);
        self.kill_owner_for(part, self.planned_end.map_or(delay, |planned_end| planned_end.pause));
    }

    /// The process dies, and another one begins after a while. In a world where a dead one is certain to be noticed, one that was
    /// dead already begins no sooner than it would have.
    pub(crate) fn kill_owner_for(&mut self, part: usize, delay: Millis) {
        let is_certain = self.profile.is_certain(Fault::IngestDead);
        let (now, owner) = (self.agenda.now(), &mut self.owners[part]);
        let delay = if is_certain { delay.max(owner.starts_at - now) } else { delay };
        owner.starts_at = now + delay;
        owner.session = None;
        owner.life += 1;
        self.schedule_owner(part, delay, OwnerEvent::Start);
    }

    /// The connection is lost and another one made: no answer comes to what is under way, and UPLINK delivers again.
    pub(crate) fn cut_owner(&mut self, part: usize) {
        let owner = &mut self.owners[part];
        owner.link += 1;
        let link = owner.link;
        let Some(session) = &mut owner.session else { return };
        session.give_up();
        session.beat = 0;
        let delay = self.chance.i64(10..5 * SECOND);
        self.schedule_owner(part, delay, OwnerEvent::LedgerSeen(link));
        self.take_answers(part);
        self.act(part);
        self.redeliver(part);
    }

    /// The outcome of the facts in flight is unknown: LEDGER is read again, in a new session.
    pub(crate) fn lose_session(&mut self, part: usize) {
        let owner = &mut self.owners[part];
        let Some(session) = owner.session.take() else { return };
        self.tally.rewinds += 1;
        owner.term += 1;
        owner.intake.rewind();
        let delay = self.chance.i64(10..10 * SECOND);
        let delay = self.planned_end.map_or(delay, |planned_end| planned_end.pause);
        self.schedule_owner(part, delay, OwnerEvent::Recover(session.core.read_after()));
    }

    /// Checks LEDGER over a new connection: is it the one that was read?
    fn see_ledger(&mut self, part: usize, over: u64) {
        let (now, owner) = (self.agenda.now(), &mut self.owners[part]);
        if owner.link != over {
            return;
        }
        if owner.origin != self.hub.origin {
            return self.kill_owner(part);
        }
        owner.seen_over = over;
        owner.session.iter_mut().for_each(|session| session.receiving_since = now);
        self.act(part);
    }

    /// DOWNLINK stores a receipt, or does not.
    pub(crate) fn store_receipt(&mut self, key: &DeviceKey, receipt: &Receipt) -> Lawful<bool> {
        // A hostile device reads none.
        let Some(device) = self.names.get(key).copied() else { return Ok(true) };
        self.tally.checks += 1;
        self.law.receipt(device, receipt)?;
        let stored = self.agenda.now() >= self.hub.refuses_until.1;
        if stored {
            let mut receipt = receipt.clone();
            // A hub of an earlier release says nothing of batches.
            receipt.batches.retain(|_| self.profile.batches);
            self.hub.receipts[device] = Some(decode::to_bytes(&receipt).into());
            self.push_receipt(device);
        }
        Ok(stored)
    }

    /// A device that ingest calls stale was silent for a lease.
    pub(crate) fn check_silenced(&self, publication: &Publication) -> Lawful {
        let device = publication.subject.device().and_then(|key| self.names.get(key));
        let Some(beat_at) = device.and_then(|device| self.devices[*device].beat_at) else { return Ok(()) };
        let Fact::Liveness(fact) = &publication.fact else { return Ok(()) };
        let silence = self.agenda.now() - beat_at;
        // A device that was stale at the decision may send a heartbeat before the fact leaves.
        let is_silent = silence >= LEASE.as_millis() as Millis - CLOCK_SLACK || silence <= LEAVES_WITHIN;
        must(fact.state == Liveness::Fresh || is_silent, "a device whose heart beats is not stale", || {
            format!("{} {fact:?} {silence} ms after its last heartbeat", publication.subject)
        })
    }

    /// Handles an event of the owner.
    pub(crate) fn handle_owner_event(&mut self, part: usize, term: u64, duty: OwnerEvent) -> Lawful {
        match duty {
            OwnerEvent::Start => self.start_owner(part)?,
            // It gets through after its process has died, not after the connection has.
            OwnerEvent::Acknowledge(position, over) if over == self.hub.connection => {
                return self.acknowledge_at_hub(part, position);
            }
            OwnerEvent::Acknowledge(..) => {}
            OwnerEvent::LedgerSeen(over) => self.see_ledger(part, over),
            _ if term != self.owners[part].term => {}
            OwnerEvent::ReceiptAnswered(key, stored) => {
                self.feed(part, Input::ReceiptAnswer(key, stored));
                self.act(part);
            }
            OwnerEvent::RejectionAnswered(ticket, answer) => self.rejection_answered(part, ticket, answer),
            OwnerEvent::Recover(_) if self.owners[part].origin != self.hub.origin => self.kill_owner(part),
            OwnerEvent::Recover(after) => {
                let none = IntakeState::new(Rules::default(), Timestamp::MIN);
                let mut intake = std::mem::replace(&mut self.owners[part].intake, none);
                self.read_ledger(part, &mut intake, after);
                self.owners[part].intake = intake;
                self.open(part);
            }
            OwnerEvent::Reports => self.take_reports(part),
            OwnerEvent::Heartbeats => {
                self.owners[part].expecting_beats = false;
                self.take_heartbeats(part);
                self.act(part);
            }
            OwnerEvent::Tick => {
                self.tick(part)?;
                self.schedule_owner(part, self.profile.tick, OwnerEvent::Tick);
            }
            OwnerEvent::ReceiptsDue => {
                self.feed(part, Input::ReceiptsDue);
                self.act(part);
                self.schedule_owner(part, RECEIPTS_EVERY, OwnerEvent::ReceiptsDue);
            }
            OwnerEvent::Snapshot => {
                self.feed(part, Input::SnapshotDue);
                self.act(part);
                let next = self.chance.i64(SNAPSHOT_EVERY);
                self.schedule_owner(part, next, OwnerEvent::Snapshot);
            }
            OwnerEvent::Answered(place, answer) => self.answered_by_ledger(part, place, answer),
            OwnerEvent::Progress { asked_at, last } => self.apply_progress(part, asked_at, last),
            OwnerEvent::NewDocument(device) => {
                let (bytes, at) = self.hub.desired[device].last().cloned().unwrap();
                let key = self.devices[device].key.clone();
                self.owners[part].intake.apply_desired(&key, &decode::parse(&bytes).unwrap(), at);
                self.act(part);
            }
        }
        self.lawful()
    }

    /// UPLINK delivers again what is not acknowledged.
    pub(crate) fn redeliver(&mut self, part: usize) {
        if let Some(session) = &mut self.owners[part].session {
            session.delivered = self.hub.floors[part];
            self.expect_reports(part);
        }
    }
}
