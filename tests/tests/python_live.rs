//! Python examples in the whole system: a view that follows LEDGER, and a device whose reports are in every view beside those
//! of our own agents.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's result")]

use muster_contract::DeviceKey;
use muster_contract::query::{DeploymentAnswer, DeviceAnswer};
use muster_contract::view::{Freshness, Standing, Verdict};
use muster_simulator::repository::write_devices;
use muster_tests::example::{Example, Language};
use muster_tests::story::sleeper;
use muster_tests::system::{ROLLUP, System};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const OURS: &str = "plant7/press-1";
const FOREIGN: &str = "plant8/foreign-1";

#[tokio::test]
async fn a_foreign_device_is_in_every_view_beside_our_own() {
    let mut system = System::start().await;
    let _device = mixed_fleet(&mut system).await;
    let answer: DeviceAnswer = shown(&system, &["device", FOREIGN]).await.unwrap();
    assert_eq!(answer.device.freshness, Freshness::Fresh);
    assert_eq!(answer.agent_version.as_deref(), Some("durable_device.py 1"));
    assert_eq!(answer.deployments[0].standing, Standing::Installed);
    // Capabilities and the three states of one deployment, all in, none twice.
    assert_eq!((answer.device.head, answer.device.account.received), (4, 4));
    let audit = system.muster(&["audit"]).await;
    assert_eq!(audit.status.code(), Some(0), "{}", String::from_utf8_lossy(&audit.stdout));
}

#[tokio::test]
async fn a_foreign_device_removes_what_it_shall_not_run_any_more() {
    let mut system = System::start().await;
    let device = mixed_fleet(&mut system).await;
    std::fs::remove_file(system.repository.dir().join("fleet/web.yaml")).unwrap();
    system.repository.commit("nothing runs").await.unwrap();
    system
        .eventually("web is nowhere", async || {
            let answer: Option<DeploymentAnswer> = shown(&system, &["status", "web"]).await;
            answer.map_or(Ok(()), |answer| Err(answer.view.verdict.as_str().to_owned()))
        })
        .await;
    device.kill().await;
    system
        .eventually("the killed device is stale", async || {
            let answer: DeviceAnswer = shown(&system, &["device", FOREIGN]).await.unwrap();
            let freshness = answer.device.freshness;
            if freshness == Freshness::Stale { Ok(()) } else { Err(format!("{freshness:?}")) }
        })
        .await;
}

#[tokio::test]
async fn a_subscribers_view_follows_ledger_without_a_gap() {
    let mut system = System::start().await;
    let _device = mixed_fleet(&mut system).await;
    let mut view = view(&system);
    until_standing(&mut view, &json!({ "installed": 2 })).await;

    system.repository.write("sites/plant7/tap.yaml", &sleeper("tap", 1)).unwrap();
    system.repository.commit("tap").await.unwrap();
    until_standing(&mut view, &json!({ "installed": 3 })).await;

    std::fs::remove_file(system.repository.dir().join("fleet/web.yaml")).unwrap();
    system.repository.commit("no web").await.unwrap();
    until_standing(&mut view, &json!({ "installed": 1 })).await;
    view.kill().await;
}

#[tokio::test]
async fn a_subscriber_goes_on_while_the_query_service_is_away() {
    let mut system = System::start().await;
    let _device = mixed_fleet(&mut system).await;
    let mut view = view(&system);
    until_standing(&mut view, &json!({ "installed": 2 })).await;
    system.kill(ROLLUP).await;
    system.repository.write("sites/plant8/tap.yaml", &sleeper("tap", 1)).unwrap();
    system.repository.commit("tap").await.unwrap();
    until_standing(&mut view, &json!({ "installed": 3 })).await;
    view.kill().await;
}

/// A view of the fleet's one group.
fn view(system: &System) -> Example {
    let file = system.dir().join("ring.json");
    let args = ["ring", file.to_str().unwrap(), "--url", &system.server.url()];
    Example::start(Language::Python, "view", &args)
}

/// Reads lines until the group has these targets by standing. The hub never disagrees.
async fn until_standing(view: &mut Example, wanted: &Value) {
    loop {
        let line: Value = serde_json::from_str(&view.line().await).unwrap();
        assert_ne!(line["agrees"], json!(false), "{line}");
        if line["ring"]["canary"] == *wanted {
            return;
        }
    }
}

/// One agent of ours and one in Python with the same deployment, converged.
async fn mixed_fleet(system: &mut System) -> Example {
    let keys: Vec<DeviceKey> = [OURS, FOREIGN].iter().map(|key| key.parse().unwrap()).collect();
    write_devices(&system.repository, &keys).unwrap();
    system.repository.write("fleet/web.yaml", &sleeper("web", 1)).unwrap();
    system.repository.write("fleet/labels.yaml", "ring: canary\n").unwrap();
    system.repository.commit("web").await.unwrap();
    let hub = system.address();
    system.start_agent(&keys[0], hub, &[]);
    let file = system.dir().join("foreign.json");
    let args = [FOREIGN, file.to_str().unwrap(), "--url", &system.server.url(), "--heartbeat", "1"];
    let device = Example::start(Language::Python, "durable_device", &args);
    system
        .eventually("web has converged on both", async || {
            let answer: DeploymentAnswer =
                shown(system, &["status", "web"]).await.ok_or("no such deployment yet")?;
            let view = answer.view;
            let there = view.verdict == Verdict::Converged && view.targets == 2;
            if there { Ok(()) } else { Err(serde_json::to_string(&view).unwrap()) }
        })
        .await;
    device
}

/// The answer of `muster`; none if it finds nothing.
async fn shown<T: DeserializeOwned>(system: &System, words: &[&str]) -> Option<T> {
    let output = system.muster(&[words, &["--format", "json"]].concat()).await;
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}
