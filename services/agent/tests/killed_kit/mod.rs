//! The real agent as a process for tests that kill it. It has no hub: its desired state is in its database.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use muster_agent::db::Db;
use muster_agent::{app, store};
use muster_contract::Timestamp;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use serde_json::{Value, json};

/// A running agent. It is killed with the value, also when the test fails.
pub(crate) struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Starts an agent with a runtime on the files of a folder.
pub(crate) fn start(dir: &Path, runtime: &str) -> Agent {
    let child = Command::new(env!("CARGO_BIN_EXE_muster-agent"))
        .args(["--site=plant7", "--device=press-4", "--nats-url=127.0.0.1:9", "--runtime", runtime])
        .args(["--retry-min=10ms", "--retry-max=10ms", "--log=error"])
        .arg("--data-dir")
        .arg(dir)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Agent(child)
}

/// Opens the agent's database, while no agent runs.
pub(crate) fn open(dir: &Path) -> Db {
    let device = "plant7/press-4".parse().unwrap();
    Db::open(dir, &device, &app::schema(), Timestamp::UNIX_EPOCH).unwrap()
}

/// An entry of a desired state.
pub(crate) fn entry(
    (id, target): (&str, u64),
    (runtime, components): (&str, &[Value]),
    (stopped, restart): (bool, u64),
) -> DesiredDeployment {
    let mut entry: DesiredDeployment = serde_json::from_value(json!({
        "id": id, "name": id, "applicationId": "com-acme", "targetGeneration": target,
        "digest": format!("sha256:{}", "0".repeat(64)), "stopped": stopped, "restart": restart,
        "profile": { "type": runtime, "components": components },
    }))
    .unwrap();
    entry.digest = entry.content_digest();
    entry
}

/// Stores a desired state of these entries in the agent's database, while no agent runs.
pub(crate) async fn accept(dir: &Path, generation: u64, deployments: Vec<DesiredDeployment>) {
    let document: DesiredState = serde_json::from_value(json!({
        "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation, "issuedAt": "2026-11-21T00:00:00Z",
        "source": { "kind": "git", "revision": "test" }, "deployments": deployments,
    }))
    .unwrap();
    let db = open(dir);
    store::accept(&db, document.generation, serde_json::to_vec(&document).unwrap()).await.unwrap();
    db.close().await;
}
