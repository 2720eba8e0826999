//! Tests questions at the top: who answers, and who may ask whom.

use std::collections::BTreeMap;

use clap::Parser;
use muster_bus::Bus;
use muster_contract::Timestamp;
use muster_contract::parts::HubList;
use muster_identity::Role;
use muster_service::supervisor::{Drained, Supervisor};
use muster_tests::guarded::Guarded;
use muster_tests::ledger::{beginning, publish};
use muster_tests::system::program;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{DRAIN, Federation, Hub, LONG, NORTH, PATIENCE, Place, SOUTH, Two};

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_one_site_is_answered_by_its_hub() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let device = json!({"site": "site-1", "device": format!("device-{}", SOUTH.start), "output": "detail"});
    let detail = || top.ask("status", json!({"id": "web", "site": ["site-1"], "output": "detail"}));
    let all_told = |answer: &Value| {
        let told = answer["manifests"].as_object().is_some_and(|manifests| !manifests.is_empty());
        told && answer.get("manifestsLeftOut").is_none()
    };
    until("what shall run at the hub", detail, all_told).await;
    for (hub, what, question) in [
        (&south, "device", device.clone()),
        (&north, "devices", json!({"site": "site-0", "limit": 3})),
        (&north, "devices", json!({"site": "site-0", "freshness": ["stale", "never"]})),
        (&south, "status", json!({"id": "web", "site": ["site-1"], "output": "all"})),
        (&south, "status", json!({"id": "web", "site": ["site-1"], "output": "detail"})),
        (&south, "status", json!({"device": [format!("site-1/device-{}", SOUTH.start)]})),
        (&north, "device", json!({"site": "site-0", "device": "nobody"})),
        (&south, "deployments", json!({"site": "site-1"})),
    ] {
        assert_eq!(
            top.ask(what, question.clone()).await,
            hub.place.ask(what, question.clone()).await,
            "{what} {question}"
        );
    }
    let targets = async |sites: Value| {
        let listed = top.ask("deployments", json!({ "site": sites })).await;
        listed["deployments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["targets"].as_u64().unwrap())
            .sum::<u64>()
    };
    let (one, other) = (targets(json!("site-0")).await, targets(json!("site-1")).await);
    assert_eq!(targets(json!(["site-0", "site-1"])).await, one + other, "sites of two hubs are added");

    for (what, question, code, says) in [
        ("status", json!({"id": "nothing"}), "notFound", "nothing"),
        ("verify", json!({}), "badRequest", "north, south"),
        ("views", json!({}), "badRequest", "ask the hub itself"),
        ("deployment", json!({"id": "nothing"}), "notFound", "nothing"),
        (
            "deployment",
            json!({"id": "web", "output": "all"}),
            "badRequest",
            "`status` has a line for each device",
        ),
        ("devices", json!({"site": "nowhere"}), "notFound", "nowhere"),
    ] {
        let error = &top.ask(what, question.clone()).await["error"];
        assert_eq!(error["code"], code, "{what} {question}: {error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{what} {question}: {error}");
    }
    let hubs: HubList = serde_json::from_value(top.ask("hubs", json!({})).await).unwrap();
    let lines: Vec<_> = hubs.hubs.iter().map(|hub| (hub.name.as_str(), hub.heard, hub.sites)).collect();
    assert_eq!(lines, [("north", true, 1), ("south", true, 1)]);
    federation.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_refused_and_the_hub_to_ask_is_named() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    let then = Timestamp::now();
    for (what, question, ask) in [
        ("fleet", json!({"atSeq": 3}), "ask a hub itself"),
        ("deployment", json!({"id": "web", "eventTime": then}), "ask a hub itself"),
        (
            "status",
            json!({"id": "web", "site": ["site-0", "site-1"], "at": then}),
            "the hubs north, south one by one",
        ),
        ("devices", json!({"site": "site-1", "at": then}), "ask the hub south itself"),
        ("diff", json!({"id": "web", "from": {"at": then}}), "ask a hub itself"),
    ] {
        let error = &top.ask(what, question.clone()).await["error"];
        assert_eq!(error["code"], "badRequest", "{what} {question}: {error}");
        let words = error["message"].as_str().unwrap();
        assert!(
            words.contains(ask) && words.contains("of the hubs north, south"),
            "{what} {question}: {error}"
        );
    }
    let then = then.to_string();
    for words in [
        &["site", "site-0", "--at", &then][..],
        &["devices", "--site", "site-0", "--at", &then],
        &["status", "web", "--site", "site-0", "--event-time", &then],
        &["why", "web", "--site", "site-0", "--at", &then],
        &["diff", "web", "--site", "site-0", "--from", &then],
    ] {
        let said = refusal(&top, words).await;
        assert!(said.contains("ask the hub north itself (`muster --nats-url …`)"), "{words:?}: {said}");
    }
    federation.drain().await;
    drop((north, south));
}

/// The error of a command that is refused.
async fn refusal(place: &Place, words: &[&str]) -> String {
    let mut command = tokio::process::Command::new(program("muster"));
    command.args(["--nats-url", &place.server.hub_url()]).args(words);
    let done = soon("the command line", command.output()).await.unwrap();
    assert!(!done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stdout));
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// Adds the numbers of one answer to those of another, field by field. Other fields are left out.
fn add_numbers(sum: &mut BTreeMap<String, u64>, path: &str, value: &Value) {
    match value {
        Value::Number(number) => *sum.entry(path.to_owned()).or_default() += number.as_u64().unwrap(),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| add_numbers(sum, &format!("{path}.{name}"), value));
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_after_filters_are_the_sum_of_those_of_all_hubs() {
    let Two { north, south, top, federation } = Two::start(LONG).await;
    for question in
        [json!({}), json!({"id": "web"}), json!({"id": "web", "component": ["main"], "status": "ready"})]
    {
        let (mut wanted, mut seen) = (BTreeMap::new(), BTreeMap::new());
        for hub in [&north, &south] {
            let answer = hub.place.ask("status", question.clone()).await;
            assert!(answer["rollup"]["targets"].as_u64().unwrap() > 0, "{question}: {answer}");
            add_numbers(&mut wanted, "", &answer["rollup"]);
        }
        let answer = top.ask("status", question.clone()).await;
        add_numbers(&mut seen, "", &answer["rollup"]);
        assert_eq!(seen, wanted, "{question}");
        assert_eq!(answer["whole"], true, "{answer}");
        if question["id"].is_string() {
            let view = top.ask("deployment", json!({"id": "web"})).await;
            assert_eq!(answer["verdict"], view["view"]["verdict"], "{question}");
        }
    }
    federation.drain().await;
}

/// The settings of a service for a guarded server, with the rights of a role: address, authority and
/// credentials.
fn rights(server: &Guarded, role: Role) -> [String; 3] {
    let authority = server.authority().unwrap().display().to_string();
    [server.url(), authority, server.creds(role).display().to_string()]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_a_subscriber_at_a_hub_and_of_a_rollup_at_the_top_suffice() {
    let (hub, top, dir) = (Guarded::start(), Guarded::start(), tempfile::tempdir().unwrap());
    let [url, authority, creds] = rights(&hub, Role::Rollup);
    let words = ["muster-rollup", "--data-dir", dir.path().to_str().unwrap(), "--nats-url", &url];
    let keeper = hub.creds(Role::Keeper).display().to_string();
    let words =
        [&words[..], &["--tls-ca", &authority, "--creds", &creds, "--readers-creds", &keeper]].concat();
    let config = muster_rollup::config::Cli::try_parse_from(words).unwrap().check().unwrap();
    let rollup = Supervisor::new();
    let _rollup = soon("a rollup", muster_rollup::app::start(config, &rollup)).await.unwrap();

    let [url, authority, creds] = rights(&hub, Role::Subscriber);
    let of_hub = [format!("hub={url}"), format!("hub={authority}"), format!("hub={creds}")];
    let [url, authority, creds] = rights(&top, Role::Rollup);
    let words =
        ["muster-federation", "--hub", &of_hub[0], "--hub-tls-ca", &of_hub[1], "--hub-creds", &of_hub[2]];
    let keeper = top.creds(Role::Keeper).display().to_string();
    let words = [&words[..], &["--nats-url", &url, "--tls-ca", &authority, "--creds", &creds]].concat();
    let words = [&words[..], &["--readers-creds", &keeper]].concat();
    let config = muster_federation::config::Cli::try_parse_from(words).unwrap().check().unwrap();
    let supervisor = Supervisor::new();
    let handle = soon("a federation", muster_federation::app::start(config, &supervisor)).await.unwrap();
    let federation = Federation { supervisor, handle };
    federation.ready().await;

    let stop = CancellationToken::new();
    let ingest = soon("ingest", Bus::connect(hub.config(Role::Ingest), &stop)).await.unwrap();
    let [_, heard] = beginning(0);
    publish(&ingest, [heard]).await;
    let viewer = soon("a viewer", Bus::connect(top.config(Role::Viewer), &stop)).await.unwrap();
    let fleet = || async {
        let view = viewer.view_get("fleet").await.unwrap().and_then(|entry| entry.value)?;
        serde_json::from_slice::<Value>(&view).ok()
    };
    let one = |view: &Option<Value>| view.as_ref().is_some_and(|view| view["devices"] == json!({"fresh": 1}));
    until("the device", fleet, one).await;
    let question = json!({"site": "site-0"}).to_string();
    let answer = viewer.request("muster.query.devices", question.into(), PATIENCE).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["devices"][0]["device"], "device-0", "{answer}");
    federation.drain().await;
    assert_eq!(rollup.drain(DRAIN).await, Drained::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_is_no_top() {
    let hub = Hub::start(NORTH).await;
    let url = hub.place.server.hub_url();
    let other = url.replace("127.0.0.1", "localhost");
    let words = ["muster-federation", "--nats-url", &other, "--hub", &format!("north={url}")];
    let config = muster_federation::config::Cli::try_parse_from(words).unwrap().check().unwrap();
    let refusal =
        soon("a refusal", muster_federation::app::start(config, &Supervisor::new())).await.unwrap_err();
    assert!(refusal.to_string().contains("--nats-url is a hub"), "{refusal}");
}
