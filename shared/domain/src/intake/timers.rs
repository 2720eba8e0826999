//! Decides what becomes a fact because time passed: liveness, gaps, deadlines. Leases, gap timers and deadlines end nowhere else.
//!
//! A decision that rests on the absence of a report is taken as of the time up to which every report was received: a report that
//! waits in UPLINK may be the missing one.

use std::time::Duration;

use muster_contract::fact::{Account, DeadlineFact, Fact, IncidentKind, Liveness, LivenessFact};
use muster_contract::limits::LEASE;
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};
use muster_contract::{Epoch, SeqRanges, Timestamp};

use super::device::{DeviceIntake, GapTimer};
use super::ids;
use super::ledger_state::PublishedLiveness;
use super::state::IntakeState;
use crate::deadline::{Listening, Overdue, Target};
use crate::lease::{LeaseInputs, elapsed};

/// How long a fresh device's numbers may be missing before they count as a backlog, if its heartbeat names none: a heartbeat
/// overtakes the reports before it.
pub(super) const BACKLOG_GRACE: Duration = Duration::from_secs(2);
/// How long no missing number may come before the receipt of a device that has sent all its reports lists them.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(10);
/// Time between two such receipts.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(30);
/// How long no number may come that is missing below held ones before they count as a gap and not as a replay.
pub(super) const GAP_AFTER: Duration = Duration::from_secs(60);
/// Time after which liveness is published again although nothing changed: LEDGER keeps it for 30 days only, and its account is
/// all that is left of reports whose own facts have aged out.
pub(super) const REPUBLISH_AFTER: Duration = Duration::from_secs(7 * 24 * 60 * 60);

const _: () = {
    assert!(BACKLOG_GRACE.as_secs() < ASK_AFTER.as_secs());
    assert!(ASK_AFTER.as_secs() < ASK_EVERY.as_secs());
    // The missing numbers are requested at least twice before they count as a gap, all while the device is fresh.
    assert!(ASK_AFTER.as_secs() + ASK_EVERY.as_secs() < GAP_AFTER.as_secs());
    assert!(GAP_AFTER.as_secs() < LEASE.as_secs());
};

/// The reason for a check of a device's liveness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// A report, or an unreadable message.
    Report,
    /// A heartbeat, which names the device's head.
    Heartbeat,
    /// Time passed.
    Tick(Watermarks),
}

/// The times up to which the intake has received everything about its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// For reports: no report stored before this time is still to come, so a missing number is a gap.
    pub reports: Timestamp,
    /// For heartbeats: no lease ends after this time, because a heartbeat may have come since.
    pub heartbeats: Timestamp,
}

impl Watermarks {
    /// Everything stored up to `at` was received.
    pub const fn all(at: Timestamp) -> Self {
        Self { reports: at, heartbeats: at }
    }
}

impl IntakeState {
    /// Lets time pass; the intake has received everything up to the watermarks.
    pub fn tick(&mut self, now: Timestamp, watermarks: Watermarks) {
        self.now = now;
        self.publish_batches_if_due();
        for index in 0..self.devices.len() {
            if self.devices[index].key.is_some() {
                self.check_device(index, now, watermarks);
            }
        }
        self.publish_pulse(now);
    }

    /// Checks a device after a stream stored a report or an unreadable message of it.
    pub(super) fn check_after_report(&mut self, index: usize, stored_at: Timestamp, now: Timestamp) {
        self.check_after(index, Trigger::Report, stored_at, now);
    }

    /// Checks a device after PRESENCE stored its heartbeat.
    pub(super) fn check_after_heartbeat(&mut self, index: usize, stored_at: Timestamp, now: Timestamp) {
        self.check_after(index, Trigger::Heartbeat, stored_at, now);
    }

    fn check_after(&mut self, index: usize, trigger: Trigger, stored_at: Timestamp, now: Timestamp) {
        let device = &self.devices[index];
        if device.key.is_none() {
            return;
        }
        let retired = device.desired.retired_at.filter(|at| *at < stored_at).and(device.desired.generation);
        if let Some(generation) = retired.filter(|_| device.latest().retired_alive < retired) {
            self.raise_incident(index, IncidentKind::RetiredButAlive { generation }, stored_at);
        }
        self.update_liveness(index, trigger, now);
    }

    fn check_device(&mut self, index: usize, now: Timestamp, watermarks: Watermarks) {
        let trigger = Trigger::Tick(watermarks);
        self.open_epoch(index, trigger, now);
        self.devices[index].update_gap_timer(now);
        self.update_liveness(index, trigger, now);
        let last = self.devices[index].latest().last_published;
        if let Some(fresh) = last.filter(|last| last.state == Liveness::Fresh) {
            self.check_gap(index, watermarks.reports, now);
            self.request_missing(index, watermarks.reports, now);
            self.check_deadlines(index, fresh, watermarks.reports);
        }
    }

    /// Opens the epoch that a heartbeat names, once no report of the old epoch can be waiting.
    fn open_epoch(&mut self, index: usize, trigger: Trigger, now: Timestamp) {
        let device = &self.devices[index];
        let known = device.latest().account.epoch();
        if let Some((known_epoch, epoch)) = known.zip(proven_epoch(device, trigger))
            && epoch > known_epoch
            && device.latest().may_raise_epoch(now)
        {
            self.raise_incident(index, IncidentKind::Amnesia { known_epoch, epoch }, now);
        }
    }

    fn update_liveness(&mut self, index: usize, trigger: Trigger, now: Timestamp) {
        let device = &self.devices[index];
        let last = device.latest().last_published;
        // A first liveness fact with an unknown outcome may call the device fresh, so its end must be published as well.
        let perhaps = device.republish.then_some(Liveness::Fresh);
        let inputs = LeaseInputs {
            last_published: last.map(|last| last.state).or(perhaps),
            last_heard_at: device.contact.last_at,
            receiving_since: self.receiving_since,
            evidence_until: device.contact.evidence_until(),
        };
        let through = match trigger {
            Trigger::Tick(watermarks) => now.min(watermarks.heartbeats),
            Trigger::Report | Trigger::Heartbeat => now,
        };
        let Some(state) = inputs.liveness(through, self.rules.lease) else { return };
        // A report may be old, and a heartbeat after it not read yet: only a tick knows up to when heartbeats were read.
        if state == Liveness::Stale && !matches!(trigger, Trigger::Tick(_)) {
            return;
        }
        let Some(epoch) = epoch_to_publish(device, trigger) else { return };
        let is_due = last.is_none_or(|last| {
            device.republish
                || elapsed(last.published_at, now) >= REPUBLISH_AFTER
                || (last.state, last.epoch) != (state, epoch)
                || is_storing(device, epoch) != last.storing
                || state == Liveness::Fresh && backlog_changed(device, last, trigger, now)
                || explains_quarantine(device, epoch, trigger)
        });
        // A device that was restored from LEDGER and not heard since has the time of its liveness fact.
        let heard_at = device.contact.last_at.or(last.map(|last| last.last_heard_at));
        let key = device.key.clone().filter(|_| is_due);
        if let Some((last_heard_at, key)) = heard_at.zip(key) {
            let fact = liveness(device, state, last_heard_at, epoch);
            self.devices[index].republish = false;
            self.publish(index, LedgerSubject::Liveness(key), Fact::Liveness(fact), None);
        }
    }

    /// Publishes a device's newest liveness again, with the account of this moment, if `fact` is that liveness.
    pub(super) fn republish_liveness(&mut self, index: usize, fact: &LivenessFact) -> bool {
        let device = &self.devices[index];
        let is_newest = |last: &PublishedLiveness| {
            (last.state, last.epoch, last.last_heard_at) == (fact.state, fact.epoch, fact.last_heard_at)
        };
        let newest = device.latest().last_published.filter(is_newest);
        let Some((newest, key)) = newest.zip(device.key.clone()) else { return false };
        let last_heard_at = device.contact.last_at.unwrap_or(newest.last_heard_at);
        let fact = liveness(device, newest.state, last_heard_at, newest.epoch);
        self.publish(index, LedgerSubject::Liveness(key), Fact::Liveness(fact), None);
        true
    }

    /// Publishes an incident of a device, unless it stands for senders without a valid name.
    pub(super) fn raise_incident(&mut self, index: usize, what: IncidentKind, at: Timestamp) {
        if let Some(key) = self.devices[index].key.clone() {
            self.publish_incident(index, &key, what, at);
        }
    }

    fn check_gap(&mut self, index: usize, complete_through: Timestamp, now: Timestamp) {
        let device = &self.devices[index];
        let (held, latest) = (&device.confirmed().account, device.latest());
        let is_stalled = device.gap_timer.is_some_and(|timer| timer.is_stalled(complete_through, GAP_AFTER));
        let (Some(epoch), true) = (held.epoch(), is_stalled || !latest.gap.is_empty()) else { return };
        if latest.account.epoch() != Some(epoch) {
            return;
        }
        let missing = held.missing(held.top(device.head()));
        if missing.is_empty() {
            if !latest.gap.is_empty() {
                let what = IncidentKind::GapClosed { epoch, through: held.top(device.head()) };
                self.raise_incident(index, what, now);
            }
            return;
        }
        let is_published = |(from, to)| latest.gap.missing_within(from, to).is_empty();
        if is_stalled && !missing.iter().all(is_published) {
            self.raise_incident(index, IncidentKind::Gap { epoch, missing }, now);
        }
    }

    /// Lists the missing numbers in the next receipt of a device that has sent all its reports and from which no more come.
    fn request_missing(&mut self, index: usize, complete_through: Timestamp, now: Timestamp) {
        let device = &mut self.devices[index];
        let is_recent = device.receipts.sent_at.is_some_and(|at| elapsed(at, now) < ASK_EVERY);
        let is_stalled = device.gap_timer.is_some_and(|timer| timer.is_stalled(complete_through, ASK_AFTER));
        if is_stalled && !is_recent && device.contact.unsent == 0 {
            device.receipts.requested_through = device.head();
            self.owe_receipt(index);
        }
    }

    fn check_deadlines(&mut self, index: usize, fresh: PublishedLiveness, complete_through: Timestamp) {
        let device = &self.devices[index];
        let latest = device.latest();
        let listening = Listening {
            fresh_since: fresh.fresh_since,
            outages: fresh.outages,
            hub_since: self.receiving_since,
            lease: self.rules.lease,
        };
        let overdue = |target: &Target| {
            let passed = target.overdue(latest.progress(&target.deployment), &listening, complete_through)?;
            let is_published = latest.is_overdue(&target.deployment, target.generation, passed.since);
            (!is_published).then(|| (target.clone(), passed))
        };
        let passed: Vec<(Target, Overdue)> = device.desired.targets.iter().filter_map(overdue).collect();
        // Most checks find no deadline, and allocate nothing.
        let key = device.key.clone().filter(|_| !passed.is_empty());
        let Some(key) = key else { return };
        for (target, overdue) in passed {
            let id = ids::deadline(&key, &target.deployment, target.generation, overdue.since);
            let fact = DeadlineFact {
                api_version: ApiVersion::V1,
                kind: kind::DeadlineFact::DeadlineFact,
                generation: target.generation,
                deadline: overdue.deadline,
                since: overdue.since,
                limit_seconds: target.limit.as_secs(),
            };
            let subject = LedgerSubject::Deadline(key.clone(), target.deployment);
            self.publish(index, subject, Fact::Deadline(fact), Some(id));
        }
    }
}

/// The device's epoch; the epoch of its heartbeat if the device sent no readable report yet.
fn epoch_to_publish(device: &DeviceIntake, trigger: Trigger) -> Option<Epoch> {
    device.latest().account.epoch().or_else(|| proven_epoch(device, trigger))
}

/// The newest epoch that the device named, once no report can be waiting that was stored before the device first named it.
fn proven_epoch(device: &DeviceIntake, trigger: Trigger) -> Option<Epoch> {
    let Trigger::Tick(Watermarks { reports, .. }) = trigger else { return None };
    device.contact.epoch_at.filter(|at| *at <= reports)?;
    device.contact.head.map(|(epoch, _)| epoch)
}

/// Whether a backlog appeared or drained since the last liveness fact.
fn backlog_changed(device: &DeviceIntake, last: PublishedLiveness, trigger: Trigger, now: Timestamp) -> bool {
    if device.confirmed().account.epoch() != Some(last.epoch) {
        return false;
    }
    match trigger {
        Trigger::Report => false,
        Trigger::Heartbeat => {
            let is_complete = device.confirmed().account.is_complete(device.head());
            !last.has_missing && device.contact.unsent > 0 && !is_complete
        }
        Trigger::Tick(_) if last.has_missing => device.gap_timer.is_none_or(|timer| {
            // The backlog has grown beyond the published one, and no report comes that would show it.
            device.latest().account.head() < device.head() && timer.is_stalled(now, BACKLOG_GRACE)
        }),
        Trigger::Tick(_) => {
            device.gap_timer.is_some_and(|timer: GapTimer| timer.has_lasted(now, BACKLOG_GRACE))
        }
    }
}

/// Whether a liveness fact with the device's head would explain messages in quarantine: those with a number above every
/// published head, and those without a readable number.
fn explains_quarantine(device: &DeviceIntake, epoch: Epoch, trigger: Trigger) -> bool {
    let Trigger::Tick(_) = trigger else { return false };
    let latest = device.latest();
    let is_current =
        device.confirmed().account.epoch() == Some(epoch) && latest.account.epoch() == Some(epoch);
    let is_unpublished = is_current && device.gap_timer.is_none() && latest.account.head() < device.head();
    is_unpublished || device.contact.heartbeat_of(epoch).is_some_and(|beat| latest.is_resolved_by(beat.at))
}

/// Whether the reports of an epoch show the device's state. They do not once the device named a newer epoch, because it has lost
/// its database since, and not if its heartbeat says that it cannot store reports. Without a heartbeat the last liveness fact
/// decides.
fn is_storing(device: &DeviceIntake, epoch: Epoch) -> bool {
    if device.contact.head.is_some_and(|(newest, _)| newest > epoch) {
        return false;
    }
    let last = device.latest().last_published.is_none_or(|last| last.storing);
    device.contact.heartbeat_of(epoch).map_or(last, |beat| beat.storing)
}

fn liveness(device: &DeviceIntake, state: Liveness, last_heard_at: Timestamp, epoch: Epoch) -> LivenessFact {
    let held = &device.confirmed().account;
    let named = device.contact.head.filter(|(known, _)| *known == epoch).map_or(0, |(_, head)| head);
    let (head, account) = if held.epoch() == Some(epoch) {
        let head = named.max(held.head());
        (head, held.at_head(head))
    } else {
        (named, Account { missing: SeqRanges::span(1, named), ..Account::default() })
    };
    LivenessFact {
        api_version: ApiVersion::V1,
        kind: kind::LivenessFact::LivenessFact,
        state,
        last_heard_at,
        epoch,
        head,
        account: Some(account),
        beat_at: device.contact.heartbeat_of(epoch).map(|beat| beat.at),
        storing: is_storing(device, epoch),
    }
}
