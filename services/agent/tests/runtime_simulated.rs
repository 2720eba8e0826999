//! The simulated runtime: it follows its script, in virtual time, and what it pretends outlives the agent.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_agent::package::{PackageSettings, PackageStore};
use muster_agent::runtime::simulated::SimulatedRuntime;
use muster_agent::runtime::{Exit, Running, Runtime, Started, Stopped, Unit, code};
use muster_contract::Timestamp;
use muster_contract::canonical::Digest;
use muster_contract::desired::{Component, ProfileType};
use muster_contract::profile::Workload;
use muster_contract::state::StatusError;
use muster_service::clock::ManualClock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::{Instant, advance, timeout};
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A simulated device. Its clock stands still but when a test moves it: within a life, tokio's time counts.
struct Device {
    runtime: SimulatedRuntime,
    exits: mpsc::Receiver<Exit>,
    clock: ManualClock,
    dir: TempDir,
}

impl Device {
    fn new() -> Self {
        let (dir, clock) = (tempfile::tempdir().unwrap(), ManualClock::at(Timestamp::UNIX_EPOCH));
        let (runtime, exits) = runtime(dir.path(), &clock);
        Self { runtime, exits, clock, dir }
    }

    /// The agent dies, and another comes up after some time.
    fn restart_after(&mut self, away: Duration) {
        self.clock.advance(away.try_into().unwrap());
        (self.runtime, self.exits) = runtime(self.dir.path(), &self.clock);
    }

    /// Starts a unit. Returns how it went, and how long it took.
    async fn start(&self, unit: &Unit) -> (Result<Started, StatusError>, Duration) {
        let begun = Instant::now();
        let never = CancellationToken::new();
        (self.runtime.start(unit, &never).await, begun.elapsed())
    }

    async fn inventory(&self) -> Vec<Running> {
        self.runtime.inventory().await.unwrap()
    }
}

fn runtime(dir: &Path, clock: &ManualClock) -> (SimulatedRuntime, mpsc::Receiver<Exit>) {
    let (sender, exits) = mpsc::channel(8);
    let device = "plant/press".parse().unwrap();
    let packages = PackageStore::new(dir, PackageSettings::default());
    (SimulatedRuntime::new(device, dir, Arc::new(clock.clone()), packages, sender), exits)
}

fn unit(properties: Value) -> Unit {
    let Value::Object(properties) = properties else { panic!("properties are an object") };
    let digest = Digest::of_value(&properties);
    let component = Component::new("web".parse().unwrap(), properties);
    Unit {
        device: "plant/press".parse().unwrap(),
        deployment: "line".parse().unwrap(),
        workload: Workload::of(ProfileType::Simulated, &component).unwrap(),
        is_job: false,
        component: component.name,
        digest,
        environment: Default::default(),
        values: Default::default(),
        namespace: None,
        labels: Default::default(),
    }
}

fn ready_after(seconds: u64) -> (Result<Started, StatusError>, Duration) {
    (Ok(Started::Ready), Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_script_of_nothing_is_ready_at_once_and_stays() {
    let mut device = Device::new();
    let web = unit(json!({}));
    assert_eq!(device.start(&web).await, ready_after(0));
    assert!(timeout(HOUR, device.exits.recv()).await.is_err());
    assert_eq!(device.inventory().await, [Running { name: web.name(), digest_prefix: web.digest_prefix() }]);
}

#[tokio::test(start_paused = true)]
async fn starts_and_stops_take_their_time() {
    let device = Device::new();
    let web = unit(json!({"startDelay": "7s", "stopDelay": "3s"}));
    assert_eq!(device.start(&web).await, ready_after(7));
    assert_eq!(device.start(&web).await, ready_after(0));
    for (timeout, lasting) in [(HOUR, 3), (HOUR, 0)] {
        let begun = Instant::now();
        assert_eq!(device.runtime.stop(&web.name(), timeout).await, Ok(Stopped::InTime));
        assert_eq!(begun.elapsed().as_secs(), lasting);
    }
    assert_eq!(device.inventory().await, []);
    device.start(&web).await.0.unwrap();
    let begun = Instant::now();
    let stopped = device.runtime.stop(&web.name(), Duration::from_secs(1)).await;
    assert_eq!(stopped, Ok(Stopped::Killed));
    assert_eq!(begun.elapsed().as_secs(), 1, "then it is killed");
}

#[tokio::test(start_paused = true)]
async fn the_scripted_number_of_starts_fails() {
    let mut device = Device::new();
    let web = unit(json!({"startDelay": "1s", "failStarts": 3}));
    for (count, restarted, stopped) in [(1, false, false), (2, true, false), (3, false, true)] {
        let (error, lasting) = device.start(&web).await;
        let error = error.unwrap_err();
        assert_eq!((error.code.as_str(), error.source.as_str()), (code::EXITED, "web"));
        assert_eq!(error.message, format!("simulated: start {count} of 3 that fail"));
        assert_eq!(lasting.as_secs(), 1);
        assert_eq!(device.inventory().await, []);
        if restarted {
            device.restart_after(HOUR);
        }
        if stopped {
            device.runtime.stop(&web.name(), HOUR).await.unwrap();
        }
    }
    assert_eq!(device.start(&web).await, ready_after(1));
}

#[tokio::test(start_paused = true)]
async fn a_start_slower_than_its_timeout_fails() {
    let device = Device::new();
    let (error, lasting) = device.start(&unit(json!({"startDelay": "10s", "timeout": "4s"}))).await;
    let error = error.unwrap_err();
    assert_eq!((error.code.as_str(), lasting.as_secs()), (code::NOT_READY, 4));
    assert_eq!(error.message, "simulated: not ready within 4s; its script starts it in 10s");
    assert_eq!(device.inventory().await, []);
}

#[tokio::test(start_paused = true)]
async fn it_crashes_after_every_start() {
    let mut device = Device::new();
    let web = unit(json!({"crashAfter": "30s"}));
    for _ in 0..2 {
        assert_eq!(device.start(&web).await, ready_after(0));
        let begun = Instant::now();
        let exit = device.exits.recv().await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), 30);
        assert_eq!((exit.name, exit.digest_prefix), (web.name(), web.digest_prefix()));
        assert_eq!(
            exit.error,
            StatusError::new(code::EXITED, "web", "simulated: crash 30s after it was ready")
        );
        assert_eq!(device.inventory().await, []);
    }
    device.start(&web).await.0.unwrap();
    device.runtime.stop(&web.name(), HOUR).await.unwrap();
    assert!(timeout(HOUR, device.exits.recv()).await.is_err(), "what was stopped crashes no more");
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_is_up_is_adopted_with_the_rest_of_its_time() {
    let mut device = Device::new();
    let web = unit(json!({"startDelay": "5s", "crashAfter": "30s"}));
    device.start(&web).await.0.unwrap();
    device.restart_after(Duration::from_secs(20));
    assert_eq!(device.inventory().await, [Running { name: web.name(), digest_prefix: web.digest_prefix() }]);
    assert_eq!(device.start(&web).await, ready_after(0));
    let begun = Instant::now();
    device.exits.recv().await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn what_crashed_while_no_agent_was_there_is_gone() {
    let mut device = Device::new();
    let web = unit(json!({"startDelay": "5s", "crashAfter": "30s"}));
    device.start(&web).await.0.unwrap();
    device.restart_after(Duration::from_secs(31));
    assert_eq!(device.inventory().await, []);
    assert_eq!(device.start(&web).await, ready_after(5));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_start_leaves_the_unit_starting() {
    let mut device = Device::new();
    let web = unit(json!({"startDelay": "10s"}));
    let cancel = CancellationToken::new();
    {
        let mut start = device.runtime.start(&web, &cancel);
        assert!(timeout(Duration::from_secs(4), &mut start).await.is_err());
        cancel.cancel();
        assert_eq!(start.await, Ok(Started::Cancelled));
    }
    assert_eq!(device.inventory().await.len(), 1);
    device.restart_after(Duration::from_secs(4));
    assert_eq!(device.start(&web).await, ready_after(6));
}

#[tokio::test(start_paused = true)]
async fn another_version_begins_its_script_anew() {
    let device = Device::new();
    let old = unit(json!({"crashAfter": "1h"}));
    let new = unit(json!({"startDelay": "2s", "failStarts": 1}));
    device.start(&old).await.0.unwrap();
    device.runtime.stop(&old.name(), HOUR).await.unwrap();
    assert_eq!(device.start(&new).await.0.unwrap_err().message, "simulated: start 1 of 1 that fail");
    assert_eq!(device.start(&new).await, ready_after(2));
    advance(2 * HOUR).await;
    assert_eq!(device.inventory().await, [Running { name: new.name(), digest_prefix: new.digest_prefix() }]);
}

#[tokio::test(start_paused = true)]
async fn a_data_directory_that_takes_nothing_fails_the_start_and_says_so() {
    let device = Device::new();
    std::fs::create_dir(device.dir.path().join("simulated.json.new")).unwrap();
    let error = device.start(&unit(json!({}))).await.0.unwrap_err();
    assert_eq!(error.code, code::START_FAILED);
    assert!(error.message.contains("simulated.json") && error.message.contains("--data-dir"), "{error:?}");
    assert_eq!(device.inventory().await, []);
}
