//! Decisions about rejected reports from the page of the quarantine.

use muster_bus::Outgoing;
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::subjects;
use muster_tests::story::{self, key, sleeper};
use muster_tests::system::{INGEST, System};
use serde_json::json;

use super::client::{get, post};
use super::planning::done;
use super::{DEVICES, start_gateway};

/// A status of a deployment that the device shall not run.
fn unsolicited() -> String {
    json!({
        "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1, "seq": 1, "head": 1, "current": true,
        "observedAt": Timestamp::now().to_string(), "deployment": "lamp", "generation": 1,
        "digest": Digest::of_bytes(b"lamp").to_string(), "status": { "state": "installing" },
        "components": [{ "name": "main", "state": "installing" }],
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_report_is_requeued_from_the_page_of_the_quarantine() {
    let mut system = System::with_settings(&[(INGEST, &["--unsolicited", "0"])]).await;
    story::settled(&mut system, &DEVICES, "web").await;
    let addr = start_gateway(&mut system).await;
    let device = key("plant9/press-9");
    let report = Outgoing::new(subjects::report(&device), unsolicited());
    system.bus.publish(report).await.unwrap();
    let held = async || {
        let list = get(addr, "/api/v1/quarantine").await.map_err(|error| error.to_string())?;
        list.json()["reports"][0]["quarantineSeq"].as_u64().ok_or(list.body)
    };
    let seq = system.eventually("the report is in quarantine", held).await;
    let row = format!("name=\"quarantineSeq\" value=\"{seq}\"");
    let counted = async || match get(addr, "/").await {
        Ok(page) if page.body.contains(">1 rejected report wait") => Ok(()),
        other => Err(format!("{other:?}")),
    };
    system.eventually("the first screen counts the report", counted).await;
    let page = get(addr, "/quarantine").await.unwrap().body;
    assert!(page.contains("action=\"/quarantine/requeue\"") && page.contains(&row), "{page}");

    let lamp = json!({ "site": "plant9", "device": "press-9", "documents": sleeper("lamp", 1) });
    done(addr, "POST /deployments", lamp, 202).await;
    let form = format!("quarantineSeq={seq}&reason=it+is+wanted");
    let requeue = async || match post(addr, "/quarantine/requeue", &form).await {
        Ok(answer) if answer.status == 303 => Ok(answer),
        other => Err(format!("{other:?}")),
    };
    let requeued = system.eventually("ingest accepts the report", requeue).await;
    assert_eq!(requeued.header("location"), Some("/quarantine"), "{requeued:?}");
    let settled = async || {
        let list = get(addr, "/api/v1/quarantine?settled=true").await.map_err(|error| error.to_string())?;
        let verdict = list.json()["verdicts"][0].clone();
        if verdict["of"] == seq && verdict["verdict"] == "letIn" { Ok(verdict) } else { Err(list.body) }
    };
    let verdict = system.eventually("the verdict is in LEDGER", settled).await;
    assert_eq!(verdict["reason"], "it is wanted", "{verdict}");
    let page = get(addr, "/quarantine").await.unwrap().body;
    assert!(!page.contains(&row) && page.contains("No report is in quarantine."), "{page}");
}
