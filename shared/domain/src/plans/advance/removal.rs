//! Instances and placements that end once their nodes have confirmed it. It begins nothing.

use muster_contract::plans::{Instance, InstanceState, Operation, OperationState, OperationType, Placement};

use super::Pass;
use crate::plans::evidence::PlansEvidence;
use crate::plans::operations;

/// The instance as deleted, if it is gone from all its nodes.
pub(super) fn deleted<E: PlansEvidence>(instance: &Instance, pass: &Pass<'_, E>) -> Option<Instance> {
    let is_gone_from = |on: &Placement| {
        let evidence = pass.evidence.placement(&on.node, &instance.name);
        let was_never_ordered = !operations::has_begun(instance)
            && evidence.desired.is_none()
            && evidence.standing.is_none()
            && evidence.withdrawal.is_none();
        evidence.is_gone(operations::times(instance, on), pass.now) || was_never_ordered
    };
    if !instance.placements.iter().all(is_gone_from) {
        return None;
    }
    let mut next = instance.clone();
    for at in 0..next.operations.len() {
        let other = &next.operations[at];
        if !other.state.is_final() && other.operation_type != OperationType::Delete {
            operations::end(&mut next, at, OperationState::Cancelled, "the instance is deleted", pass.now);
        }
    }
    Some(Instance { placements: Vec::new(), state: InstanceState::Deleted, ..next })
}

/// Removes an instance whose DELETE was ended by hand or stopped, once its nodes have removed it or are retired. A node that comes
/// back later has no order to run the instance.
pub(super) fn remove_deleted<E: PlansEvidence>(
    instance: &Instance,
    pass: &Pass<'_, E>,
) -> Option<(Instance, String)> {
    let is_over = |one: &Operation| one.operation_type != OperationType::Delete || one.state.is_final();
    let is_due =
        instance.state == InstanceState::MarkedForDeletion && instance.operations.iter().all(is_over);
    let next = if is_due { deleted(instance, pass) } else { None };
    next.map(|next| (next, "its nodes have removed it, or are retired".to_owned()))
}

/// Drops a second placement that its node has removed. A RELOCATE ends with it.
pub(super) fn remove_leaving<E: PlansEvidence>(
    instance: &Instance,
    pass: &Pass<'_, E>,
) -> Option<(Instance, String)> {
    let passive =
        instance.placements.iter().find(|placement| !placement.active && placement.revision.is_none())?;
    let mut relocates =
        instance.operations.iter().filter(|one| one.operation_type == OperationType::Relocate);
    let is_reserved =
        relocates.any(|one| matches!(one.state, OperationState::PendingApproval | OperationState::Approved));
    let evidence = pass.evidence.placement(&passive.node, &instance.name);
    let is_gone = || evidence.is_gone(operations::times(instance, passive), pass.now);
    if is_reserved || instance.active().is_none() || !is_gone() {
        return None;
    }
    let mut next = instance.clone();
    next.placements.retain(|placement| placement.active);
    if let Some(at) = operations::running(instance)
        && instance.operations[at].operation_type == OperationType::Relocate
    {
        operations::set(&mut next.operations[at], OperationState::Succeeded, "", pass.now);
    }
    Some((next, format!("node {} has removed it", passive.node)))
}
