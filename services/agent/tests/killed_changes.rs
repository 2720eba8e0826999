//! The real program with real processes, killed while it restarts, stops and removes them: a restart happens once, a stopped
//! process stays gone, and removal jobs run in order. It has no hub: the desired state is in its database.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

mod killed_kit;
mod runtime_kit;

use std::path::Path;
use std::time::{Duration, Instant};

use muster_contract::desired::DesiredDeployment;
use serde_json::json;

use self::killed_kit::start;
use self::runtime_kit::lives;

/// Longest wait for a fact.
const PATIENCE: Duration = Duration::from_secs(60);
/// Agents during one change, each killed at another moment.
const LIVES: u32 = 8;

/// Accepts a deployment of two programs, each of which adds its process number to its file. They ignore SIGTERM for a moment, so
/// a restart takes time.
async fn accept(dir: &Path, generation: u64, stopped: bool, restart: u64) {
    let component = |name: &str| {
        let starts = dir.join(name);
        let script = format!(
            "echo $$ >> {}; trap 'sleep 0.2; exit' TERM; while :; do sleep 0.05; done",
            starts.display()
        );
        json!({"name": name, "properties": {"command": "sh", "args": ["-c", script], "stopTimeout": "5s"}})
    };
    let components = ["db", "ui"].map(component);
    let entry = killed_kit::entry(("web", generation), ("process", &components), (stopped, restart));
    killed_kit::accept(dir, generation, vec![entry]).await;
}

fn starts(dir: &Path, component: &str) -> Vec<i32> {
    let text = std::fs::read_to_string(dir.join(component)).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not so within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The number of starts of each component, and whether its last process is alive.
fn seen(dir: &Path) -> Vec<(usize, bool)> {
    let of = |component| {
        let starts = starts(dir, component);
        (starts.len(), starts.last().is_some_and(|pid| lives(*pid)))
    };
    ["db", "ui"].map(of).to_vec()
}

/// Kills several agents, each at another moment; then one runs until `holds`.
fn run_and_kill(dir: &Path, what: &str, holds: impl Fn() -> bool) {
    for life in 0..LIVES {
        let agent = start(dir, "process");
        // Not a wait for a result: the moment of death is the thing that varies.
        std::thread::sleep(Duration::from_millis(60 + 45 * u64::from(life)));
        drop(agent);
    }
    let agent = start(dir, "process");
    until(what, holds);
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_restarts_once_and_leaves_stopped_processes_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    accept(path, 1, false, 0).await;
    run_and_kill(path, "both run", || seen(path) == [(1, true); 2]);
    accept(path, 2, false, 1).await;
    run_and_kill(path, "both are restarted", || seen(path) == [(2, true); 2]);
    accept(path, 3, true, 1).await;
    run_and_kill(path, "both are gone", || seen(path) == [(2, false); 2]);
    run_and_kill(path, "no agent starts them", || seen(path) == [(2, false); 2]);
    // The counter is the same, so each starts once.
    accept(path, 4, false, 1).await;
    run_and_kill(path, "both run again", || seen(path) == [(3, true); 2]);
    accept(path, 5, true, 1).await;
    run_and_kill(path, "both are gone again", || seen(path) == [(3, false); 2]);
}

/// A deployment of a program and two removal jobs. Each job takes a moment, and adds to `log` whether the program lives.
fn with_removal_jobs(dir: &Path) -> DesiredDeployment {
    let at = |name: &str| dir.join(name).display().to_string();
    let main = format!("echo $$ > {}; exec sleep 100000", at("main"));
    let job = |name: &str, phase: &str| {
        // A process that has ended and that nobody has reaped yet is gone.
        let lives = format!(
            "if grep -q '^State:[^Z]*$' /proc/$(cat {})/status; then echo lives; else echo gone; fi",
            at("main")
        );
        let script = format!(
            "echo {name} begins $({lives}) >> {log}; sleep 0.4; echo {name} ends >> {log}",
            log = at("log")
        );
        let properties =
            json!({"command": "sh", "args": ["-c", script], "readiness": {"type": "exit"}, "timeout": "1m"});
        json!({"name": name, "runsAt": phase, "properties": properties})
    };
    let main = json!({"name": "main", "properties": {"command": "sh", "args": ["-c", main]}});
    let components = [job("erase", "post-delete"), main, job("drain", "pre-delete")];
    killed_kit::entry(("web", 1), ("process", &components), (false, 0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_runs_each_removal_job_to_its_end_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    killed_kit::accept(path, 1, vec![with_removal_jobs(path)]).await;
    run_and_kill(path, "it runs", || starts(path, "main").last().is_some_and(|pid| lives(*pid)));
    assert!(!path.join("log").exists(), "no job runs before the removal");
    killed_kit::accept(path, 2, Vec::new()).await;
    let log = || std::fs::read_to_string(path.join("log")).unwrap_or_default();
    run_and_kill(path, "the last job has ended", || log().contains("erase ends"));
    // A job that outlives its agent runs again: only the agent that started it learns its exit code.
    let log = log();
    let rest = log.replace("drain begins lives\ndrain ends\n", "");
    assert_ne!(rest, log, "it was drained before it was stopped: {log}");
    assert_eq!(rest.replace("erase begins gone\nerase ends\n", ""), "", "one after another, whole: {log}");
    assert!(log.rfind("drain") < log.find("erase"), "and in order: {log}");
}
