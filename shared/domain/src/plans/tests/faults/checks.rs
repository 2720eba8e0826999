//! Checks of the simulated hub. Each returns the rule that is broken, so that a test can break one on purpose.

use super::devices::Ledger;
use super::*;

/// The sentences of an approved operation that waits.
const APPROVED_WAITS: [&str; 6] = [
    "it does not run before ",
    "it waits for operation ",
    "its deployment is paused; ",
    "it waits until every operation of the migration is approved",
    "waits for an earlier update domain",
    "waits while ",
];

impl World {
    /// Checks the devices: what a node has is reserved there, fits, and runs nowhere else but for a RELOCATE.
    pub(super) fn check_devices(&self) -> Result<(), String> {
        let mut running: BTreeMap<&InstanceName, Vec<(&PlanName, &DeviceKey)>> = BTreeMap::new();
        for (key, device) in &self.devices {
            let mut used = Resources::default();
            let vouched = self.ledger.nodes[key].vouched;
            // A person who retires a device says that nothing runs there.
            for (name, present) in device.present.iter().filter(|(_, one)| one.order.since > vouched) {
                let plan = &present.order.plan;
                let instance = self.hub.state.instance(plan, name);
                let placement = instance.and_then(|one| one.placements.iter().find(|on| on.node == *key));
                if placement.is_none() {
                    return Err(format!(
                        "node {key} has {name} of plan {plan}, and nothing is reserved there"
                    ));
                }
                used = used.plus(self.hub.state.plans[plan].spec.resources());
                if present.is_running {
                    running.entry(name).or_default().push((plan, key));
                }
            }
            let node = self.hub.state.node(key).unwrap();
            if node.usable().minus(used).is_none() {
                return Err(format!("node {key} has {:?}, and its instances take {used:?}", node.usable()));
            }
        }
        for (name, on) in running.into_iter().filter(|(_, on)| on.len() > 1) {
            let instance = self.hub.state.instance(on[0].0, name).unwrap();
            let is_moving = |one: &Operation| {
                one.operation_type == OperationType::Relocate && one.state == OperationState::Running
            };
            // The node that is left runs it until it has carried out its order.
            let is_left = instance.placements.iter().any(|one| !one.active && one.revision.is_none());
            if on.len() > 2 || !is_left && !instance.operations.iter().any(is_moving) {
                return Err(format!("{name} runs twice: {on:?}"));
            }
        }
        Ok(())
    }

    /// Checks that the nodes have the orders of all placements and no others, and that each device runs them.
    pub(super) fn check_orders(&self) -> Result<(), String> {
        for (key, node) in &self.ledger.nodes {
            let instances = self.hub.state.instances.values().flat_map(BTreeMap::values);
            let is_ordered =
                |one: &&Instance| one.placements.iter().any(|on| on.node == *key && on.revision.is_some());
            let placed: BTreeSet<_> = instances.filter(is_ordered).map(|one| &one.name).collect();
            let ordered: BTreeSet<_> = node.document.orders.keys().collect();
            if placed != ordered {
                return Err(format!("node {key} has orders for {ordered:?}, and placements of {placed:?}"));
            }
            for (name, order) in &node.document.orders {
                let present = self.devices[key].present.get(name);
                let is_right =
                    present.is_some_and(|one| one.order == *order && one.is_running != order.is_stop);
                if !is_right {
                    return Err(format!("node {key} has {present:?} by order {order:?}"));
                }
            }
            if self.devices[key].present.len() != ordered.len() {
                return Err(format!("node {key} has {:?} without orders", self.devices[key].present));
            }
        }
        Ok(())
    }
}

/// Checks that each operation and revision that has not ended says what it waits for. `state` has no next step. Returns the
/// operations.
pub(super) fn check_reasons(
    state: &PlansState,
    evidence: &Ledger,
    now: Timestamp,
) -> Result<Vec<String>, String> {
    let read = PlansRead { state, evidence, now };
    let (answer, mut all) = (read.operations(&OperationsQuery::default(), usize::MAX), Vec::new());
    for status in answer.operations.iter().filter(|status| !status.operation.state.is_final()) {
        let (operation, plan) = (&status.operation, &status.plan);
        let instance = state.instance(plan, &status.instance).unwrap();
        let is_explained = match operation.state {
            OperationState::PendingApproval => operation.message.starts_with(operations::PENDING_APPROVAL),
            OperationState::Approved => {
                APPROVED_WAITS.iter().any(|sentence| operation.message.starts_with(sentence))
            }
            OperationState::Running => {
                instance.placements.iter().any(|on| operation.message.contains(&format!("node {}", on.node)))
            }
            _ => is_prepared_explained(operation),
        };
        if !is_explained {
            return Err(format!("{operation:?} of {instance:?} does not say what it waits for"));
        }
        all.push(format!("{}: {}", operation.state.as_str(), operation.message));
    }
    for plan in state.plans.values() {
        let Some(open) = plan.open_revision() else { continue };
        let instances = || state.instances_of(&plan.spec.name);
        let is_open = |one: &Operation| !one.state.is_final();
        let is_explained = match open.state {
            RevisionState::Pending => plan.state != PlanState::Active,
            RevisionState::Paused => true,
            // Its operations say it, or the node of a DELETE that was stopped.
            _ => instances().any(|one| one.operations.iter().any(is_open) || operations::is_leaving(one)),
        };
        if !is_explained {
            return Err(format!("{open:?} of plan {} does not say what it waits for", plan.spec.name));
        }
    }
    Ok(all)
}

/// Whether an operation that waits for a node names a reason. It may be of an earlier moment: an attempt that found no node is not
/// repeated before a node has changed.
fn is_prepared_explained(operation: &Operation) -> bool {
    ["no node ", "waits until node "].iter().any(|reason| operation.message.starts_with(reason))
}
