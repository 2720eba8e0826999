//! Compares the approved contents of placements with the desired states in LEDGER; the requests to the publisher are the
//! difference. A repeated request changes nothing, so the planner records none. This module sends nothing.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::desired::{Profile, ProfileType};
use muster_contract::plans::Plan;
use muster_contract::{DeviceKey, InstanceName, PlanName, RevisionId};

use super::content::{content, is_stopped, margo_document, order};
use super::evidence::PlansEvidence;
use super::state::PlansState;

/// A request to the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The node shall run an instance.
    Apply {
        /// The node.
        node: DeviceKey,
        /// The instance.
        instance: InstanceName,
        /// Digest of the order.
        content: Digest,
        /// Its Margo document.
        document: String,
    },
    /// The node shall run an instance no more.
    Remove {
        /// The node.
        node: DeviceKey,
        /// The instance.
        instance: InstanceName,
    },
}

impl Effect {
    /// The node and the instance.
    pub const fn target(&self) -> (&DeviceKey, &InstanceName) {
        match self {
            Self::Apply { node, instance, .. } | Self::Remove { node, instance } => (node, instance),
        }
    }
}

/// A profile and its digest.
struct DigestedProfile {
    profile: Profile,
    digest: Digest,
}

impl PlansState {
    /// The requests that nodes need. `ordered` are the instances of plans that LEDGER's desired states have.
    pub fn effects<E: PlansEvidence>(
        &self,
        evidence: &E,
        ordered: impl IntoIterator<Item = (DeviceKey, InstanceName, PlanName)>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (name, plan) in &self.plans {
            self.effects_of(name, plan, evidence, &mut effects);
        }
        let is_wanted = |node: &DeviceKey, instance: &InstanceName, plan: &PlanName| {
            let instance = self.instance(plan, instance);
            let placements = instance.into_iter().flat_map(|instance| &instance.placements);
            placements.into_iter().any(|placement| placement.node == *node && placement.revision.is_some())
        };
        // A plan that PLANS does not know is left alone: PLANS may have been lost.
        let unwanted = ordered.into_iter().filter(|(node, instance, plan)| {
            self.plans.contains_key(plan) && !is_wanted(node, instance, plan)
        });
        effects.extend(unwanted.map(|(node, instance, _)| Effect::Remove { node, instance }));
        effects
    }

    fn effects_of<E: PlansEvidence>(
        &self,
        name: &PlanName,
        plan: &Plan,
        evidence: &E,
        effects: &mut Vec<Effect>,
    ) {
        let mut contents: BTreeMap<(&RevisionId, &[ProfileType]), Option<DigestedProfile>> = BTreeMap::new();
        for instance in self.instances_of(name) {
            for placement in &instance.placements {
                let Some(revision) = &placement.revision else { continue };
                let runtimes = self.runtimes(&placement.node);
                let content = contents.entry((revision, runtimes)).or_insert_with(|| {
                    let profile =
                        content(&plan.spec, &plan.revision(revision)?.coordinates, runtimes).ok()?;
                    let digest = Digest::of_value(&profile);
                    Some(DigestedProfile { profile, digest })
                });
                let Some(DigestedProfile { profile, digest }) = content else { continue };
                let order = order(*digest, is_stopped(instance, placement), instance.restarts);
                let placed = evidence.placement(&placement.node, &instance.name);
                // An order would bring the device back into the fleet, which only a person does.
                if placed.desired != Some(order) && !placed.is_retired {
                    effects.push(Effect::Apply {
                        node: placement.node.clone(),
                        instance: instance.name.clone(),
                        content: order,
                        document: margo_document(instance, placement, &plan.spec.namespace, profile),
                    });
                }
            }
        }
    }
}
