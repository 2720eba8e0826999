//! Tests groups and defined views in the bucket: they equal LEDGER's, and removed definitions leave nothing.

use std::time::Duration;

use bytes::Bytes;
use muster_contract::ViewName;
use muster_contract::groups::GroupQuery;
use muster_contract::limits::{DEFINED_VIEWS_MAX, VIEW_WRITES_PER_SECOND};
use muster_contract::subjects::{QUERY_PREFIX, VIEW_PREFIX, definition_key, stream};
use muster_tests::wait::until;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::ledger::small_fleet;
use crate::{Hub, PATIENCE, Rollup};

/// Looks at a bucket that must not change.
const STILL: Duration = Duration::from_millis(500);

async fn request(hub: &Hub, subject: &str, body: &Value) -> Value {
    let answer = hub.bus.request(subject, body.to_string().into(), PATIENCE).await.unwrap();
    serde_json::from_slice(&answer).unwrap()
}

async fn apply(hub: &Hub, definition: &Value) -> Value {
    request(hub, &format!("{VIEW_PREFIX}.apply"), definition).await
}

/// The query service's answer about a defined view.
async fn asked(hub: &Hub, view: &str) -> Value {
    request(hub, &format!("{QUERY_PREFIX}.view"), &json!({ "view": view })).await
}

async fn held(hub: &Hub, key: &str) -> Option<Value> {
    let entry = hub.bus.view_get(key).await.unwrap()?;
    Some(serde_json::from_slice(&entry.value?).unwrap())
}

fn definition(name: &str, more: &Value) -> Value {
    let mut definition = json!({"apiVersion": "muster/v1", "kind": "ViewDefinition", "name": name});
    definition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    definition
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bucket_has_a_view_of_every_group_and_a_label_moves_what_it_counts() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    devices[0].labelled(&hub, &["web", "db"], json!({"ring": "one"})).await;
    devices[1].labelled(&hub, &["web", "db"], json!({"ring": "two"})).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let groups = || async { (held(&hub, "group.ring.one").await, held(&hub, "group.ring.two").await) };
    let targets = |view: &Option<Value>| view.as_ref().map_or(0, |view| view["targets"].as_u64().unwrap());
    until("both groups", groups, |(one, two)| (targets(one), targets(two)) == (2, 2)).await;

    let query = GroupQuery {
        label: Some("ring".parse().unwrap()),
        id: Some("web".parse().unwrap()),
        ..GroupQuery::default()
    };
    let answer = request(&hub, &format!("{QUERY_PREFIX}.groups"), &json!(query)).await;
    assert_eq!(
        (&answer["total"]["targets"], &answer["without"]["targets"]),
        (&json!(3), &json!(1)),
        "{answer}"
    );
    assert_eq!(answer["groups"][1]["value"], "two");

    devices[1].labelled(&hub, &["web", "db"], json!({"ring": "one"})).await;
    until("one group", groups, |(one, two)| (targets(one), two.is_none()) == (4, true)).await;
    let folded = hub.folded().await.group_view(&"ring".parse().unwrap(), &"one".parse().unwrap()).unwrap();
    let same = |seen: &Option<Value>| {
        seen.as_ref().is_some_and(|view| view["digest"] == folded.tally.digest.to_string())
    };
    until("what LEDGER gives", || held(&hub, "group.ring.one"), same).await;
    let unknown = request(&hub, &format!("{QUERY_PREFIX}.groups"), &json!({"label": "region"})).await;
    assert_eq!(unknown["error"]["code"], "notFound");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_defined_view_is_published_until_it_is_removed() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;

    let bad = definition("trouble", &json!({"groupBy": "ring"}));
    let ready = || apply(&hub, &bad);
    let refused = until("a refusal", ready, |answer| answer["error"]["code"] == "badRequest").await;
    assert!(
        refused["error"]["message"].as_str().unwrap().contains("groupBy: 'ring' is nothing"),
        "{refused}"
    );
    assert_eq!(held(&hub, "definition.trouble").await, None, "a bad definition changes nothing");

    let failed = definition("trouble", &json!({"select": {"standings": ["failed"]}, "groupBy": "site"}));
    let defined = until("it is taken", || apply(&hub, &failed), |answer| answer.get("error").is_none()).await;
    assert_eq!(defined["name"], "trouble");
    let view = || held(&hub, "view.trouble");
    let total = |view: &Option<Value>, wanted: u64| {
        view.as_ref().is_some_and(|view| {
            view["total"]["targets"] == json!(wanted) && view["asOf"]["ledgerSeq"].is_u64()
        })
    };
    until("the view", view, |view| total(view, 1)).await;
    devices[1].reports(&hub, "db", "failed").await;
    devices[2].reports(&hub, "db", "failed").await;
    let seen = until("what came since", view, |view| total(view, 3)).await.unwrap();
    assert_eq!(seen["groups"][0]["name"], "plant7", "{seen}");
    assert_eq!((&seen["groups"][0]["targets"], &seen["groups"][1]["targets"]), (&json!(2), &json!(1)));
    let asked = request(&hub, &format!("{QUERY_PREFIX}.view"), &json!({"view": "trouble"})).await;
    assert_eq!(asked["digest"], seen["digest"]);

    let edited = definition("trouble", &json!({"count": "devices"}));
    assert_eq!(apply(&hub, &edited).await["changed"], true);
    assert_eq!(apply(&hub, &edited).await["changed"], false);
    let devices_counted = |view: &Option<Value>| {
        view.as_ref().is_some_and(|view| view["total"]["devices"] == json!({"fresh": 2, "stale": 1}))
    };
    until("the edited view", view, devices_counted).await;

    let removed = request(&hub, &format!("{VIEW_PREFIX}.remove"), &json!({"name": "trouble"})).await;
    assert_eq!(removed["changed"], true);
    until("the view is gone", view, Option::is_none).await;
    let again = request(&hub, &format!("{VIEW_PREFIX}.remove"), &json!({"name": "trouble"})).await;
    assert_eq!(again["error"]["code"], "notFound");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn m42_an_edited_view_equals_a_replay_and_an_undefined_one_is_an_error() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let first = definition("trouble", &json!({"select": {"standings": ["failed"]}, "groupBy": "site"}));
    until("it is taken", || apply(&hub, &first), |answer| answer.get("error").is_none()).await;
    let view = || held(&hub, "view.trouble");
    until("the view as it was", view, Option::is_some).await;
    // The facts that the edited view counts came before the definition.
    devices[1].reports(&hub, "db", "failed").await;
    let edited = definition("trouble", &json!({"select": {"deployments": ["db"]}, "groupBy": "deployment"}));
    assert_eq!(apply(&hub, &edited).await["changed"], true);
    let by_deployment = |view: &Option<Value>| {
        view.as_ref().is_some_and(|view| {
            view["groups"][0]["name"] == "db" && view["groups"][0]["counts"]["failed"].is_object()
        })
    };
    let seen = until("the edited view", view, by_deployment).await.unwrap();
    rollup.drain().await;

    // Nothing kept: LEDGER from its first fact, and the definition.
    let fresh = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, fresh.path()).await;
    rollup.ready().await;
    let replayed =
        until("the view is counted", || asked(&hub, "trouble"), |answer| answer.get("error").is_none()).await;
    assert_eq!(replayed["digest"], seen["digest"], "{replayed} {seen}");

    let missing = asked(&hub, "troubel").await;
    assert_eq!(missing["error"]["code"], "notFound", "{missing}");
    assert!(missing["error"]["message"].as_str().unwrap().contains("troubel"), "{missing}");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_definitions_and_drops_those_removed_meanwhile() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    for name in ["kept", "left"] {
        let definition = definition(name, &json!({"groupBy": "deployment"}));
        until("it is taken", || apply(&hub, &definition), |answer| answer.get("error").is_none()).await;
        let key = format!("view.{name}");
        until("its view", || held(&hub, &key), Option::is_some).await;
    }
    rollup.drain().await;
    hub.bus.view_delete("definition.left", None).await.unwrap();
    let before = hub.bus.view_last("view.kept").await.unwrap().unwrap();

    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    until("what is not defined is gone", || held(&hub, "view.left"), Option::is_none).await;
    let still = Instant::now() + STILL;
    while Instant::now() < still {
        let now = hub.bus.view_last("view.kept").await.unwrap().unwrap();
        assert_eq!(now.revision, before.revision, "a restart neither deletes a view nor writes it again");
        tokio::task::yield_now().await;
    }
    devices[0].reports(&hub, "db", "installed").await;
    let installed = |view: &Option<Value>| {
        view.as_ref().is_some_and(|view| view["groups"][0]["counts"]["installed"].is_object())
    };
    until("the view goes on", || held(&hub, "view.kept"), installed).await;
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_defined_view_is_written_no_more_often_than_any_other() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let all = definition("all", &json!({}));
    until("it is taken", || apply(&hub, &all), |answer| answer.get("error").is_none()).await;
    until("its view", || held(&hub, "view.all"), Option::is_some).await;
    let mut watch = hub.bus.view_watch("view.all").await.unwrap();
    let begun = Instant::now();
    for step in 0..300 {
        devices[0].reports(&hub, "web", ["installing", "installed"][step % 2]).await;
    }
    let end = json!({"installed": {"fresh": 2, "stale": 1}, "failed": {"fresh": 1}, "waiting": {"fresh": 1, "stale": 1}});
    let (mut written, mut last) = (0, Value::Null);
    while last["total"]["counts"] != end || last["asOf"]["ledgerSeq"].as_u64() < Some(300) {
        let batch = tokio::time::timeout(PATIENCE, watch.next_batch(10)).await;
        let Ok(batch) = batch else { break };
        for entry in batch.unwrap() {
            written += 1;
            last = serde_json::from_slice(&entry.value.unwrap_or_else(Bytes::new)).unwrap();
        }
    }
    assert_eq!(last["total"]["counts"], end, "the last write shows the final state");
    let allowed = begun.elapsed().as_secs_f64() * f64::from(VIEW_WRITES_PER_SECOND) + 2.0;
    assert!(f64::from(written) <= allowed, "{written} writes, {allowed} are allowed");
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_told_of_any_point_and_defined_views_of_the_present_alone() {
    let hub = Hub::start().await;
    let mut devices = small_fleet(&hub).await;
    devices[0].labelled(&hub, &["web", "db"], json!({"ring": "one"})).await;
    let then = hub.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    devices[0].labelled(&hub, &["web", "db"], json!({"ring": "two"})).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    rollup.reads_to(then + 1).await;
    let ask = |what: &'static str, question: Value| {
        let hub = &hub;
        let ask = move || {
            let question = question.clone();
            async move { request(hub, &format!("{QUERY_PREFIX}.{what}"), &question).await }
        };
        until("an answer", ask, |answer| answer["error"]["code"] != "notReady")
    };
    let groups = ask("groups", json!({"label": "ring", "atSeq": then})).await;
    assert_eq!((&groups["asOf"]["ledgerSeq"], &groups["groups"][0]["value"]), (&json!(then), &json!("one")));
    let now = ask("groups", json!({"label": "ring"})).await;
    assert_eq!(now["groups"][0]["value"], "two", "{now}");
    let one = ask("group", json!({"label": "ring", "value": "one", "atSeq": then})).await;
    assert_eq!(one["targets"], 2, "{one}");
    assert_eq!(ask("labels", json!({"atSeq": then})).await["labels"][0]["devices"], json!({"fresh": 1}));
    for (what, question) in [
        ("groups", json!({"label": "ring", "at": "yesterday"})),
        ("views", json!({"atSeq": then})),
        ("view", json!({"view": "trouble", "atSeq": then})),
    ] {
        assert_eq!(ask(what, question).await["error"]["code"], "badRequest", "{what}");
    }
    rollup.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_beyond_the_limit_is_refused_and_replaces_none() {
    let hub = Hub::start().await;
    small_fleet(&hub).await;
    let dir = tempfile::tempdir().unwrap();
    let rollup = Rollup::start(&hub, dir.path()).await;
    rollup.ready().await;
    let none = json!({});
    for number in 1..DEFINED_VIEWS_MAX {
        let answer = apply(&hub, &definition(&format!("view-{number:02}"), &none)).await;
        assert_eq!(answer["changed"], true, "{answer}");
    }
    // Three want the last place at once.
    let late = ["a-first", "a-second", "a-third"].map(|name| definition(name, &none));
    let answers = tokio::join!(apply(&hub, &late[0]), apply(&hub, &late[1]), apply(&hub, &late[2]));
    let answers = [answers.0, answers.1, answers.2];
    let taken = answers.iter().filter(|answer| answer["changed"] == true).count();
    let refused = answers.iter().filter(|answer| answer["error"]["code"] == "conflict").count();
    assert_eq!((taken, refused), (1, 2), "{answers:?}");
    let subject = format!("{QUERY_PREFIX}.views");
    let views = || request(&hub, &subject, &none);
    let count = |answer: &Value| answer["views"].as_array().map_or(0, Vec::len);
    until("as many as may be", views, |answer| count(answer) == DEFINED_VIEWS_MAX).await;

    // One that some other program wrote is listed, and counts nothing.
    let name: ViewName = "a-smuggled".parse().unwrap();
    let bytes = Bytes::from(definition(name.as_str(), &none).to_string());
    hub.bus.view_put(&definition_key(&name), bytes, Some(0)).await.unwrap();
    let listed = until("it is listed", views, |answer| count(answer) > DEFINED_VIEWS_MAX).await;
    let uncounted: Vec<_> = listed["views"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["uncounted"] == true)
        .map(|line| line["definition"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(uncounted, ["a-smuggled"]);
    let asked = request(&hub, &format!("{QUERY_PREFIX}.view"), &json!({"view": name})).await;
    assert_eq!(asked["error"]["code"], "conflict", "{asked}");
    rollup.drain().await;
}
