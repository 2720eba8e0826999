//! Receipts: what a device may be told of its account, and when. Only of what LEDGER holds, at most one a second a
//! device, the longest owed first.

use muster_contract::limits::RECEIPT_INTERVAL;
use muster_contract::receipt::Receipt;
use muster_contract::{DeviceKey, Timestamp};

use super::Border;

impl Border {
    /// Up to `max` receipts whose time has come.
    pub fn take_receipts(&mut self, now: Timestamp, max: usize) -> Vec<(DeviceKey, Receipt)> {
        let mut receipts = Vec::new();
        while receipts.len() < max {
            let Some(&(due_at, place)) = self.receipts_due.first().filter(|(due_at, _)| *due_at <= now)
            else {
                break;
            };
            self.receipts_due.remove(&(due_at, place));
            receipts.extend(self.receipt(place, now));
        }
        receipts
    }

    /// Receipts owed, due or not.
    pub fn receipts_owed(&self) -> usize {
        self.receipts_due.len()
    }

    /// A receipt is stored.
    pub fn receipt_stored(&mut self, key: &DeviceKey) {
        self.receipt_answered(key);
    }

    /// A receipt did not reach the bus: it is owed again.
    pub fn receipt_lost(&mut self, key: &DeviceKey) {
        let place = self.receipt_answered(key);
        self.owe_receipt(place);
    }

    /// What DOWNLINK holds as the receipt of a device is none of ours: another one is owed, if the device is known.
    pub fn owe_receipt_again(&mut self, key: &DeviceKey) {
        if let Some(place) = self.places.get(key).copied() {
            self.owe_receipt(place);
        }
    }

    /// An answer to one from before [`Border::rewind`] counts for none.
    fn receipt_answered(&mut self, key: &DeviceKey) -> usize {
        let place = self.place(key);
        let under_way = &mut self.devices[place].receipts.under_way;
        *under_way = under_way.saturating_sub(1);
        place
    }

    /// What became of the receipts under way is not known, and nobody will say: they are owed again.
    pub(super) fn receipts_in_doubt(&mut self) {
        for place in 0..self.devices.len() {
            if std::mem::take(&mut self.devices[place].receipts.under_way) > 0 {
                self.owe_receipt(place);
            }
        }
    }

    pub(super) fn owe_receipt(&mut self, place: usize) {
        let device = &mut self.devices[place];
        if device.key.is_none() || device.receipts.due_at.is_some() {
            return;
        }
        let after = |sent_at: Timestamp| sent_at.checked_add(RECEIPT_INTERVAL).unwrap_or(Timestamp::MAX);
        let due_at = device.receipts.sent_at.map_or(Timestamp::MIN, after);
        device.receipts.due_at = Some(due_at);
        self.receipts_due.insert((due_at, place));
    }

    /// Nothing for a device of which no good document came: there is no epoch to speak of.
    fn receipt(&mut self, place: usize, now: Timestamp) -> Option<(DeviceKey, Receipt)> {
        let device = &mut self.devices[place];
        device.receipts.due_at = None;
        let receipt = device.confirmed().cursor.receipt(device.head(), device.receipts.ask)?;
        device.receipts.ask = 0;
        device.receipts.sent_at = Some(now);
        device.receipts.under_way += 1;
        Some((device.key.clone()?, receipt))
    }
}
