//! Files in the shape of MRDS's: what is read of them, and the place of each mistake.

use muster_contract::plans::{Comparator, PlannerErrorBody};
use muster_contract::query::ErrorCode;

use super::*;

const PLANS: &str = "\
plans:
  - name: press-monitor
    namespace: plant
    serviceName: monitor
    matchingComputeCapabilities:
      - capabilityType: GPU
        comparator: gte
        capabilityNames: [t4, a100]
      - capabilityType: CPU
        comparator: eq
        capabilityNames: [xeon]
    applications:
      - payloadName: sampler
        resources: {cores: 4, memory: 64}
        ports:
          - {protocol: TCP, port: 8080}
          - {protocol: UDP, port: 53}
        persistentVolumes:
          - {storageClass: ssd, capacity: 500, mountPath: /data}
";

const DEPLOYMENT: &str = "\
deployment_plan_name: press-monitor
deployment_id: first
payload_coordinates:
  - payload_name: sampler
    coordinates:
      command: sleep
      args: ['100000']
instance_count: 3
";

const NODES: &str = "\
nodes:
  - name: press-1
    updateDomain: d1
    totalResources: {cores: 64, memory: 512}
    systemReservedResources: {cores: 4, memory: 32}
    capabilityIDs: [t4]
    localVolumes: [{mountPath: /mnt, storageClass: ssd, storageCapacity: 900}]
  - name: other/press-2
    updateDomain: d2
    totalResources: {cores: 8, memory: 16}
";

fn file(text: &str) -> ManifestFile {
    ManifestFile { path: "f.yaml".into(), text: text.to_owned() }
}

fn words<T: std::fmt::Debug>(result: Result<T, CtlError>) -> String {
    result.unwrap_err().words().unwrap()
}

#[test]
fn files_of_plans_deployments_and_nodes_are_read_as_mrds_writes_them() {
    let plans = file(PLANS).plans().unwrap();
    let [Entry { place, value: plan }] = &plans[..] else { panic!("one plan, please") };
    assert_eq!(
        (place.as_str(), plan.name.as_str(), plan.service_name.as_str()),
        ("plans[0]", "press-monitor", "monitor")
    );
    let comparators: Vec<_> = plan.matching_compute_capabilities.iter().map(|it| it.comparator).collect();
    assert_eq!(comparators, [Comparator::Gte, Comparator::In], "eq means in");
    assert_eq!(plan.applications[0].ports.len(), 2);

    let deployment = file(DEPLOYMENT).deployment().unwrap().value;
    assert_eq!(
        (deployment.plan.as_str(), deployment.id.as_str(), deployment.instances),
        ("press-monitor", "first", 3)
    );
    let camel = DEPLOYMENT
        .replace("deployment_plan_name", "deploymentPlanName")
        .replace("deployment_id", "deploymentId")
        .replace("payload_coordinates", "payloadCoordinates")
        .replace("payload_name", "payloadName")
        .replace("instance_count", "instanceCount");
    assert_eq!(file(&camel).deployment().unwrap().value, deployment);

    let nodes = file(NODES).nodes(Some(&"plant7".parse().unwrap())).unwrap();
    let keys: Vec<_> = nodes.iter().map(|entry| entry.value.key.to_string()).collect();
    assert_eq!(keys, ["plant7/press-1", "other/press-2"]);
}

#[test]
fn each_mistake_is_named_by_file_line_field_and_rule() {
    let plans = |from: &str, to: &str| words(file(&PLANS.replace(from, to)).plans());
    let deployment = |from: &str, to: &str| words(file(&DEPLOYMENT.replace(from, to)).deployment());
    let nodes =
        |from: &str, to: &str| words(file(&NODES.replace(from, to)).nodes(Some(&"a".parse().unwrap())));
    let twice = words(file(&(PLANS.to_owned() + PLANS.strip_prefix("plans:\n").unwrap())).plans());
    for (said, expected) in [
        (
            plans("comparator: gte", "comparator: about"),
            "f.yaml:7: plans[0].matchingComputeCapabilities[0].comparator: 'about' is not a comparator",
        ),
        (
            plans("serviceName", "serviceNmae"),
            "f.yaml:4: plans[0].serviceNmae: unknown key; did you mean serviceName?",
        ),
        (
            plans("cores: 4", "cores: many"),
            "f.yaml:14: plans[0].applications[0].resources.cores: invalid type",
        ),
        (plans("namespace: plant", "namespace: ''"), "f.yaml:3: plans[0].namespace: is empty"),
        (plans("plans:", "plan:"), "f.yaml:1: plan: unknown field `plan`, expected `plans`"),
        (plans(PLANS, "plans: []\n"), "f.yaml:1: plans: is empty"),
        (plans("    namespace", "    name"), "duplicate"),
        (deployment("instance_count: 3", "instance_count: -3"), "f.yaml:8: instance_count: invalid value"),
        (deployment("instance_count: 3\n", ""), "f.yaml:1: missing field `instance_count`"),
        (
            deployment("payload_name: sampler", "payload: sampler"),
            "f.yaml:4: payload_coordinates[0].payload: unknown field",
        ),
        (nodes("other/press-2", "other/press/2"), "f.yaml:8: nodes[1].name: "),
        (nodes("cores: 64, ", "cores: 6.5, "), "f.yaml:4: nodes[0].totalResources.cores: invalid type"),
        (nodes("capabilityIDs", "capabilityNumbers"), "f.yaml:6: nodes[0].capabilityNumbers: unknown field"),
        (nodes("cores: 8, ", "cores: 0, "), "f.yaml:10: nodes[1].totalResources: has no cores or no memory"),
        (nodes("cores: 4, ", "cores: 65, "), "f.yaml:5: nodes[0].systemReservedResources: is above total"),
        (nodes("other/press-2", "a/press-1"), "f.yaml:8: nodes[1].name: 'a/press-1' is there twice"),
        (twice, "f.yaml:20: plans[1].name: 'press-monitor' is there twice"),
    ] {
        assert!(said.contains(expected), "{said}\nhas not: {expected}");
    }
    let said = words(file(NODES).nodes(None));
    assert!(said.contains("write SITE/DEVICE, or name the site with --site"), "{said}");
}

#[test]
fn a_refusal_of_the_planner_gets_the_line_of_its_field() {
    let body = |field: Option<&str>| {
        AskError::RefusedByPlanner(PlannerErrorBody {
            code: ErrorCode::BadRequest,
            message: "there is no capability 'a100'".to_owned(),
            field: field.map(str::to_owned),
            current_version: None,
        })
    };
    let field = "matchingComputeCapabilities[0].capabilityNames[1]";
    let said = file(PLANS).error("plans[0]", body(Some(field))).words().unwrap();
    assert_eq!(said, format!("muster: f.yaml:8: plans[0].{field}: there is no capability 'a100'\n"));
    assert_eq!(
        file(PLANS).error("plans[0]", body(None)).words().unwrap(),
        "muster: there is no capability 'a100'\n"
    );
}

const PLANS_TEXT: &str = "\
# a comment
plans:
  - name: web
    applications:
      - payloadName: one
        ports: [{protocol: TCP,
          port: 80}]
";

#[test]
fn a_field_has_its_line_and_a_missing_one_that_of_its_parent() {
    for (path, line) in [
        ("plans[0].name", 3),
        ("plans[0].applications[0].payloadName", 5),
        ("plans[0].applications[0].ports[0].port", 7),
        ("plans[0].applications[0].resources", 5),
        ("plans[0].applications[4]", 4),
        ("plans[0].namespace", 3),
        ("", 2),
    ] {
        assert_eq!(line_of(PLANS_TEXT, path), Some(line), "{path}");
    }
}
