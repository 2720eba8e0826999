//! Tests lines at the top: those of one hub with all facts, page for page. `services/federation/tests/lines`
//! tests the split and the merge on many fleets.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_tests::system::program;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};

use crate::{Hub, LONG, NORTH, Place, SHORT, SOUTH, Two, failure};

/// Pages that one question may take.
const PAGES_MAX: usize = 50;

/// An answer without where its LEDGER holds what: each LEDGER has sequences of its own.
pub(crate) fn without_sequences(mut answer: Value) -> Value {
    match &mut answer {
        Value::Object(fields) => {
            fields.retain(|name, _| !["asOf", "ledgerSeq"].contains(&name.as_str()));
            fields.values_mut().for_each(|field| *field = without_sequences(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_sequences(item.take())),
        _ => {}
    }
    answer
}

/// All pages of an answer; how many lines there are.
async fn same_pages(top: &Place, whole: &Place, what: &str, mut question: Value) -> usize {
    let mut lines = 0;
    for _ in 0..PAGES_MAX {
        let seen = without_sequences(top.ask(what, question.clone()).await);
        let wanted = without_sequences(whole.ask(what, question.clone()).await);
        assert_eq!(seen, wanted, "{what} {question}");
        let rows = if what == "status" { "targets" } else { "devices" };
        lines += seen[rows].as_array().map_or(0, Vec::len);
        if seen["next"].is_null() {
            return lines;
        }
        question["after"] = seen["next"].clone();
    }
    panic!("the pages of {what} {question} come to no end");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_over_two_hubs_are_those_of_one_hub_with_all_facts_page_for_page() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let whole = Hub::start(NORTH.chain(SOUTH)).await;
    for device in [NORTH.end - 1, SOUTH.start, SOUTH.start + 3] {
        let at = if NORTH.contains(&device) { &north } else { &south };
        at.put([failure(device)]).await;
        whole.put([failure(device)]).await;
    }
    let look = || async {
        let failed = top.view("deployment.web").await["errors"][0]["count"].clone();
        (whole.place.digests().await, top.digests().await, failed)
    };
    let settled =
        |(wanted, seen, failed): &(BTreeMap<String, Digest>, _, Value)| wanted == seen && *failed == json!(3);
    until("the failures, at the top as in the whole", look, settled).await;

    let (devices, targets) = (NORTH.len() + SOUTH.len(), 3 * (NORTH.len() + SOUTH.len()));
    let on = [format!("site-0/device-{}", NORTH.start), format!("site-1/device-{}", SOUTH.start)];
    for (what, question, lines) in [
        ("status", json!({"id": "web", "output": "all"}), devices),
        ("status", json!({"id": "web", "output": "all", "limit": 5}), devices),
        ("status", json!({"id": "web", "output": "detail", "limit": 8}), devices),
        ("status", json!({"output": "all", "limit": 7}), targets),
        ("status", json!({"output": "all", "component": ["main"], "limit": 20}), targets),
        ("status", json!({"output": "all", "device": on, "limit": 2}), 6),
        ("status", json!({"component": ["main"]}), 0),
        ("status", json!({}), 0),
        ("devices", json!({}), devices),
        ("devices", json!({"limit": 4}), devices),
        ("devices", json!({"freshness": ["fresh"], "limit": 5}), devices),
        ("devices", json!({"freshness": ["stale", "never"]}), 0),
        ("status", json!({"id": "web", "output": "brief", "limit": 5}), devices),
        ("status", json!({"id": "web", "standing": ["failed"], "output": "brief"}), 3),
        ("status", json!({"error": ["E1"], "freshness": ["fresh"], "output": "all", "limit": 2}), 3),
    ] {
        assert_eq!(same_pages(&top, &whole.place, what, question.clone()).await, lines, "{what} {question}");
    }
    let detail = top.ask("status", json!({"id": "web", "output": "detail"})).await;
    assert_eq!(detail["manifests"].as_object().map(serde_json::Map::len), Some(1), "what shall run, once");
    assert_eq!(detail.get("manifestsLeftOut"), None);
    // For sites at several hubs the message about errors is one hub's; everything else is equal.
    let question = json!({"id": "web", "site": ["site-0", "site-1"], "output": "all"});
    let [seen, wanted] = [&top, &whole.place].map(|place| place.ask("status", question.clone()));
    let [mut seen, mut wanted] = [without_sequences(seen.await), without_sequences(wanted.await)];
    let words = seen["rollup"]["message"].take();
    assert!(words.as_str().unwrap().starts_with("at the hub north: E1 on 1 of 12"), "{words}");
    wanted["rollup"]["message"] = Value::Null;
    assert_eq!(seen, wanted);
    federation.drain().await;
}

/// The command line's output for a place.
pub(crate) async fn said(place: &Place, words: &[&str]) -> Value {
    let mut command = tokio::process::Command::new(program("muster"));
    let url = place.server.hub_url();
    command.args(["--nats-url", &url]).args(words).args(["--format", "json"]);
    let done = soon("the command line", command.output()).await.unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    without_sequences(serde_json::from_slice(&done.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_the_lines_of_two_hubs_as_those_of_one() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let whole = Hub::start(NORTH.chain(SOUTH)).await;
    let all = "status web --output all";
    for words in [
        all,
        "status web --output brief",
        "status web --output detail",
        "status --site site-0 --site site-1",
        "status web --component main --output all --limit 5",
        "devices",
        "devices --freshness fresh",
        "devices --freshness stale --freshness never",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(said(&top, &words).await, said(&whole.place, &words).await, "{words:?}");
    }
    let lines = said(&top, &all.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(lines["targets"].as_array().map(Vec::len), Some(NORTH.len() + SOUTH.len()), "{lines}");
    federation.drain().await;
    drop((north, south));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_list_leaves_out_the_lines_of_a_hub_that_is_away() {
    let Two { north, mut south, top, federation } = Two::start(SHORT).await;
    south.place.server.kill();
    for (what, question) in [
        ("status", json!({"id": "web", "output": "all"})),
        ("status", json!({"output": "all", "site": ["site-0", "site-1"]})),
        ("devices", json!({})),
        ("status", json!({"id": "web", "output": "brief"})),
    ] {
        let error = top.ask(what, question.clone()).await["error"].clone();
        assert_eq!(error["code"], "notReady", "{what} {question}: {error}");
        assert!(error["message"].as_str().unwrap().contains("hub south"), "{what} {question}: {error}");
    }
    let of_north = top.ask("status", json!({"id": "web", "site": ["site-0"], "output": "all"})).await;
    assert_eq!(of_north["targets"].as_array().map(Vec::len), Some(NORTH.len()), "{of_north}");
    south.place.server.restart();
    let listed = || async { top.ask("devices", json!({})).await["devices"].as_array().map(Vec::len) };
    until("all lines again", listed, |lines| *lines == Some(NORTH.len() + SOUTH.len())).await;
    federation.drain().await;
    drop(north);
}
