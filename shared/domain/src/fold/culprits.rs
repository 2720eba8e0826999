//! Which devices report which error of a deployment: counted by code, with the first device as example. Kept as sets,
//! so that an example that goes away gives way to the next without a search.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::DeviceKey;

use super::report::Report;

/// The failed devices of a deployment by error code.
#[derive(Debug, Default)]
pub(super) struct Culprits(BTreeMap<Box<str>, BTreeSet<DeviceKey>>);

impl Culprits {
    /// Counts a device under each of its report's codes, once.
    pub(super) fn add(&mut self, device: &DeviceKey, report: &Report) {
        for culprit in report.culprits() {
            if let Some(devices) = self.0.get_mut(culprit.code) {
                devices.insert(device.clone());
            } else {
                self.0.insert(culprit.code.into(), BTreeSet::from([device.clone()]));
            }
        }
    }

    /// Takes a device out again.
    pub(super) fn remove(&mut self, device: &DeviceKey, report: &Report) {
        for culprit in report.culprits() {
            if let Some(devices) = self.0.get_mut(culprit.code) {
                devices.remove(device);
                if devices.is_empty() {
                    self.0.remove(culprit.code);
                }
            }
        }
    }

    /// How many codes there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The codes in order, each with its count and its first device.
    pub(super) fn by_code(&self) -> impl Iterator<Item = (&str, u64, &DeviceKey)> {
        self.0.iter().filter_map(|(code, devices)| {
            devices.first().map(|first| (code.as_ref(), devices.len() as u64, first))
        })
    }

    /// The most frequent codes, then by code, each with its count and its first device.
    pub(super) fn top(&self, codes_max: usize) -> Vec<(&str, u64, &DeviceKey)> {
        let mut codes: Vec<_> = self.by_code().collect();
        // The map is in order of code and the sort is stable.
        codes.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        codes.truncate(codes_max);
        codes
    }
}
