//! Tests the facts that are published because time passes.

use std::time::Duration;

use muster_bus::Outgoing;
use muster_contract::DeviceKey;
use muster_contract::desired::DesiredState;
use muster_contract::fact::{DeadlineKind, Fact, IncidentKind, Liveness};
use muster_contract::subjects;
use muster_tests::server::device;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::losses::delete;
use crate::{Hub, heartbeat, status};

/// Publishes heartbeats of a device until the value is dropped.
struct Heart(tokio::task::JoinHandle<()>);

impl Heart {
    fn of(hub: &Hub, key: &DeviceKey, head: u64) -> Self {
        let (bus, subject) = (hub.bus.clone(), subjects::presence(key));
        let beat = heartbeat(1, head);
        Self(tokio::spawn(async move {
            loop {
                let _ = bus.publish(Outgoing::new(subject.clone(), beat.clone())).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        }))
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn states_are(hub: &Hub, key: &DeviceKey, wanted: &[Liveness]) {
    until("the liveness facts", || hub.liveness(key), |found| found == wanted).await;
}

pub(crate) fn desired(generation: u64, ids: &[&str], retired: bool) -> DesiredState {
    let entries: Vec<Value> = ids
        .iter()
        .map(|id| {
            json!({
                "id": id, "name": id, "applicationId": "web", "targetGeneration": generation,
                "digest": muster_contract::canonical::Digest::of_bytes(b"").to_string(),
                "profile": {"type": "process",
                    "components": [{"name": "main", "properties": {"command": "true"}}]},
            })
        })
        .collect();
    let mut state: DesiredState = serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation, "retired": retired,
        "issuedAt": "2026-01-01T00:00:00Z", "source": {"kind": "git", "revision": "a"}, "deployments": entries,
    }))
    .unwrap();
    state.deployments.iter_mut().for_each(|entry| entry.digest = entry.content_digest());
    state
}

pub(crate) async fn desire(hub: &Hub, key: &DeviceKey, state: &DesiredState) {
    let letter = Outgoing::new(subjects::desired(key), muster_contract::decode::to_bytes(state));
    hub.bus.publish(letter).await.unwrap();
}

#[tokio::test]
async fn a_device_is_fresh_while_it_sends_heartbeats_and_stale_after_its_lease() {
    let hub = Hub::start(&["--lease", "2s"]).await;
    let key = device("press-4");
    let heart = Heart::of(&hub, &key, 0);
    states_are(&hub, &key, &[Liveness::Fresh]).await;
    drop(heart);
    states_are(&hub, &key, &[Liveness::Fresh, Liveness::Stale]).await;
    let heart = Heart::of(&hub, &key, 0);
    states_are(&hub, &key, &[Liveness::Fresh, Liveness::Stale, Liveness::Fresh]).await;
    drop(heart);
}

#[tokio::test]
async fn no_restart_of_ingest_or_the_server_makes_a_living_device_stale() {
    let mut hub = Hub::start(&["--lease", "3s"]).await;
    let key = device("press-4");
    let heart = Heart::of(&hub, &key, 0);
    states_are(&hub, &key, &[Liveness::Fresh]).await;
    hub.kill_ingest().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    hub.start_ingest();
    hub.started(2).await;
    hub.server().kill();
    tokio::time::sleep(Duration::from_secs(4)).await;
    hub.server().restart();
    // PRESENCE was in the server's memory: ingest must create it again before it receives a heartbeat.
    drop(heart);
    until("the server is back", || async { hub.bus.converge().await.is_ok() }, |back| *back).await;
    states_are(&hub, &key, &[Liveness::Fresh, Liveness::Stale]).await;
    let _heart = Heart::of(&hub, &key, 0);
    states_are(&hub, &key, &[Liveness::Fresh, Liveness::Stale, Liveness::Fresh]).await;
}

#[tokio::test]
async fn a_server_that_stands_still_makes_no_device_stale() {
    let mut hub = Hub::start(&["--lease", "3s"]).await;
    let keys: Vec<_> = (0..10).map(|at| device(&format!("press-{at}"))).collect();
    let _hearts: Vec<_> = keys.iter().map(|key| Heart::of(&hub, key, 0)).collect();
    for key in &keys {
        states_are(&hub, key, &[Liveness::Fresh]).await;
    }
    hub.server().freeze();
    tokio::time::sleep(Duration::from_secs(6)).await;
    hub.server().thaw();
    let again = || async { hub.log().matches("connected to NATS").count() };
    until("ingest is connected again", again, |count| *count >= 1).await;
    // A wrong decision after the frozen time would show within a lease.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for key in &keys {
        assert_eq!(hub.liveness(key).await, [Liveness::Fresh], "{key}");
    }
}

#[tokio::test]
async fn while_heartbeats_cannot_be_read_no_device_becomes_stale() {
    let hub = Hub::start(&["--lease", "3s"]).await;
    let key = device("press-4");
    let heart = Heart::of(&hub, &key, 0);
    states_are(&hub, &key, &[Liveness::Fresh]).await;
    delete(&hub, "STREAM.DELETE.PRESENCE").await;
    // Longer than a lease, and than a reader needs to notice by itself that its consumer is gone.
    tokio::time::sleep(Duration::from_secs(15)).await;
    hub.bus.converge().await.unwrap();
    // A wrong decision after the silence would show within a lease.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(hub.liveness(&key).await, [Liveness::Fresh]);
    drop(heart);
    states_are(&hub, &key, &[Liveness::Fresh, Liveness::Stale]).await;
}

#[tokio::test]
async fn a_backlog_is_published_with_the_account() {
    let hub = Hub::start(&[]).await;
    let key = device("press-4");
    hub.send(&key, &status(1, 3, 3)).await;
    let _heart = Heart::of(&hub, &key, 3);
    let accounts = || {
        hub.facts(&key, |fact| match fact {
            Fact::Liveness(fact) => {
                fact.account.map(|account| (account.received, account.missing.to_string()))
            }
            _ => None,
        })
    };
    until("the backlog", accounts, |told| told.last().is_some_and(|last| last.1.starts_with('1'))).await;
    hub.send(&key, &status(1, 1, 3)).await;
    hub.send(&key, &status(1, 2, 3)).await;
    until("it drained", accounts, |told| told.last() == Some(&(3, String::new()))).await;
}

#[tokio::test]
async fn overdue_deployments_and_retired_living_devices_are_published_once() {
    let mut hub = Hub::start(&["--deadline-default", "1s"]).await;
    let key = device("press-4");
    desire(&hub, &key, &desired(1, &["web", "db"], false)).await;
    let _heart = Heart::of(&hub, &key, 0);
    let deadlines = || {
        hub.facts(&key, |fact| match fact {
            Fact::Deadline(fact) => Some((fact.generation.get(), fact.deadline)),
            _ => None,
        })
    };
    until("both are overdue", deadlines, |told| told.len() == 2).await;
    assert!(deadlines().await.iter().all(|told| *told == (1, DeadlineKind::NeverStarted)));
    hub.kill_ingest().await;
    hub.start_ingest();
    desire(&hub, &key, &desired(2, &[], true)).await;
    let alive = |found: &Vec<IncidentKind>| matches!(found.as_slice(), [IncidentKind::RetiredButAlive { generation }] if generation.get() == 2);
    until("the retired device is heard", || hub.incidents(&key), alive).await;
    assert_eq!(hub.facts(&key, |fact| matches!(fact, Fact::Deadline(_)).then_some(())).await.len(), 2);
}
