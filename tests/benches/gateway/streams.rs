//! The streams and pages of the bench, in a process of their own, so that the processor time of the gateway and of
//! its clients is measured separately.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use muster_bus::{Bus, BusConfig, Start};
use muster_contract::Timestamp;
use muster_contract::subjects::stream;
use muster_tests::bench::{self, processor_seconds};
use muster_tests::load::{PATIENCE, SHARED_DEPLOYMENTS, SITES};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::client::Client;

/// Where a process finds its settings; without it, it measures.
pub(crate) const HELD_AT: &str = "MUSTER_BENCH_GATEWAY_STREAMS";
/// The line that the process prints when every stream has its first event.
const OPEN: &str = "open";
/// Connections that are being opened at once.
const OPENING: usize = 64;
/// Least time between two documents of a page, as in its script.
const RELOAD: Duration = Duration::from_secs(2);

/// The streams to hold, and for how long.
pub(crate) struct Wanted {
    pub(crate) gateway: SocketAddr,
    pub(crate) nats: String,
    pub(crate) streams: usize,
    pub(crate) pages: usize,
    pub(crate) seconds: usize,
}

/// The figures of all streams.
pub(crate) struct Held {
    pub(crate) frames_a_second: f64,
    pub(crate) reloads_a_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) cores: f64,
}

/// The process that holds the streams.
pub(crate) struct Holder {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    pub(crate) fn start(wanted: &Wanted) -> Self {
        let Wanted { gateway, nats, streams, pages, seconds } = wanted;
        let settings = format!("{gateway} {nats} {streams} {pages} {seconds}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--bench").env(HELD_AT, settings).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, lines }
    }

    pub(crate) async fn wait_until_open(&mut self) {
        assert_eq!(self.line().await, OPEN);
    }

    pub(crate) async fn result(mut self) -> Held {
        let line = self.line().await;
        let numbers: Vec<f64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let [frames_a_second, reloads_a_second, p50, p99, cores] = numbers[..] else {
            panic!("'{line}' are not five numbers")
        };
        Held { frames_a_second, reloads_a_second, p50, p99, cores }
    }

    async fn line(&mut self) -> String {
        let line = timeout(2 * PATIENCE, self.lines.next_line()).await.expect("a line in time").unwrap();
        line.expect("the process that holds the streams goes on")
    }
}

/// The frames and documents of one stream or page while it was measured.
#[derive(Default)]
struct Got {
    frames: usize,
    reloads: usize,
    /// The oldest fact that each frame is the first to show, and when the frame arrived; of streams of the fleet alone.
    shown: Vec<(u64, Timestamp)>,
}

/// Holds the streams that the settings name, and prints what they got.
pub(crate) async fn hold(settings: &str) -> ExitCode {
    let parts: Vec<&str> = settings.split(' ').collect();
    let [gateway, nats, streams, pages, seconds] = parts[..] else {
        panic!("'{settings}' are not five settings")
    };
    let (gateway, seconds) = (gateway.parse().unwrap(), seconds.parse::<u64>().unwrap());
    let stop = CancellationToken::new();
    let stored = tokio::spawn(stored_times(nats.to_owned(), stop.clone()));
    let (measuring, opening) = (CancellationToken::new(), Arc::new(Semaphore::new(OPENING)));
    let (opened, mut open) = tokio::sync::mpsc::unbounded_channel();
    let (streams, pages) = (streams.parse::<usize>().unwrap(), pages.parse::<usize>().unwrap());
    let mut held = JoinSet::new();
    for at in 0..streams + pages {
        let follower = Follower {
            gateway,
            path: path(if at < streams { at } else { 0 }),
            is_page: at >= streams,
            opening: Arc::clone(&opening),
            opened: opened.clone(),
            measuring: measuring.clone(),
            stop: stop.clone(),
        };
        held.spawn(follower.run());
    }
    for _ in 0..streams + pages {
        open.recv().await.unwrap();
    }
    bench::print(OPEN);
    measuring.cancel();
    let own = rustix::process::getpid();
    let (begin, before) = (Instant::now(), processor_seconds(own));
    sleep(Duration::from_secs(seconds)).await;
    let took = begin.elapsed().as_secs_f64();
    let cores = (processor_seconds(own) - before) / took;
    stop.cancel();
    let got = held.join_all().await;
    let stored = stored.await.unwrap();
    assert!(got.iter().all(|got| got.frames > 0), "a stream got no frame");
    let mut ages: Vec<f64> = got
        .iter()
        .flat_map(|got| &got.shown)
        .filter_map(|(fact, arrived)| Some(arrived.duration_since(*stored.get(fact)?).as_secs_f64()))
        .collect();
    ages.sort_by(f64::total_cmp);
    let of = |count: fn(&Got) -> usize| got.iter().map(count).sum::<usize>() as f64 / took;
    let (p50, p99) = (ages[ages.len() / 2], ages[ages.len() * 99 / 100]);
    bench::print(&format!("{} {} {p50} {p99} {cores}", of(|got| got.frames), of(|got| got.reloads)))
}

/// Half of the streams follow the fleet, a quarter each a deployment and a site.
fn path(at: usize) -> String {
    match at % 4 {
        0 | 1 => "/api/v1/watch/fleet".to_owned(),
        2 => format!("/api/v1/watch/deployments/app-{}", at / 4 % SHARED_DEPLOYMENTS),
        _ => format!("/api/v1/watch/sites/site-{}", at / 4 % SITES),
    }
}

/// When LEDGER stored each fact from now on.
async fn stored_times(nats: String, stop: CancellationToken) -> HashMap<u64, Timestamp> {
    let bus =
        Bus::connect(BusConfig::service(nats, "bench-streams"), &CancellationToken::new()).await.unwrap();
    let mut facts = bus.replay(stream::LEDGER, &[], Start::New).await.unwrap();
    let mut times = HashMap::new();
    while let Some(batch) = stop.run_until_cancelled(facts.next_batch(1000)).await {
        times.extend(batch.unwrap().into_iter().map(|fact| (fact.stream_seq, fact.stored_at)));
    }
    times
}

struct Follower {
    gateway: SocketAddr,
    path: String,
    is_page: bool,
    opening: Arc<Semaphore>,
    opened: tokio::sync::mpsc::UnboundedSender<()>,
    measuring: CancellationToken,
    stop: CancellationToken,
}

impl Follower {
    async fn run(self) -> Got {
        let permit = self.opening.acquire().await.unwrap();
        let mut page = None;
        let mut events = Client::connect(self.gateway).await.unwrap();
        if self.is_page {
            page.insert(Client::connect(self.gateway).await.unwrap()).get("/").await.unwrap();
        }
        events.follow(&self.path).await.unwrap();
        let mut last = events.event().await.unwrap();
        drop(permit);
        self.opened.send(()).unwrap();
        let (mut got, mut loaded) = (Got::default(), Instant::now());
        while let Some(event) = self.stop.run_until_cancelled(events.event()).await {
            let id = event.unwrap();
            let first_shown = std::mem::replace(&mut last, id) + 1;
            if !self.measuring.is_cancelled() {
                continue;
            }
            got.frames += 1;
            if self.path.ends_with("/fleet") {
                got.shown.push((first_shown, Timestamp::now()));
            }
            if let Some(page) = page.as_mut().filter(|_| loaded.elapsed() >= RELOAD) {
                loaded = Instant::now();
                page.get("/").await.unwrap();
                got.reloads += 1;
            }
        }
        got
    }
}
