//! Filters standings for a status question. An unknown name is an error; a known name that matches nothing is
//! an empty answer.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included, Unbounded};

use muster_contract::limits::FILTER_VALUES_MAX;
use muster_contract::near::{did_you_mean, near};
use muster_contract::status::StatusQuery;
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, Generation, SiteId, Timestamp};

use super::super::app_spec::AppSpec;
use super::super::axes::{Axes, ComponentCondition, RowCondition, parts};
use super::super::device::Device;
use super::super::fleet::Fleet;
use super::super::last_heard::LastHeardLookup;
use super::super::standing::{CountClass, Row};
use super::super::tally::Group;
use super::super::totals::Site;
use super::{StatusCursor, StatusRefusal};

/// Names that are compared with an unknown one, so that a slip of the pen does not cost more than a question.
const COMPARED_MAX: usize = 2_000;

/// A question's filters, with all names resolved.
#[derive(Default)]
pub(super) struct Filter<'q> {
    pub(super) deployment: Option<u32>,
    apps: BTreeSet<&'q str>,
    pub(super) sites: BTreeSet<&'q SiteId>,
    devices: BTreeSet<&'q DeviceKey>,
    components: BTreeSet<&'q ComponentName>,
    standings: BTreeSet<Standing>,
    freshness: BTreeSet<Freshness>,
    errors: BTreeSet<&'q str>,
    generation: Option<Generation>,
}

/// A standing that passes the filters.
pub(super) struct FilteredRow<'a> {
    pub(super) site: &'a SiteId,
    pub(super) device: &'a Device,
    pub(super) deployment: &'a DeploymentId,
    pub(super) row: &'a Row,
    pub(super) class: CountClass,
    pub(super) scan: RowCondition,
    /// Its contribution to the counts, with only the components that pass.
    pub(super) axes: Axes,
    pub(super) age: Age,
    /// When its device was heard last.
    pub(super) heard_at: Option<Timestamp>,
    spec: Option<&'a AppSpec>,
}

/// How a standing is to the generation that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// The current target has that generation.
    Now,
    /// Superseded; the last report is about it.
    Reported,
    /// Superseded, and nothing of that generation is held.
    Gone,
}

impl Fleet {
    /// The filters of a question.
    pub(super) fn filter<'q>(&self, query: &'q StatusQuery) -> Result<Filter<'q>, StatusRefusal> {
        let StatusQuery { app, site, device, component, .. } = query;
        query.makes_sense().map_err(StatusRefusal::Wrong)?;
        let deployment = query.id.as_ref().map(|id| self.known_deployment_at(id, &[])).transpose()?;
        site.iter().try_for_each(|site| self.know_site(site))?;
        device.iter().try_for_each(|path| self.know_device(&path.0))?;
        app.iter().try_for_each(|app| self.know_app(app))?;
        component.iter().try_for_each(|name| self.know_component(name))?;
        self.know_generation(query)?;
        Ok(Filter {
            deployment,
            apps: app.iter().map(String::as_str).collect(),
            sites: site.iter().collect(),
            devices: device.iter().map(|path| &path.0).collect(),
            components: component.iter().collect(),
            standings: query.standing.clone(),
            freshness: query.freshness.clone(),
            errors: query.error.iter().map(String::as_str).collect(),
            generation: query.generation,
        })
    }

    /// The counts of a deployment at some sites; at all of them if none is named.
    pub(in crate::fold) fn group_at<'a>(
        &'a self,
        deployment: u32,
        sites: impl IntoIterator<Item = &'a Site>,
    ) -> Group {
        let mut sites = sites.into_iter().peekable();
        if sites.peek().is_none() {
            return self.totals.deployment(deployment).group;
        }
        let groups = sites.filter_map(|site| site.deployments.get(deployment).copied());
        groups.fold(Group::default(), |mut sum, group| {
            sum += group;
            sum
        })
    }

    /// The number of a deployment that has targets or standings at these sites, or at any site if none is named.
    pub(in crate::fold) fn known_deployment_at(
        &self,
        id: &DeploymentId,
        sites: &[&Site],
    ) -> Result<u32, StatusRefusal> {
        let is_there = |number: u32| self.group_at(number, sites.iter().copied()).verdict() != Verdict::Empty;
        let known = self.totals.deployment_numbers.get(id).copied().filter(|number| is_there(*number));
        known.ok_or_else(|| {
            let others = self.totals.deployment_numbers.iter().filter(|(_, number)| is_there(**number));
            let names = others.map(|(id, _)| id.as_str());
            unknown(format!("deployment '{id}' is targeted nowhere and left nowhere"), id.as_str(), names)
        })
    }

    fn know_site(&self, site: &SiteId) -> Result<(), StatusRefusal> {
        if self.totals.site_numbers.contains_key(site) {
            return Ok(());
        }
        let names = self.totals.site_numbers.keys().map(SiteId::as_str);
        Err(unknown(format!("site '{site}' has no devices"), site.as_str(), names))
    }

    fn know_device(&self, key: &DeviceKey) -> Result<(), StatusRefusal> {
        if self.find(key).is_some() {
            return Ok(());
        }
        self.know_site(&key.site)?;
        let site = self.totals.site_numbers.get(&key.site).map(|number| self.totals.site(*number));
        let members = site.into_iter().flat_map(|site| site.members.iter());
        let names = members.map(|number| self.devices[number as usize].state.name.as_str());
        Err(unknown(format!("device '{key}' was never heard of"), key.device.as_str(), names))
    }

    fn know_app(&self, app: &str) -> Result<(), StatusRefusal> {
        if self.totals.specs.has_application(app) {
            return Ok(());
        }
        let shown: String = app.chars().take(FILTER_VALUES_MAX).collect();
        Err(unknown(
            format!("app '{shown}' shall run nowhere and is left nowhere"),
            &shown,
            self.totals.specs.applications(),
        ))
    }

    /// Superseded targets are known by their reports alone.
    fn know_component(&self, name: &ComponentName) -> Result<(), StatusRefusal> {
        let (specs, component_sets) = (&self.totals.specs, &self.totals.component_sets);
        if specs.has_component(name) || component_sets.has(name) {
            return Ok(());
        }
        let names: BTreeSet<_> =
            specs.components().take(COMPARED_MAX).chain(component_sets.names().take(COMPARED_MAX)).collect();
        let words = format!("component '{name}' shall run nowhere and is left nowhere");
        Err(unknown(words, name.as_str(), names.into_iter().map(ComponentName::as_str)))
    }

    fn know_generation(&self, query: &StatusQuery) -> Result<(), StatusRefusal> {
        let Some(wanted) = query.generation else { return Ok(()) };
        let [path] = query.device.as_slice() else { return Ok(()) };
        let newest = self.find(&path.0).and_then(|device| device.state.desired());
        match newest {
            Some(newest) if wanted <= newest => Ok(()),
            Some(newest) => Err(StatusRefusal::Unknown(format!(
                "generation {wanted} of {path} was never published; the newest is {newest}"
            ))),
            None => Err(StatusRefusal::Unknown(format!("nothing was ever published for {path}"))),
        }
    }
}

fn unknown<'a>(what: String, wanted: &str, names: impl Iterator<Item = &'a str>) -> StatusRefusal {
    StatusRefusal::Unknown(what + &did_you_mean(&near(wanted, names.take(COMPARED_MAX))))
}

impl<'q> Filter<'q> {
    /// True where nothing is filtered.
    fn is_open(&self) -> bool {
        self.is_of_places() && self.sites.is_empty()
    }

    /// True where sites are all that is filtered by: counts are kept of exactly what passes.
    pub(super) fn is_of_places(&self) -> bool {
        let Self { apps, devices, components, generation, .. } = self;
        let is_of_any = apps.is_empty() && self.is_of_any_row();
        is_of_any && devices.is_empty() && components.is_empty() && generation.is_none()
    }

    /// True where no row is left out for what it shows.
    fn is_of_any_row(&self) -> bool {
        self.standings.is_empty() && self.freshness.is_empty() && self.errors.is_empty()
    }

    /// Whether a row shows what the question names.
    fn shows(&self, row: &Row, class: CountClass, freshness: Freshness) -> bool {
        let is_wanted = |class| matches!(class, CountClass::Target { standing, .. } if self.standings.contains(&standing));
        (self.standings.is_empty() || is_wanted(class))
            && (self.freshness.is_empty() || self.freshness.contains(&freshness))
            && (self.errors.is_empty() || row.has_error(class, |code| self.errors.contains(code)))
    }

    /// The counts that are kept of exactly what passes, if there are any, and when the newest of it changed.
    pub(super) fn kept(&self, fleet: &Fleet) -> Option<(Group, Option<Timestamp>)> {
        let totals = &fleet.totals;
        if !self.is_of_places() {
            return None;
        }
        if self.is_open() {
            return Some(match self.deployment {
                Some(it) => (totals.deployment(it).group, totals.last_changed.of_deployment(it)),
                None => (totals.fleet.group, totals.last_changed.of_fleet()),
            });
        }
        let numbers = || self.sites.iter().filter_map(|site| totals.site_numbers.get(*site));
        let sites = numbers().map(|number| totals.site(*number));
        let (sum, newest) = match self.deployment {
            Some(it) => {
                let changed = numbers().map(|number| totals.last_changed.of_place((it, *number)));
                (fleet.group_at(it, sites), changed.max())
            }
            None => {
                let changed = numbers().map(|number| totals.last_changed.of_site(*number));
                let add = |mut sum: Group, site: &Site| {
                    sum += site.whole.group;
                    sum
                };
                (sites.fold(Group::default(), add), changed.max())
            }
        };
        Some((sum, newest.flatten()))
    }

    /// When a device whose standing passes was heard last, where counts are kept of exactly what passes.
    pub(super) fn kept_heard_at(&self, fleet: &Fleet) -> Option<Timestamp> {
        let totals = &fleet.totals;
        if self.is_open() {
            return self.deployment.map_or_else(|| fleet.heard_anywhere(), |it| fleet.heard_with(it));
        }
        let numbers = self.sites.iter().filter_map(|site| totals.site_numbers.get(*site));
        let sites = numbers.map(|number| totals.site(*number));
        match self.deployment {
            Some(it) => LastHeardLookup::new(fleet, sites.collect()).of(it),
            None => sites.filter_map(|site| fleet.heard_at_site(site)).max(),
        }
    }

    /// The devices to visit, in order. The cursor's device comes again if only part of it was visited.
    pub(super) fn devices_after<'f, 'a: 'f>(
        &'f self,
        fleet: &'a Fleet,
        after: Option<&'f StatusCursor>,
    ) -> Box<dyn Iterator<Item = &'a Device> + 'f> {
        if !self.devices.is_empty() {
            let at_site = move |key: &DeviceKey| self.sites.is_empty() || self.sites.contains(&key.site);
            let keys = self.devices.iter().copied().filter(move |key| at_site(key) && is_due(key, after));
            return Box::new(keys.filter_map(|key| fleet.find(key)));
        }
        let first = after.map_or(Unbounded, |after| Included(&after.device.site));
        let sites = fleet.totals.site_numbers.range::<SiteId, _>((first, Unbounded));
        let sites: Box<dyn Iterator<Item = u32> + 'f> = if self.sites.is_empty() {
            Box::new(sites.map(|(_, number)| *number))
        } else {
            let due = move |site: &&&SiteId| after.is_none_or(|after| **site >= &after.device.site);
            let named = self.sites.iter().filter(due);
            Box::new(named.filter_map(|site| fleet.totals.site_numbers.get(*site).copied()))
        };
        let sites = sites.map(|number| fleet.totals.site(number));
        let sites = sites.filter(|site| self.deployment.is_none_or(|it| site.deployments.has(it)));
        Box::new(sites.flat_map(move |site| {
            let from = match after.filter(|after| after.device.site == site.id) {
                Some(StatusCursor { device, deployment: Some(_) }) => Included(&device.device),
                Some(StatusCursor { device, deployment: None }) => Excluded(&device.device),
                None => Unbounded,
            };
            let members = site.members.from(&fleet.devices, from);
            members.map(|number| &fleet.devices[number as usize])
        }))
    }

    /// The standing, if it passes.
    pub(super) fn find<'a>(
        &self,
        fleet: &'a Fleet,
        device: &'a Device,
        row: &'a Row,
    ) -> Option<FilteredRow<'a>> {
        let context = device.state.context();
        let (age, class) = self.as_of_generation(row, row.count_class(&context), &context);
        let scan = RowCondition::of(row, class)?;
        if !self.shows(row, class, context.freshness) {
            return None;
        }
        let spec = fleet.totals.specs.get(row.spec);
        let app = spec.map(|spec| &*spec.application);
        if !self.apps.is_empty() && !app.is_some_and(|app| self.apps.contains(app)) {
            return None;
        }
        let deployment = &fleet.totals.deployment(row.deployment).id;
        let axes = Axes::default();
        let (site, heard_at) = (fleet.site_of(device), fleet.last_heard_at(device));
        let mut found = FilteredRow { site, device, deployment, row, class, scan, axes, age, heard_at, spec };
        let mut axes = Axes::default();
        let mut any = false;
        self.parts(&found).for_each(|part| {
            axes.count(&part);
            any = true;
        });
        axes.count_row(scan);
        found.axes = axes;
        (any || age == Age::Gone || self.components.is_empty()).then_some(found)
    }

    /// Its components that pass.
    pub(super) fn parts<'f, 'a: 'f>(
        &'f self,
        found: &FilteredRow<'a>,
    ) -> impl Iterator<Item = ComponentCondition<'a>> + 'f {
        let passes =
            |part: &ComponentCondition<'_>| self.components.is_empty() || self.components.contains(part.name);
        let FilteredRow { row, scan, spec, age, .. } = *found;
        let now = (age == Age::Now).then(|| parts(row, spec, scan));
        let then = (age == Age::Reported).then(|| scan.reported(row));
        now.into_iter().flatten().chain(then.into_iter().flatten()).filter(passes)
    }

    /// The row's relation to the requested generation, and its class as of then.
    fn as_of_generation(
        &self,
        row: &Row,
        class: CountClass,
        context: &super::super::standing::DeviceContext,
    ) -> (Age, CountClass) {
        let Some(wanted) = self.generation.filter(|_| class != CountClass::Nothing) else {
            return (Age::Now, class);
        };
        if row.target.is_some_and(|target| target <= wanted) {
            return (Age::Now, class);
        }
        let report = row.report.as_ref().filter(|report| report.generation == wanted);
        let Some(report) = report else { return (Age::Gone, class) };
        let then = CountClass::Target {
            standing: if report.is_crash_loop() { Standing::Failed } else { report.state.into() },
            freshness: context.freshness,
            known: row.is_known(context),
            overdue: false,
            attempts: 0,
            missing: context.missing,
            source: report.evidence_source(),
        };
        (Age::Reported, then)
    }
}

impl Row {
    /// Whether an error of it counts and has one of the wanted codes.
    pub(in crate::fold) fn has_error(&self, class: CountClass, is_wanted: impl Fn(&str) -> bool) -> bool {
        let report = self.report.as_ref().filter(|_| class.shows_errors());
        report.is_some_and(|report| report.errors().iter().any(|error| is_wanted(error.code)))
    }
}

fn is_due(key: &DeviceKey, after: Option<&StatusCursor>) -> bool {
    after.is_none_or(|after| match after.deployment {
        Some(_) => *key >= after.device,
        None => *key > after.device,
    })
}

impl<'a> FilteredRow<'a> {
    /// The application; none where no spec was assigned.
    pub(super) fn app(&self) -> Option<&'a str> {
        self.spec.map(|spec| &*spec.application)
    }

    /// True where nothing is held of the generation that was asked for.
    pub(super) fn is_gone(&self) -> bool {
        self.age == Age::Gone
    }
}
