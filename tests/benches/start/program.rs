//! A muster-ingest that runs: when it is ready, and the processor time that it has used. It decides nothing.

#![allow(clippy::unwrap_used, reason = "a failure here is the bench's result")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use muster_simulator::child::{Child, Spec};
use muster_tests::bench::processor_seconds;
use muster_tests::server::{Server, free_port};
use muster_tests::system::{INGEST, program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Time between two questions whether the program is ready.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Time that a start may take: far above every bound.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
/// Longer than a run, so that no device of the fleet turns stale while something is measured.
const LEASE: &str = "1h";
/// In the line of its log that says what it read of LEDGER.
const READ: &str = "restored the partitions from LEDGER";
/// A running muster-ingest.
pub(crate) struct Ingest {
    child: Child,
    http: SocketAddr,
    begun: Instant,
}

impl Ingest {
    /// Starts one that keeps its snapshots in a folder of its own below `dir`.
    pub(crate) fn start(name: &str, server: &Server, dir: &Path) -> Self {
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let data = dir.join(format!("{name}-data")).display().to_string();
        let args = [
            "--nats-url",
            &server.url(),
            "--lease",
            LEASE,
            "--data-dir",
            &data,
            "--http-addr",
            &http.to_string(),
        ];
        let args = args.map(str::to_owned).to_vec();
        let begun = Instant::now();
        let child =
            Child::start(Spec { name: name.to_owned(), program: program(INGEST), args }, dir).unwrap();
        Self { child, http, begun }
    }

    /// Waits until it is ready; seconds since its start.
    pub(crate) async fn wait_until_ready(&mut self) -> f64 {
        let asking = async {
            while !is_ready(self.http).await {
                self.child.expect_running().unwrap();
                sleep(ASK_EVERY).await;
            }
        };
        timeout(PATIENCE, asking).await.unwrap();
        self.seconds()
    }

    /// Seconds since its start.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// The line of its log about the facts that its newest start read.
    pub(crate) fn restore_summary(&self) -> String {
        let log = std::fs::read_to_string(self.child.log()).unwrap();
        log.lines().rfind(|line| line.contains(READ)).unwrap_or_default().to_owned()
    }

    /// Seconds of processor time that it has used.
    pub(crate) fn processor_seconds(&self) -> f64 {
        processor_seconds(self.child.pid().unwrap())
    }

    /// Asks it to end, and waits: it writes its snapshots before.
    pub(crate) async fn stop(self) {
        self.child.stop().await.unwrap();
    }

    /// Kills it where it stands.
    pub(crate) async fn kill(self) {
        self.child.kill().await.unwrap();
    }
}

async fn is_ready(http: SocketAddr) -> bool {
    let Ok(mut connection) = TcpStream::connect(http).await else { return false };
    let request = format!("GET /ready HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    connection.write_all(request.as_bytes()).await.is_ok()
        && connection.read_to_end(&mut answer).await.is_ok()
        && answer.starts_with(b"HTTP/1.1 200")
}
