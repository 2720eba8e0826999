//! Which standings a question about status is about. A name that nobody knows is an error; a known one that leaves
//! nothing is an answer.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included, Unbounded};

use muster_contract::status::{FILTER_VALUES_MAX, StatusQuery};
use muster_contract::view::{Standing, Verdict};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, Generation, SiteId, Timestamp};

use super::super::axes::{Axes, Look, Part, parts};
use super::super::blueprint::Blueprint;
use super::super::device::Device;
use super::super::fleet::Fleet;
use super::super::standing::{Row, Share};
use super::super::tally::Group;
use super::{StatusCursor, StatusRefusal};
use crate::near::near;

/// Names that are compared with an unknown one, so that a slip of the pen does not cost more than a question.
const COMPARED_MAX: usize = 2_000;

/// A question's filters, every name of which is known.
pub(super) struct Filter<'q> {
    pub(super) deployment: Option<u32>,
    apps: BTreeSet<&'q str>,
    pub(super) sites: BTreeSet<&'q SiteId>,
    devices: BTreeSet<&'q DeviceKey>,
    components: BTreeSet<&'q ComponentName>,
    generation: Option<Generation>,
}

/// A standing that passes the filters.
pub(super) struct Found<'a> {
    pub(super) site: &'a SiteId,
    pub(super) device: &'a Device,
    pub(super) deployment: &'a DeploymentId,
    pub(super) row: &'a Row,
    pub(super) share: Share,
    pub(super) look: Look,
    /// What it adds to the counts: of its components only those that pass.
    pub(super) axes: Axes,
    pub(super) age: Age,
    /// When its device was heard last, if that is silent.
    pub(super) silent_since: Option<Timestamp>,
    blueprint: Option<&'a Blueprint>,
}

/// How a standing is to the generation that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    /// What shall run now is what that generation said.
    Now,
    /// Superseded; the last report is about it.
    Reported,
    /// Superseded, and nothing of it is held.
    Gone,
}

impl Fleet {
    /// The filters of a question.
    pub(super) fn filter<'q>(&self, query: &'q StatusQuery) -> Result<Filter<'q>, StatusRefusal> {
        let StatusQuery { app, site, device, component, .. } = query;
        query.makes_sense().map_err(StatusRefusal::Wrong)?;
        let deployment = query.id.as_ref().map(|id| self.known_deployment(id)).transpose()?;
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
            generation: query.generation,
        })
    }

    fn known_deployment(&self, id: &DeploymentId) -> Result<u32, StatusRefusal> {
        let is_there = |number: u32| self.totals.deployment(number).group.verdict() != Verdict::Empty;
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
        let names = members.map(|number| self.devices[number as usize].about.name.as_str());
        Err(unknown(format!("device '{key}' was never heard of"), key.device.as_str(), names))
    }

    fn know_app(&self, app: &str) -> Result<(), StatusRefusal> {
        if self.totals.blueprints.has_application(app) {
            return Ok(());
        }
        let shown: String = app.chars().take(FILTER_VALUES_MAX).collect();
        Err(unknown(
            format!("app '{shown}' shall run nowhere and is left nowhere"),
            &shown,
            self.totals.blueprints.applications(),
        ))
    }

    /// What is left of an older target is known by its reports.
    fn know_component(&self, name: &ComponentName) -> Result<(), StatusRefusal> {
        let (blueprints, casts) = (&self.totals.blueprints, &self.totals.casts);
        if blueprints.has_component(name) || casts.has(name) {
            return Ok(());
        }
        let names: BTreeSet<_> =
            blueprints.components().take(COMPARED_MAX).chain(casts.names().take(COMPARED_MAX)).collect();
        let words = format!("component '{name}' shall run nowhere and is left nowhere");
        Err(unknown(words, name.as_str(), names.into_iter().map(ComponentName::as_str)))
    }

    fn know_generation(&self, query: &StatusQuery) -> Result<(), StatusRefusal> {
        let Some(wanted) = query.generation else { return Ok(()) };
        let [path] = query.device.as_slice() else { return Ok(()) };
        let newest = self.find(&path.0).and_then(|device| device.about.desired());
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
    let near = near(wanted, names.take(COMPARED_MAX));
    let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
    StatusRefusal::Unknown(what + &hint)
}

impl<'q> Filter<'q> {
    /// True where nothing is filtered.
    fn is_open(&self) -> bool {
        self.is_of_places() && self.sites.is_empty()
    }

    /// True where sites are all that is filtered by.
    fn is_of_places(&self) -> bool {
        let Self { apps, devices, components, generation, .. } = self;
        apps.is_empty() && devices.is_empty() && components.is_empty() && generation.is_none()
    }

    /// The counts that are kept of exactly what passes, if there are any, and when the newest of it changed.
    pub(super) fn kept(&self, fleet: &Fleet) -> Option<(Group, Option<Timestamp>)> {
        let totals = &fleet.totals;
        if !self.is_of_places() {
            return None;
        }
        if self.is_open() {
            return Some(match self.deployment {
                Some(it) => (totals.deployment(it).group, totals.newest.of_deployment(it)),
                None => (totals.fleet.group, totals.newest.of_fleet()),
            });
        }
        let (mut sum, mut newest) = (Group::default(), None);
        for number in self.sites.iter().filter_map(|site| totals.site_numbers.get(*site)) {
            let site = totals.site(*number);
            let (group, changed_at) = match self.deployment {
                Some(it) => (site.deployments.get(it).copied(), totals.newest.of_place((it, *number))),
                None => (Some(site.whole.group), totals.newest.of_site(*number)),
            };
            sum += group.unwrap_or_default();
            newest = newest.max(changed_at);
        }
        Some((sum, newest))
    }

    /// The devices to look at, in order. One that is named by the cursor comes again if only part of it was seen.
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
    pub(super) fn find<'a>(&self, fleet: &'a Fleet, device: &'a Device, row: &'a Row) -> Option<Found<'a>> {
        let facet = device.about.facet();
        let (age, share) = self.as_of_generation(row, row.share(&facet), &facet);
        let look = Look::of(row, share)?;
        let blueprint = fleet.totals.blueprints.get(row.blueprint);
        let app = blueprint.map(|print| &*print.application);
        if !self.apps.is_empty() && !app.is_some_and(|app| self.apps.contains(app)) {
            return None;
        }
        let deployment = &fleet.totals.deployment(row.deployment).id;
        let axes = Axes::default();
        let (site, silent_since) = (fleet.site_of(device), fleet.silent_since(device));
        let mut found =
            Found { site, device, deployment, row, share, look, axes, age, silent_since, blueprint };
        let mut axes = Axes::default();
        let mut any = false;
        self.parts(&found).for_each(|part| {
            axes.count(&part);
            any = true;
        });
        axes.count_row(look);
        found.axes = axes;
        (any || age == Age::Gone || self.components.is_empty()).then_some(found)
    }

    /// Its components that pass.
    pub(super) fn parts<'f, 'a: 'f>(&'f self, found: &Found<'a>) -> impl Iterator<Item = Part<'a>> + 'f {
        let passes = |part: &Part<'_>| self.components.is_empty() || self.components.contains(part.name);
        let Found { row, look, blueprint, age, .. } = *found;
        let now = (age == Age::Now).then(|| parts(row, blueprint, look));
        let then = (age == Age::Reported).then(|| look.reported(row));
        now.into_iter().flatten().chain(then.into_iter().flatten()).filter(passes)
    }

    /// How it is to the generation that was asked for, and its share as of then.
    fn as_of_generation(
        &self,
        row: &Row,
        share: Share,
        facet: &super::super::standing::Facet,
    ) -> (Age, Share) {
        let Some(wanted) = self.generation.filter(|_| share != Share::Nothing) else {
            return (Age::Now, share);
        };
        if row.target.is_some_and(|target| target <= wanted) {
            return (Age::Now, share);
        }
        let report = row.report.as_ref().filter(|report| report.generation == wanted);
        let Some(report) = report else { return (Age::Gone, share) };
        let then = Share::Target {
            standing: if report.is_crash_loop() { Standing::Failed } else { report.state.into() },
            freshness: facet.freshness,
            known: row.is_known(facet),
            overdue: false,
            retried: false,
            missing: facet.missing,
        };
        (Age::Reported, then)
    }
}

fn is_due(key: &DeviceKey, after: Option<&StatusCursor>) -> bool {
    after.is_none_or(|after| match after.deployment {
        Some(_) => *key >= after.device,
        None => *key > after.device,
    })
}

impl<'a> Found<'a> {
    /// The application; none where nobody said that it shall run.
    pub(super) fn app(&self) -> Option<&'a str> {
        self.blueprint.map(|blueprint| &*blueprint.application)
    }

    /// True where nothing is held of the generation that was asked for.
    pub(super) fn is_gone(&self) -> bool {
        self.age == Age::Gone
    }
}
