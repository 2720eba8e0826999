//! Splits a status question into one query for each hub concerned. It does no IO.
//!
//! A site and its devices belong to one hub, so each hub is asked about its own. A deployment, application or
//! component may be at several hubs: a name is unknown only where no hub knows it.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::query::{DETAIL_PAGE_MAX, ErrorBody, Output};
use muster_contract::question::{bad, checked_limit, parsed_after};
use muster_contract::status::{DevicePath, StatusQuery};
use muster_contract::{ComponentName, DeploymentId, HubName, SiteId};
use muster_domain::fold::StatusCursor;

use crate::places::{Places, all_read, nowhere};

/// A question, and what of it each hub is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScatteredQuery {
    /// The question.
    pub query: StatusQuery,
    /// How many lines are wanted.
    pub limit: usize,
    /// The query for each hub, in the order of hubs.
    pub hub_queries: Vec<HubQuery>,
}

/// The query for one hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubQuery {
    /// The hub.
    pub hub: HubName,
    /// The question about the hub's own sites.
    pub query: StatusQuery,
    /// False where nothing there passes, and the hub is only asked whether it knows the named devices.
    pub adds: bool,
}

/// A name that may be known at any hub.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// A deployment.
    Deployment(DeploymentId),
    /// An application.
    App(String),
    /// A component.
    Component(ComponentName),
}

impl Name {
    /// The names of a question, in the order in which one hub looks for them.
    pub(crate) fn all_of(query: &StatusQuery) -> Vec<Self> {
        let deployments = query.id.iter().cloned().map(Self::Deployment);
        let apps = query.app.iter().cloned().map(Self::App);
        let components = query.component.iter().cloned().map(Self::Component);
        deployments.chain(apps).chain(components).collect()
    }

    /// The question that only who knows the name answers.
    pub(crate) fn question(&self) -> StatusQuery {
        let any = StatusQuery::default();
        match self.clone() {
            Self::Deployment(id) => StatusQuery { id: Some(id), ..any },
            Self::App(app) => StatusQuery { app: vec![app], ..any },
            Self::Component(name) => StatusQuery { component: vec![name], ..any },
        }
    }
}

/// The sites and devices of a question that are at one hub.
#[derive(Default)]
struct HubPlaces {
    sites: Vec<SiteId>,
    devices: Vec<DevicePath>,
}

/// Splits a question into queries for hubs.
///
/// # Errors
/// The question is wrong, names a site that no hub has, or is about a hub that was not read yet.
pub(crate) fn scatter(query: StatusQuery, places: &impl Places) -> Result<ScatteredQuery, ErrorBody> {
    query.makes_sense().map_err(bad)?;
    let limit = checked_limit(query.limit)?;
    let limit = if query.output == Output::Detail { limit.min(DETAIL_PAGE_MAX) } else { limit };
    parsed_after::<StatusCursor>(query.after.as_deref())?;
    let anywhere = query.site.is_empty() && query.device.is_empty();
    if anywhere {
        all_read(places)?;
    }
    let hub_queries = if anywhere {
        let share = |hub| HubQuery { hub, query: query.clone(), adds: true };
        places.hubs().into_iter().map(share).collect()
    } else {
        let parts = parts(&query, places)?.into_iter();
        parts.filter_map(|(hub, part)| part.share(hub, &query)).collect()
    };
    Ok(ScatteredQuery { query, limit, hub_queries })
}

fn parts(query: &StatusQuery, places: &impl Places) -> Result<BTreeMap<HubName, HubPlaces>, ErrorBody> {
    let hub_of = |site: &SiteId| places.hub_of(site).ok_or_else(|| nowhere(site, places));
    let mut parts: BTreeMap<HubName, HubPlaces> = BTreeMap::new();
    for site in &query.site {
        parts.entry(hub_of(site)?).or_default().sites.push(site.clone());
    }
    for device in &query.device {
        parts.entry(hub_of(&device.0.site)?).or_default().devices.push(device.clone());
    }
    Ok(parts)
}

impl HubPlaces {
    /// The query for this hub; none where nothing is to be asked, because the site's existence is known.
    fn share(self, hub: HubName, query: &StatusQuery) -> Option<HubQuery> {
        let Self { sites, devices } = self;
        let nothing =
            (sites.is_empty() && !query.site.is_empty()) || (devices.is_empty() && !query.device.is_empty());
        if !nothing {
            let query = StatusQuery { site: sites, device: devices, ..query.clone() };
            return Some(HubQuery { hub, query, adds: true });
        }
        let query = StatusQuery { device: devices, generation: query.generation, ..StatusQuery::default() };
        (!query.device.is_empty()).then_some(HubQuery { hub, query, adds: false })
    }
}

impl HubQuery {
    /// The part of the question about the devices alone; none where it names none.
    pub fn of_devices(&self) -> Option<StatusQuery> {
        let StatusQuery { device, generation, .. } = &self.query;
        let query = StatusQuery { device: device.clone(), generation: *generation, ..StatusQuery::default() };
        (!device.is_empty()).then_some(query)
    }

    /// The part of the question for a hub that knows only these names; none where nothing there passes.
    pub(crate) fn known_part(&self, known: &BTreeSet<Name>) -> Option<StatusQuery> {
        let StatusQuery { id, app, component, .. } = &self.query;
        let knows = |name: Name| known.contains(&name);
        if id.as_ref().is_some_and(|id| !knows(Name::Deployment(id.clone()))) {
            return None;
        }
        let apps: Vec<_> = app.iter().filter(|app| knows(Name::App((*app).clone()))).cloned().collect();
        let parts: Vec<_> =
            component.iter().filter(|name| knows(Name::Component((*name).clone()))).cloned().collect();
        if (apps.is_empty() && !app.is_empty()) || (parts.is_empty() && !component.is_empty()) {
            return None;
        }
        Some(StatusQuery { app: apps, component: parts, ..self.query.clone() })
    }
}
