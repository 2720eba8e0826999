//! Facts of a small fleet as JSON, in the contract's form.

use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::subjects::stream;
use muster_tests::wait::until;
use serde_json::{Value, json};

use crate::Hub;

/// A device's whole life so far, one step at a time.
pub(crate) struct Device {
    /// `site.device`
    pub(crate) name: String,
    generation: u64,
    seq: u64,
}

impl Device {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), generation: 0, seq: 0 }
    }

    /// It shall run these deployments.
    pub(crate) async fn wants(&mut self, hub: &Hub, deployments: &[&str]) {
        self.publish(hub, deployments, json!({}), false).await;
    }

    /// The same, and it is in these groups.
    pub(crate) async fn labelled(&mut self, hub: &Hub, deployments: &[&str], labels: Value) {
        self.publish(hub, deployments, labels, false).await;
    }

    /// The current state is re-asserted before it ages out: its desired state, a report under its old number,
    /// and its liveness with the account of all its numbers.
    pub(crate) async fn is_said_again(&mut self, hub: &Hub, states: &[(u64, &str, &str)], liveness: &str) {
        self.wants(hub, &["web", "db"]).await;
        for (seq, deployment, state) in states {
            let mut fact = self.status(deployment, state);
            (fact["seq"], fact["reasserted"]) = (json!(seq), json!(true));
            hub.put(&format!("muster.status.{}.{deployment}", self.name), &fact).await;
        }
        let mut fact = self.liveness(liveness);
        fact["account"] = json!({"received": self.seq, "coalesced": 0, "quarantined": 0});
        hub.put(&format!("muster.liveness.{}", self.name), &fact).await;
    }

    /// It leaves the fleet.
    pub(crate) async fn retires(&mut self, hub: &Hub) {
        self.publish(hub, &[], json!({}), true).await;
    }

    async fn publish(&mut self, hub: &Hub, deployments: &[&str], labels: Value, retired: bool) {
        self.generation += 1;
        let entries: Vec<Value> = deployments.iter().map(|id| entry(id)).collect();
        let desired = json!({
            "apiVersion": "muster/v1", "kind": "DesiredState", "generation": self.generation,
            "issuedAt": now(), "retired": retired, "source": {"kind": "git", "revision": "c1"},
            "labels": labels, "deployments": entries,
        });
        let subject = format!("muster.desired.{}", self.name);
        hub.put(&subject, &desired).await;
        // LEDGER takes it over from DOWNLINK in its own time.
        let sourced = || async {
            let last = hub.bus.last(stream::LEDGER, &subject).await.ok().flatten()?;
            serde_json::from_slice::<Value>(&last.payload).ok()?["generation"].as_u64()
        };
        until("the desired state in LEDGER", sourced, |held| *held == Some(self.generation)).await;
    }

    /// It is heard, or not any more.
    pub(crate) async fn is(&self, hub: &Hub, state: &str) {
        hub.put(&format!("muster.liveness.{}", self.name), &self.liveness(state)).await;
    }

    fn liveness(&self, state: &str) -> Value {
        json!({
            "apiVersion": "muster/v1", "kind": "LivenessFact", "state": state, "lastHeardAt": now(),
            "epoch": 1, "head": self.seq,
        })
    }

    /// It reports a state of a deployment.
    pub(crate) async fn reports(&mut self, hub: &Hub, deployment: &str, state: &str) {
        self.seq += 1;
        let fact = self.status(deployment, state);
        hub.put(&format!("muster.status.{}.{deployment}", self.name), &fact).await;
    }

    /// It reports a state that it saw at some time, which only comes now.
    pub(crate) async fn reported_at(
        &mut self,
        hub: &Hub,
        deployment: &str,
        state: &str,
        observed: Timestamp,
    ) {
        self.seq += 1;
        let mut fact = self.status(deployment, state);
        fact["observedAt"] = observed.to_string().into();
        hub.put(&format!("muster.status.{}.{deployment}", self.name), &fact).await;
    }

    fn status(&self, deployment: &str, state: &str) -> Value {
        json!({
            "apiVersion": "muster/v1", "kind": "StatusFact", "epoch": 1, "seq": self.seq, "head": self.seq,
            "observedAt": now(), "receivedAt": now(), "deployment": deployment, "generation": 1,
            "digest": Digest::of_bytes(deployment.as_bytes()).to_string(),
            "status": {"state": state}, "components": [{"name": "main", "state": state}], "current": true,
        })
    }
}

/// Three devices of two sites with two deployments each: eleven facts and three desired states.
pub(crate) async fn small_fleet(hub: &Hub) -> Vec<Device> {
    let mut devices: Vec<Device> =
        ["plant7.press-4", "plant7.drill-1", "plant9.oven-2"].map(Device::new).into();
    for device in &mut devices {
        device.wants(hub, &["web", "db"]).await;
        device.is(hub, "fresh").await;
        device.reports(hub, "web", "installing").await;
        device.reports(hub, "web", "installed").await;
    }
    devices[0].reports(hub, "db", "failed").await;
    devices[2].is(hub, "stale").await;
    devices
}

fn entry(id: &str) -> Value {
    let mut entry = json!({
        "id": id, "name": id, "applicationId": format!("com.example.{id}"),
        "profile": {"type": "simulated", "components": [{"name": "main", "properties": {}}]},
    });
    let digest = Digest::of_value(&entry).to_string();
    entry["targetGeneration"] = json!(1);
    entry["digest"] = json!(digest);
    entry
}

fn now() -> String {
    Timestamp::now().to_string()
}
