//! Renders counts as view documents with their digest. It counts nothing.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::groups::GroupView;
use muster_contract::limits::{COMPONENTS_MAX, VIEW_ERRORS_MAX, VIEW_MESSAGE_BYTES_MAX};
use muster_contract::pulse::HubHearing;
use muster_contract::state::cut;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{
    AsOf, DeploymentView, ErrorCount, ErrorExample, FleetView, Omitted, SiteView, Tally, Verdict,
    content_digest,
};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, LabelKey, LabelValue, SiteId, State};

use serde_json::Value;

use super::fleet::Fleet;
use super::max_timestamp::Times;
use super::tally::{Devices, Group};
use super::totals::{Deployment, Named, States};
use super::unsigned::unsigned;
use super::view_aggregate::view::Shown;
use super::whole::Whole;

impl Fleet {
    /// The view of a deployment; none where it is neither targeted nor leaving.
    pub fn deployment_view(&self, id: &DeploymentId) -> Option<DeploymentView> {
        let number = *self.totals.deployment_numbers.get(id)?;
        self.view_of(number)
    }

    /// Whether any device's newest desired state names a deployment. Otherwise only devices report it.
    pub fn is_targeted(&self, id: &DeploymentId) -> bool {
        let number = self.totals.deployment_numbers.get(id);
        number.is_some_and(|number| self.totals.deployment(*number).group.targets() > 0)
    }

    pub(super) fn view_of(&self, number: u32) -> Option<DeploymentView> {
        let deployment = self.totals.deployment(number);
        let group = &deployment.group;
        let verdict = group.verdict();
        if verdict == Verdict::Empty {
            return None;
        }
        let errors = self.errors(number, deployment);
        let omitted = Omitted {
            components: deployment.components.len().saturating_sub(COMPONENTS_MAX) as u64,
            errors: (deployment.error_index.len() - errors.len()) as u64,
        };
        let components = deployment.components.iter().take(COMPONENTS_MAX);
        let components = components.map(|(name, states)| (name.clone(), counted(states))).collect();
        let hub = self.hub_hearing(&deployment.unheard);
        let times = self.times_of_deployment(number);
        let standings = Standings { group, hub, times };
        Some(shown_deployment(deployment.named(), self.as_of, standings, components, errors, omitted))
    }

    /// The view of a site; none where it has no device.
    pub fn site_view(&self, id: &SiteId) -> Option<SiteView> {
        let site = self.totals.site(*self.totals.site_numbers.get(id)?);
        if site.whole.devices.by_freshness().total() == 0 {
            return None;
        }
        Some(shown_site(site.id.clone(), self.tally(&site.whole, self.times_of_site(site))))
    }

    /// The view of the fleet, which is there from the start.
    pub fn fleet_view(&self) -> FleetView {
        shown_fleet(self.tally(&self.totals.fleet, self.times_of_fleet()))
    }

    /// The keys of all views that follow from LEDGER alone: not of those that people have defined.
    pub fn view_keys(&self) -> BTreeSet<ViewKey> {
        let deployments = self
            .totals
            .deployment_numbers
            .iter()
            .filter(|(_, number)| self.totals.deployment(**number).group.verdict() != Verdict::Empty);
        let deployments = deployments.map(|(id, _)| ViewKey::Deployment(id.clone()));
        let sites = self
            .totals
            .site_numbers
            .iter()
            .filter(|(_, number)| self.totals.site(**number).whole.devices.by_freshness().total() > 0);
        let sites = sites.map(|(id, _)| ViewKey::Site(id.clone()));
        let groups = self.totals.groups.keys().filter(|(label, value)| self.has_group(label, value));
        let groups = groups.map(|(label, value)| ViewKey::Group(label.clone(), value.clone()));
        deployments.chain(sites).chain(groups).chain([ViewKey::Fleet]).collect()
    }

    /// The digests of all views that there are, by key of the bucket.
    pub fn digests(&self) -> BTreeMap<String, Digest> {
        let keys = self.view_keys();
        keys.iter().filter_map(|key| Some((key.to_string(), self.digest_of(key)?))).collect()
    }

    /// A view as JSON, as in the bucket; none where there is no such view.
    pub fn view(&self, key: &ViewKey) -> Option<Value> {
        let shown = match key {
            ViewKey::Deployment(id) => serde_json::to_value(self.deployment_view(id)?),
            ViewKey::Site(id) => serde_json::to_value(self.site_view(id)?),
            ViewKey::Group(label, value) => serde_json::to_value(self.group_view(label, value)?),
            ViewKey::Fleet => serde_json::to_value(self.fleet_view()),
            // Definitions are not part of LEDGER.
            ViewKey::Defined(_) => return None,
        };
        shown.ok()
    }

    /// The digest of a view; none where there is no such view, or its count is not complete.
    pub fn digest_of(&self, key: &ViewKey) -> Option<Digest> {
        match key {
            ViewKey::Deployment(id) => self.deployment_view(id).map(|view| view.digest),
            ViewKey::Site(id) => self.site_view(id).map(|view| view.tally.digest),
            ViewKey::Fleet => Some(self.fleet_view().tally.digest),
            ViewKey::Group(label, value) => self.group_view(label, value).map(|view| view.tally.digest),
            ViewKey::Defined(name) => match self.defined_view(name) {
                Shown::View(view) => Some(view.sign().digest),
                Shown::NotYet | Shown::Absent => None,
            },
        }
    }

    pub(super) fn tally(&self, whole: &Whole, times: Times) -> Tally {
        let hub = self.hub_hearing(&whole.unheard);
        let standings = Standings { group: &whole.group, hub, times };
        shown_tally(self.as_of, &whole.devices, standings, whole.deployments())
    }

    fn errors(&self, number: u32, deployment: &Deployment) -> Vec<ErrorCount> {
        let top = deployment.error_index.by_count().take(VIEW_ERRORS_MAX);
        top.filter_map(|(code, count, device)| self.error_count(number, code, count, device)).collect()
    }

    /// How often devices report a code, with an example.
    pub(super) fn error_count(
        &self,
        number: u32,
        code: &str,
        count: u64,
        device: &DeviceKey,
    ) -> Option<ErrorCount> {
        let example = self.example(number, code, device)?;
        Some(ErrorCount { code: code.to_owned(), count, example })
    }

    /// The first error of this code that a device reports.
    fn example(&self, number: u32, code: &str, key: &DeviceKey) -> Option<ErrorExample> {
        let row = self.find(key)?.rows.iter().find(|row| row.deployment == number)?;
        let errors = row.report.as_ref()?.errors();
        let error = errors.into_iter().find(|error| error.code == code)?;
        Some(ErrorExample {
            device: key.clone(),
            component: error.component.cloned(),
            message: cut(error.message.to_owned(), VIEW_MESSAGE_BYTES_MAX),
            retry: error.retry,
        })
    }
}

/// The standings that a view shows.
pub(super) struct Standings<'a> {
    pub(super) group: &'a Group,
    /// The partitions of their devices that the hub does not hear.
    pub(super) hub: HubHearing,
    pub(super) times: Times,
}

/// How often a component is in which state, without the zeros.
pub(super) fn counted(states: &States) -> BTreeMap<State, u64> {
    let counts = State::ALL.into_iter().map(|state| (state, u64::from(states[state as usize])));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The view of a deployment that is somewhere.
pub(super) fn shown_deployment(
    Named { id, name }: Named,
    as_of: AsOf,
    Standings { group, hub, times }: Standings<'_>,
    components: BTreeMap<ComponentName, BTreeMap<State, u64>>,
    errors: Vec<ErrorCount>,
    omitted: Omitted,
) -> DeploymentView {
    let mut view = DeploymentView {
        api_version: Default::default(),
        kind: Default::default(),
        deployment: id,
        deployment_name: name,
        as_of,
        verdict: group.verdict(),
        message: String::new(),
        changed_at: times.changed_at,
        last_heard_at: times.heard_at,
        targets: group.targets(),
        leaving: group.leaving(),
        overdue: group.overdue(),
        retried: group.retried(),
        counts: group.counts(),
        evidence: group.evidence(),
        converged: group.bounds(),
        complete: group.complete(),
        components,
        errors,
        omitted,
        hub,
        digest: unsigned(),
    };
    view.message = view.words();
    view.digest = content_digest(&view);
    view
}

/// The view of a site.
pub(super) fn shown_site(site: SiteId, tally: Tally) -> SiteView {
    let mut view = SiteView { api_version: Default::default(), kind: Default::default(), site, tally };
    view.tally.digest = content_digest(&view);
    view
}

/// The view of a fleet.
pub(super) fn shown_fleet(tally: Tally) -> FleetView {
    let mut view = FleetView { api_version: Default::default(), kind: Default::default(), tally };
    view.tally.digest = content_digest(&view);
    view
}

/// The view of a group.
pub(super) fn shown_group(label: LabelKey, value: LabelValue, tally: Tally) -> GroupView {
    let (api_version, kind) = Default::default();
    let mut view = GroupView { api_version, kind, label, value, tally };
    view.tally.digest = content_digest(&view);
    view
}

/// The fields common to the views of sites, groups and the fleet, without the digest.
pub(super) fn shown_tally(
    as_of: AsOf,
    devices: &Devices,
    Standings { group, hub, times }: Standings<'_>,
    deployments: BTreeMap<Verdict, u64>,
) -> Tally {
    let mut tally = Tally {
        as_of,
        message: String::new(),
        changed_at: times.changed_at,
        last_heard_at: times.heard_at,
        devices: devices.by_freshness(),
        targets: group.targets(),
        leaving: group.leaving(),
        overdue: group.overdue(),
        retried: group.retried(),
        counts: group.counts(),
        evidence: group.evidence(),
        deployments,
        complete: devices.complete(),
        hub,
        digest: unsigned(),
    };
    tally.message = tally.words();
    tally
}
