//! The life of an identity: it begins with a key, is renewed without a restart, and ends in time.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_bus::{Link, Outgoing};
use muster_contract::subjects;
use muster_identity::{DISCONNECT_WITHIN, Role, claims};
use muster_tests::guarded::Guarded;
use muster_tests::raw::Raw;
use muster_tests::server::device;
use muster_tests::wait::{soon, until};
use tokio::time::timeout;

use crate::fleet::Agent;
use crate::{connect, ingest};

/// Waits until a device is out, for no longer than was promised.
async fn out_in_time(mut link: tokio::sync::watch::Receiver<Link>) {
    timeout(DISCONNECT_WITHIN, link.wait_for(|link| !link.is_up()))
        .await
        .expect("out within the stated time")
        .unwrap();
}

#[tokio::test]
async fn an_expired_device_is_out_in_time_and_stays_out() {
    let hub = Guarded::start_plain();
    let key = device("press-4");
    let creds = hub.enroll(&key, "3s");
    let bus = connect(hub.device_config(&key)).await;
    let link = bus.link();
    tokio::time::sleep(Duration::from_secs(2)).await;
    out_in_time(link).await;
    let attempt = async || Raw::connect(hub.server.port(), &creds).err();
    let refused = until("it is refused", attempt, Option::is_some).await.unwrap();
    assert!(refused.contains("Authorization Violation") || refused.contains("Expired"), "{refused}");
}

#[tokio::test]
async fn a_revoked_device_stays_refused_over_a_restart_until_enrolled_again() {
    let mut hub = Guarded::start();
    let _streams = ingest(&hub).await;
    let (key, other) = (device("press-4"), device("press-5"));
    hub.enroll(&key, "1h");
    hub.enroll(&other, "1h");
    let (bus, bystander) = (connect(hub.device_config(&key)).await, connect(hub.device_config(&other)).await);
    bus.publish(Outgoing::new(subjects::report(&key), "{}")).await.unwrap();

    let said = hub.decide(&["revoke", "plant7/press-4"]);
    assert!(said.contains("plant7/press-4") && said.contains("within 5 seconds"), "{said}");
    out_in_time(bus.link()).await;
    assert_eq!(*bystander.link().borrow(), Link::Up { since_count: 1 }, "nobody else notices");
    assert!(hub.decide(&["auth", "list"]).contains("revoked"));

    hub.server.kill();
    hub.server.restart();
    let mut link = bystander.link();
    soon("the other device is back", link.wait_for(|link| matches!(link, Link::Up { since_count: 2.. })))
        .await
        .unwrap();
    let attempt = timeout(Duration::from_secs(2), connect(hub.device_config(&key))).await;
    assert!(attempt.is_err() && !bus.link().borrow().is_up(), "the restarted server lets it in");

    hub.enroll(&key, "1h");
    let mut link = bus.link();
    soon("in again with a new token", link.wait_for(|link| link.is_up())).await.unwrap();
    bus.publish(Outgoing::new(subjects::report(&key), "{}")).await.unwrap();
}

#[tokio::test]
async fn a_rotated_signing_key_ends_its_tokens_and_no_others() {
    let hub = Guarded::start_plain();
    let key = device("press-4");
    let device = hub.enroll(&key, "1h");
    let former = |creds: &std::path::Path, name: &str| {
        let copy = hub.dir().join(name);
        std::fs::copy(creds, &copy).unwrap();
        copy
    };
    let port = hub.server.port();
    let (viewer, device) = (former(&hub.creds(Role::Viewer), "viewer"), former(&device, "device"));
    for (role, old) in [("viewer", &viewer), ("device", &device)] {
        Raw::connect(port, old).unwrap();
        let said = hub.decide(&["auth", "rotate", role]);
        assert!(said.contains("has a new signing key"), "{said}");
        assert_eq!(said.contains("muster enroll plant7/press-4"), role == "device", "{said}");
        hub.decide(&["auth", "push"]);
        let refused = async || Raw::connect(port, old).err();
        until("the former key's token is refused", refused, Option::is_some).await;
    }
    for role in [Role::Viewer, Role::Subscriber, Role::Ingest, Role::Rollup] {
        Raw::connect(port, &hub.creds(role)).unwrap();
    }
    let _streams = ingest(&hub).await;
    let device = hub.enroll(&key, "1h");
    Raw::connect(port, &device).unwrap();
}

#[tokio::test]
async fn a_revocation_that_no_server_heard_is_said_and_pushed_later() {
    let mut hub = Guarded::start();
    let key = device("press-4");
    hub.enroll(&key, "1h");
    hub.server.stop();
    let auth = hub.auth().display().to_string();
    let done = hub.muster(&["revoke", "plant7/press-4", "--dir", &auth]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2));
    assert!(said.contains("NO SERVER KNOWS") && said.contains("muster auth push"), "{said}");

    hub.server.restart();
    let said = hub.decide(&["auth", "push"]);
    assert!(said.contains("1 key revoked"), "{said}");
    let attempt = timeout(Duration::from_secs(2), connect(hub.device_config(&key))).await;
    assert!(attempt.is_err(), "accepted after the push");
}

#[tokio::test]
async fn a_token_is_renewed_in_time_without_a_restart_and_no_report_is_lost() {
    let hub = Guarded::start();
    let streams = ingest(&hub).await;
    let agent = Agent::start(&hub, &device("press-4"));
    let first =
        until("reports", async || agent.reports(&streams).await, |reports: &Vec<String>| !reports.is_empty())
            .await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    agent.renew(&hub, "2h");
    let anew = async || {
        let log = agent.log();
        let after = log.split_once("newer credentials").map(|(_, after)| after.to_owned());
        after.is_some_and(|after| after.contains("connected to NATS"))
    };
    until("a connection with the newer token", anew, |anew| *anew).await;
    let after = agent.reports(&streams).await;
    assert!(first.iter().all(|id| after.contains(id)), "{first:?} {after:?}");
    assert_eq!(after.len(), after.iter().collect::<std::collections::BTreeSet<_>>().len(), "none twice");
}

#[tokio::test]
async fn a_stolen_signing_key_of_devices_lets_in_devices_only() {
    let hub = Guarded::start_plain();
    let _streams = ingest(&hub).await;
    let seed = std::fs::read_to_string(hub.auth().join("signers/device.seed")).unwrap();
    let signer = muster_identity::KeyPair::from_seed(seed.trim()).unwrap();
    let authority: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(hub.auth().join("authority.json")).unwrap()).unwrap();
    let pair = muster_identity::KeyPair::new_user();
    let key = pair.public_key();
    let account = authority["devices"].as_str().unwrap();
    let user = claims::User { account, key: &key, issued: 1, expires: None };
    // Whatever role it claims, the rights are those of the key that signed.
    let token = claims::service(&signer, &user, Role::Operator, "thief", &BTreeMap::new()).unwrap();
    let mut thief = Raw::with(hub.server.port(), &token, &pair.seed().unwrap()).unwrap();
    for subject in ["muster.desired.plant7.press-4", "muster.publisher.apply", "$JS.API.STREAM.NAMES"] {
        let said = thief.publish(subject, "", "{}").join("\n");
        assert!(said.contains("Permissions Violation"), "{subject}: {said}");
    }
}

#[tokio::test]
async fn a_token_is_of_no_use_without_its_seed() {
    let hub = Guarded::start_plain();
    let creds = hub.enroll(&device("press-4"), "1h");
    let text = std::fs::read_to_string(creds).unwrap();
    let token = muster_identity::creds::token(&text).unwrap();
    let other = muster_identity::KeyPair::new_user().seed().unwrap();
    let refused = Raw::with(hub.server.port(), token, &other).err().unwrap();
    assert!(refused.contains("Authorization Violation"), "{refused}");
}

#[tokio::test]
async fn a_server_that_leaves_tls_out_gets_nothing() {
    let hub = Guarded::start_plain();
    let folder = tempfile::tempdir().unwrap();
    let (authority, _) = muster_tests::tls::certified(folder.path());
    hub.enroll(&device("press-4"), "1h");
    let plain = hub.device_config(&device("press-4"));
    let by_name = muster_bus::BusConfig { url: plain.url.replace("nats://", "tls://"), ..plain.clone() };
    let by_authority = muster_bus::BusConfig { tls_ca: Some(authority), ..plain.clone() };
    for config in [by_name, by_authority] {
        let attempt = timeout(Duration::from_secs(1), connect(config)).await;
        assert!(attempt.is_err(), "spoke in plain text");
    }
    connect(plain).await;
}
