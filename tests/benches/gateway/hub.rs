//! The hub of the bench: a server, ingest, rollup and one gateway as processes, a fleet that has reported, and 2,000 reports a second.

use std::time::{Duration, Instant};

use fastrand::Rng;
use muster_bus::{Bus, BusConfig};
use muster_contract::subjects::stream;
use muster_simulator::child::{Child, Spec};
use muster_simulator::http;
use muster_simulator::hub::Hub as Asked;
use muster_tests::bench::{processor_seconds, say};
use muster_tests::envelope::Carry;
use muster_tests::load::{self, EVENTS_PER_SECOND, Fleet, PATIENCE, WINDOW};
use muster_tests::server::Server;
use muster_tests::system::{INGEST, ROLLUP, program};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant as Due, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::process::Gateway;
use super::slow;
use super::streams::{self, Held, Wanted};

const LOOK: Duration = Duration::from_millis(100);

/// The hub.
pub(crate) struct Hub {
    bus: Bus,
    devices: usize,
    gateway: Gateway,
    _services: Vec<Child>,
    dir: TempDir,
    server: Server,
}

/// Reports that are being sent.
pub(crate) struct Reports {
    stop: CancellationToken,
    sending: JoinHandle<()>,
}

impl Reports {
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.sending.await.unwrap();
    }
}

/// The first screen.
pub(crate) struct Screens {
    pub(crate) slowest: f64,
    pub(crate) bytes: usize,
}

/// The processor time and memory of the gateway under load.
pub(crate) struct Used {
    pub(crate) gateway_cores: f64,
    pub(crate) resident_mib: f64,
    pub(crate) facts_a_second: f64,
}

impl Hub {
    /// A hub where so many devices have reported once.
    pub(crate) async fn start(devices: usize) -> Self {
        let server = Server::start();
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("rollup").display().to_string();
        let start = |name: &str, own: &[&str]| {
            let args =
                [&["--nats-url", &server.url()], own].concat().into_iter().map(str::to_owned).collect();
            Child::start(Spec { name: name.to_owned(), program: program(name), args }, dir.path()).unwrap()
        };
        let services = vec![start(INGEST, &["--lease", "1h"]), start(ROLLUP, &["--data-dir", &data])];
        let gateway = Gateway::start(&server.url(), dir.path());
        let bus =
            Bus::connect(BusConfig::service(server.url(), "bench"), &CancellationToken::new()).await.unwrap();
        bus.converge().await.unwrap();
        say(&format!("{devices} devices report"));
        load::publish_desired(&bus, (0..devices).map(|at| load::desired(Fleet::Alike, at)).collect()).await;
        let first = (0..devices).map(|at| load::report(Fleet::Alike, at, 1)).collect();
        load::publish(&bus, Carry::Everything, first).await;
        let hub = Self { bus, devices, gateway, _services: services, dir, server };
        hub.settled().await;
        hub
    }

    /// The gateway that runs.
    pub(crate) const fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Replaces the gateway by a new one, whose memory no earlier stream has used.
    pub(crate) async fn replace_gateway(&mut self) {
        let new = Gateway::start(&self.server.url(), self.dir.path());
        std::mem::replace(&mut self.gateway, new).end().await;
        self.settled().await;
    }

    /// Begins to send reports.
    pub(crate) fn send_reports(&self) -> Reports {
        let stop = CancellationToken::new();
        let sending = tokio::spawn(paced(self.bus.clone(), self.devices, stop.clone()));
        Reports { stop, sending }
    }

    /// Where the server listens.
    pub(crate) fn nats(&self) -> String {
        self.server.url()
    }

    /// Waits until the gateway's page shows the whole fleet.
    async fn settled(&self) {
        let (asked, deadline) = (Asked::new(self.bus.clone()), Instant::now() + PATIENCE);
        loop {
            let heard = asked.fleet().await.map_or(0, |view| view.tally.devices.fresh);
            let page = http::get(self.gateway.addr(), "/").await.map_or(0, |answer| answer.status);
            if heard == self.devices as u64 && page == 200 {
                return;
            }
            assert!(Instant::now() < deadline, "{heard} devices after {PATIENCE:?}, page {page}");
            sleep(LOOK).await;
        }
    }

    /// Asks for the first screen so many times.
    pub(crate) async fn first_screens(&self, times: usize) -> Screens {
        let mut screens = Screens { slowest: 0.0, bytes: 0 };
        for _ in 0..times {
            let begin = Instant::now();
            let answer = http::get(self.gateway.addr(), "/").await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
            screens.slowest = screens.slowest.max(begin.elapsed().as_secs_f64());
            screens.bytes = screens.bytes.max(answer.body.len());
        }
        screens
    }

    /// The figures of a process that holds the streams beside so many slow clients, and of the gateway meanwhile.
    pub(crate) async fn under_load(&self, wanted: &Wanted, slow_clients: usize) -> (Held, Used) {
        let pid = self.gateway.pid();
        let mut holder = streams::Holder::start(wanted);
        holder.wait_until_open().await;
        say("every stream is open");
        let (begin, before, from) = (Instant::now(), processor_seconds(pid), self.ledger_seq().await);
        let _unread = slow::open(&self.gateway, slow_clients).await;
        let held = holder.result().await;
        let seconds = begin.elapsed().as_secs_f64();
        let used = Used {
            gateway_cores: (processor_seconds(pid) - before) / seconds,
            resident_mib: self.gateway.resident_bytes() as f64 / f64::from(1 << 20),
            facts_a_second: (self.ledger_seq().await - from) as f64 / seconds,
        };
        (held, used)
    }

    async fn ledger_seq(&self) -> u64 {
        self.bus.stream_state(stream::LEDGER).await.unwrap().last_seq
    }
}

/// Sends a report of the next device every so often, until `stop`.
async fn paced(bus: Bus, devices: usize, stop: CancellationToken) {
    let (mut window, mut chance, begin) = (bus.window(WINDOW), Rng::new(), Due::now());
    for event in 0.. {
        if stop.is_cancelled() {
            break;
        }
        sleep_until(begin + Duration::from_secs_f64(event as f64 / EVENTS_PER_SECOND as f64)).await;
        let (subject, payload) = load::report(Fleet::Alike, event % devices, 2 + event / devices);
        window.send(Carry::Everything.report(subject, payload, &mut chance), ()).await;
        while let Some((_, stored)) = window.try_next() {
            stored.unwrap();
        }
    }
    while let Some((_, stored)) = window.next().await {
        stored.unwrap();
    }
}
