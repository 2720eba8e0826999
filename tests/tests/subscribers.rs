//! The example that proves views, `schemas/examples/prove.py`, against a real running system: it rebuilds every view from a
//! snapshot of its own and the tail of LEDGER, and finds the digest that is in the bucket, or that it is wrong. Where LEDGER has
//! forgotten its beginning, its window is enough for the present that the hub reports.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Output, Stdio};

use muster_bus::Outgoing;
use muster_contract::DeviceKey;
use muster_contract::fact::Fact;
use muster_contract::subjects::{self, stream};
use muster_contract::view::content_digest;
use muster_simulator::repository::write_devices;
use muster_tests::later::LaterIngest;
use muster_tests::python::interpreter;
use muster_tests::schemas;
use muster_tests::streams::forget_up_to;
use muster_tests::system::{DEADLINE, Entry, INGEST, ROLLUP, System, agent_name};
use muster_tests::wait::soon;
use serde_json::{Value, json};
use tokio::process::Command;

/// A rollup that keeps a checkpoint of every few facts.
const DENSE: [&str; 6] =
    ["--snapshot-every", "100ms", "--checkpoint-facts", "1", "--checkpoint-every", "100ms"];
const DEVICES: [&str; 2] = ["plant7/press-1", "plant8/press-2"];

/// The program, which takes a snapshot's file and a hub, and proves the views there.
fn prover() -> Command {
    let mut command = Command::new(interpreter());
    command.arg(schemas::folder().join("examples/prove.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[tokio::test]
async fn a_python_subscriber_proves_every_view_and_restarts_from_the_tail() {
    let mut system = System::start().await;
    let devices = settled(&mut system).await;
    // A prover ignores the views that people define, and proves the groups of devices.
    let definition = schemas::folder().join("examples/good/ViewDefinition.components.json");
    let applied = system.muster(&["view", "apply", "-f", definition.to_str().unwrap()]).await;
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let file = system.dir().join("snapshot.json");
    let first = proven(&system, &file).await;
    assert_eq!(
        read_in_all(&first),
        lasting_facts(&system, 0, read_to(&first)).await,
        "there is no snapshot to begin with"
    );
    let shown: Vec<_> = first.iter().filter_map(|line| line["key"].as_str()).collect();
    let defined = shown.iter().any(|key| key.contains("components"));
    assert!(shown.contains(&"group.ring.canary") && !defined, "{shown:?}");
    assert!(first.iter().all(|line| line["proven"] == true), "{first:?}");

    // The views change while the subscriber is away.
    system.kill(&agent_name(&devices[1])).await;
    converged(&system, "convergedStale").await;
    let second = proven(&system, &file).await;
    assert_eq!(
        read_in_all(&second),
        lasting_facts(&system, read_to(&first), read_to(&second)).await,
        "what was folded is not read again"
    );
    assert_eq!(
        keys_of(&second, true).len(),
        second.len(),
        "also those that were not written again: {second:?}"
    );
    let fleet = second.iter().find(|line| line["key"] == "fleet").unwrap();
    assert_eq!(fleet["proven"], true, "{second:?}");

    // The snapshot is damaged.
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(r#""state":"installed""#) || text.contains(r#""state": "installed""#), "{text}");
    let damaged = text.replace("installed", "installing");
    std::fs::write(&file, &damaged).unwrap();
    let third = proven(&system, &file).await;
    assert_eq!(
        read_in_all(&third),
        lasting_facts(&system, 0, read_to(&third)).await,
        "everything is read again"
    );
    let aside = system.dir().join("snapshot.json.aside");
    assert_eq!(std::fs::read_to_string(&aside).unwrap(), damaged, "it is kept");

    // It is of another hub.
    let mut other = System::start().await;
    settled(&mut other).await;
    let kept = std::fs::read_to_string(&file).unwrap();
    let there = proven(&other, &file).await;
    assert_eq!(
        read_in_all(&there),
        lasting_facts(&other, 0, read_to(&there)).await,
        "nothing is taken from it"
    );
    assert_eq!(std::fs::read_to_string(&aside).unwrap(), kept, "it is set aside");
}

#[tokio::test]
async fn a_subscriber_in_python_finds_a_view_that_is_not_what_the_facts_give() {
    let mut system = System::start().await;
    settled(&mut system).await;
    // It would mend what follows.
    system.terminate(ROLLUP).await;
    let (right, signed_anew) = counted_otherwise(&system).await;
    let other_counts = json_with(&signed_anew, "digest", &right["digest"]);
    let file = system.dir().join("snapshot.json");
    for wrong in [&other_counts, &signed_anew] {
        put(&system, wrong).await;
        let (output, lines) = run(&system, &file).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(keys_of(&lines, false), ["deployment.web"], "{lines:?}");
        assert!(!file.exists(), "nothing is left that may be wrong");
    }
    put(&system, &right).await;
    proven(&system, &file).await;
    assert!(file.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_in_python_proves_the_present_from_a_truncated_ledger() {
    let mut system = System::with_settings(&[(ROLLUP, &DENSE)]).await;
    let devices = settled(&mut system).await;
    for device in &devices {
        system.kill(&agent_name(device)).await;
    }
    converged(&system, "convergedStale").await;
    let forgotten = reassert_all(&mut system).await;
    let end = forgotten_up_to(&system, forgotten).await;

    // A view that somebody altered is mended by the rollup that tells, so that it is right again for who begins here.
    let file = system.dir().join("snapshot.json");
    let (right, wrong) = counted_otherwise(&system).await;
    put(&system, &wrong).await;
    system
        .eventually("the rollup mends the view", async || {
            let (shown, _) = counted_otherwise(&system).await;
            if shown["digest"] == right["digest"] { Ok(()) } else { Err(shown.to_string()) }
        })
        .await;
    let lines = proven(&system, &file).await;
    let of_the_window: Vec<_> = lines.iter().filter(|line| line.get("told").is_some()).collect();
    assert_eq!(read_in_all(&lines), lasting_facts(&system, forgotten, end).await, "all that is left");
    let keys: BTreeSet<_> = of_the_window.iter().filter_map(|line| line["key"].as_str()).collect();
    let all = ["deployment.web", "fleet", "group.ring.canary", "site.plant7", "site.plant8"];
    assert_eq!(keys, BTreeSet::from(all), "{lines:?}");
    assert!(of_the_window.iter().all(|line| line["ledgerSeq"] == end), "{lines:?}");
    assert_eq!((keys_of(&lines, true).len(), lines.len()), (2 * all.len(), 2 * all.len()), "{lines:?}");

    // Its folded state of the window is a snapshot like any other.
    system.start_again(INGEST);
    system.start_again(&agent_name(&devices[0]));
    system.start_again(&agent_name(&devices[1]));
    converged(&system, "converged").await;
    let second = proven(&system, &file).await;
    assert_eq!(
        read_in_all(&second),
        lasting_facts(&system, end, read_to(&second)).await,
        "what was folded is not read again"
    );
    let fleet = second.iter().find(|line| line["key"] == "fleet").unwrap();
    assert_eq!(fleet["proven"], true, "{second:?}");

    // LEDGER has lost more than the re-asserted facts: the prover finds it, and keeps nothing.
    for device in &devices {
        system.kill(&agent_name(device)).await;
    }
    converged(&system, "convergedStale").await;
    system.terminate(INGEST).await;
    let end = system.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    forgotten_up_to(&system, end - 1).await;
    std::fs::remove_file(&file).unwrap();
    let (output, lines) = run(&system, &file).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        lines.iter().any(|line| line["proven"] == false) && said.contains("deployment.web first"),
        "{said}"
    );
    assert!(!file.exists(), "nothing is left that may be wrong");

    // Nobody tells.
    system.terminate(ROLLUP).await;
    let (output, _) = run(&system, &file).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!file.exists());
}

/// Facts that hold are re-asserted, as ingest and the publisher do after 20 days; LEDGER begins after the originals.
async fn reassert_all(system: &mut System) -> u64 {
    system.terminate(INGEST).await;
    let before = system.ledger().await;
    let forgotten = before.last().unwrap().seq;
    let wanted = before.iter().filter_map(|entry| match (&entry.fact, entry.subject.device()) {
        (Fact::Desired(state), Some(key)) => Some((key, state)),
        _ => None,
    });
    for (key, state) in wanted.collect::<BTreeMap<_, _>>() {
        let letter = Outgoing::new(subjects::desired(key), muster_contract::decode::to_bytes(state));
        system.bus.publish(letter).await.unwrap();
    }
    let holds = |entry: &&Entry| {
        matches!(entry.fact, Fact::Desired(_) | Fact::Status(_) | Fact::Device(_) | Fact::Liveness(_))
    };
    let names = |entry: &Entry| entry.subject.to_string();
    let held: BTreeSet<String> = before.iter().filter(holds).map(names).collect();
    let ingest = LaterIngest::start(&system.server.url()).await;
    system
        .eventually("every fact that holds is re-asserted", async || {
            let ledger = system.ledger().await;
            let again: BTreeSet<_> = ledger.iter().filter(|entry| entry.seq > forgotten).map(names).collect();
            let left: Vec<_> = held.difference(&again).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    ingest.end().await;
    forgotten
}

/// LEDGER forgets all up to a fact, and the hub tells of its end all the same; where that is.
async fn forgotten_up_to(system: &System, position: u64) -> u64 {
    let end = system.bus.stream_state(stream::LEDGER).await.unwrap().last_seq;
    forget_up_to(&system.bus, position).await;
    let question = json!({ "atSeq": end }).to_string();
    system
        .eventually("the hub has a checkpoint that what is left leads on from", async || {
            let answer = system.bus.request("muster.query.digests", question.clone().into(), DEADLINE).await;
            let answer: Value = serde_json::from_slice(&answer.unwrap()).unwrap();
            if answer["error"].is_null() { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    end
}

/// The view of the deployment, and one that says otherwise and has the digest of what it says.
async fn counted_otherwise(system: &System) -> (Value, Value) {
    let entry = system.bus.view_get("deployment.web").await.unwrap().unwrap();
    let right: Value = serde_json::from_slice(&entry.value.unwrap()).unwrap();
    let mut wrong = right.clone();
    wrong["converged"]["lo"] = json!(1);
    let digest = json!(content_digest(&wrong));
    (right, json_with(&wrong, "digest", &digest))
}

fn json_with(view: &Value, field: &str, value: &Value) -> Value {
    let mut view = view.clone();
    view[field] = value.clone();
    view
}

/// The views that were found right, or wrong.
fn keys_of(lines: &[Value], proven: bool) -> Vec<&str> {
    let found = lines.iter().filter(|line| line["proven"] == proven);
    found.filter_map(|line| line["key"].as_str()).collect()
}

async fn put(system: &System, view: &Value) {
    system.bus.view_put("deployment.web", view.to_string().into(), None).await.unwrap();
}

fn read_in_all(lines: &[Value]) -> u64 {
    lines.iter().filter_map(|line| line["read"].as_u64()).sum()
}

/// Counts the facts of LEDGER after one sequence up to another, without pulses, which LEDGER discards.
async fn lasting_facts(system: &System, after: u64, to: u64) -> u64 {
    let ledger = system.ledger().await;
    let lasting = ledger.iter().filter(|entry| !matches!(entry.fact, Fact::Pulse(_)));
    lasting.filter(|entry| (after + 1..=to).contains(&entry.seq)).count().try_into().unwrap()
}

/// The highest sequence read. A view that was written meanwhile is read as of a later one than those after it.
fn read_to(lines: &[Value]) -> u64 {
    lines.iter().filter_map(|line| line["ledgerSeq"].as_u64()).max().unwrap_or(0)
}

/// The verdict of a prover on each view, none of them wrong.
async fn proven(system: &System, file: &Path) -> Vec<Value> {
    let (output, lines) = run(system, file).await;
    assert!(output.status.success(), "{lines:?}\n{}", String::from_utf8_lossy(&output.stderr));
    lines
}

async fn run(system: &System, file: &Path) -> (Output, Vec<Value>) {
    let mut command = prover();
    command.arg(file).arg(system.server.url()).stdin(Stdio::null()).kill_on_drop(true);
    let output = soon("a prover", command.output()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let lines = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output, lines)
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
