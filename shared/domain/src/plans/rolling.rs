//! Rolling updates: of a revision with `maxUnavailable`, an approved UPDATE begins in its turn. At most so many instances that have
//! an order are not proven to run at a time, and one update domain follows another. It begins nothing itself.
//!
//! Silence proves nothing: an instance on a silent node counts as not running. An instance that is known not to run is updated at
//! once, because nothing is lost by it; so the repair of a bad revision does not wait for what that revision broke.

use std::collections::BTreeSet;

use muster_contract::InstanceName;
use muster_contract::plans::{Instance, Operation, OperationType, Placement, Plan, PlanRevision};

use super::evidence::PlansEvidence;
use super::operations;
use super::state::PlansState;

/// The turns of a plan's instances at a moment.
pub(super) struct Turns {
    /// Instances with an order that are not proven to run, or that an operation is changing.
    unavailable: BTreeSet<InstanceName>,
    /// Those that are known not to run, and that no operation is changing.
    down: BTreeSet<InstanceName>,
    /// The first update domain with an UPDATE that has not ended.
    domain: Option<String>,
}

impl Turns {
    /// The turns of a revision's updates. `runs` says whether a node is proven to run an instance by its present order.
    pub(super) fn of<E: PlansEvidence>(
        state: &PlansState,
        plan: &Plan,
        revision: &PlanRevision,
        evidence: &E,
        mut runs: impl FnMut(&Instance, &Placement) -> bool,
    ) -> Self {
        let mut turns = Self { unavailable: BTreeSet::new(), down: BTreeSet::new(), domain: None };
        for instance in state.instances_of(&plan.spec.name) {
            turns.count(instance, evidence, &mut runs);
            let is_open = |one: &Operation| is_update_of(one, revision) && !one.state.is_final();
            let domain = domain_of(state, instance).filter(|_| instance.operations.iter().any(is_open));
            turns.domain = turns.domain.take().into_iter().chain(domain).min();
        }
        turns
    }

    fn count<E: PlansEvidence>(
        &mut self,
        instance: &Instance,
        evidence: &E,
        mut runs: impl FnMut(&Instance, &Placement) -> bool,
    ) {
        let Some(active) = instance.active().filter(|placement| placement.revision.is_some()) else { return };
        let placed = evidence.placement(&active.node, &instance.name);
        let is_changing = operations::running(instance).is_some();
        if is_changing || !runs(instance, active) {
            self.unavailable.insert(instance.name.clone());
        }
        if !is_changing && placed.is_known && !placed.is_running() {
            self.down.insert(instance.name.clone());
        }
    }

    /// The reason why an UPDATE of an instance waits; `None` if it may begin.
    pub(super) fn held(&self, state: &PlansState, instance: &Instance, max: u32) -> Option<String> {
        if self.down.contains(&instance.name) {
            return None;
        }
        // Both sentences are the same until the update begins: another one would be another document of each waiting instance.
        if self.domain.is_some() && domain_of(state, instance) != self.domain {
            return Some("waits for an earlier update domain".to_owned());
        }
        let others = self.unavailable.len() - usize::from(self.unavailable.contains(&instance.name));
        (others >= max as usize)
            .then(|| format!("waits while {max} or more of the other instances are unavailable"))
    }

    /// Counts an UPDATE that begins.
    pub(super) fn begin(&mut self, instance: &InstanceName) {
        self.unavailable.insert(instance.clone());
        self.down.remove(instance);
    }
}

/// Whether an operation is an UPDATE of a revision.
pub(super) fn is_update_of(operation: &Operation, revision: &PlanRevision) -> bool {
    operation.operation_type == OperationType::Update && operation.revision.as_ref() == Some(&revision.id)
}

fn domain_of(state: &PlansState, instance: &Instance) -> Option<String> {
    Some(state.node(&instance.active()?.node)?.update_domain.clone())
}
