//! Which devices report which error of a deployment: counted by code, with the first device as example. Kept as sets,
//! so that an example that goes away gives way to the next without a search, and in the order of how often they are
//! reported, so that the most frequent are shown at the same cost however many codes devices make up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use muster_contract::DeviceKey;

use super::report::Report;
use super::status::errors::Often;

/// The failed devices of a deployment by error code.
#[derive(Debug, Default)]
pub(super) struct Culprits {
    /// None is empty.
    devices: BTreeMap<Arc<str>, BTreeSet<DeviceKey>>,
    /// Every code once, the most frequent first, of equals by name.
    ranks: BTreeSet<(Reverse<u64>, Arc<str>)>,
}

impl Culprits {
    /// Counts a device under each of its report's codes, once.
    pub(super) fn add(&mut self, device: &DeviceKey, report: &Report) {
        for culprit in report.culprits() {
            self.alter(culprit.code, |devices| _ = devices.insert(device.clone()));
        }
    }

    /// Takes a device out again.
    pub(super) fn remove(&mut self, device: &DeviceKey, report: &Report) {
        for culprit in report.culprits() {
            self.alter(culprit.code, |devices| _ = devices.remove(device));
        }
    }

    /// Changes who reports a code.
    fn alter(&mut self, code: &str, alter: impl FnOnce(&mut BTreeSet<DeviceKey>)) {
        let (code, mut devices) =
            self.devices.remove_entry(code).unwrap_or_else(|| (code.into(), BTreeSet::new()));
        let before = devices.len() as u64;
        alter(&mut devices);
        let after = devices.len() as u64;
        if before != after {
            self.ranks.remove(&(Reverse(before), code.clone()));
        }
        if after > 0 {
            if before != after {
                self.ranks.insert((Reverse(after), code.clone()));
            }
            self.devices.insert(code, devices);
        }
    }

    /// How many codes there are.
    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    /// The codes in order, each with its count and its first device.
    pub(super) fn by_code(&self) -> impl Iterator<Item = (&str, u64, &DeviceKey)> {
        self.devices.iter().filter_map(|(code, devices)| {
            devices.first().map(|first| (code.as_ref(), devices.len() as u64, first))
        })
    }

    /// The most frequent code, of equals the first.
    pub(super) fn worst(&self) -> Option<Often<'_>> {
        self.by_count().next().map(|(code, count, first)| Often { code, count, first })
    }

    /// The most frequent code at places, of equals the first. Each code at each place costs a look, and each device that
    /// reports it there; what is beyond the looks is not counted.
    pub(super) fn worst_at(
        &self,
        places: &[RangeInclusive<DeviceKey>],
        looks: &mut usize,
    ) -> Option<Often<'_>> {
        let looked_at = self.devices.iter().take(*looks);
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

    /// The codes, the most frequent first, then by code, each with its count and its first device.
    pub(super) fn by_count(&self) -> impl Iterator<Item = (&str, u64, &DeviceKey)> {
        self.ranks.iter().filter_map(|(Reverse(count), code)| {
            Some((code.as_ref(), *count, self.devices.get(code)?.first()?))
        })
    }
}

fn worst<'a>(codes: impl Iterator<Item = Often<'a>>) -> Option<Often<'a>> {
    codes.reduce(|held, code| if code.count > held.count { code } else { held })
}
