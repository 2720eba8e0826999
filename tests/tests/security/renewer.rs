//! The service that renews tokens: for whom it signs, for whom it does not, and what it says where it cannot.

use muster_contract::decode::parse;
use muster_contract::fact::{Incident, IncidentKind};
use muster_contract::subjects::{LedgerSubject, stream};
use muster_identity::{Role, UserEntry, UserRegistry, jwt};
use muster_simulator::child::Child;
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::system::INGEST;
use muster_tests::wait::{soon, until};

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
async fn a_renewer_renews_a_device_that_is_in_without_a_person_and_none_that_was_revoked() {
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
async fn a_token_that_cannot_be_renewed_is_an_incident_of_its_device_before_it_ends() {
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
