//! MRDS's API over gRPC on a whole system with a real agent: the life of a plan, and what each refusal is called on the wire.

use std::net::SocketAddr;

use muster_contract::DeviceKey;
use muster_proto::proto::mrds::core::Metadata;
use muster_proto::proto::mrds::ledger::cluster::{
    ClusterState, ClusterStatus, CreateClusterRequest, GetClusterByNameRequest, UpdateClusterStatusRequest,
};
use muster_proto::proto::mrds::ledger::computecapability::{
    ComputeCapabilityState, ComputeCapabilityStatus, CreateComputeCapabilityRequest,
    UpdateComputeCapabilityStatusRequest,
};
use muster_proto::proto::mrds::ledger::deploymentplan::{
    AddDeploymentRequest, Application, ApplicationResources, Comparator, CreateDeploymentPlanRequest,
    DeleteDeploymentPlanRequest, DeploymentPlanListFilters, DeploymentPlanRecord, DeploymentPlanState,
    DeploymentState, DeploymentStatus, GetDeploymentPlanByNameRequest, ListDeploymentPlanRequest,
    MatchingComputeCapability, PayloadCoordinates, UpdateDeploymentStatusRequest,
};
use muster_proto::proto::mrds::ledger::metainstance::{
    AddOperationRequest, GetMetaInstanceByNameRequest, ListMetaInstanceRequest, MetaInstance, Operation,
    OperationState, OperationStatus, OperationType, RuntimeInstanceState, UpdateOperationStatusRequest,
};
use muster_proto::proto::mrds::ledger::node::{
    AddCapabilityRequest, AddDisruptionRequest, CreateNodeRequest, DeleteNodeRequest, DisruptionState,
    DisruptionStatus, GetNodeByNameRequest, ListNodeRequest, Node, NodeDisruption, NodeState, NodeStatus,
    RemoveDisruptionRequest, Resources, UpdateDisruptionStatusRequest, UpdateNodeStatusRequest,
};
use muster_simulator::child::Spec;
use muster_tests::rollouts::start_planner;
use muster_tests::server::free_port;
use muster_tests::system::{GATEWAY, System, program};
use tonic::{Code, Status};

use super::grpc_client::{Authority, Clients, person};

pub(crate) const PLAN: &str = "web";
/// The number of a certificate that the gateway's list revokes.
pub(crate) const REVOKED: u64 = 9;

/// A system with a planner and a gateway that serves gRPC, and an operator's clients.
pub(crate) struct Stage {
    pub(crate) system: System,
    pub(crate) authority: Authority,
    pub(crate) addr: SocketAddr,
    pub(crate) clients: Clients,
}

impl Stage {
    /// Starts everything, with these devices.
    pub(crate) async fn start(devices: &[&str]) -> Self {
        let mut system = System::start().await;
        start_planner(&mut system);
        let hub = system.address();
        for device in devices {
            let key: DeviceKey = device.parse().unwrap();
            system.start_agent(&key, hub, &["--runtime", "simulated"]);
        }
        Self::over(system).await
    }

    /// Starts a gateway over a system, and waits until it answers.
    pub(crate) async fn over(mut system: System) -> Self {
        let authority = Authority::create(system.dir(), "authority");
        authority.sign("anna", &[&person("operator", "anna")], &[], 7);
        let [people, addr] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let (url, people) = (system.server.url(), people.to_string());
        let revoked = authority.revoke(REVOKED).display().to_string();
        let words = [
            "--nats-url",
            &url,
            "--insecure-http",
            "--people-addr",
            &people,
            "--grpc-site",
            "kind",
            "--grpc-crl",
            &revoked,
        ];
        let args = words.map(str::to_owned).into_iter().chain(authority.settings(addr)).collect();
        system.start_own(Spec { name: GATEWAY.to_owned(), program: program(GATEWAY), args });
        let clients = Clients::of(authority.channel(addr, &authority, Some("anna")));
        let answered = async || {
            let listed = clients.clone().nodes.list(ListNodeRequest::default()).await;
            listed.map(drop).map_err(|status| status.to_string())
        };
        system.eventually("the planner answers over gRPC", answered).await;
        Self { system, authority, addr, clients }
    }

    async fn instances(&self) -> Vec<MetaInstance> {
        let asked =
            ListMetaInstanceRequest { deployment_plan_id_in: vec![PLAN.into()], ..Default::default() };
        self.clients.clone().instances.list(asked).await.unwrap().into_inner().records
    }

    /// Waits until the only instance is as it must be.
    pub(crate) async fn instance(&self, what: &str, holds: impl Fn(&MetaInstance) -> bool) -> MetaInstance {
        let look = async || {
            let found = self.instances().await;
            match found.first() {
                Some(instance) if holds(instance) => Ok(instance.clone()),
                _ => Err(format!("{found:?}")),
            }
        };
        self.system.eventually(what, look).await
    }

    async fn plan(&self) -> DeploymentPlanRecord {
        let asked = GetDeploymentPlanByNameRequest { name: PLAN.into() };
        self.clients.clone().plans.get_by_name(asked).await.unwrap().into_inner().record.unwrap()
    }

    pub(crate) async fn deployment(&self, id: &str, state: DeploymentState) {
        let look = async || {
            let plan = self.plan().await;
            let is_so = plan.deployments.iter().any(|one| one.id == id && state_of(one) == state);
            if is_so { Ok(()) } else { Err(format!("{plan:?}")) }
        };
        self.system.eventually(&format!("{id} is {state:?}"), look).await;
    }

    pub(crate) async fn deploy(&self, id: &str, instance_count: u32) -> Result<DeploymentPlanRecord, Status> {
        let coordinates = [("version".to_owned(), id.to_owned())].into();
        let request = AddDeploymentRequest {
            metadata: self.plan().await.metadata,
            deployment_id: id.into(),
            payload_coordinates: vec![PayloadCoordinates { payload_name: "main".into(), coordinates }],
            instance_count,
        };
        Ok(self.clients.clone().plans.add_deployment(request).await?.into_inner().record.unwrap())
    }

    /// Asks for a state of a deployment.
    pub(crate) async fn set_deployment(&self, id: &str, state: DeploymentState) -> Result<(), Status> {
        let request = UpdateDeploymentStatusRequest {
            metadata: self.plan().await.metadata,
            deployment_id: id.into(),
            status: Some(DeploymentStatus { state: state.into(), message: String::new() }),
        };
        self.clients.clone().plans.update_deployment_status(request).await.map(drop)
    }

    /// Approves the operation of the only instance that waits for it.
    pub(crate) async fn approve(&self, of: OperationType) {
        let waits =
            |one: &&Operation| one.r#type() == of && operation_state(one) == OperationState::PendingApproval;
        let what = format!("{of:?} waits for approval");
        let instance = self.instance(&what, |one| one.operations.iter().any(|one| waits(&one))).await;
        let operation = instance.operations.iter().find(waits).unwrap();
        let approved = self.decide(&instance, &operation.id, OperationState::Approved).await.unwrap();
        let states: Vec<_> = approved.operations.iter().map(operation_state).collect();
        assert!(!states.contains(&OperationState::PendingApproval), "{approved:?}");
    }

    pub(crate) async fn decide(
        &self,
        of: &MetaInstance,
        id: &str,
        state: OperationState,
    ) -> Result<MetaInstance, Status> {
        let request = UpdateOperationStatusRequest {
            metadata: of.metadata.clone(),
            operation_id: id.into(),
            status: Some(OperationStatus { state: state.into(), message: "seen".into() }),
        };
        let answer = self.clients.clone().instances.update_operation_status(request).await?;
        Ok(answer.into_inner().record.unwrap())
    }

    /// Makes a cluster, a capability, and a node of each of these names with the capability.
    pub(crate) async fn inventory(&self, names: &[&str]) {
        let mut to = self.clients.clone();
        let made =
            to.clusters.create(CreateClusterRequest { name: "north".into() }).await.unwrap().into_inner();
        let record = made.record.unwrap();
        assert_eq!(record.status.as_ref().unwrap().state(), ClusterState::Pending);
        let status = Some(ClusterStatus { state: ClusterState::Active.into(), message: String::new() });
        to.clusters
            .update_status(UpdateClusterStatusRequest { metadata: record.metadata, status })
            .await
            .unwrap();
        let gpu = CreateComputeCapabilityRequest { name: "v100".into(), r#type: "GPU".into(), score: 70 };
        to.capabilities.create(gpu).await.unwrap();
        for name in names {
            let resources = |cores| Some(Resources { cores, memory: 8 });
            let request = CreateNodeRequest {
                name: (*name).into(),
                update_domain: "d1".into(),
                total_resources: resources(4),
                system_reserved_resources: Some(Resources { cores: 1, memory: 0 }),
                local_volumes: Vec::new(),
                capability_ids: vec!["v100".into()],
            };
            let node = to.nodes.create(request).await.unwrap().into_inner().record.unwrap();
            let node = self.allocate(node, NodeState::Allocating).await;
            self.allocate(node, NodeState::Allocated).await;
        }
    }

    async fn allocate(&self, node: Node, state: NodeState) -> Node {
        let status = Some(NodeStatus { state: state.into(), message: String::new() });
        let request = UpdateNodeStatusRequest { metadata: node.metadata, status, cluster_id: "north".into() };
        self.clients.clone().nodes.update_status(request).await.unwrap().into_inner().record.unwrap()
    }

    async fn node(&self) -> Node {
        let asked = GetNodeByNameRequest { name: "worker".into() };
        self.clients.clone().nodes.get_by_name(asked).await.unwrap().into_inner().record.unwrap()
    }

    /// Makes the plan, which needs the capability.
    pub(crate) async fn make_plan(&self) -> Result<DeploymentPlanRecord, Status> {
        let matcher = MatchingComputeCapability {
            capability_type: "GPU".into(),
            comparator: Comparator::Gte.into(),
            capability_names: vec!["v100".into()],
        };
        let application = Application {
            payload_name: "main".into(),
            resources: Some(ApplicationResources { cores: 2, memory: 1 }),
            ..Application::default()
        };
        let request = CreateDeploymentPlanRequest {
            name: PLAN.into(),
            namespace: "demo".into(),
            service_name: "web".into(),
            matching_compute_capabilities: vec![matcher],
            applications: vec![application],
        };
        Ok(self.clients.clone().plans.create(request).await?.into_inner().record.unwrap())
    }
}

fn state_of(deployment: &muster_proto::proto::mrds::ledger::deploymentplan::Deployment) -> DeploymentState {
    deployment.status.as_ref().unwrap().state()
}

pub(crate) fn operation_state(operation: &Operation) -> OperationState {
    operation.status.as_ref().unwrap().state()
}

fn runtime_state(instance: &MetaInstance) -> Option<RuntimeInstanceState> {
    Some(instance.runtime_instances.first()?.status.as_ref()?.state())
}

pub(crate) fn is_running(instance: &MetaInstance) -> bool {
    runtime_state(instance) == Some(RuntimeInstanceState::RuntimeStateRunning)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_lives_from_its_node_to_a_running_instance_and_back_over_grpc() {
    let stage = Stage::start(&["kind/worker"]).await;
    stage.inventory(&["worker"]).await;
    let node = stage.node().await;
    assert_eq!((node.name.as_str(), node.metadata.as_ref().unwrap().id.as_str()), ("worker", "kind/worker"));
    assert_eq!(node.remaining_resources, Some(Resources { cores: 3, memory: 8 }));
    let plan = stage.make_plan().await.unwrap();
    assert_eq!(plan.metadata, Some(Metadata { id: PLAN.into(), version: 0 }));
    assert_eq!(plan.matching_compute_capabilities[0].comparator(), Comparator::Gte);

    let plan = stage.deploy("r1", 1).await.unwrap();
    assert_eq!(plan.deployments[0].payload_coordinates[0].coordinates["version"], "r1");
    // Until the planner has heard the node, the state is unknown.
    let is_pending =
        |one: &MetaInstance| runtime_state(one) == Some(RuntimeInstanceState::RuntimeStatePending);
    let waiting = stage.instance("the instance waits for its approval", is_pending).await;
    assert_eq!((waiting.deployment_plan_id.as_str(), waiting.deployment_id.as_str()), (PLAN, "r1"));
    assert_eq!(waiting.runtime_instances[0].node_id, "kind/worker");
    stage.approve(OperationType::Create).await;
    let running = stage.instance("the instance runs", is_running).await;
    stage.deployment("r1", DeploymentState::Completed).await;
    let asked = GetMetaInstanceByNameRequest { name: running.name.clone() };
    let found =
        stage.clients.clone().instances.get_by_name(asked).await.unwrap().into_inner().record.unwrap();
    assert_eq!(operation_state(&found.operations[0]), OperationState::Succeeded);
    assert_eq!(stage.node().await.remaining_resources, Some(Resources { cores: 1, memory: 7 }));

    let stop = Operation { id: "stop-1".into(), r#type: OperationType::Stop.into(), ..Operation::default() };
    let request = AddOperationRequest { metadata: found.metadata, operation: Some(stop) };
    let added =
        stage.clients.clone().instances.add_operation(request).await.unwrap().into_inner().record.unwrap();
    assert_eq!(added.operations.last().unwrap().intent_id, "User");
    stage.approve(OperationType::Stop).await;
    let is_stopped =
        |one: &MetaInstance| runtime_state(one) == Some(RuntimeInstanceState::RuntimeStateTerminated);
    stage.instance("the instance is stopped", is_stopped).await;

    stage.deploy("r2", 0).await.unwrap();
    stage.approve(OperationType::Delete).await;
    stage.deployment("r2", DeploymentState::Completed).await;
    assert!(stage.instances().await.is_empty());
    let metadata = stage.plan().await.metadata;
    let deleted = stage.clients.clone().plans.delete(DeleteDeploymentPlanRequest { metadata }).await.unwrap();
    assert!(deleted.into_inner().success);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_operation_is_completed_by_hand_over_grpc() {
    // Nobody runs the device, so no report ends an operation.
    let stage = Stage::start(&[]).await;
    stage.inventory(&["worker"]).await;
    stage.make_plan().await.unwrap();
    stage.deploy("r1", 1).await.unwrap();
    stage.approve(OperationType::Create).await;
    let status = |one: &MetaInstance| one.operations.last().unwrap().status.clone().unwrap();
    let runs = |one: &MetaInstance| status(one).message.starts_with("RUNNING");
    let running = stage.instance("the operation runs", runs).await;
    let id = running.operations[0].id.clone();
    let completed = stage.decide(&running, &id, OperationState::Succeeded).await.unwrap();
    let recorded =
        OperationStatus { state: OperationState::Succeeded.into(), message: "ended by hand: seen".into() };
    assert_eq!(status(&completed), recorded);
    assert!(!is_running(&completed), "no report says that it runs: {completed:?}");
    stage.deployment("r1", DeploymentState::Completed).await;
    let late = stage.decide(&running, &id, OperationState::Failed).await.unwrap_err();
    assert_eq!(late.code(), Code::Aborted, "{late:?}");

    let stop = Operation { id: "stop-1".into(), r#type: OperationType::Stop.into(), ..Operation::default() };
    let request = AddOperationRequest { metadata: completed.metadata, operation: Some(stop) };
    stage.clients.clone().instances.add_operation(request).await.unwrap();
    stage.approve(OperationType::Stop).await;
    let running = stage.instance("the stop runs", runs).await;
    let failed = stage.decide(&running, &running.operations[1].id, OperationState::Failed).await.unwrap();
    assert_eq!(status(&failed).state(), OperationState::Failed, "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_over_grpc_has_its_status_code() {
    let stage = Stage::start(&[]).await;
    stage.inventory(&["worker"]).await;
    let mut to = stage.clients.clone();
    let code = |status: Status| (status.code(), status.message().to_owned());
    let again = to.clusters.create(CreateClusterRequest { name: "north".into() }).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists, "{again:?}");
    assert_eq!(again.metadata().get("muster-code").unwrap(), "conflict");
    let absent = to.clusters.get_by_name(GetClusterByNameRequest { name: "south".into() }).await.unwrap_err();
    assert_eq!(absent.code(), Code::NotFound, "{absent:?}");
    let stale = UpdateComputeCapabilityStatusRequest {
        metadata: Some(Metadata { id: "v100".into(), version: 9 }),
        status: Some(ComputeCapabilityStatus {
            state: ComputeCapabilityState::Active.into(),
            message: String::new(),
        }),
    };
    let stale = to.capabilities.update_status(stale).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted, "{stale:?}");
    assert_eq!(stale.metadata().get("muster-current-version").unwrap(), "0");
    let missing = to.nodes.delete(DeleteNodeRequest::default()).await.unwrap_err();
    assert_eq!(missing.code(), Code::InvalidArgument, "{missing:?}");
    let nowhere = CreateNodeRequest { name: "a/b/c".into(), ..CreateNodeRequest::default() };
    let nowhere = to.nodes.create(nowhere).await.unwrap_err();
    assert_eq!(nowhere.code(), Code::InvalidArgument, "{nowhere:?}");
    assert!(nowhere.message().starts_with("name: 'a/b/c'"), "{nowhere:?}");
    let node = stage.node().await;
    let status = Some(NodeStatus { state: NodeState::Unallocated.into(), message: String::new() });
    let illegal = UpdateNodeStatusRequest { metadata: node.metadata, status, cluster_id: String::new() };
    let illegal = to.nodes.update_status(illegal).await.unwrap_err();
    assert_eq!(illegal.code(), Code::FailedPrecondition, "{illegal:?}");

    stage.make_plan().await.unwrap();
    assert_eq!(stage.make_plan().await.unwrap_err().code(), Code::AlreadyExists);
    stage.deploy("r1", 1).await.unwrap();
    stage.deployment("r1", DeploymentState::InProgress).await;
    let second = stage.deploy("r2", 2).await.unwrap_err();
    assert_eq!(second.code(), Code::FailedPrecondition, "{second:?}");
    let own = stage.set_deployment("r1", DeploymentState::Completed).await.unwrap_err();
    assert_eq!(code(own).0, Code::FailedPrecondition);
    stage.set_deployment("r1", DeploymentState::Cancelled).await.unwrap();
    stage.deployment("r1", DeploymentState::Cancelled).await;
    stage.deploy("r2", 1).await.unwrap();
    stage.deployment("r2", DeploymentState::InProgress).await;
    stage.set_deployment("r2", DeploymentState::Failed).await.unwrap();
    stage.deployment("r2", DeploymentState::Failed).await;
}

async fn nodes_pass_each_filter_and_all_together(clients: &Clients) {
    let names = async |asked: ListNodeRequest| {
        let listed = clients.clone().nodes.list(asked).await.unwrap().into_inner().records;
        listed.into_iter().map(|node| node.name).collect::<Vec<_>>()
    };
    let all = ListNodeRequest::default;
    assert_eq!(names(all()).await, ["worker", "other/worker"]);
    assert_eq!(
        names(ListNodeRequest { id_in: vec!["other/worker".into()], ..all() }).await,
        ["other/worker"]
    );
    let allocated = || vec![NodeState::Allocated.into()];
    let both = || ListNodeRequest {
        name_in: vec!["worker".into()],
        state_in: allocated(),
        cluster_id_in: vec!["north".into()],
        update_domain_in: vec!["d1".into()],
        remaining_cores_gte: 3,
        remaining_cores_lte: 3,
        remaining_memory_gte: 8,
        remaining_memory_lte: 8,
        payload_name_not_in: vec!["main".into()],
        limit: 1,
        ..all()
    };
    assert_eq!(names(both()).await, ["worker"], "all hold");
    assert_eq!(names(ListNodeRequest { limit: 1, ..all() }).await, ["worker"]);
    for (why, one_does_not) in [
        ("id", ListNodeRequest { id_in: vec!["other/worker".into()], ..both() }),
        ("name", ListNodeRequest { name_in: vec!["third".into()], ..both() }),
        ("at least", ListNodeRequest { version_gte: 99, ..both() }),
        ("at most", ListNodeRequest { version_lte: 1, ..both() }),
        ("exactly", ListNodeRequest { version_eq: 99, ..both() }),
        ("state", ListNodeRequest { state_in: vec![NodeState::Evicted.into()], ..both() }),
        ("not in a state", ListNodeRequest { state_not_in: allocated(), ..both() }),
        ("cluster", ListNodeRequest { cluster_id_in: vec!["south".into()], ..both() }),
        ("domain", ListNodeRequest { update_domain_in: vec!["d2".into()], ..both() }),
        ("cores", ListNodeRequest { remaining_cores_gte: 4, ..both() }),
        ("fewer cores", ListNodeRequest { remaining_cores_lte: 2, ..both() }),
        ("memory", ListNodeRequest { remaining_memory_gte: 9, ..both() }),
        ("less memory", ListNodeRequest { remaining_memory_lte: 7, ..both() }),
        ("payload", ListNodeRequest { payload_name_in: vec!["main".into()], ..both() }),
    ] {
        assert_eq!(names(one_does_not).await, [""; 0], "{why}");
    }
}

async fn plans_pass_each_filter_and_all_together(clients: &Clients) {
    let plans = async |filters: DeploymentPlanListFilters| {
        let asked = ListDeploymentPlanRequest { filters: Some(filters) };
        clients.clone().plans.list(asked).await.unwrap().into_inner().records.len()
    };
    let all = DeploymentPlanListFilters::default;
    let (web, active) = (|| vec!["web".into()], || vec![DeploymentPlanState::Active.into()]);
    let both = || DeploymentPlanListFilters {
        id_in: web(),
        name_in: web(),
        version_eq: Some(0),
        payload_name_in: vec!["main".into()],
        service_name_in: web(),
        deployment_plan_id_in: web(),
        deployment_plan_status_in: active(),
        state_in: active(),
        limit: 1,
        ..all()
    };
    assert_eq!(plans(both()).await, 1, "all hold");
    let (other, inactive) = (|| vec!["other".into()], || vec![DeploymentPlanState::Inactive.into()]);
    for (why, one_does_not) in [
        ("id", DeploymentPlanListFilters { id_in: other(), ..both() }),
        ("name", DeploymentPlanListFilters { name_in: other(), ..both() }),
        ("at least", DeploymentPlanListFilters { version_gte: Some(1), ..both() }),
        ("exactly", DeploymentPlanListFilters { version_eq: Some(1), ..both() }),
        ("payload", DeploymentPlanListFilters { payload_name_in: other(), ..both() }),
        ("service", DeploymentPlanListFilters { service_name_in: other(), ..both() }),
        ("id of a plan", DeploymentPlanListFilters { deployment_plan_id_in: other(), ..both() }),
        ("status", DeploymentPlanListFilters { deployment_plan_status_in: inactive(), ..both() }),
        ("state", DeploymentPlanListFilters { state_in: inactive(), ..both() }),
        ("not in a state", DeploymentPlanListFilters { state_not_in: active(), ..both() }),
    ] {
        assert_eq!(plans(one_does_not).await, 0, "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_children_of_nodes_and_plans_are_those_of_mrds() {
    let stage = Stage::start(&[]).await;
    stage.inventory(&["worker", "other/worker"]).await;
    stage.make_plan().await.unwrap();
    let mut to = stage.clients.clone();
    nodes_pass_each_filter_and_all_together(&stage.clients).await;
    plans_pass_each_filter_and_all_together(&stage.clients).await;

    let disruption = NodeDisruption { id: "repair".into(), ..NodeDisruption::default() };
    let request =
        AddDisruptionRequest { metadata: stage.node().await.metadata, disruption: Some(disruption) };
    let node = to.nodes.add_disruption(request).await.unwrap().into_inner().record.unwrap();
    assert_eq!(node.disruptions[0].status.as_ref().unwrap().state(), DisruptionState::Scheduled);
    let status = Some(DisruptionStatus { state: DisruptionState::Completed.into(), message: String::new() });
    let (metadata, disruption_id) = (node.metadata, "repair".to_owned());
    let request = UpdateDisruptionStatusRequest { metadata, disruption_id: disruption_id.clone(), status };
    let node = to.nodes.update_disruption_status(request).await.unwrap().into_inner().record.unwrap();
    let request = RemoveDisruptionRequest { metadata: node.metadata, disruption_id };
    let node = to.nodes.remove_disruption(request).await.unwrap().into_inner().record.unwrap();
    assert!(node.disruptions.is_empty());
    let again = AddCapabilityRequest { metadata: node.metadata, capability_id: "v100".into() };
    assert_eq!(to.nodes.add_capability(again).await.unwrap_err().code(), Code::FailedPrecondition);
}
