//! MRDS's service of nodes over the planner's inventory. The id of a node is SITE/DEVICE.
//!
//! A disruption has no start in MRDS's messages, so one that is added here begins at once.

use muster_contract::plans::{
    DisruptionRequest, DisruptionVerb, InventoryApplyRequest, InventoryItem, InventoryKind, InventoryName,
    InventoryQuery, InventoryStateRequest, Node, NodeSpec, NodeState, NodeStatus, NodeVolume, Resources,
};
use muster_contract::{CapabilityName, DeviceKey};
use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::node::{
    self as messages, AddCapabilityRequest, AddDisruptionRequest, CreateNodeRequest, CreateNodeResponse,
    DeleteNodeRequest, DeleteNodeResponse, DisruptionState, GetNodeByIdRequest, GetNodeByNameRequest,
    GetNodeResponse, ListNodeRequest, ListNodeResponse, RemoveCapabilityRequest, RemoveDisruptionRequest,
    UpdateDisruptionStatusRequest, UpdateNodeResponse, UpdateNodeStatusRequest,
};
use tonic::{Request, Response, Status};

use super::caller::{GrpcCaller, split};
use super::filters::{Identity, inventory, is_at_most, metadata, parsed, part, passes_state};
use super::lists::Listing;
use super::planner::{NodeNames, Planner};
use super::records;
use super::refusals::{invalid, not_found};

/// The service.
pub(super) struct Nodes(pub(super) Planner);

impl Nodes {
    async fn find(&self, key: &DeviceKey) -> Result<NodeStatus, Status> {
        self.0.entry(InventoryKind::Node, &key.to_string()).await
    }

    async fn get(&self, field: &str, text: &str) -> Result<Response<GetNodeResponse>, Status> {
        let key = self.0.names.key(field, text)?;
        let record = records::node(self.find(&key).await?, self.0.names.name(&key));
        Ok(Response::new(GetNodeResponse { record: Some(record) }))
    }

    /// The record of a changed node. If the node cannot be read again, the resources of its instances count as free.
    async fn changed_record(&self, node: Node) -> messages::Node {
        let (found, name) = (self.find(&node.key).await, self.0.names.name(&node.key));
        let unread = |_| {
            let free = node.total_resources.minus(node.system_reserved_resources);
            NodeStatus { remaining_resources: free.unwrap_or_default(), payloads: Vec::new(), node }
        };
        records::node(found.unwrap_or_else(unread), name)
    }

    async fn changed(&self, changed: Node) -> Response<UpdateNodeResponse> {
        let record = self.changed_record(changed).await;
        Response::new(UpdateNodeResponse { record: Some(record) })
    }

    /// A node's id as a device, and its version.
    fn of(&self, of: Option<Metadata>) -> Result<(DeviceKey, u64), Status> {
        let of = metadata(of)?;
        Ok((self.0.names.key("metadata.id", &of.id)?, of.version))
    }

    async fn disrupt(
        &self,
        caller: &GrpcCaller,
        of: Option<Metadata>,
        id: String,
        verb: DisruptionVerb,
        should_evict: bool,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (node, version) = self.of(of)?;
        let start = (verb == DisruptionVerb::Add).then(|| self.0.now());
        let expected_version = Some(version);
        let request =
            DisruptionRequest { node, id, verb, start, should_evict, expected_version, request_id: None };
        let changed = self.0.change(caller, "inventory-disruption", &request).await?;
        Ok(self.changed(changed).await)
    }

    /// Changes the capabilities of a node, of which a request of the planner has all.
    async fn change_capabilities(
        &self,
        caller: &GrpcCaller,
        of: Option<Metadata>,
        change: impl FnOnce(&mut Vec<CapabilityName>) -> Result<(), Status>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (key, version) = self.of(of)?;
        let node = self.find(&key).await?.node;
        let mut capabilities = node.capabilities;
        change(&mut capabilities)?;
        let spec = NodeSpec {
            key,
            update_domain: node.update_domain,
            total_resources: node.total_resources,
            system_reserved_resources: node.system_reserved_resources,
            local_volumes: node.local_volumes,
            capabilities,
            runtimes: node.runtimes,
        };
        let item = InventoryItem::Node(spec);
        let request = InventoryApplyRequest { item, expected_version: Some(version), request_id: None };
        let changed = self.0.change(caller, "inventory-apply", &request).await?;
        Ok(self.changed(changed).await)
    }
}

/// The list that a request asks for.
pub(super) fn listing(
    names: &NodeNames,
    asked: ListNodeRequest,
) -> Result<Listing<'_, NodeStatus, messages::Node>, Status> {
    let versions = [asked.version_gte, asked.version_lte, asked.version_eq];
    let identity = Identity::of(asked.id_in.clone(), asked.name_in.clone(), versions);
    let (field, named) = identity.wanted();
    let query = query(names, &asked, field, named)?;
    let keep = move |row: NodeStatus| {
        let (id, name) = (row.node.key.to_string(), names.name(&row.node.key));
        let free = row.remaining_resources;
        let state = records::node_state(row.node.state).into();
        let passes = identity.passes(&id, &name, row.node.version)
            && passes_state(&asked.state_in, &asked.state_not_in, state)
            && is_at_most(free.cores, asked.remaining_cores_lte)
            && is_at_most(free.memory, asked.remaining_memory_lte);
        passes.then(|| records::node(row, name))
    };
    Listing::new("inventory-list", "nodes", &query, asked.limit, keep)
}

fn query(
    names: &NodeNames,
    asked: &ListNodeRequest,
    field: &str,
    named: &[String],
) -> Result<InventoryQuery, Status> {
    let key = |text: &String| Ok(names.key(field, text)?.to_string());
    let keys = named.iter().map(key).collect::<Result<_, Status>>()?;
    let set = |number: u32| (number > 0).then(|| u64::from(number));
    Ok(InventoryQuery {
        cluster: parse_all("cluster_id_in", &asked.cluster_id_in)?,
        update_domain: asked.update_domain_in.clone(),
        remaining_cores_gte: set(asked.remaining_cores_gte),
        remaining_memory_gte: set(asked.remaining_memory_gte),
        payload_name: parse_all("payload_name_in", &asked.payload_name_in)?,
        payload_name_not_in: parse_all("payload_name_not_in", &asked.payload_name_not_in)?,
        ..inventory(InventoryKind::Node, keys, asked.include_deleted)
    })
}

fn parse_all<T: std::str::FromStr<Err: std::fmt::Display>>(
    field: &str,
    texts: &[String],
) -> Result<Vec<T>, Status> {
    texts.iter().map(|text| parsed(field, text)).collect()
}

fn resources(of: messages::Resources) -> Resources {
    Resources { cores: u64::from(of.cores), memory: u64::from(of.memory) }
}

fn volume(of: messages::NodeLocalVolume) -> NodeVolume {
    NodeVolume {
        mount_path: of.mount_path,
        storage_class: of.storage_class,
        storage_capacity: u64::from(of.storage_capacity),
    }
}

fn state(of: messages::NodeState) -> Result<NodeState, Status> {
    Ok(match of {
        messages::NodeState::Unallocated => NodeState::Unallocated,
        messages::NodeState::Allocating => NodeState::Allocating,
        messages::NodeState::Allocated => NodeState::Allocated,
        messages::NodeState::Evicted => NodeState::Evicted,
        messages::NodeState::Sanitizing => NodeState::Sanitizing,
        messages::NodeState::Unknown => {
            let rule = "must be UNALLOCATED, ALLOCATING, ALLOCATED, EVICTED or SANITIZING";
            return Err(invalid("status.state", rule));
        }
    })
}

#[tonic::async_trait]
impl messages::nodes_server::Nodes for Nodes {
    async fn create(
        &self,
        request: Request<CreateNodeRequest>,
    ) -> Result<Response<CreateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let spec = NodeSpec {
            key: self.0.names.key("name", &message.name)?,
            update_domain: message.update_domain,
            total_resources: resources(part("total_resources", message.total_resources)?),
            system_reserved_resources: message.system_reserved_resources.map(resources).unwrap_or_default(),
            local_volumes: message.local_volumes.into_iter().map(volume).collect(),
            capabilities: parse_all("capability_ids", &message.capability_ids)?,
            // MRDS's messages have no place for them: `muster node create` sets them.
            runtimes: Vec::new(),
        };
        let item = InventoryItem::Node(spec);
        let request = InventoryApplyRequest { item, expected_version: None, request_id: None };
        let made: Node = self.0.create(&caller, "inventory-apply", &request).await?;
        Ok(Response::new(CreateNodeResponse { record: Some(self.changed_record(made).await) }))
    }

    async fn get_by_id(
        &self,
        request: Request<GetNodeByIdRequest>,
    ) -> Result<Response<GetNodeResponse>, Status> {
        self.get("id", &request.into_inner().id).await
    }

    async fn get_by_name(
        &self,
        request: Request<GetNodeByNameRequest>,
    ) -> Result<Response<GetNodeResponse>, Status> {
        self.get("name", &request.into_inner().name).await
    }

    async fn update_status(
        &self,
        request: Request<UpdateNodeStatusRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let (key, version) = self.of(message.metadata)?;
        let status = part("status", message.status)?;
        let cluster = Some(&message.cluster_id).filter(|text| !text.is_empty());
        let request = InventoryStateRequest {
            node_state: Some(state(status.state())?),
            cluster: cluster.map(|text| parsed("cluster_id", text)).transpose()?,
            ..InventoryStateRequest::of(InventoryName::Node(key))
        };
        let changed = self.0.set_state(&caller, version, status.message, request).await?;
        Ok(self.changed(changed).await)
    }

    async fn list(&self, request: Request<ListNodeRequest>) -> Result<Response<ListNodeResponse>, Status> {
        let records = self.0.list(listing(&self.0.names, request.into_inner())?).await?;
        Ok(Response::new(ListNodeResponse { records }))
    }

    async fn delete(
        &self,
        request: Request<DeleteNodeRequest>,
    ) -> Result<Response<DeleteNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let (key, version) = self.of(message.metadata)?;
        self.0.delete::<Node>(&caller, InventoryName::Node(key), version).await?;
        Ok(Response::new(DeleteNodeResponse {}))
    }

    async fn add_disruption(
        &self,
        request: Request<AddDisruptionRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let disruption = part("disruption", message.disruption)?;
        let state =
            disruption.status.as_ref().map_or(DisruptionState::Scheduled, messages::DisruptionStatus::state);
        if !matches!(state, DisruptionState::Scheduled | DisruptionState::Unknown) {
            return Err(invalid(
                "disruption.status.state",
                "must be SCHEDULED or unset for a new disruption",
            ));
        }
        let (id, evicts) = (disruption.id, disruption.should_evict);
        self.disrupt(&caller, message.metadata, id, DisruptionVerb::Add, evicts).await
    }

    async fn update_disruption_status(
        &self,
        request: Request<UpdateDisruptionStatusRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let verb = match part("status", message.status)?.state() {
            DisruptionState::Approved => DisruptionVerb::Approve,
            DisruptionState::Completed => DisruptionVerb::Complete,
            _ => return Err(invalid("status.state", "is not APPROVED or COMPLETED")),
        };
        self.disrupt(&caller, message.metadata, message.disruption_id, verb, false).await
    }

    async fn remove_disruption(
        &self,
        request: Request<RemoveDisruptionRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let (id, verb) = (message.disruption_id, DisruptionVerb::Remove);
        self.disrupt(&caller, message.metadata, id, verb, false).await
    }

    async fn add_capability(
        &self,
        request: Request<AddCapabilityRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let name: CapabilityName = parsed("capability_id", &message.capability_id)?;
        let add = |names: &mut Vec<CapabilityName>| {
            if names.contains(&name) {
                return Err(Status::failed_precondition(format!(
                    "the node has the capability {name} already"
                )));
            }
            names.push(name);
            Ok(())
        };
        self.change_capabilities(&caller, message.metadata, add).await
    }

    async fn remove_capability(
        &self,
        request: Request<RemoveCapabilityRequest>,
    ) -> Result<Response<UpdateNodeResponse>, Status> {
        let (caller, message) = split(request)?;
        let name: CapabilityName = parsed("capability_id", &message.capability_id)?;
        let remove = |names: &mut Vec<CapabilityName>| {
            let before = names.len();
            names.retain(|one| *one != name);
            if names.len() == before {
                Err(not_found("capability of the node", name.as_str()))
            } else {
                Ok(())
            }
        };
        self.change_capabilities(&caller, message.metadata, remove).await
    }
}
