//! Webhooks with real receivers: signed events, secrets that are shown once, a gateway that is killed, receivers that are slow,
//! fail, redirect or want no more, private addresses, and roles.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use muster_bus::Bus;
use muster_identity::Role;
use muster_tests::story;
use muster_tests::system::System;
use muster_tests::wait::{until, within};
use muster_webhook::signature::timed;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::client::{Answer, get, send};
use super::login::{self, KEY, ask};
use super::receiver::{ELSEWHERE, FAILS, GONE, REDIRECT, Received, Receiver, SLOW};
use super::{DEVICES, GATEWAY, start_gateway_as};

/// The path of a receiver that answers.
pub(super) const WORKS: &str = "/T0/path-of-a-token";
/// Longest time until another gateway takes a claimed notice over, on a loaded machine.
pub(super) const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(90);

/// Settings of a gateway that delivers to this receiver.
pub(super) fn settings<'a>(key: &'a str, receiver: &'a Receiver) -> [&'a str; 6] {
    ["--webhook-key", key, "--webhook-ca", receiver.authority(), "--webhook-allow", "localhost,127.0.0.1"]
}

fn key_file(dir: &Path) -> String {
    keys_file(dir, "webhook.key", &[KEY])
}

/// A file with these keys.
pub(super) fn keys_file(dir: &Path, name: &str, keys: &[&str]) -> String {
    let file = dir.join(name);
    std::fs::write(&file, keys.join("\n")).unwrap();
    file.display().to_string()
}

/// A system with two devices that run `web`, a receiver, and a gateway that delivers.
pub(super) async fn delivering() -> (System, Receiver, SocketAddr) {
    let mut system = System::start().await;
    story::settled(&mut system, &DEVICES, "web").await;
    let (receiver, key) = (Receiver::start(system.dir()).await, key_file(system.dir()));
    let addr = start_gateway_as(&mut system, GATEWAY, &settings(&key, &receiver)).await;
    (system, receiver, addr)
}

pub(super) async fn change(addr: SocketAddr, head: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    );
    send(addr, &request).await.unwrap()
}

async fn register(addr: SocketAddr, fields: Value) -> Answer {
    change(addr, "POST /api/v1/webhooks", "", &fields.to_string()).await
}

pub(super) async fn registered(addr: SocketAddr, fields: Value) -> String {
    let answer = register(addr, fields).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["secret"].as_str().unwrap().to_owned()
}

pub(super) async fn listed(addr: SocketAddr, name: &str) -> Value {
    let list = get(addr, "/api/v1/webhooks").await.unwrap().json();
    let all = list["webhooks"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|webhook| webhook["subscription"]["name"] == name).unwrap_or_default()
}

/// Waits until a webhook is shown in a state.
async fn in_state(addr: SocketAddr, name: &str, state: &str) -> Value {
    until(state, async || listed(addr, name).await, |webhook| webhook["state"] == state).await
}

pub(super) fn assert_signed(received: &Received, secret: &str) {
    let signature = received.header("muster-signature").unwrap();
    let time = signature.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap();
    assert_eq!(signature, timed(secret.as_bytes(), time, received.body.as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_gets_signed_events_and_its_secret_is_shown_once() {
    let (system, receiver, addr) = delivering().await;
    let secret =
        registered(addr, json!({ "name": "alarms", "url": receiver.url(WORKS), "windowMs": 200 })).await;
    let at = async || receiver.at(WORKS);
    let first = until("the first event", at, |all| !all.is_empty()).await.remove(0);
    assert_signed(&first, &secret);
    assert_eq!(first.header("content-type"), Some("application/cloudevents+json; charset=utf-8"));
    let event = first.event();
    assert_eq!((&event["type"], &event["subject"]), (&json!("muster.v1.Notice"), &json!("alarms")));
    assert_eq!((&event["specversion"], &event["data"]["event"]), (&json!("1.0"), &json!("present")));

    story::publish(&system, &[story::key(DEVICES[0]), story::key(DEVICES[1])], "web", 2).await;
    let second = until("another event", at, |all| all.len() > 1).await.remove(1);
    assert_signed(&second, &secret);
    assert!(second.event()["data"]["number"].as_u64() > event["data"]["number"].as_u64());
    let line =
        until("delivered", async || listed(addr, "alarms").await, |line| line["seen"] == line["told"]).await;
    assert_eq!((&line["state"], &line["host"]), (&json!("active"), &json!(receiver.url("")[8..])));

    let renewed = registered(addr, json!({ "name": "alarms", "url": receiver.url("/new") })).await;
    assert_ne!(renewed, secret);
    let list = get(addr, "/api/v1/webhooks").await.unwrap();
    let logs = system.log(GATEWAY) + &system.log("muster-rollup");
    for text in [&list.body, &logs] {
        assert!(![&secret[..], &renewed, WORKS].iter().any(|hidden| text.contains(hidden)), "{text}");
    }
    let removed = change(addr, "DELETE /api/v1/webhooks/alarms", "", "").await;
    assert_eq!(removed.status, 200, "{removed:?}");
    until("an empty list", async || listed(addr, "alarms").await, Value::is_null).await;
    let again = change(addr, "DELETE /api/v1/webhooks/alarms", "", "").await;
    assert_eq!(again.status, 404, "{again:?}");
}

/// The receiver has the event and does not answer yet, so the gateway has recorded nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_before_it_records_a_delivery_loses_no_event() {
    let (mut system, receiver, addr) = delivering().await;
    registered(addr, json!({ "name": "alarms", "url": receiver.url(SLOW), "on": "verdict" })).await;
    until("the event", async || receiver.at(SLOW), |all| !all.is_empty()).await;
    system.kill(GATEWAY).await;
    let key = key_file(system.dir());
    let twins = ["gateway-a", "gateway-b"];
    for name in twins {
        start_gateway_as(&mut system, name, &settings(&key, &receiver)).await;
    }
    assert_eq!(receiver.at(SLOW).len(), 1, "one gateway at a time has the notice");
    let again =
        within(TAKEN_OVER_WITHIN, "the same event", async || receiver.at(SLOW), |all| all.len() > 1).await;
    assert_eq!(again[0].id(), again[1].id());
    assert_eq!((receiver.ids_at(SLOW).len(), again.len()), (1, 2), "of two gateways one delivers");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_receivers_are_tried_again_and_delay_no_other() {
    let (_system, receiver, addr) = delivering().await;
    for (name, path) in [("slow", SLOW), ("redirect", REDIRECT), ("gone", GONE)] {
        registered(addr, json!({ "name": name, "url": receiver.url(path), "on": "verdict" })).await;
    }
    let fails = json!({ "name": "fails", "url": receiver.url(FAILS), "on": "verdict", "giveUpSeconds": 10 });
    registered(addr, fails.clone()).await;
    until(
        "an event for each",
        async || receiver.all(),
        |all| [SLOW, REDIRECT, GONE, FAILS].iter().all(|path| all.iter().any(|one| one.path == *path)),
    )
    .await;
    registered(addr, json!({ "name": "works", "url": receiver.url(WORKS), "on": "verdict" })).await;
    until("the event of another", async || receiver.at(WORKS), |all| !all.is_empty()).await;
    assert_eq!(in_state(addr, "works", "active").await["failures"], Value::Null);

    let gone = in_state(addr, "gone", "disabled").await;
    assert!(gone["lastError"].as_str().unwrap().contains("410"), "{gone}");
    let redirected = in_state(addr, "redirect", "failing").await;
    assert!(redirected["lastError"].as_str().unwrap().contains("redirects are not followed"), "{redirected}");
    let slow = in_state(addr, "slow", "failing").await;
    assert!(slow["lastError"].as_str().unwrap().contains("no answer within 10s"), "{slow}");
    let failed = in_state(addr, "fails", "disabled").await;
    assert!(failed["failures"].as_u64() > Some(2) && failed["disabledAt"].is_string(), "{failed}");
    assert_eq!(receiver.ids_at(FAILS).len(), 1, "each attempt has the same id");
    assert!(receiver.at(ELSEWHERE).is_empty() && receiver.at(GONE).len() == 1);

    let before = receiver.at(FAILS).len();
    registered(addr, fails).await;
    until("it is enabled again", async || receiver.at(FAILS).len(), |now| *now > before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_to_a_private_address_is_refused_unless_its_host_is_allowed() {
    let (mut system, receiver, addr) = delivering().await;
    let key = key_file(system.dir());
    let strict = start_gateway_as(
        &mut system,
        "strict",
        &["--webhook-key", &key, "--webhook-ca", receiver.authority()],
    )
    .await;
    for url in [
        receiver.url("/"),
        "https://127.0.0.1/".to_owned(),
        "https://[::1]/".to_owned(),
        "https://169.254.169.254/latest".to_owned(),
        "https://10.0.0.7:8443/".to_owned(),
        "http://example.com/".to_owned(),
        "https://user:password@example.com/".to_owned(),
        "ftp://example.com/".to_owned(),
    ] {
        let refused = register(strict, json!({ "name": "inner", "url": url })).await;
        assert!(refused.status == 400 && !refused.body.contains("password@"), "{url}: {refused:?}");
        assert_eq!(refused.json()["errors"][0]["field"], "url", "{refused:?}");
    }
    let keyless = start_gateway_as(&mut system, "keyless", &[]).await;
    let refused = register(keyless, json!({ "name": "a", "url": receiver.url("/") })).await;
    assert!(refused.status == 409 && refused.body.contains("--webhook-key"), "{refused:?}");

    // Registered where the host is allowed, and delivered by a gateway that does not allow it.
    registered(addr, json!({ "name": "inner", "url": receiver.url(WORKS), "windowMs": 200 })).await;
    system.kill(GATEWAY).await;
    let before = receiver.all().len();
    story::publish(&system, &[story::key(DEVICES[0]), story::key(DEVICES[1])], "web", 2).await;
    let failing = within(
        TAKEN_OVER_WITHIN,
        "failing",
        async || listed(strict, "inner").await,
        |line| line["state"] == "failing",
    )
    .await;
    assert!(failing["lastError"].as_str().unwrap().contains("private address"), "{failing}");
    assert_eq!(receiver.all().len(), before, "nothing reached the private address");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_alone_manage_webhooks_and_a_secured_gateway_delivers() {
    let (mut stage, _repository) = login::with_services().await;
    let (receiver, key) = (Receiver::start(stage.hub.dir()).await, key_file(stage.hub.dir()));
    let addr = stage.start_gateway_with(KEY, &settings(&key, &receiver)).await;
    stage.addr = addr;
    let (operator, viewer) = (
        stage.token(&stage.hub.creds(Role::Operator)).unwrap(),
        stage.token(&stage.hub.creds(Role::Viewer)).unwrap(),
    );
    let body = json!({ "name": "alarms", "url": receiver.url(WORKS) }).to_string();
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let refused = change(addr, "POST /api/v1/webhooks", &bearer(&viewer), &body).await;
    assert!(refused.status == 403 && refused.body.contains("role operator"), "{refused:?}");
    assert_eq!(ask(addr, "GET", "/api/v1/webhooks", &viewer).await.status, 403);
    assert_eq!(ask(addr, "DELETE", "/api/v1/webhooks/alarms", &viewer).await.status, 403);
    let made = async || change(addr, "POST /api/v1/webhooks", &bearer(&operator), &body).await;
    let made = until("the registration", made, |answer| answer.status == 201).await;
    let secret = made.json()["secret"].as_str().unwrap().to_owned();
    let first = until("an event", async || receiver.at(WORKS), |all| !all.is_empty()).await.remove(0);
    assert_signed(&first, &secret);
    let shown = async || ask(addr, "GET", "/api/v1/webhooks", &operator).await.json()["webhooks"][0].clone();
    let line = until("delivered", shown, |line| line["deliveredAt"].is_string()).await;
    assert_eq!(line["owner"]["name"], "operator", "the person, not the gateway: {line}");

    // Over NATS, a viewer has the subject and not the role.
    let viewer = Bus::connect(stage.hub.config(Role::Viewer), &CancellationToken::new()).await.unwrap();
    for (verb, request) in [
        ("webhook-list", json!({})),
        ("webhook-remove", json!({ "name": "alarms" })),
        ("webhook-due", json!({ "gateway": "mine", "keys": [] })),
        ("webhook-revoke", json!({ "revoked": [] })),
        ("webhook-result", json!({ "name": "alarms", "number": 1, "gateway": "mine" })),
        (
            "webhook-register",
            json!({ "subscription": { "name": "mine" }, "host": "a", "sealed": "a", "key": "a" }),
        ),
    ] {
        let subject = format!("muster.notify.{verb}");
        let answer = viewer.request(&subject, request.to_string().into(), TAKEN_OVER_WITHIN).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["error"]["code"], "forbidden", "{verb}: {answer}");
    }
    assert!(!stage.logs().contains(&secret));
}
