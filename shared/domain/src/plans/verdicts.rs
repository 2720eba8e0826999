//! Answers requests about operations: a person's own ones, approvals, also of a whole revision, rejections and cancellations.

use muster_contract::Timestamp;
use muster_contract::desired::ProfileType;
use muster_contract::limits::OPEN_OPERATIONS_MAX;
use muster_contract::plans::{
    Instance, InstanceState, Operation, OperationApproval, OperationRequest, OperationState, OperationType,
    OperationVerdictRequest, Plan, PlanApproveRequest, PlannerErrorBody,
};

use super::content::content;
use super::decide::{check_text, invalid, not_found, precondition, revision_index};
use super::document::PlansDocument;
use super::operations::{self, Author};
use super::state::PlansState;

impl PlansState {
    pub(super) fn request_operation(
        &self,
        request: &OperationRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, None)?;
        let instance = self.instance_at(&request.plan, &request.instance, request.expected_version)?;
        let changes_content = matches!(
            request.operation_type,
            OperationType::Create | OperationType::Update | OperationType::Delete
        );
        if changes_content {
            self.check_changeable(plan, request.operation_type)?;
        }
        check_operation(self, request, plan, instance)?;
        if changes_content {
            return self.request_change(request, plan, instance, author, now);
        }
        let mut next = instance.clone();
        let operation_type = request.operation_type;
        let operation = operations::new(&next, operation_type, None, OperationState::Preparing, now);
        let mut operation = operation.ok_or_else(|| invalid("instance", "has a name that is too long"))?;
        operation.requested_by.clone_from(&author.by);
        operation.not_before = request.not_before;
        if operation_type != OperationType::Relocate {
            operations::await_approval(&mut operation, plan, now);
        }
        next.operations.push(operation);
        if let Some(node) = &request.node {
            let at = next.operations.len() - 1;
            self.reserve(plan, &mut next, at, node, now)?;
        }
        let sentence = format!("{} is requested", operation_type.as_str());
        operations::finish(&mut next, operations::change(now, sentence, author));
        Ok(PlansDocument::Instance(next))
    }

    pub(super) fn approve(
        &self,
        request: &OperationVerdictRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let instance = self.instance_at(&request.plan, &request.instance, request.expected_version)?;
        let (at, operation) = operation_of(instance, request)?;
        if operation.state != OperationState::PendingApproval {
            let message = format!(
                "operation {} is {}, and waits for no approval",
                operation.id,
                operation.state.as_str()
            );
            return Err(precondition(message));
        }
        if let Some(expires_at) = operation.expires_at.filter(|expires_at| *expires_at <= now) {
            return Err(precondition(format!("operation {} has expired at {expires_at}", operation.id)));
        }
        check_text("rule", request.rule.as_deref())?;
        let mut next = instance.clone();
        let approved = &mut next.operations[at];
        operations::set(approved, OperationState::Approved, request.reason.clone().unwrap_or_default(), now);
        approved.approval =
            Some(OperationApproval { by: author.by.clone(), at: now, rule: request.rule.clone() });
        let sentence = format!("{} is approved", operation.operation_type.as_str());
        operations::finish(&mut next, operations::change(now, sentence, author));
        Ok(PlansDocument::Instance(next))
    }

    /// Approves a revision with all its operations; one that is approved stays as it is.
    pub(super) fn approve_revision(
        &self,
        request: &PlanApproveRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        let at = revision_index(plan, &request.id)?;
        let revision = &plan.revisions[at];
        if revision.state.is_final() {
            let message =
                format!("revision {} is {}, and waits for no approval", request.id, revision.state.as_str());
            return Err(precondition(message));
        }
        if revision.approval.is_none() && plan.awaits_hooks(revision) {
            let message = format!(
                "the hooks of revision {} may change it yet: approve it once they have answered",
                request.id
            );
            return Err(precondition(message));
        }
        let mut next = plan.clone();
        if revision.approval.is_none() {
            check_text("rule", request.rule.as_deref())?;
            next.version += 1;
            next.revisions[at].approval =
                Some(OperationApproval { by: author.by.clone(), at: now, rule: request.rule.clone() });
            next.change = operations::change(now, format!("revision {} is approved", request.id), author);
        }
        Ok(PlansDocument::Plan(next))
    }

    /// Rejects or cancels an operation.
    pub(super) fn end(
        &self,
        request: &OperationVerdictRequest,
        state: OperationState,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let instance = self.instance_at(&request.plan, &request.instance, request.expected_version)?;
        let (at, operation) = operation_of(instance, request)?;
        let is_possible = match operation.state {
            OperationState::PendingApproval => true,
            // The node has the order, and may carry it out at any time. Only the new node of a RELOCATE can be given up.
            OperationState::Running => {
                state == OperationState::Cancelled && operation.operation_type == OperationType::Relocate
            }
            other => state == OperationState::Cancelled && !other.is_final(),
        };
        if !is_possible {
            let message = format!(
                "operation {} is {}, and cannot be {}",
                operation.id,
                operation.state.as_str(),
                state.as_str()
            );
            return Err(precondition(message));
        }
        let mut next = instance.clone();
        let default = if state == OperationState::Rejected { "it was rejected" } else { "it was cancelled" };
        let reason = request.reason.clone().unwrap_or_else(|| default.to_owned());
        operations::end(&mut next, at, state, reason, now);
        let sentence = format!("{} is {}", operation.operation_type.as_str(), state.as_str());
        operations::finish(&mut next, operations::change(now, sentence, author));
        Ok(PlansDocument::Instance(next))
    }
}

/// Checks that a person may request an operation on an instance.
fn check_operation(
    state: &PlansState,
    request: &OperationRequest,
    plan: &Plan,
    instance: &Instance,
) -> Result<(), PlannerErrorBody> {
    let (word, kind) = (request.operation_type.as_str(), request.operation_type);
    if request.node.is_some() && !matches!(kind, OperationType::Create | OperationType::Relocate) {
        return Err(invalid("node", format!("is not of {word}: leave it out")));
    }
    if request.revision.is_some() && !matches!(kind, OperationType::Create | OperationType::Update) {
        return Err(invalid("revision", format!("is not of {word}: leave it out")));
    }
    match kind {
        OperationType::Stop | OperationType::Restart if !stops_in_place(state, plan, instance) => {
            return Err(precondition(format!(
                "{word} is not supported for charts and manifests: scale the plan down, or deploy other coordinates"
            )));
        }
        OperationType::Restart => {}
        OperationType::Stop if instance.stopped => {
            return Err(precondition(format!("instance {} is stopped", instance.display_name)));
        }
        _ => {}
    }
    if instance.state != InstanceState::Active {
        return Err(precondition(format!("instance {} is marked for deletion", instance.display_name)));
    }
    let is_without_order = instance.active().is_none_or(|placement| placement.revision.is_none());
    if is_without_order
        && matches!(kind, OperationType::Stop | OperationType::Restart | OperationType::Relocate)
    {
        return Err(precondition(format!("instance {} runs on no node", instance.display_name)));
    }
    let open = instance.operations.iter().filter(|operation| !operation.state.is_final());
    if open.clone().any(|operation| operation.operation_type == kind) {
        return Err(precondition(format!(
            "instance {} has a {word} that has not ended",
            instance.display_name
        )));
    }
    if open.count() >= OPEN_OPERATIONS_MAX {
        let message = format!(
            "instance {} has {OPEN_OPERATIONS_MAX} operations that have not ended",
            instance.display_name
        );
        return Err(precondition(message));
    }
    Ok(())
}

/// Whether the runtimes of an instance's content can stop it and keep its data.
fn stops_in_place(state: &PlansState, plan: &Plan, instance: &Instance) -> bool {
    let runtimes = instance.active().map(|placement| state.runtimes(&placement.node)).unwrap_or_default();
    let revision = instance.active().and_then(|placement| placement.revision.as_ref());
    let content = revision.and_then(|id| content(&plan.spec, &plan.revision(id)?.coordinates, runtimes).ok());
    let profile = content.map(|profile| profile.profile_type);
    profile.is_none_or(ProfileType::stops_in_place)
}

pub(super) fn operation_of<'a>(
    instance: &'a Instance,
    request: &OperationVerdictRequest,
) -> Result<(usize, &'a Operation), PlannerErrorBody> {
    let found = instance.operations.iter().enumerate().find(|(_, one)| one.id == request.operation);
    found
        .ok_or_else(|| not_found(format!("operation {} of instance {}", request.operation, request.instance)))
}
