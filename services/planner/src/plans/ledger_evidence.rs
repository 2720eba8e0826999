//! The evidence of plans: the fold of LEDGER, and the instances of plans in desired states. Pure: it reads no stream and no clock.

use muster_contract::{DeviceKey, InstanceName, PlanName};
use muster_domain::plans::{PlacementEvidence, PlansEvidence, WithdrawalEvidence};
use tokio::time::Instant;

use super::orders::Refusals;
use crate::evidence::{Behind, Evidence};
use crate::ledger::LedgerEvent;

/// The evidence.
#[derive(Debug, Default)]
pub(super) struct LedgerEvidence(pub(super) Evidence);

/// The evidence at a moment.
pub(super) struct EvidenceAt<'a> {
    of: &'a LedgerEvidence,
    refusals: &'a Refusals,
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
        let touched = self.0.apply(event);
        let orders = !touched.documents.is_empty();
        let mut nodes = touched.devices;
        nodes.extend(touched.documents.into_iter().map(|document| document.key));
        ChangedNodes { nodes, all: touched.all, orders }
    }

    /// Checks that the evidence is current.
    ///
    /// # Errors
    /// Why nothing may be confirmed.
    pub(super) fn check_current(&self, now: Instant) -> Result<(), Behind> {
        self.0.check_current(now)
    }

    /// The evidence at a moment, with the orders that could not be published.
    pub(super) fn at<'a>(&'a self, refusals: &'a Refusals, now: Instant) -> EvidenceAt<'a> {
        EvidenceAt { of: self, refusals, is_current: self.check_current(now).is_ok() }
    }

    /// The instances of plans in desired states.
    pub(super) fn ordered(&self) -> impl Iterator<Item = (DeviceKey, InstanceName, PlanName)> + '_ {
        self.0.orders().all()
    }
}

impl PlansEvidence for EvidenceAt<'_> {
    fn placement(&self, node: &DeviceKey, instance: &InstanceName) -> PlacementEvidence<'_> {
        let evidence = &self.of.0;
        let desired = evidence.orders().content(node, instance);
        let deployment = instance.as_str().parse().ok();
        let withdrawal = evidence.orders().withdrawal(node, instance);
        let removed = deployment.as_ref().and_then(|id| evidence.removed(id, node));
        let line = deployment.and_then(|id| evidence.line(&id, node));
        let is_retired = evidence.orders().is_retired(node);
        let refusal = self.refusals.of(node, instance);
        let placement = PlacementEvidence {
            is_retired,
            withdrawal: withdrawal.map(|by| WithdrawalEvidence {
                stored_at: by.stored_at,
                heard_since: by.heard_since,
                is_removed: removed.is_some_and(|removed| removed >= by.generation),
            }),
            refusal,
            ..PlacementEvidence::of(desired, line, evidence.heard(node))
        };
        if self.is_current { placement } else { placement.outdated() }
    }
}
