//! Answers requests that change PLANS: each changes one document, or nothing.

use std::fmt;

use muster_contract::RequestedBy;
use muster_contract::canonical::Digest;
use muster_contract::decode::{self, Violation};
use muster_contract::limits::{PLAN_BYTES_MAX, PLAN_INSTANCES_MAX, PLAN_REVISIONS_MAX, PLANS_TEXT_BYTES_MAX};
use muster_contract::plans::{
    DisruptionRequest, Instance, InventoryApplyRequest, InventoryDeleteRequest, InventoryStateRequest,
    OperationRequest, OperationState, OperationVerdictRequest, Plan, PlanApplyRequest, PlanDeleteRequest,
    PlanDeployRequest, PlanRevision, PlanRollbackRequest, PlanSpec, PlanState, PlanStateRequest,
    PlannerErrorBody, RevisionState, RevisionStateRequest, RevisionVerb,
};
use muster_contract::query::ErrorCode;
use muster_contract::{InstanceName, PlanName, RevisionId, Timestamp};
use serde::Serialize;

use super::content::content;
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
    PlanRevision(RevisionStateRequest),
    Operation(OperationRequest),
    Approve(OperationVerdictRequest),
    Reject(OperationVerdictRequest),
    Cancel(OperationVerdictRequest),
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

/// Bytes that a plan keeps free for the sentences of its revisions.
const SENTENCES_BYTES: usize = 16 * 1024;

const _: () = assert!(PLAN_REVISIONS_MAX * PLANS_TEXT_BYTES_MAX <= SENTENCES_BYTES);

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
            | PlanRevision
            | Operation
            | Approve
            | Reject
            | Cancel
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
            let document =
                self.document(&repeated.subject).ok_or_else(|| not_found("document of that request"))?;
            return Ok(Decision::Unchanged(Box::new(document)));
        }
        let author = Author { by, request_id: request_id.cloned(), request: digest };
        let document = self.changed(request, expected, &author, now)?;
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
            PlansRequest::PlanRevision(request) => self.set_revision_state(request, author, now),
            PlansRequest::Operation(request) => self.request_operation(request, author, now),
            PlansRequest::Approve(request) => self.approve(request, author, now),
            PlansRequest::Reject(request) => self.end(request, OperationState::Rejected, author, now),
            PlansRequest::Cancel(request) => self.end(request, OperationState::Cancelled, author, now),
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
                created_at: now,
                change: change("plan is made"),
            }));
        };
        check_replaced(format_args!("plan {}", spec.name), plan.version, expected)?;
        if self.instances_of(&spec.name).next().is_some() || plan.open_revision().is_some() {
            let message =
                format!("plan {} has instances or an open revision: scale it to 0 first", spec.name);
            return Err(precondition(message));
        }
        let (version, change) = (plan.version + 1, change("plan is changed"));
        Ok(PlansDocument::Plan(Plan { spec: spec.clone(), version, change, ..plan.clone() }))
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

    fn delete_plan(
        &self,
        name: &PlanName,
        expected: Option<u64>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(name, expected)?;
        let instances = self.instances_of(name).count();
        if instances > 0 || plan.open_revision().is_some() {
            let message =
                format!("plan {name} has {instances} instances or an open revision: scale it to 0 first");
            return Err(precondition(message));
        }
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

    /// Adds a revision; one of 0 instances cancels the open one. Of a rollback, `rollback_to` is the revision that it repeats.
    pub(super) fn deploy(
        &self,
        request: &PlanDeployRequest,
        rollback_to: Option<&RevisionId>,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        if plan.state != PlanState::Active {
            return Err(precondition(format!("plan {} is inactive", request.plan)));
        }
        let open = plan.open_revision();
        let ends_plan = request.instances == 0 && rollback_to.is_none();
        if let Some(open) = open.filter(|_| !ends_plan) {
            let message =
                format!("revision {} is {}: wait for it, or cancel it", open.id, open.state.as_str());
            return Err(precondition(message));
        }
        if plan.revision(&request.id).is_some() {
            return Err(refuse(
                ErrorCode::Conflict,
                format!("plan {} has a revision {}", request.plan, request.id),
            ));
        }
        if request.instances > PLAN_INSTANCES_MAX {
            return Err(invalid("instances", format!("is above {PLAN_INSTANCES_MAX}")));
        }
        if request.max_unavailable == Some(0) {
            return Err(invalid("maxUnavailable", "is 0, so no update could begin: allow 1 or more"));
        }
        self.check_canary(request)?;
        content(&plan.spec, &request.coordinates, &[]).map_err(|error| invalid("coordinates", error))?;
        let mut next = plan.clone();
        next.version += 1;
        for revision in next.revisions.iter_mut().filter(|revision| !revision.state.is_final()) {
            revision.state = RevisionState::Cancelled;
            revision.message.clear();
        }
        next.revisions.push(PlanRevision {
            id: request.id.clone(),
            instances: request.instances,
            coordinates: request.coordinates.clone(),
            max_unavailable: request.max_unavailable,
            canary: request.canary.filter(|canary| *canary < request.instances),
            rollback_to: rollback_to.cloned(),
            state: RevisionState::Pending,
            message: String::new(),
            requested_by: author.by.clone(),
            at: now,
        });
        let sentence = match rollback_to {
            Some(to) => format!("revision {} is added: a rollback to {to}", request.id),
            None => format!("revision {} is added", request.id),
        };
        let sentence = match open {
            Some(open) => format!("{sentence}, and revision {} is cancelled", open.id),
            None => sentence,
        };
        next.change = operations::change(now, sentence, author);
        self.drop_ended_revisions(&mut next);
        Ok(PlansDocument::Plan(next))
    }

    /// Checks that the plan has the instances that keep their revision beside a canary.
    fn check_canary(&self, request: &PlanDeployRequest) -> Result<(), PlannerErrorBody> {
        let (Some(canary), all) = (request.canary, request.instances) else { return Ok(()) };
        if canary == 0 || canary > all {
            let rule = format!("is {canary} of {all} instances: name at least 1, and at most all of them");
            return Err(invalid("canary", rule));
        }
        let ordered = self.instances_of(&request.plan).filter(|one| operations::keeps_revision(one)).count();
        if ordered < (all - canary) as usize {
            let most = ordered + canary as usize;
            let rule = format!(
                "is {all}, of which {canary} get the coordinates, and the plan has {ordered} others that could keep \
                 their revision: name at most {most}"
            );
            return Err(invalid("instances", rule));
        }
        Ok(())
    }

    /// Drops the oldest revisions that have ended and that no instance names, while the plan is too long.
    fn drop_ended_revisions(&self, plan: &mut Plan) {
        let mut used: Vec<&RevisionId> = Vec::new();
        for instance in self.instances_of(&plan.spec.name) {
            used.push(&instance.revision);
            used.extend(instance.placements.iter().filter_map(|placement| placement.revision.as_ref()));
        }
        used.sort_unstable();
        used.dedup();
        let is_free =
            |revision: &PlanRevision| revision.state.is_final() && used.binary_search(&&revision.id).is_err();
        let mut bytes = decode::to_bytes(plan).len();
        while plan.revisions.len() > PLAN_REVISIONS_MAX || bytes > PLAN_BYTES_MAX - SENTENCES_BYTES {
            let Some(at) = plan.revisions.iter().position(is_free) else { break };
            let dropped = plan.revisions.remove(at);
            // With its comma: the newest revision stays, because it has not ended.
            bytes -= serde_json::to_vec(&dropped).map_or(0, |json| json.len() + 1);
        }
    }

    fn set_revision_state(
        &self,
        request: &RevisionStateRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        let at = plan.revisions.iter().position(|revision| revision.id == request.id);
        let at = at.ok_or_else(|| not_found(format!("revision {} of plan {}", request.id, request.plan)))?;
        let revision = &plan.revisions[at];
        let state = match (request.verb, revision.state) {
            (RevisionVerb::Pause, RevisionState::InProgress) => RevisionState::Paused,
            (RevisionVerb::Resume, RevisionState::Paused) => RevisionState::InProgress,
            (RevisionVerb::Cancel, state) if !state.is_final() => RevisionState::Cancelled,
            (_, state) => {
                let message = format!("revision {} is {}", request.id, state.as_str());
                return Err(precondition(message));
            }
        };
        let mut next = plan.clone();
        next.version += 1;
        next.revisions[at].state = state;
        next.revisions[at].message.clear();
        let sentence = format!("revision {} is {}", request.id, state.as_str());
        next.change = operations::change(now, sentence, author);
        Ok(PlansDocument::Plan(next))
    }
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
