//! Reads for the pages of plans: a page of the list, and everything that the page of one plan shows. It keeps no more than is shown
//! and the numbers of the rest, and draws nothing.

use std::cmp::Reverse;

use muster_client::ask::{AskError, Hub, understood};
use muster_contract::PlanName;
use muster_contract::plans::{
    InstancesAnswer, InstancesQuery, OperationState, OperationStatus, OperationsAnswer, OperationsQuery,
    PlanAnswer, PlanQuery, PlansAnswer, PlansChangesAnswer, PlansChangesQuery, PlansQuery, StoredPlansChange,
};
use muster_contract::query::PAGE_MAX;
use muster_service::error::chain;

/// Plans of a page.
const PLANS_MAX: usize = 100;
/// Operations shown that wait for an approval.
pub(super) const WAITING_MAX: usize = 100;
/// Operations shown that wait for none.
const OPERATIONS_MAX: usize = 30;
/// Instances of a page.
const INSTANCES_MAX: usize = 50;
/// Changes shown.
const CHANGES_MAX: usize = 30;
/// Answers that are read for a history.
const HISTORY_ANSWERS_MAX: usize = 4;

/// The states of operations that wait for no approval.
const OTHER_STATES: [OperationState; 9] = [
    OperationState::Pending,
    OperationState::Preparing,
    OperationState::Approved,
    OperationState::Rejected,
    OperationState::Expired,
    OperationState::Running,
    OperationState::Succeeded,
    OperationState::Failed,
    OperationState::Cancelled,
];

/// The plans after one; `None` if no planner runs.
///
/// # Errors
/// The planner does not answer.
pub(super) async fn plans(hub: &Hub, after: Option<String>) -> Result<Option<PlansAnswer>, AskError> {
    let query = PlansQuery { limit: Some(PLANS_MAX), after, ..PlansQuery::default() };
    match hub.planner("plan-list", &query).await {
        Err(AskError::NoService { .. }) => Ok(None),
        answer => Ok(Some(understood(&answer?)?)),
    }
}

/// Everything that the page of a plan shows.
pub(super) struct PlanDetail {
    pub(super) answer: PlanAnswer,
    /// Operations that wait for an approval, those that have waited longest first.
    pub(super) waiting: Vec<OperationStatus>,
    /// The first [`OPERATIONS_MAX`] of the other operations, those that changed last first.
    pub(super) others: Vec<OperationStatus>,
    /// How many others are compared.
    pub(super) others_of: usize,
    /// There are more than [`PAGE_MAX`] others.
    pub(super) has_more_others: bool,
    pub(super) instances: InstancesAnswer,
    /// Not known if it cannot be read.
    pub(super) history: Result<History, String>,
}

impl PlanDetail {
    /// Reads a plan, with the instances after one.
    ///
    /// # Errors
    /// The planner does not answer, or there is no such plan.
    pub(super) async fn read(hub: &Hub, plan: &PlanName, after: Option<String>) -> Result<Self, AskError> {
        let answer = understood(&hub.planner("plan-get", &PlanQuery { plan: plan.clone() }).await?)?;
        let query = InstancesQuery {
            plan: vec![plan.clone()],
            limit: Some(INSTANCES_MAX),
            after,
            ..InstancesQuery::default()
        };
        let (waiting, others, instances, history) = tokio::join!(
            operations(hub, plan, vec![OperationState::PendingApproval], WAITING_MAX),
            operations(hub, plan, OTHER_STATES.to_vec(), PAGE_MAX),
            hub.planner("instance-list", &query),
            History::read(hub, plan),
        );
        let (mut waiting, mut others) = (waiting?, others?);
        let changed = |status: &OperationStatus| status.operation.history.last().map(|step| step.at);
        waiting.operations.sort_by_key(changed);
        others.operations.sort_by_key(|status| Reverse(changed(status)));
        let others_of = others.operations.len();
        others.operations.truncate(OPERATIONS_MAX);
        Ok(Self {
            answer,
            waiting: waiting.operations,
            has_more_others: others.next.is_some(),
            others: others.operations,
            others_of,
            instances: understood(&instances?)?,
            history: history.map_err(|error| chain(&error)),
        })
    }
}

async fn operations(
    hub: &Hub,
    plan: &PlanName,
    state: Vec<OperationState>,
    limit: usize,
) -> Result<OperationsAnswer, AskError> {
    let query =
        OperationsQuery { plan: vec![plan.clone()], state, limit: Some(limit), ..OperationsQuery::default() };
    understood(&hub.planner("operation-list", &query).await?)
}

/// The changes, in the order of PLANS.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The newest [`CHANGES_MAX`].
    pub(super) changes: Vec<StoredPlansChange>,
    /// How many were read.
    pub(super) of: usize,
    /// There are later ones, which were not read.
    pub(super) is_cut: bool,
}

impl History {
    /// Reads the changes of a plan and of its instances.
    async fn read(hub: &Hub, plan: &PlanName) -> Result<Self, AskError> {
        let subject = vec![format!("muster.plan.{plan}"), format!("muster.instance.{plan}.*")];
        let mut query = PlansChangesQuery { subject, limit: Some(PAGE_MAX), after: None };
        let mut history = Self::default();
        for _ in 0..HISTORY_ANSWERS_MAX {
            let answer: PlansChangesAnswer = understood(&hub.planner("change-list", &query).await?)?;
            history.add(answer.changes);
            query.after = answer.next;
            if query.after.is_none() {
                return Ok(history);
            }
        }
        Ok(Self { is_cut: true, ..history })
    }

    /// Adds the changes that follow, and keeps those that are shown.
    pub(super) fn add(&mut self, changes: Vec<StoredPlansChange>) {
        self.of += changes.len();
        self.changes.extend(changes);
        let older = self.changes.len().saturating_sub(CHANGES_MAX);
        self.changes.drain(..older);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_keeps_the_newest_changes_and_counts_all() {
        let example = include_bytes!("../../../../../schemas/examples/good/PlansChangesAnswer.two.json");
        let two = serde_json::from_slice::<PlansChangesAnswer>(example).unwrap().changes;
        let mut history = History::default();
        history.add(two.clone());
        (0..CHANGES_MAX).for_each(|_| history.add(two[1..].to_vec()));
        assert_eq!((history.changes.len(), history.of), (CHANGES_MAX, CHANGES_MAX + 2));
        assert!(history.changes.iter().all(|change| *change == two[1]));
    }
}
