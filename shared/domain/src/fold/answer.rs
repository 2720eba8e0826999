//! Answers the query service from memory: ordered, paged lines of devices.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use muster_contract::limits::VIEW_MESSAGE_BYTES_MAX;
use muster_contract::query::{
    DeploymentAnswer, DeploymentsAnswer, DeviceAnswer, DeviceLine, DeviceOmitted, DevicesAnswer, Output,
    Query, Sites,
};
use muster_contract::state::cut;
use muster_contract::status::LOOKED_AT_MAX;
use muster_contract::view::{DeploymentView, Omitted, Retried, Standing};
use muster_contract::{DeploymentId, DeviceKey, SiteId};

use super::axes::RowCondition;
use super::device::{Device, DeviceState};
use super::fleet::Fleet;
use super::last_heard::LastHeardLookup;
use super::max_timestamp::Times;
use super::standing::{CountClass, Row};
use super::status::{StatusRefusal, message};
use super::tally::Group;
use super::totals::Site;
use super::view::{Standings, shown_deployment};

/// Which part of an ordered list is wanted.
#[derive(Debug, Clone)]
pub struct Page<K> {
    /// Rows after this one only.
    pub after: Option<K>,
    /// The most rows, at least one.
    pub limit: usize,
}

impl Fleet {
    /// The view of a deployment with the sites that are silent. None where there is no such view.
    pub fn deployment_answer(&self, id: &DeploymentId) -> Option<DeploymentAnswer> {
        let number = *self.totals.deployment_numbers.get(id)?;
        let view = self.view_of(number)?;
        Some(DeploymentAnswer { view, silent_sites: self.silent_sites(&Sites::default(), Some(number)) })
    }

    /// The deployments that pass the query's `verdict` and `error`, each counted and judged at the query's sites alone.
    ///
    /// # Errors
    /// A site is unknown.
    pub fn deployments_answer(
        &self,
        query: &Query,
        page: &Page<DeploymentId>,
    ) -> Result<DeploymentsAnswer, StatusRefusal> {
        let sites = self.known_sites(query)?;
        let from = page.after.as_ref().map_or(Unbounded, Excluded);
        let numbers = self.totals.deployment_numbers.range::<DeploymentId, _>((from, Unbounded));
        let passes = |group: &Group| query.verdict.is_empty() || query.verdict.contains(&group.verdict());
        let heard = LastHeardLookup::new(self, sites.clone());
        let views = numbers.filter_map(|(_, number)| {
            let group = self.group_at(*number, sites.iter().copied());
            let wanted = !group.is_empty() && passes(&group) && self.has_error(*number, &sites, query);
            wanted.then(|| self.view_at(*number, &group, query, &heard)).flatten()
        });
        let (deployments, next) = cut_page(views, page.limit, |view| view.deployment.to_string());
        let (hub, silent_sites) =
            (self.hub_hearing_at(query.site.iter()), self.silent_sites(&query.site, None));
        Ok(DeploymentsAnswer { as_of: self.as_of, deployments, hub, silent_sites, next })
    }

    /// A site by its name, if it has devices.
    fn site(&self, site: &SiteId) -> Option<&Site> {
        self.totals.site_numbers.get(site).map(|number| self.totals.site(*number))
    }

    /// The sites that the query names.
    ///
    /// # Errors
    /// A site is unknown.
    pub(super) fn known_sites(&self, query: &Query) -> Result<Vec<&Site>, StatusRefusal> {
        let known = |site: &SiteId| {
            let unknown = || StatusRefusal::Unknown(format!("site '{site}' has no devices"));
            self.site(site).ok_or_else(unknown)
        };
        query.site.iter().map(known).collect()
    }

    /// Whether any device at these sites reports one of the query's error codes.
    fn has_error(&self, number: u32, sites: &[&Site], query: &Query) -> bool {
        let index = &self.totals.deployment(number).error_index;
        let at = |code: &String| match sites {
            [] => index.has(code),
            sites => sites.iter().filter_map(|site| self.span_of(site)).any(|span| index.has_at(code, span)),
        };
        query.error.is_empty() || query.error.iter().any(at)
    }

    /// The view of a deployment. If the query names sites, it has their counts and times, without components and errors.
    fn view_at(
        &self,
        number: u32,
        group: &Group,
        query: &Query,
        heard: &LastHeardLookup<'_>,
    ) -> Option<DeploymentView> {
        if query.site.is_empty() {
            return self.view_of(number);
        }
        let hub = self.hub_hearing_on(number, query.site.iter());
        let named = self.totals.deployment(number).named();
        let sites = query.site.iter().filter_map(|site| self.totals.site_numbers.get(site));
        let changed = sites.map(|site| self.totals.last_changed.of_place((number, *site)));
        let times = Times { changed_at: changed.max().flatten(), heard_at: heard.of(number) };
        let standings = Standings { group, hub, times };
        Some(shown_deployment(named, self.as_of, standings, BTreeMap::new(), Vec::new(), Omitted::default()))
    }

    /// The devices that pass the query's filters. Retired devices pass only if there is no filter but `site`. With another
    /// filter at most [`LOOKED_AT_MAX`] devices are visited.
    ///
    /// # Errors
    /// A site or the deployment is unknown.
    pub fn devices_answer(
        &self,
        query: &Query,
        page: &Page<DeviceKey>,
    ) -> Result<DevicesAnswer, StatusRefusal> {
        self.known_sites(query)?;
        let filter = DeviceFilter::new(self, query)?;
        let looked_at_max = if filter.is_open() { usize::MAX } else { LOOKED_AT_MAX };
        let all = self.listed_devices(query, page.after.as_ref());
        let (found, last) = passing(all, page.limit, looked_at_max, |device| filter.passes(device));
        let devices = found.into_iter().map(|device| self.line(device)).collect();
        let next = last.map(|device| self.key_of(device).to_string());
        Ok(DevicesAnswer { as_of: self.as_of, devices, hub: self.hub_hearing_at(query.site.iter()), next })
    }

    /// The devices of the query's sites after `after`, in order. If the query names a device, no other one is visited.
    fn listed_devices<'a>(
        &'a self,
        query: &'a Query,
        after: Option<&'a DeviceKey>,
    ) -> Box<dyn Iterator<Item = &'a Device> + 'a> {
        let Some(name) = &query.device else {
            return Box::new(self.devices_after(|site| query.site.pass(site), after, None));
        };
        let sites = self.totals.site_numbers.keys().filter(|site| query.site.pass(site));
        let keys = sites.map(|site| DeviceKey { site: site.clone(), device: name.clone() });
        Box::new(
            keys.filter(move |key| after.is_none_or(|after| key > after)).filter_map(|key| self.find(&key)),
        )
    }

    /// All about a device. None where there is no such device.
    pub fn device_answer(&self, key: &DeviceKey, output: Output) -> Option<DeviceAnswer> {
        let device = self.find(key)?;
        let capabilities = device.state.capabilities.as_deref();
        Some(DeviceAnswer {
            as_of: self.as_of,
            device: self.line(device),
            deployments: self.lines_of(device, output),
            capabilities: capabilities.map(|capabilities| capabilities.properties()),
            labels: self.labels_shown(device),
            agent_version: capabilities.map(|capabilities| capabilities.agent_version.to_string()),
            last_incident: device
                .state
                .anomalies
                .as_deref()
                .and_then(|anomalies| anomalies.last_incident.clone()),
            hub: self.hub_hearing_of(device),
            omitted: DeviceOmitted::default(),
        })
    }

    /// The devices in order after one, of the sites that pass, and only of those that have a deployment if one is named.
    pub(super) fn devices_after<'a>(
        &'a self,
        at: impl Fn(&SiteId) -> bool + 'a,
        after: Option<&'a DeviceKey>,
        deployment: Option<u32>,
    ) -> impl Iterator<Item = &'a Device> {
        let first = after.map_or(Unbounded, |after| Included(&after.site));
        let sites = self.totals.site_numbers.range::<SiteId, _>((first, Unbounded));
        let sites = sites.filter(move |(id, _)| at(id));
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

    /// The reason for a device's most severe standing, with its deployment; empty if it has none.
    fn worst_message(&self, device: &Device) -> String {
        let context = device.state.context();
        let shown = device.rows.iter().filter_map(|row| {
            let scan = RowCondition::of(row, row.count_class(&context))?;
            Some((scan.kstatus(), &self.totals.deployment(row.deployment).id, row, scan))
        });
        let worst = shown.min_by_key(|(kstatus, id, ..)| (*kstatus, *id));
        worst.map_or_else(String::new, |(_, id, row, scan)| {
            cut(format!("{id}: {}", message(&device.state, row, scan)), VIEW_MESSAGE_BYTES_MAX)
        })
    }

    pub(super) fn line(&self, device: &Device) -> DeviceLine {
        let state = &device.state;
        let anomalies = state.anomalies.as_deref();
        DeviceLine {
            key: self.key_of(device),
            freshness: state.freshness(),
            last_heard_at: state.heard_at(),
            message: self.worst_message(device),
            changed_at: device.rows.iter().filter_map(Row::changed_at).max(),
            retired: state.is_retired(),
            hosted_by: self.host_of(device),
            epoch: state.seq_account.epoch(),
            head: state.seq_account.head(),
            account: state.seq_account.account(),
            in_doubt: state.seq_account.all_in_doubt(),
            unread: state.beyond(),
            storing: state.is_storing(),
            generation: state.desired(),
            agent_version: state.capabilities.as_deref().map(|it| it.agent_version.to_string()),
            standings: device.standings(),
            retried: device.retried(),
            incidents: anomalies.map_or(0, |anomalies| anomalies.incidents),
            unnumbered_quarantined: anomalies.map_or(0, |anomalies| anomalies.unnumbered_quarantined),
            token_ends_at: anomalies
                .and_then(|anomalies| anomalies.token_ends_at)
                // A device heard after the end has a newer token.
                .filter(|ends_at| state.heard_at().is_none_or(|heard_at| heard_at <= *ends_at)),
            refused: state.refusal().cloned(),
        }
    }
}

/// The filters of a list of devices, with the deployment resolved to its number.
struct DeviceFilter<'q> {
    query: &'q Query,
    not_running: Option<u32>,
}

impl<'q> DeviceFilter<'q> {
    fn new(fleet: &Fleet, query: &'q Query) -> Result<Self, StatusRefusal> {
        let sites: Vec<_> = query.site.iter().filter_map(|site| fleet.site(site)).collect();
        let known = |id| fleet.known_deployment_at(id, &sites);
        let not_running = query.not_running.as_ref().map(known).transpose()?;
        Ok(Self { query, not_running })
    }

    /// True where every device of the sites passes.
    fn is_open(&self) -> bool {
        let Query { freshness, error, version, .. } = self.query;
        freshness.is_empty() && error.is_empty() && version.is_empty() && self.not_running.is_none()
    }

    fn passes(&self, device: &Device) -> bool {
        let Query { freshness, error, version, .. } = self.query;
        let state = &device.state;
        let has_version = |state: &DeviceState| {
            state.capabilities.as_deref().is_some_and(|it| version.contains(&*it.agent_version))
        };
        self.is_open()
            || (!state.is_retired()
                && (freshness.is_empty() || freshness.contains(&state.freshness()))
                && (version.is_empty() || has_version(state))
                && (error.is_empty() || device.has_error(error))
                && self.not_running.is_none_or(|number| device.is_not_running(number)))
    }
}

impl Device {
    /// Its targets that are tried again after an error.
    fn retried(&self) -> Retried {
        let context = self.state.context();
        let one = |row: &Row| match row.count_class(&context) {
            CountClass::Target { attempts: attempts @ 1.., .. } => {
                Retried { targets: 1, attempts: attempts.into() }
            }
            _ => Retried::default(),
        };
        self.rows.iter().map(one).fold(Retried::default(), Retried::plus)
    }

    /// Whether any of its deployments counts for one of these codes.
    fn has_error(&self, codes: &BTreeSet<String>) -> bool {
        let context = self.state.context();
        self.rows.iter().any(|row| row.has_error(row.count_class(&context), |code| codes.contains(code)))
    }

    /// Whether it should run a deployment and has not installed it.
    fn is_not_running(&self, deployment: u32) -> bool {
        let installed = Standing::Installed;
        let class = self.count_class(deployment);
        matches!(class, CountClass::Target { standing, .. } if standing != installed)
    }

    /// Its targets by standing.
    fn standings(&self) -> BTreeMap<Standing, u64> {
        let context = self.state.context();
        let mut standings = BTreeMap::new();
        for row in &self.rows {
            if let CountClass::Target { standing, .. } = row.count_class(&context) {
                *standings.entry(standing).or_default() += 1;
            }
        }
        standings
    }
}

/// The first rows of an ordered list that pass and, if the list goes on, the last row that the page covers. At most
/// `looked_at_max` rows are visited.
pub(super) fn passing<T: Copy>(
    rows: impl Iterator<Item = T>,
    limit: usize,
    looked_at_max: usize,
    passes: impl Fn(T) -> bool,
) -> (Vec<T>, Option<T>) {
    let (mut found, mut last) = (Vec::new(), None);
    for (looked_at, row) in rows.enumerate() {
        let (passes, is_full) = (passes(row), found.len() >= limit.max(1));
        if (passes && is_full) || looked_at >= looked_at_max {
            return (found, last);
        }
        if passes {
            found.push(row);
        }
        // A full page ends with its last row: so pages of several hubs can be put together to those of one.
        if passes || !is_full {
            last = Some(row);
        }
    }
    (found, None)
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
