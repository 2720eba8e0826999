//! Tracks when the last device of a deployment, a site, a group and the fleet was heard, as facts prove it. Heartbeats
//! are not facts, so a fresh device may have been heard since. A newer time alone marks no view as changed.
//!
//! Each fact updates the maxima together with the counts. Devices are searched only while a maximum is stale: from when
//! the device that was heard last stops counting until another one is heard.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use muster_contract::parts::PARTS_MAX;
use muster_contract::{LabelKey, LabelValue, Timestamp};

use super::device::Device;
use super::fleet::Fleet;
use super::groups::LabelGroup;
use super::max_timestamp::Times;
use super::standing::{DeviceContext, Row};
use super::totals::{Site, Totals};

/// Devices that one answer visits at most for the times of a deployment at some sites or in the groups of a label: no totals hold
/// those.
const VISITS_MAX: usize = 20_000;
/// Devices that one answer visits at most for the groups of all its parts. Its reader is a federation, which waits longer than a
/// person.
const VISITS_FOR_PARTS_MAX: usize = 128_000;
/// The same for one part.
const VISITS_FOR_PART_MAX: usize = VISITS_FOR_PARTS_MAX / PARTS_MAX;

/// Times by label and value.
type TimesByGroup<'a> = BTreeMap<(&'a LabelKey, &'a LabelValue), Times>;

/// Those of one label.
fn values_of(by_group: TimesByGroup<'_>) -> BTreeMap<&LabelValue, Times> {
    by_group.into_iter().map(|((_, value), times)| (value, times)).collect()
}

impl Fleet {
    /// When a device of a site was last heard.
    pub(super) fn heard_at_site(&self, site: &Site) -> Option<Timestamp> {
        site.whole.heard.or_search(|| self.newest_heard(self.devices_of(site)))
    }

    /// When any device was last heard.
    pub(super) fn heard_anywhere(&self) -> Option<Timestamp> {
        let sites = || self.totals.site_numbers.values().map(|number| self.totals.site(*number));
        self.totals.fleet.heard.or_search(|| sites().filter_map(|site| self.heard_at_site(site)).max())
    }

    /// When a device with a counted standing of a deployment was last heard.
    pub(super) fn heard_with(&self, deployment: u32) -> Option<Timestamp> {
        let heard = self.totals.deployment(deployment).heard;
        heard.or_search(|| self.newest_with(deployment, self.devices_after(|_| true, None, Some(deployment))))
    }

    /// The same at some sites, by a search of their devices. None if they have more than [`VISITS_MAX`].
    pub(super) fn heard_with_at<'a>(
        &'a self,
        deployment: u32,
        sites: impl Iterator<Item = &'a Site>,
    ) -> Option<Timestamp> {
        let here = sites.filter(|site| site.deployments.has(deployment));
        let devices: Vec<&Device> =
            here.flat_map(|site| self.devices_of(site)).take(VISITS_MAX + 1).collect();
        if devices.len() > VISITS_MAX {
            return None;
        }
        self.newest_with(deployment, devices.into_iter())
    }

    /// The same of every deployment at some sites, by one visit of their devices. Empty if they have more than
    /// [`VISITS_MAX`].
    pub(super) fn heard_at_sites(&self, sites: &[&Site]) -> HashMap<u32, Timestamp> {
        let mut newest = HashMap::new();
        for (looked_at, device) in sites.iter().flat_map(|site| self.devices_of(site)).enumerate() {
            if looked_at >= VISITS_MAX {
                return HashMap::new();
            }
            let (Some(at), context) = (device.state.heard_at(), device.state.context()) else { continue };
            for row in device.rows.iter().filter(|row| row.is_counted(&context)) {
                let held = newest.entry(row.deployment).or_insert(at);
                *held = at.max(*held);
            }
        }
        newest
    }

    /// When a standing of a deployment last changed, and when a device with a counted one was last heard.
    pub(super) fn times_of_deployment(&self, number: u32) -> Times {
        Times {
            changed_at: self.totals.last_changed.of_deployment(number),
            heard_at: self.heard_with(number),
        }
    }

    /// The same of a site.
    pub(super) fn times_of_site(&self, site: &Site) -> Times {
        let number = self.totals.site_numbers.get(&site.id);
        let changed_at = number.and_then(|number| self.totals.last_changed.of_site(*number));
        Times { changed_at, heard_at: self.heard_at_site(site) }
    }

    /// The same of the fleet.
    pub(super) fn times_of_fleet(&self) -> Times {
        Times { changed_at: self.totals.last_changed.of_fleet(), heard_at: self.heard_anywhere() }
    }

    /// The same of a group. While one of its maxima is stale, it is searched among all devices of the fleet.
    pub(super) fn times_of_group(&self, group: &LabelGroup) -> Times {
        let members = || self.devices.iter().filter(|device| self.is_in(device, group));
        let rows = || members().flat_map(|device| &device.rows);
        Times {
            changed_at: group.changed_at.or_search(|| rows().filter_map(|row| row.changed_at()).max()),
            heard_at: group.whole.heard.or_search(|| self.newest_heard(members())),
        }
    }

    /// The same of all groups of a label. If a maximum is stale, the devices of the fleet are visited once.
    pub(super) fn times_by_value<'a>(
        &'a self,
        groups: impl Iterator<Item = &'a LabelGroup>,
        label: &LabelKey,
    ) -> BTreeMap<&'a LabelValue, Times> {
        let groups: Vec<&LabelGroup> = groups.collect();
        if groups.iter().any(|group| group.changed_at.is_stale() || group.whole.heard.is_stale()) {
            return values_of(self.visit_by_group(|group| group.label == *label, None));
        }
        let times = |group: &LabelGroup| Times {
            changed_at: group.changed_at.bound(),
            heard_at: group.whole.heard.bound(),
        };
        groups.into_iter().map(|group| (&group.value, times(group))).collect()
    }

    /// The same of a deployment in the groups of a label. Empty if the fleet has more than [`VISITS_MAX`] devices.
    pub(super) fn times_with_by_value(
        &self,
        deployment: u32,
        label: &LabelKey,
    ) -> BTreeMap<&LabelValue, Times> {
        if self.devices.len() > VISITS_MAX {
            return BTreeMap::new();
        }
        values_of(self.visit_by_group(|group| group.label == *label, Some(deployment)))
    }

    /// The same in some groups of any labels, for a part. Empty if the fleet has more than [`VISITS_FOR_PART_MAX`] devices.
    pub(super) fn times_with_by_group(
        &self,
        deployment: u32,
        groups: &BTreeSet<(&LabelKey, &LabelValue)>,
    ) -> TimesByGroup<'_> {
        if self.devices.len() > VISITS_FOR_PART_MAX {
            return BTreeMap::new();
        }
        self.visit_by_group(|group| groups.contains(&(&group.label, &group.value)), Some(deployment))
    }

    /// The times by group of every row, or of those of a deployment, of the groups that are wanted. Rows of devices in none of
    /// them are not visited.
    fn visit_by_group(
        &self,
        is_wanted: impl Fn(&LabelGroup) -> bool,
        deployment: Option<u32>,
    ) -> TimesByGroup<'_> {
        let mut by_group = BTreeMap::new();
        for device in &self.devices {
            let groups = device.groups.iter().map(|number| self.totals.groups.get(*number));
            let mut groups = groups.filter(|group| is_wanted(group)).peekable();
            if groups.peek().is_none() {
                continue;
            }
            let context = device.state.context();
            let rows =
                || device.rows.iter().filter(|row| deployment.is_none_or(|number| row.deployment == number));
            let is_heard = deployment.is_none() || rows().any(|row| row.is_counted(&context));
            let times = Times {
                changed_at: rows().filter_map(Row::changed_at).max(),
                heard_at: context.counted_heard_at().filter(|_| is_heard),
            };
            for group in groups {
                let newest: &mut Times = by_group.entry((&group.label, &group.value)).or_default();
                *newest = newest.newest(times);
            }
        }
        by_group
    }

    fn is_in(&self, device: &Device, group: &LabelGroup) -> bool {
        device.groups.iter().any(|number| std::ptr::eq(self.totals.groups.get(*number), group))
    }

    fn devices_of<'a>(&'a self, site: &'a Site) -> impl Iterator<Item = &'a Device> {
        site.members.iter().map(|number| &self.devices[number as usize])
    }

    fn newest_heard<'a>(&self, devices: impl Iterator<Item = &'a Device>) -> Option<Timestamp> {
        devices.filter_map(|device| device.state.context().counted_heard_at()).max()
    }

    fn newest_with<'a>(
        &self,
        deployment: u32,
        devices: impl Iterator<Item = &'a Device>,
    ) -> Option<Timestamp> {
        let has = |device: &&Device| {
            let context = device.state.context();
            device.rows.iter().any(|row| row.deployment == deployment && row.is_counted(&context))
        };
        devices.filter(has).filter_map(|device| device.state.heard_at()).max()
    }

    /// Replaces the time of a device in its site, its groups and the fleet.
    pub(super) fn exchange_heard(&mut self, number: u32, before: &DeviceContext, after: &DeviceContext) {
        let (was, is) = (before.counted_heard_at(), after.counted_heard_at());
        if was == is {
            return;
        }
        let Device { site, groups, .. } = &self.devices[number as usize];
        let totals = &mut self.totals;
        totals.fleet.heard.exchange(was, is);
        totals.site_mut(*site).whole.heard.exchange(was, is);
        for group in groups {
            totals.groups.get_mut(*group).whole.heard.exchange(was, is);
        }
    }
}

impl Totals {
    /// Replaces the time of a device in the deployment of one of its rows, as far as the row counts for anything.
    pub(super) fn exchange_heard_with(
        &mut self,
        deployment: u32,
        (before, counted): (&DeviceContext, bool),
        (after, counts): (&DeviceContext, bool),
    ) {
        let (was, is) = (before.heard_at.filter(|_| counted), after.heard_at.filter(|_| counts));
        self.deployment_mut(deployment).heard.exchange(was, is);
    }
}
