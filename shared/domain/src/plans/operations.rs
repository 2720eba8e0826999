//! Changes of the operations of one instance. Each function changes a copy of the document; the caller appends it.

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::limits::{FINISHED_OPERATIONS_MAX, PLANS_TEXT_BYTES_MAX};
use muster_contract::plans::{
    Instance, InstanceState, Operation, OperationState, OperationStep, OperationType, Placement, Plan,
    PlansChange,
};
use muster_contract::state::cut;
use muster_contract::{RequestedBy, RevisionId, Timestamp};

use super::evidence::PlansTimes;
use super::naming;

/// The sentence of an operation that waits for approval, as MRDS has it.
pub(super) const PENDING_APPROVAL: &str = "Operation is pending approval";

/// The author of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Author {
    pub(super) by: Option<RequestedBy>,
    pub(super) request_id: Option<String>,
    /// Digest of the request.
    pub(super) request: Option<Digest>,
}

/// The change of a document.
pub(super) fn change(now: Timestamp, message: impl Into<String>, author: &Author) -> PlansChange {
    PlansChange {
        at: now,
        message: cut(message.into(), PLANS_TEXT_BYTES_MAX),
        by: author.by.clone(),
        request_id: author.request_id.clone(),
        request: author.request,
    }
}

/// A new operation in a state.
pub(super) fn new(
    instance: &Instance,
    operation_type: OperationType,
    revision: Option<&RevisionId>,
    state: OperationState,
    now: Timestamp,
) -> Option<Operation> {
    let cause = revision.map_or("", RevisionId::as_str);
    let id = naming::operation(operation_type, &instance.name, instance.version, cause)?;
    Some(Operation {
        id,
        operation_type,
        revision: revision.cloned(),
        state,
        message: String::new(),
        requested_by: None,
        not_before: None,
        expires_at: None,
        approval: None,
        completion: None,
        history: vec![OperationStep { state, at: now }],
    })
}

/// Moves an operation to a state.
pub(super) fn set(
    operation: &mut Operation,
    state: OperationState,
    message: impl Into<String>,
    now: Timestamp,
) {
    operation.message = cut(message.into(), PLANS_TEXT_BYTES_MAX);
    if operation.state != state {
        operation.state = state;
        operation.history.push(OperationStep { state, at: now });
    }
}

/// Lets an operation wait for approval, unless its revision is approved.
pub(super) fn await_approval(operation: &mut Operation, plan: &Plan, now: Timestamp) {
    set(operation, OperationState::PendingApproval, PENDING_APPROVAL, now);
    let after = SignedDuration::try_from(plan.spec.approval_expires_after).unwrap_or(SignedDuration::MAX);
    operation.expires_at = now.checked_add(after).ok();
    approve_with_revision(operation, plan, now);
}

/// Approves an operation that waits for its approval, if its revision is approved with all its operations; true if it is.
pub(super) fn approve_with_revision(operation: &mut Operation, plan: &Plan, now: Timestamp) -> bool {
    let revision = operation.revision.as_ref().and_then(|id| plan.revision(id));
    // A person's operation of a revision that has ended needs its own approval.
    let open = revision.filter(|revision| !revision.state.is_final());
    let in_time = |at| operation.expires_at.is_none_or(|expires_at| at < expires_at);
    let approval = open.and_then(|revision| revision.approval.clone());
    let Some(approval) = approval.filter(|approval| in_time(approval.at)) else { return false };
    set(operation, OperationState::Approved, "approved with its revision", now);
    operation.approval = Some(approval);
    true
}

/// Ends an operation without success, and releases what it has reserved.
pub(super) fn end(
    instance: &mut Instance,
    at: usize,
    state: OperationState,
    message: impl Into<String>,
    now: Timestamp,
) {
    let Some(operation) = instance.operations.get_mut(at) else { return };
    let (before, operation_type) = (operation.state, operation.operation_type);
    set(operation, state, message, now);
    let is_reserved = matches!(before, OperationState::PendingApproval | OperationState::Approved);
    match operation_type {
        OperationType::Create if is_reserved => {
            let has_begun = instance.operations.iter().any(has_run);
            instance.placements.retain(|placement| placement.revision.is_some() || has_begun);
        }
        OperationType::Relocate if is_reserved => {
            instance.placements.retain(|placement| placement.active);
        }
        // The node removes what it has begun to run.
        OperationType::Relocate => {
            for placement in instance.placements.iter_mut().filter(|placement| !placement.active) {
                placement.revision = None;
            }
        }
        // One that has begun has withdrawn the orders: the instance ends once its nodes have removed it.
        OperationType::Delete
            if before != OperationState::Running && instance.state == InstanceState::MarkedForDeletion =>
        {
            instance.state = InstanceState::Active;
        }
        _ => {}
    }
}

/// Gives a document its next version, with the change, and drops old operations that have ended.
pub(super) fn finish(instance: &mut Instance, change: PlansChange) {
    instance.version += 1;
    instance.change = change;
    let mut finished = instance.operations.iter().filter(|operation| operation.state.is_final()).count();
    // The result of the revision for this instance.
    let is_of_revision = |one: &Operation| one.revision.as_ref() == Some(&instance.revision);
    let result = instance.operations.iter().rfind(|one| is_of_revision(one)).map(|one| one.id.clone());
    instance.operations.retain(|operation| {
        let is_kept = finished <= FINISHED_OPERATIONS_MAX
            || !operation.state.is_final()
            || Some(&operation.id) == result.as_ref();
        finished -= usize::from(!is_kept);
        is_kept
    });
}

/// The index of the operation that runs.
pub(super) fn running(instance: &Instance) -> Option<usize> {
    instance.operations.iter().position(|operation| operation.state == OperationState::Running)
}

/// Whether an operation that decides about the instances of a plan, or their content, has not begun: the next revision supersedes it.
pub(super) fn may_be_superseded(operation: &Operation) -> bool {
    let decides = matches!(
        operation.operation_type,
        OperationType::Create | OperationType::Update | OperationType::Delete
    );
    decides && !operation.state.is_final() && operation.state != OperationState::Running
}

/// Whether an operation that orders an instance has begun, as far as it is still recorded.
pub(super) fn has_begun(instance: &Instance) -> bool {
    orders(instance, |_| true).next().is_some()
}

/// The begins of the operations of some types that order an instance.
fn orders(instance: &Instance, is_of: impl Fn(OperationType) -> bool) -> impl Iterator<Item = Timestamp> {
    let orders =
        move |one: &&Operation| one.operation_type != OperationType::Delete && is_of(one.operation_type);
    let ordering = instance.operations.iter().filter(orders);
    ordering.filter_map(begun_at)
}

fn begun_at(operation: &Operation) -> Option<Timestamp> {
    operation.history.iter().find(|step| step.state == OperationState::Running).map(|step| step.at)
}

/// The times of a placement whose order was withdrawn. Only a RELOCATE has ordered a placement that is not active.
pub(super) fn times(instance: &Instance, placement: &Placement) -> PlansTimes {
    let is_active = placement.active;
    let is_of = move |kind| is_active || kind == OperationType::Relocate;
    let withdrawal = |one: &Operation| match one.operation_type {
        OperationType::Delete => begun_at(one),
        OperationType::Relocate => one.history.last().map(|step| step.at),
        _ => None,
    };
    let withdrawn_at = instance.operations.iter().filter_map(withdrawal).max();
    PlansTimes {
        ordered_at: orders(instance, is_of).max().unwrap_or(Timestamp::MIN),
        // Older operations are not recorded any more.
        withdrawn_at: withdrawn_at.unwrap_or(instance.change.at),
    }
}

fn has_run(operation: &Operation) -> bool {
    operation.history.iter().any(|step| step.state == OperationState::Running)
}

/// Whether a DELETE of an instance has begun. No revision takes the instance again: it ends once its nodes have removed it.
pub(super) fn is_leaving(instance: &Instance) -> bool {
    let may_stay = |one: &Operation| {
        one.operation_type == OperationType::Delete
            && !one.state.is_final()
            && one.state != OperationState::Running
    };
    instance.state == InstanceState::MarkedForDeletion && !instance.operations.iter().any(may_stay)
}

/// Whether the order of a placement was withdrawn, so that its node is to remove the instance.
pub(super) fn is_withdrawn(instance: &Instance, placement: &Placement) -> bool {
    let is_reserved = |one: &Operation| {
        one.operation_type == OperationType::Relocate
            && matches!(one.state, OperationState::PendingApproval | OperationState::Approved)
    };
    placement.revision.is_none()
        && (is_leaving(instance) || !placement.active && !instance.operations.iter().any(is_reserved))
}

/// Whether an instance may keep its revision beside a canary: its node has the order to run it.
pub(super) fn keeps_revision(instance: &Instance) -> bool {
    let has_order = instance.active().is_some_and(|placement| placement.revision.is_some());
    instance.state == InstanceState::Active && has_order
}
