//! Fixtures of the tests of rollouts: a governed system, a planner, and the commands of an operator.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::process::Command;

use bytes::Bytes;
use muster_bus::Outgoing;
use muster_contract::DeviceKey;
use muster_contract::desired::DesiredState;
use muster_contract::rollout::{RolloutDecision, RolloutDecisions};
use muster_contract::subjects::{self, stream};
use muster_simulator::child::Spec;
use serde_json::Value;

use crate::story;
use crate::system::{System, program};

/// The devices of a governed system.
pub const DEVICES: [&str; 4] = ["plant7/press-1", "plant7/press-2", "plant8/press-3", "plant8/press-4"];
/// The planner's program.
pub const PLANNER: &str = "muster-planner";
/// Where the rollout of a governed system is.
pub const ROLLOUT_FILE: &str = "fleet/rollout.yaml";

/// Four devices that run the first release of `web`, governed by a rollout from the next commit on.
pub async fn governed(rollout: &str) -> (System, Vec<DeviceKey>) {
    let mut system = System::start().await;
    let devices = story::settled(&mut system, &DEVICES, "web").await;
    system.repository.write(ROLLOUT_FILE, rollout).unwrap();
    (system, devices)
}

/// Commits a release of `web`; the commit.
///
/// # Panics
/// Git refuses.
pub async fn release(system: &System, text: &str) -> String {
    system.repository.write("fleet/web.yaml", text).unwrap();
    system.repository.commit("a release").await.unwrap();
    let head = Command::new("git").current_dir(system.repository.dir()).args(["rev-parse", "HEAD"]).output();
    String::from_utf8(head.unwrap().stdout).unwrap().trim().to_owned()
}

/// Changes the recorded decisions about `web` behind the publisher's back.
///
/// # Panics
/// None is recorded, or it cannot be published.
pub async fn tamper(system: &System, change: impl Fn(&mut RolloutDecision)) {
    let subject = subjects::rollout(&"web".parse().unwrap(), ROLLOUT_FILE);
    let last = system.bus.last(stream::DOWNLINK, &subject).await.unwrap().unwrap();
    let mut decisions: RolloutDecisions = muster_contract::decode::parse(&last.payload).unwrap();
    for record in &mut decisions.rollouts {
        record.decisions.iter_mut().for_each(&change);
    }
    let payload = Bytes::from(serde_json::to_vec(&decisions).unwrap());
    system.bus.publish(Outgoing::new(subject, payload)).await.unwrap();
}

/// Starts a planner that looks five times a second, and keeps its checkpoint in the system's folder.
pub fn start_planner(system: &mut System) {
    let folder = system.dir().join("planner").display().to_string();
    let args = [
        "--nats-url",
        &system.server.url(),
        "--every",
        "200ms",
        "--data-dir",
        &folder,
        "--checkpoint-every",
        "1s",
    ];
    let args = args.map(str::to_owned).to_vec();
    system.start_own(Spec { name: PLANNER.to_owned(), program: program(PLANNER), args });
}

/// Runs a command; its exit code and its output.
///
/// # Panics
/// It cannot be run.
pub async fn muster(system: &System, words: &[&str]) -> (i32, String) {
    let output = system.muster(words).await;
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Runs a command whose answer is JSON; its exit code and the answer.
///
/// # Panics
/// The answer is none.
pub async fn json(system: &System, words: &[&str]) -> (i32, Value) {
    let output = system.muster(&[words, &["--format", "json"]].concat()).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (output.status.code().unwrap(), value)
}

/// Waits until a command says this; what it said.
pub async fn says(system: &System, command: &[&str], words: &str) -> String {
    let said = async || {
        let (_, text) = muster(system, command).await;
        if text.contains(words) { Ok(text) } else { Err(text) }
    };
    system.eventually(&format!("{command:?} says '{words}'"), said).await
}

/// Waits until `muster rollout show web` says this.
pub async fn shows(system: &System, words: &str) -> String {
    says(system, &["rollout", "show", "web"], words).await
}

/// The newest document of a device in DOWNLINK.
///
/// # Panics
/// The device has none, or nobody can read it.
pub async fn document(system: &System, device: &str) -> DesiredState {
    let subject = subjects::desired(&device.parse().unwrap());
    let last = system.bus.last(stream::DOWNLINK, &subject).await.unwrap().unwrap();
    muster_contract::decode::parse(&last.payload).unwrap()
}

/// The releases of `web` that devices have in DOWNLINK, in the order of [`DEVICES`].
///
/// # Panics
/// A device has none.
pub async fn published(system: &System) -> Vec<String> {
    let mut releases = Vec::new();
    for device in DEVICES {
        let document = document(system, device).await;
        let release = document.deployments[0].parameters["release"].value.as_str().unwrap().to_owned();
        releases.push(release);
    }
    releases
}

/// Waits until every device has a release of `web` in DOWNLINK.
pub async fn all_have(system: &System, release: &str) {
    let done = async || match published(system).await {
        all if all == [release; DEVICES.len()] => Ok(()),
        all => Err(format!("{all:?}")),
    };
    system.eventually(&format!("every device has release {release}"), done).await;
}
