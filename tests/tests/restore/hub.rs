//! A hub whose services run in this process, and a device that the test plays.

use std::time::Duration;

use clap::Parser as _;
use muster_bus::{Bus, Outgoing, RequestError};
use muster_contract::canonical::Digest;
use muster_contract::fact::Fact;
use muster_contract::incident::Incident;
use muster_contract::receipt::Receipt;
use muster_contract::subjects::{self, LedgerSubject, stream};
use muster_contract::{DeviceKey, Timestamp, decode};
use muster_service::supervisor::Supervisor;
use muster_tests::server::Server;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) const DRAIN: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(5);

/// A server, its services, and a connection that may do everything.
pub(crate) struct Hub {
    pub(crate) server: Server,
    pub(crate) bus: Bus,
    pub(crate) dir: tempfile::TempDir,
}

impl Hub {
    pub(crate) async fn start() -> Self {
        let hub = Self::without_streams().await;
        hub.bus.converge().await.unwrap();
        hub
    }

    pub(crate) async fn without_streams() -> Self {
        let server = Server::start();
        let bus = Bus::connect(server.config("test"), &CancellationToken::new()).await.unwrap();
        Self { server, bus, dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) async fn ingest(&self) -> Supervisor {
        self.ingest_with(&[]).await
    }

    pub(crate) async fn ingest_with(&self, flags: &[&str]) -> Supervisor {
        let url = self.server.url();
        let words = ["muster-ingest", "--nats-url", &url, "--lease", "3s"];
        let words = words.iter().chain(flags);
        let config = muster_ingest::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let supervisor = Supervisor::new();
        soon("ingest", muster_ingest::app::start(config, &supervisor)).await.unwrap();
        ready(&supervisor).await;
        supervisor
    }

    pub(crate) async fn rollup(&self) -> Supervisor {
        self.rollup_with(&[]).await
    }

    pub(crate) async fn rollup_with(&self, flags: &[&str]) -> Supervisor {
        let data = self.dir.path().join("rollup").display().to_string();
        let url = self.server.url();
        let words = ["muster-rollup", "--nats-url", &url, "--data-dir", &data];
        let words = words.iter().chain(flags);
        let config = muster_rollup::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let supervisor = Supervisor::new();
        soon("rollup", muster_rollup::app::start(config, &supervisor)).await.unwrap();
        ready(&supervisor).await;
        supervisor
    }

    pub(crate) async fn publisher(&self) -> (Supervisor, muster_publisher::app::Handle) {
        let words = ["muster-publisher", "--nats-url", &self.server.url()];
        let config = muster_publisher::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let supervisor = Supervisor::new();
        let handle = soon("publisher", muster_publisher::app::start(config, &supervisor)).await.unwrap();
        ready(&supervisor).await;
        (supervisor, handle)
    }

    pub(crate) async fn planner(&self) -> Supervisor {
        self.planner_with(&[]).await
    }

    pub(crate) async fn planner_with(&self, flags: &[&str]) -> Supervisor {
        let url = self.server.url();
        let words = ["muster-planner", "--nats-url", &url];
        let words = words.iter().chain(flags);
        let config = muster_planner::config::Cli::try_parse_from(words).unwrap().check().unwrap();
        let supervisor = Supervisor::new();
        soon("planner", muster_planner::app::start(config, &supervisor)).await.unwrap();
        ready(&supervisor).await;
        supervisor
    }

    pub(crate) async fn request(&self, subject: &str, request: &Value) -> Value {
        // The server may hear of a service that is ready a moment later than the service itself.
        let ask = async || self.bus.request(subject, request.to_string().into(), PATIENCE).await;
        let is_heard = |answer: &Result<_, _>| !matches!(answer, Err(RequestError::NoResponders { .. }));
        let answer = until("an answer", ask, is_heard).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// The newest fact of a subject.
    pub(crate) async fn fact(&self, subject: &LedgerSubject) -> Option<Fact> {
        let last = self.bus.last(stream::LEDGER, &subject.to_string()).await.ok().flatten()?;
        Fact::parse(subject, &last.payload).ok()
    }

    pub(crate) async fn hub_incident(&self) -> Option<Incident> {
        match self.fact(&LedgerSubject::Incident(None)).await? {
            Fact::Incident(incident) => Some(incident),
            _ => None,
        }
    }

    pub(crate) async fn beat(&self, key: &DeviceKey, head: u64) {
        let beat = json!({
            "apiVersion": "muster/v1", "kind": "Heartbeat", "epoch": 1, "head": head, "unsent": 0,
            "generation": 1, "agentVersion": "test",
        });
        let _ = self.bus.publish(Outgoing::new(subjects::presence(key), beat.to_string())).await;
    }

    pub(crate) async fn report(&self, key: &DeviceKey, seq: u64, head: u64) {
        let states = ["installing", "installed"];
        self.report_state(key, (seq, head), states[usize::from(seq == head)]).await;
    }

    pub(crate) async fn report_state(&self, key: &DeviceKey, (seq, head): (u64, u64), state: &str) {
        let report = json!({
            "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": 1, "seq": seq, "head": head,
            "observedAt": Timestamp::now().to_string(), "deployment": "web", "generation": 1,
            "digest": Digest::of_bytes(b"web").to_string(), "status": {"state": state},
            "components": [{"name": "main", "state": state}], "current": seq == head,
        });
        self.bus.publish(Outgoing::new(subjects::report(key), report.to_string())).await.unwrap();
    }

    /// Which reports of a device the newest receipt asks for; none while there is no receipt.
    pub(crate) async fn receipt(&self, key: &DeviceKey) -> Option<(u64, String)> {
        let last = self.bus.last(stream::DOWNLINK, &subjects::receipt(key)).await.ok().flatten()?;
        let receipt: Receipt = decode::parse(&last.payload).ok()?;
        Some((receipt.through, receipt.missing.to_string()))
    }
}

async fn ready(supervisor: &Supervisor) {
    until("a service is ready", async || supervisor.health().missing(), Vec::is_empty).await;
}

pub(crate) fn key() -> DeviceKey {
    "plant7/press-4".parse().unwrap()
}
