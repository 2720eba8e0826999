//! Ingest: one partition of UPLINK with its border. The border is the real one; this is the corridor around it, in the
//! order of the service's own (`consume::session`): take in, publish, confirm, acknowledge last; and when the fate of a
//! publication is unknown, forget what is under way, read LEDGER again, and take in again what is not acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

use muster_contract::decode;
use muster_contract::fact::Fact;
use muster_contract::limits::LEASE;
use muster_contract::presence::Heartbeat;
use muster_contract::report::Report;
use muster_contract::subjects::{self, LedgerSubject, origin};
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::border::{Arrival, Border, Publication, Rules};

use super::agenda::{Millis, SECOND};
use super::hub::Answer;
use super::law::{Lawful, must};
use super::world::{Event, Sabotage, World};

/// Reports taken in at once.
const BATCH: usize = 64;
/// Reports settled before the next acknowledgement, unless nothing else is under way.
const ACK_EVERY: usize = 16;
/// How much more of LEDGER is read again than seems needed.
const OVERLAP: u64 = 64;
/// A gap between two looks after which the hub counts as having been deaf.
const STALL: Millis = 5 * SECOND;
/// How long nothing may come while the way is open before nothing is waiting.
const QUIET: Millis = SECOND;
/// Time between two turns of receipts, and receipts in one.
const TURN: (Millis, usize) = (SECOND, 64);
/// What a fact may take to LEDGER beyond the lease and a look before the law calls for it.
const GRACE: Millis = 3 * SECOND;

/// What happens to a partition's owner.
#[derive(Debug, Clone)]
pub(crate) enum Duty {
    /// Reports may have come.
    Reports,
    /// Time to look at what has passed.
    Tick,
    /// Time for receipts.
    Turn,
    /// A publication is answered, by its place among those of the session; nothing where no answer came.
    Answered(u64, Option<Answer>),
    /// A receipt of a device was stored or not.
    ReceiptAnswered(DeviceKey, bool),
    /// An acknowledgement gets through.
    Acknowledge(u64),
    /// A desired state has come.
    Wish(usize),
    /// LEDGER can be read again.
    Recover(u64),
    /// A new process begins.
    Start,
}

/// A session: from opening the ways in to the first publication of unknown fate.
#[derive(Debug)]
struct Session {
    /// The last report taken.
    delivered: u64,
    taken: VecDeque<u64>,
    settled: Option<(u64, usize)>,
    /// Answers in the order of sending, as far as they came.
    wire: VecDeque<Option<Option<Answer>>>,
    sent: u64,
    answered: u64,
    settled_to: u64,
    /// The last heartbeat taken.
    pulse: u64,
    connection: u64,
    looked_at: Timestamp,
    came_at: Option<Millis>,
    taken_to: Option<Timestamp>,
    /// When the hub began to hear without interruption, in true time.
    hearing_since: Millis,
}

/// What is about to happen to an owner, as soon as it has facts under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doom {
    /// It loses its connection.
    Cut,
    /// It dies.
    Crash,
}

/// The owner of a partition.
#[derive(Debug)]
pub(crate) struct Owner {
    border: Border,
    session: Option<Session>,
    /// Which life this is: what was meant for another does not happen.
    pub(crate) life: u64,
    /// Which session this is.
    pub(crate) term: u64,
    /// When what was sent last arrives.
    arrives: Millis,
    /// Reports are about to be taken.
    expecting: bool,
    /// What is about to happen to it.
    pub(crate) doom: Option<Doom>,
}

impl Owner {
    /// Nobody yet.
    pub(crate) fn new() -> Self {
        let border = Border::new(Rules::default(), Timestamp::UNIX_EPOCH);
        Self { border, session: None, life: 0, term: 0, arrives: 0, expecting: false, doom: None }
    }

    /// Nothing waits to be confirmed or settled.
    pub(crate) fn is_idle(&self) -> bool {
        self.session.is_some() && self.border.in_flight() == 0 && self.border.unsettled() == 0
    }
}

impl World {
    /// The owner will do something, if it lives so long and its session lasts.
    fn duty(&mut self, part: usize, delay: Millis, duty: Duty) {
        let owner = &self.owners[part];
        let event = Event::Duty(part, owner.life, owner.term, duty);
        self.agenda.after(delay, event);
    }

    /// A report came into a partition.
    pub(crate) fn expect_reports(&mut self, part: usize) {
        if self.owners[part].session.is_some() && !std::mem::replace(&mut self.owners[part].expecting, true) {
            let delay = self.chance.i64(1..50);
            self.duty(part, delay, Duty::Reports);
        }
    }

    /// A device's desired state is new: whoever owns its partition hears of it.
    pub(crate) fn wish(&mut self, device: usize) {
        let (part, delay) = (self.hub.partition(device), self.chance.i64(5..500));
        let owner = &self.owners[part];
        // It is heard in any session of this life.
        self.agenda.after(delay, Event::Wish(part, owner.life, device));
    }

    /// A process begins: it reads all of LEDGER, then opens the ways in.
    fn start_owner(&mut self, part: usize) {
        let now = self.hub.time(self.agenda.now());
        let mut border = Border::new(self.rules(), now);
        if self.sabotage != Sabotage::RemembersNothing {
            self.read_ledger(part, &mut border, 0);
        }
        for device in (0..self.devices.len()).filter(|device| self.hub.partition(*device) == part) {
            if let Some((bytes, at)) = self.hub.desired[device].last() {
                border.desire(&self.devices[device].key, &decode::parse(bytes).unwrap(), *at);
            }
        }
        self.owners[part].border = border;
        self.open(part);
    }

    fn rules(&self) -> Rules {
        match self.sabotage {
            Sabotage::NeverDoubts => Rules { lease: Duration::from_secs(24 * 60 * 60), ..Rules::default() },
            _ => Rules::default(),
        }
    }

    /// LEDGER into a border: the facts of this partition and those of nobody.
    fn read_ledger(&self, part: usize, border: &mut Border, after: u64) {
        let from = usize::try_from(after).unwrap().min(self.hub.ledger.len());
        for said in &self.hub.ledger[from..] {
            let own = said.subject.device().and_then(|key| self.names.get(key));
            if own.is_none_or(|device| self.hub.partition(*device) == part)
                && !matches!(said.fact, Fact::Desired(_))
            {
                border.restore(&said.subject, &said.fact, said.at);
            }
        }
    }

    fn open(&mut self, part: usize) {
        let (now, time) = (self.agenda.now(), self.hub.time(self.agenda.now()));
        let owner = &mut self.owners[part];
        owner.term += 1;
        owner.border.hearing_again(time);
        owner.session = Some(Session {
            delivered: self.hub.floors[part],
            taken: VecDeque::new(),
            settled: None,
            wire: VecDeque::new(),
            sent: 0,
            answered: 0,
            settled_to: self.hub.ledger.len() as u64,
            pulse: 0,
            connection: self.hub.connection,
            looked_at: time,
            came_at: Some(now),
            taken_to: Some(Timestamp::MIN),
            hearing_since: now,
        });
        owner.expecting = false;
        self.expect_reports(part);
        self.duty(part, self.profile.tick, Duty::Tick);
        self.duty(part, TURN.0, Duty::Turn);
    }

    /// The process dies: only LEDGER knows what it knew.
    pub(crate) fn kill_owner(&mut self, part: usize) {
        self.owners[part].session = None;
        self.owners[part].life += 1;
        let delay = self.chance.i64(100..20 * SECOND);
        self.duty(part, delay, Duty::Start);
    }

    /// The fate of what is under way is unknown.
    pub(crate) fn cut_owner(&mut self, part: usize) {
        let Some(session) = self.owners[part].session.take() else { return };
        self.tally.rewinds += 1;
        let owner = &mut self.owners[part];
        owner.term += 1;
        if self.sabotage == Sabotage::TakesSilenceForConsent {
            (0..owner.border.in_flight()).for_each(|_| owner.border.confirm());
        }
        owner.border.rewind();
        let delay = self.chance.i64(10..10 * SECOND);
        self.duty(part, delay, Duty::Recover(session.settled_to.saturating_sub(OVERLAP)));
    }

    /// The owner does its duty.
    pub(crate) fn do_duty(&mut self, part: usize, term: u64, duty: Duty) -> Lawful {
        match duty {
            Duty::Start => self.start_owner(part),
            Duty::Acknowledge(position) => return self.acknowledge_at_hub(part, position),
            Duty::ReceiptAnswered(key, stored) => {
                if !stored {
                    self.owners[part].border.receipt_lost(&key);
                }
            }
            _ if term != self.owners[part].term => {}
            Duty::Recover(after) => {
                let mut border = std::mem::replace(
                    &mut self.owners[part].border,
                    Border::new(Rules::default(), Timestamp::MIN),
                );
                self.read_ledger(part, &mut border, after);
                self.owners[part].border = border;
                self.open(part);
            }
            Duty::Reports => self.take_reports(part),
            Duty::Tick => {
                self.take_heartbeats(part);
                self.look(part)?;
                self.pass_on(part);
                self.duty(part, self.profile.tick, Duty::Tick);
            }
            Duty::Turn => {
                self.send_receipts(part)?;
                self.duty(part, TURN.0, Duty::Turn);
            }
            Duty::Answered(place, answer) => self.confirmed(part, place, answer),
            Duty::Wish(device) => {
                let (bytes, at) = self.hub.desired[device].last().cloned().unwrap();
                let key = self.devices[device].key.clone();
                self.owners[part].border.desire(&key, &decode::parse(&bytes).unwrap(), at);
                self.pass_on(part);
            }
        }
        self.lawful()
    }

    fn take_reports(&mut self, part: usize) {
        let (now, time, hasty) =
            (self.agenda.now(), self.hub.time(self.agenda.now()), self.sabotage == Sabotage::AcksFirst);
        self.owners[part].expecting = false;
        let Some(session) = &mut self.owners[part].session else { return };
        let waiting = self.hub.uplink.range(session.delivered + 1..);
        let mut waiting = waiting.filter(|(_, stored)| self.hub.partition(stored.device) == part);
        let batch: Vec<_> = waiting.by_ref().take(BATCH).map(|(at, stored)| (*at, stored.clone())).collect();
        let more = waiting.next().is_some();
        session.came_at = Some(now);
        if let Some((position, last)) = batch.last() {
            session.delivered = *position;
            session.taken_to = more.then_some(last.at);
        }
        for (position, stored) in batch {
            let subject = subjects::report(&self.devices[stored.device].key);
            let subject = subject.replace("muster.report.", &format!("muster.report.{part}."));
            let owner = &mut self.owners[part];
            let outcome = owner.border.report(Arrival {
                origin: origin(&subject).unwrap(),
                parsed: Report::parse(&stored.bytes),
                payload: &stored.bytes,
                position,
                stored_at: stored.at,
                now: time,
            });
            *self.tally.outcomes.entry(format!("{outcome:?}")).or_default() += 1;
            if let Some(session) = &mut owner.session {
                session.taken.push_back(position);
            }
            if hasty {
                self.duty(part, 1, Duty::Acknowledge(position));
            }
            if self.strikes() {
                return self.kill_owner(part);
            }
        }
        self.pass_on(part);
        if more {
            self.expect_reports(part);
        }
    }

    fn take_heartbeats(&mut self, part: usize) {
        let time = self.hub.time(self.agenda.now());
        let owner = &mut self.owners[part];
        let Some(session) = &mut owner.session else { return };
        let pulses = self.hub.presence.iter().enumerate();
        let own = pulses.filter(|(device, _)| device % self.hub.floors.len() == part);
        let mut new: Vec<_> = own
            .filter_map(|(device, pulse)| Some((device, pulse.as_ref()?)))
            .filter(|(_, pulse)| pulse.position > session.pulse)
            .collect();
        new.sort_by_key(|(_, pulse)| pulse.position);
        for (device, pulse) in new {
            session.pulse = pulse.position;
            let beat: Heartbeat = decode::parse(&pulse.bytes).unwrap();
            owner.border.heartbeat(&self.devices[device].key, &beat, pulse.at, time);
        }
    }

    /// Lets time pass, unless the hub could not hear.
    fn look(&mut self, part: usize) -> Lawful {
        let (now, time) = (self.agenda.now(), self.hub.time(self.agenda.now()));
        let owner = &mut self.owners[part];
        let Some(session) = &mut owner.session else { return Ok(()) };
        let since = time.duration_since(session.looked_at).as_millis() as Millis;
        let deaf = session.connection != self.hub.connection || !(0..=STALL).contains(&since);
        (session.looked_at, session.connection) = (time, self.hub.connection);
        if deaf {
            session.hearing_since = now;
            owner.border.hearing_again(time);
            // A connection that is another one begins its readers anew.
            session.pulse = 0;
            return Ok(());
        }
        if session.came_at.is_some_and(|at| now - at >= QUIET) && !owner.expecting {
            session.taken_to = None;
        }
        let (taken_to, hearing_since) = (session.taken_to.unwrap_or(time), session.hearing_since);
        owner.border.tick(time, taken_to);
        self.check_silence(part, hearing_since)
    }

    fn check_silence(&self, part: usize, hearing_since: Millis) -> Lawful {
        let now = self.agenda.now();
        let late = LEASE.as_millis() as Millis + 2 * self.profile.tick + GRACE;
        for (at, device) in self.devices.iter().enumerate().filter(|(at, _)| self.hub.partition(*at) == part)
        {
            if now - device.heard_at.unwrap_or_default().max(hearing_since) > late {
                self.law.silent(at)?;
            }
        }
        Ok(())
    }

    /// Sends what is due, and acknowledges what is settled.
    fn pass_on(&mut self, part: usize) {
        while let Some(publication) = self.owners[part].border.next_publication() {
            if self.strikes() {
                return self.kill_owner(part);
            }
            self.publish(part, publication);
            let strikes = self.chance.bool();
            match self.owners[part].doom.take_if(|_| strikes) {
                Some(Doom::Cut) => return self.cut_owner(part),
                Some(Doom::Crash) => return self.kill_owner(part),
                None => {}
            }
        }
        self.acknowledge(part);
    }

    fn publish(&mut self, part: usize, publication: Publication) {
        let (now, delay) = (self.agenda.now(), self.chance.i64(1..60));
        let owner = &mut self.owners[part];
        owner.arrives = owner.arrives.max(now + delay);
        let (at, life, term) = (owner.arrives, owner.life, owner.term);
        let ledger = self.hub.ledger.len() as u64;
        let Some(session) = &mut owner.session else { return };
        if session.wire.is_empty() {
            session.settled_to = ledger;
        }
        session.wire.push_back(None);
        session.sent += 1;
        let place = session.sent;
        let Publication { subject, payload, message_id, .. } = publication;
        self.agenda.at(at, Event::Fact { part, life, term, place, subject, payload, id: message_id });
    }

    /// A fact reaches LEDGER, unless its sender has lost the connection: then perhaps, and unanswered.
    #[allow(clippy::too_many_arguments, reason = "they are the parts of one event")]
    pub(crate) fn fact_arrives(
        &mut self,
        part: usize,
        life: u64,
        term: u64,
        place: u64,
        subject: LedgerSubject,
        payload: &[u8],
        id: Option<String>,
    ) -> Lawful {
        let now = self.agenda.now();
        let here = (self.owners[part].life, self.owners[part].term) == (life, term);
        if !here && self.chance.bool() {
            return Ok(());
        }
        let (answer, new) = self.hub.fact(now, subject, payload, id);
        if new {
            let said = self.hub.ledger.last().unwrap();
            self.law.stored(said)?;
            self.ledger_grew();
        }
        if here {
            let lost =
                self.storm && self.has(super::profile::Fault::IngestCut) && self.chance.u16(0..2_000) == 0;
            let delay = if lost { 5 * SECOND } else { self.chance.i64(1..30) };
            self.duty(part, delay, Duty::Answered(place, (!lost).then_some(answer)));
        }
        Ok(())
    }

    /// Confirmations count in the order of sending.
    fn confirmed(&mut self, part: usize, place: u64, answer: Option<Answer>) {
        let Some(session) = &mut self.owners[part].session else { return };
        let index = (place - session.answered - 1) as usize;
        session.wire[index] = Some(answer);
        while let Some(Some(answer)) =
            self.owners[part].session.as_ref().and_then(|it| it.wire.front().copied())
        {
            let Some(Answer::Stored(position)) = answer else { return self.cut_owner(part) };
            let owner = &mut self.owners[part];
            let Some(session) = &mut owner.session else { return };
            session.wire.pop_front();
            session.answered += 1;
            session.settled_to = session.settled_to.max(position);
            owner.border.confirm();
            if self.strikes() {
                return self.kill_owner(part);
            }
        }
        self.pass_on(part);
    }

    /// Acknowledges the newest settled report, which covers all before it.
    fn acknowledge(&mut self, part: usize) {
        let delay = self.chance.i64(1..40);
        let owner = &mut self.owners[part];
        let Some(session) = &mut owner.session else { return };
        for _ in 0..owner.border.settled() {
            let Some(position) = session.taken.pop_front() else { break };
            let covered = session.settled.take().map_or(0, |(_, covered)| covered);
            session.settled = Some((position, covered + 1));
        }
        let idle = session.wire.is_empty();
        if let Some((position, _)) = session.settled.take_if(|(_, covered)| idle || *covered >= ACK_EVERY) {
            self.duty(part, delay, Duty::Acknowledge(position));
        }
    }

    fn acknowledge_at_hub(&mut self, part: usize, position: u64) -> Lawful {
        let from = self.hub.floors[part];
        for (_, stored) in self.hub.uplink.range(from + 1..(position + 1).max(from + 1)) {
            if let Some(number) = stored.number.filter(|_| self.hub.partition(stored.device) == part) {
                self.law.acknowledged(stored.device, number)?;
            }
        }
        self.hub.acknowledge(part, position);
        must(position <= self.hub.uplink_last(), "what is acknowledged was stored", || position.to_string())
    }

    fn send_receipts(&mut self, part: usize) -> Lawful {
        let now = self.agenda.now();
        let time = self.hub.time(now);
        for (key, receipt) in self.owners[part].border.take_receipts(time, TURN.1) {
            let device = self.names[&key];
            self.law.receipt(device, &receipt)?;
            let stored = now >= self.hub.refuses_until.1;
            if stored {
                self.hub.receipts[device] = Some(decode::to_bytes(&receipt).into());
                self.push_receipt(device);
            }
            self.duty(part, 20, Duty::ReceiptAnswered(key, stored));
        }
        Ok(())
    }

    /// UPLINK delivers again what is not acknowledged.
    pub(crate) fn redeliver(&mut self, part: usize) {
        if let Some(session) = &mut self.owners[part].session {
            session.delivered = self.hub.floors[part];
            self.expect_reports(part);
        }
    }
}
