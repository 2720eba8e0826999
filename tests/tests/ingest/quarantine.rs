//! What a person decides about messages in quarantine, by the command line.

use std::process::Command;

use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_tests::server::device;
use muster_tests::system::program;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::{Hub, edit, held, status, with};

/// What `muster quarantine …` answers, and its exit code.
async fn muster(hub: &Hub, words: &[&str]) -> (i32, Value) {
    let (url, words) = (hub.url.clone(), words.iter().map(ToString::to_string).collect::<Vec<_>>());
    let run = move || {
        let mut command = Command::new(program("muster"));
        command.args(["--nats-url", &url, "--format", "json", "quarantine"]).args(words);
        command.output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| json!(String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), said)
}

async fn list(hub: &Hub, more: &[&str]) -> Vec<Value> {
    let (code, said) = muster(hub, &[&["list"], more].concat()).await;
    assert_eq!(code, 0, "{said}");
    said["messages"].as_array().unwrap().clone()
}

/// A report that LEDGER did not take, while it took no large messages.
async fn too_large(hub: &Hub) {
    let sizes = |bytes: u64| async move {
        for stream in [stream::DOWNLINK, stream::LEDGER] {
            edit(&hub.bus, stream, |config| config["max_msg_size"] = json!(bytes)).await;
        }
    };
    let before = 272 * 1024;
    sizes(4_000).await;
    let key = device("press-4");
    let long = json!({"state": "failed", "error": {"code": "e", "message": "m".repeat(4_000)}});
    hub.send(&key, &with(status(1, 1, 2), "status", long)).await;
    until("the quarantine", || hub.quarantine(&key), |kept| kept.len() == 1).await;
    sizes(before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_short_cannot_be_judged_again_and_what_is_dropped_stays_counted() {
    let hub = Hub::start(&[]).await;
    hub.started(1).await;
    let key = device("press-4");
    too_large(&hub).await;
    hub.send(&key, &with(status(1, 2, 2), "status", json!({"state": "exploded"}))).await;
    until("the poison", || list_len(&hub), |count| *count == 2).await;
    let numbers: Vec<String> =
        list(&hub, &[]).await.iter().map(|held| held["ledgerSeq"].to_string()).collect();
    let (code, said) = muster(&hub, &["requeue", &numbers[0], &numbers[1]]).await;
    assert_eq!(code, 1, "{said}");
    assert!(said["messages"][0]["refused"].as_str().unwrap().contains("are kept"), "{said}");
    assert!(said["messages"][1]["refused"].as_str().unwrap().contains("exploded"), "{said}");
    let (code, said) = muster(&hub, &["drop", &numbers[0], "1"]).await;
    assert_eq!(code, 1, "{said}");
    assert_eq!(list_len(&hub).await, 2, "a wrong number changes nothing");
    let (code, said) = muster(&hub, &["drop", &numbers[0], &numbers[1], "--reason", "a test"]).await;
    assert_eq!((code, &said["messages"][1]["verdict"]), (0, &json!("dropped")), "{said}");
    // To ask twice does no harm.
    assert_eq!(muster(&hub, &["drop", &numbers[0]]).await.0, 0);
    assert!(list(&hub, &[]).await.is_empty());
    let all = list(&hub, &["--all"]).await;
    assert!(all.iter().all(|held| held["verdict"] == "dropped"), "{all:?}");
    assert_eq!(held(&hub.ledger().await)[&key], [1, 2]);
    let (code, said) = muster(&hub, &["requeue", "1"]).await;
    assert_eq!(code, 1);
    assert!(said.as_str().unwrap().contains("no message in quarantine"), "{said}");
}

async fn list_len(hub: &Hub) -> usize {
    list(hub, &[]).await.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_fix_a_message_is_let_in_once_though_ingest_is_killed_meanwhile() {
    let mut hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 2, 2)).await;
    hub.statuses_are(&key, 1).await;
    // As an older ingest left it: it did not know the state, and kept all of it.
    let report = status(1, 1, 2).to_string();
    let fact = json!({
        "apiVersion": "muster/v1", "kind": "QuarantineFact", "reason": "unknown state", "epoch": 1, "seq": 1,
        "subject": subjects::report(&key), "receivedAt": "2026-01-01T00:00:00Z", "bytes": report.len(),
        "payloadBase64": muster_contract::fact::QuarantineFact::encode_payload(report.as_bytes()),
        "countForDevice": 1,
    });
    let subject = LedgerSubject::Quarantine(Some(key.clone())).to_string();
    hub.kill_ingest().await;
    hub.bus.publish(muster_bus::Outgoing::new(subject, fact.to_string())).await.unwrap();
    hub.start_ingest();
    hub.receipt_after_a_beat(&key, 1, 2).await;
    let number = list(&hub, &[]).await[0]["ledgerSeq"].to_string();
    for _ in 0..3 {
        let requeue = async {
            let (code, said) = muster(&hub, &["requeue", &number, "--reason", "updated"]).await;
            (code == 0).then_some(said)
        };
        // Killed at some moment while it is asked: whoever got no answer asks again.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(fastrand::u64(5..60)), requeue).await;
        hub.kill_ingest().await;
        hub.start_ingest();
    }
    let asked = || async { muster(&hub, &["requeue", &number]).await };
    let (_, said) = until("it is answered", asked, |(code, _)| *code == 0).await;
    assert!(["letIn", "alreadyIn"].contains(&said["messages"][0]["verdict"].as_str().unwrap()), "{said}");
    let facts = hub.statuses(&key).await;
    assert_eq!(facts.iter().filter(|fact| fact.seq.get() == 1).count(), 1, "{facts:?}");
    assert!(list(&hub, &[]).await.is_empty());
    hub.receipt_after_a_beat(&key, 1, 2).await;
}
