//! The content and the timing of receipts. A receipt covers only numbers that LEDGER holds; a device gets at most one a second,
//! and the receipt owed longest goes first.

use std::time::Duration;

use muster_contract::headers::{ZSTD, ZSTD_REPORTS_1};
use muster_contract::limits::RECEIPT_INTERVAL;
use muster_contract::presence::Heartbeat;
use muster_contract::receipt::Receipt;
use muster_contract::{DeviceKey, Generation, SeqRanges, Timestamp};

use super::device::ReceiptState;
use super::state::IntakeState;
use crate::lease::elapsed;

/// Time for which a device is asked for single reports after a batch of it could not be unpacked.
pub const SINGLE_AFTER_REFUSAL: Duration = Duration::from_secs(10 * 60);

/// Least time between two receipts for a device that holds an older desired state: it may accept none at this hour.
pub(super) const REMIND_EVERY: Duration = Duration::from_secs(5 * 60);

impl IntakeState {
    /// Takes up to `max` receipts that are due.
    pub fn drain_due_receipts(&mut self, now: Timestamp, max: usize) -> Vec<(DeviceKey, Receipt)> {
        let mut receipts = Vec::new();
        while receipts.len() < max {
            let Some(&(due_at, index)) = self.receipts_due.first().filter(|(due_at, _)| *due_at <= now)
            else {
                break;
            };
            self.receipts_due.remove(&(due_at, index));
            receipts.extend(self.make_receipt(index, now));
        }
        receipts
    }

    /// Receipts owed, due or not.
    pub fn receipts_owed(&self) -> usize {
        self.receipts_due.len()
    }

    /// Records that DOWNLINK stored a receipt.
    pub fn receipt_stored(&mut self, key: &DeviceKey) {
        self.count_answer(key);
    }

    /// Records that DOWNLINK did not store a receipt: it is owed again.
    pub fn receipt_lost(&mut self, key: &DeviceKey) {
        let index = self.count_answer(key);
        self.owe_receipt(index);
    }

    /// Owes a receipt to a device, if the device is known: no ingest wrote the one that DOWNLINK holds.
    pub fn owe_receipt_to(&mut self, key: &DeviceKey) {
        if let Some(index) = self.indexes.get(key).copied() {
            self.owe_receipt(index);
        }
    }

    /// Compares the newest receipt of a device in DOWNLINK with the account. Another receipt is owed if it would cover more: a
    /// former owner that stood still may have sent the stored one late.
    pub fn check_stored_receipt(&mut self, key: &DeviceKey, stored: &Receipt) {
        let Some(index) = self.indexes.get(key).copied() else { return };
        let device = &self.devices[index];
        let newest = device.confirmed().account.receipt(device.head(), 0);
        if newest.is_some_and(|newest| covers_more(&newest, stored)) {
            self.owe_receipt(index);
        }
    }

    /// Counts an answer. An answer to a receipt from before [`IntakeState::rewind`] has no effect.
    fn count_answer(&mut self, key: &DeviceKey) -> usize {
        let index = self.index(key);
        let in_flight = &mut self.devices[index].receipts.in_flight;
        *in_flight = in_flight.saturating_sub(1);
        index
    }

    /// Owes the receipts in flight again: their outcome stays unknown.
    pub(super) fn owe_unanswered_receipts(&mut self) {
        for index in 0..self.devices.len() {
            if std::mem::take(&mut self.devices[index].receipts.in_flight) > 0 {
                self.owe_receipt(index);
            }
        }
    }

    /// Records that a batch of reports of a device cannot be unpacked: its receipts ask for single reports for a while.
    pub fn refuse_batches(&mut self, key: &DeviceKey, now: Timestamp) {
        let index = self.index(key);
        self.devices[index].receipts.batch_refused_at = Some(now);
        self.owe_receipt(index);
    }

    pub(super) fn owe_receipt(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if device.key.is_none() || device.receipts.due_at.is_some() {
            return;
        }
        let after = |sent_at: Timestamp| sent_at.checked_add(RECEIPT_INTERVAL).unwrap_or(Timestamp::MAX);
        let due_at = device.receipts.sent_at.map_or(Timestamp::MIN, after);
        device.receipts.due_at = Some(due_at);
        self.receipts_due.insert((due_at, index));
    }

    /// Owes a receipt to a device that holds an older desired state than the newest one and does not refuse that: the push of it was
    /// lost. The receipt names the generation.
    pub(super) fn remind(&mut self, index: usize, beat: &Heartbeat, now: Timestamp) {
        let device = &mut self.devices[index];
        let newest = device.desired.generation.map_or(0, Generation::get);
        let is_recent = device.receipts.reminded_at.is_some_and(|at| elapsed(at, now) < REMIND_EVERY);
        let refuses =
            beat.refused.as_ref().is_some_and(|of| of.generation.is_none_or(|of| of.get() >= newest));
        if beat.generation < newest && !refuses && !is_recent {
            device.receipts.reminded_at = Some(now);
            self.owe_receipt(index);
        }
    }

    /// The receipt of a device; `None` before its first readable document, because its epoch is unknown.
    fn make_receipt(&mut self, index: usize, now: Timestamp) -> Option<(DeviceKey, Receipt)> {
        let device = &mut self.devices[index];
        device.receipts.due_at = None;
        let through = device.receipts.requested_through.max(device.highest_accounted());
        let mut receipt = device.confirmed().account.receipt(device.head(), through)?;
        device.receipts.requested_through = 0;
        device.receipts.sent_at = Some(now);
        device.receipts.in_flight += 1;
        let key = device.key.clone()?;
        receipt.batches = device.receipts.batches(now);
        receipt.generation = Some(device.desired.generation.map_or(0, Generation::get));
        self.add_refused(index, &mut receipt);
        Some((key, receipt))
    }
}

impl ReceiptState {
    /// The encodings that the hub reads from the device.
    fn batches(&self, now: Timestamp) -> Vec<String> {
        let is_refused = self.batch_refused_at.is_some_and(|at| elapsed(at, now) < SINGLE_AFTER_REFUSAL);
        if is_refused { Vec::new() } else { [ZSTD, ZSTD_REPORTS_1].map(str::to_owned).into() }
    }
}

/// Whether a receipt covers a number that the stored one of the same device does not. A receipt of a newer epoch is never out of
/// date.
fn covers_more(newest: &Receipt, stored: &Receipt) -> bool {
    if newest == stored || newest.epoch < stored.epoch {
        return false;
    }
    let covered = if newest.epoch == stored.epoch { stored.covered() } else { SeqRanges::new() };
    newest.covered().iter().any(|(from, to)| !covered.missing_within(from, to).is_empty())
}
