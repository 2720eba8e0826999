//! The calls of MRDS's control plane over gRPC: what a client may ask for, and what only the planner and the nodes decide.

use muster_proto::proto::mrds::ledger::deploymentplan::DeploymentState;
use muster_proto::proto::mrds::ledger::metainstance::{
    AddOperationRequest, AddRuntimeInstanceRequest, CreateMetaInstanceRequest, DeleteMetaInstanceRequest,
    GetMetaInstanceByIdRequest, ListMetaInstanceRequest, MetaInstance, MetaInstanceState, MetaInstanceStatus,
    Operation, OperationState, OperationType, RemoveRuntimeInstanceRequest, RuntimeInstance,
    RuntimeInstanceState, RuntimeInstanceStatus, UpdateDeploymentIdRequest, UpdateMetaInstanceStatusRequest,
    UpdateRuntimeActiveStateRequest, UpdateRuntimeStatusRequest,
};
use tonic::{Code, Status};

use super::grpc::{PLAN, Stage, is_running, operation_state};

/// A plan with an instance that runs, and a node that is free.
async fn running() -> (Stage, MetaInstance) {
    let stage = Stage::start(&["kind/one", "kind/two"]).await;
    stage.inventory(&["one", "two"]).await;
    stage.make_plan().await.unwrap();
    stage.deploy("r1", 1).await.unwrap();
    stage.approve(OperationType::Create).await;
    let instance = stage.instance("the instance runs", is_running).await;
    stage.deployment("r1", DeploymentState::Completed).await;
    (stage, instance)
}

async fn get(stage: &Stage, id: &str) -> Result<MetaInstance, Status> {
    let asked = GetMetaInstanceByIdRequest { id: id.to_owned() };
    stage.clients.clone().instances.get_by_id(asked).await.map(|answer| answer.into_inner().record.unwrap())
}

async fn until(
    stage: &Stage,
    what: &str,
    of: &MetaInstance,
    holds: impl Fn(&MetaInstance) -> bool,
) -> MetaInstance {
    let id = of.metadata.as_ref().unwrap().id.clone();
    let look = async || match get(stage, &id).await {
        Ok(instance) if holds(&instance) => Ok(instance),
        found => Err(format!("{found:?}")),
    };
    stage.system.eventually(what, look).await
}

/// The open operation of a type.
fn open(instance: &MetaInstance, kind: OperationType) -> Option<&Operation> {
    let waits = |one: &&Operation| operation_state(one) == OperationState::PendingApproval;
    instance.operations.iter().filter(waits).find(|one| one.r#type() == kind)
}

async fn approved(stage: &Stage, instance: &MetaInstance, kind: OperationType) {
    let waiting = until(stage, "it waits for approval", instance, |one| open(one, kind).is_some()).await;
    let id = &open(&waiting, kind).unwrap().id;
    stage.decide(&waiting, id, OperationState::Approved).await.unwrap();
}

async fn add_runtime(
    stage: &Stage,
    instance: &MetaInstance,
    node: &str,
    is_active: bool,
) -> Result<MetaInstance, Status> {
    let wanted = RuntimeInstance { node_id: node.to_owned(), is_active, ..RuntimeInstance::default() };
    let asked =
        AddRuntimeInstanceRequest { metadata: instance.metadata.clone(), runtime_instance: Some(wanted) };
    stage
        .clients
        .clone()
        .instances
        .add_runtime_instance(asked)
        .await
        .map(|it| it.into_inner().record.unwrap())
}

async fn set_state(
    stage: &Stage,
    instance: &MetaInstance,
    state: MetaInstanceState,
) -> Result<MetaInstance, Status> {
    let status = Some(MetaInstanceStatus { state: state.into(), message: String::new() });
    let asked = UpdateMetaInstanceStatusRequest { metadata: instance.metadata.clone(), status };
    stage.clients.clone().instances.update_status(asked).await.map(|it| it.into_inner().record.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_are_made_placed_and_deleted_over_grpc() {
    let (stage, first) = running().await;
    let mut to = stage.clients.instances.clone();
    let create = CreateMetaInstanceRequest {
        name: "mine".into(),
        deployment_plan_id: PLAN.into(),
        deployment_id: "r1".into(),
    };
    let made = to.create(create).await.unwrap().into_inner().record.unwrap();
    let is_placed = |one: &MetaInstance| open(one, OperationType::Create).is_some();
    let placed = until(&stage, "it is placed", &made, is_placed).await;
    assert_eq!(placed.runtime_instances.len(), 1, "{placed:?}");
    let operation = Operation { r#type: OperationType::Create.into(), ..Operation::default() };
    let asked = AddOperationRequest { metadata: placed.metadata.clone(), operation: Some(operation) };
    let same = to.add_operation(asked).await.unwrap().into_inner().record.unwrap();
    assert_eq!(same.operations.len(), 1, "the planner has made it: {same:?}");

    // The reserved node is given back, and chosen by hand.
    let (node, id) = (placed.runtime_instances[0].node_id.clone(), placed.runtime_instances[0].id.clone());
    let asked =
        RemoveRuntimeInstanceRequest { metadata: placed.metadata.clone(), runtime_instance_id: id.clone() };
    let free = to.remove_runtime_instance(asked).await.unwrap().into_inner().record.unwrap();
    assert!(free.runtime_instances.is_empty(), "{free:?}");
    let taken = &first.runtime_instances[0].node_id;
    let refused = add_runtime(&stage, &free, taken, true).await.unwrap_err();
    assert!(refused.message().contains("cannot run it"), "{refused:?}");
    let chosen = add_runtime(&stage, &free, &node, true).await.unwrap();
    assert_eq!((chosen.runtime_instances.len(), &chosen.runtime_instances[0].node_id), (1, &node));
    approved(&stage, &chosen, OperationType::Create).await;
    let runs = until(&stage, "it runs", &chosen, is_running).await;

    let asked = DeleteMetaInstanceRequest { metadata: runs.metadata.clone() };
    let refused = to.delete(asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let marked = set_state(&stage, &runs, MetaInstanceState::MarkedForDeletion).await.unwrap();
    let kept = set_state(&stage, &marked, MetaInstanceState::Active).await.unwrap();
    assert!(open(&kept, OperationType::Delete).is_none(), "{kept:?}");
    let marked = set_state(&stage, &kept, MetaInstanceState::MarkedForDeletion).await.unwrap();
    approved(&stage, &marked, OperationType::Delete).await;
    let is_gone = async || match get(&stage, &marked.metadata.as_ref().unwrap().id).await {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        found => Err(format!("{found:?}")),
    };
    stage.system.eventually("it is gone", is_gone).await;
    let asked = DeleteMetaInstanceRequest { metadata: marked.metadata.clone() };
    to.delete(asked).await.expect("a deleted instance stays so");
    let all = ListMetaInstanceRequest { include_deleted: true, ..Default::default() };
    let listed = to.list(all).await.unwrap().into_inner().records;
    assert_eq!(listed.len(), 2, "{listed:?}");

    let moved = add_runtime(&stage, &first, &node, false).await.unwrap();
    assert_eq!(moved.runtime_instances.len(), 2);
    approved(&stage, &moved, OperationType::Relocate).await;
    let is_there = |one: &MetaInstance| is_running(one) && one.runtime_instances[0].node_id == node;
    until(&stage, "the instance has moved", &moved, is_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_grpc_about_what_evidence_decides_states_it_or_is_refused() {
    let (stage, instance) = running().await;
    let mut to = stage.clients.instances.clone();
    let (metadata, place) = (instance.metadata.clone(), &instance.runtime_instances[0]);
    let state = |state: RuntimeInstanceState, id: &str| UpdateRuntimeStatusRequest {
        metadata: metadata.clone(),
        runtime_instance_id: id.to_owned(),
        status: Some(RuntimeInstanceStatus { state: state.into(), message: String::new() }),
    };
    let active = |is_active| UpdateRuntimeActiveStateRequest {
        metadata: metadata.clone(),
        runtime_instance_id: place.id.clone(),
        is_active,
    };
    let revision =
        |id: &str| UpdateDeploymentIdRequest { metadata: metadata.clone(), deployment_id: id.into() };
    let running = to.update_runtime_status(state(RuntimeInstanceState::RuntimeStateRunning, &place.id)).await;
    assert_eq!(running.unwrap().into_inner().record.unwrap().metadata, metadata, "nothing changes");
    to.update_runtime_active_state(active(true)).await.unwrap();
    to.update_deployment_id(revision("r1")).await.unwrap();
    set_state(&stage, &instance, MetaInstanceState::Active).await.unwrap();
    stage.set_deployment("r1", DeploymentState::Completed).await.unwrap();

    let operation = &instance.operations[0].id;
    let other = if place.node_id == "kind/one" { "kind/two" } else { "kind/one" };
    let failed = state(RuntimeInstanceState::RuntimeStateFailed, &place.id);
    let (refused, absent) = (Code::FailedPrecondition, Code::NotFound);
    for (asked, code, words) in [
        (to.update_runtime_status(failed).await.map(drop), refused, "its node reports"),
        (to.update_runtime_active_state(active(false)).await.map(drop), refused, "RELOCATE"),
        (
            to.update_runtime_status(state(RuntimeInstanceState::RuntimeStateRunning, "x")).await.map(drop),
            absent,
            "x",
        ),
        (to.update_deployment_id(revision("r9")).await.map(drop), absent, "r9"),
        (
            stage.decide(&instance, operation, OperationState::Preparing).await.map(drop),
            refused,
            "planner itself",
        ),
        (stage.set_deployment("r1", DeploymentState::Pending).await, refused, "planner itself"),
        (
            add_runtime(&stage, &instance, &place.node_id, false).await.map(drop),
            Code::AlreadyExists,
            "has node",
        ),
        (add_runtime(&stage, &instance, other, true).await.map(drop), refused, "relocates it"),
    ] {
        let status = asked.unwrap_err();
        assert!(status.code() == code && status.message().contains(words), "{words}: {status:?}");
    }
    assert_eq!(
        get(&stage, &metadata.unwrap().id).await.unwrap().operations.len(),
        1,
        "nothing was requested"
    );
}
