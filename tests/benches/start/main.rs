//! How long muster-ingest takes until it works, and what a standby costs, by the facts that LEDGER holds and by devices: a
//! start without any snapshot, a start from snapshots, a standby beside facts at an even rate, its takeover after the owner
//! is killed, and a start from the snapshots of the owner that was killed. It measures and names the bounds that are missed; no test asserts them.
//!
//! `cargo bench -p muster-tests --bench start -- --facts 100000,1000000 --devices 1000,100000`. It runs the muster-ingest of
//! its own profile: `cargo build --release -p muster-ingest` before.

#![allow(clippy::unwrap_used, reason = "a failure here is the bench's result")]

mod fleet;
mod mix;
mod program;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::value_parser;
use muster_bus::Bus;
use muster_tests::bench::{self, HubKind, say};
use muster_tests::server::Server;
use tokio_util::sync::CancellationToken;

use self::fleet::{Fleet, Probes};
use self::mix::{FLEET, STATES};
use self::program::Ingest;
use self::table::{Outcome, Start};

// As in muster-ingest.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time that an owner works before it is stopped: a successor of an owner that has only just begun asks for its partition
/// for two seconds, which is no part of a usual restart.
const OWNED_FOR: Duration = Duration::from_secs(3);
/// Time between two reports of a device while the others' facts are written.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// Processor time is given for so long.
const SECONDS_PER_MINUTE: f64 = 60.0;

/// The bench `start`
#[derive(Debug, Parser)]
struct Args {
    /// Facts that LEDGER holds; each number is measured with each number of devices
    #[arg(long, value_delimiter = ',', default_value = "100000,1000000", value_parser = value_parser!(u64).range(1..))]
    facts: Vec<u64>,
    /// Devices that these facts are about
    #[arg(long, value_delimiter = ',', default_value = "1000,100000", value_parser = value_parser!(u64).range(1..))]
    devices: Vec<u64>,
    /// Facts a second that are written while a standby follows and takes over
    #[arg(long, default_value_t = 5_000, value_parser = value_parser!(u64).range(1..))]
    rate: u64,
    /// Seconds for which a standby's processor time is measured
    #[arg(long, default_value_t = 30, value_parser = value_parser!(u64).range(1..))]
    seconds: u64,
    /// LEDGER holds states and liveness alone, as in measurements before 2026-11-26
    #[arg(long)]
    states_only: bool,
    /// Cargo says so to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut outcomes = Vec::new();
    for facts in &args.facts {
        for devices in &args.devices {
            say(&format!("{facts} facts of {devices} devices"));
            let outcome = runtime.block_on(measure(&args, *facts, *devices));
            say(&table::line(&outcome));
            outcomes.push(outcome);
        }
    }
    let held = if args.states_only { "states and liveness alone" } else { "facts of all kinds" };
    let about = format!("{held}; {} facts/s wanted beside the standby, for {} s", args.rate, args.seconds);
    bench::tell(HubKind::Open, &format!("{about}\n\n{}", table::render(&outcomes)))
}

/// Everything about one LEDGER.
async fn measure(args: &Args, facts: u64, devices: u64) -> Outcome {
    let (server, dir) = (Server::start(), tempfile::tempdir().unwrap());
    let bus = Bus::connect(server.config("bench"), &CancellationToken::new()).await.unwrap();
    bus.converge().await.unwrap();
    let mix = if args.states_only { STATES } else { FLEET };
    let (mut fleet, mut probes) = (Fleet::new(devices, mix), Probes::new(bus.clone()));
    let begin = Instant::now();
    fleet.fill(&bus, facts).await;
    say(&format!("filled with {:.0} facts/s", facts as f64 / begin.elapsed().as_secs_f64()));
    bench::sync_disk();

    let (owner, cold) = start("owner", &server, dir.path(), &mut probes).await;
    tokio::time::sleep(OWNED_FOR).await;
    owner.stop().await;
    let snapshot_bytes = bytes_below(&dir.path().join("owner-data"));
    let (owner, warm) = start("owner", &server, dir.path(), &mut probes).await;
    let mut standby = Ingest::start("standby", &server, dir.path());
    standby.wait_until_ready().await;
    let stop = CancellationToken::new();
    let writing = tokio::spawn(fleet.write_evenly(bus.clone(), args.rate, stop.clone()));
    let (begin, used) = (Instant::now(), standby.processor_seconds());
    report_for(Duration::from_secs(args.seconds), &mut probes).await;
    let per_minute =
        (standby.processor_seconds() - used) / begin.elapsed().as_secs_f64() * SECONDS_PER_MINUTE;
    let begin = Instant::now();
    owner.kill().await;
    probes.send().await;
    probes.wait_until_facts().await;
    let takeover = begin.elapsed().as_secs_f64();
    stop.cancel();
    let rate = writing.await.unwrap();
    tokio::time::sleep(OWNED_FOR).await;
    standby.stop().await;
    let (owner, killed) = start("owner", &server, dir.path(), &mut probes).await;
    owner.stop().await;
    Outcome { facts, devices, cold, snapshot_bytes, warm, rate, standby: per_minute, takeover, killed }
}

/// Starts an ingest for which a report of each partition waits.
async fn start(name: &str, server: &Server, dir: &Path, probes: &mut Probes) -> (Ingest, Start) {
    probes.send().await;
    let mut ingest = Ingest::start(name, server, dir);
    let ready = ingest.wait_until_ready().await;
    probes.wait_until_facts().await;
    let (works, processor) = (ingest.seconds(), ingest.processor_seconds());
    say(&ingest.restore_summary());
    say(&format!("ready after {ready:.1} s, reports are facts after {works:.1} s"));
    (ingest, Start { ready, works, processor })
}

/// Has a device of each partition report again and again: the owner's snapshots reach as far into LEDGER as its own facts prove,
/// and nobody else reports to it.
async fn report_for(time: Duration, probes: &mut Probes) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        probes.send().await;
        tokio::time::sleep(REPORT_EVERY.min(end.saturating_duration_since(Instant::now()))).await;
    }
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.metadata().map_or(0, |file| file.len())).sum()
}
