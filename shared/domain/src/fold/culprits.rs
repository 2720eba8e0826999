//! Which devices report which error of a deployment: counted by code, with the first device as example. Kept as sets,
//! so that an example that goes away gives way to the next without a search.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use muster_contract::DeviceKey;

use super::report::Report;
use super::status::errors::Often;

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

    /// The most frequent code, of equals the first. Each code costs a look; what is beyond the looks is not compared.
    pub(super) fn worst(&self, looks: &mut usize) -> Option<Often<'_>> {
        let looked_at = self.by_code().take(*looks);
        worst(looked_at.map(|(code, count, first)| {
            *looks -= 1;
            Often { code, count, first }
        }))
    }

    /// The most frequent code at places, of equals the first. Each code at each place costs a look, and each device that
    /// reports it there; what is beyond the looks is not counted.
    pub(super) fn worst_at(
        &self,
        places: &[RangeInclusive<DeviceKey>],
        looks: &mut usize,
    ) -> Option<Often<'_>> {
        let looked_at = self.0.iter().take(*looks);
        worst(looked_at.filter_map(|(code, devices)| {
            let (mut count, mut first) = (0, None);
            for place in places {
                let Some(left) = looks.checked_sub(1) else { break };
                *looks = left;
                for device in devices.range(place.clone()).take(left) {
                    *looks -= 1;
                    count += 1;
                    first = first.or(Some(device));
                }
            }
            first.map(|first| Often { code, count, first })
        }))
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

fn worst<'a>(codes: impl Iterator<Item = Often<'a>>) -> Option<Often<'a>> {
    codes.reduce(|held, code| if code.count > held.count { code } else { held })
}
