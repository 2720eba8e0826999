//! Tracks when the last device of a deployment, a site, a group and the fleet was heard, as facts prove it. Heartbeats
//! are not facts, so a fresh device may have been heard since. A newer time alone marks no view as changed.
//!
//! Each fact updates the maxima together with the counts. Devices are searched only while a maximum is stale: from when
//! the device that was heard last stops counting until another one is heard.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use muster_contract::parts::PARTS_MAX;
use muster_contract::{LabelKey, LabelValue, Timestamp};

use super::device::Device;
use super::fleet::Fleet;
use super::groups::LabelGroup;
use super::max_timestamp::{MaxTimestamp, Times, highest};
use super::standing::{DeviceContext, Row};
use super::totals::{Site, Totals};

/// Devices that one answer visits at most for the groups of all its parts whose maxima are stale. Its reader is a federation, which
/// waits longer than a person.
const VISITS_FOR_PARTS_MAX: usize = 128_000;
/// The same for one part.
const VISITS_FOR_PART_MAX: usize = VISITS_FOR_PARTS_MAX / PARTS_MAX;

/// Times by label and value.
pub(super) type TimesByGroup<'a> = BTreeMap<(&'a LabelKey, &'a LabelValue), Times>;

/// Looks up when a device with a counted standing of a deployment was last heard at some sites.
pub(super) struct LastHeardLookup<'a> {
    fleet: &'a Fleet,
    sites: Vec<&'a Site>,
    /// The result of a visit of all devices of the sites. The first stale maximum needs it.
    visited: OnceCell<HashMap<u32, Timestamp>>,
}

impl<'a> LastHeardLookup<'a> {
    pub(super) fn new(fleet: &'a Fleet, sites: Vec<&'a Site>) -> Self {
        Self { fleet, sites, visited: OnceCell::new() }
    }

    /// When a device with a counted standing of a deployment was last heard.
    pub(super) fn of(&self, deployment: u32) -> Option<Timestamp> {
        let newest = highest(self.sites.iter().map(|site| site.heard_with.of(deployment)));
        newest.or_search(|| self.visited.get_or_init(|| self.visit()).get(&deployment).copied())
    }

    fn visit(&self) -> HashMap<u32, Timestamp> {
        let mut newest = HashMap::new();
        for device in self.sites.iter().flat_map(|site| self.fleet.devices_of(site)) {
            let (Some(at), context) = (device.state.heard_at(), device.state.context()) else { continue };
            for row in device.rows.iter().filter(|row| row.is_counted(&context)) {
                let held = newest.entry(row.deployment).or_insert(at);
                *held = at.max(*held);
            }
        }
        newest
    }
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

    /// The same of a group.
    pub(super) fn times_of_group(&self, group: &LabelGroup) -> Times {
        self.times_by_group(None, &[group]).into_values().next().unwrap_or_default()
    }

    /// The same of some groups, or of one deployment in them.
    pub(super) fn times_by_group<'a>(
        &'a self,
        deployment: Option<u32>,
        groups: &[&'a LabelGroup],
    ) -> TimesByGroup<'a> {
        self.times_within(deployment, groups, usize::MAX)
    }

    /// The same of a deployment in some groups, for a part. Those with a stale maximum are left out if the fleet has more than
    /// [`VISITS_FOR_PART_MAX`] devices.
    pub(super) fn times_for_part<'a>(
        &'a self,
        deployment: u32,
        groups: &[&'a LabelGroup],
    ) -> TimesByGroup<'a> {
        self.times_within(Some(deployment), groups, VISITS_FOR_PART_MAX)
    }

    /// The maxima of some groups. If any is stale and the fleet has no more devices than `visits`, they are visited once.
    fn times_within<'a>(
        &'a self,
        deployment: Option<u32>,
        groups: &[&'a LabelGroup],
        visits: usize,
    ) -> TimesByGroup<'a> {
        let (mut times, mut stale) = (TimesByGroup::new(), BTreeSet::new());
        for group in groups {
            let (name, [changed, heard]) = ((&group.label, &group.value), group.maxima(deployment));
            if changed.is_stale() || heard.is_stale() {
                stale.insert(name);
            } else {
                times.insert(name, Times { changed_at: changed.bound(), heard_at: heard.bound() });
            }
        }
        if !stale.is_empty() && self.devices.len() <= visits {
            let is_stale = |group: &LabelGroup| stale.contains(&(&group.label, &group.value));
            times.append(&mut self.visit_by_group(is_stale, deployment));
        }
        times
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
            let times = device.times(deployment);
            for group in groups {
                let newest: &mut Times = by_group.entry((&group.label, &group.value)).or_default();
                *newest = newest.newest(times);
            }
        }
        by_group
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

impl LabelGroup {
    /// When a standing in it last changed, and when a device of it was last heard; or one of a deployment.
    fn maxima(&self, deployment: Option<u32>) -> [MaxTimestamp; 2] {
        match deployment {
            Some(number) => [self.changed_with.of(number), self.heard_with.of(number)],
            None => [self.changed_at, self.whole.heard],
        }
    }
}

impl Device {
    /// Its share in the times of a group, or of a deployment in one.
    fn times(&self, deployment: Option<u32>) -> Times {
        let context = self.state.context();
        let rows = || self.rows.iter().filter(|row| deployment.is_none_or(|number| row.deployment == number));
        let is_heard = deployment.is_none() || rows().any(|row| row.is_counted(&context));
        Times {
            changed_at: rows().filter_map(Row::changed_at).max(),
            heard_at: context.counted_heard_at().filter(|_| is_heard),
        }
    }
}

impl Totals {
    /// Replaces the time of a device in the deployment of one of its rows, there at its site and in its groups, as far as the row
    /// counts for anything.
    pub(super) fn exchange_heard_with(
        &mut self,
        deployment: u32,
        (site, groups): (u32, &[u32]),
        (before, counted): (&DeviceContext, bool),
        (after, counts): (&DeviceContext, bool),
    ) {
        let (was, is) = (before.heard_at.filter(|_| counted), after.heard_at.filter(|_| counts));
        self.deployment_mut(deployment).heard.exchange(was, is);
        self.site_mut(site).heard_with.exchange(deployment, was, is);
        for group in groups {
            self.groups.get_mut(*group).heard_with.exchange(deployment, was, is);
        }
    }
}
