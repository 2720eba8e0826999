//! The publisher verifies DOWNLINK: it replaces foreign documents and restores lost ones at once, and reports both as
//! incidents. Publishers do not replace each other's documents.

use std::time::Duration;

use bytes::Bytes;
use muster_bus::Outgoing;
use muster_contract::incident::ForeignDocument;
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Generation, decode};
use muster_tests::incidents::IncidentLog;
use muster_tests::wait::{until, within};

use crate::requests::apply;
use crate::stage::{Stage, deployment};

/// Time within which the publisher replaces a foreign document.
const REPLACED_WITHIN: Duration = Duration::from_secs(2);

async fn put(stage: &Stage, device: &str, payload: impl Into<Bytes>) {
    let subject = subjects::desired(&device.parse().unwrap());
    stage.bus.publish(Outgoing::new(subject, payload.into())).await.unwrap();
}

/// Generation and deployments of a device, if its last message is a document.
async fn shown(stage: &Stage, device: &str) -> Option<(u64, Vec<String>)> {
    let last = stage.last(device).await?;
    decode::parse::<muster_contract::desired::DesiredState>(&last.payload).ok()?;
    Some(stage.shown(device).await)
}

async fn reported(incidents: &IncidentLog, device: &str, cause: ForeignDocument) {
    let wanted = (device.to_owned(), cause);
    until("the incident", async || incidents.of_documents(), |seen| seen.contains(&wanted)).await;
}

async fn api(stage: &Stage, verb: &str) {
    let answer = stage.bus.request(&format!("$JS.API.{verb}"), Bytes::new(), Duration::from_secs(5)).await;
    let answer: serde_json::Value = serde_json::from_slice(&answer.unwrap()).unwrap();
    assert!(answer["error"].is_null(), "{verb}: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_damaged_document_is_replaced_within_two_seconds() {
    let stage = Stage::new().await;
    let incidents = IncidentLog::start(&stage.bus).await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    stage.write("sites/a/two/web.yaml", "web", "other");
    let publisher = stage.publisher().await;
    publisher.applied(&stage.commit().await).await;
    let old = stage.last("a/one").await.unwrap().payload;
    apply(&stage, "a/one", deployment("db", "run")).await.unwrap();
    let of_another = stage.last("a/two").await.unwrap().payload;
    let right = stage.shown("a/one").await.1;
    let mut newer = stage.document("a/one").await;
    newer.generation = Generation::new(40).unwrap();
    newer.deployments.clear();
    let damaged = String::from_utf8(stage.last("a/one").await.unwrap().payload.to_vec()).unwrap();
    let damaged = damaged.replace("\"run\"", "\"rum\"");
    for (what, foreign, cause) in [
        ("an empty message", Bytes::new(), ForeignDocument::Empty),
        ("an answer of a service", r#"{"devices":2,"published":9}"#.into(), ForeignDocument::Unreadable),
        ("a damaged document", damaged.into(), ForeignDocument::Damaged),
        ("the document of another device", of_another, ForeignDocument::NotPublished),
        ("an older document", old, ForeignDocument::NotPublished),
        ("a newer document", decode::to_bytes(&newer).into(), ForeignDocument::NotPublished),
    ] {
        let before = stage.shown("a/one").await.0;
        put(&stage, "a/one", foreign).await;
        let replaced = |seen: &Option<(u64, Vec<String>)>| {
            seen.as_ref().is_some_and(|(generation, entries)| *generation > before && *entries == right)
        };
        within(REPLACED_WITHIN, what, async || shown(&stage, "a/one").await, replaced).await;
        reported(&incidents, "a/one", cause).await;
    }
    assert!(stage.shown("a/one").await.0 > 40, "above what the foreign document claimed");
    let repaired = stage.published().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(stage.published().await, repaired, "and then nothing more");
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_for_a_device_that_nobody_published_for_is_retired() {
    let stage = Stage::new().await;
    let incidents = IncidentLog::start(&stage.bus).await;
    let publisher = stage.publisher_without_git().await;
    apply(&stage, "a/one", deployment("web", "run")).await.unwrap();
    let stolen = stage.last("a/one").await.unwrap().payload;
    put(&stage, "a/ghost", stolen).await;
    let is_retired = async || stage.document("a/ghost").await.retired;
    within(REPLACED_WITHIN, "the ghost is retired", is_retired, |retired| *retired).await;
    reported(&incidents, "a/ghost", ForeignDocument::NotPublished).await;
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_are_purged_come_back_and_so_does_a_deleted_downlink() {
    let stage = Stage::new().await;
    let incidents = IncidentLog::start(&stage.bus).await;
    let publisher = stage.publisher_without_git().await;
    let devices = ["a/one", "a/two", "b/three"];
    for device in devices {
        apply(&stage, device, deployment("web", "run")).await.unwrap();
    }
    stage.purge("a/two").await;
    let is_back = |wanted: u64| {
        move |seen: &Option<(u64, Vec<String>)>| {
            seen.as_ref().is_some_and(|(generation, _)| *generation >= wanted)
        }
    };
    within(REPLACED_WITHIN, "one comes back", async || shown(&stage, "a/two").await, is_back(2)).await;
    reported(&incidents, "a/two", ForeignDocument::Missing).await;

    api(&stage, "STREAM.PURGE.DOWNLINK").await;
    for device in devices {
        within(REPLACED_WITHIN, "all come back", async || shown(&stage, device).await, is_back(2)).await;
    }
    api(&stage, "STREAM.DELETE.DOWNLINK").await;
    let is_there = async || stage.bus.stream_state(stream::DOWNLINK).await.is_ok();
    until("DOWNLINK is made anew", is_there, |there| *there).await;
    for device in devices {
        until("all come back", async || shown(&stage, device).await, is_back(3)).await;
    }
    publisher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_publishers_replace_a_foreign_document_once_and_never_each_others() {
    let stage = Stage::new().await;
    let incidents = IncidentLog::start(&stage.bus).await;
    stage.write("sites/a/one/web.yaml", "web", "git");
    stage.write("sites/a/two/web.yaml", "web", "git");
    let commit = stage.commit().await;
    let (one, other) = (stage.publisher().await, stage.publisher().await);
    one.applied(&commit).await;
    other.applied(&commit).await;
    for at in 0..6 {
        apply(&stage, "a/one", deployment("db", &format!("run-{at}"))).await.unwrap();
        stage.write("sites/a/two/web.yaml", "web", &format!("git-{at}"));
        let commit = stage.commit().await;
        one.applied(&commit).await;
        other.applied(&commit).await;
    }
    let settled = stage.published().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(stage.published().await, settled, "they publish over each other");
    assert_eq!(incidents.all(), []);

    put(&stage, "a/one", Bytes::new()).await;
    within(REPLACED_WITHIN, "the document", async || shown(&stage, "a/one").await, Option::is_some).await;
    reported(&incidents, "a/one", ForeignDocument::Empty).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(stage.published().await, settled + 2, "the foreign message and one document");
    let key: DeviceKey = "a/one".parse().unwrap();
    assert!(incidents.all().iter().all(|request| request.key() == Some(key.clone())));
    one.stop().await;
    other.stop().await;
}
