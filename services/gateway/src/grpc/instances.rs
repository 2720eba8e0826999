//! MRDS's service of meta instances over the planner. The id of an instance is its name, and its name is the planner's display
//! name; a runtime instance is a placement.
//!
//! MRDS's control plane makes, places and deletes instances by calls of this service. Muster's planner does that itself, so a call whose
//! outcome is there already changes nothing, and any other is a request of a person: an operation that waits for its approval.

use muster_contract::RevisionId;
use muster_contract::plans::{
    self, Instance, InstanceCreateRequest, InstanceState, InstanceStatus, InstancesQuery, Operation,
    OperationRequest, OperationType, OperationVerdictRequest,
};
use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::metainstance::{
    self as messages, AddOperationRequest, AddRuntimeInstanceRequest, CreateMetaInstanceRequest,
    CreateMetaInstanceResponse, DeleteMetaInstanceRequest, DeleteMetaInstanceResponse,
    GetMetaInstanceByIdRequest, GetMetaInstanceByNameRequest, GetMetaInstanceResponse,
    ListMetaInstanceRequest, ListMetaInstanceResponse, MetaInstanceState, OperationState,
    RemoveOperationRequest, RemoveRuntimeInstanceRequest, UpdateDeploymentIdRequest,
    UpdateMetaInstanceResponse, UpdateMetaInstanceStatusRequest, UpdateOperationStatusRequest,
    UpdateRuntimeActiveStateRequest, UpdateRuntimeStatusRequest,
};
use tonic::{Request, Response, Status};

use super::caller::{GrpcCaller, split};
use super::filters::{Identity, metadata, parsed, part, passes_state};
use super::lists::Listing;
use super::planner::Planner;
use super::records;
use super::refusals::{invalid, not_found};
use super::runtime_instances;

/// The rows of a list of instances.
const LIST: &str = "instance-list";
const ROWS: &str = "instances";
/// The reason of a completion by hand whose message is empty: the planner records one.
const NO_MESSAGE: &str = "no message was given over gRPC";

/// The planner's request for a state of an operation in a state.
type VerdictOf = fn(Option<plans::OperationState>) -> &'static str;

/// The service.
pub(super) struct Instances(pub(super) Planner);

impl Instances {
    async fn find(
        &self,
        text: &str,
        is_it: impl Fn(&Instance) -> bool + Send,
    ) -> Result<InstanceStatus, Status> {
        let query = InstancesQuery { name: vec![text.to_owned()], ..InstancesQuery::default() };
        let keep = move |row: InstanceStatus| is_it(&row.instance).then_some(row);
        let found = self.0.list(Listing::new(LIST, ROWS, &query, 1, keep)?).await?;
        found.into_iter().next().ok_or_else(|| not_found("meta instance", text))
    }

    async fn by_id(&self, id: &str) -> Result<InstanceStatus, Status> {
        self.find(id, |instance| instance.name.as_str() == id).await
    }

    /// The record of a changed instance, with what its nodes report.
    async fn record(&self, changed: Instance) -> messages::MetaInstance {
        let found = self.by_id(changed.name.as_str()).await;
        let unplaced = |_| InstanceStatus { instance: changed, placements: Vec::new() };
        records::instance(found.unwrap_or_else(unplaced))
    }

    async fn changed(&self, changed: Instance) -> Response<UpdateMetaInstanceResponse> {
        answer(self.record(changed).await)
    }

    /// Requests an operation. The id is the idempotency key of the call.
    async fn request(
        &self,
        caller: &GrpcCaller,
        of: &Metadata,
        instance: Instance,
        operation_type: OperationType,
        revision: Option<RevisionId>,
        request_id: Option<String>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let request = OperationRequest {
            plan: instance.plan,
            instance: instance.name,
            operation_type,
            revision,
            node: None,
            not_before: None,
            expected_version: Some(of.version),
            request_id,
        };
        Ok(self.changed(self.0.change(caller, "operation-request", &request).await?).await)
    }

    /// The record, if an operation has a state that only the planner sets.
    async fn confirm(
        &self,
        of: Option<Metadata>,
        operation: &str,
        wanted: OperationState,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let record = records::instance(self.by_id(&metadata(of)?.id).await?);
        let found = record.operations.iter().find(|one| one.id == operation);
        let found = found.ok_or_else(|| not_found("operation", operation))?;
        let state = found.status.as_ref().map(messages::OperationStatus::state).unwrap_or_default();
        if state == wanted {
            return Ok(answer(record));
        }
        Err(Status::failed_precondition(format!(
            "operation {operation} is {}, and the planner itself makes it {}",
            state.as_str_name(),
            wanted.as_str_name()
        )))
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

fn answer(record: messages::MetaInstance) -> Response<UpdateMetaInstanceResponse> {
    Response::new(UpdateMetaInstanceResponse { record: Some(record) })
}

fn is_by_hand(verb: &str) -> bool {
    matches!(verb, "operation-complete" | "operation-fail")
}

fn operation_type(of: messages::OperationType) -> Result<OperationType, Status> {
    Ok(match of {
        messages::OperationType::Create => OperationType::Create,
        messages::OperationType::Update => OperationType::Update,
        messages::OperationType::Delete => OperationType::Delete,
        messages::OperationType::Stop => OperationType::Stop,
        messages::OperationType::Restart => OperationType::Restart,
        messages::OperationType::Relocate => OperationType::Relocate,
        messages::OperationType::Unknown => return Err(invalid("operation.type", "is missing: set it")),
    })
}

/// The operation of a type that has not ended.
fn open_operation(instance: &Instance, kind: OperationType) -> Option<&Operation> {
    let mut open = instance.operations.iter().filter(|operation| !operation.state.is_final());
    open.find(|operation| operation.operation_type == kind)
}

/// The list that a request asks for.
pub(super) fn listing(
    asked: ListMetaInstanceRequest,
) -> Result<Listing<'static, InstanceStatus, messages::MetaInstance>, Status> {
    let versions = [asked.version_gte, asked.version_lte, asked.version_eq];
    let identity = Identity::of(asked.id_in, asked.name_in, versions);
    let plans = asked.deployment_plan_id_in.iter().map(|id| parsed("deployment_plan_id_in", id));
    let revisions = asked.deployment_id_in.iter().map(|id| parsed("deployment_id_in", id));
    let query = InstancesQuery {
        plan: plans.collect::<Result<_, _>>()?,
        revision: revisions.collect::<Result<_, _>>()?,
        name: identity.wanted().1.to_vec(),
        include_deleted: asked.include_deleted,
        ..InstancesQuery::default()
    };
    let keep = move |row: InstanceStatus| {
        let Instance { name, display_name, version, state, .. } = &row.instance;
        let state = records::instance_state(*state).into();
        let passes = identity.passes(name.as_str(), display_name, *version)
            && passes_state(&asked.state_in, &asked.state_not_in, state);
        passes.then(|| records::instance(row))
    };
    Listing::new(LIST, ROWS, &query, asked.limit, keep)
}

#[tonic::async_trait]
impl messages::meta_instances_server::MetaInstances for Instances {
    async fn create(
        &self,
        request: Request<CreateMetaInstanceRequest>,
    ) -> Result<Response<CreateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        // The planner names instances itself.
        let request = InstanceCreateRequest {
            plan: parsed("deployment_plan_id", &message.deployment_plan_id)?,
            revision: Some(parsed("deployment_id", &message.deployment_id)?),
            node: None,
            expected_version: None,
            request_id: None,
        };
        let made: Instance = self.0.change(&caller, "instance-create", &request).await?;
        Ok(Response::new(CreateMetaInstanceResponse { record: Some(self.record(made).await) }))
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
        request: Request<UpdateMetaInstanceStatusRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let found = self.by_id(&of.id).await?;
        let delete = open_operation(&found.instance, OperationType::Delete).map(|one| one.id.to_string());
        let is_to_be_deleted = delete.is_some() || found.instance.state != InstanceState::Active;
        match part("status", message.status)?.state() {
            MetaInstanceState::Unknown => Err(invalid("status.state", "is missing: set it")),
            MetaInstanceState::MarkedForDeletion if is_to_be_deleted => Ok(answer(records::instance(found))),
            MetaInstanceState::MarkedForDeletion => {
                self.request(&caller, &of, found.instance, OperationType::Delete, None, None).await
            }
            MetaInstanceState::Active if !is_to_be_deleted => Ok(answer(records::instance(found))),
            MetaInstanceState::Active => {
                let delete = delete.ok_or_else(|| {
                    Status::failed_precondition("its DELETE has ended, and its nodes have not reported it")
                })?;
                self.decide(&caller, |_| "operation-cancel", Some(of), &delete, None).await
            }
        }
    }

    async fn update_deployment_id(
        &self,
        request: Request<UpdateDeploymentIdRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let revision: RevisionId = parsed("deployment_id", &message.deployment_id)?;
        let found = self.by_id(&of.id).await?;
        let ordered = found.instance.active().and_then(|placement| placement.revision.as_ref());
        let is_open = open_operation(&found.instance, OperationType::Update).is_some();
        if ordered == Some(&revision) && !is_open {
            return Ok(answer(records::instance(found)));
        }
        self.request(&caller, &of, found.instance, OperationType::Update, Some(revision), None).await
    }

    async fn list(
        &self,
        request: Request<ListMetaInstanceRequest>,
    ) -> Result<Response<ListMetaInstanceResponse>, Status> {
        let records = self.0.list(listing(request.into_inner())?).await?;
        Ok(Response::new(ListMetaInstanceResponse { records }))
    }

    async fn delete(
        &self,
        request: Request<DeleteMetaInstanceRequest>,
    ) -> Result<Response<DeleteMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let query =
            InstancesQuery { name: vec![of.id.clone()], include_deleted: true, ..InstancesQuery::default() };
        let keep = |row: InstanceStatus| (row.instance.name.as_str() == of.id).then_some(row.instance);
        let found = self.0.list(Listing::new(LIST, ROWS, &query, 1, keep)?).await?;
        let instance = found.into_iter().next().ok_or_else(|| not_found("meta instance", &of.id))?;
        if instance.state == InstanceState::Deleted {
            return Ok(Response::new(DeleteMetaInstanceResponse {}));
        }
        if let Some(placement) = instance.placements.iter().find(|placement| placement.revision.is_some()) {
            let message = format!(
                "node {} has the order to run meta instance {}: call AddOperation with DELETE",
                placement.node, of.id
            );
            return Err(Status::failed_precondition(message));
        }
        self.request(&caller, &of, instance, OperationType::Delete, None, None).await?;
        Ok(Response::new(DeleteMetaInstanceResponse {}))
    }

    async fn add_runtime_instance(
        &self,
        request: Request<AddRuntimeInstanceRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let wanted = part("runtime_instance", message.runtime_instance)?;
        let found = self.by_id(&of.id).await?;
        Ok(self.changed(runtime_instances::add(&self.0, &caller, &of, found, wanted).await?).await)
    }

    async fn update_runtime_status(
        &self,
        request: Request<UpdateRuntimeStatusRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (_, message) = split(request)?;
        let found = self.by_id(&metadata(message.metadata)?.id).await?;
        runtime_instances::confirm_state(found, &message.runtime_instance_id, message.status).map(answer)
    }

    async fn update_runtime_active_state(
        &self,
        request: Request<UpdateRuntimeActiveStateRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (_, message) = split(request)?;
        let found = self.by_id(&metadata(message.metadata)?.id).await?;
        runtime_instances::confirm_active(found, &message.runtime_instance_id, message.is_active).map(answer)
    }

    async fn remove_runtime_instance(
        &self,
        request: Request<RemoveRuntimeInstanceRequest>,
    ) -> Result<Response<UpdateMetaInstanceResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let found = self.by_id(&of.id).await?;
        let id = &message.runtime_instance_id;
        Ok(self.changed(runtime_instances::remove(&self.0, &caller, &of, &found, id).await?).await)
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
        let found = self.by_id(&of.id).await?;
        if operation_type == OperationType::Create
            && open_operation(&found.instance, operation_type).is_some()
        {
            // The planner has made it with the instance.
            return Ok(answer(records::instance(found)));
        }
        let id = Some(operation.id).filter(|id| !id.is_empty());
        self.request(&caller, &of, found.instance, operation_type, None, id).await
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
            wanted => return self.confirm(message.metadata, &message.operation_id, wanted).await,
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
