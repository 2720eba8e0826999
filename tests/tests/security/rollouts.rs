//! Who may decide about a rollout on a secured hub: an operator, by the key that the server proves; nobody else.

use muster_identity::Role;
use muster_simulator::repository::{BRANCH, Repository, write_devices};
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::story::sleeper;
use muster_tests::system::PUBLISHER;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::connect;
use crate::fleet::{asked, start_service};

const ROLLOUT: &str = "\
apiVersion: muster/v1
kind: Rollout
waves: [{name: ours, site: plant7, approval: before}]
approvals: {need: 2}
";

/// A request to the publisher as a role; its answer.
async fn ask(hub: &Guarded, role: Role, request: &Value) -> Result<Value, String> {
    let bus = connect(hub.config(role)).await;
    let payload = request.to_string().into();
    let within = std::time::Duration::from_secs(2);
    let answer = bus.request("muster.publisher.decide", payload, within).await;
    answer.map(|answer| serde_json::from_slice(&answer).unwrap()).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_counts_by_proven_key_and_no_viewer_or_planner_gives_one() {
    let hub = Guarded::start_plain();
    let repository = Repository::create(hub.dir().join("repository")).await.unwrap();
    write_devices(&repository, &[device("press-4")]).unwrap();
    repository.write("fleet/web.yaml", &sleeper("web", 1)).unwrap();
    repository.write("fleet/rollout.yaml", ROLLOUT).unwrap();
    repository.commit("web").await.unwrap();
    let git = repository.dir().display().to_string();
    let args = ["--git-url", &git, "--git-branch", BRANCH, "--git-poll", "200ms"];
    let _publisher = start_service(&hub, Role::Publisher, PUBLISHER, &args);
    let held = async || asked(&hub, Role::Operator, &["rollout", "list"]);
    let held = until("the change is held", held, |held| {
        held.as_ref().is_ok_and(|held| held["held"].as_array().is_some_and(|held| !held.is_empty()))
    });
    let change = held.await.unwrap()["held"][0].clone();

    let mut request = json!({ "verb": "approve", "wave": "ours" });
    for field in ["deployment", "digest", "rollout"] {
        request[field] = change[field].clone();
    }
    for role in [Role::Viewer, Role::Subscriber] {
        assert!(ask(&hub, role, &request).await.is_err(), "{role:?} has no right to ask");
    }
    let planner = ask(&hub, Role::Planner, &request).await.unwrap();
    assert!(planner["error"]["message"].as_str().unwrap().contains("only a person may approve"), "{planner}");

    let first = ask(&hub, Role::Operator, &request).await.unwrap();
    assert_eq!(first["changed"], json!(true), "{first}");
    let again = ask(&hub, Role::Operator, &request).await.unwrap();
    assert_eq!(again["changed"], json!(false), "one key approves once: {again}");
    let decisions = again["record"]["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 1);
    assert_eq!(decisions[0]["requestedBy"]["role"], json!("operator"));
}
