//! Answers requests that change PLANS: each changes one document, or nothing.

use std::fmt;

use muster_contract::RequestedBy;
use muster_contract::canonical::Digest;
use muster_contract::decode::Violation;
use muster_contract::limits::PLANS_TEXT_BYTES_MAX;
use muster_contract::plans::{
    DisruptionRequest, Instance, InstanceCreateRequest, InventoryApplyRequest, InventoryDeleteRequest,
    InventoryStateRequest, OperationRequest, OperationState, OperationVerdictRequest, Plan, PlanApplyRequest,
    PlanApproveRequest, PlanDeleteRequest, PlanDeployRequest, PlanMigrateRequest, PlanRollbackRequest,
    PlanSpec, PlanState, PlanStateRequest, PlannerErrorBody, RevisionState, RevisionStateRequest,
    RevisionVerb,
};
use muster_contract::query::ErrorCode;
use muster_contract::{InstanceName, PlanName, RevisionId, Timestamp};
use serde::Serialize;

use super::document::PlansDocument;
use super::naming;
use super::operations::{self, Author};
use super::state::PlansState;

/// A request that changes PLANS.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each variant is the request of its name")]
pub enum PlansRequest {
    PlanApply(PlanApplyRequest),
    PlanDelete(PlanDeleteRequest),
    PlanState(PlanStateRequest),
    PlanDeploy(PlanDeployRequest),
    PlanRollback(PlanRollbackRequest),
    PlanMigrate(PlanMigrateRequest),
    PlanRevision(RevisionStateRequest),
    PlanApprove(PlanApproveRequest),
    InstanceCreate(InstanceCreateRequest),
    Operation(OperationRequest),
    Approve(OperationVerdictRequest),
    Reject(OperationVerdictRequest),
    Cancel(OperationVerdictRequest),
    Complete(OperationVerdictRequest),
    Fail(OperationVerdictRequest),
    InventoryApply(InventoryApplyRequest),
    InventoryState(InventoryStateRequest),
    Disruption(DisruptionRequest),
    InventoryDelete(InventoryDeleteRequest),
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The document is appended, and is the answer.
    Append(Box<PlansDocument>),
    /// The document is the answer, and is in PLANS already.
    Unchanged(Box<PlansDocument>),
}

/// The message of a revision that a person has stopped.
pub const REVISION_STOPPED: &str = "Deployment was stopped";
/// Longest id of a request, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

pub(super) fn refuse(code: ErrorCode, message: impl Into<String>) -> PlannerErrorBody {
    PlannerErrorBody { code, message: message.into(), field: None, current_version: None }
}

pub(super) fn precondition(message: impl Into<String>) -> PlannerErrorBody {
    refuse(ErrorCode::Precondition, message)
}

pub(super) fn not_found(what: impl fmt::Display) -> PlannerErrorBody {
    refuse(ErrorCode::NotFound, format!("there is no {what}"))
}

pub(super) fn invalid(field: &str, rule: impl fmt::Display) -> PlannerErrorBody {
    let message = format!("{field}: {rule}");
    PlannerErrorBody { field: Some(field.to_owned()), ..refuse(ErrorCode::BadRequest, message) }
}

impl PlansRequest {
    /// Digest of the request and its verb.
    fn digest(&self) -> Digest {
        Digest::of_value(self)
    }

    /// The version and the id of the request.
    fn common(&self) -> (Option<u64>, Option<&String>) {
        macro_rules! of {
            ($($variant:ident)|+) => {
                match self {
                    $(Self::$variant(request) => (request.expected_version, request.request_id.as_ref()),)+
                }
            };
        }
        of!(PlanApply
            | PlanDelete
            | PlanState
            | PlanDeploy
            | PlanRollback
            | PlanMigrate
            | PlanRevision
            | PlanApprove
            | InstanceCreate
            | Operation
            | Approve
            | Reject
            | Cancel
            | Complete
            | Fail
            | InventoryApply
            | InventoryState
            | Disruption
            | InventoryDelete)
    }
}

impl PlansState {
    /// Decides about a request.
    ///
    /// # Errors
    /// The refusal. Nothing changes.
    pub fn decide(
        &self,
        request: &PlansRequest,
        by: Option<RequestedBy>,
        now: Timestamp,
    ) -> Result<Decision, PlannerErrorBody> {
        let (expected, request_id) = request.common();
        let is_bad =
            |id: &&String| id.is_empty() || id.len() > REQUEST_ID_BYTES_MAX || id.contains(char::is_control);
        if request_id.filter(is_bad).is_some() {
            return Err(invalid("requestId", format!("is not 1 to {REQUEST_ID_BYTES_MAX} printable bytes")));
        }
        let digest = request_id.map(|_| request.digest());
        if let Some(repeated) = request_id.and_then(|id| self.repeated(by.as_ref(), id, now)) {
            if repeated.digest != digest {
                let message = "requestId is that of another request of yours: name each request anew";
                return Err(refuse(ErrorCode::Conflict, message));
            }
            let live = self.document(&repeated.subject);
            let stored = live.or_else(|| self.deleted_document(&repeated.subject));
            let document = stored.ok_or_else(|| not_found("document of that request"))?;
            return Ok(Decision::Unchanged(Box::new(document)));
        }
        let author = Author { by, request_id: request_id.cloned(), request: digest };
        let document = self.changed(request, expected, &author, now)?;
        if matches!(request, PlansRequest::PlanApprove(_))
            && self.document(&document.subject()).as_ref() == Some(&document)
        {
            return Ok(Decision::Unchanged(Box::new(document)));
        }
        document.check().map_err(|Violation { path, rule }| invalid(&path, rule))?;
        Ok(Decision::Append(Box::new(document)))
    }

    fn changed(
        &self,
        request: &PlansRequest,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        match request {
            PlansRequest::PlanApply(request) => self.apply_plan(&request.spec, expected, author, now),
            PlansRequest::PlanDelete(request) => self.delete_plan(&request.plan, expected, author, now),
            PlansRequest::PlanState(request) => self.set_plan_state(request, author, now),
            PlansRequest::PlanDeploy(request) => self.deploy(request, None, author, now),
            PlansRequest::PlanRollback(request) => self.roll_back(request, author, now),
            PlansRequest::PlanMigrate(request) => self.migrate(request, author, now),
            PlansRequest::PlanRevision(request) => self.set_revision_state(request, author, now),
            PlansRequest::PlanApprove(request) => self.approve_revision(request, author, now),
            PlansRequest::InstanceCreate(request) => self.create_instance(request, author, now),
            PlansRequest::Operation(request) => self.request_operation(request, author, now),
            PlansRequest::Approve(request) => self.approve(request, author, now),
            PlansRequest::Reject(request) => self.end(request, OperationState::Rejected, author, now),
            PlansRequest::Cancel(request) => self.end(request, OperationState::Cancelled, author, now),
            PlansRequest::Complete(request) => self.complete(request, OperationState::Succeeded, author, now),
            PlansRequest::Fail(request) => self.complete(request, OperationState::Failed, author, now),
            PlansRequest::InventoryApply(request) => self.apply_item(request, expected, author, now),
            PlansRequest::InventoryState(request) => self.set_item_state(request, expected, author, now),
            PlansRequest::Disruption(request) => self.disrupt(request, expected, author, now),
            PlansRequest::InventoryDelete(request) => self.delete_item(request, expected, author, now),
        }
    }

    /// A plan that is not deleted, of the expected version.
    pub(super) fn plan_at(&self, name: &PlanName, expected: Option<u64>) -> Result<&Plan, PlannerErrorBody> {
        let plan = self.plan(name).ok_or_else(|| not_found(format!("plan {name}")))?;
        check_version(format_args!("plan {name}"), plan.version, expected)?;
        Ok(plan)
    }

    pub(super) fn instance_at(
        &self,
        plan: &PlanName,
        name: &InstanceName,
        expected: Option<u64>,
    ) -> Result<&Instance, PlannerErrorBody> {
        let instance =
            self.instance(plan, name).ok_or_else(|| not_found(format!("instance {name} of plan {plan}")))?;
        check_version(format_args!("instance {}", instance.display_name), instance.version, expected)?;
        Ok(instance)
    }

    fn apply_plan(
        &self,
        spec: &PlanSpec,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        spec.check().map_err(|Violation { path, rule }| invalid(&path, rule))?;
        self.check_names(spec)?;
        let change = |what: &str| operations::change(now, what, author);
        let Some(plan) = self.plan(&spec.name) else {
            if expected.is_some() {
                return Err(not_found(format!("plan {}", spec.name)));
            }
            return Ok(PlansDocument::Plan(Plan {
                api_version: Default::default(),
                kind: Default::default(),
                uid: naming::plan_uid(spec.name.as_str(), now, author.request_id.as_deref()),
                version: 0,
                state: PlanState::Active,
                spec: spec.clone(),
                revisions: Vec::new(),
                migration: None,
                hook_answers: None,
                created_at: now,
                change: change("plan is made"),
            }));
        };
        check_replaced(format_args!("plan {}", spec.name), plan.version, expected)?;
        self.check_not_migrating(plan)?;
        self.check_empty(plan)?;
        let (version, change) = (plan.version + 1, change("plan is changed"));
        Ok(PlansDocument::Plan(Plan {
            spec: spec.clone(),
            version,
            change,
            hook_answers: None,
            ..plan.clone()
        }))
    }

    /// Checks that the inventory has what a plan names.
    fn check_names(&self, spec: &PlanSpec) -> Result<(), PlannerErrorBody> {
        if let Some(cluster) = &spec.cluster
            && self.cluster(cluster).is_none()
        {
            return Err(invalid(
                "cluster",
                format!("there is no cluster {cluster}: add it to the inventory"),
            ));
        }
        for (at, matcher) in spec.matching_compute_capabilities.iter().enumerate() {
            let unknown = matcher.capability_names.iter().find(|name| {
                self.capability(name).is_none_or(|of| of.capability_type != matcher.capability_type)
            });
            if let Some(name) = unknown {
                let field = format!("matchingComputeCapabilities[{at}].capabilityNames");
                let rule = format!("there is no capability {name} of type {}", matcher.capability_type);
                return Err(invalid(&field, rule));
            }
        }
        Ok(())
    }

    /// Checks that a plan has no instance and no open revision.
    fn check_empty(&self, plan: &Plan) -> Result<(), PlannerErrorBody> {
        let name = &plan.spec.name;
        let (leaving, staying): (Vec<_>, Vec<_>) =
            self.instances_of(name).partition(|one| operations::is_leaving(one));
        if !staying.is_empty() {
            let count = staying.len();
            return Err(precondition(format!("plan {name} has {count} instances: scale it to 0 first")));
        }
        if let Some(open) = plan.open_revision() {
            let (id, state) = (&open.id, open.state.as_str());
            let message = format!("revision {id} of plan {name} is {state}: wait for it, or cancel it");
            return Err(precondition(message));
        }
        let on = leaving.iter().find_map(|one| Some((one, &one.placements.first()?.node)));
        match on {
            Some((instance, node)) => Err(precondition(format!(
                "node {node} has not reported that it removed instance {} of plan {name}: bring it back, or retire \
                 the device if it is gone",
                instance.display_name
            ))),
            None if leaving.is_empty() => Ok(()),
            None => Err(precondition(format!("the last instances of plan {name} are being deleted: wait"))),
        }
    }

    fn delete_plan(
        &self,
        name: &PlanName,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(name, expected)?;
        self.check_not_migrating(plan)?;
        self.check_empty(plan)?;
        let change = operations::change(now, "plan is deleted", author);
        let (version, state) = (plan.version + 1, PlanState::Deleted);
        Ok(PlansDocument::Plan(Plan { version, state, change, ..plan.clone() }))
    }

    fn set_plan_state(
        &self,
        request: &PlanStateRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        self.check_not_migrating(plan)?;
        let message = match (plan.state, request.state) {
            (_, PlanState::Deleted) => {
                return Err(invalid("state", "is not active or inactive: use plan-delete"));
            }
            (old, new) if old == new => {
                return Err(precondition(format!("plan {} has that state", request.plan)));
            }
            (_, PlanState::Active) => "plan is active",
            (_, PlanState::Inactive) => "plan is inactive",
        };
        let change = operations::change(now, message, author);
        let (version, state) = (plan.version + 1, request.state);
        Ok(PlansDocument::Plan(Plan { version, state, change, ..plan.clone() }))
    }

    fn runs_operations(&self, plan: &Plan, revision: &RevisionId) -> bool {
        let operations = self.instances_of(&plan.spec.name).flat_map(|instance| &instance.operations);
        operations
            .filter(|one| one.revision.as_ref() == Some(revision))
            .any(|one| one.state == OperationState::Running)
    }

    fn set_revision_state(
        &self,
        request: &RevisionStateRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        let at = revision_index(plan, &request.id)?;
        let revision = &plan.revisions[at];
        let state = match (request.verb, revision.state) {
            (RevisionVerb::Pause, RevisionState::InProgress) => RevisionState::Paused,
            (RevisionVerb::Resume, RevisionState::Paused) => RevisionState::InProgress,
            (RevisionVerb::Stop, RevisionState::InProgress | RevisionState::Paused) => RevisionState::Failed,
            // Operations that ran when it was cancelled may still wait for their nodes.
            (RevisionVerb::Stop, RevisionState::Cancelled) if self.runs_operations(plan, &request.id) => {
                RevisionState::Failed
            }
            (RevisionVerb::Stop, RevisionState::Pending) => {
                let message = format!("revision {} is pending, and runs nothing: cancel it", request.id);
                return Err(precondition(message));
            }
            (RevisionVerb::Cancel, state) if !state.is_final() => RevisionState::Cancelled,
            (_, state) => {
                let message = format!("revision {} is {}", request.id, state.as_str());
                return Err(precondition(message));
            }
        };
        let mut next = plan.clone();
        next.version += 1;
        next.revisions[at].state = state;
        let (message, word) = match request.verb {
            RevisionVerb::Stop => (REVISION_STOPPED, "stopped"),
            _ => ("", state.as_str()),
        };
        message.clone_into(&mut next.revisions[at].message);
        let sentence = format!("revision {} is {word}", request.id);
        next.change = operations::change(now, sentence, author);
        Ok(PlansDocument::Plan(next))
    }
}

/// The index of a revision in its plan.
pub(super) fn revision_index(plan: &Plan, id: &RevisionId) -> Result<usize, PlannerErrorBody> {
    let at = plan.revisions.iter().position(|revision| revision.id == *id);
    at.ok_or_else(|| not_found(format!("revision {id} of plan {}", plan.spec.name)))
}

/// Checks the length of a text of a request.
pub(super) fn check_text(field: &str, text: Option<&str>) -> Result<(), PlannerErrorBody> {
    match text {
        Some(text) if text.len() > PLANS_TEXT_BYTES_MAX => {
            let rule = format!("has {} bytes; {PLANS_TEXT_BYTES_MAX} are allowed", text.len());
            Err(invalid(field, rule))
        }
        _ => Ok(()),
    }
}

/// Checks that a document has the expected version.
pub(super) fn check_version(
    label: impl fmt::Display,
    version: u64,
    expected: Option<u64>,
) -> Result<(), PlannerErrorBody> {
    match expected {
        Some(expected) if expected != version => {
            let message =
                format!("{label} has version {version}, and the request is for {expected}: read it again");
            let refusal = refuse(ErrorCode::Conflict, message);
            Err(PlannerErrorBody { current_version: Some(version), ..refusal })
        }
        _ => Ok(()),
    }
}

/// Checks that a document may be replaced: a request without a version makes a new one.
pub(super) fn check_replaced(
    label: impl fmt::Display,
    version: u64,
    expected: Option<u64>,
) -> Result<(), PlannerErrorBody> {
    if expected.is_some() {
        return check_version(label, version, expected);
    }
    let message = format!("{label} exists: name its version {version} to change it");
    let refusal = refuse(ErrorCode::Conflict, message);
    Err(PlannerErrorBody { current_version: Some(version), ..refusal })
}
