//! How long any point of the past takes, by the number of devices: a real server, a real rollup that reads LEDGER from its
//! start and fills in the checkpoints it had no time for, and questions about points drawn by lot, each rebuilt because none
//! is asked for twice. Beside them what is known now of a moment, what a checkpoint costs, and for how long the fold had to
//! wait at once. Run it by hand: `cargo bench -p muster-tests --bench recall [-- DEVICES [POINTS]]`. Without `--bench` nothing is measured.

// Its numbers go to standard output.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench is run by hand and watched")]

use std::time::{Duration, Instant};

use clap::Parser;
use muster_bus::Bus;
use muster_contract::Timestamp;
use muster_contract::history::Point;
use muster_contract::query::Query;
use muster_contract::subjects::QUERY_PREFIX;
use muster_rollup::app::{Handle, start};
use muster_rollup::config::Cli;
use muster_service::supervisor::Supervisor;
use muster_tests::bench::HubKind;
use muster_tests::ledger;
use muster_tests::server::Server;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Default number of devices.
const DEVICES: usize = 100_000;
/// Default number of points asked for.
const POINTS: usize = 12;
/// Reports of each deployment on each device.
const ROUNDS: u64 = 2;
/// Facts between two checkpoints, where nothing else is said.
const CHECKPOINT_FACTS: u64 = 100_000;
/// Time until none is missing.
const FILLED_WITHIN: Duration = Duration::from_secs(600);
/// How long any point of the past may take to be reached.
const TARGET: Duration = Duration::from_secs(2);
/// Time an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

// As in muster-rollup.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        return;
    }
    let mut numbers = words.iter().filter_map(|word| word.parse::<usize>().ok());
    let (devices, points) = (numbers.next().unwrap_or(DEVICES), numbers.next().unwrap_or(POINTS));
    let server = Server::start();
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    let end = ledger::fill(&bus, devices, ROUNDS).await;

    let (dir, supervisor, begin) = (tempfile::tempdir().unwrap(), Supervisor::new(), Instant::now());
    let handle = rollup(&server, dir.path(), &supervisor).await;
    let (mut read, mut stall) = (0, 0.0f64);
    while read < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
        read = handle.projection.read(|now| now.fleet.as_of().ledger_seq);
        stall = stall.max(handle.metrics.snapshot_stall_seconds.get());
    }
    println!("hub: {}", HubKind::Open);
    println!("{devices} devices, {end} facts read in {:.1} s", begin.elapsed().as_secs_f64());
    filled(&handle, end, begin).await;
    let (kept, bytes) = (handle.metrics.checkpoints.get(), handle.metrics.checkpoint_bytes.get());
    println!(
        "{kept} checkpoints, {:.1} MB together; the last snapshot took {:.2} s",
        bytes as f64 / 1e6,
        handle.metrics.snapshot_seconds.get()
    );
    println!("longest wait of the fold at once: {:.1} ms", stall * 1e3);
    query_points(&bus, end, points).await;
    hindsight(&bus, end).await;
    supervisor.drain(Duration::from_secs(20)).await;
}

async fn rollup(server: &Server, dir: &std::path::Path, supervisor: &Supervisor) -> Handle {
    let (url, dir) = (server.hub_url(), dir.to_str().unwrap());
    let words = ["muster-rollup", "--nats-url", &url, "--data-dir", dir];
    start(Cli::try_parse_from(words).unwrap().check().unwrap(), supervisor).await.unwrap()
}

/// Waits until the checkpoints are filled in that were not made while LEDGER was read.
async fn filled(handle: &Handle, end: u64, begin: Instant) {
    let missing = || (handle.metrics.checkpoints.get() as u64) < end.div_ceil(CHECKPOINT_FACTS);
    while missing() {
        assert!(begin.elapsed() < FILLED_WITHIN, "checkpoints are missing after {FILLED_WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("no checkpoint is missing after {:.1} s", begin.elapsed().as_secs_f64());
}

/// Asks for points drawn by lot.
async fn query_points(bus: &Bus, end: u64, points: usize) {
    let (mut chance, mut seconds) = (fastrand::Rng::with_seed(7), Vec::new());
    for _ in 0..points {
        seconds.push(moment(bus, Point::at_seq(chance.u64(1..=end))).await.0);
    }
    seconds.sort_by(f64::total_cmp);
    let (median, longest) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
    let target = TARGET.as_secs_f64();
    println!("{points} points of the past: median {median:.2} s, longest {longest:.2} s (target {target} s)");
    assert!(longest <= target, "a point took longer than the target");
}

/// Asks what is known now of the moment of the fact in the middle: every fact after it is read, which no checkpoint saves.
async fn hindsight(bus: &Bus, end: u64) {
    let (_, answer) = moment(bus, Point::at_seq(end / 2)).await;
    let at: Timestamp = answer["asOf"]["at"].as_str().unwrap().parse().unwrap();
    let (seconds, answer) = moment(bus, Point { event_time: Some(at), ..Point::default() }).await;
    let then = answer["eventTime"]["knownThen"]["ledgerSeq"].as_u64().unwrap();
    println!("what is known of ledger {then} by now, with the {} facts after it: {seconds:.2} s", end - then);
}

/// Asks for a point until it is reached; how long that takes, and the answer.
async fn moment(bus: &Bus, point: Point) -> (f64, Value) {
    let query = Query { point, ..Query::default() };
    let (question, begin) = (serde_json::to_vec(&query).unwrap(), Instant::now());
    loop {
        let subject = format!("{QUERY_PREFIX}.moment");
        let answer = bus.request(&subject, question.clone().into(), PATIENCE).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        if answer["error"]["code"] != "notReady" {
            assert!(answer["error"].is_null(), "{answer}");
            return (begin.elapsed().as_secs_f64(), answer);
        }
    }
}
