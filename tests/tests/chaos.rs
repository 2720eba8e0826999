//! The minute's edition of `make chaos`: the same code, with fewer agents. A secured hub with standbys, agents with real
//! processes, and links; everything is killed, frozen, cut off and filled up, then healed, and no law may be violated.
//!
//! The schedule is fixed here, so that a change is judged by what it changes; the machine decides how the processes
//! interleave all the same. `CHAOS_SEED` gives another schedule, as `make chaos` does every time.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use muster_simulator::chaos::{self, HubSecurity};
use muster_simulator::child::{Child, Spec, sweep};
use muster_simulator::config::{Cli, Settings};
use muster_tests::not_run::not_run_without_mount;
use muster_tests::server;
use muster_tests::system::program;
use muster_tests::wait::until;
use tokio_util::sync::CancellationToken;

const SEED: &str = "249";
const SECONDS: &str = "60";
const AGENTS: &str = "24";

/// Faults that the schedule must hold: one that does not tries too little.
const KINDS: [&str; 15] = [
    "kill.server",
    "kill.ingest",
    "kill.rollup",
    "kill.publisher",
    "kill.planner",
    "kill.agent",
    "kill.workload",
    "freeze.ingest",
    "freeze.rollup",
    "freeze.server",
    "wipe.agent",
    "wipe.ingest",
    "link.cut",
    "disk.full",
    "commit.bad",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_secured_hub_with_standbys_survives_crashes_cuts_and_full_disks() {
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
    if summary.limited_disks == 0 {
        assert!(summary.full_disk_writes > 0, "no agent met its full disk:\n{summary}");
    } else {
        not_run_without_mount("a_secured_hub_with_standbys_survives_crashes_cuts_and_full_disks");
    }
    assert_eq!(summary.hub, HubSecurity::Secured, "{summary}");
    assert_eq!((summary.roles["ingest"], summary.roles["rollup"]), (2, 2), "{summary}");
    assert!(summary.decisions.contains_key("begin") && summary.decisions.contains_key("finish"), "{summary}");
    // On a slow machine the planner accepts none while it is killed again and again; the last deployment is accepted in any case.
    assert!(!summary.plan_requests.is_empty(), "nothing was requested of the plan:\n{summary}");
    for kind in KINDS {
        assert!(summary.faults.contains_key(kind), "this schedule has no {kind}; choose another:\n{summary}");
    }
    assert!(
        summary.takeovers.ingest > 0 && summary.takeover_ms.is_some(),
        "no standby took over:\n{summary}"
    );
    assert!(summary.real_crash_loops > 0, "no real process was in a crash loop:\n{summary}");
}

#[tokio::test]
async fn an_interrupted_run_leaves_no_process_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (trial, nats_server) = (dir.path().join("trial"), server::binary().display().to_string());
    let args = ["chaos", "--seconds", "600", "--agents", "6", "--sites", "2", "--nats-server", &nats_server];
    let args =
        args.iter().map(|&arg| arg.to_owned()).chain(["--dir".to_owned(), trial.display().to_string()]);
    let spec = Spec { name: "trial".to_owned(), program: program("muster-simulator"), args: args.collect() };
    let child = Child::start(spec, dir.path()).unwrap();
    let log = || std::fs::read_to_string(dir.path().join("logs/trial.log")).unwrap_or_default();
    until("faults are carried out", async || log(), |log| log.contains("committed")).await;
    let pid = child.pid().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // All processes are asked to end, and the slow ones are awaited.
    let status = tokio::time::timeout(Duration::from_secs(60), child.ended_by_itself()).await;
    let status = status.unwrap_or_else(|_| panic!("it does not end:\n{}", log())).unwrap();
    assert!(status.success(), "{status}\n{}", log());
    assert_eq!(sweep(&trial), 0, "processes were left behind:\n{}", log());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&trial.display().to_string()), "a disk was left mounted");
}
