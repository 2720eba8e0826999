//! Rollback of a plan: a new revision with the instances and coordinates of an earlier one. It changes no earlier revision.

use muster_contract::Timestamp;
use muster_contract::plans::{PlanDeployRequest, PlanRollbackRequest, PlannerErrorBody, RevisionState};

use super::decide::{not_found, precondition};
use super::document::PlansDocument;
use super::operations::Author;
use super::state::PlansState;

impl PlansState {
    /// Adds a revision that repeats a completed one. The rules of a deployment hold as well: an active plan, no open revision,
    /// an id that the plan does not have.
    pub(super) fn roll_back(
        &self,
        request: &PlanRollbackRequest,
        author: &Author,
        now: Timestamp,
    ) -> Result<PlansDocument, PlannerErrorBody> {
        let plan = self.plan_at(&request.plan, request.expected_version)?;
        let (name, to) = (&request.plan, &request.to);
        let earlier = plan.revision(to).ok_or_else(|| not_found(format!("revision {to} of plan {name}")))?;
        if earlier.state != RevisionState::Completed {
            let state = earlier.state.as_str();
            let message = format!("revision {to} of plan {name} is {state}: name one that is completed");
            return Err(precondition(message));
        }
        if earlier.canary.is_some() {
            let message = format!(
                "revision {to} of plan {name} was one of several side by side: name one that all instances had"
            );
            return Err(precondition(message));
        }
        if plan.revisions.last().is_some_and(|newest| newest.id == *to) {
            let message = format!("revision {to} is the newest of plan {name}: name an earlier one");
            return Err(precondition(message));
        }
        let deploy = PlanDeployRequest {
            plan: name.clone(),
            id: request.id.clone(),
            instances: earlier.instances,
            coordinates: earlier.coordinates.clone(),
            max_unavailable: earlier.max_unavailable,
            canary: None,
            skip_unchanged: false,
            expected_version: request.expected_version,
            request_id: request.request_id.clone(),
        };
        self.deploy(&deploy, Some(to), author, now)
    }
}
