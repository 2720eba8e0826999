//! Calls of MRDS's controllers, which the gateway does not serve: the planner does their work itself.

use muster_proto::proto::mrds::ledger::metainstance::{
    AddRuntimeInstanceRequest, CreateMetaInstanceRequest, DeleteMetaInstanceRequest,
    RemoveRuntimeInstanceRequest, UpdateDeploymentIdRequest, UpdateMetaInstanceStatusRequest,
    UpdateRuntimeActiveStateRequest, UpdateRuntimeStatusRequest,
};
use tonic::Code;

use super::grpc::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_the_planner_makes_needless_say_why_they_are_unimplemented() {
    let stage = Stage::start(&[]).await;
    let mut to = stage.clients.instances.clone();
    let refused = [
        to.create(CreateMetaInstanceRequest::default()).await.map(drop),
        to.update_status(UpdateMetaInstanceStatusRequest::default()).await.map(drop),
        to.update_deployment_id(UpdateDeploymentIdRequest::default()).await.map(drop),
        to.delete(DeleteMetaInstanceRequest::default()).await.map(drop),
        to.add_runtime_instance(AddRuntimeInstanceRequest::default()).await.map(drop),
        to.update_runtime_status(UpdateRuntimeStatusRequest::default()).await.map(drop),
        to.update_runtime_active_state(UpdateRuntimeActiveStateRequest::default()).await.map(drop),
        to.remove_runtime_instance(RemoveRuntimeInstanceRequest::default()).await.map(drop),
    ];
    for status in refused {
        let status = status.unwrap_err();
        assert!(status.code() == Code::Unimplemented && status.message().contains("call "), "{status:?}");
    }
}
