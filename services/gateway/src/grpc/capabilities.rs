//! MRDS's service of compute capabilities over the planner's inventory. The id of a capability is its name.

use muster_contract::CapabilityName;
use muster_contract::plans::{
    Capability, CapabilitySpec, InventoryApplyRequest, InventoryDeleteRequest, InventoryItem, InventoryKind,
    InventoryName, InventoryQuery, InventoryState, InventoryStateRequest,
};
use muster_proto::proto::mrds::ledger::computecapability::{
    self as messages, ComputeCapabilityState, CreateComputeCapabilityRequest,
    CreateComputeCapabilityResponse, DeleteComputeCapabilityRequest, DeleteComputeCapabilityResponse,
    GetComputeCapabilityByIdRequest, GetComputeCapabilityByNameRequest, GetComputeCapabilityResponse,
    ListComputeCapabilityRequest, ListComputeCapabilityResponse, UpdateComputeCapabilityResponse,
    UpdateComputeCapabilityStatusRequest,
};
use tonic::{Request, Response, Status};

use super::caller::split;
use super::filters::{Identity, inventory, metadata, parsed, part, passes_state};
use super::planner::Planner;
use super::records;
use super::refusals::{invalid, not_found};

/// The service.
pub(super) struct Capabilities(pub(super) Planner);

impl Capabilities {
    async fn get(&self, field: &str, text: &str) -> Result<Response<GetComputeCapabilityResponse>, Status> {
        let name: CapabilityName = parsed(field, text)?;
        let query = inventory(InventoryKind::Capability, vec![name.to_string()], false);
        let found: Vec<Capability> = self.0.list(("inventory-list", "capabilities"), &query, 1, Some).await?;
        let record = found.into_iter().next().map(records::capability);
        let record = record.ok_or_else(|| not_found("compute capability", text))?;
        Ok(Response::new(GetComputeCapabilityResponse { record: Some(record) }))
    }
}

#[tonic::async_trait]
impl messages::compute_capabilities_server::ComputeCapabilities for Capabilities {
    async fn create(
        &self,
        request: Request<CreateComputeCapabilityRequest>,
    ) -> Result<Response<CreateComputeCapabilityResponse>, Status> {
        let (caller, message) = split(request)?;
        let item = InventoryItem::Capability(CapabilitySpec {
            name: parsed("name", &message.name)?,
            capability_type: message.r#type,
            score: u64::from(message.score),
        });
        let request = InventoryApplyRequest { item, expected_version: None, request_id: None };
        let record: Capability = self.0.create(&caller, "inventory-apply", &request).await?;
        Ok(Response::new(CreateComputeCapabilityResponse { record: Some(records::capability(record)) }))
    }

    async fn get_by_id(
        &self,
        request: Request<GetComputeCapabilityByIdRequest>,
    ) -> Result<Response<GetComputeCapabilityResponse>, Status> {
        self.get("id", &request.into_inner().id).await
    }

    async fn get_by_name(
        &self,
        request: Request<GetComputeCapabilityByNameRequest>,
    ) -> Result<Response<GetComputeCapabilityResponse>, Status> {
        self.get("name", &request.into_inner().name).await
    }

    async fn update_status(
        &self,
        request: Request<UpdateComputeCapabilityStatusRequest>,
    ) -> Result<Response<UpdateComputeCapabilityResponse>, Status> {
        let (caller, message) = split(request)?;
        let (of, status) = (metadata(message.metadata)?, part("status", message.status)?);
        let state = match status.state() {
            ComputeCapabilityState::Active => InventoryState::Active,
            ComputeCapabilityState::Inactive => InventoryState::Inactive,
            _ => return Err(invalid("status.state", "is not ACTIVE or INACTIVE")),
        };
        let request = InventoryStateRequest {
            item: InventoryName::Capability(parsed("metadata.id", &of.id)?),
            node_state: None,
            cluster: None,
            state: Some(state),
            message: Some(status.message).filter(|text| !text.is_empty()),
            expected_version: Some(of.version),
            request_id: None,
        };
        let record: Capability = self.0.change(&caller, "inventory-state", &request).await?;
        Ok(Response::new(UpdateComputeCapabilityResponse { record: Some(records::capability(record)) }))
    }

    async fn list(
        &self,
        request: Request<ListComputeCapabilityRequest>,
    ) -> Result<Response<ListComputeCapabilityResponse>, Status> {
        let asked = request.into_inner();
        let versions = [asked.version_gte, asked.version_lte, asked.version_eq];
        let identity = Identity::of(asked.id_in, asked.name_in, versions);
        let named = identity.wanted().to_vec();
        let query = InventoryQuery {
            capability_type: asked.type_in,
            ..inventory(InventoryKind::Capability, named, asked.include_deleted)
        };
        let keep = |row: Capability| {
            let (name, version) = (row.name.to_string(), row.version);
            let record = records::capability(row);
            let state = record.status.as_ref().map_or(0, |status| status.state);
            let passes = identity.passes(&name, &name, version)
                && passes_state(&asked.state_in, &asked.state_not_in, state);
            passes.then_some(record)
        };
        let records = self.0.list(("inventory-list", "capabilities"), &query, asked.limit, keep).await?;
        Ok(Response::new(ListComputeCapabilityResponse { records }))
    }

    async fn delete(
        &self,
        request: Request<DeleteComputeCapabilityRequest>,
    ) -> Result<Response<DeleteComputeCapabilityResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let item = InventoryName::Capability(parsed("metadata.id", &of.id)?);
        let request = InventoryDeleteRequest { item, expected_version: Some(of.version), request_id: None };
        let _deleted: Capability = self.0.change(&caller, "inventory-delete", &request).await?;
        Ok(Response::new(DeleteComputeCapabilityResponse {}))
    }
}
