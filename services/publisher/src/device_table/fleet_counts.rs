//! Counts of the devices. The table updates them with each change of one device, so that a status does not read the whole fleet.

use std::collections::BTreeSet;

use muster_contract::DeviceKey;
use muster_contract::desired::SourceKind;
use muster_contract::query::SomeDevices;

use super::{FleetSummary, NAMED_MAX};
use crate::published::PublishedState;
use crate::source::Fleet;

/// Counts of the devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FleetCounts {
    /// Devices with a document that does not retire them.
    present: usize,
    /// Those of them with a folder in the commit.
    in_git: usize,
    retired: usize,
    /// Devices from Git without a folder any more and without deployments, which were not retired.
    pub(super) left_over: BTreeSet<DeviceKey>,
    unreadable: BTreeSet<DeviceKey>,
}

impl FleetCounts {
    /// The counts of all devices under a commit.
    pub(super) fn of<'a>(
        held: impl IntoIterator<Item = (&'a DeviceKey, &'a PublishedState)>,
        fleet: Option<&Fleet>,
    ) -> Self {
        let mut counts = Self::default();
        held.into_iter().for_each(|(key, held)| counts.apply(key, held, fleet, true));
        counts
    }

    /// Adds a device to the counts, or retracts it.
    pub(super) fn apply(
        &mut self,
        key: &DeviceKey,
        held: &PublishedState,
        fleet: Option<&Fleet>,
        is_added: bool,
    ) {
        let has_folder = fleet.is_some_and(|fleet| fleet.devices.contains_key(key));
        let count = |counted: &mut usize| {
            *counted = if is_added { *counted + 1 } else { counted.saturating_sub(1) };
        };
        let list = |listed: &mut BTreeSet<DeviceKey>| {
            _ = if is_added { listed.insert(key.clone()) } else { listed.remove(key) };
        };
        if held.unreadable.is_some() {
            list(&mut self.unreadable);
        }
        let Some(document) = &held.document else { return };
        if document.retired {
            return count(&mut self.retired);
        }
        count(&mut self.present);
        if has_folder {
            count(&mut self.in_git);
        } else if fleet.is_some() && document.entries.is_empty() && document.source.kind == SourceKind::Git {
            list(&mut self.left_over);
        }
    }

    /// The summary; `has_commit` tells whether there was a good commit.
    pub(super) fn summary(&self, has_commit: bool) -> FleetSummary {
        FleetSummary {
            devices: self.present,
            in_git: has_commit.then_some(self.in_git),
            retired: self.retired,
            left_over: some(&self.left_over),
            unreadable: some(&self.unreadable),
        }
    }
}

fn some(listed: &BTreeSet<DeviceKey>) -> SomeDevices {
    let first = listed.iter().take(NAMED_MAX).cloned().collect();
    SomeDevices { count: listed.len() as u64, first }
}
