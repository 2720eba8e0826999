//! A device's JWT that is renewed over the hub: no person carries a file, and nobody else can slip it one.

use std::time::Duration;

use muster_bus::{Bus, Outgoing};
use muster_contract::subjects;
use muster_identity::{KeyPair, Role, claims, jwt};
use muster_tests::guarded::Guarded;
use muster_tests::server::device;
use muster_tests::wait::until;
use serde_json::json;

use crate::fleet::Agent;
use crate::{connect, ingest};

/// Long enough to start an agent, short enough to wait for.
const SHORT: &str = "20s";

async fn offer(operator: &Bus, token: &str) {
    let document = json!({ "apiVersion": "muster/v1", "kind": "Credential", "jwt": token });
    let subject = subjects::credential(&device("press-4"));
    operator.publish(Outgoing::new(subject, document.to_string())).await.unwrap();
}

async fn says(agent: &Agent, words: &str, times: usize) {
    until(words, async || agent.log().matches(words).count(), |count| *count >= times).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_device_gets_a_new_token_and_outlives_the_old_one() {
    let hub = Guarded::start();
    let streams = ingest(&hub).await;
    let agent = Agent::start_for(&hub, &device("press-4"), SHORT);
    until("reports", async || agent.reports(&streams).await, |reports: &Vec<String>| !reports.is_empty())
        .await;
    let before = agent.token();
    let old_end = jwt::read(&before).unwrap().exp.unwrap();
    // A JWT of the same second would not be later.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let said = hub.decide(&["enroll", "plant7/press-4", "--valid", "1h", "--send"]);
    assert!(said.contains("the hub has the JWT"), "{said}");
    says(&agent, "stored a renewed JWT from the hub", 1).await;
    says(&agent, "newer credentials", 1).await;
    assert_ne!(agent.token(), before);
    assert!(jwt::read(&agent.token()).unwrap().exp.unwrap() > old_end + 3_000);

    // Long after the end of the first one it is heard as before.
    let now = || muster_contract::Timestamp::now().as_second() as u64;
    let last = || async {
        let filter = "muster.presence.*.plant7.press-4";
        let mut replay =
            streams.replay("PRESENCE", &[filter], muster_bus::Start::LastPerSubject).await.unwrap();
        let beat = muster_tests::wait::soon("a heartbeat", replay.next_batch(1)).await.unwrap();
        beat.last().map_or(0, |beat| beat.stored_at.as_second() as u64)
    };
    until("a heartbeat after the first JWT has ended", last, |at| *at > old_end + 2).await;
    assert!(now() > old_end);
    // Who comes back later finds the same document, and there is nothing to say about it.
    assert_eq!(agent.log().matches("refused a JWT").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_another_key_or_signer_is_refused_and_the_one_in_use_stays() {
    let hub = Guarded::start();
    let streams = ingest(&hub).await;
    let agent = Agent::start(&hub, &device("press-4"));
    until("reports", async || agent.reports(&streams).await, |reports: &Vec<String>| !reports.is_empty())
        .await;
    let (before, own) = (agent.token(), jwt::read(&agent.token()).unwrap());
    let operator = connect(hub.config(Role::Operator)).await;

    // Another device's, signed by the right key.
    let other = Agent::start_for(&hub, &device("press-5"), "90d");
    offer(&operator, &other.token()).await;
    says(&agent, "rejected a JWT from the hub", 1).await;
    // For this key and the right account, but signed by somebody else.
    let thief = KeyPair::new_account();
    let user = claims::User {
        account: &own.nats.issuer_account,
        key: &own.sub,
        issued: own.iat + 10,
        expires: own.exp.map(|end| end + 1_000_000),
    };
    offer(&operator, &claims::device(&thief, &user, &device("press-4")).unwrap()).await;
    says(&agent, "rejected a JWT from the hub", 2).await;
    assert!(agent.log().contains("signer"), "{}", agent.log());
    assert_eq!(agent.token(), before);
    assert_eq!(agent.log().matches("newer credentials").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_with_an_expired_token_is_refused_until_it_gets_a_new_one() {
    let hub = Guarded::start();
    let streams = ingest(&hub).await;
    let agent = Agent::start_for(&hub, &device("press-4"), "8s");
    until("reports", async || agent.reports(&streams).await, |reports: &Vec<String>| !reports.is_empty())
        .await;
    says(&agent, "the credentials expire soon", 1).await;
    let end = jwt::read(&agent.token()).unwrap().exp.unwrap();
    says(&agent, "connection to NATS lost", 1).await;
    let now = muster_contract::Timestamp::now().as_second() as u64;
    assert!(now <= end + muster_identity::DISCONNECT_WITHIN.as_secs() + 2, "{now} {end}");
    // Messages over the hub cannot reach it any more.
    let connections = agent.log().matches("connected to NATS").count();
    agent.renew(&hub, "1h");
    says(&agent, "connected to NATS", connections + 1).await;
}
