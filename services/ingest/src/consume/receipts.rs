//! Receipts on their way to devices: a little at a time, so that they never hold up facts.

use std::time::Duration;

use fastrand::Rng;
use muster_bus::{Bus, PublishError, Stored, Window};
use muster_contract::{DeviceKey, Timestamp};
use muster_domain::border::Border;
use prometheus_client::metrics::counter::Counter;

use crate::letter;

/// Time between two turns.
pub(super) const TURN: Duration = Duration::from_millis(100);
/// Receipts of one partition in one turn, and under way at once: all partitions together spend at most a tenth of what
/// a small machine stores in a second on receipts.
const PER_TURN: usize = 64;

/// The answer to the receipt of a device.
pub(super) type Answer = (DeviceKey, Result<Stored, PublishError>);

/// Receipts of one partition under way.
pub(super) struct Receipts {
    window: Window<DeviceKey>,
    sent: Counter,
}

impl Receipts {
    pub(super) fn new(bus: &Bus, sent: Counter) -> Self {
        Self { window: bus.window(PER_TURN), sent }
    }

    /// True when none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// Sends receipts whose time has come, as many as there is room for.
    pub(super) async fn send(&mut self, border: &mut Border, now: Timestamp, chance: &mut Rng) {
        let room = PER_TURN.saturating_sub(self.window.len());
        for (key, receipt) in border.take_receipts(now, room) {
            let letter = letter::receipt(&key, &receipt, chance);
            self.window.send(letter, key).await;
        }
    }

    /// The next answer; `None` when none is under way. Cancel-safe.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        self.window.next().await
    }

    /// Takes an answer in: a receipt that did not arrive is owed again.
    pub(super) fn note(&self, border: &mut Border, (key, answer): Answer) {
        match answer {
            Ok(_) => {
                border.receipt_stored(&key);
                self.sent.inc();
            }
            Err(error) => {
                tracing::debug!(
                    device.site = %key.site, device.id = %key.device, %error,
                    "a receipt did not arrive; it is owed again"
                );
                border.receipt_lost(&key);
            }
        }
    }
}
