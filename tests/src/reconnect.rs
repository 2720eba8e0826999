//! A device that was offline for long: the real agent program writes a backlog while its link is cut, and then reconnects to a
//! secured hub. Measures when the newest state of every deployment is in LEDGER and in the views, how many older reports
//! came before, and when the whole backlog is accounted for. The agent writes every report itself: its simulated
//! deployments fail to start very often, and succeed in the end.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod observer;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_identity::Role;
use muster_simulator::child::{Child, Spec};
use muster_simulator::http;
use muster_simulator::link::{Condition, Direction, Link, Setting, Shape};
use tokio::time::{Instant, sleep};

use self::observer::LedgerObserver;
use crate::guarded::Guarded;
use crate::hostile::hub::{connect, has_mirrors, start_service};
use crate::server::{device, free_port};
use crate::system::{INGEST, PUBLISHER, ROLLUP, program};
use crate::wait::within;

/// Deployments of the device.
pub const DEPLOYMENTS: usize = 16;
/// Reports of one start that fails: it begins, and it has failed.
const REPORTS_OF_A_FAILURE: usize = 2;
/// The generations of the device's desired state: one that runs, and one whose starts fail.
const STEADY: u64 = 1;
const FAILING: u64 = 2;
/// How long the steady deployments take to stop: the link is cut meanwhile.
const STOP_DELAY: &str = "5s";
/// Silence after which the hub takes the device for stale: longer than any of these runs.
const LEASE: &str = "1h";
/// Time without a new report after which the backlog is written. A start that failed is tried again within 10 ms.
const QUIET: Duration = Duration::from_secs(3);
/// Time any step but the backlog itself may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which the agent writes a backlog: the least rate is far below that of a slow disk.
const WRITE_PATIENCE: Duration = Duration::from_secs(1_200);
/// Time between two looks at the link.
const LOOK: Duration = Duration::from_millis(1);

/// A device that is offline and has a backlog.
pub struct OfflineDevice {
    /// Reports that LEDGER does not hold yet.
    pub waiting: u64,
    link: Link,
    observer: LedgerObserver,
    _agent: Child,
    _services: Vec<Child>,
    _hub: Guarded,
}

/// The figures of one reconnect.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Reports that waited.
    pub waiting: u64,
    /// From the agent's connection until LEDGER held the newest state of every deployment.
    pub newest_in_ledger: Duration,
    /// Other reports of the backlog that LEDGER took in before that.
    pub older_before_newest: usize,
    /// From the agent's connection until the view of every deployment showed it.
    pub newest_in_views: Duration,
    /// From the agent's connection until all of them were accounted for.
    pub accounted_after: Duration,
    /// Bytes that the link carried to the hub, TLS included.
    pub bytes_up: u64,
}

impl OfflineDevice {
    /// Starts a secured hub and an agent, cuts the agent off, and waits until it has written about so many reports.
    pub async fn with_backlog(reports: usize) -> Self {
        let hub = Guarded::start();
        let services = [ROLLUP, PUBLISHER, INGEST].map(|name| start_service(&hub, name, LEASE)).into();
        assert!(has_mirrors(&hub).await, "people read mirrors on this hub");
        let key = device("press-4");
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, hub.server.port()));
        let link = Link::open(server).await.unwrap();
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let agent = start_agent(&hub, &key, &link, http);
        let inspector = connect(hub.config(Role::Ingest)).await;
        let subscriber = connect(hub.config(Role::Subscriber)).await;
        let observer = LedgerObserver::start(inspector, subscriber, key.clone()).await;

        apply(&hub, &key, &format!("stopDelay: {STOP_DELAY}"));
        let runs = async || metric(http, "muster_agent_desired_generation").await;
        within(PATIENCE, "the agent has its deployments", runs, |generation| *generation == STEADY).await;
        let views = async || observer.converged_views();
        within(PATIENCE, "the hub knows that they run", views, |views| *views == DEPLOYMENTS).await;
        let failures = reports.div_ceil(DEPLOYMENTS * REPORTS_OF_A_FAILURE);
        apply(&hub, &key, &format!("failStarts: {failures}"));
        within(PATIENCE, "the agent has the others", runs, |generation| *generation == FAILING).await;
        link.set(Condition::Cut);
        wait_until_written(http, reports as u64).await;
        let waiting = metric(http, "muster_agent_head").await - observer.accounted();
        Self { waiting, link, observer, _agent: agent, _services: services, _hub: hub }
    }

    /// Opens the link in this shape and measures until the backlog is accounted for, or as long as `patience`.
    pub async fn reconnect(self, shape: Shape, patience: Duration) -> Measured {
        let (connections, carried) = (self.link.connections(), self.link.carried(Direction::Up));
        let (known, before) = (self.observer.accounted(), self.observer.reports());
        self.link.apply_setting(Setting { condition: Condition::Open, shape });
        while self.link.connections() == connections {
            sleep(LOOK).await;
        }
        let connected = Instant::now();
        let newest = async || self.observer.newest(FAILING);
        let newest =
            within(PATIENCE, "LEDGER holds the newest states", newest, Option::is_some).await.unwrap();
        let views = async || self.observer.shown(FAILING);
        let shown = within(PATIENCE, "the views show them", views, Option::is_some).await.unwrap();
        let accounted = async || self.observer.accounted() - known;
        within(patience, "the backlog is accounted for", accounted, |accounted| *accounted == self.waiting)
            .await;
        Measured {
            waiting: self.waiting,
            newest_in_ledger: newest.at.duration_since(connected),
            older_before_newest: newest.reports - before - DEPLOYMENTS,
            // Two tasks observe: the one that reads LEDGER may be the later one by a moment.
            newest_in_views: shown.max(newest.at).duration_since(connected),
            accounted_after: connected.elapsed(),
            bytes_up: self.link.carried(Direction::Up) - carried,
        }
    }
}

fn start_agent(hub: &Guarded, key: &DeviceKey, link: &Link, http: SocketAddr) -> Child {
    let creds = hub.enroll(key, "1d");
    let (url, data) = (format!("tls://{}", link.address()), hub.dir().join("press-4"));
    let (creds, data, http) = (creds.display().to_string(), data.display().to_string(), http.to_string());
    let authority = hub.authority().unwrap().display().to_string();
    let args = [
        ["--nats-url", &url],
        ["--creds", &creds],
        ["--tls-ca", &authority],
        ["--http-addr", &http],
        ["--data-dir", &data],
        ["--site", key.site.as_str()],
        ["--device", key.device.as_str()],
        ["--runtime", "simulated"],
        ["--reconnect-max", "1s"],
        ["--retry-min", "10ms"],
        ["--retry-max", "10ms"],
        ["--crash-loop-window", "100ms"],
        ["--outbox-rows", "1000000"],
        ["--outbox-bytes", "4GiB"],
        ["--log", "error"],
    ];
    let args = args.concat().into_iter().map(str::to_owned).collect();
    Child::start(Spec { name: "agent".to_owned(), program: program("muster-agent"), args }, hub.dir())
        .unwrap()
}

/// Has the device run its deployments with these properties, as an operator does.
fn apply(hub: &Guarded, key: &DeviceKey, properties: &str) {
    let creds = hub.creds(Role::Operator).display().to_string();
    let file = hub.dir().join("apps.yaml");
    let manifests: Vec<_> = (0..DEPLOYMENTS).map(|at| manifest(at, properties)).collect();
    std::fs::write(&file, manifests.join("---\n")).unwrap();
    let (file, key) = (file.display().to_string(), key.to_string());
    let done = || hub.muster(&["apply", "-f", &file, "--device", &key, "--creds", &creds]);
    let done = tokio::task::block_in_place(done);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn manifest(at: usize, properties: &str) -> String {
    format!(
        "id: app-{at}
metadata: {{name: app-{at}}}
spec:
  applicationId: com-example-app
  deploymentProfile:
    type: simulated
    components:
      - name: main
        properties: {{{properties}}}
"
    )
}

/// Waits until at least so many reports wait and no more come.
async fn wait_until_written(http: SocketAddr, reports: u64) {
    let (mut last, mut changed) = (0, Instant::now());
    let deadline = Instant::now() + WRITE_PATIENCE;
    loop {
        let head = metric(http, "muster_agent_head").await;
        if head != last {
            (last, changed) = (head, Instant::now());
        }
        if head >= reports && changed.elapsed() >= QUIET {
            return;
        }
        assert!(Instant::now() < deadline, "the agent has written {head} of {reports} reports");
        sleep(Duration::from_millis(100)).await;
    }
}

/// A number of the agent; 0 while it does not answer.
async fn metric(address: SocketAddr, name: &str) -> u64 {
    let answer = http::get(address, "/metrics").await;
    answer.ok().and_then(|answer| http::metric(&answer.body, name)).map_or(0, |value| value as u64)
}
