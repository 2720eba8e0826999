//! How fast a rollup reads LEDGER from its start until its fold has everything, beside a bare consumer of the same stream
//! that looks at nothing. Both run in turn on one server with one LEDGER, and the ratio is the middle one of the rounds,
//! because machines are shared and noisy. Then the rollup starts again from the snapshot that it left, until it answers, and
//! is asked questions of several kinds one after the other. It measures; it asserts only that all was read.
//!
//! `cargo bench -p muster-tests --bench rebuild`; `BENCH_DEVICES=20000 BENCH_ROUNDS=5` for other sizes: eight facts and
//! three standings a device.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use muster_bus::{Bus, Start};
use muster_contract::subjects::{QUERY_PREFIX, stream};
use muster_contract::view::FleetView;
use muster_rollup::app::{Handle, start};
use muster_rollup::config::Cli;
use muster_service::supervisor::Supervisor;
use muster_tests::bench::{self, HubKind, ratio, say, setting, thousands};
use muster_tests::ledger;
use muster_tests::server::Server;
use tokio_util::sync::CancellationToken;

const DEVICES_DEFAULT: usize = 100_000;
const ROUNDS_DEFAULT: usize = 3;
/// Reports of each deployment on each device.
const REPORTS: u64 = 2;
/// Messages that the bare consumer takes at once: as many as the rollup.
const BATCH: usize = 1000;
const LOOK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(300);
/// Questions of each kind.
const ASKED: usize = 1000;
/// Questions: the endpoint, and what is asked.
const QUESTIONS: [(&str, &str); 6] = [
    ("fleet", "{}"),
    ("deployment", r#"{"id": "web"}"#),
    ("status", r#"{"id": "web", "output": "brief", "limit": 50}"#),
    ("status", r#"{"id": "web", "site": ["site-1"], "component": ["main"], "output": "all", "limit": 50}"#),
    ("why", r#"{"id": "web", "limit": 50}"#),
    ("devices", r#"{"limit": 50}"#),
];
/// Time for what a rollup still has to write, and for one answer.
const DRAIN: Duration = Duration::from_secs(20);

// As in muster-rollup.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let devices = setting("BENCH_DEVICES", DEVICES_DEFAULT);
    let rounds = setting("BENCH_ROUNDS", ROUNDS_DEFAULT).max(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    bench::tell(HubKind::Open, &runtime.block_on(measure(devices, rounds)))
}

async fn measure(devices: usize, rounds: usize) -> String {
    let server = Server::start();
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    say(&format!("writing a LEDGER of {devices} devices"));
    let end = ledger::fill(&bus, devices, REPORTS).await;
    let (mut bare, mut rebuilt, mut again, mut asked) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}"));
        bare.push(end as f64 / read(&bus, end).await.as_secs_f64());
        let data = tempfile::tempdir().unwrap();
        rebuilt.push(end as f64 / rebuild(&server, data.path(), end).await.as_secs_f64());
        let (took, slowest) = restart(&server, &bus, data.path(), end).await;
        again.push(took.as_secs_f64());
        // The last round's: as noisy as any.
        asked = slowest;
    }
    let ratio = ratio(&rebuilt, &bare);
    [
        format!(
            "{end} facts of {devices} devices, median of {rounds} rounds (spread = (max - min) / median)"
        ),
        String::new(),
        "| facts/s from LEDGER's first to its last | bare consumer | muster-rollup | ratio |".to_owned(),
        "|---|---:|---:|---:|".to_owned(),
        format!("| rebuild | {} | {} | {ratio:.2} |", thousands(&bare), thousands(&rebuilt)),
        String::new(),
        format!(
            "From the start of muster-rollup with the snapshot it left until it answers, {} standings: {:.2} s at most.",
            devices * ledger::DEPLOYMENTS.len(),
            again.iter().copied().fold(0.0, f64::max)
        ),
        format!("{ASKED} questions of each of {} kinds over NATS: {asked}.", QUESTIONS.len()),
    ]
    .join("\n")
}

async fn read(bus: &Bus, end: u64) -> Duration {
    let begin = Instant::now();
    let mut replay = bus.replay(stream::LEDGER, &[], Start::First).await.unwrap();
    let mut last = 0;
    while last < end {
        let batch = tokio::time::timeout(PATIENCE, replay.next_batch(BATCH)).await.expect("LEDGER goes on");
        last = batch.unwrap().last().map_or(last, |message| message.stream_seq);
    }
    begin.elapsed()
}

/// A rollup that has nothing but LEDGER, from its start as a service on.
async fn rebuild(server: &Server, data: &Path, end: u64) -> Duration {
    let (supervisor, begin) = (Supervisor::new(), Instant::now());
    let handle = rollup(server, data, &supervisor).await;
    while handle.projection.read(|now| now.fleet.as_of().ledger_seq) < end {
        assert!(begin.elapsed() < PATIENCE, "LEDGER is not read after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    let took = begin.elapsed();
    // It leaves a snapshot of everything.
    supervisor.drain(DRAIN).await;
    took
}

/// A rollup that goes on from what another left, from its start until it answers from all of LEDGER; then what it is asked.
async fn restart(server: &Server, bus: &Bus, data: &Path, end: u64) -> (Duration, String) {
    let (supervisor, begin) = (Supervisor::new(), Instant::now());
    let _handle = rollup(server, data, &supervisor).await;
    while !answers(bus, end).await {
        assert!(begin.elapsed() < PATIENCE, "nobody answers after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    let took = begin.elapsed();
    let slowest = ask(bus).await;
    supervisor.drain(DRAIN).await;
    (took, slowest)
}

/// Asks everything, and says which kind took longest.
async fn ask(bus: &Bus) -> String {
    let mut slowest = (Duration::ZERO, Duration::ZERO, "");
    for (endpoint, question) in QUESTIONS {
        let (subject, mut took) = (format!("{QUERY_PREFIX}.{endpoint}"), Vec::with_capacity(ASKED));
        for _ in 0..ASKED {
            let begin = Instant::now();
            let answer = bus.request(&subject, question.into(), DRAIN).await.unwrap();
            took.push(begin.elapsed());
            assert!(!answer.starts_with(b"{\"error\""), "{question}: {answer:?}");
        }
        took.sort_unstable();
        slowest = slowest.max((took[ASKED * 99 / 100], took[ASKED / 2], question));
    }
    let (p99, p50, question) = slowest;
    format!(
        "in the last round the slowest is {question}, p50 {:.2} ms, p99 {:.2} ms",
        p50.as_secs_f64() * 1e3,
        p99.as_secs_f64() * 1e3
    )
}

async fn answers(bus: &Bus, end: u64) -> bool {
    let subject = format!("{QUERY_PREFIX}.fleet");
    let answer = bus.request(&subject, "{}".into(), DRAIN).await;
    let view = answer.ok().and_then(|answer| serde_json::from_slice::<FleetView>(&answer).ok());
    view.is_some_and(|view| view.tally.as_of.ledger_seq >= end)
}

async fn rollup(server: &Server, data: &Path, supervisor: &Supervisor) -> Handle {
    let (url, data) = (server.hub_url(), data.display().to_string());
    let words = ["muster-rollup", "--nats-url", &url, "--data-dir", &data];
    start(Cli::try_parse_from(words).unwrap().check().unwrap(), supervisor).await.unwrap()
}
