//! Deployments of a plan: new revisions, and the ended ones that it drops to stay small.

use muster_contract::decode;
use muster_contract::limits::{PLAN_BYTES_MAX, PLAN_INSTANCES_MAX, PLAN_REVISIONS_MAX, PLANS_TEXT_BYTES_MAX};
use muster_contract::plans::{
    Plan, PlanDeployRequest, PlanRevision, PlanState, PlannerErrorBody, RevisionState,
};
use muster_contract::query::ErrorCode;
use muster_contract::{RevisionId, Timestamp};

use super::content::content;
use super::decide::{invalid, precondition, refuse};
use super::document::PlansDocument;
use super::operations::{self, Author};
use super::state::PlansState;

/// Bytes that a plan keeps free for the sentences of its revisions.
pub(super) const SENTENCES_BYTES: usize = 16 * 1024;

const _: () = assert!(PLAN_REVISIONS_MAX * PLANS_TEXT_BYTES_MAX <= SENTENCES_BYTES);

impl PlansState {
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
        self.check_not_migrating(plan)?;
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
        let revision = PlanRevision {
            id: request.id.clone(),
            instances: request.instances,
            coordinates: request.coordinates.clone(),
            max_unavailable: request.max_unavailable,
            canary: request.canary.filter(|canary| *canary < request.instances),
            skip_unchanged: request.skip_unchanged,
            approval: None,
            rollback_to: rollback_to.cloned(),
            migrated_from: None,
            migrated_to: None,
            state: RevisionState::Pending,
            message: String::new(),
            requested_by: author.by.clone(),
            at: now,
        };
        let sentence = match rollback_to {
            Some(to) => format!("revision {} is added: a rollback to {to}", request.id),
            None => format!("revision {} is added", request.id),
        };
        let sentence = match open {
            Some(open) => format!("{sentence}, and revision {} is cancelled", open.id),
            None => sentence,
        };
        Ok(self.with_added(plan, revision, sentence, author, now))
    }

    /// A plan with another revision. It cancels the open one.
    pub(super) fn with_added(
        &self,
        plan: &Plan,
        revision: PlanRevision,
        sentence: String,
        author: &Author,
        now: Timestamp,
    ) -> PlansDocument {
        let mut next = plan.clone();
        next.version += 1;
        // The hooks are asked about each revision.
        next.hook_answers = None;
        for open in next.revisions.iter_mut().filter(|revision| !revision.state.is_final()) {
            open.state = RevisionState::Cancelled;
            open.message.clear();
        }
        next.revisions.push(revision);
        next.change = operations::change(now, sentence, author);
        self.drop_ended_revisions(&mut next);
        PlansDocument::Plan(next)
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
    pub(super) fn drop_ended_revisions(&self, plan: &mut Plan) {
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
}
