//! Tests that the top's views are the sums, digest for digest, and that each is written once.

use std::collections::BTreeMap;

use muster_bus::ViewResult;
use muster_contract::canonical::Digest;
use muster_contract::limits::VIEW_ERRORS_MAX;
use muster_contract::parts::HUBS_KEY;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};

use crate::{Federation, Hub, LONG, NORTH, Place, SOUTH, Two, begun, failure};

#[tokio::test(flavor = "multi_thread")]
async fn the_top_says_what_one_hub_with_all_facts_would_say_digest_for_digest() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let whole = Hub::start(NORTH.chain(SOUTH)).await;
    let look = || async { (whole.place.digests().await, top.digests().await) };
    let (wanted, _) = until("the views of the whole", look, |(wanted, seen)| wanted == seen).await;
    let keys: Vec<&str> = wanted.keys().map(String::as_str).collect();
    let keys_wanted = [
        "deployment.db",
        "deployment.log",
        "deployment.web",
        "fleet",
        "group.ring.inner",
        "group.ring.outer",
        "site.site-0",
        "site.site-1",
    ];
    assert_eq!(keys, keys_wanted);

    // Failures with one error code at both hubs, a device that moves to another ring, and one that is silent.
    let (fails, moves) = ([NORTH.end - 1, SOUTH.start, SOUTH.start + 3], SOUTH.start + 2);
    for device in fails {
        let at = if NORTH.contains(&device) { &north } else { &south };
        at.put([failure(device)]).await;
        whole.put([failure(device)]).await;
    }
    let [(subject, desired), (heard, liveness)] = begun(moves);
    let desired = desired.replace("\"outer\"", "\"third\"").replace("\"inner\"", "\"third\"");
    let moved = desired.replace("\"generation\":1,\"issuedAt\"", "\"generation\":2,\"issuedAt\"");
    let silent = liveness.replace("\"fresh\"", "\"stale\"");
    let messages = [(subject, moved), (heard, silent)];
    south.put(messages.clone()).await;
    whole.put(messages).await;
    let changed = |(wanted_now, seen): &(BTreeMap<String, Digest>, _)| {
        *wanted_now == *seen
            && wanted_now["deployment.web"] != wanted["deployment.web"]
            && wanted_now.contains_key("group.ring.third")
    };
    until("the views of the whole after a change", look, changed).await;
    let web = top.view("deployment.web").await;
    assert_eq!((&web["errors"][0]["count"], &web["verdict"]), (&json!(3), &json!("failing")));

    for (what, question) in [
        ("fleet", json!({})),
        ("deployment", json!({"id": "web"})),
        ("deployments", json!({"limit": 2})),
        ("deployments", json!({"after": "db"})),
        ("site", json!({"site": "site-1"})),
        ("labels", json!({})),
        ("groups", json!({"label": "ring"})),
        ("groups", json!({"label": "ring", "id": "web", "limit": 1})),
        ("group", json!({"label": "ring", "value": "third"})),
    ] {
        let wanted = without_places(whole.place.ask(what, question.clone()).await);
        let seen = without_places(top.ask(what, question.clone()).await);
        assert_eq!(seen, wanted, "{what} {question}");
    }
    federation.drain().await;
}

/// An answer without up to where it has read: each LEDGER has sequences of its own.
fn without_places(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(fields) => {
            fields.remove("asOf");
            fields.values_mut().for_each(|field| *field = without_places(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_places(item.take())),
        _ => {}
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_writes_nothing_twice_and_a_standby_neither() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let ghost = json!({"apiVersion": "muster/v1", "kind": "SiteView", "left": "behind"});
    // When each hub was heard is news all the while.
    let revisions = || async {
        let views = top.views().await.into_iter().filter(|(key, _)| key != HUBS_KEY);
        views.map(|(key, (revision, _))| (key, revision)).collect::<BTreeMap<_, _>>()
    };
    until("all views", revisions, |views| views.len() == 8).await;
    federation.supervisor.abandon().await;
    soon("a view", top.bus.view_put("site.ghost", ghost.to_string().into(), None)).await.unwrap();
    let mut before = revisions().await;
    before.remove("site.ghost").unwrap();

    let hubs = [("north", &north), ("south", &south)];
    let (second, standby) =
        (Federation::start(&top, &hubs, LONG).await, Federation::start(&top, &hubs, LONG).await);
    for federation in [&second, &standby] {
        federation.ready().await;
        let views = before.len() as u64;
        let looked = || async { federation.handle.metrics.queries.views_with(ViewResult::Unchanged) };
        until("a look at every view", looked, |looks| *looks >= views).await;
    }
    let after =
        until("what an earlier life left to go", revisions, |views| !views.contains_key("site.ghost")).await;
    assert_eq!(after, before);
    // One of the two writes what changes.
    north.put([failure(NORTH.start)]).await;
    until("a change", || top.view("deployment.web"), |view| view["verdict"] == "failing").await;
    second.drain().await;
    standby.drain().await;
    drop(south);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_no_message_holds_comes_in_several() {
    const DEVICES: usize = 1_000;
    let (hub, top) = (Hub::start(0..DEVICES).await, Place::start().await);
    let federation = Federation::start(&top, &[("only", &hub)], LONG).await;
    federation.ready().await;
    // An error code of its own on every device: more than a view lists, and more than a message holds.
    let failures = (0..DEVICES).map(|device| {
        let (subject, report) = failure(device);
        (
            subject,
            report
                .replace("\"E1\"", &format!("\"{:x<100}-{device}\"", "E"))
                .replace("disk", &"disk ".repeat(80)),
        )
    });
    hub.put(failures).await;
    let look = || async { (hub.place.view("deployment.web").await, top.view("deployment.web").await) };
    let all = |(of_hub, seen): &(Value, Value)| {
        of_hub["digest"] == seen["digest"] && seen["omitted"]["errors"] == json!(DEVICES - VIEW_ERRORS_MAX)
    };
    let (_, seen) = until("every error", look, all).await;
    assert_eq!(
        (&seen["verdict"], seen["errors"].as_array().unwrap().len()),
        (&json!("failing"), VIEW_ERRORS_MAX)
    );
    federation.drain().await;
}
