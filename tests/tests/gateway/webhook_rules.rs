//! Webhooks that a gateway cannot or must not deliver: another key, a full host, a revoked owner.

use std::net::SocketAddr;

use muster_identity::{KeyPair, Role, creds};
use muster_tests::story;
use muster_tests::system::System;
use muster_tests::wait::{until, within};
use serde_json::{Value, json};

use super::login::{self, KEY, ask};
use super::receiver::{LATE, Receiver};
use super::webhooks::{
    TAKEN_OVER_WITHIN, WORKS, change, delivering, keys_file, listed, registered, settings,
};
use super::{DEVICES, GATEWAY, start_gateway_as};

/// The content of another key file.
const OTHER_KEY: &str = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";
/// Deliveries of a gateway to one host at once: `HOST_MAX` of the gateway.
const OF_A_HOST: usize = 8;
/// Deliveries to a slow host, four times as many as are made at once: the last begin after 12 seconds.
const SLOW_DELIVERIES: usize = 4 * OF_A_HOST;

async fn publish(system: &System, release: u32) {
    story::publish(system, &DEVICES.map(story::key), "web", release).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_the_key_leaves_a_webhook_to_one_that_has_it() {
    let (mut system, receiver, addr) = delivering().await;
    let fields = json!({ "name": "alarms", "url": receiver.url(WORKS), "windowMs": 200 });
    let secret = registered(addr, fields).await;
    until("the first event", async || receiver.at(WORKS), |all| !all.is_empty()).await;
    let delivered = async |addr: SocketAddr| {
        let is_it = |line: &Value| line["seen"] == line["told"] && line["told"].as_u64() > Some(0);
        within(TAKEN_OVER_WITHIN, "delivered", async || listed(addr, "alarms").await, is_it).await
    };
    let old_key = delivered(addr).await["key"].clone();
    system.kill(GATEWAY).await;
    let file = keys_file(system.dir(), "new.key", &[OTHER_KEY]);
    let other = start_gateway_as(&mut system, "gateway-other", &settings(&file, &receiver)).await;
    let before = receiver.all().len();
    publish(&system, 2).await;
    let is_untried = |line: &Value| line["untriedCause"] == "noKey";
    let look = async || listed(other, "alarms").await;
    let line = within(TAKEN_OVER_WITHIN, "no gateway has the key", look, is_untried).await;
    assert!(line["untriedSince"].is_string() && line["state"] == "active", "{line}");
    assert_eq!((&line["failures"], &line["lastError"]), (&Value::Null, &Value::Null), "it counts as no try");
    let shown = system.muster(&["webhook", "list"]).await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("no gateway has the key"), "{shown}");
    assert_eq!(receiver.all().len(), before);

    // The key is rotated: a gateway with both delivers, and seals anew.
    let file = keys_file(system.dir(), "both.key", &[OTHER_KEY, KEY]);
    start_gateway_as(&mut system, "gateway-both", &settings(&file, &receiver)).await;
    let line = delivered(other).await;
    let [old, new] = [&old_key, &line["key"]].map(|key| key.as_str().unwrap());
    assert_ne!(old, new, "{line}");
    let log = system.log("gateway-both");
    let logged = log.lines().find(|line| line.contains("read the keys of webhooks")).unwrap_or_default();
    assert!(logged.contains(&format!("{new} {old}")), "in the order of the file: {logged}");
    system.kill("gateway-both").await;
    let before = receiver.at(WORKS).len();
    publish(&system, 3).await;
    let at = async || receiver.at(WORKS);
    let last = within(TAKEN_OVER_WITHIN, "an event", at, |all| all.len() > before).await.pop().unwrap();
    super::webhooks::assert_signed(&last, &secret);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_host_uses_few_slots_and_delays_no_other_host() {
    let (_system, slow, addr) = delivering().await;
    let quick = slow.another().await;
    for at in 0..SLOW_DELIVERIES {
        registered(addr, json!({ "name": format!("slow-{at}"), "url": slow.url(LATE), "on": "verdict" }))
            .await;
    }
    until("slow deliveries", async || slow.at(LATE).len(), |count| *count >= OF_A_HOST).await;
    registered(addr, json!({ "name": "quick", "url": quick.url_by_address(WORKS), "on": "verdict" })).await;
    until("the event of another host", async || quick.at(WORKS), |all| !all.is_empty()).await;
    let begun = slow.at(LATE).len();
    assert!(begun < SLOW_DELIVERIES, "it came after {begun} slow deliveries had begun: it waited for them");
    let all = async || slow.at(LATE).len();
    within(TAKEN_OVER_WITHIN, "all slow ones", all, |count| *count >= SLOW_DELIVERIES).await;
    assert_eq!(slow.waiting_max(), OF_A_HOST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_of_a_revoked_person_ends_and_says_why() {
    let (mut stage, repository) = login::with_services().await;
    let receiver = Receiver::start(stage.hub.dir()).await;
    let key = keys_file(stage.hub.dir(), "webhook.key", &[KEY]);
    stage.addr = stage.start_gateway_with(KEY, &settings(&key, &receiver)).await;
    let (addr, operator) = (stage.addr, stage.token(&stage.hub.creds(Role::Operator)).unwrap());
    let file = stage.creds(Role::Operator, "anna", "1h");
    let anna = stage.token(&file).unwrap();
    for (name, token) in [("hers", &anna), ("ours", &operator)] {
        let body = json!({ "name": name, "url": receiver.url(&format!("/{name}")), "windowMs": 200 });
        let header = format!("Authorization: Bearer {token}\r\n");
        let made = async || change(addr, "POST /api/v1/webhooks", &header, &body.to_string()).await;
        until("the registration", made, |answer| answer.status == 201).await;
        until("an event", async || receiver.at(&format!("/{name}")), |all| !all.is_empty()).await;
    }
    let text = std::fs::read_to_string(file).unwrap();
    let public = KeyPair::from_seed(creds::seed(&text).unwrap()).unwrap().public_key();
    stage.hub.decide(&["revoke", "--key", &public]);
    let shown = async || ask(addr, "GET", "/api/v1/webhooks", &operator).await.json()["webhooks"].clone();
    let list = until("the webhook has ended", shown, |all| all[0]["state"] == "ended").await;
    assert!(list[0]["lastError"].as_str().unwrap().contains("anna was revoked"), "{list}");
    assert!(list[0]["ownerRevokedAt"].is_string() && list[1]["state"] == "active", "{list}");
    let (hers, ours) = (receiver.at("/hers").len(), receiver.at("/ours").len());
    // Nothing holds the deployment back any more, so its notices change.
    std::fs::remove_file(repository.dir().join("fleet/rollout.yaml")).unwrap();
    repository.commit("no rollout").await.unwrap();
    until("an event of the others", async || receiver.at("/ours").len(), |count| *count > ours).await;
    assert_eq!(receiver.at("/hers").len(), hers, "nothing is posted any more");
}
