//! One device of the intake: the state that LEDGER has confirmed, the state with everything in flight, and the data that only
//! this process received.

use std::time::Duration;

use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::limits::{ENDED_LEASE_MS, EPOCH_BELIEVED_MAX, EVIDENCE_LEASE_MS_MAX};
use muster_contract::presence::Heartbeat;
use muster_contract::{DeviceKey, Epoch, Generation, Timestamp};

use super::change::Change;
use super::ledger_state::DeviceLedgerState;
use super::pending_rejections::RefusedSeqs;
use super::quarantine_batch::QuarantineBatches;
use super::sent_deployments::SentDeployments;
use crate::deadline::Target;
use crate::lease::elapsed;

/// One device.
#[derive(Debug, Clone, Default)]
pub(super) struct DeviceIntake {
    /// `None` for the entry that stands for all senders without a valid name.
    pub(super) key: Option<DeviceKey>,
    /// By what LEDGER has confirmed.
    confirmed: DeviceLedgerState,
    /// `confirmed` with everything in flight; `None` while nothing is.
    unconfirmed: Option<Box<DeviceLedgerState>>,
    in_flight: usize,
    pub(super) contact: LiveContact,
    pub(super) desired: DesiredTargets,
    /// The deployments of its desired documents of the last weeks.
    pub(super) sent: SentDeployments,
    pub(super) gap_timer: Option<GapTimer>,
    pub(super) receipts: ReceiptState,
    /// A liveness fact with an unknown outcome may still arrive, so the next one must follow it.
    pub(super) republish: bool,
    /// Numbers that QUARANTINE had no room for.
    pub(super) refused: RefusedSeqs,
    /// Rejected messages that come faster than each may have a fact of its own.
    pub(super) batches: Option<Box<QuarantineBatches>>,
}

/// The newest data that this process received of a device. All times are the hub's.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LiveContact {
    pub(super) last_at: Option<Timestamp>,
    /// The highest epoch and head that it named, and when.
    pub(super) head: Option<(Epoch, u64)>,
    pub(super) head_at: Option<Timestamp>,
    /// When the device first named the epoch in `head`.
    pub(super) epoch_at: Option<Timestamp>,
    /// Reports that no acknowledgement covers, by its newest heartbeat.
    pub(super) unsent: u64,
    /// The newest heartbeat of the epoch in `head`.
    pub(super) beat: Option<LastHeartbeat>,
    heartbeat_at: Option<Timestamp>,
    /// The lease that the newest heartbeat names, in milliseconds.
    lease_ms: Option<u64>,
}

/// The data that only a heartbeat carries.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastHeartbeat {
    /// The device's epoch.
    pub(super) epoch: Epoch,
    /// When it was stored.
    pub(super) at: Timestamp,
    /// The device can store reports.
    pub(super) storing: bool,
}

/// The part of a device's desired state that the intake needs.
#[derive(Debug, Clone, Default)]
pub(super) struct DesiredTargets {
    pub(super) generation: Option<Generation>,
    pub(super) retired_at: Option<Timestamp>,
    pub(super) targets: Vec<Target>,
}

/// Measures how long numbers have been missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct GapTimer {
    /// When the first of them was found missing.
    pub(super) since: Timestamp,
    /// The missing numbers at the last check.
    pub(super) count: u64,
    /// When the count last changed: during a replay each check finds another count.
    pub(super) unchanged_since: Timestamp,
}

/// Receipts owed to a device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReceiptState {
    /// When the next one may be sent, if one is owed.
    pub(super) due_at: Option<Timestamp>,
    pub(super) sent_at: Option<Timestamp>,
    /// The next receipt covers the numbers up to here, so that it lists missing ones.
    pub(super) requested_through: u64,
    /// Receipts that DOWNLINK has not answered: a slow answer may come after the next receipt was sent.
    pub(super) in_flight: u32,
    /// When the last batch of reports came that could not be unpacked.
    pub(super) batch_refused_at: Option<Timestamp>,
    /// When a receipt was last owed because the device held an older desired state.
    pub(super) reminded_at: Option<Timestamp>,
}

impl DeviceIntake {
    pub(super) fn of(key: DeviceKey) -> Self {
        Self { key: Some(key), ..Self::default() }
    }

    /// A device with its state as a snapshot has it.
    pub(super) fn restored(key: Option<DeviceKey>, confirmed: DeviceLedgerState) -> Self {
        Self { key, confirmed, ..Self::default() }
    }

    /// The state by what LEDGER has confirmed.
    pub(super) const fn confirmed(&self) -> &DeviceLedgerState {
        &self.confirmed
    }

    /// The state that LEDGER will have when everything in flight is stored. Decisions rest on it.
    pub(super) fn latest(&self) -> &DeviceLedgerState {
        self.unconfirmed.as_deref().unwrap_or(&self.confirmed)
    }

    /// Whether an epoch can be one of this device. Otherwise a sender that uses this device's name could send the highest epoch
    /// there is, and leave the device without a higher one.
    pub(super) fn accepts_epoch(&self, epoch: Epoch) -> bool {
        epoch.get() <= EPOCH_BELIEVED_MAX
            || self.latest().account.epoch().is_some_and(|known| epoch <= known.next())
    }

    /// Applies a change whose fact is in flight.
    pub(super) fn add_in_flight(&mut self, change: &Change) {
        self.unconfirmed.get_or_insert_with(|| Box::new(self.confirmed.clone())).apply(change);
        self.in_flight += 1;
    }

    /// Records that LEDGER has the oldest change in flight.
    pub(super) fn confirm(&mut self, change: &Change) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match self.unconfirmed.take() {
            // Nothing else is in flight.
            Some(unconfirmed) if self.in_flight == 0 => self.confirmed = *unconfirmed,
            unconfirmed => {
                self.confirmed.apply(change);
                self.unconfirmed = unconfirmed;
            }
        }
    }

    /// Drops the oldest change in flight, which LEDGER will never store; `left` are those that stay in flight.
    pub(super) fn drop_oldest<'a>(&mut self, left: impl Iterator<Item = &'a Change>) {
        self.rewind();
        left.for_each(|change| self.add_in_flight(change));
    }

    /// Forgets the changes in flight: their outcome is unknown.
    pub(super) fn rewind(&mut self) {
        self.unconfirmed = None;
        self.in_flight = 0;
    }

    /// Forgets a lease that is longer than PRESENCE keeps heartbeats: another process may have read the heartbeat that ended it, and
    /// PRESENCE may no longer have that one. A lease whose heartbeat PRESENCE still has is read again.
    pub(super) fn forget_long_lease(&mut self) {
        self.contact.lease_ms.take_if(|lease| *lease > EVIDENCE_LEASE_MS_MAX);
    }

    /// Applies a change that was read from LEDGER.
    pub(super) fn restore(&mut self, change: &Change) {
        self.confirmed.apply(change);
    }

    /// Changes both states in a way that no fact expresses.
    pub(super) fn amend(&mut self, change: impl Fn(&mut DeviceLedgerState)) {
        change(&mut self.confirmed);
        self.unconfirmed.iter_mut().for_each(|unconfirmed| change(unconfirmed));
    }

    /// The head of the current epoch, by LEDGER and by what this process received.
    pub(super) fn head(&self) -> u64 {
        let account = &self.confirmed.account;
        match self.contact.head {
            Some((epoch, head)) if account.epoch() == Some(epoch) => head.max(account.head()),
            _ => account.head(),
        }
    }

    /// The highest number that is held or was refused, up to the highest number that readable documents name.
    pub(super) fn highest_accounted(&self) -> u64 {
        let (account, head) = (&self.confirmed.account, self.head());
        account.top(head).max(self.refused.max_through(account.epoch(), head))
    }

    /// Records a document that was sent to the device at `stored_at`. A target that an older document has keeps its older time.
    pub(super) fn record_document(&mut self, state: &DesiredState, stored_at: Timestamp) {
        self.sent.record_document(state, stored_at);
        for target in &mut self.desired.targets {
            let set_at = self.sent.target_set_at(&target.deployment, target.generation);
            target.set_at = set_at.map_or(target.set_at, |at| at.min(target.set_at));
        }
    }

    /// Applies a desired state; false if it is not newer than the known one.
    pub(super) fn apply_desired(
        &mut self,
        state: &DesiredState,
        stored_at: Timestamp,
        default_limit: Duration,
    ) -> bool {
        self.record_document(state, stored_at);
        if self.desired.generation >= Some(state.generation) {
            return false;
        }
        let target = |entry: &DesiredDeployment| {
            let set_at = self.sent.target_set_at(&entry.id, entry.target_generation);
            Target::of(entry, set_at.unwrap_or(stored_at), default_limit)
        };
        self.desired = DesiredTargets {
            generation: Some(state.generation),
            retired_at: state.retired.then_some(stored_at),
            targets: state.deployments.iter().map(target).collect(),
        };
        let targets = std::mem::take(&mut self.desired.targets);
        self.amend(|state| state.retain_overdue(|id| targets.iter().any(|target| target.deployment == *id)));
        self.desired.targets = targets;
        true
    }

    /// Limits every recorded time to `now`, after the hub's clock was set back.
    pub(super) fn clamp_to(&mut self, now: Timestamp) {
        let LiveContact { last_at, head_at, epoch_at, heartbeat_at, beat, .. } = &mut self.contact;
        beat.iter_mut().for_each(|beat| beat.at = beat.at.min(now));
        let ReceiptState { due_at, sent_at, batch_refused_at, reminded_at, .. } = &mut self.receipts;
        let receipts = [due_at, sent_at, batch_refused_at, reminded_at];
        for at in [last_at, head_at, epoch_at, heartbeat_at].into_iter().chain(receipts).flatten() {
            *at = (*at).min(now);
        }
    }

    /// Updates the gap timer by the numbers that are missing up to the head.
    pub(super) fn update_gap_timer(&mut self, now: Timestamp) {
        let head = self.head();
        if self.confirmed.account.is_complete(head) {
            self.gap_timer = None;
            return;
        }
        let count = self.confirmed.account.missing(head).count();
        self.gap_timer = Some(match self.gap_timer {
            Some(gap_timer) if gap_timer.count == count => gap_timer,
            Some(gap_timer) => GapTimer { count, unchanged_since: now, ..gap_timer },
            None => GapTimer { since: now, count, unchanged_since: now },
        });
    }
}

impl LiveContact {
    /// Records that a stream stored something of the device.
    pub(super) fn record(&mut self, at: Timestamp) {
        self.last_at = self.last_at.max(Some(at));
    }

    /// Records the head that a document stored at `at` names.
    pub(super) fn record_head(&mut self, epoch: Epoch, head: u64, at: Timestamp) {
        if self.head.is_none_or(|(known, _)| known < epoch) {
            self.epoch_at = Some(at);
        }
        if self.head.is_none_or(|known| known <= (epoch, head)) {
            self.head = Some((epoch, head));
            self.head_at = Some(at);
        }
    }

    /// Records a heartbeat; false if a newer one is known.
    pub(super) fn record_heartbeat(&mut self, beat: &Heartbeat, at: Timestamp) -> bool {
        if self.heartbeat_at > Some(at) {
            return false;
        }
        (self.heartbeat_at, self.lease_ms) = (Some(at), beat.lease_ms);
        self.unsent = beat.unsent;
        self.record_head(beat.epoch, beat.head, at);
        if self.head.is_some_and(|(epoch, _)| epoch == beat.epoch) {
            self.beat = Some(LastHeartbeat { epoch: beat.epoch, at, storing: beat.storing });
        }
        true
    }

    /// Until when the evidence that the newest heartbeat vouches for is fresh; `None` if it names no lease.
    pub(super) fn evidence_until(&self) -> Option<Timestamp> {
        let (at, lease) = self.heartbeat_at.zip(self.lease_ms)?;
        if lease == ENDED_LEASE_MS {
            // Earlier than this process can read the heartbeat, so that it makes no device fresh.
            return at.checked_sub(Duration::from_millis(lease)).ok();
        }
        at.checked_add(Duration::from_millis(lease)).ok()
    }

    /// The newest heartbeat of an epoch.
    pub(super) fn heartbeat_of(&self, epoch: Epoch) -> Option<LastHeartbeat> {
        self.beat.filter(|beat| beat.epoch == epoch)
    }

    /// A time at which the device had not yet assigned this number, if one is known.
    pub(super) fn head_known_at(&self, epoch: Epoch, seq: u64) -> Option<Timestamp> {
        self.head.filter(|(known, head)| *known == epoch && *head < seq).and(self.head_at)
    }
}

impl GapTimer {
    /// Whether numbers have been missing for at least `span`.
    pub(super) fn has_lasted(&self, now: Timestamp, span: Duration) -> bool {
        elapsed(self.since, now) >= span
    }

    /// Whether no missing number has come for at least `span`.
    pub(super) fn is_stalled(&self, now: Timestamp, span: Duration) -> bool {
        elapsed(self.unchanged_since, now) >= span
    }
}
