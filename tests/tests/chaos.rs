//! The minute's edition of `make chaos`: the same code, with fewer agents. A real server, services, agents and links;
//! everything is killed, stalled, cut off and filled up, then healed, and nothing may be lost, repeated or wrong.
//!
//! The schedule is fixed here, so that a change is judged by what it changes; how the processes interleave is the
//! machine's all the same. `CHAOS_SEED` plays another one, as `make chaos` does every time.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use muster_simulator::chaos;
use muster_simulator::child::{Child, Spec, sweep};
use muster_simulator::config::{Cli, Settings};
use muster_tests::server;
use muster_tests::system::program;
use muster_tests::wait::until;
use tokio_util::sync::CancellationToken;

const SEED: &str = "150";
const SECONDS: &str = "60";
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
    for kind in
        kinds.iter().map(String::as_str).chain(["link.cut", "disk.full", "commit.bad", "forget.agent"])
    {
        assert!(summary.faults.contains_key(kind), "this schedule has no {kind}; choose another:\n{summary}");
    }
}

#[tokio::test]
async fn a_trial_that_is_interrupted_leaves_no_process_behind_and_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    let (trial, nats_server) = (dir.path().join("trial"), server::binary().display().to_string());
    let args = ["chaos", "--seconds", "600", "--agents", "6", "--sites", "2", "--nats-server", &nats_server];
    let args =
        args.iter().map(|&arg| arg.to_owned()).chain(["--dir".to_owned(), trial.display().to_string()]);
    let spec = Spec { name: "trial".to_owned(), program: program("muster-simulator"), args: args.collect() };
    let child = Child::start(spec, dir.path()).unwrap();
    let log = || std::fs::read_to_string(dir.path().join("logs/trial.log")).unwrap_or_default();
    until("the storm blows", async || log(), |log| log.contains("committed")).await;
    let pid = child.pid().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // Everybody is asked to end; whoever is slow is waited for.
    let status = tokio::time::timeout(Duration::from_secs(60), child.ended_by_itself()).await;
    let status = status.unwrap_or_else(|_| panic!("it does not end:\n{}", log())).unwrap();
    assert!(status.success(), "{status}\n{}", log());
    assert_eq!(sweep(&trial), 0, "processes were left behind:\n{}", log());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&trial.display().to_string()), "a disk was left mounted");
}
