//! The state of the devices of one partition, and its life cycle: restore, publish, confirm, settle, rewind.
//!
//! Invariants: publications are confirmed in the order in which they were made; a message is settled after everything that
//! follows from it, and from every message before it, is confirmed. The rules stand in the modules beside this one.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::Fact;
use muster_contract::limits::{DEADLINE_DEFAULT, EVIDENCE_LEASE_MS_MAX, LEASE, UNSOLICITED_DEFAULT};
use muster_contract::presence::Heartbeat;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::change::Change;
use super::device::DeviceIntake;
use super::ids;
use super::limits::SHORT_RECORDS_MAX;
use super::pending_rejections::PendingRejections;
use super::pending_verdicts::PendingVerdicts;
use super::quarantine_batch::PendingBatches;
use crate::lease::elapsed;
use crate::recent::Recent;

/// The settings of the intake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Silence after which a device is stale.
    pub lease: Duration,
    /// Time limit of a deployment that declares none itself.
    pub deadline_default: Duration,
    /// Deployments that a device without any desired document may report.
    pub unsolicited: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self { lease: LEASE, deadline_default: DEADLINE_DEFAULT, unsolicited: UNSOLICITED_DEFAULT }
    }
}

/// A fact to be published to LEDGER.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    /// Its subject.
    pub subject: LedgerSubject,
    /// The fact.
    pub fact: Fact,
    /// The serialised fact: any reader of LEDGER can parse it.
    pub payload: Vec<u8>,
    /// The message id, always the same for the same fact. `None` for the fact of a report, which readers recognise by its number,
    /// and for liveness: each liveness fact is new.
    pub id: Option<String>,
}

impl Publication {
    /// Whether it is an incident that LEDGER had before: the refusal of a desired state that stands.
    pub fn is_reasserted_incident(&self) -> bool {
        let id = self.id.as_deref().filter(|_| matches!(self.fact, Fact::Incident(_)));
        id.is_some_and(|id| ids::is_reasserted_incident(&self.subject, id))
    }
}

/// All state of the devices of one partition.
#[derive(Debug)]
pub struct IntakeState {
    pub(super) rules: Rules,
    /// [`UNNAMED`] stands for all senders without a valid name.
    pub(super) devices: Vec<DeviceIntake>,
    pub(super) indexes: HashMap<DeviceKey, usize>,
    pub(super) receiving_since: Timestamp,
    /// The time of the newest call.
    pub(super) now: Timestamp,
    /// Publications that the caller has not taken yet.
    unpublished: VecDeque<Publication>,
    /// Publications that are not confirmed yet.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Publications made in the life of this state.
    pub(super) published_count: u64,
    pub(super) confirmed_count: u64,
    /// The condition under which each unsettled message is settled, oldest first.
    pub(super) unsettled: VecDeque<SettledBy>,
    pub(super) batching: PendingBatches,
    pub(super) rejections: PendingRejections,
    /// Messages settled in the life of this state.
    pub(super) settled_count: u64,
    /// The message being processed, counted from the first in the life of this state.
    pub(super) current_message: Option<u64>,
    /// Messages that are recorded with a short excerpt, because LEDGER refused a longer one.
    pub(super) recorded_short: Recent<Digest, SHORT_RECORDS_MAX>,
    /// `Some` while a report in QUARANTINE is evaluated again: the reason why it stays there.
    pub(super) requeue_rejection: Option<String>,
    pub(super) verdicts: PendingVerdicts,
    /// Desired documents cannot be read: only the number of deployments that no known document has is bounded.
    pub(super) documents_unreadable: bool,
    pub(super) receipts_due: BTreeSet<(Timestamp, usize)>,
    /// The pulse of the partition; `None` while this state has no owner.
    pub(super) pulse: Option<PulseTimer>,
}

/// A publication that LEDGER has not confirmed.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The device it is about.
    pub(super) index: usize,
    pub(super) change: Change,
    /// The message that it follows from; `None` if it follows from the passing of time.
    pub(super) cause: Option<u64>,
}

/// The condition under which a message is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SettledBy {
    /// LEDGER has confirmed this number of publications.
    Confirmed(u64),
    /// QUARANTINE has answered; the publications that follow are not known before.
    StoreAnswer,
    /// The batch that holds the message is published.
    Batch,
}

/// The owner whose pulses the state publishes, and the time of the last one.
#[derive(Debug)]
pub(super) struct PulseTimer {
    pub(super) partition: u16,
    pub(super) owner: String,
    pub(super) published_at: Option<Timestamp>,
    /// Since when no pulse of the partition was current.
    pub(super) unproven_since: Option<Timestamp>,
}

/// The index of senders without a valid name.
pub(super) const UNNAMED: usize = 0;

impl IntakeState {
    /// A state that knows no device, and receives since `now`.
    pub fn new(rules: Rules, now: Timestamp) -> Self {
        Self {
            rules,
            devices: vec![DeviceIntake::default()],
            indexes: HashMap::new(),
            receiving_since: now,
            now,
            unpublished: VecDeque::new(),
            in_flight: VecDeque::new(),
            published_count: 0,
            confirmed_count: 0,
            unsettled: VecDeque::new(),
            batching: PendingBatches::default(),
            rejections: PendingRejections::default(),
            settled_count: 0,
            current_message: None,
            recorded_short: Recent::default(),
            requeue_rejection: None,
            verdicts: PendingVerdicts::default(),
            documents_unreadable: false,
            receipts_due: BTreeSet::new(),
            pulse: None,
        }
    }

    /// Applies a fact that LEDGER stored at `stored_at`. Only while nothing is in flight.
    pub fn restore(&mut self, subject: &LedgerSubject, fact: &Fact, stored_at: Timestamp) {
        if let (Fact::Desired(state), Some(key)) = (fact, subject.device()) {
            let index = self.index(key);
            return self.devices[index].record_document(state, stored_at);
        }
        let deployment = match subject {
            LedgerSubject::Deadline(_, id) | LedgerSubject::Status(_, id) => Some(id),
            _ => None,
        };
        let Some(change) = Change::of(fact, deployment, stored_at) else { return };
        let index = subject.device().map_or(UNNAMED, |key| self.index(key));
        self.devices[index].restore(&change);
    }

    /// Applies the desired state of a device. A document that is older than the known one changes nothing.
    pub fn apply_desired(&mut self, key: &DeviceKey, state: &DesiredState, stored_at: Timestamp) {
        let index = self.index(key);
        self.devices[index].apply_desired(state, stored_at, self.rules.deadline_default);
    }

    /// Records that a desired document with these deployments was sent to a device at `stored_at`.
    pub fn record_sent<'a>(
        &mut self,
        key: &DeviceKey,
        deployments: impl Iterator<Item = &'a DeploymentId>,
        stored_at: Timestamp,
    ) {
        let index = self.index(key);
        self.devices[index].sent.record(deployments, stored_at);
    }

    /// Applies a heartbeat that PRESENCE stored at `stored_at`.
    pub fn apply_heartbeat(
        &mut self,
        key: &DeviceKey,
        beat: &Heartbeat,
        stored_at: Timestamp,
        now: Timestamp,
    ) {
        let index = self.index(key);
        if !self.devices[index].accepts_epoch(beat.epoch) {
            return self.record_contact(key, stored_at, now);
        }
        self.now = now;
        let stored_at = stored_at.min(now);
        let device = &mut self.devices[index];
        device.contact.record(stored_at);
        let before = device.highest_accounted();
        let is_newest = device.contact.record_heartbeat(beat, stored_at);
        let is_first = is_newest && device.receipts.sent_at.is_none() && device.highest_accounted() > 0;
        // A quarantined number counts once a readable document names it.
        if is_first || device.highest_accounted() > before {
            self.owe_receipt(index);
        }
        if is_newest {
            self.check_refusal(index, beat, stored_at);
            self.check_token(index, beat, stored_at);
            self.remind(index, beat, now);
        }
        self.check_after_heartbeat(index, stored_at, now);
    }

    /// Records that a stream stored an unreadable message of a device: it only shows that the device is connected.
    pub fn record_contact(&mut self, key: &DeviceKey, stored_at: Timestamp, now: Timestamp) {
        self.now = now;
        let stored_at = stored_at.min(now);
        let index = self.index(key);
        self.devices[index].contact.record(stored_at);
        self.check_after_report(index, stored_at, now);
    }

    /// Counts the leases of fresh devices from `now`: the hub receives again after a time without receiving.
    ///
    /// The caller also calls this after a step of the hub's clock. Recorded times that lie in the future by the new clock
    /// become `now`; otherwise a device would stay fresh, and a receipt owed, until the clock reaches them again.
    pub fn resume_receiving(&mut self, now: Timestamp) {
        if elapsed(self.now, now) >= Duration::from_millis(EVIDENCE_LEASE_MS_MAX) {
            // PRESENCE no longer has all heartbeats of that time.
            self.devices.iter_mut().for_each(DeviceIntake::forget_long_lease);
        }
        self.receiving_since = now;
        self.now = now;
        self.receipts_due.clear();
        if let Some(pulse) = &mut self.pulse {
            pulse.published_at = pulse.published_at.map(|at| at.min(now));
        }
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.gap_timer = None;
            device.clamp_to(now);
            self.receipts_due.extend(device.receipts.due_at.map(|due_at| (due_at, index)));
        }
    }

    /// The next fact to be published.
    pub fn next_publication(&mut self) -> Option<Publication> {
        self.unpublished.pop_front()
    }

    /// Records that LEDGER stored the oldest publication in flight.
    pub fn confirm(&mut self) {
        let Some(InFlight { index, change, .. }) = self.in_flight.pop_front() else { return };
        self.confirmed_count += 1;
        self.devices[index].confirm(&change);
        if matches!(change, Change::Received { .. } | Change::Quarantined { .. }) {
            self.owe_receipt(index);
        }
        self.publish_verdicts();
    }

    /// Removes the messages that are settled now, oldest first, and returns their number: LEDGER has everything that follows
    /// from them and from every message before them.
    pub fn drain_settled(&mut self) -> usize {
        let confirmed = SettledBy::Confirmed(self.confirmed_count);
        let mut count = 0;
        while self.unsettled.pop_front_if(|condition| *condition <= confirmed).is_some() {
            count += 1;
        }
        self.settled_count += count as u64;
        count
    }

    /// Forgets everything in flight, whose outcome is unknown, every unsettled message and every decision that was not taken.
    /// Receipts in flight are owed again.
    pub fn rewind(&mut self) {
        self.devices.iter_mut().for_each(DeviceIntake::forget_long_lease);
        self.unpublished.clear();
        self.unsettled.clear();
        self.discard_batches();
        self.discard_rejections();
        self.verdicts = PendingVerdicts::default();
        self.published_count = self.confirmed_count;
        self.owe_unanswered_receipts();
        // The next tick publishes a pulse, because the last one may not have arrived.
        if let Some(pulse) = &mut self.pulse {
            pulse.published_at = None;
        }
        for InFlight { index, change, .. } in self.in_flight.drain(..) {
            let device = &mut self.devices[index];
            device.rewind();
            device.republish |= matches!(change, Change::Liveness { .. });
        }
    }

    /// Publications made in the life of this state.
    pub const fn published(&self) -> u64 {
        self.published_count
    }

    /// Publications that LEDGER has confirmed. A publication that [`IntakeState::rewind`] forgot counts as neither published nor
    /// confirmed.
    pub const fn confirmed(&self) -> u64 {
        self.confirmed_count
    }

    /// Publications that are not confirmed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Messages that are not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Known devices.
    pub fn devices(&self) -> usize {
        self.indexes.len()
    }

    /// The index of a device; inserts the device if it is unknown.
    pub(super) fn index(&mut self, key: &DeviceKey) -> usize {
        if let Some(index) = self.indexes.get(key) {
            return *index;
        }
        self.devices.push(DeviceIntake::of(key.clone()));
        let index = self.devices.len() - 1;
        self.indexes.insert(key.clone(), index);
        index
    }

    /// Queues a fact: it is in flight from now on.
    pub(super) fn publish(&mut self, index: usize, subject: LedgerSubject, fact: Fact, id: Option<String>) {
        let payload = fact.to_bytes();
        self.publish_serialised(index, subject, fact, payload, id);
    }

    pub(super) fn publish_serialised(
        &mut self,
        index: usize,
        subject: LedgerSubject,
        fact: Fact,
        payload: Vec<u8>,
        id: Option<String>,
    ) {
        let deployment = match &subject {
            LedgerSubject::Deadline(_, id) => Some(id),
            _ => None,
        };
        let Some(change) = Change::of(&fact, deployment, self.now) else { return };
        self.devices[index].add_in_flight(&change);
        self.in_flight.push_back(InFlight { index, change, cause: self.current_message });
        self.published_count += 1;
        self.unpublished.push_back(Publication { subject, fact, payload, id });
    }
}
