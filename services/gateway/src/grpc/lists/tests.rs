//! Each filter of MRDS's lists, alone and all together, over a state of PLANS that the planner's own lists read in pages of two.

use muster_contract::plans::{InstanceStatus, NodeStatus, Plan};
use muster_contract::{DeviceKey, InstanceName, Timestamp};
use muster_domain::plans::{PlacementEvidence, PlansDocument, PlansEvidence, PlansRead, PlansState};
use muster_proto::proto::mrds::ledger::cluster::{ClusterState, ListClusterRequest};
use muster_proto::proto::mrds::ledger::computecapability::{
    ComputeCapabilityState, ListComputeCapabilityRequest,
};
use muster_proto::proto::mrds::ledger::deploymentplan::{
    DeploymentPlanListFilters, DeploymentPlanRecord, DeploymentPlanState,
};
use muster_proto::proto::mrds::ledger::metainstance::{ListMetaInstanceRequest, MetaInstanceState};
use muster_proto::proto::mrds::ledger::node::{ListNodeRequest, NodeState};

use super::*;
use crate::grpc::planner::NodeNames;
use crate::grpc::{capabilities, clusters, instances, nodes, plans};

/// Rows of a page, so that most lists have several.
const PAGE: usize = 2;
const TIME: &str = "2026-11-26T09:00:00Z";

/// No node reports anything.
struct Silent;

impl PlansEvidence for Silent {
    fn placement(&self, _: &DeviceKey, _: &InstanceName) -> PlacementEvidence<'_> {
        PlacementEvidence::default()
    }
}

/// The document that a kind's fields are, with those that every document has.
fn document<T: DeserializeOwned>(kind: &str, fields: &Value) -> T {
    let change = json!({"at": TIME, "message": ""});
    let mut whole = json!({"apiVersion": "muster/v1", "kind": kind, "createdAt": TIME, "change": change});
    whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(whole).unwrap()
}

fn plan(name: &str, version: u64, state: &str, service: &str, payload: &str) -> Plan {
    let application = json!({
        "payloadName": payload, "resources": {"cores": 2, "memory": 4},
        "ports": [{"protocol": "UDP", "port": 53}],
        "persistentVolumes": [{"storageClass": "ssd", "capacity": 10, "mountPath": "/data"}],
    });
    let fields = json!({
        "uid": name, "name": name, "version": version, "state": state, "namespace": "demo",
        "serviceName": service, "applications": [application],
    });
    document("Plan", &fields)
}

/// An instance `<plan>-<number>` named `<PLAN>-<number>`, on a node.
fn instance(plan: &str, number: u8, revision: &str, state: &str, node: &str) -> PlansDocument {
    let key: DeviceKey = node.parse().unwrap();
    let fields = json!({
        "name": format!("{plan}-{number:032}"), "displayName": format!("{}-{number}", plan.to_uppercase()),
        "plan": plan, "revision": revision, "version": number, "state": state,
        "placements": [{"node": key, "active": true}],
    });
    PlansDocument::Instance(document("Instance", &fields))
}

fn node(key: &str, version: u64, state: &str, cluster: &str, domain: &str, size: [u64; 2]) -> PlansDocument {
    let key: DeviceKey = key.parse().unwrap();
    let [cores, memory] = size;
    let fields = json!({
        "site": key.site, "device": key.device, "version": version, "state": state,
        "cluster": (!cluster.is_empty()).then_some(cluster), "updateDomain": domain,
        "totalResources": {"cores": cores, "memory": memory}, "systemReservedResources": {"cores": 1, "memory": 0},
        "deleted": key.device.as_str() == "gone",
    });
    PlansDocument::Node(document("Node", &fields))
}

fn state() -> PlansState {
    let cluster = |name, version, state: &str| {
        let fields = json!({"name": name, "version": version, "state": state});
        PlansDocument::Cluster(document("Cluster", &fields))
    };
    let capability = |name, version, state: &str, kind| {
        let fields = json!({"name": name, "version": version, "state": state, "type": kind, "score": 1});
        PlansDocument::Capability(document("Capability", &fields))
    };
    let mut all = PlansState::default();
    for document in [
        cluster("east", 0, "pending"),
        cluster("gone", 2, "deleted"),
        cluster("north", 2, "active"),
        cluster("south", 1, "inactive"),
        capability("fpga", 3, "active", "FPGA"),
        capability("gone", 4, "deleted", "GPU"),
        capability("t4", 1, "pending", "GPU"),
        capability("xeon", 2, "inactive", "CPU"),
        node("kind/a", 3, "allocated", "north", "d1", [5, 8]),
        node("kind/b", 1, "allocating", "south", "d2", [9, 16]),
        node("kind/gone", 2, "unallocated", "", "d1", [2, 1]),
        node("other/c", 2, "unallocated", "", "d3", [3, 2]),
        PlansDocument::Plan(plan("api", 2, "inactive", "Rest", "server")),
        PlansDocument::Plan(plan("db", 1, "active", "Store", "engine")),
        PlansDocument::Plan(plan("gone", 3, "deleted", "Web", "main")),
        PlansDocument::Plan(plan("web", 0, "active", "Web", "main")),
        instance("db", 1, "r1", "active", "kind/b"),
        instance("web", 1, "r1", "active", "kind/a"),
        instance("web", 2, "r2", "markedForDeletion", "other/c"),
        instance("web", 3, "r2", "deleted", "kind/a"),
    ] {
        document.check().unwrap();
        all.apply(document);
    }
    all
}

/// The records of a list over a state, as the planner answers it.
fn listed<R: DeserializeOwned, T>(state: &PlansState, mut listing: Listing<'_, R, T>) -> Vec<T> {
    let read = PlansRead { state, evidence: &Silent, now: TIME.parse::<Timestamp>().unwrap() };
    loop {
        let question = listing.question.clone();
        let answer = match listing.verb {
            "plan-list" => serde_json::to_value(read.plans(&parse(question), PAGE)),
            "instance-list" => serde_json::to_value(read.instances(&parse(question), PAGE)),
            _ => serde_json::to_value(read.inventory(&parse(question), PAGE)),
        };
        if !listing.add(answer.unwrap()).unwrap() {
            return listing.into_records();
        }
    }
}

fn parse<T: DeserializeOwned>(question: Value) -> T {
    serde_json::from_value(question).unwrap()
}

/// Asserts the names, parted by spaces, that each filter leaves.
fn assert_names(of: &str, found: impl Iterator<Item = String>, wanted: &str) {
    assert_eq!(found.collect::<Vec<_>>().join(" "), wanted, "{of}");
}

fn words(of: &str) -> Vec<String> {
    of.split(' ').map(str::to_owned).collect()
}

#[test]
fn each_filter_of_clusters_holds_alone_and_with_all_others() {
    use ClusterState::{Active, Inactive};
    type Of = ListClusterRequest;
    let (state, all) = (state(), Of::default);
    for (of, asked, names) in [
        ("none", all(), "east north south"),
        ("id_in", Of { id_in: words("north gone"), ..all() }, "north"),
        ("name_in", Of { name_in: words("south east"), ..all() }, "east south"),
        ("version_gte", Of { version_gte: 1, ..all() }, "north south"),
        ("version_lte", Of { version_lte: 1, ..all() }, "east south"),
        ("version_eq", Of { version_eq: 2, ..all() }, "north"),
        ("state_in", Of { state_in: vec![Active.into(), Inactive.into()], ..all() }, "north south"),
        ("state_not_in", Of { state_not_in: vec![Active.into()], ..all() }, "east south"),
        ("include_deleted", Of { include_deleted: true, ..all() }, "east gone north south"),
        ("limit", Of { limit: 1, ..all() }, "east"),
        ("limit of what remains", Of { limit: 1, version_gte: 1, ..all() }, "north"),
        (
            "all of them",
            Of {
                id_in: words("east north south gone"),
                name_in: words("east north gone"),
                version_gte: 1,
                version_lte: 2,
                version_eq: 2,
                state_in: vec![Active.into(), Inactive.into(), 0],
                state_not_in: vec![Inactive.into()],
                include_deleted: true,
                limit: 2,
            },
            "gone north",
        ),
    ] {
        let found = listed(&state, clusters::listing(asked).unwrap());
        assert_names(of, found.into_iter().map(|record| record.name), names);
    }
}

#[test]
fn each_filter_of_capabilities_holds_alone_and_with_all_others() {
    use ComputeCapabilityState::{Active, Inactive, Pending};
    type Of = ListComputeCapabilityRequest;
    let (state, all) = (state(), Of::default);
    for (of, asked, names) in [
        ("none", all(), "fpga t4 xeon"),
        ("id_in", Of { id_in: words("t4 gone"), ..all() }, "t4"),
        ("name_in", Of { name_in: words("xeon fpga"), ..all() }, "fpga xeon"),
        ("version_gte", Of { version_gte: 2, ..all() }, "fpga xeon"),
        ("version_lte", Of { version_lte: 2, ..all() }, "t4 xeon"),
        ("version_eq", Of { version_eq: 1, ..all() }, "t4"),
        ("state_in", Of { state_in: vec![Active.into(), Pending.into()], ..all() }, "fpga t4"),
        ("state_not_in", Of { state_not_in: vec![Pending.into()], ..all() }, "fpga xeon"),
        ("include_deleted", Of { include_deleted: true, ..all() }, "fpga gone t4 xeon"),
        ("limit", Of { limit: 2, ..all() }, "fpga t4"),
        ("type_in", Of { type_in: words("CPU GPU"), ..all() }, "t4 xeon"),
        (
            "all of them",
            Of {
                id_in: words("fpga gone t4 xeon"),
                name_in: words("gone t4 xeon"),
                version_gte: 2,
                version_lte: 4,
                version_eq: 4,
                state_in: vec![Inactive.into(), 0],
                state_not_in: vec![Inactive.into()],
                include_deleted: true,
                limit: 1,
                type_in: words("CPU GPU"),
            },
            "gone",
        ),
    ] {
        let found = listed(&state, capabilities::listing(asked).unwrap());
        assert_names(of, found.into_iter().map(|record| record.name), names);
    }
}

#[test]
fn each_filter_of_nodes_holds_alone_and_with_all_others() {
    use NodeState::{Allocated, Allocating, Unallocated};
    type Of = ListNodeRequest;
    let (state, all) = (state(), Of::default);
    let names_here = NodeNames(Some("kind".parse().unwrap()));
    // Free are 2 cores and 4 memory of a, 6 and 12 of b, and none of c.
    for (of, asked, names) in [
        ("none", all(), "a b other/c"),
        ("id_in", Of { id_in: words("kind/b other/c kind/gone"), ..all() }, "b other/c"),
        ("name_in", Of { name_in: words("a other/c"), ..all() }, "a other/c"),
        ("version_gte", Of { version_gte: 2, ..all() }, "a other/c"),
        ("version_lte", Of { version_lte: 2, ..all() }, "b other/c"),
        ("version_eq", Of { version_eq: 3, ..all() }, "a"),
        ("state_in", Of { state_in: vec![Allocated.into(), Unallocated.into()], ..all() }, "a other/c"),
        ("state_not_in", Of { state_not_in: vec![Allocated.into()], ..all() }, "b other/c"),
        ("include_deleted", Of { include_deleted: true, ..all() }, "a b gone other/c"),
        ("limit", Of { limit: 2, ..all() }, "a b"),
        ("cluster_id_in", Of { cluster_id_in: words("south east"), ..all() }, "b"),
        ("update_domain_in", Of { update_domain_in: words("d1 d3"), ..all() }, "a other/c"),
        ("remaining_cores_gte", Of { remaining_cores_gte: 2, ..all() }, "a b"),
        ("remaining_cores_lte", Of { remaining_cores_lte: 2, ..all() }, "a other/c"),
        ("remaining_memory_gte", Of { remaining_memory_gte: 5, ..all() }, "b"),
        ("remaining_memory_lte", Of { remaining_memory_lte: 4, ..all() }, "a other/c"),
        ("payload_name_in", Of { payload_name_in: words("engine server"), ..all() }, "b"),
        ("payload_name_not_in", Of { payload_name_not_in: words("engine server"), ..all() }, "a other/c"),
        ("limit of what remains", Of { limit: 1, remaining_cores_lte: 1, ..all() }, "other/c"),
        (
            "all of them",
            Of {
                id_in: words("kind/a kind/b kind/gone other/c"),
                name_in: words("a b gone"),
                version_gte: 1,
                version_lte: 3,
                version_eq: 1,
                state_in: vec![Allocated.into(), Allocating.into()],
                state_not_in: vec![Unallocated.into()],
                include_deleted: true,
                limit: 1,
                cluster_id_in: words("north south"),
                update_domain_in: words("d1 d2"),
                remaining_cores_gte: 2,
                remaining_cores_lte: 6,
                remaining_memory_gte: 4,
                remaining_memory_lte: 12,
                payload_name_in: words("main engine"),
                payload_name_not_in: words("main"),
            },
            "b",
        ),
    ] {
        let found: Vec<_> = listed::<NodeStatus, _>(&state, nodes::listing(&names_here, asked).unwrap());
        assert_names(of, found.into_iter().map(|record| record.name), names);
    }
}

#[test]
fn each_filter_of_plans_holds_alone_and_with_all_others() {
    use DeploymentPlanState::{Active, Inactive};
    type Of = DeploymentPlanListFilters;
    let (state, all) = (state(), Of::default);
    for (of, asked, names) in [
        ("none", all(), "api db web"),
        ("id_in", Of { id_in: words("api gone"), ..all() }, "api"),
        ("name_in", Of { name_in: words("db web"), ..all() }, "db web"),
        ("version_gte", Of { version_gte: Some(1), ..all() }, "api db"),
        ("version_lte", Of { version_lte: Some(1), ..all() }, "db web"),
        ("version_eq", Of { version_eq: Some(0), ..all() }, "web"),
        ("payload_name_in", Of { payload_name_in: words("server engine"), ..all() }, "api db"),
        ("service_name_in", Of { service_name_in: words("Web Rest"), ..all() }, "api web"),
        ("deployment_plan_id_in", Of { deployment_plan_id_in: words("web db"), ..all() }, "db web"),
        (
            "deployment_plan_status_in",
            Of { deployment_plan_status_in: vec![Inactive.into()], ..all() },
            "api",
        ),
        ("include_deleted", Of { include_deleted: true, ..all() }, "api db gone web"),
        ("limit", Of { limit: 2, ..all() }, "api db"),
        ("state_in", Of { state_in: vec![Active.into()], ..all() }, "db web"),
        ("state_not_in", Of { state_not_in: vec![Active.into()], ..all() }, "api"),
        (
            "all of them",
            Of {
                id_in: words("api db gone web"),
                name_in: words("db gone web"),
                version_gte: Some(0),
                version_lte: Some(1),
                version_eq: Some(0),
                payload_name_in: words("engine main"),
                service_name_in: words("Store Web"),
                deployment_plan_id_in: words("api web"),
                deployment_plan_status_in: vec![Active.into(), Inactive.into()],
                include_deleted: true,
                limit: 1,
                state_in: vec![Active.into(), 0],
                state_not_in: vec![Inactive.into()],
            },
            "web",
        ),
    ] {
        let found = listed(&state, plans::listing(asked).unwrap());
        assert_names(of, found.into_iter().map(|record| record.name), names);
    }
}

#[test]
fn each_filter_of_instances_holds_alone_and_with_all_others() {
    use MetaInstanceState::{Active, MarkedForDeletion};
    type Of = ListMetaInstanceRequest;
    let (state, all) = (state(), Of::default);
    let ids = |names: &str| -> Vec<String> {
        words(names)
            .iter()
            .map(|name| format!("{}{:0>32}", &name[..name.len() - 1], &name[name.len() - 1..]))
            .collect()
    };
    for (of, asked, names) in [
        ("none", all(), "DB-1 WEB-1 WEB-2"),
        ("id_in", Of { id_in: ids("web-2 web-3"), ..all() }, "WEB-2"),
        ("a name as id_in", Of { id_in: words("WEB-2"), ..all() }, ""),
        ("name_in", Of { name_in: words("DB-1 WEB-2"), ..all() }, "DB-1 WEB-2"),
        ("an id as name_in", Of { name_in: ids("web-2"), ..all() }, ""),
        ("version_gte", Of { version_gte: 2, ..all() }, "WEB-2"),
        ("version_lte", Of { version_lte: 1, ..all() }, "DB-1 WEB-1"),
        ("version_eq", Of { version_eq: 2, ..all() }, "WEB-2"),
        ("state_in", Of { state_in: vec![MarkedForDeletion.into()], ..all() }, "WEB-2"),
        ("state_not_in", Of { state_not_in: vec![MarkedForDeletion.into()], ..all() }, "DB-1 WEB-1"),
        ("include_deleted", Of { include_deleted: true, ..all() }, "DB-1 WEB-1 WEB-2 WEB-3"),
        ("limit", Of { limit: 1, ..all() }, "DB-1"),
        ("deployment_plan_id_in", Of { deployment_plan_id_in: words("web api"), ..all() }, "WEB-1 WEB-2"),
        ("deployment_id_in", Of { deployment_id_in: words("r1"), ..all() }, "DB-1 WEB-1"),
        (
            "all of them",
            Of {
                id_in: ids("db-1 web-1 web-2 web-3"),
                name_in: words("WEB-1 WEB-2 WEB-3"),
                version_gte: 1,
                version_lte: 3,
                version_eq: 3,
                state_in: vec![Active.into(), MarkedForDeletion.into()],
                state_not_in: vec![Active.into()],
                include_deleted: true,
                limit: 1,
                deployment_plan_id_in: words("web"),
                deployment_id_in: words("r1 r2"),
            },
            "WEB-3",
        ),
    ] {
        let found: Vec<_> = listed::<InstanceStatus, _>(&state, instances::listing(asked).unwrap());
        assert_names(of, found.into_iter().map(|record| record.name), names);
    }
}

#[test]
fn a_list_of_plans_keeps_the_ports_and_volumes_of_applications() {
    let (state, asked) = (state(), DeploymentPlanListFilters { id_in: words("web"), ..Default::default() });
    let found: Vec<DeploymentPlanRecord> = listed(&state, plans::listing(asked).unwrap());
    let application = &found[0].applications[0];
    let ports: Vec<_> = application.ports.iter().map(|it| (it.protocol.as_str(), it.port)).collect();
    assert_eq!(ports, [("UDP", 53)]);
    let volumes = application.persistent_volumes.iter();
    let volumes: Vec<_> =
        volumes.map(|it| (it.storage_class.as_str(), it.capacity, it.mount_path.as_str())).collect();
    assert_eq!(volumes, [("ssd", 10, "/data")]);
}

#[test]
fn a_list_beyond_the_bound_is_refused_unless_its_limit_is_lower() {
    let query = json!({});
    let page = |count: usize| json!({"rows": vec![1; count], "next": "n"});
    let mut within = Listing::new("list", "rows", &query, 3, Some::<u8>).unwrap();
    assert!(!within.add(page(RECORDS_MAX + 1)).unwrap());
    assert_eq!(within.into_records().len(), 3);
    let mut beyond = Listing::new("list", "rows", &query, 0, Some::<u8>).unwrap();
    assert!(beyond.add(page(RECORDS_MAX)).unwrap(), "another page may be empty");
    assert_eq!(beyond.add(page(1)).unwrap_err().code(), tonic::Code::ResourceExhausted);
    let mut misread = Listing::new("list", "rows", &query, 0, Some::<u8>).unwrap();
    assert!(misread.add(json!({"rows": ["a"]})).is_err());
}
