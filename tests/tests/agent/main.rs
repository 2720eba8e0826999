//! Tests of the agent on a real nats-server that gives it a device's rights and no more. One program, so that it is linked
//! once.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod backup;
mod desired;
mod device;
mod epochs;
mod links;
mod mute;
mod offline;
mod stopped;

use std::time::Duration;

use muster_agent::{Config, Handle};
use muster_bus::{Bus, Delivery, Outgoing, ReadError, Start};
use muster_contract::desired::DesiredState;
use muster_contract::report::{Report, StatusReport};
use muster_contract::subjects::{self, stream};
use muster_contract::{DeviceKey, State, decode};
use muster_service::config::LogFormat;
use muster_service::{Common, Supervisor};
use muster_tests::server::{Server, Setup, device};
use muster_tests::streams::keep_all_of_uplink;
use muster_tests::wait::{soon, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Time an agent gets to end in order.
const DRAIN: Duration = Duration::from_secs(20);

/// A hub without services: a server, and the test in their place.
struct Hub {
    server: Server,
    bus: Bus,
    device: DeviceKey,
}

/// A running agent, and the directory that outlives it.
struct Agent {
    supervisor: Supervisor,
    handle: Handle,
    dir: TempDir,
}

impl Hub {
    async fn start() -> Self {
        let hub = Self::without_streams().await;
        hub.converge().await;
        hub
    }

    async fn converge(&self) {
        soon("the streams", Box::pin(self.bus.converge())).await.unwrap();
        // The tests read reports from UPLINK, so nothing removes them.
        keep_all_of_uplink(&self.bus).await;
    }

    async fn without_streams() -> Self {
        let device = device("press-4");
        let server = Server::start_with(Setup { devices: vec![device.clone()], ..Setup::default() });
        let (config, stop) = (server.config("test"), CancellationToken::new());
        let bus = soon("a connection", Box::pin(Bus::connect(config, &stop))).await.unwrap();
        Self { server, bus, device }
    }

    async fn agent(&self) -> Agent {
        self.agent_in(tempfile::tempdir().unwrap()).await
    }

    async fn agent_in(&self, dir: TempDir) -> Agent {
        let supervisor = Supervisor::new();
        // After a crash of an agent in this process its lock is released a moment later.
        let start = || muster_agent::start(self.config(&dir), &supervisor);
        let handle = until("an agent", start, Result::is_ok).await.unwrap();
        Agent { supervisor, handle, dir }
    }

    fn config(&self, dir: &TempDir) -> Config {
        Config {
            common: Common {
                nats_url: self.server.device_url(&self.device).parse().unwrap(),
                creds: None,
                tls_ca: None,
                http_addr: None,
                log_format: LogFormat::Text,
                log_filter: "info".to_owned(),
            },
            device: self.device.clone(),
            data_dir: dir.path().to_owned(),
            runtime: muster_agent::config::RuntimeKind::Simulated,
            join: None,
            packages: muster_agent::package::PackageSettings::default(),
            labels: [("line".to_owned(), "press".to_owned())].into(),
            on_exit: muster_agent::reconcile::OnExit::Keep,
            heartbeat: Duration::from_millis(200),
            reconnect_max: Duration::from_millis(100),
            uplink_limit: None,
            poll: Some(Duration::from_secs(60)),
            ping: None,
            schedule: muster_agent::schedule::Schedule::default(),
            retry: muster_agent::reconcile::RetryPolicy {
                min: Duration::from_millis(10),
                max: Duration::from_millis(50),
                crash_loop: muster_agent::attempts::CrashLoopRule::default(),
            },
            outbox: muster_agent::outbox::Limits::default(),
        }
    }

    /// Publishes a desired state, as the publisher would.
    async fn desire(&self, document: &Value) {
        self.store(subjects::desired(&self.device), document).await;
    }

    async fn store(&self, subject: String, document: &Value) {
        let message = Outgoing::new(subject, serde_json::to_vec(document).unwrap());
        soon("a stored document", self.bus.publish(message)).await.unwrap();
    }

    /// The reports that ingest would accept of what UPLINK holds, in the order in which they came: a number that came again,
    /// because its answer was lost, has the same content.
    async fn uplink(&self) -> Vec<Report> {
        let read = || async { self.deliveries().await.map_err(|error| error.to_string()) };
        let deliveries = until("UPLINK can be read", read, Result::is_ok).await.unwrap();
        let mut accepted: Vec<Report> = Vec::new();
        for delivery in deliveries {
            let report = Report::parse(&delivery.payload).unwrap();
            let number = (report.epoch(), report.seq());
            match accepted.iter().find(|known| (known.epoch(), known.seq()) == number) {
                Some(known) => {
                    assert_eq!(content(known), content(&report), "{number:?} came as another report");
                }
                None => accepted.push(report),
            }
        }
        accepted
    }

    async fn deliveries(&self) -> Result<Vec<Delivery>, ReadError> {
        let wanted = self.bus.stream_state(stream::UPLINK).await?.messages as usize;
        let mut deliveries = Vec::new();
        let mut replay = self.bus.replay(stream::UPLINK, &[], Start::First).await?;
        while deliveries.len() < wanted {
            deliveries.extend(soon("stored reports", replay.next_batch(wanted - deliveries.len())).await?);
        }
        Ok(deliveries)
    }

    /// The reports as soon as one of them says this of a deployment.
    async fn until(&self, deployment: &str, generation: u64, state: State) -> Vec<Report> {
        let says = |report: &Report| {
            status(report).is_some_and(|report| {
                report.deployment.as_str() == deployment
                    && report.generation.get() == generation
                    && report.status.state == state
            })
        };
        let what = format!("{deployment}@{generation} {state}");
        until(&what, || self.uplink(), |reports: &Vec<Report>| reports.iter().any(says)).await
    }
}

impl Agent {
    /// Ends it in order; the directory stays.
    async fn end(self) -> TempDir {
        let drained = self.supervisor.drain(DRAIN).await;
        assert!(drained.late.is_empty(), "{drained:?}");
        assert!(self.supervisor.failure().is_none(), "{:?}", self.supervisor.failure());
        self.dir
    }

    /// Waits until nothing is left to send.
    async fn until_all_sent(&self, head: u64) {
        until(
            "everything is sent",
            async || self.handle.outbox().await.unwrap(),
            |summary| summary.head >= head && summary.unsent == 0,
        )
        .await;
    }
}

/// The fields of a report that stay the same when it is sent again.
fn content(report: &Report) -> Value {
    let mut content = match report {
        Report::Status(report) => serde_json::to_value(report).unwrap(),
        Report::Capabilities(report) => serde_json::to_value(report).unwrap(),
    };
    ["head", "current", "coalesced"]
        .iter()
        .for_each(|field| _ = content.as_object_mut().unwrap().remove(*field));
    content
}

fn status(report: &Report) -> Option<&StatusReport> {
    match report {
        Report::Status(report) => Some(report),
        Report::Capabilities(_) => None,
    }
}

/// A document with deployments of one simulated component each: `(id, target generation, properties)`.
fn document(generation: u64, deployments: &[(&str, u64, Value)]) -> Value {
    let entry = |(id, target, properties): &(&str, u64, Value)| {
        let mut entry = json!({
            "id": id, "name": id, "applicationId": "com-acme", "targetGeneration": target,
            "digest": format!("sha256:{}", "0".repeat(64)),
            "profile": { "type": "simulated", "components": [{ "name": "main", "properties": properties }] },
        });
        let parsed: muster_contract::desired::DesiredDeployment =
            serde_json::from_value(entry.clone()).unwrap();
        entry["digest"] = json!(parsed.content_digest());
        entry
    };
    let deployments: Vec<_> = deployments.iter().map(entry).collect();
    let document = json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
        "issuedAt": "2026-11-21T00:00:00Z", "source": { "kind": "git", "revision": "test" },
        "deployments": deployments,
    });
    decode::parse::<DesiredState>(&serde_json::to_vec(&document).unwrap()).unwrap();
    document
}

/// Numbers 1, 2, 3, … each once, whatever their order.
fn assert_dense(reports: &[Report]) {
    let mut seqs: Vec<_> = reports.iter().map(|report| report.seq().get()).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=reports.len() as u64).collect::<Vec<_>>());
}
