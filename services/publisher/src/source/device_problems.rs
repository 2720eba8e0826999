//! The mistakes that concern single devices.

use std::collections::BTreeSet;

use muster_contract::DeviceKey;

use crate::problems::Problems;

/// Devices with mistakes that concern only them.
#[derive(Default)]
pub(super) struct DeviceProblems {
    pub(super) devices: BTreeSet<DeviceKey>,
    pub(super) problems: Problems,
}

impl DeviceProblems {
    /// Adds problems of a device.
    pub(super) fn add(&mut self, key: &DeviceKey, problems: Problems) {
        if !problems.is_empty() {
            self.devices.insert(key.clone());
            self.problems.extend(problems);
        }
    }
}
