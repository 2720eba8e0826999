//! Ends of running operations without the report of their nodes: a person completes one by hand, as succeeded or failed, or stops
//! its revision.
//!
//! It ends the operation and nothing else. Orders stay as the approval made them, the state of a placement follows from LEDGER
//! alone, and the resources of an instance stay taken until its node has reported that it has removed it. A DELETE has withdrawn
//! the orders: whether it is ended as succeeded or as failed, no revision takes its instance again.

use muster_contract::Timestamp;
use muster_contract::plans::{
    Instance, ManualCompletion, Operation, OperationState, OperationType, OperationVerdictRequest,
    PlannerErrorBody,
};

use super::decide::{check_text, invalid, precondition};
use super::document::PlansDocument;
use super::operations::{self, Author};
use super::state::PlansState;
use super::verdicts::operation_of;

/// The message of an operation that ran when its revision was stopped.
pub(super) const STOPPED: &str = "its revision was stopped while it ran";

impl PlansState {
    /// Ends a running operation in a state.
    pub(super) fn complete(
        &self,
        request: &OperationVerdictRequest,
        state: OperationState,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let instance = self.instance_at(&request.plan, &request.instance, request.expected_version)?;
        let (at, operation) = operation_of(instance, request)?;
        check_running(instance, operation, state)?;
        let reason = request.reason.clone().filter(|reason| !reason.trim().is_empty());
        let reason = reason
            .ok_or_else(|| invalid("reason", "is missing: say why no report of the node is awaited"))?;
        check_text("reason", Some(&reason))?;
        check_text("rule", request.rule.as_deref())?;
        let mut next = instance.clone();
        let message = format!("ended by hand: {reason}");
        match state {
            OperationState::Succeeded => {
                operations::set(&mut next.operations[at], state, message, now);
                cancel_others(&mut next, at, now);
            }
            _ => fail_running(&mut next, at, message, now),
        }
        next.operations[at].completion =
            Some(ManualCompletion { by: author.by.clone(), rule: request.rule.clone(), reason });
        let sentence = format!("{} is {} by hand", operation.operation_type.as_str(), state.as_str());
        operations::finish(&mut next, operations::change(now, sentence, author));
        Ok(PlansDocument::Instance(next))
    }
}

/// Ends a running operation as failed, whatever its nodes will report.
pub(super) fn fail_running(instance: &mut Instance, at: usize, message: impl Into<String>, now: Timestamp) {
    operations::end(instance, at, OperationState::Failed, message, now);
    cancel_others(instance, at, now);
}

/// Cancels the other operations of an instance whose DELETE was ended: the instance has no order, and gets none again.
fn cancel_others(instance: &mut Instance, ended: usize, now: Timestamp) {
    if instance.operations[ended].operation_type != OperationType::Delete {
        return;
    }
    for at in 0..instance.operations.len() {
        let other = &instance.operations[at];
        if !other.state.is_final() {
            let message = "the DELETE before it was ended without a report";
            operations::end(instance, at, OperationState::Cancelled, message, now);
        }
    }
}

/// Whether an operation is a DELETE that was stopped: the report of its nodes is still awaited, because nobody has vouched for it.
pub(super) fn is_stopped_delete(operation: &Operation) -> bool {
    operation.operation_type == OperationType::Delete
        && operation.state == OperationState::Failed
        && operation.message == STOPPED
}

/// Checks that an operation runs, and that its success would stop nothing that its nodes have not replaced.
fn check_running(
    instance: &Instance,
    operation: &Operation,
    state: OperationState,
) -> Result<(), PlannerErrorBody> {
    if operation.state != OperationState::Running {
        let word = operation.state.as_str();
        return Err(precondition(format!("operation {} is {word}, and does not run", operation.id)));
    }
    let starts = |is_active: bool| !is_active && operation.operation_type == OperationType::Relocate;
    let new = instance.placements.iter().find(|one| starts(one.active) && one.revision.is_some());
    match new.filter(|_| state == OperationState::Succeeded) {
        Some(new) => Err(precondition(format!(
            "node {} has not confirmed that it runs {}, and the old node would stop: wait, cancel it, or complete it as failed",
            new.node, instance.display_name
        ))),
        None => Ok(()),
    }
}
