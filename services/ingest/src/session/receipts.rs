//! Queues the receipts of a partition: a few at a time, so that they never hold up facts.

use std::collections::VecDeque;
use std::time::Duration;

use muster_contract::receipt::Receipt;
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::intake::IntakeState;

use crate::limits::RECEIPTS_IN_FLIGHT;

/// A process that sent no receipts for this long reads who owns the partition before it sends the next ones: it may have stood
/// still, and DOWNLINK has no fence that would refuse an old receipt after the new owner's.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(1);

/// Receipts of one partition that wait or are in flight.
#[derive(Debug)]
pub(super) struct ReceiptQueue {
    pub(super) is_due: bool,
    waiting: VecDeque<(DeviceKey, Receipt)>,
    in_flight: usize,
    /// When this process last knew that it owns the partition.
    owned_at: Timestamp,
    /// When the last read of the owner began.
    asked_at: Timestamp,
    /// When receipts were last taken from the intake.
    taken_at: Timestamp,
}

impl ReceiptQueue {
    pub(super) const fn new(now: Timestamp) -> Self {
        let waiting = VecDeque::new();
        Self { is_due: false, waiting, in_flight: 0, owned_at: now, asked_at: now, taken_at: now }
    }

    /// Takes the receipts that are due; true if the owner must be read first.
    pub(super) fn collect_due(&mut self, intake: &mut IntakeState, now: Timestamp, asks_owner: bool) -> bool {
        if asks_owner && is_standstill(self.owned_at, now) {
            self.asked_at = now;
            return true;
        }
        self.owned_at = now;
        self.collect(intake, now);
        false
    }

    /// Takes the receipts that are due once the owner was read, if this process is the owner.
    pub(super) fn owner_read(&mut self, intake: &mut IntakeState, is_ours: bool, now: Timestamp) {
        if is_ours {
            self.owned_at = self.asked_at;
            self.collect(intake, now);
        }
    }

    fn collect(&mut self, intake: &mut IntakeState, now: Timestamp) {
        self.return_old(intake, now);
        let room = RECEIPTS_IN_FLIGHT.saturating_sub(self.unconfirmed());
        self.waiting.extend(intake.drain_due_receipts(now, room));
        self.taken_at = now;
    }

    /// Owes the waiting receipts again after a standstill of the process or of the connection: another process may own the
    /// partition by now.
    fn return_old(&mut self, intake: &mut IntakeState, now: Timestamp) {
        if is_standstill(self.taken_at, now) {
            self.waiting.drain(..).for_each(|(key, _)| intake.receipt_lost(&key));
        }
    }

    /// The next receipt to send.
    pub(super) fn next(&mut self, intake: &mut IntakeState, now: Timestamp) -> Option<(DeviceKey, Receipt)> {
        self.return_old(intake, now);
        let next = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(next)
    }

    /// Applies DOWNLINK's answer: a receipt that was not stored is owed again.
    pub(super) fn answered(&mut self, intake: &mut IntakeState, key: &DeviceKey, is_stored: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if is_stored {
            intake.receipt_stored(key);
        } else {
            intake.receipt_lost(key);
        }
    }

    /// Receipts that wait or are not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.waiting.len() + self.in_flight
    }
}

/// Whether the process may have stood still between two times. A clock that steps back proves nothing, so it counts as a
/// standstill.
fn is_standstill(since: Timestamp, now: Timestamp) -> bool {
    !Duration::try_from(now.duration_since(since)).is_ok_and(|elapsed| elapsed < STANDSTILL)
}
