//! Requests and the services that answer them.

use std::time::Duration;

use bytes::Bytes;
use muster_bus::{Bus, Call, EndpointSpec, Fault, RequestError, ServiceSpec};
use muster_tests::raw::Raw;
use muster_tests::server::Server;
use muster_tests::wait::soon;
use serde_json::Value;

use crate::connect;

const PATIENCE: Duration = Duration::from_secs(10);

fn spec() -> ServiceSpec {
    let endpoint = |name, subject: &str| EndpointSpec { name, subject: subject.to_owned() };
    ServiceSpec {
        name: "muster-query",
        version: "0.1.0",
        description: "Answers questions",
        endpoints: vec![endpoint("fleet", "muster.query.fleet"), endpoint("device", "muster.query.device")],
    }
}

async fn echo(call: Call) -> Result<Bytes, Fault> {
    match &call.payload[..] {
        b"fail" => {
            Err(Fault { code: 404, message: "no such\ndevice".into(), body: Bytes::from("{\"error\":1}") })
        }
        b"slow" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(Bytes::from("at last"))
        }
        payload => Ok(Bytes::from(format!("{}:{}", call.endpoint, String::from_utf8_lossy(payload)))),
    }
}

async fn served(server: &Server) -> (Bus, Bus, muster_bus::Serving) {
    let (service, client) = (connect(server.config("service")).await, connect(server.config("client")).await);
    let serving = service.serve(spec(), echo).await.unwrap();
    let asked = || client.request("muster.query.fleet", Bytes::from("there?"), PATIENCE);
    muster_tests::wait::until("the service", asked, |answer| answer.is_ok()).await.unwrap();
    (service, client, serving)
}

#[tokio::test]
async fn requests_are_answered_by_endpoint_and_faults_have_a_body() {
    let server = Server::start();
    let (_service, client, _serving) = served(&server).await;
    let ask =
        |subject: &'static str, body: &'static str| client.request(subject, Bytes::from(body), PATIENCE);
    assert_eq!(ask("muster.query.fleet", "hello").await.unwrap(), "fleet:hello");
    assert_eq!(ask("muster.query.device", "x").await.unwrap(), "device:x");
    assert_eq!(ask("muster.query.device", "fail").await.unwrap(), "{\"error\":1}");
}

#[tokio::test]
async fn a_request_whose_reply_is_no_inbox_is_dropped() {
    let server = Server::start();
    let (_service, client, _serving) = served(&server).await;
    let mut answered = client.subscribe("muster.desired.*.*").await.unwrap();
    let mut raw = Raw::anonymous(server.port()).unwrap();
    for reply in ["muster.desired.plant7.press-4", "_R_", "_INBOX", "$KV.views.fleet", ""] {
        for subject in ["muster.query.fleet", "$SRV.PING", "$SRV.INFO.muster-query", "$SRV.STATS"] {
            raw.publish(subject, reply, "foreign");
        }
    }
    // The answered requests were sent after the dropped ones.
    for subject in ["muster.query.fleet", "$SRV.PING", "$SRV.INFO", "$SRV.STATS"] {
        client.request(subject, Bytes::from("own"), PATIENCE).await.unwrap();
    }
    client.publish_core("muster.desired.plant7.last", Default::default(), Bytes::new()).await.unwrap();
    let first = soon("the last message", answered.next()).await.unwrap();
    assert_eq!(first.subject, "muster.desired.plant7.last", "a request was answered into a stream's subject");
}

#[tokio::test]
async fn nobody_and_nothing_in_time_are_told_apart() {
    let server = Server::start();
    let (_service, client, _serving) = served(&server).await;
    let nobody = client.request("muster.query.nothing", Bytes::new(), PATIENCE).await.unwrap_err();
    assert!(matches!(nobody, RequestError::NoResponders { .. }), "{nobody:?}");
    let slow = client
        .request("muster.query.fleet", Bytes::from("slow"), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(slow, RequestError::Timeout { .. }), "{slow:?}");
}

#[tokio::test]
async fn a_service_can_be_discovered() {
    let server = Server::start();
    let (_service, client, _serving) = served(&server).await;
    let info = client.request("$SRV.INFO.muster-query", Bytes::new(), PATIENCE).await.unwrap();
    let info: Value = serde_json::from_slice(&info).unwrap();
    assert_eq!(
        (info["version"].as_str(), info["description"].as_str()),
        (Some("0.1.0"), Some("Answers questions"))
    );
    let mut subjects: Vec<_> =
        info["endpoints"].as_array().unwrap().iter().map(|e| e["subject"].to_string()).collect();
    subjects.sort_unstable();
    assert_eq!(subjects, ["\"muster.query.device\"", "\"muster.query.fleet\""]);
    let id = info["id"].as_str().unwrap();
    let one = client.request(&format!("$SRV.PING.muster-query.{id}"), Bytes::new(), PATIENCE).await.unwrap();
    let one: Value = serde_json::from_slice(&one).unwrap();
    assert_eq!(
        (one["type"].as_str(), one["id"].as_str()),
        (Some("io.nats.micro.v1.ping_response"), Some(id))
    );
}

#[tokio::test]
async fn stopping_answers_what_was_asked_and_takes_no_more() {
    let server = Server::start();
    let (_service, client, serving) = served(&server).await;
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.request("muster.query.fleet", Bytes::from("slow"), PATIENCE).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    soon("the end of service", serving.stop()).await;
    assert_eq!(asking.await.unwrap().unwrap(), "at last");
    let after = client.request("muster.query.fleet", Bytes::new(), PATIENCE).await.unwrap_err();
    assert!(matches!(after, RequestError::NoResponders { .. }), "{after:?}");
}

#[tokio::test]
async fn a_service_answers_again_after_a_crash_of_the_server() {
    let mut server = Server::start();
    let (_service, client, _serving) = served(&server).await;
    server.kill();
    server.restart();
    let ask = || client.request("muster.query.fleet", Bytes::from("hello"), PATIENCE);
    let answer = muster_tests::wait::until("an answer", ask, |answer| answer.is_ok()).await;
    assert_eq!(answer.unwrap(), "fleet:hello");
}
