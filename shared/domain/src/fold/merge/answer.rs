//! Answers from the merged counts. Only the hubs themselves have lines of devices.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::groups::{GroupsAnswer, LabelsAnswer};
use muster_contract::query::{DeploymentAnswer, DeploymentsAnswer, Query};
use muster_contract::silence::{SILENT_SITES_MAX, SilentSites};
use muster_contract::{DeploymentId, LabelKey, LabelValue};

use super::super::answer::{Page, cut_page};
use super::super::groups::answer::{NoGroups, Split, ValueCounts, label_line};
use super::super::max_timestamp::Times;
use super::super::tally::{Devices, Group};
use super::Merge;
use super::view::sum;

impl Merge {
    /// The view of a deployment with the sites that are silent. None where there is no such view.
    pub fn deployment_answer(&self, id: &DeploymentId) -> Option<DeploymentAnswer> {
        let view = self.deployment_view(id)?;
        let counts = self.hubs.values().filter_map(|hub| hub.deployments.get(id));
        let silent_sites = silent(counts.map(|counts| &counts.silent_sites));
        Some(DeploymentAnswer { view, silent_sites })
    }

    /// The views of the deployments that pass the query's `verdict` and `error`.
    pub fn deployments_answer(&self, query: &Query, page: &Page<DeploymentId>) -> DeploymentsAnswer {
        let Query { verdict, error, .. } = query;
        let passes = |id: &DeploymentId| {
            let errors = || self.errors_of(id);
            (verdict.is_empty() || verdict.contains(&self.group_of(id).verdict()))
                && (error.is_empty() || errors().keys().any(|code| error.contains(*code)))
        };
        let wanted = self.deployment_ids().into_iter();
        let wanted = wanted.filter(|id| page.after.as_ref().is_none_or(|after| *id > after) && passes(id));
        let views = wanted.filter_map(|id| self.deployment_view(id));
        let (deployments, next) = cut_page(views, page.limit, |view| view.deployment.to_string());
        let silent_sites = silent(self.hubs.values().map(|hub| &hub.fleet.silent_sites));
        DeploymentsAnswer { as_of: self.as_of(), deployments, hub: self.hearing(), silent_sites, next }
    }

    /// The labels that group devices.
    pub fn labels_answer(&self, page: &Page<LabelKey>) -> LabelsAnswer {
        let (all, ..) = sum(self.hubs.values().map(|hub| (hub, &hub.fleet)));
        let labels: BTreeSet<&LabelKey> = self.hubs.values().flat_map(|hub| hub.groups.keys()).collect();
        let wanted = labels.into_iter();
        let wanted = wanted.filter(|label| page.after.as_ref().is_none_or(|after| *label > after));
        let lines = wanted.map(|label| {
            let groups = self.groups_of(label);
            label_line(label, &all, groups.into_values().map(|(devices, ..)| devices))
        });
        let (labels, next) = cut_page(lines, page.limit, |line| line.label.to_string());
        LabelsAnswer { as_of: self.as_of(), labels, next }
    }

    /// The fleet, or a deployment, by a label.
    ///
    /// # Errors
    /// Which of the two there is not.
    pub fn groups_answer(
        &self,
        label: &LabelKey,
        deployment: Option<&DeploymentId>,
        page: &Page<LabelValue>,
    ) -> Result<GroupsAnswer, NoGroups> {
        let (total, times) = match deployment {
            Some(id) => (self.group_of(id), self.times_of(id)),
            None => {
                let (_, total, times) = sum(self.hubs.values().map(|hub| (hub, &hub.fleet)));
                (total, times)
            }
        };
        if deployment.is_some() && total.is_empty() {
            return Err(NoGroups::Deployment);
        }
        let groups = self.groups_of(label);
        if groups.is_empty() {
            return Err(NoGroups::Label);
        }
        let values = groups.into_iter().map(|(value, (devices, whole, times))| match deployment {
            None => ValueCounts { value, devices, counts: whole, times },
            Some(id) => {
                let (counts, times) = self.share_of(id, label, value);
                ValueCounts { value, devices, counts, times }
            }
        });
        let values = values.filter(|value| deployment.is_none() || !value.counts.is_empty()).collect();
        Ok(Split { label, deployment, total, times, values }.answer(self.as_of(), page))
    }

    /// The groups of a label at all hubs.
    fn groups_of(&self, label: &LabelKey) -> BTreeMap<&LabelValue, (Devices, Group, Times)> {
        let values = self.hubs.values().filter_map(|hub| hub.groups.get(label)).flat_map(BTreeMap::keys);
        let values: BTreeSet<&LabelValue> = values.collect();
        let tally = |value: &LabelValue| {
            let tallies =
                self.hubs.values().filter_map(|hub| Some((hub, hub.groups.get(label)?.get(value)?)));
            sum(tallies)
        };
        values.into_iter().map(|value| (value, tally(value))).collect()
    }
}

/// The silent sites of all hubs: how many, and the first of them in order.
pub(super) fn silent<'a>(of_hubs: impl Iterator<Item = &'a SilentSites>) -> SilentSites {
    let mut all = SilentSites::default();
    for sites in of_hubs {
        all.count = all.count.saturating_add(sites.count);
        all.first.extend(sites.first.iter().cloned());
    }
    all.first.sort_by(|one, other| one.site.cmp(&other.site));
    all.first.truncate(SILENT_SITES_MAX);
    all
}
