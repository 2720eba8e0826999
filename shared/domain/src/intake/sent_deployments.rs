//! The deployments of a device's documents, each with the time of the newest document that has it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use muster_contract::desired::DesiredState;
use muster_contract::limits::LEDGER_AGE_MAX;
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::{Deserialize, Serialize};

use super::limits::SENT_KEPT;
use crate::lease::elapsed;

/// The deployments that a device was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SentDeployments {
    at: BTreeMap<DeploymentId, Timestamp>,
    /// The newest target generation of each, and the time of the first document that has it.
    targets: BTreeMap<DeploymentId, (Generation, Timestamp)>,
    /// The device has, or had, a document.
    pub(super) has_document: bool,
}

impl SentDeployments {
    /// Records the deployments of a document; evicts the ones sent longest ago where there are too many.
    pub(super) fn record<'a>(&mut self, ids: impl Iterator<Item = &'a DeploymentId>, at: Timestamp) {
        self.has_document = true;
        for id in ids {
            match self.at.get_mut(id) {
                Some(known) => *known = at.max(*known),
                None => _ = self.at.insert(id.clone(), at),
            }
        }
        while self.at.len() > SENT_KEPT {
            let oldest = self.at.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone());
            oldest.iter().for_each(|id| _ = self.at.remove(id));
        }
        self.targets.retain(|id, _| self.at.contains_key(id));
    }

    /// Records a document with its targets. A document that is read again, or re-asserted, changes no target's time.
    pub(super) fn record_document(&mut self, state: &DesiredState, at: Timestamp) {
        for entry in &state.deployments {
            let new = (entry.target_generation, at);
            let known = self.targets.entry(entry.id.clone()).or_insert(new);
            match known.0.cmp(&new.0) {
                Ordering::Less => *known = new,
                Ordering::Equal => known.1 = known.1.min(at),
                Ordering::Greater => {}
            }
        }
        self.record(state.deployments.iter().map(|entry| &entry.id), at);
    }

    /// When the first known document had this target.
    pub(super) fn target_set_at(&self, id: &DeploymentId, generation: Generation) -> Option<Timestamp> {
        self.targets.get(id).filter(|(known, _)| *known == generation).map(|(_, at)| *at)
    }

    /// Whether a document had the deployment while LEDGER keeps facts.
    pub(super) fn contains(&self, id: &DeploymentId, now: Timestamp) -> bool {
        self.at.get(id).is_some_and(|at| elapsed(*at, now) <= LEDGER_AGE_MAX)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }
}
