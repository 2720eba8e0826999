//! The examples of `schemas/examples` that prove a view, against a real running system: each rebuilds the view from
//! what it has kept and the tail of LEDGER, and finds the digest that is in the bucket.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

/// What the rules are applied to.
mod ledger {
    use muster_contract::Timestamp;
    use muster_contract::fact::Fact;
    use muster_contract::subjects::LedgerSubject;

    /// A fact of LEDGER.
    #[derive(Debug, Clone)]
    pub(crate) struct Entry {
        pub(crate) seq: u64,
        pub(crate) subject: LedgerSubject,
        pub(crate) fact: Fact,
    }

    /// Views say when a fact was stored, and no digest covers that.
    pub(crate) fn stored_at(_: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

#[path = "../../shared/domain/tests/naive/mod.rs"]
#[allow(
    dead_code,
    reason = "a subscriber wants deployments; the laws of the fold want sites and the fleet too"
)]
mod reduce;
#[path = "../../schemas/examples/rust/subscriber.rs"]
mod subscriber;

use std::path::Path;
use std::process::Stdio;

use muster_contract::{DeploymentId, DeviceKey};
use muster_simulator::repository::write_devices;
use muster_tests::python::interpreter;
use muster_tests::schemas;
use muster_tests::system::{System, agent_name};
use muster_tests::wait::soon;
use serde_json::Value;
use subscriber::{Proof, Subscriber};

const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

#[tokio::test]
async fn a_subscriber_in_rust_proves_the_view_and_a_second_start_reads_only_the_tail() {
    let mut system = System::start().await;
    let web: DeploymentId = "web".parse().unwrap();
    let devices = settled(&mut system).await;
    let file = system.dir().join("facts.jsonl");
    let proof = proven(&system, &file, &web).await;
    assert!(proof.read > 0 && proof.read as u64 <= proof.ledger_seq, "{proof:?}");

    // The view changes while the subscriber is away.
    system.kill(&agent_name(&devices[1])).await;
    converged(&system, "convergedStale").await;
    let tail = proven(&system, &file, &web).await;
    assert!(tail.ledger_seq > proof.ledger_seq && tail.theirs != proof.theirs, "{tail:?}");
    assert_eq!(tail.read as u64, tail.ledger_seq - proof.ledger_seq, "what was kept is not read again");

    // A fact that is not what it was is found out.
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(r#""state":"installed""#));
    let other = text.replace(r#""state":"installed""#, r#""state":"installing""#);
    std::fs::write(&file, other).unwrap();
    let mut liar = Subscriber::open(&system.server.url(), &file).await.unwrap();
    let proof = liar.prove(&web).await.unwrap();
    assert_ne!(proof.ours, Some(proof.theirs), "{proof:?}");
}

#[tokio::test]
async fn a_subscriber_in_python_proves_every_view_and_a_second_start_reads_only_the_tail() {
    let mut system = System::start().await;
    let devices = settled(&mut system).await;
    // What a person defines is none of a prover's business, and what devices have in common is.
    let definition = schemas::folder().join("examples/good/ViewDefinition.components.json");
    let applied = system.muster(&["view", "apply", "-f", definition.to_str().unwrap()]).await;
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let file = system.dir().join("facts.jsonl");
    let first = in_python(&system, &file).await;
    assert!(read_in_all(&first) > 0);
    let shown: Vec<_> = first.iter().filter_map(|line| line["key"].as_str()).collect();
    let defined = shown.iter().any(|key| key.contains("components"));
    assert!(shown.contains(&"group.ring.canary") && !defined, "{shown:?}");
    assert!(first.iter().all(|line| line["skipped"] == true || line["proven"] == true), "{first:?}");
    system.kill(&agent_name(&devices[1])).await;
    converged(&system, "convergedStale").await;
    let second = in_python(&system, &file).await;
    let last = |lines: &[Value]| lines.last().unwrap()["ledgerSeq"].as_u64().unwrap();
    assert_eq!(read_in_all(&second), last(&second) - last(&first), "what was kept is not read again");
    let fleet = second.iter().find(|line| line["key"] == "fleet").unwrap();
    assert_eq!(fleet["proven"], true, "{second:?}");
}

fn read_in_all(lines: &[Value]) -> u64 {
    lines.iter().filter_map(|line| line["read"].as_u64()).sum()
}

/// What `prove.py` says of each view, all of it proven.
async fn in_python(system: &System, file: &Path) -> Vec<Value> {
    let script = schemas::folder().join("examples/prove.py");
    let output = tokio::process::Command::new(interpreter())
        .arg(script)
        .arg(file)
        .arg(system.server.url())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = soon("prove.py", output).await.unwrap();
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{error}");
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A proof of a subscriber that starts now, once the view is proven.
async fn proven(system: &System, file: &Path, id: &DeploymentId) -> Proof {
    let mut subscriber = Subscriber::open(&system.server.url(), file).await.unwrap();
    let proof = soon("a proof", Box::pin(subscriber.prove(id))).await.unwrap();
    assert_eq!(proof.ours, Some(proof.theirs), "{proof:?}");
    proof
}

/// Two devices with one deployment, converged, and the views of it written.
async fn settled(system: &mut System) -> Vec<DeviceKey> {
    let devices: Vec<DeviceKey> = DEVICES.iter().map(|key| key.parse().unwrap()).collect();
    write_devices(&system.repository, &devices).unwrap();
    system.repository.write("fleet/web.yaml", SLEEPER).unwrap();
    system.repository.write("fleet/labels.yaml", "ring: canary\n").unwrap();
    system.repository.commit("web").await.unwrap();
    let hub = system.address();
    for device in &devices {
        system.start_agent(device, hub, &[]);
    }
    converged(system, "converged").await;
    devices
}

/// Waits until the bucket has a verdict on both devices.
async fn converged(system: &System, verdict: &str) {
    system
        .eventually(&format!("web is {verdict}"), async || {
            let entry = system.bus.view_get("deployment.web").await.map_err(|error| error.to_string())?;
            let value = entry.and_then(|entry| entry.value).ok_or("there is no view")?;
            let view: Value = serde_json::from_slice(&value).unwrap();
            let there = view["verdict"] == verdict && view["targets"] == 2;
            if there { Ok(()) } else { Err(view.to_string()) }
        })
        .await;
}

/// A deployment of one component that stays up.
const SLEEPER: &str = r#"id: web
metadata: {name: web}
spec:
  applicationId: com-example-web
  deploymentProfile:
    type: process
    components:
      - name: main
        properties: {command: sleep, args: ["86400"], readiness: {type: uptime, for: 50ms}}
"#;
