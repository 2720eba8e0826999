//! A LEDGER that is deleted under running services: nobody misses it, what can be rebuilt is rebuilt, and `muster restore`
//! says what can be rebuilt from where; and a hub that is made again from a backup. The services run in this process; the device is the test.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod backup;
mod hub;
mod release;
mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::fact::Fact;
use muster_contract::incident::{HubIncident, Incident, IncidentAnswer, IncidentKind, IncidentsAnswer};
use muster_contract::query::{ErrorReply, PublisherStatus};
use muster_contract::subjects::{LedgerSubject, REQUEST_INCIDENT, stream};
use muster_ctl::render;
use muster_ctl::restore::{Answers, RestoreReport, Seen, Step, streams};
use muster_tests::command::muster;
use muster_tests::golden;
use muster_tests::schemas::example;
use muster_tests::server::Server;
use muster_tests::wait::until;
use serde_json::{Value, json};

use hub::{DRAIN, Hub, key};

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_is_recorded_before_it_is_answered_and_its_rate_is_bounded() {
    let hub = Hub::start().await;
    let ingest = hub.ingest().await;
    let view = |revision: u64| json!({"type": "foreignView", "key": "fleet", "revision": revision, "cause": "noView"});
    let answer: IncidentAnswer =
        serde_json::from_value(hub.request(REQUEST_INCIDENT, &view(1)).await).unwrap();
    let at = hub.bus.at(stream::LEDGER, answer.ledger_seq.unwrap()).await.unwrap().unwrap();
    assert_eq!(at.subject, "muster.incident._._");
    let mut document =
        json!({"type": "foreignDocument", "downlinkSeq": 9, "cause": "empty", "reason": "empty"});
    (document["site"], document["device"]) = (json!("plant7"), json!("press-4"));
    hub.request(REQUEST_INCIDENT, &document).await;
    let of_device = hub.fact(&LedgerSubject::Incident(Some(key()))).await.unwrap();
    assert!(matches!(of_device, Fact::Incident(Incident { what: IncidentKind::ForeignDocument { .. }, .. })));

    let mut recorded = 0;
    for revision in 2..60 {
        recorded += u64::from(hub.request(REQUEST_INCIDENT, &view(revision)).await["ledgerSeq"].is_u64());
    }
    assert!((9..=20).contains(&recorded), "{recorded} of 58 are recorded");
    let refused = hub.request(REQUEST_INCIDENT, &json!({"type": "clockSkew", "seconds": 9})).await;
    let refused: ErrorReply = serde_json::from_value(refused).unwrap();
    assert!(refused.error.message.contains("found by ingest itself"), "{refused:?}");
    ingest.drain(DRAIN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_ledger_is_an_incident_and_what_can_be_rebuilt_is_rebuilt() {
    let (hub, key) = (Hub::start().await, key());
    let (ingest, rollup) = (hub.ingest().await, hub.rollup().await);
    let (publisher, _handle) = hub.publisher().await;
    let documents = "id: web\nmetadata: {name: web}\nspec:\n  applicationId: com-example-web\n  deploymentProfile:\n    \
         type: process\n    components:\n      - name: main\n        properties: {command: run}\n";
    let apply = json!({"site": "plant7", "device": "press-4", "documents": documents});
    let answer = hub.request("muster.publisher.apply", &apply).await;
    assert_eq!(answer["generation"], 1, "{answer}");
    for seq in 1..=2 {
        hub.report(&key, seq, 2).await;
    }
    let beaten = async || {
        hub.beat(&key, 2).await;
        hub.receipt(&key).await
    };
    until("the receipt", beaten, |seen| *seen == Some((2, String::new()))).await;
    let known = hub.bus.stream_state(stream::LEDGER).await.unwrap();

    hub.request("$JS.API.STREAM.DELETE.LEDGER", &json!({})).await;
    let ended = async || ingest.failure().is_some() && hub.bus.stream_state(stream::LEDGER).await.is_ok();
    until("ingest makes LEDGER and ends", ended, |ended| *ended).await;
    ingest.drain(DRAIN).await;
    let ingest = hub.ingest().await;

    let incident = until("the incident", async || hub.hub_incident().await, Option::is_some).await.unwrap();
    let IncidentKind::LedgerReplaced { known_created_at, .. } = incident.what else { panic!("{incident:?}") };
    assert_eq!(known_created_at, known.created_at);
    let desired = async || hub.fact(&LedgerSubject::Desired(key.clone())).await;
    until("the desired state, from DOWNLINK", desired, Option::is_some).await;
    let asked = async || {
        hub.beat(&key, 2).await;
        hub.receipt(&key).await
    };
    until("the receipt asks again", asked, |seen| {
        *seen == Some((2, "1-2".to_owned())) || *seen == Some((0, String::new()))
    })
    .await;
    for seq in 1..=2 {
        hub.report(&key, seq, 2).await;
    }
    until("everything is in again", beaten, |seen| *seen == Some((2, String::new()))).await;
    let view = async || {
        let entry = hub.bus.view_get("deployment.web").await.ok().flatten()?;
        let view: Value = serde_json::from_slice(&entry.value?).ok()?;
        Some(view["targets"].clone())
    };
    until("the view", view, |targets| *targets == Some(json!(1))).await;

    let url = hub.server.url();
    let shown = async || muster(&url, &["status"]).await;
    let said = until("status", shown, |said| said.err.contains("LEDGER was replaced")).await;
    assert_eq!(said.code, 0, "{said:?}");
    let audit = muster(&url, &["audit"]).await;
    assert!(audit.code == 1 && audit.out.contains("LEDGER was replaced within 24 h"), "{audit:?}");
    let restore = muster(&url, &["restore", "--format", "json"]).await;
    let report: Value = serde_json::from_str(&restore.out).unwrap();
    assert!(restore.code == 1 && report["complete"] == false, "{restore:?}");
    assert_eq!((&report["streams"][1]["state"], &report["ingestAnswers"]), (&json!("present"), &json!(true)));
    assert!(hub.dir.path().join("rollup").exists());
    for supervisor in [ingest, rollup, publisher] {
        supervisor.drain(DRAIN).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_names_what_is_missing_and_who_does_not_answer() {
    let server = Server::start();
    let said = muster(&server.url(), &["restore"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    for words in [
        "LEDGER is missing",
        "ingest does not answer",
        "the rollup does not answer",
        "the publisher does not answer",
        "the hub's incidents are not known: ",
    ] {
        assert!(said.out.contains(words), "{words}: {}", said.out);
    }
    let said = muster(&server.url(), &["fleet"]).await;
    assert!(said.err.contains("the hub's incidents are not known: "), "{said:?}");
}

#[test]
fn what_restore_says_is_on_record() {
    let present = |messages| Seen::Existing {
        created_at: now() - Duration::from_secs(7_200),
        messages,
        bytes: messages * 900,
        first_seq: 1,
        last_seq: messages,
    };
    let publisher: PublisherStatus = example("PublisherStatus.without-git");
    let answers = Answers {
        rollup_read_to: Some(471),
        views_read_to: Some(471),
        publisher: Some(publisher),
        ingest_answers: Some(true),
        incidents: Ok(Vec::new()),
    };
    let whole = RestoreReport::of(streams().map(|_| present(471)), answers.clone());
    golden("restore-nothing-missing", &render::restore::report(&whole, now()));

    let hidden = streams().map(|name| if name == stream::LEDGER { present(471) } else { Seen::NotVisible });
    let unknown = Answers { ingest_answers: None, incidents: Err("no answer".to_owned()), ..answers.clone() };
    let partly = RestoreReport::of(hidden, unknown);
    assert!(!partly.complete && partly.steps.is_empty(), "what was not checked may be missing");
    golden("restore-not-checked", &render::restore::report(&partly, now()));

    let silent = Answers { ingest_answers: Some(false), ..answers.clone() };
    let silent = RestoreReport::of(streams().map(|_| present(471)), silent);
    assert!(!silent.complete && silent.steps[0].what.contains("ingest does not answer"), "{silent:?}");

    let incidents: IncidentsAnswer = example("IncidentsAnswer.one");
    let replaced =
        HubIncident { incident: example("Incident.ledger-replaced"), ..incidents.incidents[0].clone() };
    let answers =
        Answers { publisher: None, views_read_to: Some(9_000), incidents: Ok(vec![replaced]), ..answers };
    let (hidden, missing) = (|| Seen::NotVisible, || Seen::Missing);
    let seen = [
        hidden(),
        present(471),
        missing(),
        hidden(),
        present(3),
        present(1),
        present(4),
        missing(),
        missing(),
        present(2),
    ];
    assert_eq!(seen.len(), streams().count());
    let broken = RestoreReport::of(seen, answers);
    assert!(whole.complete && !broken.complete);
    let is_of_plans = |step: &&Step| step.what.contains("PLANS");
    assert_eq!(broken.steps.iter().find(is_of_plans), None, "a hub may keep no plans");
    golden("restore-broken", &render::restore::report(&broken, now()));
    let json = serde_json::to_string_pretty(&broken).unwrap() + "\n";
    golden("restore-json", &json);
}

fn now() -> Timestamp {
    "2026-08-22T12:00:00Z".parse().unwrap()
}

fn golden(name: &str, text: &str) {
    let plain = anstream::adapter::strip_str(text).to_string();
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/ctl/{name}.txt"));
    if let Some(difference) = golden::difference(&file, &plain, "UPDATE_GOLDEN") {
        panic!("{difference}to accept: UPDATE_GOLDEN=1 cargo test -p muster-tests --test restore");
    }
}
