//! Documents in DOWNLINK that nobody wrote who should have, at a real agent: neither a receipt nor a credential costs it a report.

use muster_bus::{Bus, Outgoing, Start};
use muster_contract::decode::parse;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, RECEIPTS, stream};
use muster_identity::Role;
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::system::{INGEST, PUBLISHER, ROLLUP};
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};

use crate::connect;
use crate::fleet::{Agent, WEB, asked, start_service};

async fn put(bus: &Bus, subject: String, payload: String) -> u64 {
    soon("DOWNLINK", bus.publish(Outgoing::new(subject, payload))).await.unwrap().sequence
}

/// The newest receipt of the only device, if it was stored after a position and can be read.
async fn receipt(bus: &Bus, after: u64) -> Option<Receipt> {
    let mut replay = bus.replay(stream::DOWNLINK, &[RECEIPTS], Start::LastPerSubject).await.ok()?;
    let last = soon("DOWNLINK", replay.next_present(1)).await.ok()??.pop()?;
    if last.stream_seq > after { parse(&last.payload).ok() } else { None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_receipt_or_credential_costs_a_device_no_report() {
    let hub = Guarded::start();
    let (data, keeper) = (hub.dir().join("rollup").display().to_string(), hub.creds(Role::Keeper));
    let rollup_args = ["--data-dir", &data, "--readers-creds", &keeper.display().to_string()];
    let _rollup = start_service(&hub, Role::Rollup, ROLLUP, &rollup_args);
    let _publisher = start_service(&hub, Role::Publisher, PUBLISHER, &[]);
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s"]);
    let (key, agent) = (device("press-4"), Agent::start(&hub, &device("press-4")));
    let ingest = connect(hub.config(Role::Ingest)).await;
    let first = async || receipt(&ingest, 0).await;
    let Receipt { epoch, .. } = until("a receipt", first, Option::is_some).await.unwrap();

    // More than the device ever sent: as far as it can tell, it is an old copy of itself, and begins a new epoch.
    let ahead = json!({ "apiVersion": "muster/v1", "kind": "Receipt", "epoch": epoch, "through": 1_000 });
    for foreign in [String::new(), "garbage".to_owned(), ahead.to_string()] {
        let sequence = put(&ingest, subjects::receipt(&key), foreign).await;
        until("the right one", async || receipt(&ingest, sequence).await, Option::is_some).await;
    }
    let operator = connect(hub.config(Role::Operator)).await;
    put(&operator, subjects::credential(&key), "garbage".to_owned()).await;
    for words in ["ignored a receipt", "beginning a new epoch", "rejected a JWT from the hub"] {
        until(words, async || agent.log().contains(words), |is_said| *is_said).await;
    }

    let file = hub.dir().join("web.yaml");
    std::fs::write(&file, WEB).unwrap();
    let (file, name) = (file.display().to_string(), key.to_string());
    let apply = async || asked(&hub, Role::Operator, &["apply", "-f", &file, "--device", &name]);
    until("the publisher takes a request", apply, Result::is_ok).await.unwrap();
    let status = async || asked(&hub, Role::Viewer, &["status", "web"]).map(|answer| answer["view"].clone());
    let converged = |answer: &Result<Value, String>| {
        answer.as_ref().is_ok_and(|view| view["verdict"] == "converged" && view["targets"] == 1)
    };
    until("the device has converged", status, converged).await.unwrap();
    let audit = async || asked(&hub, Role::Operator, &["audit"]);
    until("everything is accounted for", audit, Result::is_ok).await.unwrap();
    let healed = async || receipt(&ingest, 0).await.map(|receipt| (receipt.epoch, receipt.missing.max()));
    until("a receipt of the new epoch", healed, |now| {
        now.is_some_and(|(now, missing)| now > epoch && missing.is_none())
    })
    .await;
}
