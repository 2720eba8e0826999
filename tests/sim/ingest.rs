//! Ingest: one partition of UPLINK with its border. The border is the real one; this is the corridor around it, in the order
//! of the service's own (`consume::session`; see [`super::consume`]): take in, publish, confirm, acknowledge last; and when
//! the fate of a publication is unknown, forget what is under way, read LEDGER again, and take in again what is not
//! acknowledged.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use muster_contract::decode;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::border::{Border, Rules};

use super::agenda::{MINUTE, Millis, SECOND};
use super::hostile::rogue_of;
use super::hub::Answer;
use super::law::Lawful;
use super::world::{Event, Sabotage, World};

/// How much more of LEDGER is read again than seems needed.
const OVERLAP: u64 = 64;
/// Time between two turns of receipts, and receipts in one.
pub(crate) const TURN: (Millis, usize) = (SECOND, 64);

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
    /// An acknowledgement up to a position gets through, over a connection of the hub.
    Acknowledge(u64, u64),
    /// A desired state has come.
    Wish(usize),
    /// The hub has answered up to which position there were reports when it was asked.
    Sounded { asked_at: Timestamp, last: u64 },
    /// LEDGER can be read again.
    Recover(u64),
    /// A new process begins.
    Start,
}

/// A session: from opening the ways in to the first publication of unknown fate.
#[derive(Debug)]
pub(crate) struct Session {
    /// The last report taken.
    pub(crate) delivered: u64,
    pub(crate) taken: VecDeque<u64>,
    pub(crate) settled: Option<(u64, usize)>,
    /// Answers in the order of sending, as far as they came.
    pub(crate) wire: VecDeque<Option<Option<Answer>>>,
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    pub(crate) settled_to: u64,
    /// The last heartbeat taken.
    pub(crate) pulse: u64,
    pub(crate) connection: u64,
    pub(crate) looked_at: Timestamp,
    /// Every report stored up to here is taken in.
    pub(crate) taken_to: Timestamp,
    /// The hub is asked whether more waits.
    pub(crate) sounding: bool,
    /// When the hub began to hear without interruption, in true time.
    pub(crate) hearing_since: Millis,
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
    pub(crate) border: Border,
    pub(crate) session: Option<Session>,
    /// Which life this is: what was meant for another does not happen.
    pub(crate) life: u64,
    /// Which session this is.
    pub(crate) term: u64,
    /// When what was sent last arrives.
    pub(crate) arrives: Millis,
    /// Reports are about to be taken.
    pub(crate) expecting: bool,
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
    pub(crate) fn duty(&mut self, part: usize, delay: Millis, duty: Duty) {
        let owner = &self.owners[part];
        let event = Event::Duty(part, owner.life, owner.term, duty);
        self.agenda.after(delay, event);
    }

    /// A report came into a partition.
    pub(crate) fn expect_reports(&mut self, part: usize) {
        // A server under load, or a link that stalls, lets one wait.
        let slow = self.chance.u8(0..32) == 0;
        self.expect_reports_in(part, if slow { SECOND..20 * SECOND } else { 1..50 });
    }

    fn expect_reports_in(&mut self, part: usize, delay: Range<Millis>) {
        if self.owners[part].session.is_some() && !std::mem::replace(&mut self.owners[part].expecting, true) {
            let delay = self.chance.i64(delay);
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
        if self.reaped() {
            return self.fell(part);
        }
        self.open(part);
    }

    fn rules(&self) -> Rules {
        match self.sabotage {
            Sabotage::NeverDoubts => Rules { lease: Duration::from_secs(24 * 60 * 60), ..Rules::default() },
            Sabotage::LetsDevicesInvent => Rules { unsolicited: usize::MAX, ..Rules::default() },
            _ => Rules::default(),
        }
    }

    /// LEDGER into a border: the facts of this partition and those of nobody.
    fn read_ledger(&self, part: usize, border: &mut Border, after: u64) {
        let from = usize::try_from(after).unwrap().min(self.hub.ledger.len());
        for said in &self.hub.ledger[from..] {
            let own = said.subject.device().and_then(|key| self.names.get(key));
            let own = own.map(|device| self.hub.partition(*device));
            let own = own.or(said.subject.device().and_then(rogue_of));
            if own.is_none_or(|owner| owner == part) {
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
            taken_to: Timestamp::MIN,
            sounding: false,
            hearing_since: now,
        });
        owner.expecting = false;
        let slow = self.chance.u8(0..4) == 0;
        self.expect_reports_in(part, if slow { SECOND..MINUTE } else { 1..2 * SECOND });
        self.duty(part, self.profile.tick, Duty::Tick);
        self.duty(part, TURN.0, Duty::Turn);
    }

    /// The process dies: only LEDGER knows what it knew.
    pub(crate) fn kill_owner(&mut self, part: usize) {
        self.owners[part].session = None;
        self.owners[part].life += 1;
        let delay = self.chance.i64(100..20 * SECOND);
        let delay = self.reaper.map_or(delay, |reaper| reaper.pause);
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
        let delay = self.reaper.map_or(delay, |reaper| reaper.pause);
        self.duty(part, delay, Duty::Recover(session.settled_to.saturating_sub(OVERLAP)));
    }

    /// The owner does its duty.
    pub(crate) fn do_duty(&mut self, part: usize, term: u64, duty: Duty) -> Lawful {
        match duty {
            Duty::Start => self.start_owner(part),
            // It gets through after its process has died, not after the connection has.
            Duty::Acknowledge(position, over) if over == self.hub.connection => {
                return self.acknowledge_at_hub(part, position);
            }
            Duty::Acknowledge(..) => {}
            Duty::ReceiptAnswered(key, stored) => {
                let border = &mut self.owners[part].border;
                if stored { border.receipt_stored(&key) } else { border.receipt_lost(&key) }
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
            Duty::Sounded { asked_at, last } => self.sounded(part, asked_at, last),
            Duty::Wish(device) => {
                let (bytes, at) = self.hub.desired[device].last().cloned().unwrap();
                let key = self.devices[device].key.clone();
                self.owners[part].border.desire(&key, &decode::parse(&bytes).unwrap(), at);
                self.pass_on(part);
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
