//! The counts of every deployment, every site and the fleet, updated by one standing at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::subjects::ViewKey;
use muster_contract::{ComponentName, DeploymentId, DeviceId, DeviceKey, SiteId, State, Timestamp};

use super::app_spec::{AppSpecInterner, shared, uncount};
use super::axes::Axes;
use super::component_set::{ComponentInterner, ComponentSet};
use super::counts_by_deployment::CountsByDeployment;
use super::delta::Delta;
use super::device::Device;
use super::error_index::ErrorIndex;
use super::groups::{Groups, LabelGroup};
use super::hearing::UnheardCounts;
use super::last_changed::LastChanged;
use super::max_by_deployment::MaxByDeployment;
use super::max_timestamp::MaxTimestamp;
use super::members::Members;
use super::slots::fill_slot;
use super::standing::{CountClass, DeviceContext, Row};
use super::tally::{Group, GroupChange};
use super::whole::{Whole, apply_judged};

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
    pub(super) specs: AppSpecInterner,
    pub(super) component_sets: ComponentInterner,
    pub(super) last_changed: LastChanged,
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
    pub(super) error_index: ErrorIndex,
    /// How many counted standings have each name, which the device's desired state gives the deployment.
    names: BTreeMap<Arc<str>, u32>,
    /// The standings by unheard partition.
    pub(super) unheard: UnheardCounts,
    /// When a device with a counted standing was last heard.
    pub(super) heard: MaxTimestamp,
    /// Rows that name it.
    rows: u32,
    changed: bool,
}

/// A deployment and its name.
pub(super) struct Named {
    pub(super) id: DeploymentId,
    pub(super) name: String,
}

/// The counts of one site.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) id: SiteId,
    pub(super) whole: Whole,
    /// The site's share of each deployment.
    pub(super) deployments: CountsByDeployment,
    /// When a device with a counted standing of each deployment was last heard.
    pub(super) heard_with: MaxByDeployment,
    /// Its devices in order.
    pub(super) members: Members,
    changed: bool,
}

/// A row's contribution to the counts before its change.
#[derive(Debug)]
pub(super) struct Contribution {
    class: CountClass,
    unheard_in: Option<u8>,
    axes: Axes,
    components: Option<Arc<ComponentSet>>,
    spec: u32,
}

impl Totals {
    /// The number of a deployment, for one more row that names it.
    pub(super) fn name_deployment(&mut self, id: &DeploymentId) -> u32 {
        let number = match self.deployment_numbers.get(id) {
            Some(number) => *number,
            None => self.new_deployment(id.clone()),
        };
        self.one_more(number)
    }

    /// The same number, for one more row.
    pub(super) fn one_more(&mut self, number: u32) -> u32 {
        self.deployments[number as usize].rows += 1;
        number
    }

    fn new_deployment(&mut self, id: DeploymentId) -> u32 {
        let fresh = Deployment::new(id.clone());
        let number = fill_slot(&mut self.deployments, &mut self.spare, fresh);
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

    pub(super) fn deployment_mut(&mut self, number: u32) -> &mut Deployment {
        &mut self.deployments[number as usize]
    }

    pub(super) fn site(&self, number: u32) -> &Site {
        &self.sites[number as usize]
    }

    pub(super) fn site_mut(&mut self, number: u32) -> &mut Site {
        &mut self.sites[number as usize]
    }

    /// Returns a row's contribution before its change. Its errors are retracted at once, all other counts by
    /// [`add_row`](Self::add_row).
    pub(super) fn retract_row(
        &mut self,
        site: u32,
        name: &DeviceId,
        row: &Row,
        class: CountClass,
        unheard_in: Option<u8>,
    ) -> Contribution {
        if class.shows_errors()
            && let Some(report) = &row.report
        {
            let key = self.sites[site as usize].key_of(name);
            self.deployments[row.deployment as usize].error_index.remove(&key, report);
        }
        Contribution {
            class,
            unheard_in: unheard_in.filter(|_| class != CountClass::Nothing),
            axes: Axes::of(row, self.specs.get(row.spec), class),
            components: shown_components(row, class).cloned(),
            spec: row.spec,
        }
    }

    /// Adds a row's current contribution in place of its former one: to its deployment, its site, its device's
    /// groups and the fleet.
    pub(super) fn add_row(
        &mut self,
        name: &DeviceId,
        (site, groups): (u32, &[u32]),
        row: &Row,
        (class, unheard_in): (CountClass, Option<u8>),
        was: &Contribution,
    ) {
        let nothing = CountClass::Nothing;
        if (was.class, class) == (nothing, nothing) {
            return;
        }
        let axes = Axes::of(row, self.specs.get(row.spec), class);
        self.show_spec(row, class, was);
        let deployment = &mut self.deployments[row.deployment as usize];
        let site = &mut self.sites[site as usize];
        deployment.recount_words(|| site.key_of(name), row, class, was);
        deployment.unheard.shift(Delta::Retract, was.unheard_in);
        deployment.unheard.shift(Delta::Add, unheard_in.filter(|_| class != nothing));
        let change = GroupChange::between(was.class, was.axes, class, axes);
        if (was.class, was.axes) != (class, axes) {
            apply_judged(&change, &mut deployment.group, &mut self.fleet.verdicts);
            site.whole.apply(&change, row.deployment, &mut site.deployments);
            self.fleet.group.apply(&change);
        }
        if !std::mem::replace(&mut deployment.changed, true) {
            self.changed.keys.push(ViewKey::Deployment(deployment.id.clone()));
        }
        self.changed.mark_site(site);
        for number in groups {
            let group = self.groups.get_mut(*number);
            if was.class != class {
                group.apply(row.deployment, &change.without_axes());
            }
            self.changed.mark_group(group);
        }
    }

    /// Counts the row for its application and its name in place of the former ones, if the row is counted at all.
    fn show_spec(&mut self, row: &Row, class: CountClass, was: &Contribution) {
        let counted = |class| class != CountClass::Nothing;
        if counted(was.class) && counted(class) && was.spec == row.spec {
            return;
        }
        let names = &mut self.deployments[row.deployment as usize].names;
        if counted(class) {
            self.specs.show(row.spec);
            self.specs.get(row.spec).into_iter().for_each(|spec| _ = shared(names, spec.name.clone()));
        }
        if counted(was.class) {
            self.specs.get(was.spec).into_iter().for_each(|spec| uncount(names, &spec.name));
            self.specs.hide(was.spec);
        }
    }

    /// Adds a device to the counts of its site, its groups and the fleet, or retracts it. A retired device
    /// counts for nothing. `unknown` of its targets are not known.
    pub(super) fn apply_device(
        &mut self,
        delta: Delta,
        site: u32,
        groups: &[u32],
        context: &DeviceContext,
        unknown: u32,
    ) {
        if context.retired {
            return;
        }
        let site = &mut self.sites[site as usize];
        site.whole.apply_delta(delta, context, unknown);
        self.fleet.apply_delta(delta, context, unknown);
        self.changed.mark_site(site);
        for number in groups {
            let group = self.groups.get_mut(*number);
            group.whole.apply_delta(delta, context, unknown);
            self.changed.mark_group(group);
        }
    }

    /// Replaces the time of a row's last change at its site and in its device's groups.
    pub(super) fn replace_changed(
        &mut self,
        place: (u32, u32),
        groups: &[u32],
        was: Option<Timestamp>,
        is: Option<Timestamp>,
    ) {
        if was == is {
            return;
        }
        self.last_changed.replace(place, was, is);
        for number in groups {
            let group = self.groups.get_mut(*number);
            group.changed_at.exchange(was, is);
            group.changed_with.exchange(place.0, was, is);
        }
    }

    /// Puts a device with all its standings into groups, or takes it out of them. Nothing else counts it anew.
    pub(super) fn apply_to_groups(&mut self, delta: Delta, device: &Device, groups: &[u32]) {
        let context = device.state.context();
        for number in groups {
            let group = self.groups.get_mut(*number);
            for row in &device.rows {
                group.changed_at.apply(delta, row.changed_at());
                group.changed_with.apply(delta, row.deployment, row.changed_at());
                let heard_at = context.heard_at.filter(|_| row.is_counted(&context));
                group.heard_with.apply(delta, row.deployment, heard_at);
                let (nothing, class, axes) =
                    (CountClass::Nothing, row.count_class(&context), Axes::default());
                let change = match delta {
                    Delta::Add => GroupChange::between(nothing, axes, class, axes),
                    Delta::Retract => GroupChange::between(class, axes, nothing, axes),
                };
                group.apply(row.deployment, &change);
            }
            if !context.retired {
                group.whole.apply_delta(delta, &context, device.unknown);
                group.whole.heard.apply(delta, context.heard_at);
            }
            self.changed.mark_group(group);
        }
    }

    /// The views that may have changed since the last call.
    pub(super) fn drain_changed(&mut self) -> BTreeSet<ViewKey> {
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
fn shown_components(row: &Row, class: CountClass) -> Option<&Arc<ComponentSet>> {
    row.report.as_ref().filter(|_| class.shows_components()).map(|report| &report.components)
}

impl Deployment {
    fn new(id: DeploymentId) -> Self {
        Self {
            id,
            group: Group::default(),
            components: BTreeMap::new(),
            error_index: ErrorIndex::default(),
            names: BTreeMap::new(),
            unheard: UnheardCounts::default(),
            heard: MaxTimestamp::default(),
            rows: 0,
            changed: false,
        }
    }

    /// Its most frequent name for people, of equally frequent ones the first; empty if that is its id.
    pub(super) fn name(&self) -> &str {
        let most = self.names.iter().max_by_key(|(name, count)| (**count, Reverse(*name)));
        most.map(|(name, _)| &**name).filter(|name| *name != self.id.as_str()).unwrap_or_default()
    }

    /// Its id with that name.
    pub(super) fn named(&self) -> Named {
        Named { id: self.id.clone(), name: self.name().to_owned() }
    }

    /// Counts the components and errors of a row in place of the components that it had; its errors are out already.
    fn recount_words(
        &mut self,
        key: impl FnOnce() -> DeviceKey,
        row: &Row,
        class: CountClass,
        was: &Contribution,
    ) {
        let (from, to) = (was.components.as_ref(), shown_components(row, class));
        let same = from.zip(to).is_some_and(|(from, to)| Arc::ptr_eq(from, to));
        if !same {
            self.recount(from.map_or(&[], |set| set), to.map_or(&[], |set| set));
        }
        if class.shows_errors()
            && let Some(report) = &row.report
        {
            self.error_index.add(&key(), report);
        }
    }

    fn recount(&mut self, from: &[Part], to: &[Part]) {
        let named_alike = from.len() == to.len() && from.iter().zip(to).all(|((was, _), (is, _))| was == is);
        if !named_alike {
            from.iter().for_each(|(name, state)| self.count_component(Delta::Retract, name, *state));
            to.iter().for_each(|(name, state)| self.count_component(Delta::Add, name, *state));
            return;
        }
        for ((name, was), (_, is)) in from.iter().zip(to).filter(|((_, was), (_, is))| was != is) {
            if let Some(states) = self.components.get_mut(name) {
                states[*was as usize] -= 1;
                states[*is as usize] += 1;
            }
        }
    }

    fn count_component(&mut self, delta: Delta, name: &ComponentName, state: State) {
        let Some(states) = self.components.get_mut(name) else {
            let mut states = States::default();
            states[state as usize] = 1;
            self.components.insert(name.clone(), states);
            return;
        };
        delta.apply(&mut states[state as usize], 1);
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
            deployments: CountsByDeployment::default(),
            heard_with: MaxByDeployment::default(),
            members: Members::default(),
            changed: false,
        }
    }

    fn key_of(&self, name: &DeviceId) -> DeviceKey {
        DeviceKey { site: self.id.clone(), device: name.clone() }
    }
}
