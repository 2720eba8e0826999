//! Tests that the services reject every request of the contract that has an unknown key.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::time::Duration;

use bytes::Bytes;
use muster_contract::query::{ErrorCode, ErrorReply};
use muster_tests::rollouts::start_planner;
use muster_tests::schemas::asyncapi;
use muster_tests::schemas::catalogue::{self, Shape};
use muster_tests::schemas::json_schema;
use muster_tests::system::System;
use serde_json::{Value, json};

/// How long one answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The only request that no hub answers; the tests of `route` in muster-federation cover it.
const OF_A_FEDERATION: &str = "muster.query.hubs";

/// Subjects of requests with the shape of each request.
fn requests() -> Vec<(String, &'static Shape)> {
    let document = asyncapi::document();
    let channels = document["channels"].as_object().unwrap().values();
    let asked = channels.filter_map(|channel| {
        let address = channel["address"].as_str()?.replace("{partition}", "0");
        let shapes = channel["messages"].as_object()?.keys().filter_map(|name| catalogue::shape(name));
        let request = shapes.into_iter().find(|shape| shape.is_request)?;
        (!address.starts_with('$')).then_some((address, request))
    });
    asked.collect()
}

/// The longest key of the shape without its last letter, which is no key of it, and the key itself.
fn misspelt(shape: &Shape) -> (String, String) {
    let schema = json_schema::schema(shape);
    let keys = schema.as_value()["properties"].as_object().unwrap().keys();
    let key = keys.max_by_key(|key| key.len()).unwrap();
    (key[..key.len() - 1].to_owned(), key.clone())
}

#[tokio::test]
async fn an_unknown_key_of_any_request_is_refused_with_a_near_one() {
    let requests = requests();
    let subjects: Vec<_> = requests.iter().map(|(subject, _)| subject.as_str()).collect();
    let prefixes = [
        "muster.query.",
        "muster.notify.",
        "muster.publisher.",
        "muster.planner.",
        "muster.view.",
        "muster.ingest.",
    ];
    for prefix in prefixes {
        assert!(subjects.iter().any(|subject| subject.starts_with(prefix)), "{prefix} is among {subjects:?}");
    }
    let unread: Vec<_> = catalogue::shapes().filter(|shape| shape.is_request).collect();
    assert!(unread.iter().all(|shape| requests.iter().any(|(_, asked)| asked.name == shape.name)));

    let mut system = System::start().await;
    start_planner(&mut system);
    for (subject, shape) in requests.into_iter().filter(|(subject, _)| subject != OF_A_FEDERATION) {
        let (wrong, right) = misspelt(shape);
        let request = Bytes::from(json!({ (&wrong): "x" }).to_string());
        let words = format!("{wrong}: unknown key; did you mean ");
        system
            .eventually(&format!("{subject} refuses '{wrong}'"), async || {
                let asked = system.bus.request(&subject, request.clone(), PATIENCE);
                let answer = asked.await.map_err(|error| error.to_string())?;
                let ErrorReply { error, .. } = serde_json::from_slice(&answer)
                    .map_err(|_| format!("answered {:?}", serde_json::from_slice::<Value>(&answer)))?;
                let is_refused = error.code == ErrorCode::BadRequest && error.message.contains(&words);
                if is_refused && error.message.contains(&right) { Ok(()) } else { Err(error.message) }
            })
            .await;
    }
}
