//! Counts of a plan, and the states of placements and operations in sentences. They follow from LEDGER and are stored nowhere.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::plans::{
    Instance, Operation, OperationCounts, OperationState, OperationType, Placement, PlacementStatus, Plan,
    PlanSummary, RevisionState, RuntimeState,
};
use muster_contract::{DeviceKey, PlanName};

use super::advance::{digest, is_of_open};
use super::content::{is_stopped, order};
use super::evidence::{PlacementEvidence, PlansEvidence, UNREPORTED_GONE_AFTER};
use super::migrate::Approvals;
use super::operations;
use super::read::PlansRead;

impl<E: PlansEvidence> PlansRead<'_, E> {
    /// Counts of a plan.
    pub(super) fn summary(&self, plan: &Plan) -> PlanSummary {
        let mut summary = PlanSummary::default();
        let mut operations = Vec::new();
        for instance in self.state.instances_of(&plan.spec.name) {
            summary.instances += 1;
            *summary.revisions.entry(instance.revision.to_string()).or_insert(0) += 1;
            for status in self.placements(instance) {
                *summary.runtime.entry(status.state).or_insert(0) += 1;
            }
            operations.extend(instance.operations.iter().map(|one| (one.operation_type, one.state)));
        }
        summary.operations = counted(operations);
        summary.removed = counted(self.state.removed_operations(plan));
        summary
    }

    /// The states of an instance's placements.
    pub(super) fn placements(&self, instance: &Instance) -> Vec<PlacementStatus> {
        instance.placements.iter().map(|placement| self.placement(instance, placement)).collect()
    }

    fn placement(&self, instance: &Instance, placement: &Placement) -> PlacementStatus {
        let evidence = self.evidence.placement(&placement.node, &instance.name);
        let plan = self.state.plan(&instance.plan);
        let revision = placement.revision.as_ref();
        let content = plan
            .zip(revision)
            .and_then(|(plan, revision)| digest(plan, revision, self.state.runtimes(&placement.node)));
        let retries = plan.and_then(|plan| plan.spec.retries.as_ref());
        let is_stopped = is_stopped(instance, placement);
        let order = content.map(|content| order(content, is_stopped, instance.restarts));
        let node = &placement.node;
        let (state, message) = match (order, is_stopped) {
            (Some(order), false) if evidence.runs(order) => {
                (RuntimeState::Running, format!("node {node} runs it"))
            }
            (Some(order), true) if evidence.is_stopped(order) => {
                (RuntimeState::Terminated, format!("node {node} has stopped it, and keeps its resources"))
            }
            (Some(order), _) if evidence.failed(order, retries) => {
                let verb = if is_stopped { "stop" } else { "run" };
                (RuntimeState::Failed, format!("node {node} could not {verb} it"))
            }
            _ => waiting(
                placement,
                &evidence,
                order,
                is_stopped,
                operations::is_withdrawn(instance, placement),
            ),
        };
        PlacementStatus { state, message }
    }

    /// An operation, with what it waits for.
    pub(super) fn explained(
        &self,
        instance: &Instance,
        operation: &Operation,
        approvals: &mut BTreeMap<PlanName, Approvals>,
    ) -> Operation {
        let mut explained = operation.clone();
        match operation.state {
            OperationState::PendingApproval => {
                if let Some(on) = reserved(instance, operation.operation_type) {
                    explained.message = format!("{}; node {}: {}", operation.message, on.node, on.reason);
                }
            }
            OperationState::Running => {
                let all = self.placements(instance);
                let sentences: Vec<_> = all.into_iter().map(|status| status.message).collect();
                explained.message = sentences.join("; ");
            }
            OperationState::Preparing if explained.message.is_empty() => {
                explained.message = self.state.full.get(&instance.plan).cloned().unwrap_or_default();
            }
            OperationState::Approved => {
                let running = instance.operations.iter().find(|one| one.state == OperationState::Running);
                explained.message = match (operation.not_before.filter(|time| *time > self.now), running) {
                    (Some(time), _) => format!("it does not run before {time}"),
                    (None, Some(running)) => format!("it waits for operation {}", running.id),
                    (None, None) if self.is_paused(instance, operation) => {
                        "its deployment is paused; `muster plan resume` continues it".to_owned()
                    }
                    (None, None) if self.waits_for_others(instance, operation, approvals) => {
                        "it waits until every operation of the migration is approved".to_owned()
                    }
                    (None, None) => explained.message,
                };
            }
            _ => {}
        }
        explained
    }

    /// Whether the revision of an operation is paused.
    fn is_paused(&self, instance: &Instance, operation: &Operation) -> bool {
        let plan = self.state.plan(&instance.plan);
        let revision = plan.zip(operation.revision.as_ref()).and_then(|(plan, id)| plan.revision(id));
        revision.is_some_and(|revision| revision.state == RevisionState::Paused)
    }

    /// Whether an approved operation waits for the approvals of the others of its migration.
    /// `known` are the approvals of plans that this answer has counted: each count walks all instances.
    fn waits_for_others(
        &self,
        instance: &Instance,
        operation: &Operation,
        known: &mut BTreeMap<PlanName, Approvals>,
    ) -> bool {
        let Some(plan) = self.state.plan(&instance.plan).filter(|plan| is_of_open(plan, operation)) else {
            return false;
        };
        let counted = known.entry(instance.plan.clone()).or_insert_with(|| self.state.approvals(plan));
        *counted == Approvals::Awaited
    }
}

/// The placement that the scheduler has reserved for an operation that waits for its approval.
fn reserved(instance: &Instance, operation_type: OperationType) -> Option<&Placement> {
    let is_passive = match operation_type {
        OperationType::Create => false,
        OperationType::Relocate => true,
        _ => return None,
    };
    let is_reserved = |on: &&Placement| on.active != is_passive && on.revision.is_none();
    instance.placements.iter().find(is_reserved).filter(|on| !on.reason.is_empty())
}

/// The state of a placement whose node has confirmed nothing.
fn waiting(
    placement: &Placement,
    evidence: &PlacementEvidence<'_>,
    order: Option<Digest>,
    is_stopped: bool,
    is_leaving: bool,
) -> (RuntimeState, String) {
    let node = &placement.node;
    if let Some(retry) = order.and_then(|order| evidence.tries_again(order)) {
        let state = if is_stopped { RuntimeState::Terminating } else { RuntimeState::Starting };
        let (attempt, code) = (retry.attempt, &retry.last_error.code);
        return (
            state,
            format!("node {node} has failed and tries again: attempt {attempt}, last error {code}"),
        );
    }
    let heard = || match evidence.last_heard_at {
        Some(at) => format!("the state is unknown: node {node} was last heard at {at}"),
        None => format!("the state is unknown: node {node} was never heard"),
    };
    let is_published = evidence.desired.is_some() && (order.is_none() || evidence.desired == order);
    match (placement.revision.is_some(), is_published) {
        (true, false) if evidence.is_retired => (
            RuntimeState::Unknown,
            format!("node {node} is retired, and gets no order: bring it back, or relocate the instance"),
        ),
        (true, false) => (RuntimeState::Starting, published(node, evidence)),
        (false, true) if evidence.refusal.is_some() => (RuntimeState::Terminating, withdrawn(node, evidence)),
        (false, false) if is_leaving && evidence.withdrawal.is_some_and(|by| by.is_removed) => {
            (RuntimeState::Terminated, format!("node {node} has stopped it"))
        }
        _ if !evidence.is_known => (RuntimeState::Unknown, heard()),
        (true, true) if is_stopped => (
            RuntimeState::Terminating,
            format!("node {node} has the order to stop it, and has not confirmed it"),
        ),
        (true, true) => {
            (RuntimeState::Starting, format!("node {node} has the order, and has not confirmed it"))
        }
        (false, true) => (RuntimeState::Terminating, withdrawn(node, evidence)),
        (false, false) if evidence.standing.is_none() && is_leaving => (
            RuntimeState::Terminating,
            format!(
                "node {node} has reported nothing of it: it counts as gone after {UNREPORTED_GONE_AFTER:#}"
            ),
        ),
        (false, false) if evidence.standing.is_none() => {
            (RuntimeState::Pending, format!("node {node} has no order to run it"))
        }
        (false, false) => {
            (RuntimeState::Terminating, format!("node {node} has not confirmed that it stopped it"))
        }
    }
}

/// The wait for an order that the desired state of a node lacks.
fn published(node: &DeviceKey, evidence: &PlacementEvidence<'_>) -> String {
    match evidence.refusal {
        Some(refusal) => {
            format!("the order for node {node} cannot be published, and is tried again: {refusal}")
        }
        None => format!("the order for node {node} is being published"),
    }
}

/// The wait for the end of an order that the desired state of a node still has.
fn withdrawn(node: &DeviceKey, evidence: &PlacementEvidence<'_>) -> String {
    match evidence.refusal {
        Some(refusal) => {
            format!("the order of node {node} cannot be withdrawn, and this is tried again: {refusal}")
        }
        None => format!("the end of the order of node {node} is being published"),
    }
}

/// The counts of operations, by type.
fn counted(operations: impl IntoIterator<Item = (OperationType, OperationState)>) -> Vec<OperationCounts> {
    let mut counts: BTreeMap<OperationType, OperationCounts> = BTreeMap::new();
    for (operation_type, state) in operations {
        count(counts.entry(operation_type).or_insert_with(|| empty_counts(operation_type)), state);
    }
    OperationType::ALL.into_iter().filter_map(|one| counts.remove(&one)).collect()
}

const fn empty_counts(operation_type: OperationType) -> OperationCounts {
    OperationCounts { operation_type, pending_approval: 0, approved: 0, failed: 0, succeeded: 0 }
}

const fn count(counts: &mut OperationCounts, state: OperationState) {
    match state {
        OperationState::PendingApproval => counts.pending_approval += 1,
        OperationState::Approved | OperationState::Running => counts.approved += 1,
        OperationState::Succeeded => counts.succeeded += 1,
        OperationState::Rejected
        | OperationState::Expired
        | OperationState::Failed
        | OperationState::Cancelled => {
            counts.failed += 1;
        }
        OperationState::Pending | OperationState::Preparing => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_wait_are_counted_for_each_of_the_six_types() {
        use OperationState::{Approved, PendingApproval, Rejected, Succeeded};
        let states = [PendingApproval, PendingApproval, Approved, Rejected, Succeeded];
        let operations = || OperationType::ALL.into_iter().flat_map(|one| states.map(|state| (one, state)));
        let counts = counted(operations());
        let types: Vec<_> = counts.iter().map(|of| of.operation_type).collect();
        assert_eq!(types, OperationType::ALL);
        for of in &counts {
            let numbers = (of.pending_approval, of.approved, of.failed, of.succeeded);
            assert_eq!(numbers, (2, 1, 1, 1), "{:?}", of.operation_type);
        }
        assert_eq!(counted(operations().filter(|(one, _)| *one == OperationType::Relocate)).len(), 1);
    }
}
