//! Measures the cost of one flooding device or one abusive reader for twenty good devices on a secured hub: latency of good
//! reports to LEDGER and to their views, refusals, memory of the processes, growth of LEDGER. Each flood has a fresh hub; a
//! calm time is the base of all. It measures and names each broken bound; the test `hostile` asserts the counts.
//!
//! `make hostile`; `cargo bench -p muster-tests --bench hostile -- --only 5,12 --seconds 30`.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use muster_contract::limits::DEVICE_BURST_REPORTS;
use muster_tests::bench::{self, say};
use muster_tests::hostile::bounds::GOOD_DEVICES;
use muster_tests::hostile::flood::Flood;
use muster_tests::hostile::trial::{self, Settings};

/// The bench `hostile`.
#[derive(Debug, Parser)]
struct Args {
    /// Floods, by number; all of them if left out
    #[arg(long, value_delimiter = ',', value_parser = flood)]
    only: Vec<Flood>,
    /// Seconds that each flood and the calm time last
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Good devices beside each flood
    #[arg(long, default_value_t = GOOD_DEVICES)]
    devices: usize,
    /// Connections that one credential tries
    #[arg(long, default_value_t = 2_000)]
    connections: usize,
    /// Durable consumers that a subscriber tries
    #[arg(long, default_value_t = 4_092)]
    consumers: usize,
    /// Facts, ten for each device, that LEDGER holds before a flood that reads it again and again
    #[arg(long, default_value_t = 100_000)]
    archived_facts: u64,
    /// Seconds after a flood in which good reports may still arrive
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Write the outcomes as JSON into this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Cargo says so to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn flood(text: &str) -> Result<Flood, String> {
    let number = text.parse().map_err(|error| format!("{text}: {error}"))?;
    Flood::of(number).ok_or_else(|| format!("{text}: floods are numbered 1 to {}", Flood::ALL.len()))
}

fn main() -> ExitCode {
    if !bench::is_wanted() {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let settings = Settings {
        good_devices: args.devices,
        time: Duration::from_secs(args.seconds),
        patience: Duration::from_secs(args.patience),
        connections: args.connections,
        consumers: args.consumers,
        burst_reports: DEVICE_BURST_REPORTS,
        archived_facts: args.archived_facts,
    };
    let floods = if args.only.is_empty() { Flood::ALL.to_vec() } else { args.only };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    say("calm");
    let (calm, hub) = runtime.block_on(trial::run(settings, None));
    say(&table::line(&calm, &calm));
    let mut outcomes = Vec::with_capacity(floods.len());
    for flood in floods {
        say(&format!("flood {} of {}: {}", flood.number(), Flood::ALL.len(), flood.name()));
        let (outcome, _) = runtime.block_on(trial::run(settings, Some(flood)));
        say(&format!("{}\n{}", table::line(&outcome, &calm), table::details(&outcome, &calm)));
        outcomes.push(outcome);
    }
    if let Some(file) = args.json {
        std::fs::write(file, table::json(&settings, hub, &calm, &outcomes)).unwrap();
    }
    bench::tell(hub, &table::render(&settings, &calm, &outcomes))
}
