//! Answers to the questions of the query service, from memory: lines for each device, in order and by the page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use muster_contract::query::{
    DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DeviceLine, DeviceOmitted, DevicesAnswer, Output,
    StandingLine,
};
use muster_contract::status::LOOKED_AT_MAX;
use muster_contract::view::{Freshness, Standing};
use muster_contract::{DeploymentId, DeviceKey, SiteId};

use super::axes::Look;
use super::device::Device;
use super::fleet::Fleet;
use super::standing::{Row, Share};
use super::status::message;

/// Which part of an ordered list is wanted.
#[derive(Debug, Clone)]
pub struct Page<K> {
    /// Rows after this one only.
    pub after: Option<K>,
    /// At most so many rows, at least one.
    pub limit: usize,
}

impl Fleet {
    /// The view of a deployment, and with `output` all or detail a line for each device (of one site, if one is
    /// named). None where there is no such view.
    pub fn deployment_answer(
        &self,
        id: &DeploymentId,
        output: Output,
        site: Option<&SiteId>,
        page: &Page<DeviceKey>,
    ) -> Option<DeploymentAnswer> {
        let number = *self.totals.deployment_numbers.get(id)?;
        let view = self.view_of(number)?;
        let silent_sites = self.silent_sites(site, Some(number));
        if output == Output::Summary {
            return Some(DeploymentAnswer { view, silent_sites, devices: Vec::new(), next: None });
        }
        let devices = self.devices_after(site, page.after.as_ref(), Some(number));
        let lines = devices.flat_map(|device| {
            let row = device.rows.iter().find(|row| row.deployment == number);
            row.and_then(|row| self.standing_line(device, row, output))
        });
        let (devices, next) = cut_page(lines, page.limit, |line| line.key.to_string());
        Some(DeploymentAnswer { view, silent_sites, devices, next })
    }

    /// The views of all deployments, or of those that a site has. None where there is no such site.
    pub fn deployments_answer(
        &self,
        site: Option<&SiteId>,
        page: &Page<DeploymentId>,
    ) -> Option<DeploymentsAnswer> {
        let site = match site {
            Some(id) => Some(self.totals.site(*self.totals.site_numbers.get(id)?)),
            None => None,
        };
        let silent_sites = self.silent_sites(site.map(|site| &site.id), None);
        let from = page.after.as_ref().map_or(Unbounded, Excluded);
        let numbers = self.totals.deployment_numbers.range::<DeploymentId, _>((from, Unbounded));
        let wanted = numbers.filter(|(_, number)| site.is_none_or(|at| at.deployments.has(**number)));
        let views = wanted.filter_map(|(_, number)| self.view_of(*number));
        let (deployments, next) = cut_page(views, page.limit, |view| view.deployment.to_string());
        let hub = self.hub_hearing_at(site.map(|site| &site.id));
        Some(DeploymentsAnswer { as_of: self.as_of, deployments, hub, silent_sites, next })
    }

    /// All devices, or those of a site; retired ones too. Where some freshness is named, only devices that have it and are
    /// not retired, and at most [`LOOKED_AT_MAX`] are looked at. None where there is no such site.
    pub fn devices_answer(
        &self,
        site: Option<&SiteId>,
        freshness: &BTreeSet<Freshness>,
        page: &Page<DeviceKey>,
    ) -> Option<DevicesAnswer> {
        if site.is_some_and(|site| !self.totals.site_numbers.contains_key(site)) {
            return None;
        }
        let (is_open, limit) = (freshness.is_empty(), page.limit.max(1));
        let passes = |Device { about, .. }: &Device| {
            is_open || (!about.is_retired() && freshness.contains(&about.freshness()))
        };
        let (mut devices, mut last, mut more) = (Vec::new(), None, false);
        for (looked_at, device) in self.devices_after(site, page.after.as_ref(), None).enumerate() {
            let (passes, full) = (passes(device), devices.len() >= limit);
            if (passes && full) || (!is_open && looked_at >= LOOKED_AT_MAX) {
                more = true;
                break;
            }
            if passes {
                devices.push(self.line(device));
            }
            // A full page ends with its last line: so pages of several hubs can be put together to those of one.
            if passes || !full {
                last = Some(device);
            }
        }
        let next = last.filter(|_| more).map(|device| self.key_of(device).to_string());
        Some(DevicesAnswer { as_of: self.as_of, devices, hub: self.hub_hearing_at(site), next })
    }

    /// All about a device. None where there is no such device.
    pub fn device_answer(&self, key: &DeviceKey, output: Output) -> Option<DeviceAnswer> {
        let device = self.find(key)?;
        let lines = device.rows.iter().filter_map(|row| self.standing_line(device, row, output));
        let mut deployments: Vec<_> = lines.collect();
        deployments.sort_by(|one, other| one.deployment.cmp(&other.deployment));
        let nature = device.about.nature.as_deref();
        Some(DeviceAnswer {
            as_of: self.as_of,
            device: self.line(device),
            deployments,
            capabilities: nature.map(|nature| nature.properties()),
            labels: self.labels_shown(device),
            agent_version: nature.map(|nature| nature.agent_version.to_string()),
            last_incident: device
                .about
                .troubles
                .as_deref()
                .and_then(|troubles| troubles.last_incident.clone()),
            hub: self.hub_hearing_of(device),
            omitted: DeviceOmitted::default(),
        })
    }

    /// The devices in order after one, of one site if one is named, and only of sites that have a deployment if one
    /// is named.
    pub(super) fn devices_after<'a>(
        &'a self,
        site: Option<&'a SiteId>,
        after: Option<&'a DeviceKey>,
        deployment: Option<u32>,
    ) -> impl Iterator<Item = &'a Device> {
        let first = after.map_or(Unbounded, |after| Included(&after.site));
        let sites = self.totals.site_numbers.range::<SiteId, _>((first, Unbounded));
        let sites = sites.filter(move |(id, _)| site.is_none_or(|site| site == *id));
        let sites = sites.map(|(_, number)| self.totals.site(*number));
        let sites =
            sites.filter(move |site| deployment.is_none_or(|deployment| site.deployments.has(deployment)));
        sites.flat_map(move |site| {
            let within = after.filter(|after| after.site == site.id);
            let from = within.map_or(Unbounded, |after| Excluded(&after.device));
            let members = site.members.from(&self.devices, from);
            members.map(|number| &self.devices[number as usize])
        })
    }

    /// None where nothing of the row is to be seen.
    fn standing_line(&self, device: &Device, row: &Row, output: Output) -> Option<StandingLine> {
        let facet = device.about.facet();
        let share = row.share(&facet);
        let (standing, look) = (row.standing()?, Look::of(row, share)?);
        Some(StandingLine {
            key: self.key_of(device),
            deployment: self.totals.deployment(row.deployment).id.clone(),
            standing,
            freshness: facet.freshness,
            last_heard_at: self.silent_since(device),
            known: row.is_known(&facet),
            leaving: share == Share::Leaving,
            overdue: row.overdue().map(|deadline| deadline.fact.clone()),
            target_generation: row.target,
            message: message(&device.about, row, look),
            changed_at: row.changed_at(),
            report: row.report.as_ref().map(|report| report.shown(output)),
        })
    }

    fn line(&self, device: &Device) -> DeviceLine {
        let about = &device.about;
        let troubles = about.troubles.as_deref();
        DeviceLine {
            key: self.key_of(device),
            freshness: about.freshness(),
            last_heard_at: about.heard_at(),
            retired: about.is_retired(),
            epoch: about.holdings.epoch(),
            head: about.holdings.head(),
            account: about.holdings.account(),
            in_doubt: about.holdings.all_in_doubt(),
            unread: about.beyond(),
            storing: about.is_storing(),
            generation: about.desired(),
            standings: device.standings(),
            incidents: troubles.map_or(0, |troubles| troubles.incidents),
            unnumbered_quarantined: troubles.map_or(0, |troubles| troubles.unnumbered_quarantined),
            token_ends_at: troubles
                .and_then(|troubles| troubles.token_ends_at)
                // Whoever is heard after the end has a newer one.
                .filter(|ends_at| about.heard_at().is_none_or(|heard_at| heard_at <= *ends_at)),
        }
    }
}

impl Device {
    /// Its targets by standing.
    fn standings(&self) -> BTreeMap<Standing, u64> {
        let facet = self.about.facet();
        let mut standings = BTreeMap::new();
        for row in &self.rows {
            if let Share::Target { standing, .. } = row.share(&facet) {
                *standings.entry(standing).or_default() += 1;
            }
        }
        standings
    }
}

/// The first rows of a list and, if there are more, the name of the last of them.
pub(super) fn cut_page<T>(
    rows: impl Iterator<Item = T>,
    limit: usize,
    name: impl Fn(&T) -> String,
) -> (Vec<T>, Option<String>) {
    let limit = limit.max(1);
    let mut page: Vec<T> = rows.take(limit.saturating_add(1)).collect();
    let more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| more).map(name);
    (page, next)
}
