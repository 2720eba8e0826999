//! The lines of a deployment by devices, and how devices without a line are heard. It judges nothing.

use std::collections::BTreeMap;

use muster_contract::status::TargetStatus;
use muster_contract::view::Freshness;
use muster_contract::{DeviceKey, Timestamp};

use super::line::Line;

/// The lines of a deployment's view.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// LEDGER up to this sequence gives them.
    pub ledger_seq: u64,
    /// The last sequence, if their pages are of several.
    pub ledger_through: Option<u64>,
    /// The line of each device.
    pub of_devices: BTreeMap<DeviceKey, TargetStatus>,
    /// How targets without a line are heard, as far as that was read, and when they were last heard.
    pub hearings: BTreeMap<DeviceKey, (Freshness, Option<Timestamp>)>,
}

impl Lines {
    /// Notes the sequence of a page. The first one is the oldest.
    pub fn read_page(&mut self, ledger_seq: u64, is_first: bool) {
        if is_first {
            self.ledger_seq = ledger_seq;
        } else if ledger_seq != self.ledger_through.unwrap_or(self.ledger_seq) {
            self.ledger_through = Some(ledger_seq);
        }
    }

    /// The line of a device.
    pub(super) fn line(&self, key: &DeviceKey) -> Option<Line<'_>> {
        let of_hearing = || {
            let (freshness, last_heard_at) = *self.hearings.get(key)?;
            Some(Line::of_hearing(freshness, last_heard_at))
        };
        self.of_devices.get(key).map(Line::from).or_else(of_hearing)
    }
}
