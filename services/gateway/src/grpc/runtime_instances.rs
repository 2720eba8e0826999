//! MRDS's calls about the runtime instances of a meta instance, which are its placements on nodes.
//!
//! A client may choose a node, and release a reserved one. Only the planner decides which placement is active, and only a node reports
//! its state: a call that states the present one returns the record, and any other is refused with the reason.

use muster_contract::DeviceKey;
use muster_contract::plans::{
    Instance, InstanceStatus, OperationRequest, OperationState, OperationType, OperationVerdictRequest,
    Placement,
};
use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::metainstance::{MetaInstance, RuntimeInstance, RuntimeInstanceStatus};
use tonic::Status;

use super::caller::GrpcCaller;
use super::planner::Planner;
use super::records;
use super::refusals::{invalid, not_found};

/// The reason of a cancelled operation whose node is not wanted.
const NODE_RELEASED: &str = "its runtime instance was removed";

/// Requests that an instance gets a node: its first one, or beside an active one the node of a RELOCATE.
pub(super) async fn add(
    planner: &Planner,
    caller: &GrpcCaller,
    of: &Metadata,
    status: InstanceStatus,
    wanted: RuntimeInstance,
) -> Result<Instance, Status> {
    let node: DeviceKey = planner.names.key("runtime_instance.node_id", &wanted.node_id)?;
    let instance = status.instance;
    if instance.placements.iter().any(|placement| placement.node == node) {
        return Err(Status::already_exists(format!("meta instance {} has node {node}", of.id)));
    }
    let held = |what: &str| {
        let message = format!("meta instance {} {what}", of.id);
        Status::failed_precondition(message)
    };
    let has_create = instance
        .operations
        .iter()
        .any(|one| one.operation_type == OperationType::Create && !one.state.is_final());
    let operation_type = match (wanted.is_active, instance.active()) {
        (true, Some(active)) if active.revision.is_some() => {
            let node = &active.node;
            return Err(held(&format!(
                "runs on {node}: add the other node with is_active=false, which relocates it"
            )));
        }
        (true, Some(active)) => {
            let node = &active.node;
            return Err(held(&format!("has node {node} reserved: remove that runtime instance first")));
        }
        (true, None) if has_create => {
            return Err(held("waits for a node that the planner chooses: remove its CREATE first"));
        }
        (true, None) => OperationType::Create,
        (false, _) => OperationType::Relocate,
    };
    let request = OperationRequest {
        plan: instance.plan,
        instance: instance.name,
        operation_type,
        revision: None,
        node: Some(node),
        not_before: None,
        expected_version: Some(of.version),
        request_id: None,
    };
    planner.change(caller, "operation-request", &request).await
}

/// Releases the reserved node of an operation that has not begun: the operation is cancelled.
pub(super) async fn remove(
    planner: &Planner,
    caller: &GrpcCaller,
    of: &Metadata,
    status: &InstanceStatus,
    id: &str,
) -> Result<Instance, Status> {
    let Instance { plan, name, operations, .. } = &status.instance;
    let (placement, _) = find(status, id)?;
    let kind = if placement.active { OperationType::Create } else { OperationType::Relocate };
    let waits = |state| matches!(state, OperationState::PendingApproval | OperationState::Approved);
    let operation = operations.iter().find(|one| one.operation_type == kind && waits(one.state));
    let Some(operation) = operation.filter(|_| placement.revision.is_none()) else {
        let message = format!(
            "node {} has the order to run meta instance {}: call AddOperation with DELETE or RELOCATE",
            placement.node, of.id
        );
        return Err(Status::failed_precondition(message));
    };
    let request = OperationVerdictRequest {
        plan: plan.clone(),
        instance: name.clone(),
        operation: operation.id.clone(),
        rule: None,
        reason: Some(NODE_RELEASED.to_owned()),
        expected_version: Some(of.version),
        request_id: None,
    };
    planner.change(caller, "operation-cancel", &request).await
}

/// The record, if its node reports that state.
pub(super) fn confirm_state(
    status: InstanceStatus,
    id: &str,
    stated: Option<RuntimeInstanceStatus>,
) -> Result<MetaInstance, Status> {
    let stated = stated.ok_or_else(|| invalid("status", "is missing: set it"))?;
    let (placement, at) = find(&status, id)?;
    let node = placement.node.clone();
    let record = records::instance(status);
    let reported = record.runtime_instances.get(at).and_then(|one| one.status.clone()).unwrap_or_default();
    if reported.state == stated.state {
        return Ok(record);
    }
    Err(Status::failed_precondition(format!(
        "a runtime instance has the state that its node reports, and {node} reports {} ({}): call AddOperation with STOP or \
         RESTART to change it",
        reported.state().as_str_name(),
        reported.message
    )))
}

/// The record, if the placement is active or not as stated.
pub(super) fn confirm_active(
    status: InstanceStatus,
    id: &str,
    is_active: bool,
) -> Result<MetaInstance, Status> {
    let (placement, _) = find(&status, id)?;
    if placement.active == is_active {
        return Ok(records::instance(status));
    }
    let node = &placement.node;
    Err(Status::failed_precondition(if is_active {
        format!("node {node} has not confirmed that it runs the instance: the planner makes it active then")
    } else {
        format!(
            "node {node} stays active until another one runs the instance: call AddOperation with RELOCATE"
        )
    }))
}

/// A placement by the id of its runtime instance, and its index.
fn find<'a>(status: &'a InstanceStatus, id: &str) -> Result<(&'a Placement, usize), Status> {
    let instance = &status.instance;
    let is_it = |placement: &Placement| records::runtime_id(instance.name.as_str(), &placement.node) == id;
    let at = instance.placements.iter().position(is_it);
    at.map(|at| (&instance.placements[at], at)).ok_or_else(|| not_found("runtime instance", id))
}
