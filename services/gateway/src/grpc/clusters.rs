//! MRDS's service of clusters over the planner's inventory. The id of a cluster is its name.

use muster_contract::ClusterName;
use muster_contract::plans::{
    Cluster, ClusterSpec, InventoryApplyRequest, InventoryItem, InventoryKind, InventoryName, InventoryState,
    InventoryStateRequest,
};
use muster_proto::proto::mrds::ledger::cluster::{
    self as messages, ClusterState, CreateClusterRequest, CreateClusterResponse, DeleteClusterRequest,
    DeleteClusterResponse, GetClusterByIdRequest, GetClusterByNameRequest, GetClusterResponse,
    ListClusterRequest, ListClusterResponse, UpdateClusterResponse, UpdateClusterStatusRequest,
};
use tonic::{Request, Response, Status};

use super::caller::split;
use super::filters::{Identity, inventory, metadata, parsed, part, passes_state};
use super::lists::Listing;
use super::planner::Planner;
use super::records;
use super::refusals::invalid;

/// The service.
pub(super) struct Clusters(pub(super) Planner);

impl Clusters {
    async fn get(&self, field: &str, text: &str) -> Result<Response<GetClusterResponse>, Status> {
        let name: ClusterName = parsed(field, text)?;
        let found: Cluster = self.0.entry(InventoryKind::Cluster, name.as_str()).await?;
        Ok(Response::new(GetClusterResponse { record: Some(records::cluster(found)) }))
    }
}

/// The list that a request asks for.
pub(super) fn listing(
    asked: ListClusterRequest,
) -> Result<Listing<'static, Cluster, messages::Cluster>, Status> {
    let versions = [asked.version_gte, asked.version_lte, asked.version_eq];
    let identity = Identity::of(asked.id_in, asked.name_in, versions);
    let query = inventory(InventoryKind::Cluster, identity.wanted().1.to_vec(), asked.include_deleted);
    let keep = move |row: Cluster| {
        let (name, version) = (row.name.to_string(), row.version);
        let record = records::cluster(row);
        let state = record.status.as_ref().map_or(0, |status| status.state);
        let passes = identity.passes(&name, &name, version)
            && passes_state(&asked.state_in, &asked.state_not_in, state);
        passes.then_some(record)
    };
    Listing::new("inventory-list", "clusters", &query, asked.limit, keep)
}

#[tonic::async_trait]
impl messages::clusters_server::Clusters for Clusters {
    async fn create(
        &self,
        request: Request<CreateClusterRequest>,
    ) -> Result<Response<CreateClusterResponse>, Status> {
        let (caller, message) = split(request)?;
        let item = InventoryItem::Cluster(ClusterSpec { name: parsed("name", &message.name)? });
        let request = InventoryApplyRequest { item, expected_version: None, request_id: None };
        let record: Cluster = self.0.create(&caller, "inventory-apply", &request).await?;
        Ok(Response::new(CreateClusterResponse { record: Some(records::cluster(record)) }))
    }

    async fn get_by_id(
        &self,
        request: Request<GetClusterByIdRequest>,
    ) -> Result<Response<GetClusterResponse>, Status> {
        self.get("id", &request.into_inner().id).await
    }

    async fn get_by_name(
        &self,
        request: Request<GetClusterByNameRequest>,
    ) -> Result<Response<GetClusterResponse>, Status> {
        self.get("name", &request.into_inner().name).await
    }

    async fn update_status(
        &self,
        request: Request<UpdateClusterStatusRequest>,
    ) -> Result<Response<UpdateClusterResponse>, Status> {
        let (caller, message) = split(request)?;
        let (of, status) = (metadata(message.metadata)?, part("status", message.status)?);
        let state = match status.state() {
            ClusterState::Active => InventoryState::Active,
            ClusterState::Inactive => InventoryState::Inactive,
            _ => return Err(invalid("status.state", "is not ACTIVE or INACTIVE")),
        };
        let item = InventoryName::Cluster(parsed("metadata.id", &of.id)?);
        let request = InventoryStateRequest { state: Some(state), ..InventoryStateRequest::of(item) };
        let record: Cluster = self.0.set_state(&caller, of.version, status.message, request).await?;
        Ok(Response::new(UpdateClusterResponse { record: Some(records::cluster(record)) }))
    }

    async fn list(
        &self,
        request: Request<ListClusterRequest>,
    ) -> Result<Response<ListClusterResponse>, Status> {
        let records = self.0.list(listing(request.into_inner())?).await?;
        Ok(Response::new(ListClusterResponse { records }))
    }

    async fn delete(
        &self,
        request: Request<DeleteClusterRequest>,
    ) -> Result<Response<DeleteClusterResponse>, Status> {
        let (caller, message) = split(request)?;
        let of = metadata(message.metadata)?;
        let item = InventoryName::Cluster(parsed("metadata.id", &of.id)?);
        self.0.delete::<Cluster>(&caller, item, of.version).await?;
        Ok(Response::new(DeleteClusterResponse {}))
    }
}
