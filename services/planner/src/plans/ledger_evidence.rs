//! The evidence of plans: the fold of LEDGER, and the instances of plans in desired states. Pure: it reads no stream and no clock.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::{DeviceKey, InstanceName, PlanName};
use muster_domain::plans::{PlacementEvidence, PlansEvidence};
use tokio::time::Instant;

use crate::evidence::{Behind, Evidence};
use crate::ledger::LedgerEvent;

/// The evidence.
#[derive(Debug, Default)]
pub(super) struct LedgerEvidence {
    evidence: Evidence,
    /// Instances in the newest desired state of each device.
    ordered: BTreeMap<DeviceKey, BTreeMap<InstanceName, (Digest, PlanName)>>,
    retired: BTreeSet<DeviceKey>,
}

/// The evidence at a moment.
pub(super) struct EvidenceAt<'a> {
    of: &'a LedgerEvidence,
    is_current: bool,
}

/// The nodes that an event has changed.
#[derive(Debug, Default)]
pub(super) struct ChangedNodes {
    pub(super) nodes: Vec<DeviceKey>,
    /// Whether any node may have changed.
    pub(super) all: bool,
    /// Whether a desired state has changed.
    pub(super) orders: bool,
}

impl LedgerEvidence {
    /// Applies an event.
    pub(super) fn apply(&mut self, event: LedgerEvent) -> ChangedNodes {
        if matches!(event, LedgerEvent::Restarted) {
            self.ordered.clear();
            self.retired.clear();
        }
        let touched = self.evidence.apply(event);
        let orders = !touched.documents.is_empty();
        let mut nodes = touched.devices;
        for document in touched.documents {
            let instances = document.instances.into_iter();
            let instances: BTreeMap<_, _> =
                instances.map(|instance| (instance.name, (instance.content, instance.plan))).collect();
            nodes.push(document.key.clone());
            if document.is_retired {
                self.retired.insert(document.key.clone());
            } else {
                self.retired.remove(&document.key);
            }
            if instances.is_empty() {
                self.ordered.remove(&document.key);
            } else {
                self.ordered.insert(document.key, instances);
            }
        }
        ChangedNodes { nodes, all: touched.all, orders }
    }

    /// Checks that the evidence is current.
    ///
    /// # Errors
    /// Why nothing may be confirmed.
    pub(super) fn check_current(&self, now: Instant) -> Result<(), Behind> {
        self.evidence.check_current(now)
    }

    /// The evidence at a moment.
    pub(super) fn at(&self, now: Instant) -> EvidenceAt<'_> {
        EvidenceAt { of: self, is_current: self.check_current(now).is_ok() }
    }

    /// The instances of plans in desired states.
    pub(super) fn ordered(&self) -> impl Iterator<Item = (DeviceKey, InstanceName, PlanName)> + '_ {
        self.ordered.iter().flat_map(|(node, instances)| {
            instances.iter().map(move |(instance, (_, plan))| (node.clone(), instance.clone(), plan.clone()))
        })
    }
}

impl PlansEvidence for EvidenceAt<'_> {
    fn placement(&self, node: &DeviceKey, instance: &InstanceName) -> PlacementEvidence {
        let desired = self.of.ordered.get(node).and_then(|instances| instances.get(instance));
        let desired = desired.map(|(content, _)| *content);
        let evidence = &self.of.evidence;
        let deployment = instance.as_str().parse().ok();
        let line = deployment.and_then(|id| evidence.line(&id, node));
        let is_retired = self.of.retired.contains(node);
        let placement =
            PlacementEvidence { is_retired, ..PlacementEvidence::of(desired, line, evidence.heard(node)) };
        if self.is_current { placement } else { placement.outdated() }
    }
}
