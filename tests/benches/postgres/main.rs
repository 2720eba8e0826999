//! Compares the same work in LEDGER and muster-rollup with the usual alternative: standings kept current by batched upserts
//! into PostgreSQL, with counts kept by a trigger on whole batches. Each side gets the same reports of the same fleet of
//! enrolled devices; each ends when the last report counts. Muster keeps every report; PostgreSQL is measured without a
//! history, with one, and with one of whole messages. The last is compared with Muster's complete messages, the others with
//! documents alone, because their rows hold no more. Both sides begin at rest, with the disk synchronised.
//!
//! Muster's reports are written in one long run, in which many are confirmed at once and each is stored by itself; ingest
//! makes such runs of a fast backlog, shorter ones and one for each partition. PostgreSQL commits a thousand reports at once
//! and does not wait for the disk (`synchronous_commit=off`): a stream of NATS promises the same by default. PostgreSQL runs
//! as a user of its own if this process is root.
//!
//! `cargo bench -p muster-tests --bench postgres`; `BENCH_DEVICES=20000 BENCH_ROUNDS=5` for other sizes: three reports a
//! device and round. Without a PostgreSQL server on this machine it says so, loudly, and measures nothing.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod cluster;
mod script;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use muster_bus::Bus;
use muster_rollup::app::start;
use muster_rollup::config::Cli;
use muster_service::supervisor::Supervisor;
use muster_tests::bench::{self, HubKind, ratio, say, setting, thousands};
use muster_tests::envelope::Carry;
use muster_tests::ledger::{self, DEPLOYMENTS};
use muster_tests::server::Server;
use tokio_util::sync::CancellationToken;

use self::cluster::Cluster;
use self::script::Keeping;

const DEVICES_DEFAULT: usize = 100_000;
const ROUNDS_DEFAULT: usize = 3;
const LOOK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(300);

// As in muster-rollup.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let Some(cluster) = Cluster::start() else {
        return bench::tell(
            HubKind::None,
            "NOT MEASURED: there is no PostgreSQL server on this machine (`apt-get install postgresql`), so \
             nobody knows whether Muster is ahead of one here.",
        );
    };
    let devices = setting("BENCH_DEVICES", DEVICES_DEFAULT);
    let rounds = setting("BENCH_ROUNDS", ROUNDS_DEFAULT).max(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut figures: [Vec<f64>; 5] = Default::default();
    for round in 1..=rounds {
        let mut note = |at: usize, what: &str, measure: &dyn Fn() -> f64| {
            say(&format!("round {round} of {rounds}: {what}"));
            bench::sync_disk();
            figures[at].push(measure());
        };
        note(0, "PostgreSQL, the present alone", &|| postgres(&cluster, devices, Keeping::Current));
        note(1, "PostgreSQL with a history", &|| postgres(&cluster, devices, Keeping::History));
        note(2, "Muster with its history", &|| runtime.block_on(rollup(devices, Carry::Document)));
        note(3, "PostgreSQL with whole messages", &|| postgres(&cluster, devices, Keeping::Messages));
        note(4, "Muster with whole messages", &|| runtime.block_on(rollup(devices, Carry::Everything)));
    }
    let [current, history, muster, messages, whole] = &figures;
    let line = |kept: &str, base: &[f64], muster: &[f64]| {
        let ratio = ratio(muster, base);
        format!("| {kept} | {} | {} | {ratio:.2} |", thousands(base), thousands(muster))
    };
    let lines = [
        format!(
            "{} reports of {devices} devices about standings that are there, {} reports a transaction; median of {rounds} rounds (spread = (max - min) / median)",
            devices * DEPLOYMENTS.len(),
            script::BATCH
        ),
        String::new(),
        format!("| reports/s until all count | {} | Muster, whole history | ratio |", cluster.version()),
        "|---|---:|---:|---:|".to_owned(),
        line("the present alone", current, muster),
        line("and every report kept", history, muster),
        line("and with it its id, source, type and trace", messages, whole),
    ];
    bench::tell(HubKind::Open, &lines.join("\n"))
}

/// Reports a second of the second round, when every standing is there.
fn postgres(cluster: &Cluster, devices: usize, keeping: Keeping) -> f64 {
    cluster.run(&script::tables(keeping));
    cluster.run(&script::round(devices, 1, keeping));
    cluster.run(script::SETTLE);
    let work = cluster.write(&script::round(devices, 2, keeping));
    let begin = Instant::now();
    cluster.run_file(&work);
    let seconds = begin.elapsed().as_secs_f64();
    let reports = devices * DEPLOYMENTS.len();
    assert_eq!(
        cluster.ask(script::INSTALLED),
        reports.to_string(),
        "every standing is installed and counted"
    );
    if keeping != Keeping::Current {
        assert_eq!(cluster.ask("SELECT count(*) FROM history"), (2 * reports).to_string());
    }
    reports as f64 / seconds
}

/// The same of LEDGER and a rollup.
async fn rollup(devices: usize, carry: Carry) -> f64 {
    let server = Server::start();
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    let (dir, supervisor) = (tempfile::tempdir().unwrap(), Supervisor::new());
    let (url, data) = (server.hub_url(), dir.path().display().to_string());
    let words = ["muster-rollup", "--nats-url", &url, "--data-dir", &data];
    let handle = start(Cli::try_parse_from(words).unwrap().check().unwrap(), &supervisor).await.unwrap();
    let folded = || handle.projection.read(|now| now.fleet.as_of().ledger_seq);
    let before = ledger::fill(&bus, devices, 1).await;
    wait(|| folded() >= before).await;
    wait(|| handle.metrics.snapshot_seq.get() as u64 >= before).await;
    let reports: Vec<_> = (0..devices).flat_map(|device| ledger::reports(device, 2)).collect();
    let (count, end) = (reports.len(), before + reports.len() as u64);
    let begin = Instant::now();
    ledger::publish_facts(&bus, carry, reports).await;
    wait(|| folded() >= end).await;
    let seconds = begin.elapsed().as_secs_f64();
    let installed = handle.projection.read(|now| {
        let counts = now.fleet.fleet_view().tally.counts;
        counts
            .iter()
            .find(|(standing, _)| standing.as_str() == "installed")
            .map_or(0, |(_, split)| split.total())
    });
    assert_eq!(installed, count as u64, "every standing is installed and counted");
    supervisor.drain(Duration::from_secs(20)).await;
    count as f64 / seconds
}

async fn wait(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "it is not done after {PATIENCE:?}");
        tokio::time::sleep(LOOK).await;
    }
}
