//! A hub whose planner and publisher are played by the test.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use muster_bus::{Call, Fault};
use muster_ctl::terminal::Terminal;
use muster_tests::command::{Hub, Page, Said, run};
use muster_tests::schemas::example;
use serde_json::{Value, json};

/// Endpoints of the planner that the commands ask.
const ENDPOINTS: [&str; 24] = [
    "plan-apply",
    "plan-delete",
    "plan-get",
    "plan-list",
    "plan-explain",
    "plan-deploy",
    "plan-rollback",
    "plan-migrate",
    "plan-state",
    "plan-revision",
    "plan-approve",
    "instance-list",
    "instance-create",
    "operation-request",
    "operation-list",
    "operation-approve",
    "operation-reject",
    "operation-complete",
    "operation-fail",
    "inventory-apply",
    "inventory-list",
    "inventory-state",
    "inventory-disruption",
    "change-list",
];

/// The endpoint of the publisher's status.
const STATUS: &str = "status";

/// A hub whose planner is played, with a publisher that has no Git source, and the requests that it got.
pub(crate) struct Played {
    pub(crate) hub: Hub,
    pub(crate) asked: Arc<Mutex<Vec<(String, Value)>>>,
    dir: tempfile::TempDir,
}

impl Played {
    pub(crate) async fn start() -> Self {
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let log = Arc::clone(&asked);
        let subjects: Vec<_> = ENDPOINTS.map(|name| (name, format!("muster.planner.{name}"))).into();
        let of_planner = subjects.iter().map(|(name, subject)| (*name, subject.as_str()));
        let subjects: Vec<_> = of_planner.chain([(STATUS, "muster.publisher.status")]).collect();
        let answer = move |call: Call| {
            let request: Value = serde_json::from_slice(&call.payload).unwrap();
            if call.endpoint != STATUS {
                log.lock().unwrap().push((call.endpoint.to_owned(), request.clone()));
            }
            async move { answer(call.endpoint, &request) }
        };
        let hub = Hub::without_services().await.play(&subjects, answer).await;
        Self { hub, asked, dir: tempfile::tempdir().unwrap() }
    }

    /// The path of a file with this text.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(crate) async fn muster(&self, line: &str) -> Said {
        self.hub.muster(&line.split(' ').collect::<Vec<_>>()).await
    }

    /// Runs a command at a terminal, with what the person answers.
    pub(crate) async fn at_terminal(&self, line: &str, answers: &'static str) -> Said {
        let (out, err) = (Page::default(), Page::default());
        let mut terminal = Terminal::of(out.clone(), err.clone()).with_answers(Cursor::new(answers));
        let words: Vec<_> = line.split(' ').collect();
        let code = run(&self.hub.server.url(), &words, &mut terminal).await;
        Said { code, out: out.text(), err: err.text() }
    }

    /// The requests since the last time that changed something.
    pub(crate) fn changes(&self) -> Vec<(String, Value)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let reads = [
            "plan-get",
            "plan-list",
            "plan-explain",
            "instance-list",
            "operation-list",
            "inventory-list",
            "change-list",
        ];
        asked.into_iter().filter(|(verb, _)| !reads.contains(&verb.as_str())).collect()
    }
}

/// The answers of the played planner: it knows plan `web` with one instance and one operation, and node `plant7/press-4`.
fn answer(endpoint: &str, request: &Value) -> Result<Bytes, Fault> {
    let plan = || example::<Value>("Plan.in-progress");
    let answer = match endpoint {
        "plan-get" if request["plan"] == "none" => {
            json!({"error": {"code": "notFound", "message": "there is no plan 'none'"}})
        }
        "plan-get" if request["plan"] == "second" => {
            json!({"error": {"code": "notFound", "message": "there is no plan second"}})
        }
        "plan-get" => example("PlanAnswer.one"),
        "plan-list" => example("PlansAnswer.one"),
        "plan-explain" => example("ExplainAnswer.one-candidate"),
        "plan-apply" => refused_plan(request).unwrap_or_else(plan),
        "plan-delete" | "plan-state" | "plan-deploy" | "plan-rollback" | "plan-migrate" | "plan-revision"
        | "plan-approve" => plan(),
        "instance-create" => example("Instance.pending-approval"),
        "instance-list" if request["name"] == json!(["nobody"]) => json!({"instances": []}),
        "instance-list" if request["plan"] == json!(["busy"]) => {
            let mut answer: Value = example("InstancesAnswer.one");
            let mut other = answer["instances"][0].clone();
            other["instance"]["name"] = json!("web-00000000000000000000000000000002");
            other["instance"]["displayName"] = json!("Web-second");
            answer["instances"].as_array_mut().unwrap().push(other);
            answer
        }
        "instance-list" => example("InstancesAnswer.one"),
        "operation-list" if request["plan"] == json!(["idle"]) => json!({"operations": []}),
        "operation-list" if request["plan"] == json!(["busy"]) => {
            let mut answer: Value = example("OperationsAnswer.one");
            let mut other = answer["operations"][0].clone();
            other["operation"]["id"] = json!("update-5a4684c0-80b7-461c-baa6-e292b81984c0");
            other["operation"]["type"] = json!("UPDATE");
            answer["operations"].as_array_mut().unwrap().push(other);
            answer
        }
        "operation-list" => example("OperationsAnswer.one"),
        STATUS => {
            let mut status: Value = example("PublisherStatus.holding-a-change");
            status.as_object_mut().unwrap().remove("git");
            status
        }
        "change-list" if request["after"] == 45 => json!({ "changes": [], "readTo": 45 }),
        "change-list" => example("PlansChangesAnswer.two"),
        verb if verb.starts_with("operation-") && verb != "operation-list" => {
            example("Instance.pending-approval")
        }
        "inventory-list" if request["kind"] == "cluster" => {
            json!({"clusters": [example::<Value>("Cluster.active")]})
        }
        "inventory-list" if request["kind"] == "capability" => {
            json!({"capabilities": [example::<Value>("Capability.a-gpu")]})
        }
        "inventory-list" => example("InventoryAnswer.a-node"),
        "inventory-apply" if request["item"]["node"]["capabilities"] == json!(["a100"]) => json!({"error": {
            "code": "badRequest", "message": "item.node.capabilities: there is no capability a100",
            "field": "item.node.capabilities",
        }}),
        "inventory-apply" if request["item"].get("cluster").is_some() => example("Cluster.active"),
        "inventory-apply" if request["item"].get("capability").is_some() => example("Capability.a-gpu"),
        "inventory-state" if request["item"].get("cluster").is_some() => example("Cluster.active"),
        _ => example("Node.allocated"),
    };
    Ok(answer.to_string().into())
}

/// The refusal of a plan whose namespace names one.
fn refused_plan(request: &Value) -> Option<Value> {
    Some(match request["namespace"].as_str()? {
        "taken" => json!({"error": {
            "code": "conflict", "message": "plan web exists: name its version 2 to change it", "currentVersion": 2,
        }}),
        "busy" => json!({"error": {"code": "notReady", "message": "the planner starts: ask again"}}),
        "garbled" => json!("no plan"),
        "refused" => json!({"error": {
            "code": "badRequest", "message": "there is no cluster 'north'", "field": "applications[0].resources",
        }}),
        _ => return None,
    })
}
