//! A device without an agent: the test decides what it reports. Its heart beats until the value is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_bus::{Bus, Outgoing};
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, Timestamp, decode};
use muster_tests::story::key;
use muster_tests::system::System;
use serde_json::json;
use tokio::task::JoinHandle;

/// Time between two heartbeats.
const BEAT_EVERY: Duration = Duration::from_millis(300);

/// The device.
pub(crate) struct ScriptedDevice {
    bus: Bus,
    key: DeviceKey,
    deployment: DesiredDeployment,
    /// The number of the last report that was sent.
    seq: u64,
    /// The highest number that its heartbeats name.
    head: Arc<AtomicU64>,
    heart: JoinHandle<()>,
}

impl ScriptedDevice {
    /// A device of the repository, once its desired state is published. It has reported nothing.
    pub(crate) async fn start(system: &System, name: &str) -> Self {
        let (bus, key) = (system.bus.clone(), key(name));
        let document = system
            .eventually("its desired state is published", async || {
                let last = bus.last(stream::DOWNLINK, &subjects::desired(&key)).await;
                let message = last.map_err(|error| error.to_string())?.ok_or("nothing yet")?;
                Ok(decode::parse::<DesiredState>(&message.payload).unwrap())
            })
            .await;
        let deployment = document.deployments[0].clone();
        let head = Arc::new(AtomicU64::default());
        let heart = tokio::spawn(beat(bus.clone(), subjects::presence(&key), head.clone()));
        Self { bus, key, deployment, seq: 0, head, heart }
    }

    /// Sends the next report about its deployment. Ingest rejects one with a state that does not exist.
    pub(crate) async fn report(&mut self, state: &str) {
        self.seq += 1;
        self.head.fetch_max(self.seq, Ordering::AcqRel);
        self.send(self.seq, state).await;
    }

    /// Sends the report with a number, perhaps again.
    pub(crate) async fn send(&self, seq: u64, state: &str) {
        self.bus.publish(self.message(seq, state)).await.unwrap();
    }

    fn message(&self, seq: u64, state: &str) -> Outgoing {
        let report = json!({
            "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1,
            "seq": seq, "head": self.head.load(Ordering::Acquire),
            "observedAt": Timestamp::now().to_string(), "deployment": self.deployment.id,
            "generation": self.deployment.target_generation, "digest": self.deployment.digest,
            "status": {"state": state}, "components": [{"name": "main", "state": state}], "current": true,
        });
        Outgoing::new(subjects::report(&self.key), report.to_string())
    }

    /// Its heartbeats name so many reports that it does not send.
    pub(crate) fn hold_back(&self, reports: u64) {
        self.head.fetch_add(reports, Ordering::AcqRel);
    }
}

impl Drop for ScriptedDevice {
    fn drop(&mut self) {
        self.heart.abort();
    }
}

async fn beat(bus: Bus, subject: String, head: Arc<AtomicU64>) {
    let mut ticks = tokio::time::interval(BEAT_EVERY);
    loop {
        ticks.tick().await;
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1,
            "head": head.load(Ordering::Acquire), "unsent": 0, "generation": 1, "agentVersion": "test",
        });
        // While the server is down, nobody is to hear it.
        let _ = bus.publish(Outgoing::new(subject.clone(), beat.to_string())).await;
    }
}
