//! Time: what becomes a fact because it passed. The only place where leases, deadlines and gaps run out.
//!
//! What rests on the absence of a report is judged as of the moment up to which every report has been taken in: those
//! that still wait in UPLINK may be the ones awaited.

use std::time::Duration;

use muster_contract::fact::{Account, DeadlineFact, Fact, IncidentKind, Liveness, LivenessFact};
use muster_contract::limits::LEASE;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Epoch, Timestamp};

use super::Border;
use super::device::{Device, Lack};
use super::memory::Told;
use crate::deadline::{Listening, Overdue, Target};
use crate::lease::{Hearing, elapsed};

/// How long a fresh device's numbers may be on their way before they count as a backlog, where its heartbeat speaks
/// of none: a heartbeat overtakes the reports before it.
pub const BACKLOG_GRACE: Duration = Duration::from_secs(2);
/// How long nothing may come of missing numbers before a device that says it sent all is asked for them.
pub const ASK_AFTER: Duration = Duration::from_secs(10);
/// Time between two such questions.
pub const ASK_EVERY: Duration = Duration::from_secs(30);
/// How long nothing may come of numbers missing below held ones before that is a gap and no replay under way.
pub const GAP_AFTER: Duration = Duration::from_secs(60);

/// Time after which a liveness fact is said again although nothing changed: LEDGER keeps it for 30 days only, and the
/// account in it is all that is left of reports whose own facts have aged out.
pub const REPEAT_AFTER: Duration = Duration::from_secs(7 * 24 * 60 * 60);

const _: () = {
    assert!(BACKLOG_GRACE.as_secs() < ASK_AFTER.as_secs());
    assert!(ASK_AFTER.as_secs() < ASK_EVERY.as_secs());
    // A device is asked at least twice before what it does not send is a gap, and both happen while it is fresh.
    assert!(ASK_AFTER.as_secs() + ASK_EVERY.as_secs() < GAP_AFTER.as_secs());
    assert!(GAP_AFTER.as_secs() < LEASE.as_secs());
};

/// What makes the border look at a device's freshness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// A report, or something unreadable.
    Report,
    /// A heartbeat: it says how far the device has come.
    Beat,
    /// Time passed. Every report stored up to here has been taken in.
    Tick { taken_to: Timestamp },
}

impl Border {
    /// Time passed. Every report of this border's devices that was stored up to `taken_to` has been taken in.
    pub fn tick(&mut self, now: Timestamp, taken_to: Timestamp) {
        self.now = now;
        self.sum_up_if_due();
        for place in 0..self.devices.len() {
            if self.devices[place].key.is_some() {
                self.look(place, now, taken_to);
            }
        }
        self.make_pulse(now);
    }

    /// A report or something unreadable of the device was stored.
    pub(super) fn listen(&mut self, place: usize, stored_at: Timestamp, now: Timestamp) {
        self.note(place, Moment::Report, stored_at, now);
    }

    /// A heartbeat of the device was stored.
    pub(super) fn listen_to_beat(&mut self, place: usize, stored_at: Timestamp, now: Timestamp) {
        self.note(place, Moment::Beat, stored_at, now);
    }

    fn note(&mut self, place: usize, moment: Moment, stored_at: Timestamp, now: Timestamp) {
        let device = &self.devices[place];
        if device.key.is_none() {
            return;
        }
        let retired = device.desired.retired_at.filter(|at| *at < stored_at).and(device.desired.generation);
        if let Some(generation) = retired.filter(|_| device.latest().retired_alive < retired) {
            self.raise(place, IncidentKind::RetiredButAlive { generation }, stored_at);
        }
        self.tell(place, moment, now);
    }

    fn look(&mut self, place: usize, now: Timestamp, taken_to: Timestamp) {
        let moment = Moment::Tick { taken_to };
        self.open_epoch(place, moment, now);
        self.devices[place].look_for_lack(now);
        self.tell(place, moment, now);
        let told = self.devices[place].latest().told;
        if let Some(told) = told.filter(|told| told.state == Liveness::Fresh) {
            self.look_for_gap(place, taken_to, now);
            self.ask(place, taken_to, now);
            self.look_for_deadlines(place, told, taken_to);
        }
    }

    /// A heartbeat of a new epoch opens it only once no report of the old one can be waiting.
    fn open_epoch(&mut self, place: usize, moment: Moment, now: Timestamp) {
        let device = &self.devices[place];
        let known = device.latest().cursor.epoch();
        if let Some((known_epoch, epoch)) = known.zip(proven_epoch(device, moment))
            && epoch > known_epoch
            && device.latest().may_rise(now)
        {
            self.raise(place, IncidentKind::Amnesia { known_epoch, epoch }, now);
        }
    }

    fn tell(&mut self, place: usize, moment: Moment, now: Timestamp) {
        let device = &self.devices[place];
        let told = device.latest().told;
        // A first word of unknown fate may say that the device is fresh: then somebody has to say when it no longer is.
        let perhaps = device.retell.then_some(Liveness::Fresh);
        let hearing = Hearing {
            said: told.map(|told| told.state).or(perhaps),
            last_heard_at: device.heard.last_at,
            hearing_since: self.hearing_since,
        };
        let Some(state) = hearing.verdict(now, self.rules.lease) else { return };
        let Some(epoch) = epoch_to_tell(device, moment) else { return };
        let news = told.is_none_or(|told| {
            device.retell
                || elapsed(told.said_at, now) >= REPEAT_AFTER
                || (told.state, told.epoch) != (state, epoch)
                || keeps_reports(device, epoch) != told.storing
                || state == Liveness::Fresh && backlog_turns(device, told, moment, now)
                || explains_quarantine(device, epoch, moment)
        });
        // Restored from LEDGER and not heard since: the fact's own word.
        let heard_at = device.heard.last_at.or(told.map(|told| told.last_heard_at));
        let key = device.key.clone().filter(|_| news);
        if let Some((last_heard_at, key)) = heard_at.zip(key) {
            let fact = liveness(device, state, last_heard_at, epoch);
            self.devices[place].retell = false;
            self.publish(place, LedgerSubject::Liveness(key), &Fact::Liveness(fact), None);
        }
    }

    /// Publishes the newest word on a device's liveness again, with the account of this moment, if `fact` is that word.
    pub(super) fn repeat_liveness(&mut self, place: usize, fact: &LivenessFact) -> bool {
        let device = &self.devices[place];
        let is_newest = |told: &Told| {
            (told.state, told.epoch, told.last_heard_at) == (fact.state, fact.epoch, fact.last_heard_at)
        };
        let told = device.latest().told.filter(is_newest);
        let Some((told, key)) = told.zip(device.key.clone()) else { return false };
        let last_heard_at = device.heard.last_at.unwrap_or(told.last_heard_at);
        let fact = liveness(device, told.state, last_heard_at, told.epoch);
        self.publish(place, LedgerSubject::Liveness(key), &Fact::Liveness(fact), None);
        true
    }

    /// An incident of a device that has a name.
    fn raise(&mut self, place: usize, what: IncidentKind, at: Timestamp) {
        if let Some(key) = self.devices[place].key.clone() {
            self.incident(place, &key, what, at);
        }
    }

    fn look_for_gap(&mut self, place: usize, taken_to: Timestamp, now: Timestamp) {
        let device = &self.devices[place];
        let (held, latest) = (&device.confirmed().cursor, device.latest());
        let rests = device.lack.as_ref().is_some_and(|lack| lack.rests(taken_to, GAP_AFTER));
        let (Some(epoch), true) = (held.epoch(), rests || !latest.gap.is_empty()) else { return };
        if latest.cursor.epoch() != Some(epoch) {
            return;
        }
        let holes = held.missing(held.top(device.head()));
        if holes.is_empty() {
            if !latest.gap.is_empty() {
                let what = IncidentKind::GapClosed { epoch, through: held.top(device.head()) };
                self.raise(place, what, now);
            }
            return;
        }
        let on_record = |(from, to)| latest.gap.missing_within(from, to).is_empty();
        if rests && !holes.iter().all(on_record) {
            self.raise(place, IncidentKind::Gap { epoch, missing: holes }, now);
        }
    }

    /// A device that says it sent everything, and of which nothing more comes, is told what the hub lacks.
    fn ask(&mut self, place: usize, taken_to: Timestamp, now: Timestamp) {
        let device = &mut self.devices[place];
        let recently = device.receipts.sent_at.is_some_and(|at| elapsed(at, now) < ASK_EVERY);
        let rests = device.lack.as_ref().is_some_and(|lack| lack.rests(taken_to, ASK_AFTER));
        if rests && !recently && device.heard.unsent == 0 {
            device.receipts.ask = device.head();
            self.owe_receipt(place);
        }
    }

    fn look_for_deadlines(&mut self, place: usize, told: Told, taken_to: Timestamp) {
        let device = &self.devices[place];
        let latest = device.latest();
        let listening = Listening {
            fresh_since: told.fresh_since,
            outages: told.outages,
            hub_since: self.hearing_since,
            lease: self.rules.lease,
        };
        let overdue = |target: &Target| {
            let passed = target.overdue(latest.progress(&target.deployment), &listening, taken_to)?;
            let on_record = latest.is_overdue(&target.deployment, target.generation, passed.since);
            (!on_record).then(|| (target.clone(), passed))
        };
        let passed: Vec<(Target, Overdue)> = device.desired.targets.iter().filter_map(overdue).collect();
        // Most looks find nothing, and take nothing from the heap.
        let key = device.key.clone().filter(|_| !passed.is_empty());
        let Some(key) = key else { return };
        for (target, overdue) in passed {
            let id = super::ids::deadline(&key, &target.deployment, target.generation, overdue.since);
            let fact = DeadlineFact {
                api_version: ApiVersion::V1,
                kind: kind::DeadlineFact::DeadlineFact,
                generation: target.generation,
                deadline: overdue.deadline,
                since: overdue.since,
                limit_seconds: target.limit.as_secs(),
            };
            let subject = LedgerSubject::Deadline(key.clone(), target.deployment);
            self.publish(place, subject, &Fact::Deadline(fact), Some(id));
        }
    }
}

/// The device's epoch; of a device that sent no good report yet, its heartbeat's.
fn epoch_to_tell(device: &Device, moment: Moment) -> Option<Epoch> {
    device.latest().cursor.epoch().or_else(|| proven_epoch(device, moment))
}

/// The epoch that was heard, once no report stored before it was first heard can be waiting.
fn proven_epoch(device: &Device, moment: Moment) -> Option<Epoch> {
    let Moment::Tick { taken_to } = moment else { return None };
    device.heard.epoch_at.filter(|at| *at <= taken_to)?;
    device.heard.head.map(|(epoch, _)| epoch)
}

/// Whether a backlog appeared or drained since the hub last spoke of it.
fn backlog_turns(device: &Device, told: Told, moment: Moment, now: Timestamp) -> bool {
    match moment {
        _ if device.confirmed().cursor.epoch() != Some(told.epoch) => false,
        Moment::Report => false,
        Moment::Beat => {
            let complete = device.confirmed().cursor.is_complete(device.head());
            !told.behind && device.heard.unsent > 0 && !complete
        }
        Moment::Tick { .. } if told.behind => device.lack.as_ref().is_none_or(|lack| {
            // It has grown beyond what is on record, and nothing comes that would say so itself.
            device.latest().cursor.head() < device.head() && lack.rests(now, BACKLOG_GRACE)
        }),
        Moment::Tick { .. } => device.lack.as_ref().is_some_and(|lack: &Lack| lack.lasts(now, BACKLOG_GRACE)),
    }
}

/// Whether LEDGER is to be told how far the device's numbers go, because that explains messages in quarantine: those above
/// what any fact spoke of, and those whose own number is not known.
fn explains_quarantine(device: &Device, epoch: Epoch, moment: Moment) -> bool {
    let latest = device.latest();
    let known = device.confirmed().cursor.epoch() == Some(epoch) && latest.cursor.epoch() == Some(epoch);
    match moment {
        Moment::Report | Moment::Beat => false,
        Moment::Tick { .. } => {
            let untold = known && device.lack.is_none() && latest.cursor.head() < device.head();
            untold || device.heard.beat_of(epoch).is_some_and(|beat| latest.is_settled_by(beat.at))
        }
    }
}

/// Whether the device keeps what it would report, by its newest heartbeat; while none was heard, by what LEDGER was told.
fn keeps_reports(device: &Device, epoch: Epoch) -> bool {
    let told = device.latest().told.is_none_or(|told| told.storing);
    device.heard.beat_of(epoch).map_or(told, |beat| beat.storing)
}

fn liveness(device: &Device, state: Liveness, last_heard_at: Timestamp, epoch: Epoch) -> LivenessFact {
    let held = &device.confirmed().cursor;
    let heard = device.heard.head.filter(|(known, _)| *known == epoch).map_or(0, |(_, head)| head);
    let (head, account) = if held.epoch() == Some(epoch) {
        let head = heard.max(held.head());
        (head, held.account(head))
    } else {
        let missing = muster_contract::SeqRanges::span(1, heard);
        (heard, Account { missing, ..Account::default() })
    };
    LivenessFact {
        api_version: ApiVersion::V1,
        kind: kind::LivenessFact::LivenessFact,
        state,
        last_heard_at,
        epoch,
        head,
        account: Some(account),
        beat_at: device.heard.beat_of(epoch).map(|beat| beat.at),
        storing: keeps_reports(device, epoch),
    }
}
