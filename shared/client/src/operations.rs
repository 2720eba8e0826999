//! The operations of plans that wait for an approval, each with its node and the command that approves it, and the present state of
//! those that waited before.
//!
//! The planner lists operations page by page; the first [`OPERATIONS_MAX`] are read. A list does not name nodes, so they are read
//! from the instances, once for each version of an instance. It approves nothing.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::plans::{
    Instance, InstancesAnswer, InstancesQuery, Operation, OperationState, OperationStatus, OperationType,
    OperationsAnswer, OperationsQuery,
};
use muster_contract::query::PAGE_MAX;
use muster_contract::{DeviceKey, InstanceName, OperationId, PlanName, Timestamp};
use serde::Serialize;

use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::rollout::ApprovalRequest;

/// Most operations of a list, the first by plan and instance. Each is read every two seconds while somebody follows them.
pub const OPERATIONS_MAX: usize = 1000;
/// Instances that one request names: about 14 KiB.
const INSTANCES_AT_ONCE: usize = 200;

/// Something that waits for an approval; `kind` tells which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum PendingApproval {
    /// A wave of a rollout.
    Wave(ApprovalRequest),
    /// An operation of a plan.
    Operation(PendingOperation),
}

/// An operation of a plan that waits for an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingOperation {
    /// The plan.
    pub plan: PlanName,
    /// The instance.
    pub instance: InstanceName,
    /// The instance's name for people.
    pub display_name: String,
    /// The operation's id.
    pub operation: OperationId,
    /// Its type.
    #[serde(rename = "type")]
    pub operation_type: OperationType,
    /// The node that it changes; of a RELOCATE the new one. Absent if the instance has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<DeviceKey>,
    /// The node that a RELOCATE stops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_node: Option<DeviceKey>,
    /// Time since which it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Time at which it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The planner's explanation.
    pub message: String,
    /// The command that approves it.
    pub command: String,
}

/// The operations that wait at one moment, and the end of those that waited before.
#[derive(Debug, Default)]
pub struct PendingOperations {
    /// Those that wait, by plan, instance and age.
    pub waiting: Vec<PendingOperation>,
    /// More than [`OPERATIONS_MAX`] wait.
    pub has_more: bool,
    /// The present state of those that waited before and are not in the list. One without a state is gone with its instance.
    pub others: BTreeMap<OperationId, Option<OperationOutcome>>,
}

/// The present state of an operation that waited before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationOutcome {
    /// Its state.
    pub state: OperationState,
    /// Whether it was approved, whatever its state is now.
    pub is_approved: bool,
}

/// Reads the operations that wait, again and again.
#[derive(Debug, Default)]
pub struct PendingOperationsReader {
    /// The nodes of the last list, each as of a version of its instance.
    nodes: BTreeMap<OperationId, (u64, OperationNodes)>,
}

/// The nodes of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OperationNodes {
    node: Option<DeviceKey>,
    from_node: Option<DeviceKey>,
}

impl PendingOperationsReader {
    /// Reads the operations that wait, and what became of `before` if they are not among them.
    ///
    /// # Errors
    /// No planner answers, or its list does not end.
    pub async fn read(
        &mut self,
        hub: &Hub,
        before: impl Iterator<Item = &PendingOperation>,
    ) -> Result<PendingOperations, AskError> {
        let (listed, has_more) = list(hub).await?;
        self.read_nodes(hub, &listed).await?;
        let ids: BTreeSet<_> = listed.iter().map(|status| &status.operation.id).collect();
        let gone: Vec<_> = before.filter(|operation| !ids.contains(&operation.operation)).collect();
        let others = outcomes(hub, &gone).await?;
        let nodes = |id| self.nodes.get(id).map(|(_, nodes)| nodes.clone()).unwrap_or_default();
        let waiting = listed.iter().map(|status| pending(status, nodes(&status.operation.id))).collect();
        Ok(PendingOperations { waiting, has_more, others })
    }

    /// Reads the nodes of operations whose instance has another version than before. Those of a page are kept at once, so a reading
    /// that is cut off is not begun anew.
    async fn read_nodes(&mut self, hub: &Hub, listed: &[OperationStatus]) -> Result<(), AskError> {
        let versions: BTreeMap<_, _> =
            listed.iter().map(|status| (&status.operation.id, status.version)).collect();
        self.nodes.retain(|id, (version, _)| versions.get(id) == Some(version));
        let unread = listed.iter().filter(|status| !self.nodes.contains_key(&status.operation.id));
        let instances: BTreeSet<_> = unread.map(|status| (&status.plan, &status.instance)).collect();
        let instances: Vec<_> = instances.into_iter().collect();
        for part in instances.chunks(INSTANCES_AT_ONCE) {
            read_instances(hub, part, false, |instance| {
                for operation in &instance.operations {
                    if versions.contains_key(&operation.id) {
                        let nodes = OperationNodes::of(instance, operation.operation_type);
                        self.nodes.insert(operation.id.clone(), (instance.version, nodes));
                    }
                }
            })
            .await?;
        }
        Ok(())
    }
}

impl OperationNodes {
    fn of(instance: &Instance, operation_type: OperationType) -> Self {
        let active = instance.active().map(|placement| placement.node.clone());
        if operation_type != OperationType::Relocate {
            return Self { node: active, from_node: None };
        }
        let target = instance.placements.iter().find(|placement| !placement.active);
        Self { node: target.map(|placement| placement.node.clone()), from_node: active }
    }
}

/// The first operations that wait, and whether there are more.
async fn list(hub: &Hub) -> Result<(Vec<OperationStatus>, bool), AskError> {
    let state = vec![OperationState::PendingApproval];
    let mut query = OperationsQuery { state, ..OperationsQuery::default() };
    let mut listed = Vec::new();
    loop {
        // A page is shorter than its limit if its answer would not fit into a message.
        query.limit = Some((OPERATIONS_MAX - listed.len()).min(PAGE_MAX));
        let answer = hub.planner("operation-list", &query).await?;
        let OperationsAnswer { operations, next } = understood(&answer)?;
        let is_empty = operations.is_empty();
        listed.extend(operations);
        listed.truncate(OPERATIONS_MAX);
        match next {
            None => return Ok((listed, false)),
            Some(_) if listed.len() == OPERATIONS_MAX => return Ok((listed, true)),
            // A page without rows leads to no other one.
            Some(_) if is_empty => return Err(AskError::Endless { what: "operations" }),
            Some(next) => query.after = Some(next),
        }
    }
}

/// Reads instances by name, page by page.
async fn read_instances(
    hub: &Hub,
    names: &[(&PlanName, &InstanceName)],
    include_deleted: bool,
    mut read: impl FnMut(&Instance),
) -> Result<(), AskError> {
    let plans: BTreeSet<_> = names.iter().map(|(plan, _)| *plan).collect();
    let mut query = InstancesQuery {
        plan: plans.into_iter().cloned().collect(),
        name: names.iter().map(|(_, name)| name.to_string()).collect(),
        include_deleted,
        limit: Some(PAGE_MAX),
        ..InstancesQuery::default()
    };
    for _ in 0..PAGES_MAX {
        let answer = hub.planner("instance-list", &query).await?;
        let InstancesAnswer { instances, next } = understood(&answer)?;
        instances.iter().for_each(|status| read(&status.instance));
        let Some(next) = next else { return Ok(()) };
        query.after = Some(next);
    }
    Err(AskError::Endless { what: "instances" })
}

/// The present state of operations that do not wait any more.
async fn outcomes(
    hub: &Hub,
    gone: &[&PendingOperation],
) -> Result<BTreeMap<OperationId, Option<OperationOutcome>>, AskError> {
    let mut found: BTreeMap<_, _> = gone.iter().map(|one| (one.operation.clone(), None)).collect();
    let names: BTreeSet<_> = gone.iter().map(|one| (&one.plan, &one.instance)).collect();
    let names: Vec<_> = names.into_iter().collect();
    for part in names.chunks(INSTANCES_AT_ONCE) {
        read_instances(hub, part, true, |instance| {
            for operation in &instance.operations {
                if let Some(outcome) = found.get_mut(&operation.id) {
                    *outcome = Some(OperationOutcome::of(operation));
                }
            }
        })
        .await?;
    }
    Ok(found)
}

impl OperationOutcome {
    const fn of(operation: &Operation) -> Self {
        Self { state: operation.state, is_approved: operation.approval.is_some() }
    }
}

fn pending(status: &OperationStatus, nodes: OperationNodes) -> PendingOperation {
    let OperationStatus { plan, instance, display_name, operation, .. } = status;
    let waits = |step: &&muster_contract::plans::OperationStep| step.state == OperationState::PendingApproval;
    PendingOperation {
        plan: plan.clone(),
        instance: instance.clone(),
        display_name: display_name.clone(),
        operation: operation.id.clone(),
        operation_type: operation.operation_type,
        node: nodes.node,
        from_node: nodes.from_node,
        since: operation.history.iter().rfind(waits).map(|step| step.at),
        expires_at: operation.expires_at,
        message: operation.message.clone(),
        command: format!("muster operation approve {}", operation.id),
    }
}

/// The sentence about the operations beyond the bound.
pub fn rest_sentence() -> String {
    format!(
        "more than {OPERATIONS_MAX} operations wait for an approval, and only the first by plan and instance are followed: \
         `muster operation list --state pending-approval` lists all"
    )
}

/// The sentence about operations that are not known; the cause follows it.
pub const fn unknown_sentence(error: &AskError) -> &'static str {
    match error {
        AskError::NoService { .. } => {
            "operations of plans are not followed until a planner answers (a hub without one has no plans)"
        }
        _ => "operations of plans are not followed until the planner answers",
    }
}
