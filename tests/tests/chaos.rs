//! The minute's edition of `make chaos`: the same code, with fewer agents. A real server, services, agents and links;
//! everything is killed, stalled, cut off and filled up, then healed, and nothing may be lost, repeated or wrong.
//!
//! The schedule is fixed here, so that a change is judged by what it changes; how the processes interleave is the
//! machine's all the same. `CHAOS_SEED` plays another one, as `make chaos` does every time.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;

use clap::Parser;
use muster_simulator::chaos;
use muster_simulator::config::{Cli, Settings};
use muster_tests::server;
use muster_tests::system::program;
use tokio_util::sync::CancellationToken;

const SEED: &str = "7";
const SECONDS: &str = "45";
const AGENTS: &str = "24";

#[tokio::test(flavor = "multi_thread")]
async fn after_a_storm_of_crashes_stalls_cuts_and_full_disks_nothing_is_lost_repeated_or_wrong() {
    let seed = std::env::var("CHAOS_SEED").unwrap_or_else(|_| SEED.to_owned());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chaos");
    let (dir, nats_server) = (dir.display().to_string(), server::binary().display().to_string());
    let words = ["--seconds", SECONDS, "--agents", AGENTS, "--seed", &seed, "--dir", &dir];
    let cli =
        Cli::parse_from(["muster-simulator", "chaos", "--nats-server", &nats_server].iter().chain(&words));
    let programs = program("muster-agent").parent().unwrap().to_owned();
    let Settings::Chaos(config) = cli.check(0, programs).unwrap() else { panic!("`chaos` was given") };
    let summary = chaos::run(&config, &CancellationToken::new()).await;
    let summary = summary.unwrap_or_else(|error| {
        let error = muster_service::error::chain(&error);
        panic!("seed {seed}: {error}; logs in {dir}/logs")
    });
    println!("{summary}");
    assert!(summary.held, "{summary}");
    assert!(summary.full_disk_writes > 0, "a full disk must really be met:\n{summary}");
    let kinds = ["server", "ingest", "rollup", "publisher", "agent"].map(|who| format!("kill.{who}"));
    for kind in kinds.iter().map(String::as_str).chain(["link.cut", "disk.full", "commit.bad"]) {
        assert!(summary.faults.contains_key(kind), "this schedule has no {kind}; choose another:\n{summary}");
    }
}
