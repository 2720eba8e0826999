//! Requests within the services' own account with a reply subject that is no inbox of a key: the sender would have a service
//! write in the service's name.

use std::net::SocketAddr;

use muster_bus::Start;
use muster_contract::subjects::{self, LedgerSubject, REQUEST_INCIDENT, stream};
use muster_identity::{Role, creds, jwt};
use muster_simulator::http;
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::system::INGEST;
use muster_tests::wait::{soon, until};
use serde_json::json;

use crate::connect;
use crate::fleet::start_service;

/// The counter in `/metrics`.
const DROPPED: &str = "muster_requests_dropped_total";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_foreign_reply_is_dropped_and_counted() {
    let hub = Guarded::start_plain();
    let address: SocketAddr = ([127, 0, 0, 1], fastrand::u16(31_000..31_900)).into();
    let http = address.to_string();
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &["--lease", "5s", "--http-addr", &http]);
    let reader = connect(hub.config(Role::Ingest)).await;
    let is_ready = async || http::get(address, "/ready").await.is_ok_and(|answer| answer.status == 200);
    until("ingest is ready", is_ready, |is_ready| *is_ready).await;
    let dropped = async || http::metric(&http::get(address, "/metrics").await.ok()?.body, DROPPED);
    until("nothing is dropped yet", dropped, |count| *count == Some(0.0)).await;

    let (key, victim) = (device("press-4"), device("press-5"));
    let request =
        json!({ "site": key.site, "device": key.device, "type": "foreignDocument", "downlinkSeq": 1,
        "cause": "empty", "reason": "a test" })
        .to_string();
    let mut rollup = Raw::connect(hub.server.port(), &hub.creds(Role::Rollup)).unwrap();
    let of_a_site = "_INBOX_plant7_press-5.1".to_owned();
    for reply in [subjects::desired(&victim), "_INBOX.somebody.1".to_owned(), of_a_site, String::new()] {
        rollup.publish(REQUEST_INCIDENT, &reply, &request);
    }
    until("they are counted", dropped, |count| *count == Some(4.0)).await;
    assert!(reader.last(stream::DOWNLINK, &subjects::desired(&victim)).await.unwrap().is_none(), "answered");
    let incidents = LedgerSubject::Incident(Some(key)).to_string();
    let recorded = async || {
        let mut replay = reader.replay(stream::LEDGER, &[&incidents], Start::First).await.unwrap();
        soon("what LEDGER holds", replay.next_present(10)).await.unwrap().map_or(0, |batch| batch.len())
    };
    assert_eq!(recorded().await, 0, "obeyed");

    let text = std::fs::read_to_string(hub.creds(Role::Rollup)).unwrap();
    let inbox = format!("_INBOX.{}.1", jwt::read(creds::token(&text).unwrap()).unwrap().sub);
    rollup.subscribe(&inbox, 1);
    let said = rollup.publish(REQUEST_INCIDENT, &inbox, &request);
    if !said.iter().any(|line| line.contains("MSG ")) {
        rollup.message();
    }
    assert_eq!(recorded().await, 1, "the same request with an inbox is obeyed");
    assert_eq!(dropped().await, Some(4.0), "and is not counted");
}
