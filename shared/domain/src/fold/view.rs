//! Views: the counts as documents, with their digest. Nothing is counted here, only shown.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::limits::{COMPONENTS_MAX, VIEW_ERRORS_MAX, VIEW_MESSAGE_BYTES_MAX};
use muster_contract::state::cut;
use muster_contract::subjects::ViewKey;
use muster_contract::view::{
    DeploymentView, ErrorCount, ErrorExample, FleetView, Omitted, SiteView, Tally, Verdict, content_digest,
};
use muster_contract::{ComponentName, DeploymentId, DeviceKey, SiteId, State};

use serde_json::Value;

use super::fleet::Fleet;
use super::lens::Shown;
use super::totals::{Deployment, States, Whole};

impl Fleet {
    /// The view of a deployment; none where it is neither targeted nor leaving.
    pub fn deployment_view(&self, id: &DeploymentId) -> Option<DeploymentView> {
        let number = *self.totals.deployment_numbers.get(id)?;
        self.view_of(number)
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
            errors: (deployment.culprits.len() - errors.len()) as u64,
        };
        let mut view = DeploymentView {
            api_version: Default::default(),
            kind: Default::default(),
            deployment: deployment.id.clone(),
            as_of: self.as_of,
            verdict,
            targets: group.targets(),
            leaving: group.leaving(),
            overdue: group.overdue(),
            counts: group.counts(),
            converged: group.bounds(),
            complete: group.complete(),
            components: components(deployment),
            errors,
            omitted,
            digest: unsigned(),
        };
        view.digest = content_digest(&view);
        Some(view)
    }

    /// The view of a site; none where it has no device.
    pub fn site_view(&self, id: &SiteId) -> Option<SiteView> {
        let site = self.totals.site(*self.totals.site_numbers.get(id)?);
        if site.whole.devices.by_freshness().total() == 0 {
            return None;
        }
        let mut view = SiteView {
            api_version: Default::default(),
            kind: Default::default(),
            site: site.id.clone(),
            tally: self.tally(&site.whole),
        };
        view.tally.digest = content_digest(&view);
        Some(view)
    }

    /// The view of the fleet, which is there from the start.
    pub fn fleet_view(&self) -> FleetView {
        let tally = self.tally(&self.totals.fleet);
        let mut view = FleetView { api_version: Default::default(), kind: Default::default(), tally };
        view.tally.digest = content_digest(&view);
        view
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
            // What people define is no part of LEDGER.
            ViewKey::Defined(_) => return None,
        };
        shown.ok()
    }

    /// The digest of a view; none where there is no such view, or it is still being counted.
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

    pub(super) fn tally(&self, whole: &Whole) -> Tally {
        Tally {
            as_of: self.as_of,
            devices: whole.devices.by_freshness(),
            targets: whole.group.targets(),
            leaving: whole.group.leaving(),
            overdue: whole.group.overdue(),
            counts: whole.group.counts(),
            deployments: whole.deployments(),
            complete: whole.devices.complete(),
            digest: unsigned(),
        }
    }

    fn errors(&self, number: u32, deployment: &Deployment) -> Vec<ErrorCount> {
        let top = deployment.culprits.top(VIEW_ERRORS_MAX);
        top.into_iter()
            .filter_map(|(code, count, device)| {
                let example = self.example(number, code, device)?;
                Some(ErrorCount { code: code.to_owned(), count, example })
            })
            .collect()
    }

    /// The first error of this code that a device reports.
    fn example(&self, number: u32, code: &str, key: &DeviceKey) -> Option<ErrorExample> {
        let row = self.find(key)?.rows.iter().find(|row| row.deployment == number)?;
        let culprits = row.report.as_ref()?.culprits();
        let culprit = culprits.into_iter().find(|culprit| culprit.code == code)?;
        Some(ErrorExample {
            device: key.clone(),
            component: culprit.component.cloned(),
            message: cut(culprit.message.to_owned(), VIEW_MESSAGE_BYTES_MAX),
        })
    }
}

fn components(deployment: &Deployment) -> BTreeMap<ComponentName, BTreeMap<State, u64>> {
    let counted = |states: &States| {
        let counts = State::ALL.into_iter().map(|state| (state, u64::from(states[state as usize])));
        counts.filter(|(_, count)| *count > 0).collect()
    };
    let shown = deployment.components.iter().take(COMPONENTS_MAX);
    shown.map(|(name, states)| (name.clone(), counted(states))).collect()
}

/// What stands where the digest goes until it is known; the digest does not cover it.
pub(super) fn unsigned() -> Digest {
    Digest::of_bytes(&[])
}
