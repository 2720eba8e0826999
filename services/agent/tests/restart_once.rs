//! The real program with real processes, killed while it restarts and stops them: a restart happens once, and a stopped
//! process stays gone. It has no hub: the desired state is in its database.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_agent::db::Db;
use muster_agent::{app, store};
use muster_contract::Timestamp;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use serde_json::json;

/// Longest wait for a fact.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lives of the agent during one restart, each killed at another moment.
const LIVES: u32 = 8;

/// Killed with the value, also when the test fails.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn start(dir: &Path) -> Agent {
    let child = Command::new(env!("CARGO_BIN_EXE_muster-agent"))
        .args(["--site=plant7", "--device=press-4", "--runtime=process", "--nats-url=127.0.0.1:9"])
        .args(["--retry-min=10ms", "--retry-max=10ms", "--log=error"])
        .arg("--data-dir")
        .arg(dir)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Agent(child)
}

/// Two programs, each of which adds its process number to its file. They ignore SIGTERM for a moment, so a restart takes time.
async fn accept(dir: &Path, generation: u64, stopped: bool, restart: u64) {
    let component = |name: &str| {
        let starts = dir.join(name);
        let script = format!(
            "echo $$ >> {}; trap 'sleep 0.2; exit' TERM; while :; do sleep 0.05; done",
            starts.display()
        );
        json!({"name": name, "properties": {"command": "sh", "args": ["-c", script], "stopTimeout": "5s"}})
    };
    let mut entry: DesiredDeployment = serde_json::from_value(json!({
        "id": "web", "name": "web", "applicationId": "com-acme", "targetGeneration": generation,
        "digest": format!("sha256:{}", "0".repeat(64)), "stopped": stopped, "restart": restart,
        "profile": {"type": "process", "components": [component("db"), component("ui")]},
    }))
    .unwrap();
    entry.digest = entry.content_digest();
    let document: DesiredState = serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation, "issuedAt": "2026-11-21T00:00:00Z",
        "source": {"kind": "git", "revision": "test"}, "deployments": [entry],
    }))
    .unwrap();
    let device = "plant7/press-4".parse().unwrap();
    let db = Db::open(dir, &device, &app::schema(), Timestamp::UNIX_EPOCH).unwrap();
    store::accept(&db, document.generation, serde_json::to_vec(&document).unwrap()).await.unwrap();
    db.close().await;
}

fn starts(dir: &Path, component: &str) -> Vec<u32> {
    let text = std::fs::read_to_string(dir.join(component)).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The number of starts of each component, and whether its last process is alive.
fn seen(dir: &Path) -> Vec<(usize, bool)> {
    let of = |component| {
        let starts = starts(dir, component);
        (starts.len(), starts.last().is_some_and(|pid| is_alive(*pid)))
    };
    ["db", "ui"].map(of).to_vec()
}

/// Lives of an agent, killed at other moments; then one that lives until `holds`.
fn live_and_die(dir: &Path, what: &str, holds: impl Fn() -> bool) {
    for life in 0..LIVES {
        let agent = start(dir);
        // Not a wait for a result: the moment of death is the thing that varies.
        std::thread::sleep(Duration::from_millis(60 + 45 * u64::from(life)));
        drop(agent);
    }
    let agent = start(dir);
    until(what, holds);
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_restarts_once_and_leaves_stopped_processes_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    accept(path, 1, false, 0).await;
    live_and_die(path, "both run", || seen(path) == [(1, true); 2]);
    accept(path, 2, false, 1).await;
    live_and_die(path, "both run anew", || seen(path) == [(2, true); 2]);
    accept(path, 3, true, 1).await;
    live_and_die(path, "both are gone", || seen(path) == [(2, false); 2]);
    let agent = start(path);
    accept_again(path, agent).await;
}

/// Starts them again: the counter is the same, so each starts once.
async fn accept_again(path: &Path, agent: Agent) {
    drop(agent);
    assert_eq!(seen(path), [(2, false); 2], "no agent starts them");
    accept(path, 4, false, 1).await;
    live_and_die(path, "both run again", || seen(path) == [(3, true); 2]);
    accept(path, 5, true, 1).await;
    live_and_die(path, "both are gone at last", || seen(path) == [(3, false); 2]);
}
