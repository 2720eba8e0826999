//! How fast a rollup reads LEDGER from its start until its fold has everything, beside a bare consumer of the same stream
//! that looks at nothing. Both run in turn on one server with one LEDGER, and the ratio is the middle one of the rounds,
//! because machines are shared and noisy. It measures; it asserts only that all was read.
//!
//! `cargo bench -p muster-tests --bench rebuild`; `BENCH_DEVICES=20000 BENCH_ROUNDS=5` for other sizes: eight facts a device.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use muster_bus::{Bus, Start};
use muster_contract::subjects::stream;
use muster_rollup::app::start;
use muster_rollup::config::Cli;
use muster_service::life::Life;
use muster_tests::bench::{self, ratio, say, setting, thousands};
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
    bench::tell(&runtime.block_on(measure(devices, rounds)))
}

async fn measure(devices: usize, rounds: usize) -> String {
    let server = Server::start();
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    say(&format!("writing a LEDGER of {devices} devices"));
    let end = ledger::fill(&bus, devices, REPORTS).await;
    let (mut bare, mut rebuilt) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        say(&format!("round {round} of {rounds}"));
        bare.push(end as f64 / read(&bus, end).await.as_secs_f64());
        rebuilt.push(end as f64 / rebuild(&server, end).await.as_secs_f64());
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
async fn rebuild(server: &Server, end: u64) -> Duration {
    let (dir, life, begin) = (tempfile::tempdir().unwrap(), Life::new(), Instant::now());
    let (url, data) = (server.hub_url(), dir.path().display().to_string());
    let words = ["muster-rollup", "--nats-url", &url, "--data-dir", &data];
    let handle = start(Cli::try_parse_from(words).unwrap().check().unwrap(), &life).await.unwrap();
    while handle.present.look(|now| now.fleet.as_of().ledger_seq) < end {
        assert!(begin.elapsed() < PATIENCE, "LEDGER is not read after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
    let took = begin.elapsed();
    life.drain(Duration::from_secs(20)).await;
    took
}
