//! MRDS's service of compute capabilities over the planner's inventory. The id of a capability is its name.

use muster_contract::CapabilityName;
use muster_contract::plans::{
    Capability, CapabilitySpec, InventoryApplyRequest, InventoryItem, InventoryKind, InventoryName,
    InventoryQuery, InventoryState, InventoryStateRequest,
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
use super::lists::Listing;
use super::planner::Planner;
use super::records;
use super::refusals::invalid;

/// The service.
pub(super) struct Capabilities(pub(super) Planner);

impl Capabilities {
    async fn get(&self, field: &str, text: &str) -> Result<Response<GetComputeCapabilityResponse>, Status> {
        let name: CapabilityName = parsed(field, text)?;
        let found: Capability = self.0.entry(InventoryKind::Capability, name.as_str()).await?;
        Ok(Response::new(GetComputeCapabilityResponse { record: Some(records::capability(found)) }))
    }
}

/// The list that a request asks for.
pub(super) fn listing(
    asked: ListComputeCapabilityRequest,
) -> Result<Listing<'static, Capability, messages::ComputeCapability>, Status> {
    let versions = [asked.version_gte, asked.version_lte, asked.version_eq];
    let identity = Identity::of(asked.id_in, asked.name_in, versions);
    let named = identity.wanted().1.to_vec();
    let query = InventoryQuery {
        capability_type: asked.type_in,
        ..inventory(InventoryKind::Capability, named, asked.include_deleted)
    };
    let keep = move |row: Capability| {
        let (name, version) = (row.name.to_string(), row.version);
        let record = records::capability(row);
        let state = record.status.as_ref().map_or(0, |status| status.state);
        let passes = identity.passes(&name, &name, version)
            && passes_state(&asked.state_in, &asked.state_not_in, state);
        passes.then_some(record)
    };
    Listing::new("inventory-list", "capabilities", &query, asked.limit, keep)
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
        let item = InventoryName::Capability(parsed("metadata.id", &of.id)?);
        let request = InventoryStateRequest { state: Some(state), ..InventoryStateRequest::of(item) };
        let record: Capability = self.0.set_state(&caller, of.version, status.message, request).await?;
        Ok(Response::new(UpdateComputeCapabilityResponse { record: Some(records::capability(record)) }))
    }

    async fn list(
        &self,
        request: Request<ListComputeCapabilityRequest>,
    ) -> Result<Response<ListComputeCapabilityResponse>, Status> {
        let records = self.0.list(listing(request.into_inner())?).await?;
        Ok(Response::new(ListComputeCapabilityResponse { records }))
    }

    async fn delete(
        &self,
        request: Request<DeleteComputeCapabilityRequest>,
    ) -> Result<Response<DeleteComputeCapabilityResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let item = InventoryName::Capability(parsed("metadata.id", &of.id)?);
        self.0.delete::<Capability>(&caller, item, of.version).await?;
        Ok(Response::new(DeleteComputeCapabilityResponse {}))
    }
}
