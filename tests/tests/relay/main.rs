//! The path of reports on thin and broken links, from a device's outbox to the hub's views: a real server, the real ingest
//! and rollup, the agent's own relay. One program: it is linked once.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod losses;
mod reconnect;
mod share;
mod truth;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use muster_bus::{Bus, BusConfig, Outgoing, Start};
use muster_contract::decode::to_bytes;
use muster_contract::subjects::{self, stream};
use muster_contract::view::DeploymentView;
use muster_simulator::child::{Child, Spec};
use muster_tests::backlog::Backlog;
use muster_tests::server::Server;
use muster_tests::system::{INGEST, ROLLUP, program};
use muster_tests::wait::{soon, until};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// A server with ingest and rollup.
struct Hub {
    server: Server,
    bus: Bus,
    asked: muster_simulator::hub::Hub,
    ingest: Option<Child>,
    /// Arguments of ingest besides those that all tests have.
    ingest_args: Vec<String>,
    _rollup: Child,
    dir: TempDir,
}

impl Hub {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with further arguments for ingest.
    async fn start_with(ingest_args: &[&str]) -> Self {
        let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
        let rollup = child(ROLLUP, &server, &dir, &[]);
        let ingest_args = ingest_args.iter().map(ToString::to_string).collect();
        let stop = CancellationToken::new();
        let bus = soon("a connection", Bus::connect(server.config("test"), &stop)).await.unwrap();
        soon("the topology", Box::pin(bus.converge())).await.unwrap();
        let asked = muster_simulator::hub::Hub::new(bus.clone());
        let mut hub = Self { server, bus, asked, ingest: None, ingest_args, _rollup: rollup, dir };
        hub.start_ingest();
        hub
    }

    fn start_ingest(&mut self) {
        assert!(self.ingest.is_none());
        self.ingest = Some(child(INGEST, &self.server, &self.dir, &self.ingest_args));
    }

    async fn kill_ingest(&mut self) {
        self.ingest.take().unwrap().kill().await.unwrap();
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    /// A device's settings over some way to the server, reconnecting fast.
    fn settings(&self, device: &Backlog, way: SocketAddr) -> BusConfig {
        let config = BusConfig::device(format!("nats://{way}"), &device.device);
        BusConfig { reconnect_max: Duration::from_millis(100), ..config }
    }

    /// Publishes what a device shall run.
    async fn desire(&self, device: &Backlog) {
        let message = Outgoing::new(subjects::desired(&device.device), to_bytes(&*device.desired));
        soon("a stored document", self.bus.publish(message)).await.unwrap();
    }

    /// All deployments as the rollup sees them; none while it does not answer.
    async fn views(&self) -> Vec<DeploymentView> {
        self.asked.deployments().await.unwrap_or_default()
    }

    /// Waits until every report up to `head` is in, and all of them are known.
    async fn knows(&self, device: &Backlog, head: u64) {
        let look = async || self.asked.device(&device.device).await.ok().map(|answer| answer.device);
        until("the hub has everything", look, |line| {
            line.as_ref().is_some_and(|line| line.account.received == head && line.head == head)
        })
        .await;
    }
}

fn child(name: &str, server: &Server, dir: &TempDir, more: &[String]) -> Child {
    let data = dir.path().join(name).display().to_string();
    let url = server.url();
    let own = if name == ROLLUP { vec!["--data-dir", &data] } else { vec!["--lease", "10m"] };
    let args =
        ["--nats-url", &url].into_iter().chain(own).map(str::to_owned).chain(more.iter().cloned()).collect();
    Child::start(Spec { name: name.to_owned(), program: program(name), args }, dir.path()).unwrap()
}
