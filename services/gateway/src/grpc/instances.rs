//! MRDS's service of meta instances over the planner. The id of an instance is its name, and its name is the planner's display
//! name; a runtime instance is a placement.
//!
//! MRDS's control plane makes, places and deletes instances by calls of this service. Muster's planner does that itself, so
//! those calls answer UNIMPLEMENTED with the reason.

use muster_contract::plans::{
    self, Instance, InstanceStatus, InstancesQuery, OperationRequest, OperationType, OperationVerdictRequest,
};
use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::metainstance::{
    self as messages, AddOperationRequest, AddRuntimeInstanceRequest, CreateMetaInstanceRequest,
    CreateMetaInstanceResponse, DeleteMetaInstanceRequest, DeleteMetaInstanceResponse,
    GetMetaInstanceByIdRequest, GetMetaInstanceByNameRequest, GetMetaInstanceResponse,
    ListMetaInstanceRequest, ListMetaInstanceResponse, OperationState, RemoveOperationRequest,
    RemoveRuntimeInstanceRequest, UpdateDeploymentIdRequest, UpdateMetaInstanceResponse,
    UpdateMetaInstanceStatusRequest, UpdateOperationStatusRequest, UpdateRuntimeActiveStateRequest,
    UpdateRuntimeStatusRequest,
};
use tonic::{Request, Response, Status};

use super::caller::{GrpcCaller, split};
use super::filters::{Identity, metadata, parsed, part, passes_state};
use super::planner::Planner;
use super::records;
use super::refusals::{invalid, not_found};

/// The rows of a list of instances.
const LIST: &str = "instance-list";
const ROWS: &str = "instances";
const REVISIONS_MAKE_INSTANCES: &str = "the planner makes, updates and deletes instances: call DeploymentPlans.AddDeployment with another instance_count";
const PLANNER_PLACES: &str =
    "the planner places instances: call AddOperation with RELOCATE, or Nodes.AddDisruption to empty a node";
const NODES_REPORT: &str = "a runtime instance has the state that its node reports: call AddOperation with STOP or RESTART to change it";
const PLANNER_CARRIES_OUT: &str = "the planner sets this state itself: APPROVED approves an operation, FAILED rejects one that waits, and \
     SUCCEEDED and FAILED complete an approved one by hand";
/// The reason of a completion by hand whose message is empty: the planner records one.
const NO_MESSAGE: &str = "no message was given over gRPC";

/// The planner's request for a state of an operation in a state.
type VerdictOf = fn(Option<plans::OperationState>) -> &'static str;

/// The service.
pub(super) struct Instances(pub(super) Planner);

impl Instances {
    async fn find(&self, text: &str, is_it: impl Fn(&Instance) -> bool) -> Result<InstanceStatus, Status> {
        let query = InstancesQuery { name: vec![text.to_owned()], ..InstancesQuery::default() };
        let keep = |row: InstanceStatus| is_it(&row.instance).then_some(row);
        let found = self.0.list(LIST, ROWS, &query, 1, keep).await?;
        found.into_iter().next().ok_or_else(|| not_found("meta instance", text))
    }

    async fn by_id(&self, id: &str) -> Result<InstanceStatus, Status> {
        self.find(id, |instance| instance.name.as_str() == id).await
    }

    /// The record of a changed instance, with what its nodes report.
    async fn changed(&self, changed: Instance) -> Response<UpdateMetaInstanceResponse> {
        let found = self.by_id(changed.name.as_str()).await;
        let unplaced = |_| InstanceStatus { instance: changed, placements: Vec::new() };
        let record = records::instance(found.unwrap_or_else(unplaced));
        Response::new(UpdateMetaInstanceResponse { record: Some(record) })
    }

    async fn decide(
        &self,
        caller: &GrpcCaller,
        verb: VerdictOf,
        of: Option<Metadata>,
        operation: &str,
        reason: Option<String>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let of = metadata(of)?;
        let instance = self.by_id(&of.id).await?.instance;
        let operation = parsed("operation_id", operation)?;
        // The planner refuses the request if the instance has changed since this was read.
        let verb = verb(instance.operation(&operation).map(|operation| operation.state));
        let reason = reason.or_else(|| is_by_hand(verb).then(|| NO_MESSAGE.to_owned()));
        let request = OperationVerdictRequest {
            plan: instance.plan,
            instance: instance.name,
            operation,
            rule: None,
            reason,
            expected_version: Some(of.version),
            request_id: None,
        };
        let changed = self.0.change(caller, verb, &request).await?;
        Ok(self.changed(changed).await)
    }
}

fn is_by_hand(verb: &str) -> bool {
    matches!(verb, "operation-complete" | "operation-fail")
}

fn operation_type(of: messages::OperationType) -> Result<OperationType, Status> {
    Ok(match of {
        messages::OperationType::Stop => OperationType::Stop,
        messages::OperationType::Restart => OperationType::Restart,
        messages::OperationType::Relocate => OperationType::Relocate,
        messages::OperationType::Create
        | messages::OperationType::Update
        | messages::OperationType::Delete => {
            return Err(Status::unimplemented(REVISIONS_MAKE_INSTANCES));
        }
        messages::OperationType::Unknown => return Err(invalid("operation.type", "is missing: set it")),
    })
}

#[tonic::async_trait]
impl messages::meta_instances_server::MetaInstances for Instances {
    async fn create(
        &self,
        _: Request<CreateMetaInstanceRequest>,
    ) -> Result<Response<CreateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(REVISIONS_MAKE_INSTANCES))
    }

    async fn get_by_id(
        &self,
        request: Request<GetMetaInstanceByIdRequest>,
    ) -> Result<Response<GetMetaInstanceResponse>, Status> {
        let found = self.by_id(&request.into_inner().id).await?;
        Ok(Response::new(GetMetaInstanceResponse { record: Some(records::instance(found)) }))
    }

    async fn get_by_name(
        &self,
        request: Request<GetMetaInstanceByNameRequest>,
    ) -> Result<Response<GetMetaInstanceResponse>, Status> {
        let name = request.into_inner().name;
        let found = self.find(&name, |instance| instance.display_name == name).await?;
        Ok(Response::new(GetMetaInstanceResponse { record: Some(records::instance(found)) }))
    }

    async fn update_status(
        &self,
        _: Request<UpdateMetaInstanceStatusRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(REVISIONS_MAKE_INSTANCES))
    }

    async fn update_deployment_id(
        &self,
        _: Request<UpdateDeploymentIdRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(REVISIONS_MAKE_INSTANCES))
    }

    async fn list(
        &self,
        request: Request<ListMetaInstanceRequest>,
    ) -> Result<Response<ListMetaInstanceResponse>, Status> {
        let asked = request.into_inner();
        let versions = [asked.version_gte, asked.version_lte, asked.version_eq];
        let identity = Identity::of(asked.id_in, asked.name_in, versions);
        let plans = asked.deployment_plan_id_in.iter().map(|id| parsed("deployment_plan_id_in", id));
        let revisions = asked.deployment_id_in.iter().map(|id| parsed("deployment_id_in", id));
        let query = InstancesQuery {
            plan: plans.collect::<Result<_, _>>()?,
            revision: revisions.collect::<Result<_, _>>()?,
            name: identity.wanted().1.to_vec(),
            ..InstancesQuery::default()
        };
        let keep = |row: InstanceStatus| {
            let Instance { name, display_name, version, state, .. } = &row.instance;
            let state = records::instance_state(*state).into();
            let passes = identity.passes(name.as_str(), display_name, *version)
                && passes_state(&asked.state_in, &asked.state_not_in, state);
            passes.then(|| records::instance(row))
        };
        let records = self.0.list(LIST, ROWS, &query, asked.limit, keep).await?;
        Ok(Response::new(ListMetaInstanceResponse { records }))
    }

    async fn delete(
        &self,
        _: Request<DeleteMetaInstanceRequest>,
    ) -> Result<Response<DeleteMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(REVISIONS_MAKE_INSTANCES))
    }

    async fn add_runtime_instance(
        &self,
        _: Request<AddRuntimeInstanceRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(PLANNER_PLACES))
    }

    async fn update_runtime_status(
        &self,
        _: Request<UpdateRuntimeStatusRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(NODES_REPORT))
    }

    async fn update_runtime_active_state(
        &self,
        _: Request<UpdateRuntimeActiveStateRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(PLANNER_PLACES))
    }

    async fn remove_runtime_instance(
        &self,
        _: Request<RemoveRuntimeInstanceRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        Err(Status::unimplemented(PLANNER_PLACES))
    }

    async fn add_operation(
        &self,
        request: Request<AddOperationRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let (of, operation) = (metadata(message.metadata)?, part("operation", message.operation)?);
        let operation_type = operation_type(operation.r#type())?;
        let state =
            operation.status.as_ref().map_or(OperationState::Pending, messages::OperationStatus::state);
        if !matches!(state, OperationState::Pending | OperationState::Unknown) {
            return Err(invalid("operation.status.state", "must be PENDING or unset for a new operation"));
        }
        let instance = self.by_id(&of.id).await?.instance;
        let request = OperationRequest {
            plan: instance.plan,
            instance: instance.name,
            operation_type,
            not_before: None,
            expected_version: Some(of.version),
            // The planner names operations itself; the client's id is the idempotency key of the call.
            request_id: Some(operation.id).filter(|id| !id.is_empty()),
        };
        let changed = self.0.change(&caller, "operation-request", &request).await?;
        Ok(self.changed(changed).await)
    }

    async fn update_operation_status(
        &self,
        request: Request<UpdateOperationStatusRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let status = part("status", message.status)?;
        let verb: VerdictOf = match status.state() {
            OperationState::Approved => |_| "operation-approve",
            OperationState::Succeeded => |_| "operation-complete",
            OperationState::Failed => |state| match state {
                Some(plans::OperationState::Approved | plans::OperationState::Running) => "operation-fail",
                _ => "operation-reject",
            },
            OperationState::Unknown => return Err(invalid("status.state", "is missing: set it")),
            _ => return Err(Status::unimplemented(PLANNER_CARRIES_OUT)),
        };
        let reason = Some(status.message).filter(|text| !text.is_empty());
        self.decide(&caller, verb, message.metadata, &message.operation_id, reason).await
    }

    async fn remove_operation(
        &self,
        request: Request<RemoveOperationRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        self.decide(&caller, |_| "operation-cancel", message.metadata, &message.operation_id, None).await
    }
}
