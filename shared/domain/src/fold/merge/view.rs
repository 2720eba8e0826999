//! Renders merged counts as views.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::groups::GroupView;
use muster_contract::limits::{COMPONENTS_MAX, VIEW_ERRORS_MAX};
use muster_contract::parts::{HubLine, HubList};
use muster_contract::pulse::HubHearing;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{
    Bounds, Complete, Counts, DeploymentView, ErrorCount, FleetView, Omitted, SiteView, Split, Tally,
    Verdict, content_digest,
};
use muster_contract::{ComponentName, DeploymentId, LabelKey, LabelValue, SiteId, State};
use serde_json::Value;

use super::super::max_timestamp::Times;
use super::super::tally::{Devices, Group};
use super::super::totals::Named;
use super::super::verdict::without_evidence;
use super::super::view::{Standings, shown_deployment, shown_fleet, shown_group, shown_site, shown_tally};
use super::Merge;
use super::hearing::hearing;
use super::hub::{Hub, HubDeployment};

impl Merge {
    /// The view of a deployment; none where it is neither targeted nor leaving at any hub.
    pub fn deployment_view(&self, id: &DeploymentId) -> Option<DeploymentView> {
        let group = self.group_of(id);
        if group.is_empty() {
            return None;
        }
        let counts = self.hubs.values().filter_map(|hub| hub.deployments.get(id));
        let (mut components, errors) = (BTreeMap::new(), self.errors_of(id));
        counts.for_each(|counts| add(counts, &mut components));
        let omitted = Omitted {
            components: components.len().saturating_sub(COMPONENTS_MAX) as u64,
            errors: errors.len().saturating_sub(VIEW_ERRORS_MAX) as u64,
        };
        let components = components.into_iter().take(COMPONENTS_MAX);
        let components = components.map(|(name, states)| (name.clone(), states)).collect();
        let times = self.times_of(id);
        let (hub, errors) = (self.hearing_on(id), most_frequent(errors));
        let standings = Standings { group: &group, hub, times };
        Some(shown_deployment(self.named(id), self.as_of(), standings, components, errors, omitted))
    }

    /// The newest times of a deployment at all hubs.
    pub(super) fn times_of(&self, id: &DeploymentId) -> Times {
        let times = self.hubs.values().filter_map(|hub| Some(hub.deployments.get(id)?.times));
        times.fold(Times::default(), Times::newest)
    }

    /// A deployment with the name that the first hub gives it.
    fn named(&self, id: &DeploymentId) -> Named {
        let mut names = self.hubs.values().filter_map(|hub| Some(&hub.deployments.get(id)?.name));
        let name = names.find(|name| !name.is_empty()).cloned().unwrap_or_default();
        Named { id: id.clone(), name }
    }

    /// The partitions of a deployment that the hubs do not hear.
    pub(super) fn hearing_on(&self, id: &DeploymentId) -> HubHearing {
        let hubs = self.hubs.iter();
        hearing(hubs.filter_map(|(name, hub)| Some((name, &hub.deployments.get(id)?.hearing))))
    }

    /// All partitions that the hubs do not hear.
    pub(super) fn hearing(&self) -> HubHearing {
        hearing(self.hubs.iter().map(|(name, hub)| (name, &hub.fleet.hearing)))
    }

    /// The view of the fleet.
    pub fn fleet_view(&self) -> FleetView {
        let (devices, group, times) = sum(self.hubs.values().map(|hub| (hub, &hub.fleet)));
        let verdicts = self.deployment_ids().into_iter().map(|id| self.group_of(id).verdict());
        let standings = Standings { group: &group, hub: self.hearing(), times };
        shown_fleet(shown_tally(self.as_of(), &devices, standings, by_verdict(verdicts)))
    }

    /// The view of a group; none where it has no device at any hub.
    pub fn group_view(&self, label: &LabelKey, value: &LabelValue) -> Option<GroupView> {
        let tallies = self.hubs.values().filter_map(|hub| Some((hub, hub.groups.get(label)?.get(value)?)));
        let (devices, group, times) = sum(tallies);
        if devices.by_freshness().total() == 0 {
            return None;
        }
        let ids = self.deployment_ids().into_iter();
        let verdicts = ids.map(|id| self.share_of(id, label, value).0.verdict());
        let of_group = |hub: &'_ Hub| hub.groups.get(label)?.get(value).map(|tally| tally.hearing.clone());
        let parts: Vec<_> = self.hubs.iter().filter_map(|(name, hub)| Some((name, of_group(hub)?))).collect();
        let hub = hearing(parts.iter().map(|(name, hub)| (*name, hub)));
        let standings = Standings { group: &group, hub, times };
        let tally = shown_tally(self.as_of(), &devices, standings, by_verdict(verdicts));
        Some(shown_group(label.clone(), value.clone(), tally))
    }

    /// The view of a site as its hub gives it.
    pub fn site_view(&self, id: &SiteId) -> Option<SiteView> {
        let name = self.sites.get(id)?;
        let hub = self.hubs.get(name)?;
        let held = hub.sites.get(id)?.clone();
        // As of the sum, like every view here; the hub's own sequence orders nothing among those of other hubs.
        let unheard_there = hearing([(name, &held.tally.hub)].into_iter());
        let is_whole = unheard_there.is_whole();
        let tally = Tally { as_of: self.as_of(), hub: unheard_there, ..held.tally };
        Some(if !hub.heard {
            shown_site(held.site, unheard(tally))
        } else if is_whole {
            SiteView { tally, ..held }
        } else {
            // The partition's hub is implied.
            shown_site(held.site, tally)
        })
    }

    /// A view as JSON, as in the bucket; none where there is no such view.
    pub fn view(&self, key: &ViewKey) -> Option<(Digest, Value)> {
        let (digest, shown) = match key {
            ViewKey::Deployment(id) => {
                let view = self.deployment_view(id)?;
                (view.digest, serde_json::to_value(view))
            }
            ViewKey::Site(id) => {
                let view = self.site_view(id)?;
                (view.tally.digest, serde_json::to_value(view))
            }
            ViewKey::Group(label, value) => {
                let view = self.group_view(label, value)?;
                (view.tally.digest, serde_json::to_value(view))
            }
            ViewKey::Fleet => {
                let view = self.fleet_view();
                (view.tally.digest, serde_json::to_value(view))
            }
            // Each hub counts its own defined views.
            ViewKey::Defined(_) => return None,
        };
        Some((digest, shown.ok()?))
    }

    /// Whose counts are added.
    pub fn hub_list(&self) -> HubList {
        let line = |(name, hub): (&_, &Hub)| HubLine {
            name: Clone::clone(name),
            // A hub that was never read completely cannot supply the message.
            heard: hub.heard && hub.whole,
            as_of: hub.as_of,
            heard_at: hub.heard_at,
            sites: hub.sites.len() as u64,
        };
        let hubs = self.hubs.iter().map(line).collect();
        HubList { api_version: Default::default(), kind: Default::default(), hubs }
    }

    /// The deployments of all hubs, by id.
    pub(super) fn deployment_ids(&self) -> BTreeSet<&DeploymentId> {
        self.hubs.values().flat_map(|hub| hub.deployments.keys()).collect()
    }

    /// A deployment's errors at all hubs, by code. Of two examples of a code the first device's is kept.
    pub(super) fn errors_of(&self, id: &DeploymentId) -> BTreeMap<&str, ErrorCount> {
        let mut errors: BTreeMap<&str, ErrorCount> = BTreeMap::new();
        let counts = self.hubs.values().filter_map(|hub| hub.deployments.get(id));
        for (code, error) in counts.flat_map(|counts| &counts.errors) {
            let Some(held) = errors.get_mut(code.as_str()) else {
                errors.insert(code, error.clone());
                continue;
            };
            held.count = held.count.saturating_add(error.count);
            if error.example.device < held.example.device {
                held.example = error.example.clone();
            }
        }
        errors
    }

    /// A deployment's standings at all hubs.
    pub(super) fn group_of(&self, id: &DeploymentId) -> Group {
        let counts = self.hubs.values().filter_map(|hub| Some(hub.as_heard(hub.deployments.get(id)?.group)));
        counts.fold(Group::default(), plus)
    }

    /// A group's share of a deployment at all hubs, and its times.
    pub(super) fn share_of(&self, id: &DeploymentId, label: &LabelKey, value: &LabelValue) -> (Group, Times) {
        let share = |hub: &Hub| hub.deployments.get(id)?.groups.get(label)?.get(value).copied();
        let shares = self.hubs.values().filter_map(|hub| Some((hub, share(hub)?)));
        shares.fold(Default::default(), |(sum, newest), (hub, (group, times))| {
            (plus(sum, hub.as_heard(group)), newest.newest(times))
        })
    }
}

impl Hub {
    /// The hub's counts, degraded if it is not heard.
    pub(super) fn as_heard(&self, group: Group) -> Group {
        if self.heard { group } else { group.unheard() }
    }
}

/// The counts of some hubs together.
pub(super) fn sum<'a>(
    tallies: impl Iterator<Item = (&'a Hub, &'a super::hub::Tally)>,
) -> (Devices, Group, Times) {
    let (mut devices, mut group, mut times) = (Devices::default(), Group::default(), Times::default());
    for (hub, tally) in tallies {
        devices += if hub.heard { tally.devices } else { tally.devices.unheard() };
        group += hub.as_heard(tally.group);
        times = times.newest(tally.times);
    }
    (devices, group, times)
}

fn plus(mut sum: Group, part: Group) -> Group {
    sum += part;
    sum
}

/// Adds a hub's components to those of others.
fn add<'a>(counts: &'a HubDeployment, components: &mut BTreeMap<&'a ComponentName, BTreeMap<State, u64>>) {
    for (name, states) in &counts.components {
        let held = components.entry(name).or_default();
        for (state, count) in states {
            let sum = held.entry(*state).or_default();
            *sum = sum.saturating_add(*count);
        }
    }
}

/// The most frequent errors, then by code.
fn most_frequent(errors: BTreeMap<&str, ErrorCount>) -> Vec<ErrorCount> {
    let mut errors: Vec<ErrorCount> = errors.into_values().collect();
    // They are in order of code and the sort is stable.
    errors.sort_by_key(|error| std::cmp::Reverse(error.count));
    errors.truncate(VIEW_ERRORS_MAX);
    errors
}

/// A view's remainder when no hub's state is known any more: no device is heard, and nothing is known. None
/// where the view does not match the key.
pub fn all_unheard(key: &ViewKey, view: &[u8]) -> Option<(Digest, Value)> {
    let (digest, shown) = match key {
        ViewKey::Deployment(_) => {
            let mut view: DeploymentView = serde_json::from_slice(view).ok()?;
            view.counts = silent_counts(view.counts);
            view.verdict = without_evidence(view.verdict);
            view.converged = Bounds { lo: 0, hi: view.targets };
            view.complete.devices = 0;
            view.message = view.words();
            view.digest = content_digest(&view);
            (view.digest, serde_json::to_value(view))
        }
        ViewKey::Site(_) => {
            let SiteView { site, tally, .. } = serde_json::from_slice(view).ok()?;
            let view = shown_site(site, unheard(tally));
            (view.tally.digest, serde_json::to_value(view))
        }
        ViewKey::Group(..) => {
            let GroupView { label, value, tally, .. } = serde_json::from_slice(view).ok()?;
            let view = shown_group(label, value, unheard(tally));
            (view.tally.digest, serde_json::to_value(view))
        }
        ViewKey::Fleet => {
            let FleetView { tally, .. } = serde_json::from_slice(view).ok()?;
            let view = shown_fleet(unheard(tally));
            (view.tally.digest, serde_json::to_value(view))
        }
        ViewKey::Defined(_) => return None,
    };
    Some((digest, shown.ok()?))
}

fn by_verdict(verdicts: impl Iterator<Item = Verdict>) -> BTreeMap<Verdict, u64> {
    let mut counts = BTreeMap::new();
    // A deployment that is empty is nowhere, so it has no verdict to count.
    for verdict in verdicts.filter(|verdict| *verdict != Verdict::Empty) {
        *counts.entry(verdict).or_default() += 1;
    }
    counts
}

/// Counts of a hub that is not heard: no device is heard or known.
fn unheard(tally: Tally) -> Tally {
    let mut deployments = BTreeMap::new();
    for (verdict, count) in tally.deployments {
        let sum: &mut u64 = deployments.entry(without_evidence(verdict)).or_default();
        *sum = sum.saturating_add(count);
    }
    let mut unheard = Tally {
        devices: silent(tally.devices),
        counts: silent_counts(tally.counts),
        deployments,
        complete: Complete { devices: 0, ..tally.complete },
        ..tally
    };
    unheard.message = unheard.words();
    unheard
}

fn silent_counts(counts: Counts) -> Counts {
    counts.into_iter().map(|(standing, split)| (standing, silent(split))).collect()
}

const fn silent(split: Split) -> Split {
    Split { fresh: 0, stale: split.stale.saturating_add(split.fresh), never: split.never }
}
