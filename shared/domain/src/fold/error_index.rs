//! Indexes the failed devices of a deployment by error code, with the count and the first device as example.
//!
//! The devices are sets, so the next example is found without a search; the codes are also ranked by count, so
//! the most frequent are found at the same cost however many codes devices invent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use muster_contract::DeviceKey;

use super::report::Report;

/// The failed devices of a deployment by error code.
#[derive(Debug, Default)]
pub(super) struct ErrorIndex {
    /// None is empty.
    devices: BTreeMap<Arc<str>, BTreeSet<DeviceKey>>,
    /// Every code once, the most frequent first, of equals by name.
    ranks: BTreeSet<(Reverse<u64>, Arc<str>)>,
}

/// How many devices report a code, and the first of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Often<'a> {
    pub(super) code: &'a str,
    pub(super) count: u64,
    pub(super) first: &'a DeviceKey,
}

impl ErrorIndex {
    /// Counts a device under each of its report's codes, once.
    pub(super) fn add(&mut self, device: &DeviceKey, report: &Report) {
        for error in report.errors() {
            self.alter(error.code, |devices| _ = devices.insert(device.clone()));
        }
    }

    /// Takes a device out again.
    pub(super) fn remove(&mut self, device: &DeviceKey, report: &Report) {
        for error in report.errors() {
            self.alter(error.code, |devices| _ = devices.remove(device));
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

    /// Whether any device reports a code.
    pub(super) fn has(&self, code: &str) -> bool {
        self.devices.contains_key(code)
    }

    /// Whether any device within a span reports a code.
    pub(super) fn has_at(&self, code: &str, span: RangeInclusive<DeviceKey>) -> bool {
        self.devices.get(code).is_some_and(|devices| devices.range(span).next().is_some())
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

    /// The most frequent code at some places, of equals the first. Each code at each place costs one look, and
    /// each device that reports it there; the count stops when the looks are used up.
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
