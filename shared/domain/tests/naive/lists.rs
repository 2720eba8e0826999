//! Counts lists after filters naively: one deployment, one device after the other.

use std::collections::BTreeSet;

use muster_contract::query::Query;
use muster_contract::view::{DeploymentView, Standing, content_digest};
use muster_contract::{DeploymentId, DeviceKey};

use super::{Pair, World, errors};

impl World {
    /// The deployments that pass a question's `site`, `verdict` and `error`, counted at these sites alone.
    pub(crate) fn listed_deployments(&self, query: &Query) -> Vec<DeploymentView> {
        let here = self.at_sites(query);
        let ids: BTreeSet<&DeploymentId> = here.pairs.iter().map(|pair| &pair.deployment).collect();
        let views = ids.into_iter().filter_map(|id| here.deployment_view(id));
        let passes = |view: &DeploymentView| {
            let codes = view.errors.iter().any(|error| query.error.contains(&error.code));
            (query.verdict.is_empty() || query.verdict.contains(&view.verdict))
                && (query.error.is_empty() || codes)
        };
        let bare = |mut view: DeploymentView| {
            if !query.site.is_empty() {
                view.components.clear();
                view.errors.clear();
                view.last_heard_at = None;
                view.message = view.words();
                view.digest = content_digest(&view);
            }
            view
        };
        views.filter(passes).map(bare).collect()
    }

    /// The devices that pass a question's `site`, `freshness`, `error` and `notRunning`, if any of the last three is there.
    pub(crate) fn listed_devices(&self, query: &Query) -> Vec<DeviceKey> {
        let here = self.at_sites(query);
        let passes = |key: &&DeviceKey| {
            let pairs: Vec<&Pair> = here.pairs.iter().filter(|pair| pair.device == **key).collect();
            let targets: Vec<&Pair> = pairs.into_iter().filter(|pair| pair.is_target).collect();
            let codes = errors::errors(&targets).into_iter().any(|error| query.error.contains(&error.code));
            let lacks = |id: &DeploymentId| {
                let mut own = targets.iter().filter(|pair| pair.deployment == *id);
                own.any(|pair| pair.standing != Standing::Installed)
            };
            (query.error.is_empty() || codes) && query.not_running.as_ref().is_none_or(lacks)
        };
        let machines = here
            .machines
            .iter()
            .filter(|machine| query.freshness.is_empty() || query.freshness.contains(&machine.freshness));
        machines.map(|machine| &machine.key).filter(passes).cloned().collect()
    }

    fn at_sites(&self, query: &Query) -> Self {
        let is_here = |key: &DeviceKey| query.site.is_empty() || query.site.contains(&key.site);
        Self {
            pairs: self.pairs.iter().filter(|pair| is_here(&pair.device)).cloned().collect(),
            machines: self.machines.iter().filter(|machine| is_here(&machine.key)).cloned().collect(),
            as_of: self.as_of,
            unheard: self.unheard.clone(),
            times: self.times.at(&is_here),
        }
    }
}
