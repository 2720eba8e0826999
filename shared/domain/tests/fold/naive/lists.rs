//! Counts lists after filters naively: one deployment, one device after the other.

use std::collections::BTreeSet;

use muster_contract::fact::Fact;
use muster_contract::query::Query;
use muster_contract::view::{DeploymentView, Freshness, Standing, content_digest};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::{Entry, Machine, Pair, World, errors};

/// One standing by a naive count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StandingFacts {
    pub(crate) key: DeviceKey,
    pub(crate) deployment: DeploymentId,
    /// None if it is leaving.
    pub(crate) standing: Option<Standing>,
    pub(crate) freshness: Freshness,
    pub(crate) known: bool,
    pub(crate) overdue: bool,
}

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
                view.message = view.words();
                view.digest = content_digest(&view);
            }
            view
        };
        views.filter(passes).map(bare).collect()
    }

    /// Each standing: its device and deployment, whether it is a target, known and overdue, where it stands if it is a target, and
    /// how its device is heard.
    pub(crate) fn standings(&self) -> Vec<StandingFacts> {
        let facts = |pair: &Pair| StandingFacts {
            key: pair.device.clone(),
            deployment: pair.deployment.clone(),
            standing: pair.is_target.then_some(pair.standing),
            freshness: pair.freshness,
            known: pair.known,
            overdue: pair.is_target && pair.overdue,
        };
        let mut all: Vec<_> = self.pairs.iter().map(facts).collect();
        all.sort();
        all
    }

    /// The codes of the errors of a target that count.
    pub(crate) fn error_codes(&self, device: &DeviceKey, deployment: &DeploymentId) -> BTreeSet<String> {
        let own = |pair: &&Pair| pair.device == *device && pair.deployment == *deployment && pair.is_target;
        let own: Vec<&Pair> = self.pairs.iter().filter(own).collect();
        errors::errors(&own).into_iter().map(|error| error.code).collect()
    }

    /// When a standing of a device changed last, when it was heard last, and whether it has any standing.
    pub(crate) fn line_of(&self, device: &DeviceKey) -> (Option<Timestamp>, Option<Timestamp>, bool) {
        let changed = self.changed_at(&|key, _| key == device);
        let has_standing = self.pairs.iter().any(|pair| pair.device == *device);
        (changed, self.heard_at(std::iter::once(device)), has_standing)
    }

    /// The devices that pass a question's `site`, `device`, `freshness`, `error`, `version` and `notRunning`.
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
        let machines = here.machines.iter().filter(|machine| {
            let has_version = machine.version.as_ref().is_some_and(|version| query.version.contains(version));
            (query.freshness.is_empty() || query.freshness.contains(&machine.freshness))
                && (query.version.is_empty() || has_version)
                && query.device.as_ref().is_none_or(|name| machine.key.device == *name)
        });
        machines.map(|machine| &machine.key).filter(passes).cloned().collect()
    }

    /// The devices that are not heard, of a question's `site`, the longest silence first.
    pub(crate) fn devices_by_silence(&self, query: &Query) -> Vec<DeviceKey> {
        let here = self.at_sites(query);
        let is_silent = |machine: &&Machine| machine.freshness != Freshness::Fresh && !machine.is_masked;
        let silent = here.machines.iter().filter(is_silent);
        let mut silent: Vec<_> = silent
            .map(|machine| {
                let heard_at = self.heard_at(std::iter::once(&machine.key));
                let is_stale = machine.freshness == Freshness::Stale;
                (heard_at.filter(|_| is_stale).map(Timestamp::as_second), machine.key.clone())
            })
            .collect();
        silent.sort();
        silent.into_iter().map(|(_, key)| key).collect()
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

/// The agent's version by the newest report of what the device is.
pub(super) fn version(own: &[&Entry]) -> Option<String> {
    let reports = own.iter().filter_map(|entry| match &entry.fact {
        Fact::Device(fact) => Some(fact),
        _ => None,
    });
    reports.max_by_key(|fact| (fact.epoch, fact.seq)).map(|fact| fact.agent_version.clone())
}
