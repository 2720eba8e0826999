//! `muster watch approvals` before a planner, played by the test, with more operations than a watch follows.

use muster_bus::Call;
use muster_client::operations::OPERATIONS_MAX;
use muster_tests::command::Hub;
use muster_tests::schemas::example;
use serde_json::{Value, json};

/// Rows of a page, as if more did not fit into a message.
const PAGE: usize = 300;

/// A page of a list of operations that goes on after those of this page.
fn page(query: &Value) -> Value {
    let first: usize = query["after"].as_str().map_or(0, |after| after.parse().unwrap());
    let rows = query["limit"].as_u64().map_or(PAGE, |limit| PAGE.min(limit as usize));
    let one = |at: usize| {
        let mut status = example::<Value>("OperationsAnswer.one")["operations"][0].clone();
        status["operation"]["id"] = json!(format!("create-{at:08x}-91c3-8b57-a6d4-3f2c1b0a9e8d"));
        status
    };
    let operations: Vec<_> = (first..first + rows).map(one).collect();
    json!({ "operations": operations, "next": (first + rows).to_string() })
}

#[tokio::test]
async fn a_watch_follows_the_first_operations_of_a_long_list_and_says_so() {
    let answer = async |call: Call| {
        let query: Value = serde_json::from_slice(&call.payload).unwrap();
        let answer = match call.endpoint {
            "operation-list" => page(&query),
            "instance-list" => example("InstancesAnswer.one"),
            _ => {
                let mut status: Value = example("PublisherStatus.holding-a-change");
                status.as_object_mut().unwrap().remove("git");
                status
            }
        };
        Ok(answer.to_string().into())
    };
    let subjects = [
        ("operation-list", "muster.planner.operation-list"),
        ("instance-list", "muster.planner.instance-list"),
        ("status", "muster.publisher.status"),
    ];
    let hub = Hub::without_services().await.play(&subjects, answer).await;
    let said = hub.muster(&["watch", "approvals", "--within", "5s", "--format", "json"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(said.out.lines().count(), OPERATIONS_MAX, "each once: {}", said.err);
    let sentence = "more than 1000 operations wait for an approval, and only the first by plan and instance are followed";
    assert_eq!(said.err.matches(sentence).count(), 1, "{}", said.err);
}
