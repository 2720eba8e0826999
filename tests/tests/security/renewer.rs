//! The service that renews tokens: for whom it signs, for whom it does not, and what it says where it cannot. And what the hub
//! learns of an ending token while no renewer runs.

use muster_bus::{Delivery, Start};
use muster_contract::Timestamp;
use muster_contract::decode::parse;
use muster_contract::fact::{Incident, IncidentKind};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_identity::{KeyPair, Role, UserEntry, UserRegistry, claims, jwt};
use muster_simulator::child::Child;
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::system::INGEST;
use muster_tests::wait::{soon, until};
use serde_json::Value;

use crate::fleet::{Agent, start_service};
use crate::ingest;

/// Long enough to start an agent, short enough to wait for.
const SHORT: &str = "20s";

fn renewer(hub: &Guarded, role: Role) -> Child {
    let keys = hub.auth().display().to_string();
    start_service(hub, role, "muster-renewer", &["--keys", &keys, "--every", "200ms"])
}

fn read_registry(hub: &Guarded) -> UserRegistry {
    let text = std::fs::read_to_string(hub.auth().join("roster.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn entry(hub: &Guarded, name: &str) -> UserEntry {
    read_registry(hub).users.into_iter().find(|entry| entry.name == name).unwrap()
}

/// Has it that all tokens were issued so much earlier.
fn age(hub: &Guarded, seconds: u64) {
    let mut registry = read_registry(hub);
    registry.users.iter_mut().for_each(|entry| entry.issued -= seconds);
    std::fs::write(hub.auth().join("roster.json"), serde_json::to_string(&registry).unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewer_renews_an_enrolled_device_alone_and_no_revoked_one() {
    let hub = Guarded::start();
    let streams = ingest(&hub).await;
    hub.enroll(&device("press-5"), SHORT);
    hub.decide(&["revoke", "plant7/press-5"]);
    let revoked = entry(&hub, "plant7/press-5");
    let agent = Agent::start_for(&hub, &device("press-4"), SHORT);
    until("reports", async || agent.reports(&streams).await, |reports: &Vec<String>| !reports.is_empty())
        .await;
    let first = jwt::read(&agent.token()).unwrap();
    let _renewer = renewer(&hub, Role::Renewer);
    let end = async || jwt::read(&agent.token()).unwrap().exp.unwrap();
    let renewed = until("a renewed token", end, |end| *end > first.exp.unwrap()).await;
    assert_eq!(jwt::read(&agent.token()).unwrap().sub, first.sub, "the key never changes");
    // The next one comes by the one before: the device was never out.
    until("a second renewal", end, |end| *end > renewed).await;
    assert_eq!(entry(&hub, "plant7/press-5"), revoked, "a revoked device gets none");
    assert!(entry(&hub, "plant7/press-4").issued > first.iat);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_renewed_is_a_device_incident_before_its_end() {
    let hub = Guarded::start();
    let bus = ingest(&hub).await;
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &[]);
    hub.enroll(&device("press-4"), "10m");
    age(&hub, 3 * 60 * 60);
    // With these credentials nothing can be handed over, and incidents can be requested.
    let _renewer = renewer(&hub, Role::Publisher);
    let subject = LedgerSubject::Incident(Some(device("press-4"))).to_string();
    let last = async || soon("LEDGER", bus.last(stream::LEDGER, &subject)).await.unwrap();
    let delivery = until("the incident", last, Option::is_some).await.unwrap();
    let IncidentKind::TokenEnding { issued_at, ends_at } = parse::<Incident>(&delivery.payload).unwrap().what
    else {
        panic!("{delivery:?}")
    };
    let token = entry(&hub, "plant7/press-4");
    assert_eq!(
        (issued_at.as_second(), ends_at.as_second()),
        (token.issued as i64, token.expires.unwrap() as i64)
    );
    assert!(delivery.stored_at < ends_at, "it is said in time");
}

/// A token for the key of an agent that was issued some time ago.
fn token_of(hub: &Guarded, agent: &Agent, ago: u64, left: u64) -> String {
    let read = |name: &str| std::fs::read_to_string(hub.auth().join(name)).unwrap();
    let signer = KeyPair::from_seed(read("signers/device.seed").trim()).unwrap();
    let authority: Value = serde_json::from_str(&read("authority.json")).unwrap();
    let now = Timestamp::now().as_second().cast_unsigned();
    let user = claims::User {
        account: authority["devices"].as_str().unwrap(),
        key: &jwt::read(&agent.token()).unwrap().sub,
        issued: now - ago,
        expires: Some(now + left),
    };
    claims::device(&signer, &user, &agent.key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_renewer_a_device_announces_the_end_of_its_token_itself() {
    let hub = Guarded::start();
    let bus = ingest(&hub).await;
    let _ingest = start_service(&hub, Role::Ingest, INGEST, &[]);
    let agent = Agent::start_for(&hub, &device("press-4"), "30d");
    let subject = LedgerSubject::Incident(Some(device("press-4"))).to_string();
    let incidents = async || {
        let mut replay = bus.replay(stream::LEDGER, &[&subject], Start::First).await.unwrap();
        let batch = if replay.waiting() == 0 { Vec::new() } else { replay.next_batch(100).await.unwrap() };
        let what = |delivery: &Delivery| parse::<Incident>(&delivery.payload).unwrap().what;
        batch.iter().map(what).collect::<Vec<_>>()
    };
    let presence = || bus.stream_state(stream::PRESENCE);
    until("a heartbeat", presence, |state| state.as_ref().is_ok_and(|state| state.messages == 1))
        .await
        .unwrap();
    assert_eq!(incidents().await, []);
    let status = async || agent.status();
    until("the token in the status", status, |status| status.contains("token      ends at")).await;

    // Nobody has renewed it for long.
    agent.accept(&hub, &token_of(&hub, &agent, 3 * 60 * 60, 600));
    let known = jwt::read(&agent.token()).unwrap();
    let time = |seconds: u64| Timestamp::from_second(seconds.cast_signed()).unwrap();
    let (issued_at, ends_at) = (time(known.iat), time(known.exp.unwrap()));
    let ending = IncidentKind::TokenEnding { issued_at, ends_at };
    let announced = until("the incident", &incidents, |incidents| !incidents.is_empty()).await;
    assert_eq!(announced, std::slice::from_ref(&ending));
    until("the status", async || agent.status(), |text| text.contains("token      ends soon, at")).await;
    let log = agent.log();
    assert_eq!(log.matches("token not renewed and ending soon").count(), 1, "{log}");

    // A person renews it: the next heartbeat says so, and the end was recorded once.
    agent.renew(&hub, "30d");
    let renewed = until("the renewal", &incidents, |incidents| incidents.len() > 1).await;
    let ends_at = time(jwt::read(&agent.token()).unwrap().exp.unwrap());
    assert_eq!(renewed, [ending, IncidentKind::TokenRenewed { ends_at }]);
}
