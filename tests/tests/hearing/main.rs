//! The hub's own hearing is part of the truth: where nobody listens to a device, no view, answer, notice or subscriber calls it
//! fresh for longer than its lease and ten seconds, each names the one cause, and all heal by themselves.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]
#![allow(clippy::print_stdout, reason = "its figure is for tests/NUMBERS.md")]

mod outages;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use muster_bus::Outgoing;
use muster_contract::decode;
use muster_contract::fact::{Ownership, PulseFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::partition::partition_of;
use muster_contract::subjects::{LedgerSubject, ask_owner, stream};
use muster_contract::version::{ApiVersion, kind};
use muster_contract::view::Verdict;
use muster_contract::{DeviceKey, Timestamp};
use muster_tests::python::interpreter;
use muster_tests::schemas;
use muster_tests::story::{device_settled, rebuilt, settled, verdict};
use muster_tests::system::{INGEST, ROLLUP, System, agent_name};
use muster_tests::wait::until;
use muster_tests::watching::Watch;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::Instant;

/// The lease of the test system's ingest, and the time in which everything shows that nobody listens.
const LEASE: Duration = Duration::from_secs(3);
const SHOWN_WITHIN: Duration = Duration::from_secs(LEASE.as_secs() + 10);
/// Pulses that LEDGER may hold beyond their time: the server looks for what is over once a second, on a busy machine later.
const FORGOTTEN_LATE: u64 = 3;
/// The only device.
const DEVICE: &str = "plant7/press-1";

/// A system with one device on which `web` has converged, and the view's own words of that.
async fn converged_on_one() -> (System, DeviceKey) {
    converged_with(&[]).await
}

/// The same with further arguments for services.
async fn converged_with(settings: &[(&str, &[&str])]) -> (System, DeviceKey) {
    converged(System::with_settings(settings).await).await
}

/// The same on a system that has just started.
async fn converged(system: System) -> (System, DeviceKey) {
    converged_on(system, &[DEVICE]).await
}

/// The same with several devices of one partition; returns the first.
async fn converged_on(mut system: System, devices: &[&str]) -> (System, DeviceKey) {
    let device = settled(&mut system, devices, "web").await.remove(0);
    // LEDGER says of every pulse that it is current before anything breaks.
    let partition = partition_of(&device);
    system.eventually("a current pulse", async || current_pulse(&system, partition).await).await;
    (system, device)
}

async fn current_pulse(system: &System, partition: u16) -> Result<(), String> {
    let last = system.bus.last(stream::LEDGER, &LedgerSubject::Hub(partition).to_string()).await;
    let last = last.map_err(|error| error.to_string())?.ok_or("no pulse")?;
    let pulse: Value = serde_json::from_slice(&last.payload).unwrap();
    if pulse["current"] == true { Ok(()) } else { Err(pulse.to_string()) }
}

/// The view of the bucket.
async fn view(system: &System) -> Value {
    let entry = system.bus.view_get("deployment.web").await.unwrap().unwrap();
    serde_json::from_slice(&entry.value.unwrap()).unwrap()
}

async fn muster(system: &System, args: &[&str]) -> (bool, String) {
    let output = system.muster(args).await;
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Waits until the bucket says that nobody listens to the device, no longer than it may take.
async fn unheard_in_time(system: &System, device: &DeviceKey, since: Instant) {
    let partition = u64::from(partition_of(device));
    loop {
        let view = view(system).await;
        if view["hub"]["unheard"][0]["partition"] == partition && view["verdict"] != "converged" {
            println!("shown after {:.1} s", since.elapsed().as_secs_f64());
            break;
        }
        assert!(
            since.elapsed() < SHOWN_WITHIN,
            "after {:?}: {view}\n{}",
            since.elapsed(),
            system.log(ROLLUP)
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Another device of the partition of [`DEVICE`].
fn second_device() -> String {
    let partition = partition_of(&DEVICE.parse().unwrap());
    let mut names = (2..).map(|number| format!("plant7/press-{number}"));
    names.find(|name| partition_of(&name.parse().unwrap()) == partition).unwrap()
}

/// Everything that shows the deployment says once that the hub does not listen, for all targets, and nothing that it has
/// converged, or that everything is known.
async fn everything_says_so(system: &System, device: &DeviceKey, targets: u64) {
    let cause = format!("the hub has not listened to partition {}", partition_of(device));
    for words in [&["status"][..], &["status", "web"], &["devices"], &["why", "web"], &["audit"]] {
        let (_, text) = muster(system, words).await;
        assert_eq!(text.matches(&cause).count(), 1, "one cause, muster {words:?}:\n{text}");
        assert!(!text.contains("all known and fresh"), "muster {words:?}:\n{text}");
        assert!(!text.contains("converged ") || text.contains("convergedStale"), "muster {words:?}:\n{text}");
    }
    let (is_right, text) = muster(system, &["audit"]).await;
    assert!(!is_right, "{text}");
    let (has_converged, text) =
        muster(system, &["watch", "web", "--until", "converged", "--within", "2s"]).await;
    assert!(!has_converged && text.contains("convergedStale"), "{text}");
    let answer = system.hub.deployments().await.unwrap();
    let view = answer.iter().find(|view| view.deployment.as_str() == "web").unwrap();
    assert_eq!((view.verdict, view.converged.lo, view.converged.hi), (Verdict::ConvergedStale, 0, targets));
    rebuilt(system).await;
}

/// The subscriber in Python finds the digest of every view in the facts of LEDGER alone.
async fn proven_in_python(system: &System) {
    let mut prover = Command::new(interpreter());
    prover.arg(schemas::folder().join("examples/prove.py")).env("PYTHONDONTWRITEBYTECODE", "1");
    prover.arg(system.dir().join("proof.json")).arg(system.server.url());
    let output = prover.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\"deployment.web\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_ingest_and_a_dead_device_are_shown_as_unheard_and_heal() {
    let (mut system, device) =
        converged_on(System::with_settings(&[]).await, &[DEVICE, &second_device()]).await;
    let mut watch = Watch::start(&system, &["web"]);
    watch.line_with("converged").await;
    system.kill(INGEST).await;
    system.kill(&agent_name(&device)).await;
    unheard_in_time(&system, &device, Instant::now()).await;
    everything_says_so(&system, &device, 2).await;
    watch.line_with("convergedStale").await;
    proven_in_python(&system).await;

    system.start_again(INGEST);
    system
        .eventually("the hub listens again, and the device is silent", async || {
            let view = view(&system).await;
            let is_stale = view["verdict"] == "convergedStale" && view["hub"].is_null();
            if is_stale { Ok(()) } else { Err(view.to_string()) }
        })
        .await;
    let (_, text) = muster(&system, &["why", "web"]).await;
    assert!(text.contains("liveness") && !text.contains("has not listened"), "{text}");
    proven_in_python(&system).await;
    system.start_again(&agent_name(&device));
    verdict(&system, "web", 2, Verdict::Converged).await;
    let (has_converged, text) =
        muster(&system, &["watch", "web", "--until", "converged", "--within", "20s"]).await;
    assert!(has_converged, "{text}");
    rebuilt(&system).await;
}

/// Time between two restarts of ingest: less than a lease, so no session of it learns that a device is silent.
const RESTARTED_EVERY: Duration = Duration::from_secs(2);
const _: () = assert!(RESTARTED_EVERY.as_secs() < LEASE.as_secs());

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_restarts_within_each_lease_keeps_no_dead_device_fresh() {
    let (mut system, device) = converged_on_one().await;
    system.kill(&agent_name(&device)).await;
    // Longest time until the stop: the device's lease, the pulse's lease, and the time for which pulses may go on without a
    // current one.
    let shown_within = 2 * LEASE + PulseFact::unproven_max(LEASE) + Duration::from_secs(10);
    let begun = Instant::now();
    loop {
        system.kill(INGEST).await;
        system.start_again(INGEST);
        tokio::time::sleep(RESTARTED_EVERY).await;
        let view = view(&system).await;
        if view["verdict"] == "convergedStale" {
            break;
        }
        assert!(begun.elapsed() < shown_within, "{view}\n{}", system.log(ROLLUP));
    }
    // It stays so, however long ingest goes on like that.
    for _ in 0..5 {
        system.kill(INGEST).await;
        system.start_again(INGEST);
        tokio::time::sleep(RESTARTED_EVERY).await;
        let view = view(&system).await;
        assert_eq!(view["verdict"], "convergedStale", "{view}");
    }
    let view_heals = async || {
        let view = view(&system).await;
        let is_stale = view["verdict"] == "convergedStale" && view["hub"].is_null();
        if is_stale { Ok(()) } else { Err(view.to_string()) }
    };
    system.eventually("the hub listens again, and the device is silent", view_heals).await;
    system.start_again(&agent_name(&device));
    verdict(&system, "web", 1, Verdict::Converged).await;
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_stands_still_is_shown_as_unheard_and_heals() {
    let (mut system, device) = converged_on_one().await;
    system.freeze(INGEST);
    unheard_in_time(&system, &device, Instant::now()).await;
    everything_says_so(&system, &device, 1).await;
    system.thaw(INGEST);
    verdict(&system, "web", 1, Verdict::Converged).await;
    device_settled(&system, &device, 1).await;
    assert!(view(&system).await["hub"].is_null());
    rebuilt(&system).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_that_is_fenced_off_is_shown_as_unheard_and_heals() {
    let (system, device) = converged_on_one().await;
    let mut answering = Vec::new();
    for partition in 0..PARTITIONS {
        // Somebody who owns the partition, says so, and does nothing else.
        let name = |_: &[u8]| Bytes::from_static(b"impostor");
        answering.push(system.bus.respond(&ask_owner(partition), name).await.unwrap());
        let record = Ownership {
            api_version: ApiVersion::V1,
            kind: kind::Ownership::Ownership,
            owner: "impostor".to_owned(),
            claimed_at: Timestamp::now(),
            fences: 1,
        };
        let subject = LedgerSubject::Owner { partition, fence: 0 }.to_string();
        system.bus.publish(Outgoing::new(subject, decode::to_bytes(&record))).await.unwrap();
    }
    unheard_in_time(&system, &device, Instant::now()).await;
    everything_says_so(&system, &device, 1).await;
    drop(answering);
    verdict(&system, "web", 1, Verdict::Converged).await;
    assert!(view(&system).await["hub"].is_null());
}

/// Changes a setting of LEDGER as an operator could.
async fn set(system: &System, field: &str, value: Value) {
    let api = async |verb: &str, body: Bytes| -> Value {
        let answer =
            system.bus.request(&format!("$JS.API.{verb}"), body, Duration::from_secs(5)).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    };
    let mut config = api("STREAM.INFO.LEDGER", Bytes::new()).await["config"].clone();
    config[field] = value;
    config["discard"] = json!(if field == "max_msgs" && config[field] != -1 { "new" } else { "old" });
    let answer = api("STREAM.UPDATE.LEDGER", config.to_string().into()).await;
    assert!(answer["error"].is_null(), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_takes_nothing_is_told_in_every_answer_and_opens_no_gate() {
    let (mut system, device) = converged_on_one().await;
    set(&system, "max_msgs", json!(1)).await;
    system.kill(&agent_name(&device)).await;
    let begun = Instant::now();
    loop {
        let (_, text) = muster(&system, &["status"]).await;
        if text.starts_with("LEDGER does not take what the hub hears") {
            break;
        }
        assert!(begun.elapsed() < SHOWN_WITHIN, "{text}\n{}", system.log(ROLLUP));
    }
    for words in [&["devices"][..], &["why", "web"], &["audit"], &["device", DEVICE]] {
        let (_, text) = muster(&system, words).await;
        assert!(text.contains("LEDGER does not take what the hub hears"), "muster {words:?}:\n{text}");
    }
    let (has_converged, text) =
        muster(&system, &["watch", "web", "--until", "converged", "--within", "2s"]).await;
    assert!(!has_converged && text.contains("not counted yet"), "{text}");
    set(&system, "max_msgs", json!(-1)).await;
    system.start_again(&agent_name(&device));
    verdict(&system, "web", 1, Verdict::Converged).await;
    let (has_converged, text) =
        muster(&system, &["watch", "web", "--until", "converged", "--within", "30s"]).await;
    assert!(has_converged, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollup_that_gets_nothing_of_ledger_says_that_it_lags() {
    let (system, _) = converged_on_one().await;
    let begun = Instant::now();
    let mut paused = Vec::new();
    loop {
        // The server goes on to answer, and hands out nothing.
        let list =
            system.bus.request("$JS.API.CONSUMER.NAMES.LEDGER", Bytes::new(), Duration::from_secs(5)).await;
        let list: Value = serde_json::from_slice(&list.unwrap()).unwrap();
        for name in list["consumers"].as_array().unwrap() {
            let verb = format!("$JS.API.CONSUMER.PAUSE.LEDGER.{}", name.as_str().unwrap());
            let until = json!({ "pause_until": "2040-01-01T00:00:00Z" }).to_string();
            system.bus.request(&verb, until.into(), Duration::from_secs(5)).await.unwrap();
            paused.push(name.clone());
        }
        let (_, text) = muster(&system, &["status"]).await;
        if text.starts_with("muster-rollup lags") {
            break;
        }
        assert!(begun.elapsed() < SHOWN_WITHIN, "{text}\npaused {paused:?}\n{}", system.log(ROLLUP));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let (has_converged, text) =
        muster(&system, &["watch", "web", "--until", "converged", "--within", "2s"]).await;
    assert!(!has_converged && text.contains("muster-rollup lags"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_hub_leaves_no_pile_of_pulses() {
    let (system, _) = converged_on_one().await;
    let first = async |partition: u16| {
        let subject = LedgerSubject::Hub(partition).to_string();
        system.bus.next_of(stream::LEDGER, 1, &subject).await.unwrap().map(|pulse| pulse.stream_seq)
    };
    let before = first(0).await;
    // The server has begun to forget pulses: from now on there are as many as there will ever be.
    let oldest = || first(0);
    until("the first pulse is forgotten", oldest, |oldest| oldest.is_some() && *oldest != before).await;
    let kept_max = PulseFact::kept_max(LEASE);
    assert_eq!((kept_max, PulseFact::kept_max(Duration::from_secs(90))), (14, 4));
    let mut seen = 0;
    for _ in 0..5 {
        let kept = pulses_kept(&system).await;
        assert_eq!(kept.len(), usize::from(PARTITIONS), "{kept:?}");
        seen = seen.max(*kept.values().max().unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((2..=kept_max + FORGOTTEN_LATE).contains(&seen), "{seen} pulses of a partition");
}

/// Messages that LEDGER holds of each partition's pulse.
async fn pulses_kept(system: &System) -> BTreeMap<String, u64> {
    let filter = json!({ "subjects_filter": "muster.hub.*" }).to_string();
    let info = system.bus.request("$JS.API.STREAM.INFO.LEDGER", filter.into(), Duration::from_secs(5)).await;
    let info: Value = serde_json::from_slice(&info.unwrap()).unwrap();
    serde_json::from_value(info["state"]["subjects"].clone()).unwrap()
}
