//! MRDS's calls about single entries over gRPC that the life of a plan does not need: each is answered, and does what it says.

use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::cluster::{
    Cluster, CreateClusterRequest, DeleteClusterRequest, GetClusterByIdRequest, GetClusterByNameRequest,
    ListClusterRequest,
};
use muster_proto::proto::mrds::ledger::computecapability::{
    CreateComputeCapabilityRequest, DeleteComputeCapabilityRequest, GetComputeCapabilityByIdRequest,
    GetComputeCapabilityByNameRequest, ListComputeCapabilityRequest,
};
use muster_proto::proto::mrds::ledger::deploymentplan::{
    DeploymentPlanState, DeploymentPlanStatus, GetDeploymentPlanByIdRequest,
    UpdateDeploymentPlanStatusRequest,
};
use muster_proto::proto::mrds::ledger::metainstance::{
    GetMetaInstanceByIdRequest, MetaInstance, OperationState, RemoveOperationRequest,
};
use muster_proto::proto::mrds::ledger::node::{
    AddCapabilityRequest, CreateNodeRequest, DeleteNodeRequest, GetNodeByIdRequest, ListNodeRequest,
    RemoveCapabilityRequest, Resources,
};
use tonic::Code;

use super::grpc::{PLAN, Stage, operation_state};
use super::grpc_client::Clients;

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_found_changed_and_deleted_over_grpc() {
    let stage = Stage::start(&[]).await;
    stage.inventory(&["worker"]).await;
    let mut to = stage.clients.clone();
    clusters(&mut to).await;
    capabilities(&mut to).await;
    nodes(&mut to).await;
    let made = stage.make_plan().await.unwrap();
    let by_id = GetDeploymentPlanByIdRequest { id: PLAN.into() };
    let found = to.plans.get_by_id(by_id).await.unwrap().into_inner().record.unwrap();
    assert_eq!(found, made);
    let mut metadata = found.metadata;
    for state in [DeploymentPlanState::Inactive, DeploymentPlanState::Active] {
        let status = Some(DeploymentPlanStatus { state: state.into(), message: String::new() });
        let request = UpdateDeploymentPlanStatusRequest { metadata, status };
        let changed = to.plans.update_status(request).await.unwrap().into_inner().record.unwrap();
        assert_eq!(changed.status.as_ref().unwrap().state(), state);
        metadata = changed.metadata;
    }
    removed_operation(&stage).await;
}

async fn clusters(to: &mut Clients) {
    let by_id = GetClusterByIdRequest { id: "north".into() };
    let by_name = GetClusterByNameRequest { name: "north".into() };
    let north = to.clusters.get_by_id(by_id).await.unwrap().into_inner().record.unwrap();
    assert_eq!(to.clusters.get_by_name(by_name).await.unwrap().into_inner().record.unwrap(), north);
    let create = CreateClusterRequest { name: "south".into() };
    let south = to.clusters.create(create).await.unwrap().into_inner().record.unwrap();
    let all = async |to: &mut Clients, asked: ListClusterRequest| -> Vec<Cluster> {
        to.clusters.list(asked).await.unwrap().into_inner().records
    };
    assert_eq!(all(to, ListClusterRequest::default()).await, [north.clone(), south.clone()]);
    let named = ListClusterRequest { name_in: vec!["south".into()], ..ListClusterRequest::default() };
    assert_eq!(all(to, named).await, std::slice::from_ref(&south));
    to.clusters.delete(DeleteClusterRequest { metadata: south.metadata }).await.unwrap();
    assert_eq!(all(to, ListClusterRequest::default()).await, [north]);
}

async fn capabilities(to: &mut Clients) {
    let by_id = GetComputeCapabilityByIdRequest { id: "v100".into() };
    let by_name = GetComputeCapabilityByNameRequest { name: "v100".into() };
    let found = to.capabilities.get_by_id(by_id).await.unwrap().into_inner().record.unwrap();
    assert_eq!(to.capabilities.get_by_name(by_name).await.unwrap().into_inner().record.unwrap(), found);
    let create = CreateComputeCapabilityRequest { name: "t4".into(), r#type: "GPU".into(), score: 7 };
    let other = to.capabilities.create(create).await.unwrap().into_inner().record.unwrap();
    let listed = to.capabilities.list(ListComputeCapabilityRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.records, [other.clone(), found.clone()]);
    to.capabilities.delete(DeleteComputeCapabilityRequest { metadata: other.metadata }).await.unwrap();
    let listed = to.capabilities.list(ListComputeCapabilityRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.records, [found]);
}

async fn nodes(to: &mut Clients) {
    let by_id = || GetNodeByIdRequest { id: "kind/worker".into() };
    let found = to.nodes.get_by_id(by_id()).await.unwrap().into_inner().record.unwrap();
    assert_eq!(found.capability_ids, ["v100"]);
    let remove = RemoveCapabilityRequest { metadata: found.metadata, capability_id: "v100".into() };
    let without = to.nodes.remove_capability(remove).await.unwrap().into_inner().record.unwrap();
    assert!(without.capability_ids.is_empty(), "{without:?}");
    let add = AddCapabilityRequest { metadata: without.metadata, capability_id: "v100".into() };
    let again = to.nodes.add_capability(add).await.unwrap().into_inner().record.unwrap();
    assert_eq!(to.nodes.get_by_id(by_id()).await.unwrap().into_inner().record.unwrap(), again);
    let spare = CreateNodeRequest {
        name: "spare".into(),
        update_domain: "d2".into(),
        total_resources: Some(Resources { cores: 1, memory: 1 }),
        ..CreateNodeRequest::default()
    };
    let spare = to.nodes.create(spare).await.unwrap().into_inner().record.unwrap();
    to.nodes.delete(DeleteNodeRequest { metadata: spare.metadata }).await.unwrap();
    assert_eq!(to.nodes.list(ListNodeRequest::default()).await.unwrap().into_inner().records, [again]);
}

/// An operation that waits is removed by its cancellation, and not by an older version of its instance.
async fn removed_operation(stage: &Stage) {
    stage.deploy("r1", 1).await.unwrap();
    let waits = |one: &MetaInstance| {
        one.operations.iter().any(|one| operation_state(one) == OperationState::PendingApproval)
    };
    let instance = stage.instance("the CREATE waits", waits).await;
    let (mut to, of) = (stage.clients.clone(), instance.metadata.clone().unwrap());
    let by_id = GetMetaInstanceByIdRequest { id: of.id.clone() };
    assert_eq!(to.instances.get_by_id(by_id).await.unwrap().into_inner().record.unwrap(), instance);
    let remove = |version| RemoveOperationRequest {
        metadata: Some(Metadata { id: of.id.clone(), version }),
        operation_id: instance.operations[0].id.clone(),
    };
    let stale = to.instances.remove_operation(remove(of.version + 7)).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted, "{stale:?}");
    let removed = to.instances.remove_operation(remove(of.version)).await.unwrap().into_inner();
    assert!(!removed.record.as_ref().is_some_and(waits), "{removed:?}");
}
