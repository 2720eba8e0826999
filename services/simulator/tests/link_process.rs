//! `muster-simulator link` as the process it is: it carries, says that it is ready, counts, and ends when asked to.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use muster_simulator::child::{Child, Spec};
use muster_simulator::http;
use muster_simulator::link_schedule::LinkSchedule;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};

const DEADLINE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running link, and the server behind it.
struct Carrier {
    child: Child,
    server: TcpListener,
    link: SocketAddr,
    http: SocketAddr,
    dir: TempDir,
}

impl Carrier {
    async fn start(more: &[&str]) -> Self {
        let (dir, server) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let to = format!("localhost:{}", server.local_addr().unwrap().port());
        let (link, http) = (free_address().await, free_address().await);
        let (listen, http_addr) = (link.to_string(), http.to_string());
        let args = ["link", "--listen", &listen, "--to", &to, "--http-addr", &http_addr];
        let spec = Spec {
            name: "link".to_owned(),
            program: PathBuf::from(env!("CARGO_BIN_EXE_muster-simulator")),
            args: args.iter().chain(more).map(|&arg| arg.to_owned()).collect(),
        };
        let child = Child::start(spec, dir.path()).unwrap();
        let link_proxy = Self { child, server, link, http, dir };
        link_proxy
            .until("ready", async || http::get(http, "/ready").await.is_ok_and(|answer| answer.status == 200))
            .await;
        link_proxy
    }

    async fn until(&self, what: &str, mut look: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !look().await {
            let log = std::fs::read_to_string(self.dir.path().join("logs/link.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "not {what} within {DEADLINE:?}:\n{log}");
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn metric(&self, name: &str) -> f64 {
        let answer = http::get(self.http, "/metrics").await.unwrap();
        http::metric(&answer.body, name).unwrap_or_default()
    }
}

async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_steady_link_to_a_named_server_carries_counts_and_ends_on_request() {
    let link_proxy = Carrier::start(&[]).await;
    let mut client = TcpStream::connect(link_proxy.link).await.unwrap();
    let (mut server, _) = link_proxy.server.accept().await.unwrap();
    client.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    link_proxy
        .until("counted", async || {
            link_proxy.metric("muster_link_up_bytes").await >= 5.0
                && link_proxy.metric("muster_link_connections").await >= 1.0
        })
        .await;
    let status = link_proxy.child.stop().await.unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_flaky_link_has_the_faults_of_its_seed() {
    // The seed whose first fault comes soonest: a schedule is known before it is played.
    let flaky = |seed: u64| LinkSchedule::new("flaky".parse().unwrap(), seed, 0);
    let seed = (0..500).min_by_key(|seed| flaky(*seed).next_phase().lasts).unwrap();
    let link_proxy = Carrier::start(&["--profile", "flaky", "--seed", &seed.to_string()]).await;
    let log = link_proxy.dir.path().join("logs/link.log");
    link_proxy
        .until("faulty", async || std::fs::read_to_string(&log).unwrap().contains("injected a fault"))
        .await;
    let mut schedule = flaky(seed);
    let first = std::iter::repeat_with(|| schedule.next_phase()).find_map(|turn| turn.fault).unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    let line = log.lines().find(|line| line.contains("injected a fault")).unwrap();
    assert!(line.contains(first.name()), "{} is first, but: {line}", first.name());
    let counted = http::get(link_proxy.http, "/metrics").await.unwrap().body;
    assert!(counted.contains("muster_link_faults_total{fault="), "{counted}");
}
