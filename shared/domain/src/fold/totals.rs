//! The counts of every deployment, every site and the fleet, kept up to date one standing at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::subjects::ViewKey;
use muster_contract::view::Verdict;
use muster_contract::{ComponentName, DeploymentId, DeviceId, DeviceKey, SiteId, State};

use super::axes::Axes;
use super::blueprint::Blueprints;
use super::cast::{Cast, Casts};
use super::culprits::Culprits;
use super::device::Device;
use super::groups::{Groups, LabelGroup};
use super::hearing::UnheardCounts;
use super::members::Members;
use super::newest::Newest;
use super::shares::Shares;
use super::standing::{Facet, Row, Share};
use super::tally::{Devices, Group, Way};

/// A component and its state.
type Part = (ComponentName, State);

/// Counts by state.
pub(super) type States = [u32; State::ALL.len()];

/// All counts. Deployments and sites have numbers, which are small keys for the rows of devices.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) deployment_numbers: BTreeMap<DeploymentId, u32>,
    deployments: Vec<Deployment>,
    /// Numbers of deployments that no row names any more.
    spare: Vec<u32>,
    pub(super) site_numbers: BTreeMap<SiteId, u32>,
    sites: Vec<Site>,
    pub(super) fleet: Whole,
    pub(super) groups: Groups,
    pub(super) blueprints: Blueprints,
    pub(super) casts: Casts,
    pub(super) newest: Newest,
    changed: Changed,
}

/// Views that may have changed. A flag beside each count keeps the list short: most facts touch what is on it already.
#[derive(Debug, Default)]
struct Changed {
    keys: Vec<ViewKey>,
    fleet: bool,
}

/// The counts of one deployment.
#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) id: DeploymentId,
    pub(super) group: Group,
    pub(super) components: BTreeMap<ComponentName, States>,
    pub(super) culprits: Culprits,
    /// Its standings by partition, of those that the hub does not listen to.
    pub(super) unheard: UnheardCounts,
    /// Rows that name it.
    rows: u32,
    changed: bool,
}

/// The counts of one site.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) id: SiteId,
    pub(super) whole: Whole,
    /// The site's share of each deployment.
    pub(super) deployments: Shares,
    /// Its devices in order.
    pub(super) members: Members,
    changed: bool,
}

/// What a row put into the counts before it was altered.
#[derive(Debug)]
pub(super) struct Stake {
    share: Share,
    unheard_in: Option<u8>,
    axes: Axes,
    components: Option<Arc<Cast>>,
    blueprint: u32,
}

/// What a site and the fleet have in common.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) group: Group,
    pub(super) devices: Devices,
    /// The devices by partition, of those that the hub does not listen to.
    pub(super) unheard: UnheardCounts,
    /// Devices that would be fresh if the hub listened to their partitions.
    pub(super) masked: u32,
    verdicts: [u32; VERDICTS],
}

const VERDICTS: usize = Verdict::ALL.len();

impl Totals {
    /// The number of a deployment, for one more row that names it.
    pub(super) fn name_deployment(&mut self, id: &DeploymentId) -> u32 {
        let number = match self.deployment_numbers.get(id) {
            Some(number) => *number,
            None => self.new_deployment(id.clone()),
        };
        self.deployments[number as usize].rows += 1;
        number
    }

    fn new_deployment(&mut self, id: DeploymentId) -> u32 {
        let fresh = Deployment::new(id.clone());
        let number = match self.spare.pop() {
            Some(number) => {
                self.deployments[number as usize] = fresh;
                number
            }
            None => {
                self.deployments.push(fresh);
                (self.deployments.len() - 1) as u32
            }
        };
        self.deployment_numbers.insert(id, number);
        number
    }

    /// A row that named a deployment is gone. It must not count for anything any more.
    pub(super) fn release_deployment(&mut self, number: u32) {
        let deployment = &mut self.deployments[number as usize];
        deployment.rows -= 1;
        if deployment.rows == 0 {
            self.deployment_numbers.remove(&deployment.id);
            self.spare.push(number);
        }
    }

    /// The number of a site.
    pub(super) fn name_site(&mut self, id: &SiteId) -> u32 {
        if let Some(number) = self.site_numbers.get(id) {
            return *number;
        }
        let number = self.sites.len() as u32;
        self.sites.push(Site::new(id.clone()));
        self.site_numbers.insert(id.clone(), number);
        number
    }

    pub(super) fn deployment(&self, number: u32) -> &Deployment {
        &self.deployments[number as usize]
    }

    pub(super) fn site(&self, number: u32) -> &Site {
        &self.sites[number as usize]
    }

    pub(super) fn site_mut(&mut self, number: u32) -> &mut Site {
        &mut self.sites[number as usize]
    }

    /// What a row that is about to alter puts into the counts. The errors it counts for are taken out at once.
    pub(super) fn take_out(
        &mut self,
        (site, name): (u32, &DeviceId),
        row: &Row,
        (share, unheard_in): (Share, Option<u8>),
    ) -> Stake {
        if share.shows_errors()
            && let Some(report) = &row.report
        {
            let key = self.sites[site as usize].key_of(name);
            self.deployments[row.deployment as usize].culprits.remove(&key, report);
        }
        Stake {
            share,
            unheard_in: unheard_in.filter(|_| share != Share::Nothing),
            axes: Axes::of(row, self.blueprints.get(row.blueprint), share),
            components: shown_components(row, share).cloned(),
            blueprint: row.blueprint,
        }
    }

    /// Counts a row as it is now in place of what it was: in its deployment, its site, its device's groups and the fleet.
    pub(super) fn put_in(
        &mut self,
        name: &DeviceId,
        (site, groups): (u32, &[u32]),
        row: &Row,
        (share, unheard_in): (Share, Option<u8>),
        was: &Stake,
    ) {
        let nothing = Share::Nothing;
        if (was.share, share) == (nothing, nothing) {
            return;
        }
        let axes = Axes::of(row, self.blueprints.get(row.blueprint), share);
        self.show_blueprint(row.blueprint, share, was);
        let deployment = &mut self.deployments[row.deployment as usize];
        let site = &mut self.sites[site as usize];
        deployment.recount_words(|| site.key_of(name), row, share, was);
        deployment.unheard.shift(Way::Out, was.unheard_in);
        deployment.unheard.shift(Way::In, unheard_in.filter(|_| share != nothing));
        exchange_judged(was.share, share, &mut deployment.group, &mut self.fleet.verdicts);
        site.deployments.change(row.deployment, |local| {
            exchange_judged(was.share, share, local, &mut site.whole.verdicts);
            local.axes.exchange(&was.axes, &axes);
        });
        site.whole.group.exchange(was.share, share);
        self.fleet.group.exchange(was.share, share);
        for group in [&mut deployment.group, &mut site.whole.group, &mut self.fleet.group] {
            group.axes.exchange(&was.axes, &axes);
        }
        if !std::mem::replace(&mut deployment.changed, true) {
            self.changed.keys.push(ViewKey::Deployment(deployment.id.clone()));
        }
        self.changed.mark_site(site);
        for number in groups {
            let group = self.groups.get_mut(*number);
            group.exchange(row.deployment, was.share, share);
            self.changed.mark_group(group);
        }
    }

    /// Counts the row for its application in place of the one it was of, as far as it counts at all.
    fn show_blueprint(&mut self, blueprint: u32, share: Share, was: &Stake) {
        let counted = |share| share != Share::Nothing;
        if counted(was.share) && counted(share) && was.blueprint == blueprint {
            return;
        }
        if counted(share) {
            self.blueprints.show(blueprint);
        }
        if counted(was.share) {
            self.blueprints.hide(was.blueprint);
        }
    }

    /// Puts a device into the counts of its site, its groups and the fleet, or takes it out. A retired device counts for nothing.
    /// Of its targets `unknown` are not known.
    pub(super) fn weigh_device(
        &mut self,
        way: Way,
        (site, groups): (u32, &[u32]),
        facet: &Facet,
        unknown: u32,
    ) {
        if facet.retired {
            return;
        }
        let site = &mut self.sites[site as usize];
        site.whole.weigh(way, facet, unknown);
        self.fleet.weigh(way, facet, unknown);
        self.changed.mark_site(site);
        for number in groups {
            let group = self.groups.get_mut(*number);
            group.whole.weigh(way, facet, unknown);
            self.changed.mark_group(group);
        }
    }

    /// Puts a device with all its standings into groups, or takes it out of them. Nothing else counts it anew.
    pub(super) fn weigh_in_groups(&mut self, way: Way, device: &Device, groups: &[u32]) {
        let facet = device.about.facet();
        for number in groups {
            let group = self.groups.get_mut(*number);
            for row in &device.rows {
                let share = row.share(&facet);
                match way {
                    Way::In => group.exchange(row.deployment, Share::Nothing, share),
                    Way::Out => group.exchange(row.deployment, share, Share::Nothing),
                }
            }
            if !facet.retired {
                group.whole.weigh(way, &facet, device.unknown);
            }
            self.changed.mark_group(group);
        }
    }

    /// The views that may have changed since the last call.
    pub(super) fn take_changed(&mut self) -> BTreeSet<ViewKey> {
        let Changed { keys, fleet: _ } = std::mem::take(&mut self.changed);
        for key in &keys {
            match key {
                ViewKey::Deployment(id) => {
                    if let Some(number) = self.deployment_numbers.get(id) {
                        self.deployments[*number as usize].changed = false;
                    }
                }
                ViewKey::Site(id) => {
                    if let Some(number) = self.site_numbers.get(id) {
                        self.sites[*number as usize].changed = false;
                    }
                }
                ViewKey::Group(label, value) => self.groups.unmark(label, value),
                ViewKey::Fleet | ViewKey::Defined(_) => {}
            }
        }
        keys.into_iter().collect()
    }
}

impl Changed {
    fn mark_group(&mut self, group: &mut LabelGroup) {
        if !std::mem::replace(&mut group.changed, true) {
            self.keys.push(ViewKey::Group(group.label.clone(), group.value.clone()));
        }
    }

    /// A site changed, and so did the fleet.
    fn mark_site(&mut self, site: &mut Site) {
        if !std::mem::replace(&mut site.changed, true) {
            self.keys.push(ViewKey::Site(site.id.clone()));
        }
        if !std::mem::replace(&mut self.fleet, true) {
            self.keys.push(ViewKey::Fleet);
        }
    }
}

/// The components that a row puts into the counts.
fn shown_components(row: &Row, share: Share) -> Option<&Arc<Cast>> {
    row.report.as_ref().filter(|_| share.shows_components()).map(|report| &report.components)
}

/// Exchanges a standing in a deployment's group, and the verdict on it in the count of verdicts.
fn exchange_judged(from: Share, to: Share, group: &mut Group, verdicts: &mut [u32; VERDICTS]) {
    if from == to {
        return;
    }
    let before = group.verdict();
    group.exchange(from, to);
    let after = group.verdict();
    if before != after {
        // A deployment that is empty is nowhere, so it has no verdict to count.
        if before != Verdict::Empty {
            verdicts[before as usize] -= 1;
        }
        if after != Verdict::Empty {
            verdicts[after as usize] += 1;
        }
    }
}

impl Deployment {
    fn new(id: DeploymentId) -> Self {
        Self {
            id,
            group: Group::default(),
            components: BTreeMap::new(),
            culprits: Culprits::default(),
            unheard: UnheardCounts::default(),
            rows: 0,
            changed: false,
        }
    }

    /// Counts the components and errors of a row in place of the components that it had; its errors are out already.
    fn recount_words(&mut self, key: impl FnOnce() -> DeviceKey, row: &Row, share: Share, was: &Stake) {
        let (from, to) = (was.components.as_ref(), shown_components(row, share));
        let same = from.zip(to).is_some_and(|(from, to)| Arc::ptr_eq(from, to));
        if !same {
            self.recount(from.map_or(&[], |cast| cast), to.map_or(&[], |cast| cast));
        }
        if share.shows_errors()
            && let Some(report) = &row.report
        {
            self.culprits.add(&key(), report);
        }
    }

    fn recount(&mut self, from: &[Part], to: &[Part]) {
        let named_alike = from.len() == to.len() && from.iter().zip(to).all(|((was, _), (is, _))| was == is);
        if !named_alike {
            from.iter().for_each(|(name, state)| self.count_component(Way::Out, name, *state));
            to.iter().for_each(|(name, state)| self.count_component(Way::In, name, *state));
            return;
        }
        for ((name, was), (_, is)) in from.iter().zip(to).filter(|((_, was), (_, is))| was != is) {
            if let Some(states) = self.components.get_mut(name) {
                states[*was as usize] -= 1;
                states[*is as usize] += 1;
            }
        }
    }

    fn count_component(&mut self, way: Way, name: &ComponentName, state: State) {
        let Some(states) = self.components.get_mut(name) else {
            let mut states = States::default();
            states[state as usize] = 1;
            self.components.insert(name.clone(), states);
            return;
        };
        way.by(&mut states[state as usize], 1);
        if *states == States::default() {
            self.components.remove(name);
        }
    }
}

impl Site {
    fn new(id: SiteId) -> Self {
        Self {
            id,
            whole: Whole::default(),
            deployments: Shares::default(),
            members: Members::default(),
            changed: false,
        }
    }

    fn key_of(&self, name: &DeviceId) -> DeviceKey {
        DeviceKey { site: self.id.clone(), device: name.clone() }
    }
}

impl Whole {
    /// Puts a device that is not retired into the counts of a part of the fleet, or takes it out.
    fn weigh(&mut self, way: Way, facet: &Facet, unknown: u32) {
        self.devices.shift(way, facet.freshness, facet.missing, facet.is_complete(unknown));
        self.unheard.shift(way, facet.unheard_in);
        way.by(&mut self.masked, facet.is_masked.into());
    }

    /// Puts a standing into the counts of a part of the fleet in place of what it was; `deployments` are the part's shares
    /// of each.
    pub(super) fn exchange(&mut self, from: Share, to: Share, deployment: u32, deployments: &mut Shares) {
        if from == to {
            return;
        }
        deployments.change(deployment, |local| exchange_judged(from, to, local, &mut self.verdicts));
        self.group.exchange(from, to);
    }

    /// Deployments by verdict, without the zeros.
    pub(super) fn deployments(&self) -> BTreeMap<Verdict, u64> {
        Verdict::ALL
            .into_iter()
            .map(|verdict| (verdict, u64::from(self.verdicts[verdict as usize])))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
