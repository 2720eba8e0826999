//! Documents of PLANS as MRDS's messages. Numbers beyond MRDS's 32 bits become the largest that it has.

use muster_contract::DeviceKey;
use muster_contract::plans::{
    ApplicationPort, ApplicationVolume, Capability, CapabilityMatcher, Cluster, Comparator, Disruption,
    DisruptionState, InstanceState, InstanceStatus, InventoryState, NodeState, NodeStatus, Operation,
    OperationState, OperationType, Placement, PlacementStatus, Plan, PlanApplication, PlanRevision,
    PlanState, Resources, RevisionState, RuntimeState,
};
use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::{
    cluster as clusters, computecapability as capabilities, deploymentplan as plans,
    metainstance as instances, node as nodes,
};
use serde_json::Value;

/// The intent of an operation that a person requested.
const USER: &str = "User";

fn metadata(id: &impl ToString, version: u64) -> Option<Metadata> {
    Some(Metadata { id: id.to_string(), version })
}

fn narrowed(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A cluster.
pub(super) fn cluster(of: Cluster) -> clusters::Cluster {
    use clusters::ClusterState as State;
    let state = match of.state {
        InventoryState::Pending => State::Pending,
        InventoryState::Active => State::Active,
        InventoryState::Inactive => State::Inactive,
        InventoryState::Deleted => State::Unknown,
    };
    let status = clusters::ClusterStatus { state: state.into(), message: of.message };
    clusters::Cluster {
        metadata: metadata(&of.name, of.version),
        name: of.name.to_string(),
        status: Some(status),
    }
}

/// A capability.
pub(super) fn capability(of: Capability) -> capabilities::ComputeCapability {
    use capabilities::ComputeCapabilityState as State;
    let state = match of.state {
        InventoryState::Pending => State::Pending,
        InventoryState::Active => State::Active,
        InventoryState::Inactive => State::Inactive,
        InventoryState::Deleted => State::Unknown,
    };
    let status = capabilities::ComputeCapabilityStatus { state: state.into(), message: of.message };
    capabilities::ComputeCapability {
        metadata: metadata(&of.name, of.version),
        name: of.name.to_string(),
        status: Some(status),
        r#type: of.capability_type,
        score: narrowed(of.score),
    }
}

/// A node with its name.
pub(super) fn node(NodeStatus { node, remaining_resources, .. }: NodeStatus, name: String) -> nodes::Node {
    let volumes = node.local_volumes.into_iter().map(|volume| nodes::NodeLocalVolume {
        mount_path: volume.mount_path,
        storage_class: volume.storage_class,
        storage_capacity: narrowed(volume.storage_capacity),
    });
    let status = nodes::NodeStatus { state: node_state(node.state).into(), message: node.message };
    nodes::Node {
        metadata: metadata(&node.key, node.version),
        name,
        status: Some(status),
        cluster_id: node.cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
        total_resources: Some(resources(node.total_resources)),
        system_reserved_resources: Some(resources(node.system_reserved_resources)),
        remaining_resources: Some(resources(remaining_resources)),
        update_domain: node.update_domain,
        local_volumes: volumes.collect(),
        disruptions: node.disruptions.into_iter().map(disruption).collect(),
        capability_ids: node.capabilities.iter().map(ToString::to_string).collect(),
    }
}

/// The state of a node.
pub(super) const fn node_state(state: NodeState) -> nodes::NodeState {
    match state {
        NodeState::Unallocated => nodes::NodeState::Unallocated,
        NodeState::Allocating => nodes::NodeState::Allocating,
        NodeState::Allocated => nodes::NodeState::Allocated,
        NodeState::Evicted => nodes::NodeState::Evicted,
        NodeState::Sanitizing => nodes::NodeState::Sanitizing,
    }
}

fn resources(of: Resources) -> nodes::Resources {
    nodes::Resources { cores: narrowed(of.cores), memory: narrowed(of.memory) }
}

fn disruption(of: Disruption) -> nodes::NodeDisruption {
    use nodes::DisruptionState as State;
    let state = match of.state {
        DisruptionState::Scheduled => State::Scheduled,
        DisruptionState::Approved => State::Approved,
        DisruptionState::Completed => State::Completed,
    };
    let status = nodes::DisruptionStatus { state: state.into(), message: format!("starts at {}", of.start) };
    nodes::NodeDisruption { id: of.id, should_evict: of.should_evict, status: Some(status) }
}

/// A plan.
pub(super) fn plan(of: Plan) -> plans::DeploymentPlanRecord {
    let (id, spec) = (metadata(&of.spec.name, of.version), of.spec);
    let status =
        plans::DeploymentPlanStatus { state: plan_state(of.state).into(), message: of.change.message };
    let matchers = spec.matching_compute_capabilities.into_iter().map(matcher);
    plans::DeploymentPlanRecord {
        metadata: id,
        name: spec.name.to_string(),
        status: Some(status),
        namespace: spec.namespace,
        service_name: spec.service_name,
        matching_compute_capabilities: matchers.collect(),
        applications: spec.applications.into_iter().map(application).collect(),
        deployments: of.revisions.into_iter().map(deployment).collect(),
    }
}

/// The state of a plan. MRDS has no state for a deleted plan, so it is Unknown.
pub(super) const fn plan_state(state: PlanState) -> plans::DeploymentPlanState {
    match state {
        PlanState::Active => plans::DeploymentPlanState::Active,
        PlanState::Inactive => plans::DeploymentPlanState::Inactive,
        PlanState::Deleted => plans::DeploymentPlanState::Unknown,
    }
}

fn matcher(of: CapabilityMatcher) -> plans::MatchingComputeCapability {
    let comparator = match of.comparator {
        Comparator::In => plans::Comparator::In,
        Comparator::NotIn => plans::Comparator::NotIn,
        Comparator::Gte => plans::Comparator::Gte,
        Comparator::Lte => plans::Comparator::ELte,
    };
    plans::MatchingComputeCapability {
        capability_type: of.capability_type,
        comparator: comparator.into(),
        capability_names: of.capability_names.iter().map(ToString::to_string).collect(),
    }
}

fn application(of: PlanApplication) -> plans::Application {
    let Resources { cores, memory } = of.resources;
    let port =
        |ApplicationPort { protocol, port }| plans::ApplicationPort { protocol, port: u32::from(port) };
    let volume = |ApplicationVolume { storage_class, capacity, mount_path }| {
        plans::ApplicationPersistentVolume { storage_class, capacity: narrowed(capacity), mount_path }
    };
    plans::Application {
        payload_name: of.payload_name.to_string(),
        resources: Some(plans::ApplicationResources { cores: narrowed(cores), memory: narrowed(memory) }),
        ports: of.ports.into_iter().map(port).collect(),
        persistent_volumes: of.persistent_volumes.into_iter().map(volume).collect(),
    }
}

fn deployment(of: PlanRevision) -> plans::Deployment {
    use plans::DeploymentState as State;
    let state = match of.state {
        RevisionState::Pending => State::Pending,
        RevisionState::InProgress => State::InProgress,
        RevisionState::Paused => State::Paused,
        RevisionState::Completed => State::Completed,
        RevisionState::Failed => State::Failed,
        RevisionState::Cancelled => State::Cancelled,
    };
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let coordinates = of.coordinates.into_iter().map(|(name, keys)| plans::PayloadCoordinates {
        payload_name: name.to_string(),
        coordinates: keys.into_iter().map(|(key, value)| (key, text(value))).collect(),
    });
    plans::Deployment {
        id: of.id.to_string(),
        status: Some(plans::DeploymentStatus { state: state.into(), message: of.message }),
        payload_coordinates: coordinates.collect(),
        instance_count: of.instances,
    }
}

/// An instance.
pub(super) fn instance(
    InstanceStatus { instance: of, placements }: InstanceStatus,
) -> instances::MetaInstance {
    let status = instances::MetaInstanceStatus {
        state: instance_state(of.state).into(),
        message: of.change.message.clone(),
    };
    let states = placements.into_iter().map(Some).chain(std::iter::repeat(None));
    let placed = of.placements.iter().zip(states);
    let runtime = placed.map(|(place, state)| runtime_instance(of.name.as_str(), place, state));
    instances::MetaInstance {
        metadata: metadata(&of.name, of.version),
        runtime_instances: runtime.collect(),
        name: of.display_name,
        status: Some(status),
        deployment_plan_id: of.plan.to_string(),
        deployment_id: of.revision.to_string(),
        operations: of.operations.into_iter().map(operation).collect(),
    }
}

/// The state of an instance.
pub(super) const fn instance_state(state: InstanceState) -> instances::MetaInstanceState {
    match state {
        InstanceState::Active => instances::MetaInstanceState::Active,
        // MRDS's deleted records keep their last state.
        InstanceState::MarkedForDeletion | InstanceState::Deleted => {
            instances::MetaInstanceState::MarkedForDeletion
        }
    }
}

/// The id of the placement of an instance on a node.
pub(super) fn runtime_id(instance: &str, node: &DeviceKey) -> String {
    format!("{instance}@{node}")
}

fn runtime_instance(
    instance: &str,
    place: &Placement,
    status: Option<PlacementStatus>,
) -> instances::RuntimeInstance {
    use instances::RuntimeInstanceState as State;
    let state = match status.as_ref().map(|status| status.state) {
        None | Some(RuntimeState::Unknown) => State::RuntimeStateUnknown,
        Some(RuntimeState::Pending) => State::RuntimeStatePending,
        Some(RuntimeState::Starting) => State::RuntimeStateStarting,
        Some(RuntimeState::Running) => State::RuntimeStateRunning,
        Some(RuntimeState::Terminating) => State::RuntimeStateTerminating,
        Some(RuntimeState::Terminated) => State::RuntimeStateTerminated,
        Some(RuntimeState::Failed) => State::RuntimeStateFailed,
    };
    let message = status.map(|status| status.message).unwrap_or_default();
    instances::RuntimeInstance {
        id: runtime_id(instance, &place.node),
        node_id: place.node.to_string(),
        is_active: place.active,
        status: Some(instances::RuntimeInstanceStatus { state: state.into(), message }),
    }
}

fn operation(of: Operation) -> instances::Operation {
    use instances::OperationState as State;
    let state = match of.state {
        OperationState::Pending => State::Pending,
        OperationState::Preparing => State::Preparing,
        OperationState::PendingApproval => State::PendingApproval,
        OperationState::Approved | OperationState::Running => State::Approved,
        OperationState::Succeeded => State::Succeeded,
        OperationState::Failed
        | OperationState::Rejected
        | OperationState::Expired
        | OperationState::Cancelled => State::Failed,
    };
    // MRDS lacks these states, so the message begins with the planner's word.
    let message = match of.state {
        OperationState::Running
        | OperationState::Rejected
        | OperationState::Expired
        | OperationState::Cancelled => format!("{}: {}", of.state.as_str(), of.message),
        _ => of.message,
    };
    instances::Operation {
        id: of.id.to_string(),
        r#type: operation_type(of.operation_type).into(),
        intent_id: match of.revision.filter(|_| of.requested_by.is_none()) {
            Some(revision) => revision.to_string(),
            None => USER.to_owned(),
        },
        status: Some(instances::OperationStatus { state: state.into(), message }),
    }
}

const fn operation_type(of: OperationType) -> instances::OperationType {
    match of {
        OperationType::Create => instances::OperationType::Create,
        OperationType::Update => instances::OperationType::Update,
        OperationType::Delete => instances::OperationType::Delete,
        OperationType::Stop => instances::OperationType::Stop,
        OperationType::Restart => instances::OperationType::Restart,
        OperationType::Relocate => instances::OperationType::Relocate,
    }
}
