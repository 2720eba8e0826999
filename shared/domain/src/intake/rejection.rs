//! Queues rejected reports for QUARANTINE, and applies its answers. QUARANTINE stores a payload before a fact says that its
//! number is quarantined, so the payload of an accounted number is never lost.
//!
//! ```text
//! reject ──► Rejection ──► (QUARANTINE) ──► stored ──► QuarantineFact ──► (LEDGER) ──► account, receipt
//!                                      └──► no room ─► the number stays missing; the receipt names it as refused
//! ```
//!
//! A message whose number cannot stay missing (none could be read, it is accounted for already, or its epoch is over) is recorded
//! in either case; its fact then counts it as not kept. If a number is in quarantine and no fact shows its content, ingest cannot
//! compare a further message with that number: QUARANTINE stores the message or recognises its id, and ingest publishes no
//! further fact.
//!
//! After a rewind the messages come again and are stored again under the same ids, which QUARANTINE recognises; a copy that
//! QUARANTINE does not recognise takes room and changes nothing else.
//!
//! This module neither publishes nor deletes anything.

use muster_contract::quarantine::RefusedDevice;
use muster_contract::receipt::Receipt;
use muster_contract::{DeviceKey, Epoch, Seq, Timestamp};

use super::device::DeviceIntake;
use super::message::Outcome;
use super::pending_rejections::{NotStored, RejectedMessage, Rejection};
use super::reject_reason::RejectReason;
use super::state::IntakeState;

impl IntakeState {
    /// The next report to be stored in QUARANTINE. The caller hands its answer to [`IntakeState::apply_store_answer`].
    pub fn next_rejection(&mut self) -> Option<Rejection> {
        let ticket = self.rejections.queued.pop_front()?;
        let rejected = self.rejections.pending.get_mut(&ticket)?;
        let device = self.devices[rejected.index].key.clone();
        let (id, payload) = (rejected.id.clone(), rejected.build_document());
        Some(Rejection { ticket, device, id, may_be_kept: rejected.may_be_kept, payload })
    }

    /// Applies QUARANTINE's answer to a report and returns the outcomes that follow: the outcome of the report, and of every
    /// queued report if QUARANTINE is not available. An answer from before a rewind changes nothing.
    pub fn apply_store_answer(
        &mut self,
        ticket: u64,
        answer: Result<(), NotStored>,
        now: Timestamp,
    ) -> Vec<Outcome> {
        self.now = now;
        let mut outcomes = Vec::from_iter(self.apply_answer(ticket, answer));
        if answer == Err(NotStored::Unavailable) && !outcomes.is_empty() {
            self.rejections.unavailable_at = Some(now);
            for ticket in std::mem::take(&mut self.rejections.queued) {
                outcomes.extend(self.apply_answer(ticket, answer));
            }
        }
        self.publish_batches_if_many();
        outcomes
    }

    fn apply_answer(&mut self, ticket: u64, answer: Result<(), NotStored>) -> Option<Outcome> {
        let rejected = self.rejections.remove(ticket)?;
        let cause = rejected.cause;
        self.current_message = cause;
        let outcome = match answer {
            Ok(()) if rejected.may_be_kept => {
                self.owe_receipt(rejected.index);
                Outcome::Repeated
            }
            Ok(()) => self.record_rejected(rejected, true),
            Err(reason) => self.handle_not_stored(rejected, reason),
        };
        let settled_by = self.settlement_of(outcome);
        self.current_message = None;
        let position = cause.and_then(|cause| cause.checked_sub(self.settled_count));
        let position = position.and_then(|position| usize::try_from(position).ok());
        if let Some(condition) = position.and_then(|position| self.unsettled.get_mut(position)) {
            *condition = settled_by;
        }
        Some(outcome)
    }

    /// Reports that wait for QUARANTINE.
    pub fn rejections_pending(&self) -> usize {
        self.rejections.pending.len()
    }

    /// Whether a report with this id waits for QUARANTINE.
    pub(super) fn is_rejection_pending(&self, id: &str) -> bool {
        self.rejections.ids.contains(id)
    }

    /// Queues a report for QUARANTINE, unless QUARANTINE had no room, or did not answer, a short while ago.
    pub(super) fn queue_rejection(&mut self, rejected: RejectedMessage) -> Outcome {
        if self.devices[rejected.index].refused.is_full(self.now) {
            return self.handle_not_stored(rejected, NotStored::Full);
        }
        if self.rejections.is_unavailable(self.now) {
            return self.handle_not_stored(rejected, NotStored::Unavailable);
        }
        self.rejections.push(rejected);
        Outcome::Storing
    }

    /// Forgets the reports that wait for QUARANTINE: none is acknowledged, so UPLINK delivers them again.
    pub(super) fn discard_rejections(&mut self) {
        self.rejections.clear();
    }

    fn handle_not_stored(&mut self, rejected: RejectedMessage, reason: NotStored) -> Outcome {
        let device = &mut self.devices[rejected.index];
        if reason == NotStored::Full {
            device.refused.set_full(self.now);
        }
        let number = rejected.epoch.zip(rejected.seq);
        let number = number.filter(|number| may_stay_missing(&rejected, device, *number));
        let Some((epoch, seq)) = number else { return self.record_rejected(rejected, false) };
        // A number of an impossible epoch is not remembered: it would replace those of the device's own epoch.
        if device.accepts_epoch(epoch) && device.refused.insert(epoch, seq, reason) {
            self.owe_receipt(rejected.index);
        }
        Outcome::Refused
    }

    /// Adds to a device's receipt the missing numbers that QUARANTINE had no room for.
    pub(super) fn add_refused(&self, index: usize, receipt: &mut Receipt) {
        receipt.refused = self.devices[index].refused.refused_in(receipt);
    }

    /// Requests from a device the reports that QUARANTINE had no room for: its next receipt lists them as missing and not as
    /// refused. Returns their number.
    pub fn request_refused(&mut self, key: &DeviceKey) -> u64 {
        let Some(index) = self.indexes.get(key).copied() else { return 0 };
        self.rejections.unavailable_at = None;
        let device = &mut self.devices[index];
        let count = std::mem::take(&mut device.refused).count();
        if count > 0 {
            device.receipts.requested_through = device.receipts.requested_through.max(device.head());
            self.owe_receipt(index);
        }
        count
    }

    /// Devices with numbers that QUARANTINE had no room for, in the order of their keys, after a device if one is given.
    pub fn refused_devices(&self, after: Option<&DeviceKey>) -> impl Iterator<Item = RefusedDevice> {
        let refused_device = |device: &DeviceIntake| {
            let (key, epoch) = (device.key.clone()?, device.refused.epoch?);
            let missing = device.confirmed().account.missing_of(epoch, u64::MAX);
            let refused = device.refused.within(&missing);
            (!refused.is_empty()).then_some(RefusedDevice { device: key, epoch, refused })
        };
        let follows = |device: &&DeviceIntake| device.refused.epoch.is_some() && device.key.as_ref() > after;
        let mut devices: Vec<_> = self.devices.iter().filter(follows).collect();
        devices.sort_unstable_by_key(|device| device.key.as_ref());
        devices.into_iter().filter_map(refused_device)
    }
}

/// Whether the number of a rejected message can stay missing: then the device keeps the report, because receipts reach it.
fn may_stay_missing(rejected: &RejectedMessage, device: &DeviceIntake, number: (Epoch, Seq)) -> bool {
    let account = &device.latest().account;
    let is_fork = matches!(rejected.reason, RejectReason::Fork { .. });
    let is_accounted = is_fork || rejected.may_be_kept || account.is_quarantined(number.0, number.1);
    device.key.is_some() && !is_accounted && account.epoch().is_none_or(|current| number.0 >= current)
}
