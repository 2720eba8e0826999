//! Files of plans, deployments and nodes: each entry is requested as it is written, a file with a mistake not at all, and a refusal
//! of one entry stops no other.

use muster_tests::schemas::example;
use serde_json::{Value, json};

use super::played::Played;

const PLANS: &str = "\
plans:
  - name: web
    namespace: demo
    serviceName: Web
    applications:
      - payloadName: main
        resources: {cores: 2, memory: 4}
";

const DEPLOYMENT: &str = "\
deployment_plan_name: web
deployment_id: web-1
payload_coordinates:
  - payload_name: main
    coordinates: {command: sleep, args: ['100000']}
instance_count: 2
";

const NODES: &str = "\
nodes:
  - name: press-4
    updateDomain: d1
    totalResources: {cores: 64, memory: 512}
    systemReservedResources: {cores: 4, memory: 32}
    capabilityIDs: [t4]
";

#[tokio::test]
async fn plans_and_deployments_of_files_are_requested_as_they_are_written() {
    let played = Played::start().await;
    let (plans, deployment) = (
        played.file("plans.yaml", PLANS),
        played.file(
            "deployment.yaml",
            &format!("{DEPLOYMENT}max_unavailable: 1\ncanary: 1\nskip_unchanged: true\n"),
        ),
    );
    for words in ["plan", "deployment"] {
        let said = played.muster(&format!("{words} create -m {plans}")).await;
        assert!(said.code == 0 && said.out.contains("Total: 1"), "{said:?}");
        let spec = json!({
            "name": "web", "namespace": "demo", "serviceName": "Web",
            "applications": [{"payloadName": "main", "resources": {"cores": 2, "memory": 4}}],
        });
        assert_eq!(played.changes(), [("plan-apply".to_owned(), spec)], "MRDS's word is {words}");
    }
    let said = played.muster(&format!("plan apply -f {plans}")).await;
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(played.changes()[0].1["expectedVersion"], 2, "a plan that is there is changed as it was read");
    let request = json!({
        "plan": "web", "id": "web-1", "instances": 2, "maxUnavailable": 1, "canary": 1, "skipUnchanged": true,
        "coordinates": {"main": {"command": "sleep", "args": ["100000"]}},
    });
    for verb in ["deploy", "add-deployment"] {
        let said = played.muster(&format!("plan {verb} --manifest {deployment}")).await;
        assert!(said.code == 0 && said.out.contains("Operations Summary"), "{said:?}");
        assert_eq!(played.changes(), [("plan-deploy".to_owned(), request.clone())]);
    }
}

#[tokio::test]
async fn a_migration_is_to_a_plan_or_to_a_deployment_of_a_file() {
    let played = Played::start().await;
    let said = played.muster("plan migrate web --to web-north -D moved").await;
    assert_eq!(said.code, 0, "{said:?}");
    let request = json!({"plan": "web", "to": "web-north", "id": "moved"});
    assert_eq!(played.changes(), [("plan-migrate".to_owned(), request)]);
    let file = played.file("deployment.yaml", DEPLOYMENT);
    let said = played.muster(&format!("plan migrate old -m {file}")).await;
    assert_eq!(said.code, 0, "{said:?}");
    let request = json!({
        "plan": "old", "to": "web", "id": "web-1", "instances": 2,
        "coordinates": {"main": {"command": "sleep", "args": ["100000"]}},
    });
    assert_eq!(played.changes(), [("plan-migrate".to_owned(), request)]);
    let canary = played.file("canary.yaml", &format!("{DEPLOYMENT}canary: 1\n"));
    let said = played.muster(&format!("plan migrate old -m {canary}")).await;
    assert!(said.code == 1 && said.err.contains("canary: is not of a migration"), "{said:?}");
    for line in ["plan migrate web", "plan migrate web --to web-north", "plan migrate web -D moved"] {
        assert_eq!(played.muster(line).await.code, 2, "{line}");
    }
    assert!(played.changes().is_empty());
}

#[tokio::test]
async fn a_mistake_in_a_file_is_named_by_line_and_nothing_is_requested() {
    let played = Played::start().await;
    let file = played.file("plans.yaml", &PLANS.replace("cores: 2", "coers: 2"));
    let said = played.muster(&format!("plan create -m {file}")).await;
    let words =
        format!("{file}:7: plans[0].applications[0].resources.coers: unknown key; did you mean cores?");
    assert!(said.code == 1 && said.err.contains(&words), "{said:?}");
    assert!(played.changes().is_empty());
    let file = played.file("plans.yaml", &PLANS.replace("demo", "refused"));
    let said = played.muster(&format!("plan create -m {file}")).await;
    let words =
        format!("muster: {file}:7: plans[0].applications[0].resources: there is no cluster 'north'\n");
    assert_eq!((said.code, said.err), (1, words), "the planner's refusal has the line too");
    played.changes();
    let (twice, second) = (PLANS.strip_prefix("plans:\n").unwrap(), "plans[1].name: 'web' is there twice");
    let twice = played.file("twice.yaml", &format!("{PLANS}{twice}"));
    let said = played.muster(&format!("plan apply -m {twice}")).await;
    assert!(said.code == 1 && said.err.contains(&format!("{twice}:8: {second}")), "{said:?}");
    let nodes =
        NODES.to_owned() + "  - {name: press-5, updateDomain: d1, totalResources: {cores: 0, memory: 1}}\n";
    let nodes = played.file("nodes.yaml", &nodes);
    let said = played.muster(&format!("node create -m {nodes} --site plant7")).await;
    assert!(said.code == 1 && said.err.contains("nodes[1].totalResources: has no cores"), "{said:?}");
    assert!(played.changes().is_empty(), "no entry of a file with a mistake is requested");
}

#[tokio::test]
async fn nodes_of_a_file_get_their_site_and_are_allocated_in_two_steps() {
    let played = Played::start().await;
    let file = played.file("nodes.yaml", NODES);
    let said = played.muster(&format!("node create -m {file} --site plant7")).await;
    assert!(said.code == 0 && said.out.contains("REMAINING CORES"), "{said:?}");
    let node = json!({
        "site": "plant7", "device": "press-4", "updateDomain": "d1",
        "totalResources": {"cores": 64, "memory": 512},
        "systemReservedResources": {"cores": 4, "memory": 32}, "capabilities": ["t4"],
    });
    let request = json!({"item": {"node": node}, "expectedVersion": 2});
    assert_eq!(played.changes(), [("inventory-apply".to_owned(), request)], "it is changed as it was read");
    let said = played.muster("node add-to-cluster plant7/press-4 -c north").await;
    assert_eq!(said.code, 0, "{said:?}");
    let states: Vec<_> =
        played.changes().into_iter().map(|(_, request)| request["nodeState"].clone()).collect();
    assert_eq!(states, ["allocating", "allocated"]);
    let said = played
        .muster("node list --payload-names-not-in main,db --remaining-cores-gte 8 --remaining-memory-gte 9")
        .await;
    assert_eq!(said.code, 0, "{said:?}");
    let asked = played.asked.lock().unwrap().pop().unwrap().1;
    let query = json!({
        "kind": "node", "payloadNameNotIn": ["main", "db"], "remainingCoresGte": 8, "remainingMemoryGte": 9,
    });
    assert_eq!(asked, query);
}

/// A file with the plan that the played planner has, one that it refuses, and one that it has not.
fn mixed(second: &str) -> String {
    let answer: Value = example("PlanAnswer.one");
    let of_document = ["apiVersion", "kind", "uid", "version", "state", "revisions", "createdAt", "change"];
    let mut had = answer["plan"].as_object().unwrap().clone();
    had.retain(|field, _| !of_document.contains(&field.as_str()));
    let application = json!({"payloadName": "main", "resources": {"cores": 2, "memory": 4}});
    let other = |name: &str, namespace: &str| json!({"name": name, "namespace": namespace, "serviceName": "Web", "applications": [application]});
    json!({"plans": [had, other("second", second), other("none", "demo")]}).to_string()
}

#[tokio::test]
async fn a_refused_plan_of_a_file_stops_no_other_and_is_no_success() {
    let played = Played::start().await;
    let file = played.file("plans.json", &mixed("refused"));
    let said = played.muster(&format!("plan apply -f {file}")).await;
    let results = "plan web: unchanged (version 2)\nplan second: refused\nplan none: created (version 2)\n";
    assert!(said.code == 1 && said.out.starts_with(results) && said.out.contains("Total: 1"), "{said:?}");
    let refusal = "plans[1].applications[0].resources: there is no cluster 'north'\n";
    assert!(said.err.ends_with(refusal) && said.err.lines().count() == 1, "{said:?}");
    let names: Vec<_> = played.changes().iter().map(|(_, request)| request["name"].clone()).collect();
    assert_eq!(names, ["second", "none"], "a plan that is as the file has it is not requested");

    let said = played.muster(&format!("plan apply -f {file} --format json")).await;
    let answer: Value = serde_json::from_str(&said.out).unwrap();
    let results: Vec<_> =
        answer["applied"].as_array().unwrap().iter().map(|one| one["result"].as_str().unwrap()).collect();
    assert_eq!((said.code, results), (1, vec!["unchanged", "refused", "created"]));
    assert_eq!(answer["plans"].as_array().unwrap().len(), 1, "the list is there as well");

    let taken = played.file("plans.yaml", &PLANS.replace("demo", "taken"));
    let said = played.muster(&format!("plan create -m {taken}")).await;
    assert!(said.code == 1 && said.out.starts_with("plan web: refused\n"), "{said:?}");
    assert_eq!(said.err, "muster: plan web exists: `muster plan apply` changes it\n");
}

#[tokio::test]
async fn a_file_of_plans_ends_once_the_planner_cannot_answer() {
    let played = Played::start().await;
    for (namespace, result, words) in [
        ("busy", "refused", "the planner starts"),
        ("garbled", "unconfirmed: apply the file again", "the answer is of a shape"),
    ] {
        let file = played.file("plans.json", &mixed(namespace));
        let said = played.muster(&format!("plan apply -f {file}")).await;
        let results =
            format!("plan web: unchanged (version 2)\nplan second: {result}\nplan none: not requested\n");
        assert_eq!((said.code, &said.out), (2, &results), "{said:?}");
        assert!(said.err.contains(words), "{said:?}");
        assert_eq!(played.changes().len(), 1, "{namespace}");
    }
    let file = played.file("plans.json", &mixed("busy"));
    let said = played.muster(&format!("plan apply -f {file} --format json")).await;
    let answer: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((said.code, &answer["applied"][2]["result"]), (2, &json!("notRequested")), "{said:?}");
}

#[tokio::test]
async fn a_node_of_a_file_is_created_changed_or_left_as_it_is() {
    let played = Played::start().await;
    let had = "nodes:
  - name: plant7/press-4
    updateDomain: d1
    totalResources: {cores: 64, memory: 512}
    systemReservedResources: {cores: 4, memory: 32}
    capabilityIDs: [t4]
    localVolumes: [{mountPath: /mnt/ssd, storageClass: ssd, storageCapacity: 500}]
";
    let more = "  - {name: plant7/press-5, updateDomain: d1, totalResources: {cores: 1, memory: 1}}
  - {name: plant7/press-6, updateDomain: d1, totalResources: {cores: 1, memory: 1}, capabilities: [a100]}
";
    let file = played.file("nodes.yaml", &format!("{had}{more}"));
    let said = played.muster(&format!("node apply -f {file}")).await;
    let results = "node plant7/press-4: unchanged (version 2)\nnode plant7/press-5: created (version 2)\n\
                   node plant7/press-6: refused\n";
    assert!(said.code == 1 && said.out.starts_with(results), "{said:?}");
    let refusal = format!("muster: {file}:9: nodes[2].capabilities: there is no capability a100\n");
    assert_eq!(said.err, refusal);
    let changes = played.changes();
    let versions: Vec<_> = changes.iter().map(|(_, request)| request.get("expectedVersion")).collect();
    assert_eq!(versions, [None, None], "{changes:?}");
}
