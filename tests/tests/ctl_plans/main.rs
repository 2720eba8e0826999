//! `muster plan`, `instance`, `operation`, `node`, `cluster`, `capability` and `disruption` against a planner that the test plays:
//! the requests that they send, and what they show, as golden files under `tests/golden/ctl/`. `UPDATE_GOLDEN=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod approvals;
mod files;
mod played;

use std::path::PathBuf;

use muster_contract::Timestamp;
use muster_contract::plans::{
    ExplainAnswer, InstancesAnswer, InventoryAnswer, OperationsAnswer, PlanAnswer, PlansAnswer,
};
use muster_ctl::plans::PlanInDetail;
use muster_ctl::render::frame::Frame;
use muster_ctl::render::{inventory, plans};
use muster_tests::golden;
use muster_tests::schemas::example;
use serde_json::{Value, json};

use self::played::Played;

const SWITCH: &str = "UPDATE_GOLDEN";
const REMEDY: &str = "UPDATE_GOLDEN=1 cargo test -p muster-tests --test ctl_plans";

#[test]
fn plans_instances_and_operations_have_the_columns_of_mrds() {
    let frame = Frame::from(now());
    let mut all = plans::list(&example::<PlansAnswer>("PlansAnswer.one"), frame);
    all += "--\n";
    all += &plans::list(&PlansAnswer { plans: Vec::new(), next: None }, frame);
    golden("plan-list", &all);
    let instances: InstancesAnswer = example("InstancesAnswer.one");
    let answer: PlanAnswer = example("PlanAnswer.one");
    let detail = PlanInDetail { answer: answer.clone(), instances: instances.instances.clone() };
    golden("plan-show", &plans::show(&detail, frame));
    let mut idle = PlanInDetail { answer, instances: Vec::new() };
    idle.answer.summary = Default::default();
    golden("plan-show-without-instances", &plans::show(&idle, frame));
    golden("plan-explain", &plans::explain(&example::<ExplainAnswer>("ExplainAnswer.one-candidate")));
    let list = plans::instances(&instances, frame);
    golden("instances", &(list + "--\n" + &plans::instance(&instances.instances[0], frame)));
    let operations: OperationsAnswer = example("OperationsAnswer.one");
    golden("operations", &plans::operations(&operations, frame));
}

#[test]
fn the_inventory_has_the_columns_of_mrds() {
    let frame = Frame::from(now());
    let answer: InventoryAnswer = example("InventoryAnswer.a-node");
    golden("nodes", &inventory::nodes(&answer, frame));
    golden("node", &inventory::node(&answer.nodes[0], now()));
    let entries = InventoryAnswer {
        clusters: vec![example("Cluster.active")],
        capabilities: vec![example("Capability.a-gpu")],
        ..InventoryAnswer::default()
    };
    let text = inventory::clusters(&entries) + "--\n" + &inventory::capabilities(&entries);
    golden("clusters-and-capabilities", &text);
}

#[tokio::test]
async fn an_operation_is_approved_by_id_by_its_beginning_or_as_the_only_one() {
    let played = Played::start().await;
    let id = "create-0d6e4f2a-91c3-8b57-a6d4-3f2c1b0a9e8d";
    let instance = "web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d";
    let request = json!({"plan": "web", "instance": instance, "operation": id});
    for line in [
        format!("operation approve {id}"),
        "operation approve CREATE-0d6e".to_owned(),
        "operation approve --plan web".to_owned(),
        "plan approve web".to_owned(),
        "deployment approve-operation web --operation-id create-0d6e".to_owned(),
        "instance approve-operation --meta-instance-name Web-DW5PKpHDi1em1D8sGwqejQ".to_owned(),
    ] {
        let said = played.muster(&line).await;
        assert_eq!(said.code, 0, "{line}: {said:?}");
        assert_eq!(played.changes(), [("operation-approve".to_owned(), request.clone())], "{line}");
    }
    let said = played.muster("operation reject create-0d6e --reason late --rule r1").await;
    assert_eq!(said.code, 0, "{said:?}");
    let (verb, sent) = played.changes().remove(0);
    assert_eq!(
        (verb.as_str(), &sent["reason"], &sent["rule"]),
        ("operation-reject", &json!("late"), &json!("r1"))
    );
    let said = played.muster("operation approve create-1").await;
    assert!(said.code == 1 && said.err.contains("there is no operation 'create-1'"), "{said:?}");
    let said = played.muster("plan approve idle").await;
    assert_eq!((said.code, said.err.as_str()), (1, "muster: no operation of plan idle waits\n"));
}

#[tokio::test]
async fn an_operation_is_completed_by_hand_with_a_reason() {
    let played = Played::start().await;
    for (line, verb) in [
        ("operation complete create-0d6e --reason seen", "operation-complete"),
        ("operation complete --plan web --reason seen --yes", "operation-complete"),
        ("operation complete create-0d6e --failed --reason seen", "operation-fail"),
        (
            "instance complete-operation --meta-instance-name Web-DW5PKpHDi1em1D8sGwqejQ --reason seen",
            "operation-complete",
        ),
    ] {
        let said = played.muster(line).await;
        assert_eq!(said.code, 0, "{line}: {said:?}");
        let (asked, request) = played.changes().remove(0);
        assert_eq!((asked.as_str(), &request["reason"]), (verb, &json!("seen")), "{line}");
    }
    let as_mrds_has_it = "instance complete-operation --meta-instance-name Web-DW5PKpHDi1em1D8sGwqejQ \
                          --operation-id create-0d6e --yes";
    assert_eq!(played.muster(as_mrds_has_it).await.code, 0);
    assert_eq!(played.changes()[0].1["reason"], "no reason was given");
    let said = played.muster("operation complete create-0d6e").await;
    assert!(said.code == 2 && said.err.contains("--reason"), "{said:?}");
    let said = played.muster("operation complete --plan idle --reason seen").await;
    assert_eq!((said.code, said.err.as_str()), (1, "muster: no operation of plan idle runs\n"));
}

#[tokio::test]
async fn several_operations_are_picked_at_a_terminal_and_named_elsewhere() {
    let played = Played::start().await;
    let said = played.muster("plan approve busy").await;
    assert!(said.code == 1 && said.err.contains("name its id, or --all"), "{said:?}");
    assert!(played.changes().is_empty());
    let said = played.at_terminal("plan approve busy", "2\nn\n").await;
    assert!(said.code == 1 && said.err.ends_with("[y/N] Nothing is changed.\n"), "{said:?}");
    assert!(played.changes().is_empty());
    let said = played.at_terminal("plan approve busy", "2\ny\n").await;
    assert!(said.code == 0 && said.err.contains("Which operation? [1-2]"), "{said:?}");
    let changes = played.changes();
    assert_eq!(
        (changes.len(), &changes[0].1["operation"]),
        (1, &json!("update-5a4684c0-80b7-461c-baa6-e292b81984c0"))
    );
    let said = played.at_terminal("plan approve busy", "3\n").await;
    assert!(said.code == 2 && said.err.contains("'3' is none of 1 to 2"), "{said:?}");
    let said = played.muster("plan approve busy --all --yes --format json").await;
    assert_eq!((said.code, played.changes().len()), (0, 2), "{said:?}");
    let judged: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(judged.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_instance_is_picked_at_a_terminal_confirmed_and_named_elsewhere() {
    let played = Played::start().await;
    let said = played.muster("plan operate busy --stop").await;
    assert!(said.code == 1 && said.err.contains("name one with --meta-instance-name"), "{said:?}");
    let question = "Which instance? [1-2] Request STOP of instance Web-second? [y/N] ";
    for answers in ["2\nn\n", "2\n\n"] {
        let said = played.at_terminal("plan operate busy --stop", answers).await;
        let words = format!("{question}Nothing is changed.\n");
        assert!(said.code == 1 && said.err.ends_with(&words), "{said:?}");
    }
    let said = played.at_terminal("plan operate busy --stop", "0\n").await;
    assert!(said.code == 2 && said.err.contains("'0' is none of 1 to 2"), "{said:?}");
    assert!(said.err.contains("  2  Web-second (web) on plant7/press-4: PENDING\n"), "{said:?}");
    assert!(played.changes().is_empty(), "nothing is requested before a yes");
    let said = played.at_terminal("plan operate busy --stop", "2\ny\n").await;
    assert!(said.code == 0 && said.err.ends_with(question), "{said:?}");
    let changes = played.changes();
    assert_eq!(changes.len(), 1, "{changes:?}");
    let (verb, request) = &changes[0];
    assert_eq!((verb.as_str(), &request["type"]), ("operation-request", &json!("STOP")));
    assert_eq!(request["instance"], "web-00000000000000000000000000000002");
}

#[tokio::test]
async fn a_person_is_asked_before_a_change_and_may_say_no() {
    let played = Played::start().await;
    let said = played.at_terminal("plan delete web", "n\n").await;
    assert_eq!((said.code, said.err.as_str()), (1, "Delete plan web? [y/N] Nothing is changed.\n"));
    assert!(played.changes().is_empty());
    for (line, answers) in [("plan delete web", "yes\n"), ("plan delete web --yes", "")] {
        let said = played.at_terminal(line, answers).await;
        assert_eq!((said.code, played.changes().len()), (0, 1), "{said:?}");
    }
}

#[tokio::test]
async fn operations_on_instances_are_requested_in_our_words_and_those_of_mrds() {
    let played = Played::start().await;
    let name = "Web-DW5PKpHDi1em1D8sGwqejQ";
    for (line, kind) in [
        (format!("instance stop {name}"), "STOP"),
        (format!("instance stop-instance --meta-instance-name {name}"), "STOP"),
        (format!("instance restart-instance --meta-instance-name {name}"), "RESTART"),
        (format!("instance swap-instance --meta-instance-name {name}"), "RELOCATE"),
        ("plan operate web --relocate".to_owned(), "RELOCATE"),
        ("deployment operate web --start".to_owned(), "RESTART"),
        (format!("deployment operate web --stop --meta-instance-name {name}"), "STOP"),
    ] {
        let said = played.muster(&line).await;
        assert_eq!(said.code, 0, "{line}: {said:?}");
        let (verb, request) = played.changes().remove(0);
        assert_eq!((verb.as_str(), &request["type"]), ("operation-request", &json!(kind)), "{line}");
        assert_eq!(request["instance"], "web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d");
    }
    let said = played.muster("plan operate web --stop --relocate").await;
    assert_eq!(said.code, 2, "one operation at a time: {said:?}");
    let said = played.muster("instance stop nobody").await;
    assert_eq!((said.code, said.err.as_str()), (1, "muster: there is no instance 'nobody'\n"));
}

#[tokio::test]
async fn clusters_capabilities_and_disruptions_have_commands() {
    let played = Played::start().await;
    for (line, verb) in [
        ("cluster create north", "inventory-apply"),
        ("cluster deactivate north", "inventory-state"),
        ("capability create t4 --type GPU --score 7", "inventory-apply"),
        ("disruption add plant7/press-4 d-1 --start 2026-12-01T00:00:00Z --evict", "inventory-disruption"),
        ("disruption approve plant7/press-4 d-1", "inventory-disruption"),
        ("plan cancel web -D web-1", "plan-revision"),
        ("deployment cancel-deployment web --deployment-id web-1", "plan-revision"),
        ("plan stop web -D web-1", "plan-revision"),
        ("plan approve-deployment web -D web-1", "plan-approve"),
        ("plan rollback web --to web-1 -D web-3", "plan-rollback"),
        ("plan migrate web --to web-north -D moved", "plan-migrate"),
        ("instance create web --node plant7/press-4", "instance-create"),
        ("instance create --deployment-plan web --deployment-id web-1", "instance-create"),
        (
            "instance add-runtime-instance --meta-instance Web-DW5PKpHDi1em1D8sGwqejQ --node plant7/press-5",
            "operation-request",
        ),
        ("instance update web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d -D web-1", "operation-request"),
        ("instance delete web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d", "operation-request"),
        ("instance relocate web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d --to plant7/press-5", "operation-request"),
        ("plan deactivate web", "plan-state"),
    ] {
        let said = played.muster(line).await;
        assert_eq!(said.code, 0, "{line}: {said:?}");
        assert_eq!(played.changes()[0].0, verb, "{line}");
    }
    let said =
        played.muster("instance relocate web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d --to plant7/press-5").await;
    assert_eq!(said.code, 0, "{said:?}");
    let asked = &played.changes()[0].1;
    assert_eq!(
        (&asked["type"], &asked["node"]["device"]),
        (&json!("RELOCATE"), &json!("press-5")),
        "{asked}"
    );
    for line in [
        "cluster list",
        "capability list",
        "disruption list",
        "instance list",
        "instance list --include-deleted",
        "operation list",
    ] {
        let said = played.muster(line).await;
        assert!(said.code == 0 && said.out.contains("Total: 1"), "{line}: {said:?}");
        let said = played.muster(&format!("{line} --format json")).await;
        assert!(serde_json::from_str::<Value>(&said.out).is_ok(), "{line}: {said:?}");
    }
}

#[tokio::test]
async fn the_history_of_a_plan_names_each_change_its_time_and_its_requester() {
    let played = Played::start().await;
    let said = played.muster("plan history web").await;
    golden("plan-history", &said.out);
    assert_eq!(
        asked_subjects(&played),
        vec![json!(["muster.plan.web", "muster.instance.web.*"]); 2],
        "page after page"
    );
    let said = played.muster("plan history --node plant7/press-4 --format json --after 41").await;
    let lines: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines,
        example::<Value>("PlansChangesAnswer.two")["changes"].as_array().unwrap()[..],
        "{said:?}"
    );
    assert_eq!(asked_subjects(&played)[0], json!(["muster.inventory.node.plant7.press-4"]));
    played.muster("plan history web --instance Web-DW5PKpHDi1em1D8sGwqejQ").await;
    let of_one = json!(["muster.instance.web.web-0d6e4f2a91c38b57a6d43f2c1b0a9e8d"]);
    assert_eq!(asked_subjects(&played).last(), Some(&of_one));
    let said = played.muster("plan history web --node plant7/press-4").await;
    assert_eq!(said.code, 2, "{said:?}");
}

/// The subjects of the questions about changes since the last time.
fn asked_subjects(played: &Played) -> Vec<Value> {
    let asked = std::mem::take(&mut *played.asked.lock().unwrap());
    asked
        .into_iter()
        .filter(|(verb, _)| verb == "change-list")
        .map(|(_, question)| question["subject"].clone())
        .collect()
}

#[tokio::test]
async fn names_of_plans_complete_a_line() {
    let played = Played::start().await;
    let url = played.hub.server.url();
    for (line, name) in
        [("plan show w", "web\n"), ("node show ", "plant7/press-4\n"), ("cluster delete n", "north\n")]
    {
        let said = played.muster(&format!("complete -- --nats-url {url} {line}")).await;
        assert_eq!(said.out, name, "{line}: {said:?}");
    }
}

fn now() -> Timestamp {
    "2026-11-26T09:00:10Z".parse().unwrap()
}

#[track_caller]
fn golden(name: &str, text: &str) {
    let text = anstream::adapter::strip_str(text).to_string();
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/ctl/{name}.txt"));
    let difference = golden::difference(&file, &text, SWITCH);
    assert!(difference.is_none(), "{}if that is wanted: `{REMEDY}`", difference.unwrap_or_default());
}
