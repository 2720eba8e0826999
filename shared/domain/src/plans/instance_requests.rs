//! Requests of persons for one instance: another one of a plan, another revision of it, and its deletion. Each waits for its approval,
//! as operations of revisions do. Before it begins, nothing changes on a node; a chosen node is reserved.
//!
//! The plan's next revision or migration supersedes a request that has not begun, and no request is accepted while one is open. A CREATE
//! is always of the newest revision, because the planner chooses nodes for that one.

use muster_contract::desired::ProfileType;
use muster_contract::limits::PLAN_INSTANCES_MAX;
use muster_contract::plans::{
    Instance, InstanceCreateRequest, InstanceState, OperationRequest, OperationState, OperationType,
    Placement, Plan, PlanRevision, PlanState, PlannerErrorBody, RevisionState,
};
use muster_contract::query::ErrorCode;
use muster_contract::{DeviceKey, RevisionId, Timestamp};

use super::content::{content, fits};
use super::decide::{invalid, not_found, precondition, refuse};
use super::document::PlansDocument;
use super::operations::{self, Author};
use super::schedule::rejection_of;
use super::state::PlansState;

impl PlansState {
    /// Makes another instance of a plan, on a named node or on one that the planner chooses later.
    pub(super) fn create_instance(
        &self,
        request: &InstanceCreateRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        check_active(plan)?;
        let revision = self.newest_revision(plan, request.revision.as_ref())?;
        let name = &plan.spec.name;
        if self.instances_of(name).count() >= PLAN_INSTANCES_MAX as usize {
            return Err(precondition(format!(
                "plan {name} has {PLAN_INSTANCES_MAX} instances, which is the most"
            )));
        }
        // The revision has named its own instances, also deleted ones.
        let cause = format!("{} {now}", revision.id);
        let made = self.new_instance(plan, &revision.id, &cause, 0, now);
        let (_, mut next) = made.ok_or_else(|| invalid("plan", "has a service name that is too long"))?;
        next.operations[0].requested_by.clone_from(&author.by);
        if let Some(node) = &request.node {
            self.reserve(plan, &mut next, 0, node, now)?;
        }
        next.change = operations::change(now, "CREATE is requested", author);
        Ok(PlansDocument::Instance(next))
    }

    /// Checks that a person may change what instances a plan has, or what they run.
    pub(super) fn check_changeable(&self, plan: &Plan, kind: OperationType) -> Result<(), PlannerErrorBody> {
        if kind != OperationType::Delete {
            check_active(plan)?;
        }
        self.check_settled(plan)
    }

    /// The document of a person's CREATE, UPDATE or DELETE of an instance.
    pub(super) fn request_change(
        &self,
        request: &OperationRequest,
        plan: &Plan,
        instance: &Instance,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let (mut next, name) = (instance.clone(), &instance.display_name);
        let order = instance.active().filter(|placement| placement.revision.is_some());
        let revision = match (request.operation_type, order) {
            (OperationType::Delete, None) if operations::running(instance).is_none() => {
                if request.not_before.is_some() {
                    let rule =
                        "no node has the order of the instance, so it is deleted at once: leave it out";
                    return Err(invalid("notBefore", rule));
                }
                return Ok(deleted(next, author, now));
            }
            (OperationType::Delete, _) => None,
            (OperationType::Update, None) => {
                return Err(precondition(format!("instance {name} runs on no node: request CREATE")));
            }
            (OperationType::Update, Some(on)) => {
                Some(self.completed_revision(plan, request.revision.as_ref(), &on.node)?)
            }
            (_, Some(_)) => {
                return Err(precondition(format!("instance {name} has a node: request UPDATE or RELOCATE")));
            }
            (_, None) => Some(self.newest_revision(plan, request.revision.as_ref())?),
        };
        // An UPDATE changes the instance's revision when it begins.
        if let Some(revision) = revision.filter(|_| request.operation_type == OperationType::Create) {
            next.revision = revision.id.clone();
        }
        let (kind, id) = (request.operation_type, revision.map(|revision| &revision.id));
        let operation = operations::new(&next, kind, id, OperationState::Preparing, now);
        let mut operation = operation.ok_or_else(|| invalid("instance", "has a name that is too long"))?;
        operation.requested_by.clone_from(&author.by);
        operation.not_before = request.not_before;
        if kind != OperationType::Create {
            operations::await_approval(&mut operation, plan, now);
        }
        next.operations.push(operation);
        if let Some(node) = &request.node {
            let at = next.operations.len() - 1;
            self.reserve(plan, &mut next, at, node, now)?;
        }
        operations::finish(
            &mut next,
            operations::change(now, format!("{} is requested", kind.as_str()), author),
        );
        Ok(PlansDocument::Instance(next))
    }

    /// Reserves the node that a person has chosen for a CREATE or RELOCATE, which then waits for its approval.
    ///
    /// # Errors
    /// A rule of the scheduler rejects the node, or the instance holds another one.
    pub(super) fn reserve(
        &self,
        plan: &Plan,
        instance: &mut Instance,
        at: usize,
        node: &DeviceKey,
        now: Timestamp,
    ) -> Result<(), PlannerErrorBody> {
        let Some(operation) = instance.operations.get_mut(at) else { return Ok(()) };
        let active = operation.operation_type == OperationType::Create;
        if let Some(held) = instance.placements.iter().find(|placement| placement.active == active) {
            return Err(precondition(format!(
                "instance {} holds node {} yet",
                instance.display_name, held.node
            )));
        }
        let found = self.node(node).ok_or_else(|| not_found(format!("node {node}")))?;
        let ordered = instance.placements.iter().find_map(|placement| placement.revision.as_ref());
        let revision = ordered.and_then(|id| plan.revision(id));
        if let Some(rejection) = rejection_of(self, plan, revision, found, now) {
            let code =
                if rejection.is_of_capacity() { ErrorCode::NoCapacity } else { ErrorCode::Precondition };
            return Err(refuse(code, format!("node {node} cannot run it: {}", rejection.sentence)));
        }
        let reason = "a person has chosen it".to_owned();
        instance.placements.push(Placement { node: node.clone(), active, revision: None, reason });
        operations::await_approval(operation, plan, now);
        Ok(())
    }

    /// The plan's newest revision, which CREATE is of: nodes are chosen for it.
    fn newest_revision<'a>(
        &self,
        plan: &'a Plan,
        wanted: Option<&RevisionId>,
    ) -> Result<&'a PlanRevision, PlannerErrorBody> {
        self.check_settled(plan)?;
        let name = &plan.spec.name;
        let newest = plan.revisions.last();
        let newest = newest.ok_or_else(|| precondition(format!("plan {name} has no revision: deploy it")))?;
        let id = &newest.id;
        if newest.state != RevisionState::Completed || newest.instances == 0 || newest.canary.is_some() {
            let (state, count) = (newest.state.as_str(), newest.canary.unwrap_or(newest.instances));
            let message = format!(
                "revision {id}, the newest of plan {name}, is {state}, for {count} instances: deploy the plan with all \
                 its instances first"
            );
            return Err(precondition(message));
        }
        match wanted.filter(|wanted| *wanted != id) {
            Some(other) => {
                let rule =
                    format!("is {other}, and the newest of plan {name} is {id}: name that one, or none");
                Err(invalid("revision", rule))
            }
            None => Ok(newest),
        }
    }

    /// The completed revision that an instance gets: the one of this id, or the newest one. Its node can run it.
    fn completed_revision<'a>(
        &self,
        plan: &'a Plan,
        wanted: Option<&RevisionId>,
        node: &DeviceKey,
    ) -> Result<&'a PlanRevision, PlannerErrorBody> {
        let name = &plan.spec.name;
        let Some(id) = wanted else { return self.newest_revision(plan, None) };
        let found = plan.revision(id).ok_or_else(|| not_found(format!("revision {id} of plan {name}")))?;
        if found.state != RevisionState::Completed || found.instances == 0 {
            let (state, count) = (found.state.as_str(), found.instances);
            let message = format!(
                "revision {id} of plan {name} is {state}, for {count} instances: name a completed one"
            );
            return Err(precondition(message));
        }
        let runtimes = self.runtimes(node);
        content(&plan.spec, &found.coordinates, runtimes).map_err(|error| invalid("revision", error))?;
        let can_run = |kind: &ProfileType| fits(&plan.spec, &found.coordinates, *kind);
        if !runtimes.is_empty() && !runtimes.iter().any(can_run) {
            return Err(precondition(format!("node {node} has no runtime for revision {id}")));
        }
        Ok(found)
    }

    /// Checks that no revision or migration decides about the instances of a plan.
    fn check_settled(&self, plan: &Plan) -> Result<(), PlannerErrorBody> {
        self.check_not_migrating(plan)?;
        match plan.open_revision() {
            None => Ok(()),
            Some(open) => {
                let (id, state) = (&open.id, open.state.as_str());
                Err(precondition(format!("revision {id} is {state}: wait for it, or cancel it")))
            }
        }
    }
}

fn check_active(plan: &Plan) -> Result<(), PlannerErrorBody> {
    match plan.state {
        PlanState::Active => Ok(()),
        _ => Err(precondition(format!("plan {} is inactive", plan.spec.name))),
    }
}

/// An instance without an order: no node has to confirm its deletion.
fn deleted(mut instance: Instance, author: &Author, now: Timestamp) -> PlansDocument {
    for at in 0..instance.operations.len() {
        if !instance.operations[at].state.is_final() {
            operations::end(&mut instance, at, OperationState::Cancelled, "the instance is deleted", now);
        }
    }
    instance.placements.clear();
    instance.state = InstanceState::Deleted;
    operations::finish(
        &mut instance,
        operations::change(now, "it is deleted: no node has its order", author),
    );
    PlansDocument::Instance(instance)
}
